"""Kernels with fixed hyperparameters, and kernels that GPyTorch does not have."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from gpytorch import settings
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor

from cbo_lib.checks import as_number, as_option, as_values, require

#: A number, or one a dimension.
Lengthscale = float | Sequence[float] | Tensor


def rbf_kernel(lengthscale: Lengthscale, variance: float = 1.0, dtype: torch.dtype = torch.float64) -> ScaleKernel:
    """A squared exponential kernel with fixed hyperparameters: ``variance * exp(-r^2 / 2)``.

    ``r`` is the Euclidean distance after every coordinate is divided by its lengthscale.

    Args:
        lengthscale: positive, in the units of the inputs: a number, or one a dimension.
        variance: positive, the prior variance of f at a point.
        dtype: of the hyperparameters; it must be that of the points.

    Raises:
        ValueError: if ``lengthscale`` or ``variance`` is no positive finite number.
    """
    return _scaled(RBFKernel, lengthscale, variance, dtype)


def matern_kernel(
    lengthscale: Lengthscale, variance: float = 1.0, nu: float = 2.5, dtype: torch.dtype = torch.float64
) -> ScaleKernel:
    """A Matern kernel with fixed hyperparameters, rougher than ``rbf_kernel``, whose other arguments and errors it has.

    The smoothness ``nu`` is 0.5, 1.5 or 2.5, else a ValueError: draws have derivatives up to the order below it.
    """
    return _scaled(partial(MaternKernel, as_option("nu", nu, 0.5, 1.5, 2.5)), lengthscale, variance, dtype)


def _scaled(base: Callable[..., Kernel], lengthscale: Lengthscale, variance: float, dtype: torch.dtype) -> ScaleKernel:
    """``variance`` times a base kernel of given lengthscales, without gradients."""
    lengths = as_values("lengthscale", lengthscale, None, 0, ends="()").to(dtype)
    require(lengths.dim() <= 1 and lengths.numel(), "lengthscale must be a number, or one a dimension", lengths.shape)
    scale = torch.as_tensor(as_number("variance", variance, 0, ends="()"), dtype=dtype)
    kernel = ScaleKernel(base(ard_num_dims=len(lengths) if lengths.dim() else None)).to(dtype=dtype)
    kernel.base_kernel.lengthscale, kernel.outputscale = lengths, scale
    return kernel.requires_grad_(False)


def matrix(kernel: Kernel, x: Tensor, y: Tensor | None = None) -> Tensor:
    """The matrix of a kernel, made at once: a lazy one would take as long again for the bookkeeping of a small one."""
    with settings.lazily_evaluate_kernels(False):
        return to_dense(kernel(x, y))


def member(kernel: Kernel, index: int) -> Kernel:
    """One element of the leading batch dimension of a kernel, as a copy without that dimension.

    GPyTorch's own indexing fails where ``active_dims`` are set.
    """
    dims, kernel = len(kernel.batch_shape), copy.deepcopy(kernel)
    for part in kernel.modules():
        if isinstance(part, Kernel) and len(part._batch_shape) == dims:
            place = index if part._batch_shape[0] > 1 else 0
            for parameter in part.parameters(recurse=False):
                parameter.data = parameter.data[place]
            part.batch_shape = part._batch_shape[1:]
    return kernel


class StackedKernel(Kernel):
    """Kernels of any structure as one batched kernel, so that a list of candidate priors runs as one batch.

    A batched GPyTorch kernel ([Gardner2018]) is one formula with a batch of hyperparameters. Here every member may be
    a formula of its own. They are evaluated in a loop; everything after the kernel matrix is batched.

    The matrix of inputs ``B1 x n x d`` and ``B2 x m x d`` is ``B x n x m`` with ``B`` the broadcast of ``B1``, ``B2``
    and ``(U,)``; member ``u`` sees the part ``[..., u, :, :]`` of the inputs and gives that of the matrix.

    Args:
        kernels: ``U >= 1`` GPyTorch kernels without batch dimensions. They are held, not copied.

    Raises:
        ValueError: if there is no kernel or one has batch dimensions.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        require(len(kernels) > 0, "kernels must hold at least one kernel", "none")
        for u, kernel in enumerate(kernels):
            require(isinstance(kernel, Kernel), "kernels must be GPyTorch kernels", kernel)
            shape = tuple(kernel.batch_shape)
            require(not shape, "kernels must have no batch dimensions", f"batch shape {shape} at index {u}")
        super().__init__(batch_shape=torch.Size([len(kernels)]))
        self.kernels = torch.nn.ModuleList(kernels)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """What GPyTorch asks of every kernel; call the kernel itself instead."""
        count = len(self.kernels)
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2], self.batch_shape)
        size = x1.shape[-2:-1] if diag else torch.Size([x1.shape[-2], x2.shape[-2]])
        if count == 1:  # one member sees a whole batch of inputs
            return to_dense(self.kernels[0](x1, x2, diag=diag, **params)).expand(*batch, *size)
        matrices = [
            to_dense(kernel(_part(x1, u), _part(x2, u), diag=diag, **params)).expand(*batch[:-1], *size)
            for u, kernel in enumerate(self.kernels)
        ]
        return torch.stack(matrices, len(batch) - 1)


