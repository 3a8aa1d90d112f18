"""Tracked candidates and maximizers against dense formulas."""

import dataclasses

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.measure import Measure
from cbo_lib.subsets import Effort, Space
from cbo_lib.subsets.search import Decisions
from tests.subsets.helpers import F64, FEW, HARD, Spy, ard, flat, partial, prior, solid, told, unit

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


def test_both_sides_remember_their_own_maximizers():
    """A search for lower bounds between two for upper ones changes nothing."""
    problem = solid()
    once, twice = (told(problem, prior(problem), 2, 8) for _ in range(2))
    once.maximize(wanted_by_all(once, 2), 2.0)
    twice.maximize(wanted_by_all(twice, 2), 2.0)
    twice.maximize(wanted_by_all(twice, 2), -2.0)
    for bounds in (once, twice):
        point = torch.full((2, 3), 0.3, dtype=F64)
        bounds.observe(point, problem.f(point))
    pairs = [b.maximize(wanted_by_all(b, 2), 2.0) for b in (once, twice)]
    assert torch.equal(pairs[0].points, pairs[1].points) and torch.equal(pairs[0].mean, pairs[1].mean)


@pytest.mark.parametrize("lengthscales", [(0.4, 0.7, 0.6), MIXED, (0.15, 0.2, 0.3)])
def test_what_a_replicate_finds_does_not_depend_on_what_others_want(lengthscales):
    problem, replicates = solid(), 3
    masks = [
        [[1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 0, 0]],
        [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]],
        [[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1]],
    ]
    together = told(problem, prior(problem, lengthscales), replicates, 9)
    alone = []
    for r in range(replicates):
        bounds = Spy(problem, prior(problem, lengthscales), 1, FEW)
        for points, y in together.told:
            bounds.observe(points[r : r + 1], y[r : r + 1])
        alone.append(bounds)
    for step, rows in enumerate(masks):
        mask = torch.tensor(rows).bool()
        for sqrt_beta in (2.0, -2.0):
            found = together.maximize(mask, sqrt_beta)
            for r, bounds in enumerate(alone):
                own = bounds.maximize(mask[r : r + 1], sqrt_beta)
                for a, b in ((found.mean, own.mean), (found.std, own.std), (found.points, own.points)):
                    torch.testing.assert_close(a[r][mask[r]], b[0][mask[r]], rtol=0, atol=1e-9)
        points = torch.full((replicates, 3), 0.2 + 0.3 * step, dtype=F64)
        together.observe(points, problem.f(points))
        for bounds in alone:
            bounds.observe(points[:1], problem.f(points[:1]))


@pytest.mark.parametrize("sqrt_beta", [2.0, -2.0])
def test_both_bounds_are_found_by_one_search_as_by_two(sqrt_beta):
    problem = solid()
    one, other = (told(problem, prior(problem), 2, 9) for _ in range(2))
    wanted = torch.tensor([[True, False, False, True], [False, True, False, False]])
    ahead = torch.tensor([[True] * 4, [True, True, False, True]])
    less = ahead & torch.tensor([True, True, True, False])
    pairs = [
        (one.maximize(wanted, sqrt_beta, ahead=ahead), other.maximize(wanted, sqrt_beta)),
        (one.maximize(less, -sqrt_beta), other.maximize(less, -sqrt_beta)),
        (one.maximize(~less, -sqrt_beta), other.maximize(~less, -sqrt_beta)),
    ]
    for (found, expected), mask in zip(pairs, (wanted, less, ~less), strict=True):
        assert torch.equal(found.mean > -torch.inf, mask)
        assert torch.equal(found.std == 0, ~mask)
        torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(found.std, expected.std, rtol=0, atol=1e-8)
        torch.testing.assert_close(found.points[mask], expected.points[mask], rtol=0, atol=1e-6)


