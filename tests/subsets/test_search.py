"""Tracked candidates and maximizers against dense formulas."""

import numpy as np
import pytest
import torch

from cbo_lib.measure import Measure
from cbo_lib.subsets import Effort
from tests.subsets.helpers import F64, FEW, HARD, flat, partial, prior, solid, told

PROBLEMS = {"solid": solid, "flat": flat, "partial": partial}
# The first variable hardly matters to the kernel.
MIXED = (5.0, 0.25, 3.0)


def wanted_by_all(bounds, replicates):
    return torch.ones(replicates, bounds.problem.space.m, dtype=torch.bool)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
@pytest.mark.parametrize("name", PROBLEMS)
def test_tracked_candidates_are_the_dense_averages(name, count):
    problem = PROBLEMS[name]()
    bounds = told(problem, prior(problem), 2, count)
    for sqrt_beta in (2.0, -2.0, 0.0):
        got = bounds.tracked(sqrt_beta)
        assert got.shape == (2, problem.space.m, FEW.candidates)
        for r in range(2):
            belief = bounds.belief(r)
            for i in range(problem.space.m):
                expected = belief.expected_bounds(i, bounds.candidates.numpy(), sqrt_beta)
                np.testing.assert_allclose(got[r, i], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
@pytest.mark.parametrize("lengthscales", [(0.4, 0.7, 0.6), MIXED])
def test_expectations_of_decisions_are_the_dense_averages(rng, lengthscales, count):
    problem = solid()
    bounds = told(problem, prior(problem, lengthscales), 2, count)
    points = torch.rand(2, problem.space.m, problem.space.dim, generator=rng, dtype=F64)
    wanted = torch.tensor([[True, False, True, True], [False, True, True, False]])
    got = bounds.expect(points, wanted)
    for r in range(2):
        for i in range(problem.space.m):
            if not wanted[r, i]:
                assert got.mean[r, i] == -torch.inf and got.std[r, i] == 0
                continue
            mean, std = bounds.belief(r).expected(i, points[r, i].numpy())
            assert float(got.mean[r, i]) == pytest.approx(mean, abs=1e-7)
            assert float(got.std[r, i]) == pytest.approx(std, abs=1e-7)
            controlled = problem.space.controlled[i]
            assert torch.equal(got.points[r, i][controlled], points[r, i][controlled])
            assert bool((got.points[r, i][~controlled] == 0.5).all())


@pytest.mark.parametrize("sqrt_beta", [2.0, -2.0, 0.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_maximizers_are_as_good_as_a_dense_grid(name, sqrt_beta):
    problem = PROBLEMS[name]()
    bounds = told(problem, prior(problem), 2, 12, HARD)
    found = bounds.maximize(wanted_by_all(bounds, 2), sqrt_beta)
    for r in range(2):
        belief = bounds.belief(r)
        for i in range(problem.space.m):
            size = len(problem.space.control_sets[i])
            grid = belief.world.grid(i, {1: 101, 2: 21, 3: 11}[size])
            best = belief.expected_bounds(i, grid, sqrt_beta).max()
            reached = float(found.bound(sqrt_beta)[r, i])
            assert reached >= best - 1e-6
            assert reached <= best + {1: 2e-3, 2: 2e-2, 3: 6e-2}[size]  # what the grid may miss
            attained = belief.expected_bounds(i, found.points[r, i : i + 1].numpy(), sqrt_beta)
            assert reached == pytest.approx(float(attained[0]), abs=1e-7)
            assert bool(((found.points[r, i] >= 0) & (found.points[r, i] <= 1)).all())


@pytest.mark.parametrize("lengthscales", [(0.4, 0.7, 0.6), MIXED])
def test_maximizers_are_at_least_the_best_candidate_and_the_last_maximizer(lengthscales):
    """Also with little effort, and after the data have moved the maximum."""
    problem, effort = solid(), Effort(contexts=16, candidates=8, iterations=1)
    bounds = told(problem, prior(problem, lengthscales), 2, 3, effort)
    rng, last = torch.Generator().manual_seed(4), {}
    for _ in range(6):
        for sqrt_beta in (2.0, -2.0):
            found = bounds.maximize(wanted_by_all(bounds, 2), sqrt_beta)
            reached = found.bound(sqrt_beta)
            assert bool((reached >= bounds.tracked(sqrt_beta).amax(-1) - 1e-7).all())
            if sqrt_beta in last:
                for r in range(2):
                    for i in range(problem.space.m):
                        start = bounds.belief(r).expected_bounds(i, last[sqrt_beta][r, i : i + 1].numpy(), sqrt_beta)
                        assert float(reached[r, i]) >= float(start[0]) - 1e-7
            last[sqrt_beta] = found.points
        points = torch.rand(2, 3, generator=rng, dtype=F64)
        bounds.observe(points, problem.f(points))


def at_points(search, points):
    """Mean and deviation at one full point a replicate."""
    mean, variance = search.posterior.mean_and_variance(Measure.dirac(points.unsqueeze(-2)))
    return mean.squeeze(-1), variance.sqrt().squeeze(-1)


def test_predictions_at_full_points_are_dense(rng):
    problem = solid()
    bounds = told(problem, prior(problem), 3, 11)
    points = torch.rand(3, 3, generator=rng, dtype=F64)
    mean, std = at_points(bounds, points)
    for r in range(3):
        expected = bounds.belief(r).moments(points[r : r + 1].numpy())
        assert (float(mean[r]), float(std[r])) == pytest.approx([float(part[0]) for part in expected], abs=1e-8)
