"""What the paper's Figures 1 and 2 run, the floor of an estimated ``p(x | a)``, and peaks that lie apart.

A run is kept as its regrets by round, ``2 x seeds x rounds``: simple (Definition 1), then instant (Definition 2); with
a budget, by cost. See ``book.indirect.registry`` for the commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.indirect.controls import OnMaximumOfG, PaidEI, RandomLevels
from book.indirect.problem import IndirectProblem
from book.indirect.problems import (
    TAU,
    UNIT,
    Transformation,
    Turned,
    branin,
    branin_moments,
    draw_data,
    known_prior,
    transformation,
    two_peaks,
    unit_grid,
)
from book.indirect.regret import at_cost, instant_regret, simple_regret
from book.verdict import Paired, holm, paired
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    CMES,
    CMETS,
    EI,
    MES,
    UCB,
    ClippedGaussian,
    ConditionalMeanEmbedding,
    Nodes,
    RandomActions,
    Space,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import History, simulate

MAPS: tuple[Transformation, ...] = ("linear", "cosine")
#: Points and actions lie on a grid of so many places a side; noise in standard deviations of f; random first actions.
GRID, NOISE, INITIAL, PAIRS, LENGTH, ROUNDS = 20, 0.1, 5, 300, 0.24, 100
#: What is run of Figure 1: the paper's function, and moved copies of it with two lengthscales.
SETUPS = (("paper", LENGTH), ("moved", LENGTH), ("moved", 0.12))
LEVELS, UNITS = (6, 5), ("sd", "raw")
RIVALS = ("EI on g", "UCB on g", "MES on g", "random")
#: The lengthscale of the kernel on actions and lambda, by map: the smallest leave-one-out error on other data.
EMBEDDING: Mapping[str, tuple[float, float]] = {"linear": (0.2, 1e-3), "cosine": (0.2, 1e-4)}
BUDGET, COSTS = 60, tuple(range(4, 61))
#: Widths of the blur of two peaks: at 0.3 the best action lies at the broad hill.
BLURS = (0.05, 0.15, 0.3)
#: Pairs and noises of the floor; None is a known p(x | a).
SIZES, NOISES = (50, 150, 450, None), (0.1, 0.002)
RESULTS = Path(__file__).parent / "results"


def on_g(length: float, tau: float = TAU, dim: int = 2) -> GaussianProcess:
    """What matches the kernel of f on g: to average over a width tau adds ``2 tau^2`` to its square, and lowers it."""
    wide = math.sqrt(length**2 + 2 * tau**2)
    return GaussianProcess(rbf_kernel(wide, (length / wide) ** dim), NOISE)


def learned(
    h: Transformation,
    seeds: Sequence[int],
    pairs: int | None = PAIRS,
    noise: float = NOISE,
    moved: bool = False,
) -> IndirectProblem:
    """Branin through a map, with an estimate of ``p(x | a)`` from pairs of each seed's own; None: it is known."""
    grid, conditional = unit_grid(GRID), ClippedGaussian(transformation(h), TAU, UNIT)
    space = Space(grid, conditional=conditional, points=grid, noise_std=noise)
    if pairs is not None:
        estimate = ConditionalMeanEmbedding(*draw_data(space, pairs, seeds, UNIT), *EMBEDDING[h])
        space = replace(space, conditional=estimate)
    f = Turned(tuple(seeds)) if moved else branin
    return IndirectProblem(space, f, conditional, order=15, replicates=len(seeds) if moved else None)


def figure_1_policies(space: Space, length: float = LENGTH, fitted: bool = False) -> dict[str, Any]:
    """The policies of Figure 1, which all recommend by one model; ``fitted``: rivals fit a Matern kernel on g."""
    usual: dict[str, Any] = {"prior": GaussianProcess(rbf_kernel(length), NOISE), "initial": INITIAL}
    rival = usual | {"action_prior": None if fitted else on_g(length)}
    policies = {
        "CMES": CMES(space, noisy=True, **usual),
        "MES on g": MES(space, **rival),
        "UCB on g": UCB(space, **rival),
        "EI on g": EI(space, **rival),
        "random": RandomActions(space, **usual),
        "CMES, Eq. 14": CMES(space, **usual),
        "CMES's model, target g*": OnMaximumOfG(space, noisy=True, **usual),
    }
    return {name: policies[name] for name in (("MES on g", "UCB on g", "EI on g") if fitted else policies)}


def regrets(history: History, problem: IndirectProblem) -> Tensor:
    """Simple, then instant regret of every round, ``2 x seeds x rounds``."""
    return torch.stack([simple_regret(history, problem), instant_regret(history, problem)])


Kind = Literal["paper", "moved", "fitted"]


