"""The pages on the library: every module is on one of them, and every source is in the bibliography."""

import re
from collections import Counter
from pathlib import Path

import pytest
from pybtex.database import parse_file

from book._ext import api

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "book" / "practice" / "api"


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    return api.keys((ROOT / "book" / "references.bib").read_text(encoding="utf-8"))


def test_a_source_becomes_a_role() -> None:
    known = {"zhang2022": "zhang2022gaussian"}
    line = "GPOO ([Zhang2022], Algorithm 1)."
    assert api.cite(line, known) == "GPOO (:cite:t:`zhang2022gaussian`, Algorithm 1)."
    assert api.cite("in ``[0, 1]`` at `x[Key]`", known) == "in ``[0, 1]`` at `x[Key]`"
    with pytest.raises(ValueError, match=r"no entry for \[Nobody1999\]"):
        api.cite("[Nobody1999]", known)


def test_keys_begin_with_author_and_year(known: dict[str, str]) -> None:
    entries = parse_file(ROOT / "book" / "references.bib").entries
    assert sorted(known.values()) == sorted(entries)
    for key in entries:
        assert entries[key].fields["year"] in key, key
    with pytest.raises(ValueError, match="tay2022 may mean"):
        api.keys("@misc{tay2022one,\n}\n@misc{tay2022two,\n}")
    with pytest.raises(ValueError, match="must begin with author and year"):
        api.keys("@misc{tay,\n}")


def test_every_source_is_in_the_bibliography(known: dict[str, str]) -> None:
    files = [path for folder in ("cbo_lib", "book") for path in (ROOT / folder).rglob("*.py")]
    named = {(path.name, source) for path in files for source in api.SOURCE.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    missing = [(file, source) for file, source in named if source.lower() not in known and file != "api.py"]
    assert sorted(missing) == []
    block = re.compile(r"^\s*\.\. \[[A-Z]|\[[A-Z]\w+\d{4}\]_", flags=re.M)
    left = [path for path in files if block.search(path.read_text(encoding="utf-8"))]
    assert left == [], "sources stand in book/references.bib"


def test_every_module_is_on_one_page() -> None:
    shown = Counter(
        module
        for page in PAGES.glob("*.md")
        for module in re.findall(r"^\.\. automodule:: (\S+)$", page.read_text(encoding="utf-8"), flags=re.M)
    )
    library = [p for p in (ROOT / "cbo_lib").rglob("*.py") if p.name != "__init__.py"]
    tools = [path for name in ("*", "*/problem", "*/regret") for path in (ROOT / "book").glob(f"{name}.py")]
    files = [p for p in [*library, *tools] if p.name not in ("conftest.py", "__main__.py")]
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in files]
    assert shown == Counter(modules)
