"""Gaussian processes conditioned on measures.

An observation is ``y = sum_j w_j f(x_j) + noise``. Stacking the observed measures gives the covariance matrix ``K`` of
their prior values, and the textbook formulas hold with measures in the place of points
([Rasmussen2006], Algorithm 2.1; [Zhang2022], Eq. 4).
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_values, require
from cbo_lib.kernels import member
from cbo_lib.measure import Measure, covariance, variance
from cbo_lib.models import Encoding, PosteriorModel
from cbo_lib.random import standard_normal


def cholesky(matrix: Tensor, size: Tensor | None = None) -> Tensor:
    """The lower Cholesky factor of matrices ``... n x n``, positive definite to rounding.

    Where rounding leaves none, linear_operator adds a jitter of ``1e-8`` of ``size``, ``...``, or more, and warns.
    Default: the largest variance.

    Raises:
        ValueError: if a matrix is not finite, or that is not enough.
    """
    if matrix.shape[-1] == 0:
        return matrix
    size = matrix.diagonal(dim1=-2, dim2=-1).amax(-1) if size is None else size
    size = size.clamp_min(torch.finfo(matrix.dtype).tiny)[..., None, None]
    try:
        return psd_safe_cholesky(matrix / size) * size.sqrt()
    except (NanError, NotPSDError) as error:
        raise ValueError(f"kernel must give finite, positive definite covariances, got others ({error})") from error


class GaussianProcess:
    """A Gaussian process prior on f, to be conditioned on measures.

    Args:
        kernel: any GPyTorch kernel. A batched kernel gives a batch of priors, whose dimensions stay in front.
        noise_std: standard deviation of the noise, positive: a number, or a tensor that broadcasts to ``... x t``.
        mean: prior mean of f: a number, a tensor that broadcasts to ``... x n``, or a function from points
            ``... x d`` to values ``...``, or to values with the kernel's batch. Default 0.

    Raises:
        ValueError: if ``noise_std`` is not positive.
    """

    def __init__(
        self, kernel: Kernel, noise_std: float | Tensor, mean: float | Tensor | Callable[[Tensor], Tensor] = 0.0
    ) -> None:
        require(isinstance(kernel, Kernel), "kernel must be a GPyTorch kernel", kernel)
        check = as_values if isinstance(noise_std, Tensor) else as_number
        self.kernel = kernel
        self.noise_std = check("noise_std", noise_std, low=0, ends="()")
        self.mean = mean if callable(mean) or isinstance(mean, Tensor) else as_number("mean", mean)

    def prior_mean(self, measure: Measure) -> Tensor:
        """Prior mean of each measure, ``... x n``; a constant counts as often as the weights sum to."""
        return measure.expectation(self.mean) if callable(self.mean) else self.mean * measure.weights.sum(-1)

    def posterior(self, replicates: int | None = None) -> "Posterior":
        """The posterior before any observation; ``replicates``, if given, add a dimension before the kernel's batch."""
        ones = [1] * len(self.kernel.batch_shape)
        shape = [] if replicates is None else [as_count("replicates", replicates, 1), *ones]
        return Posterior(self, None, torch.Size(shape))

    def condition(self, measure: Measure, y: Any, noise_std: float | Tensor | None = None) -> "Posterior":
        """Condition on noisy values of measures.

        Args:
            measure: what was observed, ``... x t`` measures.
            y: the observations, ``... x t``: a tensor, an array or a list.
            noise_std: overrides that of the process, for observations of unequal noise: a number or ``... x t``.

        Raises:
            ValueError: if ``y`` does not fit or is not finite, or the noise is not positive.
        """
        return self.posterior().extend(measure, y, noise_std)


@dataclass(frozen=True)
class _Data:
    """What was observed, and the triangular factor that summarizes it."""

    measure: Measure
    noise: Tensor  # ... t, variances
    residual: Tensor  # ... t, y - prior mean
    factor: Tensor  # ... t t, the lower Cholesky factor of K + noise
    whitened: Tensor  # ... t, factor^{-1} residual


