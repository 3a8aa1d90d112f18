"""Pictures of trees and runs under aggregated feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from book import figures
from book.aggregated.problem import CellProblem
from book.aggregated.regret import ledger
from book.functions import interval
from book.harness import rounds
from cbo_lib.aggregated.policies import GPOO
from cbo_lib.aggregated.tree_policy import TreePolicy
from cbo_lib.former.history import History
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure

#: A legend that would lie on data stands below the axes.
_BELOW: dict[str, Any] = {
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.18),
    "ncols": 2,
    "fontsize": "small",
    "frameon": False,
}


def plot_figure_5(result: dict[int, tuple[CellProblem, GPOO, History]], replicate: int = 0) -> Figure:
    """The tree of one replicate with its draws above, the posterior of f below."""
    figure, axes = figures.subplots(2, len(result), figsize=(9, 6), sharex=True, sharey="row")
    for column, (points, (problem, policy, history)) in zip(axes.T, result.items(), strict=True):
        plot_tree(column[0], policy, replicate)
        column[0].set_title(f"S = {points}, N = {history.steps}")
        plot_posterior(column[1], problem, policy, history, replicate)
    axes[1, 1].legend()
    return figure


def plot_run(problem: CellProblem, policy: GPOO, history: History, replicate: int = 0) -> Figure:
    """The tree of one replicate beside the regret of all of them."""
    figure, axes = figures.subplots(1, 2, figsize=(9, 3.6))
    plot_tree(axes[0, 0], policy, replicate)
    figures.plot_ledger(axes[0, 1], ledger(history, problem))
    return figure


def plot_posterior(axes: Axes, problem: CellProblem, policy: GPOO, history: History, replicate: int) -> None:
    """Posterior mean and two standard deviations of f, with each observation at the center of its cell."""
    cells, seen = history["query"][replicate], history["observation"][replicate]
    assert policy.prior is not None
    posterior = policy.prior.condition(problem.space.measure(cells), seen)
    x = interval(problem.space.bounds, 501)
    mean, std = posterior.mean(Measure.dirac(x)), posterior.variance(Measure.dirac(x)).sqrt()
    figures.plot_function(axes, problem.f, problem.space.bounds, linewidth=1)
    axes.plot(x[:, 0], mean, label="posterior mean", color=figures.COLORS[0])
    axes.fill_between(x[:, 0], mean - 2 * std, mean + 2 * std, alpha=0.2, color=figures.COLORS[0], linewidth=0)
    axes.plot(cells.mean(-2)[:, 0], seen, ".", color=figures.COLORS[1], label="observation, at its cell's center")
    axes.set(xlabel="x", ylabel="f")


def plot_tree(axes: Axes, policy: TreePolicy, replicate: int = 0, drawn: int | None = None) -> None:
    """The tree of one replicate: each node at the center of its cell, colored by its draws.

    Args:
        axes: where.
        policy: after a run.
        replicate: which.
        drawn: a node to mark. Default none.
    """
    tree = policy.tree
    held = (policy.leaf | policy.expanded)[replicate].nonzero().flatten()
    center, depth = tree.boxes.mean(-2)[:, 0], tree.depth
    child, parent = held[1:], tree.parent[held[1:]]
    edges = torch.stack([torch.stack([center[i], depth[i].to(center)], -1) for i in (parent, child)], 1)
    axes.add_collection(LineCollection(edges.tolist(), colors="0.8", linewidths=0.8, zorder=1))
    draws = policy.draws[replicate, held]
    kinds = ((draws == 0, "never drawn", "o"), (draws == 1, "drawn once", "s"), (draws > 1, "drawn more often", "^"))
    for color, (mask, label, marker) in zip(figures.COLORS, kinds, strict=False):
        at = held[mask]
        axes.plot(center[at], depth[at], marker, color=color, markersize=4, label=label, zorder=2)
    if drawn is not None:
        axes.plot(center[drawn], depth[drawn], "o", markersize=12, fillstyle="none", color="black", zorder=3)
    axes.set(xlabel="x", ylabel="depth", ylim=(max(4, int(depth[held].max())) + 0.5, -0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")


def tree_growth(
    problem: CellProblem, policy: GPOO, steps: int, seed: int = 0, limits: tuple[float, float] = (-0.8, 3.0)
) -> tuple[list[Figure], list[str], list[str]]:
    """The tree growing round by round, for ``figures.slider`` ([Zhang2022], Figures 1 and 2).

    Args:
        problem: of one variable.
        policy: to run for one replicate.
        steps: how many rounds.
        seed: of the replicate.
        limits: of the vertical axis; what reaches beyond is cut.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    with torch.no_grad():
        for step, cell, told in rounds(problem, policy, steps, seed):
            figure, axes = figures.subplots(2, 1, figsize=(7.2, 6), sharex=True, height_ratios=(3, 2))
            node = policy.chosen
            _plot_cells(axes[0, 0], problem, policy, int(node), limits)
            plot_tree(axes[1, 0], policy, 0, int(node))
            axes[0, 0].set_xlabel("")
            policy.tell(**told)
            depth, expands = int(policy.tree.depth[node]), bool(policy.splits[0])
            what = "then it is split" if expands else "it stays a leaf"
            low, high = cell[0, :, 0].tolist()
            labels.append(f"round {step}: depth {depth}, {what}")
            alts.append(
                f"Round {step}. The leaf with the highest b-value is [{low:.3f}, {high:.3f}] at depth {depth}; {what}. "
                f"Then the tree holds {int(policy.leaf.sum())} leaves."
            )
            frames.append(figure)
    return frames, labels, alts


