"""The longer studies of the chapter, a table each, in parts: ``python -m book run aggregated.path --scale paper``.

Every row holds one regret a seed, so that any two rows can be compared in pairs: ``end`` after the last round, ``mean``
averaged over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book import harness
from book.aggregated import experiments, published
from book.aggregated.chain import IsolatedGPOO
from book.aggregated.controls import UniformGrid
from book.aggregated.cost import costs
from book.aggregated.problem import CellProblem
from book.aggregated.problems import UNIT, VARIANCE, Curve
from book.aggregated.published import CONFIGURATIONS, configured_gpoo, configured_problem, known_prior
from book.aggregated.regret import aggregated_regret
from book.functions import prior_samples
from book.verdict import Paired, paired
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, Space, StoOO
from cbo_lib.aggregated.tree_policy import TreePolicy
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel, matrix, rbf_kernel
from cbo_lib.measure import Function
from cbo_lib.random import ReplicateGenerators, standard_normal

RESULTS = Path(__file__).parent / "results"
#: Kept digits of a regret.
_DIGITS = 4
Rows = Iterator[dict[str, Any]]


def rounded(values: Tensor) -> list[float]:
    """Numbers for a table."""
    return [round(float(x), _DIGITS) for x in values]


def summary(regret: Tensor) -> dict[str, list[float]]:
    """One regret a seed, at the end and averaged over the rounds, and the mean at every round."""
    return {"end": rounded(regret[:, -1]), "mean": rounded(regret.mean(-1)), "by round": rounded(regret.mean(0))}


def regret_of(problem: CellProblem, policy: TreePolicy, steps: int, seeds: Sequence[int]) -> Tensor:
    """Aggregated regret of a run, ``seeds x steps``."""
    return aggregated_regret(simulate(problem, policy, steps, seeds), problem)


# Figures 4 to 6 in two configurations.


def rivals(name: str, problem: CellProblem, curve: Curve, steps: int) -> dict[str, TreePolicy]:
    """What GPOO is compared with in Figure 4, under the configuration of that name; StoOO as published is no policy."""
    if name == "text":
        return experiments.policies(problem, curve, steps)
    setting = CONFIGURATIONS[name]
    return {
        "GPOO": configured_gpoo(problem, curve, setting, experiments.delta),
        "AVE-StoOO": AveStoOO(problem.space, delta=experiments.delta, span=1.0),
        "uniform grid": UniformGrid(problem.space, prior=known_prior(curve, setting), budget=steps),
        "GPTree": published.published_gptree(problem, curve, steps, setting),
    }


def figure_4(name: str, curve: Curve, points: int, seeds: Sequence[int], steps: int = 80) -> Rows:
    """Every policy on one panel: *peaks* or *periodic*, S = 1 or 10, under one of the configurations."""
    problem = configured_problem(curve, CONFIGURATIONS[name], points)
    key = {"configuration": name, "curve": curve, "S": points}
    for policy, made in rivals(name, problem, curve, steps).items():
        yield {**key, "policy": policy, **summary(regret_of(problem, made, steps, seeds))}
    if name == "published":
        yield {**key, "policy": "StoOO", **summary(published.published_stooo(problem, steps, list(seeds)))}


def figure_6(name: str, points: int, seeds: Sequence[int], steps: int = 80) -> Rows:
    """GPOO on *spike* with so many points a cell, by children, at 10, 25, 50 and (Figure 5) 80 rounds."""
    for branching in (2, 3, 4, 5):
        problem = configured_problem("spike", CONFIGURATIONS[name], points, branching)
        most = min(steps, 80 if branching == 2 and points <= 10 else 50)
        policy = configured_gpoo(problem, "spike", CONFIGURATIONS[name], experiments.delta)
        regret = regret_of(problem, policy, most, seeds)
        for budget in (10, 25, 50, 80):
            if budget <= most or budget == 10:
                key = {"configuration": name, "S": points, "K": branching, "N": budget}
                yield {**key, "end": rounded(regret[:, min(budget, most) - 1])}


def path(step: str, seeds: Sequence[int], steps: int = 80) -> Rows:
    """One step from the text to the published code, which differ in one factor after the other."""
    setting = dict(published.path())[step]
    for curve, points in experiments.PANELS:
        problem = configured_problem(curve, setting, points)
        grid = UniformGrid(problem.space, prior=known_prior(curve, setting), budget=steps)
        policy = configured_gpoo(problem, curve, setting, experiments.delta)
        for name, made in {"GPOO": policy, "uniform grid": grid}.items():
            found = summary(regret_of(problem, made, steps, seeds))
            yield {"step": step, "curve": curve, "S": points, "K": 2, "N": 80, "policy": name, **found}
    for branching in (2, 3, 4, 5):
        problem = configured_problem("spike", setting, 10, branching)
        policy = configured_gpoo(problem, "spike", setting, experiments.delta)
        regret = regret_of(problem, policy, min(steps, 50), seeds)
        for budget in (25, 50):
            key = {"step": step, "curve": "spike", "S": 10, "K": branching, "N": budget, "policy": "GPOO"}
            yield {**key, **summary(regret[:, :budget])}


# Functions drawn from the prior.

LENGTHSCALE = {1: 0.05, 2: 0.15}
#: With this c, ``delta(h) = c 2^(-h/d)`` covers slopes of 4.4 and 4.2 prior standard deviations; 14 is the paper's.
START = {1: 14.0, 2: 9.3}


def drawn_functions(dim: int, seeds: Sequence[int], grid: int = 33) -> Function:
    """One draw of the prior for each seed, on the unit interval or the unit square."""
    if dim == 1:
        return prior_samples(rbf_kernel(LENGTHSCALE[1], VARIANCE), UNIT, seeds)
    side = torch.linspace(0, 1, grid, dtype=torch.float64).unsqueeze(-1)
    one = rbf_kernel(LENGTHSCALE[2], 1.0)
    factor = torch.linalg.cholesky(matrix(one, side) + 1e-6 * torch.eye(grid).to(side))
    z = standard_normal(ReplicateGenerators(seeds, stream=2).generators, (grid, grid), side)
    half = torch.linalg.solve_triangular(factor.mT, z, upper=True)
    weights = VARIANCE**0.5 * torch.linalg.solve_triangular(factor.mT, half.mT, upper=True).mT  # seeds grid grid

    def f(points: Tensor) -> Tensor:
        flat = points.reshape(len(points), -1, 2)
        a, b = (torch.exp(-((flat[..., i, None] - side[:, 0]) ** 2) / (2 * LENGTHSCALE[2] ** 2)) for i in (0, 1))
        return ((a @ weights) * b).sum(-1).reshape(points.shape[:-1])

    return f


def drawn_problem(dim: int, points: int, seeds: Sequence[int]) -> CellProblem:
    """One function of the prior a seed."""
    bounds = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.float64)
    return CellProblem(Space(bounds, points_per_cell=points), drawn_functions(dim, seeds), 0.1, len(seeds))


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of the same rows, made with other seeds each, as one: what is known by seed is appended.

    Replicates are independent, so a few at a time give the same numbers and share a smaller tree.
    """
    first = tables[0].to_dict("records")
    others = [table.to_dict("records") for table in tables]

    def row(i: int) -> dict[str, Any]:
        return {k: [x for t in others for x in t[i][k]] if isinstance(v, list) else v for k, v in first[i].items()}

    return pd.DataFrame([row(i) for i in range(len(first))])


