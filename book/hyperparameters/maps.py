"""Pictures and counts of the tables of ``phases``: where a claim holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from book import figures
from book.verdict import Word, word


def words(low: pd.Series, high: pd.Series) -> pd.Series:
    """The verdict on intervals of paired differences."""
    return pd.Series(list(map(word, low, high)), index=low.index)


def count(table: pd.DataFrame, rival: str) -> dict[str, int]:
    """How often "HE-GP-UCB has less regret than the rival" holds, is undecided and fails."""
    return _counted(_against(table, rival))


def counted(table: pd.DataFrame, rival: str) -> str:
    """The same as a phrase."""
    return phrase(_against(table, rival))


def phrase(decided: pd.Series) -> str:
    """How often each verdict was given: ``holds in 25, undecided in 11, fails in 0``."""
    return ", ".join(f"{key} in {number}" for key, number in _counted(decided).items())


def _against(table: pd.DataFrame, rival: str) -> pd.Series:
    part = table[table.policy == rival]
    return words(part.end_low, part.end_high)


def _counted(decided: pd.Series) -> dict[str, int]:
    found = Counter(decided)
    return {key: found[key] for key in get_args(Word)}


def verdicts(table: pd.DataFrame, rival: str, rows: Sequence[str], last: Sequence[str]) -> Figure:
    """A map of the mean differences, rival minus HE-GP-UCB; undecided cells are gray.

    Args:
        table: of ``phases.stored``, of one panel.
        rival: the other policy.
        rows: settings that make groups of rows.
        last: the setting that varies within a group, and the one of the columns.
    """
    part = table[table.policy == rival]
    index = [*rows, last[0]]
    part = part.assign(decided=words(part.end_low, part.end_high) != "undecided")
    mean, decided = (
        part.pivot_table(index=index, columns=last[1], values=name, sort=False) for name in ("end_mean", "decided")
    )
    decided = decided.to_numpy() > 0
    shown = np.ma.array(mean.to_numpy(), mask=~decided)
    figure, axes = figures.subplots(figsize=(7.2, 0.24 * len(mean) + 1.4))
    ax = axes[0, 0]
    ax.set_facecolor("0.85")
    limit = float(np.abs(mean.to_numpy()).max())
    image = ax.pcolormesh(shown, cmap="PuOr", norm=TwoSlopeNorm(0, -limit, limit), edgecolors="white", rasterized=True)
    for row, column in np.ndindex(mean.shape):
        dark = decided[row, column] and abs(mean.iloc[row, column]) > 0.6 * limit
        text = f"{mean.iloc[row, column]:+.1f}"
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    names = [", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in key) for key in mean.index]
    ax.set_yticks(np.arange(len(mean)) + 0.5, names, fontsize=8)
    ax.set_xticks(np.arange(mean.shape[1]) + 0.5, [f"{value:g}" for value in mean.columns])
    ax.set(xlabel=last[1], ylabel=", ".join(index))
    ax.invert_yaxis()
    ax.grid(False)
    figure.colorbar(image, ax=ax, label=f"regret, {rival} minus HE-GP-UCB")
    return figure


def risk(table: pd.DataFrame, policies: Sequence[str]) -> Figure:
    """The middle 80 % of the runs, the median and the mean of the cumulative regret, for each multiplier."""
    multipliers = list(dict.fromkeys(table.multiplier))
    figure, axes = figures.subplots(1, len(multipliers), figsize=(10, 3.2), sharey=True, sharex=True)
    for ax, multiplier in zip(axes.flat, multipliers, strict=True):
        for place, name in enumerate(policies):
            row = table[(table.multiplier == multiplier) & (table.policy == name)].iloc[0]
            color = figures.style(name)["color"]
            ax.barh(place, row.q90 - row.q10, left=row.q10, height=0.5, color=color, alpha=0.4)
            ax.plot([row.q50] * 2, [place - 0.25, place + 0.25], color=color, linewidth=3)
            ax.plot(row["mean"], place, "o", color=color)
        ax.set(title=multiplier, xlabel="cumulative regret (units of f)")
    axes[0, 0].set_yticks(range(len(policies)), policies)
    axes[0, 0].invert_yaxis()
    return figure
