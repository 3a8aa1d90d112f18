"""Pictures and counts of the map of ``factors``: where a claim holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from book import figures
from book.indirect.factors import LENGTHS, MAPS, READINGS, SIZES, Map
from book.verdict import Paired, Word, paired, table

_FACTORS = {
    "fixed": ("map", "p", "lengthscale", "noise", "model"),
    "budget": ("map", "width", "lengthscale", "noise", "levels"),
    "learned": ("map", "p", "width", "lengthscale", "noise"),
}
_FILL = {"holds": figures.COLORS[0], "fails": figures.COLORS[1], "undecided": "0.88"}


def label(cell: str) -> str:
    """A cell in words: ``linear, p known, length 0.24, sd``."""
    kind, h, second, length, noise, last = cell.split("/")
    if kind == "learned":
        h, count, width, length, noise = cell.split("/")[1:]
        return f"{label('/'.join(['budget', h, width, length, noise, '5']))}, N = {count}"
    if kind == "fixed":
        p = "p known" if second == "known" else f"N = {second}"
        words = [h, p, f"length {length}", noise, *([last] if last != "exact" else [])]
    else:
        widths = {"one": f"one width, {noise}", "windows": f"windows, {noise}", "tau": "width 0.5 / cost"}
        words = [h, widths[second], f"length {length}", *([] if last == "5" else [f"level {last}"])]
    return ", ".join(words)


def pairs(
    found: Map, cells: Sequence[str], policy: str, rivals: Sequence[str], notion: str, at: float | str = "mean"
) -> dict[tuple[str, str], Paired]:
    """The claim "the policy has less regret than the rival" in every cell."""
    return {(cell, rival): found.paired(cell, policy, rival, notion, at) for cell in cells for rival in rivals}


def counted(decided: Mapping[tuple[str, str], Paired], rival: str | None = None) -> dict[Word, int]:
    """How often a claim holds, is undecided and fails, against one rival or all."""
    count = Counter(pair.verdict for (_, name), pair in decided.items() if rival in (None, name))
    return {word: count[word] for word in get_args(Word)}


def pooled(found: Map, cells: Sequence[str], policy: str, rival: str, notion: str, at: float | str = "mean") -> Paired:
    """The claim on the regret of each function, averaged over cells."""
    own, other = (
        torch.stack([found.regret(cell, name, notion, at) for cell in cells]).mean(0) for name in (policy, rival)
    )
    return paired(own, other)


def by_level(decided: Mapping[tuple[str, str], Paired]) -> pd.DataFrame:
    """``counted`` for every level of every factor that has several, one row a level."""
    cells = [cell.split("/") for cell, _ in decided]
    rows: dict[tuple[str, str], dict[Word, int]] = {}
    for part, factor in enumerate(_FACTORS[cells[0][0]], 1):
        levels = list(dict.fromkeys(cell[part] for cell in cells))
        for level in levels if len(levels) > 1 else []:
            rows[factor, level] = counted({k: v for k, v in decided.items() if k[0].split("/")[part] == level})
    return pd.DataFrame(rows.values(), index=[f"{factor} {level}" for factor, level in rows])


def shown(decided: Mapping[str, Paired], digits: int = 3) -> pd.DataFrame:
    """``verdict.table`` with the failures as a count, and no negative zero: the same on every processor."""
    frame = table(decided, digits).replace(f"-{0:.{digits}f}", f"{0:.{digits}f}", regex=True)
    frame["failures"] = [round(pair.failures * pair.n) for pair in decided.values()]
    return frame


def verdicts(panels: dict[str, dict[tuple[str, str], Paired]]) -> Figure:
    """Cells against rivals, one panel a notion: blue where the claim holds, orange where it fails, gray undecided.

    Args:
        panels: what ``pairs`` gave, by title; all of the same cells and rivals.
    """
    first = next(iter(panels.values()))
    cells, rivals = (list(dict.fromkeys(part)) for part in zip(*first, strict=True))
    rows = [f"{label(cell)}, n = {first[cell, rivals[0]].n}" for cell in cells]
    width, height = 0.62 * len(rivals), 0.32 * len(cells) + 1.7
    # Panels that are too wide to stand side by side stand below each other.
    side = len(panels) if width * len(panels) < 8 else 1
    size = (3.7 + width * side, height * len(panels) / side)
    figure, axes = figures.subplots(len(panels) // side, side, figsize=size, sharey=True)
    for ax, (title, decided) in zip(axes.flat, panels.items(), strict=True):
        for (i, cell), (j, rival) in ((a, b) for a in enumerate(cells) for b in enumerate(rivals)):
            pair = decided[cell, rival]
            ax.add_patch(_box(j, i, _FILL[pair.verdict]))
            ink = "black" if pair.verdict == "undecided" else "white"
            ax.text(j + 0.5, i + 0.5, f"{pair.mean:+.2f}", ha="center", va="center", fontsize=8, color=ink)
        ax.set(xlim=(0, len(rivals)), ylim=(len(cells), 0))
        ax.set_title(title)
        ax.set_xticks(np.arange(len(rivals)) + 0.5, rivals, rotation=60, ha="right", fontsize=9)
        ax.set_yticks(np.arange(len(cells)) + 0.5, rows, fontsize=9)
        ax.grid(False)
    return figure


def cross(figure: int) -> dict[tuple[str, str], str]:
    """The full cross of a figure as a table: cells by row (what is known of p, noise, width) and column (map, length).

    Args:
        figure: 1 or 2.
    """
    found = {}
    for p in SIZES:
        known = "p known" if p == "known" else f"N = {p}"
        for width, noise in (("", "sd"), ("", "raw")) if figure == 1 else READINGS:
            row = ", ".join([known, {"": noise, "tau": "width 0.5 / cost"}.get(width, f"{width}, {noise}")])
            for h in MAPS:
                for length in LENGTHS:
                    last = [length, noise]
                    parts = ["fixed", h, p, *last, "exact"]
                    if figure == 2:
                        parts = ["budget", h, width, *last, "5"] if p == "known" else ["learned", h, p, width, *last]
                    found[row, f"{h}, {length}"] = "/".join(parts)
    return found


def crossed(found: Map, figure: int, panels: Mapping[str, tuple[str, Sequence[str], str, float | str]]) -> Figure:
    """The full cross as tables of counts: against how many rivals a claim holds, and against how many it fails.

    Args:
        found: what was run; the box of another cell stays empty.
        figure: 1 or 2.
        panels: policy, rivals, notion and column (see ``Map.regret``), by title.
    """
    cells, there = cross(figure), dict.fromkeys(found.cells)
    rows, columns = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
    size = (2.0 + 0.37 * len(columns) * len(panels), 0.26 * len(rows) + 1.6)
    drawn, axes = figures.subplots(1, len(panels), figsize=size, sharey=True)
    for ax, (title, (policy, rivals, notion, at)) in zip(axes.flat, panels.items(), strict=True):
        for (row, column), cell in cells.items():
            i, j = rows.index(row), columns.index(column)
            if cell not in there:
                continue
            count = counted(pairs(found, [cell], policy, rivals, notion, at))
            ahead, behind = count["holds"], count["fails"]
            word: Word = "holds" if ahead > behind else "fails" if behind > ahead else "undecided"
            strong = max(ahead, behind) > len(rivals) / 2
            ax.add_patch(_box(j, i, _FILL[word], 1.0 if strong or word == "undecided" else 0.35))
            ink = "white" if strong and word != "undecided" else "black"
            ax.text(j + 0.5, i + 0.5, f"{ahead} {behind}", ha="center", va="center", fontsize=8, color=ink)
        ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0), title=title)
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=60, ha="right", fontsize=9)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=9)
        ax.grid(False)
    return drawn


def _box(x: int, y: int, color: str, alpha: float = 1.0):  # type: ignore[no-untyped-def]
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=color, edgecolor="white", alpha=alpha, linewidth=0.5)
