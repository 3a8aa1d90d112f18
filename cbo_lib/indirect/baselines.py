"""What CMES is compared with ([Zhang2025], section 7): usual policies on g, which know nothing of f, and chance.

Each asks by a Gaussian process on actions given the pairs ``(a, z)`` alone, and recommends like all others. Where
actions have costs, the library divides nothing: the paper's rivals may ask the finest nodes alone, at one price.
"""

from typing import Any

import torch
from botorch.utils.probability.utils import phi
from torch import Tensor

from cbo_lib.checks import as_count, as_number
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.embedding import ConditionalMeanProcess
from cbo_lib.indirect.entropy import gumbel_max_samples, log_information
from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.indirect.space import Point, Space, box_of
from cbo_lib.random import uniform
from cbo_lib.search import argmax_finite


class RandomActions(IndirectPolicy):
    """Asks uniformly random actions: what choosing is worth."""

    def ask(self) -> Tensor:
        """A random action of each replicate, ``replicates x q``."""
        if self.round <= self.initial:
            return self.space.actions[self.first[:, self.round - 1]]
        return self.space.actions[uniform(self.generators, (self.space.n,), self.y).argmax(-1)]


class OnActions(IndirectPolicy):
    """A usual policy on g, whose ``scores`` say which.

    Args:
        space: what the learner knows.
        action_prior: of g on actions, without batch. Default: fitted, with a Matern-5/2 kernel.
        options: those of ``IndirectPolicy``; ``prior`` and ``kernel`` are for the recommendation.
    """

    def __init__(self, space: Space, *, action_prior: GaussianProcess | None = None, **options: Any) -> None:
        super().__init__(space, **options)
        actions, box = space.actions, box_of(space.actions)
        alone = Space(actions, conditional=Point(), points=actions[:1], noise_std=space.noise_std, bounds=box)
        self.on_g = ConditionalMeanProcess(alone, len(self.y), action_prior)

    def ask(self) -> Tensor:
        """The action of the largest score, ``replicates x q``."""
        if self.round <= self.initial:
            return self.space.actions[self.first[:, self.round - 1]]
        n, (mean, std) = self.space.n, self.on_g.belief(self.queries, self.y)
        return self.space.actions[argmax_finite(self.scores(mean[:, :n], std[:, :n]))]

    def scores(self, mean: Tensor, std: Tensor) -> Tensor:
        """What is maximized, from mean and deviation of g at the actions, ``replicates x n`` each."""
        raise NotImplementedError


class MES(OnActions):
    """Max-value entropy search on g ([Wang2017]): the most information about the maximum of g.

    Args:
        space: what the learner knows.
        samples: of ``g*``. Default 10.
        options: those of ``OnActions``.
    """

    def __init__(self, space: Space, *, samples: int = 10, **options: Any) -> None:
        super().__init__(space, **options)
        self.samples = as_count("samples", samples, 1)

    def scores(self, mean: Tensor, std: Tensor) -> Tensor:
        """The logarithm of the information."""
        draws = uniform(self.generators, (self.samples,), mean)
        return log_information(mean, std, gumbel_max_samples(mean, std, draws))


class UCB(OnActions):
    """Upper confidence bound on g.

    Args:
        space: what the learner knows.
        sqrt_beta: the multiplier of the deviation. Default 2.
        options: those of ``OnActions``.
    """

    def __init__(self, space: Space, *, sqrt_beta: float = 2.0, **options: Any) -> None:
        super().__init__(space, **options)
        self.sqrt_beta = as_number("sqrt_beta", sqrt_beta, 0)

    def scores(self, mean: Tensor, std: Tensor) -> Tensor:
        """The bound."""
        return mean + self.sqrt_beta * std


class EI(OnActions):
    """Expected improvement on g, over the largest posterior mean of an action that was asked."""

    def scores(self, mean: Tensor, std: Tensor) -> Tensor:
        """The logarithm of the expected improvement."""
        if not self.y.shape[1]:
            return std
        asked = mean.gather(1, self.space.nearest(self.queries))
        u = (mean - asked.amax(-1, keepdim=True)) / std
        return (std * (phi(u) + u * torch.special.ndtr(u))).clamp_min(torch.finfo(std.dtype).tiny).log()
