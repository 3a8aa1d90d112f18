"""What is mended in the built pages for those who hear them."""

from typing import Any

import pytest

from book._ext.access import mended
from tests.book.test_pages import barriers


def test_the_arrow_of_a_chapter_has_its_name() -> None:
    link = '<a class="reference internal" href="x.html">2. Cells &amp; <em>trees</em></a>'
    page = f"<li>{link}<details><summary><span></span></summary></details></li>"
    assert mended(page) == page.replace("<summary>", '<summary aria-label="Pages of 2. Cells &amp; trees">')
    assert mended(mended(page)) == mended(page)


def test_references_are_items_of_their_list() -> None:
    assert mended('<div id="a" role="doc-biblioentry">') == '<div id="a" role="listitem">'


def test_long_lines_of_code_may_be_broken_and_keep_their_indent() -> None:
    short, long = "<span>x</span> = 1", f'    <span class="n">y</span> = "{"&lt;" * 80}"'
    block = '<div class="highlight-{} notranslate"><div class="highlight"><pre>{}\n</pre></div>'
    page = mended(block.format("ipython3", f"{short}\n{long}"))
    marked = f'<span class="cbo-long" style="--indent: 8ch">{long}</span>'
    assert page == block.format("ipython3", f"{short}\n{marked}") and mended(page) == page
    plain = mended(block.format("none", long))
    assert plain.count('class="cbo-long"') == 1
    output = block.format("none", long).replace("highlight-none", "output stream highlight-none")
    assert mended(output) == output


def test_other_details_stay() -> None:
    page = "<p>text</p><details><summary>Solution</summary></details>"
    assert mended(page) == page


@pytest.mark.browser
@pytest.mark.parametrize("name", ["prf-prf", "genindex", "search"])
def test_pages_that_the_build_adds_have_no_barriers(visitor: Any, name: str) -> None:
    page = visitor.open(name)
    assert barriers(page, set()) == []
    assert visitor.complaints == []
