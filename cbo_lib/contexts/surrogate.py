"""The Gaussian process of a policy: hyperparameters fitted for all replicates as one batch, and what was seen.

.. [Balandat2020] M. Balandat, B. Karrer, D. R. Jiang, S. Daulton, B. Letham, A. G. Wilson, E. Bakshy. BoTorch: A
   Framework for Efficient Monte-Carlo Bayesian Optimization. NeurIPS 2020.
.. [Hvarfner2024] C. Hvarfner, E. O. Hellsten, L. Nardi. Vanilla Bayesian Optimization Performs Great in High
   Dimensions. ICML 2024.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from botorch import settings
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim.core import OptimizationResult
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood
from torch import Tensor

from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """Of one RBF kernel with a lengthscale a coordinate, a constant mean and the noise, for every replicate.

    Args:
        lengthscale: ``replicates x d``, in the units of the inputs.
        scale: ``replicates``, prior standard deviation of f.
        mean: ``replicates``, prior mean of f.
        noise_std: ``replicates``.
    """

    lengthscale: Tensor
    scale: Tensor
    mean: Tensor
    noise_std: Tensor

    def process(self) -> GaussianProcess:
        """The priors, of batch shape ``(replicates,)``."""
        batch, dim = self.lengthscale.shape[:-1], self.lengthscale.shape[-1]
        kernel = ScaleKernel(RBFKernel(ard_num_dims=dim, batch_shape=batch), batch_shape=batch).to(self.lengthscale)
        kernel.base_kernel.lengthscale = self.lengthscale.unsqueeze(-2)
        kernel.outputscale = self.scale.square()
        # The setters go through softplus; what they store differs from what was asked by rounding.
        return GaussianProcess(kernel.requires_grad_(False), self.noise_std.unsqueeze(-1), self.mean.unsqueeze(-1))


def fit_hyperparameters(x: Tensor, y: Tensor, bounds: Tensor) -> Hyperparameters:
    """Maximum a posteriori hyperparameters of BoTorch's default model, for all replicates as one batch.

    The model is ``SingleTaskGP`` ([Balandat2020]_): an RBF kernel with a lengthscale a coordinate, whose log-normal
    prior grows with the dimension ([Hvarfner2024]_), a constant mean, a log-normal prior on the noise, and outputs
    standardized in each replicate. Inputs are scaled to the unit cube. BoTorch runs one L-BFGS-B a replicate and
    evaluates them together, so a replicate's fit does not depend on its company. Every fit starts from the modes of the
    priors; nothing is random.

    Args:
        x: inputs ``replicates x n x d``, ``n >= 2``.
        y: outputs ``replicates x n``.
        bounds: the box of the inputs, ``2 x d``.

    Raises:
        ValueError: if the shapes do not fit, there are fewer than two points, or a value is not finite.
    """
    if x.dim() != 3 or y.shape != x.shape[:2] or bounds.shape != (2, x.shape[-1]):
        raise ValueError(
            f"x, y and bounds must have shapes (replicates, n, d), (replicates, n) and (2, d), "
            f"got {tuple(x.shape)}, {tuple(y.shape)} and {tuple(bounds.shape)}"
        )
    if x.shape[1] < 2:
        raise ValueError(f"x must hold at least two points a replicate, got {x.shape[1]}")
    for name, tensor in (("x", x), ("y", y)):
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    side = bounds[1] - bounds[0]
    with torch.enable_grad(), settings.validate_input_scaling(False):
        standardize = Standardize(m=1, batch_shape=x.shape[:1])
        model = SingleTaskGP((x - bounds[0]) / side, y.unsqueeze(-1), outcome_transform=standardize)
        with gpytorch.settings.max_cholesky_size(2**20):  # beyond 800 points GPyTorch would turn to random probes
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(model.likelihood, model), optimizer=_fit_quietly, max_attempts=1
            )
    shift, factor = (t.detach().reshape(-1) for t in (standardize.means, standardize.stdvs))
    return Hyperparameters(
        lengthscale=model.covar_module.lengthscale.detach().reshape(x.shape[0], -1) * side,
        scale=factor.clone(),
        mean=shift + factor * model.mean_module.constant.detach().reshape(-1),
        noise_std=factor * model.likelihood.noise.detach().reshape(-1).sqrt(),
    )


def _fit_quietly(mll: MarginalLogLikelihood, **options: Any) -> OptimizationResult:
    """One attempt. BoTorch would answer a failed line search by random restarts of all replicates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizationWarning)
        return fit_gpytorch_mll_scipy(mll, **options)


class Surrogate:
    """What a policy has seen, and the posterior given it, for every replicate.

    Hyperparameters are fitted anew at a schedule. Between two fits the posterior grows by a rank-one step an
    observation.

    Args:
        bounds: the box of the inputs, ``2 x d``.
        replicates: how many.
        prior: known hyperparameters of batch shape ``()`` or ``(replicates,)``; nothing is fitted then.
        refit_every: how many observations pass between two fits, at least 1. Default: a tenth of those seen at the
            last fit, rounded down, and at least 1.

    Attributes:
        x: inputs ``replicates x n x d``.
        y: outputs ``replicates x n``.
        hyperparameters: of the last fit; None before it, and with a known prior.
    """

    def __init__(
        self, bounds: Tensor, replicates: int, prior: GaussianProcess | None = None, refit_every: int | None = None
    ) -> None:
        if refit_every is not None and refit_every < 1:
            raise ValueError(f"refit_every must be at least 1, got {refit_every}")
        self.bounds, self.prior, self.refit_every = bounds, prior, refit_every
        self.x = bounds.new_zeros(replicates, 0, bounds.shape[-1])
        self.y = bounds.new_zeros(replicates, 0)
        self.hyperparameters: Hyperparameters | None = None
        self._posterior: Posterior | None = None
        self._fitted_at = 0

    @property
    def count(self) -> int:
        """How many observations each replicate holds."""
        return self.y.shape[-1]

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Take in one observation a replicate: inputs ``replicates x d``, outputs ``replicates``."""
        x, y = x.unsqueeze(-2), y.unsqueeze(-1)
        self.x, self.y = torch.cat([self.x, x], -2), torch.cat([self.y, y], -1)
        if self._posterior is not None:
            self._posterior = self._posterior.extend(Measure.dirac(x), y)

    def posterior(self) -> Posterior:
        """The posterior given everything, of batch shape ``(replicates,)``; fitted anew if that is due.

        Raises:
            ValueError: if hyperparameters must be fitted to fewer than two observations.
        """
        if self.prior is not None:
            if self._posterior is None:
                self._posterior = self._given(self.prior)
        elif self._posterior is None or self._due():
            self.hyperparameters = fit_hyperparameters(self.x, self.y, self.bounds)
            self._fitted_at = self.count
            self._posterior = self._given(self.hyperparameters.process())
        return self._posterior

    def _due(self) -> bool:
        every = max(1, self._fitted_at // 10) if self.refit_every is None else self.refit_every
        return self.count >= self._fitted_at + every

    def _given(self, prior: GaussianProcess) -> Posterior:
        posterior = prior.posterior(None if prior.kernel.batch_shape else len(self.x))
        return posterior.extend(Measure.dirac(self.x), self.y) if self.count else posterior
