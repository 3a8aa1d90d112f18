import numpy as np
import pytest
import torch

from book.aggregated.problems import aggregated_reward_curve
from book.functions import posterior_mean_function, rkhs_samples
from cbo_lib.kernels import rbf_kernel
from tests.oracles import matern52, rbf

F64 = torch.float64

# The points of the appendix, typed in again: name -> (points, lengthscale).
CENTERS = [0.045, 0.135, 0.225, 0.315, 0.405, 0.495, 0.585, 0.675, 0.765, 0.855]
RIPPLE = [(c, 0.1) for c in CENTERS] + [(c + 0.06, 0.2) for c in CENTERS]
CURVES = {
    "peaks": ([(0.05, 0.85), (0.2, 0.1), (0.4, 0.87), (0.65, 0.05), (0.9, 0.98)], 0.05),
    "periodic": ([*RIPPLE, (0.95, 0.9)], 0.05),
    "spike": ([*RIPPLE, (0.95, 0.9), (0.94, 0.1), (0.945, 0.2)], 0.01),
}


def posterior_mean(points, kernel, noise, at):
    x, y = np.array(points).T
    dense = kernel(x[:, None], x[:, None]) + noise**2 * np.eye(len(x))
    return kernel(np.asarray(at)[:, None], x[:, None]) @ np.linalg.solve(dense, y)


@pytest.mark.parametrize("name", CURVES)
def test_curves_are_the_posterior_means_of_the_listed_points(name):
    points, lengthscale = CURVES[name]
    at = np.linspace(0, 1, 501)
    expected = posterior_mean(points, lambda x, z: rbf(x, z, lengthscale, 0.1), 0.005, at)
    got = aggregated_reward_curve(name)(torch.tensor(at).unsqueeze(-1))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", CURVES)
def test_curves_pass_close_to_the_listed_points(name):
    x, y = np.array(CURVES[name][0]).T
    np.testing.assert_allclose(aggregated_reward_curve(name)(torch.tensor(x).unsqueeze(-1)), y, atol=0.02)


def test_any_kernel_and_dimension_will_do(rng):
    from gpytorch.kernels import MaternKernel

    kernel = MaternKernel(2.5).to(F64).requires_grad_(False)
    kernel.lengthscale = 0.4
    x, y = torch.rand(6, 3, generator=rng, dtype=F64), torch.randn(6, generator=rng, dtype=F64)
    at = torch.rand(7, 3, generator=rng, dtype=F64)
    dense = matern52(x, x, 0.4) + 0.01 * np.eye(6)
    expected = matern52(at, x, 0.4) @ np.linalg.solve(dense, y.numpy())
    np.testing.assert_allclose(posterior_mean_function(kernel, x, y, 0.1)(at), expected, atol=1e-9)


@pytest.mark.parametrize("norm", [0.0, 0.5, 2.0])
def test_functions_of_a_given_norm_have_it(norm):
    bounds = torch.tensor([[0.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    kernel = rbf_kernel(0.3)
    f = rkhs_samples(kernel, bounds, norm, range(4), centers=6)
    # The norm of the interpolant of values on a set that holds the centers is that of the function.
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 7, dtype=torch.float64)] * 2)
    where = torch.lerp(bounds[0], bounds[1], grid)
    values = f(where.expand(4, -1, -1))
    assert values.shape == (4, 49)
    gram = kernel(where).to_dense() + 1e-10 * torch.eye(49, dtype=torch.float64)
    squared = torch.einsum("ri,ri->r", values, torch.linalg.solve(gram, values.mT).mT)
    assert bool((squared <= norm**2 + 1e-6).all())  # a projection, so at most the norm
    assert bool((squared >= 0.9 * norm**2).all())
    alone = rkhs_samples(kernel, bounds, norm, [2], centers=6)
    torch.testing.assert_close(alone(where[None]), values[2:3])
