"""SBO-KDE, DRBO-KDE and the policies that they are compared with.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Kirschner2020] J. Kirschner, I. Bogunovic, S. Jegelka, A. Krause. Distributionally Robust Bayesian Optimization.
   AISTATS 2020.
.. [Tay2022] S. S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Efficient Distributionally Robust Bayesian
   Optimization with Worst-case Sensitivity. ICML 2022.
.. [Bogunovic2018] I. Bogunovic, J. Scarlett, S. Jegelka, V. Cevher. Adversarially Robust Optimization with Gaussian
   Processes. NeurIPS 2018.
.. [Srinivas2010] N. Srinivas, A. Krause, S. Kakade, M. Seeger. Gaussian Process Optimization in the Bandit Setting: No
   Regret and Experimental Design. ICML 2010.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbo_lib.contexts.acquisition import (
    ContextAcquisition,
    DecisionAcquisition,
    DecisionUCB,
    ExpectedUCB,
    TotalVariationUCB,
)
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.surrogate import Surrogate
from cbo_lib.expectation import PartialPosterior
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.maximize import argmax_finite, maximize_box
from cbo_lib.random import uniform

#: A number, or a function of the round ``t = 1, 2, ...``.
Schedule = float | Callable[[int], float]


@dataclass(frozen=True)
class Settings:
    """What all policies of a comparison have in common.

    The search is the same for all of them. [Huang2024]_ gives its slow policies 32 raw points and 5 starts, the others
    1,024 and 50.

    Args:
        initial: how many decisions the initial design has, at least 2. Default 10 ([Huang2024]_, section 4).
        sqrt_beta: the multiplier of the standard deviation, nonnegative. Default 1.5 ([Huang2024]_, Appendix B.1).
        raw: how many scrambled Sobol points begin the search for the best decision, new ones in every round.
        starts: how many of the best of them L-BFGS-B refines.
        iterations: of each L-BFGS-B run, at most.
        refit_every: how many observations pass between two fits of the hyperparameters, the first after the initial
            design. Default: a tenth of the observations, and at least one. [Huang2024]_ fits in every round.
        prior: known hyperparameters, of batch shape ``()`` or ``(replicates,)``, instead of fitted ones.

    Raises:
        ValueError: if a number is out of range.
    """

    initial: int = 10
    sqrt_beta: Schedule = 1.5
    raw: int = 128
    starts: int = 2
    iterations: int = 15
    refit_every: int | None = None
    prior: GaussianProcess | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.initial < 2:
            raise ValueError(f"initial must be at least 2, got {self.initial}")
        if not 1 <= self.starts <= self.raw:
            raise ValueError(f"starts must lie in [1, raw = {self.raw}], got {self.starts}")
        for name, count in (("iterations", self.iterations), ("refit_every", self.refit_every)):
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")

    def multiplier(self, t: int) -> float:
        """``sqrt_beta`` of round ``t``.

        Raises:
            ValueError: if it is negative or not finite.
        """
        value = float(self.sqrt_beta(t) if callable(self.sqrt_beta) else self.sqrt_beta)
        if not 0 <= value < math.inf:
            raise ValueError(f"sqrt_beta must be nonnegative and finite, got {value} at round {t}")
        return value


class ContextPolicy(ABC):
    """What the policies share: a Sobol design, a Gaussian process, and the search for the best decision.

    The first ``initial`` decisions are scrambled Sobol points of a replicate's own, the same for every policy with the
    same seed. Afterwards the policy's acquisition is maximized over the box of decisions. The recommendation is the
    decision asked so far with the largest posterior mean, averaged over the contexts seen so far; the rule is the same
    for all policies. In the initial design it is the decision with the largest observed value.

    Args:
        problem: the boxes of decisions and contexts are known to the learner; the distribution is not.
        settings: what all policies have in common. Default: see ``Settings``.
    """

    #: Whether the model has contexts among its inputs.
    sees_contexts = True

    def __init__(self, problem: ContextProblem, settings: Settings | None = None) -> None:
        self.problem, self.settings = problem, settings or Settings()
        self.surrogate: Surrogate | None = None

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        self._generators = generators
        self._design = self._sobol(self.settings.initial)
        bounds = self.problem.full_bounds if self.sees_contexts else self.problem.bounds
        self.surrogate = Surrogate(bounds, len(generators), self.settings.prior, self.settings.refit_every)
        self.contexts = bounds.new_zeros(len(generators), 0, self.problem.context_dim)
        self.decisions = bounds.new_zeros(len(generators), 0, self.problem.decision_dim)
        self._query: Tensor | None = None

    @property
    def round(self) -> int:
        """The round ``t`` under way, from 1; ``t - 1`` contexts were seen."""
        return self.contexts.shape[-2] + 1

    def ask(self) -> Tensor:
        """The next decision of each replicate, ``replicates x Dx``."""
        self._started()
        if self.round <= self.settings.initial:
            self._query, self._value = self._design[:, self.round - 1], self._design.new_zeros(len(self._design))
        else:
            self._query, self._value = self._choose()
        return self._query

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Learn from what was asked: the context and the value seen, ``replicates x (Dc + 1)``.

        Raises:
            ValueError: if nothing was asked, other decisions were, or the observations do not fit.
        """
        surrogate = self._started()
        if self._query is None:
            raise ValueError("tell must follow ask, nothing was asked")
        if not torch.equal(query, self._query):
            raise ValueError("query must be what was asked last, got other decisions")
        expected = (len(query), self.problem.context_dim + 1)
        if observation.shape != expected:
            raise ValueError(f"observation must have shape {expected}, got {tuple(observation.shape)}")
        if not bool(torch.isfinite(observation).all()):
            raise ValueError("observation must be finite, got a NaN or an infinity")
        context, y = observation[:, :-1], observation[:, -1]
        surrogate.observe(self.problem.join(query, context) if self.sees_contexts else query, y)
        self.contexts = torch.cat([self.contexts, context.unsqueeze(-2)], -2)
        self.decisions = torch.cat([self.decisions, query.unsqueeze(-2)], -2)
        self._query = None

    def recommend(self) -> Tensor:
        """The asked decision of the largest average posterior mean, ``replicates x Dx``."""
        surrogate = self._started()
        if self.round == 1:
            raise ValueError("recommend must follow an observation, there is none")
        early = self.round <= self.settings.initial
        merit = surrogate.y if early else self._merit(surrogate.posterior())
        best = argmax_finite(
            merit, torch.ones_like(merit, dtype=torch.bool), torch.arange(merit.shape[-1], device=merit.device)
        )
        return self.decisions[torch.arange(len(best), device=best.device), best]

    def trace(self) -> Mapping[str, Tensor]:
        """Of the last step: ``initial``, the ``acquisition`` reached, and the hyperparameters it was asked with.

        ``lengthscale``, ``scale``, ``mean`` and ``noise_std`` are recorded where they are fitted. All are zero in the
        initial design.
        """
        surrogate = self._started()
        if self.round == 1 or self._query is not None:
            raise ValueError("trace must follow ask and tell, one of them is missing")
        early = self.round - 1 <= self.settings.initial
        record = {"initial": torch.full_like(self._value, early, dtype=torch.bool), "acquisition": self._value}
        if self.settings.prior is None:
            like = self._value.unsqueeze(-1).expand(-1, surrogate.bounds.shape[-1])
            for name in ("lengthscale", "scale", "mean", "noise_std"):
                fallback = torch.zeros_like(like if name == "lengthscale" else self._value)
                record[name] = fallback if early else getattr(self._asked_with, name)
        return record

    def _choose(self) -> tuple[Tensor, Tensor]:
        """The best decision and its acquisition, ``replicates x Dx`` and ``replicates``."""
        surrogate, settings = self._started(), self.settings
        posterior = surrogate.posterior()
        self._asked_with = surrogate.hyperparameters
        acquisition = self.acquisition(posterior)
        raw = self._sobol(settings.raw)
        return maximize_box(acquisition.values, self.problem.bounds, raw, settings.starts, settings.iterations)

    @abstractmethod
    def acquisition(self, posterior: Posterior) -> DecisionAcquisition:
        """What is maximized in this round."""

    def _merit(self, posterior: Posterior) -> Tensor:
        """How good the decisions asked so far look, ``replicates x t``."""
        problem = self.problem
        controlled = torch.arange(problem.dim, device=self.contexts.device) < problem.decision_dim
        nothing = self.contexts.new_zeros(problem.dim)
        contexts = problem.join(nothing[: problem.decision_dim], self.contexts)
        partial = PartialPosterior(posterior, contexts, controlled, tolerance=None)
        return partial.mean(problem.join(self.decisions, nothing[problem.decision_dim :])).mean(-1)

    def multiplier(self) -> float:
        """``sqrt_beta`` of this round."""
        return self.settings.multiplier(self.round)

    def _started(self) -> Surrogate:
        if self.surrogate is None:
            raise ValueError("start must be called first")
        return self.surrogate

    def _sobol(self, n: int) -> Tensor:
        """Scrambled Sobol points in the box of decisions, ``replicates x n x Dx``, from each replicate's generator."""
        low, high = self.problem.bounds
        seeds = [int(torch.randint(2**31 - 1, (), generator=g)) for g in self._generators]
        engines = [torch.quasirandom.SobolEngine(len(low), scramble=True, seed=seed) for seed in seeds]
        return low + (high - low) * torch.stack([engine.draw(n, dtype=low.dtype) for engine in engines]).to(low)

    def _cover(self, n: int) -> Tensor:
        """The first ``n`` Sobol points of the unit cube of contexts, ``n x Dc``."""
        engine = torch.quasirandom.SobolEngine(self.problem.context_dim, scramble=False)
        return engine.draw(n, dtype=self.contexts.dtype).to(self.contexts)


