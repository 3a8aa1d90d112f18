"""Small slips, large effects: deviations that public code of these policies is known for, each done on purpose.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from cbo_lib.contexts.policies import DRBOKDE, GPUCB, SBOKDE, ContextPolicy, Settings
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class RawContexts(ContextProblem):
    """A problem that shows the context before clipping, while f sees the clipped one."""

    @classmethod
    def of(cls, problem: ContextProblem) -> RawContexts:
        """The same problem with that slip."""
        return cls(**{f.name: getattr(problem, f.name) for f in fields(problem)})

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """The raw contexts, and the values at the clipped ones, ``replicates x (Dc + 1)``."""
        raw = self.distribution.sample(generators, clip=False)
        value = self.evaluate(query, self.distribution.clip(raw))
        return torch.cat([raw, (value + self.noise_std * standard_normal(generators, (), value)).unsqueeze(-1)], -1)


def _same(problem: ContextProblem) -> ContextProblem:
    return problem


@dataclass(frozen=True)
class Slip:
    """One slip in a policy of a panel.

    Args:
        panel: a name in ``PANELS``.
        policy: a name in ``POLICIES``: as the text has it.
        make: the policy with the slip, for a problem, settings and a number of samples; see ``make_policy``.
        world: the problem with the slip. Default the panel's own.
    """

    panel: str
    policy: str
    make: Callable[[ContextProblem, Settings, int], ContextPolicy]
    world: Callable[[ContextProblem], ContextProblem] = _same


def _root_of_beta(problem: ContextProblem, settings: Settings, samples: int) -> GPUCB:
    assert not callable(settings.sqrt_beta)
    return GPUCB(problem, replace(settings, sqrt_beta=math.sqrt(settings.sqrt_beta)))


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
    "points outside, StableOpt": Slip("ackley", "StableOpt", lambda p, s, n: StableOpt(p, s, n, reflected=True)),
    "points outside, DRBO-KDE": Slip("ackley", "DRBO-KDE", lambda p, s, n: DRBOKDE(p, s, n, cover=n, reflected=True)),
    "diagonal": Slip("branin", "DRBO-MMD", lambda p, s, n: DRBOMMD(p, s, grid="diagonal")),
    "raw contexts": Slip("complicated_hartmann", "SBO-KDE", SBOKDE, RawContexts.of),
    "identity": Slip(
        "ackley", "DRBO-MMD-MinimaxApprox", lambda p, s, n: DRBOMMDMinimax(p, s, size=n, sensitivity="identity")
    ),
}
