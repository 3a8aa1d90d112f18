"""Algorithm 1 with repairs, each of which can be turned on alone.

Four lines of the algorithm may be changed. The chapter's third notebook says what its theorems say of each:

* the cost radius of line 23 may follow the variance that was seen: a play still costs at most two radii too much;
* ties among the least cost bounds may go to the least average cost, in the place of the largest upper bound of line 26:
  the theorems stand;
* a running bound that today's bounds contradict may be given up, before the global reset of lines 17 to 21: the
  theorems stand, as nothing is given up where all bounds hold;
* the widths may be those of the averages, ``sd(E f)``, in the place of the averages of widths, ``E sd(f)``: the
  theorems stand, with the same multiplier, as their confidence set bounds every linear functional of f.

The fourth notebook measures what the parts do on the plant, on Ackley and on Hartmann.

Without any of them the class plays as ``CheapestGoodSubset`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from scipy.stats import t as student
from torch import Tensor

from cbo_lib.former.split import SplitKernel
from cbo_lib.gp import Posterior
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Decisions, Search
from cbo_lib.subsets.space import Space

Radius = Literal["bernstein", "student"]


def halved_once(s: int, every: int) -> float:
    """``alpha`` at evaluation ``s = 0, 1, ...`` of the exploitation: halved after so many, and no further."""
    return 0.1 if s < every else 0.05


def halved_with_budget(left: float) -> float:
    """``alpha`` when that share of the exploitation's budget is left: halved whenever it has halved."""
    return 0.1 * 0.5 ** math.floor(-math.log2(max(left, 1e-6)) + 1e-9)


def cost_radius(kind: Radius, plays: Tensor, variance: Tensor, horizon: Tensor) -> Tensor:
    """How far an average cost may be from its mean, ``... x m``, but for a failure of ``2 / T^4`` each time.

    Args:
        kind: ``"bernstein"`` for costs in [0, 1] by the variance that was seen ([Maurer2009], Theorem 4);
            ``"student"`` for normal costs of any variance.
        plays: ``T_i``, at least 1, ``... x m``; the radius is infinite for one play.
        variance: of the costs that were paid, with ``T_i - 1`` below, ``... x m``.
        horizon: ``T``, ``...``.
    """
    free = (plays - 1).clamp_min(1)
    if kind == "bernstein":
        log = 4 * horizon.log().unsqueeze(-1) + math.log(2)
        found = (2 * variance * log / plays).sqrt() + 7 * log / (3 * free)
    else:
        level = horizon.unsqueeze(-1).expand_as(plays).pow(-4.0).clamp_max(0.5).cpu().numpy()  # 0.5: no radius
        found = torch.from_numpy(student.isf(level, free.cpu().numpy())).to(plays) * (variance / plays).sqrt()
    return found.masked_fill(plays < 2, torch.inf)


