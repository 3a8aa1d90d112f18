"""The experiments of the paper on aggregated feedback, one function a figure.

``scale="paper"`` runs the paper's 30 replicates, ``scale="reader"`` 10 of them (the first ten of the same seeds).
``python -m book.aggregated.experiments figure_4-peaks-10 --scale paper`` runs and stores one panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from book import harness
from book.aggregated.controls import UniformGrid
from book.aggregated.problem import CellProblem
from book.aggregated.problems import LENGTHSCALES, VARIANCE, Curve, curve_problem, prior
from book.aggregated.regret import aggregated_regret
from book.harness import Comparison, Scale
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, StoOO
from cbo_lib.aggregated.tree_policy import TreePolicy
from cbo_lib.history import History
from cbo_lib.simulate import simulate


def delta(depth: Tensor) -> Tensor:
    """The paper's smoothness function, ``14 * 2^-h`` ([Zhang2022], Appendix E)."""
    return 14 * 2.0**-depth


def canonical_metric(curve: Curve) -> Callable[[float], float]:
    """The standard deviation of ``f(x) - f(x')`` at distance ``r`` under the curve's own prior, for ``GPTree``."""
    lengthscale = LENGTHSCALES[curve]
    return lambda r: math.sqrt(2 * VARIANCE * -math.expm1(-(r**2) / (2 * lengthscale**2)))


def policies(problem: CellProblem, curve: Curve, budget: int) -> dict[str, TreePolicy]:
    """Every policy of Figure 4 and the uniform grid, with the paper's settings."""
    space, known = problem.space, prior(curve, problem.noise_std)
    return {
        "GPOO": gpoo(problem, curve),
        "StoOO": StoOO(space, delta=delta, budget=budget, span=1.0),
        "AVE-StoOO": AveStoOO(space, delta=delta, span=1.0),
        "GPTree": GPTree(space, prior=known, budget=budget, metric_bound=canonical_metric(curve)),
        "GPTree, small V": small_variation_gptree(problem, curve, budget),
        "uniform grid": UniformGrid(space, prior=known, budget=budget),
    }


def gpoo(problem: CellProblem, curve: Curve) -> GPOO:
    """GPOO with the paper's settings."""
    return GPOO(problem.space, prior=prior(curve, problem.noise_std), delta=delta, max_depth=10)


def small_variation_gptree(problem: CellProblem, curve: Curve, budget: int) -> GPTree:
    """Our GPTree with the constants of the authors' published code; theirs is ``published.PublishedGPTree``."""
    known = prior(curve, problem.noise_std)
    return GPTree(problem.space, prior=known, budget=budget, metric_bound=lambda r: 0.1 * r, alpha=0.5, scale=0.25)


def replicates(scale: Scale) -> range:
    """The seeds of a scale: those of the paper's 30 replicates, or the first ten of them."""
    return harness.choose(scale, range(10), range(30))


def compare(
    curve: Curve,
    points_per_cell: int,
    scale: Scale = "paper",
    steps: int = 80,
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[CellProblem]:
    """Run every policy on one curve with the same noise: one panel of Figure 4 ([Zhang2022])."""
    problem = curve_problem(curve, points_per_cell)
    chosen = replicates(scale) if seeds is None else seeds
    name = f"figure_4-{curve}-{points_per_cell}"
    return harness.run(problem, policies(problem, curve, steps), steps, chosen, folder=folder, name=name)


PANELS: tuple[tuple[Curve, int], ...] = (("peaks", 1), ("peaks", 10), ("periodic", 1), ("periodic", 10))


def figure_4(scale: Scale = "paper", steps: int = 80) -> dict[tuple[Curve, int], Comparison[CellProblem]]:
    """Aggregated regret of every policy on two curves, with 1 and 10 points a cell ([Zhang2022], Figure 4)."""
    return {(curve, points): compare(curve, points, scale, steps) for curve, points in PANELS}


def figure_5(scale: Scale = "paper", steps: int = 80) -> dict[int, tuple[CellProblem, GPOO, History]]:
    """GPOO on the spike with 1 and with 10 points a cell ([Zhang2022], Figure 5)."""
    result = {}
    for points in (1, 10):
        problem = curve_problem("spike", points)
        policy = gpoo(problem, "spike")
        result[points] = problem, policy, simulate(problem, policy, steps, replicates(scale))
    return result


def figure_6(scale: Scale = "paper", steps: Sequence[int] = (25, 50)) -> dict[int, dict[tuple[int, int], float]]:
    """Logarithm of GPOO's mean aggregated regret by points a cell and children ([Zhang2022], Figure 6).

    Returns:
        For each budget, the values by ``(S, K)``. GPOO needs no budget, so one run gives all budgets.
    """
    result: dict[int, dict[tuple[int, int], float]] = {step: {} for step in steps}
    for points in (1, 10, 20, 30, 40, 50):
        for branching in (2, 3, 4, 5):
            problem = curve_problem("spike", points, branching)
            history = simulate(problem, gpoo(problem, "spike"), max(steps), replicates(scale))
            mean = aggregated_regret(history, problem).mean(0)
            for step in steps:
                result[step][points, branching] = float(mean[step - 1].log())
    return result


EXPERIMENTS = {f"figure_4-{curve}-{points}": partial(compare, curve, points) for curve, points in PANELS}

if __name__ == "__main__":
    harness.command(EXPERIMENTS, Path(__file__).parent / "results", lambda result: result.final(aggregated_regret))
