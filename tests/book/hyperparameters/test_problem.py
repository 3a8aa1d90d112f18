import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.hyperparameters.problems import (
    additive_kernel,
    lengthscale_candidates,
    periodic_kernel,
)
from cbo_lib.kernels import StackedKernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    GROUPS,
    SETTINGS,
    line,
    noise_draws,
    own_mounds,
    problem_of,
    setting,
)

TWO = lengthscale_candidates((0.1, 0.3))


def sine(x):
    return torch.sin(9 * x[..., 0]) + 0.5 * x.sum(-1)


# ---- candidates


def test_lengthscale_candidates_are_rbf_kernels_of_variance_one(rng):
    x, z = torch.rand(6, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    candidates = lengthscale_candidates((0.3, 1.0, 0.05))
    assert candidates.names == ("lengthscale 0.3", "lengthscale 1", "lengthscale 0.05")
    assert candidates.means == (0.0, 0.0, 0.0)
    for kernel, lengthscale in zip(candidates.kernels, (0.3, 1.0, 0.05), strict=True):
        np.testing.assert_allclose(kernel(x, z).to_dense(), plain.rbf(lengthscale)(x.numpy(), z.numpy()), atol=1e-9)


@pytest.mark.parametrize(("period", "lengthscale"), [(1.0, 0.6), (0.25, 2.0), (3.0, 0.1)])
def test_the_periodic_kernel_squares_its_lengthscale(rng, period, lengthscale):
    x, z = (3 * torch.rand(n, 1, generator=rng, dtype=F64) for n in (6, 4))
    found = periodic_kernel(period, lengthscale)(x, z).to_dense()
    np.testing.assert_allclose(found, plain.periodic(period, lengthscale)(x.numpy(), z.numpy()), atol=1e-9)
    again = periodic_kernel(period, lengthscale)(x, z + 5 * period).to_dense()
    torch.testing.assert_close(found, again, rtol=0, atol=1e-9)


@pytest.mark.parametrize("groups", [*GROUPS, ((0, 1, 2),), ((0, 1), (1, 2))])
def test_the_additive_kernel_is_the_sum_over_groups(rng, groups):
    x, z = torch.rand(6, 3, generator=rng, dtype=F64), torch.rand(4, 3, generator=rng, dtype=F64)
    kernel = additive_kernel(groups, 0.4)
    np.testing.assert_allclose(kernel(x, z).to_dense(), plain.additive(groups, 0.4)(x.numpy(), z.numpy()), atol=1e-9)
    torch.testing.assert_close(kernel(x, x).to_dense().diagonal(), torch.full((6,), len(groups), dtype=F64))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_priors_of_all_candidates_are_one_batch(rng, name):
    case = setting(name)
    prior = case.problem.space.candidates.prior(0.2)
    assert isinstance(prior.kernel, StackedKernel) and prior.noise_std == 0.2
    points = case.problem.space.points[torch.randint(len(case.problem.space.points), (9,), generator=rng)]
    measure = Measure.dirac(points)
    posterior = prior.posterior()
    for u, own in enumerate(case.priors):
        np.testing.assert_allclose(posterior.mean(measure)[u], own.m(points.numpy()), atol=1e-9)
        covariance = posterior.covariance(measure, measure)[min(u, len(prior.kernel.kernels) - 1)]
        np.testing.assert_allclose(covariance, own.k(points.numpy(), points.numpy()), atol=1e-9)


# ---- the problem


def test_an_observation_is_the_value_and_the_noise_of_each_replicate():
    problem = problem_of(sine, TWO, line(9), noise_std=0.3)
    query = problem.space.points[[2, 5]]
    generators = ReplicateGenerators([4, 7])
    seen = torch.stack([problem.observe(query, generators.at(t)) for t in (1, 2, 3)], 1)
    expected = np.array([noise_draws(seed, 3) for seed in (4, 7)]) * 0.3
    np.testing.assert_allclose(seen - problem.value(query)[:, None], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(problem.value(query), sine(query))


def test_one_function_a_replicate_has_values_and_optima_of_its_own():
    problem = setting("mean").problem
    assert problem.values.shape == (3, 45) and problem.optimum.shape == (3,)
    for r in range(3):
        values = own_mounds(problem.space.points.expand(3, -1, -1))[r]
        assert torch.allclose(problem.values[r], values)
        assert float(problem.optimum[r]) == pytest.approx(max(values.tolist()))
    assert len(set(problem.optimum.tolist())) == 3
    with pytest.raises(ValueError, match="query must hold one point for each of 3 replicates, got 2"):
        problem.observe(problem.space.points[:2], ReplicateGenerators([0, 1]).at(1))


# ---- perturbations


def near_by_hand(points, epsilon):
    return [[j for j, z in enumerate(points) if math.dist(x, z) <= epsilon * (1 + 1e-9)] for x in points]


def robust_problem(points, epsilon, **options):
    kernels = tuple(copy.deepcopy(kernel).to(points) for kernel in TWO.kernels)
    return problem_of(sine, dataclasses.replace(TWO, kernels=kernels), points, epsilon=epsilon, **options)


@given(st.integers(0, 10_000), st.integers(1, 45), st.integers(1, 3), st.floats(0.0, 0.6))
def test_neighbors_are_the_points_within_epsilon(seed, n, dim, epsilon):
    points = torch.rand(n, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)
    problem = robust_problem(points, epsilon)
    by_hand = near_by_hand(points.tolist(), epsilon)
    assert problem.space.neighbors.shape == (n, max(map(len, by_hand)))
    for i, (row, expected) in enumerate(zip(problem.space.neighbors.tolist(), by_hand, strict=True)):
        assert set(row) == set(expected)
        assert row[: len(expected)] == expected  # in order,
        assert set(row[len(expected) :]) <= {i}  # then the point itself
    values = torch.randn(3, 2, n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    worst = problem.space.worst(values)
    assert worst.shape == values.shape
    for i, near in enumerate(by_hand):
        assert torch.equal(worst[..., i], values[..., near].amin(-1))
    expected = max(min(float(problem.values[j]) for j in near) for near in by_hand)
    assert float(problem.optimum) == expected


def test_grid_points_exactly_at_epsilon_count_as_near():
    problem = robust_problem(line(101), 0.05)
    counts = (problem.space.neighbors != torch.arange(101)[:, None]).sum(-1) + 1
    assert counts[5:96].unique().tolist() == [11]
    assert counts[[0, 1, 100]].tolist() == [6, 7, 6]


@pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 2, 3)])
def test_the_value_of_a_point_is_its_worst_neighbor(rng, shape):
    points = torch.rand(30, 2, generator=rng, dtype=F64)
    problem = robust_problem(points, 0.25)
    index = torch.randint(30, shape, generator=rng)
    found = problem.value(points[index])
    assert found.shape == shape
    by_hand = near_by_hand(points.tolist(), 0.25)
    for at in np.ndindex(shape):
        expected = min(float(sine(points[j])) for j in by_hand[int(index[at])])
        assert float(found[at]) == pytest.approx(expected, abs=1e-9)
