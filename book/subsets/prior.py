"""The Gaussian process prior that all policies of a comparison share."""

from __future__ import annotations

import copy
import math

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.optimize import minimize

from book.subsets.problem import SubsetProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.random import ReplicateGenerators, standard_normal

#: Of lengthscales, in sides of the box. At the longest a variable does not matter: slopes of bounds in it are so small
#: that a search leaves it alone, where slopes of 1e-5 would send it anywhere.
SHORTEST, LONGEST = 0.01, 3000.0


def fit_prior(problem: SubsetProblem, count: int = 300, seed: int = 0, shared: bool = False) -> GaussianProcess:
    """A prior with hyperparameters of largest marginal likelihood, from a pilot study that costs nothing.

    A squared exponential kernel with a lengthscale a variable ([Hoang2024], Appendix C) and a constant mean are fitted
    to noisy values at Sobol points. No hyperparameter has a prior. The noise is that of the problem, at least 0.001.
    Hyperparameters stay fixed afterwards, as the theory wants it. The fit goes on until rounding stops it, and what it
    finds is rounded to 1/64 of an octave (the mean to 1/1024 of a deviation), so that every processor finds the same.

    Args:
        problem: what to fit to, on the unit box.
        count: how many values, at least 2. Default 300.
        seed: of the points and their noise.
        shared: whether all variables have one lengthscale, so that the pilot cannot tell which of them matter.

    Raises:
        ValueError: if ``count`` is below 2, or all values are the same.
    """
    if count < 2:
        raise ValueError(f"count must be at least 2, got {count}")
    generators = ReplicateGenerators([seed], stream=5).at(0)
    like, dim = problem.cost_means, problem.space.dim
    x = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=like.dtype).to(like)
    value = problem.f(x)
    y = value + problem.noise_std * standard_normal(generators, (count,), like).squeeze(0)
    center, scale = y.mean(), y.std()
    if not scale > 0:
        raise ValueError(f"f must not be constant, got {float(center):g} at all of {count} points")
    noise_std = max(problem.noise_std, 1e-3)
    target, noise = ((y - center) / scale).double(), (noise_std / scale).double().square() * torch.eye(count).to(scale)
    squares = (x.double().unsqueeze(1) - x.double()).square().movedim(-1, 0)
    squares = squares.sum(0, keepdim=True) if shared else squares.contiguous()
    scales = len(squares)

    def loss(parameters: object) -> tuple[float, object]:
        """Minus the log marginal likelihood of log lengthscales, log variance and mean, and its gradient."""
        theta = torch.as_tensor(parameters, dtype=torch.float64, device=x.device)
        weights, residual = (-2 * theta[:scales]).exp(), target - theta[scales + 1]
        covariance = (theta[scales] - torch.tensordot(weights, squares, 1) / 2).exp()
        factor = torch.linalg.cholesky(covariance + noise)
        alpha = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
        value = residual @ alpha / 2 + factor.diagonal().log().sum()
        by = (torch.cholesky_inverse(factor) - alpha * alpha.unsqueeze(-1)) * covariance / 2  # the log of an entry
        slopes = weights * torch.tensordot(squares, by, 2)
        return float(value), torch.cat([slopes, torch.stack([by.sum(), -alpha.sum()])]).cpu().numpy()

    limits = [(math.log(SHORTEST), math.log(LONGEST))] * scales + [(math.log(1e-4), math.log(1e6)), (-100.0, 100.0)]
    tight = {"ftol": 1e-16, "gtol": 1e-9, "maxiter": 1000, "maxfun": 5000}
    found = torch.from_numpy(minimize(loss, [0.0] * (scales + 2), jac=True, bounds=limits, options=tight).x).to(like)
    octaves = (found[:-1] / math.log(2) * 64).round() / 64
    kernel = ScaleKernel(RBFKernel(ard_num_dims=dim)).to(like)
    kernel.base_kernel.lengthscale = octaves[:scales].exp2().expand(dim)
    kernel.outputscale = octaves[scales].exp2() * scale**2
    mean = float(center + scale * (found[-1] * 1024).round() / 1024)
    return GaussianProcess(kernel.requires_grad_(False), noise_std, mean)


def scaled(prior: GaussianProcess, factor: float) -> GaussianProcess:
    """The same prior with its variance multiplied."""
    old, kernel = prior.kernel, copy.deepcopy(prior.kernel)
    kernel.outputscale = old.outputscale * factor
    return GaussianProcess(kernel.requires_grad_(False), prior.noise_std, prior.mean)


def distance_of_best(problem: SubsetProblem, prior: GaussianProcess) -> float:
    """How many prior deviations the best value of f itself lies above the prior mean."""
    best = problem.f(problem.best_points[problem.best_subset]) if bool(problem.space.controlled.all(-1).any()) else None
    top = float(problem.optimum) if best is None else max(float(best), float(problem.optimum))
    center = prior.mean
    if not isinstance(center, float):
        raise ValueError(f"prior must have a constant mean, got {center}")
    return (top - center) / float(prior.kernel.outputscale.sqrt())


def calibrated(problem: SubsetProblem, prior: GaussianProcess, sqrt_beta: float = 2.0) -> GaussianProcess:
    """The prior with just the variance at which the bounds hold at the best decision before the first datum.

    It knows ``f*``, so no learner has it. It is an edge and no safe place: the bound begins at ``f*`` and falls, so
    it is below the truth as soon as anything is known. A prior that is wide enough is given back.
    """
    return scaled(prior, max(1.0, (distance_of_best(problem, prior) / sqrt_beta) ** 2))


def published(problem: SubsetProblem, prior: GaussianProcess) -> GaussianProcess:
    """What the public code of the baselines sets and never fits ([Tay2023]): lengthscale 0.2, variance 1.

    Its outcomes have mean zero; ours have the mean of a pilot's values, which the prior mean takes.
    """
    dim, like = problem.space.dim, problem.cost_means
    x = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(1024, dtype=like.dtype).to(like)
    kernel = ScaleKernel(RBFKernel(ard_num_dims=dim)).to(like)
    kernel.base_kernel.lengthscale = torch.full((dim,), 0.2).to(like)
    kernel.outputscale = like.new_tensor(1.0)
    return GaussianProcess(kernel.requires_grad_(False), prior.noise_std, float(problem.f(x).mean()))
