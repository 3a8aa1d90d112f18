"""How what the learner does not set varies: distributions of one variable, in the user's units.

A marginal is anything with ``density``, ``cdf`` and ``inverse_cdf``, from numbers of any shape to numbers. ``Normal``
and ``Uniform`` are those of ``torch.distributions`` in the dtype and on the device of what they are asked; a subclass
of ``Law`` makes another of them that has ``icdf`` a marginal in one line.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.distributions import Uniform as TorchUniform

from cbo_lib.checks import as_number, require


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
