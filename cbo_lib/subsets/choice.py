"""Which subset to play, given what is known of every subset's quality and cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cbo_lib.maximize import argmax_finite


def good_enough(ucb: Tensor, lcb_best: float | Tensor, alpha: float | Tensor) -> Tensor:
    """``S_1``: the subsets whose upper bound passes ``(1 - alpha) lcb_best`` ([Hoang2024], Algorithm 1, line 16).

    Args:
        ucb: the smallest upper bound so far of each subset's best value, ``... x m``.
        lcb_best: the largest lower bound so far of any value, ``...``.
        alpha: what share of the best value may be given up, in ``[0, 1)``, a number or ``...``.

    Returns:
        Booleans ``... x m``.
    """
    threshold = (1 - torch.as_tensor(alpha, dtype=ucb.dtype)) * torch.as_tensor(lcb_best, dtype=ucb.dtype)
    return ucb > threshold.to(ucb).unsqueeze(-1)


def cost_lower_bound(mean: Tensor, plays: Tensor, horizon: float | Tensor, spread: float | Tensor = 1.0) -> Tensor:
    """``max(c_hat - s sqrt(2 log T / T_i), 0)`` ([Hoang2024], Algorithm 1, lines 22 to 24).

    Args:
        mean: average cost that was paid for each subset, ``... x m``.
        plays: how often each was played, ``... x m``, at least 1.
        horizon: ``T``, at least 1, a number or ``...``.
        spread: ``s``, how widely a cost varies, positive. Default 1, for costs anywhere in [0, 1]; normal costs of
            deviation ``s`` do with that. A number, or ``... x 1``.

    Raises:
        ValueError: if a subset was never played, ``horizon`` is below 1 or ``spread`` is not positive.
    """
    if not bool((torch.as_tensor(spread) > 0).all()):
        raise ValueError(f"spread must be positive, got {spread}")
    if not bool((plays >= 1).all()):
        raise ValueError(f"plays must be at least 1 of every subset, got {plays.tolist()}")
    horizon = torch.as_tensor(horizon, dtype=mean.dtype, device=mean.device)
    if not bool((horizon >= 1).all()):
        raise ValueError(f"horizon must be at least 1, got {horizon.tolist()}")
    return (mean - spread * (2 * horizon.log().unsqueeze(-1) / plays).sqrt()).clamp_min(0.0)


def choose(ucb: Tensor, cost_lcb: Tensor, lcb_best: float | Tensor, alpha: float, current: Tensor | None = None) -> int:
    """The subset to play ([Hoang2024], Algorithm 1, lines 16, 25 and 26).

    Of the subsets that may be good enough, those whose cost may be least; of these, the one whose value may be largest.
    The order in which subsets are listed decides ties alone: the first wins.

    Args:
        ucb: the smallest upper bound so far of each subset's best value, ``m``.
        cost_lcb: lower bounds of the costs, ``m``.
        lcb_best: the largest lower bound so far of any value.
        alpha: what share of the best value may be given up, in ``[0, 1)``.
        current: today's upper bounds, ``m``, which line 26 compares; they may be above the smallest so far. Default
            ``ucb``.

    Returns:
        An index in ``[0, m)``.

    Raises:
        ValueError: if no subset may be good enough, a shape does not fit, ``alpha`` is out of range or a bound is NaN.
    """
    current = ucb if current is None else current
    if ucb.dim() != 1 or not len(ucb) or cost_lcb.shape != ucb.shape or current.shape != ucb.shape:
        raise ValueError(
            f"ucb, cost_lcb and current must have one entry a subset, shape (m,), got {tuple(ucb.shape)}, "
            f"{tuple(cost_lcb.shape)} and {tuple(current.shape)}"
        )
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
    if math.isnan(float(lcb_best)) or bool(torch.stack([ucb, cost_lcb, current]).isnan().any()):
        raise ValueError("ucb, cost_lcb, current and lcb_best must not be NaN")
    good = good_enough(ucb, lcb_best, alpha)
    if not bool(good.any()):
        raise ValueError(
            f"ucb must pass (1 - alpha) lcb_best = {(1 - alpha) * float(lcb_best):g} for some subset, "
            f"got {[round(u, 6) for u in ucb.tolist()]}"
        )
    cheapest = torch.nonzero(good & (cost_lcb == cost_lcb[good].min())).flatten()  # S_3
    best = argmax_finite(
        current, torch.isin(torch.arange(len(ucb)).to(cheapest), cheapest), torch.arange(len(ucb)).to(cheapest)
    )
    return int(best)
