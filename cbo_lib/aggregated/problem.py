"""Aggregated feedback: the learner picks a cell and sees its average.

.. [Zhang2022] M. Zhang, R. Tsuchida, C. S. Ong. Gaussian Process Bandits with Aggregated Feedback. AAAI 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.maximize import maximum
from cbo_lib.measure import Function, Measure
from cbo_lib.partition import PartitionTree, SplitRule, split_longest_side, subcell_centers
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class CellProblem:
    """Maximize f through noisy averages over the cells of a partition tree ([Zhang2022]_, Eq. 1).

    A query is a cell: a box ``2 x d``, lower corner first. Its value is the mean of f over the cell's representative
    points, the centers of ``points_per_cell`` equal sub-cells; one point a cell is point feedback at the center.

    Args:
        f: the function to maximize, from points ``... x d`` to values ``...``.
        dim: the dimension ``d``. Default 1.
        branching: the number ``K`` of children of a cell. Default 2.
        points_per_cell: the number ``S`` of representative points. Default 10.
        noise_std: standard deviation of the Gaussian noise, nonnegative. Default 0.1.
        feedback: ``"points"``, or ``"continuous"`` for the mean over the whole cell ([Zhang2022]_, Appendix D).
        bounds: the root cell ``2 x d``. Default the unit box, float64 on the CPU; dtype and device of a run are those
            of the bounds.
        split: how a cell is cut into children. Default: equal parts across its longest side.
        replicates: if given, ``f`` holds one function a replicate: it maps points ``replicates x ... x d`` to values
            ``replicates x ...``, and ``optimum`` and ``maximizer`` have a leading dimension ``replicates``. Default:
            every replicate has the same function.
        quadrature_order: Gauss-Legendre nodes a dimension that the learner uses for continuous feedback; accurate
            where f varies little between neighboring nodes. The value of a cell is computed with more than twice
            as many, so that it shares no samples with the learner. Default 32.

    Raises:
        ValueError: if an argument is out of range.
    """

    f: Function
    dim: int = 1
    branching: int = 2
    points_per_cell: int = 10
    noise_std: float = 0.1
    feedback: Literal["points", "continuous"] = "points"
    bounds: Tensor = None  # type: ignore[assignment]  # filled in below, it depends on dim
    split: SplitRule = field(default=split_longest_side)
    quadrature_order: int = 32
    replicates: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments and fill in the unit box."""
        for name in ("dim", "points_per_cell", "quadrature_order"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.branching < 2:
            raise ValueError(f"branching must be at least 2, got {self.branching}")
        if not 0 <= self.noise_std < math.inf:
            raise ValueError(f"noise_std must be nonnegative and finite, got {self.noise_std}")
        if self.replicates is not None and self.replicates < 1:
            raise ValueError(f"replicates must be at least 1, got {self.replicates}")
        if self.feedback not in ("points", "continuous"):
            raise ValueError(f"feedback must be 'points' or 'continuous', got {self.feedback!r}")
        if self.bounds is None:
            unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.dim)
            object.__setattr__(self, "bounds", unit.clone())
        if self.bounds.shape != (2, self.dim):
            raise ValueError(f"bounds must have shape (2, {self.dim}), got {tuple(self.bounds.shape)}")
        self.partition()  # raises now if the bounds are no box

    def partition(self) -> PartitionTree:
        """A new tree that holds the root cell alone."""
        return PartitionTree(self.bounds, self.branching, self.split)

    def representatives(self, cells: Tensor) -> Tensor:
        """The points ``... x S x d`` that stand for cells ``... x 2 x d``."""
        return subcell_centers(cells, self.points_per_cell)

    def measure(self, cells: Tensor) -> Measure:
        """What an observation of each cell ``... x n x 2 x d`` averages."""
        if self.feedback == "continuous":
            return Measure.uniform(cells, self.quadrature_order)
        return Measure.average(self.representatives(cells))

    def value(self, query: Tensor) -> Tensor:
        """The noiseless mean of f over each cell ``... x n x 2 x d``, ``... x n``."""
        if self.feedback == "continuous":
            return Measure.uniform(query, 2 * self.quadrature_order + 2).expectation(self.f)
        return self.measure(query).expectation(self.f)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one cell a replicate, ``replicates``.

        Raises:
            ValueError: if the problem holds one function a replicate and there are more or fewer queries.
        """
        if self.replicates is not None and len(query) != self.replicates:
            raise ValueError(f"query must hold one cell for each of {self.replicates} replicates, got {len(query)}")
        value = self.value(query)
        return value + self.noise_std * standard_normal(generators, (), value)

    def values(self, cells: Tensor) -> Tensor:
        """The value of the same cells ``n x 2 x d`` in every replicate: ``n``, or ``replicates x n``."""
        return self.value(self._in_every_replicate(cells))

    def f_at(self, points: Tensor) -> Tensor:
        """f at the same points ``... x d`` in every replicate: ``...``, or ``replicates x ...``."""
        return self.f(self._in_every_replicate(points))

    @property
    def optimum(self) -> Tensor:
        """The maximum of f over the root cell, a number or ``replicates``."""
        return self._maximum[1]

    @property
    def maximizer(self) -> Tensor:
        """A point where f is largest, ``d`` or ``replicates x d``."""
        return self._maximum[0]

    def _in_every_replicate(self, tensor: Tensor) -> Tensor:
        return tensor if self.replicates is None else tensor.expand(self.replicates, *tensor.shape)

    @cached_property
    def _maximum(self) -> tuple[Tensor, Tensor]:
        return maximum(self.f, self.bounds, self.replicates)
