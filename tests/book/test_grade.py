"""Marking from end to end: a batch of submissions through the gradebook, some of which go wrong."""

import contextlib
import csv
import json
import os
import re
import sys
import time

import nbformat
import psutil
import pytest
import torch

from book._grading import course
from book._grading.box import Box, Limits, Lost
from book._grading.mistakes import POLICIES
from book._tools import grade, handout
from tests.marking import judge_of, marked, source

CHAPTER = "indirect"
#: Answers to the second exercise, worth four points, in submissions in which something else goes wrong.
SECOND = """
import math
def blurred(x, s, y, t, lengthscale, variance):
    c = lengthscale**2 + s**2 + t**2
    front = variance * (lengthscale**2 / c) ** (len(x) / 2)
    return front * math.exp(-float((x - y).square().sum()) / (2 * c))
answer_2 = (blurred, 3**-0.5, 0.75**0.25)
"""
TROUBLE = {
    "prints a verdict": ['print("Exercise 1: correct.\\n4.0")\nanswer_1 = "correct"', "4.0"],
    "changes Python": [
        "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.all = builtins.any = lambda x: True\n"
        "class Equal(float):\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0\n"
        "    def __bool__(self): return True\nanswer_1 = (lambda *a: Equal(1), Equal(7), Equal(7))",
    ],
    "gives NaN": ["n = float('nan')\nanswer_1 = (lambda *a: (n, n), n, n)\nanswer_6 = (lambda *a: n, n, n)"],
    "dies": ["import os\nos._exit(0)"],
    "does not stop": ["while True: pass"],
    "cannot be stopped": ["import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass"],
    "loops when called": ["def answer(*a):\n    while True: pass\nanswer_1 = (answer, 7.0, 7.0)"],
    "dies when called": ["import os\nanswer_1 = (lambda *a: os._exit(0), 7.0, 7.0)"],
    "takes memory": ["hoard = bytearray(50 * 2**30)\nanswer_1 = hoard"],
    "exits": ["import sys\nsys.exit()"],
    "prints half a character": ['print("half \\ud800")\nanswer_1 = ("\\ud800", 7.0, 7.0)'],
    "has no name": ["class Odd:\n    def __call__(self): 0\n    def __getattr__(self, name): raise RuntimeError(name)\n"
                    "answer_1 = (Odd(), 7.0, 7.0)\nanswer_4 = Odd()"],
    "sets up": ["%config InlineBackend.figure_format = 'retina'\n%matplotlib inline\n!pip install x\n%pip install x\n"
                "files = !ls\nfrom pylab import plot\nanswer_6 = undefined", "%%bash\npip install x"],
}  # fmt: skip
#: Each of these would run a script in the page of feedback, but for the last line.
SCRIPT = """<script>alert(1)</script>

Inline <img src=x onerror="alert(2)"> and [a link](javascript:alert(3)) and <a href="javascript:alert(4)">another</a>.

<details ontoggle="alert(5)" open><svg onload="alert(6)"></svg></details>

> A quotation with **bold** text, `a < b` and $a < b$.
"""


