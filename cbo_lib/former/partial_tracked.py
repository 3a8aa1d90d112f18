"""A posterior at points of which the learner sets some coordinates, kept up to date observation by observation."""

import torch
from torch import Tensor

from cbo_lib.checks import require
from cbo_lib.former.partial import PartialPosterior, observed_points
from cbo_lib.gp import Posterior


class TrackedPartial:
    """Mean and variance of ``n`` fixed decisions with ``M`` contexts, by a rank-one step an observation.

    The posterior covariance of a new point with every pair (decision, context) is ``A diag(w) B^T`` with ``A`` the
    kernel of the decisions and the ``t`` observed points in the controlled coordinates (``n x t``), ``B`` that of the
    contexts in the free ones (``M x t``) and ``w`` from one triangular solve. So an observation costs
    ``O(t^2 + t n M)`` and the memory is ``t (n + M) + n M``; a factor with ``n M`` columns is never formed.

    Args:
        posterior: the prior or a posterior; observations are taken in by ``update``.
        x: decisions ``n x d`` or ``batch x groups x n x d``.
        contexts: see ``PartialPosterior``, also for ``controlled`` and errors.
        controlled: which coordinates are set.

    Attributes:
        mean: ``batch x groups x n x M``, as ``variance``.
        variance: without noise.
    """

    def __init__(self, posterior: Posterior, x: Tensor, contexts: Tensor, controlled: Tensor) -> None:
        self._given = x, contexts, controlled
        self._begin(posterior)

    def _begin(self, posterior: Posterior) -> None:
        x, contexts, controlled = self._given
        partial = PartialPosterior(posterior, contexts, controlled)
        with torch.no_grad():
            self.mean, self.variance = (part.clone() for part in partial.mean_and_variance(x))
        self._kernel, self._count, self._batch = partial._kernel, posterior.count, posterior.batch_shape
        self._x, self._contexts, self._groups = partial._check(x, "x"), partial.contexts, controlled.shape[:-1]
        self._left, self._right = self._kernels(partial._observed)

    def update(self, posterior: Posterior) -> None:
        """Take in the last observation of ``posterior``: what was tracked so far, extended by that of one point."""
        t = posterior.count
        require(t == self._count + 1, f"posterior must hold {self._count + 1} observations, one more than before", t)
        data, batch = posterior.data, posterior.batch_shape
        require(batch == self._batch, f"posterior must have the batch {tuple(self._batch)} as before", batch)
        assert data is not None
        ones = [1] * len(self._groups)
        with torch.no_grad():
            new = self._kernels(observed_points(posterior, self._x, self._groups)[..., -1:, :])
            self._left, self._right = torch.cat([self._left, new[0]], -1), torch.cat([self._right, new[1]], -1)
            # The last row of A = L^{-1} K(observed, pairs), from the last row of L^{-1}.
            factor = data.factor.expand(*batch, t, t)
            unit = torch.zeros_like(factor[..., :1])
            unit[..., -1, 0] = 1.0
            w = torch.linalg.solve_triangular(factor.mT, unit, upper=True).reshape(*batch, *ones, 1, t)
            step = (self._left * w) @ self._right.mT
            gain = data.whitened[..., -1].expand(batch).reshape(*batch, *ones, 1, 1)
            self.mean = torch.addcmul(self.mean, gain, step)
            self.variance = torch.addcmul(self.variance, step, step, value=-1).clamp_min_(0.0)
        self._count = t

    def _kernels(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Kernels ``... n x m`` and ``... M x m`` with observed points ``... m x d``."""
        return self._kernel.controlled(self._x, points), self._kernel.free(self._contexts, points)
