"""The built pages from a server: whole, light, legible, at work, without barriers; each page is visited once."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.book.conftest import SIZE, Visitor
from tests.book.test_pages import PAGES, assert_legible, assert_whole, assert_works, barriers

pytestmark = pytest.mark.browser

FIRST, LATER = 3_300_000, 1_000_000
HOME = "book/index"


class Weighing(Visitor):
    """Weighs what visits ask of the server; what the browser kept from earlier visits weighs nothing."""

    def __init__(self, page: Any, home: str) -> None:
        super().__init__(page, home)
        self.sizes: list[int] = []
        self.asked: set[str] = set()
        self.weight = 0
        self.looks: set[str] = set()
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", lambda event: self.asked.add(event["requestId"]))
        session.on("Network.loadingFailed", lambda event: self.asked.discard(event["requestId"]))
        session.on("Network.loadingFinished", self._finished)

    def _finished(self, event: dict[str, Any]) -> None:
        self.asked.discard(event["requestId"])
        self.sizes.append(int(event["encodedDataLength"]))

    def open(self, name: str, query: str = "") -> Any:
        """Weigh a visit until the browser asks for no more; what it asks for and complains of is told anew.

        The page before is left first: a test may have taken it apart, and its handlers that wait for the end of
        a change of size would complain of that in the middle of this visit.
        """
        self.page.goto("about:blank")
        for each in (self.sizes, self.asked, self.requests, self.complaints):
            each.clear()
        self.page.set_viewport_size(SIZE)
        page = super().open(name, query)
        seen = -1
        while self.asked or seen < len(self.sizes):  # the browser's own "networkidle" waits for half a second
            seen = len(self.sizes)
            page.wait_for_timeout(50)
        self.weight = sum(self.sizes)
        return page


@pytest.fixture(scope="module")
def reader(browser: Any, addresses: dict[str, str]) -> Iterator[Weighing]:
    """One who has never been here, and reads the book page by page, home first."""
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
    reader = Weighing(context.new_page(), addresses["http"])
    yield reader
    context.close()


@pytest.fixture(scope="module")
def first_visit(reader: Weighing) -> list[int]:
    reader.open(HOME)
    return list(reader.sizes)


def test_a_first_visit_is_light(first_visit: list[int], html: Path) -> None:
    """What comes last, when all else is there, is MathJax: home has no mathematics, and every later page has it."""
    assert sum(first_visit) < FIRST
    assert 100_000 < sum(first_visit) - max(first_visit) < LATER
    scripts = re.findall(r'<script[^>]* src="([^"]*)"', (html / f"{HOME}.html").read_text(encoding="utf-8"))
    assert scripts and not [script for script in scripts if re.search("mathjax|search", script)]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole_and_light_and_legible_and_works_without_barriers(
    name: str, reader: Weighing, first_visit: list[int], html: Path
) -> None:
    """One visit, as most of its time goes to mathematics."""
    page = assert_whole(reader, html, name)
    assert name == HOME or 0 < reader.weight < LATER
    assert_legible(page)
    assert_works(reader, page, html, name)
    assert barriers(page, reader.looks) == []  # takes most of the page away
