"""The information that an indirect observation carries about the maximum."""

import math
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.probability.utils import log_phi, phi
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.checks import as_batch, as_values, require, require_shape
from cbo_lib.models import AveragedModel, Encoding

# Gauss-Legendre nodes on each side: relative error below 0.003 for gamma in [-6, 6], below 1e-4 up to r = 0.9 (tested).
_NODES = 32


def conditional_max_value_entropy(
    mean: Tensor, std: Tensor, max_samples: Tensor, noise_std: float | Tensor | None = None
) -> Tensor:
    """Mutual information between an observation of g and the maximum ``f*`` of f, nearly, ``... x n`` in nats.

    Knowing ``f*`` is approximated by knowing ``g(a) <= f*``. Without noise the density is a truncated normal and the
    result is ``gamma psi(gamma) / (2 Psi(gamma)) - log Psi(gamma)`` with ``gamma = (f* - mean) / std``, averaged over
    samples of ``f*`` ([Zhang2025], Eq. 14; [Wang2017], Eq. 6). With noise the entropy of ``z = g(a) + noise`` given
    ``g(a) <= f*`` is integrated numerically ([Zhang2025], Appendix A).

    Args:
        mean: posterior means of g, ``... x n``.
        std: its posterior standard deviations, the same shape, nonnegative; where zero the result is zero.
        max_samples: samples of ``f*``, ``... x S``.
        noise_std: of the observations, positive, broadcasts to ``mean``. None (the default) is Eq. 14.

    Raises:
        ValueError: if a shape does not fit, there is no sample, ``std`` is negative or the noise not positive.
    """
    require(mean.shape == std.shape, f"std must have the shape {tuple(mean.shape)} of mean", std.shape)
    require_shape("max_samples", max_samples, ..., "S >= 1")
    as_values("std", std, None, 0)
    batch = mean.shape[:-1]
    wanted = f"max_samples must broadcast to the batch {tuple(batch)}"
    as_batch(wanted, max_samples.shape, max_samples.shape[:-1], batch)
    safe = torch.where(std > 0, std, 1.0).unsqueeze(-2)
    gamma = (max_samples.unsqueeze(-1) - mean.unsqueeze(-2)) / safe  # ... S n
    if noise_std is None:
        gain = _truncation_gain(gamma)
    else:
        noise = torch.as_tensor(noise_std, dtype=mean.dtype, device=mean.device)
        as_values("noise_std", noise, None, 0, ends="()")
        gain = _noisy_gain(gamma, (std / (std.square() + noise.square()).sqrt()).unsqueeze(-2))
    return torch.where(std > 0, gain.mean(-2), 0.0)


def _truncation_gain(gamma: Tensor) -> Tensor:
    """How much lower the entropy of a normal is when it is cut off at ``gamma``."""
    # Few entries need the logarithm of the distribution function, which is slow: where the cut takes more than half.
    tail = 0.5 * torch.erfc(gamma.clamp_min(0.0) * math.sqrt(0.5))
    gain = 0.5 * gamma * phi(gamma) / (1 - tail) - torch.log1p(-tail)
    low = gamma[below := gamma < 0]
    log_cdf = torch.special.log_ndtr(low)
    exact = 0.5 * low * (log_phi(low) - log_cdf).exp() - log_cdf
    # Far below, the two parts are huge and cancel; their difference grows like a logarithm.
    far = (-low.clamp_max(-1.0)).log() + 0.5 * math.log(2 * math.pi) - 0.5
    gain[below] = torch.where(low < -1e3, far, exact)
    return gain


def _noisy_gain(gamma: Tensor, correlation: Tensor) -> Tensor:
    """The same for the sum with noise; ``correlation`` is that of g and z.

    With ``u`` the standardized z, ``p(u | g <= f*) = phi(u) Phi((gamma - r u) / sqrt(1 - r^2)) / Phi(gamma)``. The
    gain is ``H[u] - H[u | g <= f*] = E[w log w] + (1 - E[w u^2]) / 2`` with ``w`` the ratio to ``phi(u)`` and the
    expectation over ``phi``; ``E[w u^2] = 1 - r^2 gamma phi(gamma) / Phi(gamma)``.
    """
    nodes, weights = (torch.as_tensor(part).to(gamma) for part in np.polynomial.legendre.leggauss(_NODES))
    nodes, weights = (nodes + 1) / 2, weights / 2
    correlation = correlation.expand(gamma.shape).clamp_min(1e-9)
    rest = (1 - correlation.square()).clamp_min(1e-24).sqrt()
    log_cdf = torch.special.log_ndtr(gamma)
    mills = (log_phi(gamma) - log_cdf).exp()
    # Nearly all mass of u lies within 7 of its deviations around its mean. Nodes cluster on both sides of
    # gamma / r, where the ratio falls to zero, the faster the less noise there is.
    deviation = (1 - correlation.square() * mills * (gamma + mills)).clamp_min(1e-12).sqrt()
    low, high = -correlation * mills - 7 * deviation, -correlation * mills + 7 * deviation
    center = (gamma / correlation).clamp(low, high)
    total = torch.zeros_like(gamma)
    for reach in (low - center, high - center):
        for node, weight in zip(nodes, weights, strict=True):
            u = center + reach * node**2
            log_ratio = torch.special.log_ndtr((gamma - correlation * u) / rest) - log_cdf
            total = total + 2 * node * weight * reach.abs() * (log_ratio + log_phi(u)).exp() * log_ratio
    gain = total + 0.5 * correlation.square() * gamma * mills
    # Far below, g given the cut varies by std / gamma only: z is normal with that variance and the noise, or nearly so:
    # with little noise, and gamma below -6, up to 0.42 nats (a tenth) are missing.
    far = -0.5 * (1 - correlation.square() + correlation.square() / gamma.square().clamp_min(1.0)).log()
    return torch.where(gamma < -50, far, gain)


