"""Student releases; each notebook's own is tested beside its exercises."""

import ast
import contextlib
import re
import tomllib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from setuptools import find_namespace_packages

from book._grading.mistakes import MISTAKES, POLICIES
from book._tools import guide, handout

HEAD = "## Exercise 1 (easy): twice\n\n*3 points (2 + 1), about 5 minutes.*"


def notebook(*roles: str) -> nbformat.NotebookNode:
    sources = {
        "check": "def check_1(answer):\n    return answer == 42",
        "student": "def double(x):\n    return None  # TODO\n\n\n# TODO: the number\nanswer_1 = (double, None)",
        "solution": "solution_1 = (lambda x: 2 * x, 42)",
    }
    return new_notebook(cells=[new_code_cell(sources[role], metadata={"tags": [role]}) for role in roles])


def test_the_answer_is_asked_for_by_its_parts():
    task = handout.asked(notebook("student").cells[0].source)
    assert task == (1, ["double", "the number"], ["function", "value"])


def test_checks_know_the_form_alone():
    kept = handout.without_solutions(notebook("check", "student", "check", "solution")).cells
    assert [c.source for c in kept[:2]] == [handout.FORM.strip(), notebook("student").cells[0].source]
    assert kept[2].source.startswith("print(form(1, answer_1,")
    assert len(kept) == 3


@pytest.mark.parametrize("roles", [("check", "check"), ("check", "student")])
def test_a_task_and_its_check_stand_together(roles):
    with pytest.raises(ValueError, match="check"):
        handout.without_solutions(notebook(*roles))


def test_every_chapter_is_worth_the_same():
    for chapter in handout.chapters():
        notebook = nbformat.read(handout.ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4)
        assert sum(exercise.total for exercise in handout.exercises(notebook)) == 50


def test_a_stub_returns_none_and_a_release_imports_what_it_uses_or_names_alone():
    space, asked_for = {}, {"choose", "eliminates"}
    exec(handout.FORM, space)
    for chapter in handout.chapters():
        notebook = nbformat.read(handout.ROOT / "book" / chapter / "5_exercises.ipynb", as_version=4)
        for exercise in handout.exercises(notebook):
            stub = {}
            with contextlib.suppress(NameError):  # a policy, whose class stands in the notebook
                exec(exercise.stub, stub)
                for name, kind in zip(exercise.names, exercise.kinds, strict=True):
                    assert kind != "function" or space["is_empty"](stub[name])
        released = handout.release(notebook, handout.entries())
        code = "\n".join(cell.source for cell in released.cells if cell.cell_type == "code")
        made = ast.parse(re.sub(r"^%.*$", "", code, flags=re.M))
        imported = {a.name for node in ast.walk(made) if isinstance(node, ast.ImportFrom) for a in node.names}
        assert len(imported) > 5 and not imported & asked_for
        told = " ".join(cell.source for cell in released.cells if cell.cell_type == "markdown")
        used = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)}
        assert {name for name in imported - used if name not in told} <= {"figures"}
        locked = {c.source: c.metadata for c in released.cells if c.source.startswith("print(form(")}
        assert len(locked) == 8 and not any(about["editable"] or about["deletable"] for about in locked.values())


class App:
    def __init__(self, outdir):
        self.outdir, self.connected = outdir, {}

    def connect(self, event, function):
        self.connected[event] = function


def test_pages_and_their_downloads_are_stripped_only_on_demand(monkeypatch, tmp_path):
    whole = notebook("check", "student", "check", "solution")
    whole.cells.insert(0, new_markdown_cell(HEAD))
    source = nbformat.writes(whole)
    for wish, pages in (("yes", {}), ("no", {"book/subsets/5_exercises": 4, "book/subsets/1_setting": 5})):
        monkeypatch.setenv("SOLUTIONS", wish)
        app = App(tmp_path)
        handout.setup(app)
        assert bool(app.connected) == bool(pages)
        for page, cells in pages.items():
            read = [source]
            app.connected["source-read"](app, page, read)
            assert len(nbformat.reads(read[0], as_version=4).cells) == cells
    app.srcdir = tmp_path / "source"
    download = tmp_path / "_sources" / "book" / "subsets" / "5_exercises.ipynb"
    own = app.srcdir / "book" / "subsets" / "5_exercises.ipynb"
    for path, text in ((own, source), (download, source.replace("*3 points", "3 points"))):  # the lab's copy
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    page = tmp_path / "_sources" / "book" / "teaching" / "mistakes.md"
    page.parent.mkdir()
    page.write_text(guide.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    whole = (handout.ROOT / "book" / "teaching" / "index.md").read_text(encoding="utf-8")
    page.with_name("index.md").write_text(whole, encoding="utf-8")
    app.connected["build-finished"](app, None)
    assert "42" not in "\n".join(cell.source for cell in nbformat.read(download, as_version=4).cells)  # ids may
    left = page.read_text(encoding="utf-8")
    assert "## Indirect queries" in left and "| Feedback |" not in left and "This is its inverse." not in left
    left = page.with_name("index.md").read_text(encoding="utf-8")
    for hint in ("have parts 2 and 3 of exercise 5", "nine rounds of ten"):
        assert hint in whole and hint not in left
    assert len(left) > 0.9 * len(whole)


def test_the_guide_keeps_the_mistakes_to_itself():
    page = guide.text()
    told = {guide.cell(m.says) for chapter in MISTAKES.values() for m in chapter}
    assert all(text in page for text in told)
    read = [page]
    handout.strip(App(None), "book/teaching/mistakes", read)
    assert not [text for text in told if text in read[0]]
    assert read[0].count("| | Exercise |") == 5
    assert read[0].rstrip() == guide.text(mistakes=False).rstrip()


def test_the_package_beside_the_releases_holds_no_answers():
    find = tomllib.loads((handout.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    packages = find_namespace_packages(str(handout.ROOT), **find["find"])
    assert "book.indirect" in packages
    modules = [p for name in packages for p in (handout.ROOT / name.replace(".", "/")).glob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    for policy in POLICIES.values():
        secret = [line for line in policy.splitlines() if len(line) > 40]
        assert len(secret) >= 1
        assert not all(line in code for line in secret)


def test_every_chapter_is_released(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["handout.py", str(tmp_path / "new" / "folder")])
    handout.main()
    assert sorted(p.stem for p in (tmp_path / "new" / "folder").iterdir()) == handout.chapters()
    assert len(handout.chapters()) == 5
