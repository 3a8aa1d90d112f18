"""Regret with costly subsets: the paper's notions, both sides of every step of its proof, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from book.subsets.problem import SubsetProblem
from cbo_lib.kernels import matrix
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import History


def subsets_of(history: History) -> Tensor:
    """Which subset each play set, ``replicates x T``."""
    return history["query"][..., 0].long()


def quality_regret(history: History, problem: SubsetProblem, alpha: float) -> Tensor:
    """``(1 - alpha) f* - E f([x_t, X])``, ``replicates x T``; negative where a play is better than is asked for."""
    return (1 - alpha) * problem.optimum - history["value"]


def cost_regret(history: History, problem: SubsetProblem, alpha: float) -> Tensor:
    """``max(c_{i_t} - c_{i_*}, 0)`` with mean costs, ``replicates x T`` ([Hoang2024], "Cost regret")."""
    costs = problem.cost_means
    return (costs[subsets_of(history)] - costs[problem.cheapest(alpha)]).clamp_min(0.0)


def cost_varying_regret(history: History, problem: SubsetProblem) -> Tensor:
    """``c_{i_t} (f* - E f([x_t, X]))``, ``replicates x T`` ([Tay2023]; [Hoang2024], "Discussion")."""
    return problem.cost_means[subsets_of(history)] * (problem.optimum - history["value"])


def at_cost(history: History, problem: SubsetProblem, values: Tensor, amount: float) -> Tensor:
    """What a quantity ``replicates x T`` was after the last play that an amount paid for, ``replicates``."""
    paid = (history["spent"] <= min(amount, problem.space.budget) * (1 + 1e-9)).sum(-1, keepdim=True)
    return values.gather(-1, (paid - 1).clamp_min(0)).squeeze(-1)


@torch.no_grad()
def walk(problem: SubsetProblem, policy: Any, rounds: int, seeds: Sequence[int]) -> History:
    """Run Algorithm 1 as ``simulate`` does, and note both sides of every step of its proof.

    Returns:
        ``query``, ``value``, ``truth`` (f at the point that came to be), ``mean`` and ``std`` (there, before the
        observation), ``expected_mean`` and ``expected_std`` (of the decision), ``exploring``, ``upper``, ``lower``,
        ``good``, ``plays`` (of every subset, before) and ``resets``.
    """
    batch, noise = policy.start(list(seeds)), ReplicateGenerators(seeds, stream=0)
    everything = torch.ones(problem.space.dim, dtype=torch.bool)
    rows: list[dict[str, Tensor]] = []
    for t in range(1, rounds + 1):
        query = batch.ask()
        row = {"query": query, "value": problem.value(query), "exploring": batch.begun < 0, "plays": batch.plays}
        row |= {name: getattr(batch, name) for name in ("upper", "lower", "good", "resets")}
        seen = problem.observe(query, noise.at(t))
        full = seen["played"][:, None, 1:]
        mean, std = batch.belief.moments(full, everything)
        row |= {"truth": problem.f(full).squeeze(1), "mean": mean.squeeze(1), "std": std.squeeze(1)}
        batch.tell(seen["played"], seen["y"], seen["cost"])
        row |= dict(zip(("expected_mean", "expected_std"), batch.expected, strict=True))
        rows.append({name: part.clone() for name, part in row.items()})
    return History({name: torch.stack([row[name] for row in rows], 1) for name in rows[0]}, list(seeds))


def gained(std: Tensor, noise_std: float) -> Tensor:
    """The information of points played one after the other, cumulated: ``0.5 sum log(1 + (std / noise)^2)``."""
    return (0.5 * torch.log1p((std / noise_std).square())).cumsum(-1)


def spectral_gain(kernel: Kernel, points: Tensor, noise_std: float) -> Callable[[float], float]:
    """An estimate of the information gain of ``t`` points spread over a domain, for any real ``t``.

    ``0.5 sum_j log(1 + t lambda_j / noise_std^2)`` with ``lambda_j`` the eigenvalues of the kernel matrix of ``n``
    points ``n x d``, divided by ``n``: what the points tell when each is observed ``t / n`` times.
    """
    ratios = torch.linalg.eigvalsh(matrix(kernel, points)).clamp_min(0.0) / len(points) / noise_std**2
    return lambda t: float(0.5 * torch.log1p(t * ratios).sum())


def constant(failure: float, m: int = 1) -> float:
    """``K`` of Lemma 7 for ``m`` processes at once, of a deviation of at most 1."""
    return 4 * math.log(m / failure) + 8 * math.log(4) + 1


def theorem_1(
    T: float,
    tau: float,
    m: int,
    largest: float,
    gain: Callable[[float], float],
    sqrt_beta: Callable[[float], float],
    failure: float = 0.1,
) -> dict[str, float]:
    """The terms of the quality bound after ``T`` plays, of which ``m tau`` are the exploration, by name.

    Args:
        T: plays.
        tau: rounds of exploration.
        m: how many subsets.
        largest: ``M``, the largest value of f.
        gain: ``gamma_t``.
        sqrt_beta: ``sqrt(beta_t)``.
        failure: ``delta``.
    """
    late, K = T - m * tau, constant(failure)
    once = sqrt_beta(m * tau) * (2 * math.sqrt(4 * (tau + 2) * gain(tau)) + K)
    return {
        "exploring others": (m - 1) * tau * largest,
        "exploring the best": 2 * once,
        "widths": 2 * sqrt_beta(T) * (2 * math.sqrt(4 * (late + 2) * gain(late)) + K),
        "threshold": 2 * late / tau * once,
    }


def smallest_exploration(
    gap: float,
    alpha: float,
    m: int,
    gain: Callable[[float], float],
    sqrt_beta: Callable[[float], float],
    failure: float = 0.1,
) -> float:
    """The ``tau`` of Lemma 2, to one part in a thousand: after so many rounds only acceptable subsets are left.

    Args:
        gap: ``epsilon``, by how much the best subset that is not acceptable falls short, positive.
        alpha: what share of the best value may be given up.
        m: how many subsets.
        gain: ``gamma_t``.
        sqrt_beta: ``sqrt(beta_t)``.
        failure: ``delta``.
    """

    def enough(t: float) -> bool:
        width = 2 * math.sqrt(4 * (t + 2) * gain(t)) + constant(failure, m)
        return 2 * sqrt_beta(t * m) * width / t <= gap / (2 - alpha)

    low = high = 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