def test_what_was_found_ahead_is_not_taken_for_more_or_for_later():
    problem = solid()
    one = told(problem, prior(problem), 2, 9)
    first = torch.tensor([[True, False, False, False]] * 2)
    every = torch.ones_like(first)
    one.maximize(first, -2.0, ahead=first)  # less than what is wanted then
    assert bool((one.maximize(every, 2.0).mean > -torch.inf).all())
    one.maximize(first, -2.0, ahead=every)
    one.observe(torch.full((2, 3), 0.3, dtype=F64), torch.tensor([9.0, -9.0], dtype=F64))
    found = one.maximize(every, 2.0)
    torch.testing.assert_close(found.mean, one.expect(found.points, every).mean, rtol=0, atol=1e-8)


def test_subsets_are_searched_together_as_each_alone():
    """Also where the free variables hardly matter to the kernel; and each is what a bare loop finds."""
    problem = solid()
    bounds = told(problem, prior(problem, MIXED), 2, 30)
    found = bounds.maximize(wanted_by_all(bounds, 2), 2.0)
    for i in range(problem.space.m):
        single = told(problem, prior(problem, MIXED), 2, 30)
        mask = torch.zeros(2, problem.space.m, dtype=torch.bool)
        mask[:, i] = True
        own = single.maximize(mask, 2.0)
        torch.testing.assert_close(own.points[:, i], found.points[:, i], rtol=0, atol=1e-9)
        torch.testing.assert_close(own.mean[:, i], found.mean[:, i], rtol=0, atol=1e-9)
        for r in range(2):
            mean, std = bounds.belief(r).expected(i, found.points[r, i].numpy())
            assert float(found.mean[r, i]) == pytest.approx(mean, abs=1e-7)
            assert float(found.std[r, i]) == pytest.approx(std, abs=1e-7)


def test_nothing_may_be_wanted():
    problem = solid()
    bounds = told(problem, prior(problem), 2, 9)
    found = bounds.maximize(~wanted_by_all(bounds, 2), 2.0)
    assert bool((found.mean == -torch.inf).all()) and bool((found.std == 0).all())


def at_points(search, points):
    """Mean and deviation at one full point a replicate."""
    mean, variance = search.posterior.mean_and_variance(Measure.dirac(points.unsqueeze(-2)))
    return mean.squeeze(-1), variance.sqrt().squeeze(-1)


def test_before_any_data_all_decisions_are_alike():
    problem = solid()
    bounds = Spy(problem, prior(problem, variance=2.25, mean=1.5), 2, FEW)
    found = bounds.maximize(torch.tensor([[True] * 4, [True, False, False, True]]), -2.0)
    assert found.mean[0].tolist() == [1.5] * 4 and found.std[0].tolist() == pytest.approx([1.5] * 4)
    assert found.bound(-2.0)[1].tolist() == pytest.approx([-1.5, -torch.inf, -torch.inf, -1.5])
    assert bool((found.points[:, ~problem.space.controlled][0] == 0.5).all())
    np.testing.assert_allclose(bounds.tracked(2.0), 4.5)
    mean, std = at_points(bounds, torch.rand(2, 3, dtype=F64))
    assert mean.tolist() == [1.5, 1.5] and std.tolist() == pytest.approx([1.5, 1.5])


def test_predictions_at_full_points_are_dense(rng):
    problem = solid()
    bounds = told(problem, prior(problem), 3, 11)
    points = torch.rand(3, 3, generator=rng, dtype=F64)
    mean, std = at_points(bounds, points)
    for r in range(3):
        expected = bounds.belief(r).moments(points[r : r + 1].numpy())
        assert (float(mean[r]), float(std[r])) == pytest.approx([float(part[0]) for part in expected], abs=1e-8)


def test_the_average_is_over_the_learners_own_draws():
    problem = solid()
    bounds = Spy(problem, prior(problem), 1, FEW)
    assert torch.equal(bounds.contexts, problem.space.samples(16))
    other = Spy(problem, prior(problem), 4, FEW)
    assert torch.equal(bounds.contexts, other.contexts) and torch.equal(bounds.candidates, other.candidates)