class RandomDecisions(ContextPolicy):
    """Independent uniform decisions; the model serves the recommendation alone."""

    def _choose(self) -> tuple[Tensor, Tensor]:
        surrogate, (low, high) = self._started(), self.problem.bounds
        surrogate.posterior()
        self._asked_with = surrogate.hyperparameters
        draws = uniform(self._generators, low.shape, low)
        return low + (high - low) * draws, low.new_zeros(len(draws))

    def acquisition(self, posterior: Posterior) -> DecisionAcquisition:
        """There is none.

        Raises:
            ValueError: always.
        """
        raise ValueError("a random policy has no acquisition")


class GPUCB(ContextPolicy):
    """GP-UCB on a model of the decision alone ([Srinivas2010]_): the effect of the context counts as noise."""

    sees_contexts = False

    def acquisition(self, posterior: Posterior) -> DecisionUCB:
        """See ``DecisionUCB``."""
        return DecisionUCB(posterior, self.multiplier())

    def _merit(self, posterior: Posterior) -> Tensor:
        return DecisionUCB(posterior, 0.0).values(self.decisions)


class SBOKDE(ContextPolicy):
    """SBO-KDE ([Huang2024]_, Algorithm 1): the average upper confidence bound under the density estimate.

    Line 3 estimates the density from the ``t - 1`` contexts seen, line 5 draws ``M`` samples of it, clipped into the
    context box as the world clips its contexts.

    Args:
        problem: see ``ContextPolicy``.
        settings: see ``ContextPolicy``.
        samples: how many in each round, ``M``. Default 1,024 ([Huang2024]_, Appendix B.1).

    Raises:
        ValueError: if ``samples`` is below 1.
    """

    def __init__(self, problem: ContextProblem, settings: Settings | None = None, samples: int = 1024) -> None:
        super().__init__(problem, settings)
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        self.samples = samples

    def acquisition(self, posterior: Posterior) -> ContextAcquisition:
        """See ``ExpectedUCB``."""
        return ExpectedUCB(posterior, self.draw(), self.multiplier())

    def draw(self) -> Tensor:
        """``M`` contexts, ``replicates x M x Dc``."""
        return GaussianKDE(self.contexts).sample(self.samples, self._generators, self.problem.context_bounds)


