"""The policies of the paper on aggregated feedback, with the settings of its text; ``studies`` runs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from book.aggregated.controls import UniformGrid
from book.aggregated.problem import CellProblem
from book.aggregated.problems import LENGTHSCALES, VARIANCE, Curve, prior
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, StoOO
from cbo_lib.aggregated.tree_policy import TreePolicy

#: Curve and points a cell of Figure 4 ([Zhang2022]).
PANELS: tuple[tuple[Curve, int], ...] = (("peaks", 1), ("peaks", 10), ("periodic", 1), ("periodic", 10))

#: Constants of GPTree in the authors' published code, which set ``g(r) = 0.1 r``.
PUBLISHED_GPTREE: dict[str, Any] = {"metric_bound": lambda r: 0.1 * r, "alpha": 0.5, "scale": 0.25}


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
    return GPTree(problem.space, prior=known, budget=budget, **PUBLISHED_GPTREE)
