"""The method that learns which variables to control, and what it shares with the policies it is compared with.

.. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
   Subsets with No-Regret Costs. 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.maximize import argmax_finite
from cbo_lib.subsets.bounds import Decisions, Effort, SubsetBounds
from cbo_lib.subsets.choice import choose, cost_lower_bound, good_enough
from cbo_lib.subsets.problem import SubsetProblem


class SubsetPolicy(ABC):
    """What the policies share: the posterior, the search for decisions, the book of costs and the recommendation.

    The recommendation is the decision asked so far whose expected lower bound was largest when it was asked.

    Args:
        problem: the control sets, the marginals and the noise.
        prior: of f, with the noise of the problem; its kernel must be a product over the coordinates.
        sqrt_beta: the multiplier of the standard deviation, nonnegative. Default 2, as in the paper's experiments.
        effort: see ``Effort``; give all policies the same.

    Raises:
        ValueError: if ``sqrt_beta`` is negative.
    """

    _bounds: ClassVar[type[SubsetBounds]] = SubsetBounds

    def __init__(
        self,
        problem: SubsetProblem,
        prior: GaussianProcess,
        sqrt_beta: float = 2.0,
        effort: Effort | None = None,
    ) -> None:
        if not sqrt_beta >= 0:
            raise ValueError(f"sqrt_beta must be nonnegative, got {sqrt_beta}")
        self.problem, self.prior, self.sqrt_beta = problem, prior, sqrt_beta
        self.effort = effort or Effort()
        self.bounds: SubsetBounds | None = None

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        replicates, m = len(generators), self.problem.m
        self.bounds = self._bounds(self.problem, self.prior, replicates, self.effort)
        like = self.bounds.contexts
        self.generators = generators
        self.step = 0
        self.plays = torch.zeros(replicates, m, dtype=torch.long, device=like.device)
        self.paid = torch.zeros(replicates, m, dtype=like.dtype, device=like.device)
        self.spent = torch.zeros(replicates, dtype=like.dtype, device=like.device)
        self._best = torch.full_like(self.spent, -torch.inf)
        self._recommended = torch.full((replicates, 1 + self.problem.dim), 0.5).to(like)
        self._query: Tensor | None = None

    def ask(self) -> Tensor:
        """The next decision of each replicate: a subset's index, then a point, ``replicates x (1 + d)``."""
        self._started()
        subset, points, mean, std = self._choose()
        self._subset, self._mean, self._std = subset, mean, std
        self._query = torch.cat([subset.to(points).unsqueeze(-1), points], -1)
        lower = mean - self.sqrt_beta * std
        better = lower > self._best
        self._best = torch.where(better, lower, self._best)
        self._recommended = torch.where(better.unsqueeze(-1), self._query, self._recommended)
        return self._query

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Learn from the full point, the noisy value and the cost of what was asked, ``replicates x (d + 2)``.

        Raises:
            ValueError: if nothing was asked, other decisions were, or the observations do not fit.
        """
        bounds, dim = self._started(), self.problem.dim
        if self._query is None:
            raise ValueError("tell must follow ask, nothing was asked")
        if not torch.equal(query, self._query):
            raise ValueError("query must be what was asked last, got other decisions")
        if observation.shape != (len(query), dim + 2):
            raise ValueError(f"observation must have shape ({len(query)}, {dim + 2}), got {tuple(observation.shape)}")
        if not bool(torch.isfinite(observation).all()):
            raise ValueError("observation must be finite, got a NaN or an infinity")
        full, y, self._cost = observation[:, :dim], observation[:, dim], observation[:, dim + 1]
        self._there = bounds.prediction(full)
        bounds.observe(full, y)
        at = self._subset.unsqueeze(-1)
        self.plays.scatter_add_(-1, at, torch.ones_like(at))
        self.paid.scatter_add_(-1, at, self._cost.unsqueeze(-1))
        self.spent = self.spent + self._cost
        self._query = None
        self.step += 1

    def recommend(self) -> Tensor:
        """The asked decision of the largest lower bound, ``replicates x (1 + d)``."""
        self._started()
        if self.step == 0:
            raise ValueError("recommend must follow an observation, there is none")
        return self._recommended

    def trace(self) -> Mapping[str, Tensor]:
        """Of the last step, ``replicates`` each.

        ``subset``; ``expected_mean`` and ``expected_std``, the averages of posterior mean and standard deviation over
        the free variables; ``mean`` and ``std`` at the full point that came to be, before the observation; ``cost``;
        ``spent`` with it.
        """
        self._started()
        if self.step == 0 or self._query is not None:
            raise ValueError("trace must follow ask and tell, one of them is missing")
        return {
            "subset": self._subset,
            "expected_mean": self._mean,
            "expected_std": self._std,
            "mean": self._there[0],
            "std": self._there[1],
            "cost": self._cost,
            "spent": self.spent,
        }

    def _started(self) -> SubsetBounds:
        if self.bounds is None:
            raise ValueError("start must be called first")
        return self.bounds

    @abstractmethod
    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The subset ``replicates``, its point ``replicates x d``, and what is expected of it, ``replicates`` each."""

    def _argmax(self, values: Tensor) -> Tensor:
        """The best column of ``replicates x c``; values that differ by rounding count as tied, the first wins."""
        free = torch.ones_like(values, dtype=torch.bool)
        return argmax_finite(values, free, torch.arange(values.shape[-1], device=values.device))


