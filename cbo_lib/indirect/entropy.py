"""The information that an indirect observation carries about the maximum, in logarithms."""

import functools
import math

import numpy as np
import torch
from botorch.utils.probability.utils import log_phi
from torch import Tensor
from torch.nn.functional import grid_sample

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
    """
    gamma = (max_samples.unsqueeze(-1) - mean.unsqueeze(-2)) / std.unsqueeze(-2)  # ... S n
    if noise_std is None:
        gain = truncation_log_gain(gamma)
    else:
        gain = noisy_log_gain(gamma, (std / noise_std).log().unsqueeze(-2))
    return gain.logsumexp(-2) - math.log(max_samples.shape[-1])


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
    gamma, log_ratio = torch.broadcast_tensors(gamma, log_ratio)
    # Where to read, as ``grid_sample`` counts: from -1, the first knot, to 1, the last one.
    column = 2 * (gamma - _GAMMA[0]) / (_GAMMA[1] - _GAMMA[0]) - 1
    row = 2 * (log_ratio - _RATIO[0]) / (_RATIO[1] - _RATIO[0]) - 1
    grid = torch.stack([column, row], -1).reshape(1, 1, -1, 2)
    inside = grid_sample(_table().to(gamma), grid, padding_mode="border", align_corners=True).view_as(gamma)
    beyond = 0.5 * (gamma.clamp_min(_GAMMA[1]).square() - _GAMMA[1] ** 2)
    return inside - beyond + 2 * (log_ratio - _RATIO[0]).clamp_max(0)


@functools.cache
def _table() -> Tensor:
    """Logarithms of the gain, ``1 x 1 x ratios x gammas``."""
    gamma, ratio = (torch.linspace(*part, dtype=torch.float64) for part in (_GAMMA, _RATIO))
    ratio = ratio.exp().unsqueeze(-1)
    return noisy_gain(gamma, ratio / (1 + ratio.square()).sqrt()).clamp_min(1e-300).log()[None, None]


def noisy_gain(gamma: Tensor, correlation: Tensor) -> Tensor:
    """How much lower the entropy of ``z = g + noise`` is if ``g <= f*`` ([Zhang2025], Appendix A), in nats.

    With ``u`` the standardized z and ``r`` the correlation of g and z, ``p(u | g <= f*) = phi(u) w(u)`` with
    ``w(u) = Phi((gamma - r u) / sqrt(1 - r^2)) / Phi(gamma)``. The gain is ``E[w log w] + (1 - E[w u^2]) / 2`` over
    ``phi``, and ``E[w u^2] = 1 - r^2 gamma phi(gamma) / Phi(gamma)``.

    Args:
        gamma: any shape.
        correlation: ``r``, in (0, 1), broadcasts to it.
    """
    gamma, r = (part.unsqueeze(-1) for part in torch.broadcast_tensors(gamma, correlation))
    nodes, weights = (torch.as_tensor(part).to(gamma) for part in np.polynomial.legendre.leggauss(_NODES))
    nodes, weights = (nodes + 1) / 2, weights / 2  # on [0, 1]
    log_cdf = torch.special.log_ndtr(gamma)
    mills = (log_phi(gamma) - log_cdf).exp()
    # Nearly all mass of u lies within 7 of its deviations around its mean. Nodes cluster on both sides of gamma / r,
    # where w falls to zero, the faster the less noise there is.
    deviation = (1 - r.square() * mills * (gamma + mills)).sqrt()
    low, high = -r * mills - 7 * deviation, -r * mills + 7 * deviation
    center = (gamma / r).clamp(low, high)
    gain = 0.5 * r.square() * gamma * mills
    for reach in (low - center, high - center):
        u = center + reach * nodes.square()  # ... nodes
        log_w = torch.special.log_ndtr((gamma - r * u) / (1 - r.square()).sqrt()) - log_cdf
        integrand = (log_w + log_phi(u)).exp() * log_w
        gain = gain + (2 * nodes * weights * reach.abs() * integrand).sum(-1, keepdim=True)
    return gain.squeeze(-1)


def gumbel_max_samples(mean: Tensor, std: Tensor, uniform: Tensor) -> Tensor:
    """Samples ``... x S`` of the maximum of f over a finite set by a Gumbel distribution ([Wang2017], section 3.1).

    A Gumbel distribution is fitted to the quartiles of the distribution function ``prod_x Phi((y - mean) / std)``,
    which are found by bisection. BoTorch has the same for one model, in a private function with a global generator.

    Args:
        mean: posterior means of f, ``... x n``.
        std: its posterior standard deviations, the same shape, positive.
        uniform: independent uniform numbers in (0, 1), ``... x S``.
    """
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=mean.dtype, device=mean.device)
    mean, std = mean.unsqueeze(-2), std.unsqueeze(-2)
    low = (mean + torch.special.ndtri(levels).unsqueeze(-1) * std).amax(-1)  # ... 3; no factor exceeds one
    high = (mean + 9 * std).amax(-1).expand_as(low)
    for _ in range(24):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle.unsqueeze(-1) - mean) / std).log().sum(-1) < levels.log()
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    first, median, third = ((low + high) / 2).unsqueeze(-2).unbind(-1)
    scale = (third - first) / (math.log(math.log(4)) - math.log(math.log(4 / 3)))
    return median + scale * (math.log(math.log(2)) - (-uniform.clamp(1e-6, 1 - 1e-6).log()).log())
