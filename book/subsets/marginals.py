"""The free variables of the paper's experiments."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from scipy.special import gammainc, ndtr
from torch import Tensor

from cbo_lib.checks import as_number, require


@dataclass(frozen=True)
class TruncatedNormal:
    """A normal distribution, truncated to an interval; torch has none.

    Args:
        location: the mean before the truncation; it may lie outside of the interval.
        scale: the standard deviation before the truncation, positive.
        low: where it begins. Default 0.
        high: where it ends. Default 1.

    Raises:
        ValueError: if a parameter is out of range, or next to nothing of the normal distribution lies in the interval.
    """

    location: float
    scale: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        for name, value in vars(self).items():
            as_number(name, value, *((0.0, math.inf, "()") if name == "scale" else ()))
        require(self.low < self.high, "low must lie below high", f"{self.low} and {self.high}")
        require(self._inside >= 1e-200, "low and high must hold a part of the normal distribution", self)

    @property
    def _tails(self) -> tuple[float, float]:
        """The probabilities below ``low`` and above ``high`` before the truncation."""
        below, above = (self.low - self.location) / self.scale, (self.location - self.high) / self.scale
        return float(ndtr(below)), float(ndtr(above))

    @property
    def _inside(self) -> float:
        """The probability of the interval before the truncation, from the tails that are small."""
        ends = (self.high - self.location) / self.scale, (self.location - self.low) / self.scale
        return float(ndtr(min(ends)) - ndtr(-max(ends)))

    def density(self, c: Tensor) -> Tensor:
        """The density; zero outside of the interval."""
        z = (c - self.location) / self.scale
        inside = (-0.5 * z.square()).exp() / (self.scale * math.sqrt(2 * math.pi) * self._inside)
        return inside * ((c >= self.low) & (c <= self.high))

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        z, (below, above) = (c.clamp(self.low, self.high) - self.location) / self.scale, self._tails
        tail = torch.special.log_ndtr(-z.abs()).exp()
        return torch.where(z < 0, (tail - below) / self._inside, 1 - (tail - above) / self._inside).clamp(0, 1)

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The quantile of ``u`` in [0, 1]."""
        below, above = self._tails
        side = u - 0.5
        # From the nearer tail, so that quantiles of u and 1 - u are mirror images where the tails are.
        lower, upper = below + (0.5 + side) * self._inside, above + (0.5 - side) * self._inside
        distance = -self.scale * torch.special.ndtri(torch.minimum(lower, upper))
        return (self.location + (lower - upper).sign() * distance).clamp(self.low, self.high)


@functools.cache
def truncated_normal(variance: float, low: float = 0.0, high: float = 1.0) -> TruncatedNormal:
    """The one about the middle of an interval whose variance, after the truncation, is given.

    The experiments of [Hoang2024] have "mean 0.5 and the same variance which is one of 0.02, 0.04 (the uniform
    distribution on [0, 1] has variance 1/12)". The comparison only makes sense for the variance of the variable itself.
    With ``h = 1 / (8 scale^2)`` and the regularized incomplete gamma function P, on [0, 1]

        variance = P(3/2, h) / (8 h P(1/2, h)),

    which falls in ``h`` from 1/12, the uniform limit, to 0.

    Args:
        variance: of the truncated variable, positive and below that of the uniform distribution,
            ``(high - low)^2 / 12``.
        low: where it begins. Default 0.
        high: where it ends. Default 1.

    Raises:
        ValueError: if the variance is not positive, or so near to that of the uniform distribution, within 1e-12 of it
            on [0, 1], that the scale is lost to rounding; or low is not below high.
    """
    width = high - low
    unit = variance / width**2 if width > 0 else math.nan
    if not 0 < unit <= 1 / 12 - 1e-12:
        raise ValueError(
            f"variance of a truncated normal distribution on [{low:g}, {high:g}] must lie in (0, {width:g}^2/12); "
            f"at the end it is Uniform({low:g}, {high:g}), got {variance}"
        )

    def gap(log_h: float) -> float:
        h = math.exp(log_h)
        return float(gammainc(1.5, h) / (8 * h * gammainc(0.5, h))) - unit

    # The truncated variance is at most scale^2 = 1 / (8 h), and it is 1/12 - h/45 for small h.
    log_h = brentq(gap, math.log(1e-13), math.log(1 / (8 * unit)) + 1e-9, xtol=1e-14, rtol=1e-14)
    return TruncatedNormal((low + high) / 2, width * math.sqrt(1 / (8 * math.exp(log_h))), low, high)