def _plot_cells(axes: Axes, problem: CellProblem, policy: GPOO, drawn: int, limits: tuple[float, float]) -> None:
    """Posterior mean, confidence width and b-value of every leaf, before the draw."""
    figures.plot_function(axes, problem.f, problem.space.bounds, linewidth=1)
    leaves = policy.leaf[0].nonzero().flatten()
    boxes = policy.tree.boxes[leaves, :, 0]
    mean, width = policy.tracked.mean[0, leaves], policy.widths()[0, leaves]
    top = mean + width + policy.delta_at(policy.tree.depth[leaves])
    truth = problem.value(policy.tree.boxes[leaves])
    colors = [figures.COLORS[1] if leaf == drawn else figures.COLORS[0] for leaf in leaves.tolist()]
    low, high = boxes.unbind(-1)
    for height, alpha in ((top - mean + width, 0.12), (2 * width, 0.3)):
        axes.bar(low, height, high - low, mean - width, align="edge", color=colors, alpha=alpha, linewidth=0)
    axes.hlines(mean, low, high, colors=colors, linewidth=2)
    axes.hlines(truth, low, high, color="black", linestyle="--", linewidth=0.8)
    axes.set(ylim=limits, ylabel="value (units of f)")
    handles = [axes.hlines([], 0, 0, color=c, linewidth=6, alpha=0.5) for c in figures.COLORS[:2]]
    axes.legend(handles, ["leaf: mean, ± width, up to its b-value", "the leaf that is drawn"], fontsize="small")


def plot_cell(axes: Axes, problem: CellProblem, policy: GPOO, node: int, replicate: int = 0) -> None:
    """One cell before a draw: f, its points, its average, the posterior mean, the width and delta."""
    box = policy.tree.boxes[node]
    low, high = box[:, 0].tolist()
    mean, width = float(policy.tracked.mean[replicate, node]), float(policy.widths()[replicate, node])
    top = mean + width + float(policy.delta_at(policy.tree.depth)[node])
    x = interval(box, 201)
    points = problem.space.representatives(box)
    axes.axhspan(mean - width, mean + width, alpha=0.3, color=figures.COLORS[0], label="mean ± width")
    axes.axhspan(mean + width, top, alpha=0.12, color=figures.COLORS[0], label="δ, up to the b-value")
    axes.axhline(mean, color=figures.COLORS[0], linewidth=2, label="posterior mean")
    axes.axhline(float(problem.value(box[None])), color="black", linestyle="--", linewidth=1, label="average")
    axes.plot(x[:, 0], problem.f(x), color="black", label="f")
    axes.plot(points[:, 0], problem.f(points), "o", color=figures.COLORS[1], label="representative points")
    depth, index = int(policy.tree.depth[node]), int(policy.tree.index[node])
    axes.set(xlim=(low, high), xlabel="x", ylabel="value (units of f)", title=f"cell ({depth}, {index})")
    axes.legend(**_BELOW)


