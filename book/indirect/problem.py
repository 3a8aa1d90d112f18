"""Indirect queries: the learner picks an action and sees an average of f under a distribution that it may not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cbo_lib.checks import as_count, require
from cbo_lib.indirect.space import Conditional, Space, one_each
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal


@dataclass(frozen=True, eq=False)
class IndirectProblem:
    """Maximize f over points, asking for noisy values of ``g(a) = E[f(X) | a]`` ([Zhang2025], section 2).

    A query is an action of the space, a recommendation one of its points.

    Args:
        space: what the learner knows.
        f: the function to maximize, points ``... x d`` to values ``...``; if there is one a replicate, ``R x ... x d``
            to ``R x ...``.
        conditional: the true ``p(x | a)``. Default that of the space.
        noise_std: standard deviation of the noise, positive: a number, or one an action. Default that of the space.
        order: nodes a dimension of the rule that computes ``g``; no learner uses the same. Default 65.
        replicates: how many functions there are, if one a replicate.

    Raises:
        ValueError: if an argument is out of range, or neither it nor the space says what the noise is.
    """

    space: Space
    f: Function
    conditional: Conditional | None = None
    noise_std: float | Tensor | None = None
    order: int = 65
    replicates: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        known = self.noise_std is not None or self.space.noise_std is not None
        require(known, "noise_std must be given where the space does not know it", "none")
        as_count("order", self.order, 1)
        for name in ("conditional", "noise_std"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.space, name))
        object.__setattr__(self, "noise_std", one_each("noise_std", self.noise_std, self.space.actions))

    def evaluate(self, points: Tensor) -> Tensor:
        """f at points ``... x d``, ``R x ...``; one row if there is one function."""
        R = self.replicates
        return self.f(points).unsqueeze(0) if R is None else self.f(points.expand(R, *points.shape))

    @cached_property
    def g(self) -> Tensor:
        """The true averages of all actions, ``R x n``."""
        assert self.conditional is not None
        parts = [self.conditional.measure(part, self.order) for part in self.space.actions.split(64)]
        return torch.cat([(self.evaluate(part.points) * part.weights).sum(-1) for part in parts], -1)

    @cached_property
    def values(self) -> Tensor:
        """f at all points, ``R x m``."""
        return self.evaluate(self.space.points)

    def value(self, query: Tensor) -> Tensor:
        """g at one action a replicate, ``replicates``."""
        index = self.space.nearest(query.unsqueeze(1))
        return self.g.expand(len(query), -1).gather(1, index).squeeze(1)

    def worth(self, recommendation: Tensor) -> Tensor:
        """f at one point a replicate, ``replicates``."""
        index = torch.cdist(recommendation.unsqueeze(1), self.space.points).argmin(-1)
        return self.values.expand(len(recommendation), -1).gather(1, index).squeeze(1)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one action a replicate, ``replicates``."""
        value = self.value(query)
        noise = torch.as_tensor(self.noise_std)[self.space.nearest(query.unsqueeze(1)).squeeze(1)]
        return value + noise * standard_normal(generators, (), value)

    @property
    def optimum(self) -> Tensor:
        """``f*``, the maximum of f over the points, ``R x 1``."""
        return self.values.amax(-1, keepdim=True)