def positive(std: Tensor) -> Tensor:
    """Standard deviations ``... x n``, none below a billionth of the largest."""
    return torch.maximum(std, 1e-9 * std.amax(-1, keepdim=True)).clamp_min(torch.finfo(std.dtype).tiny)


def gumbel_max_samples(mean: Tensor, std: Tensor, uniform: Tensor) -> Tensor:
    """Samples ``... x S`` of the maximum of f over a finite set by a Gumbel distribution ([Wang2017], section 3.1).

    A Gumbel distribution is fitted to the quartiles of the distribution function ``prod_x Phi((y - mean) / std)``.

    Args:
        mean: posterior means of f, ``... x n``.
        std: its posterior standard deviations, the same shape, positive.
        uniform: independent uniform numbers in (0, 1), ``... x S``.

    Raises:
        ValueError: if the shapes differ or a standard deviation is not positive.
    """
    require(mean.shape == std.shape, f"std must have the shape {tuple(mean.shape)} of mean", std.shape)
    as_values("std", std, None, 0, ends="()")
    first, median, third = _quartiles_of_maximum(mean, std).unbind(-1)
    scale = (third - first) / (math.log(math.log(4)) - math.log(math.log(4 / 3)))
    location = median + scale * math.log(math.log(2))
    return location.unsqueeze(-1) - scale.unsqueeze(-1) * (-uniform.log()).log()


def _quartiles_of_maximum(mean: Tensor, std: Tensor) -> Tensor:
    """Where ``prod_x Phi((y - mean) / std)`` is 1/4, 1/2 and 3/4, ``... x 3``."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=mean.dtype, device=mean.device)
    # No factor exceeds one, and far above all of them their product is one.
    y = low = (mean.unsqueeze(-2) + torch.special.ndtri(levels).unsqueeze(-1) * std.unsqueeze(-2)).amax(-1)
    high = (mean + 9 * std).amax(-1, keepdim=True).expand_as(low)
    mean, reciprocal = mean.unsqueeze(-2), 1 / std.unsqueeze(-2)
    # Newton's steps square the error, so after one as small as this only rounding is left.
    small = math.sqrt(torch.finfo(mean.dtype).eps) * std.amax(-1, keepdim=True)
    for _ in range(60):
        z = (y.unsqueeze(-1) - mean) * reciprocal
        cdf = torch.special.ndtr(z)
        log_cdf = cdf.log().sum(-1)
        slope = (phi(z) / cdf * reciprocal).sum(-1)
        low, high = torch.where(log_cdf < levels.log(), y, low), torch.where(log_cdf < levels.log(), high, y)
        # Newton's step for -log(-log F), a straight line if the maximum has a Gumbel distribution.
        step = ((-log_cdf).log() - (-levels.log()).log()) * -log_cdf / slope
        inside = (y + step >= low) & (y + step <= high)
        y = torch.where(inside, y + step, (low + high) / 2)
        if bool((inside & (step.abs() <= small)).all()):
            break
    return y


class ConditionalMaxValueEntropy(AcquisitionFunction):
    """CMES at any actions of a box ([Zhang2025], Eq. 14).

    Args:
        model: a BoTorch model of one output without batch: of f, if ``measure`` says over what an action averages; of g
            at actions otherwise, such as ``Posterior.as_botorch(measure)``.
        max_samples: samples of ``f*``, ``S``.
        measure: maps actions ``... x q x d`` to ``... x q`` measures, such as ``ClippedGaussian.measure``.
        noise_std: None is Eq. 14, a number the form of Appendix A.

    Raises:
        ValueError: if there is no sample.
    """

    def __init__(
        self, model: Model, max_samples: Tensor, measure: Encoding | None = None, noise_std: float | None = None
    ) -> None:
        super().__init__(model if measure is None else AveragedModel(model, measure))
        require_shape("max_samples", max_samples, "S >= 1")
        self.max_samples, self.noise_std = max_samples, noise_std

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The information of ``b x 1 x q`` actions, ``b``."""
        posterior: Any = self.model.posterior(X)  # Gaussian, so it has moments
        mean, std = posterior.mean.reshape(-1), posterior.variance.clamp_min(1e-30).sqrt().reshape(-1)
        return conditional_max_value_entropy(mean, std, self.max_samples, self.noise_std).reshape(X.shape[:-2])
