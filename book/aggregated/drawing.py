"""Pictures of trees, cells and islands under aggregated feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from book import figures
from book.aggregated.census import CensusProblem, MapSpace
from book.aggregated.problem import CellProblem
from book.functions import interval
from cbo_lib.aggregated.policies import GPOO
from cbo_lib.aggregated.tree import TreePolicy
from cbo_lib.simulate import simulate

BLUE, ORANGE = figures.COLORS[:2]


def last_batch(problem: CellProblem, policy: Any, rounds: int, seeds: Sequence[int]) -> Any:
    """The batch as a simulation leaves it, to be drawn."""
    kept: dict[str, Any] = {}

    def keep(batch: Any) -> dict[str, Tensor]:
        kept["batch"] = batch
        return {}

    simulate(problem, policy, rounds, seeds, watch=keep)
    return kept["batch"]


def plot_tree(axes: Axes, batch: TreePolicy, replicate: int = 0) -> None:
    """The tree of one replicate: each node at the center of its cell, marked by how often it was drawn."""
    tree = batch.tree
    held = (batch.leaf | batch.split)[replicate].nonzero().flatten()
    center, depth = tree.boxes.mean(-2)[:, 0], tree.depth
    ends = [torch.stack([center[i], depth[i].to(center)], -1) for i in (tree.parent[held[1:]], held[1:])]
    axes.add_collection(LineCollection(torch.stack(ends, 1).tolist(), colors="0.8", linewidths=0.8, zorder=1))
    same = (batch.queries[replicate].unsqueeze(1) == tree.boxes[held]).flatten(2).all(-1)  # rounds nodes
    draws = same.sum(0)
    kinds = ((draws == 0, "never drawn", "o"), (draws == 1, "drawn once", "s"), (draws > 1, "drawn more often", "^"))
    for color, (mask, label, marker) in zip(figures.COLORS, kinds, strict=False):
        at = held[mask]
        axes.plot(center[at], depth[at], marker, color=color, markersize=4, label=label, zorder=2)
    x = "place in the order" if isinstance(batch.space, MapSpace) else "x"
    axes.set(xlabel=x, ylabel="depth", ylim=(max(4, int(depth[held].max())) + 0.5, -0.5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")


def plot_places(axes: Axes, values: Tensor | Sequence[Any], **settings: Any) -> Any:
    """The places of the island, colored; settings are those of ``scatter``."""
    points = MapSpace().points
    colors = {"cmap": "cividis"} if isinstance(values, Tensor) else {}
    dots = axes.scatter(points[:, 0], points[:, 1], c=values, **{"s": 14, "linewidths": 0, **colors, **settings})
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return dots


def plot_map(problem: CensusProblem, batch: TreePolicy, replicate: int = 0) -> Figure:
    """The ages of an island beside the regions that a run ended with, colored by depth; a ring at the oldest place."""
    points = MapSpace().points
    low, high = batch.tree.boxes[..., 0].unbind(-1)
    order = ((torch.arange(len(points)) + 0.5) / len(points))[:, None].to(low)
    held = (low <= order) & (order < high) & batch.leaf[replicate]
    depth = batch.tree.depth[held.byte().argmax(-1)]
    ages = problem.f_at(points)[replicate]
    figure, axes = figures.subplots(1, 2, figsize=(8, 3.8))
    levels = range(int(depth.min()), int(depth.max()) + 1)
    norm = BoundaryNorm([*(h - 0.5 for h in levels), levels[-1] + 0.5], 256)
    looks: tuple[tuple[Any, ...], ...] = (
        (ages, "mean age (years)", {}, {}),
        (depth, "depth of the leaf", {"norm": norm}, {"ticks": list(levels)}),
    )
    for axis, (values, label, look, bar) in zip(axes.flat, looks, strict=True):
        figure.colorbar(plot_places(axis, values, **look), ax=axis, label=label, **bar)
        axis.plot(*points[ages.argmax()], "o", markersize=12, fillstyle="none", color=ORANGE, markeredgewidth=2)
    return figure


def plot_cell(axes: Axes, problem: CellProblem, batch: GPOO, node: int) -> None:
    """A cell of one dimension that was asked last: f, its points, its average, the mean, the width and delta."""
    box = batch.tree.boxes[node]
    mean, width, allowed = float(batch.belief()[0][0, node]), float(batch.width[0, node]), float(batch.allowed[0, node])
    x, points = interval(box, 201), problem.space.representatives(box)
    axes.axhspan(mean - width, mean + width, alpha=0.4, color=BLUE, linewidth=0, label="mean ± width")
    axes.axhspan(mean + width, mean + width + allowed, alpha=0.15, color=BLUE, linewidth=0, label="δ, up to b")
    axes.axhline(mean, color=BLUE, linewidth=2, label="posterior mean")
    axes.axhline(float(problem.value(box[None])), color="black", linestyle="--", linewidth=1, label="average")
    axes.plot(x[:, 0], problem.f(x), color="black", label="f")
    axes.plot(points[:, 0], problem.f(points), "o", color=ORANGE, label="representative points")
    axes.set(xlim=box[:, 0].tolist(), xlabel="x", ylabel="value (units of f)")


def plot_rivals(axes: Axes, problem: CellProblem, batch: GPOO, nodes: Sequence[int]) -> None:
    """Leaves that compete, as bars up to their b-values, with the true average of each and the largest f in it."""
    mean, width, allowed = (x[0, nodes] for x in (batch.belief()[0], batch.width, batch.allowed))
    at = torch.arange(len(nodes))
    axes.bar(at, 2 * width, bottom=mean - width, alpha=0.4, color=BLUE)
    axes.bar(at, allowed, bottom=mean + width, alpha=0.15, color=BLUE)
    axes.hlines(mean, at - 0.4, at + 0.4, color=BLUE, linewidth=2)
    axes.hlines(problem.value(batch.tree.boxes[nodes]), at - 0.4, at + 0.4, color="black", linestyle="--", linewidth=1)
    best = [float(problem.f(interval(batch.tree.boxes[n], 201)).max()) for n in nodes]
    axes.plot(at, best, "^", color="black", label="largest f in the cell")
    for i, b in enumerate((mean + width + allowed).tolist()):
        axes.text(i, b, f"b = {b:.2f}", ha="center", va="bottom")
    names = [f"({int(batch.tree.depth[n])}, {int(batch.tree.index[n])})" for n in nodes]
    axes.set_xticks(at, names)
    axes.set_xlabel("leaf (h, i)")
