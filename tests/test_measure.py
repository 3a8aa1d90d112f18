import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.integrate import nquad

from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance, variance
from tests.oracles import gram, matern52, rbf, sets
from tests.toys import random_measure

F64 = torch.float64


def loop(kernel, a, b):
    """Covariance of every pair of point sets, one pair of points at a time."""
    out = np.zeros((len(a), len(b)))
    for i, (x, w) in enumerate(a):
        for j, (z, v) in enumerate(b):
            for r in range(len(w)):
                for s in range(len(v)):
                    out[i, j] += w[r] * float(kernel(x[[r]], z[[s]])[0, 0]) * v[s]
    return out


def test_expectation_equals_the_loop_over_points(rng):
    m = random_measure(rng, 4, 5, p=3, d=2)
    got = m.expectation(lambda x: torch.sin(x[..., 0]) * x[..., 1])
    for b in range(4):
        for i in range(5):
            expected = sum(
                float(m.weights[b, i, j]) * math.sin(float(m.points[b, i, j, 0])) * float(m.points[b, i, j, 1])
                for j in range(3)
            )
            assert float(got[b, i]) == pytest.approx(expected, abs=1e-9)


def test_dirac_evaluates_at_the_point(rng):
    x = torch.rand(3, 4, 2, generator=rng, dtype=F64)
    m = Measure.dirac(x)
    assert (m.n, m.p, m.dim, m.batch_shape) == (4, 1, 2, (3,))
    assert torch.allclose(m.expectation(lambda p: p[..., 1]), x[..., 1])


def test_average_is_the_arithmetic_mean(rng):
    points = torch.rand(4, 7, 2, generator=rng, dtype=F64)
    got = Measure.average(points).expectation(lambda x: x.prod(-1))
    np.testing.assert_allclose(got, np.prod(points.numpy(), -1).mean(-1), rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_uniform_is_exact_for_polynomials_up_to_its_degree_and_not_beyond(order, dim):
    low, high = np.array([-1.0, 0.5, 2.0])[:dim], np.array([1.5, 0.75, 5.0])[:dim]
    m = Measure.uniform(torch.tensor(np.stack([low, high])[None]), order)
    assert m.p == order**dim

    def mean_of_power(k):  # of sum_i x_i^k over the box
        return sum((h ** (k + 1) - lo ** (k + 1)) / ((k + 1) * (h - lo)) for lo, h in zip(low, high, strict=True))

    for k in range(2 * order):
        assert float(m.expectation(lambda x, k=k: x.pow(k).sum(-1))) == pytest.approx(mean_of_power(k), rel=1e-9)
    beyond = float(m.expectation(lambda x: x.pow(2 * order).sum(-1)))
    assert abs(beyond - mean_of_power(2 * order)) > 1e-8 * abs(mean_of_power(2 * order))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_uniform_agrees_with_adaptive_quadrature(dim):
    low, high = [0.1, -1.0, 0.3][:dim], [0.9, 0.5, 1.3][:dim]
    total, _ = nquad(lambda *x: math.exp(-x[0]) * math.cos(sum(x)), list(zip(low, high, strict=True)))
    volume = math.prod(h - lo for lo, h in zip(low, high, strict=True))
    m = Measure.uniform(torch.tensor([[low, high]], dtype=F64), 10)
    got = m.expectation(lambda x: torch.exp(-x[..., 0]) * torch.cos(x.sum(-1)))
    assert float(got) == pytest.approx(total / volume, abs=1e-10)


def test_points_weights_and_their_order_survive_selection(rng):
    m = random_measure(rng, 2, 6)
    for index in (slice(1, 4), torch.tensor([5, 0, 0]), [2, 3]):
        chosen = m[index]
        assert torch.equal(chosen.points, m.points[:, index])
        assert torch.equal(chosen.weights, m.weights[:, index])


def test_cat_pads_without_effect(rng):
    parts = [random_measure(rng, 2, p=1), random_measure(rng, 3, p=4), random_measure(rng, 1, p=2)]
    joined, kernel = Measure.cat(parts), rbf_kernel(0.4)
    assert (joined.n, joined.p) == (6, 4)
    expected = torch.cat([m.expectation(lambda x: x.square().sum(-1)) for m in parts])
    torch.testing.assert_close(joined.expectation(lambda x: x.square().sum(-1)), expected, rtol=1e-9, atol=1e-9)
    unpadded = [s for m in parts for s in sets(m)]
    dense = gram(lambda x, z: rbf(x, z, 0.4), unpadded, unpadded)
    np.testing.assert_allclose(covariance(kernel, joined, joined), dense, atol=1e-9)
    np.testing.assert_allclose(variance(kernel, joined), np.diag(dense), atol=1e-9)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("name", ["rbf", "matern"])
def test_covariance_equals_the_double_loop(rng, p, q, name):
    a, b = random_measure(rng, 4, p=p), random_measure(rng, 5, p=q)
    lengthscale = [0.3, 0.7]
    base, oracle = (
        (RBFKernel(ard_num_dims=2), rbf) if name == "rbf" else (MaternKernel(nu=2.5, ard_num_dims=2), matern52)
    )
    kernel = ScaleKernel(base).to(F64)
    kernel.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=F64)
    kernel.outputscale = 1.7

    def k(x, z):
        return oracle(x, z, lengthscale, 1.7)

    np.testing.assert_allclose(covariance(kernel, a, b).detach(), loop(k, sets(a), sets(b)), atol=1e-9)
    np.testing.assert_allclose(variance(kernel, a).detach(), np.diag(loop(k, sets(a), sets(a))), atol=1e-9)


# Equal sizes on purpose: a dimension taken for another one would go unseen by the shapes.


def test_gradients_reach_points_and_weights(rng):
    m = random_measure(rng, 3)
    points, weights = m.points.clone().requires_grad_(), m.weights.clone().requires_grad_()
    other = random_measure(rng, 2)
    kernel = rbf_kernel(0.6)
    assert torch.autograd.gradcheck(
        lambda x, w: covariance(kernel, Measure(x, w), other), (points, weights), nondet_tol=1e-9
    )
    assert torch.autograd.gradcheck(lambda x, w: variance(kernel, Measure(x, w)), (points, weights), nondet_tol=1e-9)
