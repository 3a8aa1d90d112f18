"""Widths of confidence intervals.

.. [Srinivas2010] N. Srinivas, A. Krause, S. Kakade, M. Seeger. Gaussian Process Optimization in the Bandit Setting: No
   Regret and Experimental Design. ICML 2010.
.. [AbbasiYadkori2012] Y. Abbasi-Yadkori. Online Learning for Linearly Parametrized Control Problems. PhD thesis,
   University of Alberta, 2012.
.. [Chowdhury2017] S. R. Chowdhury, A. Gopalan. On Kernelized Multi-armed Bandits. ICML 2017.
.. [Whitehouse2023] J. Whitehouse, A. Ramdas, Z. S. Wu. On the Sublinear Regret of GP-UCB. NeurIPS 2023.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Gain = TypeVar("Gain", float, Tensor)


def union_bound_sqrt_beta(count: int, t: int, failure: float) -> float:
    """The multiplier of the standard deviation for which ``count`` intervals hold at all rounds at once.

    ``sqrt_beta_t = sqrt(2 log(count * pi_t / failure))`` with ``pi_t = pi^2 t^2 / 6``. Since the Gaussian tail beyond
    ``c`` standard deviations is at most ``exp(-c^2 / 2)`` and ``sum_t 1 / pi_t = 1``, all intervals at all rounds fail
    with probability at most ``failure`` ([Srinivas2010]_, Theorem 1; Zhang et al. 2022, Lemma 1).

    Args:
        count: how many intervals a round, at least 1.
        t: the round, from 1.
        failure: total probability of failure, in (0, 1).
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if t < 1:
        raise ValueError(f"t must be at least 1, got {t}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must lie in (0, 1), got {failure}")
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
    self-normalized bound ([AbbasiYadkori2012]_, Theorem 3.11; in this form [Whitehouse2023]_). [Chowdhury2017]_,
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
    for name, value in (("norm", norm), ("noise_std", noise_std)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be nonnegative and finite, got {value}")
    if not 0 < regularization < math.inf:
        raise ValueError(f"regularization must be positive and finite, got {regularization}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must lie in (0, 1), got {failure}")
    gain = torch.as_tensor(information_gain)
    # The gain of nothing may be -1e-17 by rounding.
    if not bool(((gain >= -1e-9) & (gain < math.inf)).all()):
        raise ValueError(f"information_gain must be nonnegative and finite, got {information_gain}")
    return norm + noise_std / math.sqrt(regularization) * (2 * (information_gain - math.log(failure))) ** 0.5


def lipschitz_sqrt_beta(t: int, dim: int, a: float, b: float, side: float, failure: float) -> float:
    """The multiplier of the standard deviation for a smooth draw of the prior on a box ``[0, side]^dim``.

    ``sqrt_beta_t = sqrt(2 log(2 pi^2 t^2 / (3 failure)) + 2 dim log(tau_t))`` with the discretization of
    ``tau_t = t^2 dim b side sqrt(log(4 dim a / failure))`` places a side. With probability ``1 - failure``, at all
    rounds, the interval holds at the point that was queried, and at the maximizer of f up to ``1 / t^2`` of the value
    at its nearest place ([Srinivas2010]_, Theorem 2). It does not promise to hold at every point of the box.

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
