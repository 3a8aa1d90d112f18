"""Small slips, large effects: where the published code of [Huang2024] deviates from its text, each done on purpose.

The code is https://github.com/lamda-bbo/sbokde, read at revision 9882b9e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from book.contexts.problem import ContextProblem
from cbo_lib.contexts.baselines import DRBOMMD, GPUCB, DRBOMMDMinimax, StableOpt
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, ContextPolicy
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import MMDBall
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class RawContexts(ContextProblem):
    """A problem that shows the context before clipping, while f sees the clipped one."""

    @classmethod
    def of(cls, problem: ContextProblem) -> RawContexts:
        """The same problem with that slip."""
        return cls(**{f.name: getattr(problem, f.name) for f in fields(problem)})

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """The raw contexts, and the values at the clipped ones."""
        raw = self.distribution.sample(generators, clip=False)
        value = self.evaluate(query, self.distribution.clip(raw))
        return {"context": raw, "y": value + self.noise_std * standard_normal(generators, (), value)}


class ReflectedStableOpt(StableOpt):
    """StableOpt whose search points are mirrored at the lower corner of the set that it fears, and not clipped."""

    def feared(self) -> Tensor:
        """The contexts of which the worst counts, ``replicates x N x Dc``."""
        mean, std = self.contexts.mean(-2, keepdim=True), self.contexts.std(-2, keepdim=True)
        return mean - std - 2 * std * self.sobol_contexts(self.cover)


class ReflectedDRBOKDE(DRBOKDE):
    """DRBO-KDE whose search points are mirrored at the lower corner of the context box."""

    def covered(self) -> Tensor:
        """The contexts whose smallest bound stands for the infimum, ``N x Dc``."""
        return 2 * self.space.contexts[0] - super().covered()


class DiagonalDRBOMMD(DRBOMMD):
    """DRBO-MMD on the diagonal of its grid: the points whose coordinates are the same share of the box."""

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, **options)
        low, high = space.contexts
        share = (self.points - low) / (high - low)
        self.points = self.points[(share == share[:, :1]).all(-1)]


class IdentityBall(MMDBall):
    """A ball whose worst-case sensitivity has the identity in the place of the kernel matrix."""

    def squared_slope(self, rows: Tensor) -> Tensor:
        """The squared distance of the values from their mean."""
        return (rows - rows.mean(-1, keepdim=True)).square().sum(-1, keepdim=True)


class IdentityMinimax(DRBOMMDMinimax):
    """DRBO-MMD-MinimaxApprox with the identity in the place of the kernel matrix in its slope."""

    ball_type = IdentityBall


def _root_of_beta(space: Space, samples: int, sqrt_beta: float = 1.5, **options: Any) -> GPUCB:
    return GPUCB(space, sqrt_beta=math.sqrt(sqrt_beta), **options)


@dataclass(frozen=True)
class Slip:
    """One slip in a policy of a panel.

    Args:
        panel: a name in ``PANELS``.
        policy: a name in ``POLICIES``: as the text has it.
        make: the policy with the slip, for a space, a number of samples and options; see ``MAKERS``.
        world: the problem with the slip. Default the panel's own.
    """

    panel: str
    policy: str
    make: Callable[..., ContextPolicy]
    world: Callable[[ContextProblem], ContextProblem] = lambda problem: problem


#: The slips by name.
#:
#: - ``root of beta``: GP-UCB alone explores with ``sqrt(1.5)`` in the place of 1.5, as it does where 1.5 is passed for
#:   BoTorch's ``beta``.
#: - ``points outside, StableOpt`` and ``points outside, DRBO-KDE``: the Sobol points that search for the worst context
#:   are mirrored at the lower corner of their box.
#: - ``diagonal``: the grid of DRBO-MMD in two dimensions holds its diagonal alone.
#: - ``raw contexts``: the model and the density estimate get contexts before clipping, f the clipped ones.
#: - ``identity``: the slope of the minimax approximation has the identity in the place of the kernel matrix.
SLIPS: Mapping[str, Slip] = {
    "root of beta": Slip("ackley", "GP-UCB", _root_of_beta),
    "points outside, StableOpt": Slip("ackley", "StableOpt", lambda s, n, **o: ReflectedStableOpt(s, cover=n, **o)),
    "points outside, DRBO-KDE": Slip(
        "ackley", "DRBO-KDE", lambda s, n, **o: ReflectedDRBOKDE(s, samples=n, cover=n, **o)
    ),
    "diagonal": Slip("branin", "DRBO-MMD", lambda s, n, **o: DiagonalDRBOMMD(s, **o)),
    "raw contexts": Slip(
        "complicated_hartmann", "SBO-KDE", lambda s, n, **o: SBOKDE(s, samples=n, **o), RawContexts.of
    ),
    "identity": Slip("ackley", "DRBO-MMD-MinimaxApprox", lambda s, n, **o: IdentityMinimax(s, size=n, **o)),
}

#: The policies that the published code has otherwise than the text on problems with one context, but for
#: DRBO-MMD-MinimaxApprox, whose approximation there is not written here.
PUBLISHED: Mapping[str, Callable[..., ContextPolicy]] = {
    SLIPS[name].policy: SLIPS[name].make
    for name in ("root of beta", "points outside, StableOpt", "points outside, DRBO-KDE")
}
