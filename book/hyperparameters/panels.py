"""The panels of Figure 2 and a landscape: problem, multipliers and initial design, as one reads what the paper leaves.

``experiments`` runs them as the paper does, ``phases`` over all that it leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import (
    DECOMPOSITIONS,
    LENGTHSCALES,
    decomposition_candidates,
    draws_of_candidates,
    four_sines,
    hidden_corner,
    hill_candidates,
    landscape_problem,
    lengthscale_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from book.hyperparameters.slips import printed_sqrt_beta
from book.hyperparameters.variants import READINGS
from book.hyperparameters.widths import frequentist_sqrt_beta
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.hyperparameters import Candidates, Space
from cbo_lib.measure import Function

Schedule = Callable[[int], Tensor | float]


@dataclass(frozen=True)
class Panel:
    """What the policies of a panel are run on.

    Args:
        problem: with the domain, the candidates and f.
        sqrt_beta: the multiplier of each round, or the multipliers of all candidates.
        steps: rounds after the initial design.
        initial: how many uniform points precede them.
    """

    problem: UnknownPriorProblem
    sqrt_beta: Schedule
    steps: int
    initial: int

    @property
    def options(self) -> dict[str, Any]:
        """What every policy of the panel is made with."""
        return {"sqrt_beta": self.sqrt_beta, "initial": self.initial}


def lengthscale(
    noise: float = 0.1,
    norm: float = 2.0,
    reading: Literal["peak", "density"] = "peak",
    multiplier: str = "printed",
    steps: int = 50,
    nu: float | None = None,
) -> Panel:
    """Figure 2a; see ``experiments.unknown_lengthscale``. With ``nu`` its kernels are Matern."""
    space = _space(lengthscale_candidates(LENGTHSCALES, nu=nu), _line(0, 1, 500), noise)
    problem = UnknownPriorProblem(space, partial(slope_and_peak, reading=reading), truth=0)
    return _frequentist(problem, multiplier, norm, steps, 3)


def period(
    noise: float = 0.1,
    norm: float = 2.0,
    shared: float | None = None,
    phase: float | None = 0.0,
    multiplier: str = "printed",
    steps: int = 50,
) -> Panel:
    """Figure 2b; see ``experiments.unknown_period``."""
    f = partial(four_sines, phase=phase)
    space = _space(period_candidates(f, shared, noise), _line(0, 2, 500), noise)
    return _frequentist(UnknownPriorProblem(space, f, truth=0), multiplier, norm, steps, 5)


def decomposition(
    noise: float = 0.1,
    norm: float = 2.0,
    lengthscale: float = 0.3,
    hills: float = 1.0,
    peak: float = 1.5,
    width: float = 0.15,
    multiplier: str = "printed",
    steps: int = 50,
) -> Panel:
    """Figure 2c, on a family of functions with the property that the paper describes; see ``hidden_corner``."""
    points = torch.cartesian_prod(*[torch.linspace(0, 1, n, dtype=torch.float64) for n in (15, 15, 5)])
    space = _space(decomposition_candidates(DECOMPOSITIONS, lengthscale), points, noise)
    f = partial(hidden_corner, hills=hills, peak=peak, width=width)
    return _frequentist(UnknownPriorProblem(space, f, truth=1), multiplier, norm, steps, 3)


def mean(
    seeds: Sequence[int],
    noise: float = 0.1,
    height: float = 5.0,
    extra: float = 2.0,
    lengthscale: float = 0.2,
    multiplier: str = "printed",
    steps: int = 100,
    nu: float | None = None,
) -> Panel:
    """Figure 2d, f drawn anew for each seed; see ``experiments.unknown_mean``. With ``nu`` its kernel is Matern."""
    candidates, points = hill_candidates(height, extra, lengthscale, nu), _line(0, 1, 200)
    truth = random_truth(len(candidates), seeds)
    grid = 129 if nu is None else len(points)  # a rough draw is exact only where it is drawn
    values = draws_of_candidates(candidates, truth, seeds, grid)(points.expand(len(seeds), -1, -1)).to(_there())
    space = _space(candidates, points, noise)
    problem = UnknownPriorProblem(space, _looked_up(values), truth=truth.to(_there()), replicates=len(seeds))
    return _bayesian(problem, multiplier, steps, 0)


def landscape(noise: float = 0.1, multiplier: str = "root", steps: int = 60) -> Panel:
    """The highest place of a real landscape; no candidate is true."""
    candidates, points, f = landscape_problem()
    return _bayesian(UnknownPriorProblem(_space(candidates, points, noise), f), multiplier, steps, 4)


def _there() -> torch.device:
    """Where tensors are made now."""
    return torch.zeros(()).device


def _line(low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)[:, None]


def _space(candidates: Candidates, points: Tensor, noise: float) -> Space:
    kernels = tuple(kernel.to(_there()) for kernel in candidates.kernels)
    moved = Candidates(candidates.names, kernels, candidates.means)
    return Space(moved, points=points.to(_there()), noise_std=noise)


def _frequentist(problem: UnknownPriorProblem, multiplier: str, norm: float, steps: int, initial: int) -> Panel:
    """With the multiplier of Theorem 4.1: a reading of the printed one, or the derived one."""
    space = problem.space
    if multiplier == "derived":
        kernel = space.candidates.prior(space.noise_std).kernel
        schedule = frequentist_sqrt_beta(kernel, space.finite(), space.noise_std, norm, steps, initial)
        return Panel(problem, schedule, steps, initial)
    return Panel(problem, partial(_read, multiplier, printed_sqrt_beta(space, norm, steps, initial)), steps, initial)


def _bayesian(problem: UnknownPriorProblem, multiplier: str, steps: int, initial: int) -> Panel:
    """With a reading of the multiplier of Theorem 4.2 (A)."""
    schedule = partial(union_bound_sqrt_beta, len(problem.space.finite()), failure=0.05)
    return Panel(problem, partial(_read, multiplier, schedule), steps, initial)


def _read(reading: str, schedule: Schedule, t: int) -> Tensor | float:
    return READINGS[reading](schedule(t))


def _looked_up(values: Tensor) -> Function:
    """The function of equally spaced points of [0, 1] with these values, ``replicates x n``."""
    last = values.shape[-1] - 1

    def f(points: Tensor) -> Tensor:
        index = (points[..., 0] * last).round().long()
        return values.gather(-1, index.reshape(len(values), -1)).reshape(index.shape)

    return f
