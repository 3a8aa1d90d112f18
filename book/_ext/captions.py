"""Number the figures that cells show, and refer to them by name.

Figures stand in the pages as HTML that ``book/figures.py`` and ``book/steppers.py`` write, which Sphinx does not
number. Each ``figcaption`` of theirs gets its number within the chapter, in the order of the table of contents
("Figure 4.12", as equations and theorems count), and the role {fig}`contexts-map` shows the number of the figure of
that name as a link, from any page. A name that no figure has and a name that two have are warnings, which fail the
build.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from book.steppers import figure

logger = logging.getLogger(__name__)
CAPTION = '<figcaption class="cbo-caption">'
#: What is numbered, and before it the name of the figure that it belongs to.
MARK = re.compile(r'<figure class="[^"]*"(?: id="fig-(?P<name>[a-z0-9-]+)")?>|' + re.escape(CAPTION))


class fig(nodes.Inline, nodes.TextElement):
    """A place where a figure is referred to, until its number is known."""


class FigRole(SphinxRole):
    """``{fig}`name```."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Leave the place."""
        node = fig(name=self.text.strip())
        self.set_source_info(node)
        return [node], []


class Drawing(SphinxDirective):
    """``{drawing} name``."""

    required_arguments = 1
    option_spec: ClassVar = {"alt": directives.unchanged_required, "name": directives.unchanged}
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The images of both themes between the tags of a figure."""
        inside = "<div>|</div>"  # the theme hides a caption beside an image of the other theme
        whole = figure(inside, "cbo-drawing", " ".join(self.content), self.options.get("name", ""))
        start, end = str(whole.data).split("|", 1)
        images = [
            nodes.image(uri=f"/book/_static/{self.arguments[0]}-{theme}.svg", alt=self.options["alt"], classes=[only])
            for theme, only in (("light", "only-light"), ("dark", "only-dark"))
        ]
        return [nodes.raw("", start, format="html"), *images, nodes.raw("", end, format="html")]


def captioned(text: str) -> list[str]:
    """The captioned figures of a text in order: the name of each, empty if it has none."""
    found: list[str] = []
    name = ""
    for match in MARK.finditer(text):
        if match[0] == CAPTION:
            found.append(name)
            name = ""
        else:  # within a figure that steps stands another, without a caption
            name = match["name"] or name
    return found


def numbered(text: str, numbers: Iterator[str]) -> str:
    """The text with a number in front of each caption."""
    return re.sub(re.escape(CAPTION), lambda _: f'{CAPTION}<span class="cbo-number">{next(numbers)}</span> ', text)


def pieces(doctree: nodes.document) -> Iterator[nodes.raw]:
    """What a page takes as it is."""
    for node in doctree.findall(nodes.raw):
        if "html" in node.get("format", "").split():
            yield node


def begin(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Make room for what is known of the pages."""
    for name in ("cbo_figures", "cbo_references", "cbo_numbers", "cbo_places"):
        if not hasattr(env, name):
            setattr(env, name, {})


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """A page is read again, or gone."""
    for name in ("cbo_figures", "cbo_references"):
        getattr(env, name, {}).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: list[str], other: Any) -> None:
    """Take over what another process has read."""
    for name in ("cbo_figures", "cbo_references"):
        getattr(env, name).update({d: v for d, v in getattr(other, name, {}).items() if d in docnames})


def read(app: Sphinx, doctree: nodes.document) -> None:
    """Note the figures of a page and what it refers to."""
    env: Any = app.env
    names = captioned("".join(node.astext() for node in pieces(doctree)))
    if names:
        env.cbo_figures[env.docname] = names
    references = {node["name"] for node in doctree.findall(fig)}
    if references:
        env.cbo_references[env.docname] = references


def order(includes: dict[str, list[str]], root: str) -> Iterator[str]:
    """The pages as the table of contents has them."""
    yield root
    for child in includes.get(root, []):
        yield from order(includes, child)


def assign(figures: dict[str, list[str]], pages: Iterable[str], chapters: dict[str, str]) -> dict[str, list[str]]:
    """The number of each figure, by page."""
    counts: dict[str, int] = {}
    found = {}
    for page in dict.fromkeys(pages):
        chapter = chapters.get(page, "")
        first = counts.get(chapter, 0) + 1
        counts[chapter] = counts.get(chapter, 0) + len(figures.get(page, []))
        numbers = range(first, counts[chapter] + 1)
        if numbers:
            found[page] = [f"Figure {chapter}.{n}" if chapter else f"Figure {n}" for n in numbers]
    return found


def places(env: Any) -> dict[str, tuple[str, str]]:
    """Page and number by name."""
    return {
        name: (page, number)
        for page, numbers in env.cbo_numbers.items()
        for name, number in zip(env.cbo_figures[page], numbers, strict=True)
        if name
    }


def count(app: Sphinx, env: Any) -> list[str]:
    """Number all figures again when all pages are read; the pages that show another number must be written again."""
    begin(app, env, [])
    before, old = env.cbo_places, env.cbo_numbers
    pages = list(order(env.toctree_includes, env.config.root_doc))
    numbers = {page: env.toc_secnumbers.get(page, {}).get("") for page in pages}
    chapters = {page: str(number[0]) for page, number in numbers.items() if number}
    env.cbo_numbers = assign(env.cbo_figures, pages, chapters)
    owners: dict[str, str] = {}
    for page in pages:
        for name in filter(None, env.cbo_figures.get(page, [])):
            if name in owners:
                logger.warning("two figures are named %r: in %s and in %s", name, owners[name], page, location=page)
            owners[name] = page
    env.cbo_places = now = places(env)
    moved = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    stale = {page for page in pages if old.get(page) != env.cbo_numbers.get(page)}
    return sorted(stale | {page for page, names in env.cbo_references.items() if names & moved})


class Show(SphinxPostTransform):
    """Write the numbers into a page."""

    default_priority = 8
    formats = ("html",)

    def run(self, **settings: Any) -> None:
        """Number the captions and make links of the references."""
        env: Any = self.env
        numbers = iter(env.cbo_numbers.get(env.docname, []))
        for node in pieces(self.document):
            text = node.astext()
            if CAPTION in text:
                new = nodes.raw("", numbered(text, numbers), **node.attributes)
                new.source, new.line = node.source, node.line
                node.replace_self(new)
        for reference in list(self.document.findall(fig)):
            page, number = env.cbo_places.get(reference["name"], ("", ""))
            if not page:
                logger.warning("no figure is named %r", reference["name"], location=reference)
                reference.replace_self(nodes.literal("", reference["name"]))
                continue
            address = "" if page == env.docname else self.app.builder.get_relative_uri(env.docname, page)
            link = nodes.reference("", number, internal=True, refuri=f"{address}#fig-{reference['name']}")
            reference.replace_self(link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.add_role("fig", FigRole())
    app.add_directive("drawing", Drawing)
    app.add_post_transform(Show)
    app.connect("env-before-read-docs", begin)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", read)
    app.connect("env-get-updated", count, priority=900)  # after the chapters have their numbers
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
