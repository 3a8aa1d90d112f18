"""Gaussian processes conditioned on measures.

An observation is ``y = sum_j w_j f(x_j) + noise``. Stacking the observed measures gives the covariance matrix ``K`` of
their prior values, and the textbook formulas hold with measures in the place of points
([Rasmussen2006], Algorithm 2.1; [Zhang2022], Eq. 4).
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from cbo_lib.checks import as_batch, as_count, as_number, as_values, require
from cbo_lib.kernels import member
from cbo_lib.measure import Measure, covariance, variance
from cbo_lib.models import Encoding, PosteriorModel
from cbo_lib.random import standard_normal


def cholesky(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of matrices ``... n x n``, positive definite to rounding.

    Where rounding leaves none, linear_operator adds a jitter of ``1e-8`` of the variance or more, and warns.

    Raises:
        ValueError: if a matrix is not finite, or that is not enough.
    """
    if matrix.shape[-1] == 0:
        return matrix
    size = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None].clamp_min(torch.finfo(matrix.dtype).tiny)
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
        given = as_values("noise_std", noise_std, None, 0, ends="()")
        self.kernel = kernel
        self.noise_std = given if isinstance(noise_std, Tensor) else as_number("noise_std", noise_std)
        self.mean = mean if callable(mean) or isinstance(mean, Tensor) else as_number("mean", mean)

    def prior_mean(self, measure: Measure) -> Tensor:
        """Prior mean of each measure, ``... x n``; a constant counts as often as the weights sum to."""
        return measure.expectation(self.mean) if callable(self.mean) else self.mean * measure.weights.sum(-1)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "GaussianProcess":
        """The same process on another device or in another dtype; the kernel is copied, not shared.

        A mean that is a ``torch.nn.Module`` moves too; any other function stays as it is.
        """

        def moved(part: Any) -> Any:
            return copy.deepcopy(part).to(device, dtype) if isinstance(part, Tensor | torch.nn.Module) else part

        return GaussianProcess(moved(self.kernel), moved(self.noise_std), moved(self.mean))

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

    def map(self, part: Callable[[Tensor, int], Tensor]) -> "_Data":
        """Each tensor through a function that also sees how many of its last dimensions are no batch dimensions."""
        measure = Measure(part(self.measure.points, 3), part(self.measure.weights, 2))
        rest = part(self.noise, 1), part(self.residual, 1), part(self.factor, 2), part(self.whitened, 1)
        return _Data(measure, *rest)


