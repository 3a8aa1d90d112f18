"""Many functions at once: Branin's function shifted, turned and mirrored, one a replicate.

A verdict on one function may rest on where its maximum lies in the grid or under the tree. Here every seed has a
function of its own, and all functions make one batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from book.indirect.problems import UNIT, branin, unit_grid
from cbo_lib.indirect import Space
from cbo_lib.indirect.space import Conditional
from cbo_lib.measure import Function
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

# How far a function is moved, in sides of the square, and how far it is turned, in radians.
_SHIFT, _TURN = 0.15, math.pi / 12
# Places whose averages are computed at once.
_SLICE = 64


@dataclass(frozen=True)
class Turned:
    """Branin's function after a random motion of the square, standardized on it; one function a seed.

    A motion shifts by up to 0.15 of a side in each coordinate, turns by up to 15 degrees, and then mirrors or turns by
    right angles, as two fair coins and a fair die of four say. Outside of its square Branin's formula goes on.

    Args:
        seeds: one a replicate.
    """

    seeds: tuple[int, ...]

    @cached_property
    def motion(self) -> tuple[Tensor, Tensor]:
        """Matrices ``R x 2 x 2`` and offsets ``R x 2``: ``u`` is looked up at ``0.5 + A (u - 0.5) + b``."""
        draws = uniform(ReplicateGenerators(self.seeds, stream=6).generators, (5,), UNIT)
        angle = _TURN * (2 * draws[:, 0] - 1) + math.pi / 2 * (4 * draws[:, 1]).floor()
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).reshape(-1, 2, 2)
        mirror = torch.where(draws[:, 2] < 0.5, -1.0, 1.0)
        turn = torch.stack([turn[..., 0] * mirror[:, None], turn[..., 1]], -1)
        return turn, _SHIFT * (2 * draws[:, 3:] - 1)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each moved function on the square, ``R x 1``."""
        values = self._moved(unit_grid(64).expand(len(self.seeds), -1, -1))
        return values.mean(-1, keepdim=True), values.std(-1, keepdim=True)

    def _moved(self, u: Tensor) -> Tensor:
        turn, offset = self.motion
        flat = u.reshape(len(self.seeds), -1, 2) - 0.5
        return branin(0.5 + flat @ turn.mT + offset.unsqueeze(1)).reshape(u.shape[:-1])

    def __call__(self, u: Tensor) -> Tensor:
        """Values ``R x ...`` at points ``R x ... x 2``."""
        mean, std = self.moments
        flat = self._moved(u).reshape(len(self.seeds), -1)
        return ((flat - mean) / std).reshape(u.shape[:-1])


@dataclass(frozen=True)
class BatchProblem:
    """What ``IndirectProblem`` is, with a function of its own for every replicate; see there.

    Args:
        space: what the learner knows.
        table: true g at every action, then f at every point, ``replicates x (n + m)``.
        conditional: the true ``p(x | a)``, from which data are drawn.
        noise_std: of each action, ``n``.

    Raises:
        ValueError: if the table does not hold one number a place.
    """

    space: Space
    table: Tensor
    conditional: Conditional
    noise_std: Tensor

    def __post_init__(self) -> None:
        """Check the shapes."""
        places = self.space.n + self.space.m
        if self.table.dim() != 2 or self.table.shape[-1] != places or self.noise_std.shape != (self.space.n,):
            raise ValueError(
                f"table and noise_std must have shapes (replicates, {places}) and ({self.space.n},), "
                f"got {tuple(self.table.shape)} and {tuple(self.noise_std.shape)}"
            )

    @property
    def n(self) -> int:
        """How many actions."""
        return self.space.n

    @cached_property
    def noise(self) -> Tensor:
        """Of every place, ``n + m``; at points the smallest of any action."""
        return torch.cat([self.noise_std, self.noise_std.amin().expand(self.space.m)])

    @property
    def optimum(self) -> Tensor:
        """``f*`` of each replicate, ``replicates x 1``."""
        return self.table[:, self.n :].amax(-1, keepdim=True)

    def value(self, query: Tensor) -> Tensor:
        """g or f at one place a replicate, ``replicates``."""
        return self.table.gather(1, query.unsqueeze(1)).squeeze(1)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one place a replicate, ``replicates``."""
        value = self.value(query)
        return value + self.noise[query] * standard_normal(generators, (), value)


def batch_table(
    f: Function, count: int, conditional: Conditional, actions: Tensor, points: Tensor, order: int = 15
) -> Tensor:
    """True averages of all functions at actions, and their values at points, ``replicates x (n + m)``.

    Args:
        f: the functions, points ``replicates x ... x d`` to values ``replicates x ...``.
        count: how many functions.
        conditional: ``p(x | a)``.
        actions: ``n x q``.
        points: ``m x d``.
        order: nodes a dimension of the rule that averages.
    """
    parts = []
    for some in actions.split(_SLICE):
        rule = conditional.measure(some, order)
        values = f(rule.points.expand(count, *rule.points.shape))
        parts.append((values * rule.weights).sum(-1))
    return torch.cat([*parts, f(points.expand(count, *points.shape))], -1)
