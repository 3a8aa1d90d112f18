"""Marking from end to end: a batch of submissions through the gradebook, hostile ones among them."""

import contextlib
import csv
import json
import re
import sys

import nbformat
import pytest

from book._grading import course, wire
from book._grading.boxes import Boxes, Limits, Lost
from book._grading.mistakes import POLICIES
from book._tools import grade, handout
from tests.marking import judge_of, source

CHAPTER = "indirect"
#: Answers to the second exercise, worth four points, in submissions that try something else besides.
SECOND = """
import math
def blurred(x, s, y, t, lengthscale, variance):
    c = lengthscale**2 + s**2 + t**2
    front = variance * (lengthscale**2 / c) ** (len(x) / 2)
    return front * math.exp(-float((x - y).square().sum()) / (2 * c))
answer_2 = (blurred, 3**-0.5, 0.75**0.25)
"""
HOSTILE = {
    "prints a verdict": ['print("Exercise 1: correct.\\n4.0")\nanswer_1 = "correct"', "4.0"],
    "strips asserts": [
        "get_ipython().input_transformers_post.append(lambda lines: [l for l in lines if 'assert' not in l])",
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.all = builtins.any = lambda x: True\n"
        "class Equal(float):\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n"
        "    def __bool__(self): return True\nanswer_1 = (lambda *a: Equal(1), Equal(7), Equal(7))",
    ],
    "gives NaN": ["n = float('nan')\nanswer_1 = (lambda *a: (n, n), n, n)\nanswer_6 = (lambda *a: n, n, n)"],
    "dies": ["import os\nos._exit(0)"],
    "loops": ["import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"],
    "does not stop": ["while True: pass"],
    "loops when called": ["def answer(*a):\n    while True: pass\nanswer_1 = (answer, 7.0, 7.0)"],
    "dies when called": ["import os\nanswer_1 = (lambda *a: os._exit(0), 7.0, 7.0)"],
    "forks": ["import os\nfor k in range(1000):\n    try:\n        if os.fork() == 0:\n            while True: pass\n"
              "    except OSError: break\nprint('forked', k)"],
    "takes memory": ["hoard = bytearray(50 * 2**30)"],
    "talks to the judge": ["import os\nfor fd in range(64):\n    try: os.write(fd, b'0' * 99)\n    except OSError: 0"],
    "exits": ["raise SystemExit"],
}  # fmt: skip
SPY = f"""
import os, socket
seen = []
for path in (*{[str(handout.ROOT / p) for p in (f"book/{CHAPTER}/5_exercises.ipynb", "README.md")]}, "FOLDER"):
    if os.path.exists(path):
        seen.append(path)
try:
    socket.create_connection(("1.1.1.1", 53), timeout=1)
    seen.append("network")
except OSError:
    pass
seen += [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 20] if os.path.exists("/proc") else []
try:
    os.setuid(0)
    seen.append("root")
except OSError:
    pass
seen += [k for k, v in globals().items() if "judge" in str(v)[:100].lower() and k not in ("seen", "In", "_i", "_ih")]
print("saw", seen)
"""


