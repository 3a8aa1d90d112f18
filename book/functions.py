"""Test functions and reward curves that the chapters share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matrix
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform


def interval(bounds: Tensor, points: int) -> Tensor:
    """Equally spaced points of an interval ``2 x 1``, its ends included, ``points x 1``.

    Raises:
        ValueError: if ``bounds`` is no interval.
    """
    if bounds.shape != (2, 1):
        raise ValueError(f"bounds must have shape (2, 1): one variable, got {tuple(bounds.shape)}")
    fractions = torch.linspace(0, 1, points, dtype=bounds.dtype, device=bounds.device).unsqueeze(-1)
    return torch.lerp(bounds[0], bounds[1], fractions)


def maximum(f: Function, bounds: Tensor, replicates: int | None = None) -> tuple[Tensor, Tensor]:
    """Where a test function is largest on a box, and its value there.

    Zooms in from the 8 best of 2^12 Sobol points, all starts and replicates at once. A peak so narrow that no Sobol
    point lies on its slope is missed.

    Args:
        f: the function; with ``replicates``, one a replicate: points ``replicates x ... x d`` to ``replicates x ...``.
        bounds: the box ``2 x d``, lower corner first.
        replicates: how many functions ``f`` holds. Default: one, without a dimension for it.

    Returns:
        The point, ``d`` or ``replicates x d``, and the maximum, ``()`` or ``replicates``.
    """
    low, high = bounds
    dim = bounds.shape[-1]
    sobol = torch.quasirandom.SobolEngine(dim, scramble=False).draw(2**12, dtype=bounds.dtype).to(low)
    candidates = low + (high - low) * sobol
    if replicates is not None:
        candidates = candidates.expand(replicates, *candidates.shape)
    best = f(candidates).topk(8, dim=-1).indices.unsqueeze(-1)
    start = candidates.gather(-2, best.expand(*best.shape[:-1], dim))  # (replicates) 8 d
    # A symmetric stencil that holds the center, so that no zoom loses the best point so far.
    stencil = 2 * torch.quasirandom.SobolEngine(dim, scramble=False).draw(16 * dim, dtype=low.dtype) - 1
    stencil = stencil.to(low)
    stencil = torch.cat([torch.zeros_like(stencil[:1]), stencil, -stencil])
    radius = (high - low) * 4 / 2 ** (12 / dim)
    halvings = 2 if dim == 1 else 1  # an eighth of the radius lies between neighbors of the stencil in an interval
    for _ in range(0, 45, halvings):
        around = (start.unsqueeze(-2) + radius * stencil).clamp(low, high)
        best = f(around).argmax(-1, keepdim=True).unsqueeze(-1)
        start = around.gather(-2, best.expand(*best.shape[:-1], dim)).squeeze(-2)
        radius = radius / 2**halvings
    values, best_start = f(start).max(-1, keepdim=True)
    point = start.gather(-2, best_start.unsqueeze(-1).expand(*best_start.shape, dim)).squeeze(-2)
    return point, values.squeeze(-1)


def posterior_mean_function(kernel: Kernel, x: Tensor, y: Tensor, noise_std: float) -> Function:
    """The posterior mean of a Gaussian process as a plain function of points.

    Args:
        kernel: a GPyTorch kernel.
        x: the points to pass near, ``t x d``.
        y: their values, ``t``.
        noise_std: positive; how far the function may stay away from the values.
    """
    alpha = _representer_weights(kernel, x, y, noise_std)

    def f(points: Tensor) -> Tensor:
        flat = points.reshape(-1, points.shape[-1])
        centers = x.to(flat)
        # In slices, so that a fine grid does not need one kernel matrix, and small ones, whose memory is used again.
        parts = [matrix(kernel, part, centers) @ alpha.to(flat) for part in flat.split(2**13)]
        return torch.cat(parts).reshape(points.shape[:-1])

    return f


def _representer_weights(kernel: Kernel, x: Tensor, y: Tensor, noise_std: float) -> Tensor:
    """``(K + noise^2 I)^{-1} y``, from the factor that conditioning computes."""
    data = GaussianProcess(kernel, noise_std).condition(Measure.dirac(x), y).data
    assert data is not None
    return torch.linalg.solve_triangular(data.factor.mT, data.whitened.unsqueeze(-1), upper=True).squeeze(-1)


def prior_samples(kernel: Kernel, bounds: Tensor, seeds: Sequence[int], grid: int = 129) -> Function:
    """One draw of a Gaussian process on an interval for each seed.

    The draw is exact at equally spaced points and the process's own interpolation between them; with at least five
    points a lengthscale the interpolation error of an RBF kernel is far below its standard deviation.

    Args:
        kernel: the covariance, without batch dimensions.
        bounds: the interval, ``2 x 1``.
        seeds: one a replicate.
        grid: how many points, at least 2.

    Returns:
        A function of points ``replicates x ... x 1`` with values ``replicates x ...``.

    Raises:
        ValueError: if the bounds are not an interval or ``grid`` is below 2.
    """
    if bounds.shape != (2, 1):
        raise ValueError(f"bounds must have shape (2, 1), got {tuple(bounds.shape)}")
    if grid < 2:
        raise ValueError(f"grid must be at least 2, got {grid}")
    fractions = torch.linspace(0, 1, grid, dtype=bounds.dtype, device=bounds.device).unsqueeze(-1)
    x = torch.lerp(bounds[0], bounds[1], fractions)
    # The jitter is a thousandth of the standard deviation; it keeps the smooth kernel's matrix invertible.
    dense = matrix(kernel, x)
    factor = torch.linalg.cholesky(dense + 1e-6 * dense.diagonal().mean() * torch.eye(grid).to(dense))
    z = standard_normal(ReplicateGenerators(seeds, stream=2).generators, (grid,), dense)
    alpha = torch.linalg.solve_triangular(factor.mT, z.mT, upper=True)  # grid replicates, K^{-1} (L z)

    def f(points: Tensor) -> Tensor:
        if points.stride(0) == 0:  # the same for all
            parts = [matrix(kernel, part, x) @ alpha for part in points[0].reshape(-1, 1).split(2**13)]
            return torch.cat(parts).mT.reshape(points.shape[:-1])
        flat = points.reshape(len(z), -1, 1)
        # In slices, so that a fine grid does not need one kernel matrix, and small ones, whose memory is used again.
        parts = [
            kernel(part.reshape(-1, 1), x).to_dense().unflatten(0, part.shape[:2]) @ alpha.mT.unsqueeze(-1)
            for part in flat.split(max(1, 2**13 // len(z)), 1)
        ]
        return torch.cat(parts, 1).reshape(points.shape[:-1])

    return f


def rkhs_samples(kernel: Kernel, bounds: Tensor, norm: float, seeds: Sequence[int], centers: int = 20) -> Function:
    """One function of a given norm in the reproducing kernel Hilbert space of a kernel for each seed.

    ``f = sum_j a_j k(c_j, .)`` with uniform centers and normal coefficients, scaled so that ``a' K a = norm^2``.

    Args:
        kernel: without batch dimensions.
        bounds: the box of the centers, ``2 x d``.
        norm: of every function, nonnegative.
        seeds: one a replicate.
        centers: how many, at least 1.

    Returns:
        A function of points ``replicates x ... x d`` with values ``replicates x ...``.

    Raises:
        ValueError: if the bounds are no box, ``norm`` is negative or ``centers`` below 1.
    """
    if bounds.dim() != 2 or len(bounds) != 2 or not bool((bounds[0] < bounds[1]).all()):
        raise ValueError(f"bounds must be a box (2, d), lower corner first, got {bounds.tolist()}")
    if not norm >= 0:
        raise ValueError(f"norm must be nonnegative, got {norm}")
    if centers < 1:
        raise ValueError(f"centers must be at least 1, got {centers}")
    generators, dim = ReplicateGenerators(seeds, stream=2).generators, bounds.shape[-1]
    where = torch.lerp(bounds[0], bounds[1], uniform(generators, (centers, dim), bounds))
    a = standard_normal(generators, (centers,), bounds)
    squared = torch.einsum("ri,rij,rj->r", a, kernel(where).to_dense(), a)
    a = a * (norm / squared.sqrt()).unsqueeze(-1)

    def f(points: Tensor) -> Tensor:
        flat = points.reshape(len(where), -1, dim)
        return (kernel(flat, where).to_dense() @ a.unsqueeze(-1)).reshape(points.shape[:-1])

    return f