def figure_1(
    kind: Kind,
    h: Transformation,
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    length: float = LENGTH,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Regrets of the policies of Figure 1, by name.

    Args:
        kind: the paper's function, moved copies of it, or the paper's with rivals that fit a Matern kernel on g.
        h: the map.
        seeds: of the pairs, the noise, the choices and the motion.
        rounds: how many.
        length: the lengthscale of f.
        names: of the policies. Default all.
    """
    problem = learned(h, seeds, moved=kind == "moved")
    policies = figure_1_policies(problem.space, length, kind == "fitted")
    chosen = {name: policies[name] for name in (names or (("CMES", *RIVALS) if kind == "moved" else policies))}
    return {name: regrets(simulate(problem, policy, rounds, seeds), problem) for name, policy in chosen.items()}


def tree_problems(h: Transformation, unit: str, levels: int) -> tuple[IndirectProblem, IndirectProblem, Nodes]:
    """Branin on a tree: with all nodes, and with the finest; ``p(x | a)`` is known and of one width.

    Args:
        h: the map.
        unit: of the noise ``0.5 / cost``, ``"sd"`` of f or ``"raw"``, that of Branin's formula.
        levels: the deepest.
    """
    nodes = Nodes.complete(UNIT, levels)
    cost, conditional = nodes.cost(), ClippedGaussian(transformation(h), TAU, UNIT)
    noise = 0.5 / cost / (1.0 if unit == "sd" else branin_moments()[1])
    found = []
    for some in (nodes.level >= 0, nodes.level == levels):
        part: dict[str, Any] = {"cost": cost[some], "noise_std": noise[some], "points": unit_grid(GRID)}
        found.append(IndirectProblem(Space(nodes.actions[some], conditional=conditional, **part), branin, order=15))
    return found[0], found[1], nodes


def figure_2(
    h: Transformation, unit: str, levels: int, seeds: Sequence[int], rounds: int = 80, costs: Sequence[float] = COSTS
) -> dict[str, Tensor]:
    """Regrets by cost of CMETS, of policies on the finest nodes, and of two that may ask coarse nodes too."""
    whole, fine, nodes = tree_problems(h, unit, levels)
    usual: dict[str, Any] = {"prior": known_prior(LENGTH), "initial": 1}
    wide = on_g(LENGTH)  # on centers: the radius of a node does not count
    lengths = torch.cat([wide.kernel.base_kernel.lengthscale.reshape(-1).expand(2), torch.tensor([1e3]).double()])
    rival = usual | {"action_prior": GaussianProcess(rbf_kernel(lengths, float(wide.kernel.outputscale)), NOISE)}
    policies: dict[str, tuple[IndirectProblem, Any]] = {
        "CMETS": (whole, CMETS(whole.space, nodes=nodes, noisy=True, prior=known_prior(LENGTH))),
        "CMES, all nodes": (whole, CMES(whole.space, noisy=True, **usual)),
        "EI per cost, all nodes": (whole, PaidEI(whole.space, **rival)),
        "random, all levels": (whole, RandomLevels(whole.space, **usual)),
        "CMES": (fine, CMES(fine.space, noisy=True, **usual)),
        "EI on g": (fine, EI(fine.space, **rival)),
        "UCB on g": (fine, UCB(fine.space, **rival)),
        "MES on g": (fine, MES(fine.space, **rival)),
        "random": (fine, RandomActions(fine.space, **usual)),
    }
    found = {}
    for name, (problem, policy) in policies.items():
        flat = int(max(costs) / float(problem.space.cost.amin()))  # of nodes of one price
        history = until_spent(problem, policy, min(rounds, flat), seeds, max(costs))
        spent = problem.space.cost[problem.space.nearest(history["query"])].cumsum(-1)
        found[name] = torch.stack([at_cost(part, spent, costs) for part in regrets(history, problem)])
    return found


def until_spent(problem: IndirectProblem, policy: Any, rounds: int, seeds: Sequence[int], budget: float) -> History:
    """A simulation that ends once every replicate has spent its budget."""
    cost, nearest = problem.space.cost, problem.space.nearest

    def watch(batch: Any) -> dict[str, Tensor]:
        if bool((cost[nearest(batch.queries)].sum(-1) > budget + float(cost.amax())).all()):
            raise StopIteration
        return {}

    try:
        return simulate(problem, policy, rounds, seeds, watch=watch)
    except StopIteration as done:
        return vars(done)["history"]


def floor(pairs: int | None, noise: float, seeds: Sequence[int], rounds: int = 60) -> Tensor:
    """Regret of the point that CMES recommends, linear map, ``seeds x rounds``."""
    problem = learned("linear", seeds, pairs, noise)
    prior = known_prior(LENGTH) if pairs is None else GaussianProcess(rbf_kernel(LENGTH), NOISE)
    history = simulate(problem, CMES(problem.space, noisy=True, prior=prior, initial=INITIAL), rounds, seeds)
    return problem.optimum - history["recommended_value"]


def peaks_problem(blur: float, count: int = 101) -> IndirectProblem:
    """The two peaks of the chapter, seen through a Gaussian of that deviation."""
    x = torch.linspace(-0.5, 3.5, count, dtype=torch.float64)[:, None]
    space = Space(x, conditional=ClippedGaussian(lambda a: a, blur), points=x, noise_std=0.02)
    return IndirectProblem(space, two_peaks)


def peaks_policies(space: Space, blur: float) -> dict[str, Any]:
    """The policies on the two peaks; f has lengthscale 0.2 and variance 0.3, and rivals the kernel of g that follows."""
    usual: dict[str, Any] = {"prior": known_prior(0.2, 0.3), "initial": 2}
    wide = math.sqrt(0.2**2 + 2 * blur**2)
    rival = usual | {"action_prior": GaussianProcess(rbf_kernel(wide, 0.3 * 0.2 / wide), NOISE)}
    return {
        "CMES": CMES(space, noisy=True, **usual),
        "MES on g": MES(space, **rival),
        "UCB on g": UCB(space, **rival),
        "EI on g": EI(space, **rival),
        "random": RandomActions(space, **usual),
        "CMES's model, target g*": OnMaximumOfG(space, noisy=True, **usual),
    }


def peaks(blur: float, seeds: Sequence[int], rounds: int = 40) -> dict[str, Tensor]:
    """Regrets of the policies on the two peaks, by name."""
    problem = peaks_problem(blur)
    policies = peaks_policies(problem.space, blur)
    return {name: regrets(simulate(problem, policy, rounds, seeds), problem) for name, policy in policies.items()}
