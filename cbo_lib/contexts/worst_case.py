"""The worst expectation over a ball of distributions around an estimate."""

import math
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from cbo_lib.checks import as_expanded, as_number, as_tensor, as_values, require, require_shape
from cbo_lib.contexts.conic import SimplexBall
from cbo_lib.former.cholesky import pivoted_cholesky, rows_of, stable_cholesky


def tv_worst_case(values: Tensor, floor: Tensor, radius: float | Tensor) -> Tensor:
    """The worst expectation, ``...``, within an L1 distance of equally weighted samples ([Huang2024], Proposition 2).

    The program of Proposition 2 has a closed form. The worst distribution takes the mass ``min(radius / 2, 1)`` from
    the samples with the largest values and puts it where the function is smallest. The paper calls the radius one of
    total variation, but measures the L1 distance, twice the usual total variation; beyond 2 it has no more effect.
    The result is differentiable in ``values`` and ``floor``.

    Args:
        values: of the function at ``m >= 1`` samples, ``... x m``.
        floor: the smallest value over the context space, broadcasts to ``...``; ``inf`` if only the samples count. The
            mass that is moved goes there, or to the smallest of ``values`` if that is less.
        radius: L1, nonnegative: a number, or a tensor that broadcasts to ``...``.

    Raises:
        ValueError: if there is no sample, a value, ``floor`` or ``radius`` is out of range, or a shape does not fit.
    """
    values = as_values("values", values, (..., "m >= 1"))
    radius = _check_radius(radius, values, values.shape[:-1])
    floor = as_expanded("floor", floor, values.shape[:-1])
    require(floor > -torch.inf, "floor must be a number or inf", "a NaN or -inf")
    floor = torch.minimum(floor, values.amin(-1))
    return tv_average(values, floor, radius, float(radius.max()) if radius.numel() else 0.0)


def tv_average(values: Tensor, floor: Tensor, radius: float | Tensor, most: float) -> Tensor:
    """``tv_worst_case`` of right arguments; no radius is larger than ``most``, no value smaller than ``floor``."""
    m = values.shape[-1]
    moved = torch.as_tensor(radius, dtype=values.dtype, device=values.device).div(2).clamp_max(1.0)
    # Of each sample in descending order, the part of its mass 1/m that is taken.
    count = min(m, max(1, math.ceil(min(most / 2, 1.0) * m - 1e-9)))
    top = values.topk(count, dim=-1).values
    taken = (moved.unsqueeze(-1) * m - torch.arange(count).to(values)).clamp(0.0, 1.0) / m
    return values.mean(-1) - (taken * (top - floor.unsqueeze(-1))).sum(-1)


