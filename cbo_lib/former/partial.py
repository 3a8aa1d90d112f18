"""Posteriors, and expectations of confidence bounds, over coordinates that the learner does not set.

The learner sets some coordinates of a point; the world fills in the others. What a decision ``x`` is worth under the
posterior is an average over completions ``c``, such as ``E_c[mu(x, c) + sqrt_beta sigma(x, c)]``. With ``M``
completions and ``t`` observations, the textbook formula needs one triangular system of size ``t`` for each of the
``M`` completions of each ``x``.

Most kernels in use are products over the coordinates, ``k((x, c), (x', c')) = k_x(x, x') k_c(c, c')``. Then the matrix
``k_c(c, c_j)`` of completions and observed points is the same for every ``x``, which allows two shortcuts. It is
smooth: it factors as ``Phi W^T`` with few columns ``r``. With ``T = diag(k_x(x, x_j)) W`` and ``L`` the Cholesky factor
of the observations, ``sigma^2(x, c) = k(0) - |L^{-1} T phi_c|^2``: ``r`` triangular systems in the place of ``M``. Or
the variance is interpolated: as a function of ``c`` it is a constant minus a combination of products
``k_c(c, c_i) k_c(c, c_j)``, which all lie in the space of the squared kernel ``k_c^2``. Where that has numerical rank
``N`` on the completions, the variance at ``N`` of them determines it at all, for any number of observations.
"""

import copy
from abc import ABC, abstractmethod
from typing import Self

import torch
from botorch.models.model import Model
from torch import Tensor

from cbo_lib.checks import as_number, require, require_shape
from cbo_lib.former.split import NoProductError, SplitKernel, pivoted_factor
from cbo_lib.gp import Posterior
from cbo_lib.measure import Measure, expands_to
from cbo_lib.models import PosteriorModel

# The products of features grow with the square of the rank; beyond this the matrix itself is used.
_RANK = 96

# Decisions are taken in slices of so many entries: 2 MiB in float64 stay in a CPU's cache, 256 MiB keep a GPU busy.
_CPU_ENTRIES, _GPU_ENTRIES = 2**18, 2**25

# A model may form a joint covariance, so it is asked for so many points at once; a posterior for sixteen times more.
_POINTS = 2**10


