"""The free variables of the paper's experiments."""

from __future__ import annotations

import functools
import math

from scipy.optimize import brentq
from scipy.special import gammainc

from cbo_lib.distributions import TruncatedNormal


@functools.cache
def truncated_normal(variance: float, low: float = 0.0, high: float = 1.0) -> TruncatedNormal:
    """The one about the middle of an interval whose variance, after the truncation, is given.

    The experiments of [Hoang2024] have "mean 0.5 and the same variance which is one of 0.02, 0.04 (the uniform
    distribution on [0, 1] has variance 1/12)". The comparison only makes sense for the variance of the variable itself.
    With ``h = 1 / (8 scale^2)`` and the regularized incomplete gamma function P, on [0, 1]

        variance = P(3/2, h) / (8 h P(1/2, h)),

    which falls in ``h`` from 1/12, the uniform limit, to 0.

    Args:
        variance: of the truncated variable, positive and below that of the uniform distribution,
            ``(high - low)^2 / 12``.
        low: where it begins. Default 0.
        high: where it ends. Default 1.

    Raises:
        ValueError: if the variance is not positive, or so near to that of the uniform distribution, within 1e-12 of it
            on [0, 1], that the scale is lost to rounding; or low is not below high.
    """
    width = high - low
    unit = variance / width**2 if width > 0 else math.nan
    if not 0 < unit <= 1 / 12 - 1e-12:
        raise ValueError(
            f"variance of a truncated normal distribution on [{low:g}, {high:g}] must lie in (0, {width:g}^2/12); "
            f"at the end it is Uniform({low:g}, {high:g}), got {variance}"
        )

    def gap(log_h: float) -> float:
        h = math.exp(log_h)
        return float(gammainc(1.5, h) / (8 * h * gammainc(0.5, h))) - unit

    # The truncated variance is at most scale^2 = 1 / (8 h), and it is 1/12 - h/45 for small h.
    log_h = brentq(gap, math.log(1e-13), math.log(1 / (8 * unit)) + 1e-9, xtol=1e-14, rtol=1e-14)
    return TruncatedNormal((low + high) / 2, width * math.sqrt(1 / (8 * math.exp(log_h))), low, high)
