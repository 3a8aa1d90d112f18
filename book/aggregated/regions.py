"""Regions of a map: cells that are sets of places in the plane and no boxes.

Places are put in an order by cutting the map in halves, again and again. A region is then an interval of that order,
and the tree policies work on it as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.aggregated.problem import CellProblem
from book.aggregated.problems import UNIT, VARIANCE
from book.aggregated.studies import LENGTHSCALE, drawn_functions
from cbo_lib.aggregated import Space
from cbo_lib.aggregated.tree_policy import TreePolicy
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, variance

#: What the learner knows of a map: the prior of ``drawn_functions`` in two variables, and the noise.
PRIOR = GaussianProcess(rbf_kernel(LENGTHSCALE[2], VARIANCE), 0.1)


def places(count: int = 1024, seed: int = 0) -> Tensor:
    """Places ``count x 2`` inside an irregular coast, in the order of a tree of halves."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.zeros(0, 2, dtype=torch.float64)
    while len(found) < count:
        draw = torch.rand(4 * count, 2, generator=generator, dtype=torch.float64)
        angle = torch.atan2(draw[:, 1] - 0.5, draw[:, 0] - 0.5)
        coast = 0.38 + 0.08 * torch.sin(3 * angle) + 0.04 * torch.cos(7 * angle)
        found = torch.cat([found, draw[(draw - 0.5).norm(dim=-1) < coast]])
    return _halved(found[:count])


def _halved(points: Tensor) -> Tensor:
    """Cut at the median along the longest axis of the region, and each half again."""
    if len(points) < 2:
        return points
    centered = points - points.mean(0)
    axis = torch.linalg.eigh(centered.mT @ centered).eigenvectors[:, -1]
    axis = axis * torch.where(axis[axis.abs().argmax()] > 0, 1.0, -1.0)
    order = (centered @ axis).argsort()
    half = len(points) // 2
    return torch.cat([_halved(points[order[:half]]), _halved(points[order[half:]])])


@dataclass(frozen=True, eq=False)
class MapSpace(Space):
    """Regions of a map as intervals of the order of its places; a region answers through ``points_per_cell`` of them.

    Args:
        bounds: the unit interval, the order.
        points: the places ``n x 2`` in that order.
    """

    bounds: Any = field(default_factory=lambda: UNIT)
    points: Tensor = field(default_factory=places)

    def representatives(self, cells: Tensor) -> Tensor:
        """Places ``... x S x 2``, evenly through the order of the region."""
        s = (torch.arange(self.points_per_cell) + 0.5) / self.points_per_cell
        rank = torch.lerp(cells[..., :1, 0], cells[..., 1:, 0], s.to(cells)) * len(self.points)
        return self.points[rank.long().clamp(0, len(self.points) - 1)]


@dataclass(frozen=True)
class MapProblem(CellProblem):
    """A function of the plane, seen through averages over regions; the best single place is the target."""

    @property
    def optimum(self) -> Tensor:
        """The value of the best place, one a replicate."""
        assert isinstance(self.space, MapSpace)
        return self.f_at(self.space.points).amax(-1)


def map_problem(seeds: Sequence[int], points_per_cell: int = 16) -> MapProblem:
    """One function of the prior a seed."""
    return MapProblem(MapSpace(points_per_cell=points_per_cell), drawn_functions(2, seeds), 0.1, len(seeds))


def smoothness(space: MapSpace, deepest: int = 7, deviations: float = 3.0) -> list[float]:
    """``delta(h)``: so many prior deviations of f at a place minus the average of its region, at worst in the depth."""
    tree, kernel, values = space.partition(), PRIOR.kernel, []
    for depth in range(deepest + 1):
        level = tree.complete(depth)
        points = space.representatives(tree.boxes[level])  # m S 2
        m, s = points.shape[:2]
        at = torch.cat([points[:, :, None].reshape(m * s, 1, 2), points.repeat_interleave(s, 0)], 1)
        weights = torch.cat([torch.ones(1), torch.full((s,), -1.0 / s)]).to(at).expand(m * s, -1)
        spread = variance(kernel, Measure(at, weights)).clamp_min(0).max().sqrt()
        values.append(max(deviations * float(spread), 1e-3))
    return [max(values[h:]) * (1 - 1e-6 * h) for h in range(len(values))]


def leaf_depth(space: MapSpace, policy: TreePolicy) -> Tensor:
    """How deep the leaf that holds a place is after a run, ``replicates x places``."""
    low, high = policy.tree.boxes[..., 0].unbind(-1)
    middle = ((torch.arange(len(space.points)) + 0.5) / len(space.points))[:, None]
    held = (low <= middle) & (middle < high) & policy.leaf[:, None]
    return policy.tree.depth[held.to(torch.uint8).argmax(-1)]


def plot_map(problem: MapProblem, policy: TreePolicy, replicate: int = 0) -> Figure:
    """The function and, beside it, the regions that a run ended with, colored by the depth of their leaf."""
    assert isinstance(problem.space, MapSpace)
    points, depth = problem.space.points, leaf_depth(problem.space, policy)[replicate]
    figure, axes = figures.subplots(1, 2, figsize=(9, 4))
    shown = {"f (units of f)": problem.f_at(points)[replicate], "depth of the leaf": depth}
    for axis, (label, color) in zip(axes.flat, shown.items(), strict=True):
        dots = axis.scatter(points[:, 0], points[:, 1], c=color, s=12, cmap="cividis")
        figure.colorbar(dots, ax=axis, label=label)
        axis.set(xlabel="east", ylabel="north", aspect="equal")
    best = problem.f_at(points)[replicate].argmax()
    for axis in axes.flat:
        axis.plot(*points[best], "o", markersize=12, fillstyle="none", color="#D55E00", markeredgewidth=2)
    return figure
