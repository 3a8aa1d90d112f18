"""HE-GP-UCB and HE-StableOpt, optimization with hyperparameter elimination ([Ziomek2024])."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, nearly, require
from cbo_lib.confidence import noise_threshold, union_bound_sqrt_beta
from cbo_lib.gp import Posterior
from cbo_lib.hyperparameters.belief import BoxBelief, ListBelief
from cbo_lib.hyperparameters.space import Space
from cbo_lib.measure import Measure
from cbo_lib.policy import Policy
from cbo_lib.random import uniform
from cbo_lib.search import argmax_finite, maximize_box, on_grid

# A box is searched from the best of so many Sobol points.
_RAW = 512


class CandidatePolicy(Policy):
    """A policy that knows the posteriors of all candidates. A policy of one's own gives ``ask`` and ``weights``.

    Args:
        space: the domain, the candidates and the noise.
        seeds: one a replicate.
        sqrt_beta: the multiplier of the deviation: a number, or a function of the round ``t`` that gives a number or
            one a candidate, ``|U|``. Round ``t`` is the one that follows ``t - 1`` observations. Default on a finite
            domain that of [Ziomek2024], Theorem 4.2, case A, for ``failure``; in a box 2, for which nothing is
            promised (case B needs constants of the prior).
        failure: ``delta``, the probability with which the guarantee may fail, in (0, 1). Default 0.1.
        initial: how many independent uniform points are asked first. Default 0.

    Attributes:
        asked: the points that were asked last, ``replicates x d``.
        candidate: the candidate that chose them, ``replicates``; -1 where none did.
        mean, std: of every candidate there, before the answer, ``replicates x |U|``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        seeds: Sequence[int],
        sqrt_beta: Any = None,
        failure: float = 0.1,
        initial: int = 0,
    ) -> None:
        require(isinstance(space, Space), "space must be a hyperparameters.Space", space)
        super().__init__(space, seeds, (space.dim,))
        self.failure, self.initial = as_number("failure", failure, 0, 1, "()"), as_count("initial", initial)
        if sqrt_beta is None:
            finite = functools.partial(union_bound_sqrt_beta, len(space.like), failure=failure / 2)
            sqrt_beta = 2.0 if space.points is None else finite
        self.given_sqrt_beta = as_schedule("sqrt_beta", sqrt_beta)
        prior, count = space.candidates.prior(space.noise_std), len(seeds)
        self.belief = BoxBelief(prior, count) if space.points is None else ListBelief(prior, count, space.points)
        self.candidate, self.asked_at = torch.full((count,), -1, device=space.like.device), 0
        self.inside = torch.zeros_like(self.y, dtype=torch.bool)  # whether a told point is of the domain

    @property
    def likelihood(self) -> Tensor:
        """Log marginal likelihood of every candidate, ``replicates x |U|``."""
        return self.belief.likelihood

    @property
    def posterior(self) -> Posterior:
        """The posteriors of all candidates given all that was told, a batch ``replicates x |U|``."""
        prior = self.space.candidates.prior(self.space.noise_std).posterior(len(self.y))
        return prior.extend(Measure.dirac(self.queries.unsqueeze(1)), self.y.unsqueeze(1)) if self.round > 1 else prior

    def multiplier(self, t: int | None = None) -> Tensor:
        """``sqrt_beta`` of round ``t``, by default of this one, for every candidate, ``|U|``."""
        given, count = self.given_sqrt_beta, len(self.space.candidates)
        value = given(self.round if t is None else t) if callable(given) else given
        value = torch.as_tensor(value).to(self.space.like)
        require(value.shape in ((), (count,)), "sqrt_beta must give a number or one a candidate", value.shape)
        return value.expand(count)

    def upper(self, mean: Tensor, std: Tensor) -> Tensor:
        """Upper confidence bounds ``replicates x |U| x m`` of this round (lines 3 to 6)."""
        return mean + self.multiplier().unsqueeze(-1) * std

    def search(self, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The point where a score of means and deviations ``replicates x |U| x m`` is largest, ``replicates x d``.

        ``score`` gives ``replicates x m``. Of points of a list that tie the first.
        """
        if isinstance(self.belief, ListBelief):
            mean, std = self.belief.moments()
            n = len(self.space.points)  # told points that are not of the list stand behind it
            return self.space.points[argmax_finite(score(mean[..., :n], std[..., :n]))]
        belief, bounds = self.belief, self.space.bounds
        sobol = torch.quasirandom.SobolEngine(self.space.dim).draw(_RAW, dtype=bounds.dtype).to(bounds)
        raw = (bounds[0] + (bounds[1] - bounds[0]) * sobol).expand(len(self.y), -1, -1)
        return on_grid(maximize_box(lambda x: score(*belief.moments(x)), bounds, raw)[0], bounds)

    def initial_point(self) -> Tensor | None:
        """A uniform point of each replicate, ``replicates x d``, while the initial design lasts."""
        self.candidate = torch.full_like(self.candidate, -1)
        if self.round > self.initial:
            return None
        if self.space.points is not None:
            index = [torch.randint(len(self.space.points), (), generator=g) for g in self.generators]
            self.asked = self.space.points[torch.stack(index).to(self.space.points.device)]
        else:
            low, high = self.space.bounds
            unit = uniform(self.generators, (self.space.dim,), low)
            self.asked = on_grid(low + (high - low) * unit, self.space.bounds)
        self.predict()
        return self.asked

    def predict(self) -> None:
        """Note what every candidate expects where it is asked next."""
        self.asked_at = self.round
        self.mean, self.std = (part.squeeze(-1) for part in self.belief.moments(self.asked.unsqueeze(1)))

    def answers(self, x: Tensor) -> bool:
        """Whether points ``replicates x d`` are those that are asked in this round, to single precision."""
        if self.asked_at != self.round:
            self.ask()
        return bool(nearly(x, self.asked, self.space.like).all())

    @torch.no_grad()
    def tell(self, x: Tensor, y: Tensor) -> None:
        """Condition every candidate on the value ``y`` (``replicates``) at a point (``replicates x d``)."""
        CandidatePolicy.learn(self, x.unsqueeze(1), y.unsqueeze(1))

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        """Condition every candidate on old values, ``replicates x n x d`` and ``replicates x n``."""
        self.queries, self.y = torch.cat([self.queries, x], 1), torch.cat([self.y, y], 1)
        self.inside = torch.cat([self.inside, self.space.contains(x)], 1)
        self.belief.observe(x, y)

    def weights(self) -> Tensor:
        """How much the policy believes each candidate, ``replicates x |U|``, summing to one; default the same."""
        return torch.full_like(self.likelihood, 1 / self.likelihood.shape[-1])

    def recommend(self) -> Tensor:
        """The told point of the largest mean, averaged over the candidates by their weights, ``replicates x d``.

        Points outside of the domain do not count, unless nothing else was told.
        """
        mean = (self.weights().unsqueeze(-1) * self.belief.means_told()).sum(1)
        best = argmax_finite(mean, self.inside | ~self.inside.any(-1, keepdim=True))
        return self.queries[torch.arange(len(mean), device=mean.device), best]


class HEGPUCB(CandidatePolicy):
    """GP-UCB with hyperparameter elimination, HE-GP-UCB ([Ziomek2024], Algorithm 1).

    Two rules are not in the paper. The last candidate is never dropped. And old data, which no candidate chose, drop
    those whose likelihood is more than ``log(|U| / failure)`` below that of the best candidate left: for a draw of one
    of the priors this costs the truth with probability at most ``failure`` (Ville's inequality).

    Args:
        eliminate: whether candidates are dropped. Default true.
        options: see ``CandidatePolicy``, as for errors.

    Attributes:
        alive: ``U_t``, which candidates are left, boolean ``replicates x |U|``.
        rounds, errors, widths: of the rounds that each candidate chose, how many, and their sums of ``eta`` and
            ``sqrt_beta sigma``, ``replicates x |U|``.
    """

    def __init__(self, space: Space, *, eliminate: bool = True, **options: Any) -> None:
        super().__init__(space, **options)
        self.eliminate = eliminate
        self.alive = torch.ones_like(self.likelihood, dtype=torch.bool)  # line 1
        self.rounds, self.errors, self.widths = (torch.zeros_like(self.likelihood) for _ in range(3))

    def ask(self) -> Tensor:
        """The point of the largest upper confidence bound of a candidate left, ``replicates x d``."""
        if (point := self.initial_point()) is not None:
            return point

        def highest(mean: Tensor, std: Tensor) -> Tensor:
            return self.upper(mean, std).masked_fill(~self.alive.unsqueeze(-1), -torch.inf).amax(1)  # lines 3 to 6

        self.asked = self.search(highest)  # line 7
        self.predict()
        self.candidate = argmax_finite(self.mean + self.multiplier() * self.std, self.alive)
        return self.asked

    @torch.no_grad()
    def tell(self, x: Tensor, y: Tensor) -> None:
        """Learn the answer ``y`` (``replicates``), and test the candidate that chose the point (``replicates x d``)."""
        if not self.answers(x):
            return self.learn(x.unsqueeze(1), y.unsqueeze(1))
        chose = torch.arange(self.alive.shape[-1], device=x.device) == self.candidate.unsqueeze(-1)
        multiplier, t = self.multiplier(), self.round
        self.rounds = self.rounds + chose  # line 8
        super().tell(x, y)  # lines 9 and 10
        self.errors = self.errors + chose * (y.unsqueeze(-1) - self.mean)  # line 11
        self.widths = self.widths + chose * multiplier * self.std
        xi = noise_threshold(t, self.space.noise_std, self.alive.shape[-1], self.failure).to(y)
        self.drop(chose & (self.errors.abs() > (xi * self.rounds).sqrt() + self.widths))  # line 12

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        """Old values, ``replicates x n x d`` and ``replicates x n``; they may drop candidates by their likelihood."""
        super().learn(x, y)
        behind = self.likelihood.masked_fill(~self.alive, -torch.inf).amax(-1, keepdim=True) - self.likelihood
        self.drop(behind > math.log(self.alive.shape[-1] / self.failure))
        self.candidate = torch.full_like(self.candidate, -1)  # nobody chose what was told last

    def drop(self, refuted: Tensor) -> None:
        """Drop candidates, boolean ``replicates x |U|``, unless none would be left."""
        left = self.alive & ~refuted
        if self.eliminate:
            self.alive = torch.where(left.any(-1, keepdim=True), left, self.alive)  # line 13

    def weights(self) -> Tensor:
        """All candidates left alike."""
        return self.alive / self.alive.sum(-1, keepdim=True).to(self.y)


class HEStableOpt(HEGPUCB):
    """Robust optimization with hyperparameter elimination, HE-StableOpt ([Ziomek2024], Algorithm 2).

    Chooses ``x`` by the worst upper confidence bound within ``epsilon`` under the most favorable candidate ``u``, then
    asks the point within ``epsilon`` of it with the smallest lower confidence bound under any candidate ``v``. Both are
    tested, each on its own rounds; when both are refuted, both go. It recommends the chosen point whose worst averaged
    mean within ``epsilon`` is largest.

    Arguments are those of ``HEGPUCB``; the domain must be finite.

    Attributes:
        chosen: the points ``x`` of all rounds, ``replicates x t x d``; what was told otherwise stands for itself.
        pessimist: the candidate ``v``, ``replicates``.
        rounds, errors, widths: the sums of both roles, first those of ``u``, ``replicates x 2 x |U|``.
    """

    def __init__(self, space: Space, **options: Any) -> None:
        require(isinstance(space, Space) and space.points is not None, "space must be a Space of points", space)
        super().__init__(space, **options)
        self.chosen, self.center = self.queries, self.queries.new_zeros(len(self.y), space.dim)
        self.pessimist = self.candidate
        self.rounds = self.errors = self.widths = torch.stack([self.rounds, self.rounds], 1)

    def ask(self) -> Tensor:
        """The worst point near the best one, ``replicates x d``."""
        self.pessimist = torch.full_like(self.pessimist, -1)
        if (point := self.initial_point()) is not None:
            self.center = point
            return point
        assert isinstance(self.belief, ListBelief)  # of a finite domain
        gone, n = ~self.alive.unsqueeze(-1), len(self.space.points)
        mean, std = (part[..., :n] for part in self.belief.moments())
        width = self.multiplier().unsqueeze(-1) * std
        upper, lower = mean + width, mean - width  # lines 3 to 7
        worst = self.space.worst(upper).masked_fill(gone, -torch.inf)
        place = argmax_finite(worst.amax(1))  # line 8
        self.candidate = argmax_finite(worst.take_along_dim(place[:, None, None], -1).squeeze(-1), self.alive)
        near = self.space.neighbors[place]  # replicates m
        lowest = lower.masked_fill(gone, torch.inf).take_along_dim(near.unsqueeze(1), -1)
        at = argmax_finite(-lowest.amin(1))  # line 9
        self.pessimist = argmax_finite(-lowest.take_along_dim(at[:, None, None], -1).squeeze(-1), self.alive)
        self.center = self.space.points[place]
        self.asked = self.space.points[near.gather(-1, at.unsqueeze(-1)).squeeze(-1)]
        self.predict()
        return self.asked

    @torch.no_grad()
    def tell(self, x: Tensor, y: Tensor) -> None:
        """Learn the answer ``y`` (``replicates``) at the shifted point (``replicates x d``); test both candidates."""
        if not self.answers(x):
            return self.learn(x.unsqueeze(1), y.unsqueeze(1))
        both = torch.stack([self.candidate, self.pessimist], 1).unsqueeze(-1)  # replicates 2 1
        own = torch.arange(self.alive.shape[-1], device=x.device) == both  # replicates 2 |U|
        multiplier, t = self.multiplier(), self.round
        self.rounds = self.rounds + own  # lines 10 and 11
        CandidatePolicy.tell(self, x, y)  # lines 12 and 13
        self.chosen = torch.cat([self.chosen, self.center.unsqueeze(1)], 1)
        self.errors = self.errors + own * (y.unsqueeze(-1) - self.mean).unsqueeze(1)  # lines 14 and 15
        self.widths = self.widths + own * (multiplier * self.std).unsqueeze(1)
        xi = noise_threshold(t, self.space.noise_std, self.alive.shape[-1], self.failure).to(y)
        u, v = (own & (self.errors.abs() > (xi * self.rounds).sqrt() + self.widths)).unbind(1)  # lines 16 and 19
        self.drop(u)  # line 17
        self.drop(v)  # line 20

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        """Old values, see ``HEGPUCB``."""
        super().learn(x, y)
        self.chosen = torch.cat([self.chosen, x], 1)

    def recommend(self) -> Tensor:
        """Of the chosen points that of the best worst averaged mean, ``replicates x d``."""
        assert isinstance(self.belief, ListBelief)
        n = len(self.space.points)
        mean = (self.weights().unsqueeze(-1) * self.belief.moments()[0][..., :n]).sum(1)
        index = torch.cdist(self.chosen, self.space.points).argmin(-1)
        allowed = self.inside | ~self.inside.any(-1, keepdim=True)
        best = argmax_finite(self.space.worst(mean).gather(-1, index), allowed)
        return self.chosen[torch.arange(len(mean), device=mean.device), best]
