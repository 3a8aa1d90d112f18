"""The policies that HE-GP-UCB and HE-StableOpt are compared with."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_tensor, require
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.hyperparameters.base import CandidatePolicy
from cbo_lib.hyperparameters.policies import HEGPUCB, HEStableOpt
from cbo_lib.hyperparameters.space import Space


class OneCandidate(HEGPUCB):
    """Makes a policy trust one candidate, the true one or a wrong one.

    Args:
        space: see ``CandidatePolicy``; the size of all candidates must be known.
        candidate: which, ``()`` or one a replicate.
        sqrt_beta: see ``CandidatePolicy``; given for all candidates, whichever is used.
        options: see ``CandidatePolicy``, also for errors.
    """

    def __init__(self, space: Space, candidate: int | Tensor, **options: Any) -> None:
        super().__init__(space, elimination="never", **options)
        require(not any(space.fitted), "candidates must have known sizes", "kernels whose sizes are fitted")
        self.trusted = torch.as_tensor(candidate if isinstance(candidate, Tensor) else as_count("candidate", candidate))
        count, whole = len(space.candidates), not self.trusted.is_floating_point() and self.trusted.dim() <= 1
        inside = whole & (self.trusted >= 0) & (self.trusted < count)
        require(inside, f"candidate must hold integers in [0, {count})", self.trusted)
        if self.trusted.dim() == 0:  # no need to compute the others
            self.space = space.select([int(self.trusted)])
            if callable(self.sqrt_beta):
                self.sqrt_beta = functools.partial(_of_candidate, self.sqrt_beta, int(self.trusted))

    def begin(self) -> None:
        """Keep that candidate alone."""
        super().begin()
        if self.trusted.dim():
            each = f"candidate must be one index or one for each of {self.replicates} replicates"
            require(len(self.trusted) == self.replicates, each, len(self.trusted))
            at = self.trusted.to(self.alive.device).unsqueeze(-1)
            self.alive = torch.zeros_like(self.alive).scatter(-1, at, True)


class OracleGPUCB(OneCandidate):
    """GP-UCB with one candidate ([Srinivas2010]), as who knows the true one would run it."""


class OracleStableOpt(OneCandidate, HEStableOpt):
    """StableOpt with one candidate ([Bogunovic2018], Algorithm 1), as who knows the true one would run it."""


class MaximumLikelihood(CandidatePolicy):
    """GP-UCB with the candidate of the largest marginal likelihood ([Ziomek2024], section 7, "MLE")."""

    def select(self) -> Tensor:
        """The candidate to trust now, ``replicates``."""
        return argmax_finite(self.likelihood)

    def score(self, mean: Tensor, std: Tensor) -> Tensor:
        """The upper confidence bound of that candidate."""
        self._selected = self.select()
        return self.upper(mean, std).take_along_dim(self._selected[:, None, None], 1).squeeze(1)

    def responsible(self) -> Tensor:
        """That candidate."""
        return self._selected

    def weights(self) -> Tensor:
        """All on the candidate that is trusted now."""
        return torch.nn.functional.one_hot(self.select(), len(self.space.candidates)).to(self.mean)


class AveragedUCB(CandidatePolicy):
    """Maximizes the upper confidence bound averaged over the candidates, "ExpectedUCB" in [Ziomek2024], section 7.

    The weights are the posterior probabilities of the candidates under a uniform prior.
    """

    def score(self, mean: Tensor, std: Tensor) -> Tensor:
        """The averaged bound."""
        return (self.weights().unsqueeze(-1) * self.upper(mean, std)).sum(1)

    def weights(self) -> Tensor:
        """The posterior probabilities."""
        return self.likelihood.softmax(-1)


def _of_candidate(schedule: Callable[[int], float | Tensor], candidate: int, t: int) -> float | Tensor:
    """The multiplier of one candidate, from a number or one a candidate."""
    value = as_tensor("sqrt_beta", schedule(t))
    return value[..., candidate : candidate + 1] if value.dim() else value
