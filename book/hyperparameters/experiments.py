"""The experiments of the paper, one function a panel of Figure 2, and how they are drawn.

At the paper's scale they run its numbers of replicates (50, 50, 100 and 50), at the reader's 10 of them, the first ten
of the same seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures, harness
from book.harness import Comparison, Scale
from book.hyperparameters import panels
from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.panels import Panel
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import LENGTHSCALES, draws_of_candidates, lengthscale_candidates
from book.hyperparameters.regret import cumulative_regret, initial_rounds, simple_regret
from book.hyperparameters.variants import EveryoneTested, TemperedUCB
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    CandidatePolicy,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
    Space,
)


def baselines(space: Space, truth: int | Tensor | None, **options: Any) -> dict[str, CandidatePolicy]:
    """HE-GP-UCB, its ablation and the baselines for any kind of hyperparameter; with a truth, GP-UCB that knows it."""
    found: dict[str, CandidatePolicy] = {
        "HE-GP-UCB": HEGPUCB(space, **options),
        "no elimination": HEGPUCB(space, elimination="never", **options),
        "MLE": MaximumLikelihood(space, **options),
        "ExpectedUCB": AveragedUCB(space, **options),
    }
    return found if truth is None else found | {"GP-UCB, truth": OracleGPUCB(space, truth, **options)}


def contenders(space: Space, **options: Any) -> dict[str, CandidatePolicy]:
    """The policies that need no truth, our variants among them."""
    ours = {"everyone tested": EveryoneTested(space, **options), "tempered": TemperedUCB(space, **options)}
    return baselines(space, None, **options) | ours


def unknown_lengthscale(
    norm: float = 2.0,
    noise_std: float = 0.1,
    reading: Literal["peak", "density"] = "peak",
    printed: bool = True,
    steps: int = 50,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """Figure 2a: lengthscales for ``slope_and_peak``, 500 points, three initial points ([Ziomek2024], J.1).

    No candidate holds the function in its RKHS; the shortest lengthscale takes the place of the truth.

    Args:
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        reading: see ``slope_and_peak``.
        printed: whether the widths are those that the paper prints, ``printed_sqrt_beta``.
        steps: rounds after the initial design.
        scale: 50 or 10 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    panel = panels.lengthscale(noise_std, norm, reading, "printed" if printed else "derived", steps)
    space, options = panel.problem.space, panel.options
    policies = baselines(space, 0, **options)
    policies["GP-UCB, shortest"] = policies.pop("GP-UCB, truth")
    policies["GP-UCB, longest"] = OracleGPUCB(space, len(LENGTHSCALES) - 1, **options)
    policies["A-GP-UCB"] = AGPUCB(space, lengthscales=LENGTHSCALES, **options)
    return _run(panel, policies, _seeds(scale, 50, seeds), folder, "lengthscale")


