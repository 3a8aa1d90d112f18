"""Lectures made of notebooks."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book._tools import handout, slides


@pytest.fixture
def notebook():
    image = (
        '<figure><img class="cbo-figure" alt="A curve &amp; a line." src="data:image/svg+xml;base64,PHN2Zy8+"></figure>'
    )
    show = new_code_cell("show()", outputs=[new_output("display_data", data={"text/html": image})])
    text = new_code_cell("print()", outputs=[new_output("stream", text="no figure")])
    end = "## In five lines\n\n1. The $K^h$ cells of {cite:t}`zhang2022gaussian`.\n"
    end += "2. [Two](2.ipynb), $\\frobnicate x$.\n\nRest"
    cells = ["# A setting\n\ntext", "## Where $f$ is seen", show, text, end]
    return new_notebook(cells=[new_markdown_cell(c) if isinstance(c, str) else c for c in cells])


def test_a_notebook_gives_its_figures_and_last_lines(notebook):
    title, figure, last = slides.of_notebook(notebook, handout.entries())
    assert "<h1>A setting</h1>" in title
    assert "data:image/svg+xml;base64,PHN2Zy8+" in figure
    assert "<p>A curve &amp; a line.</p>" in figure
    assert 'alt="f"' in figure
    assert 'alt="K^h"' in last
    assert "Zhang et al. (2022)" in last
    assert "<code>\\frobnicate x</code>" in last  # what cannot be drawn stays legible
    assert "ipynb" not in last
    assert "Rest" not in last


def test_the_last_of_five_lines_are_those_of_a_slide():
    recap, end = "## A recap in five lines\n\n- What was before.", "## In five lines\n\n- What was new."
    notebook = new_notebook(cells=[new_markdown_cell(recap), new_markdown_cell(end)])
    assert slides.lines(notebook) == "- What was new."
    assert slides.lines(new_notebook(cells=[new_markdown_cell(f"{recap}\n\n{end}")])) == "- What was new."


@pytest.mark.parametrize("chapter", slides.ORDER)
def test_the_last_lines_of_every_notebook_are_found(chapter, notebook):
    for name in slides.NOTEBOOKS:
        found = nbformat.read(handout.ROOT / "book" / chapter / f"{name}.ipynb", as_version=4)
        ends = any("## In five lines" in c.source for c in found.cells if c.cell_type == "markdown")
        assert bool((slides.lines(found) or "").strip()) or not ends, name
    page = slides.lecture(chapter, [notebook], handout.entries())
    assert page.count("<section") == page.count("<footer>") >= 4
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "{cite" not in page
    first, title = page.split("</section>")[0], (handout.ROOT / "book" / chapter / "index.md").read_text("utf-8")
    assert f"<h1>{re.search(r'^# (.+)$', title, flags=re.M)[1]}</h1>" in first
    assert "html_meta" not in page and "<title>---" not in page and len(re.sub(r"<[^>]+>", "", first)) > 100


def test_the_order_has_every_chapter():
    assert sorted(slides.ORDER) == handout.chapters()
