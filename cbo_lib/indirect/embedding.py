"""The conditional mean process: f and its conditional averages under one Gaussian process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_number, as_values, require
from cbo_lib.former.cholesky import stable_cholesky
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure

# What cross-validation chooses from: lengthscales in ranges of the actions, and ridges.
_LENGTHSCALES = (0.05, 0.1, 0.2, 0.4, 0.8)
_REGULARIZATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_PAIRS = 1000


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
    count = a.shape[-2]
    require(count > 0, "a must hold at least one action", "none")
    as_number("regularization", regularization, 0, ends="()")
    gram = kernel(a).to_dense() + count * regularization * torch.eye(count).to(a)
    return torch.cholesky_solve(kernel(a, query).to_dense(), stable_cholesky(gram)[0]).mT


def conditional_mean_measure(x: Tensor, a: Tensor, kernel: Kernel, regularization: float, query: Tensor) -> Measure:
    """The estimated ``p(x | a)`` at some actions: signed weights on inputs that were seen ([Zhang2025], Eq. 12).

    Averages of a function under the ``m`` measures of ``N`` points are kernel ridge regressions on the actions.

    Args:
        x: inputs of the data, ``... x N x d``.
        a: their actions, ``... x N x q``.
        kernel: on actions.
        regularization: ``lambda``, positive; the ridge is ``N lambda``.
        query: actions ``... x m x q``.

    Raises:
        ValueError: if inputs and actions differ in number, there is no pair, or ``regularization`` is not positive.
    """
    _check_pairs(x, a)
    weights = embedding_weights(a, kernel, regularization, query)
    return Measure(x.unsqueeze(-3).expand(*weights.shape, x.shape[-1]), weights)


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
    return torch.einsum("...ij,...jk,...ik->...i", residual, kernel(x).to_dense(), residual).mean(-1)


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


@dataclass(frozen=True)
class ConditionalMeanEmbedding:
    """``p(x | a)`` estimated from pairs: see ``conditional_mean_measure``.

    Args:
        x: inputs, ``N x d``, or ``replicates x N x d`` if each replicate has pairs of its own.
        a: the actions that gave them, ``N x q`` or ``replicates x N x q``.
        lengthscale: of an RBF kernel on actions, in their units: a number, or one a coordinate. Default: the range of
            each coordinate of ``a`` times one of 0.05, 0.1, 0.2, 0.4 and 0.8.
        regularization: ``lambda``, positive. Default one of 1e-6, 1e-5, ..., 1e-2.

    What is left to its default is chosen by ``cross_validate`` on the first replicate's pairs, with a kernel on inputs
    of a fifth of their range; of more than 1,000 pairs, on 1,000 of them, evenly spaced.

    Raises:
        ValueError: if the numbers of pairs differ, or a parameter is not positive.
    """

    x: Tensor
    a: Tensor
    lengthscale: float | Tensor | None = None
    regularization: float | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name in ("x", "a"):
            object.__setattr__(self, name, as_values(name, getattr(self, name), (..., "N >= 1", "d")))
        _check_pairs(self.x, self.a)
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

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The inputs of the pairs with signed weights, for actions ``... x n x q``."""
        length, ridge = self.parameters
        kernel = rbf_kernel(length, 1.0, self.a.dtype).to(self.a)
        return conditional_mean_measure(self.x, self.a, kernel, ridge, actions)


def _range(rows: Tensor) -> Tensor:
    """The range of each column; one where it is constant."""
    reach = rows.amax(0) - rows.amin(0)
    return torch.where(reach > 0, reach, 1.0)


def _check_pairs(x: Tensor, a: Tensor) -> None:
    shapes = f"{tuple(x.shape)} and {tuple(a.shape)}"
    require(x.shape[:-1] == a.shape[:-1], "x and a must hold one input an action", shapes)
