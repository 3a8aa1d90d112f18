"""The census: an island of 1,024 places, whose regions report their mean age.

Places are put in an order by cutting the map in halves, again and again. A region is an interval of that order, so
that the tree policies work on regions of any shape as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from book.aggregated.problem import CellProblem
from book.aggregated.problems import UNIT
from cbo_lib.aggregated import Space
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matrix, rbf_kernel
from cbo_lib.measure import Function, Measure, variance
from cbo_lib.random import ReplicateGenerators, standard_normal

#: How ages vary over the island: 3 years around 40, alike within 0.15 of its width; a report is off by 1 year.
MEAN_AGE = 40.0
PRIOR = GaussianProcess(rbf_kernel(0.15, 9.0), 1.0, MEAN_AGE)


@cache
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
        points_per_cell: of how many places a report is the mean. Default 4.
        points: the places ``n x 2`` in that order.
    """

    bounds: Any = field(default_factory=lambda: UNIT)
    points_per_cell: int = 4
    points: Tensor = field(default_factory=places)

    @property
    def inputs(self) -> Tensor:
        """The map, a square."""
        return torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)

    def representatives(self, cells: Tensor) -> Tensor:
        """Places ``... x S x 2``, evenly through the order of the region."""
        s = (torch.arange(self.points_per_cell) + 0.5) / self.points_per_cell
        rank = torch.lerp(cells[..., :1, 0], cells[..., 1:, 0], s.to(cells)) * len(self.points)
        return self.points[rank.long().clamp(0, len(self.points) - 1)]

    def center_and_corner(self, levels: int) -> Tensor:
        """The mean place and the place farthest from it, in the widest region of each depth, ``levels x 2 x 2``."""
        found = []
        for level in range(levels):
            regions = self.points.unflatten(0, (2 ** min(level, 9), -1))
            center = regions.mean(1, keepdim=True)
            distance, place = (regions - center).norm(dim=-1).max(-1)
            widest = distance.argmax()
            found.append(torch.stack([center[widest, 0], regions[widest, place[widest]]]))
        return torch.stack(found)


@dataclass(frozen=True)
class CensusProblem(CellProblem):
    """Ages seen through reports of regions; the best single place is the target."""

    @property
    def optimum(self) -> Tensor:
        """The mean age of the oldest place, one a replicate."""
        assert isinstance(self.space, MapSpace)
        return self.f_at(self.space.points).amax(-1)


def census(seeds: Sequence[int]) -> CensusProblem:
    """An island a seed: ages are a draw of ``PRIOR``, in years."""
    return CensusProblem(MapSpace(), ages(seeds), float(PRIOR.noise_std), len(seeds))


def ages(seeds: Sequence[int], grid: int = 33) -> Function:
    """One draw of ``PRIOR`` a seed: of points ``seeds x ... x 2`` the mean ages ``seeds x ...``."""
    side = torch.linspace(0, 1, grid, dtype=torch.float64).unsqueeze(-1)
    length = float(PRIOR.kernel.base_kernel.lengthscale)
    one = rbf_kernel(length, 1.0)
    factor = torch.linalg.cholesky(matrix(one, side) + 1e-6 * torch.eye(grid).to(side))
    z = standard_normal(ReplicateGenerators(seeds, stream=2).generators, (grid, grid), side)
    half = torch.linalg.solve_triangular(factor.mT, z, upper=True)
    weights = torch.linalg.solve_triangular(factor.mT, half.mT, upper=True).mT  # seeds grid grid
    scale = float(PRIOR.kernel.outputscale) ** 0.5

    def f(points: Tensor) -> Tensor:
        flat = points.reshape(len(points), -1, 2)
        a, b = (torch.exp(-((flat[..., i, None] - side[:, 0]) ** 2) / (2 * length**2)) for i in (0, 1))
        return MEAN_AGE + scale * ((a @ weights) * b).sum(-1).reshape(points.shape[:-1])

    return f


def smoothness(depth: Tensor) -> Tensor:
    """``delta(h)``: three prior deviations of the age at a place minus that of its region, at worst in the depth."""
    return _levels()[depth.clamp_max(9)] * 0.5 ** (depth - 9).clamp_min(0)


@cache
def _levels() -> Tensor:
    """``smoothness`` down to regions of two places."""
    space, values = MapSpace(), []
    tree = space.partition()
    for level in range(10):
        cells = tree.complete(level)
        points = space.representatives(tree.boxes[cells])  # m S 2
        m, s = points.shape[:2]
        at = torch.cat([points[:, :, None].reshape(m * s, 1, 2), points.repeat_interleave(s, 0)], 1)
        weights = torch.cat([torch.ones(1), torch.full((s,), -1.0 / s)]).to(at).expand(m * s, -1)
        values.append(3 * float(variance(PRIOR.kernel, Measure(at, weights)).clamp_min(0).max().sqrt()))
    return torch.tensor([max(values[h:]) + 1e-6 * (9 - h) for h in range(10)]).to(space.bounds)