def prior_draws(dim: int, points: int, seeds: Sequence[int], steps: int = 80) -> Rows:
    """All policies on functions of the prior of one or two variables, the lengthscale known, halved and doubled."""
    problem = drawn_problem(dim, points, seeds)
    both = {s: Space(problem.space.bounds, points_per_cell=s) for s in (1, 10)}
    for label, policy in drawn_policies(problem, dim, steps):
        history = simulate(problem, policy, steps, seeds)
        regret = aggregated_regret(history, problem)
        found = {"end": rounded(regret[:, -1]), "mean": rounded(regret.mean(-1))}
        cell = history["recommendation"][:, -1:]
        for s, space in both.items():  # the same target for both: one point, or ten
            target = problem.optimum - space.measure(cell).expectation(problem.f)[:, 0]
            found[f"target {s}"] = rounded(target)
        depth = rounded(history["depth"].double().mean(-1))
        split = history["expanded"].sum(-1).clamp_min(1)
        found |= {"depth": depth, "rounds a split": rounded(steps / split)}
        yield {"d": dim, "S": points, **label, **found}


def drawn_policies(problem: CellProblem, dim: int, steps: int) -> Iterator[tuple[dict[str, Any], TreePolicy]]:
    """The policies of ``prior_draws``: by name, the learner's lengthscale and the factor on ``delta``."""
    space, c = problem.space, START[dim]

    def known(factor: float = 1.0) -> GaussianProcess:
        return GaussianProcess(rbf_kernel(factor * LENGTHSCALE[dim], VARIANCE), 0.1)

    def key(policy: str, lengthscale: float = 1.0, factor: float = 1.0) -> dict[str, Any]:
        return {"policy": policy, "lengthscale": lengthscale, "c": factor}

    for factor in (0.05, 0.2, 0.5, 1.0, 2.0):
        yield key("GPOO", 1.0, factor), GPOO(space, prior=known(), delta=factor * c)
    small: dict[str, Any] = {"sqrt_beta": published.published_sqrt_beta}
    yield key("GPOO, code's β", 1.0, 0.2), GPOO(space, prior=known(), delta=0.2 * c, **small)
    yield key("GPOO, δ of the prior"), GPOO(space, prior=known())
    yield key("GPTree"), GPTree(space, prior=known(), budget=steps)
    yield key("uniform grid"), UniformGrid(space, prior=known(), budget=steps)
    yield key("StoOO"), StoOO(space, delta=c, budget=steps, span=1.0)
    yield key("AVE-StoOO"), AveStoOO(space, delta=c, span=1.0)
    for wrong in (0.5, 2.0):
        yield key("GPOO", wrong), GPOO(space, prior=known(wrong), delta=c)
        yield key("uniform grid", wrong), UniformGrid(space, prior=known(wrong), budget=steps)


