"""Make student releases of the exercise notebooks: tasks without solutions, targets and keys.

    python book/_tools/handout.py build/handout

A release runs wherever ``cbo_lib`` is installed with its extra ``book``. Its check cells say whether an answer has the
right form; the cells that know what is right stay with the teacher. As an extension of the build it takes the
solutions and targets out of the pages if the environment has ``SOLUTIONS=no``.
"""

import argparse
import ast
import copy
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from book._ext import policy_code

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## Exercise (\d+) \((\w+)\): (.*)$", re.M)
POINTS = re.compile(r"^\*(\d+) points \((\d+(?: \+ \d+)*)\), about (\d+) minutes\.\*$", re.M)

FORM = '''
import dis

import numpy


def is_numeric(part):
    """Whether a part is a number, or is made of numbers alone."""
    if isinstance(part, (list, tuple)):
        return all(map(is_numeric, part))
    if callable(part) or isinstance(part, str):
        return False
    try:
        numpy.asarray(part.detach() if hasattr(part, "detach") else part, dtype=float)
    except (TypeError, ValueError):
        return False
    return True


def is_empty(function):
    """Whether a function does nothing but return None."""
    steps = list(dis.get_instructions(function)) if hasattr(function, "__code__") else []
    known = {"RESUME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    idle = all(s.opname in known and (s.argval is None or "CONST" not in s.opname) for s in steps)
    return bool(steps) and idle


def form(number, answer, names, kinds):
    """Say whether an answer has the right form. Whether it is right is decided when you hand it in."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    title = f"Exercise {number}:"
    if isinstance(answer, list) and len(names) > 1:
        return f"{title} give a tuple ({', '.join('abcdefgh'[: len(names)])}), not a list."
    if len(parts) != len(names):
        return f"{title} the answer has {len(parts)} parts, not {len(names)}."
    for part, name, kind in zip(parts, names, kinds, strict=True):
        if part is None:
            return f"{title} no answer yet, {name} is missing."
        if kind == "class" and not isinstance(part, type):
            return f"{title} {name} should be a class, not {part!r}."
        if kind == "function" and (isinstance(part, type) or not callable(part)):
            return f"{title} {name} should be a function, not {part!r}."
        if kind == "function" and is_empty(part):
            return f"{title} the function {name} still returns None."
        if kind == "value" and not is_numeric(part):
            return f"{title} {name} should be a number, or numbers alone, not {part!r}."
    return f"{title} the answer has the right form."
'''

NEEDS = "This notebook needs Python with the package `cbo_lib` and its extra `book`, and no other file.\n\n"
INTRODUCTION = {
    "You run the check, which says what is right or which mistake it sees.\nOnly then do you open the solution.": (
        "You run the check, which says whether the answer has the right form; whether it is right is decided when you"
        " hand in the notebook.\nChange nothing but the cells that hold a `TODO`; you may add cells of your own."
    ),
    "Each exercise has the same four parts.": "Each exercise has the same three parts, and says what each part of its"
    " answer is worth.",
    "All checks share three helpers.": "All checks share one helper.",
    "Choose an answer and press the button.": "Choose an answer to each.",
}


def works(root: Path = ROOT) -> dict[str, tuple[str, str | None]]:
    """The works of the bibliography by key: as a reader writes them, "Zhang et al. (2022)", and an address or None."""
    found = {}
    for entry in re.split(r"^@", (root / "book" / "references.bib").read_text(encoding="utf-8"), flags=re.M)[1:]:
        fields = dict(re.findall(r"^\s*(\w+)\s*=\s*[{\"](.*?)[}\"],?\s*$", entry, flags=re.M))
        names = [name.split(",")[0].strip("{} ") for name in fields["author"].split(" and ")]
        who = names[0] + (" et al." if len(names) > 2 else f" and {names[1]}" if len(names) == 2 else "")
        address = f"https://doi.org/{fields['doi']}" if "doi" in fields else fields.get("url")
        found[entry[entry.index("{") + 1 : entry.index(",")].strip()] = (f"{who} ({fields['year']})", address)
    return found


def entries(root: Path = ROOT) -> dict[str, str]:
    """How the works of the bibliography are cited, by key."""
    return {key: name for key, (name, _) in works(root).items()}


def plain_question(body: str) -> str:
    """A question and its choices, without its key."""
    quiz = yaml.safe_load(body)
    choices = [f"- [ ] {choice['text']}" for choice in quiz["choices"]]
    return "\n".join(["**Question.** " + quiz["question"].strip(), "", *choices])