def with_cells(notebook, cells):
    cells = [nbformat.v4.new_code_cell(text) for text in cells]
    return nbformat.v4.new_notebook(cells=[*cells, *notebook.cells])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Submissions of a class, and beside it those in which something goes wrong."""
    folder = tmp_path_factory.mktemp("class") / "submissions"
    trouble = folder.parent / "trouble"
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
    imports = [
        c.source for c in judge.notebook.cells[:3] if c.cell_type == "code"
    ]  # what a check uses is not handed out
    for cell in right.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if name.startswith("answer"):
            n = int(name[-1])
            cell.source = "\n".join([*imports, *solutions[n], f"answer_{n} = solution_{n}"])
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
    for student, cells in TROUBLE.items():
        submit(student, with_cells(blank, ["print('begun')", *cells, SECOND]), trouble)
    script = nbformat.v4.new_markdown_cell(SCRIPT)
    submit("Script, Java (2)", nbformat.v4.new_notebook(cells=[script, nbformat.v4.new_code_cell(SECOND)]), trouble)
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
    for name, limits in (("submissions", []), ("trouble", ["--cell", "5", "--call", "2"])):
        output = folder.parent / f"out {name}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["grade.py", str(folder.parent / name), str(output), *limits])
            patch.setattr(course, "Judge", judge_of)
            grade.main()
        with (output / "marks.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                table[row["student"]] = row
    return table, folder.parent


def out(folder, student):
    return folder / ("out trouble" if student in (*TROUBLE, "Script, Java (2)") else "out submissions")


def test_solutions_score_full_marks_and_the_release_none(marks):
    table, output = marks[0], out(marks[1], "right")
    assert (table["right"]["points"], table["right"]["of"], table["right"]["notes"]) == ("50", "50", "")
    assert [table["untouched"][f"exercise {n}"] for n in range(1, 9)] == ["0"] * 8
    assert table["untouched"]["notes"] == ""
    page = (output / "feedback" / "right" / "index.html").read_text(encoding="utf-8")
    assert "50 of 50 points" in page
    assert "Right." in (output / "feedback" / "right" / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")


def test_feedback_asks_no_other_host(marks):
    home = out(marks[1], "right") / "feedback" / "right"
    page = (home / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|img|iframe)[^>]*\ssrc=.?(?:https?:)?//|<link[^>]*https?:|url\(.?https?:", page)
    assert page.count('<script src="../mathjax.js"') == 1 and "x-mathjax-config" not in page
    assert (home / "mathjax.js").stat().st_size > 2**20


def test_no_script_of_a_student_runs_in_the_feedback(marks):
    home = out(marks[1], "Script, Java (2)") / "feedback" / "Script, Java (2)"
    page = (home / CHAPTER / f"{CHAPTER}.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script>alert|img|svg|details)|href=.?javascript", page)
    assert re.search(r"<blockquote>\s*<p>A quotation with <strong>bold</strong> text, <code>a &lt; b</code>", page)
    assert "$a &lt; b$" in page
    assert page.count("<script") == 2  # of the mathematics


@pytest.mark.parametrize("student", ["edited", *TROUBLE, "Script, Java (2)"])
def test_trouble_costs_its_own_exercise_alone(student, marks):
    row = marks[0][student]
    assert (row["exercise 2"], row["points"], row["of"]) == ("4", "4", "50"), row


@pytest.mark.parametrize(
    ("student", "says"),
    [
        ("dies", "its process died"),
        ("cannot be stopped", "cell 2 was left out: it did not stop"),
        ("does not stop", "cell 2 did not stop in time"),
        ("dies when called", "exercise 1: its process died"),
        ("takes memory", "exercise 1: The cell with answer_1 ended with MemoryError"),
        ("empty", "it is no notebook"),
        ("no notebook", "it is no notebook"),
        ("deep", "it is no notebook"),
        ("wrong name", "no notebook found; left out, as no chapter is in the name or the headings: homework.ipynb"),
        ("sets up", "exercise 6: The cell with answer_6 ended with NameError: name 'undefined' is not defined."),
    ],
)
def test_the_teacher_is_told(student, says, marks):
    assert says in marks[0][student]["notes"]


def test_what_happened_stands_in_the_feedback(marks):
    def page(student):
        return (out(marks[1], student) / "feedback" / student / "index.html").read_text(encoding="utf-8")

    assert "it did not stop in 2 s" in page("loops when called")
    assert "NaN is no answer" in page("gives NaN")
    for student in ("empty", "no notebook", "deep"):
        assert "0 of 50 points" in page(student) and "No answer." not in page(student)
        assert "<p>The file could not be read: it is no notebook.</p>" in page(student)
        home = out(marks[1], student) / "feedback" / student / CHAPTER
        assert "could not be read: it is no notebook." in (home / f"{CHAPTER}.html").read_text(encoding="utf-8")
    assert "could not be read" not in page("right") and "No answer." in page("untouched")
    assert "The cell with answer_6 ended with NameError" in page("sets up")
    assert "This should be a function, not an object of the class Odd." in page("has no name")


def test_who_has_no_notebook_stands_in_the_table_without_marks(marks):
    row = marks[0]["wrong name"]
    assert (row["chapter"], row["exercise 1"], row["points"], row["of"]) == ("", "", "", "")
    assert not (out(marks[1], "wrong name") / "feedback" / "wrong name").exists()


def test_every_folder_gives_an_entry(tmp_path, caplog):
    files = {
        "Ada, Lovelace/Indirect.IPYNB": 5,
        "paul (2)/a/b/indirect.ipynb": 5,
        "bob/indirect.ipynb": 5,
        "bob/new/indirect (1).ipynb": 9,
        "bob/contexts.ipynb": 5,
        "bob/notes.ipynb": 5,
        "bob/.ipynb_checkpoints/indirect-checkpoint.ipynb": 10,
        "eve/homework.ipynb": 5,
        "प्रिया शर्मा/Copy of indirect.ipynb": 5,
        "O’Brien + Bob/Kopie von indirect-2.ipynb": 5,
        "none/report.pdf": 5,
        "a;b/indirect.ipynb": 5,
        "indirect.ipynb": 5,
        ".git/indirect.ipynb": 5,
        "__MACOSX/ada/._indirect.ipynb": 5,
        "Jose\u0301/indirect.ipynb": 5,
        "JOSÉ/indirect.ipynb": 5,
    }
    for name, modified in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (modified, modified))
    found = {(e.student, e.chapter): (e.path and str(e.path.relative_to(tmp_path)), e.note) for e in
             course.submissions(tmp_path)}  # fmt: skip
    assert found == {
        ("Ada, Lovelace", CHAPTER): ("Ada, Lovelace/Indirect.IPYNB", ""),
        ("paul (2)", CHAPTER): ("paul (2)/a/b/indirect.ipynb", ""),
        ("bob", CHAPTER): (
            "bob/new/indirect (1).ipynb",
            "2 files, marked: new/indirect (1).ipynb; also there: indirect.ipynb",
        ),
        ("bob", "contexts"): (
            "bob/contexts.ipynb",
            "left out, as no chapter is in the name or the headings: notes.ipynb",
        ),
        ("प्रिया शर्मा", CHAPTER): ("प्रिया शर्मा/Copy of indirect.ipynb", ""),
        ("O’Brien + Bob", CHAPTER): ("O’Brien + Bob/Kopie von indirect-2.ipynb", ""),
        ("eve", ""): (
            None,
            "no notebook found; left out, as no chapter is in the name or the headings: homework.ipynb",
        ),
        ("none", ""): (None, "no notebook found"),
        ("JOSÉ", CHAPTER): ("JOSÉ/indirect.ipynb", ""),
        ("Jose\u0301", CHAPTER): (
            "Jose\u0301/indirect.ipynb",
            "another folder has the same name, written otherwise",
        ),
        ("a;b", ""): (None, "not marked: a student's folder cannot have this name"),
    }
    assert "lies in no student's folder" in caplog.text


@pytest.fixture(scope="module")
def answers():
    with marked(CHAPTER) as made:
        yield made


@pytest.mark.parametrize(
    ("answer", "right", "says"),
    [
        ("(s[0], Fraction(float(s[1])), Decimal(float(s[2])))", (1, 1, 1), "Right."),
        ("(s[0], pd.Series([float(s[1])]), np.longdouble(float(s[2])))", (1, 1, 1), "Right."),
        ("(s[0], str(float(s[1])), s[2])", (1, 0, 1), "This should be a number, not '"),
        ("(s[0], s[1], {})", (1, 1, 0), "This should be a number, not an object of the class dict."),
        ("(s[0], [[1], [1, 2]], s[2])", (1, 0, 1), "The answer cannot be used: ValueError"),
        ("(s[0], float('nan'), s[2])", (1, 0, 1), "NaN is no answer."),
    ],
)
def test_a_number_of_a_policy_costs_its_own_part_alone(answer, right, says, answers):
    error = answers.box.run(
        "from decimal import Decimal\nfrom fractions import Fraction\nimport numpy as np, pandas as pd\n"
        f"s = solution_8\nodd = {answer}"
    )[1]
    assert error is None, error
    mark = answers.judge.mark(answers.box, 8, "odd")
    assert mark.points == [most * got for most, got in zip(mark.exercise.points, right, strict=True)], mark.text
    assert all(said == "Right." if got else said.startswith(says) for said, got in zip(mark.says, right, strict=True))


def test_outputs_do_not_count_and_old_or_marked_text_is_read(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("answer_1 = 'é'")])
    plain, file = nbformat.writes(notebook), tmp_path / "indirect.ipynb"
    large = nbformat.v4.new_output("stream", name="stdout", text="x" * (6 * 2**20))
    third = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["answer_1 = 'é'"]}]}], "nbformat": 3}
    shown = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("answer_1 = 'é'", outputs=[large])])
    for content in (
        nbformat.writes(shown).encode(),
        b"\xef\xbb\xbf" + plain.encode(),
        plain.encode("utf-16"),
        json.dumps(third).encode(),
        plain.replace("\n", "\r\n").encode(),
    ):
        file.write_bytes(content)
        assert [cell.source for cell in course.read(file).cells] == ["answer_1 = 'é'"]


def test_a_submission_has_an_end_by_the_clock():
    cells = ["import time", *["time.sleep(2)"] * 30, SECOND]
    start = time.monotonic()
    notebook = with_cells(nbformat.v4.new_notebook(), cells)
    result = course.examine(notebook, judge_of(CHAPTER), Limits(whole=8), course.Result("ada", CHAPTER))
    assert time.monotonic() - start < 50 and result.total == 0
    assert any("the time for the whole submission is over" in note for note in result.notes)


def test_values_leave_a_box_as_data():
    with contextlib.closing(Box()) as box:
        cell = "import numpy as np, pandas as pd, torch\nclass Own: pass\ndef own(x): return {1: x}\n"
        cell += "v = (1, 2.5, 'x', None, [True], np.float32(0.5), pd.Series([1, 2]), torch.ones(2, 1), own, Own, Own())"
        assert box.run(cell) == ("", None)
        *plain, series, ones, function, kind, other = box.get("v")
        assert plain == [1, 2.5, "x", None, [True], 0.5] and box.get("none") is None
        assert series.tolist() == [1, 2] and ones.equal(torch.ones(2, 1))
        assert [repr(part) for part in (function, kind, other)] == [
            "the function own",
            "the class Own",
            "an object of the class Own",
        ]
        assert kind.bases[-1] == "builtins.object" and repr(function(3)) == "an object of the class dict"
        assert os.path.samefile(box.run("import os\nprint(os.getcwd())")[0].strip(), box.folder.name)
        with pytest.raises(TypeError, match="missing 1 required"):
            function()


def test_a_box_ends_with_the_processes_that_it_started():
    box = Box()
    said = box.run("import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nprint(child.pid)")[0]
    child = psutil.Process(int(said))
    box.close()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    with pytest.raises(Lost, match="its process died"):
        box.get("child")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system bounds no memory")
def test_a_box_has_the_memory_and_the_processor_that_it_was_given():
    with contextlib.closing(Box(Limits(memory=2**29, total=4))) as box:
        assert box.run("x = bytearray(2**27)")[1] is None
        assert box.run("x = bytearray(2**29)")[1].startswith("MemoryError")
        with pytest.raises(Lost, match="its process died"):
            box.run("while True: pass")


def test_nothing_is_marked_where_no_submission_could_run(tmp_path, monkeypatch, capsys):
    """A class would get zero for what is wrong with the machine."""

    class Broken:
        def __init__(self, limits):
            pass

        def close(self):
            pass

        def run(self, source, seconds):
            if "import torch" in source:
                return "", None
            raise Lost("its process died")

    monkeypatch.setattr(course, "Box", Broken)
    said = course.obstacle([CHAPTER], Limits())
    assert "of indirect.ipynb do not run in a box of this machine: its process died" in said
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / f"{CHAPTER}.ipynb").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["grade.py", str(tmp_path / "in"), str(tmp_path / "out")])
    monkeypatch.setattr(course, "obstacle", lambda chapters, limits: f"no box for {chapters}")
    with pytest.raises(SystemExit) as stop:
        grade.main()
    assert stop.value.code == 1 and not (tmp_path / "out").exists()
    said = capsys.readouterr()
    assert said.out.startswith("Submissions run as the user who marks")
    assert f"Nothing was marked: no box for ['{CHAPTER}']." in said.err
