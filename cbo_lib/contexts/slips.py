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

from cbo_lib.contexts import problems
from cbo_lib.contexts.policies import DRBOKDE, GPUCB, SBOKDE, ContextPolicy, Settings
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt
from cbo_lib.generators import standard_normal


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


@dataclass(frozen=True)
class Slip:
    """A policy as the text has it, and with one slip.

    Args:
        problem: to be solved, and the same for the slip unless ``wrong_problem`` is given.
        right: the policy for a problem and settings.
        wrong: the policy with the slip.
        wrong_problem: the problem with the slip.
    """

    problem: ContextProblem
    right: Callable[[ContextProblem, Settings], ContextPolicy]
    wrong: Callable[[ContextProblem, Settings], ContextPolicy]
    wrong_problem: ContextProblem | None = None


def slips(samples: int = 1024) -> Mapping[str, Slip]:
    """The slips by name.

    - ``root of beta``: GP-UCB alone explores with ``sqrt(1.5)`` in the place of 1.5, as it does where 1.5 is passed for
      BoTorch's ``beta``.
    - ``points outside, StableOpt`` and ``points outside, DRBO-KDE``: the Sobol points that search for the worst
      context are mirrored at the lower corner of their box.
    - ``diagonal``: the grid of DRBO-MMD in two dimensions holds its diagonal alone.
    - ``raw contexts``: the model and the density estimate get contexts before clipping, f the clipped ones.
    - ``identity``: the slope of the minimax approximation has the identity in the place of the kernel matrix.

    Args:
        samples: see ``SBOKDE``, and of the covers.
    """
    ackley, hartmann = problems.ackley(), problems.complicated_hartmann()

    def half_root(problem: ContextProblem, settings: Settings) -> ContextPolicy:
        assert not callable(settings.sqrt_beta)
        return GPUCB(problem, replace(settings, sqrt_beta=math.sqrt(settings.sqrt_beta)))

    def sbo(problem: ContextProblem, settings: Settings) -> ContextPolicy:
        return SBOKDE(problem, settings, samples)

    return {
        "root of beta": Slip(ackley, GPUCB, half_root),
        "points outside, StableOpt": Slip(
            ackley,
            lambda p, s: StableOpt(p, s, samples),
            lambda p, s: StableOpt(p, s, samples, reflected=True),
        ),
        "points outside, DRBO-KDE": Slip(
            ackley,
            lambda p, s: DRBOKDE(p, s, samples, cover=samples),
            lambda p, s: DRBOKDE(p, s, samples, cover=samples, reflected=True),
        ),
        "diagonal": Slip(problems.modified_branin(), DRBOMMD, lambda p, s: DRBOMMD(p, s, grid="diagonal")),
        "raw contexts": Slip(hartmann, sbo, sbo, RawContexts.of(hartmann)),
        "identity": Slip(
            ackley,
            lambda p, s: DRBOMMDMinimax(p, s, size=samples),
            lambda p, s: DRBOMMDMinimax(p, s, size=samples, sensitivity="identity"),
        ),
    }
