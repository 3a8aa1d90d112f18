"""Policies of our own beside the paper's: what a small change of a rule does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cbo_lib.confidence import noise_threshold
from cbo_lib.hyperparameters import HEGPUCB, AveragedUCB, eliminates

#: How an implementation may read the multiplier of the paper, which it writes ``beta``.
READINGS: Mapping[str, Callable[[Tensor | float], Tensor | float]] = {
    "printed": lambda beta: beta,
    "root": lambda beta: beta**0.5,
    "half": lambda beta: beta / 2,
}


class EveryoneTested(HEGPUCB):
    """HE-GP-UCB that tests every candidate left in every round, not the responsible one alone.

    The test of line 12 on the rounds ``S^u`` stays, for Inequality 7 rests on it. A second test sums the errors of a
    candidate over all rounds, whoever chose them: noise of one more list and the same bands, so the truth survives it
    on the same events. If a round would refute everyone, it refutes nobody.
    """

    def begin(self) -> None:
        """No round was played."""
        super().begin()
        self._all = self.space.like.new_zeros(3, *self.alive.shape)  # errors, widths, number of rounds

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:
        """Test the responsible candidate on its own rounds, then all on all rounds."""
        super().judge(row, played)
        errors = row["y"].unsqueeze(-1) - self.mean
        new = torch.stack([errors, self.multiplier() * self.std, torch.ones_like(errors)])
        self._all = self._all + new * played.unsqueeze(-1)
        xi = noise_threshold(self.round, self.noise, len(self.space.candidates), self.failure).to(errors)
        total = self._all.unsqueeze(-1)
        left = self.alive & ~eliminates(total[0], total[1], xi, self._all[2])
        self.alive = torch.where(left.any(-1, keepdim=True), left, self.alive)


class TemperedUCB(AveragedUCB):
    """ExpectedUCB with weights from the log likelihood divided by the number of observations.

    That is what GPyTorch's ``ExactMarginalLogLikelihood`` returns, so a softmax of it gives these weights.
    """

    def weights(self) -> Tensor:
        """The tempered probabilities."""
        return (self.likelihood / max(1, self.count)).softmax(-1)