def with_cells(notebook, cells):
    cells = [nbformat.v4.new_code_cell(text) for text in cells]
    return nbformat.v4.new_notebook(cells=[*cells, *notebook.cells])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Submissions of a whole class, and beside it those that try something."""
    folder = tmp_path_factory.mktemp("class") / "submissions"
    hostile = folder.parent / "hostile"
    judge = judge_of(CHAPTER)
    release = handout.release(judge.notebook, handout.entries())

    def submit(student, notebook, folder=folder):
        (folder / student).mkdir(parents=True)
        nbformat.write(notebook, folder / student / f"{CHAPTER}.ipynb")

    submit("untouched", release)
    right, number = nbformat.from_dict(json.loads(json.dumps(release))), 0
    solutions = {n: [] for n in range(1, 9)}
    for cell in judge.notebook.cells:
        if cell.source.startswith("## Exercise"):
            number = int(cell.source.split()[2])
        if cell.id in judge.needed or (number and "check" in cell.metadata.get("tags", [])):
            solutions[number].append(source(cell))  # some use what a check defines
    solutions[8] = [POLICIES[CHAPTER], "solution_8 = s"]
    for cell in right.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if name.startswith("answer"):
            n = int(name[-1])
            cell.source = "\n".join([*solutions[n], f"answer_{n} = solution_{n}"])
    submit("right", right)
    edited = nbformat.from_dict(json.loads(json.dumps(release)))
    edited.cells = [c for c in edited.cells if "answer_1" not in c.source]  # task and check are gone
    for cell in edited.cells:
        about = cell.metadata.get("nbgrader", {})
        if about.get("grade"):
            cell.source, about["points"] = "100.0", 100
        if about.get("grade_id") == "answer_2":
            cell.source = SECOND
    submit("edited", edited)
    blank = nbformat.v4.new_notebook()
    for student, cells in HOSTILE.items():
        submit(student, with_cells(blank, ["print('begun')", *cells, SECOND]), hostile)
    submit("spies", with_cells(blank, [SPY.replace("FOLDER", str(folder)), SECOND]), hostile)
    for student, text in {"empty": "", "no notebook": '{"cells": 3}', "deep": "[" * 100_000}.items():
        (folder / student).mkdir()
        (folder / student / f"{CHAPTER} (1).ipynb").write_text(text)
    (folder / "wrong name").mkdir()
    (folder / "wrong name" / "homework.ipynb").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def marks(folder):
    """The command; the tables that it writes, by student. Who only works has time, also on a busy machine."""
    table = {}
    for name, limits in (("submissions", []), ("hostile", ["--cell", "6", "--call", "2"])):
        output = folder.parent / f"out {name}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["grade.py", str(folder.parent / name), str(output), *limits])
            patch.setattr(course, "Judge", judge_of)
            grade.main()
        with (output / "marks.csv").open(encoding="utf-8") as file:
            table |= {row["student"]: row for row in csv.DictReader(file)}
    return table, folder.parent


@pytest.fixture(scope="module")
def boxes():
    with Boxes() as boxes:
        yield boxes


def out(folder, student):
    return folder / ("out hostile" if student in HOSTILE or student == "spies" else "out submissions")


def test_solutions_score_full_marks_and_the_release_none(marks):
    table, output = marks[0], out(marks[1], "right")
    assert (table["right"]["points"], table["right"]["of"], table["right"]["notes"]) == ("50", "50", "")
    assert [table["untouched"][f"exercise {n}"] for n in range(1, 9)] == ["0"] * 8
    page = (output / "feedback" / "right" / "index.html").read_text(encoding="utf-8")
    assert "50 of 50 points" in page
    assert "Right." in (output / "feedback" / "right" / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")


def test_feedback_asks_no_other_host(marks):
    home = out(marks[1], "right") / "feedback" / "right"
    page = (home / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|img|iframe)[^>]*\ssrc=.?(?:https?:)?//|<link[^>]*https?:|url\(.?https?:", page)
    assert page.count('<script src="../mathjax.js"') == 1 and "x-mathjax-config" not in page
    assert (home / "mathjax.js").stat().st_size > 2**20


@pytest.mark.parametrize("student", ["edited", *HOSTILE, "spies"])
def test_whoever_tries_something_is_marked_for_what_was_done(student, marks):
    row = marks[0][student]
    assert (row["exercise 2"], row["points"], row["of"]) == ("4", "4", "50"), row


@pytest.mark.parametrize(
    ("student", "says"),
    [
        ("dies", "its process died"),
        ("loops", "it did not stop"),
        ("does not stop", "cell 2 did not stop in time"),
        ("dies when called", "exercise 1: its process died"),
        ("talks to the judge", "was left out"),
        ("empty", "it is no notebook"),
        ("no notebook", "it is no notebook"),
        ("deep", "it is no notebook"),
    ],
)
def test_the_teacher_is_told(student, says, marks):
    assert says in marks[0][student]["notes"]


def test_what_happened_stands_in_the_feedback(marks):
    def page(student):
        return (out(marks[1], student) / "feedback" / student / "index.html").read_text(encoding="utf-8")

    assert "it did not stop in 2 s" in page("loops when called")
    assert "NaN is no answer" in page("gives NaN")
    assert "0 of 50 points" in page("empty")


def test_a_submission_sees_nothing(marks, boxes, capsys):
    box = boxes.open()
    shut = box.shut
    box.close()
    if not all(shut.values()):
        pytest.skip(f"this system shuts nobody in: {shut}")
    notebook = nbformat.read(
        out(marks[1], "spies") / "autograded" / "spies" / CHAPTER / f"{CHAPTER}.ipynb", as_version=4
    )
    assert notebook.cells[0].outputs[0].text == "saw []\n"


def test_files_of_other_names_are_left_out(marks):
    assert "wrong name" not in marks[0]


def test_nothing_that_leaves_a_box_is_trusted():
    kept = []
    value = wire.encode((1, 2.5, "x", None, [True], print, int), lambda v: kept.append(v) or len(kept) - 1)
    decoded = wire.decode(value, lambda number, name: (number, name), lambda *about: about[:2])
    assert decoded == (1, 2.5, "x", None, [True], (0, "print"), (1, "int"))
    for nonsense in (None, 3, {}, {"tensor": "float64", "shape": [9], "data": "AA=="}, {"plain": {}}, {"list": [{}]}):
        with pytest.raises(wire.Broken):
            wire.decode(nonsense, lambda *_: None, lambda *_: None)


def test_nothing_is_marked_where_no_submission_could_run(boxes, tmp_path, monkeypatch, capsys):
    """A class would get zero for what is wrong with the machine."""

    class Broken:
        def open(self):
            return self

        def close(self):
            pass

        def ask(self, command, seconds, source):
            if "import torch" in source:
                return {"error": None}
            raise Lost("its process died")

    assert "of indirect.ipynb do not run in a box of this machine: its process died" in course.obstacle(
        [CHAPTER], Broken()
    )
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / f"{CHAPTER}.ipynb").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["grade.py", str(tmp_path / "in"), str(tmp_path / "out")])
    monkeypatch.setattr(grade, "Boxes", lambda limits, hidden: contextlib.nullcontext(boxes))
    monkeypatch.setattr(course, "obstacle", lambda chapters, boxes: f"no box for {chapters}")
    with pytest.raises(SystemExit) as stop:
        grade.main()
    assert stop.value.code == 1 and not (tmp_path / "out").exists()
    assert f"Nothing was marked: no box for ['{CHAPTER}']." in capsys.readouterr().err


def test_packages_may_lie_behind_a_link(boxes, tmp_path, monkeypatch):
    """As where a virtual environment is a link to another disk."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there" / "package.py").write_text("x = 1")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "here"))
    box = boxes.open()
    _, error = box.run(f"assert open({str(tmp_path / 'here' / 'package.py')!r}).read() == 'x = 1'")
    if box.shut["files"]:
        assert error is None
    box.close()


def test_the_command_wants_submissions(tmp_path, monkeypatch, capsys):
    for folder in (tmp_path, tmp_path / "missing"):
        monkeypatch.setattr(sys, "argv", ["grade.py", str(folder), str(tmp_path / "out")])
        with pytest.raises(SystemExit):
            grade.main()
    assert "must be a folder" in capsys.readouterr().err
    assert Limits().cell > Limits().call