def _part(x: Tensor, u: int) -> Tensor:
    """What member ``u`` sees: its own part of the last batch dimension, or the one part that all share."""
    return x if x.dim() < 3 else x[..., 0 if x.shape[-3] == 1 else u, :, :]


class TabulatedKernel(Kernel):
    """A kernel on a finite set, given by its symmetric matrix ``gram``, ``n x n``; inputs are indices.

    With it the covariances of measures that are expensive to compute are computed once and looked up afterwards.

    Raises:
        ValueError: if the matrix is not square, or not symmetric to rounding.
    """

    def __init__(self, gram: Tensor) -> None:
        gram = as_values("gram", gram, ("n >= 1", "n >= 1"))
        require(torch.allclose(gram, gram.mT, rtol=1e-6, atol=1e-8), "gram must be symmetric", gram)
        super().__init__()
        self.register_buffer("gram", gram)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """What GPyTorch asks of every kernel; call the kernel itself instead."""
        i, j = x1[..., 0].long(), x2[..., 0].long()
        return self.gram[i, j] if diag else self.gram[i.unsqueeze(-1), j.unsqueeze(-2)]


class GaussianMeasureKernel(Kernel):
    """Covariances of Gaussian averages of a function with an RBF kernel, in closed form.

    The inputs are Gaussian measures ``N(x, s^2 I)`` as points ``(x_1, ..., x_d, s)``; ``s = 0`` is the point ``x``.
    With ``k(x, x') = v exp(-|x - x'|^2 / (2 l^2))``,
    ``E k(X, X') = v (l^2 / c)^{d/2} exp(-|x - x'|^2 / (2 c))`` and ``c = l^2 + s^2 + s'^2``.

    Args:
        lengthscale: ``l``, positive.
        variance: ``v``, positive. Default 1.

    Raises:
        ValueError: if a parameter is not positive.
    """

    def __init__(self, lengthscale: float, variance: float = 1.0) -> None:
        super().__init__()
        self.length = as_number("lengthscale", lengthscale, 0, ends="()")
        self.variance = as_number("variance", variance, 0, ends="()")

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """What GPyTorch asks of every kernel; call the kernel itself instead."""
        if not diag:
            x1, x2 = x1.unsqueeze(-2), x2.unsqueeze(-3)
        (a, s), (b, t) = (x.split([x.shape[-1] - 1, 1], -1) for x in (x1, x2))
        squared = (a - b).square().sum(-1)
        width = self.length**2 + (s.square() + t.square()).squeeze(-1)
        return self.variance * (self.length**2 / width) ** (a.shape[-1] / 2) * (-squared / (2 * width)).exp()
