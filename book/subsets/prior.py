"""The Gaussian process prior that all policies of a comparison share."""

from __future__ import annotations

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from cbo_lib.gp import GaussianProcess
from cbo_lib.random import ReplicateGenerators, standard_normal
from cbo_lib.subsets.problem import SubsetProblem


def fit_prior(problem: SubsetProblem, count: int = 300, seed: int = 0) -> GaussianProcess:
    """A prior with hyperparameters of largest marginal likelihood, from a pilot study that costs nothing.

    A squared exponential kernel with a lengthscale a variable ([Hoang2024]_, Appendix C) and a constant mean are fitted
    to noisy values at Sobol points, by BoTorch. No hyperparameter has a prior, so that the lengthscales of variables
    that do not matter may grow without end. The noise is that of the problem, at least 0.001. Hyperparameters stay
    fixed afterwards, as the theory wants it.

    Args:
        problem: what to fit to.
        count: how many values, at least 2. Default 300.
        seed: of the points and their noise.

    Raises:
        ValueError: if ``count`` is below 2, or all values are the same.

    .. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
       Subsets with No-Regret Costs. 2024.
    """
    if count < 2:
        raise ValueError(f"count must be at least 2, got {count}")
    generators = ReplicateGenerators([seed], stream=5).at(0)
    like = problem.cost_means
    x = torch.quasirandom.SobolEngine(problem.dim, scramble=True, seed=seed).draw(count, dtype=like.dtype).to(like)
    value = problem.f(x)
    y = value + problem.noise_std * standard_normal(generators, (count,), like).squeeze(0)
    center, scale = y.mean(), y.std()
    if not scale > 0:
        raise ValueError(f"f must not be constant, got {float(center):g} at all of {count} points")
    kernel = ScaleKernel(RBFKernel(ard_num_dims=problem.dim)).to(like)
    noise = torch.full_like(y, max(problem.noise_std, 1e-3) ** 2).unsqueeze(-1)
    model = SingleTaskGP(
        x, (y - center).unsqueeze(-1) / scale, noise / scale**2, covar_module=kernel, outcome_transform=None
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel.outputscale = kernel.outputscale.detach() * scale**2
    mean = float(center + scale * model.mean_module.constant.detach())
    return GaussianProcess(kernel.requires_grad_(False), max(problem.noise_std, 1e-3), mean)
