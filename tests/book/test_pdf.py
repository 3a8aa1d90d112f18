"""The PDF of the book: text and not pictures of text, with bookmarks, links and page numbers, and solutions closed."""

import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from pypdf import PdfReader

from book._tools.make_pdf import contents, joined, link_from_home
from tests.book.test_pages import PAGES, ROOT

TOC = list(contents(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))
SHORT = ("book/index", "book/foundations/index", "book/foundations/2_optimism")


@pytest.fixture(scope="module")
def pdf(browser: Any, html: Path) -> PdfReader:
    """Three pages of the book in print."""
    stream = io.BytesIO()
    joined(browser, html, [(above, name) for above, name in TOC if name in SHORT]).write(stream)
    return PdfReader(stream)


def words(text: str) -> str:
    return re.sub(r"\W+", " ", text.replace("\ufb01", "fi").replace("\ufb02", "fl"))


def test_contents_are_all_pages_in_order() -> None:
    assert [name for _, name in TOC] == PAGES
    parts = {name: above for above, name in TOC}
    assert parts["book/index"] == ()
    assert parts["book/subsets/3_regret"] == ("Uncontrolled inputs", "book/subsets/index")


@pytest.mark.browser
def test_text_is_text(pdf: PdfReader) -> None:
    sheets = [words(sheet.extract_text()) for sheet in pdf.pages]
    assert min(map(len, sheets)) > 20
    whole = " ".join(sheets)
    assert "A query is a weighted set of points" in whole
    assert "Optimism in ten lines" in whole and "In five lines" in whole
    assert all(sheet["/Resources"].get("/Font") for sheet in pdf.pages)
    assert pdf.metadata is not None and pdf.metadata.title


@pytest.mark.browser
def test_sheets_are_numbered_through(pdf: PdfReader) -> None:
    for number, sheet in enumerate(pdf.pages, start=1):
        assert sheet.extract_text().split()[-1] == str(number)


@pytest.mark.browser
def test_bookmarks_are_parts_and_pages(pdf: PdfReader) -> None:
    home, part, below = pdf.outline
    assert (home.title, part.title) == ("Bayesian Optimization Beyond the Point Query", "Foundations")
    chapter, (section,) = below
    places = [pdf.get_destination_page_number(mark) for mark in (home, chapter, section)]
    assert places[0] == 0 and places == sorted(set(places))
    assert "Optimism" in section.title


@pytest.mark.browser
def test_links_stay_inside_or_lead_to_the_web(pdf: PdfReader) -> None:
    links = [note.get_object() for sheet in pdf.pages for note in sheet.get("/Annots", [])]
    addresses = [str(link["/A"]["/URI"]) for link in links if "/A" in link]
    assert [address for address in addresses if not re.match("https?://|mailto:", address)] == []
    assert sum("/Dest" in link for link in links) > 5  # to pages and places among the three


@pytest.mark.browser
def test_solutions_stay_closed(pdf: PdfReader, html: Path) -> None:
    page = (html / "book/foundations/2_optimism.html").read_text(encoding="utf-8")
    solutions = re.findall(r'class="dropdown admonition">(.*?)</div>', page, re.DOTALL)
    prose = [words(unescape(part)).strip() for text in solutions for part in re.split("<[^>]+>", text)]
    hidden = [part for part in prose if len(part) > 40]
    assert hidden, "the page has no solution: the test would see nothing"
    printed = words(" ".join(sheet.extract_text() for sheet in pdf.pages))
    assert [part for part in hidden if part in printed] == []


def test_home_gets_its_link_once(tmp_path: Path) -> None:
    home = tmp_path / "book" / "index.html"
    home.parent.mkdir()
    home.write_text("a<!-- pdf --><!-- /pdf -->b", encoding="utf-8")
    for size in ("3 pages", "4 pages"):
        link_from_home(home, tmp_path / "book.pdf", size)
    link = '<p class="cbo-pdf"><a href="../book.pdf">The whole book as one PDF</a> (4 pages)</p>'
    assert home.read_text(encoding="utf-8") == f"a<!-- pdf -->{link}<!-- /pdf -->b"
    home.write_text("no place", encoding="utf-8")
    with pytest.raises(SystemExit, match="no place"):
        link_from_home(home, tmp_path / "book.pdf", "")
