"""The list of algorithms and theorems names every statement of the book once, with a link that leads there."""

import re

from book._tools.draw_home import CHAPTERS
from book._tools.list_results import PAGE, results, text_of, written


def test_the_stored_page_is_the_written_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run book/_tools/list_results.py"


def test_every_statement_has_a_title_and_a_label_of_its_own() -> None:
    found = results()
    assert all(result.title and result.label for result in found)
    assert len({result.label for result in found}) == len(found)
    # sphinx-proof would write the kind and a number for a title that holds its label.
    assert not any(result.label in result.title or set("<>`") & set(result.title) for result in found)
    for result in found:
        assert f":label: {result.label}\n" in text_of(result.page)


def test_every_chapter_states_algorithms_and_theorems() -> None:
    for chapter in CHAPTERS:
        kinds = [result.kind for result in results() if result.page.startswith(f"book/{chapter}/")]
        assert "algorithm" in kinds and ("theorem" in kinds or "lemma" in kinds), chapter


def test_no_statement_is_left_out() -> None:
    listed = re.findall(r"\{prf:ref\}`.+? <(\S+)>`", PAGE.read_text(encoding="utf-8"))
    pages = {result.page for result in results()}
    stated = [
        label
        for page in sorted(pages)
        for kind, label in re.findall(r"\{prf:(\w+)\}[^\n]*\n:label: (\S+)", text_of(page))
        if kind not in ("proof", "remark", "ref")
    ]
    assert sorted(listed) == sorted(stated)
