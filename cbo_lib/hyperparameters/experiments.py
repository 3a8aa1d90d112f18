"""The experiments of the paper, one function a panel of Figure 2, and how they are drawn.

``scale="paper"`` runs the paper's numbers of replicates (50, 50, 100 and 50), ``scale="reader"`` 10 of them (the first
ten of the same seeds).

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
.. [Berkenkamp2019] F. Berkenkamp, A. P. Schoellig, A. Krause. No-Regret Bayesian Optimization with Unknown
   Hyperparameters. JMLR 20(50), 2019.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from gpytorch.kernels import PeriodicKernel
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cbo_lib import figures
from cbo_lib.functions import Function, prior_samples
from cbo_lib.generators import ReplicateGenerators
from cbo_lib.gp import GaussianProcess, rbf_kernel
from cbo_lib.history import History
from cbo_lib.hyperparameters.policies import (
    AGPUCB,
    GPUCB,
    HEGPUCB,
    CandidatePolicy,
    ExpectedUCB,
    MaximumLikelihood,
)
from cbo_lib.hyperparameters.problem import (
    Candidates,
    Mean,
    UnknownPriorProblem,
    decomposition_candidates,
    lengthscale_candidates,
    periodic_kernel,
)
from cbo_lib.hyperparameters.regret import cumulative_regret, initial_rounds, simple_regret
from cbo_lib.hyperparameters.robust import HEStableOpt, StableOpt
from cbo_lib.hyperparameters.widths import Schedule, frequentist_sqrt_beta
from cbo_lib.measure import Measure
from cbo_lib.simulate import simulate

Scale = Literal["reader", "paper"]
#: Candidates of the first experiment ([Ziomek2024]_, section 7).
LENGTHSCALES = (0.3, 0.4, 0.5, 0.7, 1.0)
#: Candidates of the third, coordinates from zero; the second is the right one ([Ziomek2024]_, Appendix J.3).
DECOMPOSITIONS = (((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (1, 2)), ((1,), (0, 2)))


def replicates(scale: Scale, paper: int) -> int:
    """How many replicates a scale has, given the paper's number.

    Raises:
        ValueError: for another scale.
    """
    if scale not in ("reader", "paper"):
        raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")
    return paper if scale == "paper" else 10


def slope_and_peak(x: Tensor, reading: Literal["peak", "density"] = "peak") -> Tensor:
    """``0.6 x + 0.8 N(x; 0.2, 0.08)`` on [0, 1] ([Berkenkamp2019]_; [Ziomek2024]_, Eq. 13).

    Args:
        x: points ``... x 1``.
        reading: ``N`` is a peak of height one, or the normal density, which is about five there.
    """
    height = 1.0 if reading == "peak" else 1 / (0.08 * math.sqrt(2 * math.pi))
    return 0.6 * x[..., 0] + 0.8 * height * (-0.5 * ((x[..., 0] - 0.2) / 0.08).square()).exp()


def four_sines(x: Tensor, phase: float | None = 0.0) -> Tensor:
    """Four sine waves in a period of one ([Ziomek2024]_, Eq. 14).

    Args:
        x: points ``... x 1``.
        phase: the second wave is ``1.5 sin(28/3 pi (x - phase))``; the paper prints it without ``x``. None takes it
            as printed, a constant.
    """
    u = x[..., 0] % 1
    second = torch.full_like(u, math.sin(28 / 3 * math.pi)) if phase is None else (28 / 3 * math.pi * (u - phase)).sin()
    waves = [
        (8 * math.pi * (u - 1 / 8)).sin(),
        1.5 * second,
        1.2 * (8 * math.pi * (u - 11 / 28)).sin(),
        0.8 * (8 * math.pi * (u - 5 / 7)).sin(),
    ]
    ends = torch.tensor([0.25, 0.5, 5 / 7], dtype=u.dtype, device=u.device)
    return torch.stack(waves, -1).gather(-1, torch.bucketize(u, ends, right=True).unsqueeze(-1)).squeeze(-1)


def hidden_corner(x: Tensor) -> Tensor:
    """Additive but for a peak in one corner; the third coordinate does nothing (after [Ziomek2024]_, Appendix J.3).

    Half a bump in each of the first two coordinates around 0.25, of width 0.25, and a peak of height 1.5 and width
    0.15 around (0.85, 0.85), which no sum of functions of single coordinates has.
    """
    hills = (-0.5 * ((x[..., :2] - 0.25) / 0.25).square()).exp().mean(-1)
    return hills + 1.5 * (-0.5 * ((x[..., :2] - 0.85) / 0.15).square().sum(-1)).exp()


@dataclass(frozen=True)
class Hills:
    """A prior mean on [0, 1]: ten hills, one of which may be higher ([Ziomek2024]_, Figure 6).

    Args:
        tallest: index of the highest hill from zero, or -1 for none.
        height: of the other hills, in units of f.
        extra: by how much the highest exceeds them.
        width: standard deviation of the bell shape of a hill.
    """

    tallest: int
    height: float = 5.0
    extra: float = 2.0
    width: float = 0.03

    def __post_init__(self) -> None:
        """Check the index."""
        if not -1 <= self.tallest < 10:
            raise ValueError(f"tallest must lie between 0 and 9, or be -1 for none, got {self.tallest}")

    def __call__(self, x: Tensor) -> Tensor:
        """Points ``... x 1`` to values ``...``."""
        centers = (torch.arange(10, dtype=x.dtype, device=x.device) + 0.5) / 10
        heights = torch.full_like(centers, self.height)
        if self.tallest >= 0:
            heights[self.tallest] += self.extra
        return ((-0.5 * ((x - centers) / self.width).square()).exp() * heights).sum(-1)


def draws_of_candidates(candidates: Candidates, truth: Tensor, seeds: Sequence[int], grid: int = 129) -> Function:
    """One draw on [0, 1] of the true candidate's prior for each replicate.

    Args:
        candidates: priors on one variable.
        truth: index of the true one, ``replicates``.
        seeds: one a replicate.
        grid: see ``prior_samples``.

    Returns:
        A function of points ``replicates x ... x 1`` with values ``replicates x ...``.
    """
    if truth.shape != (len(seeds),):
        raise ValueError(f"truth must hold one index for each of {len(seeds)} seeds, got shape {tuple(truth.shape)}")
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    rows_of = {u: (truth == u).nonzero().flatten() for u in truth.unique().tolist()}
    by_kernel: dict[int, list[int]] = {}
    for u in rows_of:
        by_kernel.setdefault(id(candidates.kernels[u]), []).append(u)
    samples = []
    for group in by_kernel.values():
        rows = torch.cat([rows_of[u] for u in group]).sort().values
        samples.append((rows, prior_samples(candidates.kernels[group[0]], bounds, [seeds[r] for r in rows], grid)))

    def f(points: Tensor) -> Tensor:
        out = torch.empty_like(points[..., 0])
        for rows, sample in samples:
            out[rows] = sample(points[rows])
        for u, rows in rows_of.items():
            mean = candidates.means[u]
            out[rows] += mean(points[rows]) if callable(mean) else mean
        return out

    return f


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


def fit_period(
    f: Function, x: Tensor, periods: Tensor, lengthscales: Tensor, noise_std: float = 0.1
) -> tuple[float, float, Tensor]:
    """The most likely period and lengthscale of a periodic kernel on a grid.

    The likelihood has many local maxima in the period, so all of it is computed.

    Args:
        f: the function, fitted to its values without noise.
        x: points ``n x 1``.
        periods: ``P`` values.
        lengthscales: ``L`` values.
        noise_std: of the model.

    Returns:
        Period, lengthscale and the log marginal likelihoods ``P x L``.
    """
    kernel = PeriodicKernel(batch_shape=periods.shape).to(periods).requires_grad_(False)
    kernel.period_length = periods[:, None, None]
    columns = []
    for lengthscale in lengthscales:
        kernel.lengthscale = lengthscale.square().expand_as(kernel.period_length)
        posterior = GaussianProcess(kernel, noise_std).condition(Measure.dirac(x), f(x))
        columns.append(posterior.log_marginal_likelihood)
    likelihood = torch.stack(columns, -1)
    best = int(likelihood.argmax())
    row, column = divmod(best, len(lengthscales))
    return float(periods[row]), float(lengthscales[column]), likelihood


def period_candidates(f: Function = four_sines, shared: float | None = None, noise_std: float = 0.1) -> Candidates:
    """Periods fitted to the whole function and to each of its four waves ([Ziomek2024]_, Appendix J.2).

    Args:
        f: of period one on [0, 2].
        shared: one lengthscale for all candidates. Default: each candidate has the one that was fitted with it.
        noise_std: of the fits.

    Returns:
        The candidates, the first fitted to the whole domain.
    """
    ends = (0.0, 0.25, 0.5, 5 / 7, 1.0)
    periods = torch.linspace(0.1, 1.5, 281, dtype=torch.float64)
    lengthscales = torch.logspace(-1, 0.6, 17, dtype=torch.float64)
    pieces = [torch.linspace(0, 2, 101, dtype=torch.float64)[:, None]]
    pieces += [
        torch.linspace(low, high - 1e-6, 40, dtype=torch.float64)[:, None] for low, high in itertools.pairwise(ends)
    ]
    fits = [fit_period(f, x, periods, lengthscales, noise_std)[:2] for x in pieces]
    names = ("all", *(f"wave {i}" for i in range(1, 5)))
    kernels = tuple(periodic_kernel(period, shared or lengthscale) for period, lengthscale in fits)
    labels = tuple(f"{name}: period {period:.3g}" for name, (period, _) in zip(names, fits, strict=True))
    return Candidates(labels, kernels)


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


def hill_candidates(height: float = 5.0, extra: float = 2.0, lengthscale: float = 0.2) -> Candidates:
    """Eleven prior means with one RBF kernel: each hill the tallest, or none ([Ziomek2024]_, Appendix J.4)."""
    tallest = (*range(10), -1)
    means: tuple[Mean, ...] = tuple(Hills(i, height, extra) for i in tallest)
    names = tuple("none" if i < 0 else f"hill {i + 1}" for i in tallest)
    return Candidates(names, (rbf_kernel(lengthscale),) * len(names), means)


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


def random_truth(count: int, seeds: Sequence[int]) -> Tensor:
    """A uniform index below ``count`` for each seed."""
    generators = ReplicateGenerators(seeds, stream=3).generators
    return torch.stack([torch.randint(count, (), generator=g) for g in generators])


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


def elimination_steps(
    problem: UnknownPriorProblem, policy: HEGPUCB, steps: int, seed: int = 0, limits: tuple[float, float] = (-3.5, 3.5)
) -> tuple[list[Figure], list[str], list[str]]:
    """The confidence bands of the candidates left, round by round, for ``figures.slider``.

    Args:
        problem: of one variable, on a finite domain.
        policy: to run for one replicate.
        steps: how many rounds after the initial design.
        seed: of the replicate.
        limits: of the vertical axis; what reaches beyond is cut.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    names = policy.problem.candidates.names
    noise, choices = ReplicateGenerators([seed], 0), ReplicateGenerators([seed], 1)
    history: list[tuple[float, float]] = []
    with torch.no_grad():
        policy.start(choices.at(0))
        for step in range(1, steps + policy.initial + 1):
            choices.at(step)
            query = policy.ask()
            before = policy.alive[0].clone()
            observation = problem.observe(query, noise.at(step))
            chosen = int(policy._candidate[0])
            if chosen >= 0:
                figure, axes = figures.subplots(figsize=(7.2, 4))
                _plot_bands(axes[0, 0], problem, policy, chosen)
                seen = torch.tensor(history).reshape(-1, 2)
                axes[0, 0].plot(seen[:, 0], seen[:, 1], "k.", label="seen before")
                axes[0, 0].plot(query[0, 0], observation[0], "k*", markersize=13, label="seen in this round")
                axes[0, 0].set(xlabel="x", ylabel="f", ylim=limits)
                axes[0, 0].legend(fontsize="x-small", ncols=2, loc="lower right")
                frames.append(figure)
            policy.tell(query, observation)
            history.append((float(query[0, 0]), float(observation[0])))
            if chosen >= 0:
                dropped = (before & ~policy.alive[0]).nonzero().flatten().tolist()
                what = " and ".join(names[u] for u in dropped) or "none"
                what += " are dropped" if len(dropped) > 1 else " is dropped"
                left = [name for name, alive in zip(names, policy.alive[0].tolist(), strict=True) if alive]
                labels.append(f"round {step - policy.initial}: {names[chosen]} chooses; {what}")
                alts.append(
                    f"Round {step - policy.initial}. {names[chosen]} has the highest upper bound, at x = "
                    f"{float(query[0, 0]):.2f}, and {float(observation[0]):.2f} is seen there; {what}. "
                    f"Left: {', '.join(left)}."
                )
    return frames, labels, alts


def _plot_bands(axes: Axes, problem: UnknownPriorProblem, policy: HEGPUCB, chosen: int) -> None:
    """Mean and confidence band of every candidate left, before the observation."""
    assert policy.surrogate is not None
    x = problem._finite()[:, 0]
    mean, std = policy.surrogate.tracked.mean[0], policy.surrogate.std[0]  # type: ignore[attr-defined]
    multiplier = policy._multiplier.expand(len(mean))
    axes.plot(x, problem.values if problem.replicates is None else problem.values[0], "k--", linewidth=1, label="f")
    for u, name in enumerate(policy.problem.candidates.names):
        if policy.alive[0, u]:
            color, heavy = figures.COLORS[u % len(figures.COLORS)], u == chosen
            axes.plot(x, mean[u], color=color, linewidth=2 if heavy else 1, label=f"{name}{', chooses' * heavy}")
            width = multiplier[u] * std[u]
            axes.fill_between(
                x, mean[u] - width, mean[u] + width, color=color, alpha=0.3 if heavy else 0.1, linewidth=0
            )
