"""One choice of Algorithm 1 ([Hoang2024]) by hand, for the pages and the exercises."""

import math

import torch
from torch import Tensor

from cbo_lib.checks import as_number, require, require_shape
from cbo_lib.subsets.policies import cheapest, good_enough


def choose(ucb: Tensor, cost_lcb: Tensor, lcb_best: float | Tensor, alpha: float, current: Tensor | None = None) -> int:
    """The subset to play ([Hoang2024], Algorithm 1, lines 16, 25 and 26).

    Of the subsets that may be good enough, those whose cost may be least; of these, the one whose value may be largest.
    The order in which subsets are listed decides ties alone: the first wins.

    Args:
        ucb: the smallest upper bound so far of each subset's best value, ``m``.
        cost_lcb: lower bounds of the costs, ``m``.
        lcb_best: the largest lower bound so far of any value.
        alpha: what share of the best value may be given up, in ``[0, 1)``.
        current: today's upper bounds, ``m``, for line 26; they may be above the smallest so far. Default ``ucb``.

    Returns:
        An index in ``[0, m)``.

    Raises:
        ValueError: if no subset may be good enough, a shape does not fit, ``alpha`` is out of range or a bound is NaN.
    """
    current = ucb if current is None else current
    for name, part in (("ucb", ucb), ("cost_lcb", cost_lcb), ("current", current)):
        require_shape(name, part, "m >= 1" if part is ucb else len(ucb))
    as_number("alpha", alpha, 0, 1, "[)")
    wrong = math.isnan(float(lcb_best)) or bool(torch.stack([ucb, cost_lcb, current]).isnan().any())
    require(not wrong, "ucb, cost_lcb, current and lcb_best must be numbers", "a NaN")
    good = good_enough(ucb, lcb_best, alpha)
    least = f"(1 - alpha) lcb_best = {(1 - alpha) * float(lcb_best):g}"
    require(good.any(), f"ucb must pass {least} for some subset", [round(u, 6) for u in ucb.tolist()])
    return int(cheapest(current, cost_lcb, good))
