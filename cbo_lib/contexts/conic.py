"""A batched interior-point method: a linear function on the simplex under one quadratic constraint."""

import warnings
from typing import NamedTuple

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

# Of each step to the boundary of the cones; 0.99 leaves the central path and takes up to half as many steps more.
_FRACTION = 0.9
# Systems of the rank of the factor lose few digits in so many steps; below this gap too many, even if refined.
_EARLY, _CLOSE = 5, 1e-5
# At smaller gaps than this rounding may end a search of any system at a point that is no distribution.
_FINEST = 1e-8
# To see whether all rows are solved makes a device wait; there so many steps go by in between.
_CHECKED = 4


class SimplexBall:
    """The smallest ``q'v`` over distributions ``q`` with ``|F(q - p)| <= radius``, for many ``v`` at once.

    A primal-dual method on the nonnegative orthant and one second-order cone, with Nesterov-Todd scaling and
    Mehrotra's predictor and corrector ([Vandenberghe2010]). Both sides are feasible from the first step on, so the
    gap between them bounds the error. Where the rank of ``F`` is small the system of each step is as small, and is
    solved again for the residual, as its solution subtracts numbers that are nearly equal.

    Args:
        factor: ``F``, ``g x k x m``.
        reference: ``p``, ``g x m``.
        radius: positive, ``g``.
    """

    def __init__(self, factor: Tensor, reference: Tensor, radius: Tensor) -> None:
        self.factor, self.columns = factor, factor.mT.contiguous()
        self.radius = radius[:, None, None]  # g 1 1
        m, k = factor.shape[-1], factor.shape[-2]
        self.small = 3 * k < 2 * m
        self.gram = (self.columns @ factor).unsqueeze(1)  # g 1 m m
        self.identity = torch.eye(k, dtype=factor.dtype, device=factor.device)
        # With these products the lower triangles of F diag(x) F' for many x are one matrix product.
        self.lower = row, column = torch.tril_indices(k, k, device=factor.device)
        self.products = (factor[:, row] * factor[:, column]).mT.contiguous() if self.small else None
        # From the reference toward the uniform distribution: positive everywhere, strictly inside of the ball.
        away = (1 / m - reference).unsqueeze(-2) @ self.columns
        length = away.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(factor.dtype).tiny)
        share = (0.7 * self.radius / length).clamp_max(0.9)
        self._start = (1 - share) * reference.unsqueeze(-2) + share / m
        self._moved = share * away

    def minimizers(self, values: Tensor, wanted: Tensor, tolerance: float, max_iterations: int = 60) -> Tensor:
        """The worst distributions ``q``, ``g x n x m``.

        Args:
            values: ``v``, ``g x n x m``, scaled to the range of one.
            wanted: which rows to solve, boolean ``g x n x 1``. The others get a distribution inside of the ball.
            tolerance: on the duality gap of each row, in the units of the values; below 1e-8 it counts as that.
            max_iterations: at least 1; a row that needs more has its best, and a ``NumericalWarning``.
        """
        tolerance = max(tolerance, _FINEST)
        q, u = self._start.expand(values.shape), self._moved.expand(*values.shape[:-1], -1)
        top = (1 / self.radius).expand(*values.shape[:-1], 1)
        point = _Point(q, u, values + 0.1, top, torch.zeros_like(u))
        gap = point.gap(self.radius)
        best, smallest = q, gap
        every = 1 if q.device.type == "cpu" else _CHECKED
        for iteration in range(max_iterations + 1):
            live = wanted & (gap > tolerance)
            if iteration == max_iterations or (iteration % every == 0 and not bool(live.any())):
                break
            newton = _Newton(self, point, self.small and tolerance >= _CLOSE, iteration >= _EARLY)
            guess = newton.direction(point.z, newton.head, newton.tail)  # straight to complementarity
            primal, dual = newton.lengths(guess, 1.0)
            after = (1 - dual) * gap + (primal - dual) * _dot(values, guess.q)  # whole steps would close the gap
            step = newton.corrector(guess, (after / gap).clamp(0.0, 1.0).pow(3) * gap / (values.shape[-1] + 1))
            primal, dual = newton.lengths(step, _FRACTION)
            point = point.moved(step, primal * live, dual * live)
            gap = point.gap(self.radius)
            better = live & (gap < smallest) & ((point.q.sum(-1, keepdim=True) - 1).abs() <= 0.1 * tolerance)
            best, smallest = torch.where(better, point.q, best), torch.where(better, gap, smallest)
        if iteration and bool((short := wanted & ~(smallest <= tolerance)).any()):
            warnings.warn(
                f"the worst case of {int(short.sum())} of {int(wanted.sum())} functions was not found to "
                f"{tolerance:.1e} of their range: the duality gap is up to {float(smallest[short].max()):.1e}",
                NumericalWarning,
                stacklevel=2,
            )
        return best


