"""Make the built site self-contained: it asks no other host for anything and opens from ``file://``.

- MathJax comes from the Python package ``sphinx-mathjax-offline``. Its single-file SVG build needs no fonts,
  because browsers may refuse to load fonts from ``file://``.
- The scripts of sphinx-thebe are removed: jupyter-book always adds them and they name a remote address.
- Search shows no summaries on ``file://``: to write one, Sphinx fetches the page found, which a browser
  refuses there.
"""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

MATHJAX = "tex-svg-full.js"
NO_SUMMARIES_ON_FILE = 'if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;'


def mathjax_folder() -> Path:
    """The folder of MathJax inside the installed package (its name is no Python identifier)."""
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise RuntimeError("sphinx-mathjax-offline is not installed; run `make .venv`")
    return Path(spec.origin).parent / "static" / "mathjax"


def configure(app: Sphinx, config: Any) -> None:
    """Point Sphinx at the local MathJax."""
    config.mathjax_path = f"mathjax/{MATHJAX}"
    # The menu offers to fetch more parts of MathJax.
    config.mathjax3_config = {
        **(config.mathjax3_config or {}),
        "options": {**(config.mathjax3_config or {}).get("options", {}), "enableMenu": False},
    }


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    """Put MathJax beside the pages."""
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir) / "_static" / "mathjax"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(mathjax_folder() / MATHJAX, target / MATHJAX)


def names_thebe(file: Any) -> bool:
    """Whether a script or style, a file or inline text, belongs to sphinx-thebe."""
    return "thebe" in f"{getattr(file, 'filename', file)} {getattr(file, 'attributes', '')}".lower()


def drop_thebe(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Remove the scripts and styles of sphinx-thebe from a page."""
    for kind in ("script_files", "css_files"):
        context[kind] = [file for file in context.get(kind, []) if not names_thebe(file)]


def share_handlers(app: Sphinx) -> None:
    """Let the single-page builder use the HTML handlers of every node.

    sphinx-exercise registers nodes for ``singlehtml`` alone, which hides what others registered for ``html``.
    """
    handlers = app.registry.translation_handlers
    for name, functions in handlers.get("html", {}).items():
        handlers.setdefault("singlehtml", {}).setdefault(name, functions)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("config-inited", configure, priority=900)
    app.connect("builder-inited", share_handlers, priority=1)
    app.connect("html-page-context", drop_thebe, priority=900)
    app.connect("build-finished", copy_mathjax)
    app.add_js_file(None, body=NO_SUMMARIES_ON_FILE)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
