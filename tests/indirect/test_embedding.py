"""The conditional mean process against Eqs. 2, 3, 11 and 12 written directly."""

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad

from book.indirect.problems import FinitePolicies, draw_data, known_prior, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    ClippedGaussian,
    UniformWindow,
    conditional_mean_measure,
)
from cbo_lib.indirect.embedding import cross_validate, embedding_loss, embedding_weights
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.indirect import plain
from tests.indirect.helpers import (
    F64,
    SEEDS,
    UNIT,
    cosine_map,
    estimated_prior,
    problem_of,
    ripple,
    square,
)

LENGTH, ACTION_LENGTH, RIDGE = 0.3, 0.25, 1e-3


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=F64)


@pytest.fixture
def data(rng):
    """Thirty pairs, and five actions to predict for."""
    a = uniform(rng, 30, 2)
    return cosine_map(a) + 0.05 * torch.randn(30, 2, generator=rng, dtype=F64), a, uniform(rng, 5, 2)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
def test_weights_are_those_of_equation_12(data, ridge):
    _, a, query = data
    got = embedding_weights(a, rbf_kernel(ACTION_LENGTH), ridge, query)
    expected = plain.ridge_weights(a.numpy(), query.numpy(), ACTION_LENGTH, ridge)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(got.sum(-1), expected.sum(-1), atol=1e-8)


