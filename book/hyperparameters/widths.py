"""Multipliers of the standard deviation that the theory of the chapter proves."""

import functools
import math
from collections.abc import Callable

from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.confidence import rkhs_sqrt_beta
from cbo_lib.information import greedy_information_gain
from cbo_lib.measure import Measure


def lipschitz_sqrt_beta(t: int, dim: int, a: float, b: float, side: float, failure: float) -> float:
    """The multiplier of the standard deviation for a smooth draw of the prior on a box ``[0, side]^dim``.

    ``sqrt_beta_t = sqrt(2 log(2 pi^2 t^2 / (3 failure)) + 2 dim log(tau_t))`` with the discretization of
    ``tau_t = t^2 dim b side sqrt(log(4 dim a / failure))`` places a side. With probability ``1 - failure``, at all
    rounds, the interval holds at the point that was queried, and at the maximizer of f up to ``1 / t^2`` of the value
    at its nearest place ([Srinivas2010], Theorem 2). It does not promise to hold at every point of the box.

    Args:
        t: the round, from 1.
        dim: d, at least 1.
        a: positive; the draws satisfy ``P(sup |df / dx_j| > L) <= a exp(-(L / b)^2)`` for every coordinate.
        b: positive, in the units of f over those of the inputs.
        side: r, the length of a side of the box, positive, in the units of the inputs.
        failure: total probability of failure, in (0, 1).

    Raises:
        ValueError: if an argument is out of range, ``log(4 dim a / failure)`` is not positive, or ``tau_t`` is below
            one place.
    """
    for name, count in (("t", t), ("dim", dim)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    for name, value in (("a", a), ("b", b), ("side", side)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must lie in (0, 1), got {failure}")
    slope = math.log(4 * dim * a / failure)
    if slope <= 0:
        raise ValueError(f"a must exceed failure / (4 dim) = {failure / (4 * dim)}, got {a}")
    places = t**2 * dim * b * side * math.sqrt(slope)
    if places < 1:
        raise ValueError(
            f"t^2 dim b side sqrt(log(4 dim a / failure)) must be at least 1, got {places} from t = {t}, dim = {dim}, "
            f"a = {a}, b = {b}, side = {side}, failure = {failure}"
        )
    return math.sqrt(2 * math.log(2 * math.pi**2 * t**2 / (3 * failure)) + 2 * dim * math.log(places))


def frequentist_sqrt_beta(
    kernel: Kernel,
    points: Tensor,
    noise_std: float,
    norm: float,
    steps: int,
    initial: int = 0,
    failure: float = 0.1,
) -> Callable[[int], Tensor]:
    """The multipliers of a run for functions of bounded RKHS norm, one a kernel (after [Ziomek2024], Theorem 4.1).

    ``B + sqrt(2 (gamma + log(2 / failure)))``: ``rkhs_sqrt_beta`` for the posterior of Gaussian noise ``R``, whose
    regularization is ``R^2``. ``gamma`` is the greedy information gain of each kernel after as many observations as
    there are, times ``e / (e - 1)``, which makes it an upper bound of the maximum. (The paper prints
    ``B + R sqrt(2 (gamma + 1 + log(2 / failure)))``, which [Chowdhury2017] prove for another regularization.)

    Args:
        kernel: of batch shape ``(|U|,)`` or ``()``.
        points: where the information gain may be sought, ``m x d``: the finite domain, or a grid of a box.
        noise_std: ``R``.
        norm: the bound ``B`` on the RKHS norm, nonnegative.
        steps: how many rounds will be asked for, at least 1.
        initial: how many observations precede round 1. Default 0.
        failure: ``delta``; half of it pays for the widths, half for the noise. Default 0.1.

    Returns:
        A function from the round ``t`` to the multipliers, of the kernel's batch shape.

    Raises:
        ValueError: if an argument is out of range.
    """
    gamma = information_by_round(kernel, points, noise_std, steps, initial)
    table = rkhs_sqrt_beta(norm, gamma * math.e / (math.e - 1), failure / 2, noise_std, noise_std**2)
    return functools.partial(of_round, table)


def information_by_round(kernel: Kernel, points: Tensor, noise_std: float, steps: int, initial: int = 0) -> Tensor:
    """The greedy information gain of what precedes each round, ``... x steps``; see ``frequentist_sqrt_beta``."""
    if steps < 1 or initial < 0:
        raise ValueError(f"steps must be at least 1 and initial nonnegative, got {steps} and {initial}")
    return greedy_information_gain(kernel, Measure.dirac(points), noise_std, steps + initial - 1)[..., initial:]


def of_round(table: Tensor, t: int) -> Tensor:
    """The multipliers of round ``t`` from a table ``... x steps``."""
    if not 1 <= t <= table.shape[-1]:
        raise ValueError(f"t must lie between 1 and {table.shape[-1]}, the steps of the schedule, got {t}")
    return table[..., t - 1]
