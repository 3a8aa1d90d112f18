"""The information that an indirect observation carries about the maximum, in logarithms."""

import functools
import math
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.probability.utils import log_phi
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.checks import as_values, require, require_shape
from cbo_lib.models import AveragedModel, Encoding

# Knots of the table of Appendix A: gamma, and the logarithm of std over noise; nodes of the quadrature behind it.
_GAMMA, _RATIO, _NODES = (-12.0, 14.0, 261), (-8.0, 9.0, 69), 32


def log_information(mean: Tensor, std: Tensor, max_samples: Tensor, noise_std: Tensor | None = None) -> Tensor:
    """The logarithm of the information, in nats, between an observation of g and the maximum f*, nearly, ``... x n``.

    Knowing ``f*`` is approximated by knowing ``g(a) <= f*``, and the result averaged over samples of ``f*``. Without
    noise it is Eq. 14 of [Zhang2025] ([Wang2017], Eq. 6); with noise it is that of Appendix A.

    Args:
        mean: posterior means of g, ``... x n``.
        std: its posterior standard deviations, the same shape, positive.
        max_samples: samples of ``f*``, ``... x S``.
        noise_std: of the observations, positive, broadcasts to ``mean``. None (the default) is Eq. 14.

    Raises:
        ValueError: if a shape does not fit, there is no sample, or a deviation is not positive.
    """
    require(mean.shape == std.shape, f"std must have the shape {tuple(mean.shape)} of mean", std.shape)
    require_shape("max_samples", max_samples, ..., "S >= 1")
    as_values("std", std, None, 0, ends="()")
    gamma = (max_samples.unsqueeze(-1) - mean.unsqueeze(-2)) / std.unsqueeze(-2)  # ... S n
    if noise_std is None:
        each = truncation_log_gain(gamma)
    else:
        ratio = std / as_values("noise_std", noise_std, None, 0, ends="()")
        each = noisy_log_gain(gamma, ratio.log().unsqueeze(-2))
    return each.logsumexp(-2) - math.log(max_samples.shape[-1])


def truncation_log_gain(gamma: Tensor) -> Tensor:
    """``log(gamma psi / (2 Psi) - log Psi)``: by how much the entropy of a normal falls when it is cut at ``gamma``."""
    middle = gamma.clamp(-1e3, 5.0)
    log_cdf = torch.special.log_ndtr(middle)
    gain = (0.5 * middle * (log_phi(middle) - log_cdf).exp() - log_cdf).log()
    right = gamma.clamp_min(5.0)  # where Psi is nearly one, its logarithm is minus the tail
    tail = torch.logaddexp((right / 2).log() + log_phi(right), torch.special.log_ndtr(-right))
    left = ((-gamma.clamp_max(-1.0)).log() + 0.5 * math.log(2 * math.pi) - 0.5).log()  # two large parts nearly cancel
    return torch.where(gamma > 5, tail, torch.where(gamma < -1e3, left, gain))


