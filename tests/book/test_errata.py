"""Every entry of the errata says what follows from it and links sections of notebooks whose cells run."""

import re
from pathlib import Path
from typing import Any

import pytest
from myst_parser.mdit_to_docutils.base import default_slugify

from tests.book.test_notebooks import CHECKED, read, source, tags

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
TEXT = (BOOK / "errata.md").read_text(encoding="utf-8").partition("## Corrections")[0]
PARTS = re.split(r"^### (.+)$", TEXT, flags=re.MULTILINE)
ENTRIES = [
    pytest.param(body, id=f"{chapter[:12]}: {term}")
    for chapter, part in zip(PARTS[1::2], PARTS[2::2], strict=True)
    for term, body in re.findall(r"^([^\n#:].*)\n: ((?:.+|\n\n  .+)+)", part, flags=re.MULTILINE)
]
LINK = re.compile(r"\]\(([\w/]+\.ipynb)(?:#([^)]*))?\)")


def sections(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The code cells below each heading of a notebook, those of its subsections included, by the heading's anchor."""
    found: dict[str, list[dict[str, Any]]] = {}
    open_ones: list[tuple[int, str]] = []
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "code":
            for _, anchor in open_ones:
                found[anchor].append(cell)
            continue
        for marks, heading in re.findall(r"^(#{1,4}) (.+)$", source(cell), flags=re.MULTILINE):
            anchor = default_slugify(re.sub(r"\$[^$]*\$", "", heading.strip()))
            open_ones = [(level, name) for level, name in open_ones if level < len(marks)]
            open_ones.append((len(marks), anchor))
            found.setdefault(anchor, [])
    return found


def test_entries_are_found() -> None:
    assert len(ENTRIES) == TEXT.count("\n: ") > 100


@pytest.mark.parametrize("body", ENTRIES)
def test_entry_has_evidence_and_a_consequence(body: str) -> None:
    assert body.count("*Consequence:* ") == 1
    links = LINK.findall(body)
    assert links, "no link to a section of a notebook"
    evaluated = False
    for file, anchor in links:
        known = sections(BOOK / file)
        assert anchor in known, f"{file} has no section {anchor}"
        runs = [c for c in known[anchor] if not {"nbval-skip", "student", "raises-exception"} & set(tags(c))]
        evaluated |= any(CHECKED in tags(c) or re.search(r"^ *assert ", source(c), re.MULTILINE) for c in runs)
    if re.search(r"\d\.\d", body.partition("*Evidence:*")[2].partition("*Consequence:*")[0]):
        assert evaluated, "a number is printed, and no linked section has a checked or asserting cell"


def test_links_of_the_page_lead_to_sections(html: Path) -> None:
    page = (html / "book" / "errata.html").read_text(encoding="utf-8")
    targets = set(
        re.findall(r'href="((?:aggregated|indirect|contexts|subsets|hyperparameters)/\w+\.html)#([^"]+)"', page)
    )
    assert len(targets) > 50
    for file, anchor in sorted(targets):
        built = (html / "book" / file).read_text(encoding="utf-8")
        assert f' id="{anchor}"' in built, f"{file} has no section {anchor}"
