"""Tables of cells: the page and JupyterLab show them as such, and their text is what checks compare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

#: The first cell of a row, which names it, and a cell that holds a number.
_FIRST = re.compile(r"(<tr>\s*)<td>(.*?)</td>", re.S)
_NUMBER = re.compile(r"<td>(?=(?:[-+−±]|&[lg]t;)?\s?\d[\d.,]*(?!\w))")


class Table:
    """What a cell ends with, or displays, in the place of printed columns. The page sorts long ones.

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
            text = frame.to_html(index=False, border=0, classes="cbo-table", justify="left")
        return _NUMBER.sub('<td class="cbo-figures">', _FIRST.sub(r'\1<th scope="row">\2</th>', text))
