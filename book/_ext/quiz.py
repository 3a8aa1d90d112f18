"""A directive for self-scoring questions that work in the static page, with no kernel and no network.

In Markdown, with YAML in the body (JupyterLab shows it as a readable block)::

    ```{quiz}
    question: What does a report of one cell tell the learner?
    choices:
      - text: The value of $f$ at the center of the cell.
        feedback: No, no single point is seen.
      - text: The mean of $f$ over the cell, with noise.
        right: true
        feedback: Yes, a query is a weighted set of points.
    ```

Exactly one choice is right and every choice has feedback. Texts are inline MyST: math, emphasis, references.
The page gets radio buttons in a fieldset; ``quiz.js`` scores the answer and announces the feedback.
"""

from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class quiz(nodes.General, nodes.Element):
    """The whole question."""


class quiz_question(nodes.General, nodes.TextElement):
    """The text of the question."""


class quiz_choice(nodes.General, nodes.TextElement):
    """One choice."""


class quiz_feedback(nodes.General, nodes.TextElement):
    """What the reader is told about one choice."""


def parse(body: str) -> dict[str, Any]:
    """Read the YAML of a question.

    Raises:
        ValueError: if a part is missing, misspelled or of the wrong type, or not exactly one choice is right.
    """
    try:
        data = yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise ValueError(f"the body is not YAML (quote a text that holds ': '): {error}") from error
    if not isinstance(data, dict) or set(data) != {"question", "choices"}:
        raise ValueError("the body needs exactly the keys 'question' and 'choices'")
    if not isinstance(data["question"], str):
        raise ValueError("'question' must be text")
    if not isinstance(data["choices"], list) or len(data["choices"]) < 2:
        raise ValueError("'choices' must be a list of at least two")
    for number, choice in enumerate(data["choices"], start=1):
        needed = {"text", "feedback"}
        if not isinstance(choice, dict) or not needed <= set(choice) <= needed | {"right"}:
            raise ValueError(f"choice {number} needs 'text' and 'feedback', and may have 'right'")
        if not all(isinstance(choice[key], str) for key in ("text", "feedback")):
            raise ValueError(f"'text' and 'feedback' of choice {number} must be text: put it in quotes")
        if not isinstance(choice.get("right", False), bool):
            raise ValueError(f"'right' of choice {number} must be true or false")
    right = sum(choice.get("right", False) for choice in data["choices"])
    if right != 1:
        raise ValueError(f"exactly one choice must have 'right: true', found {right}")
    return data


class QuizDirective(SphinxDirective):
    """Turn the YAML body into nodes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Build the question."""
        try:
            data = parse("\n".join(self.content))
        except ValueError as error:
            raise self.error(f"quiz: {error}") from error
        name = f"quiz-{self.env.new_serialno('quiz')}"
        root = quiz(name=name)
        root += self._inline(quiz_question(), data["question"])
        for number, choice in enumerate(data["choices"]):
            mark = {"name": name, "number": number, "right": choice.get("right", False)}
            root += self._inline(quiz_choice(**mark), choice["text"])
        for number, choice in enumerate(data["choices"]):
            root += self._inline(quiz_feedback(name=name, number=number), choice["feedback"])
        return [root]

    def _inline(self, node: nodes.TextElement, text: str) -> nodes.TextElement:
        children, messages = self.state.inline_text(text.strip(), self.lineno)
        node.extend([*children, *messages])
        return node


def visit_quiz(self: Any, node: quiz) -> None:
    """Open the form."""
    self.body.append(f'<form class="cbo-quiz" id="{node["name"]}"><fieldset>\n')


def depart_quiz(self: Any, node: quiz) -> None:
    """Close the live region that holds the feedback, and the form."""
    self.body.append("</div></form>\n")


def visit_question(self: Any, node: quiz_question) -> None:
    """Open the question."""
    self.body.append("<legend>")


def depart_question(self: Any, node: quiz_question) -> None:
    """Close the question."""
    self.body.append("</legend>\n")


def visit_choice(self: Any, node: quiz_choice) -> None:
    """Open a choice."""
    key = f"{node['name']}-{node['number']}"
    right = " data-right" if node["right"] else ""
    self.body.append(
        f'<div class="cbo-quiz-choice"><input type="radio" name="{node["name"]}" id="{key}" '
        f'value="{node["number"]}"{right}><label for="{key}">'
    )


def depart_choice(self: Any, node: quiz_choice) -> None:
    """Close a choice, and after the last one the fieldset; then open the live region."""
    self.body.append("</label></div>\n")
    if not isinstance(node.next_node(siblings=True, descend=False), quiz_choice):
        self.body.append(
            '</fieldset><button type="submit">Check</button>'
            "<noscript>Scoring needs JavaScript.</noscript>\n"
            '<div class="cbo-quiz-result" role="status" aria-live="polite">'
            '<strong class="cbo-quiz-verdict"></strong>\n'
        )


def visit_feedback(self: Any, node: quiz_feedback) -> None:
    """Open the feedback of a choice, hidden until it is asked for."""
    self.body.append(f'<span class="cbo-quiz-feedback" data-choice="{node["number"]}" hidden>')


def depart_feedback(self: Any, node: quiz_feedback) -> None:
    """Close the feedback."""
    self.body.append("</span>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and how its parts are written."""
    app.add_directive("quiz", QuizDirective)
    app.add_node(quiz, html=(visit_quiz, depart_quiz))
    app.add_node(quiz_question, html=(visit_question, depart_question))
    app.add_node(quiz_choice, html=(visit_choice, depart_choice))
    app.add_node(quiz_feedback, html=(visit_feedback, depart_feedback))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
