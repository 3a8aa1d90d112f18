"""Policies to judge the others by: random ones, ones that pay for coarse actions, and CMES in the paper's own form."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbo_lib.indirect import CMES, CMETS, ActionPolicy, Space
from cbo_lib.indirect.entropy import conditional_max_value_entropy
from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.random import uniform

# Knots of the table of Appendix A's gain: gamma, and the logarithm of std over noise.
_GAMMA, _RATIO = (-12.0, 14.0, 261), (-8.0, 9.0, 69)


class RandomQueries(IndirectPolicy):
    """Asks uniformly random actions."""

    def scores(self) -> Tensor:
        """Random numbers."""
        return uniform(self.generators, (len(self.places),), self.left)


class RandomLevels(IndirectPolicy):
    """Asks a random level of a tree and there a random node, whatever it costs: coarse nodes come up often.

    Costs name the levels.
    """

    def scores(self) -> Tensor:
        """Random numbers, those of one random level above all others."""
        levels, which = self.space.costs[: self.n].unique(return_inverse=True)
        draws = uniform(self.generators, (self.n + 1,), self.left)
        level = (draws[:, :1] * len(levels)).long()
        return self.padded(draws[:, 1:] + (which == level))


def usual_policies(
    make: Callable[..., IndirectPolicy], space: Space, kinds: Sequence[str] = ("mes", "ucb", "ei"), **options: Any
) -> dict[str, IndirectPolicy]:
    """The usual policies on g by name, ``MES on g`` and so on.

    Args:
        make: ``ActionPolicy``, or what derives from it.
        space: what the learner knows.
        kinds: the acquisitions.
        options: those of the policy.
    """
    return {f"{kind.upper()} on g": make(space, acquisition=kind, **options) for kind in kinds}


class PaidActionPolicy(ActionPolicy):
    """A usual policy on g whose score (the logarithm of EI or of MES) is divided by the cost: EI per unit of money."""

    def scores(self) -> Tensor:
        """The logarithm of the score over the cost."""
        return super().scores() - self.space.costs.log()


@functools.cache
def _gain_table() -> Tensor:
    gamma, ratio = (torch.linspace(*part, dtype=torch.float64) for part in (_GAMMA, _RATIO))
    std, gap = ratio.exp().repeat_interleave(len(gamma)), gamma.repeat(len(ratio))
    # With noise one, each pair of a mean and a deviation has its own gamma below a sample at zero.
    gain = conditional_max_value_entropy(-gap * std, std, torch.zeros(1, dtype=torch.float64), 1.0)
    return gain.clamp_min(1e-300).log().reshape(len(ratio), len(gamma))


def noisy_log_gain(gamma: Tensor, log_ratio: Tensor) -> Tensor:
    """The logarithm of Appendix A's gain for one sample of ``f*``, looked up and interpolated.

    The gain depends on ``gamma = (f* - mean) / std`` and on ``std / noise`` alone. Beyond the table it goes on as its
    edge does: less ``gamma^2 / 2`` to the right, constant elsewhere.

    Args:
        gamma: any shape.
        log_ratio: ``log(std / noise)``, broadcasts to it.
    """
    table = _gain_table().to(gamma)

    def knots(x: Tensor, low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
        place = ((x - low) / (high - low) * (count - 1)).clamp(0, count - 1)
        first = place.long().clamp_max(count - 2)
        return first, place - first

    column, right = knots(gamma, *_GAMMA)
    row, up = knots(log_ratio, *_RATIO)
    at = row * _GAMMA[2] + column
    flat = table.flatten()
    lower = torch.lerp(flat[at], flat[at + 1], right)
    upper = torch.lerp(flat[at + _GAMMA[2]], flat[at + _GAMMA[2] + 1], right)
    beyond = 0.5 * (gamma.clamp_min(_GAMMA[1]).square() - _GAMMA[1] ** 2)
    return torch.lerp(lower, upper, up) - beyond


class NoisyCMES(CMES):
    """CMES by the form of Appendix A, which the paper used, from a table: as fast as Eq. 14 (``noisy=True`` is exact).

    Args:
        options: those of ``CMES``.
    """

    def scores(self) -> Tensor:
        """The logarithm of information over cost."""
        self._drawn = self.max_samples()
        n = self.n
        mean, std = self.mean[:, :n], self.std[:, :n].clamp_min(1e-12)
        gamma = (self._drawn.unsqueeze(-1) - mean.unsqueeze(-2)) / std.unsqueeze(-2)
        log_gain = noisy_log_gain(gamma, (std / self.noise[..., :n]).log().unsqueeze(-2))
        total = log_gain.logsumexp(-2) - math.log(self.samples)
        self._kappa = gamma[:, 0].masked_fill(~self.allowed()[..., :n], torch.inf).amin(-1)
        return self.padded(total - self.space.costs[:n].log())


class NoisyCMETS(CMETS, NoisyCMES):
    """CMETS by the form of Appendix A."""
