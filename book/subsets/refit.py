"""A prior that is fitted to a run's own data, fast enough for twelve lengthscales and twenty runs.

The model, its priors and its bounds are those of ``cbo_lib.former.fit``, with a squared exponential kernel: a
lengthscale a variable, standardized outcomes, a constant mean and a fitted noise. Each fit begins at the mode of the
priors, as there, and a second time where the last one ended, and takes the better; the library's fit has no start of
each run's own.

Why not the library's fit? Its search holds the mean as one more parameter, evaluates all runs until the last has
ended, takes its gradients from autograd and ends with differences for Newton's method. Twenty runs on Ackley with
twelve variables, from the mode alone, on one core: for 22 values it makes 721 evaluations of the batch in 3.2 s with
one kernel of all variables, and in 9.3 s with a product of one a variable, which is the same function and what the
policies of ``cbo_lib.subsets`` ask for; here it is 36 evaluations a run and 0.7 s. For 77 values it takes 8.7 s with
the one kernel, here 0.5 s. That counts where a fit follows nearly every play; for a few fits the library's would do.

A run may begin with uniform points of all variables, the same for every policy of a seed; the first fit is of these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.linalg import lapack
from scipy.optimize import minimize
from torch import Tensor

from cbo_lib.fit import default_kernel
from cbo_lib.former.fit import FLAT, Fit, in_octaves, unfitted
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess
from cbo_lib.random import ReplicateGenerators, uniform
from cbo_lib.subsets import SubsetPolicy
from cbo_lib.subsets.search import Decisions

_Array = np.ndarray[Any, Any]


@functools.cache
def _priors(dim: int) -> tuple[_Array, _Array, _Array]:
    """Means and deviations of the normal priors of ``theta``, and its lower bounds, as the library has them."""
    kernel, noise = default_kernel("rbf", dim), get_gaussian_likelihood_with_lognormal_prior().noise_covar
    parts = [(kernel.lengthscale_prior, kernel.raw_lengthscale_constraint)] * dim
    parts.append((noise.noise_prior, noise.raw_noise_constraint))
    rows = [(float(prior.loc), float(prior.scale), math.log(ends.lower_bound)) for prior, ends in parts]
    center, spread, low = np.array(rows).T
    return center, spread, low


def loss(theta: _Array, x: _Array, y: _Array) -> tuple[float, _Array, float]:
    """Minus the log posterior density of log lengthscales and the log noise variance, its gradient, and the mean.

    Args:
        theta: ``d + 1``.
        x: points of the unit box, ``n x d``.
        y: standardized outcomes, ``n``.
    """
    dim, n = x.shape[1], len(y)
    weights = np.exp(-2 * theta[:dim])
    scaled = x * np.sqrt(weights)
    squares = np.square(scaled).sum(1)
    kernel = np.exp(np.minimum(scaled @ scaled.T - (squares[:, None] + squares) / 2, 0.0))
    factor, failed = lapack.dpotrf(kernel + math.exp(theta[dim]) * np.eye(n), lower=1)
    if failed:
        return math.inf, np.zeros_like(theta), 0.0
    inverse, _ = lapack.dpotri(factor, lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    rows = inverse.sum(1)
    mean = float(rows @ y / rows.sum())
    white = inverse @ (y - mean)
    value = (y - mean) @ white / 2 + np.log(np.diagonal(factor)).sum()
    slopes = inverse - np.outer(white, white)  # twice the derivative in the entries of the matrix
    inner = slopes * kernel
    moved = inner.sum(1) @ np.square(x) - np.einsum("aj,aj->j", x, inner @ x)  # half of sum inner (x_a - x_b)^2
    gradient = np.append(weights * moved, math.exp(theta[dim]) * np.trace(slopes) / 2)
    center, spread, _ = _priors(dim)
    off = (theta - center) / spread
    return float(value + (theta + off**2 / 2).sum()), gradient + 1 + off / spread, mean


def fit(x: _Array, y: _Array, starts: list[_Array]) -> tuple[_Array, float, bool]:
    """The most probable parameters, from the best of searches that go on until rounding stops them.

    Returns:
        ``theta`` rounded to 1/64 of an octave, the mean rounded to 1/1024, and whether the slopes are flat there.
    """
    box = [(low, 20.0) for low in _priors(x.shape[1])[2]]
    tight = {"ftol": 1e-14, "gtol": 1e-7, "maxiter": 500}
    found = [
        minimize(lambda theta: loss(theta, x, y)[:2], start, jac=True, method="L-BFGS-B", bounds=box, options=tight)
        for start in starts
    ]
    best = min(found, key=lambda each: round(each.fun, 6))
    slope, ends = best.jac, np.array(box)
    slope = np.where(((best.x <= ends[:, 0]) & (slope > 0)) | ((best.x >= ends[:, 1]) & (slope < 0)), 0.0, slope)
    theta = in_octaves(torch.from_numpy(np.exp(best.x))).log().numpy()
    return theta, round(loss(best.x, x, y)[2] * 1024) / 1024, bool(np.abs(slope).max() <= FLAT * len(y))


class Refitting(Surrogate):
    """A surrogate with these fits, at the times of ``Surrogate``, whose arguments it has but for the kernel's.

    Before the first fit, of ``first`` values, it has the hyperparameters of largest prior density, as ``cbo_lib`` has
    them.
    """

    def __init__(self, bounds: Tensor, replicates: int, refit_every: int | None = None, first: int = 2) -> None:
        super().__init__(bounds, replicates, None, "rbf", refit_every=refit_every)
        self.first = first
        self._warm: list[_Array] = []

    def _prior(self) -> GaussianProcess:
        if self.measure is None or self.count < self.first:
            return unfitted(self.y, self.bounds, self.kernel, self.groups)
        low, side = self.bounds[0], self.bounds[1] - self.bounds[0]
        points = ((self.measure.points.squeeze(-2) - low) / side).cpu().numpy().astype(float)
        center, spread, _ = _priors(points.shape[-1])
        mode, old, rows = center - spread**2, self.fit, []
        for k, (x, going) in enumerate(zip(points, self.learned.all(-1).tolist(), strict=True)):
            if old is not None and not going:  # over: nothing is fitted any more
                rows.append((self._warm[k], float(old.mean[k]), float(old.scale[k]), bool(old.converged[k])))
                continue
            y = self.y[k].cpu().numpy().astype(float)
            center, scale = y.mean(), y.std(ddof=1)
            theta, mean, flat = fit(x, (y - center) / scale, [mode, *self._warm[k : k + 1]])
            rows.append((theta, center + scale * mean, scale, flat))
        self._warm = [row[0] for row in rows]
        self.fit = _made(rows, self.bounds)
        return self.fit.process


def _made(rows: Sequence[tuple[_Array, float, float, bool]], bounds: Tensor) -> Fit:
    """What was fitted to each replicate (``theta``, mean, scale, whether it is flat) in the user's units."""
    theta = bounds.new_tensor(np.stack([row[0] for row in rows]))
    mean, scale = (bounds.new_tensor([row[j] for row in rows]) for j in (1, 2))
    batch = theta.shape[:1]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=bounds.shape[-1], batch_shape=batch), batch_shape=batch).to(bounds)
    kernel.base_kernel.lengthscale = (theta[:, :-1].exp() * (bounds[1] - bounds[0])).unsqueeze(-2)
    kernel.outputscale = scale.square()
    noise_std = scale * (theta[:, -1] / 2).exp()
    process = GaussianProcess(kernel.requires_grad_(False), noise_std.unsqueeze(-1), mean.unsqueeze(-1))
    flat = torch.tensor([row[3] for row in rows], device=bounds.device)
    return Fit(process, kernel.base_kernel.lengthscale.detach().squeeze(-2), scale, mean, noise_std, flat)


