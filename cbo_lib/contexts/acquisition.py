"""Acquisition functions of the worst average over a set of distributions of the contexts, for any BoTorch model."""

import torch
from botorch.models.model import Model
from torch import Tensor

from cbo_lib.acquisition import PartialAcquisition, RobustAcquisition
from cbo_lib.checks import require
from cbo_lib.contexts.worst_case import MMDBall, tv_average
from cbo_lib.gp import Posterior


class TotalVariationUpperConfidenceBound(PartialAcquisition):
    """The worst average within an L1 distance of the samples: DRBO-KDE ([Huang2024], Algorithm 2, line 5).

    Args:
        samples: of the density estimate, ``M x Dc`` or ``batch x M x Dc``.
        cover: contexts whose smallest bound stands for the infimum over all, ``N x Dc`` or ``batch x N x Dc``.
        radius: L1, nonnegative.
        model, sqrt_beta: see ``PartialAcquisition``.
    """

    def __init__(
        self, model: Posterior | Model, samples: Tensor, cover: Tensor, radius: float, sqrt_beta: float = 1.5
    ) -> None:
        batch = torch.broadcast_shapes(samples.shape[:-2], cover.shape[:-2])
        both = [points.expand(*batch, *points.shape[-2:]) for points in (samples, cover)]
        super().__init__(model, torch.cat(both, -2), sqrt_beta)
        require(radius >= 0, "radius must be nonnegative", radius)
        self.count, self.radius = samples.shape[-2], radius

    def reduce(self, bounds: Tensor) -> Tensor:
        """The closed form of Proposition 2."""
        return tv_average(bounds[..., : self.count], bounds.min(-1).values, self.radius, self.radius)


class MinimaxUpperConfidenceBound(PartialAcquisition):
    """The midpoint of two bounds on the worst case below: DRBO-MMD-MinimaxApprox ([Tay2022]).

    Args:
        grid: the contexts that distributions may weigh, ``M x Dc``.
        ball: of distributions on the grid, of batch shape ``()`` or that of the posterior.
        model, sqrt_beta: see ``PartialAcquisition``.
    """

    def __init__(self, model: Posterior | Model, grid: Tensor, ball: MMDBall, sqrt_beta: float = 1.5) -> None:
        super().__init__(model, grid, sqrt_beta)
        self.ball = ball

    def reduce(self, bounds: Tensor) -> Tensor:
        """The approximation."""
        return self.ball.minimax_approx(bounds, known=True)


class MMDUpperConfidenceBound(MinimaxUpperConfidenceBound, RobustAcquisition):
    """The worst average over a ball of the maximum mean discrepancy: DRBO-MMD ([Kirschner2020])."""

    def reduce(self, bounds: Tensor) -> Tensor:
        """The worst case."""
        return self.ball.worst_case(bounds, known=True)

    def look(self, x: Tensor) -> Tensor:
        """The bounds with all contexts, which cost little beside a worst case."""
        return self.bounds(x)

    def above(self, looks: Tensor, members: Tensor | None) -> Tensor:
        """Over some distributions, ``replicates x k x M``; over the center of the ball to begin with."""
        if members is None:
            # The worst of zeros is the center, without a solver.
            self._worst = members = self.ball.worst_distribution(torch.zeros_like(looks[:, :1]), known=True)
        return (looks @ members.mT).amin(-1)

    def settle(self, looks: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Over the ball; the worst distributions are kept."""
        assert self._worst is not None
        new = self.ball.worst_distribution(looks * wanted.unsqueeze(-1), known=True)
        self._worst = torch.cat([self._worst, new], -2)
        return (looks * new).sum(-1), new
