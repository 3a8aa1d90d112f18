"""HE-GP-UCB, and what it shares with the policies that it is compared with.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.hyperparameters.surrogate import BoxSurrogate, FiniteSurrogate, Surrogate
from cbo_lib.hyperparameters.widths import Schedule, bayesian_sqrt_beta, eliminates, noise_threshold
from cbo_lib.maximize import argmax_finite


class CandidatePolicy(ABC):
    """What the policies share: the posteriors of all candidates, a random initial design and the recommendation.

    The recommendation is the point asked so far with the largest posterior mean, averaged over the candidates with the
    weights that the policy gives them.

    Args:
        problem: the domain, the candidates and the noise.
        sqrt_beta: the multiplier of the standard deviation at round ``t = 1, 2, ...``, a number or one a candidate
            ``|U|``; round 1 is the first after the initial design. Default that of Theorem 4.2, case A, for the
            default ``failure``; a box needs one.
        initial: how many independent uniform points are asked first; the same for all policies with the same seeds.
            Default 0.

    Raises:
        ValueError: if ``initial`` is negative, or the domain is a box and no ``sqrt_beta`` is given.
    """

    def __init__(self, problem: UnknownPriorProblem, sqrt_beta: Schedule | None = None, initial: int = 0) -> None:
        if initial < 0:
            raise ValueError(f"initial must be nonnegative, got {initial}")
        if sqrt_beta is None and problem.points is None:
            raise ValueError("sqrt_beta must be given where the domain is a box")
        self.problem = problem
        self.sqrt_beta = sqrt_beta or bayesian_sqrt_beta(problem)
        self.initial = initial
        self.surrogate: Surrogate | None = None

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        make = BoxSurrogate if self.problem.points is None else FiniteSurrogate
        self.surrogate = make(self.problem, len(generators))
        self._design = self.surrogate.draw(generators, self.initial)
        self.step = 0
        self._place: Tensor | None = None

    @property
    def round(self) -> int:
        """The round ``t`` under way, from 1; zero or negative in the initial design."""
        return self.step + 1 - self.initial

    def ask(self) -> Tensor:
        """The next point of each replicate, ``replicates x d``."""
        surrogate = self._started()
        if self.round < 1:
            self._place = self._design[:, self.step]
        else:
            self._multiplier = self._multipliers()
            self._place = self._choose()
        self._mean, self._std = surrogate.at(self._place)
        self._candidate = self._chosen() if self.round >= 1 else torch.full_like(self._mean[:, 0], -1).long()
        return surrogate.point(self._place)

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Condition every candidate of each replicate on its own observation ``replicates`` of what was asked.

        Raises:
            ValueError: if nothing was asked, other points were, or the observations do not fit.
        """
        surrogate = self._started()
        if self._place is None:
            raise ValueError("tell must follow ask, nothing was asked")
        if not torch.equal(query, surrogate.point(self._place)):
            raise ValueError("query must be what was asked last, got other points")
        if observation.shape != query.shape[:1]:
            raise ValueError(f"observation must have shape ({len(query)},), got {tuple(observation.shape)}")
        surrogate.observe(self._place, observation)  # refuses what is not finite, before anything changes
        if self.round >= 1:
            self._learn(observation)
        self._place = None
        self.step += 1

    def recommend(self) -> Tensor:
        """The asked point of the largest averaged posterior mean, ``replicates x d``."""
        surrogate = self._started()
        if self.step == 0:
            raise ValueError("recommend must follow an observation, there is none")
        points, means = surrogate.visited()
        mean = (self._weights().unsqueeze(-1) * means).sum(1)
        best = argmax_finite(mean, torch.ones_like(mean, dtype=torch.bool), torch.arange(self.step, device=mean.device))
        return points[torch.arange(len(points), device=best.device), best]

    def trace(self) -> Mapping[str, Tensor]:
        """Of the last step: the chosen candidate (-1: none), and every candidate's ``mean``, ``std`` and ``sqrt_beta``.

        ``initial`` says whether it belonged to the initial design. ``mean`` and ``std`` are those at the asked point
        before the observation, ``replicates x |U|``; ``sqrt_beta`` is zero in the initial design.
        """
        self._started()
        if self.step == 0 or self._place is not None:
            raise ValueError("trace must follow ask and tell, one of them is missing")
        early = self.step <= self.initial
        multiplier = torch.zeros_like(self._mean) if early else self._multiplier
        return {
            "initial": torch.full_like(self._candidate, early, dtype=torch.bool),
            "candidate": self._candidate,
            "mean": self._mean,
            "std": self._std,
            "sqrt_beta": multiplier.expand_as(self._mean),
        }

    def _started(self) -> Surrogate:
        if self.surrogate is None:
            raise ValueError("start must be called first")
        return self.surrogate

    def _multipliers(self) -> Tensor:
        """``sqrt_beta`` of this round, ``|U|`` or one number."""
        like = self.problem._like
        multiplier = torch.as_tensor(self.sqrt_beta(self.round), dtype=like.dtype, device=like.device)
        if multiplier.shape not in (torch.Size(), torch.Size([1]), torch.Size([len(self.problem.candidates)])):
            raise ValueError(f"sqrt_beta must give a number or one a candidate, got shape {tuple(multiplier.shape)}")
        wrong = ~((multiplier >= 0) & multiplier.isfinite())
        if bool(wrong.any()):
            found = multiplier[wrong][0].item()
            raise ValueError(f"sqrt_beta must be nonnegative and finite, got {found:g} at round {self.round}")
        return multiplier

    def _upper(self, mean: Tensor, std: Tensor) -> Tensor:
        """Upper confidence bounds ``replicates x |U| x m``."""
        return torch.addcmul(mean, self._multiplier.unsqueeze(-1), std)

    def _choose(self) -> Tensor:
        """Where to ask now."""
        return self._started().maximize(self._score)

    @abstractmethod
    def _score(self, mean: Tensor, std: Tensor) -> Tensor:
        """What to maximize, from means and standard deviations ``replicates x |U| x m`` to ``replicates x m``."""

    @abstractmethod
    def _weights(self) -> Tensor:
        """How much the policy believes each candidate, ``replicates x |U|``, summing to one.

        ``recommend`` asks for it in every round, those of the initial design too.
        """

    def _chosen(self) -> Tensor:
        """The candidate that the choice of this round goes back to, ``replicates``; -1 where there is none."""
        return torch.full_like(self._mean[:, 0], -1).long()

    def _learn(self, observation: Tensor) -> None:  # noqa: B027  # most policies learn through the posteriors alone
        """Draw conclusions from a round; the posteriors hold the observation already."""


