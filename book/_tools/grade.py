"""Mark submissions.

    python book/_tools/grade.py submissions build/grade

``submissions`` holds a folder for each student, with notebooks named as they were handed out. The output folder gets
``marks.csv``, a page of feedback for each student, and nbgrader's gradebook.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

BEWARE = (
    "Submissions run as the user who marks, with limits of time and memory: "
    "mark what you do not trust in a container or a virtual machine without network."
)


def main() -> None:
    """Mark all submissions of a folder."""
    from book._grading import course  # not above: the process of a submission imports this file
    from book._grading.box import Limits

    limits = Limits()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("submissions", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cell", type=float, default=limits.cell, help="seconds that a cell may run")
    parser.add_argument("--call", type=float, default=limits.call, help="seconds that a call of an answer may run")
    parser.add_argument("--memory", type=float, default=limits.memory / 2**30, help="GiB beyond the library's own")
    wish = parser.parse_args()
    if not wish.submissions.is_dir():
        parser.error(f"{wish.submissions} must be a folder with a folder for each student")
    own, made = wish.submissions.resolve(), wish.output.resolve()
    if own.is_relative_to(made) or made.is_relative_to(own):  # what the output folder holds is made anew
        parser.error(f"{wish.output} must lie apart from the submissions in {wish.submissions}")
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    entries = list(course.submissions(wish.submissions))
    chapters = sorted({entry.chapter for entry in entries if entry.path})
    if not chapters:
        parser.error(f"{wish.submissions} holds no <student>/<chapter>.ipynb")
    limits = Limits(wish.cell, wish.call, limits.total, limits.whole, int(wish.memory * 2**30))
    print(BEWARE, flush=True)
    with course.quiet():
        if why := course.obstacle(chapters, limits):
            parser.exit(1, f"Nothing was marked: {why}.\n")  # each student would get nothing
        made, written = course.Course(wish.output, limits), time.monotonic()
        try:
            for entry in sorted(entries, key=lambda entry: (entry.chapter, entry.student)):
                start = time.monotonic()
                result = made.grade(entry)
                whole = sum(mark.exercise.total for mark in result.marks)
                points = f"{result.total:g} of {whole} ({time.monotonic() - start:.0f} s)" if entry.path else "no marks"
                notes = "".join(f"\n    {note}" for note in result.notes)
                print(f"{entry.student}, {entry.chapter or 'nothing'}: {points}{notes}", flush=True)
                if time.monotonic() > written + 60:  # a system short of memory may end this process without a word
                    made.write()
                    written = time.monotonic()
        finally:
            made.write()  # what was marked, however this ends
    print(f"Marks: {wish.output / 'marks.csv'}. Feedback: {wish.output / 'feedback'}/<student>/index.html.")


if __name__ == "__main__":
    main()
