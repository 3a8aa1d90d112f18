"""Write the page that lists every algorithm, assumption, theorem and lemma of the book.

    python book/_tools/list_results.py

It reads the proof directives of the pages in the order of the table of contents; each must have a title and a label.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "book" / "theorems.md"
_HEAD = """---
myst:
  html_meta:
    "description": "The numbered algorithms, theorems, lemmas and assumptions of the book, with links to them."
---

# Algorithms and theorems

Every numbered algorithm, theorem and lemma, and the assumptions that have a label, in the order of the pages.
A link leads to where it stands in full.
"""
_KINDS = {"Algorithms": ("algorithm",), "Theorems and lemmas": ("theorem", "lemma", "proposition", "corollary")}
_KINDS |= {"Assumptions and definitions": ("assumption", "definition")}
_DIRECTIVE = re.compile(r"^:::+\{prf:(\w+)\} *(.*)\n((?::\w+:.*\n)*)", re.M)


class Result(NamedTuple):
    """One statement."""

    kind: str
    title: str
    label: str
    page: str


def pages(entry: Any) -> Iterator[str]:
    """Every page that the table of contents names, in its order."""
    if isinstance(entry, dict):
        yield from (entry[key] for key in ("root", "file") if key in entry)
    for value in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages(value)


def text_of(page: str) -> str:
    """The Markdown of a page."""
    path = ROOT / f"{page}.ipynb"
    if path.exists():
        cells = nbformat.read(path, as_version=4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return (ROOT / f"{page}.md").read_text(encoding="utf-8")


def results() -> list[Result]:
    """All statements of the book but proofs and remarks."""
    kinds = [kind for group in _KINDS.values() for kind in group]
    found = []
    for page in pages(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))):
        for kind, title, options in _DIRECTIVE.findall(text_of(page) + "\n" if page != "book/theorems" else ""):
            label = re.search(r"^:label: (\S+)", options, re.M)
            if kind in kinds:
                found.append(Result(kind, title.strip(), label[1] if label else "", page))
    return found


def chapter_title(folder: str) -> str:
    """The title of a chapter's first page."""
    return re.search(r"^# (.+)$", text_of(f"{folder}/index"), re.M)[1]  # type: ignore[index]


def written() -> str:
    """The page."""
    found, parts = results(), [_HEAD]
    for folder in dict.fromkeys(result.page.rsplit("/", 1)[0] for result in found):
        parts.append(f"## {chapter_title(folder)}\n")
        for name, kinds in _KINDS.items():
            own = [result for result in found if result.page.startswith(f"{folder}/") and result.kind in kinds]
            lines = [f"- {{prf:ref}}`{result.title} <{result.label}>`" for result in own]
            parts += [f"*{name}*\n", "\n".join(lines) + "\n"] if lines else []
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