class MMDBall:
    """The distributions on ``m`` contexts within a maximum mean discrepancy of a reference ([Kirschner2020]).

    ``(q - p)' K (q - p) <= radius^2``. Whoever needs it for many values makes it once: it keeps a factor of ``K``.

    Args:
        reference: ``p``, ``*b x m``, nonnegative, of sum one.
        gram: ``K``, ``*b x m x m``, a kernel matrix of the contexts; the theory wants ``k <= 1``.
        radius: nonnegative: a number, or a tensor of shape ``*b``. At zero the ball holds the reference alone.
        like: a ball whose inverse of ``K`` is taken over, if its ``gram`` is the same tensor.

    Raises:
        ValueError: if a shape, the ``reference`` distribution, the symmetric ``gram`` or ``radius`` is out of range.
    """

    #: Added to the diagonal of ``K`` in ``squared_slope``, positive. It lowers the slope, so the line may be no bound.
    jitter: ClassVar[float] = 1e-3

    def __init__(self, reference: Tensor, gram: Tensor, radius: float | Tensor, like: "MMDBall | None" = None) -> None:
        m = gram.shape[-1]
        require_shape("gram", gram, ..., "m >= 1", "m >= 1")
        old = like if like is not None and like.given is gram else None
        # A NaN or an infinity fails this too; allclose would take several times as long.
        symmetric = old is not None or (gram - gram.mT).abs().amax() <= 1e-8 + 1e-5 * gram.abs().amax()
        require(symmetric, "gram must be finite and symmetric", gram)
        require_shape("reference", reference, ..., m)
        sums = bool((reference >= 0).all()) and bool(((reference.sum(-1) - 1).abs() <= 1e-6).all())
        require(sums, "reference must be nonnegative and sum to one", reference)
        batch = torch.broadcast_shapes(reference.shape[:-1], gram.shape[:-2], torch.as_tensor(radius).shape)
        self._radius = _check_radius(radius, gram, batch).reshape(-1)  # g
        self._reference = reference.expand(*batch, m).reshape(-1, m)  # g m
        self._gram: Tensor = gram.expand(*batch, m, m).reshape(-1, m, m)  # g m m
        self.given: Tensor = gram
        self.batch_shape = batch
        if old is not None and old.batch_shape == batch and "_inverse" in vars(old):
            self._inverse = old._inverse

    def worst_case(self, values: Tensor, tolerance: float = 2e-5, known: bool = False) -> Tensor:
        """The smallest ``q'v`` over the ball, of the batch of ``v``; its gradient holds ``q`` fixed (envelope theorem).

        Args:
            values: ``v``, ``*b x n x m``; without batch dimensions ``... x m``.
            tolerance: how far the result may be above the minimum, relative to the range of each ``v``; below 1e-8 it
                counts as that. The ball is larger by at most a relative ``1e-5``, which is a rank reduction of ``K``.
            known: whether the values are known to be finite; to look at them makes a device wait. Default no.

        Raises:
            ValueError: if a shape is wrong, a value is not finite or ``tolerance`` is negative.
        """
        return (self.worst_distribution(values, tolerance, known) * values).sum(-1)

    @torch.no_grad()
    def worst_distribution(self, values: Tensor, tolerance: float = 2e-5, known: bool = False) -> Tensor:
        """The ``q`` of ``worst_case``, of the shape of ``values``; arguments and errors as there."""
        as_number("tolerance", tolerance, 0)
        rows = self._rows(values, known).detach()
        low, place = rows.min(-1, keepdim=True)
        spread = rows.amax(-1, keepdim=True) - low
        radius = self._radius[:, None, None]
        corner = torch.zeros_like(rows).scatter_(-1, place, 1.0)
        reference = self._reference.unsqueeze(-2).expand_as(rows)
        # A ball that holds all mass at the smallest value, or nothing but its center, needs no solver.
        everything = self._reaches.take_along_dim(place, -1) <= radius
        wanted = ~everything & (radius > 0) & (spread > 0)
        result = torch.where(everything & (radius > 0), corner, reference)
        if self._solver is not None:
            scaled = (rows - low) / torch.where(spread > 0, spread, 1.0)
            solved = self._solver.minimizers(scaled.double(), wanted, tolerance)
            result = torch.where(wanted, solved.to(result), result)
        return result.reshape(values.shape)

    def minimax_approx(self, values: Tensor, known: bool = False) -> Tensor:
        """The midpoint of two bounds on ``worst_case`` that need no optimization ([Tay2022], minimax approximation).

        As a function of the radius the worst case is convex. So it lies above the smallest value and above a line whose
        slope, the worst-case sensitivity, is that at zero if weights may be negative; and below the chord to the radius
        ``d*`` at which all mass may sit on the smallest value. From ``d*`` on it is that value.

        Shapes and errors are those of ``worst_case``; differentiable in ``values``.
        """
        rows = self._rows(values, known)
        worst, place = rows.min(-1, keepdim=True)
        mean = (rows * self._reference.unsqueeze(-2)).sum(-1, keepdim=True)
        radius, tiny = self._radius[:, None, None], torch.finfo(rows.dtype).tiny
        lower = torch.maximum(mean - radius * self.squared_slope(rows).clamp_min(tiny).sqrt(), worst)
        reach = self._reaches.take_along_dim(place, -1)
        chord = mean + (worst - mean) * radius / reach.clamp_min(tiny)
        return torch.where(radius >= reach, worst, (lower + chord) / 2).reshape(values.shape[:-1])

    def squared_slope(self, rows: Tensor) -> Tensor:
        """The least ``(v - c)' K^-1 (v - c)``, as if weights could be negative, of ``v``, ``g x n x m``."""
        inverse, weights = self._inverse
        values = rows.double()
        values = values - (values * weights).sum(-1, keepdim=True)
        square = values.square().sum(-1, keepdim=True) - (values @ inverse.mT).square().sum(-1, keepdim=True)
        return (square / self.jitter).to(rows)

    def _rows(self, values: Tensor, known: bool) -> Tensor:
        """Values as ``g x n x m``."""
        values = values if known else as_values("values", values, (..., "m >= 1"))
        m = self._gram.shape[-1]
        shape = ", ".join([*map(str, self.batch_shape), "n", str(m)]) if self.batch_shape else f"..., {m}"
        fits = values.shape[-1] == m and (not self.batch_shape or values.shape[:-2] == self.batch_shape)
        require(fits, f"values must have shape ({shape})", values.shape)
        return values.reshape(len(self._gram), -1, m)

    @cached_property
    def _reaches(self) -> Tensor:
        """The discrepancy of the reference and all mass at one context, of every context, ``g x 1 x m``."""
        embedded = (self._gram @ self._reference.unsqueeze(-1)).squeeze(-1)  # g m
        own = (embedded * self._reference).sum(-1, keepdim=True)
        return (self._gram.diagonal(dim1=-2, dim2=-1) - 2 * embedded + own).clamp_min(0.0).sqrt().unsqueeze(-2)

    @cached_property
    def _solver(self) -> SimplexBall | None:
        """None where all mass may sit at any context."""
        if bool((self._reaches <= self._radius[:, None, None]).all()):
            return None
        eps = torch.finfo(torch.float64).eps
        radius = self._radius.double().clamp_min(eps)  # rows of radius zero are not solved
        # d'(K - F'F)d is at most four times the tolerance for a difference d of two distributions.
        return SimplexBall(self._factor(2.5e-6 * radius.square(), 16 * eps), self._reference.double(), radius)

    @cached_property
    def _inverse(self) -> tuple[Tensor, Tensor]:
        """``G`` with ``(K + jitter)^-1 = (1 - G'G) / jitter``, and the weights of the best ``c``, ``g x 1 x m``."""
        # By the identity of Woodbury: smooth kernels have a low rank. In double precision, as much cancels.
        factor = self._factor(0.0, 1e-9)
        ridge = self.jitter * torch.eye(factor.shape[-2]).to(factor)
        inverse = torch.linalg.solve_triangular(stable_cholesky(factor @ factor.mT + ridge)[0], factor, upper=False)
        ones = 1 - inverse.sum(-1).unsqueeze(-2) @ inverse  # g 1 m
        return inverse, ones / ones.sum(-1, keepdim=True)

    def _factor(self, tolerance: float | Tensor, relative: float) -> Tensor:
        """``F`` of at least one row, ``F'F`` close to ``K``; in double precision, as single stalls far from the end."""
        gram = self._gram.double()
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        tolerance = (relative * diagonal.amax(-1)).clamp_min(tolerance)
        factor = pivoted_cholesky(rows_of(gram), diagonal, gram.shape[-1] + 1, tolerance, 1e-6)
        assert factor is not None
        return factor if factor.shape[-2] else torch.zeros_like(gram[:, :1])


def _check_radius(radius: float | Tensor, like: Tensor, shape: torch.Size) -> Tensor:
    radius = as_tensor("radius", radius, like)
    require(radius >= 0, "radius must be nonnegative", radius)
    return as_expanded("radius", radius, shape)
