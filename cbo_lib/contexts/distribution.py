"""Distributions of contexts: draws, densities and quadrature rules, with the atoms that clipping makes.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Burr1942] I. W. Burr. Cumulative Frequency Functions. Annals of Mathematical Statistics 13(2), 1942.
.. [Owen1998] A. B. Owen. Scrambling Sobol' and Niederreiter-Xing Points. Journal of Complexity 14(4), 1998.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cbo_lib.random import uniform


class Marginal(Protocol):
    """A distribution on the real line. Arguments and results have any shape."""

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        ...

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        ...

    def from_uniform(self, u: Tensor) -> Tensor:
        """A draw from a uniform number in (0, 1); for most the inverse of ``cdf``."""
        ...


@dataclass(frozen=True)
class Normal:
    """``N(mean, std^2)``."""

    mean: float
    std: float

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        return (-0.5 * ((c - self.mean) / self.std).square()).exp() / (math.sqrt(2 * math.pi) * self.std)

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return torch.special.ndtr((c - self.mean) / self.std)

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantile of ``u``."""
        return self.mean + self.std * torch.special.ndtri(u)


@dataclass(frozen=True)
class Cauchy:
    """Density ``scale / (pi (scale^2 + (c - location)^2))``."""

    location: float
    scale: float

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        return self.scale / (math.pi * (self.scale**2 + (c - self.location).square()))

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return 0.5 + ((c - self.location) / self.scale).atan() / math.pi

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantile of ``u``."""
        return self.location + self.scale * (math.pi * (u - 0.5)).tan()


@dataclass(frozen=True)
class Uniform:
    """Uniform on ``[low, high]``."""

    low: float = 0.0
    high: float = 1.0

    def density(self, c: Tensor) -> Tensor:
        """The density."""
        return ((c >= self.low) & (c <= self.high)).to(c.dtype) / (self.high - self.low)

    def cdf(self, c: Tensor) -> Tensor:
        """The probability of at most ``c``."""
        return ((c - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def from_uniform(self, u: Tensor) -> Tensor:
        """The quantile of ``u``."""
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class Burr:
    """Burr's type XII ([Burr1942]_): probability ``1 - (1 + c^alpha)^-beta`` of at most ``c >= 0``."""

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

    def from_uniform(self, u: Tensor) -> Tensor:
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

    def from_uniform(self, u: Tensor) -> Tensor:
        """The whole part of ``len(parts) u`` chooses the component, the rest draws from it."""
        scaled = len(self.parts) * u
        which = scaled.floor().clamp(0, len(self.parts) - 1)
        tiny = torch.finfo(u.dtype).eps
        draws = torch.stack([part.from_uniform((scaled - which).clamp(tiny, 1 - tiny)) for part in self.parts])
        return draws.gather(0, which.long().unsqueeze(0)).squeeze(0)


