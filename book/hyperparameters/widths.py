"""Multipliers of the standard deviation that the theory of the chapter proves."""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

from gpytorch.kernels import Kernel
from torch import Tensor

from book.information import greedy_information_gain
from cbo_lib.checks import as_number, as_tensor, require
from cbo_lib.measure import Measure

Gain = TypeVar("Gain", float, Tensor)


def rkhs_sqrt_beta(
    norm: float, information_gain: Gain, failure: float, noise_std: float = 1.0, regularization: float = 1.0
) -> Gain:
    """The multiplier of the standard deviation for a fixed f of bounded norm in the Hilbert space of the kernel.

    ``sqrt_beta = norm + noise_std / sqrt(regularization) * sqrt(2 (gain + log(1 / failure)))``. With probability
    ``1 - failure`` it bounds ``|f(x) - mean(x)| / std(x)`` for all x and all rounds at once, whatever rule chose the
    queries. f is not random here; the noise is.

    Write ``f = <phi, theta>`` and ``V = Phi^T Phi + lambda I``, so that ``std(x) = sqrt(lambda) |phi(x)|_{V^-1}``. The
    prior pulls the mean away by ``lambda |<phi(x), V^-1 theta>| <= norm std(x)``, and the noise moves it by
    ``|phi(x)|_{V^-1} |Phi^T eps|_{V^-1} <= std(x) / sqrt(lambda) * noise_std sqrt(2 (gain + log(1 / failure)))``, the
    self-normalized bound ([Abbasi2012], Theorem 3.11; in this form [Whitehouse2023]). [Chowdhury2017],
    Theorem 2, is the case ``lambda = 1 + 2 / T`` with one more nat inside the root. The multiplier of one
    regularization does not hold for the posterior of another: with ``lambda = noise_std^2`` there is no factor
    ``noise_std``.

    Args:
        norm: bound of the norm of f, nonnegative, in the units of f over those of the root of the kernel.
        information_gain: ``0.5 log det(I + K / lambda)`` of the observations so far, in nats, or an upper bound of it
            such as the maximum information gain: a number or a tensor of any shape, nonnegative.
        failure: total probability of failure, in (0, 1).
        noise_std: R of the R-sub-Gaussian noise, nonnegative, in the units of f. Default 1.
        regularization: lambda, what the posterior has in the place of the noise variance, positive. Default 1.

    Returns:
        A number, or a tensor of the shape of ``information_gain``.

    Raises:
        ValueError: if an argument is out of range.
    """
    as_number("norm", norm, 0)
    as_number("noise_std", noise_std, 0)
    as_number("regularization", regularization, 0, ends="()")
    as_number("failure", failure, 0, 1, "()")
    gain = as_tensor("information_gain", information_gain)
    # The gain of nothing may be -1e-17 by rounding.
    require((gain >= -1e-9) & (gain < math.inf), "information_gain must be nonnegative and finite", information_gain)
    return norm + noise_std / math.sqrt(regularization) * (2 * (information_gain - math.log(failure))) ** 0.5


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
