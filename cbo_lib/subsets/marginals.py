"""How a variable varies on [0, 1] when the learner leaves it free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from scipy.optimize import brentq
from scipy.special import gammainc
from torch import Tensor


class Marginal(Protocol):
    """The distribution of one free variable on [0, 1]."""

    @property
    def mean(self) -> float:
        """Its mean."""
        ...

    @property
    def variance(self) -> float:
        """Its variance."""
        ...

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """Quantiles of probabilities in [0, 1], of any shape."""
        ...

    def density(self, x: Tensor) -> Tensor:
        """The density at values of any shape; zero outside [0, 1]."""
        ...

    def sample(self, generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor) -> Tensor:
        """Independent draws, ``len(generators) x shape``, on the device and dtype of ``like``."""
        ...


class _Quantiles:
    """Draws by inversion, the same way for every marginal."""

    def inverse_cdf(self, u: Tensor) -> Tensor:
        raise NotImplementedError

    def sample(self, generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor) -> Tensor:
        """Independent draws, ``len(generators) x shape``, on the device and dtype of ``like``."""
        draws = [torch.rand(tuple(shape), generator=g, dtype=like.dtype) for g in generators]
        return self.inverse_cdf(torch.stack(draws)).to(like.device)


@dataclass(frozen=True)
class Uniform(_Quantiles):
    """The uniform distribution on [0, 1], of variance 1/12."""

    @property
    def mean(self) -> float:
        """One half."""
        return 0.5

    @property
    def variance(self) -> float:
        """One twelfth."""
        return 1 / 12

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """The probabilities themselves."""
        return u.clone()

    def density(self, x: Tensor) -> Tensor:
        """One inside [0, 1], zero outside."""
        return ((x >= 0) & (x <= 1)).to(x.dtype)


@dataclass(frozen=True)
class TruncatedNormal(_Quantiles):
    """A normal distribution about 1/2, truncated to [0, 1] ([Hoang2024], experiments).

    The paper gives "mean 0.5 and the same variance which is one of 0.02, 0.04 (the uniform distribution on [0, 1] has
    variance 1/12)". The comparison only makes sense for the variance of the variable itself, after the truncation. So
    ``variance`` is that one, and the standard deviation ``scale`` of the normal distribution before the truncation is
    solved for. With ``h = 1 / (8 scale^2)`` and the regularized incomplete gamma function P,

        variance = P(3/2, h) / (8 h P(1/2, h)),

    which falls in ``h`` from 1/12, the uniform limit, to 0.

    Args:
        variance: of the truncated variable, in (0, 1/12).

    Raises:
        ValueError: if the variance is not positive, or 1/12 or more. Within 1e-12 of 1/12 the scale is lost to
            rounding; such a variance is refused as well.
    """

    variance: float

    def __post_init__(self) -> None:
        """Check the variance."""
        if not 0 < self.variance <= 1 / 12 - 1e-12:
            raise ValueError(
                "variance of a truncated normal distribution on [0, 1] must lie in (0, 1/12); at 1/12 it is Uniform(), "
                f"got {self.variance}"
            )

    @property
    def mean(self) -> float:
        """One half."""
        return 0.5

    @cached_property
    def scale(self) -> float:
        """The standard deviation of the normal distribution before the truncation."""

        def gap(log_h: float) -> float:
            h = math.exp(log_h)
            return float(gammainc(1.5, h) / (8 * h * gammainc(0.5, h))) - self.variance

        # The truncated variance is at most scale^2 = 1 / (8 h), and it is 1/12 - h/45 for small h.
        log_h = brentq(gap, math.log(1e-13), math.log(1 / (8 * self.variance)) + 1e-9, xtol=1e-14, rtol=1e-14)
        return math.sqrt(1 / (8 * math.exp(log_h)))

    @property
    def _outside(self) -> float:
        """The probability of values below 0 before the truncation, as large as that of values above 1."""
        return 0.5 * math.erfc(0.5 / self.scale / math.sqrt(2))

    def inverse_cdf(self, u: Tensor) -> Tensor:
        """Quantiles of probabilities in [0, 1], of any shape."""
        side = u - 0.5
        # From the nearer tail, so that quantiles of u and 1 - u are mirror images.
        tail = self._outside + (0.5 - side.abs()) * (1 - 2 * self._outside)
        return (0.5 - side.sign() * self.scale * torch.special.ndtri(tail)).clamp(0, 1)

    def density(self, x: Tensor) -> Tensor:
        """The density at values of any shape; zero outside [0, 1]."""
        z = (x - 0.5) / self.scale
        inside = (-0.5 * z.square()).exp() / (self.scale * math.sqrt(2 * math.pi) * (1 - 2 * self._outside))
        return inside * ((x >= 0) & (x <= 1))
