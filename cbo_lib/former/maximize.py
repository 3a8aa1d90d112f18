"""Acquisition maximization for many replicates at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor

from cbo_lib.checks import as_box, as_count, as_expanded, require, require_shape
from cbo_lib.measure import Function


def argmax_finite(values: Tensor, allowed: Tensor | None = None, order: Tensor | None = None) -> Tensor:
    """The best candidate of each replicate, ``...`` integers in ``[0, n)``, ties broken by a fixed order.

    Symmetric candidates have equal values up to rounding, and rounding differs between machines and batch sizes.
    Values within ``1e-9`` of the largest count as tied, and the tied candidate that comes first is chosen. Where no
    value reaches ``2^-8``, as of outcomes in a tiny unit, ``1e-9`` is a share of the largest size.

    Args:
        values: a ``... x n`` tensor; ``inf`` is allowed.
        allowed: which candidates may be chosen, boolean, broadcasts to ``values``. Default all.
        order: the rank of each candidate, ``n`` integers. Default ``0, 1, ...``: the first wins.

    Raises:
        ValueError: if a replicate has no allowed candidate, or an allowed value is NaN.
    """
    if allowed is not None:
        allowed = as_expanded("allowed", allowed, values.shape)
        values = values.masked_fill(~allowed, -torch.inf)
    best = values.amax(-1, keepdim=True)  # NaN if one of them is
    tied, size = values >= best - 1e-9, best.abs()
    if not bool(((size >= 2**-8) & (size < torch.inf)).all()):  # otherwise one look was enough
        require(allowed is None or allowed.any(-1), "allowed must leave every replicate a candidate", "one with none")
        require(~best.isnan(), "values must not be NaN where a candidate is allowed", values)
        tied = (values >= best - 1e-9 * _unit(values)) & (allowed is None or allowed)
    if order is None:
        return tied.byte().argmax(-1)  # the first
    return order.expand_as(values).masked_fill(~tied, torch.iinfo(order.dtype).max).argmin(-1)


def _unit(values: Tensor) -> Tensor:
    """One, or of values in a tiny unit the size of the largest, ``... x 1``."""
    size = values.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1, keepdim=True)
    return torch.where(size < 2**-8, size, 1.0)


def maximize_box(
    values: Function,
    bounds: Tensor,
    raw: Tensor,
    starts: int = 4,
    max_iterations: int = 100,
    slopes: Any = None,
    kinks: bool = False,
) -> tuple[Tensor, Tensor]:
    """The maximum over a box of one function a replicate: the points ``replicates x d`` and values ``replicates``.

    The best raw points are refined by L-BFGS-B ([Byrd1995]) with the gradients of ``values``, by BoTorch
    ([Balandat2020], Appendix F). Every start of every replicate has an optimizer of its own, so that a replicate's
    result does not depend on its company; only the evaluations are batched. The result is at least the best raw
    value. Of ties (see ``argmax_finite``) the better raw point, then the first, is chosen. Nothing is random. Gradients
    are enabled inside, also under ``torch.no_grad()``; the result carries none.

    Args:
        values: maps points ``replicates x m x d`` to values ``replicates x m``, each a function of its own point
            alone, differentiable and finite in the box. Shared raw points come as ``1 x n x d`` and must give
            ``replicates x n`` by broadcasting.
        bounds: the box, ``2 x d``, lower corner first, in the units of the inputs.
        raw: candidate points in the box, ``n x d`` shared or ``replicates x n x d``.
        starts: how many raw points of each replicate are refined, from 1 to ``n``.
        max_iterations: of each L-BFGS-B run, at least 1.
        slopes: maps such points to values and their gradients. Default: automatic differentiation of ``values``.
        kinks: whether L-BFGS-B sees (and the result has) values of 27 bits, relative to the range of raw values, and
            gradients of 20 (38 of both in less than ten iterations), as rounding chooses else where it stops at a kink
            or whether it gets to a bound. Starts that ended, of whatever replicate, are left out there. One that saw
            its best value again twice in a row is not evaluated nearer to its best point; it gets its last numbers
            again. Default no.

    Raises:
        ValueError: if a shape or a number is out of range, a raw point lies outside the box, or ``values`` gives
            another shape, a NaN, an infinity, or no finite gradient.
    """
    raw = _check_box(bounds, raw, starts, max_iterations)
    with torch.no_grad():
        raw_values = values(raw).detach()
    n, dim = raw.shape[-2:]
    fits = raw_values.dim() == 2 and raw_values.shape[-1] == n and raw.shape[0] in (1, raw_values.shape[0])
    wanted = f"({'replicates' if len(raw) == 1 else len(raw)}, {n})"
    require(fits, f"values must map points {tuple(raw.shape)} to values {wanted}", raw_values.shape)
    require(torch.isfinite(raw_values), "values must be finite at all raw points", "a NaN or an infinity")
    raw = raw.expand(len(raw_values), n, dim)
    begin = torch.take_along_dim(raw, _first(raw_values, starts).unsqueeze(-1), -2)

    def evaluated(rows: np.ndarray, going: np.ndarray) -> np.ndarray:
        """Values and gradients of the rows that are going, in a batch that is as large for each replicate."""
        place = (~going).argsort(1, kind="stable")[:, : going.sum(1).max(), None]
        points = low + side * torch.from_numpy(np.take_along_axis(rows.reshape(shape), place, 1)).to(begin)
        if slopes is not None:
            got, gradient = slopes(points)
        else:
            wanted = f"values must map points {tuple(points.shape)} to values {tuple(points.shape[:-1])}"
            require((got := values(points.requires_grad_())).shape == points.shape[:-1], wanted, got.shape)
            require(got.requires_grad, "values must be differentiable in the points", "a result without a gradient")
            gradient = torch.autograd.grad(got.sum(), points)[0]
        whole = torch.cat([got.unsqueeze(-1), side * gradient], -1).detach()  # one copy, and one wait for a device
        whole = (whole / seen).round() * seen if kinks or max_iterations < 10 else whole
        return (whole / unit).double().cpu().numpy()[np.take_along_axis(going, place[..., 0], 1)]

    def negative(x: np.ndarray, batch_indices: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Minus the values and gradients of some rows, ``b`` and ``b x d``."""
        # Without kinks it is always all starts, as the shape decides how matrix products are rounded.
        rows, going, at = first_rows.copy(), np.full(count, not kinks), batch_indices
        far = np.abs(x - best_rows[at]).max(1)
        rows[at], going[at] = x, (same[at] < 2) | (far > reach[at])
        if going.any():
            result[going] = evaluated(rows, going.reshape(shape[:2]))
        value, slope = result[at, 0], result[at, 1:]
        require(np.isfinite(value).all(), "values must be finite in the box", "a NaN or an infinity")
        require(np.isfinite(slope).all(), "values must have a finite gradient", "a NaN or an infinity")
        if kinks:
            same[at], reach[at] = np.where(value == highest[at], same[at] + 1, 0), np.where(going[at], far, reach[at])
            best_rows[at] = np.where((value > highest[at])[:, None], x, best_rows[at])
            highest[at] = np.maximum(value, highest[at])
        return -value, -slope

    # In the unit box, as the rules by which L-BFGS-B stops are absolute.
    shape, count, low = begin.shape, begin[..., 0].numel(), bounds[0]
    side = torch.where(bounds[1] > low, bounds[1] - low, 1.0)
    first_rows = ((begin - low) / side).flatten(0, 1).double().cpu().numpy()
    result, best_rows, highest = np.empty((count, 1 + dim)), first_rows.copy(), np.full(count, -np.inf)
    same, reach = np.zeros(count), np.zeros(count)
    ends = torch.stack([raw_values.abs().amax(-1), raw_values.amax(-1) - raw_values.amin(-1)])
    size, spread = 2.0 ** torch.frexp(ends).exponent[..., None, None]
    seen = spread * bounds.new_tensor([2.0**-27] + [2.0**-20] * dim) if kinks else size * 2.0**-38
    unit = torch.where(size < 2**-8, size, 1.0)  # of outcomes in a tiny unit
    with torch.enable_grad():  # where a line search fails the run ends; its start or the best raw point remains
        found, least, _ = fmin_l_bfgs_b_batched(
            negative, first_rows, ((bounds - low) / side).T.tolist(), maxiter=max_iterations, pass_batch_indices=True
        )
    refined_points = (low + side * torch.from_numpy(found).to(begin).view_as(begin)).clamp(low, bounds[1])
    refined = -torch.from_numpy(least).to(begin).view(begin.shape[:-1]) * unit.squeeze(-1)

    top, place = raw_values.max(-1, keepdim=True)
    best_raw = torch.take_along_dim(raw, place.unsqueeze(-1), -2)
    points, results = torch.cat([refined_points, best_raw], -2), torch.cat([refined, top], -1)
    # What fell below the best raw value must not win by the tolerance.
    best = argmax_finite(results, results >= top).unsqueeze(-1)
    return torch.take_along_dim(points, best.unsqueeze(-1), -2).squeeze(-2), results.gather(-1, best).squeeze(-1)


