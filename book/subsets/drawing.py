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


def plot_effects(found: Mapping[tuple[str, ...], Paired]) -> Figure:
    """Paired differences with intervals: a column a regret, a group of lines a panel, a color and marker a rival.

    Keys of ``found`` are the regret, the panel and the rival. Full markers are decided.
    """
    columns, panels, rivals = (list(dict.fromkeys(key[i] for key in found)) for i in range(3))
    size = (9.0, 0.17 * len(panels) * (len(rivals) + 1) + 1.4)
    figure, axes = figures.subplots(1, len(columns), figsize=size, sharey=True)
    for axis, column in zip(axes[0], columns, strict=True):
        for i, panel in enumerate(panels):
            for k, rival in enumerate(rivals):
                pair, place = found[column, panel, rival], i * (len(rivals) + 1) + k
                look = {key: figures.style(rival)[key] for key in ("color", "marker")}
                axis.plot([pair.low, pair.high], [place, place], color=look["color"], linewidth=1.4)
                fill = "none" if pair.verdict == "undecided" else "full"
                axis.plot(pair.mean, place, **look, markersize=5, fillstyle=fill, label=rival if i == 0 else None)
        axis.axvline(0, color="black", linewidth=1)
        axis.set(title=column, xlabel="rival minus method")
    axes[0, 0].set_yticks([i * (len(rivals) + 1) + (len(rivals) - 1) / 2 for i in range(len(panels))], panels)
    axes[0, 0].set_ylim((len(rivals) + 1) * len(panels) - 1.2, -0.8)
    ticks = (-1, -0.1, -0.01, 0, 0.01, 0.1, 1)
    axes[0, 0].set_xscale("symlog", linthresh=0.01, linscale=0.6)
    axes[0, 0].set_xticks(ticks, [f"{x:g}".replace("-", "−") for x in ticks], fontsize="small")
    axes[0, 0].minorticks_off()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return figure
