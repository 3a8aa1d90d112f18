"""The policies that the paper's method is compared with.

.. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
   Subsets with No-Regret Costs. 2024.
.. [Tay2023] S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Bayesian Optimization with Cost-varying Variable
   Subsets. NeurIPS 2023.
.. [Hayashi2022] S. Hayashi, J. Honda, H. Kashima. Bayesian Optimization with Partially Specified Queries. Machine
   Learning 111, 2022.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.subsets.bounds import Effort
from cbo_lib.subsets.paths import SamplePaths
from cbo_lib.subsets.policies import SubsetPolicy
from cbo_lib.subsets.problem import SubsetProblem


class UCBPSQ(SubsetPolicy):
    """The largest expected upper bound over all subsets, whatever they cost ([Hayashi2022]_, section 4)."""

    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        decisions = self._started().maximize(torch.ones_like(self.plays, dtype=torch.bool), self.sqrt_beta)
        subset = self._argmax(decisions.bound(self.sqrt_beta))
        return subset, *decisions.of(subset)


class TSPSQ(SubsetPolicy):
    """Thompson sampling over all subsets, whatever they cost ([Hayashi2022]_, section 5).

    Each round draws a function from the posterior (see ``SamplePaths``) and plays the decision of its largest
    expectation.

    Args:
        problem, prior, sqrt_beta, effort: as for every policy; ``sqrt_beta`` serves the recommendation alone.
        features: how many random Fourier features represent the prior. Default 1,024.
    """

    def __init__(
        self,
        problem: SubsetProblem,
        prior: GaussianProcess,
        sqrt_beta: float = 2.0,
        effort: Effort | None = None,
        features: int = 1024,
    ) -> None:
        super().__init__(problem, prior, sqrt_beta, effort)
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        self.features = features

    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        bounds = self._started()
        values, points = bounds.maximize_paths(SamplePaths(bounds, self.generators, self.features))
        subset = self._argmax(values)
        wanted = torch.nn.functional.one_hot(subset, self.problem.m).bool()
        return subset, *bounds.expect(points, wanted).of(subset)


class UCBCVS(SubsetPolicy):
    """The cheapest subset whose expected upper bound comes within ``epsilon`` of the largest ([Tay2023]_).

    It knows the mean costs, which the other policies here do not.

    Args:
        problem, prior, sqrt_beta, effort: as for every policy.
        epsilon: how much of the bound may be given up at step ``t = 1, 2, ...``, nonnegative.

    Raises:
        ValueError: on asking, if ``epsilon`` is negative.
    """

    def __init__(
        self,
        problem: SubsetProblem,
        prior: GaussianProcess,
        sqrt_beta: float = 2.0,
        effort: Effort | None = None,
        epsilon: Callable[[int], float] = lambda t: 1.0 / t**0.5,
    ) -> None:
        super().__init__(problem, prior, sqrt_beta, effort)
        self.epsilon = epsilon

    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        epsilon = self.epsilon(self.step + 1)
        if not epsilon >= 0:
            raise ValueError(f"epsilon must be nonnegative, got {epsilon} at step {self.step + 1}")
        decisions = self._started().maximize(torch.ones_like(self.plays, dtype=torch.bool), self.sqrt_beta)
        upper = decisions.bound(self.sqrt_beta)
        near = upper + epsilon >= upper.amax(-1, keepdim=True)
        costs = self.problem.cost_means.to(upper).expand_as(upper).masked_fill(~near, torch.inf)
        cheapest = costs == costs.amin(-1, keepdim=True)
        subset = self._argmax(upper.masked_fill(~cheapest, -torch.inf))
        return subset, *decisions.of(subset)


class GroupETC(SubsetPolicy):
    """Explore groups of subsets one after the other, then commit to the largest bound of all ([Hoang2024]_, ETC-50).

    Costs are unknown, so a group holds the subsets with as many variables. Every group but the largest is played
    ``plays_per_group`` times, smaller subsets first.

    Args:
        problem, prior, sqrt_beta, effort: as for every policy.
        plays_per_group: default 50.
    """

    def __init__(
        self,
        problem: SubsetProblem,
        prior: GaussianProcess,
        sqrt_beta: float = 2.0,
        effort: Effort | None = None,
        plays_per_group: int = 50,
    ) -> None:
        super().__init__(problem, prior, sqrt_beta, effort)
        if plays_per_group < 0:
            raise ValueError(f"plays_per_group must be nonnegative, got {plays_per_group}")
        self.plays_per_group = plays_per_group
        sizes = [len(controls) for controls in problem.control_sets]
        self.groups = [[i for i, size in enumerate(sizes) if size == s] for s in sorted(set(sizes))[:-1]]

    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        number = self.step // self.plays_per_group if self.plays_per_group else len(self.groups)
        wanted = torch.ones_like(self.plays, dtype=torch.bool)
        if number < len(self.groups):
            wanted = torch.zeros_like(wanted)
            wanted[:, self.groups[number]] = True
        decisions = self._started().maximize(wanted, self.sqrt_beta)
        subset = self._argmax(decisions.bound(self.sqrt_beta))
        return subset, *decisions.of(subset)