class Posterior:
    """A Gaussian process given observed measures. Immutable: ``extend`` returns a new posterior.

    Every result carries the batch dimensions of the kernel, the observations and the asked measure, broadcast, in
    front. Made by ``GaussianProcess.condition`` or ``GaussianProcess.posterior``.
    """

    def __init__(self, prior: GaussianProcess, data: _Data | None, batch_shape: torch.Size) -> None:
        self.prior, self.data = prior, data
        self._batch_shape = batch_shape

    @property
    def batch_shape(self) -> torch.Size:
        """The batch of independent posteriors."""
        seen = torch.Size() if self.data is None else self.data.whitened.shape[:-1]
        return torch.broadcast_shapes(self._batch_shape, self.prior.kernel.batch_shape, seen)

    @property
    def count(self) -> int:
        """How many observations each element of the batch holds."""
        return 0 if self.data is None else self.data.whitened.shape[-1]

    def whiten(self, measure: Measure) -> Tensor:
        """``factor^{-1} K(observed, measure)``, ``... x t x n``."""
        if self.data is None:
            return measure.weights.new_zeros(*self.batch_shape, 0, measure.n)
        cross = covariance(self.prior.kernel, self.data.measure, measure)
        return torch.linalg.solve_triangular(self.data.factor, cross, upper=False)

    def mean(self, measure: Measure) -> Tensor:
        """Posterior mean of each measure, ``... x n``."""
        return self._mean(measure, self.whiten(measure))

    def variance(self, measure: Measure) -> Tensor:
        """Posterior variance of each measure, ``... x n``, without observation noise."""
        return self._variance(measure, self.whiten(measure))

    def mean_and_variance(self, measure: Measure) -> tuple[Tensor, Tensor]:
        """Both, for the price of one."""
        whitened = self.whiten(measure)
        return self._mean(measure, whitened), self._variance(measure, whitened)

    def _mean(self, measure: Measure, whitened: Tensor) -> Tensor:
        y = whitened.new_zeros(0) if self.data is None else self.data.whitened
        return self.prior.prior_mean(measure) + (whitened.mT @ y.unsqueeze(-1)).squeeze(-1)

    def _variance(self, measure: Measure, whitened: Tensor) -> Tensor:
        # Rounding may leave a variance of -1e-17 where it is zero.
        return (variance(self.prior.kernel, measure) - whitened.square().sum(-2)).clamp_min(0.0)

    def covariance(self, a: Measure, b: Measure) -> Tensor:
        """Posterior covariance of every pair, ``... x n x m``."""
        right = self.whiten(b)
        left = right if a is b else self.whiten(a)
        return covariance(self.prior.kernel, a, b) - left.mT @ right

    def extend(self, measure: Measure, y: Any, noise_std: float | Tensor | None = None) -> "Posterior":
        """Condition on more observations.

        The Cholesky factor grows by rows, so that a row costs ``O(t^2)``, not ``O(t^3)`` ([Zhang2022], Appendix B).

        Args and errors are those of ``GaussianProcess.condition``.
        """
        require(isinstance(measure, Measure), "measure must be a Measure", measure)
        y = as_values("y", y, (..., measure.n), like=measure.points)
        noise = self.prior.noise_std if noise_std is None else noise_std
        noise = as_values("noise_std", noise, None, 0, ends="()", like=y).square()
        residual = y - self.prior.prior_mean(measure)
        own, seen, n = (*self.batch_shape, 1), tuple(measure.weights.shape[:-1]), measure.n
        try:
            shape = torch.broadcast_shapes(own, seen, residual.shape, noise.shape)
        except RuntimeError as error:
            message = f"y and noise_std must broadcast to the posterior {own} and the measures {seen}, got {error}"
            raise ValueError(message) from error
        noise, residual = noise.expand(shape), residual.expand(shape)
        block = covariance(self.prior.kernel, measure, measure) + torch.diag_embed(noise)
        if self.data is None:
            factor = cholesky(block)
        else:
            old, t, cross = self.data, self.count, self.whiten(measure)
            corner, failed = torch.linalg.cholesky_ex(block - cross.mT @ cross)
            measure = Measure.cat([old.measure, measure])
            noise = torch.cat([old.noise.expand(*shape[:-1], t), noise], -1)
            residual = torch.cat([old.residual.expand(*shape[:-1], t), residual], -1)
            factor = block.new_zeros(*shape[:-1], t + n, t + n)
            factor[..., :t, :t], factor[..., t:, :t], factor[..., t:, t:] = old.factor, cross.mT, corner
            if bool(failed.any()):  # rounding left no factor of the new block alone
                factor = cholesky(covariance(self.prior.kernel, measure, measure) + torch.diag_embed(noise))
        whitened = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False).squeeze(-1)
        return Posterior(self.prior, _Data(measure, noise, residual, factor, whitened), self._batch_shape)

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """Log density of the observations under the prior, ``batch_shape``, natural log."""
        if self.data is None:
            return next(self.prior.kernel.parameters(), torch.zeros(())).new_zeros(self.batch_shape)
        log_determinant = self.data.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        quadratic = self.data.whitened.square().sum(-1)
        return -0.5 * quadratic - log_determinant - 0.5 * self.count * math.log(2 * math.pi)

    def sample(
        self, measure: Measure, n: int, generator: torch.Generator | Sequence[torch.Generator] | None = None
    ) -> Tensor:
        """Joint draws of the values of the measures, ``... x n x m``.

        Args:
            measure: ``m`` measures.
            n: how many draws.
            generator: one for all draws, or one a replicate (the first batch dimension). Default: torch's own.
        """
        mean, size = self.mean(measure), variance(self.prior.kernel, measure).amax(-1)
        with warnings.catch_warnings():
            # A posterior covariance is singular to rounding; the jitter this reports is the remedy, not a fault.
            warnings.simplefilter("ignore", NumericalWarning)
            root = cholesky(self.covariance(measure, measure), size)
        shape = (*mean.shape[:-1], as_count("n", n), measure.n)
        if isinstance(generator, Sequence):
            z = standard_normal(generator, shape[1:], mean)
        else:
            z = torch.randn(shape, generator=generator, dtype=mean.dtype).to(mean.device)
        return mean.unsqueeze(-2) + z @ root.mT

    def as_botorch(self, measure: Encoding = Measure.dirac) -> PosteriorModel:
        """A BoTorch model, for any acquisition function; variances below ``1e-10`` are raised to it, as by GPyTorch.

        ``measure`` says what a candidate stands for: it maps ``... x q x D`` to ``... x q`` measures. Default: points.
        """
        return PosteriorModel(self, measure)

    def select(self, index: int) -> "Posterior":
        """One element of the leading batch dimension, such as a replicate, without it; a ``ValueError`` if none is."""
        batch, prior, data = self.batch_shape, self.prior, self.data
        expected = f"index must choose from the leading dimension of the batch {tuple(batch)}"
        require(batch and 0 <= index < batch[0], expected, index)

        def part(value: Any, own: int) -> Any:
            """What belongs to the element, if a tensor has the dimension in front of its ``own`` last ones."""
            if not isinstance(value, Tensor) or value.dim() < len(batch) + own:
                return value
            return value[index if len(value) > 1 else 0]

        kernel = member(prior.kernel, index) if len(prior.kernel.batch_shape) == len(batch) else prior.kernel
        chosen = GaussianProcess(kernel, part(prior.noise_std, 1), part(prior.mean, 1))
        shape = self._batch_shape[1:] if len(self._batch_shape) == len(batch) else self._batch_shape
        if data is None:
            return Posterior(chosen, None, shape)
        measure = Measure(part(data.measure.points, 3), part(data.measure.weights, 2))
        rest = part(data.noise, 1), part(data.residual, 1), part(data.factor, 2), part(data.whitened, 1)
        return Posterior(chosen, _Data(measure, *rest), shape)
