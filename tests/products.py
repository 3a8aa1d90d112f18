"""Kernels that are products over coordinates, each also by hand, and posteriors of them; the textbook's formula."""

import math

import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, ProductKernel, RBFKernel, ScaleKernel

from cbo_lib.former.partial import PartialPosterior, PointwisePosterior
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.toys import normal

F64 = torch.float64


def mask(*controlled):
    return torch.tensor(controlled, dtype=torch.bool)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=F64)


def scaled_distance(x, y, lengthscale):
    gap = (x[:, None, :] - y[None, :, :]) / torch.as_tensor(lengthscale, dtype=x.dtype)
    return gap.square().sum(-1).sqrt()


def gauss(x, y, lengthscale):
    return (-0.5 * scaled_distance(x, y, lengthscale) ** 2).exp()


def matern(x, y, lengthscale):
    r = math.sqrt(5) * scaled_distance(x, y, lengthscale)
    return (1 + r + r**2 / 3) * (-r).exp()


def rbf(lengthscale, **options):
    lengthscale = torch.as_tensor(lengthscale, dtype=F64)
    kernel = RBFKernel(ard_num_dims=lengthscale.numel() if lengthscale.dim() else None, **options).to(F64)
    kernel.lengthscale = lengthscale
    return kernel


def scaled(kernel, outputscale):
    kernel = ScaleKernel(kernel).to(F64)
    kernel.outputscale = torch.tensor(outputscale, dtype=F64)
    return kernel


def with_lengthscale(kernel, lengthscale):
    kernel = kernel.to(F64)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=F64)
    return kernel


def fixed(kernel):
    return kernel.requires_grad_(False)


def matern_on(dims, lengthscale):
    return with_lengthscale(MaternKernel(2.5, active_dims=dims), lengthscale)


def periodic():
    kernel = with_lengthscale(PeriodicKernel(active_dims=[2]), 0.9)
    kernel.period_length = torch.tensor(0.7, dtype=F64)
    return kernel


def mixed(x, y):
    return gauss(x[:, :2], y[:, :2], [0.4, 0.7]) * matern(x[:, 2:], y[:, 2:], 0.6)


# name: (the kernel, the same by hand)
KERNELS = {
    "scaled": (lambda: scaled(rbf(0.5), 1.7), lambda x, y: 1.7 * gauss(x, y, 0.5)),
    "a lengthscale each": (
        lambda: scaled(rbf([0.3, 0.6, 1.1]), 0.8),
        lambda x, y: 0.8 * gauss(x, y, [0.3, 0.6, 1.1]),
    ),
    "RBF times Matern": (lambda: ProductKernel(rbf([0.4, 0.7], active_dims=[0, 1]), matern_on([2], 0.6)), mixed),
    "scaled on one coordinate, set by hand": (
        lambda: ProductKernel(rbf(0.5), on_coordinate(1, rbf(0.9), 0.6)),
        lambda x, y: 0.6 * gauss(x, y, 0.5) * gauss(x[:, 1:2], y[:, 1:2], 0.9),
    ),
    "periodic": (
        lambda: ProductKernel(rbf([0.4, 0.7], active_dims=[0, 1]), periodic()),
        lambda x, y: (
            gauss(x[:, :2], y[:, :2], [0.4, 0.7])
            * (-2 * (math.pi * (x[:, None, 2] - y[None, :, 2]) / 0.7).sin().square() / 0.9).exp()
        ),
    ),
}


def on_coordinate(i, base, outputscale):
    """A scaled kernel that has active_dims where its base has none."""
    kernel = ScaleKernel(base, active_dims=[i]).to(F64)
    kernel.outputscale = torch.tensor(outputscale, dtype=F64)
    return kernel


def textbook(k, observed, y, noise_std, points, mean=0.0):
    """Mean and variance at points, from the whole matrix and a plain linear solve."""
    matrix = k(observed, observed) + torch.diag_embed(torch.as_tensor(noise_std, dtype=F64).expand(len(y)).square())
    cross = k(observed, points)
    variance = k(points[:1], points[:1]) - (cross * torch.linalg.solve(matrix, cross)).sum(0)
    return mean + cross.mT @ torch.linalg.solve(matrix, y - mean), variance.squeeze(0)


def pairs(x, contexts, controlled):
    return torch.where(controlled, x.unsqueeze(-2), contexts.unsqueeze(-3)).flatten(-3, -2)


def expected(k, observed, y, noise_std, x, contexts, controlled, mean=0.0):
    """``n x M`` means and variances."""
    moments = textbook(k, observed, y, noise_std, pairs(x, contexts, controlled), mean)
    return tuple(part.reshape(len(x), len(contexts)) for part in moments)


def close(actual, wanted, tolerance=1e-9):
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def given_points(rng, t=30, *batch, kernel=None, noise_std=0.1, mean=0.0, d=3):
    observed, y = uniform(rng, *batch, t, d), normal(rng, *batch, t)
    process = GaussianProcess(fixed(kernel or rbf_kernel(0.5, 1.3)), noise_std, mean)
    return process.condition(Measure.dirac(observed), y), observed, y


def batched_kernel(lengthscales, outputscales, nu=None):
    """One kernel a replicate: a lengthscale for each coordinate, or a product with a Matern on the last."""
    batch = outputscales.shape
    options = {"batch_shape": batch, "ard_num_dims": 3 if nu is None else 2}
    base = RBFKernel(**options, active_dims=None if nu is None else [0, 1]).to(F64)
    base.lengthscale = lengthscales[..., : options["ard_num_dims"]].unsqueeze(-2)
    if nu is not None:
        other = MaternKernel(nu, batch_shape=batch, active_dims=[2]).to(F64)
        other.lengthscale = lengthscales[..., 2:].unsqueeze(-2)
        base = ProductKernel(base, other)
    kernel = ScaleKernel(base, batch_shape=batch).to(F64)
    kernel.outputscale = outputscales
    return fixed(kernel)


def own_kernel(lengthscale, outputscale, nu=None):
    if nu is None:
        return lambda a, b: outputscale * gauss(a, b, lengthscale)
    return lambda a, b: (
        outputscale * gauss(a[:, :2], b[:, :2], lengthscale[:2]) * matern(a[:, 2:], b[:, 2:], lengthscale[2])
    )


def pointwise_ucb(model, x, contexts, controlled, sqrt_beta):
    return PointwisePosterior(model, contexts, controlled).ucb(x, sqrt_beta)


def expected_ucb(posterior, x, contexts, controlled, sqrt_beta):
    return PartialPosterior(posterior, contexts, controlled).expected_ucb(x, sqrt_beta)
