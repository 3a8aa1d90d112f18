"""Kernels of the unit box, in which hyperparameters are fitted, as kernels of the user's box."""

import copy
import math
from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor


class UnitBoxKernel(Kernel):
    """A kernel of the unit box at inputs of another one, of lower corner ``low`` and sides ``side``, ``d`` each."""

    def __init__(self, kernel: Kernel, low: Tensor, side: Tensor) -> None:
        dims: Any = kernel.active_dims  # taken from the inputs here, not once more inside
        super().__init__(batch_shape=kernel.batch_shape, active_dims=dims)
        self.kernel, where = copy.deepcopy(kernel), slice(None) if dims is None else dims
        self.kernel.active_dims = None
        self.register_buffer("low", low[where])
        self.register_buffer("side", side[where])
        self.low: Tensor
        self.side: Tensor

    @property
    def is_stationary(self) -> bool:
        """As that of the unit box."""
        return self.kernel.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """What GPyTorch asks of every kernel; call the kernel itself instead."""
        return to_dense(self.kernel(*((x - self.low) / self.side for x in (x1, x2)), diag=diag, **params))


def in_units(kernel: Kernel, low: Tensor, side: Tensor) -> Kernel:
    """A kernel of the unit box as one of a box of lower corner ``low`` and sides ``side``, ``d`` each.

    Sums, products and scaled kernels are taken apart. RBF and Matern kernels get lengthscales in the units of the box,
    without a prior or a bound; any other part becomes a ``UnitBoxKernel``.
    """
    if isinstance(kernel, ProductKernel | AdditiveKernel):
        return type(kernel)(*(in_units(part, low, side) for part in kernel.kernels))
    dims, batch = kernel.active_dims, {"batch_shape": kernel.batch_shape}
    if isinstance(kernel, ScaleKernel) and (dims is None) == (kernel.base_kernel.active_dims is None):
        scaled = ScaleKernel(in_units(kernel.base_kernel, low, side), **batch).to(side)
        scaled.outputscale = kernel.outputscale.detach()
        return scaled
    if type(kernel) not in (RBFKernel, MaternKernel):
        return UnitBoxKernel(kernel, low, side)
    lengthscale = kernel.lengthscale.detach() * (side if dims is None else side[dims])
    options = {"ard_num_dims": lengthscale.shape[-1], "active_dims": dims, **batch}
    made = (RBFKernel(**options) if type(kernel) is RBFKernel else MaternKernel(nu=kernel.nu, **options)).to(side)
    made.lengthscale = lengthscale
    return made


def lengthscales(kernel: Kernel, replicates: int, side: Tensor) -> Tensor:
    """The lengthscale of every coordinate in the units of the box of sides ``side``, ``replicates x d``.

    NaN where a coordinate has none, or several; those inside a ``UnitBoxKernel`` do not count.
    """
    found, times = side.new_full((replicates, len(side)), math.nan), torch.zeros(len(side))
    of_unit_box = {part for box in kernel.modules() if isinstance(box, UnitBoxKernel) for part in box.modules()}
    for part in kernel.modules():
        if type(part) in (RBFKernel, MaternKernel) and part not in of_unit_box:
            where = list(range(len(side))) if part.active_dims is None else part.active_dims.tolist()
            found[:, where] = part.lengthscale.detach().reshape(replicates, -1)
            times[where] += 1
    return found.masked_fill((times != 1).to(side.device), math.nan)
