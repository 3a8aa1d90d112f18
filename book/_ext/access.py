"""Mend in the built pages what bars readers and what no setting of the theme mends.

- The arrows that open a chapter in the sidebar are named after the chapter.
- The entries of the list of references are items of that list; the role they had is deprecated.
- Lines of code that are longer than the column is wide are marked, and ``custom.css`` breaks them with a deeper indent.
"""

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ARROW = re.compile(r'(<a class="[^"]*reference internal[^"]*"[^>]*>)(.*?)(</a>\s*<details[^>]*>\s*)<summary>', re.S)

#: What cells print has further classes, keeps its lines and scrolls.
CODE = re.compile(r'(<div class="highlight-\w+ notranslate"><div class="highlight"><pre>)(.*?)(</pre>)', re.S)
FITS = 80  # letters, in the narrowest box


def words(markup: str) -> str:
    """The words of a piece of a page, without its tags."""
    return unescape(re.sub(r"<[^>]+>", "", markup))


def broken(code: re.Match[str]) -> str:
    """A block of code whose long lines may be broken."""
    lines = code[2].split("\n")
    for k, line in enumerate(lines):
        code_line = words(line)
        if len(code_line) > FITS and 'class="cbo-long"' not in line:
            indent = len(code_line) - len(code_line.lstrip()) + 4
            lines[k] = f'<span class="cbo-long" style="--indent: {indent}ch">{line}</span>'
    return code[1] + "\n".join(lines) + code[3]


def mended(page: str) -> str:
    """A page as it should be."""

    def named(match: re.Match[str]) -> str:
        return f'{match[1]}{match[2]}{match[3]}<summary aria-label="Pages of {escape(words(match[2]).strip())}">'

    return CODE.sub(broken, ARROW.sub(named, page)).replace('role="doc-biblioentry"', 'role="listitem"')


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
