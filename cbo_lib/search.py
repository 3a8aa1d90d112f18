"""The best of a list, and the best of a box, for all replicates at once."""

from typing import Any

import numpy as np
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor

from cbo_lib.measure import Function


def argmax_finite(values: Tensor, allowed: Tensor | None = None, order: Tensor | None = None) -> Tensor:
    """The best candidate of each replicate, ``...`` integers in ``[0, n)``, ties broken by a fixed order.

    Symmetric candidates have equal values but for rounding, which differs between processors. So values within
    ``1e-9`` of the largest (as a share of its size where that is below 1) are tied, and the first of them is chosen.

    Args:
        values: ``... x n``; infinities are allowed.
        allowed: which candidates may be chosen, boolean, broadcasts to ``values``; at least one. Default all.
        order: the rank of each candidate, ``n`` integers. Default ``0, 1, ...``: the first wins.
    """
    if allowed is not None:
        values = values.masked_fill(~allowed, -torch.inf)
    best = values.amax(-1, keepdim=True)
    tied = values >= best - 1e-9 * best.abs().clamp_max(1)
    if order is None:
        return tied.byte().argmax(-1)
    return order.expand_as(values).masked_fill(~tied, torch.iinfo(order.dtype).max).argmin(-1)


def maximize_box(
    values: Function, bounds: Tensor, raw: Tensor, starts: int = 4, iterations: int = 15_000
) -> tuple[Tensor, Tensor]:
    """The maximum over a box of one function a replicate: points ``replicates x d`` and values ``replicates``.

    The best raw points are refined by BoTorch's batched L-BFGS-B ([Byrd1995], [Balandat2020], Appendix F): one search
    a start and replicate, evaluated together. The result is at least the best raw value. Nothing is random.

    Args:
        values: maps points ``replicates x m x d`` to values ``replicates x m``, each a differentiable function of its
            own point alone.
        bounds: the box, ``2 x d``, lower corner first, in the units of the inputs.
        raw: candidate points in the box, ``replicates x n x d``.
        starts: how many raw points of each replicate are refined. Default 4.
        iterations: of each search, at most. Default that of BoTorch, which no smooth function reaches.
    """
    low, side = bounds[0], bounds[1] - bounds[0]
    with torch.no_grad():
        top, place = values(raw).topk(min(starts, raw.shape[-2]), -1)
    begin = raw.take_along_dim(place.unsqueeze(-1), -2)
    rows = ((begin - low) / side).flatten(0, 1).double().cpu().numpy()  # the rules by which it stops are absolute
    now = rows.copy()

    def negative(x: np.ndarray, batch_indices: Any) -> tuple[np.ndarray, np.ndarray]:
        now[batch_indices] = x  # the others stand still: each row keeps its place, as replicates differ
        points = (low + side * torch.from_numpy(now).to(raw).view_as(begin)).requires_grad_()
        value = values(points)
        slope = side * torch.autograd.grad(value.sum(), points)[0]
        both = torch.cat([value.detach().unsqueeze(-1), slope], -1).flatten(0, 1).double().cpu().numpy()
        return -both[batch_indices, 0], -both[batch_indices, 1:]

    with torch.enable_grad():
        unit = [(0.0, 1.0)] * len(low)
        found, least, _ = fmin_l_bfgs_b_batched(negative, rows, unit, maxiter=iterations, pass_batch_indices=True)
    points = (low + side * torch.from_numpy(found).to(raw).view_as(begin)).clamp(low, bounds[1])
    points, results = (
        torch.cat([points, begin], -2),
        torch.cat([-torch.from_numpy(least).to(top).view_as(top), top], -1),
    )
    best = argmax_finite(results).unsqueeze(-1)
    return points.take_along_dim(best.unsqueeze(-1), -2).squeeze(-2), results.gather(-1, best).squeeze(-1)


def on_grid(x: Tensor, bounds: Tensor) -> Tensor:
    """Points ``... x d`` of a box ``2 x d`` at multiples of ``2^-13`` of its sides.

    A queried point is rounded so that the last digits of a search, which differ between processors, do not reach a run.
    """
    low, high = bounds
    step = 2**-13 * (high - low)
    return torch.minimum(torch.maximum(low + ((x - low) / step).round() * step, low), high)
