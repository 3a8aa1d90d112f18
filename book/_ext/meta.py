"""Every page says what it is about to search engines and to those who share a link to it.

A page without a description of its own takes its chapter, its title and its first sentence that holds no formula.
"""

import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from book._ext.access import words

LEAST, MOST = 60, 160
FORMULA = "\ufffc"  # stands for a formula while sentences are cut


def sentences(doctree: nodes.document) -> list[str]:
    """The sentences of a page's paragraphs, without those that hold a formula or say how long the page runs."""
    found = []
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section):
            continue
        copy = paragraph.deepcopy()
        for formula in list(copy.findall(lambda node: isinstance(node, nodes.math | nodes.math_block))):
            formula.replace_self(nodes.Text(FORMULA))
        text = re.sub(r"\s+", " ", copy.astext()).strip()
        found += re.split(r"(?<=[.?!]) (?=[A-Z\"*])", text)
    return [s for s in found if FORMULA not in s and not re.search(r"run time|runs in|:$", s, re.IGNORECASE)]


def plain(title: str) -> str:
    """A title without its number and its HTML."""
    return re.sub(r"^[\d.]+\s+", "", words(title).strip())


def description(doctree: nodes.document | None, names: Sequence[str]) -> str:
    """What a page is, by the names of its chapter and its own, and a sentence or two."""
    said = ""
    for sentence in sentences(doctree) if doctree is not None else []:
        if len(said) >= LEAST or len(said) + len(sentence) >= MOST:
            break
        said = f"{said} {sentence}".strip()
    return f"{': '.join(names)}. {said}".strip()


def describe(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Write the tags of a page."""
    tags, book = context.get("metatags", ""), app.config.html_title
    title = plain(context.get("title", "")) or book
    chapter = [plain(parent["title"]) for parent in context.get("parents", [])[-1:]]
    own = re.search(r'<meta content="([^"]*)" name="description"', tags)
    said = unescape(own[1]) if own else description(doctree, [*(chapter or [book]), title])
    base = app.config.html_baseurl
    image = f"{base.rstrip('/')}/_static/preview.png" if base else context["pathto"]("_static/preview.png", True)
    wanted = {"og:title": title, "og:description": said, "og:image": image, "og:site_name": book}
    wanted |= {"og:type": "website" if pagename == app.config.root_doc else "article"}
    lines = [] if own else [f'<meta name="description" content="{escape(said)}" />']
    lines += [f'<meta property="{name}" content="{escape(content)}" />' for name, content in wanted.items()]
    context["metatags"] = tags + "\n    " + "\n    ".join(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("html-page-context", describe)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
