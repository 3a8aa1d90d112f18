import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import (
    GaussianMeasureKernel,
    StackedKernel,
    TabulatedKernel,
    matern_kernel,
    rbf_kernel,
)
from cbo_lib.measure import Measure, covariance, variance
from tests.oracles import condition, matern52, rbf, sets
from tests.toys import normal, random_measure

F64 = torch.float64


def test_rbf_kernel_is_the_squared_exponential(rng):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    for lengthscale in (0.4, 2, [10.0, 8.0], torch.tensor([0.3, 0.7]), np.array([0.2])):
        kernel = rbf_kernel(lengthscale, 1.3)
        np.testing.assert_allclose(kernel(x, x).to_dense(), rbf(x, x, lengthscale, 1.3), atol=1e-7)
        assert not any(parameter.requires_grad for parameter in kernel.parameters())
    np.testing.assert_allclose(rbf_kernel(0.4, 1.3)(x, x).to_dense(), rbf(x, x, 0.4, 1.3), atol=1e-9)


@pytest.mark.parametrize("lengthscale", [0.4, [0.3, 0.7]])
def test_matern_kernel_is_that_of_its_smoothness(rng, lengthscale):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    r = np.sqrt(-2 * np.log(rbf(x, x, lengthscale)))  # the scaled distance
    for nu, expected in (
        (0.5, 1.3 * np.exp(-r)),
        (1.5, 1.3 * (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r)),
        (2.5, matern52(x, x, lengthscale, 1.3)),
    ):
        kernel = matern_kernel(lengthscale, 1.3, nu)
        np.testing.assert_allclose(kernel(x, x).to_dense(), expected, atol=1e-7)
        assert not any(parameter.requires_grad for parameter in kernel.parameters())
    assert matern_kernel(0.4).base_kernel.nu == 2.5
    assert matern_kernel(lengthscale, dtype=torch.float32)(x.float()).to_dense().dtype == torch.float32


def members():
    """Different in structure; some have gradients."""
    smooth, rough = RBFKernel(active_dims=[0]).to(F64), MaternKernel(2.5, active_dims=[1]).to(F64)
    sine = PeriodicKernel(active_dims=[1]).to(F64)
    smooth.lengthscale, rough.lengthscale, sine.lengthscale, sine.period_length = 0.3, 0.6, 0.8, 0.7
    return [
        rbf_kernel(0.4, 1.3),
        (ScaleKernel(smooth) + ScaleKernel(rough)).to(F64).requires_grad_(False),
        ScaleKernel(RBFKernel(active_dims=[0]) * sine).to(F64),
        (RBFKernel(ard_num_dims=2) + LinearKernel()).to(F64),
    ]


def part(x, u):
    return x if x.dim() == 2 else x[..., u if x.shape[-3] == 4 else 0, :, :]


def test_members_follow_their_textbook_formulas(rng):
    x, z = torch.rand(5, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    kernels = members()
    scales = [float(kernel.outputscale) for kernel in kernels[1].kernels]
    got = StackedKernel(kernels)(x, z).to_dense().detach()
    a, b = x.numpy(), z.numpy()
    additive = rbf(a[:, :1], b[:, :1], 0.3, scales[0]) + matern52(a[:, 1:], b[:, 1:], 0.6, scales[1])
    np.testing.assert_allclose(got[0], rbf(a, b, 0.4, 1.3), atol=1e-9)
    np.testing.assert_allclose(got[1], additive, atol=1e-9)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (4,)])
@pytest.mark.parametrize("p", [1, 3])
def test_sums_over_measures_equal_those_of_the_members(rng, shape, p):
    kernels = members()
    stacked = StackedKernel(kernels)
    a, b = random_measure(rng, *shape, 5, p=p), random_measure(rng, 4, p=p)
    for u, kernel in enumerate(kernels):
        at, index = a, u if 4 in shape else 0
        if shape:
            at = Measure(a.points[..., index, :, :, :], a.weights[..., index, :, :])
        torch.testing.assert_close(
            covariance(stacked, a, b)[..., u, :, :], covariance(kernel, at, b), rtol=0, atol=1e-9
        )
        torch.testing.assert_close(variance(stacked, a)[..., u, :], variance(kernel, at), rtol=0, atol=1e-7)


def test_a_posterior_equals_the_textbook_formula(rng):
    observed, y, queries = random_measure(rng, 4), normal(rng, 4), random_measure(rng, 3)
    rough = MaternKernel(2.5).to(F64)
    rough.lengthscale = 0.5
    posterior = GaussianProcess(StackedKernel([rbf_kernel(0.4, 1.3), rough]), 0.2).condition(observed, y)
    formulas = [lambda x, z: rbf(x, z, 0.4, 1.3), lambda x, z: matern52(x, z, 0.5)]
    for u, formula in enumerate(formulas):
        mean, joint = condition(formula, sets(observed), y.numpy(), 0.2, sets(queries))
        np.testing.assert_allclose(posterior.mean(queries)[u].detach(), mean, atol=1e-9)
        np.testing.assert_allclose(posterior.covariance(queries, queries)[u].detach(), joint, atol=1e-9)


