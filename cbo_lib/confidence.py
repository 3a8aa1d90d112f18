"""Widths of confidence intervals."""

import math

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_values


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


def noise_threshold(t: int | Tensor, noise_std: float | Tensor, candidates: int, failure: float = 0.1) -> Tensor:
    """``xi_t = 2 R^2 log(|U| pi^2 t^2 / (3 delta))``, float64: a threshold of noise sums ([Ziomek2024], Theorem 4.2).

    Args:
        t: rounds, from 1; any shape.
        noise_std: ``R``; any shape that broadcasts with ``t``.
        candidates: ``|U|``.
        failure: ``delta``; half of it pays for the noise. Default 0.1.
    """
    as_number("failure", failure, 0, 1, "()")
    as_count("candidates", candidates, 1)
    rounds = as_values("t", t, None, 1).to(torch.float64)
    return 2 * noise_std**2 * (candidates * math.pi**2 * rounds**2 / (3 * failure)).log()
