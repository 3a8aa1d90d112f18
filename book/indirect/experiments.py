"""Two applications, and the schedules of Theorem 2. The paper's two figures are a map of their own: ``factors``.

``scale="paper"`` runs 30 replicates, ``scale="reader"`` the first 10 of the same seeds::

    python -m book.indirect.experiments districts --scale paper
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from book import harness
from book.functions import prior_samples
from book.indirect.controls import RandomQueries
from book.indirect.problem import IndirectProblem
from book.indirect.problems import (
    bandit_problem,
    district_problem,
    known_prior,
)
from book.indirect.regret import recommendation_regret
from book.indirect.schedule import BlurredProblem, Blurs, ScheduledUCB
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    CMES,
    ActionPolicy,
    IndirectPolicy,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import simulate

Comparison = harness.Comparison[IndirectProblem]


def replicates(scale: harness.Scale) -> range:
    """The seeds of a scale."""
    return harness.choose(scale, range(10), range(30))


def application(
    problem: IndirectProblem,
    lengthscale: float,
    scale: harness.Scale = "paper",
    steps: int = 40,
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
    name: str = "application",
) -> Comparison:
    """CMES, random queries and a usual policy on g, with known ``p(x | a)``.

    Args:
        problem: the bandit or the districts.
        lengthscale: of the kernel of f; actions have the same.
        scale: 30 or 10 replicates of the noise.
        steps: rounds.
        seeds: default those of the scale.
        folder: see ``harness.run``.
        name: of its files there.
    """
    space = problem.space
    prior, process = known_prior(space, lengthscale), GaussianProcess(rbf_kernel(lengthscale), float(problem.noise[0]))
    policies: dict[str, IndirectPolicy] = {
        "CMES": CMES(space, prior=prior),
        "MES on g": ActionPolicy(space, acquisition="mes", prior=prior, action_prior=process),
        "UCB on g": ActionPolicy(space, acquisition="ucb", prior=prior, action_prior=process),
        "random": RandomQueries(space, prior=prior),
    }
    return harness.run(problem, policies, steps, seeds or replicates(scale), folder=folder, name=name)


def _sqrt_beta(t: int) -> float:
    return math.sqrt(2 * math.log(200 * t**2 * 1.65 / 0.1))


def schedules(
    scale: harness.Scale = "paper", steps: int = 100, lengthscale: float = 0.15
) -> dict[str, tuple[Tensor, Tensor]]:
    """Theorem 2: GP-UCB with blurred queries, on draws of a prior of one variable.

    Args:
        scale: 30 or 10 replicates.
        steps: rounds.
        lengthscale: of the prior, of variance 1.

    Returns:
        For each schedule of ``tau_t``, ``f* - g_t(a_t)`` (``replicates x T``) and the cost so far (``T``); a query
        costs ``1 / tau_t`` in units of the first.
    """
    seeds = replicates(scale)
    wide = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    f = prior_samples(rbf_kernel(lengthscale), wide, seeds, grid=257)
    points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    problem = BlurredProblem(Blurs(points), f)
    best = problem.values(len(seeds)).amax(-1, keepdim=True)
    start = lengthscale / 2
    rates: dict[str, Callable[[int], float]] = {
        "constant": lambda t: start,
        "slower: t^-1/8": lambda t: start * t**-0.125,
        "Theorem 2: t^-1/4 (log t)^1/4": lambda t: start * t**-0.25 * max(1.0, math.log(t)) ** 0.25,
        "faster: t^-1": lambda t: start / t,
    }
    result = {}
    for label, tau in rates.items():
        policy = ScheduledUCB(problem.space, lengthscale=lengthscale, tau=tau, sqrt_beta=_sqrt_beta)
        history = simulate(problem, policy, steps, seeds)
        cost = torch.tensor([start / tau(t) for t in range(1, steps + 1)]).cumsum(0)
        result[label] = best - history["value"], cost
    return result


def _show(comparison: Comparison) -> object:
    return comparison.final(recommendation_regret).round(3)


EXPERIMENTS: dict[str, harness.Experiment] = {
    "bandit": partial(application, bandit_problem(), 0.15, name="bandit"),
    "districts": partial(application, district_problem(), 0.12, name="districts"),
}

if __name__ == "__main__":
    harness.command(EXPERIMENTS, Path(__file__).parent / "results", _show)
