"""A lengthscale learned while the run goes on: after every answer, that of the largest marginal likelihood."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ActionPolicy, Space
from cbo_lib.indirect.belief import Belief
from cbo_lib.indirect.policies import IndirectPolicy


class Bank(Belief):
    """Several beliefs that see the same; each replicate believes the one that makes its data most likely.

    Args:
        space: what the learner knows.
        replicates: how many.
        priors: one a belief.
    """

    def __init__(self, space: Space, replicates: int, priors: Sequence[GaussianProcess]) -> None:
        super().__init__(space, replicates, priors[0])
        self.members = [Belief(space, replicates, prior) for prior in priors]

    def observe(self, place: Tensor, y: Tensor, learned: Tensor) -> None:
        """All take in values ``replicates`` of places ``replicates``."""
        super().observe(place, y, learned)
        for member in self.members:
            member.observe(place, y, learned)

    @property
    def chosen(self) -> Tensor:
        """Which belief each replicate holds, ``replicates``."""
        return torch.stack([member.tracked.log_marginal_likelihood for member in self.members]).argmax(0)

    def _of_chosen(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts))[self.chosen, torch.arange(self.replicates)]

    @property
    def mean(self) -> Tensor:
        """Posterior means of the places, ``replicates x (n + m)``."""
        return self._of_chosen([member.mean for member in self.members])

    @property
    def std(self) -> Tensor:
        """Posterior standard deviations, ``replicates x (n + m)``."""
        return self._of_chosen([member.std for member in self.members])

    @property
    def tracked(self) -> Any:
        """What EI asks for: the means."""
        return SimpleNamespace(mean=self.mean, queries=self._tracked.queries)


class _Online(IndirectPolicy):
    """A policy that holds a ``Bank``.

    Args:
        space: what the learner knows.
        bank: priors of all places, one a lengthscale.
        options: those of the policy.
    """

    def __init__(self, space: Space, *, bank: Sequence[GaussianProcess], **options: Any) -> None:
        super().__init__(space, prior=bank[0], **options)
        self.bank = list(bank)

    def begin(self) -> None:
        """Nothing is known, in every belief."""
        super().begin()
        self.belief = Bank(self.space, self.replicates, self.bank)


class _OnlineAction(_Online, ActionPolicy):
    """A usual policy on g, with a learned lengthscale of g too.

    Args:
        space: what the learner knows.
        action_bank: priors of g on actions, one a lengthscale.
        options: those of ``ActionPolicy``, with ``bank``.
    """

    def __init__(self, space: Space, *, action_bank: Sequence[GaussianProcess], **options: Any) -> None:
        super().__init__(space, action_prior=action_bank[0], **options)
        self.action_bank = list(action_bank)

    def begin(self) -> None:
        """Also nothing is known of g."""
        super().begin()
        self.on_actions = Bank(self.on_actions.space, self.replicates, self.action_bank)


@functools.cache
def online(policy: type[IndirectPolicy]) -> type[IndirectPolicy]:
    """A policy that learns its lengthscale; it takes a ``bank`` of priors, a usual policy on g an ``action_bank`` too.

    Args:
        policy: the class of the one that is given a prior.
    """
    held = _OnlineAction if issubclass(policy, ActionPolicy) else _Online
    return type(f"Online{policy.__name__}", (held, policy), {"__doc__": f"``{policy.__name__}``, learning."})
