"""How what the learner does not set varies: distributions of one variable, in the user's units.

A marginal is anything with ``density``, ``cdf`` and ``inverse_cdf``. ``Normal`` and ``Uniform`` are those of
``torch.distributions`` in the dtype and on the device of what they are asked; a subclass of ``Law`` makes another of
them a marginal in one line.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.special import ndtr
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.distributions import Uniform as TorchUniform

from cbo_lib.checks import as_number, require


class Marginal(Protocol):
    """A distribution on the real line. Arguments and results have any shape."""

    def density(self, c: Tensor) -> Tensor:
        """The density."""

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """A draw from a uniform number in (0, 1); for most the quantile."""


class Law(ABC):
    """A marginal by a distribution of torch."""

    @abstractmethod
    def law(self, like: Tensor) -> Distribution:
        """The distribution, with parameters of the dtype and device of ``like``."""

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        return self.law(c).log_prob(c).exp()

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return self.law(c).cdf(c)

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The quantile of ``u``."""
        return self.law(u).icdf(u)


class _Checked:
    """Raises ``ValueError`` unless parameters are finite, spreads positive, and ``low`` lies below ``high``."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            low, ends = (0.0, "()") if name in ("std", "scale") else (-math.inf, "[]")
            object.__setattr__(self, name, as_number(name, value, low, ends=ends))
        if hasattr(self, "low") and hasattr(self, "high"):
            require(self.low < self.high, "low must lie below high", f"{self.low} and {self.high}")


@dataclass(frozen=True)
class Normal(_Checked, Law):
    """``N(mean, std^2)``."""

    mean: float
    std: float

    def law(self, like: Tensor) -> Distribution:
        """See ``Law``."""
        return TorchNormal(like.new_tensor(self.mean), like.new_tensor(self.std), validate_args=False)

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The quantile of ``u``; that of torch loses the lower tail."""
        return self.mean + self.std * torch.special.ndtri(u)


@dataclass(frozen=True)
class Uniform(_Checked, Law):
    """Uniform on ``[low, high]``, by default the unit interval."""

    low: float = 0.0
    high: float = 1.0

    def law(self, like: Tensor) -> Distribution:
        """See ``Law``."""
        return TorchUniform(like.new_tensor(self.low), like.new_tensor(self.high), validate_args=False)

    def density(self, c: Tensor) -> Tensor:
        """The density, also at both ends; that of torch is zero at the upper one."""
        return ((c >= self.low) & (c <= self.high)).to(c.dtype) / (self.high - self.low)


@dataclass(frozen=True)
class TruncatedNormal(_Checked):
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
        super().__post_init__()
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