class CheapestGoodSubset(SubsetPolicy):
    """The paper's method: learn which subsets are good enough, then play the cheapest of these ([Hoang2024]_, Alg. 1).

    Exploration plays all subsets in turn. It ends before a round that would, at the average costs so far, bring the
    spending above ``exploration_budget``; or after ``rounds`` rounds. At least one round is played.

    Exploitation keeps the smallest upper bound so far of every subset and the largest lower bound so far of any, drops
    the subsets that cannot be good enough and chooses with ``choose``. Bounds of dropped subsets are not computed
    again: the smallest so far cannot rise. If none is left, the bounds are reset to today's (lines 17 to 21).

    The lower bound that is maximized in a step is that of the subset played last, where the data came in; of the others
    the tracked candidates count. So the largest so far may lag behind, and is valid all the same.

    Args:
        problem, prior, sqrt_beta, effort: as for every policy.
        alpha: what share of the best value may be given up, at the evaluation ``s = 0, 1, ...`` of the exploitation,
            in ``[0, 1)``. Default 0.1, halved after every ``d`` evaluations, as in the experiments; for the theory give
            a constant.
        exploration_budget: default 60 percent of the problem's budget.
        rounds: ``tau``. Default none: the budget decides.
        horizon: ``T`` of the cost bounds. Default: what was played until exploitation begins, and what remains of the
            budget at the least average cost.
        cost_spread: how widely a cost varies, see ``cost_lower_bound``. Default 1, as in the paper.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: SubsetProblem,
        prior: GaussianProcess,
        sqrt_beta: float = 2.0,
        effort: Effort | None = None,
        alpha: Callable[[int], float] | None = None,
        exploration_budget: float | None = None,
        rounds: int | None = None,
        horizon: int | None = None,
        cost_spread: float = 1.0,
    ) -> None:
        super().__init__(problem, prior, sqrt_beta, effort)
        if not cost_spread > 0:
            raise ValueError(f"cost_spread must be positive, got {cost_spread}")
        if exploration_budget is not None and not exploration_budget > 0:
            raise ValueError(f"exploration_budget must be positive, got {exploration_budget}")
        for name, value in (("rounds", rounds), ("horizon", horizon)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.alpha = alpha or (lambda s: 0.1 * 0.5 ** (s // problem.dim))
        self.exploration_budget = 0.6 * problem.budget if exploration_budget is None else exploration_budget
        self.rounds, self.horizon, self.cost_spread = rounds, horizon, cost_spread

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        super().start(generators)
        self.upper = torch.full_like(self.paid, torch.inf)  # the smallest so far, of each subset
        self.lower = torch.full_like(self.spent, -torch.inf)  # the largest so far, of any
        self._exploring = torch.ones_like(self.spent, dtype=torch.bool)
        self._begun = torch.zeros_like(self.plays[:, 0])  # the step at which exploitation began
        self._horizon = torch.ones_like(self.spent)
        self._resets = torch.zeros_like(self.plays[:, 0])

    def trace(self) -> Mapping[str, Tensor]:
        """What every policy records, and the state of Algorithm 1 at the last choice.

        ``upper`` (``replicates x m``, infinite where not yet known) and ``lower``; ``cost_lower`` and ``good``
        (``S_1``), ``replicates x m``; ``alpha``; ``exploring``; ``horizon``; ``resets`` so far.
        """
        return {
            **super().trace(),
            "upper": self.upper.clone(),
            "lower": self.lower,
            "cost_lower": self._cost_lower,
            "good": self._good,
            "alpha": self._alpha,
            "exploring": self._was_exploring,
            "horizon": self._horizon.clone(),
            "resets": self._resets.clone(),
        }

    def _choose(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        bounds, m = self._started(), self.problem.m
        turn = self.step % m
        if turn == 0:
            self._end_exploration()
        self._was_exploring = self._exploring.clone()
        today_lower = self._lower_today()
        self.lower = torch.maximum(self.lower, today_lower)  # lines 10 and 14
        begun = zip(self._exploring.tolist(), self._begun.tolist(), strict=True)
        self._alpha = self.spent.new_tensor([0.0 if e else float(self.alpha(self.step - b)) for e, b in begun])

        # Lines 11 and 15, for the subsets that may still pass line 16.
        alive = torch.where(
            self._exploring.unsqueeze(-1),
            torch.arange(m, device=self.upper.device) == turn,
            good_enough(self.upper, self.lower, self._alpha),
        )
        decisions = bounds.maximize(alive, self.sqrt_beta)
        self._learn(decisions, alive)
        lost = ~self._good.any(-1) & ~self._exploring
        if bool(lost.any()):
            decisions = self._reset(lost, today_lower, decisions)

        known = self.plays.clamp_min(1)
        self._cost_lower = cost_lower_bound(self.paid / known, known, self._horizon, self.cost_spread)
        today = decisions.bound(self.sqrt_beta)
        subset = torch.full_like(self.plays[:, 0], turn)
        for r in torch.nonzero(~self._exploring).flatten().tolist():
            subset[r] = choose(self.upper[r], self._cost_lower[r], self.lower[r], float(self._alpha[r]), today[r])
        return subset, *decisions.of(subset)

    def _learn(self, decisions: Decisions, alive: Tensor) -> None:
        """Lines 10, 11 and 14 to 16 for the subsets that were looked at."""
        today = decisions.bound(self.sqrt_beta).masked_fill(~alive, torch.inf)
        self.upper = torch.minimum(self.upper, today)
        self.lower = torch.maximum(self.lower, decisions.bound(-self.sqrt_beta).amax(-1))
        self._good = good_enough(self.upper, self.lower, self._alpha)

    def _reset(self, lost: Tensor, today_lower: Tensor, decisions: Decisions) -> Decisions:
        """Lines 17 to 21: today's bounds in the place of the tightest so far, for the replicates that lost all."""
        wanted = lost.unsqueeze(-1).expand_as(self.upper)
        everything = self._started().maximize(wanted, self.sqrt_beta)
        self.upper = torch.where(wanted, everything.bound(self.sqrt_beta), self.upper)
        least = torch.maximum(today_lower, everything.bound(-self.sqrt_beta).amax(-1))
        self.lower = torch.where(lost, least, self.lower)
        # Negative bounds may leave none even now; then no subset is dropped.
        none = lost & ~good_enough(self.upper, self.lower, self._alpha).any(-1)
        self.lower = self.lower.masked_fill(none, -torch.inf)
        self._good = good_enough(self.upper, self.lower, self._alpha)
        self._resets = self._resets + lost
        return everything.where(lost, decisions)

    def _end_exploration(self) -> None:
        """Decide, before a round, which replicates explore no more."""
        played = self.step // self.problem.m
        if played == 0:
            return
        average = self.paid / self.plays.clamp_min(1)
        if self.rounds is not None:
            over = torch.full_like(self._exploring, played >= self.rounds)
        else:
            over = self.spent + average.sum(-1) > self.exploration_budget
        ends = self._exploring & over
        self._exploring = self._exploring & ~over
        self._begun = torch.where(ends, self.step, self._begun)
        if self.horizon is None:
            remaining = (self.problem.budget - self.spent).clamp_min(0.0)
            estimate = self.step + (remaining / average.amin(-1).clamp_min(1e-3)).floor()
        else:
            estimate = torch.full_like(self._horizon, float(self.horizon))
        self._horizon = torch.where(ends, estimate, self._horizon)

    def _lower_today(self) -> Tensor:
        """The largest expected lower bound that was found today, ``replicates``."""
        bounds = self._started()
        lower = bounds.tracked(-self.sqrt_beta).flatten(1).amax(-1)
        if self.step:
            played = torch.nn.functional.one_hot(self._subset, self.problem.m).bool()
            found = bounds.maximize(played, -self.sqrt_beta)
            lower = torch.maximum(lower, found.bound(-self.sqrt_beta).amax(-1))
        return lower
