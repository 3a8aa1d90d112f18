"""HE-GP-UCB and HE-StableOpt, optimization with hyperparameter elimination."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from cbo_lib.checks import as_option, as_values, require
from cbo_lib.confidence import noise_threshold
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.hyperparameters.base import CandidatePolicy
from cbo_lib.hyperparameters.space import Space
from cbo_lib.measure import expands_to


class HEGPUCB(CandidatePolicy):
    """GP-UCB with hyperparameter elimination, HE-GP-UCB ([Ziomek2024], Algorithm 1).

    Asks the point of the largest upper confidence bound under any candidate left, and drops the candidate that gave
    it once its summed prediction errors are too large (``eliminates``). The last candidate is never dropped: if the
    set holds the truth this happens with probability below ``failure`` anyway, and if it does not the theory is
    silent. The trace says where the rule would have (``refuted``).

    The test counts the rounds whose asked point was played, see ``learn``.

    Args:
        space: see ``CandidatePolicy``, also for errors and all arguments that are not named here.
        elimination: ``"errors"``, the rule of line 12; ``"never"`` keeps all candidates.

    Attributes:
        alive: which candidates are left, boolean ``replicates x |U|``.
    """

    alive: Tensor
    #: How many candidates are tested in a round, each on rounds of its own.
    roles = 1

    def __init__(self, space: Space, *, elimination: Literal["errors", "never"] = "errors", **options: Any) -> None:
        super().__init__(space, **options)
        self.elimination = as_option("elimination", elimination, "errors", "never")

    def begin(self) -> None:
        """Keep all candidates."""
        super().begin()
        shape = (self.replicates, len(self.space.candidates))
        self.alive = torch.ones(shape, dtype=torch.bool, device=self.space.like.device)
        self._refuted = torch.zeros_like(self.alive[:, 0])
        # Errors, widths and numbers of the rounds S^u of every candidate.
        self._sums = [self.space.like.new_zeros(3, *shape) for _ in range(self.roles)]

    def score(self, mean: Tensor, std: Tensor) -> Tensor:
        """The largest upper confidence bound of a candidate left."""
        return self.upper(mean, std).masked_fill_(~self.alive.unsqueeze(-1), -torch.inf).amax(1)  # line 7

    def weights(self) -> Tensor:
        """All candidates left alike."""
        return self.alive / self.alive.sum(-1, keepdim=True).to(self.mean)

    def responsible(self) -> Tensor:
        """The candidate left of the largest upper confidence bound there."""
        return argmax_finite(self.mean + self.multiplier() * self.std, self.alive)

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:
        """Test the responsible candidate."""
        self.test(self.candidate, row["y"], played)

    def test(self, candidate: Tensor, y: Tensor, played: Tensor, role: int = 0) -> None:
        """Lines 8 and 11 to 14 for one candidate a replicate.

        Args:
            candidate: which, ``replicates``.
            y: the observations, ``replicates``.
            played: in which replicates, boolean; the others are left as they are.
            role: which of its sums, below ``roles``.
        """
        at = candidate.clamp_min(0).unsqueeze(-1)
        widths = (self.multiplier() * self.std).gather(-1, at)
        errors = y.unsqueeze(-1) - self.mean.gather(-1, at)  # line 11
        new = torch.stack([errors, widths, torch.ones_like(errors)]) * played.unsqueeze(-1)
        self._sums[role] = self._sums[role].scatter_add(-1, at.expand(3, *at.shape), new)
        total = self._sums[role].gather(-1, at.expand(3, *at.shape))
        xi = noise_threshold(self.round, self.noise, len(self.space.candidates), self.failure).to(errors)
        xi = xi.expand(self.alive.shape).gather(-1, at).squeeze(-1)
        refuted = eliminates(total[0], total[1], xi, total[2].squeeze(-1)) & played & (self.elimination == "errors")
        dropped = torch.zeros_like(self.alive).scatter(-1, at, refuted.unsqueeze(-1))
        last = (self.alive & ~dropped).sum(-1) == 0
        self._refuted = self._refuted | (refuted & last)
        self.alive = self.alive & ~(dropped & ~last.unsqueeze(-1))

    def record(self) -> Mapping[str, Tensor]:
        """Also which candidates are ``alive`` after the step, and whether the last one was ``refuted`` so far."""
        return {**super().record(), "alive": self.alive.clone(), "refuted": self._refuted.clone()}


class HEStableOpt(HEGPUCB):
    """Robust optimization with hyperparameter elimination, HE-StableOpt ([Ziomek2024], Algorithm 2).

    Chooses ``x`` by the worst upper confidence bound within ``epsilon`` under the most favorable candidate ``u``, then
    asks the point within ``epsilon`` of it with the smallest lower confidence bound under any candidate ``v``. Both
    ``u`` and ``v`` are tested, each on its own rounds. In a box the ball is that of ``Space.ball``. Of the points
    chosen so far, and those told without being asked, it recommends the one whose averaged mean, under the candidates
    left, is largest where it is worst within ``epsilon``.

    Arguments and errors are those of ``HEGPUCB``.
    """

    roles = 2

    def begin(self) -> None:
        """Keep all candidates; nothing was chosen."""
        super().begin()
        self._centers = self._places

    def score(self, mean: Tensor, std: Tensor) -> Tensor:
        """The largest worst upper confidence bound of a candidate left."""
        return self.space.worst(self.upper(mean, std)).masked_fill(~self.alive.unsqueeze(-1), -torch.inf).amax(1)

    def propose(self) -> Tensor:
        """The worst neighbor of the best point."""
        self._refresh()
        space, points = self.space, self.space.points
        place = self.search(self.score, space.ball)
        index = None if points is None else space.neighbors[place]
        self._center = place if points is None else points[place]
        near = self.rounded(space.ball(place.unsqueeze(-2)), space.bounds) if points is None else points[index]
        mean, std = self.moments(near, index)  # replicates |U| m
        self._optimist = argmax_finite(self.upper(mean, std).amin(-1), self.alive)  # line 8
        lower = (mean - self.multiplier().unsqueeze(-1) * std).masked_fill(~self.alive.unsqueeze(-1), torch.inf)
        worst = argmax_finite(-lower.amin(1))[:, None, None]
        self._pessimist = argmax_finite(-lower.take_along_dim(worst, -1).squeeze(-1), self.alive)  # line 9
        return near.take_along_dim(worst, 1).squeeze(1)

    def responsible(self) -> Tensor:
        """The optimist ``u``."""
        return self._optimist

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition every candidate; what was asked and played is also judged."""
        played = asked & (self.round >= 1)
        self._chosen = {"chosen": row["query"], "pessimist": torch.full_like(row["y"], -1).long()}
        if bool(played.any()):
            self._chosen["chosen"] = torch.where(played.unsqueeze(-1), self._center, row["query"])
            self._chosen["pessimist"] = torch.where(played, self._pessimist, self._chosen["pessimist"])
        self._centers = torch.cat([self._centers, self.place(self._chosen["chosen"])], 1)
        super().learn(row, asked)

    def judge(self, row: Mapping[str, Tensor], played: Tensor) -> None:
        """Test both. They see the candidates of this round; neither test may undo what the other dropped."""
        self.test(self._optimist, row["y"], played)
        self.test(self._pessimist, row["y"], played, role=1)

    def best(self) -> Tensor:
        """Of what was chosen or told, the point of the largest worst averaged mean."""
        self._refresh()
        weights = self.weights().unsqueeze(-1)
        return self.best_of(self._centers, lambda m, std: self.space.worst((weights * m).sum(1)), self.space.ball)

    def record(self) -> Mapping[str, Tensor]:
        """Also the ``chosen`` point before the perturbation, and the candidate ``pessimist`` of the perturbation."""
        return {**super().record(), **self._chosen}


