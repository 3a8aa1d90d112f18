"""Expectations of a confidence bound over coordinates that the learner does not set.

The learner sets some coordinates of a point; the world fills in the others. What a decision ``x`` is worth under the
posterior is an average over completions ``c``, such as ``E_c[mu(x, c) + sqrt_beta sigma(x, c)]``. With ``M``
completions and ``t`` observations, the textbook formula needs one triangular system of size ``t`` for each of the
``M`` completions of each ``x``.

Most kernels in use are products over the coordinates, ``k((x, c), (x', c')) = k_x(x, x') k_c(c, c')``. Then the matrix
``k_c(c, c_j)`` of completions and observed points is the same for every ``x``, and it is smooth: it factors as
``Phi W^T`` with few columns ``r``. With ``T = diag(k_x(x, x_j)) W`` and ``L`` the Cholesky factor of the observations,
``sigma^2(x, c) = k(0) - |L^{-1} T phi_c|^2``: ``r`` triangular systems in the place of ``M``.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Tay2023] S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Bayesian Optimization with Cost-varying Variable
   Subsets. NeurIPS 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbo_lib.gp import Posterior
from cbo_lib.measure import Measure, expands_to
from cbo_lib.separable import SplitKernel, pivoted_factor

# The products of features grow with the square of the rank; beyond this the matrix itself is used.
_RANK = 96

# Decisions are taken in slices of about this many entries: 2 MiB in float64 stay in the cache of a CPU, a GPU is kept
# busy by 256 MiB.
_CPU_ENTRIES, _GPU_ENTRIES = 2**18, 2**25


class PartialPosterior:
    """A posterior at points of which the learner sets some coordinates while the others run through a finite set.

    Shapes: ``batch`` is that of the posterior (replicates, or nothing); ``groups`` are more dimensions behind it, one a
    choice of the controlled coordinates; usually there are none. Points always have all ``d`` coordinates, and those
    that do not matter are not looked at.

    Args:
        posterior: given noisy values at points. Its kernel must be a product over the coordinates that are set and
            those that are not: RBF kernels, also with a lengthscale a coordinate; scaled ones; and products of these
            and of kernels whose ``active_dims`` lie on one side.
        contexts: the completions, ``M x d``, or ``batch x groups x M x d`` with some of these dimensions 1.
        controlled: which coordinates the learner sets, boolean, ``d`` or ``groups x d``.
        tolerance: the largest entry that a factor of the completions' kernel may leave over, relative to the kernel at
            distance zero, positive. Variances are wrong by about that much over the noise variance. None: do not look
            for a factor. Default 1e-14, and never less than the dtype resolves.

    Raises:
        ValueError: if an argument is out of range or of a wrong shape, the posterior saw more than points, or the
            kernel is no such product.
    """

    def __init__(
        self, posterior: Posterior, contexts: Tensor, controlled: Tensor, tolerance: float | None = 1e-14
    ) -> None:
        batch, groups = posterior.batch_shape, controlled.shape[:-1]
        ones = [1] * len(groups)
        if contexts.dim() < 2 or contexts.shape[-2] == 0:
            raise ValueError(f"contexts must have shape (..., M, d) with M >= 1, got {tuple(contexts.shape)}")
        if controlled.dtype != torch.bool or controlled.dim() == 0 or contexts.shape[-1:] != controlled.shape[-1:]:
            raise ValueError(
                f"controlled must be boolean, ... x d with the d = {contexts.shape[-1]} coordinates of contexts, "
                f"got {controlled.dtype} of shape {tuple(controlled.shape)}"
            )
        if tolerance is not None and not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        self.posterior, self.controlled, self._tolerance = posterior, controlled, tolerance
        self._shape = torch.Size([*batch, *groups])
        self._kernel = SplitKernel.of(posterior.prior.kernel, controlled, len(batch))
        self._contexts = self._check(contexts, "contexts")
        if not bool((torch.isfinite(self._contexts) | controlled.unsqueeze(-2)).all()):
            raise ValueError("contexts must be finite in the free coordinates, got a NaN or an infinity")
        mean = posterior.prior.mean
        if callable(mean):
            raise ValueError("the prior mean must be a number or a tensor, got a function of the points")
        self._prior_mean = torch.as_tensor(mean, dtype=contexts.dtype, device=contexts.device)
        if self._prior_mean.dim() > 0:
            if self._prior_mean.shape[-1] != 1:
                raise ValueError(
                    "the prior mean must be one value an element of the batch, shape (..., 1), "
                    f"got {tuple(self._prior_mean.shape)}"
                )
            self._prior_mean = self._prior_mean.reshape(*self._prior_mean.shape[:-1], *ones, 1, 1)
        if posterior.data is None:
            return
        data, t = posterior.data, posterior.count
        self._observed = _points(posterior).reshape(*batch, *ones, t, contexts.shape[-1])
        self._factor = data.factor.expand(*batch, t, t)
        weights = torch.linalg.solve_triangular(self._factor.mT, data.whitened.unsqueeze(-1), upper=True)
        self._weights = weights.expand(*batch, t, 1).reshape(*batch, *ones, 1, t)
        self._loadings, self._features = self._split()
        if self._features is not None:
            rank = self._features.shape[-1]
            self._row, self._column = torch.triu_indices(rank, rank, device=contexts.device)
            twice = torch.where(self._row == self._column, 1.0, 2.0).to(contexts)
            self._products = self._features[..., self._row] * self._features[..., self._column] * twice

    def mean(self, x: Tensor) -> Tensor:
        """Posterior mean of every decision with every context.

        Args:
            x: ``batch x groups x n x d`` points whose free coordinates do not matter; dimensions of 1 are broadcast.

        Returns:
            ``batch x groups x n x M``.
        """
        x = self._check(x, "x")
        if self.posterior.data is None:
            return self._prior_mean + self._nothing(x)
        return self._mean(self._kernel.controlled(x, self._observed))

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and variance, without noise, of every decision with every context.

        Args and shapes are those of ``mean``.
        """
        x = self._check(x, "x")
        scale = self._kernel.scale.unsqueeze(-1).unsqueeze(-1)
        if self.posterior.data is None:
            nothing = self._nothing(x)
            return self._prior_mean + nothing, scale + nothing
        left = self._kernel.controlled(x, self._observed)  # ... n t
        # Rounding may leave a variance of -1e-17 where it is zero; a floor keeps the gradient of its root finite.
        floor = scale * (1e-12 if torch.is_grad_enabled() else 0.0)
        return self._mean(left), (scale - self._reduction(left)).clamp(min=floor)

    def ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """``mean + sqrt_beta * std`` of every decision with every context, ``batch x groups x n x M``.

        A negative ``sqrt_beta`` gives the lower bound.
        """
        mean, variance = self.mean_and_variance(x)
        return mean + sqrt_beta * variance.sqrt()

    def expected_ucb(self, x: Tensor, sqrt_beta: float, weights: Tensor | None = None) -> Tensor:
        """The average of ``ucb`` over the contexts, ``batch x groups x n``.

        Args:
            x: as in ``mean``.
            sqrt_beta: the multiplier of the standard deviation.
            weights: of the contexts, ``M``, or with the dimensions ``batch x groups`` in front; taken as they are,
                whatever their sum. Default ``1 / M``.
        """
        count = self._contexts.shape[-2]
        if weights is None:
            weights = self._contexts.new_full((count,), 1.0 / count)
        if weights.shape[-1:] != (count,) or not expands_to(weights.shape[:-1], self._shape):
            raise ValueError(
                f"weights must have shape ({count},) or broadcast to {(*self._shape, count)}, "
                f"got {tuple(weights.shape)}"
            )
        slices = _slices(self._check(x, "x"), self._shape.numel() * count)
        return torch.cat([self.ucb(part, sqrt_beta) @ weights.unsqueeze(-1) for part in slices], -2).squeeze(-1)

    def _check(self, points: Tensor, name: str) -> Tensor:
        """Points with all dimensions ``batch x groups x n x d``."""
        dim = self.controlled.shape[-1]
        if points.dim() < 2 or points.shape[-1] != dim:
            raise ValueError(f"{name} must have shape (..., n, {dim}), got {tuple(points.shape)}")
        if not expands_to(points.shape[:-2], self._shape):
            raise ValueError(f"{name} must broadcast to {tuple(self._shape)} x n x {dim}, got {tuple(points.shape)}")
        return points.expand(*self._shape, *points.shape[-2:])

    def _nothing(self, x: Tensor) -> Tensor:
        """Zeros ``batch x groups x n x M``, differentiable in ``x`` as everything else that is returned."""
        total = torch.where(self.controlled.unsqueeze(-2), x, 0.0).sum(-1, keepdim=True)
        return (0.0 * total).expand(*x.shape[:-1], self._contexts.shape[-2])

    def _mean(self, left: Tensor) -> Tensor:
        """From the kernel ``batch x groups x n x t`` of decisions and observed points, the controlled factor."""
        rows = (left * self._weights) @ self._loadings.mT  # ... n r
        return self._prior_mean + (rows if self._features is None else rows @ self._features.mT)

    def _reduction(self, left: Tensor) -> Tensor:
        """By how much the observations reduce the variance, ``batch x groups x n x M``."""
        parts = [self._reduced(part) for part in _slices(left, self._loadings.numel())]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    def _reduced(self, left: Tensor) -> Tensor:
        right = left.unsqueeze(-2) * self._loadings.unsqueeze(-3)  # ... n r t
        # One system a replicate, not one a group; its columns lie one behind the other, as LAPACK wants them.
        columns = right.reshape(*self.posterior.batch_shape, -1, right.shape[-1])
        solved = torch.linalg.solve_triangular(self._factor, columns.mT, upper=False).mT
        whitened = solved.reshape(right.shape)
        if self._features is None:
            return whitened.square().sum(-1)
        # phi^T G phi for all completions as one matrix product with the products of the features.
        gram = whitened @ whitened.mT  # ... n r r
        return gram[..., self._row, self._column] @ self._products.mT

    def _split(self) -> tuple[Tensor, Tensor | None]:
        """``W^T`` (``... r x t``) and ``Phi`` (``... M x r``) with ``k_c(contexts, observed) = Phi W^T``.

        None for ``Phi`` is the identity, where a factor would not be smaller.
        """
        t, count = self._observed.shape[-2], self._contexts.shape[-2]
        observed = self._observed.expand(*self._shape, *self._observed.shape[-2:])
        basis = None
        if self._tolerance is not None:
            together, rank = torch.cat([self._contexts, observed], -2), min(t // 2, count // 2, _RANK)
            basis = pivoted_factor(self._kernel.free, together, rank, self._tolerance)
        if basis is None:
            return self._kernel.free(self._contexts, observed), None
        return basis[..., count:, :].mT.contiguous(), basis[..., :count, :]


def _slices(decisions: Tensor, entries: int) -> tuple[Tensor, ...]:
    """Decisions ``... n x k`` in parts, where each takes a number of entries."""
    most = _CPU_ENTRIES if decisions.device.type == "cpu" else _GPU_ENTRIES
    return decisions.split(max(1, most // max(1, entries)), -2)


def _points(posterior: Posterior) -> Tensor:
    """The observed points, ``batch x t x d``.

    Raises:
        ValueError: if averages were observed.
    """
    assert posterior.data is not None
    measure = posterior.data.measure
    if measure.p != 1 or not bool((measure.weights == 1).all()):
        raise ValueError("the posterior must be given values at points, got values of averages")
    return measure.points.squeeze(-2).expand(*posterior.batch_shape, posterior.count, measure.dim)


def expected_ucb(
    posterior: Posterior,
    x: Tensor,
    contexts: Tensor,
    controlled: Tensor,
    sqrt_beta: float,
    weights: Tensor | None = None,
) -> Tensor:
    """``E_c[mu(x, c) + sqrt_beta sigma(x, c)]`` by the product structure of the kernel.

    It is what [Huang2024]_, Algorithm 1, and [Tay2023]_ maximize. Equal to the average of ``pointwise_ucb`` to
    rounding. For many evaluations with one posterior, build the ``PartialPosterior`` once.

    Args:
        posterior: given noisy values at points; a kernel that is a product (see ``PartialPosterior``).
        x: decisions ``batch x groups x n x d``; free coordinates do not matter.
        contexts: completions ``M x d`` or ``batch x groups x M x d``; controlled coordinates do not matter.
        controlled: which coordinates the learner sets, boolean, ``d`` or ``groups x d``.
        sqrt_beta: the multiplier of the standard deviation; negative for the lower bound.
        weights: of the contexts, ``M`` or ``batch x groups x M``, taken as they are. Default ``1 / M``.

    Returns:
        A ``batch x groups x n`` tensor, differentiable in ``x``.

    Raises:
        ValueError: as ``PartialPosterior`` says.
    """
    return PartialPosterior(posterior, contexts, controlled).expected_ucb(x, sqrt_beta, weights)


def pointwise_ucb(posterior: Posterior, x: Tensor, contexts: Tensor, controlled: Tensor, sqrt_beta: float) -> Tensor:
    """``mu(x, c) + sqrt_beta sigma(x, c)`` pair by pair, for any kernel: the textbook formula, without structure.

    Args:
        posterior: given any measures, with the batch dimensions of ``x`` or none.
        x: decisions ``... x n x d``.
        contexts: completions ``M x d`` or ``... x M x d``.
        controlled: which coordinates the learner sets, boolean, ``d``.
        sqrt_beta: the multiplier of the standard deviation.

    Returns:
        A ``... x n x M`` tensor.
    """
    points = torch.where(controlled, x.unsqueeze(-2), contexts.unsqueeze(-3))  # ... n M d
    queries = Measure.dirac(points.flatten(-3, -2))
    values = posterior.mean(queries) + sqrt_beta * posterior.variance(queries).sqrt()
    return values.unflatten(-1, points.shape[-3:-1])


class TrackedPartial:
    """Mean and variance of ``n`` fixed decisions with ``M`` contexts, by a rank-one step an observation.

    The posterior covariance of a new point with every pair (decision, context) is ``A diag(w) B^T`` with ``A`` the
    kernel of the decisions and the ``t`` observed points in the controlled coordinates (``n x t``), ``B`` that of the
    contexts in the free ones (``M x t``) and ``w`` from one triangular solve. So an observation costs
    ``O(t^2 + t n M)`` and the memory is ``t (n + M) + n M``; a factor with ``n M`` columns is never formed.

    Args:
        posterior: the prior or a posterior; observations are taken in by ``update``. Requirements are those of
            ``PartialPosterior``.
        x: decisions ``n x d`` or ``batch x groups x n x d``.
        contexts: ``M x d`` or ``batch x groups x M x d``.
        controlled: boolean, ``d`` or ``groups x d``.

    Attributes:
        mean: ``batch x groups x n x M``.
        variance: ``batch x groups x n x M``.
    """

    def __init__(self, posterior: Posterior, x: Tensor, contexts: Tensor, controlled: Tensor) -> None:
        partial = PartialPosterior(posterior, contexts, controlled)
        with torch.no_grad():
            mean, variance = partial.mean_and_variance(x)
        self.mean, self.variance = mean.clone(), variance.clone()
        self._kernel, self._count, self._batch = partial._kernel, posterior.count, posterior.batch_shape
        self._x, self._contexts = partial._check(x, "x"), partial._contexts
        self._left = self._x.new_zeros(*self._x.shape[:-1], 32)
        self._right = self._contexts.new_zeros(*self._contexts.shape[:-1], 32)
        if posterior.data is not None:
            self._append(partial._observed, 0)

    def update(self, posterior: Posterior) -> None:
        """Take in the last observation of ``posterior``, which is what was tracked so far, extended by one.

        Raises:
            ValueError: if it does not hold one observation more, that of a point, or has another batch.
        """
        t = posterior.count
        if t != self._count + 1:
            raise ValueError(f"posterior must hold {self._count + 1} observations, one more than before, got {t}")
        data, batch = posterior.data, posterior.batch_shape
        if batch != self._batch or data is None:
            raise ValueError(f"posterior must have the batch {tuple(self._batch)} as before, got {tuple(batch)}")
        ones = [1] * (self.mean.dim() - 2 - len(batch))
        last = _points(posterior)[..., -1:, :].reshape(*batch, *ones, 1, self._x.shape[-1])
        with torch.no_grad():
            self._append(last, self._count)
            # The last row of A = L^{-1} K(observed, pairs), from the last row of L^{-1}.
            factor = data.factor.expand(*batch, t, t)
            unit = torch.zeros_like(factor[..., :1])
            unit[..., -1, 0] = 1.0
            w = torch.linalg.solve_triangular(factor.mT, unit, upper=True).squeeze(-1)
            w = w.reshape(*batch, *ones, 1, t)
            step = (self._left[..., :t] * w) @ self._right[..., :t].mT
            gain = data.whitened[..., -1].expand(batch).reshape(*batch, *ones, 1, 1)
            self.mean = torch.addcmul(self.mean, gain, step)
            self.variance = torch.addcmul(self.variance, step, step, value=-1).clamp_min_(0.0)
        self._count = t

    def _append(self, points: Tensor, start: int) -> None:
        """The kernels with more observed points, ``batch x 1... x m x d``."""
        stop = start + points.shape[-2]
        for name, side, own in (
            ("_left", self._kernel.controlled, self._x),
            ("_right", self._kernel.free, self._contexts),
        ):
            buffer = getattr(self, name)
            if stop > buffer.shape[-1]:
                room = max(buffer.shape[-1], stop - buffer.shape[-1])
                buffer = torch.cat([buffer, buffer.new_zeros(*buffer.shape[:-1], room)], -1)
                setattr(self, name, buffer)
            buffer[..., start:stop] = side(own, points)
