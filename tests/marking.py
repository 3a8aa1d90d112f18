"""One box a chapter with the solutions and the typical wrong answers, for the tests of marking."""

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

from book._grading.box import Box, Limits
from book._grading.judge import Judge, Mark
from book._grading.mistakes import MISTAKES, POLICIES
from cbo_lib.run import Run

QUICK = Limits(cell=60, call=20)


@functools.cache
def judge_of(chapter: str) -> Judge:
    judge = Judge(chapter)
    if chapter != "aggregated":  # its policies are single runs, which are quick
        simulate, runs = judge.space["simulate"], {}

        def once(problem: Any, policy: Any, steps: int, seeds: Any, **more: Any) -> Any:
            """A policy of the same class and settings is run once."""
            made = policy.kind if isinstance(policy, Run) else type(policy)
            kind = getattr(made, "kind", None)
            given = policy.settings if isinstance(policy, Run) else {}
            settings = tuple((k, v if isinstance(v, int | float | str) else id(v)) for k, v in given.items())
            key = (made.__name__, kind and (kind.name, *kind.bases), settings, steps, tuple(seeds), id(problem))
            if key not in runs:
                runs[key] = simulate(problem, policy, steps, seeds, **more), problem, policy  # which keep their ids
            return runs[key][0]

        judge.space["simulate"] = once
    return judge


def source(cell: Any) -> str:
    return re.sub(r"^print\(check_.*\n?", "", cell.source, flags=re.M)


def run_solutions(box: Box, judge: Judge) -> None:
    """Run the notebook as it is, and the solutions."""
    for cell in judge.notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and ("solution" not in tags or cell.id in judge.needed):
            error = box.run(source(cell))[1]
            assert error is None, error
    number = next(e.number for e in judge.exercises if "class" in e.kinds)
    assert box.run(f"{POLICIES[judge.chapter]}\nsolution_{number} = s")[1] is None


class Marked:
    """The marks of a chapter's solutions and typical mistakes, each made when asked for."""

    def __init__(self, chapter: str) -> None:
        self.judge, self.mistakes = judge_of(chapter), MISTAKES[chapter]
        self.box = Box(QUICK)
        run_solutions(self.box, self.judge)

    def solution(self, number: int) -> Mark:
        return self.judge.mark(self.box, number, f"solution_{number}")

    def mistake(self, at: int) -> Mark:
        wrong = self.mistakes[at]
        error = self.box.run(f"s = solution_{wrong.number}\nwrong_{at} = {wrong.answer}")[1]
        assert error is None, error
        return self.judge.mark(self.box, wrong.number, f"wrong_{at}")


@contextlib.contextmanager
def marked(chapter: str) -> Iterator[Marked]:
    made = Marked(chapter)
    with contextlib.closing(made.box):
        yield made
