"""What the experiments run: the panels of the figures, the policies, and how much of both.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from book.contexts import problems
from cbo_lib.contexts.policies import DRBOKDE, GPUCB, SBOKDE, ContextPolicy, KnownDensity, RandomDecisions, Settings
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt

Scale = Literal["reader", "paper"]
Kind = Literal["regret", "reward"]


@dataclass(frozen=True)
class Panel:
    """One panel of Figure 1 or 2.

    Args:
        make: the problem.
        measure: what the paper draws; the other can be drawn too.
        samples: of the density estimate at ``scale="paper"``.
        limits: policies that stop after fewer evaluations, and when.
    """

    make: Callable[[], ContextProblem]
    measure: Kind = "regret"
    samples: int = 1024
    limits: Mapping[str, int] = field(default_factory=dict)


#: Figure 1, and as ``ackley_4`` Figure 2, with a quarter of the samples: in four dimensions nothing is interpolated.
#: There DRBO-MMD has 256 grid points and needs more time a round than all other policies together.
PANELS: Mapping[str, Panel] = {
    "ackley": Panel(problems.ackley),
    "branin": Panel(problems.modified_branin),
    "hartmann": Panel(problems.hartmann),
    "complicated_hartmann": Panel(problems.complicated_hartmann, "reward"),
    "newsvendor": Panel(problems.newsvendor),
    "portfolio_normal": Panel(functools.partial(problems.portfolio, "normal"), "reward"),
    "portfolio_uniform": Panel(functools.partial(problems.portfolio, "uniform"), "reward"),
    "ackley_4": Panel(functools.partial(problems.ackley, 4), samples=256, limits={"DRBO-MMD": 60}),
}

POLICIES = (
    "SBO-KDE",
    "DRBO-KDE",
    "GP-UCB",
    "StableOpt",
    "DRBO-MMD",
    "DRBO-MMD-MinimaxApprox",
    "SBO, density known",
    "random",
)


@dataclass(frozen=True)
class Budget:
    """How much is run.

    Args:
        seeds: one a replicate.
        steps: evaluations, the initial design included.
        settings: of all policies.
        samples: of the density estimate; None for the panel's.
    """

    seeds: Sequence[int]
    steps: int
    settings: Settings = field(default_factory=Settings)
    samples: int | None = None


def budget(scale: Scale) -> Budget:
    """What a scale runs.

    Raises:
        ValueError: for another scale.
    """
    if scale == "paper":
        return Budget(range(100, 105), 350)
    if scale == "reader":
        return Budget(range(100, 103), 30, Settings(raw=32, starts=2, iterations=10, refit_every=5), 128)
    raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")


def make_policy(name: str, problem: ContextProblem, settings: Settings, samples: int = 1024) -> ContextPolicy:
    """A policy by its name in ``POLICIES``.

    Args:
        name: of the policy.
        problem: to be solved.
        settings: of all policies.
        samples: how many contexts it draws or covers the context space with, where it does.

    Raises:
        ValueError: for another name.
    """
    makers: dict[str, Callable[[], ContextPolicy]] = {
        "SBO-KDE": lambda: SBOKDE(problem, settings, samples),
        "DRBO-KDE": lambda: DRBOKDE(problem, settings, samples, cover=samples),
        "GP-UCB": lambda: GPUCB(problem, settings),
        "StableOpt": lambda: StableOpt(problem, settings, cover=samples),
        "DRBO-MMD": lambda: DRBOMMD(problem, settings),
        "DRBO-MMD-MinimaxApprox": lambda: DRBOMMDMinimax(problem, settings, size=samples),
        "SBO, density known": lambda: KnownDensity(problem, settings, samples),
        "random": lambda: RandomDecisions(problem, settings),
    }
    if name not in makers:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return makers[name]()
