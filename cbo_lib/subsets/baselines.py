"""The policies that the paper's method is compared with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, as_values
from cbo_lib.search import argmax_finite
from cbo_lib.subsets.base import SubsetPolicy
from cbo_lib.subsets.search import Path
from cbo_lib.subsets.space import Space


class UCBPSQ(SubsetPolicy):
    """The largest expected upper bound over all subsets, whatever they cost ([Hayashi2022], section 4)."""

    def choose(self) -> tuple[Tensor, Tensor]:
        """The largest bound of all."""
        found = self.search(torch.ones_like(self.plays, dtype=torch.bool))
        ucb = found.mean + self.sqrt_beta * found.std
        return argmax_finite(ucb), found.points


class TSPSQ(SubsetPolicy):
    """Thompson sampling over all subsets, whatever they cost ([Hayashi2022], section 5).

    Each round draws a function from the posterior (``Path``) and plays where its expectation is largest.

    Args:
        space: see ``SubsetPolicy``, as for other arguments; ``sqrt_beta`` serves the recommendation alone.
        features: how many random Fourier features represent the prior. Default 512.
    """

    def __init__(self, space: Space, *, features: int = 512, **options: Any) -> None:
        super().__init__(space, **options)
        self.features = as_count("features", features, 1)

    def choose(self) -> tuple[Tensor, Tensor]:
        """The largest expectation of one draw."""
        every = list(range(self.space.m))
        expected = Path(self.belief, self.generators, self.features).expected(every)
        points = self.climb(every, expected)
        return argmax_finite(expected(points.unsqueeze(2)).squeeze(-1)), points


@dataclass(frozen=True)
class InverseRoot:
    """The schedule ``scale / sqrt(t)``."""

    scale: float = 1.0

    def __call__(self, t: int) -> float:
        """The value at step ``t = 1, 2, ...``."""
        return self.scale / math.sqrt(t)


class UCBCVS(SubsetPolicy):
    """The cheapest subset whose expected upper bound comes within ``epsilon`` of the largest ([Tay2023]).

    It is told the mean costs, which the other policies do not know.

    Args:
        space: see ``SubsetPolicy``, as for other arguments.
        cost_means: of every subset, ``m``.
        epsilon: how much of the bound round ``t`` may give up: a number or a function of it. Default ``1 / sqrt(t)``.

    Raises:
        ValueError: if there is not one cost a subset, or ``epsilon`` is negative.
    """

    def __init__(
        self, space: Space, *, cost_means: Any, epsilon: float | Callable[[int], float] | None = None, **options: Any
    ) -> None:
        super().__init__(space, **options)
        self.cost_means = as_values("cost_means", cost_means, (space.m,), 0, like=space.like)
        self.epsilon = InverseRoot() if epsilon is None else as_schedule("epsilon", epsilon)

    def choose(self) -> tuple[Tensor, Tensor]:
        """The cheapest of what comes near; of the equally cheap the largest bound."""
        found = self.search(torch.ones_like(self.plays, dtype=torch.bool))
        ucb = found.mean + self.sqrt_beta * found.std
        epsilon = as_number("epsilon", self.epsilon(self.round), 0) if callable(self.epsilon) else self.epsilon
        near = ucb + epsilon >= ucb.amax(-1, keepdim=True)
        cost = self.cost_means.expand_as(ucb).masked_fill(~near, math.inf)
        return argmax_finite(ucb, cost == cost.amin(-1, keepdim=True)), found.points


class GroupETC(SubsetPolicy):
    """Explore groups of subsets one after the other, then commit to the largest bound of all ([Hoang2024], ETC-50).

    A group holds the subsets of as many variables. Smaller first, all but the largest get ``plays_per_group`` plays,
    each where the expected upper bound of the group is largest.

    Args:
        space: see ``SubsetPolicy``, as for other arguments.
        plays_per_group: default 50.
    """

    def __init__(self, space: Space, *, plays_per_group: int = 50, **options: Any) -> None:
        super().__init__(space, **options)
        self.plays_per_group = as_count("plays_per_group", plays_per_group)
        sizes = space.controlled.sum(-1)
        self.groups = [sizes == size for size in sorted(set(sizes.tolist()))[:-1]]

    def choose(self) -> tuple[Tensor, Tensor]:
        """The largest bound of the group whose turn it is."""
        wanted = torch.ones_like(self.plays, dtype=torch.bool)
        for group in reversed(self.groups):
            left = (self.plays * group).sum(-1, keepdim=True) < self.plays_per_group
            wanted = torch.where(left, group, wanted)
        found = self.search(wanted)
        ucb = found.mean + self.sqrt_beta * found.std
        return argmax_finite(ucb), found.points
