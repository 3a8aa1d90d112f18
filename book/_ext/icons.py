"""Draw the icons of the pages as masks of a small style sheet.

The theme loads 1.5 MB of icons for the fifteen that the pages show, or a font of 156 kB. Their outlines are taken from
the installed theme (Font Awesome Free, CC BY 4.0), and its fonts are left out of the site: a browser that draws before
it has all style sheets would ask for one.
"""

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pydata_sphinx_theme
from sphinx.application import Sphinx

STATIC = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
SCRIPT = re.compile(r'<script[^>]*src="([^"]*)scripts/fontawesome\.js[^"]*"></script>')
FONT = re.compile(r"@font-face\s*{[^}]*vendor/fontawesome[^}]*}")
LINK = '<link rel="stylesheet" href="{}icons.css" />'
OUTLINE = re.compile(r'"?([a-z][a-z0-9-]*)"?:\[(\d+),(\d+),\[[^\]]*\],"(\w+)","([^"]+)"\]')
ADMONITIONS = {
    "": "bell",
    "attention": "circle-exclamation",
    "caution": "triangle-exclamation",
    "danger": "triangle-exclamation",
    "error": "circle-xmark",
    "hint": "lightbulb",
    "important": "circle-exclamation",
    "note": "circle-info",
    "seealso": "circle-info",
    "tip": "lightbulb",
    "warning": "triangle-exclamation",
}
WRITTEN_BY_SCRIPTS = {"xmark"}
COMMON = """/* Icons: Font Awesome Free 6.5.2 by @fontawesome, https://fontawesome.com, CC BY 4.0. */
/* Browsers load a font for the height of an empty line. */
.fa-solid,
.fas,
.admonition > .admonition-title::after {
  font-family: inherit !important;
}
.fa-solid::before,
.fas::before {
  background: currentColor;
  content: "" !important;
  display: inline-block;
  height: 1em;
  -webkit-mask: var(--cbo-icon) center / contain no-repeat;
  mask: var(--cbo-icon) center / contain no-repeat;
  vertical-align: -0.125em;
  width: var(--cbo-icon-width);
}
.admonition > .admonition-title::after {
  background: currentColor;
  content: "" !important;
  -webkit-mask: var(--cbo-icon) center / contain no-repeat;
  mask: var(--cbo-icon) center / contain no-repeat;
  top: 0.7rem !important;
}
/* A sign of brands before links to repositories would load a font of its own. */
a.github::before,
a.gitlab::before {
  content: none !important;
}
.bd-sidebar-secondary.hide:not(:hover) .onthispage::after {
  content: "\\25be";
  font-family: inherit;
}
@media (forced-colors: active) {
  .fa-solid::before,
  .fas::before,
  .admonition > .admonition-title::after {
    background: CanvasText;
    forced-color-adjust: none;
  }
}
"""


def outlines(script: str) -> dict[str, tuple[int, int, str]]:
    """Width, height and path of each solid icon; the script holds brands, regular and solid ones, in this order."""
    return {name: (int(width), int(height), path) for name, width, height, _, path in OUTLINE.findall(script)}


def used(pages: list[str]) -> set[str]:
    """The names of the icons that pages show."""
    classes = (match for page in pages for match in re.findall(r'class="([^"]*\bfa(?:s|-solid)\b[^"]*)"', page))
    return {name for each in classes for name in re.findall(r"\bfa-([a-z-]+)", each)} - {"solid", "lg"}


def style_sheet(names: set[str]) -> str:
    """The style sheet of some icons and of those of admonitions.

    Raises:
        KeyError: if the theme has no icon of a name.
    """
    known = outlines((STATIC / "scripts" / "fontawesome.js").read_text(encoding="utf-8"))

    def rule(selector: str, name: str) -> str:
        width, height, path = known[name]
        svg = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'><path d='{path}'/></svg>"
        address = "data:image/svg+xml," + quote(svg, safe=" =:/'")
        return f'{selector} {{ --cbo-icon: url("{address}"); --cbo-icon-width: {width / height:.4g}em }}\n'

    rules = [rule(f".fa-{name}", name) for name in sorted(names | WRITTEN_BY_SCRIPTS)]
    kinds = [rule(f".admonition{f'.{kind}' if kind else ''}", name) for kind, name in ADMONITIONS.items()]
    return COMMON + "".join(rules + kinds)


def replace_icons(app: Sphinx, exception: Exception | None) -> None:
    """Load the style sheet in the place of the script on every page that was built."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    pages = {file: file.read_text(encoding="utf-8") for file in out.rglob("*.html") if "_static" not in file.parts}
    (out / "_static" / "icons.css").write_text(style_sheet(used(list(pages.values()))), encoding="utf-8")
    for file, page in pages.items():
        if SCRIPT.search(page):
            file.write_text(SCRIPT.sub(lambda found: LINK.format(found[1]), page), encoding="utf-8")
    for name in ("fontawesome.js", "fontawesome.js.map", "fontawesome.js.LICENSE.txt"):
        (out / "_static" / "scripts" / name).unlink(missing_ok=True)
    for file in (out / "_static" / "styles").glob("*.css"):
        file.write_text(FONT.sub("", file.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.rmtree(out / "_static" / "vendor" / "fontawesome", ignore_errors=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("build-finished", replace_icons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