class Repaired(CheapestGoodSubset):
    """Algorithm 1 with repairs ([Hoang2024], Alg. 1; the repairs are ours).

    Args:
        space: see ``CheapestGoodSubset``, as for other arguments.
        tolerance: ``alpha`` as a function of the share of the exploitation's budget that is left. Default: ``alpha``.
        radius: see ``cost_radius``. Default: that of the algorithm, times ``cost_spread``, which is 1 if not given.
        cheap_ties: whether the least average cost decides among equal cost bounds.
        discard: whether bounds that are contradicted are given up, one by one. All bounds are computed then, those of
            dropped subsets too.
        averages: whether widths are those of averages.
    """

    def __init__(
        self,
        space: Space,
        *,
        tolerance: Callable[[float], float] | None = None,
        radius: Radius | None = None,
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
            self.search = AverageSearch(self.space, known, self.replicates, self.effort, self.search.rounded)

    def record(self) -> Mapping[str, Tensor]:
        """What ``CheapestGoodSubset`` records, and in how many choices so far a bound was given up, ``discarded``."""
        return {**super().record(), "discarded": self._discarded}

    def _shares(self) -> Tensor:
        if self.tolerance is None:
            return super()._shares()
        left = (self.space.budget - self.spent).clamp_min(0.0)
        self._at_start = torch.where(~self.exploring & self._at_start.isnan(), left, self._at_start)
        ratio = (left / self._at_start.clamp_min(1e-12)).tolist()
        rows = zip(self.exploring.tolist(), ratio, strict=True)
        return self.spent.new_tensor([0.0 if e else self.tolerance(r) for e, r in rows])

    def _searched(self, alpha: Tensor) -> Tensor:
        good = super()._searched(alpha)
        return torch.ones_like(good) if self.discard else good

    def _settle(self, today_lower: Tensor, decisions: Decisions, alpha: Tensor, sqrt_beta: float) -> Decisions:
        """Give up running bounds that today's bounds contradict; then lines 17 to 21.

        Where all bounds hold, no upper bound of a subset is below a lower bound of it, and the largest lower bound is
        below the largest upper bound; so nothing is given up then.
        """
        if self.discard:
            alive = decisions.mean > -torch.inf
            today = decisions.bound(sqrt_beta).masked_fill(~alive, torch.inf)
            own_lower = torch.maximum(decisions.bound(-sqrt_beta), self.search.tracked(-sqrt_beta).amax(-1))
            refuted = alive & (self.upper < own_lower)
            self.upper = torch.where(refuted, today, self.upper)
            high = ~self.exploring & (self.lower > today.amax(-1))
            self.lower = torch.where(high, own_lower.amax(-1), self.lower)
            self._discarded = self._discarded + (refuted.any(-1) | high)
        return super()._settle(today_lower, decisions, alpha, sqrt_beta)

    def _costs(self) -> tuple[Tensor, Tensor]:
        average, lower = super()._costs()
        if self.radius is None or self.count == 0:
            return average, lower
        known = self.billed.clamp_min(1).to(average)
        subset, cost = self.data["subset"], self.data["cost"]
        billed = ~(subset.isnan() | cost.isnan()).unsqueeze(-1)
        own = torch.nn.functional.one_hot(subset.nan_to_num(0.0).long(), self.space.m) * billed
        off = (cost.nan_to_num(0.0).unsqueeze(-1) - average.unsqueeze(1)).square()
        variance = (own * off).sum(1) / (known - 1).clamp_min(1)
        return average, (average - cost_radius(self.radius, known, variance, self._horizon)).clamp_min(0.0)

    def _pick(self, current: Tensor, average: Tensor, cost_lower: Tensor, good: Tensor) -> Tensor:
        if self.cheap_ties:
            good = good & (cost_lower <= cost_lower.masked_fill(~good, torch.inf).amin(-1, keepdim=True))
            cost_lower = average
        return super()._pick(current, average, cost_lower, good)


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
        self.prior_variance = self._kernel.scale * self._kernel.free(contexts, contexts).mean((-2, -1))
        mean = torch.as_tensor(prior.mean, dtype=contexts.dtype, device=contexts.device)
        self.prior_mean = mean.unsqueeze(-1) if mean.dim() else mean  # of each replicate, where it was fitted
        if posterior.data is not None:
            points = posterior.data.measure.points.squeeze(-2)
            self._observed = points.expand(*posterior.batch_shape, posterior.count, -1).unsqueeze(-3)
            self._weights = self._kernel.free(contexts, self._observed).mean(-2).unsqueeze(-2)  # ... c x 1 x t

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of averages at ``replicates x c x n x d``, ``replicates x c x n`` each."""
        shape = torch.broadcast_shapes(x.shape[:-1], (*self.prior_variance.shape, x.shape[-2]))
        mean = self.prior_mean.expand(shape)
        variance = self.prior_variance.unsqueeze(-1).expand(shape)
        data = self.posterior.data
        if data is None:
            return mean, variance
        batch, t = self.posterior.batch_shape, self.posterior.count
        factor, told = data.factor.expand(*batch, t, t), data.whitened.expand(*batch, t)
        cross = self._kernel.controlled(x, self._observed) * self._weights  # of averages with single values
        white = torch.linalg.solve_triangular(factor.unsqueeze(-3), cross.mT, upper=False)
        mean = mean + (white * told[..., None, :, None]).sum(-2)
        return mean, (variance - white.square().sum(-2)).clamp_min(0.0)

    def expected_ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """``E mu + sqrt_beta sd(g)``."""
        mean, variance = self.mean_and_variance(x)
        return mean + sqrt_beta * variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class AverageSearch(Search):
    """The search with the widths of averages in the place of averages of widths."""

    def restart(self, posterior: Posterior) -> None:
        """Go over to another posterior, with whatever prior."""
        self.posterior = posterior
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
