"""The bounds of Theorems 1 and 2 by term, and what they need to know.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Srinivas2010] N. Srinivas, A. Krause, S. Kakade, M. Seeger. Gaussian Process Optimization in the Bandit Setting: No
   Regret and Experimental Design. ICML 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PowerLaw:
    """``constant * t^slope``, fitted by least squares to logarithms.

    Args:
        slope: the exponent.
        constant: at ``t = 1``.
    """

    slope: float
    constant: float

    @classmethod
    def fit(cls, t: Tensor, values: Tensor) -> PowerLaw:
        """To positive values ``n`` at ``n >= 2`` different positive ``t``."""
        x, y = t.double().log(), values.double().log()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
        return cls(slope, float((y.mean() - slope * x.mean()).exp()))

    def __call__(self, t: Tensor) -> Tensor:
        """The fitted values."""
        return self.constant * t.double() ** self.slope


@dataclass(frozen=True)
class Constants:
    """What the bounds of [Huang2024]_ need to know.

    Args:
        a: of Assumption 1, ``P(sup |df / dz_i| > L) <= a exp(-(L / b)^2)`` for every coordinate.
        b: of Assumption 1, in the units of f over those of the inputs.
        side: ``r``, of the box.
        decision_dim: ``Dx``.
        context_dim: ``Dc``.
        noise_std: of the observations.
        density: ``C0 r^(Dc / 2)``: ``E |p - p_hat_t|_1 <= density * t^(-2 / (4 + Dc))``.
    """

    a: float
    b: float
    side: float
    decision_dim: int
    context_dim: int
    noise_std: float
    density: float

    def parts(self, t: int) -> float:
        """``tau_t``: into how many parts each coordinate of the decisions is divided; not rounded."""
        return t**2 * self.decision_dim * self.a * self.b * self.side * math.sqrt(math.pi) / 2

    def beta(self, t: int) -> float:
        """``beta_t`` of Theorem 1; negative in the first rounds if ``tau_t`` is small."""
        return 2 * math.log(t**2 / math.sqrt(2 * math.pi)) + 2 * self.decision_dim * math.log(self.parts(t))

    def sqrt_beta(self, t: int) -> float:
        """The multiplier of the standard deviation in Theorem 1, zero where ``beta_t`` is negative."""
        return math.sqrt(max(0.0, self.beta(t)))

    @property
    def largest(self) -> float:
        """The bound of Lemma 4 on ``E max |f|``: ``a b D r sqrt(pi) / 2 + sqrt(2 / pi)``; also ``C4``."""
        dim = self.decision_dim + self.context_dim
        return self.a * self.b * dim * self.side * math.sqrt(math.pi) / 2 + math.sqrt(2 / math.pi)

    def theorem(self, gain: Tensor, radius: Callable[[int], float] | None = None) -> dict[str, Tensor]:
        """The terms of Theorem 1, or with a radius ``delta_t`` those of Theorem 2, each ``T``.

        ``C = 8 / log(1 + noise_std^-2)`` as in [Srinivas2010]_, Lemma 5.4; the paper prints ``noise_std^2``.

        Args:
            gain: an upper bound of the maximum information gain of 1, ..., T observations, ``T``.
            radius: ``delta_t``.
        """
        dc = self.context_dim
        t = torch.arange(1, len(gain) + 1, dtype=torch.float64)
        beta = torch.tensor([max(0.0, self.beta(int(i))) for i in t], dtype=t.dtype)
        c = 8 / math.log1p(self.noise_std**-2)
        c2 = c * max(1.0, self.density**2 * (4 + dc) / dc)
        root = (beta * gain.to(t) * c2).sqrt()
        terms = {
            "constant": torch.full_like(t, math.pi**2 / 3),
            "widths": root * (t ** (dc / (2 * (4 + dc))) + t.sqrt()),
            "estimate": 2 * self.largest * self.density * (4 + dc) / (2 + dc) * t ** ((2 + dc) / (4 + dc)),
        }
        if radius is not None:
            delta = torch.tensor([radius(int(i)) for i in t], dtype=t.dtype)
            terms["widths in the ball"] = root * (c / c2 * delta.square().cumsum(0)).sqrt()
            terms["radius"] = self.largest * delta.cumsum(0)
        return terms
