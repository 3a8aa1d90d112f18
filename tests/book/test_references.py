"""Every entry of the list of references says where the work can be found, and the page links there."""

import re
from pathlib import Path

import pytest
from pybtex.database import BibliographyData, parse_file
from pybtex.plugin import find_plugin

ROOT = Path(__file__).resolve().parents[2]
BIBLIOGRAPHY: BibliographyData = parse_file(str(ROOT / "book" / "references.bib"))


def address(key: str) -> str:
    """Where an entry can be found: its DOI, or a page of its publisher, proceedings or authors."""
    fields = BIBLIOGRAPHY.entries[key].fields
    assert ("doi" in fields) != ("url" in fields), f"{key} needs either a doi or a url"
    return f"https://doi.org/{fields['doi']}" if "doi" in fields else str(fields["url"])


@pytest.mark.parametrize("key", list(BIBLIOGRAPHY.entries))
def test_entry_says_where_it_can_be_found(key: str) -> None:
    fields = BIBLIOGRAPHY.entries[key].fields
    if "doi" in fields:
        assert re.fullmatch(r"10\.\d{4,5}/\S+", fields["doi"])
    assert re.fullmatch(r"https://[\w.-]+/\S*", address(key))


def test_no_two_entries_are_one_work() -> None:
    titles = [re.sub(r"\W", "", entry.fields["title"]).lower() for entry in BIBLIOGRAPHY.entries.values()]
    assert sorted({title for title in titles if titles.count(title) > 1}) == []
    addresses = [address(key) for key in BIBLIOGRAPHY.entries]
    assert len(set(addresses)) == len(addresses)


def test_style_of_the_page_links_every_entry() -> None:
    style = find_plugin("pybtex.style.formatting", "plain")()
    backend = find_plugin("pybtex.backends", "html")()
    for entry in style.format_entries(BIBLIOGRAPHY.entries.values()):
        assert f'href="{address(entry.key)}"' in entry.text.render(backend), entry.key


def test_page_links_every_entry(html: Path) -> None:
    page = (html / "book" / "references.html").read_text(encoding="utf-8")
    assert [key for key in BIBLIOGRAPHY.entries if f'href="{address(key)}"' not in page] == []
