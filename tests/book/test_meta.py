"""Every page has a title, a description and a picture for search engines and for those who share a link."""

import re
from html import unescape
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from book._ext.meta import description, plain
from tests.book.test_pages import PAGES


def tag(page: str, name: str) -> str:
    found = re.findall(rf'<meta (?:name|property)="{name}" content="([^"]*)"', page)
    found += re.findall(rf'<meta content="([^"]*)" name="{name}"', page)
    assert len(found) == 1, f"{len(found)} tags {name}"
    return unescape(found[0])


def page_of(text: str) -> nodes.document:
    title = "Title\n=====\n\nSecond\n------\n\n"
    return publish_doctree(title + text, settings_overrides={"doctitle_xform": False})


def test_description_is_the_first_sentence_without_a_formula() -> None:
    text = "Run time: about 40 seconds on two cores.\n\n"
    text += "Here :math:`x` is. Two cells may hold the same average and differ."
    text += "\n\nThe learner is told which cell it was, and never a point of it, so it must split.\n\nNot this."
    said = "Two cells may hold the same average and differ."
    said += " The learner is told which cell it was, and never a point of it, so it must split."
    assert description(page_of(text), ["Chapter", "Title"]) == f"Chapter: Title. {said}"


def test_a_page_without_sentences_has_a_description_too() -> None:
    assert description(None, ["The Book", "Index"]) == "The Book: Index."
    assert description(page_of(":math:`x`"), ["Title"]) == "Title."


def test_titles_are_plain() -> None:
    assert plain("4.5. The <em>regret</em> &amp; more") == "The regret & more"


@pytest.mark.parametrize("name", [*PAGES, "genindex", "search", "prf-prf"])
def test_page_says_what_it_is(html: Path, name: str) -> None:
    page = (html / f"{name}.html").read_text(encoding="utf-8")
    said = tag(page, "description")
    assert 20 <= len(said) <= 300 and "\\" not in said and "$" not in said
    assert tag(page, "og:description") == said
    assert tag(page, "og:title")
    assert (html / name).parent.joinpath(tag(page, "og:image")).resolve().is_file()


def test_descriptions_are_not_all_the_same(html: Path) -> None:
    said = [tag((html / f"{name}.html").read_text(encoding="utf-8"), "description") for name in PAGES]
    assert len(set(said)) == len(said)
