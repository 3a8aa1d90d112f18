"""What the policies for unknown hyperparameters share: the posteriors of all candidates."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_near, as_number, as_tensor, nearest, require
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.former.maximize import argmax_finite, maximize_box
from cbo_lib.former.policy import Policy, Schedule
from cbo_lib.former.tracked import TrackedPosterior
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.hyperparameters.fit import fit_scale
from cbo_lib.hyperparameters.space import Space
from cbo_lib.measure import Measure
from cbo_lib.random import uniform

# A box is searched from the best of so many Sobol points, so many of which are refined.
_RAW, _STARTS = 512, 4


class CandidatePolicy(Policy):
    """What the policies share: the posteriors of all candidates, a random initial design and the recommendation.

    The recommendation is the point told so far, of those in the domain, with the largest posterior mean, averaged over
    the candidates with the weights that the policy gives them.

    A policy of one's own gives ``score`` and ``weights``, and may give ``responsible`` and ``judge``; it finds the
    posteriors in ``moments``, ``upper``, ``mean``, ``std`` and ``likelihood``. All see the batch of replicates.

    Sizes that the space does not know are fitted anew to all data at every question, recommendation and posterior.

    Args:
        space: the domain and the candidates.
        sqrt_beta: the multiplier of the standard deviation: a number, or a function of the round ``t`` that gives a
            number or one a candidate ``|U|``. Round 1 is the first after the initial design; every observation counts
            as a round. Default on a finite domain that of [Ziomek2024], Theorem 4.2, case A, for ``failure``; in a box
            2, for which nothing is promised (case B needs constants of the prior, see ``lipschitz_sqrt_beta``).
        failure: ``delta``, the probability with which the guarantee may fail, in (0, 1). Default 0.1.
        initial: how many independent uniform points are asked first; the same for all policies with the same seeds.
            Old data count. Default 0, and ``2 (d + 1)`` where sizes are fitted.
        options: ``seed`` and ``resolution``, see ``Policy``.

    Attributes:
        mean: of every candidate at the last point that was told, before it was, ``replicates x |U|``.
        std: likewise the standard deviations.
        candidate: the candidate responsible for the last point, ``replicates``; -1 where there is none.
        noise: standard deviation of the noise: a number, or one a candidate ``(replicates) x |U|``.

    Raises:
        ValueError: if an argument is out of range.
    """

    space: Space
    mean: Tensor
    std: Tensor
    candidate: Tensor
    noise: float | Tensor
    _multiplier: tuple[tuple[int | None, int], Tensor] | None = None
    _tracked: TrackedPosterior | None = None
    _proposed: Tensor | None

    def __init__(
        self,
        space: Space,
        *,
        sqrt_beta: Schedule | None = None,
        failure: float = 0.1,
        initial: int | None = None,
        **options: Any,
    ) -> None:
        require(isinstance(space, Space), "space must be a hyperparameters.Space", space)
        self.failure = as_number("failure", failure, 0, 1, "()")
        if sqrt_beta is None:
            sqrt_beta = 2.0
            if space.points is not None:
                sqrt_beta = functools.partial(union_bound_sqrt_beta, len(space.points), failure=failure / 2)
        if initial is None:
            initial = 2 * (space.dim + 1) if any(space.fitted) else 0
        super().__init__(space, sqrt_beta=sqrt_beta, initial=initial, **options)

    # What a policy of one's own gives.

    @abstractmethod
    def score(self, mean: Tensor, std: Tensor) -> Tensor:
        """What to maximize, from means and standard deviations ``replicates x |U| x m`` to ``replicates x m``."""

    @abstractmethod
    def weights(self) -> Tensor:
        """How much the policy believes each candidate, ``replicates x |U|``, summing to one.

        ``recommend`` asks for it in every round, those of the initial design too.
        """

    def responsible(self) -> Tensor:
        """The candidate that the choice of this round goes back to, ``replicates``; -1 where there is none.

        Called once the asked point was played and before any candidate learns; ``mean`` and ``std`` are those there.
        """
        return torch.full_like(self.mean[:, 0], -1).long()

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:  # most learn by posteriors alone
        """Draw conclusions from a round after the initial design; the posteriors hold the observation already.

        Args:
            row: ``query`` and ``y`` of each replicate.
            played: which replicates played what was asked, boolean ``replicates``, at least one.
        """

    # What it finds.

    @property
    def round(self) -> int:
        """The round ``t`` under way, from 1; zero or negative in the initial design."""
        return self.count + 1 - self.initial

    @property
    def likelihood(self) -> Tensor:
        """Log marginal likelihood of every candidate, ``replicates x |U|``."""
        return (self._tracked or self._posterior).log_marginal_likelihood

    def multiplier(self, t: int | None = None) -> Tensor:
        """``sqrt_beta`` of round ``t``, by default of this one: one number, or one a candidate ``|U|``."""
        if t is None and callable(self.sqrt_beta):
            t = self.round
        key = t, id(self.sqrt_beta)
        if self._multiplier is None or self._multiplier[0] != key:
            like = self.space.like
            value = torch.as_tensor(super().multiplier(t), dtype=like.dtype, device=like.device)
            fits = value.shape in (torch.Size(), torch.Size([1]), torch.Size([len(self.space.candidates)]))
            require(fits, "sqrt_beta must give a number or one a candidate", f"shape {tuple(value.shape)}")
            self._multiplier = key, value
        return self._multiplier[1]

    def upper(self, mean: Tensor, std: Tensor) -> Tensor:
        """Upper confidence bounds ``replicates x |U| x m`` of this round."""
        return torch.addcmul(mean, self.multiplier().unsqueeze(-1), std)

    def moments(self, x: Tensor | None = None, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of every candidate, ``replicates x |U| x m``.

        Args:
            x: points ``replicates x m x d``, or ``1 x m x d`` for all. Default all points of a finite domain.
            index: where they are tracked, ``replicates x m``, if that is known.
        """
        if self._tracked is not None:
            if x is None:
                n = len(self.space.finite())
                mean, variance = self._tracked.mean[..., :n], self._tracked.variance[..., :n]
            else:
                index = self._locate(x) if index is None else index  # before the parts are read, which may grow
                parts = self._tracked.mean, self._tracked.variance
                mean, variance = (part.gather(-1, index[:, None].expand(*part.shape[:-1], -1)) for part in parts)
            return mean, variance.sqrt().expand_as(mean)
        points = Measure.dirac((self.space.finite() if x is None else x).unsqueeze(-3), known=True)
        # The root of zero has an infinite slope; a variance of zero is left only without noise.
        mean, variance = self._posterior.mean_and_variance(points)
        return mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt().expand_as(mean)

    def search(self, score: Callable[..., Tensor], spread: Callable[..., Tensor] | None = None) -> Tensor:
        """Where a score like ``score`` is largest: indices of a finite domain, or points of a box ``replicates x d``.

        In a box the score sees the moments of ``spread``, such as balls around the points. Ties go to the first point.
        """
        if self.space.points is not None:
            return argmax_finite(score(*self.moments()))
        wide, raw = (spread, self._raw[: _RAW // 4]) if spread else (lambda x: x, self._raw)  # a ball has many points
        found = maximize_box(lambda x: score(*self.moments(wide(x))), self.space.bounds, raw, _STARTS)[0]
        return self.rounded(found, self.space.bounds)

    def place(self, x: Tensor) -> Tensor:
        """What ``best_of`` takes of points ``replicates x d``: they, or in a finite domain their indices (-1: none)."""
        points = self.space.points
        return x.unsqueeze(1) if points is None else nearest(x.unsqueeze(1), points, points)

    def best_of(self, places: Tensor, score: Callable[..., Tensor], spread: Any = None) -> Tensor:
        """Of places ``replicates x m``, those in the domain, that of the largest score; if none, of the domain."""
        space = self.space
        if space.points is None:
            inside, named = space.contains(places), places.clamp(space.bounds[0], space.bounds[1])
            scores = score(*self.moments(named if spread is None else spread(named)))
        else:
            inside, at = places >= 0, places.clamp_min(0)
            named = space.points[at]
            scores = score(*self.moments(named, at)) if spread is None else score(*self.moments()).gather(-1, at)
        none = ~inside.any(-1)
        best = argmax_finite(scores, inside | none.unsqueeze(-1))
        found = named.take_along_dim(best[:, None, None], 1).squeeze(1)
        if not bool(none.any()):
            return found
        place = self.search(score, spread)
        return torch.where(none.unsqueeze(-1), place if space.points is None else space.points[place], found)

    # Hooks of the base.

    def begin(self) -> None:
        """Make the posteriors of all candidates, who know nothing yet."""
        space, like = self.space, self.space.like
        self._multiplier, self._tracked, self._proposed, self._fitted_at = None, None, None, -1
        self._places = self.place(like[:1].expand(self.replicates, -1))[:, :0]
        self._record: dict[str, Tensor] = {}
        self._fitted: dict[str, Tensor] = {}
        if space.points is None:
            low, high = space.bounds
            sobol = torch.quasirandom.SobolEngine(space.dim, scramble=False).draw(_RAW, dtype=like.dtype).to(like)
            self._raw = low + (high - low) * sobol
        if any(space.fitted):
            self._refresh()
            return
        self.noise = space.noise_std
        self._posterior = self._prior().posterior(self.replicates)
        if space.points is not None:
            shared = self._prior(share=not isinstance(self.noise, Tensor)).posterior(self.replicates)
            self._tracked = shared.track(Measure.dirac(space.points))

    def design(self, n: int) -> Tensor:
        """Independent uniform points."""
        space = self.space
        if space.points is not None:
            draws = [torch.randint(len(space.points), (n,), generator=g) for g in self.generators]
            return space.points[torch.stack(draws).to(space.points.device)]
        low, high = space.bounds
        return self.rounded(low + (high - low) * uniform(self.generators, (n, space.dim), low), space.bounds)

    def propose(self) -> Tensor:
        """The point of the largest score."""
        self._refresh()
        self._proposed = place = self.search(self.score)
        return place if self.space.points is None else self.space.points[place]

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition every candidate; what was asked and played is also judged.

        Old data and other points teach the posteriors alone. No candidate chose them, and their user may have, after
        seeing values: the sums of noise that a test of candidates relies on would not hold.
        """
        query, y, played = row["query"], row["y"], asked & (self.round >= 1)
        multiplier = self.multiplier() if self.round >= 1 else torch.zeros_like(y[0])
        index = None if self._tracked is None else self._locate(query.unsqueeze(-2))
        mean, std = self.moments(query.unsqueeze(-2), index)
        self.mean, self.std = mean.squeeze(-1), std.squeeze(-1)
        nobody = torch.full_like(self.mean[:, 0], -1).long()
        self.candidate = torch.where(played, self.responsible(), nobody) if bool(played.any()) else nobody
        self._record = {
            "initial": torch.full_like(played, self.round < 1),
            "candidate": self.candidate,
            "mean": self.mean,
            "std": self.std,
            "sqrt_beta": multiplier.expand_as(self.mean),
            **self._fitted,
        }
        if self._tracked is None or index is None:
            self._posterior = self._posterior.extend(Measure.dirac(query[:, None, None, :], True), y[:, None, None])
        else:
            batch = self._tracked.batch_shape
            self._tracked.observe(index.expand(batch), y.unsqueeze(-1).expand(batch), self.noise)
        place = self.place(query) if index is None else torch.where(index < len(self.space.finite()), index, -1)
        self._places = torch.cat([self._places, place], 1)
        if bool(played.any()):
            self.judge(row, played)

    def best(self) -> Tensor:
        """The told point of the domain with the largest averaged mean; if none lies there, the point of the domain."""
        self._refresh()
        weights = self.weights().unsqueeze(-1)
        return self.best_of(self._places, lambda mean, std: (weights * mean).sum(1))

    def posteriors(self) -> Posterior:
        """Those of all candidates, ``replicates x |U|``."""
        self._refresh()
        return self._posterior if self._tracked is None or self.count == 0 else self._given(self._posterior)

    def record(self) -> Mapping[str, Tensor]:
        """Of the last round: the responsible candidate (-1: none), every candidate's ``mean``, ``std``, ``sqrt_beta``.

        ``initial`` says whether it belonged to the initial design. ``mean`` and ``std`` are those at the told point
        before the observation, ``replicates x |U|``; ``sqrt_beta`` is zero in the initial design. Where sizes are
        fitted, ``scale``, ``prior_mean``, ``noise_std`` and ``converged`` say how, ``replicates``.
        """
        return self._record

    def check(self, **rows: Tensor) -> None:
        """Points must have the dimension of the domain."""
        size = rows["query"].shape[-1]
        require(size == self.space.dim, f"query must be points of dimension {self.space.dim}", size)

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """In a box nearly what was asked; of a finite domain the same point."""
        if self.space.points is None:
            return super().is_asked(row, asked)
        if bool((same := (row["query"] == asked).all(-1)).all()):
            return same
        place = self.place(row["query"]).squeeze(1)
        return (place >= 0) & (self.space.points[place] == asked).all(-1)

    def encode(self, name: str, value: Any) -> Tensor:
        """On a line a number is a point, and a list of numbers several."""
        rows = as_tensor(name, value, self.space.like)
        rows = super().encode(name, rows.reshape(-1, 1) if self.space.dim == 1 and rows.dim() < 2 else rows)
        return as_near(name, rows, self.space.like)

    def _prior(self, share: bool = False) -> GaussianProcess:
        """The priors whose sizes are known."""
        noise = self.space.noise_std
        return self.space.candidates.prior(noise.unsqueeze(-1) if isinstance(noise, Tensor) else noise, share)

    def _given(self, prior: Posterior) -> Posterior:
        """Conditioned on all that was told."""
        return prior.extend(Measure.dirac(self.data["query"].unsqueeze(1)), self.data["y"].unsqueeze(1))

    def _refresh(self) -> None:
        """Fit the sizes to all data, if that is due."""
        if not any(self.space.fitted) or self._fitted_at == self.count:
            return
        like = self.space.like
        x = self.data["query"] if self.count else like.new_zeros(self.replicates, 0, self.space.dim)
        y = self.data["y"] if self.count else like.new_zeros(self.replicates, 0)
        process, self._fitted = fit_scale(self.space, x, y)
        self.noise, prior = torch.as_tensor(process.noise_std).squeeze(-1), process.posterior()
        self._posterior = self._given(prior) if self.count else prior
        self._fitted_at = self.count

    def _locate(self, x: Tensor) -> Tensor:
        """The tracked indices of points ``replicates x m x d``; what is not there yet is tracked from now on."""
        assert self._tracked is not None
        x, known = x.expand(self.replicates, -1, -1), self._tracked.queries.points.squeeze(-2)
        if self._proposed is not None and torch.equal(known[self._proposed, None], x):
            return self._proposed.unsqueeze(-1)
        index = nearest(x, known, self.space.like)
        if bool((new := index < 0).any()):
            index[new] = self._tracked.add(Measure.dirac(x[new]))
        return index