def eliminates(errors: Tensor, widths: Tensor, xi: Tensor | float, count: Tensor | int | None = None) -> Tensor:
    """Whether a candidate's rounds refute it, booleans ``...`` ([Ziomek2024], Algorithm 1, line 12).

    ``|sum_i eta_i| > sqrt(xi n) + sum_i beta_i sigma_i`` over the ``n`` rounds that the candidate was chosen in.

    Args:
        errors: ``eta_i = y_i - mean_{i-1}(x_i)`` of those rounds, ``... x n``; zero where padded.
        widths: ``sqrt_beta_i * std_{i-1}(x_i)``, the same shape, nonnegative; zero where padded.
        xi: the threshold of the noise, broadcasts to ``...``, nonnegative.
        count: how many rounds are not padding, broadcasts to ``...``. Default ``n``.

    Raises:
        ValueError: if the shapes differ, or a value is not finite or negative.
    """
    errors = as_values("errors", errors, (..., "n"))
    widths = as_values("widths", widths, errors.shape, 0)
    xi = as_values("xi", xi, None, 0, like=errors)
    rounds = as_values("count", errors.shape[-1] if count is None else count, None, 0, like=errors)
    for name, value in (("xi", xi), ("count", rounds)):
        fits = expands_to(value.shape, errors.shape[:-1])
        require(fits, f"{name} must broadcast to {tuple(errors.shape[:-1])}", f"shape {tuple(value.shape)}")
    return errors.sum(-1).abs() > (xi * rounds).sqrt() + widths.sum(-1)
