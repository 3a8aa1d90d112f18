"""What holds for every notebook and page of the book as it is stored."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(p for p in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
PAGES = sorted(p for p in [*BOOK.rglob("*.md"), *ROOT.glob("*.md")] if ".ipynb_checkpoints" not in p.parts)
LINES = 15
CHECKED = "nbval-check-output"


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=name)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def code_cells(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [(n, c) for n, c in enumerate(read(path)["cells"], start=1) if c["cell_type"] == "code"]


def markdown(path: Path) -> str:
    """The prose of a page or notebook, without fenced code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(source(c) for c in read(path)["cells"] if c["cell_type"] == "markdown")
    return re.sub(r"^(`{3,}|~{3,})(?!\{).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)


def code_lines(text: str) -> int:
    """Lines of code: neither blank nor comment alone."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def broken_links(path: Path) -> list[str]:
    """Relative links of a page whose target file is not there."""
    targets = re.findall(r"\[[^\]]*\]\(<?([^)\s>]+)", markdown(path))
    files = [t.split("#")[0] for t in targets if not re.match(r"[a-z][a-z0-9+.-]*:|#", t)]
    return [f for f in files if f and not (path.parent / f).exists()]


def test_there_are_notebooks_and_pages() -> None:
    """The tests below run once for each notebook; none at all would pass unseen."""
    assert NOTEBOOKS
    assert PAGES


@every_notebook
def test_stored_outputs_are_the_checked_ones(path: Path) -> None:
    for number, cell in code_cells(path):
        where = f"{name(path)}, cell {number}; run `make outputs`"
        if CHECKED not in tags(cell):
            assert cell["outputs"] == [], where
            assert cell["execution_count"] is None, where
            continue
        assert cell["execution_count"] == number, where
        assert cell["outputs"], f"nothing to check in {where}"
        for output in cell["outputs"]:
            kinds = {output["name"]} if output["output_type"] == "stream" else set(output["data"])
            assert kinds in ({"stdout"}, {"text/plain"}), where


@every_notebook
def test_something_is_checked(path: Path) -> None:
    """A notebook without a checked output cannot show that it still gives its numbers."""
    if path.stem != "5_exercises":
        assert any(CHECKED in tags(cell) for _, cell in code_cells(path)), f"{name(path)}: no {CHECKED}"


@every_notebook
def test_cells_are_short(path: Path) -> None:
    long = {
        number: code_lines(source(cell))
        for number, cell in code_cells(path)
        if code_lines(source(cell)) > LINES and "long-cell-ok" not in tags(cell)
    }
    assert not long, f"{name(path)}: over {LINES} lines in {long} (cell: lines); split it or tag long-cell-ok"


@every_notebook
def test_first_cell_says_the_run_time(path: Path) -> None:
    first = read(path)["cells"][0]
    assert first["cell_type"] == "markdown"
    text = source(first)
    assert re.search(r"run time|runs in", text, re.IGNORECASE), f"{name(path)}: the first cell gives no run time"
    assert re.search(r"\d+ *(s|sec|second|min|minute)s?\b", text), f"{name(path)}: no time with a unit"


@every_notebook
def test_kernel_is_the_plain_one(path: Path) -> None:
    assert read(path)["metadata"]["kernelspec"]["name"] == "python3"


@every_notebook
def test_code_parses(path: Path) -> None:
    """Student stubs too: they are skipped by every run."""
    for number, cell in code_cells(path):
        lines = source(cell).splitlines()
        text = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in lines)
        try:
            ast.parse(text)
        except SyntaxError as error:
            pytest.fail(f"{name(path)}, cell {number}: {error}")


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=name)
def test_no_path_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    folders = "home|root|Users|opt|work|mnt|tmp|private|var"
    assert re.findall(rf"(?<![\w.:/-])/(?:{folders})/[\w./-]+|[A-Z]:\\\\\w+", text) == [], name(path)


def jumps(text: str) -> list[str]:
    """Lines of numbered lists whose number does not follow: a page counts on from the first and shows another."""
    found, last = [], None
    for line in text.splitlines():
        if number := re.match(r"(\d+)\. ", line):
            if last is not None and int(number[1]) != last + 1:
                found.append(line)
            last = int(number[1])
        elif line.strip() and not line.startswith(" "):
            last = None
    return found


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=name)
def test_numbered_lines_have_the_numbers_that_a_page_shows(path: Path) -> None:
    assert jumps(markdown(path)) == []


def test_a_jump_of_numbers_is_found() -> None:
    assert jumps("1. a\n   more\n2. b\n\nWords.\n\n5. c\n7. d\n") == ["7. d"]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=name)
def test_relative_links_have_targets(path: Path) -> None:
    assert broken_links(path) == [], name(path)


def test_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "[a](gone.md#x) [b](page.md) [c](https://example.org/gone.md) [d](#here)"
    page.write_text(text, encoding="utf-8")
    assert broken_links(page) == ["gone.md"]


def test_no_two_equations_of_the_book_have_one_label() -> None:
    """Sphinx would only tell at the end of a build."""
    texts = [source(cell) for page in NOTEBOOKS for cell in read(page)["cells"]]
    labels = [label for text in texts for label in re.findall(r"^.*\$\$ ?\(([\w:-]+)\) *$", text, re.M)]
    assert len(labels) > 20 and len(set(labels)) == len(labels), {x for x in labels if labels.count(x) > 1}
