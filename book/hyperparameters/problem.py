"""Unknown hyperparameters: the query is a point, but the prior is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from book.functions import maximum
from cbo_lib.checks import as_count, as_number, as_tensor, require, require_shape
from cbo_lib.hyperparameters.space import Space
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class UnknownPriorProblem:
    """Maximize f through noisy values at points, when its prior is one of several ([Ziomek2024], section 2).

    A query is a point ``d``. With a positive ``epsilon`` of the space the point may be perturbed, and its value is the
    worst within that distance ([Ziomek2024], section 6); an observation is still the noisy value of f where it was
    asked.

    Args:
        space: the domain and the candidates.
        f: the function to maximize, from points ``... x d`` to values ``...``.
        noise_std: standard deviation ``R`` of the Gaussian noise, positive. Default that of the space.
        truth: index of the true candidate, ``()`` or ``replicates``; for theory and plots. Default none: no candidate
            is known to be true.
        replicates: if given, ``f`` holds one function a replicate: it maps points ``replicates x ... x d`` to values
            ``replicates x ...``. Default: every replicate has the same function.

    Raises:
        ValueError: if an argument is out of range.
    """

    space: Space
    f: Function
    noise_std: Any = None
    truth: int | Tensor | None = None
    replicates: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        noise = self.space.noise_std if self.noise_std is None else self.noise_std
        object.__setattr__(self, "noise_std", float(as_number("noise_std", noise, 0, ends="()")))
        if self.replicates is not None:
            as_count("replicates", self.replicates, 1)
        if self.truth is not None:
            truth, count = torch.as_tensor(self.truth), len(self.space.candidates)
            if truth.shape not in (torch.Size(), torch.Size([self.replicates or 0])):
                raise ValueError(f"truth must be an index or one a replicate, got shape {tuple(truth.shape)}")
            if not bool(((truth >= 0) & (truth < count)).all()):
                raise ValueError(f"truth must lie in [0, {count}), got {truth.tolist()}")

    def value(self, query: Tensor) -> Tensor:
        """f at points ``replicates x ... x d``, ``replicates x ...``; with ``epsilon``, its worst value that near."""
        query = as_tensor("query", query, self.space.like)
        require_shape("query", query, ..., self.space.dim)
        if self.space.epsilon == 0.0:
            return self.f(query)
        index = torch.cdist(query.reshape(len(query), -1, self.space.dim), self.space.points).argmin(-1)
        worst = self.space.worst(self.values).expand(len(query), -1)
        return worst.gather(-1, index).reshape(query.shape[:-1])

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of f at one point a replicate, ``replicates``.

        Raises:
            ValueError: if a query lies outside the domain's box, or the problem holds one function a replicate and
                there are more or fewer queries.
        """
        if self.replicates is not None and len(query) != self.replicates:
            raise ValueError(f"query must hold one point for each of {self.replicates} replicates, got {len(query)}")
        query = as_tensor("query", query, self.space.like)
        require_shape("query", query, ..., self.space.dim)
        low, high = self._box
        slack = 1e-9 * (high - low)
        inside = (query >= low - slack) & (query <= high + slack)
        require(inside, f"query must lie in the box of the domain, {self._box.tolist()}", query)
        value = self.f(query)
        return value + self.noise_std * standard_normal(generators, (), value)

    @cached_property
    def _box(self) -> Tensor:
        points = self.space.points
        return self.space.bounds if points is None else torch.stack([points.amin(0), points.amax(0)])

    @cached_property
    def values(self) -> Tensor:
        """f on the finite domain, ``n`` or ``replicates x n``."""
        points = self.space.points
        return self.f(points if self.replicates is None else points.expand(self.replicates, *points.shape))

    @cached_property
    def optimum(self) -> Tensor:
        """The best value: the maximum of f, or of its worst value within ``epsilon``; ``()`` or ``replicates``."""
        if self.space.points is not None:
            return self.space.worst(self.values).amax(-1)
        return maximum(self.f, self.space.bounds, self.replicates)[1]
