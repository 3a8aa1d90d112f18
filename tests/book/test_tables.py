"""Tables of cells: what is shown, what is checked, and how a reader sorts a long one."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pandas as pd
import pytest

from book.figures import Table
from tests.book.conftest import STATIC

ROWS = [
    {"policy": name, "difference, 95 %": text, "verdict": word}
    for name, text, word in (
        ("a", "10.4 (2.4, 18.3)", "holds"),
        ("b", "-38.95 (-47.08, -30.82)", "fails"),
        ("c", "", "not run"),
        ("d", "1,024", "holds"),
        ("e", "9.5", "undecided"),
        ("f", "−2", "fails"),
        ("g", "< 0.1", "undecided"),
        ("h", "100%", "holds"),
        ("i", "± 3", "holds"),
    )
]


def header(text: str) -> list[str]:
    return [name.replace("&nbsp;", " ") for name in re.findall(r"<th>(.*?)</th>", text)]


def test_rows_are_named_by_their_first_cell_and_numbers_are_told_from_words() -> None:
    shown = Table(ROWS)
    html = shown._repr_html_()
    assert repr(shown) == pd.DataFrame(ROWS).to_string(index=False)
    assert html.startswith("<table") and header(html) == list(ROWS[0])
    assert re.findall(r'<th scope="row">(.*?)</th>', html) == list("abcdefghi")
    figures = re.findall(r'<td class="cbo-figures">(.*?)</td>', html)
    plain = [unescape(re.sub("<[^>]*>", "", cell)) for cell in figures]
    assert plain == [row["difference, 95 %"] for row in ROWS if row["policy"] != "c"]
    assert [unescape(cell) for cell in re.findall(r'"cbo-interval">(.*?)<', html)] == [
        "(2.4, 18.3)",
        "(-47.08, -30.82)",
    ]
    assert '<span class="cbo-fails">broken</span>' in Table([{"link": "a", "draws": "broken"}])._repr_html_()
    for word in ("holds", "fails", "undecided"):
        assert html.count(f'<span class="cbo-{word}">{word}</span>') == [row["verdict"] for row in ROWS].count(word)


def test_an_index_names_the_rows_and_headers_stand_in_one_line() -> None:
    frame = pd.DataFrame({"a <b": ["x" * 80, "2"]}, index=["p", "q"])
    frame.columns.name = "corner"
    shown = Table(frame)
    assert repr(shown) == frame.to_string() and header(shown._repr_html_()) == ["corner", "a &lt;b"]
    assert "x" * 80 in shown._repr_html_()
    index = pd.MultiIndex.from_product([["p"], ["q", "r"]], names=["policy", "rival"])
    both = pd.DataFrame([[1, 2], [3, 4]], index=index, columns=pd.MultiIndex.from_product([["A"], [1, 2]]))
    html = Table(both)._repr_html_()
    assert header(html) == ["policy", "rival", "A, 1", "A, 2"]
    assert html.count(">p<") == 2 and "rowspan" not in html


def test_an_index_and_a_power_are_set_as_such_and_names_of_code_are_not() -> None:
    rows = [{"i_* at 0.1": "10^10.8", "f(x_t)": "T^1/2", "n_init": "f*", "bound of C_*": "k_0.1"}]
    shown, html = Table(rows), Table(rows)._repr_html_()
    assert "10^10.8" in repr(shown)
    assert header(html) == ["i<sub>*</sub> at 0.1", "f(x<sub>t</sub>)", "n_init", "bound of C<sub>*</sub>"]
    for said in ("10<sup>10.8</sup>", "T<sup>1/2</sup>", ">f*<", "k<sub>0.1</sub>"):
        assert said in html


@pytest.mark.parametrize(
    ("names", "begins"),
    [
        (["a", "a", "b", "b"], [2]),
        (["a: p", "a: q", "b: p", "b: q"], [2]),
        (["1, p, u", "1, p, v", "1, q, u", "1, q, v"], [2]),
        (["a", "b", "c"], []),
        ([], []),
    ],
)
def test_a_rule_parts_groups_of_rows(names: list[str], begins: list[int]) -> None:
    html = Table(pd.DataFrame({"name": names, "value": "1"}))._repr_html_()
    rows = re.findall(r'<tr( class="cbo-group")?><th scope="row">', html)
    assert [k for k, group in enumerate(rows) if group] == begins and len(rows) == len(names)


def page(rows: list[dict[str, str]]) -> str:
    theme = (
        "<style>:root { --pst-color-text-base: #222 } [data-theme=dark] body { background: #111; color: #eee }</style>"
    )
    style = f"<link rel=stylesheet href='{STATIC.as_uri()}/custom.css'>"
    script = f"<script defer src='{STATIC.as_uri()}/sort.js'></script>"
    table = f"<div class='bd-content'><div class='cell_output'>{Table(rows)._repr_html_()}</div></div>"
    return f"{theme}{style}{script}<main><h1>Title</h1><article>{table}</article></main>"


def column(page: Any, number: int) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll('tbody tr')].map((row) => row.cells[{number}].innerText)")


@pytest.mark.browser
def test_a_long_table_is_sorted_by_its_headers(open_page: Callable[..., Any]) -> None:
    opened = open_page(page(ROWS))
    buttons = opened.get_by_role("button")
    assert [name.split()[0] for name in buttons.all_inner_texts()] == ["policy", "difference,", "verdict"]
    told = "[...document.querySelectorAll('thead th')].map((header) => header.getAttribute('aria-sort'))"
    assert opened.evaluate(told) == [None] * 3

    buttons.nth(1).click()  # by numbers, and what is none comes last
    numbers = ["-38.95 (-47.08, -30.82)", "−2", "< 0.1", "± 3", "9.5", "10.4 (2.4, 18.3)", "100%", "1,024", ""]
    assert column(opened, 1) == numbers and opened.evaluate(told) == [None, "ascending", None]
    buttons.nth(1).click()
    assert column(opened, 1) == numbers[::-1] and opened.evaluate(told) == [None, "descending", None]

    opened.keyboard.press("Tab")  # to the last header
    for key, order in (("Enter", "ascending"), ("Space", "descending")):
        opened.keyboard.press(key)
        words = column(opened, 2)
        assert words == sorted(words, reverse=order == "descending")
        assert opened.evaluate(told) == [None, None, order]
    outline = opened.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the keyboard is must be seen"


@pytest.mark.browser
def test_a_short_table_stays_and_paper_shows_no_buttons(open_page: Callable[..., Any]) -> None:
    assert open_page(page(ROWS[:8])).get_by_role("button").count() == 0
    opened = open_page(page(ROWS))
    mark = "getComputedStyle(document.querySelector('button.cbo-sort'), '::after').display"
    assert opened.evaluate(mark) != "none"
    opened.emulate_media(media="print")
    assert opened.evaluate(mark) == "none" and opened.get_by_text("policy").first.is_visible()


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_headers_can_be_read_and_a_phone_has_room(open_page: Callable[..., Any], theme: str) -> None:
    opened = open_page(page(ROWS))
    opened.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    same = "(e) => getComputedStyle(e).color === getComputedStyle(e.closest('th')).color"
    assert opened.locator("button.cbo-sort").first.evaluate(same)
    opened.set_viewport_size({"width": 390, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.get_by_role("button").first.click()
    assert column(opened, 0) == list("abcdefghi")