def plain(text: str, works: dict[str, str]) -> str:
    """Text as JupyterLab shows it: without the book's directives, citations by name, no links to absent pages."""
    text = text.replace("questions that score themselves", "questions").replace("Run time:", f"{NEEDS}Run time:")
    text = re.sub(r"^```\{quiz\}\n(.*?)^```$", lambda m: plain_question(m[1]), text, flags=re.M | re.S)
    text = re.sub(r"^:::\{(exercise|admonition)\}.*?\n(:\w+:.*\n)*", "", text, flags=re.M)
    text = re.sub(r"^:::\n?", "", text, flags=re.M)
    text = re.sub(r"\{cite:\w\}`(\w+)`", lambda m: works[m[1]], text)
    return policy_code.plain(re.sub(r"\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", text)).strip()


def asked(student: str) -> tuple[int, list[str], list[str]]:
    """The number of an exercise, and the names and kinds of the parts of its answer, from the cell to fill in."""
    tree = ast.parse(student)
    kinds = {
        node.name: "class" if isinstance(node, ast.ClassDef) else "function"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    last = tree.body[-1]
    assert isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name)
    parts = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    values = iter(re.split(r", (?!if)", student.splitlines()[last.lineno - 2].partition("# TODO: ")[2]))
    named = [part.id if isinstance(part, ast.Name) else next(values, "a value") for part in parts]
    return int(last.targets[0].id.partition("_")[2]), named, [kinds.get(name, "value") for name in named]


@dataclass(frozen=True)
class Exercise:
    """What an exercise asks, and what its parts are worth.

    Attributes:
        number: from 1.
        title: as the notebook has it.
        level: easy, medium or hard.
        names: of the parts of the answer.
        kinds: ``"value"``, ``"function"`` or ``"class"`` each.
        points: of each part.
        minutes: that it takes.
        stub: the cell to fill in.
    """

    number: int
    title: str
    level: str
    names: list[str]
    kinds: list[str]
    points: list[int]
    minutes: int
    stub: str

    @property
    def total(self) -> int:
        """All points."""
        return sum(self.points)


def exercises(notebook: nbformat.NotebookNode) -> list[Exercise]:
    """The exercises of a notebook.

    Raises:
        ValueError: if one does not state points and minutes, or not one number for each part of its answer.
    """
    found, head, worth = [], None, None
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (title := HEADING.match(cell.source)):
            head, worth = title, POINTS.search(cell.source)
        elif "student" in cell.metadata.get("tags", []):
            number, names, kinds = asked(cell.source)
            if head is None or worth is None or int(head[1]) != number:
                raise ValueError(f"exercise {number} must state its points and minutes")
            points = [int(n) for n in worth[2].split(" + ")]
            if len(points) != len(names) or sum(points) != int(worth[1]):
                raise ValueError(f"exercise {number} must state points for its {len(names)} parts, got {worth[0]}")
            found.append(Exercise(number, head[3], head[2], names, kinds, points, int(worth[3]), cell.source))
    return found


def without_solutions(notebook: NotebookNode) -> NotebookNode:
    """An exercise notebook whose checks know the form of an answer alone.

    Raises:
        ValueError: if a cell to fill in is not followed by its check.
    """
    cells, task, helpers = [], None, False
    for cell in copy.deepcopy(notebook.cells):
        tags = cell.metadata.get("tags", [])
        if "solution" in tags or cell.source.startswith("## For teachers"):
            continue
        if cell.cell_type == "markdown":
            for old, new in INTRODUCTION.items():
                cell.source = cell.source.replace(old, new)
        elif "student" in tags:
            task = asked(cell.source)
        elif "check" in tags:
            if helpers and task is None:
                raise ValueError(f"a check must follow a cell to fill in, got {cell.source[:60]!r}")
            if task is None:
                cell.source, helpers = FORM.strip(), True
            else:
                number, names, kinds = task
                cell.source, task = f"print(form({number}, answer_{number},\n    {names},\n    {kinds}))", None
        cells.append(cell)
    if task is not None:
        raise ValueError(f"exercise {task[0]} must have a check")
    _drop_imports(cells)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def _drop_imports(cells: list[NotebookNode]) -> None:
    """Take names away that only checks and solutions use: some tell how to answer, or are what is asked for."""
    spans = [span for c in cells if c.cell_type == "markdown" for span in re.findall(r"`[^`\n]+`", c.source)]
    code = [cell for cell in cells if cell.cell_type == "code"]
    used = {"figures"}.union(*(_used(cell.source) for cell in code if cell.source != FORM.strip()))
    for cell in code:
        for line in re.findall(r"^from [\w.]+ import (?:\([^)]*\)|[^(\n]+)\n?", cell.source, flags=re.M):
            node = ast.parse(line).body[0]
            assert isinstance(node, ast.ImportFrom)
            kept = [
                name.name
                for name in node.names
                if name.name in used or any(re.search(rf"(?<![\w.]){name.name}\b", span) for span in spans)
            ]
            new = f"from {node.module} import {', '.join(kept)}\n" if kept else ""
            if len(new) > 89:
                new = f"from {node.module} import (\n    " + ",\n    ".join(kept) + ",\n)\n"
            if len(kept) < len(node.names):
                cell.source = cell.source.replace(line, new)
        cell.source = cell.source.rstrip("\n")


