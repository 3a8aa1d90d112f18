"""What the tests of all exercise notebooks share: a notebook's cells, two ways to run it, and tests to pass.

A test module takes over the tests and says which notebook they are about::

    from tests.exercises import *
    from tests.exercises import Exercises

    notebook, stripped, solved = Exercises("subsets").fixtures()
"""

import contextlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from book._tools import handout

__all__ = [
    "test_an_introduction_says_how_many_digits",
    "test_code_fits_the_page",
    "test_nan_is_refused",
    "test_nonsense_is_told_so",
    "test_questions_stand_between_the_exercises",
    "test_release_keeps_its_secrets",
    "test_release_runs_and_takes_the_solutions",
    "test_runs_without_solutions",
    "test_solution_is_accepted",
    "test_solution_stands_behind_a_toggle",
]
NUMBERS = range(1, 9)
Cell = dict[str, Any]


def code(cell: Cell) -> str:
    return "".join(cell["source"])


def tags(cell: Cell) -> list[str]:
    return cell["metadata"].get("tags", [])


def draws_a_figure(cell: Cell) -> bool:
    return "figures.show" in code(cell) or "figures.line" in code(cell)


def remember_runs(check: Callable[..., Any], patch: pytest.MonkeyPatch, *kinds: type) -> None:
    """A policy of exactly these classes, or a check's probe of one, is run once for all wrong numbers about its run."""
    space, runs = check.__globals__, {}
    simulate = space["simulate"]

    def once(problem: Any, policy: Any, steps: int, seeds: Any, **more: Any) -> Any:
        kind = type(policy)
        kind = kind.__bases__[0] if kind.__name__ == "Probe" else kind
        if kind not in kinds:
            return simulate(problem, policy, steps, seeds, **more)
        key = kind, policy.initial, id(problem), steps, tuple(seeds)
        if key not in runs:  # the problem is kept too: another could get its id
            runs[key] = problem, simulate(problem, policy, steps, seeds, **more)
        return runs[key][1]

    patch.setitem(space, "simulate", once)


