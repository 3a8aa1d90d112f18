"""What the policies of the setting share: the posterior, the best decision of each subset, and the book of costs."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, require
from cbo_lib.fit import fit_gaussian_process
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Function, Measure, require_fit
from cbo_lib.policy import Policy
from cbo_lib.search import argmax_finite
from cbo_lib.subsets.search import Decisions, PlayBelief, climb, rbf_parameters
from cbo_lib.subsets.space import Space


class SubsetPolicy(Policy):
    """A policy that plays a subset and values of its variables, and pays for that.

    A query is a row ``1 + d``: the index of the subset, then a point, of which only the variables of the subset count;
    the others hold the middle of the box. What is told is the row that came to be, its free variables filled in, with y
    and the ``cost``; NaN is a cost that is not known yet, and the index -1 a row for which nothing was set.

    Rows that are told several at once are old: they inform the posterior, and with a cost they count as plays of their
    subsets and as exploration that was paid, but are not charged to the budget.

    Args:
        space: the box, the control sets, how free variables vary, and the budget.
        seeds: one a replicate.
        prior: of f, with its noise; its kernel must be RBF. Default: fitted to what is told.
        sqrt_beta: the multiplier of the deviation, a number or a function of the round. Default 2.
        contexts: how many draws of the free variables stand for their distribution. Default 32.
        raw: how many Sobol points of each subset compete with its last maximizer for the starts. Default 64.
        steps: of a search. Default 8.
        growth: a prior is fitted anew when the observations are so many times as many as at the last fit. Default 1.25.

    Attributes:
        cost: what was paid, ``replicates x t``.
        plays: how often each subset was played, ``replicates x m``; old rows count only with their cost.
        billed, paid: how many of these costs are known, and their sum, ``replicates x m``.
        spent: what was paid for plays that are not old, ``replicates``.
        expected: ``E mu`` and ``E sigma`` of the last play, before it was made, ``replicates`` each.

    Raises:
        ValueError: if an argument is out of range.
    """

    sees: ClassVar[tuple[str, ...]] = ("cost",)

    def __init__(
        self,
        space: Space,
        seeds: Sequence[int],
        prior: GaussianProcess | None = None,
        sqrt_beta: float | Callable[[int], float] = 2.0,
        contexts: int = 32,
        raw: int = 64,
        steps: int = 8,
        growth: float = 1.25,
    ) -> None:
        require(isinstance(space, Space), "space must be a subsets.Space", space)
        super().__init__(space, seeds, (1 + space.dim,))
        if prior is not None:
            require(isinstance(prior, GaussianProcess), "prior must be a GaussianProcess", prior)
            require_fit("prior", prior.kernel, space.bounds[:1])
            rbf_parameters("prior", prior, space)
        self.given, self.multiplier = prior, as_schedule("sqrt_beta", sqrt_beta)
        self.growth = as_number("growth", growth, 1, ends="()")
        self.steps = as_count("steps", steps, 1)
        self.contexts = space.samples(as_count("contexts", contexts, 1))
        sobol = torch.quasirandom.SobolEngine(space.dim, scramble=True, seed=1)
        self.raw = sobol.draw(as_count("raw", raw, 1)).to(space.bounds)
        self.cost = self.y
        self.plays = self.y.new_zeros(len(seeds), space.m, dtype=torch.long)
        self.billed = self.plays
        self.paid = self.y.new_zeros(len(seeds), space.m)
        self.spent = self.y.new_zeros(len(seeds))
        self.warm = {sign: space.center.repeat(len(seeds), space.m, 1) for sign in (1, -1)}  # where searches ended
        self.best = self.y.new_zeros(len(seeds), 1 + space.dim)
        self.best_lower = torch.full_like(self.spent, -math.inf)
        self.expected = self.spent, self.spent
        self.asked_at = 0
        self._prior, self._fitted_at = prior, 0
        self._belief: PlayBelief | None = None

    @property
    def sqrt_beta(self) -> float:
        """The multiplier of this round."""
        return self.multiplier(self.round) if callable(self.multiplier) else self.multiplier

    # The posterior.

    @property
    def prior(self) -> GaussianProcess:
        """The prior in force, a fitted one if none was given."""
        t = self.y.shape[1]
        if self._prior is None or (self.given is None and t >= max(2, self.growth * self._fitted_at)):
            points = Measure.dirac(self.queries[..., 1:])
            self._prior = fit_gaussian_process(points, self.y, self.space.bounds, "rbf", iterations=30)
            self._fitted_at, self._belief = t, None
            self.refitted()
        return self._prior

    def refitted(self) -> None:
        """The prior is another: the best play so far is judged anew."""
        if bool((self.best_lower > -math.inf).any()):
            mean, std = self.moments(self.best)
            known = self.best_lower > -math.inf
            self.best_lower = torch.where(known, mean - self.sqrt_beta * std, self.best_lower)

    @property
    def belief(self) -> PlayBelief:
        """The posterior of f given all that was told, as the search sees it."""
        prior, t = self.prior, self.y.shape[1]
        known = 0 if self._belief is None else self._belief.x.shape[1]
        if self._belief is not None and known == t - 1 > 0:
            self._belief = self._belief.extend(self.queries[:, -1, 1:], self.y[:, -1])
        elif self._belief is None or known != t:
            self._belief = PlayBelief(self.space, prior, self.queries[..., 1:], self.y, self.contexts)
        return self._belief

    @property
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told."""
        prior = self.prior.posterior(None if self.prior.kernel.batch_shape else len(self.y))
        return prior.extend(Measure.dirac(self.queries[..., 1:]), self.y)

    # Decisions.

    def climb(self, subsets: list[int], values: Function, sign: int = 1) -> Tensor:
        """The decisions of some subsets where a function of decisions is largest, ``replicates x c x d``.

        Sobol points, shifted in every round, compete with where the last search of that sign ended for the starts.
        """
        warm = self.warm[sign][:, subsets].unsqueeze(2)
        low, high = self.space.bounds
        raw = low + (high - low) * ((self.raw + 0.6180339887 * self.round) % 1)
        raw = raw.expand(*warm.shape[:2], -1, -1)
        points = climb(values, self.space, subsets, torch.cat([warm, raw], 2), self.steps)
        self.warm[sign][:, subsets] = points
        return points

    def search(self, wanted: Tensor, sign: int = 1) -> Decisions:
        """The decisions of the largest expected upper (``sign`` 1) or lower bounds (-1) of the wanted subsets.

        ``wanted`` is boolean, ``replicates x m``.
        """
        subsets = wanted.any(0).nonzero().flatten().tolist()
        points = self.space.center.repeat(*wanted.shape, 1)
        mean, std = torch.full_like(self.paid, -math.inf), torch.zeros_like(self.paid)
        if subsets:
            found = self.climb(subsets, self.belief.bound(subsets, sign * self.sqrt_beta), sign)
            points[:, subsets] = found
            mean[:, subsets], std[:, subsets] = self.belief.moments(found, self.space.controlled[subsets])
        return Decisions(points, mean.masked_fill(~wanted, -math.inf), std.masked_fill(~wanted, 0.0))

    def moments(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """``E mu`` and ``E sigma`` of plays ``replicates x (1 + d)``, ``replicates`` each."""
        mask = self.space.controlled_by(query[:, 0]).unsqueeze(1)
        mean, std = self.belief.moments(query[:, None, 1:], mask)
        return mean.squeeze(1), std.squeeze(1)

    @torch.no_grad()
    def ask(self) -> Tensor:
        """The next play of each replicate, ``replicates x (1 + d)``."""
        self.asked_at = self.round
        return self.row(*self.choose())

    def row(self, subset: Tensor, points: Tensor) -> Tensor:
        """Plays ``replicates x (1 + d)`` of one subset a replicate, from decisions ``replicates x m x d`` of all."""
        chosen = points.take_along_dim(subset.view(-1, 1, 1), 1).squeeze(1)
        return torch.cat([subset.to(points).unsqueeze(-1), chosen], -1)

    @abstractmethod
    def choose(self) -> tuple[Tensor, Tensor]:
        """Which subset each replicate plays, ``replicates``, and decisions of every subset, ``replicates x m x d``."""

    # What is told.

    def tell(self, query: Tensor, y: Tensor, cost: Tensor) -> None:  # type: ignore[override]
        """Learn the row that came to be (``replicates x (1 + d)``), its ``y`` and what it cost, ``replicates`` each."""
        if self.asked_at != self.round:  # the bounds of this round count, whoever plays
            self.ask()
        self.expected = self.moments(query)
        lower = self.expected[0] - self.sqrt_beta * self.expected[1]
        better = (lower > self.best_lower) & (query[:, 0] >= 0)
        self.best = torch.where(better.unsqueeze(-1), query, self.best)
        self.best_lower = torch.where(better, lower, self.best_lower)
        self.learn(query.unsqueeze(1), y.unsqueeze(1), cost.unsqueeze(1))
        self.spent = self.spent + cost.nan_to_num(0.0)

    def learn(self, query: Tensor, y: Tensor, cost: Tensor) -> None:  # type: ignore[override]
        """Old rows, ``n`` at once: ``replicates x n x (1 + d)`` and ``replicates x n``."""
        worst = self.space.floor
        require(worst is not None or y >= 0, "y must not be negative unless the space has a floor", y)
        for i in range(y.shape[1]):
            super().tell(query[:, i], y[:, i])
        self.cost = torch.cat([self.cost, cost], 1)
        own = torch.nn.functional.one_hot(query[..., 0].long() + 1, self.space.m + 1)[..., 1:]
        known = own * (~cost.isnan()).unsqueeze(-1)
        self.plays = self.plays + (own if y.shape[1] == 1 else known).sum(1)
        self.billed = self.billed + known.sum(1)
        self.paid = self.paid + (known * cost.nan_to_num(0.0).unsqueeze(-1)).sum(1)

    def average_cost(self) -> Tensor:
        """What a play of each subset cost on average, ``replicates x m``; without any bill as much as the dearest."""
        average = self.paid / self.billed.clamp_min(1)
        return torch.where((self.plays > 0) & (self.billed == 0), average.amax(-1, keepdim=True), average)

    def recommend(self) -> Tensor:
        """The play whose expected lower bound was largest when it was made; before any the posterior's, of old rows."""
        none = self.best_lower == -math.inf
        if not bool(none.any()):
            return self.best
        found = self.search(none.unsqueeze(-1).expand_as(self.paid), -1)
        subset = argmax_finite(found.mean - self.sqrt_beta * found.std)
        return torch.where(none.unsqueeze(-1), self.row(subset, found.points), self.best)