def refitting(policy: type[SubsetPolicy], initial: int = 0) -> type[SubsetPolicy]:
    """A policy of the setting, without a prior, whose fits are these.

    Args:
        policy: its class.
        initial: how many plays of the set of all variables, at uniform points, come first; they are paid for as any
            play, and a seed has the same whatever the policy. Default none: the first fit is of two values.

    Raises:
        ValueError: on asking, if there is an initial design and no set of all variables.
    """

    class Refitted(policy):  # type: ignore[valid-type, misc]
        def model(self, replicates: int) -> Surrogate:
            return Refitting(self.space.bounds, replicates, self.refit_every, max(2, initial))

        def decide(self) -> tuple[Tensor, Decisions]:
            found: tuple[Tensor, Decisions] = super().decide()
            return found if self.count >= initial else self._first()

        def _first(self) -> tuple[Tensor, Decisions]:
            space, full = self.space, self.space.controlled.all(-1)
            if not bool(full.any()):
                raise ValueError(f"control_sets must hold the set of all variables, got {list(space.control_sets)}")
            low, high = space.bounds
            generators = ReplicateGenerators(self._random.seeds, stream=9).generators
            points = low + (high - low) * uniform(generators, (initial, space.dim), space.like)[:, self.count]
            wanted = full.expand_as(self.plays)
            return wanted.long().argmax(-1), self.search.expect(
                self.rounded(points, space.bounds).unsqueeze(1).expand(-1, space.m, -1), wanted
            )

    Refitted.__name__ = f"Refitted{policy.__name__}"
    return Refitted