def on_grid(x: Tensor, bounds: Tensor, resolution: float | None) -> Tensor:
    """Points ``... x d`` of a box ``2 x d`` at multiples of a share of its sides; as they are if that is None."""
    if resolution is None:
        return x
    low, high = bounds
    step = resolution * (high - low)
    return torch.minimum(torch.maximum(low + ((x - low) / step).round() * step, low), high)


def search_box(
    values: Callable[..., Tensor], bounds: Tensor, raw: Tensor, starts: int, polls: int, rounded: Function
) -> tuple[Tensor, Tensor]:
    """The maximum over a grid in a box of one function a replicate that may have kinks, by values alone.

    On a ridge of the smallest of many bounds L-BFGS-B stops where rounding lets it. Mesh adaptive direct search
    ([Audet2006]) compares values at points of a grid, which a last digit does not change: around the best raw points
    it asks along the axes and in six other directions a coordinate, the next of one Sobol sequence for all. Each start
    goes to the best point or, if none is better by ``1e-9`` (see ``argmax_finite``), halves its reach.

    Arguments and results are those of ``maximize_box``; but the ``raw`` points of each replicate lie on the grid, to
    which ``rounded`` maps points, a start asks ``polls`` times at most, and ``values`` takes groups of points, how many
    of a group must be exact and the value that matters: see ``RobustAcquisition.leading``.
    """
    (low, high), dim, axes = bounds, raw.shape[-1], torch.eye(raw.shape[-1]).to(raw)
    directions = 2 * torch.quasirandom.SobolEngine(dim).draw(6 * dim * polls, dtype=raw.dtype).to(raw) - 1
    with torch.no_grad():
        found = values(raw.unsqueeze(1), starts, torch.full_like(raw[:, :1, 0], -torch.inf)).squeeze(1)
        top, place = found.take_along_dim(first := _first(found, starts), -1), first.unsqueeze(-1)
        points = raw.take_along_dim(place, -2)
        least, reach = 1e-9 * _unit(found), torch.full_like(top, raw.shape[-2] ** (-1 / dim))
        for others in directions.split(6 * dim):
            ways = torch.cat([others, axes, -axes]) * (high - low)
            near = rounded((points.unsqueeze(-2) + reach[..., None, None] * ways).clamp(low, high))
            if torch.equal(near, points.unsqueeze(-2).expand_as(near)):  # no reach is longer than a step of the grid
                break
            place = argmax_finite(found := values(near, 1, top + least)).unsqueeze(-1)
            value, better = found.take_along_dim(place, -1).squeeze(-1), near.take_along_dim(place.unsqueeze(-1), -2)
            moves = value > top + least
            points, top = torch.where(moves.unsqueeze(-1), better.squeeze(-2), points), torch.where(moves, value, top)
            reach = torch.where(moves, reach, reach / 2)
        best = argmax_finite(top).unsqueeze(-1)
        return points.take_along_dim(best.unsqueeze(-1), -2).squeeze(-2), top.gather(-1, best).squeeze(-1)


