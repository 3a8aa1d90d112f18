"""What SBO-KDE and DRBO-KDE are compared with: GP-UCB, StableOpt, balls of the mean discrepancy, random decisions."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from cbo_lib.acquisition import DecisionUpperConfidenceBound, PartialAcquisition, RobustUpperConfidenceBound
from cbo_lib.checks import as_count, as_number
from cbo_lib.contexts.acquisition import MinimaxUpperConfidenceBound, MMDUpperConfidenceBound
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import MMDBall
from cbo_lib.gp import GaussianProcess, Posterior


class GPUCB(ContextPolicy):
    """GP-UCB on a model of the decision alone ([Srinivas2010]): the effect of the context counts as noise."""

    models_contexts = False

    def acquisition(self, posterior: Posterior) -> DecisionUpperConfidenceBound:
        """See ``DecisionUpperConfidenceBound``."""
        return DecisionUpperConfidenceBound(posterior, self.multiplier())

    def merit(self, posterior: Posterior) -> Tensor:
        """The posterior mean."""
        return DecisionUpperConfidenceBound(posterior, 0.0).values(self.decisions)


class StableOpt(ContextPolicy):
    """StableOpt ([Bogunovic2018]), the worst case over a standard deviation around the mean of the contexts seen.

    ``[mean - std, mean + std]`` in each coordinate ([Huang2024], section 4.1) is searched at clipped Sobol points.

    Args:
        cover: how many Sobol points. Default 1,024.
        space, options: see ``ContextPolicy``.
    """

    def __init__(self, space: Space, *, cover: int = 1024, **options: Any) -> None:
        super().__init__(space, **options)
        self.cover = as_count("cover", cover, 1)

    def acquisition(self, posterior: Posterior) -> PartialAcquisition:
        """See ``RobustUpperConfidenceBound``."""
        return RobustUpperConfidenceBound(posterior, self.feared(), self.multiplier())

    def feared(self) -> Tensor:
        """The contexts of which the worst counts, ``replicates x N x Dc``."""
        mean, std = self.contexts.mean(-2, keepdim=True), self.contexts.std(-2, keepdim=True)
        return (mean + std * (2 * self.sobol_contexts(self.cover) - 1)).clamp(*self.space.contexts)


class DRBOMMD(ContextPolicy):
    """DRBO-MMD ([Kirschner2020]): the worst average over a ball of the maximum mean discrepancy, on a grid.

    The center of the ball is the empirical distribution, each context counted at its nearest grid point. The kernel of
    the discrepancy is that of the model in the contexts, scaled to one at distance zero, as the radius
    ``(2 + sqrt(2 log(1 / gamma))) / sqrt(t)`` needs.

    Args:
        size: of the grid, at least; it has ``ceil(size^(1 / Dc))`` points a coordinate. Default 100 ([Huang2024]).
        gamma: in (0, 1). Default 0.1.
        space, options: see ``ContextPolicy``, also for errors.
    """

    #: The classes of the balls and of the acquisition.
    ball_type: ClassVar[type[MMDBall]] = MMDBall
    acquisition_type: ClassVar[type[MinimaxUpperConfidenceBound]] = MMDUpperConfidenceBound

    def __init__(self, space: Space, *, size: int = 100, gamma: float = 0.1, **options: Any) -> None:
        super().__init__(space, **options)
        self.size, self.gamma = as_count("size", size, 1), as_number("gamma", gamma, 0, 1, "()")
        self.points = context_grid(space.contexts, size)

    def begin(self) -> None:
        """Nothing is known yet."""
        super().begin()
        self._gram: tuple[GaussianProcess | None, Tensor | None] = None, None
        self._ball: MMDBall | None = None

    def acquisition(self, posterior: Posterior) -> PartialAcquisition:
        """See ``acquisition_type``."""
        return self.acquisition_type(posterior, self.points, self.ball(posterior), self.multiplier())

    def ball(self, posterior: Posterior) -> MMDBall:
        """The distributions within ``(2 + sqrt(2 log(1 / gamma))) / sqrt(t)`` of those seen, for this round."""
        radius = (2 + math.sqrt(-2 * math.log(self.gamma))) / math.sqrt(self.round)
        self._ball = self.ball_type(self.reference(), self.gram(posterior), radius, self._ball)
        return self._ball

    def reference(self) -> Tensor:
        """The empirical distribution on the grid, ``replicates x M``."""
        low, high = self.space.contexts
        own, grid = ((c - low) / (high - low) for c in (self.contexts, self.points))
        nearest = torch.cdist(own, grid, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        counts = self.contexts.new_zeros(len(nearest), len(self.points))
        return counts.scatter_add(-1, nearest, torch.ones_like(self.contexts[..., 0])) / nearest.shape[-1]

    def gram(self, posterior: Posterior) -> Tensor:
        """The kernel on the grid, ``... x M x M``; computed once a fit."""
        if self._gram[0] is not posterior.prior:
            dense = posterior.prior.kernel(self.space.join(self.space.decisions[1], self.points)).to_dense()
            self._gram = posterior.prior, dense / dense[..., :1, :1]
        assert self._gram[1] is not None
        return self._gram[1]


class DRBOMMDMinimax(DRBOMMD):
    """DRBO-MMD-MinimaxApprox ([Tay2022]): the worst case of ``DRBOMMD`` approximated, on a grid of 1,024 points.

    Args:
        size: see ``DRBOMMD``. Default 1,024 ([Huang2024], section 4.1).
        space, options: see ``DRBOMMD``.
    """

    acquisition_type = MinimaxUpperConfidenceBound
    kinks = True

    def __init__(self, space: Space, *, size: int = 1024, **options: Any) -> None:
        super().__init__(space, size=size, **options)


def context_grid(bounds: Tensor, size: int) -> Tensor:
    """Equally spaced contexts ``M x Dc``, ends included: ``ceil(size^(1 / Dc))`` a coordinate ([Huang2024], 4.1).

    Of the box ``bounds``, ``2 x Dc``; ``size`` is the least number of points.
    """
    dim = bounds.shape[-1]
    count = max(1, math.ceil(size ** (1 / dim) - 1e-9))
    axis = torch.linspace(0, 1, count, dtype=bounds.dtype, device=bounds.device)
    return bounds[0] + (bounds[1] - bounds[0]) * torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