def _used(source: str) -> set[str]:
    """The names that a cell uses; those after a dot and those of parameters are others."""
    tree = ast.parse(re.sub(r"^%.*$", "", source, flags=re.M))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def mark_cells(notebook: NotebookNode, found: list[Exercise]) -> None:
    """Say in nbgrader's words which cells are to fill in, and which are checks that count so many points."""
    left = iter(found)
    exercise = None
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = NotebookNode()
        about = {"schema_version": 3, "task": False, "grade": False, "solution": False, "locked": True}
        if "student" in tags:
            exercise = next(left)
            about |= {"grade_id": f"answer_{exercise.number}", "solution": True, "locked": False}
        elif "check" in tags and exercise is not None:
            about |= {"grade_id": f"check_{exercise.number}", "grade": True, "points": exercise.total}
            cell.metadata |= {"editable": False, "deletable": False}  # an answer typed here would not be run
        elif "check" in tags:
            about |= {"grade_id": "form"}
        else:
            continue
        cell.metadata["nbgrader"] = {**about, "cell_type": cell.cell_type}


def release(notebook: NotebookNode, works: dict[str, str]) -> NotebookNode:
    """The student release of an exercise notebook: without solutions, in plain text, without outputs."""
    result = without_solutions(notebook)
    mark_cells(result, exercises(notebook))
    for cell in result.cells:
        if cell.cell_type == "markdown":
            cell.source = plain(cell.source, works)
        else:
            cell.outputs, cell.execution_count = [], None
    return result


def without_mistakes(text: str) -> str:
    """The guide without what names right values, or says where they stand and what the judge compares."""
    text = re.sub(r"^\| \| Mistake .*?(\n\n|\Z)", "", text, flags=re.M | re.S)
    return re.sub(r"^(Some parts can be looked up|The judge runs it also) .*(\n|\Z)", "", text, flags=re.M)


def strip(app: Sphinx, docname: str, source: list[str]) -> None:
    """Take the solutions out of an exercise notebook, and what helps to guess them out of the guide."""
    if docname.endswith(("teaching/mistakes", "teaching/index")):
        source[0] = without_mistakes(source[0])
    if docname.endswith("5_exercises"):
        source[0] = nbformat.writes(without_solutions(nbformat.reads(source[0], as_version=4)))


def offer_releases(app: Sphinx, exception: Exception | None) -> None:
    """Strip what lies beside the pages: downloads become student releases, whatever copies lie there."""
    if exception is not None:
        return
    works, places = entries(), Path(app.outdir) / "_sources"
    for path in places.rglob("5_exercises.ipynb"):
        own = Path(app.srcdir) / path.relative_to(places)
        nbformat.write(release(nbformat.read(own, as_version=4), works), path)
    for path in places.rglob("teaching/*.md"):
        path.write_text(without_mistakes(path.read_text(encoding="utf-8")), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    if os.environ.get("SOLUTIONS") == "no":
        app.connect("source-read", strip)
        app.connect("build-finished", offer_releases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def chapters(root: Path = ROOT) -> list[str]:
    """The chapters with exercises."""
    return sorted(path.parent.name for path in root.glob("book/*/5_exercises.ipynb"))


def main() -> None:
    """Write all releases into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    works = entries()
    for chapter in chapters():
        notebook = nbformat.read(ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4)
        target = folder / f"{chapter}.ipynb"
        nbformat.write(release(notebook, works), target)
        print(target)


if __name__ == "__main__":
    main()
