"""The policies that the paper's method is compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_schedule, as_values, require
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.subsets.base import SubsetPolicy
from cbo_lib.subsets.policies import cheapest
from cbo_lib.subsets.search import Decisions, SamplePaths
from cbo_lib.subsets.space import Space


class UCBPSQ(SubsetPolicy):
    """The largest expected upper bound over all subsets, whatever they cost ([Hayashi2022], section 4)."""

    def decide(self) -> tuple[Tensor, Decisions]:
        """The largest bound of all."""
        decisions = self.search.maximize(torch.ones_like(self.plays, dtype=torch.bool), self.multiplier())
        return argmax_finite(decisions.bound(self.multiplier())), decisions


class TSPSQ(SubsetPolicy):
    """Thompson sampling over all subsets, whatever they cost ([Hayashi2022], section 5).

    Each round draws a function from the posterior (``SamplePaths``) and plays where its expectation is largest.

    Args:
        space: see ``SubsetPolicy``, as for other arguments; ``sqrt_beta`` serves the recommendation alone.
        features: how many random Fourier features represent the prior. Default 1,024.
    """

    def __init__(self, space: Space, *, features: int = 1024, **options: Any) -> None:
        super().__init__(space, **options)
        self.features = as_count("features", features, 1)

    def decide(self) -> tuple[Tensor, Decisions]:
        """The largest expectation of one draw."""
        values, points = self.search.maximize_paths(SamplePaths(self.search, self.generators, self.features))
        subset = argmax_finite(values)
        return subset, self.search.expect(points, torch.nn.functional.one_hot(subset, self.space.m).bool())


@dataclass(frozen=True)
class InverseRoot:
    """The schedule ``scale / sqrt(t)``."""

    scale: float = 1.0

    def __call__(self, t: int) -> float:
        """The value at step ``t = 1, 2, ...``."""
        return self.scale / t**0.5


class UCBCVS(SubsetPolicy):
    """The cheapest subset whose expected upper bound comes within ``epsilon`` of the largest ([Tay2023]).

    It is told the mean costs, which the other policies here do not know.

    Args:
        space: see ``SubsetPolicy``, as for other arguments.
        cost_means: of every subset, ``m``.
        epsilon: how much of the bound step ``t`` may give up: a number or a function of it. Default ``1 / sqrt(t)``.

    Raises:
        ValueError: if there is not one cost a subset; on asking, if ``epsilon`` is negative.
    """

    def __init__(
        self, space: Space, *, cost_means: Any, epsilon: float | Callable[[int], float] | None = None, **options: Any
    ) -> None:
        super().__init__(space, **options)
        self.cost_means = as_values("cost_means", cost_means, (space.m,), 0, like=space.like)
        self.epsilon = InverseRoot() if epsilon is None else as_schedule("epsilon", epsilon)

    def decide(self) -> tuple[Tensor, Decisions]:
        """The cheapest of what comes near, then the largest bound of the equally cheap."""
        epsilon = self.epsilon(self.round) if callable(self.epsilon) else self.epsilon
        require(epsilon >= 0, "epsilon must be nonnegative", f"{epsilon} at step {self.round}")
        decisions = self.search.maximize(torch.ones_like(self.plays, dtype=torch.bool), self.multiplier())
        upper = decisions.bound(self.multiplier())
        near = upper + epsilon >= upper.amax(-1, keepdim=True)
        return cheapest(upper, self.cost_means.expand_as(upper), near), decisions


class GroupETC(SubsetPolicy):
    """Explore groups of subsets one after the other, then commit to the largest bound of all ([Hoang2024], ETC-50).

    A group holds the subsets of as many variables. Smaller first, all but the largest get ``plays_per_group`` plays.

    Args:
        space: see ``SubsetPolicy``, as for other arguments.
        plays_per_group: default 50.
    """

    def __init__(self, space: Space, *, plays_per_group: int = 50, **options: Any) -> None:
        super().__init__(space, **options)
        self.plays_per_group = as_count("plays_per_group", plays_per_group)
        sizes = [len(controls) for controls in space.control_sets]
        self.groups = [[i for i, size in enumerate(sizes) if size == s] for s in sorted(set(sizes))[:-1]]

    def decide(self) -> tuple[Tensor, Decisions]:
        """The largest bound of the group whose turn it is."""
        wanted = torch.ones_like(self.plays, dtype=torch.bool)
        for group in reversed(self.groups):
            own = torch.zeros_like(wanted).index_fill(-1, torch.tensor(group, device=wanted.device), True)
            left = (self.plays * own).sum(-1, keepdim=True) < self.plays_per_group
            wanted = torch.where(left, own, wanted)
        decisions = self.search.maximize(wanted, self.multiplier())
        return argmax_finite(decisions.bound(self.multiplier())), decisions
