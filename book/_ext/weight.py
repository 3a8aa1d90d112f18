"""Make the built pages light.

- A cell shows a figure as an image with its SVG inside the address. In the page each becomes a file in ``_images``,
  named after its content, with the width and height that keep its place: a browser loads it when it is about to be
  seen. This works from ``file://`` too.
- The state of widgets, which no page can use without a kernel, is left out.
- The index of the search and its scripts are loaded by the page of results alone; the theme loads them everywhere.
- A page without mathematics needs no MathJax. It asks for it when all else is there, as the next page will need it.
"""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

INLINE = re.compile(r'(<img\b[^>]*?)\bsrc="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"')
NAME = "figure-{}.svg"
SEARCH = re.compile(r'\s*<script src="[^"]*\b(?:searchtools|language_data|searchindex)\.js"></script>')
MATHJAX = re.compile(r'<script [^>]*src="(?:\.\./)*(_static/mathjax/[^"]+)"></script>')
SETTINGS = re.compile(r"<script>window\.MathJax = [^<]*</script>")
STATE = re.compile(r'<script type="application/vnd\.jupyter\.widget-[^"]*">.*?</script>\s*', re.S)


def size(svg: str) -> tuple[int, int]:
    """Width and height in pixels of what Matplotlib wrote, which counts in points; zeros if it says nothing."""
    root = re.search(r"<svg\b[^>]*>", svg)
    found = [re.search(rf'\b{side}="([\d.]+)pt"', root[0] if root else "") for side in ("width", "height")]
    width, height = (round(float(one[1]) * 4 / 3) if one else 0 for one in found)
    return width, height


def outside(page: str, folder: str) -> tuple[str, dict[str, bytes]]:
    """A page without the state of widgets and whose figures are files, and the files by name.

    Args:
        page: as it was built.
        folder: the way from the page to the files.
    """
    files: dict[str, bytes] = {}

    def move(match: re.Match[str]) -> str:
        content = base64.b64decode(match[2])
        name = NAME.format(hashlib.sha256(content).hexdigest()[:16])
        files[name] = content
        width, height = size(content.decode())
        sized = f' width="{width}" height="{height}"' if width and height else ""
        return f'{match[1]}src="{folder}/{name}" loading="lazy"{sized}'

    return INLINE.sub(move, STATE.sub("", page)), files


def move(app: Sphinx, exception: Exception | None) -> None:
    """Write the figures of every page beside it, and remove those that no page shows any more."""
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    images = out / "_images"
    shown = set()
    pages = {file: file.read_text(encoding="utf-8") for file in out.rglob("*.html")}
    mathjax = next((found[1] for page in pages.values() if (found := MATHJAX.search(page))), None)
    for file, before in pages.items():
        up = "../" * (len(file.relative_to(out).parts) - 1)
        after, files = outside(before, f"{up}_images")
        if file != out / "search.html":
            after = SEARCH.sub("", after)
        # Sphinx asks for MathJax where a page below has formulas, too.
        if mathjax and 'class="math' not in after and 'rel="prefetch"' not in after:
            after = SETTINGS.sub("", MATHJAX.sub("", after))
            after = after.replace("</head>", f'<link rel="prefetch" href="{up}{mathjax}" /></head>', 1)
        images.mkdir(exist_ok=True)
        for name, content in files.items():
            (images / name).write_bytes(content)
        if after != before:
            file.write_text(after, encoding="utf-8")
        shown |= set(re.findall(r"_images/(figure-[0-9a-f]{16}\.svg)", after))
    for image in images.glob(NAME.format("*")):
        if image.name not in shown:
            image.unlink()


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("build-finished", move)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
