"""Marginals of the paper's contexts that torch does not have, and mixtures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributions import Cauchy as TorchCauchy
from torch.distributions import Distribution

from cbo_lib.distributions import Law


class Marginal(Protocol):
    """A distribution on the real line. Arguments and results have any shape."""

    def density(self, c: Tensor) -> Tensor:
        """The density."""

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """A draw from a uniform number in (0, 1); for most the quantile."""


@dataclass(frozen=True)
class Cauchy(Law):
    """Density ``scale / (pi (scale^2 + (c - location)^2))``."""

    location: float
    scale: float

    def law(self, like: Tensor) -> Distribution:
        """See ``Law``."""
        return TorchCauchy(like.new_tensor(self.location), like.new_tensor(self.scale), validate_args=False)


@dataclass(frozen=True)
class Burr:
    """Burr's type XII ([Burr1942]): probability ``1 - (1 + c^alpha)^-beta`` of at most ``c >= 0``."""

    alpha: float
    beta: float

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        positive = c.clamp_min(0.0)
        power = (1 + positive.pow(self.alpha)).pow(-self.beta - 1)
        return torch.where(c >= 0, self.alpha * self.beta * positive.pow(self.alpha - 1) * power, 0.0)

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return -torch.expm1(-self.beta * torch.log1p(c.clamp_min(0.0).pow(self.alpha)))

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The quantile of ``u``."""
        return torch.expm1(-torch.log1p(-u) / self.beta).pow(1 / self.alpha)


@dataclass(frozen=True)
class Mixture:
    """Equal parts of other distributions."""

    parts: tuple[Marginal, ...]

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        return torch.stack([part.density(c) for part in self.parts]).mean(0)

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return torch.stack([part.cdf(c) for part in self.parts]).mean(0)

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The whole part of ``len(parts) u`` chooses the component, the rest draws from it."""
        scaled = len(self.parts) * u
        which = scaled.floor().clamp(0, len(self.parts) - 1)
        tiny = torch.finfo(u.dtype).eps
        draws = torch.stack([part.inverse_cdf((scaled - which).clamp(tiny, 1 - tiny)) for part in self.parts])
        return draws.gather(0, which.long().unsqueeze(0)).squeeze(0)
