"""Theorem 1 of [Zhang2025] on draws of the prior: a policy for each stand-in for ``f*``, and how often it suffices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from book.functions import prior_samples
from book.indirect import regret
from book.indirect.problem import IndirectProblem
from book.indirect.problems import known_prior
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ClippedGaussian, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import standard_normal

LENGTHSCALE, BLUR, NOISE, FAILURE = 0.15, 0.07, 0.1, 0.1


@dataclass(frozen=True)
class DrawnProblem(IndirectProblem):
    """Indirect queries of one function a replicate: f maps points ``1 x ... x d`` to values ``replicates x ...``."""

    @cached_property
    def table(self) -> Tensor:
        """g at every action, then f at every point, ``replicates x (n + m)``."""
        assert self.conditional is not None
        rule = self.conditional.measure(self.space.actions, self.order)
        g = (self.f(rule.points.unsqueeze(0)) * rule.weights).sum(-1)
        return torch.cat([g, self.f(self.space.points.unsqueeze(0))], -1)

    def value(self, query: Tensor) -> Tensor:
        """g or f at one place a replicate, ``replicates``."""
        return self.table.gather(-1, query.unsqueeze(-1)).squeeze(-1)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one place a replicate, ``replicates``."""
        value = self.value(query)
        return value + self.noise[query] * standard_normal(generators, (), value)

    @property
    def optimum(self) -> Tensor:
        """``f*`` of each function, ``replicates x 1``."""
        return self.table[:, self.n :].amax(-1, keepdim=True)


class StandIn(CMES):
    """CMES with one stand-in for ``f*``; how it is chosen is what the variants differ in.

    Args:
        space: what the learner knows.
        prior: of f, or of all places.
    """

    def __init__(self, space: Space, *, prior: GaussianProcess) -> None:
        super().__init__(space, prior=prior, samples=1)

    def propose(self) -> Tensor:
        """Also keep what is recommended before this round's observation."""
        place = self.best()
        rows = place.unsqueeze(-1)
        mean, std = (part.gather(-1, rows).squeeze(-1) for part in (self.mean, self.std))
        self._recommended = {"before": place, "before_mean": mean, "before_std": std}
        return super().propose()

    def record(self) -> Mapping[str, Tensor]:
        """Also the point recommended before the observation, ``before``, with the mean and the deviation of f there."""
        return {**super().record(), **self._recommended}


class PosteriorDraw(StandIn):
    """The maximum of a new draw of f given all that was seen: Thompson sampling as section 5.1 describes it.

    ``CMES(sampling="thompson")`` keeps one path for a whole run, which is faster and not the same.
    """

    def begin(self) -> None:
        """The prior covariance of f at the points."""
        super().begin()
        points = self.belief.tracked.queries[self.places[self.n :]]
        self.left_over = self.belief.of_places().covariance(points, points)

    def absorb(self, query: Tensor, y: Tensor, learned: Tensor) -> None:
        """An observation takes ``row row^T`` away from the covariance."""
        row = self.belief.tracked.last_row[..., self.n : len(self.places)]
        self.left_over = self.left_over - row.unsqueeze(-1) * row.unsqueeze(-2)

    def max_samples(self) -> Tensor:
        """The maximum over the points of one draw, ``replicates x 1``."""
        return maximum_of_draw(self.mean[:, self.n :], self.left_over, self.generators)


class PriorDraw(StandIn):
    """The maximum of a new draw of the prior in every round: what the proof of Theorem 1 takes for granted."""

    def begin(self) -> None:
        """The prior of f at the points."""
        super().begin()
        points = self.belief.tracked.queries[self.places[self.n :]]
        self.first_belief = self.mean[:, self.n :], self.belief.of_places().covariance(points, points)

    def max_samples(self) -> Tensor:
        """The maximum over the points of one draw, ``replicates x 1``."""
        return maximum_of_draw(*self.first_belief, self.generators)


class UpperBound(StandIn):
    """The largest upper confidence bound of f by Lemma 5, for half of ``FAILURE``: in most runs never below ``f*``."""

    def max_samples(self) -> Tensor:
        """``max_x m(x) + sqrt(beta_t) sigma(x)``, ``replicates x 1``."""
        multiplier = regret.band(self.round, self.space.m, FAILURE / 2)
        return (self.mean + multiplier * self.std)[:, self.n :].amax(-1, keepdim=True)


def drawn(replicates: int) -> tuple[DrawnProblem, GaussianProcess]:
    """Draws of an RBF prior on an interval, seen through a Gaussian blur at 60 places, and the prior of all places."""
    wide = torch.tensor([[-0.5], [1.5]], dtype=torch.float64)
    grid = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    blur = ClippedGaussian(lambda a: a, BLUR)
    space = Space(grid, conditional=blur, points=grid, noise_std=NOISE)
    f = prior_samples(rbf_kernel(LENGTHSCALE), wide, range(replicates), grid=161)
    shared = lambda x: f(x.expand(replicates, *x.shape[1:]))  # noqa: E731
    return DrawnProblem(space, shared, order=41), known_prior(space, LENGTHSCALE)


def group_lengths(count: int, w: float = 0.5) -> list[int]:
    """``k_i = log_w(delta / (2 pi_i))``, rounded up, of the first groups of Theorem 1."""
    return [math.ceil(regret.group_length(i, w, FAILURE)) for i in range(1, count + 1)]


def covered(above: Tensor, lengths: Sequence[int]) -> Tensor:
    """Whether each group so far holds a stand-in above ``f*``, ``replicates x groups``.

    Args:
        above: in which rounds it was, boolean ``replicates x T``.
        lengths: of the groups, one after the other; their sum is at most ``T``.
    """
    parts = above[:, : sum(lengths)].split(list(lengths), -1)
    return torch.stack([part.any(-1) for part in parts], -1).cummin(-1).values


def frozen_coverage(lengths: Sequence[int]) -> Tensor:
    """How often all groups so far would be covered if the posterior never changed, ``groups``.

    Then ``w`` is one uniform number for the whole run, and the chance is the integral of ``prod_i (1 - w^(k_i))``.
    """
    w = (torch.arange(20_000, dtype=torch.float64).unsqueeze(-1) + 0.5) / 20_000
    return (1 - w ** torch.as_tensor(lengths)).cumprod(-1).mean(0)


def maximum_of_draw(mean: Tensor, covariance: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """The maximum of one normal vector a replicate, ``replicates x 1``."""
    jitter = 1e-8 * torch.eye(mean.shape[-1]).to(mean)
    factor = torch.linalg.cholesky(covariance + jitter)
    noise = standard_normal(generators, mean.shape[-1:], mean)
    return (mean + (factor @ noise.unsqueeze(-1)).squeeze(-1)).amax(-1, keepdim=True)
