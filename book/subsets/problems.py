"""The four problems of the paper's experiments ([Hoang2024], experiments and Appendix C).

All four are brought to one scale: the function's smallest value on the unit box is subtracted, as the paper asks where
it assumes ``f >= 0``, and the rest is divided by the function's standard deviation under uniform inputs. So f is
nonnegative, of unit deviation, and its fraction ``1 - alpha`` means a fraction of the way from the worst value up. The
paper also standardizes the plant and the airfoil; what it does with the other two it does not say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from botorch.test_functions import Ackley, Hartmann
from torch import Tensor

from book.subsets.airfoil import airfoil_objective, load_airfoil
from book.subsets.marginals import TruncatedNormal, truncated_normal
from book.subsets.plant import plant_growth
from book.subsets.problem import SubsetProblem
from cbo_lib.distributions import Uniform
from cbo_lib.measure import Function
from cbo_lib.subsets import Space

Costs = Literal["cheap", "moderate"]
#: The mean costs of the seven control sets, in the order of Appendix C.
COSTS = {"cheap": (0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 1.0), "moderate": (0.1, 0.1, 0.1, 0.2, 0.2, 0.2, 1.0)}

_SIX = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11), tuple(range(12)))
_PLANT = ((0, 1), (2, 3), (3, 4), (0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 1, 2, 3, 4))
_AIRFOIL = ((3, 4), (1, 4), (0, 3), (1, 2), (2, 4), (0, 1), (2, 3))


def hartmann(
    costs: Costs = "cheap",
    variance: float | None = 0.02,
    cost_std: float = 0.02,
    noise_std: float = 0.1,
    budget: float = 100.0,
    like: Tensor | None = None,
) -> SubsetProblem:
    """The Hartmann function of the first six of twelve variables, to be maximized.

    Two control sets are optimal: that of the six variables that matter, and the full one.

    Args:
        costs: which of ``COSTS``.
        variance: of every free variable, a truncated normal one; None for the uniform distribution. Default 0.02.
        cost_std: standard deviation of the noise of costs whose mean is 0.1 or more. The paper's ``N(0, 0.02)`` may
            give a variance; then it would be 0.14, and one cost in four of mean 0.1 would be negative. That the paper
            adds no noise to smaller costs suits a deviation of 0.02, five of which make 0.1. Default 0.02.
        noise_std: of the values, in units of f. The paper does not state it. Default 0.1.
        budget: in units of cost. Default 100.
        like: a tensor of the dtype and device of the problem. Default: float64 on the CPU.

    Raises:
        ValueError: if there are no such costs, or another argument is out of range.
    """
    like = torch.zeros((), dtype=torch.float64) if like is None else like
    base = Hartmann(dim=6, negate=True).to(like)
    f = _scaled(lambda x: base(x.reshape(-1, x.shape[-1])[:, :6]).reshape(x.shape[:-1]), 6, like)
    return _problem("Hartmann", f, _SIX, 12, costs, variance, cost_std, noise_std, budget, like, 4096)


def ackley(
    costs: Costs = "cheap",
    variance: float | None = 0.02,
    cost_std: float = 0.02,
    noise_std: float = 0.1,
    budget: float = 100.0,
    box: tuple[float, float] = (-5.0, 10.0),
    like: Tensor | None = None,
) -> SubsetProblem:
    """The negated Ackley function of the first six of twelve variables.

    Arguments are those of ``hartmann`` where nothing else is said.

    The paper does not state its box. In the textbook's, [-32.768, 32.768], the maximizer is the middle of the unit box,
    which is also the mean of every free variable and a point that many a design contains. The default is the box of
    [Eriksson2019], where it is 1/3 in every coordinate.

    Args:
        costs: one of ``COSTS``.
        variance: of a free variable.
        cost_std: of the noisy costs.
        noise_std: of the values.
        budget: in units of cost.
        box: the two ends of every variable, around 0. Default (-5, 10).
        like: for dtype and device.

    Raises:
        ValueError: as for ``hartmann``, or if the box does not hold 0.
    """
    if not box[0] < 0 < box[1]:
        raise ValueError(f"box must hold 0, the maximizer, in its inside, got {box}")
    like = torch.zeros((), dtype=torch.float64) if like is None else like
    base = Ackley(dim=6, negate=True, bounds=[box] * 6).to(like)

    def raw(x: Tensor) -> Tensor:
        inputs = torch.lerp(like.new_tensor(box[0]), like.new_tensor(box[1]), x[..., :6])
        return base(inputs.reshape(-1, 6)).reshape(x.shape[:-1])

    f = _scaled(raw, 6, like)
    return _problem("Ackley", f, _SIX, 12, costs, variance, cost_std, noise_std, budget, like, 4096)


def plant(
    costs: Costs = "cheap",
    variance: float | None = 0.02,
    cost_std: float = 0.02,
    noise_std: float = 0.1,
    budget: float = 100.0,
    like: Tensor | None = None,
) -> SubsetProblem:
    """Plant growth depending on calcium, boron, ammonia, potassium and pH, by the model of ``plant_growth``.

    Arguments and errors are those of ``hartmann``.
    """
    like = torch.zeros((), dtype=torch.float64) if like is None else like
    f = _scaled(plant_growth, 5, like)
    return _problem("Plant", f, _PLANT, 5, costs, variance, cost_std, noise_std, budget, like, 4096)


def airfoil(
    path: str | Path,
    costs: Costs = "cheap",
    variance: float | None = 0.02,
    cost_std: float = 0.02,
    noise_std: float = 0.1,
    budget: float = 100.0,
) -> SubsetProblem:
    """The sound level of an airfoil depending on frequency, angle, chord, velocity and thickness.

    The objective is the posterior mean of a Gaussian process on standardized levels, and is maximized as it is: the
    paper speaks of no change of sign. No control set holds all variables.

    Arguments are those of ``hartmann`` where nothing else is said.

    Args:
        path: of the data file, see ``load_airfoil``, also for its errors.
        costs: one of ``COSTS``.
        variance: of a free variable.
        cost_std: of the noisy costs.
        noise_std: of the values.
        budget: in units of cost.

    Raises:
        ValueError: as for ``hartmann``.
    """
    inputs, levels = load_airfoil(path)
    f = _scaled(airfoil_objective(inputs, levels), 5, inputs)
    return _problem("Airfoil", f, _AIRFOIL, 5, costs, variance, cost_std, noise_std, budget, inputs[0, 0], 4096)


def _scaled(raw: Function, dim: int, like: Tensor) -> Function:
    """The function less its smallest value on the unit box of ``dim`` variables, over its standard deviation there."""
    space = Space(_unit_box(dim, like), [range(dim)], (Uniform(),) * dim, budget=1.0)
    upside_down = SubsetProblem(space, lambda x: -raw(x), like.new_ones(1))
    worst = -upside_down.optimum
    uniform = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(2**14, dtype=like.dtype).to(like)
    deviation = raw(uniform).std()
    return lambda x: (raw(x) - worst) / deviation


def _problem(
    name: str,
    f: Function,
    control_sets: tuple[tuple[int, ...], ...],
    dim: int,
    costs: str,
    variance: float | None,
    cost_std: float,
    noise_std: float,
    budget: float,
    like: Tensor,
    nodes: int,
) -> SubsetProblem:
    if costs not in COSTS:
        raise ValueError(f"costs must be one of {sorted(COSTS)}, got {costs!r}")
    means = like.new_tensor(COSTS[costs])
    marginal: Uniform | TruncatedNormal = Uniform() if variance is None else truncated_normal(variance)
    noisy = like.new_tensor([cost_std if cost >= 0.1 else 0.0 for cost in COSTS[costs]])
    space = Space(_unit_box(dim, like), control_sets, (marginal,) * dim, budget, floor=0.0)
    return SubsetProblem(space, f, means, noisy, noise_std, name, nodes)


def _unit_box(dim: int, like: Tensor) -> Tensor:
    return torch.stack([like.new_zeros(dim), like.new_ones(dim)])
