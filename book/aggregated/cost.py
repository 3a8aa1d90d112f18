"""What a round of GPOO costs: Remark 2 of [Zhang2022] counted and timed, its Appendix B against factoring anew.

A run is recorded once, and its posteriors are then computed again in three ways. All three read the same table of
kernel values, so that only linear algebra is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from book.aggregated.problem import CellProblem
from cbo_lib.aggregated import GPOO
from cbo_lib.kernels import matrix
from cbo_lib.random import ReplicateGenerators


@dataclass(frozen=True)
class Recorded:
    """One run, round by round.

    Args:
        kernel: covariances of the averages of all nodes of the final tree, ``n x n``.
        drawn: the node drawn in each round, ``steps``.
        leaves: the leaves when each round began.
        nodes: how many nodes the tree had when each round began.
        answers: what was observed, ``steps``.
        noise: variance of an observation.
    """

    kernel: Tensor
    drawn: Tensor
    leaves: list[Tensor]
    nodes: list[int]
    answers: Tensor
    noise: float


def record(problem: CellProblem, policy: GPOO, steps: int, seed: int = 0) -> Recorded:
    """Run one replicate."""
    noise = ReplicateGenerators([seed], stream=0)
    policy.start([seed])
    drawn, leaves, nodes, answers = [], [], [], []
    for step in range(1, steps + 1):
        query = policy.ask()
        leaves.append(policy.leaf[0].nonzero().squeeze(-1))
        nodes.append(policy.leaf.shape[1])
        drawn.append(int(policy.chosen[0]))
        answers.append(float(problem.observe(query, noise.at(step))))
        policy.tell(query, torch.tensor(answers[-1:], dtype=torch.float64))
    assert policy.prior is not None
    points = problem.space.representatives(policy.tree.boxes)  # n S d
    n, s = points.shape[:2]
    flat = matrix(policy.prior.kernel, points.reshape(n * s, -1))
    kernel = flat.reshape(n, s, n, s).mean((1, 3))
    told = torch.tensor(answers, dtype=torch.float64)
    return Recorded(kernel, torch.tensor(drawn), leaves, nodes, told, float(policy.prior.noise_std) ** 2)


Step = Callable[[int], tuple[Tensor, Tensor]]


def anew(run: Recorded) -> Step:
    """Factor the covariance of the data anew in each round, then solve for every leaf."""

    def step(t: int) -> tuple[Tensor, Tensor]:
        seen = run.drawn[:t]
        factor = torch.linalg.cholesky(run.kernel[seen][:, seen] + run.noise * torch.eye(t, dtype=torch.float64))
        return _leaves(run, factor, t)

    return step


def appended(run: Recorded) -> Step:
    """Appendix B: the factor gains a row, then a triangular solve for every leaf, as Remark 2 counts."""
    factor = torch.zeros(len(run.drawn), len(run.drawn), dtype=torch.float64)

    def step(t: int) -> tuple[Tensor, Tensor]:
        if t > 0:
            new, seen = run.drawn[t - 1], run.drawn[: t - 1]
            right = run.kernel[seen, new, None]
            row = torch.linalg.solve_triangular(factor[: t - 1, : t - 1], right, upper=False)[:, 0]
            factor[t - 1, : t - 1] = row
            factor[t - 1, t - 1] = (run.kernel[new, new] + run.noise - row @ row).sqrt()
        return _leaves(run, factor[:t, :t], t)

    return step


def rank_one(run: Recorded) -> Step:
    """As the library: one new row of ``L^-1 K(data, nodes)`` for all nodes, new nodes by a solve."""
    size = len(run.kernel)
    factor = torch.zeros(len(run.drawn), len(run.drawn), dtype=torch.float64)
    solved = torch.zeros(len(run.drawn), size, dtype=torch.float64)
    mean, variance = torch.zeros(size, dtype=torch.float64), run.kernel.diagonal().clone()
    weights = torch.zeros(len(run.drawn), dtype=torch.float64)
    known = 0

    def step(t: int) -> tuple[Tensor, Tensor]:
        nonlocal known
        if t > 0:  # the last answer moves the nodes that were there
            new, row = run.drawn[t - 1], solved[: t - 1, run.drawn[t - 1]].clone()
            pivot = (run.kernel[new, new] + run.noise - row @ row).sqrt()
            factor[t - 1, : t - 1], factor[t - 1, t - 1] = row, pivot
            weights[t - 1] = (run.answers[t - 1] - row @ weights[: t - 1]) / pivot
            change = (run.kernel[new, :known] - row @ solved[: t - 1, :known]) / pivot
            solved[t - 1, :known] = change
            mean[:known] += weights[t - 1] * change
            variance[:known] -= change.square()
        if t > 0 and run.nodes[t] > known:
            fresh = slice(known, run.nodes[t])
            right = run.kernel[run.drawn[:t]][:, fresh]
            solved[:t, fresh] = torch.linalg.solve_triangular(factor[:t, :t], right, upper=False)
            mean[fresh] = weights[:t] @ solved[:t, fresh]
            variance[fresh] -= solved[:t, fresh].square().sum(0)
        known = run.nodes[t]
        at = run.leaves[t]
        return mean[at], variance[at]

    return step


def _leaves(run: Recorded, factor: Tensor, t: int) -> tuple[Tensor, Tensor]:
    at, seen = run.leaves[t], run.drawn[:t]
    half = torch.linalg.solve_triangular(factor, run.kernel[seen][:, at], upper=False)
    weights = torch.linalg.solve_triangular(factor, run.answers[:t, None], upper=False)[:, 0]
    return weights @ half, run.kernel[at, at] - half.square().sum(0)


WAYS: dict[str, Callable[[Recorded], Step]] = {"anew": anew, "appended": appended, "rank one": rank_one}


def multiplications(run: Recorded) -> dict[str, Tensor]:
    """How many multiplications each way takes, summed over the rounds before each budget, ``steps``."""
    t = torch.arange(len(run.drawn), dtype=torch.float64)
    leaves = torch.tensor([len(at) for at in run.leaves], dtype=torch.float64)
    nodes = torch.tensor(run.nodes, dtype=torch.float64)
    fresh = nodes.diff(prepend=nodes.new_zeros(1))
    each = {
        "anew": t**3 / 6 + leaves * t**2 / 2,
        "appended": t**2 / 2 + leaves * t**2 / 2,
        "rank one": t * nodes + fresh * t**2 / 2,
    }
    return {name: value.cumsum(0) for name, value in each.items()}


def costs(problem: CellProblem, policy: GPOO, steps: int = 1600) -> Iterator[dict[str, Any]]:
    """Each way's processor seconds and multiplications up to budgets that double, and how far it is from the first."""
    run, budgets = record(problem, policy, steps), [steps // 2**k for k in range(5, -1, -1)]
    counted, reference = multiplications(run), {}
    for name, way in WAYS.items():
        step, seconds, spent, apart = way(run), 0.0, [], 0.0
        for t in range(steps):
            began = time.process_time()
            mean, variance = step(t)
            seconds += time.process_time() - began
            if t + 1 in budgets:
                spent.append(round(seconds, 4))
                if name == "anew":
                    reference[t] = mean, variance
                first, second = reference[t]
                apart = max(apart, float((mean - first).abs().max()), float((variance - second).abs().max()))
        yield {
            "way": name,
            "N": budgets,
            "seconds": spent,
            "multiplications": [round(float(counted[name][n - 1])) for n in budgets],
            "leaves": [len(run.leaves[n - 1]) for n in budgets],
            "apart": float(f"{apart:.1e}"),
        }
