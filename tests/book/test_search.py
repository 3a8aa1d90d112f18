"""Search puts the section that defines a term first, and its excerpts are prose."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from book._ext.search import DEFINED, END, START, with_terms

ROOT = Path(__file__).resolve().parents[2]
TERMS = {term: (page, section) for page, terms in DEFINED.items() for term, section in terms.items()}

# The results of a query as the page lists them, best first: page and anchor.
RESULTS = """(queries) => queries.map((query) => Search._performSearch(...Search._parseQuery(query))
  .reverse().slice(0, 3).map((result) => result[0] + result[2]))"""


def index_of(entries: dict[str, Any]) -> str:
    pages = [f"book/{page}" for page in DEFINED]
    return START + json.dumps({"docnames": [*pages, "book/glossary"], "indexentries": entries}) + END


def test_terms_come_before_the_entries_of_other_pages() -> None:
    glossary = len(DEFINED)
    found = with_terms(index_of({"measure": [[glossary, "term-measure", True]], "other": [[0, "", True]]}))
    entries = json.loads(found.removeprefix(START).removesuffix(END))["indexentries"]
    assert entries["measure"] == [[2, "a-measure", True], [glossary, "term-measure", False]]
    assert entries["other"] == [[0, "", True]]
    assert with_terms(found).count("a-measure") <= 2


def test_terms_are_written_on_their_pages() -> None:
    assert len(TERMS) >= 20
    for term, (page, _) in TERMS.items():
        text = (ROOT / "book" / f"{page}.ipynb").read_text(encoding="utf-8").lower()
        assert re.sub("s$", "", term.lower()) in text, f"{page} does not say {term}"


@pytest.mark.parametrize("page", DEFINED)
def test_sections_are_there(html: Path, page: str) -> None:
    built = (html / "book" / f"{page}.html").read_text(encoding="utf-8")
    assert [s for s in DEFINED[page].values() if s and f'<section id="{s}"' not in built] == []


@pytest.mark.browser
@pytest.mark.parametrize("visitor", ["file", "http"], indirect=True)
def test_the_defining_section_comes_first(visitor: Any) -> None:
    page = visitor.open("search")
    page.wait_for_function("() => Search.hasIndex()")
    results = page.evaluate(RESULTS, [*TERMS, "kernel density"])
    for (term, (name, section)), seen in zip(TERMS.items(), results[:-1], strict=True):
        assert seen[0] == f"book/{name}" + (f"#{section}" if section else ""), f"{term}: {seen}"
    assert results[-1][0] == "book/contexts/1_setting#learning-a-distribution"
    assert visitor.complaints == []


@pytest.mark.browser
@pytest.mark.parametrize("visitor", ["http"], indirect=True)
def test_excerpts_hold_neither_code_nor_formulas(visitor: Any) -> None:
    page = visitor.open("search", "?q=GPOO")
    page.wait_for_selector("#search-results li p.context")
    page.wait_for_load_state("networkidle")
    excerpts = page.locator("#search-results li p.context").all_inner_texts()
    assert len(excerpts) > 5
    assert [text for text in excerpts if re.search(r"\\\(|\\[a-z]{3,}|^import |\bfrom \w+ import", text)] == []
    assert visitor.complaints == []