def matern_draws(points: int, seeds: Sequence[int], steps: int = 80) -> Rows:
    """Four policies on functions of a rougher prior of one variable, nu = 5/2, which they know."""
    kernel, c = matern_kernel(LENGTHSCALE[1], VARIANCE), START[1]
    space, known = Space(UNIT, points_per_cell=points), GaussianProcess(kernel, 0.1)
    problem = CellProblem(space, prior_samples(kernel, UNIT, seeds, grid=257), 0.1, len(seeds))
    small: dict[str, Any] = {"delta": 0.2 * c, "sqrt_beta": published.published_sqrt_beta}
    policies = {
        "GPOO": GPOO(space, prior=known, delta=c),
        "GPOO, code's β": GPOO(space, prior=known, **small),
        "GPTree": GPTree(space, prior=known, budget=steps),
        "uniform grid": UniformGrid(space, prior=known, budget=steps),
    }
    for name, policy in policies.items():
        regret = regret_of(problem, policy, steps, seeds)
        found = {"end": rounded(regret[:, -1]), "mean": rounded(regret.mean(-1))}
        yield {"d": 1, "S": points, "policy": name, **found}


def exponent(noise: float, seeds: Sequence[int], steps: int = 400) -> Rows:
    """How the deepest split node deepens with the budget on *peaks*, S = 1, with and without neighbors, by noise.

    ``depth`` is the mean depth of the deepest split node at every round; ``draws`` how often a split node was drawn.
    """
    problem = replace(configured_problem("peaks", CONFIGURATIONS["text"], 1), noise_std=noise)
    known = GaussianProcess(rbf_kernel(0.05, VARIANCE), noise)
    for name, kind in (("all draws", GPOO), ("own draws alone", IsolatedGPOO)):
        policy = kind(problem.space, prior=known, delta=experiments.delta)
        history = simulate(problem, policy, steps, seeds)
        deepest = torch.where(history["expanded"], history["depth"], -1).cummax(-1).values.double()
        draws = (policy.draws * policy.expanded).sum(-1) / policy.expanded.sum(-1).clamp_min(1)
        yield {
            "noise": noise,
            "learns from": name,
            "depth": rounded(deepest.mean(0)),
            "regret": rounded(aggregated_regret(history, problem).mean(0)),
            "draws": rounded(draws),
        }


def cost(seeds: Sequence[int], steps: int = 1600) -> Rows:
    """What the rounds of one run on *peaks*, S = 1, cost in three ways: Remark 2 and Appendix B."""
    problem = configured_problem("peaks", CONFIGURATIONS["text"], 1)
    policy = GPOO(problem.space, prior=known_prior("peaks", CONFIGURATIONS["text"]), delta=experiments.delta)
    yield from costs(problem, policy, steps)


#: The studies in parts, each to be given ``seeds`` and, to try it, ``steps``.
STUDIES: dict[str, dict[str, Callable[..., Rows]]] = {
    "figure_4": {
        f"{name}/{curve}-{points}": partial(figure_4, name, curve, points)
        for name in CONFIGURATIONS
        for curve, points in experiments.PANELS
    },
    "figure_6": {
        f"{name}/{points}": partial(figure_6, name, points)
        for name in CONFIGURATIONS
        for points in (1, 10, 20, 30, 40, 50)
    },
    "path": {step: partial(path, step) for step, _ in published.path()},
    "prior_draws": {f"{dim}-{points}": partial(prior_draws, dim, points) for dim in (1, 2) for points in (1, 10)},
    "matern_draws": {f"{points}": partial(matern_draws, points) for points in (1, 10)},
    "exponent": {f"{noise}": partial(exponent, noise) for noise in (0.03, 0.1, 0.3, 1.0)},
    "cost": {"one": cost},
}


def load(name: str) -> pd.DataFrame:
    """A stored table."""
    return harness.load_table(RESULTS / f"{name}.json")


def cell(frame: pd.DataFrame, column: str = "mean", **key: Any) -> Tensor:
    """One regret a seed: the row that the key names.

    Raises:
        ValueError: unless it names exactly one.
    """
    chosen = frame
    for name, value in key.items():
        chosen = chosen[chosen[name] == value]
    if len(chosen) != 1:
        raise ValueError(f"key must name one row of the table, {key} names {len(chosen)}")
    return torch.tensor(chosen.iloc[0][column], dtype=torch.float64)


def against(frame: pd.DataFrame, rival: str, policy: str = "GPOO", column: str = "mean", **key: Any) -> Paired:
    """A rival's regret minus a policy's, seed by seed."""
    return paired(cell(frame, column, policy=policy, **key), cell(frame, column, policy=rival, **key))
