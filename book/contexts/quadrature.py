"""Context distributions, which no learner knows, and a rule for expectations, for the values of the problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from book.contexts.marginals import Marginal
from cbo_lib.checks import as_box, require
from cbo_lib.random import uniform


@dataclass(frozen=True)
class ContextDistribution:
    """Independent marginals, clipped onto a box ([Huang2024], Appendix B.2).

    Args:
        marginals: one a coordinate, before clipping.
        bounds: the box ``2 x Dc``, lower corner first. Its dtype and device are those of all results.

    Raises:
        ValueError: if the bounds are no box, or there is not one marginal a coordinate.
    """

    marginals: tuple[Marginal, ...]
    bounds: Tensor

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "bounds", as_box("bounds", self.bounds))
        require(len(self.marginals) == self.dim, f"marginals must be one a coordinate, {self.dim}", len(self.marginals))

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
        draws = torch.stack([part.inverse_cdf(u[..., k]) for k, part in enumerate(self.marginals)], -1)
        return self.clip(draws) if clip else draws

    def clip(self, c: Tensor) -> Tensor:
        """The nearest contexts in the box."""
        return c.clamp(self.bounds[0], self.bounds[1])


@dataclass(frozen=True)
class QuadratureDistribution(ContextDistribution):
    """A context distribution that can be integrated over.

    Clipping puts the probability of the tails on the faces of the box: atoms, which a rule that samples the density
    alone would miss.

    Args:
        marginals: see ``ContextDistribution``.
        bounds: see ``ContextDistribution``. Its dtype and device are those of all results.
        breaks: where each coordinate's quadrature is cut into pieces, besides the ends of the box; values outside of
            the box count for nothing. Default: nowhere.
        order: Gauss-Legendre nodes of a piece. Default 16.
        sobol: if positive, ``nodes`` are so many scrambled Sobol points ([Owen1998]) with equal weights, for more
            dimensions than a product rule can serve; a power of two. Default 0: the product rule.

    Raises:
        ValueError: as ``ContextDistribution``, or if a number is out of range.
    """

    breaks: tuple[tuple[float, ...], ...] = ()
    order: int = 16
    sobol: int = 0

    def __post_init__(self) -> None:
        """Check the arguments."""
        super().__post_init__()
        if self.breaks and len(self.breaks) != self.dim:
            raise ValueError(f"breaks must be one tuple a coordinate, {self.dim}, got {len(self.breaks)}")
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}")
        if self.sobol < 0:
            raise ValueError(f"sobol must be nonnegative, got {self.sobol}")

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