class Exercises:
    """The exercise notebook of a setting; ``needless`` says which cells of its solutions no test needs."""

    def __init__(self, setting: str, needless: Callable[[Cell], bool] = draws_a_figure) -> None:
        self.needless = needless
        path = Path(__file__).resolve().parents[1] / "book" / setting / "5_exercises.ipynb"
        self.text = path.read_text(encoding="utf-8")
        self.cells = [c for c in json.loads(self.text)["cells"] if c["cell_type"] == "code"]
        self.release = handout.release(nbformat.reads(self.text, as_version=4), handout.entries())

    def fixtures(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
        """``notebook``, ``stripped`` and ``solved`` for a test module."""

        @pytest.fixture(scope="module")
        def notebook() -> Exercises:
            return self

        @pytest.fixture(scope="module")
        def stripped() -> Iterator[dict[str, Any]]:
            """The notebook as a teacher hands it out, run from top to bottom; what it printed and warned of."""
            space: dict[str, Any] = {}
            dtype = torch.get_default_dtype()  # notebooks set another
            printed, warned = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(warned):
                for cell in self.cells:
                    if "solution" not in tags(cell):
                        exec(code(cell), space)
            space["printed"], space["warned"] = printed.getvalue(), warned.getvalue()
            yield space
            torch.set_default_dtype(dtype)

        @pytest.fixture(scope="module")
        def solved(stripped: dict[str, Any]) -> dict[str, Any]:
            """Also its solutions, but for what is needless."""
            space = dict(stripped)
            with contextlib.redirect_stdout(io.StringIO()):
                for cell in self.cells:
                    if "solution" in tags(cell) and not self.needless(cell):
                        exec(code(cell), space)
            return space

        return notebook, stripped, solved


def test_runs_without_solutions(stripped: dict[str, Any]) -> None:
    assert stripped["printed"].splitlines() == [f"Exercise {n}: no answer yet." for n in NUMBERS]
    assert stripped["warned"] == ""


def test_an_introduction_says_how_many_digits(notebook: Exercises) -> None:
    for cells in (json.loads(notebook.text)["cells"], notebook.release.cells):
        assert "four significant digits" in code(cells[0])


@pytest.mark.parametrize("number", NUMBERS)
def test_solution_is_accepted(number: int, solved: dict[str, Any]) -> None:
    assert solved[f"check_{number}"](solved[f"solution_{number}"]) == f"Exercise {number}: correct."


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("answer", ["nonsense", 1, (), (1, 2), (1, 2, 3), (print, print, print), (print,) * 4])
def test_nonsense_is_told_so(number: int, answer: object, solved: dict[str, Any]) -> None:
    assert "not yet" in solved[f"check_{number}"](answer)
    assert "no answer yet" in solved[f"check_{number}"]((answer, None))


def spoiled(part: Any) -> Any:
    """A part of an answer that is NaN, or gives it; a class stays."""
    if isinstance(part, type):
        return part
    return (lambda *arguments, **named: math.nan) if callable(part) else math.nan


@pytest.mark.parametrize("number", NUMBERS)
def test_nan_is_refused(number: int, solved: dict[str, Any]) -> None:
    whole = solved[f"solution_{number}"]
    parts = whole if isinstance(whole, tuple) else (whole,)
    for k, part in enumerate(parts):
        if not isinstance(part, type):
            mixed = (*parts[:k], spoiled(part), *parts[k + 1 :])
            assert "not yet" in solved[f"check_{number}"](mixed if isinstance(whole, tuple) else mixed[0])


@pytest.mark.parametrize("number", NUMBERS)
def test_solution_stands_behind_a_toggle(number: int, notebook: Exercises) -> None:
    """A solution's code is folded, and only solutions print that something is correct."""
    cells = [c for c in notebook.cells if f"solution_{number}" in code(c)]
    assert cells
    assert all({"solution", "hide-cell"} <= set(tags(c)) for c in cells)


def test_code_fits_the_page(notebook: Exercises) -> None:
    assert [line for cell in notebook.cells for line in code(cell).splitlines() if len(line) > 88] == []


def test_questions_stand_between_the_exercises(notebook: Exercises) -> None:
    """The build checks each question; here, that there are five and that the last exercises have some before them."""
    assert notebook.text.count("```{quiz}") == 5
    assert notebook.text.index("```{quiz}") < notebook.text.index("## Exercise 4")


def test_release_runs_and_takes_the_solutions(
    notebook: Exercises, solved: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any file beside it; its checks see that nothing is there yet, and what has the right form."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in notebook.release.cells:
            if cell.cell_type == "code":
                exec(cell.source, space)
    open_still = r"^Exercise (\d): (?:no answer yet, .* is missing|the function \w+ still returns None)\.$"
    assert re.findall(open_still, printed.getvalue(), re.M) == [*"12345678"]
    checks = [c.source for c in notebook.release.cells if c.source.startswith("print(form(")]
    for number, check in zip(NUMBERS, checks, strict=True):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(check, {"form": space["form"], f"answer_{number}": solved[f"solution_{number}"]})
        assert printed.getvalue() == f"Exercise {number}: the answer has the right form.\n"
        for wrong in ((), solved[f"solution_{number}"][1:], ("text",) * len(solved[f"solution_{number}"])):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(check, {"form": space["form"], f"answer_{number}": wrong})
            assert "right form" not in printed.getvalue()


def test_release_keeps_its_secrets(notebook: Exercises, solved: dict[str, Any]) -> None:
    """No line of a solution or check, no target, no key, no feedback, no directive, and no link to an absent page."""
    release = "\n".join(c.source for c in notebook.release.cells)
    secret = [c for c in notebook.cells if {"solution", "check"} & set(tags(c))]
    open_cells = [c for c in notebook.cells if c not in secret]
    lines = set("\n".join(code(c) for c in secret).splitlines())
    lines -= set("\n".join([handout.FORM, *(code(c) for c in open_cells)]).splitlines())
    assert not {line for line in lines if len(line.strip()) >= 12} & set(release.splitlines())
    for number in NUMBERS:
        for part in solved[f"solution_{number}"]:
            if isinstance(part, float | torch.Tensor) and torch.as_tensor(part).numel() == 1:
                digits = f"{float(part):.4g}"
                assert len(digits) < 5 or digits not in release, digits
    for text in ("right: true", "feedback:", "Solution", "```{", ":::", "{cite", ".ipynb", "check_"):
        assert text not in release, text
