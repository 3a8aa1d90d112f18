"""Measures: weighted point sets, the one kind of query that every chapter asks.

A point, the average of a cell, a learned conditional expectation and an average over uncontrolled inputs are all
``sum_j w_j f(x_j)``. Because a Gaussian process stays Gaussian under such sums, the mean and covariance of a measure
need only kernel evaluations between its points.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, as_values, require
from cbo_lib.kernels import matrix

#: A function of points ``... x d`` with values ``...``.
Function = Callable[[Tensor], Tensor]

# The entries of a slice of a kernel matrix, 8 MiB in float64: larger ones get their memory from the system every time.
_SLICE_ENTRIES = 2**20


@dataclass(frozen=True, eq=False)
class Measure:
    """``n`` weighted point sets of ``p`` points each.

    Args:
        points: the input points, ``... x n x p x d``: a tensor, an array or lists.
        weights: ``... x n x p``, likewise; ``expectation(f)`` is the weighted sum, so an average has weights ``1/p``.

    Raises:
        ValueError: if the shapes do not fit, the dtype is not floating or a value is not finite.
    """

    points: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        """Check the shapes, the dtype and that every entry is finite."""
        points = as_values("points", self.points, (..., "n", "p", "d"))
        like = None if isinstance(self.weights, Tensor) else points
        weights = as_values("weights", self.weights, points.shape[:-1], like=like)
        same = f"points and weights must have one dtype, {points.dtype}"
        require(points.dtype == weights.dtype, same, str(weights.dtype))
        vars(self).update(points=points, weights=weights)

    @classmethod
    def _of(cls, points: Tensor, weights: Tensor) -> "Measure":
        """One of parts that are known to be right; to look at every number again would make a GPU wait."""
        measure = object.__new__(cls)
        vars(measure).update(points=points, weights=weights)
        return measure

    @classmethod
    def dirac(cls, x: Any, known: bool = False) -> "Measure":
        """The value at single points: ``x`` is ``... x n x d``; if ``known``, a tensor whose numbers are finite."""
        points = (x if known else as_values("x", x, (..., "n", "d"))).unsqueeze(-2)
        return cls._of(points, torch.ones_like(points[..., 0]))

    @classmethod
    def average(cls, points: Any) -> "Measure":
        """The mean over each point set: ``points`` is ``... x n x p x d``, all weights are ``1/p``."""
        points = as_values("points", points, (..., "n", "p >= 1", "d"))
        return cls._of(points, torch.full_like(points[..., 0], 1.0 / points.shape[-2]))

    @classmethod
    def uniform(cls, boxes: Any, order: int) -> "Measure":
        """The mean over whole boxes, by a Gauss-Legendre rule of ``order`` nodes a dimension.

        Args:
            boxes: a ``... x n x 2 x d`` tensor, lower corner first.
            order: nodes a dimension; the rule is exact for polynomials of degree ``2 * order - 1``.
        """
        boxes = as_values("boxes", boxes, (..., "n", 2, "d >= 1"))
        as_count("order", order, 1)
        nodes_1d, weights_1d = (torch.as_tensor(a).to(boxes) for a in np.polynomial.legendre.leggauss(order))
        d = boxes.shape[-1]
        nodes = torch.cartesian_prod(*[(nodes_1d + 1) / 2] * d).reshape(-1, d)
        weights = torch.cartesian_prod(*[weights_1d / 2] * d).reshape(-1, d).prod(-1)
        low, high = boxes[..., :1, :], boxes[..., 1:, :]
        points = low + (high - low) * nodes
        return cls._of(points, weights.expand(points.shape[:-1]))

    @property
    def n(self) -> int:
        """How many point sets."""
        return self.points.shape[-3]

    @property
    def p(self) -> int:
        """How many points a set."""
        return self.points.shape[-2]

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the input space."""
        return self.points.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """The dimensions in front of ``n``."""
        return self.points.shape[:-3]

    def expectation(self, f: Function) -> Tensor:
        """``sum_j w_j f(x_j)`` of each set, ``... x n``.

        ``f`` maps points ``... x d`` to values ``...``. A batch of functions may add dimensions to that of the points.
        """
        values = f(self.points)
        fits = isinstance(values, Tensor) and values.shape[-2:] == self.weights.shape[-2:]
        wanted = f"f must map points (..., d) to values (...), here {tuple(self.weights.shape)}"
        require(fits, wanted, getattr(values, "shape", values))
        return (self.weights * values).sum(-1)

    def __getitem__(self, index: Tensor | slice | Sequence[int] | int) -> "Measure":
        """Select along the ``n`` dimension; an index tensor ``(m,)`` gives ``m`` sets."""
        index = [index] if isinstance(index, int) else index
        return Measure._of(self.points[..., index, :, :], self.weights[..., index, :])

    def expand(self, *batch_shape: int) -> "Measure":
        """The same measures seen by every element of a batch."""
        points = self.points.expand(*batch_shape, *self.points.shape[-3:])
        return Measure._of(points, self.weights.expand(*batch_shape, *self.weights.shape[-2:]))

    def compact(self) -> "Measure":
        """The same measures; points that all of them weigh are held once, so that covariances need one kernel."""
        one = self.points[..., :1, :, :]
        same = min(self.n, self.p) > 1 and bool((self.points == one).all())
        return Measure._of(one.expand(self.points.shape), self.weights) if same else self

    @staticmethod
    def cat(measures: Sequence["Measure"]) -> "Measure":
        """Join along ``n``; batches are broadcast, shorter sets padded by weight zero at their first point."""
        p, batch = max(m.p for m in measures), torch.broadcast_shapes(*(m.batch_shape for m in measures))
        points, weights = [], []
        for m in measures:
            x, w = m.points.expand(*batch, -1, -1, -1), m.weights.expand(*batch, -1, -1)
            points.append(torch.cat([x, x[..., :1, :].expand(*w.shape[:-1], p - m.p, m.dim)], -2))
            weights.append(torch.nn.functional.pad(w, (0, p - m.p)))
        return Measure._of(torch.cat(points, -3), torch.cat(weights, -2))