def test_averages_under_the_estimate_are_kernel_ridge_regressions(data):
    x, a, query = data
    measure = conditional_mean_measure(x, a, rbf_kernel(ACTION_LENGTH), RIDGE, query)
    system = plain.rbf(a, a, ACTION_LENGTH) + 30 * RIDGE * np.eye(30)
    expected = plain.rbf(query, a, ACTION_LENGTH) @ np.linalg.solve(system, ripple(x).numpy())
    np.testing.assert_allclose(measure.expectation(ripple), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_the_posterior_of_f_is_equation_12(data, rng, noise):
    x, a, asked = data
    points, z = uniform(rng, 7, 2), torch.randn(5, generator=rng, dtype=F64)

    def m(u):
        return 0.4 * u[..., 0] - 0.2

    process = GaussianProcess(rbf_kernel(LENGTH, 1.3), noise, m)
    measure = conditional_mean_measure(x, a, rbf_kernel(ACTION_LENGTH), RIDGE, asked)
    posterior = process.condition(measure, z)
    w = plain.ridge_weights(a.numpy(), asked.numpy(), ACTION_LENGTH, RIDGE).T  # W_t of the paper, N x t
    k = plain.rbf(points, x, LENGTH, 1.3)
    inverse = np.linalg.inv(w.T @ plain.rbf(x, x, LENGTH, 1.3) @ w + noise**2 * np.eye(5))
    mean = m(points).numpy() + k @ w @ inverse @ (z.numpy() - w.T @ m(x).numpy())
    cov = plain.rbf(points, points, LENGTH, 1.3) - k @ w @ inverse @ w.T @ k.T
    np.testing.assert_allclose(posterior.mean(Measure.dirac(points)), mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        posterior.covariance(Measure.dirac(points), Measure.dirac(points)), cov, rtol=0, atol=1e-8
    )


def test_the_estimated_prior_is_the_sum_over_all_pairs():
    problem = square(cosine=True, count=3)
    x, a = draw_data(problem, 20, SEEDS, UNIT)
    prior = estimated_prior(problem, x, a, LENGTH, ACTION_LENGTH, RIDGE, 1.4)
    assert prior.kernel.batch_shape == (3,) and prior.noise_std == float(problem.noise[0])
    for r in range(3):
        weights = plain.ridge_weights(a[r].numpy(), problem.space.actions.numpy(), ACTION_LENGTH, RIDGE)
        expected = 1.4 * plain.joint(x[r].numpy(), weights, problem.space.points.numpy(), LENGTH)
        np.testing.assert_allclose(prior.kernel.gram[r], expected, rtol=0, atol=1e-8)
        alone = estimated_prior(problem, x[r], a[r], LENGTH, ACTION_LENGTH, RIDGE, 1.4)
        torch.testing.assert_close(prior.kernel.gram[r], alone.kernel.gram, rtol=0, atol=1e-10)


def test_the_known_prior_of_normal_distributions_is_that_of_their_quadrature(rng):
    grid = unit_grid(3)
    conditional = ClippedGaussian(cosine_map, lambda a: 0.05 + 0.2 * a[..., 0])
    problem = problem_of(ripple, grid, grid, conditional)
    got = known_prior(problem.space, LENGTH, 1.3).kernel.gram
    averages = conditional.measure(grid, 40)
    sets = [(p.numpy(), w.numpy()) for p, w in zip(averages.points, averages.weights, strict=True)]
    sets += [(p[None], np.ones(1)) for p in grid.numpy()]
    for i, j in [(0, 0), (8, 8), (2, 7), (0, 8), (4, 12), (17, 6), (10, 16)]:
        (x, u), (z, v) = sets[i], sets[j]
        assert float(got[i, j]) == pytest.approx(u @ plain.rbf(x, z, LENGTH, 1.3) @ v, abs=1e-9)
    # And that of draws.
    draws = cosine_map(grid[2]) + (0.05 + 0.2 * grid[2, 0]) * torch.randn(2, 200000, 2, generator=rng, dtype=F64)
    drawn = 1.3 * (((draws[0] - draws[1]) ** 2).sum(-1) / (-2 * LENGTH**2)).exp()
    assert float(got[2, 2]) == pytest.approx(float(drawn.mean()), abs=4 * float(drawn.std()) / 200000**0.5)


def test_the_known_prior_of_windows_is_that_of_an_integral():
    actions = torch.tensor([[0.3, 0.25], [0.6, 0.1], [0.5, 0.5]], dtype=F64)
    points = torch.linspace(0, 1, 4, dtype=F64)[:, None]
    problem = problem_of(lambda x: x[..., 0], points, actions, UniformWindow())
    got = known_prior(problem.space, LENGTH).kernel.gram

    def k(x, z):
        return np.exp(-((x - z) ** 2) / (2 * LENGTH**2))

    for i, j in [(0, 0), (0, 1), (1, 2), (2, 2)]:
        (c, r), (d, s) = actions[i].tolist(), actions[j].tolist()
        integral, _ = dblquad(k, c - r, c + r, d - s, d + s)
        assert float(got[i, j]) == pytest.approx(integral / (4 * r * s), abs=1e-8)
    np.testing.assert_allclose(got[3:, 3:], plain.rbf(points, points, LENGTH), atol=1e-9)


def test_the_known_prior_of_finite_policies_is_the_sum_over_arms():
    arms = torch.tensor([[0.1], [0.5], [0.8]], dtype=F64)
    agents = torch.linspace(0, 1, 4, dtype=F64)[:, None]
    conditional = FinitePolicies(lambda a: (a * torch.tensor([1.0, 2.0, -1.0], dtype=F64)).softmax(-1), arms)
    problem = problem_of(lambda x: x[..., 0], arms, agents, conditional)
    weights = conditional.weights(agents).numpy()
    np.testing.assert_allclose(
        known_prior(problem.space, LENGTH).kernel.gram,
        plain.joint(arms.numpy(), weights, arms.numpy(), LENGTH),
        atol=1e-9,
    )


def test_the_leave_one_out_error_is_that_of_leaving_one_out(data):
    x, a, _ = (part[:12] for part in data)
    for ridge, action_length in ((1e-3, 0.25), (1e-1, 0.6)):
        errors = []
        for i in range(12):
            rest = [j for j in range(12) if j != i]
            # The ridge 12 lambda stays as it is.
            w = plain.ridge_weights(a[rest].numpy(), a[i : i + 1].numpy(), action_length, ridge * 12 / 11)[0]
            to_rest = plain.rbf(x[i : i + 1], x[rest], LENGTH)[0]
            errors.append(1 - 2 * w @ to_rest + w @ plain.rbf(x[rest], x[rest], LENGTH) @ w)
        got = embedding_loss(x, a, rbf_kernel(LENGTH), rbf_kernel(action_length), ridge)
        assert float(got) == pytest.approx(np.mean(errors), rel=1e-7)


def test_cross_validation_takes_the_smallest_error(data):
    x, a, _ = data
    lengths, ridges = (0.05, 0.3, 2.0), (1e-5, 1e-2, 1.0)
    chosen = cross_validate(x, a, rbf_kernel(LENGTH), lengths, ridges)
    errors = {
        (length, ridge): float(embedding_loss(x, a, rbf_kernel(LENGTH), rbf_kernel(length), ridge))
        for length in lengths
        for ridge in ridges
    }
    assert chosen in errors and errors[chosen] == min(errors.values())


def test_a_smooth_map_is_given_a_longer_lengthscale_than_a_rough_one(rng):
    a = uniform(rng, 60, 1)
    noise = 0.02 * torch.randn(60, 1, generator=rng, dtype=F64)
    lengths, ridges = (0.03, 0.1, 0.3, 1.0), (1e-4, 1e-3)
    smooth, _ = cross_validate(0.5 * a + noise, a, rbf_kernel(0.2), lengths, ridges)
    rough, _ = cross_validate(0.5 + 0.4 * torch.sin(25 * a) + noise, a, rbf_kernel(0.2), lengths, ridges)
    assert smooth > rough


def test_the_estimate_approaches_the_truth_as_pairs_are_added():
    problem = square(cosine=True)
    truth = problem.table[: problem.n]
    errors = []
    for count in (20, 80, 320):
        x, a = draw_data(problem, count, range(6), UNIT)
        measure = conditional_mean_measure(x, a, rbf_kernel(ACTION_LENGTH), 0.03 / count, problem.space.actions)
        errors.append(float((measure.expectation(ripple) - truth).square().mean().sqrt()))
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]
