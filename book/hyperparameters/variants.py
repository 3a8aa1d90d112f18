"""Policies of our own beside the paper's: what a small change of a rule does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cbo_lib.confidence import noise_threshold
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.hyperparameters import HEGPUCB, AveragedUCB, MaximumLikelihood, Space, eliminates

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


class RegretBalancing(MaximumLikelihood):
    """A master algorithm over one GP-UCB a candidate ([Pacchiano2020]; [Ziomek2024], Appendix A.2).

    Every candidate promises a regret for its first ``n`` rounds. A round goes to the candidate left whose promise for
    the rounds that it has had is the smallest, so that all promises stay equal. A candidate goes once the mean of its
    rewards, raised by its promise and by noise, lies below what another has surely earned. As everywhere here all
    candidates learn from all rounds; ``BalancingApart`` lets each learn from its own, as base learners do.

    Args:
        space: see ``CandidatePolicy``.
        promise: what each candidate promises for n = 0, 1, ... rounds of its own, ``steps + 1 x |U|``. Default: twice
            the widths of its rounds, which GP-UCB's proof has before it bounds their sum.
        options: those of ``CandidatePolicy``.
    """

    def __init__(self, space: Space, *, promise: Tensor | None = None, **options: Any) -> None:
        super().__init__(space, **options)
        self.promise = promise

    def begin(self) -> None:
        """Everyone is left and has had no round."""
        super().begin()
        shape = (3, self.replicates, len(self.space.candidates))
        self._sums = self.space.like.new_zeros(shape)  # rewards, rounds, widths
        self.alive = torch.ones_like(self._sums[0], dtype=torch.bool)

    def promised(self) -> Tensor:
        """What every candidate has promised for the rounds that it has had, ``replicates x |U|``."""
        return 2 * self._sums[2] if self.promise is None else self.promise.gather(0, self._sums[1].long())

    def select(self) -> Tensor:
        """The candidate left that has promised least so far."""
        return argmax_finite(-self.promised(), self.alive)

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:
        """Book the reward, and compare what candidates may have earned with what others surely have."""
        at = self.candidate.clamp_min(0).unsqueeze(-1)
        width = (self.multiplier() * self.std).gather(-1, at).squeeze(-1)
        new = torch.stack([row["y"], torch.ones_like(width), width]) * played
        self._sums = self._sums.scatter_add(-1, at.expand(3, *at.shape), new.unsqueeze(-1))
        rewards, rounds, _ = self._sums
        n = rounds.clamp_min(1)
        xi = noise_threshold(self.round, self.noise, len(self.space.candidates), self.failure).to(n)
        noise = (xi / n).sqrt()
        sure = (rewards / n - noise).masked_fill(rounds == 0, -torch.inf).amax(-1, keepdim=True)
        self.alive = self.alive & ~((rewards / n + self.promised() / n + noise < sure) & (rounds > 0))

    def record(self) -> Mapping[str, Tensor]:
        """Also who is left."""
        return {**super().record(), "alive": self.alive.clone()}


class BalancingApart(RegretBalancing):
    """Regret balancing whose candidates learn from the rounds that they chose themselves, and from the initial design.

    This is the master algorithm as it is analyzed: every base learner is a GP-UCB that knows of no other, so that its
    promise is a theorem about its own rounds. A round of another is an observation of noise without end to it.

    Args:
        space: see ``CandidatePolicy``, with one ``noise_std`` for all candidates.
        options: those of ``RegretBalancing``.
    """

    def __init__(self, space: Space, **options: Any) -> None:
        noise = space.like.new_full((len(space.candidates),), float(space.noise_std))
        super().__init__(replace(space, noise_std=noise), **options)

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition the candidate that chose."""
        noise = self.space.noise_std.expand(self.replicates, -1)
        if self.round >= 1 and bool(asked.any()):
            others = torch.ones_like(noise, dtype=torch.bool).scatter(-1, self._selected.unsqueeze(-1), False)
            noise = torch.where(others & asked.unsqueeze(-1), 1e9 * noise, noise)
        self.noise = noise
        super().learn(row, asked)

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:
        """As before, with the noise of the world."""
        self.noise = self.space.noise_std
        super().judge(row, played)
