"""Algorithm 1 with repairs, each of which can be turned on alone.

Four lines of the algorithm are changed, and none of the changes touches what its theorems say (the chapter's third
notebook has the proofs):

* the cost radius of line 23 may follow the variance that was seen;
* ties among the least cost bounds may go to the least average cost, in the place of the largest upper bound of line 26;
* a running bound that today's bounds contradict may be discarded, in the place of the global reset of lines 17 to 21;
* the widths may be those of the averages, ``sd(E f)``, in the place of the averages of widths, ``E sd(f)``.

Without any of them the class plays as ``CheapestGoodSubset`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from scipy.stats import t as student
from torch import Tensor

from cbo_lib.gp import Posterior
from cbo_lib.maximize import argmax_finite
from cbo_lib.partial import SplitKernel
from cbo_lib.subsets.policies import CheapestGoodSubset, good_enough
from cbo_lib.subsets.search import Decisions, Search
from cbo_lib.subsets.space import Space

Radius = Literal["hoeffding", "bernstein", "student"]
#: ``alpha`` at evaluation ``s = 0, 1, ...`` of the exploitation, when a share of its budget is left.
Tolerance = Callable[[int, float], float]


def constant(s: int, left: float) -> float:
    """``alpha`` as the theory has it."""
    return 0.1


def halved_once(s: int, left: float, every: int = 5) -> float:
    """Half of it after ``d`` evaluations, and no further."""
    return 0.1 if s < every else 0.05


def halved_with_budget(s: int, left: float) -> float:
    """Half of it whenever the budget that is left has halved."""
    return 0.1 * 0.5 ** math.floor(-math.log2(max(left, 1e-6)) + 1e-9)


def halved_often(s: int, left: float, every: int = 5) -> float:
    """Half of it after every ``d`` evaluations."""
    return 0.1 * 0.5 ** (s // every)


def cost_radius(kind: Radius, plays: Tensor, variance: Tensor, horizon: Tensor) -> Tensor:
    """How far an average cost may be from its mean, ``... x m``, but for a failure of ``2 / T^4`` each time.

    Args:
        kind: ``"hoeffding"`` for any costs in [0, 1] (line 23); ``"bernstein"`` for the same costs by the variance that
            was seen ([Maurer2009], Theorem 4); ``"student"`` for normal costs of any variance.
        plays: ``T_i``, at least 1, ``... x m``.
        variance: of the costs that were paid, with ``T_i - 1`` below, ``... x m``.
        horizon: ``T``, ``...``.
    """
    log = horizon.log().unsqueeze(-1)
    if kind == "hoeffding":
        return (2 * log / plays).sqrt()
    free = (plays - 1).clamp_min(1)
    if kind == "bernstein":
        found = (2 * variance * (4 * log + math.log(2)) / plays).sqrt() + 7 * (4 * log + math.log(2)) / (3 * free)
    else:
        level = horizon.unsqueeze(-1).expand_as(plays).pow(-4.0).cpu().numpy()
        found = torch.from_numpy(student.isf(level, free.cpu().numpy())).to(plays) * (variance / plays).sqrt()
    return found.masked_fill(plays < 2, torch.inf)


class Repaired(CheapestGoodSubset):
    """Algorithm 1 with repairs ([Hoang2024], Alg. 1; the repairs are ours).

    Args:
        space: see ``CheapestGoodSubset``, as for other arguments.
        tolerance: ``alpha`` as a function of the evaluations and of what is left. Default: that of ``alpha``.
        radius: see ``cost_radius``; ``cost_spread`` counts for none but the first.
        cheap_ties: whether the least average cost decides among equal cost bounds.
        discard: whether bounds that are contradicted are given up, one by one.
        averages: whether widths are those of averages.
    """

    def __init__(
        self,
        space: Space,
        *,
        tolerance: Tolerance | None = None,
        radius: Radius = "hoeffding",
        cheap_ties: bool = False,
        discard: bool = False,
        averages: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(space, **{"cost_spread": 1.0, **options})
        self.tolerance, self.radius, self.cheap_ties = tolerance, radius, cheap_ties
        self.discard, self.averages = discard, averages

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        super().begin()
        self._at_start = torch.full_like(self.spent, torch.nan)  # what was left when the exploitation began
        self._discarded = torch.zeros_like(self._resets)
        if self.averages:
            known = self.surrogate.posterior()
            self.search = AverageSearch(self.space, known, self.replicates, self.effort, self.resolution)

    def decide(self) -> tuple[Tensor, Decisions]:
        """One pass through the loops of lines 3 and 13."""
        sqrt_beta = self.multiplier()
        self._end_exploration()
        today_lower = self._lower_today(sqrt_beta)
        self.lower = torch.maximum(self.lower, today_lower)  # lines 10 and 14
        shares = self._shares()
        turn = argmax_finite(-self.plays.to(self.spent))
        exploring = self.exploring.unsqueeze(-1)
        one = torch.nn.functional.one_hot(turn, self.space.m).bool()
        alive = torch.where(exploring, one, torch.ones_like(one) if self.discard else self._good(shares))
        decisions = self.search.maximize(alive, sqrt_beta)
        today = decisions.bound(sqrt_beta).masked_fill(~alive, torch.inf)
        own_lower = decisions.bound(-sqrt_beta)
        self.upper = torch.minimum(self.upper, today)  # lines 11 and 15
        self.lower = torch.maximum(self.lower, own_lower.amax(-1))
        if self.discard:
            self._discard(today, torch.maximum(own_lower, self.search.tracked(-sqrt_beta).amax(-1)), alive)
        lost = ~self._good(shares).any(-1) & ~self.exploring
        if bool(lost.any()):
            decisions = self._reset(lost, today_lower, decisions, shares, sqrt_beta)

        average, lower = self._costs()
        good = self._good(shares)
        least = lower.masked_fill(~good, torch.inf)
        tied = good & (least <= least.amin(-1, keepdim=True))  # line 25
        if self.cheap_ties:
            cheap = average.masked_fill(~tied, torch.inf)
            tied = tied & (cheap <= cheap.amin(-1, keepdim=True))
        now = decisions.bound(sqrt_beta)
        best = argmax_finite(now, torch.where(exploring, one, tied))  # line 26
        subset = torch.where(self.exploring, turn, best)
        self._state = {
            "upper": self.upper,
            "lower": self.lower,
            "cost_lower": lower,
            "good": good,
            "alpha": shares,
            "exploring": self.exploring,
            "horizon": self._horizon,
            "resets": self._resets,
            "discarded": self._discarded,
        }
        return subset, decisions

    def _shares(self) -> Tensor:
        """``alpha`` of every replicate."""
        left = (self.space.budget - self.spent).clamp_min(0.0)
        self._at_start = torch.where(~self.exploring & self._at_start.isnan(), left, self._at_start)
        ratio = (left / self._at_start.clamp_min(1e-12)).nan_to_num(1.0)
        rows = zip(self.exploring.tolist(), self._begun.tolist(), ratio.tolist(), strict=True)
        alpha: Any = self.alpha if callable(self.alpha) else lambda s: self.alpha
        rule = self.tolerance or (lambda s, left: alpha(s))
        return self.spent.new_tensor([0.0 if e else float(rule(self.count - b, r)) for e, b, r in rows])

    def _discard(self, today: Tensor, own_lower: Tensor, alive: Tensor) -> None:
        """Give up running bounds that today's bounds contradict.

        Where all bounds hold, no upper bound of a subset is below a lower bound of it, and the largest lower bound is
        below the largest upper bound; so nothing is given up then.
        """
        refuted = alive & (self.upper < own_lower)
        self.upper = torch.where(refuted, today, self.upper)
        high = ~self.exploring & (self.lower > today.amax(-1))
        self.lower = torch.where(high, own_lower.amax(-1), self.lower)
        self._discarded = self._discarded + (refuted.any(-1) | high)

    def _costs(self) -> tuple[Tensor, Tensor]:
        """Average costs and their lower bounds, ``replicates x m``."""
        known = self.plays.clamp_min(1)
        average = self.paid / known
        if self.count == 0:
            return average, torch.zeros_like(average)
        own = torch.nn.functional.one_hot(self.data["subset"].long(), self.space.m).to(average)
        off = (self.data["cost"].unsqueeze(-1) - average.unsqueeze(1)).square()
        variance = (own * off).sum(1) / (known - 1).clamp_min(1)
        radius = cost_radius(self.radius, known.to(average), variance, self._horizon)
        spread = self.cost_spread if self.radius == "hoeffding" and self.cost_spread is not None else 1.0
        return average, (average - spread * radius).clamp_min(0.0)


class AveragePosterior:
    """What is known of the averages ``g_i(x) = E f([x, X^-i])`` themselves: ``E mu`` and ``sd(g_i)``.

    Args:
        posterior: of f, given values at points.
        contexts: the draws that stand for the free variables, ``M x d``.
        controlled: boolean, ``c x d``.
    """

    def __init__(self, posterior: Posterior, contexts: Tensor, controlled: Tensor) -> None:
        self.posterior, prior = posterior, posterior.prior
        self._kernel = SplitKernel.of(prior.kernel, controlled, len(posterior.batch_shape))
        apart = self._kernel.free(contexts, contexts).mean((-2, -1))
        self.prior_variance = self._kernel.scale * apart
        self.prior_mean = torch.as_tensor(prior.mean, dtype=contexts.dtype, device=contexts.device)
        self._contexts, self._weights = contexts, None
        if posterior.data is not None:
            batch, t = posterior.batch_shape, posterior.count
            points = posterior.data.measure.points.squeeze(-2)
            self._observed = points.expand(*batch, t, -1).unsqueeze(-3)
            self._weights = self.weigh(self._observed)

    def weigh(self, points: Tensor) -> Tensor:
        """The factor of the free variables between the averages and single points, ``... c x t``."""
        return self._kernel.free(self._contexts, points).mean(-2)

    def cross(self, x: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """Covariances of averages ``... c x n x d`` with values at points ``... c x t x d``, ``... c x n x t``."""
        return self._kernel.controlled(x, points) * weights.unsqueeze(-2)

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of averages at ``replicates x c x n x d``, ``replicates x c x n`` each."""
        shape = torch.broadcast_shapes(x.shape[:-1], (*self.prior_variance.shape, x.shape[-2]))
        mean = self.prior_mean.expand(shape)
        variance = self.prior_variance.unsqueeze(-1).expand(shape)
        data = self.posterior.data
        if data is None or self._weights is None:
            return mean, variance
        t = self.posterior.count
        factor = data.factor.expand(*self.posterior.batch_shape, t, t).unsqueeze(-3)
        white = torch.linalg.solve_triangular(factor, self.cross(x, self._observed, self._weights).mT, upper=False)
        told = data.whitened.expand(*self.posterior.batch_shape, t).unsqueeze(-2).unsqueeze(-1)
        return mean + (white * told).sum(-2), (variance - white.square().sum(-2)).clamp_min(0.0)

    def expected_ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """``E mu + sqrt_beta sd(g)``."""
        mean, variance = self.mean_and_variance(x)
        return mean + sqrt_beta * variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class AverageSearch(Search):
    """The search with the widths of averages in the place of averages of widths."""

    def restart(self, posterior: Posterior) -> None:
        """Go over to another posterior, with whatever prior."""
        self.posterior, self._low_rank = posterior, [False] * self.space.m
        self._renew()

    def update(self, posterior: Posterior) -> None:
        """Go over to the same posterior with one observation more."""
        self.posterior = posterior
        self._renew()

    def tracked(self, sqrt_beta: float) -> Tensor:
        """``E mu + sqrt_beta sd(g)`` of the candidates, ``replicates x m x n``."""
        return self._mean + sqrt_beta * self._std

    def _renew(self) -> None:
        with torch.no_grad():
            everything = AveragePosterior(self.posterior, self.contexts, self.controlled)
            shape = (*self.posterior.batch_shape, self.space.m, *self.candidates.shape)
            self._mean, variance = everything.mean_and_variance(self.candidates.expand(shape))
            self._std = variance.sqrt()

    def _partial(self, subsets: list[int]) -> Any:
        return AveragePosterior(self.posterior, self.contexts, self.controlled[subsets])

    def _moments(self, subsets: list[int], points: Tensor, partial: Any = None) -> Decisions:
        mean, variance = (partial or self._partial(subsets)).mean_and_variance(points.unsqueeze(-2))
        return Decisions(points, mean.squeeze(-1), variance.squeeze(-1).sqrt())


__all__ = ["AveragePosterior", "AverageSearch", "Repaired", "cost_radius", "good_enough"]