class _Point(NamedTuple):
    """Both sides, or a direction for both; each ``g x n x ...``.

    ``q`` and ``u = F(q - p)`` are the primal side. ``z``, the multipliers of ``q >= 0``, and ``(top, e)``, that of the
    cone ``|u| <= radius``, are the dual side.
    """

    q: Tensor
    u: Tensor
    z: Tensor
    top: Tensor
    e: Tensor

    def gap(self, radius: Tensor) -> Tensor:
        return _dot(self.q, self.z) + self.top * radius + _dot(self.e, self.u)

    def moved(self, d: "_Point", primal: Tensor, dual: Tensor) -> "_Point":
        q, u = self.q + primal * d.q, self.u + primal * d.u
        return _Point(q, u, self.z + dual * d.z, self.top + dual * d.top, self.e + dual * d.e)


class _Newton:
    """The linear system of one step, factored once for the predictor and the corrector."""

    def __init__(self, ball: SimplexBall, point: _Point, small: bool, refined: bool) -> None:
        self.ball, self.point, self.small, self.refined = ball, point, small, refined
        self.ratio = point.q / point.z
        self.scaling = _Scaling(ball.radius, point.u, point.top, point.e)
        self.sides, self.cones = torch.stack([point.q, point.z]), torch.stack([point.u, point.e])
        self.tops = torch.stack([ball.radius.expand_as(point.top), point.top])
        if small:  # size M^-1 + F diag(ratio) F' / size
            matrix, (row, column) = ball.identity - self.scaling.dip, ball.lower
            matrix[..., row, column] += (self.ratio / self.scaling.size) @ ball.products
        else:  # 1 + diag(ratio)^1/2 F' M F diag(ratio)^1/2, which keeps the digits of small ratios
            scale = (self.ratio / self.scaling.size).sqrt()
            side = (scale * (self.scaling.w1 @ ball.factor)).unsqueeze(-1)
            matrix = (ball.gram * scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2)).add_(side * side.mT, alpha=2.0)
            matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.chol = torch.linalg.cholesky_ex(matrix).L  # which reads the lower triangle alone
        self.head, self.tail = self.scaling.apply(point.top, point.e)
        self.ones = self._solve(torch.ones_like(point.q))
        self.total = self.ones.sum(-1, keepdim=True)

    def _solve(self, x: Tensor) -> Tensor:
        """``y`` of ``(diag(1 / ratio) + F' M F) y = x``."""
        if not self.small:
            root = self.ratio.sqrt()
            return root * torch.cholesky_solve((root * x).unsqueeze(-1), self.chol).squeeze(-1)
        y, inner = self._woodbury(x)
        if not self.refined:
            return y
        u, w1 = y @ self.ball.columns, self.scaling.w1
        return y + self._woodbury((inner - (u + 2 * _dot(w1, u) * w1) / self.scaling.size) @ self.ball.factor)[0]

    def _woodbury(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Such a ``y`` by the Woodbury identity, and ``M F y``."""
        scaled = self.ratio * x
        inner = torch.cholesky_solve((scaled @ self.ball.columns).unsqueeze(-1), self.chol).squeeze(-1)
        inner = inner / self.scaling.size
        return scaled - self.ratio * (inner @ self.ball.factor), inner

    def direction(self, target: Tensor, head: Tensor, tail: Tensor) -> _Point:
        """The step for given right sides of the complementarity of ``z`` and of the cone."""
        free = self._solve(-target - self.scaling.inverse(head, tail)[1] @ self.ball.factor)
        dq = free - free.sum(-1, keepdim=True) / self.total * self.ones
        du = dq @ self.ball.columns
        self.turned = a, b = self.scaling.inverse(0.0, du)
        top, e = self.scaling.inverse(a + head, b + tail)
        return _Point(dq, du, -dq / self.ratio - target, -top, -e)

    def corrector(self, guess: _Point, mu: Tensor) -> _Point:
        """Toward the central path at ``mu``, with the second-order terms of the predictor."""
        (a, b), (c, d) = self.turned, self.scaling.apply(guess.top, guess.e)
        x, y = mu - (a * c + _dot(b, d)), -(a * d + c * b)
        first = (self.head * x - _dot(self.tail, y)) / (self.head.square() - _dot(self.tail, self.tail))
        rest = (y - first * self.tail) / self.head
        target = self.point.z - (mu - guess.q * guess.z) / self.point.q
        return self.direction(target, self.head - first, self.tail - rest)

    def lengths(self, d: _Point, fraction: float) -> Tensor:
        """A fraction of the way to the boundary, at most one, for each side."""
        flat, tip = torch.stack([d.q, d.z]), torch.stack([torch.zeros_like(d.top), d.top])
        orthant = torch.where(flat < 0, -self.sides / flat, torch.inf).amin(-1, keepdim=True)
        cone = _cone(self.tops, self.cones, tip, torch.stack([d.u, d.e]), self.scaling.inside)
        return (fraction * torch.minimum(orthant, cone)).clamp_max(1.0)


class _Scaling:
    """The Nesterov-Todd scaling ``W`` of ``(radius, u)`` and its multiplier ([Vandenberghe2010], section 4.2)."""

    def __init__(self, radius: Tensor, u: Tensor, top: Tensor, e: Tensor) -> None:
        self.inside = torch.stack([radius.square() - _dot(u, u), top.square() - _dot(e, e)])
        a, b = self.inside.sqrt()
        s0, s1, t0, t1 = radius / a, u / a, top / b, e / b
        twice = (2 * (1 + s0 * t0 + _dot(s1, t1))).sqrt()
        self.w0, self.w1 = (s0 + t0) / twice, (s1 - t1) / twice
        self.size = a / b  # beta^2
        self.beta, self.next = self.size.sqrt(), 1 + self.w0
        self.dip = (2 / (1 + 2 * _dot(self.w1, self.w1))).unsqueeze(-1) * self.w1.unsqueeze(-1) * self.w1.unsqueeze(-2)

    def apply(self, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor]:
        c = _dot(self.w1, x1)
        return self.beta * (self.w0 * x0 + c), self.beta * (x1 + (x0 + c / self.next) * self.w1)

    def inverse(self, x0: Tensor | float, x1: Tensor) -> tuple[Tensor, Tensor]:
        c = _dot(self.w1, x1)
        return (self.w0 * x0 - c) / self.beta, (x1 + (c / self.next - x0) * self.w1) / self.beta


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _cone(x0: Tensor, x1: Tensor, d0: Tensor, d1: Tensor, c: Tensor) -> Tensor:
    """The largest ``t`` with ``x + t d`` in the second-order cone; ``c`` is ``x0^2 - |x1|^2``."""
    a = d0.square() - _dot(d1, d1)
    b = x0 * d0 - _dot(x1, d1)
    root = b.square() - a * c
    below = root.clamp_min(0.0).sqrt() - b
    return torch.where((root >= 0) & (below > 0), c / below, torch.inf)
