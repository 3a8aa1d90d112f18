"""Slopes of RBF and Matern-5/2 kernels in closed form, of which a fit needs many."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel
from gpytorch.kernels.kernel import sq_dist
from torch import Tensor
from torch.autograd.function import once_differentiable


@contextmanager
def slopes_in_closed_form(kernel: Kernel) -> Iterator[None]:
    """Inside, the parts of a kernel that can be given with slopes in closed form are: a fit needs many of them."""
    closed = {part: factors for part in kernel.modules() if (factors := _factors(part))}
    for part, factors in closed.items():
        part.forward = partial(_closed, part, factors)
    try:
        yield
    finally:
        for part in closed:
            del part.forward


class _Radial(torch.autograd.Function):
    """``exp(-d^2 / 2)`` or ``(1 + r + r^2 / 3) exp(-r)``, ``r = sqrt(5) d``, of distances d of a batch, with slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, matern: bool) -> Tensor:
        square, ctx.pull = sq_dist(x, y), -5 / 3 if matern else -1.0
        if matern:
            r = square.mul_(5).clamp_min_(1e-15).sqrt_()
            decay = (-r).exp_()
            once = r * decay
            decay += once
            value = once.mul_(r).div_(3).add_(decay)
        else:
            value = decay = square.mul_(-0.5).exp_()
        ctx.save_for_backward(x, y, decay)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y, decay = ctx.saved_tensors
        pull = (slope * decay).mul_(ctx.pull)  # times x - y
        return pull.sum(-1).unsqueeze(-1) * x - pull @ y, pull.sum(-2).unsqueeze(-1) * y - pull.mT @ x, None


def _factors(part: Any) -> list[RBFKernel | MaternKernel]:
    """What a kernel is the product of, if ``_closed`` can give it and GPyTorch, which has one coordinate's, can not."""
    factors = list(part.kernels) if type(part) is ProductKernel else [part]
    closed = all(type(factor) is RBFKernel for factor in factors) or (type(part) is MaternKernel and part.nu == 2.5)
    return factors if closed and sum(factor.lengthscale.shape[-1] for factor in factors) > 1 else []


def _closed(part: Kernel, factors: Any, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
    """What a kernel gives, with slopes in closed form in the place of GPyTorch's automatic differentiation."""
    if diag or params.get("last_dim_is_batch"):
        return type(part).forward(part, x1, x2, diag=diag, **params)

    def scaled(inputs: Tensor) -> Tensor:
        inputs = inputs - x1.mean(-2, keepdim=True)
        own = [inputs if k is part or k.active_dims is None else inputs[..., k.active_dims] for k in factors]
        return torch.cat([inputs / k.lengthscale for inputs, k in zip(own, factors, strict=True)], -1)

    x, y = scaled(x1), scaled(x2)
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return _Radial.apply(x.expand(*batch, -1, -1), y.expand(*batch, -1, -1), type(part) is MaternKernel)
