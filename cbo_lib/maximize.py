"""Acquisition maximization for many replicates at once."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax_finite(values: Tensor, allowed: Tensor, order: Tensor, tolerance: float = 1e-9) -> Tensor:
    """The best candidate of each replicate, ties broken by a fixed order.

    Symmetric candidates have equal values up to rounding, and rounding differs between machines and batch sizes.
    Values within ``tolerance`` of the largest count as tied, and the tied candidate that comes first is chosen.

    Args:
        values: a ``... x n`` tensor; ``inf`` is allowed.
        allowed: which candidates may be chosen, boolean, broadcasts to ``values``.
        order: the rank of each candidate, ``n`` integers.
        tolerance: absolute, nonnegative.

    Returns:
        The chosen candidates, ``...`` integers in ``[0, n)``.

    Raises:
        ValueError: if a replicate has no allowed candidate, an allowed value is NaN or ``tolerance`` is negative.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be nonnegative, got {tolerance}")
    allowed = allowed.expand_as(values)
    if not bool(allowed.any(-1).all()):
        raise ValueError("allowed must leave every replicate a candidate, got a replicate with none")
    if bool((values.isnan() & allowed).any()):
        raise ValueError("values must not be NaN where a candidate is allowed")
    masked = values.masked_fill(~allowed, -torch.inf)
    best = masked.amax(-1, keepdim=True)
    tied = allowed & ((masked >= best - tolerance) | (masked == best))
    return order.expand_as(values).masked_fill(~tied, torch.iinfo(order.dtype).max).argmin(-1)
