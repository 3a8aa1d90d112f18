"""Kernels that are a product over two sets of coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from gpytorch.kernels import Kernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor


@dataclass(frozen=True)
class SplitKernel:
    """The factors of a kernel ``controlled(x, x') * free(c, c')``; the first is ``scale`` at distance zero."""

    scale: Tensor  # batch x 1...
    inverse: tuple[Tensor, Tensor]  # of the lengthscales, controlled and free, batch x groups x 1 x d
    others: tuple[tuple[Callable[[Tensor, Tensor], Tensor], ...], ...] = field(default=((), ()))

    @staticmethod
    def of(kernel: Kernel, controlled: Tensor, batch: int) -> SplitKernel:
        """Take a kernel apart.

        Args:
            kernel: see ``PartialPosterior``.
            controlled: boolean, ``d`` or ``groups x d``.
            batch: how many batch dimensions the posterior has, at least those of the kernel.

        Raises:
            ValueError: if it is no product over the two sides.
        """
        dim, groups = controlled.shape[-1], controlled.shape[:-1]
        parameter = next(kernel.parameters(), torch.ones((), dtype=torch.float64))
        scale = torch.ones([1] * batch, dtype=parameter.dtype, device=parameter.device)
        squared = torch.zeros(dim, dtype=parameter.dtype, device=parameter.device)
        others: tuple[list[Callable[[Tensor, Tensor], Tensor]], ...] = ([], [])
        stack = [kernel]
        while stack:
            part = stack.pop()
            dims = part.active_dims
            if isinstance(part, ProductKernel):
                stack.extend(part.kernels)
            elif isinstance(part, ScaleKernel) and (dims is None) == (part.base_kernel.active_dims is None):
                scale = scale * part.outputscale.detach()  # it took its active_dims from its base
                stack.append(part.base_kernel)
            elif type(part) is RBFKernel:  # not those that inherit from it
                weight = part.lengthscale.detach().squeeze(-2).square().reciprocal()
                full = weight.new_zeros(*weight.shape[:-1], dim)
                full[..., slice(None) if dims is None else dims] = weight
                squared = squared + full
            else:
                side = _side(part, controlled)
                origin = parameter.new_zeros(1, dim)
                at_zero = part(origin, origin).to_dense().detach()
                scale = scale * at_zero[..., 0, 0]
                others[side].append(_normalized(part, at_zero))
        inverse = squared.sqrt()
        inverse = inverse.reshape(*inverse.shape[:-1], *[1] * len(groups), 1, dim)
        left, right = inverse * controlled.unsqueeze(-2), inverse * ~controlled.unsqueeze(-2)
        scale = scale.reshape([*scale.shape, *[1] * len(groups)])
        return SplitKernel(scale, (left, right), (tuple(others[0]), tuple(others[1])))

    def controlled(self, x: Tensor, y: Tensor) -> Tensor:
        """The factor of the coordinates that are set, ``... n x d`` and ``... m x d`` to ``... n x m``."""
        return self.scale.unsqueeze(-1).unsqueeze(-1) * self._evaluate(0, x, y)

    def free(self, x: Tensor, y: Tensor) -> Tensor:
        """The factor of the coordinates that are not."""
        return self._evaluate(1, x, y)

    def _evaluate(self, side: int, x: Tensor, y: Tensor) -> Tensor:
        inverse = self.inverse[side]
        # Where a free coordinate holds no number it must not be looked at, and 0 * nan is nan.
        a, b = (torch.where(inverse > 0, p * inverse, 0.0) for p in (x, y))
        # Not from the expanded square, whose rounding grows with the distance from the origin.
        value = (-0.5 * torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()).exp()
        for other in self.others[side]:
            value = value * other(x, y)
        return value


def _side(kernel: Kernel, controlled: Tensor) -> int:
    """0 if a kernel looks at controlled coordinates alone, 1 if at free ones alone."""
    name, dims = type(kernel).__name__, kernel.active_dims
    masks = controlled.reshape(-1, controlled.shape[-1])
    if dims is None or bool((masks[:, dims] != masks[:1, dims][:, :1]).any()):
        raise ValueError(
            "the kernel must be a product over controlled and free coordinates: RBF kernels, or a product whose "
            "factors have active_dims on one side each, the same side for every group; "
            f"got a {name} that is not"
        )
    if not kernel.is_stationary:
        raise ValueError(f"the kernel must be stationary, got a {name}")
    return 0 if bool(masks[0, dims].all()) else 1


def _normalized(kernel: Kernel, at_zero: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A stationary kernel, divided by its value at distance zero, as a function of two sets of points."""

    def value(x: Tensor, y: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return kernel(x.expand(*shape, *x.shape[-2:]), y.expand(*shape, *y.shape[-2:])).to_dense() / at_zero

    return value


@torch.no_grad()  # it writes into a buffer; and the factor is constant for whoever differentiates
def pivoted_factor(
    side: Callable[[Tensor, Tensor], Tensor], points: Tensor, rank: int, tolerance: float
) -> Tensor | None:
    """``B`` (``... N x r``) with ``side(points, points) = B B^T`` to ``tolerance``; None if ``r`` would pass ``rank``.

    A pivoted Cholesky decomposition that evaluates one row of the matrix a pivot.

    Args:
        side: a kernel, 1 at distance zero.
        points: ``... N x d``.
        rank: the most columns that are worth having.
        tolerance: the largest entry that may be left over; never less than eight roundings of 1, which is more than an
            entry is wrong by. A pivot ``p`` whose row is wrong by ``e`` adds an error of at most ``e^2 / p``, no more
            than ``e`` as long as ``p >= e``; a smaller pivot would make nothing but rounding large.
    """
    tolerance = max(tolerance, 8 * torch.finfo(points.dtype).eps)
    left = side(points[..., :1, :], points[..., :1, :]).squeeze(-1).expand(points.shape[:-1]).clone()
    count, found = points.shape[-2], 0
    rows = points.new_empty(*points.shape[:-2], min(rank, 16), count)  # of the transpose; grows by doubling
    while True:
        top, place = left.max(-1, keepdim=True)
        if float(top.max()) <= tolerance:
            return rows[..., :found, :].mT.contiguous()
        if found >= rank:
            return None
        if found == rows.shape[-2]:
            rows = torch.cat([rows, torch.empty_like(rows)], -2)
        pivot = points.gather(-2, place.unsqueeze(-1).expand(*place.shape, points.shape[-1]))
        known = rows[..., :found, :]
        own = known.gather(-1, place.unsqueeze(-2).expand(*known.shape[:-1], 1))
        row = (side(pivot, points) - own.mT @ known).squeeze(-2)
        # An element of the batch that is finished gets rows of zeros.
        rows[..., found, :] = torch.where(top > tolerance, row / top.clamp_min(tolerance).sqrt(), 0.0)
        left = (left - rows[..., found, :].square()).clamp_min(0.0)
        found += 1
