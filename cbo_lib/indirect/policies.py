"""CMES, CMETS and the policies that they are compared with.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
.. [Wang2017] Z. Wang, S. Jegelka. Max-value Entropy Search for Efficient Bayesian Optimization. ICML 2017.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.embedding import places
from cbo_lib.indirect.entropy import conditional_max_value_entropy, gumbel_max_samples
from cbo_lib.indirect.problem import IndirectProblem
from cbo_lib.maximize import argmax_finite
from cbo_lib.measure import Measure
from cbo_lib.random import standard_normal, uniform
from cbo_lib.tracked import TrackedPosterior


class IndirectPolicy(ABC):
    """What the policies share: the conditional mean process, a random initial design and the recommendation.

    All recommend the point of the largest posterior mean of f under the same process; they differ in what they ask.

    Args:
        problem: see ``IndirectProblem``.
        prior: of all places, batch ``()`` or ``(replicates,)``: ``known_prior`` or ``estimated_prior``.
        initial: how many random actions are asked first; the same for all policies with the same seeds. Default 0.
        budget: the total cost that may be spent; a replicate that can afford no action asks no more (its later
            rounds repeat the last action at no cost and learn nothing). Default unlimited.

    Raises:
        ValueError: if an argument is out of range, or the budget pays for no action.
    """

    #: Whether points are asked in the place of actions.
    direct = False

    def __init__(
        self, problem: IndirectProblem, prior: GaussianProcess, initial: int = 0, budget: float = math.inf
    ) -> None:
        if initial < 0:
            raise ValueError(f"initial must be nonnegative, got {initial}")
        cheapest = float(problem.costs[: problem.n].amin())
        if not budget >= cheapest:
            raise ValueError(f"budget must pay for the cheapest action, {cheapest:g}, got {budget}")
        self.problem, self.prior, self.initial, self.budget = problem, prior, initial, budget
        self.posterior: TrackedPosterior | None = None

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        batch = self.prior.kernel.batch_shape
        if batch and batch != (len(generators),):
            raise ValueError(f"prior must have no batch or one of {len(generators)} replicates, got {tuple(batch)}")
        self.generators = generators
        self.posterior = self.prior.posterior(None if batch else len(generators)).track(places(self.problem))
        draws = [torch.randint(self.problem.n, (self.initial,), generator=g) for g in generators]
        self._design = torch.stack(draws).to(self.problem.points.device)
        self._rows = torch.arange(len(generators), device=self.problem.points.device)
        self.left = torch.full((len(generators),), self.budget).to(self.problem.points)
        self.order = torch.arange(len(self.problem.table), device=self.problem.points.device)
        self.step = 0
        self._query = torch.zeros_like(self._rows)

    @property
    def mean(self) -> Tensor:
        """Posterior means at all places, ``replicates x (n + m)``."""
        return self._started().mean

    @property
    def std(self) -> Tensor:
        """Posterior standard deviations at all places, ``replicates x (n + m)``."""
        return self._started().variance.sqrt()

    def ask(self) -> Tensor:
        """The next place of each replicate, ``replicates``."""
        self._started()
        allowed = self._allowed() & (self.problem.costs <= self.left.unsqueeze(-1) + 1e-9)
        self._active = allowed.any(-1)
        if self.step < self.initial and not self.direct:
            query = self._design[:, self.step]
            self._active = self._active & (self.problem.costs[query] <= self.left + 1e-9)
        else:
            scores = self._scores()
            somewhere = allowed | ~self._active.unsqueeze(-1)
            query = argmax_finite(scores, somewhere, self.order)
        self._query = torch.where(self._active, query, self._query)
        self._before = self.mean[self._rows, self._query], self.std[self._rows, self._query]
        return self._query

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Condition each replicate on its observation ``replicates`` of what was asked.

        Raises:
            ValueError: if other places were asked, or the observations do not fit.
        """
        posterior = self._started()
        if not torch.equal(query, self._query):
            raise ValueError("query must be what was asked last, got other places")
        noise = self.problem.noise[query]
        # An exhausted replicate learns nothing: its observation has no weight.
        posterior.observe(query, observation, torch.where(self._active, noise, 1e9))
        self._cost = torch.where(self._active, self.problem.costs[query], 0.0)
        self.left = self.left - self._cost
        self._learn(query, observation)
        self.step += 1

    def recommend(self) -> Tensor:
        """The place of the point with the largest posterior mean of f, ``replicates``."""
        mean = self.mean
        return argmax_finite(mean, self.order >= self.problem.n, self.order)

    def trace(self) -> Mapping[str, Tensor]:
        """Mean and standard deviation at the asked place before the observation, its cost, and whether it was asked."""
        return {
            "mean": self._before[0],
            "std": self._before[1],
            "cost": self._cost,
            "active": self._active.clone(),
        }

    def _started(self) -> TrackedPosterior:
        if self.posterior is None:
            raise ValueError("start must be called first")
        return self.posterior

    def _allowed(self) -> Tensor:
        """Which places may be asked, ``n + m`` or ``replicates x (n + m)``."""
        return self.order >= self.problem.n if self.direct else self.order < self.problem.n

    @abstractmethod
    def _scores(self) -> Tensor:
        """What to maximize, ``replicates x (n + m)``."""

    def _learn(self, query: Tensor, observation: Tensor) -> None:  # noqa: B027  # most learn through the process alone
        """Draw further conclusions from a round."""