class Posterior:
    """A Gaussian process given observed measures. Immutable: ``extend`` returns a new posterior.

    Every result carries the batch dimensions of the kernel, the observations and the asked measure, broadcast, in
    front. Made by ``GaussianProcess.condition`` or ``GaussianProcess.posterior``.
    """

    def __init__(self, prior: GaussianProcess, data: _Data | None, batch_shape: torch.Size) -> None:
        self.prior, self.data = prior, data
        self._batch_shape = batch_shape

    @cached_property
    def batch_shape(self) -> torch.Size:
        """The batch of independent posteriors."""
        data_shape = torch.Size() if self.data is None else self.data.whitened.shape[:-1]
        return torch.broadcast_shapes(self._batch_shape, self.prior.kernel.batch_shape, data_shape)

    @property
    def count(self) -> int:
        """How many observations each element of the batch holds."""
        return 0 if self.data is None else self.data.whitened.shape[-1]

    def whiten(self, measure: Measure) -> Tensor:
        """``factor^{-1} K(observed, measure)``, ``... x t x n``, once something was observed."""
        assert self.data is not None
        cross = covariance(self.prior.kernel, self.data.measure, measure)
        return torch.linalg.solve_triangular(self.data.factor, cross, upper=False)

    def mean(self, measure: Measure) -> Tensor:
        """Posterior mean of each measure, ``... x n``."""
        return self._mean(measure, self._whiten(measure))

    def variance(self, measure: Measure) -> Tensor:
        """Posterior variance of each measure, ``... x n``, without observation noise."""
        return self._variance(measure, self._whiten(measure))

    def mean_and_variance(self, measure: Measure) -> tuple[Tensor, Tensor]:
        """Both, for the price of one."""
        whitened = self._whiten(measure)
        return self._mean(measure, whitened), self._variance(measure, whitened)

    def _whiten(self, measure: Measure) -> Tensor | None:
        return None if self.data is None else self.whiten(measure)

    def _mean(self, measure: Measure, whitened: Tensor | None) -> Tensor:
        prior = self.prior.prior_mean(measure)
        if self.data is not None and whitened is not None:
            prior = prior + (whitened.mT @ self.data.whitened.unsqueeze(-1)).squeeze(-1)
        return prior.expand(*torch.broadcast_shapes(self.batch_shape, prior.shape[:-1]), measure.n)

    def _variance(self, measure: Measure, whitened: Tensor | None) -> Tensor:
        prior = variance(self.prior.kernel, measure)
        if whitened is not None:
            # Rounding may leave a variance of -1e-17 where it is zero.
            prior = (prior - whitened.square().sum(-2)).clamp_min(0.0)
        return prior.expand(*torch.broadcast_shapes(self.batch_shape, prior.shape[:-1]), measure.n)

    def covariance(self, a: Measure, b: Measure) -> Tensor:
        """Posterior covariance of every pair, ``... x n x m``."""
        prior = covariance(self.prior.kernel, a, b)
        if self.data is not None:
            right = self.whiten(b)
            prior = prior - (right if a is b else self.whiten(a)).mT @ right
        return prior.expand(*torch.broadcast_shapes(self.batch_shape, prior.shape[:-2]), a.n, b.n)

    def extend(self, measure: Measure, y: Any, noise_std: float | Tensor | None = None) -> "Posterior":
        """Condition on more observations.

        The Cholesky factor grows by rows, so that a row costs ``O(t^2)``, not ``O(t^3)`` ([Zhang2022], Appendix B).

        Args and errors are those of ``GaussianProcess.condition``.
        """
        require(isinstance(measure, Measure), "measure must be a Measure", measure)
        y = as_values("y", y, (..., measure.n), like=measure.points)
        noise = self.prior.noise_std if noise_std is None else noise_std
        noise = as_values("noise_std", noise, None, 0, ends="()", like=y)
        wanted = f"noise_std must broadcast to y {tuple(y.shape)}"
        noise = noise.expand(as_batch(wanted, noise.shape, noise.shape, y.shape)).square()
        residual = y - self.prior.prior_mean(measure)
        own, others = self.batch_shape, measure.batch_shape
        wanted = f"y must broadcast to the batch {tuple(own)} of the posterior and {tuple(others)} of the measures"
        shape = as_batch(wanted, y.shape, own, others, residual.shape[:-1], noise.shape[:-1])
        block = covariance(self.prior.kernel, measure, measure) + torch.diag_embed(noise)
        noise, residual, n = noise.expand(*shape, measure.n), residual.expand(*shape, measure.n), measure.n
        if self.data is None:
            return self._with(measure, noise, residual, cholesky(block).expand(*shape, n, n))
        old, t = self.data, self.count
        cross = self.whiten(measure)  # ... t n
        corner, failed = torch.linalg.cholesky_ex(block - cross.mT @ cross)
        measure = Measure.cat([old.measure, measure])
        noise, residual = (
            torch.cat([a.expand(*shape, t), b], -1) for a, b in ((old.noise, noise), (old.residual, residual))
        )
        if bool(failed.any()):  # rounding left no factor of the new block alone
            factor = cholesky(covariance(self.prior.kernel, measure, measure) + torch.diag_embed(noise))
        else:
            factor = block.new_zeros(*shape, t + n, t + n)
            factor[..., :t, :t], factor[..., t:, :t], factor[..., t:, t:] = old.factor, cross.mT, corner
        return self._with(measure, noise, residual, factor)

    def _with(self, measure: Measure, noise: Tensor, residual: Tensor, factor: Tensor) -> "Posterior":
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
        mean = self.mean(measure)
        with warnings.catch_warnings():
            # A posterior covariance is singular to rounding; the jitter this reports is the remedy, not a fault.
            warnings.simplefilter("ignore", NumericalWarning)
            # Its jitter is absolute; a power of two near the prior standard deviation divides without rounding.
            size = variance(self.prior.kernel, measure).amax(-1)[..., None, None]
            half = (size.clamp_min(torch.finfo(size.dtype).tiny).log2() / 2).round().exp2()
            root = psd_safe_cholesky(self.covariance(measure, measure) / half.square()) * half
        shape = (*mean.shape[:-1], as_count("n", n), measure.n)
        if generator is None or isinstance(generator, torch.Generator):
            z = torch.randn(*shape, generator=generator, dtype=mean.dtype).to(mean.device)
        else:
            wanted = f"generator must be one generator or one a replicate ({shape[:-2]})"
            require(len(shape) > 2 and len(generator) == shape[0], wanted, len(generator))
            z = standard_normal(generator, shape[1:], mean)
        return mean.unsqueeze(-2) + z @ root.mT

    def as_botorch(self, measure: Encoding = Measure.dirac) -> PosteriorModel:
        """A BoTorch model, for any acquisition function; variances below ``1e-10`` are raised to it, as by GPyTorch.

        ``measure`` says what a candidate stands for: it maps ``... x q x D`` to ``... x q`` measures. Default: points.
        """
        return PosteriorModel(self, measure)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Posterior":
        """The same posterior on another device or in another dtype; the kernel is copied, not shared."""
        data = None if self.data is None else self.data.map(lambda tensor, own: tensor.to(device, dtype))
        return Posterior(self.prior.to(device, dtype), data, self._batch_shape)

    def select(self, index: int) -> "Posterior":
        """One element of the leading batch dimension, such as a replicate, without it; a ``ValueError`` if none is."""
        batch, prior = self.batch_shape, self.prior
        expected = f"index must choose from the leading dimension of the batch {tuple(batch)}"
        require(batch and 0 <= index < batch[0], expected, index)

        def part(tensor: Tensor, own: int) -> Tensor:
            """What belongs to the element, if the tensor has the dimension in front of its ``own`` last ones."""
            return tensor[min(index, len(tensor) - 1)] if tensor.dim() == len(batch) + own else tensor

        noise_std = part(prior.noise_std, 1) if isinstance(prior.noise_std, Tensor) else prior.noise_std
        mean = part(prior.mean, 1) if isinstance(prior.mean, Tensor) else prior.mean
        if callable(mean):
            mean = _MeanOf(mean, index, len(batch))
        kernel = member(prior.kernel, index) if len(prior.kernel.batch_shape) == len(batch) else prior.kernel
        shape = self._batch_shape[1:] if len(self._batch_shape) == len(batch) else self._batch_shape
        data = None if self.data is None else self.data.map(part)
        return Posterior(GaussianProcess(kernel, noise_std, mean), data, shape)


@dataclass(frozen=True)
class _MeanOf:
    """A mean function of one element of the leading one of ``depth`` batch dimensions."""

    mean: Callable[[Tensor], Tensor]
    index: int
    depth: int

    def __call__(self, points: Tensor) -> Tensor:
        """Values ``... x n x p`` at points ``... x n x p x d`` without that dimension."""
        points = points.reshape(*[1] * max(0, self.depth + 2 - points.dim()), *points.shape)
        values = self.mean(points.unsqueeze(-self.depth - 3))
        return values.select(-self.depth - 2, min(self.index, values.shape[-self.depth - 2] - 1))