def unknown_period(
    norm: float = 2.0,
    noise_std: float = 0.1,
    shared: float | None = None,
    phase: float | None = 0.0,
    steps: int = 50,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """Figure 2b: periods for ``four_sines`` on [0, 2], 500 points, five initial points ([Ziomek2024], J.2).

    Args:
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        shared: see ``period_candidates``.
        phase: see ``four_sines``.
        steps: rounds after the initial design.
        scale: 50 or 10 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    seeds = _seeds(scale, 50, seeds)
    panel = panels.period(noise_std, norm, shared, phase, steps=steps)
    return _run(panel, baselines(panel.problem.space, 0, **panel.options), seeds, folder, "period")


def unknown_decomposition(
    norm: float = 2.0,
    noise_std: float = 0.1,
    lengthscale: float = 0.3,
    steps: int = 50,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """Figure 2c: decompositions for ``hidden_corner`` on a 15 x 15 x 5 grid ([Ziomek2024], J.3).

    Args:
        norm: the ``B`` of the widths.
        noise_std: ``R``.
        lengthscale: of all kernels.
        steps: rounds after three initial points.
        scale: 100 or 10 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    seeds = _seeds(scale, 100, seeds)
    panel = panels.decomposition(noise_std, norm, lengthscale, steps=steps)
    policies = baselines(panel.problem.space, 1, **panel.options)
    policies["GP-UCB, additive"] = OracleGPUCB(panel.problem.space, 0, **panel.options)
    return _run(panel, policies, seeds, folder, "decomposition")


def unknown_mean(
    height: float = 5.0,
    extra: float = 2.0,
    lengthscale: float = 0.2,
    noise_std: float = 0.1,
    steps: int = 100,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """Figure 2d: which hill is the tallest, f drawn anew in each replicate, 200 points ([Ziomek2024], J.4).

    The true candidate of each replicate is drawn uniformly, with a seed of its own.

    Args:
        height: see ``Hills``.
        extra: see ``Hills``.
        lengthscale: of the RBF kernel of variance 1.
        noise_std: ``R``.
        steps: rounds, without an initial design.
        scale: 50 or 10 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    seeds = _seeds(scale, 50, seeds)
    panel = panels.mean(seeds, noise_std, height, extra, lengthscale, steps=steps)
    policies = baselines(panel.problem.space, panel.problem.truth, **panel.options)
    return _run(panel, policies, seeds, folder, "mean")


def robust(
    lengthscales: Sequence[float] = (0.05, 0.1, 0.2, 0.5),
    truth: int = 1,
    epsilon: float = 0.05,
    noise_std: float = 0.1,
    steps: int = 50,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """Epsilon-regret of HE-StableOpt: an experiment of our own on draws of a prior, 200 points.

    Args:
        lengthscales: of the candidates.
        truth: index of the one that f is drawn with.
        epsilon: how far a point may be moved.
        noise_std: ``R``.
        steps: rounds, without an initial design.
        scale: 50 or 10 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    seeds = _seeds(scale, 50, seeds)
    candidates = lengthscale_candidates(lengthscales)
    f = draws_of_candidates(candidates, torch.full((len(seeds),), truth), seeds)
    points = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    space = Space(candidates, points=points, epsilon=epsilon, noise_std=noise_std)
    policies: dict[str, CandidatePolicy] = {
        "HE-StableOpt": HEStableOpt(space),
        "StableOpt, truth": OracleStableOpt(space, truth),
        "StableOpt, shortest": OracleStableOpt(space, 0),
        "StableOpt, longest": OracleStableOpt(space, len(lengthscales) - 1),
        "HE-GP-UCB": HEGPUCB(space),
    }
    problem = UnknownPriorProblem(space, f, truth=truth, replicates=len(seeds))
    return harness.run(problem, policies, steps, seeds, folder=folder, name="robust")


def landscape(
    noise_std: float = 0.1,
    reading: str = "root",
    steps: int = 60,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
) -> Comparison[UnknownPriorProblem]:
    """The highest place of a real landscape, 20 x 20 heights that Matplotlib ships: an experiment of our own.

    Args:
        noise_std: of a height, in standard deviations of all heights.
        reading: of the multiplier of Theorem 4.2 (A), see ``variants.READINGS``.
        steps: rounds after four initial points.
        scale: 100 or 20 replicates.
        seeds: others than those of the scale.
        folder: see ``harness.run``.
    """
    seeds = harness.choose(scale, range(20), range(100)) if seeds is None else seeds
    panel = panels.landscape(noise_std, reading, steps)
    return _run(panel, contenders(panel.problem.space, **panel.options), seeds, folder, "landscape")


EXPERIMENTS: dict[str, harness.Study] = {
    "lengthscale": unknown_lengthscale,
    "period": unknown_period,
    "decomposition": unknown_decomposition,
    "mean": unknown_mean,
    "robust": robust,
    "landscape": landscape,
}


def table(comparison: Comparison[UnknownPriorProblem]) -> pd.DataFrame:
    """Cumulative and best regret in the end, mean and standard error over replicates."""
    notions = {"cumulative": cumulative_regret, "best": simple_regret}
    return pd.concat({name: comparison.final(notion) for name, notion in notions.items()}, axis=1)


def plot_comparison(comparison: Comparison[UnknownPriorProblem], best: str = "best regret so far") -> Figure:
    """Cumulative and best regret of each policy, mean and standard error over replicates."""
    figure, axes = figures.subplots(1, 2, figsize=(10, 3.8))
    for axis, notion in zip(axes.flat, (cumulative_regret, simple_regret), strict=True):
        curves = comparison.regrets(notion)
        for name, values in curves.items():
            figures.plot_replicates(axis, values, name, spread="standard error", **figures.style(name))
    axes[0, 0].set(xlabel="round", ylabel="cumulative regret (units of f)")
    axes[0, 1].set(xlabel="round", ylabel=f"{best} (units of f)")
    axes[0, 0].legend(fontsize="small")
    return figure


def plot_survivors(axes: Axes, comparison: Comparison[UnknownPriorProblem], policy: str = "HE-GP-UCB") -> None:
    """How many replicates still hold each candidate, round by round."""
    history = comparison.histories[policy]
    share = history["alive"][:, initial_rounds(history) :].double().mean(0)
    for u, name in enumerate(comparison.problem.space.candidates.names):
        axes.plot(range(1, len(share) + 1), share[:, u], label=name)
    axes.set(xlabel="round", ylabel="share of replicates that keep it", ylim=(-0.03, 1.03))
    axes.legend(fontsize="small")


def _run(
    panel: Panel, policies: Mapping[str, CandidatePolicy], seeds: Sequence[int], folder: Path | None, name: str
) -> Comparison[UnknownPriorProblem]:
    return harness.run(panel.problem, policies, panel.steps + panel.initial, seeds, folder=folder, name=name)


def _seeds(scale: Scale, paper: int, seeds: Sequence[int] | None) -> Sequence[int]:
    return harness.choose(scale, range(10), range(paper)) if seeds is None else seeds
