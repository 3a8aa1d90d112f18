"""The conditional mean process: f and its averages g in one Gaussian process ([Chau2021], [Zhang2025], section 2)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_number, as_values, require
from cbo_lib.fit import fit_gaussian_process
from cbo_lib.gp import GaussianProcess, Posterior, cholesky
from cbo_lib.kernels import matrix, rbf_kernel
from cbo_lib.measure import Measure, covariance, variance

# What cross-validation chooses from, lengthscales in ranges of the actions and ridges; how many pairs it looks at, and
# how many are kept.
_LENGTHSCALES = (0.05, 0.1, 0.2, 0.4, 0.8)
_REGULARIZATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_PAIRS, _MOST = 300, 800


def embedding_weights(a: Tensor, kernel: Kernel, regularization: float, query: Tensor) -> Tensor:
    """``(L + N lambda I)^{-1} l(a, query)``, transposed: the weights of each query on the data ([Zhang2025], Eq. 12).

    They are ``... x m x N``, and need not be positive nor sum to one.

    Args:
        a: actions of the data, ``... x N x q``.
        kernel: ``l``, a GPyTorch kernel on actions.
        regularization: ``lambda``, positive.
        query: actions ``... x m x q``.
    """
    return torch.cholesky_solve(matrix(kernel, a, query), _ridge_factor(a, kernel, regularization)).mT


def _ridge_factor(a: Tensor, kernel: Kernel, regularization: float) -> Tensor:
    """The lower Cholesky factor of ``L + N lambda I``, ``... x N x N``."""
    count = a.shape[-2]
    return cholesky(matrix(kernel, a) + count * regularization * torch.eye(count).to(a))


def embedding_loss(x: Tensor, a: Tensor, kernel: Kernel, action_kernel: Kernel, regularization: float) -> Tensor:
    """Leave-one-out error of the estimated embedding: the mean of ``|phi(x_i) - mu_{-i}(a_i)|^2``.

    ``phi`` is the feature map of ``kernel``. With ``H = L (L + N lambda I)^{-1}`` the residual without pair ``i`` is
    row ``i`` of ``I - H`` divided by ``1 - H_ii``, as for any ridge regression. The ridge stays ``N lambda``.

    Args:
        x: inputs ``... x N x d``.
        a: actions ``... x N x q``.
        kernel: on inputs.
        action_kernel: on actions.
        regularization: ``lambda``, positive.
    """
    hat = embedding_weights(a, action_kernel, regularization, a)
    residual = (torch.eye(a.shape[-2]).to(a) - hat) / (1 - hat.diagonal(dim1=-2, dim2=-1)).unsqueeze(-1)
    return ((residual @ matrix(kernel, x)) * residual).sum(-1).mean(-1)


def cross_validate(
    x: Tensor, a: Tensor, kernel: Kernel, lengthscales: Sequence[Any], regularizations: Sequence[float]
) -> tuple[float, float]:
    """The lengthscale of an RBF kernel on actions, and ``lambda``, of the smallest leave-one-out error.

    Args:
        x: inputs ``N x d``.
        a: actions ``N x q``.
        kernel: on inputs.
        lengthscales: to choose from.
        regularizations: to choose from.

    Raises:
        ValueError: if all actions are the same: then nothing can be learned about other actions.
    """
    require((a != a[:1]).any(), "a must hold at least two different actions", a)

    def loss(pair: tuple[Any, float]) -> float:
        length, ridge = pair
        return float(embedding_loss(x, a, kernel, rbf_kernel(length, 1.0, a.dtype).to(a), ridge))

    return min(itertools.product(lengthscales, regularizations), key=loss)


@dataclass(frozen=True, eq=False)
class ConditionalMeanEmbedding:
    """``p(x | a)`` estimated from pairs: signed weights on inputs that were seen, see ``embedding_weights``.

    Args:
        x: inputs, ``N x d``, or ``replicates x N x d`` if each replicate has pairs of its own. Of more than 800 pairs
            as many at most are kept, evenly spaced: an approximation.
        a: the actions that gave them, ``N x q`` or ``replicates x N x q``.
        lengthscale: of an RBF kernel on actions, in their units: a number, or one a coordinate. Default: the range of
            each coordinate of ``a`` times one of 0.05, 0.1, 0.2, 0.4 and 0.8.
        regularization: ``lambda``, positive. Default one of 1e-6, 1e-5, ..., 1e-2.
        normalize: whether weights are divided by their sum, which Eq. 12 does not do. Then an action whose weights sum
            to less than a half, as it is far from all pairs, is a ``ValueError``.

    What is left to its default is chosen by ``cross_validate`` on at most 300 of the first replicate's pairs, evenly
    spaced, with a kernel on inputs of a fifth of their range.

    Raises:
        ValueError: if the numbers of pairs differ, or a parameter is not positive.
    """

    x: Tensor
    a: Tensor
    lengthscale: float | Tensor | None = None
    regularization: float | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        """Check the arguments, thin the pairs, and choose what is left to be chosen."""
        x = as_values("x", self.x, (..., "N >= 1", "d"))
        a = as_values("a", self.a, (..., "N >= 1", "q"))
        require(x.shape[:-1] == a.shape[:-1], "x and a must hold one input an action", f"{x.shape}, {a.shape}")
        x, a = _thinned(x, _MOST), _thinned(a, _MOST)
        length, ridge = self.lengthscale, self.regularization
        if ridge is not None:
            as_number("regularization", ridge, 0, ends="()")
        if length is None or ridge is None:
            first_x, first_a = (part.reshape(-1, *part.shape[-2:])[0] for part in (x, a))
            lengths = [share * _range(first_a) for share in _LENGTHSCALES] if length is None else [length]
            ridges = _REGULARIZATIONS if ridge is None else [ridge]
            on_inputs = rbf_kernel(0.2 * _range(first_x), 1.0, x.dtype).to(x)
            few = _thinned(first_x, _PAIRS), _thinned(first_a, _PAIRS)
            length, ridge = cross_validate(*few, on_inputs, lengths, ridges)
        rbf_kernel(length)  # raises now
        vars(self).update(x=x, a=a, lengthscale=length, regularization=ridge)

    @property
    def kernel(self) -> Kernel:
        """The kernel on actions."""
        assert self.lengthscale is not None
        return rbf_kernel(self.lengthscale, 1.0, self.a.dtype).to(self.a)

    @cached_property
    def inverse(self) -> Tensor:
        """That of its ridged matrix, ``... x N x N``, as weights are asked again and again."""
        assert self.regularization is not None
        return torch.cholesky_inverse(_ridge_factor(self.a, self.kernel, self.regularization))

    def __getstate__(self) -> dict[str, Any]:
        """The pairs and the two numbers; a file need not hold what follows from them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The inputs of the pairs with signed weights, for actions ``... x n x q``."""
        weights = matrix(self.kernel, actions, self.a) @ self.inverse
        if self.normalize:
            mass = weights.sum(-1, keepdim=True)
            far = actions.expand(*mass.shape[:-1], -1)[~(mass[..., 0] > 0.5)]
            require(not len(far), "samples must have actions near all that are asked or told", far[:1])
            weights = weights / mass
        return Measure(self.x.unsqueeze(-3).expand(*weights.shape, self.x.shape[-1]), weights)


def _thinned(rows: Tensor, most: int) -> Tensor:
    """At most so many of rows ``... x N x k``, evenly spaced."""
    return rows[..., :: -(-rows.shape[-2] // most), :]


def _range(rows: Tensor) -> Tensor:
    """The range of each column; one where it is constant."""
    reach = rows.amax(0) - rows.amin(0)
    return torch.where(reach > 0, reach, 1.0)


class ConditionalMeanProcess:
    """What is believed of g at the listed actions and of f at the points, given values of any actions.

    The posterior is that of Eq. 11, with an estimated ``p(x | a)`` that of Eq. 12; replicates come first. After each
    value the factor of what was told is computed anew, and what it whitens grows by a row.

    Args:
        space: what the learner knows.
        replicates: how many.
        prior: of f, of batch shape ``()`` or ``(replicates,)``. Default: fitted to what is told, anew whenever the
            observations have grown by a quarter.
        kernel: what is fitted, see ``cbo_lib.fit``.

    Attributes:
        prior: the one in force.
        mean, variance: of all actions, then of all points, ``replicates x (n + m)``.
        gram: prior covariances of what was told, with the noise, ``replicates x t x t``.
        white: what its factor makes of the covariances of what was told with all places, and last of the residuals,
            ``replicates x t x (n + m + 1)``.
    """

    prior: GaussianProcess
    mean: Tensor
    variance: Tensor
    gram: Tensor
    white: Tensor
    table: Tensor | None
    places: tuple[Measure, Measure]

    def __init__(
        self, space: Any, replicates: int, prior: GaussianProcess | None = None, kernel: str | Kernel = "matern"
    ) -> None:
        self.space, self.replicates, self.given, self.kernel = space, replicates, prior, kernel
        self.fitted_at = -1

    def belief(self, queries: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of all places given ``replicates x t`` values of ``replicates x t x q`` actions.

        Each is ``replicates x (n + m)``; no deviation is below a billionth of the largest.
        """
        self.tell(queries, y)
        std = self.variance.sqrt()
        return self.mean, torch.maximum(std, 1e-9 * std.amax(-1, keepdim=True)).clamp_min(torch.finfo(std.dtype).tiny)

    def tell(self, queries: Tensor, y: Tensor) -> None:
        """Take in what is new among all that was told, ``replicates x t x q`` and ``replicates x t``."""
        t = y.shape[1]
        grown = t > self.fitted_at and 4 * t >= 5 * self.fitted_at
        if self.fitted_at < 0 or (self.given is None and grown):
            self.begin(self.fit(queries, y) if self.given is None else self.given)
            self.fitted_at = t
        if (k := self.gram.shape[-1]) == t:
            return
        kernel = self.prior.kernel
        told = self.space.measure(queries, self.prior).expand(self.replicates)
        new = told[k:]
        if self.table is None:
            actions, points = self.places
            with_places = torch.cat([covariance(kernel, new, actions), covariance(kernel, new, points)], -1)
            with_told = covariance(kernel, new, told)
        else:
            size = [self.mean.shape[-1], self.table.shape[-2]]
            with_places, with_inputs = (new.weights @ self.table).split(size, -1)
            with_told = with_inputs @ told.weights.mT
        noise = self.noise_std.gather(1, self.space.nearest(queries[:, k:]))
        # The new rows of the matrix of what was told; of its factor; of what that makes of places and residuals.
        own = with_told[..., k:] + torch.diag_embed(noise.square())
        across = with_told[..., :k]
        self.gram = torch.cat([torch.cat([self.gram, across], 1), torch.cat([across.mT, own], 1)], -1)
        factor = cholesky(self.gram)[:, k:]
        rows = torch.cat([with_places, (y[:, k:] - self.prior.prior_mean(new)).unsqueeze(-1)], -1)
        rows = torch.linalg.solve_triangular(factor[..., k:], rows - factor[..., :k] @ self.white, upper=False)
        self.white = torch.cat([self.white, rows], 1)
        self.mean = self.mean + (rows[..., :-1] * rows[..., -1:]).sum(1)
        self.variance = (self.variance - rows[..., :-1].square().sum(1)).clamp_min(0)

    def fit(self, queries: Tensor, y: Tensor) -> GaussianProcess:
        """The prior of the largest marginal likelihood of the averages."""
        noise = self.space.noise_std
        known = None if noise is None else noise[self.space.nearest(queries)]
        averages = self.space.measure(queries, order=4).expand(self.replicates)
        return fit_gaussian_process(averages, y, self.space.bounds, self.kernel, noise_std=known)

    def begin(self, prior: GaussianProcess) -> None:
        """Go over to a prior, and forget what was told."""
        space, R, kernel = self.space, self.replicates, prior.kernel
        self.prior = prior
        self.places = space.measure(space.actions, prior), space.measure_points(prior)
        self.mean = torch.cat([prior.prior_mean(place).expand(R, -1) for place in self.places], -1)
        self.variance = torch.cat([variance(kernel, place).expand(R, -1) for place in self.places], -1)
        self.table = None
        if isinstance(space.conditional, ConditionalMeanEmbedding):  # all averages weigh the same inputs
            inputs = Measure.dirac(space.conditional.x)
            self.table = torch.cat([covariance(kernel, inputs, place) for place in (*self.places, inputs)], -1)
        self.gram = self.mean.new_zeros(R, 0, 0)
        self.white = self.mean.new_zeros(R, 0, self.mean.shape[-1] + 1)

    @property
    def noise_std(self) -> Tensor:
        """The deviation of an observation of each listed action, ``replicates x n``; any other has the nearest's."""
        known = self.prior.noise_std if self.space.noise_std is None else self.space.noise_std
        return torch.as_tensor(known).to(self.mean).expand(self.replicates, self.space.n)

    def posterior(self, queries: Tensor, y: Tensor) -> Posterior:
        """The posterior of f in full, by which any function of it can be computed, batch shape ``(replicates,)``."""
        self.tell(queries, y)
        begun = self.prior.posterior(None if self.prior.kernel.batch_shape else self.replicates)
        if not y.shape[1]:
            return begun
        told = self.space.measure(queries, self.prior).expand(self.replicates)
        return begun.extend(told, y, self.noise_std.gather(1, self.space.nearest(queries)))