def covariance(kernel: Kernel, a: Measure, b: Measure) -> Tensor:
    """Prior covariance ``sum_ij w_i k(x_i, x'_j) w'_j`` of every pair, ``... x n x m``; all batches are broadcast.

    Args:
        kernel: a GPyTorch kernel of any batch shape.
        a: ``n`` measures of ``p`` points.
        b: ``m`` measures of ``q`` points.
    """
    for part in (kernel, getattr(kernel, "base_kernel", kernel)):
        own = part.ard_num_dims if kernel.active_dims is part.active_dims is None else None
        require(own in (None, a.dim), f"kernel must have one lengthscale, or {a.dim}", own)
    require(isinstance(b, Measure) and a.dim == b.dim, f"measure must be a Measure of points of {a.dim} coordinates", b)
    batch = torch.broadcast_shapes(kernel.batch_shape, a.batch_shape, b.batch_shape)
    if a.n == 0 or b.n == 0:
        return a.points.new_zeros(*batch, a.n, b.n)
    shared = _is_shared(a) or _is_shared(b)
    rows = max(1, _SLICE_ENTRIES // max(1, batch.numel() * a.p * b.n * b.p))
    if rows < a.n and not shared:
        parts = [covariance(kernel, a[i : i + rows], a[i:] if a is b else b) for i in range(0, a.n, rows)]
        above = torch.cat([torch.nn.functional.pad(part, (b.n - part.shape[-1], 0)) for part in parts], -2)
        return above.triu() + above.triu(1).mT if a is b else above
    # One kernel between shared points replaces one between all pairs of weighted points.
    left, right = (m.points[..., 0, :, :] if _is_shared(m) else m.points.flatten(-3, -2) for m in (a, b))
    return _weigh(b, _weigh(a, matrix(kernel, left, right)).mT).mT


def _weigh(measure: Measure, rows: Tensor) -> Tensor:
    """Weighted sums, ``... x n x k``, of a row for each point, ``... x (n p) x k`` (shared: ``p``)."""
    if _is_shared(measure):
        return measure.weights @ rows
    return (measure.weights.unsqueeze(-1) * rows.unflatten(-2, (measure.n, measure.p))).sum(-2)


def variance(kernel: Kernel, a: Measure) -> Tensor:
    """Prior variance ``sum_ij w_i k(x_i, x_j) w_j`` of each measure, ``... x n``."""
    if _is_shared(a):
        points = a.points[..., 0, :, :]
        return ((a.weights @ matrix(kernel, points, points)) * a.weights).sum(-1)
    batch = torch.broadcast_shapes(kernel.batch_shape, a.batch_shape)
    rows = max(1, _SLICE_ENTRIES // max(1, batch.numel() * a.p * a.p))
    if rows < a.n:
        return torch.cat([variance(kernel, a[start : start + rows]) for start in range(0, a.n, rows)], -1)
    # n goes in front of the batch so that it cannot be mistaken for a batch dimension of the kernel.
    ones = [1] * (len(batch) - len(a.batch_shape))
    points, weights = (x.movedim(where, 0) for x, where in ((a.points, -3), (a.weights, -2)))
    points, weights = (x.reshape(a.n, *ones, *x.shape[1:]) for x in (points, weights))
    dense = matrix(kernel, points, points)  # n ... p p
    return torch.einsum("n...ij,n...i,n...j->n...", dense, weights, weights).movedim(0, -1)


def _is_shared(measure: Measure) -> bool:
    """Whether all measures weigh the same points: a tensor expanded along ``n``."""
    return measure.n > 1 and measure.p > 1 and measure.points.stride(-3) == 0


def require_fit(name: str, kernel: Kernel, point: Tensor) -> None:
    """Raise ``ValueError`` unless a kernel, of the argument ``name``, takes a point ``1 x d``."""
    try:
        covariance(kernel, Measure.dirac(point), Measure.dirac(point))
    except (IndexError, RuntimeError) as error:  # of a part of it
        found = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{name} must have a kernel of {point.shape[-1]} coordinates, got {found}") from error
    if kernel.active_dims is None:
        for part in getattr(kernel, "kernels", ()) or filter(None, [getattr(kernel, "base_kernel", None)]):
            require_fit(name, part, point)
