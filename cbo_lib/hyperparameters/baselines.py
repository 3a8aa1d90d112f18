"""The policies that HE-GP-UCB is compared with.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
.. [Srinivas2010] N. Srinivas, A. Krause, S. Kakade, M. Seeger. Gaussian Process Optimization in the Bandit Setting: No
   Regret and Experimental Design. ICML 2010.
.. [Berkenkamp2019] F. Berkenkamp, A. P. Schoellig, A. Krause. No-Regret Bayesian Optimization with Unknown
   Hyperparameters. JMLR 20(50), 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.hyperparameters.policies import HEGPUCB, CandidatePolicy, first_largest
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.hyperparameters.widths import Schedule


class OneCandidate(HEGPUCB):
    """Makes a policy trust one candidate, the right one or a wrong one.

    Args:
        problem: see ``CandidatePolicy``.
        candidate: which, ``()`` or one a replicate. Default the truth of the problem.
        sqrt_beta: see ``CandidatePolicy``; given for all candidates, whichever is used.
        initial: see ``CandidatePolicy``.

    Raises:
        ValueError: if an argument is out of range, or neither the caller nor the problem names a candidate.
    """

    def __init__(
        self,
        problem: UnknownPriorProblem,
        candidate: int | Tensor | None = None,
        sqrt_beta: Schedule | None = None,
        initial: int = 0,
    ) -> None:
        super().__init__(problem, sqrt_beta, initial, elimination="never")
        given = problem.truth if candidate is None else candidate
        if given is None:
            raise ValueError("candidate must be given, the problem does not know the truth")
        self.candidate = torch.as_tensor(given)
        count = len(problem.candidates)
        if not bool(((self.candidate >= 0) & (self.candidate < count)).all()):
            raise ValueError(f"candidate must lie in [0, {count}), got {self.candidate.tolist()}")
        if self.candidate.dim() == 0:  # no need to compute the others
            own, schedule = int(self.candidate), self.sqrt_beta
            self.problem = replace(problem, candidates=problem.candidates.select([own]), truth=None)
            self.sqrt_beta = lambda t: _of_candidate(schedule(t), own)

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        super().start(generators)
        if self.candidate.dim():
            if len(self.candidate) != len(generators):
                raise ValueError(
                    f"candidate must be one index or one for each of {len(generators)} replicates, "
                    f"got {len(self.candidate)}"
                )
            at = self.candidate.to(self.alive.device).unsqueeze(-1)
            self.alive = torch.zeros_like(self.alive).scatter(-1, at, True)


class GPUCB(OneCandidate):
    """GP-UCB with one candidate ([Srinivas2010]_)."""


def _of_candidate(multiplier: float | Tensor, candidate: int) -> float | Tensor:
    """The multiplier of one candidate, from a number or one a candidate."""
    if isinstance(multiplier, Tensor) and multiplier.dim():
        return multiplier[..., candidate : candidate + 1]
    return multiplier


class MaximumLikelihood(CandidatePolicy):
    """GP-UCB with the candidate of the largest marginal likelihood ([Ziomek2024]_, section 7, "MLE")."""

    def _score(self, mean: Tensor, std: Tensor) -> Tensor:
        self._selected = self._select()
        upper = self._upper(mean, std)
        return upper.gather(1, self._selected[:, None, None].expand(-1, 1, upper.shape[-1])).squeeze(1)

    def _select(self) -> Tensor:
        likelihood = self._started().log_marginal_likelihood
        return first_largest(likelihood, torch.ones_like(likelihood, dtype=torch.bool))

    def _chosen(self) -> Tensor:
        return self._selected

    def _weights(self) -> Tensor:
        selected = self._select()
        return torch.nn.functional.one_hot(selected, len(self.problem.candidates)).to(self._mean)


class AGPUCB(MaximumLikelihood):
    """Adaptive GP-UCB ([Berkenkamp2019]_), with the nearest candidate as in [Ziomek2024]_, Appendix J.1.

    The lengthscale at round ``t`` is an estimate divided by ``max(1, g(t))``, whatever the data say later.

    Args:
        problem: see ``CandidatePolicy``.
        lengthscales: of the candidates, positive.
        g: grows without bound. Default ``t^0.9``.
        estimate: what is divided: ``"likelihood"``, the lengthscale of the most likely candidate; ``"longest"``, the
            longest one.
        sqrt_beta: see ``CandidatePolicy``; not scaled as the norm bound of [Berkenkamp2019]_, so that all policies
            have the same.
        initial: see ``CandidatePolicy``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: UnknownPriorProblem,
        lengthscales: Sequence[float],
        g: Callable[[int], float] = lambda t: t**0.9,
        estimate: Literal["likelihood", "longest"] = "likelihood",
        sqrt_beta: Schedule | None = None,
        initial: int = 0,
    ) -> None:
        super().__init__(problem, sqrt_beta, initial)
        if len(lengthscales) != len(problem.candidates) or min(lengthscales) <= 0:
            raise ValueError(
                f"lengthscales must be {len(problem.candidates)} positive numbers, got {list(lengthscales)}"
            )
        if estimate not in ("likelihood", "longest"):
            raise ValueError(f"estimate must be 'likelihood' or 'longest', got {estimate!r}")
        self.lengthscales = torch.as_tensor(lengthscales, dtype=problem._like.dtype, device=problem._like.device)
        self.g, self.estimate = g, estimate

    def _select(self) -> Tensor:
        likely = super()._select()
        estimate = self.lengthscales[likely] if self.estimate == "likelihood" else self.lengthscales.max()
        target = (estimate / max(1.0, self.g(max(1, self.round)))).expand(len(likely))
        return (self.lengthscales - target.unsqueeze(-1)).abs().argmin(-1)


class ExpectedUCB(CandidatePolicy):
    """Maximizes the upper confidence bound averaged over the candidates ([Ziomek2024]_, section 7).

    The weights are the posterior probabilities of the candidates under a uniform prior.
    """

    def _score(self, mean: Tensor, std: Tensor) -> Tensor:
        return (self._weights().unsqueeze(-1) * self._upper(mean, std)).sum(1)

    def _weights(self) -> Tensor:
        return self._started().log_marginal_likelihood.softmax(-1)
