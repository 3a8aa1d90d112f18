"""HE-StableOpt and StableOpt: optimization when the chosen point may be perturbed.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
.. [Bogunovic2018] I. Bogunovic, J. Scarlett, S. Jegelka, V. Cevher. Adversarially Robust Optimization with Gaussian
   Processes. NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.hyperparameters.baselines import OneCandidate
from cbo_lib.hyperparameters.policies import HEGPUCB, first_largest
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.hyperparameters.surrogate import FiniteSurrogate
from cbo_lib.hyperparameters.widths import Schedule
from cbo_lib.maximize import argmax_finite


class HEStableOpt(HEGPUCB):
    """Robust optimization with hyperparameter elimination, HE-StableOpt ([Ziomek2024]_, Algorithm 2).

    Chooses ``x`` by the worst upper confidence bound within ``epsilon`` under the most favorable candidate ``u``, then
    asks the point within ``epsilon`` of it with the smallest lower confidence bound under any candidate ``v``. Both
    ``u`` and ``v`` are tested, each on its own rounds. The domain must be finite.

    Arguments and errors are those of ``HEGPUCB``.
    """

    _criteria = 2

    def __init__(
        self,
        problem: UnknownPriorProblem,
        sqrt_beta: Schedule | None = None,
        initial: int = 0,
        failure: float = 0.1,
        elimination: Literal["errors", "never"] = "errors",
        width: Literal["before", "after"] = "before",
    ) -> None:
        if problem.points is None:
            raise ValueError("problem must have a finite domain for robust optimization, this one has a box")
        super().__init__(problem, sqrt_beta, initial, failure, elimination, width)

    def _choose(self) -> Tensor:
        surrogate = self._started()
        assert isinstance(surrogate, FiniteSurrogate)
        mean, std = surrogate.tracked.mean, surrogate.std
        alive = self.alive.unsqueeze(-1)
        worst = self.problem.worst(self._upper(mean, std)).masked_fill(~alive, -torch.inf)
        rows = torch.arange(len(worst), device=worst.device)
        best = worst.amax(1)
        self._center = argmax_finite(best, torch.ones_like(best, dtype=torch.bool), surrogate.order)
        self._optimist = first_largest(worst[rows, :, self._center], self.alive)  # line 8
        near = self.problem.neighbors[self._center]  # replicates m
        lower = (mean - self._multiplier.unsqueeze(-1) * std).masked_fill(~alive, torch.inf)
        lower = lower.gather(-1, near.unsqueeze(1).expand(-1, lower.shape[1], -1))  # replicates |U| m
        lowest = lower.amin(1)
        place = argmax_finite(-lowest, torch.ones_like(lowest, dtype=torch.bool), torch.arange(near.shape[1]).to(near))
        self._pessimist = first_largest(-lower[rows, :, place], self.alive)  # line 9
        return near[rows, place]

    def _chosen(self) -> Tensor:
        return self._optimist

    def _learn(self, observation: Tensor) -> None:
        # Both tests see the candidates of this round; neither may undo what the other dropped.
        self._test(self._tests[0], self._optimist, observation)
        self._test(self._tests[1], self._pessimist, observation)

    def trace(self) -> Mapping[str, Tensor]:
        """Also the ``chosen`` point before the perturbation, and the candidate ``pessimist`` of the perturbation."""
        surrogate = self._started()
        early = self.step <= self.initial
        center = self._design[:, self.step - 1] if early else self._center
        pessimist = torch.full_like(center, -1) if early else self._pessimist
        return {**super().trace(), "chosen": surrogate.point(center), "pessimist": pessimist}


class StableOpt(OneCandidate, HEStableOpt):
    """Robust optimization with one candidate ([Bogunovic2018]_, Algorithm 1)."""
