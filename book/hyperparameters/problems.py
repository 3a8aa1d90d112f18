"""Functions and candidates of the experiments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, PeriodicKernel, RBFKernel
from torch import Tensor

from book.functions import prior_samples
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters.space import Candidates, Mean
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators

#: Candidates of the first experiment ([Ziomek2024], section 7).
LENGTHSCALES = (0.3, 0.4, 0.5, 0.7, 1.0)
#: Candidates of the third, coordinates from zero; the second is the right one ([Ziomek2024], Appendix J.3).
DECOMPOSITIONS = (((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (1, 2)), ((1,), (0, 2)))


def stationary_kernel(lengthscale: float, nu: float | None = None, dtype: torch.dtype = torch.float64) -> Kernel:
    """An RBF kernel of variance 1, or with ``nu`` the Matern kernel of that smoothness."""
    return rbf_kernel(lengthscale, 1.0, dtype) if nu is None else matern_kernel(lengthscale, 1.0, nu, dtype)


def lengthscale_candidates(
    lengthscales: Sequence[float], dtype: torch.dtype = torch.float64, nu: float | None = None
) -> Candidates:
    """Kernels of variance 1 that differ in their lengthscale: RBF, or with ``nu`` Matern."""
    kernels = tuple(stationary_kernel(lengthscale, nu, dtype) for lengthscale in lengthscales)
    return Candidates(tuple(f"lengthscale {lengthscale:g}" for lengthscale in lengthscales), kernels)


def periodic_kernel(period: float, lengthscale: float, dtype: torch.dtype = torch.float64) -> Kernel:
    """``exp(-2 sin^2(pi r / period) / lengthscale^2)``, the periodic kernel with its usual lengthscale.

    GPyTorch's ``PeriodicKernel`` divides by the lengthscale without its square.
    """
    for name, value in (("period", period), ("lengthscale", lengthscale)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    kernel = PeriodicKernel().to(dtype=dtype)
    kernel.period_length = torch.tensor(period, dtype=dtype)
    kernel.lengthscale = torch.tensor(lengthscale**2, dtype=dtype)
    return kernel.requires_grad_(False)


def additive_kernel(
    groups: Sequence[Sequence[int]], lengthscale: float, dtype: torch.dtype = torch.float64
) -> AdditiveKernel:
    """The sum of RBF kernels on groups of coordinates ([Ziomek2024], section 1); its variance is how many they are.

    Args:
        groups: the coordinates of each group, from zero, such as ``((0, 1), (2,))``.
        lengthscale: of every group, positive.
        dtype: of the hyperparameters.
    """
    if not groups:
        raise ValueError("groups must hold at least one group of coordinates, got none")
    if not lengthscale > 0:
        raise ValueError(f"lengthscale must be positive, got {lengthscale}")
    parts = []
    for group in groups:
        part = RBFKernel(active_dims=tuple(group)).to(dtype=dtype)
        part.lengthscale = torch.tensor(lengthscale, dtype=dtype)
        parts.append(part.requires_grad_(False))
    return AdditiveKernel(*parts)


def decomposition_candidates(
    decompositions: Sequence[Sequence[Sequence[int]]], lengthscale: float, dtype: torch.dtype = torch.float64
) -> Candidates:
    """Additive kernels that differ in which coordinates interact ([Ziomek2024], Appendix J.3)."""
    names = tuple(
        " + ".join("(" + ", ".join(f"x{i + 1}" for i in group) + ")" for group in groups) for groups in decompositions
    )
    return Candidates(names, tuple(additive_kernel(groups, lengthscale, dtype) for groups in decompositions))


def slope_and_peak(x: Tensor, reading: Literal["peak", "density"] = "peak") -> Tensor:
    """``0.6 x + 0.8 N(x; 0.2, 0.08)`` on [0, 1] ([Berkenkamp2019]; [Ziomek2024], Eq. 13).

    Args:
        x: points ``... x 1``.
        reading: ``N`` is a peak of height one, or the normal density, which is about five there.
    """
    height = 1.0 if reading == "peak" else 1 / (0.08 * math.sqrt(2 * math.pi))
    return 0.6 * x[..., 0] + 0.8 * height * (-0.5 * ((x[..., 0] - 0.2) / 0.08).square()).exp()


def four_sines(x: Tensor, phase: float | None = 0.0) -> Tensor:
    """Four sine waves in a period of one ([Ziomek2024], Eq. 14).

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


def hidden_corner(x: Tensor, hills: float = 1.0, peak: float = 1.5, width: float = 0.15) -> Tensor:
    """Additive but for a peak in one corner; the third coordinate does nothing (after [Ziomek2024], Appendix J.3).

    Half a bump in each of the first two coordinates around 0.25, of width 0.25, and a peak around (0.85, 0.85), which
    no sum of functions of single coordinates has.

    Args:
        x: points ``... x 3``.
        hills: height of both bumps together.
        peak: height of the peak.
        width: standard deviation of the bell shape of the peak.
    """
    bumps = (-0.5 * ((x[..., :2] - 0.25) / 0.25).square()).exp().mean(-1)
    return hills * bumps + peak * (-0.5 * ((x[..., :2] - 0.85) / width).square().sum(-1)).exp()


@dataclass(frozen=True)
class Hills:
    """A prior mean on [0, 1]: ten hills, one of which may be higher ([Ziomek2024], Figure 6).

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
    """Periods fitted to the whole function and to each of its four waves ([Ziomek2024], Appendix J.2).

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


def hill_candidates(
    height: float = 5.0, extra: float = 2.0, lengthscale: float = 0.2, nu: float | None = None
) -> Candidates:
    """Eleven prior means with one RBF kernel: each hill the tallest, or none ([Ziomek2024], Appendix J.4).

    With ``nu`` the kernel is Matern of that smoothness instead.
    """
    tallest = (*range(10), -1)
    means: tuple[Mean, ...] = tuple(Hills(i, height, extra) for i in tallest)
    names = tuple("none" if i < 0 else f"hill {i + 1}" for i in tallest)
    return Candidates(names, (stationary_kernel(lengthscale, nu),) * len(names), means)


def random_truth(count: int, seeds: Sequence[int]) -> Tensor:
    """A uniform index below ``count`` for each seed."""
    generators = ReplicateGenerators(seeds, stream=3).generators
    return torch.stack([torch.randint(count, (), generator=g) for g in generators])
