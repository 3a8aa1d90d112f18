"""Tables of cells: the page and JupyterLab show them as such, and their text is what checks compare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

#: A row of the body, its cells, and what a number, an interval or an error, and a verdict are written as.
_ROW = re.compile(r"<tr>\s*(<td>.*?)</tr>", re.S)
_CELL = re.compile(r"<td>(.*?)</td>", re.S)
_HEADER = re.compile(r"<th>(.*?)</th>", re.S)
_NUMBER = re.compile(r"(?:[-+−±]|&[lg]t;)?\s?\d[\d.,]*(?!\w)")
_INTERVAL = re.compile(r"\(\s?[-+−]?\d[^()]*\)|[-+−]?[\d.,]+ ± [\d.]+")
_VERDICT = re.compile(r"\b(holds|tight|undecided|loose|fails|broken)\b")
#: An index and a power, as in ``i_*`` and ``10^3``, and the words between two tags.
_SCRIPT = re.compile(r"(?<![\w.])([A-Za-z]|\d[\d.]*)(?:_(\*|\d[\d.]*\d|\w(?!\w))|\^(\d[\d./]*\d|\w))")
_BETWEEN = re.compile(r">[^<]+<")
_MARKS = {"tight": "holds", "loose": "undecided", "broken": "fails"}
#: From how many signs in a line on a table is set narrowly, and from how many its numbers break; a name counts as
#: at most so many, the room beside a cell, the mark of a verdict and the sign of a header that sorts as two each.
_NARROW, _BROKEN, _NAME = 80, 105, 20
#: Tables of more rows can be sorted, as `_static/sort.js` says.
_LONG = 8


class Table:
    """What a cell ends with, or displays, in the place of printed columns. The page sorts long ones.

    Verdicts, and what is said of links of a proof, get a mark; a rule parts rows whose names begin differently; wide
    tables are set more narrowly.

    Args:
        rows: a frame, whose index names its rows; or a mapping a row, from what a column is called to what it says
            there, of which the first names the row.
    """

    def __init__(self, rows: pd.DataFrame | Sequence[Mapping[str, object]]) -> None:
        self.frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(rows)
        self._index = not isinstance(self.frame.index, pd.RangeIndex)

    def __repr__(self) -> str:
        return self.frame.to_string(index=self._index)

    def _repr_html_(self) -> str:
        """One line of headers and no joined cells, so that rows can be sorted."""
        frame = self.frame.copy()
        corner, frame.columns.name = frame.columns.name, None
        if isinstance(frame.columns, pd.MultiIndex):
            frame.columns = pd.Index([", ".join(map(str, names)) for names in frame.columns])
        if self._index:
            names = [name or (corner if k == 0 else "") or "" for k, name in enumerate(frame.index.names)]
            frame = frame.reset_index(names=names, allow_duplicates=True)
        with pd.option_context("display.max_colwidth", None):
            return _dressed(frame.to_html(index=False, border=0, classes="cbo-table", justify="left"))


def _dressed(text: str) -> str:
    """What pandas wrote, with names of rows, numbers, intervals, verdicts and groups of rows told apart."""
    rows = [_CELL.findall(row) for row in _ROW.findall(text)]
    groups = _groups([row[0] for row in rows])
    written = iter(
        f'{begins}<th scope="row">{first}</th>{"".join(map(_cell, cells))}</tr>'
        for (first, *cells), begins in zip(rows, groups, strict=True)
    )
    text = _ROW.sub(lambda _: next(written), text)
    sign = 2 * (len(rows) > _LONG)
    signs = sum(
        2 + max(*map(_width, cells), *(len(word) + sign for word in header.split()), 0, 0)
        for header, *cells in zip(_HEADER.findall(text), *rows, strict=True)
    )
    look = " cbo-narrow cbo-broken" if signs > _BROKEN else " cbo-narrow" if signs > _NARROW else ""
    text = _BETWEEN.sub(lambda words: _SCRIPT.sub(_set, words[0]), text)
    return text.replace("cbo-table", f"cbo-table{look}", 1).replace(" %", "&nbsp;%")  # a number keeps its sign


def _set(script: re.Match[str]) -> str:
    letter, index, power = script.groups()
    return f"{letter}<sub>{index}</sub>" if index else f"{letter}<sup>{power}</sup>"


def _cell(text: str) -> str:
    look = ' class="cbo-figures"' if _NUMBER.match(text) else ""
    text = _INTERVAL.sub(r'<span class="cbo-interval">\g<0></span>', text)
    text = _VERDICT.sub(lambda word: f'<span class="cbo-{_MARKS.get(word[0], word[0])}">{word[0]}</span>', text)
    return f"<td{look}>{text}</td>"


def _width(text: str) -> int:
    """How many signs of a cell stand in one line."""
    return len(text) if _NUMBER.match(text) else min(len(text), _NAME) + 2 * bool(_VERDICT.search(text))


def _groups(names: Sequence[str]) -> list[str]:
    """How each row begins: a rule stands before a group, which has one name, or else names that begin alike.

    Groups must be worth a rule: of one and a half rows at least, in the mean.
    """
    for of in (names, [re.split(r": |, (?!.*, )", name)[0] for name in names]):
        begins = [k > 0 and of[k] != of[k - 1] for k in range(len(names))]
        if sum(begins) < (len(names) - 1) / 1.5:
            return ['<tr class="cbo-group">' if begin else "<tr>" for begin in begins]
    return ["<tr>"] * len(names)
