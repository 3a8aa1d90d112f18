"""The experiments of the paper and two applications, and how they are drawn.

``scale="paper"`` runs 30 replicates (the paper shows 5), ``scale="reader"`` the first 10 of the same seeds::

    python -m book.indirect.experiments figure_1-linear --scale paper
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures, harness
from book.functions import prior_samples
from book.indirect.controls import RandomQueries
from book.indirect.problem import IndirectProblem
from book.indirect.problems import (
    TAU,
    UNIT,
    Transformation,
    bandit_problem,
    branin,
    branin_problem,
    district_problem,
    draw_data,
    known_prior,
    transformation,
    unit_grid,
)
from book.indirect.regret import at_cost, instantaneous_regret, recommendation_regret, simple_regret
from book.indirect.schedule import BlurredProblem, Blurs, ScheduledUCB
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    CMES,
    CMETS,
    ActionPolicy,
    ClippedGaussian,
    ConditionalMeanEmbedding,
    IndirectPolicy,
    Nodes,
    Point,
    Space,
)
from cbo_lib.indirect.embedding import cross_validate
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators, standard_normal
from cbo_lib.simulate import simulate

Comparison = harness.Comparison[IndirectProblem]


def replicates(scale: harness.Scale) -> range:
    """The seeds of a scale."""
    return harness.choose(scale, range(10), range(30))


@dataclass(frozen=True)
class Hyperparameters:
    """What the learners of one experiment share.

    Args:
        lengthscale: of the kernel of f.
        action_lengthscale: of the kernel on actions that the embedding uses.
        regularization: ``lambda`` of the embedding.
        baseline_lengthscale: of the kernel of g on actions that the baselines use.
    """

    lengthscale: float
    action_lengthscale: float
    regularization: float
    baseline_lengthscale: float


def fit_hyperparameters(problem: IndirectProblem, count: int = 500, pilot: int = 40) -> Hyperparameters:
    """Lengthscales from a pilot study, the same for all policies and replicates.

    The embedding's are chosen by leave-one-out error on a ``D1`` of ``count`` pairs, those of f and g by the marginal
    likelihood of ``pilot`` noisy observations of random actions. Seeds are of the pilot alone.
    """
    seeds = [10**6]
    x, a = (part[0] for part in draw_data(problem, count, seeds, UNIT))
    action_lengthscale, regularization = cross_validate(
        x, a, rbf_kernel(0.2), (0.05, 0.1, 0.2, 0.4, 0.8), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    )
    generators = ReplicateGenerators(seeds, stream=5).generators
    chosen = torch.randint(problem.n, (pilot,), generator=generators[0])
    noise = problem.noise[chosen]
    z = problem.table[chosen] + noise * standard_normal(generators, (pilot,), problem.table)[0]
    asked = problem.space.actions[chosen]
    averages = ConditionalMeanEmbedding(x, a, action_lengthscale, regularization).measure(asked)
    points = Measure.dirac(asked)
    grid = torch.linspace(0.08, 0.6, 14).tolist()

    def best(measure: Measure) -> float:
        def likelihood(length: float) -> float:
            return float(GaussianProcess(rbf_kernel(length), noise).condition(measure, z).log_marginal_likelihood)

        return max(grid, key=likelihood)

    return Hyperparameters(best(averages), action_lengthscale, regularization, best(points))


def figure_1(
    name: Transformation,
    scale: harness.Scale = "paper",
    count: int = 300,
    steps: int = 100,
    initial: int = 5,
    noise_std: float = 0.1,
    only: Sequence[str] | None = None,
    hyperparameters: Hyperparameters | None = None,
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison:
    """Fixed resolution, fixed noise ([Zhang2025], Figure 1).

    Args:
        name: of the transformation.
        scale: 30 or 10 replicates; each draws its own ``D1``.
        count: size ``N`` of ``D1``.
        steps: rounds, the initial design included.
        initial: random actions that all policies start with.
        noise_std: of the observations, in standard deviations of f.
        only: which policies. Default all.
        hyperparameters: default ``fit_hyperparameters``.
        seeds: default those of the scale.
        folder: see ``harness.run``.
    """
    problem, seeds = branin_problem(name, noise_std), seeds or replicates(scale)
    fit = hyperparameters or fit_hyperparameters(problem, max(count, 50))
    known = problem.space
    embedding = ConditionalMeanEmbedding(
        *draw_data(problem, count, seeds, UNIT), fit.action_lengthscale, fit.regularization
    )
    space = replace(known, conditional=embedding)
    prior = space.tabulate(GaussianProcess(rbf_kernel(fit.lengthscale), noise_std))
    exact = known_prior(known, fit.lengthscale)
    grid = known.points
    points = Space(grid, conditional=Point(), points=grid, noise_std=noise_std)
    usual: dict[str, Any] = {
        "prior": prior,
        "action_prior": GaussianProcess(rbf_kernel(fit.baseline_lengthscale), noise_std),
        "initial": initial,
    }
    policies: dict[str, IndirectPolicy] = {
        "CMES": CMES(space, prior=prior, initial=initial),
        "MES on g": ActionPolicy(space, acquisition="mes", **usual),
        "UCB on g": ActionPolicy(space, acquisition="ucb", **usual),
        "EI on g": ActionPolicy(space, acquisition="ei", **usual),
        "random": RandomQueries(space, prior=prior, initial=initial),
        "CMES, p known": CMES(known, prior=exact, initial=initial),
        "MES on f, direct": CMES(points, prior=known_prior(points, fit.lengthscale)),
    }
    chosen = policies if only is None else {label: harness.pick(policies, label, "only") for label in only}
    problems = {label: IndirectProblem(points, branin) if "direct" in label else problem for label in chosen}
    return harness.run(problems, chosen, steps, seeds, folder=folder, name=f"figure_1-{name}")


def figure_2(
    name: Transformation,
    scale: harness.Scale = "paper",
    budget: float = 60.0,
    levels: int = 6,
    windows: bool = False,
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison:
    """Cost and noise by resolution under a budget ([Zhang2025], Figure 2).

    Actions are the nodes of a tree with four children each. A node of level ``l`` costs ``(l + 1) / 2``, and its noise
    has standard deviation ``0.5 / cost``. CMETS may ask its active nodes; the others ask the deepest level, a random
    node first, and CMES also all nodes. ``p(x | a)`` is known.

    Args:
        name: of the transformation.
        scale: 30 or 10 replicates.
        budget: total cost.
        levels: ``l_max``.
        windows: whether a node also averages over a wider window the higher it stands (``tau`` half its radius), as in
            section 5.2. Default: the same ``tau`` for all, as in section 7.
        seeds: default those of the scale.
        folder: see ``harness.run``.
    """
    nodes = Nodes.complete(UNIT, levels)
    spread: float | Callable[[Tensor], Tensor] = (lambda a: a[..., 2] / 2) if windows else TAU
    conditional = ClippedGaussian(transformation(name), spread, UNIT)
    cost, deepest = nodes.cost(), nodes.level == levels
    grid = unit_grid(24)
    tree, fine = (
        Space(nodes.actions[some], conditional=conditional, points=grid, noise_std=0.5 / cost[some], cost=cost[some])
        for some in (nodes.level >= 0, deepest)
    )
    fit = fit_hyperparameters(branin_problem(name))
    prior = known_prior(tree, fit.lengthscale)
    flat: dict[str, Any] = {"prior": known_prior(fine, fit.lengthscale), "initial": 1, "budget": budget}
    usual = flat | {"action_prior": GaussianProcess(rbf_kernel(fit.baseline_lengthscale), 0.1)}
    policies: dict[str, IndirectPolicy] = {
        "CMETS": CMETS(tree, nodes=nodes, prior=prior, budget=budget),
        "CMES, all nodes": CMES(tree, prior=prior, budget=budget),
        "CMES": CMES(fine, **flat),
        "MES on g": ActionPolicy(fine, acquisition="mes", **usual),
        "UCB on g": ActionPolicy(fine, acquisition="ucb", **usual),
        "EI on g": ActionPolicy(fine, acquisition="ei", **usual),
        "random": RandomQueries(fine, **flat),
    }
    both = [IndirectProblem(space, branin) for space in (tree, fine)]
    problems = {label: both[policy.space is fine] for label, policy in policies.items()}
    cheapest = float(fine.costs.amin())
    steps = {label: int(budget / (cheapest if p.space is fine else 1.0)) for label, p in policies.items()}
    label = f"figure_2-{name}{'-windows' if windows else ''}"
    return harness.run(problems, policies, steps, seeds or replicates(scale), folder=folder, name=label)


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


def plot_comparison(comparison: Comparison, by_cost: float | None = None) -> Figure:
    """Simple and instant regret of each policy, mean and standard error over replicates.

    Args:
        comparison: what to draw.
        by_cost: the budget, if the horizontal axis is the cost. Default: the round.
    """
    figure, axes = figures.subplots(1, 2, figsize=(10, 3.8))
    for axis, kind, notion in zip(axes.flat, ("simple", "instant"), (simple_regret, instantaneous_regret), strict=True):
        curves = comparison.regrets(notion)
        for name, dash in zip(curves, ["-", "--", "-", "-", ":", "-.", "-"], strict=False):
            values, x = curves[name], None
            if by_cost is not None:
                history = comparison.histories[name]
                budgets = torch.linspace(float(history["cost"][:, 0].max()), by_cost, 60)
                values, x = at_cost(values, history, budgets), budgets.tolist()
            figures.plot_replicates(axis, values.clamp_min(1e-4), name, x, spread="standard error", linestyle=dash)
        axis.set(xlabel="round" if by_cost is None else "cost", ylabel=f"{kind} regret (sd of f)", yscale="log")
    axes[0, 0].legend(fontsize="x-small")
    return figure


def _show(comparison: Comparison) -> object:
    return comparison.final(recommendation_regret).round(3)


EXPERIMENTS: dict[str, harness.Experiment] = {
    "figure_1-linear": partial(figure_1, "linear"),
    "figure_1-cosine": partial(figure_1, "cosine"),
    "figure_2-linear": partial(figure_2, "linear"),
    "figure_2-cosine": partial(figure_2, "cosine"),
    "figure_2-linear-windows": partial(figure_2, "linear", windows=True),
    "bandit": partial(application, bandit_problem(), 0.15, name="bandit"),
    "districts": partial(application, district_problem(), 0.12, name="districts"),
}

if __name__ == "__main__":
    harness.command(EXPERIMENTS, Path(__file__).parent / "results", _show)