def noisy_log_gain(gamma: Tensor, log_ratio: Tensor) -> Tensor:
    """The logarithm of the gain of Appendix A for one sample of ``f*``, read off a table of ``noisy_gain``.

    It depends on ``gamma`` and on ``std / noise`` alone; the table is off by a relative 0.002 at most between knots.
    Beyond it, the logarithm falls by ``gamma^2 / 2`` to the right and by twice the logarithm of a smaller ratio.

    Args:
        gamma: ``(f* - mean) / std``, any shape.
        log_ratio: ``log(std / noise)``, broadcasts to it.
    """
    table = _table().to(gamma)

    def knots(x: Tensor, low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
        place = ((x - low) / (high - low) * (count - 1)).clamp(0, count - 1)
        first = place.long().clamp_max(count - 2)
        return first, place - first

    column, right = knots(gamma, *_GAMMA)
    row, up = knots(log_ratio, *_RATIO)
    at = row * _GAMMA[2] + column
    lower, upper = (torch.lerp(table[i], table[i + 1], right) for i in (at, at + _GAMMA[2]))
    beyond = 0.5 * (gamma.clamp_min(_GAMMA[1]).square() - _GAMMA[1] ** 2)
    return torch.lerp(lower, upper, up) - beyond + 2 * (log_ratio - _RATIO[0]).clamp_max(0)


@functools.cache
def _table() -> Tensor:
    gamma, ratio = (torch.linspace(*part, dtype=torch.float64) for part in (_GAMMA, _RATIO))
    ratio = ratio.exp().unsqueeze(-1)
    return noisy_gain(gamma, ratio / (1 + ratio.square()).sqrt()).clamp_min(1e-300).log().flatten()


def noisy_gain(gamma: Tensor, correlation: Tensor) -> Tensor:
    """How much lower the entropy of ``z = g + noise`` is if ``g <= f*`` ([Zhang2025], Appendix A), in nats.

    With ``u`` the standardized z and ``r`` the correlation of g and z, ``p(u | g <= f*) = phi(u) w(u)`` with
    ``w(u) = Phi((gamma - r u) / sqrt(1 - r^2)) / Phi(gamma)``. The gain is ``E[w log w] + (1 - E[w u^2]) / 2`` over
    ``phi``, and ``E[w u^2] = 1 - r^2 gamma phi(gamma) / Phi(gamma)``.

    Args:
        gamma: any shape.
        correlation: ``r``, in (0, 1), broadcasts to it.
    """
    gamma, correlation = torch.broadcast_tensors(gamma, correlation)
    nodes, weights = (torch.as_tensor(part).to(gamma) / 2 for part in np.polynomial.legendre.leggauss(_NODES))
    rest = (1 - correlation.square()).clamp_min(1e-24).sqrt()
    log_cdf = torch.special.log_ndtr(gamma)
    mills = (log_phi(gamma) - log_cdf).exp()
    # Nearly all mass of u lies within 7 of its deviations around its mean. Nodes cluster on both sides of gamma / r,
    # where w falls to zero, the faster the less noise there is.
    deviation = (1 - correlation.square() * mills * (gamma + mills)).clamp_min(1e-12).sqrt()
    low, high = -correlation * mills - 7 * deviation, -correlation * mills + 7 * deviation
    center = (gamma / correlation).clamp(low, high)
    total = torch.zeros_like(gamma)
    for reach in (low - center, high - center):
        for node, weight in zip(nodes + 0.5, weights, strict=True):
            u = center + reach * node**2
            log_w = torch.special.log_ndtr((gamma - correlation * u) / rest) - log_cdf
            total = total + 2 * node * weight * reach.abs() * (log_w + log_phi(u)).exp() * log_w
    return total + 0.5 * correlation.square() * gamma * mills


def positive(std: Tensor) -> Tensor:
    """Standard deviations ``... x n``, none below a billionth of the largest."""
    return torch.maximum(std, 1e-9 * std.amax(-1, keepdim=True)).clamp_min(torch.finfo(std.dtype).tiny)


def gumbel_max_samples(mean: Tensor, std: Tensor, uniform: Tensor) -> Tensor:
    """Samples ``... x S`` of the maximum of f over a finite set by a Gumbel distribution ([Wang2017], section 3.1).

    A Gumbel distribution is fitted to the quartiles of the distribution function ``prod_x Phi((y - mean) / std)``,
    which are found by bisection. BoTorch has the same for one model, in a private function with a global generator.

    Args:
        mean: posterior means of f, ``... x n``.
        std: its posterior standard deviations, the same shape, positive.
        uniform: independent uniform numbers in (0, 1), ``... x S``.

    Raises:
        ValueError: if the shapes differ or a standard deviation is not positive.
    """
    require(mean.shape == std.shape, f"std must have the shape {tuple(mean.shape)} of mean", std.shape)
    as_values("std", std, None, 0, ends="()")
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=mean.dtype, device=mean.device)
    mean, std = mean.unsqueeze(-2), std.unsqueeze(-2)
    low = (mean + torch.special.ndtri(levels).unsqueeze(-1) * std).amax(-1)  # ... 3; no factor exceeds one
    high = (mean + 9 * std).amax(-1).expand_as(low)
    most = mean + 7 * std  # of a point with all of this below, the factor is one
    some = most.topk(int((most > low.amin(-1)[..., None, None]).sum(-1).amax()), -1).indices
    mean, std = mean.gather(-1, some), std.gather(-1, some)
    for _ in range(24):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle.unsqueeze(-1) - mean) / std).log().sum(-1) < levels.log()
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    first, median, third = ((low + high) / 2).unsqueeze(-2).unbind(-1)
    scale = (third - first) / (math.log(math.log(4)) - math.log(math.log(4 / 3)))
    return median + scale * (math.log(math.log(2)) - (-uniform.clamp(1e-6, 1 - 1e-6).log()).log())


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
        self.max_samples = max_samples
        self.noise_std = None if noise_std is None else max_samples.new_tensor(noise_std)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The information of ``b x 1 x q`` actions, ``b``."""
        posterior: Any = self.model.posterior(X)  # Gaussian, so it has moments
        mean, std = posterior.mean.reshape(-1), posterior.variance.clamp_min(1e-30).sqrt().reshape(-1)
        return log_information(mean, std, self.max_samples, self.noise_std).exp().reshape(X.shape[:-2])