def table(rng, n=6):
    """Covariances of a finite set."""
    root = torch.randn(n, n, generator=rng, dtype=F64)
    return root @ root.mT + 0.1 * torch.eye(n, dtype=F64)


def indices(*values):
    return torch.tensor(values, dtype=F64)[:, None]


def test_a_table_is_looked_up(rng):
    gram = table(rng)
    kernel = TabulatedKernel(gram)
    x, z = indices(4, 0, 0, 5), indices(2, 4, 1)
    i, j = [4, 0, 0, 5], [2, 4, 1]
    assert torch.equal(kernel(x, z).to_dense(), gram[i, :][:, j])
    assert torch.equal(kernel(x).to_dense(), gram[i, :][:, i])
    assert torch.equal(kernel(x, diag=True), gram[i, i])


def test_sums_over_a_table_are_weighted_sums(rng):
    gram = table(rng)
    kernel = TabulatedKernel(gram)
    points = torch.randint(6, (4, 2, 1), generator=rng).to(F64)
    a = Measure(points, torch.randn(4, 2, generator=rng, dtype=F64))
    spread = torch.zeros(4, 6, dtype=F64)
    for i, j in np.ndindex(4, 2):
        spread[i, int(points[i, j])] += a.weights[i, j]
    expected = spread @ gram @ spread.mT
    torch.testing.assert_close(covariance(kernel, a, a), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(variance(kernel, a), expected.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (torch.zeros(3), r"gram must have shape \(n, n\) with n >= 1, got \(3,\)"),
        (torch.zeros(2, 3), r"gram must have shape \(n, n\) with n >= 1, got \(2, 3\)"),
        (torch.zeros(0, 0), r"gram must have shape \(n, n\) with n >= 1, got \(0, 0\)"),
        (torch.tensor([[1.0, 0.5], [0.4, 1.0]]), "gram must be symmetric, got"),
        (torch.tensor([[1.0, np.nan], [np.nan, 1.0]]), "gram must be finite, got nan"),
    ],
)
def test_a_table_that_is_no_covariance_is_refused(gram, message):
    with pytest.raises(ValueError, match=message):
        TabulatedKernel(gram)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_covariances_of_normal_averages_are_those_of_their_quadrature(rng, dim):
    length, scale = 0.4, 1.3
    nodes, weights = np.polynomial.hermite_e.hermegauss(24 if dim < 3 else 14)
    grid = torch.cartesian_prod(*[torch.from_numpy(nodes)] * dim).reshape(-1, dim)
    mass = torch.cartesian_prod(*[torch.from_numpy(weights / weights.sum())] * dim).reshape(-1, dim).prod(-1)
    inputs = torch.cat([torch.rand(3, dim, generator=rng, dtype=F64), torch.tensor([[0.0], [0.15], [0.3]])], -1)
    points = inputs[:, None, :dim] + inputs[:, None, dim:] * grid
    averages = Measure(points, mass.expand(points.shape[:-1]))
    got = GaussianMeasureKernel(length, scale)(inputs).to_dense()
    torch.testing.assert_close(got, covariance(rbf_kernel(length, scale), averages, averages), rtol=0, atol=1e-6)


def test_covariances_of_normal_averages_are_those_of_draws(rng):
    (x, s), (z, t), count = ([0.2, 0.5], 0.3), ([0.6, 0.1], 0.15), 400000
    draws = torch.randn(2, count, 2, generator=rng, dtype=F64)
    drawn = (-((torch.tensor(x) + s * draws[0] - torch.tensor(z) - t * draws[1]) ** 2).sum(-1) / (2 * 0.4**2)).exp()
    inputs = torch.tensor([[*x, s], [*z, t]], dtype=F64)
    got = GaussianMeasureKernel(0.4)(inputs).to_dense()[0, 1]
    assert float(got) == pytest.approx(float(drawn.mean()), abs=4.5 * float(drawn.std()) / count**0.5)


def test_averages_without_width_are_points(rng):
    x, z = torch.rand(5, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    points = [torch.cat([part, torch.zeros(len(part), 1, dtype=F64)], -1) for part in (x, z)]
    got = GaussianMeasureKernel(0.4, 1.3)(*points).to_dense()
    np.testing.assert_allclose(got, rbf(x, z, 0.4, 1.3), atol=1e-9)


def test_a_kernel_of_averages_is_positive_and_has_gradients(rng):
    kernel = GaussianMeasureKernel(0.4)
    x = torch.rand(30, 3, generator=rng, dtype=F64)
    assert float(torch.linalg.eigvalsh(kernel(x).to_dense()).min()) > -1e-9
    assert torch.autograd.gradcheck(
        lambda a: kernel(a, x[:2]).to_dense(), x[2:4].clone().requires_grad_(), nondet_tol=1e-9
    )