class HEGPUCB(CandidatePolicy):
    """GP-UCB with hyperparameter elimination, HE-GP-UCB ([Ziomek2024]_, Algorithm 1).

    Asks the point of the largest upper confidence bound under any candidate left, and drops the candidate that gave
    it once its summed prediction errors are too large (``eliminates``). The last candidate is never dropped: if the
    set holds the truth this happens with probability below ``failure`` anyway, and if it does not the theory is
    silent. The trace says where the rule would have (``refuted``).

    Args:
        problem: see ``CandidatePolicy``.
        sqrt_beta: see ``CandidatePolicy``. Default Theorem 4.2, case A, with ``failure``.
        initial: see ``CandidatePolicy``.
        failure: ``delta``, in (0, 1). Default 0.1.
        elimination: ``"errors"``, the rule of line 12; ``"never"`` keeps all candidates.
        width: the standard deviation in line 12: ``"before"`` the observation, ``sigma_{i-1}``, which the proof needs;
            ``"after"`` it, ``sigma_i``, as printed.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: UnknownPriorProblem,
        sqrt_beta: Schedule | None = None,
        initial: int = 0,
        failure: float = 0.1,
        elimination: Literal["errors", "never"] = "errors",
        width: Literal["before", "after"] = "before",
    ) -> None:
        if sqrt_beta is None and problem.points is not None:
            sqrt_beta = bayesian_sqrt_beta(problem, failure)
        super().__init__(problem, sqrt_beta, initial)
        noise_threshold(1, problem.noise_std, len(problem.candidates), failure)  # raises now if out of range
        if elimination not in ("errors", "never"):
            raise ValueError(f"elimination must be 'errors' or 'never', got {elimination!r}")
        if width not in ("before", "after"):
            raise ValueError(f"width must be 'before' or 'after', got {width!r}")
        self.failure, self.elimination, self.width = failure, elimination, width

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator, with all candidates."""
        super().start(generators)
        shape = (len(generators), len(self.problem.candidates))
        self.alive = torch.ones(shape, dtype=torch.bool, device=self.problem._like.device)
        self._refuted = torch.zeros_like(self.alive[:, 0])
        self._tests = [_RunningTest(self.problem._like.new_zeros(shape)) for _ in range(self._criteria)]

    _criteria = 1

    def _score(self, mean: Tensor, std: Tensor) -> Tensor:
        return self._upper(mean, std).masked_fill_(~self.alive.unsqueeze(-1), -torch.inf).amax(1)  # line 7

    def _chosen(self) -> Tensor:
        upper = self._upper(self._mean.unsqueeze(-1), self._std.unsqueeze(-1)).squeeze(-1)
        return first_largest(upper, self.alive)

    def _learn(self, observation: Tensor) -> None:
        self._test(self._tests[0], self._candidate, observation)

    def _test(self, running: _RunningTest, candidate: Tensor, observation: Tensor) -> None:
        """Lines 8 and 11 to 14 for the candidate chosen in each replicate."""
        std = self._std if self.width == "before" else self._started().at(self._require_place())[1]
        widths = (self._multiplier * std).gather(-1, candidate.unsqueeze(-1)).squeeze(-1)
        errors = observation - self._mean.gather(-1, candidate.unsqueeze(-1)).squeeze(-1)  # line 11
        xi = noise_threshold(self.round, self.problem.noise_std, len(self.problem.candidates), self.failure)
        refuted = running.add(candidate, errors, widths, xi.to(errors))
        if self.elimination == "never":
            refuted = torch.zeros_like(refuted)
        dropped = torch.zeros_like(self.alive).scatter(-1, candidate.unsqueeze(-1), refuted.unsqueeze(-1))
        last = (self.alive & ~dropped).sum(-1) == 0
        self._refuted = self._refuted | (refuted & last)
        self.alive = self.alive & ~(dropped & ~last.unsqueeze(-1))

    def _require_place(self) -> Tensor:
        assert self._place is not None
        return self._place

    def _weights(self) -> Tensor:
        return self.alive / self.alive.sum(-1, keepdim=True).to(self._mean)

    def trace(self) -> Mapping[str, Tensor]:
        """Also which candidates are ``alive`` after the step, and whether the last one was ``refuted`` so far."""
        return {**super().trace(), "alive": self.alive.clone(), "refuted": self._refuted.clone()}


class _RunningTest:
    """Sums over the rounds ``S^u`` of every candidate, ``replicates x |U|``."""

    def __init__(self, zeros: Tensor) -> None:
        self.errors, self.widths, self.count = zeros, zeros, zeros

    def add(self, candidate: Tensor, errors: Tensor, widths: Tensor, xi: Tensor) -> Tensor:
        """Count one round for one candidate a replicate; returns whether its sums refute it."""
        at = candidate.unsqueeze(-1)
        self.count = self.count.scatter_add(-1, at, torch.ones_like(errors).unsqueeze(-1))
        self.errors = self.errors.scatter_add(-1, at, errors.unsqueeze(-1))
        self.widths = self.widths.scatter_add(-1, at, widths.unsqueeze(-1))
        errors, widths, count = (total.gather(-1, at) for total in (self.errors, self.widths, self.count))
        return eliminates(errors, widths, xi, count.squeeze(-1))


def first_largest(values: Tensor, allowed: Tensor) -> Tensor:
    """The candidate of the largest value ``replicates x |U|``, the first among equals."""
    return argmax_finite(values, allowed, torch.arange(values.shape[-1], device=values.device))
