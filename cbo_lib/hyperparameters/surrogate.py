"""The posteriors of all candidates at once, on a finite domain or in a box."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cbo_lib.gp import Posterior
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.maximize import argmax_finite, maximize_box
from cbo_lib.measure import Measure
from cbo_lib.random import uniform

#: A score from means and standard deviations ``replicates x |U| x m`` to ``replicates x m``.
Score = Callable[[Tensor, Tensor], Tensor]


class Surrogate(ABC):
    """One Gaussian process a replicate and candidate, all given the same data in each replicate.

    Every posterior is a batch ``replicates x |U|``. A place is what ``maximize`` returns: an index into a finite
    domain, or a point of a box, one a replicate.
    """

    @abstractmethod
    def draw(self, generators: Sequence[torch.Generator], n: int) -> Tensor:
        """``n`` independent uniform places a replicate, ``replicates x n ...``."""

    @abstractmethod
    def maximize(self, score: Score) -> Tensor:
        """The place of the largest score of each replicate."""

    @abstractmethod
    def at(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of every candidate at one place a replicate, ``replicates x |U|``."""

    @abstractmethod
    def observe(self, place: Tensor, y: Tensor) -> None:
        """Take in one observation ``replicates``."""

    @abstractmethod
    def point(self, place: Tensor) -> Tensor:
        """The coordinates of places, ``... x d``."""

    @property
    @abstractmethod
    def log_marginal_likelihood(self) -> Tensor:
        """Of every candidate, ``replicates x |U|``."""

    @abstractmethod
    def visited(self) -> tuple[Tensor, Tensor]:
        """The points asked so far, ``replicates x t x d``, and all means there, ``replicates x |U| x t``."""


class FiniteSurrogate(Surrogate):
    """Tracks every point of a finite domain; an observation costs ``O(t n)`` a posterior."""

    def __init__(self, problem: UnknownPriorProblem, replicates: int) -> None:
        self.points = problem._finite()
        prior = problem.candidates.prior(problem.noise_std, share=True)
        self.tracked = prior.posterior(replicates).track(Measure.dirac(self.points))
        self.order = torch.arange(len(self.points), device=self.points.device)
        self.places: list[Tensor] = []

    @property
    def std(self) -> Tensor:
        """Posterior standard deviation at every point, ``replicates x |U| x n``."""
        return self.tracked.variance.sqrt().expand_as(self.tracked.mean)

    def draw(self, generators: Sequence[torch.Generator], n: int) -> Tensor:
        """Indices, ``replicates x n``."""
        draws = [torch.randint(len(self.points), (n,), generator=g) for g in generators]
        return torch.stack(draws).to(self.points.device)

    def maximize(self, score: Score) -> Tensor:
        """The index of the largest score, ``replicates``; ties go to the first point."""
        values = score(self.tracked.mean, self.std)
        return argmax_finite(values, torch.ones_like(self.order, dtype=torch.bool), self.order)

    def at(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation at an index."""
        index = place[:, None, None]
        mean, variance = (
            t.gather(-1, index.expand(*t.shape[:-1], 1)).squeeze(-1) for t in (self.tracked.mean, self.tracked.variance)
        )
        return mean, variance.sqrt().expand_as(mean)

    def observe(self, place: Tensor, y: Tensor) -> None:
        """A rank-one step of all tracked posteriors."""
        batch = self.tracked.batch_shape
        self.tracked.observe(place.unsqueeze(-1).expand(batch), y.unsqueeze(-1).expand(batch))
        self.places.append(place)

    def point(self, place: Tensor) -> Tensor:
        """The points of indices."""
        return self.points[place]

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """From the tracked factors."""
        return self.tracked.log_marginal_likelihood

    def visited(self) -> tuple[Tensor, Tensor]:
        """Read off the tracked means."""
        index = torch.stack(self.places, -1)
        mean = self.tracked.mean
        return self.points[index], mean.gather(-1, index.unsqueeze(1).expand(*mean.shape[:2], -1))


class BoxSurrogate(Surrogate):
    """Searches a box: the best of fixed Sobol points, refined by BoTorch's L-BFGS-B.

    Args:
        problem: with a box.
        replicates: how many.
        raw: how many Sobol points start the search. Default 512.
        starts: how many of them are refined. Default 4.
    """

    def __init__(self, problem: UnknownPriorProblem, replicates: int, raw: int = 512, starts: int = 4) -> None:
        assert problem.bounds is not None
        self.bounds, self.replicates, self.starts = problem.bounds, replicates, starts
        low, high = self.bounds
        sobol = torch.quasirandom.SobolEngine(problem.dim, scramble=False).draw(raw, dtype=low.dtype).to(low)
        self.raw = low + (high - low) * sobol
        self.posterior: Posterior = problem.candidates.prior(problem.noise_std).posterior(replicates)
        self.places: list[Tensor] = []

    def draw(self, generators: Sequence[torch.Generator], n: int) -> Tensor:
        """Points, ``replicates x n x d``."""
        low, high = self.bounds
        return low + (high - low) * uniform(generators, (n, len(low)), low)

    def maximize(self, score: Score) -> Tensor:
        """The point of the largest score found, ``replicates x d``."""
        return maximize_box(lambda x: score(*self._moments(x)), self.bounds, self.raw, self.starts)[0]

    def at(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation at a point."""
        mean, std = self._moments(place.unsqueeze(-2))
        return mean.squeeze(-1), std.squeeze(-1)

    def observe(self, place: Tensor, y: Tensor) -> None:
        """A rank-one append to all factors."""
        self.posterior = self.posterior.extend(Measure.dirac(place[:, None, None, :]), y[:, None, None])
        self.places.append(place)

    def point(self, place: Tensor) -> Tensor:
        """Places are points."""
        return place

    @property
    def log_marginal_likelihood(self) -> Tensor:
        """From the factors."""
        return self.posterior.log_marginal_likelihood

    def visited(self) -> tuple[Tensor, Tensor]:
        """The means are computed again."""
        points = torch.stack(self.places, -2)
        return points, self._moments(points)[0]

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every candidate at ``replicates x m x d``."""
        points = Measure.dirac(x.unsqueeze(1))
        # The root of zero has an infinite slope; a variance of zero is left only without noise.
        mean, variance = self.posterior.mean(points), self.posterior.variance(points).clamp_min(1e-20)
        return mean, variance.sqrt().expand_as(mean)
