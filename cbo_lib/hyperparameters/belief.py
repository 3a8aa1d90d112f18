"""What every candidate believes: the posteriors of all of them, at the points of a list or anywhere in a box."""

import math

import torch
from torch import Tensor

from cbo_lib.checks import nearest
from cbo_lib.gp import GaussianProcess, cholesky
from cbo_lib.measure import Measure, covariance, variance


class ListBelief:
    """Posterior means and deviations at every point of a list, under every candidate, brought up to date by each row.

    ``rows`` is the whitened covariance of what was told with the list, ``L^{-1} K``: one row more an observation, so
    that a round costs ``O(t)`` a point and nothing is solved twice ([Rasmussen2006], Algorithm 2.1).

    Args:
        prior: the candidates, a batch ``(|U|,)``; with one kernel of batch ``(1,)`` they share ``rows``.
        replicates: how many.
        points: the list, ``n x d``. What is told of other points extends it.
    """

    def __init__(self, prior: GaussianProcess, replicates: int, points: Tensor) -> None:
        self.prior, self.replicates, self.points = prior, replicates, points
        where = Measure.dirac(points.unsqueeze(0))
        self.mean = prior.prior_mean(where).expand(replicates, -1, -1)  # R |U| n
        self.variance = variance(prior.kernel, where).expand(replicates, -1, -1)  # R (|U| or 1) n
        self.rows = self.variance.unsqueeze(2)[:, :, :0]  # R (|U| or 1) t n
        self.likelihood = self.mean[..., 0] * 0
        self.told = torch.zeros(replicates, 0, dtype=torch.long, device=points.device)
        self.y = self.mean.new_zeros(replicates, 0)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Condition on values ``R x m`` at points ``R x m x d``."""
        index = nearest(x, self.points, self.points)
        if bool((new := index < 0).any()):  # the list grows: begin anew
            told, seen = self.points[self.told], self.y
            vars(self).update(vars(ListBelief(self.prior, self.replicates, torch.cat([self.points, x[new]]))))
            index = nearest(torch.cat([told, x], 1), self.points, self.points[: -int(new.sum())])
            y = torch.cat([seen, y], 1)
        at = index.unsqueeze(1)  # R 1 m
        asked, everywhere = Measure.dirac(self.points[at]), Measure.dirac(self.points)
        known = self.rows.take_along_dim(at.unsqueeze(2), -1)  # R (|U| or 1) t m
        cross = covariance(self.prior.kernel, asked, everywhere) - known.mT @ self.rows
        inner = cross.take_along_dim(at.unsqueeze(2), -1)
        factor = cholesky(inner + self.prior.noise_std**2 * torch.eye(y.shape[1]).to(y))
        rows = torch.linalg.solve_triangular(factor, cross, upper=False)
        error = y.unsqueeze(1) - self.mean.take_along_dim(at, -1)
        white = torch.linalg.solve_triangular(factor, error.unsqueeze(-1), upper=False)  # R |U| m 1
        self.mean = self.mean + (white * rows).sum(2)
        self.variance = (self.variance - rows.square().sum(2)).clamp_min(0)
        self.rows = torch.cat([self.rows, rows], 2)
        size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + y.shape[1] / 2 * math.log(2 * math.pi)
        self.likelihood = self.likelihood - white.square().sum((2, 3)) / 2 - size
        self.told, self.y = torch.cat([self.told, index], 1), torch.cat([self.y, y], 1)

    def moments(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and deviations, ``R x |U| x n``: of the whole list, or at points ``R x m x d`` of it."""
        mean, std = self.mean, self.variance.sqrt()
        if x is not None:
            index = nearest(x, self.points, self.points).unsqueeze(1)
            mean, std = mean.take_along_dim(index, -1), std.take_along_dim(index, -1)
        return mean, std.expand_as(mean)

    def means_told(self) -> Tensor:
        """Means at what was told, ``R x |U| x t``."""
        return self.mean.take_along_dim(self.told.unsqueeze(1), -1)


class BoxBelief:
    """The same anywhere in a box: nothing is kept but the posteriors, and a differentiable value is solved for."""

    def __init__(self, prior: GaussianProcess, replicates: int) -> None:
        self.posterior = prior.posterior(replicates)

    @property
    def likelihood(self) -> Tensor:
        """Log marginal likelihood of every candidate, ``R x |U|``."""
        return self.posterior.log_marginal_likelihood

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Condition on values ``R x m`` at points ``R x m x d``."""
        self.posterior = self.posterior.extend(Measure.dirac(x.unsqueeze(1)), y.unsqueeze(1))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and deviations at points ``R x m x d``, ``R x |U| x m``."""
        mean, variance = self.posterior.mean_and_variance(Measure.dirac(x.unsqueeze(1), known=True))
        # The root of zero has an infinite slope.
        return mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt().expand_as(mean)

    def means_told(self) -> Tensor:
        """Means at what was told, ``R x |U| x t``."""
        assert self.posterior.data is not None
        return self.posterior.mean(self.posterior.data.measure)
