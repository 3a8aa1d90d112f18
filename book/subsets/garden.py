"""The garden, the running example: three variables, five control sets, and a function of known norm."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from book.functions import maximum, rkhs_samples
from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.subsets import Space

#: Of the kernel in whose space the function lies, with the norm NORM above its floor.
LENGTHSCALE, NORM, NOISE = 0.4, 2.0, 0.1
#: Water, light and lime; their mean costs are in the same order as the sets.
VARIABLES = ("water", "light", "lime")
SETS, COSTS = ((0,), (1,), (2,), (0, 1), (0, 1, 2)), (0.1, 0.15, 0.2, 0.5, 1.0)


@cache
def garden(budget: float = 30.0, variance: float = 0.04, seed: int = 3) -> SubsetProblem:
    """The garden: ``f = b + g`` with ``g`` of norm 2 in the space of an RBF kernel, and ``b`` such that ``f >= 0``.

    Args:
        budget: in units of cost; a large one for the theory, which counts plays.
        variance: of a free variable, a truncated normal one about the middle.
        seed: of the draw of ``g``.
    """
    g, floor = _drawn(seed)
    box = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    space = Space(box, SETS, (truncated_normal(variance),) * 3, budget=budget, floor=0.0, names=VARIABLES)
    costs = torch.tensor(COSTS, dtype=torch.float64)
    return SubsetProblem(space, lambda x: g(x) + floor, costs, NOISE / 5, NOISE, name="garden")


@cache
def _drawn(seed: int):  # type: ignore[no-untyped-def]
    box = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    draw = rkhs_samples(rbf_kernel(LENGTHSCALE), box, NORM, [seed])

    def g(x: Tensor) -> Tensor:
        return draw(x.unsqueeze(0)).squeeze(0)

    return g, float(maximum(lambda x: -g(x), box)[1])


def prior(factor: float = 1.0, seed: int = 3) -> GaussianProcess:
    """The prior that belongs to the garden; one of ``factor`` times the variance believes more or less of it."""
    return GaussianProcess(rbf_kernel(LENGTHSCALE, factor), NOISE, _drawn(seed)[1])
