"""The method that learns which variables to control: which subset to play, given what is known of quality and cost."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, as_values, require
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.subsets.base import SubsetPolicy
from cbo_lib.subsets.search import Decisions
from cbo_lib.subsets.space import Space


def good_enough(ucb: Tensor, lcb_best: float | Tensor, alpha: float | Tensor) -> Tensor:
    """``S_1``: where the upper bound passes ``(1 - alpha) lcb_best``, ``... x m`` ([Hoang2024], Algorithm 1, line 16).

    Args:
        ucb: the smallest upper bound so far of each subset's best value, ``... x m``.
        lcb_best: the largest lower bound so far of any value, ``...``.
        alpha: what share of the best value may be given up, in ``[0, 1)``, a number or ``...``.
    """
    threshold = (1 - torch.as_tensor(alpha, dtype=ucb.dtype)) * torch.as_tensor(lcb_best, dtype=ucb.dtype)
    return ucb > threshold.to(ucb).unsqueeze(-1)


def cost_lower_bound(mean: Tensor, plays: Tensor, horizon: float | Tensor, spread: float | Tensor = 1.0) -> Tensor:
    """``max(c_hat - s sqrt(2 log T / T_i), 0)`` ([Hoang2024], Algorithm 1, lines 22 to 24).

    Args:
        mean: average cost that was paid for each subset, ``... x m``.
        plays: how often each was played, ``... x m``, at least 1.
        horizon: ``T``, at least 1, a number or ``...``.
        spread: ``s``, how widely a cost varies, positive. Default 1, for costs anywhere in [0, 1]; normal costs of
            deviation ``s / 2`` do with that. A number, or ``... x 1``.

    Raises:
        ValueError: if a subset was never played, ``horizon`` is below 1 or ``spread`` is not positive.
    """
    as_values("spread", spread, None, 0, ends="()")
    require(plays >= 1, "plays must be at least 1 of every subset", plays)
    horizon = as_values("horizon", horizon, None, 1, like=mean)
    return (mean - spread * (2 * horizon.log().unsqueeze(-1) / plays).sqrt()).clamp_min(0.0)


def cheapest(current: Tensor, cost: Tensor, good: Tensor) -> Tensor:
    """Of rows ``... x m`` lines 25 and 26: of the good ones, those that cost least; of these, the largest bound."""
    return argmax_finite(current, good & (cost == cost.masked_fill(~good, torch.inf).amin(-1, keepdim=True)))  # of S_3


def halving(start: float, every: int, s: int) -> float:
    """The schedule ``start / 2^(s // every)`` at evaluation ``s = 0, 1, ...``."""
    return start * 0.5 ** (s // every)


class CheapestGoodSubset(SubsetPolicy):
    """The paper's method: learn which subsets are good enough, then play the cheapest of these ([Hoang2024], Alg. 1).

    Exploration plays all subsets in turn: always the first of those that were played least. It ends before a round,
    but the first, that would at average costs bring the spending above ``exploration_budget``; or after ``rounds``.

    Exploitation keeps the smallest upper bound so far of every subset and the largest lower bound so far of any, drops
    the subsets that cannot be good enough and plays by lines 16, 25 and 26. Bounds of dropped subsets are not computed
    again: the smallest so far cannot rise. If none is left, the bounds are reset to today's (lines 17 to 21). Where
    hyperparameters are fitted, bounds from before a fit are forgotten.

    The lower bound that is maximized in a step is that of the subset asked last, where the data came in; of the others
    the tracked candidates count. So the largest so far may lag behind, and is valid all the same.

    Args:
        space: see ``SubsetPolicy``, as for the other arguments that are not named here.
        alpha: what share of the best value, counted from ``space.floor``, may be given up, in ``[0, 1)``: a number, as
            in the theory, or a function of the evaluation ``s = 0, 1, ...`` of the exploitation. Default 0.1, halved
            after every ``d`` evaluations, as in the experiments.
        exploration_budget: default 60 percent of the budget.
        rounds: ``tau``. Default none: the budget decides.
        horizon: ``T`` of the cost bounds. Default: what was played until exploitation begins, and what remains of the
            budget at the least average cost, or at a hundred-thousandth of the budget if that is more.
        cost_spread: how widely a cost varies, see ``cost_lower_bound``. Default: the largest average (the paper's: 1).

    Raises:
        ValueError: if an argument is out of range; on asking, if no value told when exploration ends reaches the floor.
    """

    def __init__(
        self,
        space: Space,
        *,
        alpha: float | Callable[[int], float] | None = None,
        exploration_budget: float | None = None,
        rounds: int | None = None,
        horizon: int | None = None,
        cost_spread: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        budget = 0.6 * space.budget if exploration_budget is None else exploration_budget
        self.exploration_budget = as_number("exploration_budget", budget, 0, ends="()")
        self.cost_spread = None if cost_spread is None else as_number("cost_spread", cost_spread, 0, ends="()")
        self.alpha = partial(halving, 0.1, space.dim) if alpha is None else as_schedule("alpha", alpha, 0, 1, "[)")
        self.rounds = None if rounds is None else as_count("rounds", rounds, 1)
        self.horizon = None if horizon is None else as_count("horizon", horizon, 1)

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        super().begin()
        self.forget()
        self.exploring = torch.ones_like(self.spent, dtype=torch.bool)
        self._round = torch.zeros_like(self.plays[:, 0])  # of the exploration, the last that was begun
        self._begun = torch.zeros_like(self._round)  # what was known when exploitation began
        self._horizon = torch.ones_like(self.spent)
        self._resets = torch.zeros_like(self._round)
        self._state: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Bounds under other hyperparameters bound nothing."""
        self.upper = torch.full_like(self.paid, torch.inf)  # the smallest so far, of each subset
        self.lower = torch.full_like(self.spent, -torch.inf)  # the largest so far, of any

    def record(self) -> Mapping[str, Tensor]:
        """What every policy records, and the state of Algorithm 1 at the last choice.

        ``upper`` (``replicates x m``, infinite where not yet known) and ``lower``; ``cost_lower`` and ``good``
        (``S_1``), ``replicates x m``; ``alpha``; ``exploring``; ``horizon``; ``resets`` so far.
        """
        return {**super().record(), **self._state}

    def decide(self) -> tuple[Tensor, Decisions]:
        """One pass through the loops of lines 3 and 13; what it calls are steps for a variant to override."""
        sqrt_beta = self.multiplier()
        self._end_exploration()
        shares = self._shares()
        require((shares >= 0) & (shares < 1), "alpha must lie in [0, 1)", shares)
        exploring = self.exploring.unsqueeze(-1)
        turn = torch.nn.functional.one_hot(argmax_finite(-self.plays.to(self.spent)), self.space.m).bool()
        # Lines 11 and 15, for the subsets that may still pass line 16; what lines 10 and 14 find rules some more out.
        today_lower = self.search.tracked(-sqrt_beta).flatten(1).amax(-1)
        self.lower = torch.maximum(self.lower, today_lower)
        if self._opened:
            played = torch.nn.functional.one_hot(self._query[:, 0].long(), self.space.m).bool()
            ahead = torch.where(exploring, turn, self._searched(shares))
            found = self.search.maximize(played, -sqrt_beta, ahead=ahead)
            today_lower = torch.maximum(today_lower, found.bound(-sqrt_beta).amax(-1))
            self.lower = torch.maximum(self.lower, today_lower)  # lines 10 and 14
        alive = torch.where(exploring, turn, self._searched(shares))
        decisions = self.search.maximize(alive, sqrt_beta)
        self.upper = torch.where(alive, torch.minimum(self.upper, decisions.bound(sqrt_beta)), self.upper)
        self.lower = torch.maximum(self.lower, decisions.bound(-sqrt_beta).amax(-1))
        decisions = self._settle(today_lower, decisions, shares, sqrt_beta)

        average, cost_lower = self._costs()
        good = self._good(shares)
        subset = self._pick(decisions.bound(sqrt_beta), average, cost_lower, torch.where(exploring, turn, good))
        self._state = {"upper": self.upper, "lower": self.lower, "cost_lower": cost_lower, "good": good}
        self._state |= {"alpha": shares, "exploring": self.exploring, "horizon": self._horizon, "resets": self._resets}
        return subset, decisions

    def _shares(self) -> Tensor:
        """``alpha`` of each replicate, zero while it explores."""
        begun = zip(self.exploring.tolist(), self._begun.tolist(), strict=True)
        alpha: Any = self.alpha if callable(self.alpha) else lambda s: self.alpha
        return self.spent.new_tensor([0.0 if e else float(alpha(self.count - b)) for e, b in begun])

    def _searched(self, alpha: Tensor) -> Tensor:
        """The subsets whose bounds an exploitation computes today, ``replicates x m``."""
        return self._good(alpha)

    def _costs(self) -> tuple[Tensor, Tensor]:
        """Average costs, and their lower bounds of lines 22 to 24, ``replicates x m``."""
        average = self._average()
        largest = average.amax(-1, keepdim=True).clamp_min(torch.finfo(average.dtype).tiny)
        spread = largest if self.cost_spread is None else self.cost_spread
        lower = cost_lower_bound(average, self.billed.clamp_min(1), self._horizon, spread)
        return average, torch.where((self.plays > 0) & (self.billed == 0), average, lower)

    def _average(self) -> Tensor:
        """What a play of each subset cost on average, ``replicates x m``; without any bill as much as the dearest."""
        average = self.paid / self.billed.clamp_min(1)
        return torch.where((self.plays > 0) & (self.billed == 0), average.amax(-1, keepdim=True), average)

    def _pick(self, current: Tensor, average: Tensor, cost_lower: Tensor, good: Tensor) -> Tensor:
        """The subsets to play, ``replicates`` indices."""
        return cheapest(current, cost_lower, good)

    def _good(self, alpha: Tensor) -> Tensor:
        """Line 16, ``replicates x m``."""
        return good_enough(self.upper - self.space.floor, self.lower - self.space.floor, alpha)

    def _settle(self, today_lower: Tensor, decisions: Decisions, alpha: Tensor, sqrt_beta: float) -> Decisions:
        """Lines 17 to 21: today's bounds in the place of the tightest so far, for the replicates that lost all."""
        lost = ~self._good(alpha).any(-1) & ~self.exploring
        if not bool(lost.any()):
            return decisions
        wanted = lost.unsqueeze(-1).expand_as(self.upper)
        everything = self.search.maximize(wanted, sqrt_beta)
        self.upper = torch.where(wanted, everything.bound(sqrt_beta), self.upper)
        least = torch.maximum(today_lower, everything.bound(-sqrt_beta).amax(-1))
        self.lower = torch.where(lost, least, self.lower)
        # Negative bounds may leave none even now; then no subset is dropped.
        none = lost & ~self._good(alpha).any(-1)
        self.lower = self.lower.masked_fill(none, -torch.inf)
        self._resets = self._resets + lost
        return everything.where(lost, decisions)

    def _end_exploration(self) -> None:
        """Decide, before a round, which replicates explore no more."""
        played = self.plays.amin(-1)
        begins = self.exploring & (played > self._round)
        known = (self.billed.sum(-1) > 0) | ~begins | (self.rounds is not None)
        require(known, "cost must be told of at least one play in a round of exploration, as cost ends it", "none")
        average = self._average()
        over = self.spent + average.sum(-1) > self.exploration_budget if self.rounds is None else played >= self.rounds
        ends = begins & over
        if not bool(ends.any()):
            self._round = torch.maximum(self._round, played)
            return
        hopeless = ends & (self.data["y"].amax(-1) < self.space.floor)
        if bool(hopeless.any()):
            worst = float(self.data["y"][hopeless].amax())
            raise ValueError(
                f"y must reach space.floor = {self.space.floor:g}, from which alpha counts its share of the best; "
                f"the largest told is {worst:g}. Give what f is worth at its worst as the floor"
            )
        self._round, self.exploring = torch.maximum(self._round, played), self.exploring & ~ends
        self._begun = torch.where(ends, self.count, self._begun)
        remaining = (self.space.budget - self.spent).clamp_min(0.0)
        least = average.amin(-1).clamp_min(1e-5 * self.space.budget)
        estimate = self.plays.sum(-1) + (remaining / least).floor()
        self._horizon = torch.where(ends, estimate if self.horizon is None else float(self.horizon), self._horizon)
