"""Regret of indirect queries: the paper's notions, its proofs' terms and its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from book.indirect.problem import IndirectProblem
from cbo_lib.checks import as_number, require
from cbo_lib.simulate import History

Number = TypeVar("Number", float, Tensor)


def simple_regret(history: History, problem: IndirectProblem) -> Tensor:
    """``f* - max_{s <= t} f(x_s)`` over the points recommended so far, ``replicates x T`` ([Zhang2025], Def. 1)."""
    return problem.optimum - history["recommended_value"].cummax(-1).values


def instant_regret(history: History, problem: IndirectProblem) -> Tensor:
    """``f* - max_{s <= t} g(a_s)`` over the actions asked so far, ``replicates x T`` ([Zhang2025], Def. 2).

    It stays above ``f* - g*``, the gap between the maxima of f and g.
    """
    return problem.optimum - history["value"].cummax(-1).values


def at_cost(values: Tensor, spent: Tensor, budgets: Sequence[float]) -> Tensor:
    """A quantity of each round as a function of what was spent, by steps.

    Args:
        values: ``replicates x T``.
        spent: so far, ``replicates x T``.
        budgets: increasing, ``b``; the first must pay for the first action of every replicate, and the last be spent
            but for less than the dearest action.

    Returns:
        The value after the last round that each budget pays for, ``replicates x b``.

    Raises:
        ValueError: if a budget does not pay for the first action, or the rounds end before the last.
    """
    most = torch.as_tensor(budgets, dtype=values.dtype)
    dearest = float(spent.diff(dim=-1).amax()) if spent.shape[-1] > 1 else 0.0
    require(spent[:, -1] > most[-1] - dearest - 1e-9, "budgets must be spent by the last round", budgets[-1])
    index = (spent.unsqueeze(-1) <= most + 1e-9).sum(-2) - 1
    require(index >= 0, f"budgets must pay for the first action, {float(spent[:, 0].amax()):g}", budgets[0])
    return values.gather(-1, index)


def zeta(t: Tensor | int, failure: float, two_sided: bool = False) -> Tensor:
    """``sqrt(2 log(pi_t / (2 delta)))`` with ``pi_t = pi^2 t^2 / 6`` ([Zhang2025], Lemma 2).

    Args:
        t: rounds, from 1.
        failure: ``delta``, in (0, 1).
        two_sided: for intervals that hold on both sides, ``sqrt(2 log(pi_t / delta))``.
    """
    as_number("failure", failure, 0, 1, "()")
    rounds = torch.as_tensor(t, dtype=torch.float64)
    require(rounds >= 1, "t must be at least 1", rounds)
    return (2 * (_weight(rounds) / (failure if two_sided else 2 * failure)).log()).clamp_min(0.0).sqrt()


def band(t: Tensor | int, n: int, failure: float) -> Tensor:
    """``sqrt(beta_t) = sqrt(2 log(n pi_t / delta))`` of bands for ``n`` points ([Zhang2025], Lemma 5)."""
    return zeta(t, failure / n, two_sided=True)


def group_length(i: int, w: float, failure: float) -> float:
    """``k_i = log_w(delta / (2 pi_i))``: how many rounds group ``i`` of Theorem 1 has, not rounded ([Zhang2025])."""
    return math.log(failure / (2 * _weight(i))) / math.log(w)


def _weight(t: Number) -> Number:
    """``pi_t = pi^2 t^2 / 6``; the reciprocals of all rounds add up to one."""
    return math.pi**2 * t**2 / 6
