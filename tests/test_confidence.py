import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from book.hyperparameters.widths import lipschitz_sqrt_beta, rkhs_sqrt_beta
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.toys import grid, normal

F64 = torch.float64


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize("failure", [0.01, 0.5, 0.99])
def test_tails_of_all_rounds_sum_to_less_than_the_failure(count, failure):
    spent = sum(2 * count * norm.sf(union_bound_sqrt_beta(count, t, failure)) for t in range(1, 5000))
    assert 0 < spent <= failure


def test_intervals_hold_as_often_as_they_promise():
    count, rounds, replicates, failure = 5, 40, 4000, 0.6
    z = np.random.default_rng(1).standard_normal((replicates, rounds, count))
    widths = np.array([union_bound_sqrt_beta(count, t, failure) for t in range(1, rounds + 1)])
    failed = (np.abs(z) > widths[:, None]).any((1, 2)).mean()
    assert 0 < failed <= failure
    shared = np.array([union_bound_sqrt_beta(1, 1, failure)] * rounds)
    assert (np.abs(z) > shared[:, None]).any((1, 2)).mean() > failure  # a width that ignores the union does not


def test_width_is_the_stated_formula():
    assert union_bound_sqrt_beta(10, 3, 0.1) == pytest.approx(math.sqrt(2 * math.log(10 * math.pi**2 * 9 / 0.6)))


NOISE, REPLICATES = 0.1, 200


def element_of_the_space(rng, bound):
    """Values on the grid of one random function a replicate, a sum of kernels whose norm is exactly the bound."""
    x = grid(40)
    dense = rbf_kernel(0.1)(x, x).to_dense()
    weights = normal(rng, REPLICATES, 40)
    size = torch.einsum("ri,ij,rj->r", weights, dense, weights).sqrt()
    return bound / size.unsqueeze(-1) * (weights @ dense)


def ever_outside(rng, f, multiplier, adaptive):
    """Whether the interval of a replicate ever misses f at a point of the grid; the posterior knows the noise."""
    posterior, every = GaussianProcess(rbf_kernel(0.1), NOISE).posterior(REPLICATES), Measure.dirac(grid(40))
    gain, outside = torch.zeros(REPLICATES, dtype=F64), torch.zeros(REPLICATES, dtype=torch.bool)
    for _ in range(31):
        mean, variance = posterior.mean_and_variance(every)
        width = multiplier(gain).unsqueeze(-1) * variance.sqrt()
        outside |= ((f - mean).abs() > width).any(-1)
        index = (mean + width).argmax(-1) if adaptive else torch.randint(40, (REPLICATES,), generator=rng)
        there = index.unsqueeze(-1)
        gain = gain + 0.5 * torch.log1p(variance.gather(-1, there).squeeze(-1) / NOISE**2)
        y = f.gather(-1, there) + NOISE * normal(rng, REPLICATES, 1)
        posterior = posterior.extend(Measure.dirac(grid(40)[there]), y)
    return outside.double().mean()


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("bound", [0.1, 2.0])
def test_intervals_hold_for_functions_of_bounded_norm(rng, bound, adaptive):
    f = element_of_the_space(rng, bound)
    assert ever_outside(rng, f, lambda gain: rkhs_sqrt_beta(bound, gain, 0.1, NOISE, NOISE**2), adaptive) <= 0.1
    # The prior's part of the width is needed: without it even the first interval, before any observation, fails.
    assert ever_outside(rng, f, lambda gain: 0.1 * bound + 0 * gain, adaptive) > 0.99


def test_the_multiplier_of_another_regularization_fails(rng):
    """B + R sqrt(2 (gain + 1 + log(1 / failure))) belongs to a posterior with noise variance 1 + 2 / T, not R^2."""
    f = torch.zeros(REPLICATES, 40, dtype=F64)
    mixed = ever_outside(rng, f, lambda gain: 0.1 + NOISE * (2 * (gain + 1 + math.log(10))).sqrt(), adaptive=False)
    right = ever_outside(rng, f, lambda gain: rkhs_sqrt_beta(0.1, gain, 0.1, NOISE, NOISE**2), adaptive=False)
    assert mixed > 0.5 and right <= 0.1


@pytest.mark.parametrize(("noise", "regularization"), [(1.0, 1.0), (0.1, 0.01), (0.1, 1.02), (0.0, 0.3)])
def test_rkhs_multiplier_is_the_stated_formula(noise, regularization):
    gains = [[0.0, 0.7, 2.0], [10.0, 1e3, 0.1]]
    expected = [[2 + noise / regularization**0.5 * math.sqrt(2 * (g - math.log(0.05))) for g in row] for row in gains]
    got = rkhs_sqrt_beta(2.0, torch.tensor(gains, dtype=F64), 0.05, noise, regularization)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
    one = rkhs_sqrt_beta(2.0, 0.7, 0.05, noise, regularization)
    assert isinstance(one, float) and one == pytest.approx(expected[0][1], rel=1e-9)
    assert rkhs_sqrt_beta(2.0, 0.7, 0.05) == rkhs_sqrt_beta(2.0, 0.7, 0.05, 1.0, 1.0)


@pytest.mark.parametrize("t", [1, 2, 50])
@pytest.mark.parametrize(("dim", "a", "b", "side", "failure"), [(1, 1.0, 5.0, 1.0, 0.1), (3, 0.4, 2.0, 10.0, 0.9)])
def test_lipschitz_multiplier_is_the_stated_formula(t, dim, a, b, side, failure):
    """beta_t as it is printed in Theorem 2."""
    beta = 2 * math.log(t**2 * 2 * math.pi**2 / (3 * failure)) + 2 * dim * math.log(
        t**2 * dim * b * side * math.sqrt(math.log(4 * dim * a / failure))
    )
    assert lipschitz_sqrt_beta(t, dim, a, b, side, failure) == pytest.approx(math.sqrt(beta), rel=1e-9)