def moments(model: Posterior | Model, points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, without noise, at single points ``... x n x d``, ``... x n`` each, with the batch in front.

    Args:
        model: a posterior given any measures, or a BoTorch model of one output.
        points: where; they are not predicted jointly, so their number matters little.
    """
    if isinstance(model, PosteriorModel) and model.measure == Measure.dirac:
        model = model.measure_posterior
    if isinstance(model, Posterior):
        pairs = [model.mean_and_variance(Measure.dirac(part, known=True)) for part in points.split(16 * _POINTS, -2)]
        mean, variance = (torch.cat(part, -1) for part in zip(*pairs, strict=True))
        return mean, variance
    parts = [model.posterior(part) for part in points.split(_POINTS, -2)]
    mean, variance = (torch.cat([getattr(part, name) for part in parts], -2) for name in ("mean", "variance"))
    return mean.squeeze(-1), variance.squeeze(-1).clamp_min(0.0)


def upper(mean: Tensor, variance: Tensor, sqrt_beta: float | Tensor) -> Tensor:
    """``mean + sqrt_beta std``; where there is no uncertainty the bound has the slope of the mean."""
    return mean + sqrt_beta * variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class CompletedPosterior(ABC):
    """A posterior at points of which the learner sets some coordinates while the others run through a finite set.

    Shapes: ``batch`` is that of the posterior (replicates, or nothing); ``groups`` are more dimensions behind it, one a
    choice of the controlled coordinates; usually there are none. Points always have all ``d`` coordinates, and those
    that do not matter are not looked at.

    Args:
        batch: that of the posterior.
        contexts: the completions, ``M x d``, or ``batch x groups x M x d`` with some of these dimensions 1.
        controlled: which coordinates the learner sets, boolean, ``d`` or ``groups x d``.

    Raises:
        ValueError: if an argument is out of range or of a wrong shape.
    """

    def __init__(self, batch: torch.Size, contexts: Tensor, controlled: Tensor) -> None:
        require_shape("contexts", contexts, ..., "M >= 1", "d")
        fits = controlled.dtype == torch.bool and controlled.dim() and contexts.shape[-1:] == controlled.shape[-1:]
        expected = f"controlled must be boolean, ... x d with the d = {contexts.shape[-1]} coordinates of contexts"
        require(fits, expected, f"{controlled.dtype} of shape {tuple(controlled.shape)}")
        self.controlled, self._batch, self._groups = controlled, batch, controlled.shape[:-1]
        self._shape = torch.Size([*batch, *self._groups])
        self.contexts = self._check(contexts, "contexts")
        finite = torch.isfinite(self.contexts) | controlled.unsqueeze(-2)
        require(finite, "contexts must be finite in the free coordinates", "a NaN or an infinity")

    @abstractmethod
    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and variance, without noise, of every decision with every context, ``batch x groups x n x M``.

        Of points ``batch x groups x n x d`` the free coordinates do not matter; dimensions of 1 are broadcast.
        """

    def mean(self, x: Tensor) -> Tensor:
        """The mean alone."""
        return self.mean_and_variance(x)[0]

    def among(self, places: Tensor) -> Self:
        """The same with the contexts at some places, ``batch x k``; few of them, so that no shortcut is looked for."""
        other, index = copy.copy(self), places.reshape(*self._batch, *[1] * len(self._groups), -1, 1)
        other.contexts = self.contexts.take_along_dim(index, -2)
        return other

    def ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """``mean + sqrt_beta * std`` of every decision with every context, ``batch x groups x n x M``.

        A negative ``sqrt_beta`` gives the lower bound.
        """
        return upper(*self.mean_and_variance(x), sqrt_beta)

    def expected_ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """The average of ``ucb`` over the contexts, ``batch x groups x n``: what [Huang2024] and [Tay2023] maximize."""
        return self.ucb(x, sqrt_beta).mean(-1)

    def _check(self, points: Tensor, name: str) -> Tensor:
        """Points with all dimensions ``batch x groups x n x d``."""
        dim = self.controlled.shape[-1]
        require_shape(name, points, ..., "n", dim)
        fits = expands_to(points.shape[:-2], self._shape)
        require(fits, f"{name} must broadcast to {tuple(self._shape)} x n x {dim}", points.shape)
        return points.expand(*self._shape, *points.shape[-2:])


class PointwisePosterior(CompletedPosterior):
    """Pair by pair, for any kernel: the textbook formula, without structure.

    Args:
        model: a posterior given any measures, or a BoTorch model of one output.
        contexts: see ``CompletedPosterior``, also for ``controlled``.
        controlled: which coordinates are set.
    """

    def __init__(self, model: Posterior | Model, contexts: Tensor, controlled: Tensor) -> None:
        super().__init__(model.batch_shape, contexts, controlled)
        self.model = model

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``CompletedPosterior``."""
        own = self.controlled.unsqueeze(-2).unsqueeze(-2)
        points = torch.where(own, self._check(x, "x").unsqueeze(-2), self.contexts.unsqueeze(-3))  # ... n M d
        found = moments(self.model, points.flatten(len(self._batch), -2))
        mean, variance = (part.unflatten(-1, points.shape[len(self._batch) : -1]) for part in found)
        return mean, variance


class PartialPosterior(CompletedPosterior):
    """The same by the product structure of the kernel, to rounding or to a tolerance.

    Args:
        posterior: given noisy values at points. Its kernel must be a product over the coordinates that are set and
            those that are not: RBF kernels, also with a lengthscale a coordinate; scaled ones; and products of these,
            of Matern kernels whose ``active_dims`` lie on one side, and of other stationary ones whose ``active_dims``
            lie on the same side for every group.
        contexts: see ``CompletedPosterior``, also for ``controlled``.
        controlled: which coordinates are set.
        tolerance: positive; see ``interpolate``. None: no shortcut. Default 1e-14, never less than the dtype resolves.
        interpolate: False for a factor of the completions' kernel; ``tolerance`` is the largest entry that it may leave
            over, relative to the kernel at distance zero, and variances are wrong by about that much over the noise
            variance. True for interpolated variances; ``tolerance`` is the largest entry of the squared kernel left
            over, and variances are wrong by the order of its square root over ten, relative to the prior variance. That
            is tried with up to three coordinates that the learner does not set, and done where half of the completions
            are enough; a factor is not looked for then, as its rank would be too high too. Default False.

    Attributes:
        chosen: how many completions variances are computed at.
        closed: whether the gradient has a closed form here: no shortcut was taken and the kernel is an RBF kernel.

    Raises:
        NoProductError: if the posterior saw averages, its prior mean is a function, or the kernel is no such product.
        ValueError: if an argument is out of range or of a wrong shape.
    """

    def __init__(
        self,
        posterior: Posterior,
        contexts: Tensor,
        controlled: Tensor,
        tolerance: float | None = 1e-14,
        interpolate: bool = False,
    ) -> None:
        super().__init__(posterior.batch_shape, contexts, controlled)
        if tolerance is not None:
            as_number("tolerance", tolerance, 0, ends="()")
        batch, ones = self._batch, [1] * len(self._groups)
        self.posterior, self._kernel = posterior, SplitKernel.of(posterior.prior.kernel, controlled, len(self._batch))
        mean = posterior.prior.mean
        if callable(mean):
            raise NoProductError("the prior mean must be a number or a tensor, got a function of the points")
        self._prior_mean = torch.as_tensor(mean, dtype=contexts.dtype, device=contexts.device)
        if self._prior_mean.dim() > 0:
            require_shape("the prior mean", self._prior_mean, ..., 1)
            self._prior_mean = self._prior_mean.reshape(*self._prior_mean.shape[:-1], *ones, 1, 1)
        self._observed = observed_points(posterior, contexts, self._groups)
        self._factor, self._weights = contexts.new_zeros(*batch, 0, 0), contexts.new_zeros(*self._shape, 1, 0)
        if (data := posterior.data) is not None:
            t = posterior.count
            self._factor = data.factor.expand(*batch, t, t)
            weights = torch.linalg.solve_triangular(self._factor.mT, data.whitened.unsqueeze(-1), upper=True)
            self._weights = weights.expand(*batch, t, 1).reshape(*batch, *ones, 1, t)
        self._prepared = self._kernel.prepare(0, self._observed)
        self._shorten(tolerance, interpolate)

    def among(self, places: Tensor) -> Self:
        """See ``CompletedPosterior``."""
        other = super().among(places)
        other._shorten(None, False)
        return other

    def mean(self, x: Tensor) -> Tensor:
        """The mean alone, without a triangular system."""
        return self._mean(self._left(x))

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See ``CompletedPosterior``."""
        left = self._left(x)
        return self._mean(left), self._variance(left)

    def expected_ucb(self, x: Tensor, sqrt_beta: float | Tensor) -> Tensor:
        """See ``CompletedPosterior``; of each group its own multiplier, ``groups x 1``, also."""
        left = self._left(x)
        mean = self._prior_mean.squeeze(-1) + (left * self._average).sum(-1)
        return mean + sqrt_beta * self._variance(left).clamp_min(torch.finfo(left.dtype).tiny).sqrt().mean(-1)

    @torch.no_grad()
    def expected_ucb_and_slope(self, x: Tensor, sqrt_beta: Tensor) -> tuple[Tensor, Tensor]:
        """The same and its gradient, ``batch x groups x n x d``, in few operations; only where ``closed``."""
        left, scale = self._left(x), self._kernel.scale[..., None, None]
        white = self._whiten(left)
        variance, floor = scale - white.square().sum(-1), 1e-12 * scale
        std = variance.clamp(min=floor).sqrt()
        value = self._prior_mean.squeeze(-1) + (left * self._average).sum(-1) + sqrt_beta * std.mean(-1)
        share = (sqrt_beta / -std.shape[-1]).unsqueeze(-1) / std.masked_fill(variance <= floor, torch.inf)
        columns = white.flatten(len(self._batch), -2).mT
        back = torch.linalg.solve_triangular(self._factor.mT, columns, upper=True).mT.reshape(white.shape)
        by = self._average + (back * self._nodes.unsqueeze(-3) * share.unsqueeze(-1)).sum(-2)
        return value, self._kernel.slope(x, self._prepared, by * left)

    def _left(self, x: Tensor) -> Tensor:
        """The kernel of decisions and observed points, the controlled factor, ``batch x groups x n x t``."""
        return self._kernel.controlled(self._check(x, "x"), self._prepared)

    def _variance(self, left: Tensor) -> Tensor:
        """From that kernel, ``batch x groups x n x M``."""
        scale = self._kernel.scale[..., None, None]
        # Rounding may leave a variance of -1e-17 where it is zero; a floor keeps the gradient of its root finite.
        floor = scale * (1e-12 if torch.is_grad_enabled() else 0.0)
        entries = _CPU_ENTRIES if left.device.type == "cpu" else _GPU_ENTRIES
        parts = [self._reduction(part) for part in left.split(max(1, entries // max(1, self._nodes.numel())), -2)]
        variance = (scale - (parts[0] if len(parts) == 1 else torch.cat(parts, -2))).clamp(min=floor)
        return variance if self._spread is None else (variance @ self._spread.mT).clamp(min=floor)

    def _mean(self, left: Tensor) -> Tensor:
        """From the same kernel, ``batch x groups x n x M``."""
        rows = (left * self._weights) @ self._loadings.mT  # ... n r
        return self._prior_mean + (rows if self._features is None else rows @ self._features.mT)

    def _whiten(self, left: Tensor) -> Tensor:
        """``L^{-1}`` times the loadings of decisions, ``batch x groups x n x r x t``."""
        right = left.unsqueeze(-2) * self._nodes.unsqueeze(-3)  # ... n r t
        # One system a replicate, not one a group; its columns lie one behind the other, as LAPACK wants them.
        columns = right.reshape(*self._batch, right.shape[len(self._batch) : -1].numel(), right.shape[-1])
        return torch.linalg.solve_triangular(self._factor, columns.mT, upper=False).mT.reshape(right.shape)

    def _reduction(self, left: Tensor) -> Tensor:
        """By how much the observations reduce the variance, ``batch x groups x n x M``, or ``N`` where interpolated."""
        whitened = self._whiten(left)
        if self._features is None:
            return whitened.square().sum(-1)
        # phi^T G phi for all completions as one matrix product with the products of the features.
        return (whitened @ whitened.mT)[..., self._row, self._column] @ self._products.mT

    def _shorten(self, tolerance: float | None, interpolate: bool) -> None:
        """Find ``_loadings`` (``W^T``, ``... r x t``) and ``_features`` (``Phi``, ``... M x r``, None: the identity).

        ``_nodes`` are the loadings that variances are computed with and ``_spread`` (``... M x N``) takes these to all.
        """
        t, count = self._observed.shape[-2], self.contexts.shape[-2]
        observed = self._observed.expand(*self._shape, *self._observed.shape[-2:])
        self._features, self._spread, self.chosen, basis = None, None, count, None
        if tolerance is not None and not interpolate:
            together, most = torch.cat([self.contexts, observed], -2), min(t // 2, count // 2, _RANK)
            basis = pivoted_factor(self._kernel.free, together, most, tolerance)
        if basis is None:
            self._loadings = self._nodes = rows = self._kernel.free(self.contexts, observed)
            if tolerance is not None and interpolate and int((~self.controlled).sum(-1).max()) <= 3:
                self._interpolate(count // 2, tolerance)
        else:
            self._loadings = self._nodes = basis[..., count:, :].mT.contiguous()
            self._features = basis[..., :count, :]
            self._row, self._column = torch.triu_indices(basis.shape[-1], basis.shape[-1], device=basis.device)
            twice = torch.where(self._row == self._column, 1.0, 2.0).to(basis)
            self._products = self._features[..., self._row] * self._features[..., self._column] * twice
            rows = self._features.mean(-2, keepdim=True) @ self._loadings
        self.closed = len(self._kernel.squares or ()) == 1 and self._features is self._spread is None
        self._average = self._weights * rows.mean(-2, keepdim=True)  # ... 1 t

    def _interpolate(self, most: int, tolerance: float) -> None:
        """Find the contexts that determine the variance at all others, where no more than ``most`` are needed."""
        basis = pivoted_factor(lambda a, b: self._kernel.free(a, b).square(), self.contexts, most, tolerance, cut=True)
        assert basis is not None
        left = (1 - basis.square().sum(-1)).amax(-1)
        if basis.shape[-1] == 0 or bool((every := left > 2 * max(tolerance, 8 * torch.finfo(left.dtype).eps)).all()):
            return
        # Row pivoting chooses rows such that no entry of the interpolation is large.
        compact, pivots = torch.linalg.lu_factor_ex(basis)[:2]
        lower = torch.lu_unpack(compact, pivots, unpack_pivots=False)[1]
        count, rank = basis.shape[-2:]
        # Where others of the batch need more contexts than this one, the surplus ones are interpolated like all others.
        used = (basis != 0).any(-2).unsqueeze(-2)
        lower = torch.where(used, lower, 0.0)
        top = torch.where(used.mT, lower[..., :rank, :], torch.eye(rank, dtype=basis.dtype, device=basis.device))
        spread = torch.linalg.solve_triangular(top, lower, upper=False, left=False, unitriangular=True)
        # Row i of the factors belongs to context order[i].
        order = torch.arange(basis.shape[-2], device=basis.device).repeat(*basis.shape[:-2], 1)
        for i, pivot in enumerate((pivots.long() - 1).split(1, -1)):
            here, there = order[..., i : i + 1].clone(), order.gather(-1, pivot)
            order.scatter_(-1, pivot, here)[..., i : i + 1] = there
        self.chosen = count if bool(every.any()) else rank  # what a replicate gets does not hang on its company
        if self.chosen > rank:
            spread = torch.nn.functional.pad(spread, (0, count - rank))
            spread = torch.where(every[..., None, None], torch.eye(count).to(spread), spread)
            order = torch.where(every.unsqueeze(-1), torch.arange(count, device=order.device), order)
        self._spread = spread.take_along_dim(order.argsort(-1).unsqueeze(-1), -2)
        self._nodes = self._loadings.take_along_dim(order[..., : self.chosen].unsqueeze(-1), -2)


def observed_points(posterior: Posterior, like: Tensor, groups: torch.Size) -> Tensor:
    """The observed points, ``batch x groups of 1 x t x d``; ``NoProductError`` if averages were observed."""
    batch, shape = posterior.batch_shape, (posterior.count, like.shape[-1])
    points = like.new_zeros(shape)
    if posterior.data is not None:
        measure = posterior.data.measure
        if measure.p != 1 or not bool((measure.weights == 1).all()):
            raise NoProductError("the posterior must be given values at points, got values of averages")
        points = measure.points.squeeze(-2)
    return points.expand(*batch, *shape).reshape(*batch, *[1] * len(groups), *shape)


def complete(
    model: Posterior | Model,
    contexts: Tensor,
    controlled: Tensor,
    tolerance: float | None = 1e-14,
    interpolate: bool = False,
) -> CompletedPosterior:
    """A ``PartialPosterior`` where the model has the structure that it needs, else a ``PointwisePosterior``."""
    if isinstance(model, PosteriorModel) and model.measure == Measure.dirac:
        model = model.measure_posterior
    try:
        if isinstance(model, Posterior):
            return PartialPosterior(model, contexts, controlled, tolerance, interpolate)
    except NoProductError:
        pass
    return PointwisePosterior(model, contexts, controlled)
