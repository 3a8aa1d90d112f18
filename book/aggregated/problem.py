"""Aggregated feedback as a problem: a space of cells and the function that they average ([Zhang2022])."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from book.functions import maximum
from cbo_lib.aggregated.space import Space
from cbo_lib.checks import as_count, as_number, as_tensor, require, require_shape
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class CellProblem:
    """Maximize f through noisy averages over the cells of a partition tree ([Zhang2022], Eq. 1).

    Args:
        space: the cells, and what an observation averages.
        f: the function to maximize, from points ``... x d`` to values ``...``.
        noise_std: standard deviation of the Gaussian noise, nonnegative. Default 0.1.
        replicates: if given, ``f`` holds one function a replicate: it maps points ``replicates x ... x d`` to values
            ``replicates x ...``, and ``optimum`` and ``maximizer`` have a leading dimension ``replicates``. Default:
            every replicate has the same function.

    Raises:
        ValueError: if an argument is out of range.
    """

    space: Space
    f: Function
    noise_std: float = 0.1
    replicates: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not isinstance(self.space, Space):
            raise ValueError(f"space must be an aggregated.Space, got {self.space!r}")
        as_number("noise_std", self.noise_std, 0)
        if self.replicates is not None:
            as_count("replicates", self.replicates, 1)

    def value(self, query: Tensor) -> Tensor:
        """The noiseless mean of f over each cell ``... x n x 2 x d``, ``... x n``.

        Continuous feedback takes more than twice the learner's nodes, so that the two share no samples.
        """
        query = as_tensor("query", query, self.space.like)
        require_shape("query", query, ..., 2, self.space.dim)
        last = self._last.get("query")  # a run asks for the value that it has just observed
        if last is None or not torch.equal(query, last):
            value = self.space.measure(query, 2 * self.space.quadrature_order + 2).expectation(self.f)
            self._last.update(query=query.clone(), value=value)
        return self._last["value"].clone()

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one cell a replicate, ``replicates``.

        Raises:
            ValueError: if a cell reaches out of the root, or the problem holds one function a replicate and there are
                more or fewer queries.
        """
        if self.replicates is not None and len(query) != self.replicates:
            raise ValueError(f"query must hold one cell for each of {self.replicates} replicates, got {len(query)}")
        value = self.value(query)
        low, high = self.space.bounds
        slack, cells = 1e-9 * (high - low), as_tensor("query", query, self.space.bounds)
        inside = (cells >= low - slack) & (cells <= high + slack)
        require(inside, f"query must lie in the bounds {self.space.bounds.tolist()}", cells)
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
    def _last(self) -> dict[str, Tensor]:
        """The cells whose value was asked for last, and this value."""
        return {}

    @cached_property
    def _maximum(self) -> tuple[Tensor, Tensor]:
        return maximum(self.f, self.space.bounds, self.replicates)
