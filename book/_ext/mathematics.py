"""Write each formula twice: as TeX, which MathJax sets, and as MathML, which a page without JavaScript shows.

A formula that the converter does not know is a warning, which fails the build.
"""

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging

CONVERTER = LatexToMathML(fancy_error=False)
#: A formula in a line with the bracket before it and the stops after it.
_FORMULA = r"<span class=\"math notranslate nohighlight\">(?:(?!</noscript>).)*</noscript></span>"
KEPT = re.compile(rf"([(\[]*){_FORMULA}([.,;:!?)\]]*)", re.S)
HIDE_TEX = "<noscript><style>.cbo-tex { display: none !important }</style></noscript>"


def mathml(tex: str, display: bool) -> str:
    """A formula as MathML; equations that a blank line parts stand one below the other.

    Raises:
        LatexError: if the converter does not know a command.
    """
    parts = [part.strip() for part in tex.split("\n\n") if part.strip()] if display else [tex]
    return "".join(CONVERTER.convert_with_local_state(part, displaystyle=display) for part in parts)


def with_mathml(written: str, found: str, tag: str) -> str:
    """A formula as Sphinx wrote it, with its TeX in an element of its own and MathML after it."""
    pattern = re.compile(rf"^(<{tag} [^>]*>\s*(?:<span class=\"eqno\">.*?</span>(?=\s*\\\[))?)(.*)(</{tag}>\s*)$", re.S)
    parts = pattern.match(written)
    if parts is None:
        raise ValueError(f"Sphinx wrote a formula in a form that is not known here: {written}")
    return f'{parts[1]}<{tag} class="cbo-tex">{parts[2]}</{tag}><noscript>{found}</noscript>{parts[3]}'


def with_both(write: Callable[[Any, Any], None], display: bool) -> Callable[[Any, Any], None]:
    """A renderer that adds MathML to what another one writes."""

    def visit(self: Any, node: Any) -> None:
        before = len(self.body)
        try:
            write(self, node)
        except nodes.SkipNode:
            try:
                found = mathml(node.astext(), display)
            except LatexError as error:
                logging.getLogger(__name__).warning("no MathML for %r: %s", node.astext(), error, location=node)
                found = ""
            self.body[before:] = [with_mathml("".join(self.body[before:]), found, "div" if display else "span")]
            raise

    return visit


def extend_renderers(app: Sphinx) -> None:
    """Extend the renderers of MathJax, which MyST has replaced before."""
    registry = app.registry
    for renderers, display in (
        (registry.html_inline_math_renderers, False),
        (registry.html_block_math_renderers, True),
    ):
        write = renderers["mathjax"][0]
        assert write is not None
        renderers["mathjax"] = (with_both(write, display), None)


def keep_stops(body: str) -> str:
    """A page on which no line begins with the stop after a formula: browsers may break a line around what is set."""

    def keep(found: re.Match[str]) -> str:
        return f'<span class="cbo-kept">{found[0]}</span>' if found[1] or found[2] else found[0]

    return KEPT.sub(keep, body)


def finish(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Without JavaScript the TeX is not shown; stops stay with their formulas."""
    if "body" in context:
        context["body"] = keep_stops(context["body"])
    context["metatags"] = context.get("metatags", "") + HIDE_TEX


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("builder-inited", extend_renderers, priority=900)
    app.connect("html-page-context", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
