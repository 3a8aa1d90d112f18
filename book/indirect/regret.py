"""Regret of indirect queries: the paper's notions, its proofs' terms and its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from book.indirect.problem import IndirectProblem
from book.ledger import Claim, RegretLedger
from cbo_lib.former.history import History

Number = TypeVar("Number", float, Tensor)


def simple_regret(history: History, problem: IndirectProblem) -> Tensor:
    """``f* - max_{s <= t} f(x_s)`` over the points recommended so far, ``replicates x T`` ([Zhang2025], Def. 1)."""
    return problem.optimum - history["recommended_value"].cummax(-1).values


def recommendation_regret(history: History, problem: IndirectProblem) -> Tensor:
    """``f* - f(x_t)`` of the point recommended now, ``replicates x T``: what a learner who stops now pays."""
    return problem.optimum - history["recommended_value"]


def instantaneous_regret(history: History, problem: IndirectProblem) -> Tensor:
    """``f* - max_{s <= t} g(a_s)`` over the actions asked so far, ``replicates x T`` ([Zhang2025], Def. 2).

    It stays above ``f* - g*``, the gap between the maxima of f and g.
    """
    asked = torch.where(history["active"], history["value"], -torch.inf)
    return problem.optimum - asked.cummax(-1).values


def at_rounds(values: Tensor, rounds: Sequence[int]) -> Tensor:
    """A quantity after some rounds, the last there is if a run is shorter; at the end its mean over all rounds.

    Args:
        values: ``replicates x T``.
        rounds: from 1.

    Returns:
        ``replicates x (rounds + 1)``.
    """
    columns = [min(t, values.shape[-1]) - 1 for t in rounds]
    return torch.cat([values[:, columns], values.mean(-1, keepdim=True)], -1)


def at_cost(values: Tensor, history: History, budgets: Tensor) -> Tensor:
    """A quantity of each round as a function of what was spent, by steps.

    Args:
        values: ``replicates x T``.
        history: with the costs.
        budgets: increasing, ``b``; the first must pay for the first action of every replicate.

    Returns:
        The value after the last round that each budget pays for, ``replicates x b``.

    Raises:
        ValueError: if a budget does not pay for the first action.
    """
    spent = history["cost"].cumsum(-1)
    index = (spent.unsqueeze(-1) <= budgets + 1e-9).sum(-2) - 1
    if bool((index < 0).any()):
        raise ValueError(f"budgets must pay for the first action, {spent[:, 0].max().item():g}, got {budgets.tolist()}")
    return values.gather(-1, index)


def zeta(t: Tensor | int, failure: float, two_sided: bool = False) -> Tensor:
    """``sqrt(2 log(pi_t / (2 delta)))`` with ``pi_t = pi^2 t^2 / 6`` ([Zhang2025], Lemma 2).

    Args:
        t: rounds, from 1.
        failure: ``delta``, in (0, 1).
        two_sided: for intervals that hold on both sides, ``sqrt(2 log(pi_t / delta))``.
    """
    if not 0 < failure < 1:
        raise ValueError(f"failure must lie in (0, 1), got {failure}")
    rounds = torch.as_tensor(t, dtype=torch.float64)
    if not bool((rounds >= 1).all()):
        raise ValueError(f"t must be at least 1, got {rounds.min().item():g}")
    return (2 * (_weight(rounds) / (failure if two_sided else 2 * failure)).log()).clamp_min(0.0).sqrt()


def band(t: Tensor | int, n: int, failure: float) -> Tensor:
    """``sqrt(beta_t) = sqrt(2 log(n pi_t / delta))`` of bands for ``n`` points ([Zhang2025], Lemma 5).

    Args:
        t: rounds, from 1.
        n: how many points.
        failure: ``delta``, in (0, 1).
    """
    return zeta(t, failure / n, two_sided=True)


def information_gain(history: History, noise_std: float) -> Tensor:
    """``0.5 sum_s log(1 + q_{s-1}(a_s) / sigma^2)`` up to each round, ``replicates x T`` ([Zhang2025], Lemma 4)."""
    return 0.5 * torch.log1p(history["std"].square() / noise_std**2).cumsum(-1)


def ledger(history: History, problem: IndirectProblem, failure: float = 0.1) -> RegretLedger:
    """The accounts of a run of CMES with one sample of ``f*`` and no initial design ([Zhang2025], section 6.1).

    The regret is the sum of ``f* - g(a_t)``. It is the sum, exactly, of
    ``f* - f*_t`` (the sample misses the maximum), ``f*_t - (mean + kappa std)`` (zero: the chosen action attains
    ``kappa``), ``kappa std`` and ``mean - g``. The first and the last have mean zero if the sample is drawn anew from
    the posterior in each round, so that the regret and ``kappa std`` have one mean.

    "one round" is claimed where the sample lies above ``f*``, and fails at most where "concentration" does. The sum of
    squares is claimed while variances are at most one, as the theorem assumes.

    Args:
        history: of ``CMES(samples=1)`` with equal costs.
        problem: see ``IndirectProblem``; its noise must be one number.
        failure: ``delta``. Default 0.1.

    Raises:
        ValueError: if the history has several samples or an initial design.
    """
    sample = history["max_samples"]
    if sample.shape[-1] != 1 or bool(sample.isnan().any()):
        raise ValueError("history must be of CMES with one sample and no initial design")
    noise = float(problem.noise[0])
    if not bool((problem.noise == noise).all()):
        raise ValueError(f"problem must have one noise_std for all actions, got {noise:g} and others")
    sample = sample.squeeze(-1)
    value, mean, std, kappa = (history[name] for name in ("value", "mean", "std", "kappa"))
    T = value.shape[-1]
    steps = torch.arange(1, T + 1, device=value.device)
    width = zeta(steps, failure).to(value)
    regret = problem.optimum - value
    above = sample >= problem.optimum
    constant = 2 / math.log1p(noise**-2)
    gain = information_gain(history, noise)
    largest = kappa.cummax(-1).values
    claims = {
        "concentration": Claim(mean - value, width * std, "Lemma 2", 1 - failure),
        "attained": Claim((mean + kappa * std - sample).abs(), torch.full_like(mean, 1e-6), "Lemma 1"),
        "one round": Claim(regret, (kappa + width) * std, "Lemma 3", 1 - failure, applies=above),
        "sum of squares": Claim(
            std.square().cumsum(-1), constant * gain, "Theorem 1, proof", applies=(std <= 1).cummin(-1).values
        ),
    }
    return RegretLedger(
        regret.cumsum(-1),
        terms={
            "f* - sample": (problem.optimum - sample).cumsum(-1),
            "sample - upper bound": (sample - mean - kappa * std).cumsum(-1),
            "kappa std": (kappa * std).cumsum(-1),
            "mean - g": (mean - value).cumsum(-1),
        },
        bounds={"Theorem 1, realized": (largest + zeta(steps, failure, True)) * (constant * steps * gain).sqrt()},
        claims=claims,
        identity=True,
    )


def theorem_1_rounds(T: int, w: float, failure: float) -> float:
    """``T' = sum_{i <= T} log_w(delta / (2 pi_i))``: how many rounds Theorem 1 needs ([Zhang2025]).

    Args:
        T: at least 1.
        w: the probability that a sample of the maximum lies below ``f*``, in (0, 1).
        failure: ``delta``, in (0, 1).
    """
    if T < 1:
        raise ValueError(f"T must be at least 1, got {T}")
    for name, value in (("w", w), ("failure", failure)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value}")
    return sum(group_length(i, w, failure) for i in range(1, T + 1))


def group_length(i: int, w: float, failure: float) -> float:
    """``k_i = log_w(delta / (2 pi_i))``: how many rounds group ``i`` of Theorem 1 has, not rounded ([Zhang2025])."""
    return math.log(failure / (2 * _weight(i))) / math.log(w)


def _weight(t: Number) -> Number:
    """``pi_t = pi^2 t^2 / 6``; the reciprocals of all rounds add up to one."""
    return math.pi**2 * t**2 / 6