@dataclass(frozen=True)
class ContextDistribution:
    """Independent marginals, clipped onto a box ([Huang2024]_, Appendix B.2).

    Clipping puts the probability of the tails on the faces of the box: atoms, which a rule that samples the density
    alone would miss.

    Args:
        marginals: one a coordinate, before clipping.
        bounds: the box ``2 x Dc``, lower corner first. Its dtype and device are those of all results.
        breaks: where each coordinate's quadrature is cut into pieces, besides the ends of the box; values outside of
            the box count for nothing. Default: nowhere.
        order: Gauss-Legendre nodes of a piece. Default 16.
        sobol: if positive, ``nodes`` are so many scrambled Sobol points ([Owen1998]_) with equal weights, for more
            dimensions than a product rule can serve; a power of two. Default 0: the product rule.

    Raises:
        ValueError: if the bounds are no box, there is not one marginal a coordinate or ``order`` is below 1.
    """

    marginals: tuple[Marginal, ...]
    bounds: Tensor
    breaks: tuple[tuple[float, ...], ...] = ()
    order: int = 16
    sobol: int = 0

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.bounds.dim() != 2 or len(self.bounds) != 2 or not bool((self.bounds[0] < self.bounds[1]).all()):
            raise ValueError(f"bounds must be a box (2, Dc), lower corner first, got {self.bounds.tolist()}")
        if len(self.marginals) != self.dim:
            raise ValueError(f"marginals must be one a coordinate, {self.dim}, got {len(self.marginals)}")
        if self.breaks and len(self.breaks) != self.dim:
            raise ValueError(f"breaks must be one tuple a coordinate, {self.dim}, got {len(self.breaks)}")
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}")
        if self.sobol < 0:
            raise ValueError(f"sobol must be nonnegative, got {self.sobol}")

    @property
    def dim(self) -> int:
        """``Dc``."""
        return self.bounds.shape[-1]

    def sample(self, generators: Sequence[torch.Generator], shape: Sequence[int] = (), clip: bool = True) -> Tensor:
        """Independent draws of each replicate, from its own generator.

        Args:
            generators: one a replicate.
            shape: how many draws each makes. Default: one.
            clip: whether draws are clipped onto the box. Default true.

        Returns:
            ``len(generators) x *shape x Dc``.
        """
        return self.from_uniform(uniform(generators, (*shape, self.dim), self.bounds), clip)

    def from_uniform(self, u: Tensor, clip: bool = True) -> Tensor:
        """Draws from uniform numbers ``... x Dc`` in the unit box, one a coordinate."""
        tiny = torch.finfo(u.dtype).eps
        u = u.clamp(tiny, 1 - tiny)
        draws = torch.stack([part.from_uniform(u[..., k]) for k, part in enumerate(self.marginals)], -1)
        return self.clip(draws) if clip else draws

    def clip(self, c: Tensor) -> Tensor:
        """The nearest contexts in the box."""
        return c.clamp(self.bounds[0], self.bounds[1])

    def density(self, c: Tensor) -> Tensor:
        """The density before clipping, at contexts ``... x Dc``, ``...``."""
        return torch.stack([part.density(c[..., k]) for k, part in enumerate(self.marginals)]).prod(0)

    @property
    def atoms(self) -> Tensor:
        """The probability of each coordinate to be clipped to its lower and to its upper end, ``2 x Dc``."""
        low = torch.stack([part.cdf(self.bounds[0, k]) for k, part in enumerate(self.marginals)])
        high = torch.stack([1 - part.cdf(self.bounds[1, k]) for k, part in enumerate(self.marginals)])
        return torch.stack([low, high])

    def marginal_nodes(self, k: int) -> tuple[Tensor, Tensor]:
        """A composite Gauss-Legendre rule of coordinate ``k`` with its atoms, nodes ``n`` and weights ``n``.

        The weights sum to one; before, their sum differs from it by the error of the rule for the density.
        """
        low, high = self.bounds[:, k].tolist()
        inner = {b for b in (self.breaks[k] if self.breaks else ()) if low < b < high}
        cuts = torch.tensor([low, *sorted(inner), high]).to(self.bounds)
        nodes, weights = (torch.as_tensor(part).to(self.bounds) for part in np.polynomial.legendre.leggauss(self.order))
        half = cuts.diff().unsqueeze(-1) / 2
        c = (cuts[:-1].unsqueeze(-1) + half * (1 + nodes)).flatten()
        w = (half * weights).flatten() * self.marginals[k].density(c)
        atoms = self.atoms[:, k]
        c, w = torch.cat([cuts[[0, -1]], c]), torch.cat([atoms, w])
        return c[w > 0], w[w > 0] / w.sum()

    @cached_property
    def nodes(self) -> tuple[Tensor, Tensor]:
        """A rule for expectations under the clipped distribution: contexts ``N x Dc`` and weights ``N``."""
        if self.sobol:
            engine = torch.quasirandom.SobolEngine(self.dim, scramble=True, seed=0)
            u = engine.draw(self.sobol, dtype=torch.float64).to(self.bounds)
            return self.from_uniform(u), torch.full((self.sobol,), 1 / self.sobol).to(self.bounds)
        rules = [self.marginal_nodes(k) for k in range(self.dim)]
        contexts = torch.cartesian_prod(*[c for c, _ in rules]).reshape(-1, self.dim)
        weights = torch.cartesian_prod(*[w for _, w in rules]).reshape(-1, self.dim).prod(-1)
        return contexts, weights
