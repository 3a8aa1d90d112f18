"""The quiz directive accepts what CONTRIBUTING.md shows and refuses everything else with a reason."""

import re
from pathlib import Path

import pytest

from book._ext import quiz

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
question: Which?
choices:
  - {text: this, feedback: sure, right: true}
  - {text: that, feedback: sorry}
"""


def test_example_of_the_documentation_is_valid() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    bodies = re.findall(r"```\{quiz\}\n(.*?)```", text, flags=re.S)
    assert bodies
    for body in bodies:
        assert len(quiz.parse(body)["choices"]) >= 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("right: true", "right: false", "exactly one choice"),
        ("feedback: sorry", "feedback: sorry, right: true", "exactly one choice"),
        ("right: true", "right: maybe", "true or false"),
        ("right: true", "correct: true", "choice 1 needs"),
        (", feedback: sorry", "", "choice 2 needs"),
        ("text: that", "text: 3", "must be text"),
        ("question: Which?", "title: Which?", "'question' and 'choices'"),
        ("question: Which?", "question: [a]", "'question' must be text"),
        ("  - {text: that, feedback: sorry}\n", "", "at least two"),
        ("Which?", "Which: that", "not YAML"),
    ],
)
def test_malformed_question_is_refused(old: str, new: str, message: str) -> None:
    quiz.parse(GOOD)
    bad = GOOD.replace(old, new)
    assert bad != GOOD
    with pytest.raises(ValueError, match=re.escape(message)):
        quiz.parse(bad)
