"""Mend in the built pages what bars readers with a screen reader and what no setting of the theme mends.

- The arrows that open a chapter in the sidebar are named after the chapter.
- The entries of the list of references are items of that list; the role they had is deprecated.
"""

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ARROW = re.compile(r'(<a class="[^"]*reference internal[^"]*"[^>]*>)(.*?)(</a>\s*<details[^>]*>\s*)<summary>', re.S)


def mended(page: str) -> str:
    """A page as it should be."""

    def named(match: re.Match[str]) -> str:
        name = unescape(re.sub(r"<[^>]+>", "", match[2])).strip()
        return f'{match[1]}{match[2]}{match[3]}<summary aria-label="Pages of {escape(name)}">'

    return ARROW.sub(named, page).replace('role="doc-biblioentry"', 'role="listitem"')


def mend(app: Sphinx, exception: Exception | None) -> None:
    """Mend every page that was built."""
    if exception is None and app.builder.format == "html":
        for file in Path(app.outdir).rglob("*.html"):
            before = file.read_text(encoding="utf-8")
            after = mended(before)
            if after != before:
                file.write_text(after, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("build-finished", mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
