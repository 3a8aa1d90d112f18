"""Indirect queries: the learner picks an action and sees an average of f under a distribution that it may not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cbo_lib.checks import as_count
from cbo_lib.indirect.space import Conditional, Space, one_each
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class IndirectProblem:
    """Maximize f over points, asking for noisy values of ``g(a) = E[f(X) | a]`` ([Zhang2025], section 2).

    Queries and recommendations are places, see ``Space``: a query is an action (a point may be asked too: direct
    feedback, for comparison), a recommendation is a point.

    Args:
        space: what the learner knows.
        f: the function to maximize, points ``... x d`` to values ``...``.
        conditional: the true ``p(x | a)``. Default that of the space.
        noise_std: standard deviation of the noise, positive: a number, or one an action. Default that of the space.
        order: nodes a dimension of the rule that computes ``g``; no learner uses the same. Default 65.

    Raises:
        ValueError: if an argument is out of range, or neither it nor the space says what the noise is.
    """

    space: Space
    f: Function
    conditional: Conditional | None = None
    noise_std: float | Tensor | None = None
    order: int = 65

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.noise_std is None and self.space.noise_std is None:
            raise ValueError("noise_std must be given where the space does not know it, got None")
        as_count("order", self.order, 1)
        for name in ("conditional", "noise_std"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.space, name))
        object.__setattr__(self, "noise_std", one_each("noise_std", self.noise_std, self.space.actions))

    @property
    def n(self) -> int:
        """How many actions."""
        return self.space.n

    @cached_property
    def table(self) -> Tensor:
        """g at every action, then f at every point, ``n + m``."""
        assert self.conditional is not None
        parts = [self.conditional.measure(part, self.order) for part in self.space.actions.split(64)]
        return torch.cat([*(part.expectation(self.f) for part in parts), self.f(self.space.points)])

    @cached_property
    def noise(self) -> Tensor:
        """The standard deviation of the noise at every place, ``n + m``; at points the smallest of any action."""
        noise = torch.as_tensor(self.noise_std)
        return torch.cat([noise, noise.amin().expand(self.space.m)])

    def value(self, query: Tensor) -> Tensor:
        """g or f at places ``...``."""
        return self.table[torch.as_tensor(query)]

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one place a replicate, ``replicates``.

        Raises:
            ValueError: if a place does not exist.
        """
        query = torch.as_tensor(query)
        if query.is_floating_point() or bool(((query < 0) | (query >= len(self.table))).any()):
            raise ValueError(f"query must lie in [0, {len(self.table)}), got {query.tolist()}")
        value = self.value(query)
        return value + self.noise[query] * standard_normal(generators, (), value)

    @property
    def optimum(self) -> Tensor:
        """``f*``, the maximum of f over the points."""
        return self.table[self.n :].amax()
