"""Policies that CMES is compared with."""

from typing import Any, Literal

import torch
from botorch.utils.probability.utils import phi
from torch import Tensor

from cbo_lib.checks import as_count, as_option
from cbo_lib.former.policy import Schedule
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.belief import Belief
from cbo_lib.indirect.entropy import conditional_max_value_entropy, gumbel_max_samples, positive
from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.indirect.space import Point, Space, box_of
from cbo_lib.random import uniform


class ActionPolicy(IndirectPolicy):
    """A usual policy on g, which knows nothing of f: the baselines of [Zhang2025], section 7.

    It asks by a Gaussian process on actions given the data ``(a, z)`` alone, and recommends like all others.

    Args:
        space: what the learner knows.
        acquisition: ``"mes"``, ``"ucb"`` or ``"ei"``.
        action_prior: of g on actions, without batch. Default: fitted, like that of f.
        samples: of ``g*``, for MES. Default 10.
        sqrt_beta: the multiplier of UCB. Default 2.
        options: those of ``IndirectPolicy``; ``prior`` is for the recommendation. Errors too.
    """

    def __init__(
        self,
        space: Space,
        *,
        acquisition: Literal["mes", "ucb", "ei"],
        action_prior: GaussianProcess | None = None,
        samples: int = 10,
        sqrt_beta: Schedule = 2.0,
        **options: Any,
    ) -> None:
        super().__init__(space, sqrt_beta=sqrt_beta, **options)
        self.acquisition = as_option("acquisition", acquisition, "mes", "ucb", "ei")
        self.action_prior, self.samples = action_prior, as_count("samples", samples, 1)

    def begin(self) -> None:
        """Also nothing is known of g."""
        super().begin()
        actions, noise = self.space.actions, self.space.noise_std
        # No point is recommended by g, but a space has one.
        alone = Space(actions, conditional=Point(), points=actions[:1], noise_std=noise, bounds=box_of(actions))
        self.on_actions = Belief(alone, self.replicates, self.action_prior, self.kernel)
        self._best = torch.full_like(self.left, -torch.inf)

    def scores(self) -> Tensor:
        """The acquisition on g; points are out of the question."""
        mean, std = self.on_actions.mean[:, : self.n], positive(self.on_actions.std[:, : self.n])
        if self.acquisition == "ucb":
            score = mean + self.multiplier() * std
        elif self.acquisition == "ei":
            gap = (mean - self._best.unsqueeze(-1).nan_to_num(neginf=-1e3)) / std
            score = (std * (phi(gap) + gap * torch.special.log_ndtr(gap).exp())).clamp_min(0.0).log()
        else:
            draws = uniform(self.generators, (self.samples,), mean).clamp(1e-6, 1 - 1e-6)
            score = conditional_max_value_entropy(mean, std, gumbel_max_samples(mean, std, draws)).log()
        return self.padded(score)

    def absorb(self, query: Tensor, y: Tensor, learned: Tensor) -> None:
        """Condition g too; EI compares with the largest mean that an asked action had when told, which never falls."""
        place = self.on_actions.find(self.belief.coordinates(query))
        self.on_actions.keep()
        self.on_actions.observe(place, y, learned)
        if self.acquisition == "ei":
            there = self.on_actions.tracked.mean[self.rows, place]
            self._best = torch.where(learned, torch.maximum(self._best, there), self._best)
