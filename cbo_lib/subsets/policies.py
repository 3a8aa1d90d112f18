"""The method that learns which variables to control ([Hoang2024])."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule
from cbo_lib.search import argmax_finite
from cbo_lib.subsets.base import SubsetPolicy
from cbo_lib.subsets.search import Decisions
from cbo_lib.subsets.space import Space


def halving(start: float, every: int, s: int) -> float:
    """The schedule ``start / 2^(s // every)`` at evaluation ``s = 0, 1, ...``."""
    return start * 0.5 ** (s // every)


class CheapestGoodSubset(SubsetPolicy):
    """Learn which subsets are good enough, then play the cheapest of these ([Hoang2024], Algorithm 1).

    Args:
        space: see ``SubsetPolicy``, as for other arguments that are not named here.
        alpha: what share of the best value, counted from the floor, may be given up, in ``[0, 1)``: a number, as in the
            theory, or a function of the evaluation ``s = 0, 1, ...`` of the exploitation. Default 0.1, halved after
            every ``d`` evaluations, as in the experiments.
        exploration_budget: exploration ends before a round that would bring what was paid above it. Default 60 percent
            of the budget.
        rounds: ``tau``; the exploration then lasts so many rounds. Default: the exploration budget decides.
        horizon: ``T`` of the cost bounds. Default: what was played until exploitation begins, and what remains of the
            budget at the least average cost, or at a hundred-thousandth of the budget if that is more.
        cost_spread: the length of the interval that costs lie in. Default 1, as in the paper.
        options: those of ``SubsetPolicy``.

    Attributes:
        upper: the smallest upper bound so far of each subset's best value, ``replicates x m``.
        lower: the largest lower bound so far of any value, ``replicates``.
        good: ``S_1``, boolean ``replicates x m``, at the last choice of an exploitation.
        cost_lower: the lower bounds of the mean costs, ``replicates x m``.
        begun: how many rows were known when exploitation began, ``replicates``; -1 before.
        resets: how often lines 18 to 20 ran, ``replicates``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        alpha: float | Callable[[int], float] | None = None,
        exploration_budget: float | None = None,
        rounds: int | None = None,
        horizon: int | None = None,
        cost_spread: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.alpha = partial(halving, 0.1, space.dim) if alpha is None else as_schedule("alpha", alpha, 0, 1, "[)")
        limit = 0.6 * space.budget if exploration_budget is None else exploration_budget
        self.exploration_budget = as_number("exploration_budget", limit, 0, ends="()")
        self.rounds = None if rounds is None else as_count("rounds", rounds, 1)
        self.horizon = None if horizon is None else as_count("horizon", horizon, 1)
        self.cost_spread = as_number("cost_spread", cost_spread, 0, ends="()")
        self.begun = torch.full_like(self.plays[:, 0], -1)
        self.T = torch.ones_like(self.spent)
        self.resets, self.finished = torch.zeros_like(self.begun), torch.zeros_like(self.begun)
        self.good = torch.ones_like(self.plays, dtype=torch.bool)
        self.cost_lower = torch.zeros_like(self.paid)
        self.played = ~self.good  # the subset that was played last
        self.forget()

    def forget(self) -> None:
        """No bound is known: at the beginning, and where hyperparameters were fitted anew."""
        self.upper = torch.full_like(self.paid, math.inf)
        self.lower = torch.full_like(self.spent, -math.inf)

    def refitted(self) -> None:
        """Bounds under other hyperparameters bound nothing."""
        super().refitted()
        self.forget()

    def choose(self) -> tuple[Tensor, Tensor]:
        """What each replicate plays, be it in the exploration or in the exploitation."""
        exploring = self.begun < 0
        if bool(exploring.all()):
            return self.explore(exploring)
        subset, points = self.exploit(~exploring)
        if bool(exploring.any()):
            turn, its = self.explore(exploring)
            subset = torch.where(exploring, turn, subset)
            points = torch.where(exploring.view(-1, 1, 1), its, points)
        return subset, points

    def explore(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """A round of the replicates ``which`` that explore."""
        turn = argmax_finite(-self.plays.to(self.y))  # line 4
        own = torch.nn.functional.one_hot(turn, self.space.m).bool() & which.unsqueeze(-1)
        found = self.search(own)  # line 5
        self.lower = torch.maximum(self.lower, self.lower_bound(found))  # line 10
        ucb = found.mean + self.sqrt_beta * found.std
        self.upper = torch.where(own, torch.minimum(self.upper, ucb), self.upper)  # line 11
        return turn, found.points

    def exploit(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """A round of the replicates ``which`` that exploit."""
        every = which.unsqueeze(-1).expand_as(self.good)
        found = self.search(every)
        ucb, lcb = found.mean + self.sqrt_beta * found.std, self.lower_bound(found)
        self.lower = torch.maximum(self.lower, lcb)  # line 14
        self.upper = torch.where(every, torch.minimum(self.upper, ucb), self.upper)  # line 15
        self.good = self.good_enough()  # line 16
        if bool((lost := which & ~self.good.any(-1)).any()):  # line 17
            self.lower = torch.where(lost, lcb, self.lower)  # line 18
            self.upper = torch.where(lost.unsqueeze(-1), ucb, self.upper)  # line 19
            self.good = self.good_enough()  # line 20
            self.good |= ~self.good.any(-1, keepdim=True)  # bounds below the floor may leave none even now
            self.resets = self.resets + lost
        radius = self.cost_spread * (2 * self.T.log().unsqueeze(-1) / self.billed.clamp_min(1)).sqrt()  # line 23
        average = self.average_cost()  # line 22
        self.cost_lower = torch.where(self.billed > 0, (average - radius).clamp_min(0), average)  # line 24
        cost = self.cost_lower.masked_fill(~self.good, math.inf)
        cheapest = self.good & (cost == cost.amin(-1, keepdim=True))  # line 25
        return argmax_finite(ucb, cheapest | ~every), found.points  # line 26

    def lower_bound(self, found: Decisions) -> Tensor:
        """The largest expected lower bound that is known today, ``replicates``.

        Of the decisions of the largest upper bounds, which is all that the proof needs, and in the exploitation of a
        search in the subset that was played last, where the data came in.
        """
        again = self.search(self.played & (self.begun >= 0).unsqueeze(-1), -1)
        return torch.cat([d.mean - self.sqrt_beta * d.std for d in (found, again)], -1).amax(-1)

    def good_enough(self) -> Tensor:
        """``S_1``: whose value may be ``1 - alpha`` times the best one, boolean ``replicates x m``."""
        floor, upper = self.space.floor or 0.0, self.upper
        return upper - floor > ((1 - self.share()) * (self.lower - floor)).unsqueeze(-1)

    def share(self) -> Tensor:
        """``alpha`` of each replicate, zero while it explores."""
        done = [self.round - 1 - b if b >= 0 else -1 for b in self.begun.tolist()]
        alpha: Any = self.alpha if callable(self.alpha) else lambda s: self.alpha
        return self.spent.new_tensor([as_number("alpha", alpha(s), 0, 1, "[)") if s >= 0 else 0.0 for s in done])

    def tell(self, query: Tensor, y: Tensor, cost: Tensor) -> None:  # type: ignore[override]
        """See ``SubsetPolicy``; then the exploration may be over."""
        super().tell(query, y, cost)
        self.end_exploration()

    def learn(self, query: Tensor, y: Tensor, cost: Tensor) -> None:  # type: ignore[override]
        """See ``SubsetPolicy``; then the exploration may be over."""
        super().learn(query, y, cost)
        self.played = torch.nn.functional.one_hot(query[:, -1, 0].long() + 1, self.space.m + 1)[:, 1:].bool()
        if y.shape[1] > 1:
            self.end_exploration()

    def end_exploration(self) -> None:
        """Lines 3 and 9: a next round would be one too many."""
        rounds, average = self.plays.amin(-1), self.average_cost()
        if self.rounds is None:
            over = self.paid.sum(-1) + average.sum(-1) > self.exploration_budget
        else:
            over = rounds >= self.rounds
        ends = (self.begun < 0) & (rounds > self.finished) & over
        self.finished = torch.maximum(self.finished, rounds)
        self.begun = torch.where(ends, self.y.shape[1], self.begun)
        left = (self.space.budget - self.spent).clamp_min(0) / average.amin(-1).clamp_min(1e-5 * self.space.budget)
        known = self.plays.sum(-1) + left.floor() if self.horizon is None else float(self.horizon)
        self.T = torch.where(ends, known, self.T).clamp_min(1)
