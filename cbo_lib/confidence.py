"""Widths of confidence intervals."""

import math
from typing import TypeVar

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_tensor, as_values, require

Gain = TypeVar("Gain", float, Tensor)


def union_bound_sqrt_beta(count: int, t: int, failure: float) -> float:
    """The multiplier of the standard deviation for which ``count`` intervals hold at all rounds at once.

    ``sqrt_beta_t = sqrt(2 log(count * pi_t / failure))`` with ``pi_t = pi^2 t^2 / 6``. Since the Gaussian tail beyond
    ``c`` standard deviations is at most ``exp(-c^2 / 2)`` and ``sum_t 1 / pi_t = 1``, all intervals at all rounds fail
    with probability at most ``failure`` ([Srinivas2010], Theorem 1; Zhang et al. 2022, Lemma 1).

    Args:
        count: how many intervals a round, at least 1.
        t: the round, from 1.
        failure: total probability of failure, in (0, 1).
    """
    as_count("count", count, 1)
    as_number("t", t, 1)
    as_number("failure", failure, 0, 1, "()")
    return math.sqrt(2 * math.log(count * math.pi**2 * t**2 / (6 * failure)))


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


def noise_threshold(t: int | Tensor, noise_std: float | Tensor, candidates: int, failure: float = 0.1) -> Tensor:
    """``xi_t = 2 R^2 log(|U| pi^2 t^2 / (3 delta))``, the threshold of sums of noise ([Ziomek2024], Theorem 4.2).

    Args:
        t: rounds, from 1; any shape.
        noise_std: ``R``; any shape that broadcasts with ``t``.
        candidates: ``|U|``.
        failure: ``delta``; half of it pays for the noise. Default 0.1.

    Returns:
        A float64 tensor of the broadcast shape.
    """
    as_number("failure", failure, 0, 1, "()")
    as_count("candidates", candidates, 1)
    rounds = as_values("t", t, None, 1).to(torch.float64)
    return 2 * noise_std**2 * (candidates * math.pi**2 * rounds**2 / (3 * failure)).log()