def plot_rivals(axes: Axes, problem: CellProblem, policy: GPOO, nodes: list[int], replicate: int = 0) -> None:
    """Cells that compete: mean, width and delta as stacked bars, with the true average and the maximum of f."""
    mean, width = policy.tracked.mean[replicate, nodes], policy.widths()[replicate, nodes]
    delta = policy.delta_at(policy.tree.depth)[nodes]
    names = [f"({int(policy.tree.depth[n])}, {int(policy.tree.index[n])})" for n in nodes]
    at = range(len(nodes))
    axes.bar(at, 2 * width, bottom=mean - width, alpha=0.3, color=figures.COLORS[0], label="mean ± width")
    axes.bar(at, delta, bottom=mean + width, alpha=0.12, color=figures.COLORS[0], label="δ")
    axes.hlines(mean, [i - 0.4 for i in at], [i + 0.4 for i in at], color=figures.COLORS[0], label="posterior mean")
    value = problem.value(policy.tree.boxes[nodes])
    axes.hlines(value, [i - 0.4 for i in at], [i + 0.4 for i in at], color="black", linestyle="--", label="average")
    best = [float(problem.f(interval(policy.tree.boxes[n], 201)).max()) for n in nodes]
    axes.plot(at, best, "^", color="black", label="largest f in the cell")
    for i, b in enumerate((mean + width + delta).tolist()):
        axes.text(i, b, f"b = {b:.2f}", ha="center", va="bottom")
    axes.set_xticks(list(at), names)
    axes.set(ylabel="value (units of f)", xlabel="leaf (h, i)")
    axes.legend(**_BELOW)


def loop_steps(
    problem: CellProblem, prior: GaussianProcess, boxes: Tensor, noise: Sequence[float]
) -> tuple[list[Figure], list[str], list[str]]:
    """Rounds of the loop, each in three pictures: the cell that is asked, the report, what is believed then.

    Args:
        problem: with about ten points a cell, which are shown.
        prior: of f.
        boxes: the cells that are asked, in their order, ``rounds x 2 x 1``.
        noise: the error of each report.

    Returns:
        Figures, labels and alternative texts for ``figures.slider``, three a round and one before the first.
    """
    seen, x = problem.value(boxes) + torch.tensor(noise).to(boxes), interval(problem.space.bounds, 301)
    before = prior.posterior()
    frames = [_round(problem, before, x, boxes, seen[:0])]
    labels = ["before round 1: the prior"]
    alts = ["A curve that the learner does not see, and the prior: a flat mean with a wide band."]
    for t, (low, high) in enumerate(boxes[..., 0].tolist()):
        cell, report = f"[{low:g}, {high:g}]", f"{seen[t]:.2f}".replace("-", "−")
        after = prior.condition(problem.space.measure(boxes[: t + 1]), seen[: t + 1])
        frames += [
            _round(problem, before, x, boxes, seen[:t], t),
            _round(problem, before, x, boxes, seen[: t + 1], t, averaged=True),
            _round(problem, after, x, boxes, seen[: t + 1]),
        ]
        labels += [
            f"round {t + 1}: the learner asks for {cell}",
            f"round {t + 1}: {problem.space.points_per_cell} values are averaged; the report is {report}",
            f"round {t + 1}: what is believed after the report",
        ]
        alts += [
            f"Round {t + 1}: the cell {cell} is marked over its whole height.",
            f"Round {t + 1}: in the cell {cell} the values of f at its points are marked, which the learner does not "
            f"see; their average with noise, {report}, which it sees, is a bar over the cell.",
            f"Round {t + 1}: mean and band of f given the reports so far, with the new bar over {cell}.",
        ]
        before = after
    return frames, labels, alts


def _round(
    problem: CellProblem,
    posterior: Posterior,
    x: Tensor,
    boxes: Tensor,
    reports: Tensor,
    asked: int | None = None,
    averaged: bool = False,
) -> Figure:
    """The curve, the belief and the reports, and within a round the cell that is asked and what is averaged there."""
    mean, std = posterior.mean(Measure.dirac(x)), posterior.variance(Measure.dirac(x)).sqrt()
    (blue, red, *_), line, ends = figures.COLORS, x[:, 0], boxes[..., 0].tolist()
    figure, axes = figures.subplots(figsize=(7, 3.9))
    axis = axes[0, 0]
    axis.plot(line, problem.f(x), "--", color="0.5", linewidth=1.2, label="f, seen by nobody")
    axis.fill_between(line, mean - 2 * std, mean + 2 * std, color=blue, alpha=0.18, linewidth=0)
    axis.plot(line, mean, color=blue, label="mean of f, and two deviations")
    for k, report in enumerate(reports.tolist()):
        axis.plot(ends[k], [report] * 2, color=red, linewidth=3, label="reports" if k == 0 else None)
    if asked is not None:
        axis.axvspan(*ends[asked], color=red, alpha=0.15, label="the cell that is asked")
    if asked is not None and averaged:
        points = problem.space.representatives(boxes[asked])
        axis.plot(points[:, 0], problem.f(points), "o", color="0.5", markersize=4, label="averaged, seen by nobody")
    axis.set(xlim=(0, 1), ylim=(-1.1, 1.9), xlabel="x", ylabel="value (units of f)")
    axis.legend(fontsize="small", loc="upper right", ncols=2)
    return figure
