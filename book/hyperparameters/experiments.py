"""The experiments of the paper, one function a panel of Figure 2, and how they are drawn.

``scale="paper"`` runs the paper's numbers of replicates (50, 50, 100 and 50), ``scale="reader"`` 10 of them (the first
ten of the same seeds).

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.hyperparameters.problems import (
    DECOMPOSITIONS,
    LENGTHSCALES,
    decomposition_candidates,
    draws_of_candidates,
    four_sines,
    hidden_corner,
    hill_candidates,
    lengthscale_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from cbo_lib.history import History
from cbo_lib.hyperparameters.baselines import AGPUCB, GPUCB, ExpectedUCB, MaximumLikelihood
from cbo_lib.hyperparameters.policies import HEGPUCB, CandidatePolicy
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.hyperparameters.regret import cumulative_regret, initial_rounds, simple_regret
from cbo_lib.hyperparameters.robust import HEStableOpt, StableOpt
from cbo_lib.hyperparameters.widths import Schedule, frequentist_sqrt_beta
from cbo_lib.simulate import simulate

Scale = Literal["reader", "paper"]


def replicates(scale: Scale, paper: int) -> int:
    """How many replicates a scale has, given the paper's number.

    Raises:
        ValueError: for another scale.
    """
    if scale not in ("reader", "paper"):
        raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")
    return paper if scale == "paper" else 10


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of one experiment.

    Args:
        problem: what was maximized.
        histories: by policy.
    """

    problem: UnknownPriorProblem
    histories: Mapping[str, History]

    @property
    def cumulative(self) -> dict[str, Tensor]:
        """Cumulative regret of each policy after the initial design, ``replicates x T``."""
        return {name: cumulative_regret(history, self.problem) for name, history in self.histories.items()}

    @property
    def simple(self) -> dict[str, Tensor]:
        """Best regret so far of each policy, ``replicates x T``."""
        return {name: simple_regret(history, self.problem) for name, history in self.histories.items()}


def compare(
    problem: UnknownPriorProblem, policies: Mapping[str, CandidatePolicy], steps: int, seeds: Sequence[int]
) -> Comparison:
    """Run policies with the same initial design, noise and functions.

    Args:
        problem: for ``len(seeds)`` replicates.
        policies: by name.
        steps: how many rounds after the initial design.
        seeds: one a replicate.
    """
    runs = {name: simulate(problem, policy, steps + policy.initial, seeds) for name, policy in policies.items()}
    return Comparison(problem, runs)


def baselines(problem: UnknownPriorProblem, sqrt_beta: Schedule | None, initial: int) -> dict[str, CandidatePolicy]:
    """HE-GP-UCB, its ablation and the baselines for any kind of hyperparameter."""
    return {
        "HE-GP-UCB": HEGPUCB(problem, sqrt_beta, initial),
        "no elimination": HEGPUCB(problem, sqrt_beta, initial, elimination="never"),
        "MLE": MaximumLikelihood(problem, sqrt_beta, initial),
        "ExpectedUCB": ExpectedUCB(problem, sqrt_beta, initial),
        "GP-UCB, truth": GPUCB(problem, None, sqrt_beta, initial),
    }


def unknown_lengthscale(
    scale: Scale = "paper",
    norm: float = 2.0,
    noise_std: float = 0.1,
    reading: Literal["peak", "density"] = "peak",
    printed: bool = True,
    steps: int = 50,
) -> Comparison:
    """Figure 2a: lengthscales for ``slope_and_peak``, 500 points, three initial points ([Ziomek2024]_, J.1).

    No candidate holds the function in its RKHS; the shortest lengthscale takes the place of the truth.

    Args:
        scale: 50 or 10 replicates.
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        reading: see ``slope_and_peak``.
        printed: see ``frequentist_sqrt_beta``.
        steps: rounds after the initial design.
    """
    points = torch.linspace(0, 1, 500, dtype=torch.float64)[:, None]
    problem = UnknownPriorProblem(
        lambda x: slope_and_peak(x, reading), lengthscale_candidates(LENGTHSCALES), points, None, noise_std, truth=0
    )
    sqrt_beta = frequentist_sqrt_beta(problem, norm, steps, 3, printed=printed)
    policies = baselines(problem, sqrt_beta, 3)
    policies["GP-UCB, shortest"] = policies.pop("GP-UCB, truth")
    policies["GP-UCB, longest"] = GPUCB(problem, len(LENGTHSCALES) - 1, sqrt_beta, 3)
    policies["A-GP-UCB"] = AGPUCB(problem, LENGTHSCALES, sqrt_beta=sqrt_beta, initial=3)
    return compare(problem, policies, steps, range(replicates(scale, 50)))


def unknown_period(
    scale: Scale = "paper",
    norm: float = 2.0,
    noise_std: float = 0.1,
    shared: float | None = None,
    phase: float | None = 0.0,
    steps: int = 50,
) -> Comparison:
    """Figure 2b: periods for ``four_sines`` on [0, 2], 500 points, five initial points ([Ziomek2024]_, J.2).

    Args:
        scale: 50 or 10 replicates.
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        shared: see ``period_candidates``.
        phase: see ``four_sines``.
        steps: rounds after the initial design.
    """

    def f(x: Tensor) -> Tensor:
        return four_sines(x, phase)

    points = torch.linspace(0, 2, 500, dtype=torch.float64)[:, None]
    problem = UnknownPriorProblem(f, period_candidates(f, shared, noise_std), points, None, noise_std, truth=0)
    sqrt_beta = frequentist_sqrt_beta(problem, norm, steps, 5)
    return compare(problem, baselines(problem, sqrt_beta, 5), steps, range(replicates(scale, 50)))