class CMES(IndirectPolicy):
    """Conditional max-value entropy search ([Zhang2025]_, section 5.1).

    Asks the action whose observation carries the most information about ``f*`` (``conditional_max_value_entropy``),
    divided by its cost.

    Args:
        problem: see ``IndirectPolicy``.
        prior: see ``IndirectPolicy``.
        initial: see ``IndirectPolicy``.
        budget: see ``IndirectPolicy``.
        samples: how many samples of ``f*``. Default 10.
        sampling: how they are drawn: ``"gumbel"`` ([Wang2017]_), or ``"thompson"``, the maxima of joint draws of f,
            which are updated by Matheron's rule.
        noisy: whether to use the form of Appendix A; default Eq. 14.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: IndirectProblem,
        prior: GaussianProcess,
        initial: int = 0,
        budget: float = math.inf,
        samples: int = 10,
        sampling: Literal["gumbel", "thompson"] = "gumbel",
        noisy: bool = False,
    ) -> None:
        super().__init__(problem, prior, initial, budget)
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        if sampling not in ("gumbel", "thompson"):
            raise ValueError(f"sampling must be 'gumbel' or 'thompson', got {sampling!r}")
        self.samples, self.sampling, self.noisy = samples, sampling, noisy

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        super().start(generators)
        self.paths: Tensor | None = None
        if self.sampling == "thompson":
            posterior = self._started().posterior
            self.paths = posterior.sample(places(self.problem), self.samples, list(generators))

    def max_samples(self) -> Tensor:
        """Samples of ``f*`` given the data, ``replicates x samples``."""
        n = self.problem.n
        if self.paths is not None:
            return self.paths[..., n:].amax(-1)
        draws = uniform(self.generators, (self.samples,), self.mean).clamp(1e-6, 1 - 1e-6)
        return gumbel_max_samples(self.mean[:, n:], self.std[:, n:].clamp_min(1e-9), draws)

    def _scores(self) -> Tensor:
        self._max_samples = self.max_samples()
        n = self.problem.n
        part = slice(n, None) if self.direct else slice(None, n)
        mean, std = self.mean[:, part], self.std[:, part]
        noise = self.problem.noise[part] if self.noisy else None
        # Information may be tiny everywhere; of its logarithm ties are judged relative to it.
        gain = conditional_max_value_entropy(mean, std, self._max_samples, noise)
        first, nearest = (
            (best.unsqueeze(-1) - mean) / std.clamp_min(1e-12)
            for best in (self._max_samples[:, 0], self._max_samples.amin(-1))
        )
        self._kappa = first.masked_fill(~self._allowed()[..., part], torch.inf).amin(-1)
        # Beyond 38 deviations the information underflows; its logarithm is near minus half the square then.
        log_gain = torch.where(gain > 0, gain.log(), -0.5 * nearest.square())
        scores = torch.full_like(self.mean, -torch.inf)
        scores[:, part] = log_gain - self.problem.costs[part].log()
        return scores

    def trace(self) -> Mapping[str, Tensor]:
        """Also the ``max_samples`` of ``f*``, and ``kappa``, the smallest ``(f* - mean) / std`` for the first of them.

        Both are NaN in the initial design.
        """
        if self.step <= self.initial and not self.direct:
            nothing = torch.full_like(self.left, torch.nan)
            return {**super().trace(), "max_samples": nothing[:, None].expand(-1, self.samples), "kappa": nothing}
        return {**super().trace(), "max_samples": self._max_samples, "kappa": self._kappa}

    def _learn(self, query: Tensor, observation: Tensor) -> None:
        if self.paths is None:
            return
        # Matheron: a path moves like the mean does, by its own gap to a noisy observation.
        row, scale = self._started().last_row, self._started().last_scale
        noise = self.problem.noise[query].unsqueeze(-1) * standard_normal(self.generators, (self.samples,), self.mean)
        there = self.paths[self._rows, :, query]
        gap = (observation.unsqueeze(-1) - there - noise) / scale.unsqueeze(-1)
        moved = self.paths + gap.unsqueeze(-1) * row.unsqueeze(-2)
        self.paths = torch.where(self._active[:, None, None], moved, self.paths)


class DirectMES(CMES):
    """Max-value entropy search on f itself, asking points: what indirect queries cost, measured from above."""

    direct = True


class RandomQueries(IndirectPolicy):
    """Asks uniformly random actions."""

    def _scores(self) -> Tensor:
        return uniform(self.generators, (len(self.order),), self.mean)


class ActionPolicy(IndirectPolicy):
    """A usual policy on g, which knows nothing of f: the baselines of [Zhang2025]_, section 7.

    It asks by a Gaussian process on actions given the data ``(a, z)`` alone, and recommends like all others.

    Args:
        problem: see ``IndirectPolicy``.
        prior: see ``IndirectPolicy``; for the recommendation.
        action_prior: of g on actions, a GPyTorch kernel on ``q`` coordinates without batch.
        acquisition: ``"mes"``, ``"ucb"`` or ``"ei"``.
        initial: see ``IndirectPolicy``.
        budget: see ``IndirectPolicy``.
        samples: of ``g*``, for MES. Default 10.
        sqrt_beta: the multiplier of UCB. Default 2.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: IndirectProblem,
        prior: GaussianProcess,
        action_prior: GaussianProcess,
        acquisition: Literal["mes", "ucb", "ei"],
        initial: int = 0,
        budget: float = math.inf,
        samples: int = 10,
        sqrt_beta: float = 2.0,
    ) -> None:
        super().__init__(problem, prior, initial, budget)
        if acquisition not in ("mes", "ucb", "ei"):
            raise ValueError(f"acquisition must be 'mes', 'ucb' or 'ei', got {acquisition!r}")
        self.action_prior, self.acquisition = action_prior, acquisition
        self.samples, self.sqrt_beta = samples, sqrt_beta

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        super().start(generators)
        self.actions = self.action_prior.posterior(len(generators)).track(Measure.dirac(self.problem.actions))
        self._best = torch.full_like(self.left, -torch.inf)

    def _scores(self) -> Tensor:
        mean, std = self.actions.mean, self.actions.variance.sqrt().clamp_min(1e-9)
        if self.acquisition == "ucb":
            score = mean + self.sqrt_beta * std
        elif self.acquisition == "ei":
            gap = (mean - self._best.unsqueeze(-1).clamp_min(-1e3)) / std
            density = (-0.5 * gap.square() - 0.5 * math.log(2 * math.pi)).exp()
            score = (std * (density + gap * torch.special.log_ndtr(gap).exp())).clamp_min(0.0).log()
        else:
            draws = uniform(self.generators, (self.samples,), mean).clamp(1e-6, 1 - 1e-6)
            score = conditional_max_value_entropy(mean, std, gumbel_max_samples(mean, std, draws)).log()
        return torch.nn.functional.pad(score, (0, len(self.problem.points)), value=-torch.inf)

    def _learn(self, query: Tensor, observation: Tensor) -> None:
        noise = torch.where(self._active, self.problem.noise[query], 1e9)
        self.actions.observe(query, observation, noise)
        there = self.actions.mean[self._rows, query]
        self._best = torch.where(self._active, torch.maximum(self._best, there), self._best)
