"""Pictures of the chapter on variable subsets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.subsets.problem import SubsetProblem
from book.verdict import Paired

ORANGE = figures.COLORS[1]


def names(problem: SubsetProblem) -> list[str]:
    """The control sets, variables counted from one."""
    return ["{" + ",".join(str(j + 1) for j in sorted(subset)) + "}" for subset in problem.space.control_sets]


def named(problem: SubsetProblem) -> list[str]:
    """The control sets by the names of their variables; that of all variables is "all"."""
    words, dim = problem.space.names or (), problem.space.dim
    return ["all" if len(s) == dim else " + ".join(words[j] for j in s) for s in problem.space.control_sets]


def plot_values(axis: Axes, problem: SubsetProblem, alpha: float | None = None) -> None:
    """Bars of the best value of each subset, with mean costs; the acceptable ones in color, ``i_*`` in another."""
    good = problem.acceptable(alpha or 0.0).tolist()
    star = problem.cheapest(alpha or 0.0)
    colors = [figures.COLORS[0]] * problem.space.m
    if alpha is not None:
        colors = [ORANGE if i == star else figures.COLORS[0] if ok else "0.75" for i, ok in enumerate(good)]
        axis.axhline((1 - alpha) * float(problem.optimum), color="black", linestyle="--", linewidth=1)
    rows = torch.arange(problem.space.m)
    axis.bar(rows, problem.best_values, color=colors)
    ticks = [f"{name}\n{cost:g}" for name, cost in zip(named(problem), problem.cost_means.tolist(), strict=True)]
    axis.set(xticks=rows, xticklabels=ticks, ylabel="best value (units of f)", xlabel="control set, and its mean cost")


def plot_upper(axis: Axes, problem: SubsetProblem, upper: Tensor, lower: Tensor, alpha: float) -> None:
    """Smallest upper bounds ``T x m`` over the plays, true best values dotted, and the threshold ``T``."""
    t = torch.arange(1, len(upper) + 1)
    for i, name in enumerate(named(problem)):
        known = upper[:, i].isfinite()
        axis.plot(t[known], upper[known, i], color=figures.COLORS[i], label=name)
        axis.axhline(float(problem.best_values[i]), color=figures.COLORS[i], linestyle=":", linewidth=1)
    axis.plot(t, (1 - alpha) * lower, "k--", label="threshold")
    axis.set(xlabel="play", ylabel="smallest upper bound (units of f)")


def plot_effects(found: Mapping[tuple[str, ...], Paired], rows: list[str], columns: list[str], label: str) -> Figure:
    """Paired differences with intervals: a panel for each of ``columns``, a line for each of ``rows``.

    Keys of ``found`` are column, row and rival.
    """
    rivals = list(dict.fromkeys(key[2] for key in found))
    figure, axes = figures.subplots(1, len(columns), figsize=(4.2 * len(columns), 0.42 * len(rows) * len(rivals) + 1.2))
    for axis, column in zip(axes[0], columns, strict=True):
        ticks = []
        for i, row in enumerate(rows):
            for k, rival in enumerate(rivals):
                pair = found.get((column, row, rival))
                if pair is None:
                    continue
                place = i * (len(rivals) + 1) + k
                look = {"color": figures.style(rival).get("color", "black"), "capsize": 3, "markersize": 6}
                ends = [[pair.mean - pair.low], [pair.high - pair.mean]]
                axis.errorbar([pair.mean], [place], xerr=ends, fmt="o", **look)
                ticks.append((place, f"{row}: {rival}"))
        axis.axvline(0, color="black", linewidth=1)
        axis.set(yticks=[p for p, _ in ticks], yticklabels=[w for _, w in ticks], title=column, xlabel=label)
        axis.set_ylim((len(rivals) + 1) * len(rows) - 1.5, -0.7)
    return figure
