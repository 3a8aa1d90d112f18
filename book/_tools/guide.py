"""Make the page of typical mistakes of the instructor guide, and the table of exercises.

python book/_tools/guide.py
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from book._grading.mistakes import MISTAKES, TEACHES
from book._tools import handout

PAGE = handout.ROOT / "book" / "teaching" / "mistakes.md"
NAMES = {
    "aggregated": "Aggregated feedback",
    "indirect": "Indirect queries",
    "contexts": "Unknown contexts",
    "subsets": "Variable subsets",
    "hyperparameters": "Unknown hyperparameters",
}
MATH = re.compile(r"(\b[A-Za-z](?:\^[\w*]|_(?:\*|\w\b))+)")
HEAD = """# Exercises and typical mistakes

Each exercise has parts, and each part has points of its own.
A part is judged with the others taken from the solution, so one slip costs one part.
Where a policy is asked for, the numbers count only if the policy is right, since they are numbers of this policy.

The tables show what each exercise asks for, in which order its points stand and how long it takes.
They also show at least three mistakes that students make, the points that are left and the feedback of `make grade`.
The tests mark every one of these mistakes, so the tables say what happens.
A page built with `SOLUTIONS=no` leaves the tables of mistakes out.
"""


def cell(text: str) -> str:
    """Text that may stand in a table; letters with an index or a power, such as ``R^f_T`` and ``i_*``, are formulas."""
    parts = MATH.split(text.replace("\n", " "))  # every other one is a formula
    return "".join(f"${part}$" if k % 2 else re.sub(r"([|*_$])", r"\\\1", part) for k, part in enumerate(parts))


def worth(points: Iterable[int]) -> str:
    """The points of the parts."""
    return " + ".join(map(str, points))


def text(mistakes: bool = True) -> str:
    """The page."""
    parts = [HEAD]
    for chapter, name in NAMES.items():
        notebook = nbformat.read(handout.ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4)
        exercises = handout.exercises(notebook)
        total, minutes = sum(e.total for e in exercises), sum(e.minutes for e in exercises)
        parts.append(f"## {name}\n\n{total} points, about {minutes / 60:.1f} hours.\n")
        rows = [
            f"| {e.number} | {cell(e.title)} | {cell(taught)} | {e.level} | {worth(e.points)} | {e.minutes} |"
            for e, taught in zip(exercises, TEACHES[chapter], strict=True)
        ]
        head = "| | Exercise | What it teaches | Level | Points | Minutes |\n|---|---|---|---|---|---|"
        parts.append("\n".join([head, *rows]) + "\n")
        if mistakes:
            rows = [f"| {m.number} | {cell(m.what)} | {worth(m.points)} | {cell(m.says)} |" for m in MISTAKES[chapter]]
            parts.append("\n".join(["| | Mistake | Points | Feedback |\n|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(PAGE)
