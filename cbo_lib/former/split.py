"""Kernels taken apart: the factors of the coordinates that a learner sets, and of those that it does not."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

from cbo_lib.former.cholesky import pivoted_cholesky
from cbo_lib.kernels import matrix

# What a factor of a kernel makes of points, and of two sets of points so prepared.
Factor = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


class NoProductError(ValueError):
    """A posterior without the structure that ``PartialPosterior`` needs; ``PointwisePosterior`` needs none."""


@dataclass(frozen=True)
class SplitKernel:
    """The factors of a kernel ``controlled(x, x') * free(c, c')``; the first is ``scale`` at distance zero.

    Attributes:
        scale: ``batch x 1...``.
        factors: those of either side, 1 at distance zero; none looks at coordinates of the other side.
        squares: ``nu`` and the inverse squared lengthscales ``batch x d``: of the RBF kernels together, with infinite
            ``nu``, then of each Matern kernel. None if there are other kernels.
    """

    scale: Tensor
    factors: Sequence[Sequence[Factor]]
    squares: Sequence[tuple[float, Tensor]] | None

    @staticmethod
    def of(kernel: Kernel, controlled: Tensor, batch: int) -> "SplitKernel":
        """Take a kernel apart.

        Arguments are those of ``PartialPosterior``; ``batch`` counts its batch dimensions, with those of the kernel.
        """
        dim, ones = controlled.shape[-1], [1] * (controlled.dim() - 1)
        parameter = next(kernel.parameters(), torch.ones((), dtype=torch.float64))
        scale, squares = parameter.new_ones([1] * batch), [(math.inf, parameter.new_zeros(dim))]
        others: list[list[Factor]] = [[], []]
        stack = [kernel]
        while stack:
            part = stack.pop()
            dims = part.active_dims
            if isinstance(part, ProductKernel):
                stack.extend(part.kernels)
            elif isinstance(part, ScaleKernel) and (dims is None) == (part.base_kernel.active_dims is None):
                scale = scale * part.outputscale.detach()  # it took its active_dims from its base
                stack.append(part.base_kernel)
            elif type(part) in (RBFKernel, MaternKernel):  # not those that inherit from them
                weight = part.lengthscale.detach().squeeze(-2).square().reciprocal()
                full = weight.new_zeros(*weight.shape[:-1], dim)
                full[..., slice(None) if dims is None else dims] = weight
                if type(part) is RBFKernel:
                    squares[0] = math.inf, squares[0][1] + full
                else:
                    _sides(part, controlled)
                    squares.append((part.nu, full))
            else:
                side = _sides(part, controlled)
                if bool((side != side[0]).any()):
                    raise NoProductError(f"kernels of all groups must lie on one side, got a {type(part).__name__}")
                origin = parameter.new_zeros(1, dim)
                at_zero = matrix(part, origin, origin).detach()
                if not torch.allclose(matrix(part, origin + 1, origin + 1), at_zero):  # GPyTorch: has a lengthscale
                    raise NoProductError(f"the kernel must be stationary, got a {type(part).__name__}")
                scale = scale * at_zero[..., 0, 0]
                others[0 if bool(side[0]) else 1].append((lambda x: x, functools.partial(_normalized, part, at_zero)))
        sides: list[list[Factor]] = []
        for mask, own in zip((controlled, ~controlled), others, strict=True):
            roots = [(nu, w.sqrt().reshape(*w.shape[:-1], *ones, 1, dim) * mask.unsqueeze(-2)) for nu, w in squares]
            # The first is there at least, so that there are ones where nothing is looked at.
            seen = [pair for pair in roots if bool((pair[1] > 0).any())] or roots[:1]
            known = [
                (functools.partial(_scaled, root, root > 0), functools.partial(_correlation, nu)) for nu, root in seen
            ]
            sides.append([*known, *own])
        return SplitKernel(scale.reshape([*scale.shape, *ones]), sides, None if any(others) else squares)

    def prepare(self, side: int, y: Tensor) -> list[Tensor]:
        """What the factors of a side, 0 for that of the coordinates that are set, make of points; done once for all."""
        return [prepare(y) for prepare, _ in self.factors[side]]

    def controlled(self, x: Tensor, y: Tensor | list[Tensor]) -> Tensor:
        """The factor of the coordinates that are set, ``... n x d`` and (prepared) ``... m x d`` to ``... n x m``."""
        return self.scale[..., None, None] * self._evaluate(0, x, y)

    def slope(self, x: Tensor, y: list[Tensor], weighted: Tensor) -> Tensor:
        """The gradient in ``x`` of ``(constants * controlled(x, y)).sum()``, given the products; RBF kernels."""
        prepare: Any = self.factors[0][0][0]
        return prepare.args[0] * (weighted @ y[0] - weighted.sum(-1, keepdim=True) * prepare(x))

    def free(self, x: Tensor, y: Tensor | list[Tensor]) -> Tensor:
        """The factor of the coordinates that are not."""
        return self._evaluate(1, x, y)

    def _evaluate(self, side: int, x: Tensor, y: Tensor | list[Tensor]) -> Tensor:
        prepared = self.prepare(side, y) if isinstance(y, Tensor) else y
        first, *more = (
            evaluate(prepare(x), part) for (prepare, evaluate), part in zip(self.factors[side], prepared, strict=True)
        )
        return math.prod(more, start=first)


def _scaled(inverse: Tensor, seen: Tensor, x: Tensor) -> Tensor:
    """Points over the lengthscales; where a coordinate that is not seen holds no number, 0 * nan would be nan."""
    return torch.where(seen, x * inverse, 0.0)


def _correlation(nu: float, a: Tensor, b: Tensor) -> Tensor:
    """A Matern kernel, ``nu`` one of 1/2, 3/2, 5/2, or with infinite ``nu`` the squared exponential one."""
    # Not from the expanded square, whose rounding grows with the distance from the origin.
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    if nu == math.inf:
        return (-0.5 * distance.square()).exp()
    r = math.sqrt(2 * nu) * distance
    return (1 + (r if nu > 1 else 0) + (r.square() / 3 if nu > 2 else 0)) * (-r).exp()


def _sides(kernel: Kernel, controlled: Tensor) -> Tensor:
    """Whether a kernel looks at controlled coordinates alone, else at free ones alone, boolean, one a group."""
    name, dims = type(kernel).__name__, kernel.active_dims
    own = controlled.reshape(-1, controlled.shape[-1])[:, slice(None) if dims is None else dims]
    if not kernel.is_stationary:
        raise NoProductError(f"the kernel must be stationary, got a {name}")
    if bool((own != own[:, :1]).any()):
        raise NoProductError(
            "the kernel must be a product over controlled and free coordinates: RBF kernels, or a product whose "
            f"factors have active_dims on one side each; got a {name} that is not"
        )
    return own[:, 0]


def _normalized(kernel: Kernel, at_zero: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A stationary kernel, divided by its value at distance zero."""
    shape = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return matrix(kernel, x.expand(*shape, *x.shape[-2:]), y.expand(*shape, *y.shape[-2:])) / at_zero


@torch.no_grad()
def pivoted_factor(
    side: Callable[[Tensor, Tensor], Tensor], points: Tensor, rank: int, tolerance: float, cut: bool = False
) -> Tensor | None:
    """``B`` (``... N x r``) with ``side(points, points) = B B^T`` to ``tolerance``; None if ``r`` would pass ``rank``.

    Args:
        side: a kernel, 1 at distance zero.
        points: ``... N x d``.
        rank: the most columns that are worth having; ``cut`` gives these. See ``pivoted_cholesky``.
        cut: as there.
        tolerance: the largest entry that may be left over; never less than eight roundings of 1, an entry's own error.
    """
    tolerance = max(tolerance, 8 * torch.finfo(points.dtype).eps)
    diagonal = side(points[..., :1, :], points[..., :1, :]).squeeze(-1).expand(points.shape[:-1])
    factor = pivoted_cholesky(
        lambda place: side(points.take_along_dim(place.unsqueeze(-1), -2), points), diagonal, rank, tolerance, 1e-9, cut
    )
    return None if factor is None else factor.mT.contiguous()