class KnownDensity(SBOKDE):
    """SBO with samples of the true distribution in the place of the estimate: the ceiling for SBO-KDE."""

    def draw(self) -> Tensor:
        """``M`` contexts, ``replicates x M x Dc``."""
        return self.problem.distribution.sample(self._generators, (self.samples,))


@dataclass(frozen=True)
class TotalVariationRadius:
    """``delta_t = t^(-2 / (4 + Dc))`` ([Huang2024]_, section 4.1), an L1 distance."""

    context_dim: int

    def __call__(self, t: int) -> float:
        """At round ``t``, from 1."""
        return t ** (-2 / (4 + self.context_dim))


class DRBOKDE(SBOKDE):
    """DRBO-KDE ([Huang2024]_, Algorithm 2): the worst average within an L1 distance of the density estimate.

    Args:
        problem: see ``ContextPolicy``.
        settings: see ``ContextPolicy``.
        samples: see ``SBOKDE``.
        radius: ``delta_t``. Default ``t^(-2 / (4 + Dc))``.
        cover: how many Sobol contexts search for the infimum. Default 1,024 ([Huang2024]_, Appendix B.1).
        reflected: whether these are mirrored at the lower corner of the context box, and so outside it: a slip that
            is shown, not meant.
    """

    def __init__(
        self,
        problem: ContextProblem,
        settings: Settings | None = None,
        samples: int = 1024,
        radius: Callable[[int], float] | None = None,
        cover: int = 1024,
        reflected: bool = False,
    ) -> None:
        super().__init__(problem, settings, samples)
        self.radius = radius or TotalVariationRadius(problem.context_dim)
        self.cover, self.reflected = cover, reflected

    def acquisition(self, posterior: Posterior) -> ContextAcquisition:
        """See ``TotalVariationUCB``."""
        cover = into_box(self._cover(self.cover), self.problem.context_bounds, self.reflected)
        return TotalVariationUCB(posterior, self.draw(), cover, self.radius(self.round), self.multiplier())


def into_box(unit: Tensor, box: Tensor, reflected: bool = False) -> Tensor:
    """Points of the unit cube ``n x d`` into boxes ``... x 2 x d``; reflected ones lie below the lower corner."""
    low, high = box[..., :1, :], box[..., 1:, :]
    return low + ((low - high) if reflected else (high - low)) * unit