def _first(values: Tensor, count: int) -> Tensor:
    """The places of the largest values in order, ties broken as rounding would not, ``replicates x count``."""
    first, free = [], torch.ones_like(values, dtype=torch.bool)
    for _ in range(count):
        first.append(argmax_finite(values, free))
        free = free.scatter(-1, first[-1].unsqueeze(-1), False)
    return torch.stack(first, -1)


def _check_box(bounds: Tensor, raw: Tensor, starts: int, max_iterations: int) -> Tensor:
    """The raw points, ``1 x n x d`` or ``replicates x n x d``, inside the box."""
    dim = as_box("bounds", bounds, flat=True).shape[1]
    same = raw.is_floating_point() and raw.dtype == bounds.dtype and raw.device == bounds.device
    kind = f"({bounds.dtype}, {bounds.device})"
    require(same, f"raw must have the floating dtype and device of bounds {kind}", f"{raw.dtype} on {raw.device}")
    require_shape("raw", raw, *["replicates >= 1"][: raw.dim() - 2], "n >= 1", dim)
    as_count("starts", starts, 1, raw.shape[-2])
    as_count("max_iterations", max_iterations, 1)
    raw = raw.detach() if raw.dim() == 3 else raw.detach().unsqueeze(0)
    inside = raw.clamp(bounds[0], bounds[1])
    # low + (high - low) * u may leave the box by a rounding error.
    slack = 8 * torch.finfo(raw.dtype).eps * bounds.abs().amax(0)
    require((raw - inside).abs() <= slack, "raw must lie in the box of bounds", "a point outside")
    return inside
