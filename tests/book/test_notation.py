"""The names that the notation gives are in the code, and on a phone the whole table can be read."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.book.test_notebooks import NOTEBOOKS, code_cells, source

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"^\| (\$.*?) \| (.*?) \|", (ROOT / "book" / "notation.md").read_text(encoding="utf-8"), re.MULTILINE)
MODULES = [path.read_text(encoding="utf-8") for folder in ("cbo_lib", "book") for path in (ROOT / folder).rglob("*.py")]
CODE = "\n".join([*MODULES, *(source(cell) for path in NOTEBOOKS for _, cell in code_cells(path))])

# Cells of the notation that the screen or an ancestor cuts off.
CUT = """() => [...document.querySelectorAll("#notation td")].filter((cell) => {
  if (!cell.textContent.trim()) return false;
  const box = cell.getBoundingClientRect();
  return !box.height || box.right > innerWidth || cell.scrollWidth > cell.clientWidth + 1;
}).map((cell) => cell.textContent.trim().slice(0, 60))"""


@pytest.mark.parametrize(("symbol", "names"), ROWS)
def test_name_is_in_the_code(symbol: str, names: str) -> None:
    assert names == "none" or "`" in names
    for name in re.findall(r"`([^`]+)`", names):
        for word in re.findall(r"[A-Za-z_]\w*", name):
            assert re.search(rf"\b{word}\b", CODE), f"{symbol}: no {word}"


@pytest.mark.browser
def test_nothing_is_hidden_on_a_phone(visitor: Any) -> None:
    page = visitor.open("book/notation")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(CUT) == []
    seen = page.locator("#notation td").evaluate_all("(all) => all.filter((e) => e.textContent.trim()).length")
    assert seen > 2.5 * len(ROWS)
