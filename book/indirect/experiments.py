"""Two applications. The paper's two figures are a map of their own: ``factors``.

``scale="paper"`` runs 30 replicates, ``scale="reader"`` the first 10 of the same seeds::

    python -m book run indirect.applications --scale paper
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from book import harness
from book.indirect.controls import RandomQueries, usual_policies
from book.indirect.problem import IndirectProblem
from book.indirect.problems import (
    known_prior,
)
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    CMES,
    ActionPolicy,
    IndirectPolicy,
)
from cbo_lib.kernels import rbf_kernel

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
        **usual_policies(ActionPolicy, space, ("mes", "ucb"), prior=prior, action_prior=process),
        "random": RandomQueries(space, prior=prior),
    }
    return harness.run(problem, policies, steps, seeds or replicates(scale), folder=folder, name=name)
