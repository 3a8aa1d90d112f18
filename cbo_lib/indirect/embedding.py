"""The conditional mean process: f and its averages g in one Gaussian process ([Chau2021], [Zhang2025], section 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_values, require
from cbo_lib.fit import fit_gaussian_process
from cbo_lib.gp import GaussianProcess, Posterior, cholesky
from cbo_lib.kernels import matrix, rbf_kernel
from cbo_lib.measure import Measure, covariance, variance

# What cross-validation chooses from, lengthscales in ranges of the actions and ridges, and how many pairs it looks at.
_LENGTHSCALES = (0.05, 0.1, 0.2, 0.4, 0.8)
_REGULARIZATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_PAIRS = 300


def embedding_weights(a: Tensor, kernel: Kernel, regularization: float, query: Tensor) -> Tensor:
    """``(L + N lambda I)^{-1} l(a, query)``, transposed: the weights of each query on the data ([Zhang2025], Eq. 12).

    They are ``... x m x N``, and need not be positive nor sum to one.

    Args:
        a: actions of the data, ``... x N x q``.
        kernel: ``l``, a GPyTorch kernel on actions.
        regularization: ``lambda``, positive.
        query: actions ``... x m x q``.

    Raises:
        ValueError: if there is no pair or ``regularization`` is not positive.
    """
    return torch.cholesky_solve(matrix(kernel, a, query), _factor(a, kernel, regularization)).mT


def _factor(a: Tensor, kernel: Kernel, regularization: float) -> Tensor:
    count = a.shape[-2]
    require(count > 0, "a must hold at least one action", "none")
    as_number("regularization", regularization, 0, ends="()")
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
    x: Tensor, a: Tensor, kernel: Kernel, lengthscales: Sequence[float], regularizations: Sequence[float]
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
    losses = {
        (length, ridge): float(embedding_loss(x, a, kernel, rbf_kernel(length, 1.0, a.dtype).to(a), ridge))
        for length in lengthscales
        for ridge in regularizations
    }
    return min(losses, key=lambda pair: losses[pair])


@dataclass(frozen=True, eq=False)
class ConditionalMeanEmbedding:
    """``p(x | a)`` estimated from pairs: signed weights on inputs that were seen, see ``embedding_weights``.

    Args:
        x: inputs, ``N x d``, or ``replicates x N x d`` if each replicate has pairs of its own.
        a: the actions that gave them, ``N x q`` or ``replicates x N x q``.
        lengthscale: of an RBF kernel on actions, in their units: a number, or one a coordinate. Default: the range of
            each coordinate of ``a`` times one of 0.05, 0.1, 0.2, 0.4 and 0.8.
        regularization: ``lambda``, positive. Default one of 1e-6, 1e-5, ..., 1e-2.
        normalize: whether weights are divided by their sum, which Eq. 12 does not do. Then an action whose weights sum
            to less than a half, as it is far from all pairs, is a ``ValueError``.
        most: of more pairs than these, as many at most are kept, evenly spaced: an approximation. Default 800.

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
    most: int = 800

    def __post_init__(self) -> None:
        """Check the arguments, and thin the pairs."""
        every = -(-torch.as_tensor(self.x).shape[-2] // as_count("most", self.most, 1))
        shapes = [tuple(torch.as_tensor(part).shape) for part in (self.x, self.a)]
        require(shapes[0][:-1] == shapes[1][:-1], "x and a must hold one input an action", f"{shapes[0]}, {shapes[1]}")
        for name in ("x", "a"):
            part = as_values(name, getattr(self, name), (..., "N >= 1", "d"))
            object.__setattr__(self, name, part[..., ::every, :])
        if self.lengthscale is not None:
            rbf_kernel(self.lengthscale)  # raises now
        if self.regularization is not None:
            as_number("regularization", self.regularization, 0, ends="()")

    @cached_property
    def parameters(self) -> tuple[float | Tensor, float]:
        """The lengthscale and ``lambda`` in force."""
        if self.lengthscale is not None and self.regularization is not None:
            return self.lengthscale, self.regularization
        x, a = (part.reshape(-1, *part.shape[-2:])[0] for part in (self.x, self.a))
        every, unit = -(-len(a) // _PAIRS), _range(a)
        x, a = (part[::every] / _range(part) for part in (x, a))
        lengths: Sequence[float] = _LENGTHSCALES
        if self.lengthscale is not None:
            own = torch.as_tensor(self.lengthscale).to(a)
            a, unit, lengths = a * unit / own, own, (1.0,)
        ridges = _REGULARIZATIONS if self.regularization is None else (self.regularization,)
        length, ridge = cross_validate(x, a, rbf_kernel(0.2, 1.0, x.dtype).to(x), lengths, ridges)
        return unit * length, ridge

    @cached_property
    def _solver(self) -> tuple[Kernel, Tensor]:
        """The kernel on actions, and the inverse of its ridged matrix, as weights are asked again and again."""
        length, ridge = self.parameters
        kernel = rbf_kernel(length, 1.0, self.a.dtype).to(self.a)
        return kernel, torch.cholesky_inverse(_factor(self.a, kernel, ridge))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what follows from them is computed again."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The inputs of the pairs with signed weights, for actions ``... x n x q``."""
        kernel, inverse = self._solver
        weights = matrix(kernel, actions, self.a) @ inverse
        if self.normalize:
            mass = weights.sum(-1, keepdim=True)
            far = actions.expand(*mass.shape[:-1], -1)[~(mass[..., 0] > 0.5)]
            require(not len(far), "samples must have actions near all that are asked or told", far[:1])
            weights = weights / mass
        return Measure(self.x.unsqueeze(-3).expand(*weights.shape, self.x.shape[-1]), weights)


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
        mean, variance: of all actions, then of all points, ``replicates x (n + m)``.
    """

    def __init__(
        self, space: Any, replicates: int, prior: GaussianProcess | None = None, kernel: str | Kernel = "matern"
    ) -> None:
        self.space, self.replicates, self.given, self.kernel = space, replicates, prior, kernel
        self.fitted_at = -1
        self.prior: GaussianProcess | None = None  # in force

    def begin(self, prior: GaussianProcess) -> None:
        """Go over to a prior, and forget what was told."""
        space, R, batch = self.space, self.replicates, prior.kernel.batch_shape
        require(batch in ((), (R,)), f"prior must have no batch or one of {R} replicates", batch)
        self.prior, estimate = prior, space.conditional
        places = [space.measure(space.actions, prior), space.measure_points(prior)]
        sizes = {R if m.batch_shape == () else m.batch_shape[0] for m in places}
        require(sizes == {R}, f"samples must have no batch or one of {R} replicates", sizes)
        self.mean, self.variance = (
            torch.cat([part(place).expand(R, place.n) for place in places], -1)
            for part in (prior.prior_mean, lambda place: variance(prior.kernel, place))
        )
        self.places, self.table = places, None
        if isinstance(estimate, ConditionalMeanEmbedding):  # all averages weigh the same inputs: one table has them
            inputs = Measure.dirac(estimate.x)
            parts = [covariance(prior.kernel, inputs, place) for place in (*places, inputs)]
            batch = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
            self.table = torch.cat([part.expand(*batch, -1, -1) for part in parts], -1)
            self.weights = self.mean.new_zeros(R, 0, estimate.x.shape[-2])
        self.told: Measure | None = None
        self.gram = self.mean.new_zeros(R, 0, 0)
        self.white = self.mean.new_zeros(R, 8, self.mean.shape[-1] + 1)

    def tell(self, queries: Tensor, y: Tensor) -> None:
        """Take in what is new among all that was told, ``replicates x t x q`` and ``replicates x t``."""
        t = y.shape[1]
        if self.prior is None and self.given is not None:
            self.begin(self.given)
        if self.given is None and t > self.fitted_at and 4 * t >= 5 * self.fitted_at:
            noise = None if self.space.noise_std is None else self.noise(queries)
            bounds, seen = self.space.bounds, self.space.measure(queries, order=4).expand(self.replicates)
            self.begin(fit_gaussian_process(seen, y, bounds, self.kernel, noise_std=noise))
            self.fitted_at = t
        if (k := self.gram.shape[-1]) < t:
            self._extend(queries[:, k:], y[:, k:])

    def _extend(self, queries: Tensor, y: Tensor) -> None:
        assert self.prior is not None
        new, k = self.space.measure(queries, self.prior).expand(self.replicates), self.gram.shape[-1]
        rows, own = self._rows(new)
        gram = torch.nn.functional.pad(self.gram, (0, new.n, 0, new.n))
        gram[:, k:], gram[:, :k, k:] = own, own[..., :k].mT
        gram[:, k:, k:] += torch.diag_embed(self.noise(queries).square())
        factor = cholesky(gram)[:, k:]
        rows = torch.cat([rows, (y - self.prior.prior_mean(new)).unsqueeze(-1)], -1)
        rows = rows - factor[..., :k] @ self.white[:, :k]
        rows = torch.linalg.solve_triangular(factor[..., k:], rows, upper=False)
        if (t := k + new.n) > self.white.shape[1]:
            self.white = torch.nn.functional.pad(self.white, (0, 0, 0, t))
        self.gram, self.white[:, k:t] = gram, rows
        self.mean = self.mean + (rows[..., :-1] * rows[..., -1:]).sum(1)
        self.variance = (self.variance - rows[..., :-1].square().sum(1)).clamp_min(0)

    def _rows(self, new: Measure) -> tuple[Tensor, Tensor]:
        """Prior covariances of new measures with all places, and with all that was told, these included."""
        if self.table is not None:
            self.weights = torch.cat([self.weights, new.weights], 1)
            places, inputs = (new.weights @ self.table).split([self.mean.shape[-1], self.table.shape[-2]], -1)
            return places, inputs @ self.weights.mT
        kernel = self.prior.kernel  # type: ignore[union-attr]  # begun
        self.told = new if self.told is None else Measure.cat([self.told, new])
        parts = [covariance(kernel, new, place).expand(self.replicates, new.n, place.n) for place in self.places]
        return torch.cat(parts, -1), covariance(kernel, new, self.told)

    def noise(self, actions: Tensor | None = None) -> Tensor:
        """The deviation of an observation of actions ``replicates x k x q``, ``replicates x k``; of all listed ones."""
        if self.space.noise_std is not None:
            return self.space.noise_std[... if actions is None else self.space.nearest(actions)]
        assert self.prior is not None
        shape = (self.replicates, self.space.n) if actions is None else actions.shape[:-1]
        return torch.as_tensor(self.prior.noise_std).to(self.mean).expand(shape)

    def posterior(self, queries: Tensor, y: Tensor) -> Posterior:
        """The posterior of f in full, by which any function of it can be computed, batch shape ``(replicates,)``."""
        self.tell(queries, y)
        assert self.prior is not None
        begun = self.prior.posterior(None if self.prior.kernel.batch_shape else self.replicates)
        if not y.shape[1]:
            return begun
        return begun.extend(self.space.measure(queries, self.prior).expand(self.replicates), y, self.noise(queries))


def _range(rows: Tensor) -> Tensor:
    """The range of each column; one where it is constant."""
    reach = rows.amax(0) - rows.amin(0)
    return torch.where(reach > 0, reach, 1.0)