def test_a_product_of_other_kernels_will_do(rng):
    """Matern factors of single variables."""
    problem = flat()
    kernel = ScaleKernel(MaternKernel(2.5, active_dims=(0,)) * MaternKernel(1.5, active_dims=(1,))).to(dtype=F64)
    kernel.base_kernel.kernels[0].lengthscale = torch.tensor(0.5, dtype=F64)
    kernel.requires_grad_(False)
    for controls in problem.space.control_sets:
        space = dataclasses.replace(problem.space, control_sets=(controls,))
        single = dataclasses.replace(problem, space=space, cost_means=torch.ones(1, dtype=F64))
        process = GaussianProcess(kernel, 0.1, 1.0)
        bounds = told(single, process, 2, 6)
        points, values = (torch.stack(part, 1) for part in zip(*bounds.told, strict=True))
        posterior = process.condition(Measure.dirac(points), values)
        found = bounds.maximize(torch.ones(2, 1, dtype=torch.bool), 2.0)
        full = torch.where(single.space.controlled[0], found.points, bounds.contexts)
        mean, variance = posterior.mean(Measure.dirac(full)), posterior.variance(Measure.dirac(full))
        torch.testing.assert_close(found.mean[:, 0], mean.mean(-1), rtol=0, atol=1e-8)
        torch.testing.assert_close(found.std[:, 0], variance.sqrt().mean(-1), rtol=0, atol=1e-8)


def test_a_kernel_that_is_no_product_is_refused():
    problem = flat()
    kernel = ScaleKernel(MaternKernel(2.5)).to(dtype=F64).requires_grad_(False)
    with pytest.raises(ValueError, match="the kernel must be a product"):
        Spy(problem, GaussianProcess(kernel, 0.1), 1, FEW)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"contexts": 0}, "contexts must be an integer of at least 1, got 0"),
        ({"candidates": -3}, "candidates must be an integer of at least 1, got -3"),
        ({"iterations": 0}, "iterations must be an integer of at least 1, got 0"),
    ],
)
def test_efforts_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Effort(**settings)


def test_the_least_effort_suffices():
    problem = solid()
    bounds = told(problem, prior(problem), 2, 4, Effort(1, 1, 1))
    found = bounds.maximize(wanted_by_all(bounds, 2), 2.0)
    assert bool(torch.isfinite(found.bound(2.0)).all())
    assert bounds.contexts.shape == bounds.candidates.shape == (1, 3)


def test_one_variable_alone():
    space = Space(unit(1), ((0,),), (truncated_normal(0.02),), 100.0)
    problem = SubsetProblem(space, lambda x: 1 - (x[..., 0] - 0.3) ** 2, torch.ones(1, dtype=F64), 0.0, 0.01)
    bounds = told(problem, GaussianProcess(ard((0.3,)), 0.01, 1.0), 1, 12, HARD)
    found = bounds.maximize(torch.ones(1, 1, dtype=torch.bool), 0.0)
    assert float(found.points[0, 0, 0]) == pytest.approx(0.3, abs=0.05)


def test_decisions_are_taken_apart_and_put_together():
    points = torch.arange(12, dtype=F64).reshape(2, 3, 2)
    mean, std = torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([[0.5, 0.25, 1], [0, 1, 2]])
    one = Decisions(points, mean, std)
    assert one.bound(-2.0).tolist() == [[0.0, 1.5, 1.0], [4.0, 3.0, 2.0]]
    point, m, s = one.of(torch.tensor([2, 0]))
    assert point.tolist() == [[4.0, 5.0], [6.0, 7.0]] and m.tolist() == [3.0, 4.0] and s.tolist() == [1.0, 0.0]
    other = Decisions(points + 100, mean + 100, std + 100)
    both = one.where(torch.tensor([True, False]), other)
    assert torch.equal(both.points[0], points[0]) and torch.equal(both.points[1], points[1] + 100)
    assert both.mean.tolist() == [[1, 2, 3], [104, 105, 106]] and both.std[1].tolist() == [100, 101, 102]