def unknown_decomposition(
    scale: Scale = "paper", norm: float = 2.0, noise_std: float = 0.1, lengthscale: float = 0.3, steps: int = 50
) -> Comparison:
    """Figure 2c: decompositions for ``hidden_corner`` on a 15 x 15 x 5 grid ([Ziomek2024]_, J.3).

    Args:
        scale: 100 or 10 replicates.
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        lengthscale: of all kernels.
        steps: rounds after three initial points.
    """
    axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in (15, 15, 5)]
    candidates = decomposition_candidates(DECOMPOSITIONS, lengthscale)
    problem = UnknownPriorProblem(hidden_corner, candidates, torch.cartesian_prod(*axes), None, noise_std, truth=1)
    sqrt_beta = frequentist_sqrt_beta(problem, norm, steps, 3)
    policies = baselines(problem, sqrt_beta, 3)
    policies["GP-UCB, additive"] = GPUCB(problem, 0, sqrt_beta, 3)
    return compare(problem, policies, steps, range(replicates(scale, 100)))


def unknown_mean(
    scale: Scale = "paper",
    height: float = 5.0,
    extra: float = 2.0,
    lengthscale: float = 0.2,
    noise_std: float = 0.1,
    steps: int = 100,
) -> Comparison:
    """Figure 2d: which hill is the tallest, f drawn anew in each replicate, 200 points ([Ziomek2024]_, J.4).

    The true candidate of each replicate is drawn uniformly, with a seed of its own.

    Args:
        scale: 50 or 10 replicates.
        height: see ``Hills``.
        extra: see ``Hills``.
        lengthscale: of the RBF kernel of variance 1.
        noise_std: ``R``.
        steps: rounds, without an initial design.
    """
    seeds = range(replicates(scale, 50))
    candidates = hill_candidates(height, extra, lengthscale)
    truth = random_truth(len(candidates), seeds)
    f = draws_of_candidates(candidates, truth, seeds)
    points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    problem = UnknownPriorProblem(f, candidates, points, None, noise_std, truth, replicates=len(seeds))
    return compare(problem, baselines(problem, None, 0), steps, seeds)


def robust(
    scale: Scale = "paper",
    lengthscales: Sequence[float] = (0.05, 0.1, 0.2, 0.5),
    truth: int = 1,
    epsilon: float = 0.05,
    noise_std: float = 0.1,
    steps: int = 50,
) -> Comparison:
    """Epsilon-regret of HE-StableOpt: an experiment of our own on draws of a prior, 200 points.

    Args:
        scale: 50 or 10 replicates.
        lengthscales: of the candidates.
        truth: index of the one that f is drawn with.
        epsilon: how far a point may be moved.
        noise_std: ``R``.
        steps: rounds, without an initial design.
    """
    seeds = range(replicates(scale, 50))
    candidates = lengthscale_candidates(lengthscales)
    f = draws_of_candidates(candidates, torch.full((len(seeds),), truth), seeds)
    points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    problem = UnknownPriorProblem(f, candidates, points, None, noise_std, truth, epsilon=epsilon, replicates=len(seeds))
    policies: dict[str, CandidatePolicy] = {
        "HE-StableOpt": HEStableOpt(problem),
        "StableOpt, truth": StableOpt(problem),
        "StableOpt, shortest": StableOpt(problem, 0),
        "StableOpt, longest": StableOpt(problem, len(lengthscales) - 1),
        "HE-GP-UCB": HEGPUCB(problem),
    }
    return compare(problem, policies, steps, seeds)


def plot_comparison(comparison: Comparison, best: str = "best regret so far") -> Figure:
    """Cumulative and best regret of each policy, mean and standard error over replicates."""
    figure, axes = figures.subplots(1, 2, figsize=(10, 3.8))
    for name, dash in zip(comparison.histories, ["-", "--", "-", "-", ":", "-.", "-"], strict=False):
        for axis, curves in zip(axes.flat, (comparison.cumulative, comparison.simple), strict=True):
            figures.plot_replicates(axis, curves[name], name, spread="standard error", linestyle=dash)
    axes[0, 0].set(xlabel="round", ylabel="cumulative regret (units of f)")
    axes[0, 1].set(xlabel="round", ylabel=f"{best} (units of f)")
    axes[0, 0].legend(fontsize="small")
    return figure


def plot_survivors(axes: Axes, comparison: Comparison, policy: str = "HE-GP-UCB") -> None:
    """How many replicates still hold each candidate, round by round."""
    history = comparison.histories[policy]
    share = history["alive"][:, initial_rounds(history) :].double().mean(0)
    for u, name in enumerate(comparison.problem.candidates.names):
        axes.plot(range(1, len(share) + 1), share[:, u], label=name)
    axes.set(xlabel="round", ylabel="share of replicates that keep it", ylim=(-0.03, 1.03))
    axes.legend(fontsize="small")
