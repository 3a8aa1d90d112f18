import itertools
import math

import numpy as np
import pytest
import torch
from botorch.test_functions import Branin
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from book.aggregated.problem import CellProblem
from book.aggregated.problems import aggregated_reward_curve
from book.functions import prior_samples
from cbo_lib.aggregated import GPOO, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import simulate
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, cell_problem, hills, made

CURVES = ["peaks", "periodic", "spike"]


def wave(x):
    return torch.sin(7 * x[..., 0]) + 0.3 * x.square().sum(-1)


def boxes(rng, count, dim):
    """Random boxes inside the unit box."""
    corners = torch.rand(count, 2, dim, generator=rng, dtype=F64)
    return torch.stack([corners.amin(1), corners.amax(1)], 1)


@pytest.mark.parametrize(("dim", "points"), [(1, 1), (1, 7), (1, 10), (2, 1), (2, 6), (2, 7), (3, 12)])
def test_a_value_is_the_mean_over_the_centers_of_equal_sub_cells(rng, dim, points):
    problem = cell_problem(wave, dim, points_per_cell=points)
    cells = boxes(rng, 5, dim)
    values = problem.value(cells)
    for cell, value in zip(cells, values, strict=True):
        total = 0.0
        for point in plain.representatives(cell.numpy(), points):
            total += float(wave(torch.from_numpy(point)))
        assert float(value) == pytest.approx(total / points, abs=1e-9)


def test_what_is_observed_and_its_value_cost_the_function_once(rng):
    asked = []
    problem = cell_problem(lambda x: asked.append(x) or wave(x), 2, points_per_cell=3)
    cells = boxes(rng, 4, 2)
    problem.observe(cells, ReplicateGenerators(range(4)).generators)
    value = problem.value(cells)
    assert len(asked) == 1
    value += 1  # a caller may change what it was given
    torch.testing.assert_close(problem.value(cells), value - 1, rtol=0, atol=1e-9)
    cells[0] = cells[1]  # and what it gave
    moved = problem.value(cells)
    assert len(asked) == 2
    torch.testing.assert_close(moved[0], value[1] - 1, rtol=0, atol=1e-9)


def test_a_value_takes_any_batch_dimensions_in_front(rng):
    problem = cell_problem(wave, 2, points_per_cell=4)
    cells = boxes(rng, 12, 2).reshape(3, 4, 2, 2)
    values = problem.value(cells)
    assert values.shape == (3, 4)
    for i in range(3):
        torch.testing.assert_close(values[i], problem.value(cells[i]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2])
def test_one_representative_point_is_the_center(rng, dim):
    problem = cell_problem(wave, dim, points_per_cell=1)
    cells = boxes(rng, 6, dim)
    torch.testing.assert_close(problem.space.representatives(cells), cells.mean(-2, keepdim=True))
    torch.testing.assert_close(problem.value(cells), wave(cells.mean(-2)))


def test_ten_points_in_one_dimension_are_the_centers_of_tenths():
    problem = cell_problem(wave)
    cell = torch.tensor([[0.25], [0.5]], dtype=F64)
    expected = torch.tensor([0.25 + (0.5 + j) / 40 for j in range(10)], dtype=F64).unsqueeze(-1)
    torch.testing.assert_close(problem.space.representatives(cell), expected, rtol=0, atol=1e-9)


def test_six_points_of_a_square_are_the_centers_of_a_grid_of_equal_sub_cells():
    problem = cell_problem(wave, 2, points_per_cell=6)
    points = problem.space.representatives(problem.space.bounds)
    expected = {(round((2 * i + 1) / 6, 12), round((2 * j + 1) / 4, 12)) for i in range(3) for j in range(2)}
    assert {(round(x, 12), round(y, 12)) for x, y in points.tolist()} == expected


@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 2**31))
def test_representative_points_lie_inside_and_balance_around_the_center(dim, points, seed):
    cells = boxes(torch.Generator().manual_seed(seed), 4, dim)
    problem = cell_problem(wave, dim, points_per_cell=points)
    inside = problem.space.representatives(cells)
    assert inside.shape == (4, points, dim)
    assert bool(((inside > cells[:, :1]) & (inside < cells[:, 1:])).all())
    torch.testing.assert_close(inside.mean(1), cells.mean(1), rtol=0, atol=1e-9)
    distinct = {tuple(p) for p in inside[0].round(decimals=12).tolist()}
    assert len(distinct) == points


@pytest.mark.parametrize("name", ["peaks", "periodic"])
def test_continuous_feedback_is_the_integral_over_the_cell(name):
    f = aggregated_reward_curve(name)
    problem = cell_problem(f, feedback="continuous")
    tree = problem.space.partition()
    level = tree.complete(3)
    for cell, value in zip(tree.boxes[level], problem.values(tree.boxes[level]), strict=True):
        low, high = cell.flatten().tolist()
        integral, _ = quad(lambda x: float(f(torch.tensor([x], dtype=F64))), low, high, epsabs=1e-12)
        assert float(value) == pytest.approx(integral / (high - low), abs=1e-10)


def test_continuous_feedback_in_two_dimensions_is_the_product_of_integrals():
    problem = cell_problem(lambda x: torch.exp(x[..., 0]) * torch.cos(x[..., 1]), 2, feedback="continuous")
    cell = torch.tensor([[[0.2, 0.1], [0.7, 0.9]]], dtype=F64)
    expected = (math.exp(0.7) - math.exp(0.2)) / 0.5 * (math.sin(0.9) - math.sin(0.1)) / 0.8
    assert float(problem.value(cell)) == pytest.approx(expected, abs=1e-9)


def test_many_points_a_cell_approach_continuous_feedback_quadratically():
    f = aggregated_reward_curve("peaks")
    cell = torch.tensor([[[0.25], [0.375]]], dtype=F64)
    limit = cell_problem(f, feedback="continuous").value(cell)
    errors = [float((cell_problem(f, points_per_cell=s).value(cell) - limit).abs()) for s in (10, 40, 160)]
    assert errors[0] > 1e-5
    for coarse, fine in itertools.pairwise(errors):
        assert 14 < coarse / fine < 18  # the midpoint rule: four times the points, a sixteenth of the error


def test_the_learner_and_the_value_of_continuous_feedback_share_no_points(rng):
    seen = []

    def f(x):
        seen.append(x.flatten())
        return wave(x)

    problem = cell_problem(f, feedback="continuous", quadrature_order=4)
    cells = boxes(rng, 1, 1)
    problem.value(cells)
    learner = problem.space.measure(cells)
    assert learner.p == 4
    assert len(seen[0]) == 10
    common = set(learner.points.flatten().tolist()) & set(seen[0].tolist())
    assert len(common) == 0


def test_the_learner_averages_what_is_observed(rng):
    cells = boxes(rng, 4, 1)
    for problem in (cell_problem(wave), cell_problem(wave, feedback="continuous")):
        measure = problem.space.measure(cells)
        assert isinstance(measure, Measure)
        torch.testing.assert_close(measure.expectation(wave), problem.value(cells), rtol=0, atol=1e-9)
        torch.testing.assert_close(measure.weights.sum(-1), torch.ones(4, dtype=F64))


def brute_force_maximum(g, low, high, count=20_001):
    x = np.linspace(low, high, count)
    values = g(x)
    best = int(values.argmax())
    step = (high - low) / (count - 1)
    result = minimize_scalar(
        lambda z: -float(g(np.array([z]))[0]),
        bounds=(max(low, x[best] - step), min(high, x[best] + step)),
        method="bounded",
        options={"xatol": 1e-13},
    )
    return max(float(values[best]), -result.fun)


@pytest.mark.parametrize("name", CURVES)
def test_the_optimum_of_the_papers_curves_is_that_of_brute_force(name):
    f = aggregated_reward_curve(name)
    problem = cell_problem(f)
    expected = brute_force_maximum(lambda x: f(torch.from_numpy(x).unsqueeze(-1)).numpy(), 0.0, 1.0)
    assert float(problem.optimum) == pytest.approx(expected, abs=1e-10)
    assert problem.maximizer.shape == (1,)
    assert float(f(problem.maximizer)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("center", [(0.123456, 0.654321), (0.0, 1.0), (0.999, 0.001)])
def test_the_optimum_of_a_narrow_bump_in_two_dimensions_is_found(center):
    peak = torch.tensor(center, dtype=F64)
    problem = cell_problem(lambda x: torch.exp(-80 * (x - peak).square().sum(-1)), 2)
    assert float(problem.optimum) == pytest.approx(1.0, abs=1e-10)
    torch.testing.assert_close(problem.maximizer, peak, rtol=0, atol=1e-5)


def test_the_optimum_of_branin_on_its_box_is_the_known_one():
    branin = Branin(negate=True)
    problem = cell_problem(branin.evaluate_true, 2, bounds=branin.bounds.to(F64))
    minimized = cell_problem(lambda x: -branin.evaluate_true(x), 2, bounds=branin.bounds.to(F64))
    assert float(minimized.optimum) == pytest.approx(-0.39788735772973816, abs=1e-9)
    known = torch.tensor([[-math.pi, 12.275], [math.pi, 2.275], [9.42478, 2.475]], dtype=F64)
    assert float((known - minimized.maximizer).norm(dim=-1).min()) < 1e-4
    # The largest value of Branin itself lies in a corner of the box.
    assert float(problem.optimum) == pytest.approx(308.12909601160663, abs=1e-9)


def test_a_maximum_on_the_boundary_is_found_and_stays_inside():
    problem = cell_problem(lambda x: x[..., 0] - x[..., 1], 2)
    assert problem.maximizer.tolist() == [1.0, 0.0]
    assert float(problem.optimum) == 1.0


def test_with_one_function_a_replicate_there_is_one_optimum_a_replicate():
    kernel = rbf_kernel(0.1)
    f = prior_samples(kernel, UNIT, range(5))
    problem = cell_problem(f, replicates=5)
    assert problem.optimum.shape == (5,)
    assert problem.maximizer.shape == (5, 1)
    for r in range(5):

        def g(x, r=r):
            return f(torch.from_numpy(x)[None, :, None].expand(5, -1, 1))[r].numpy()

        assert float(problem.optimum[r]) == pytest.approx(brute_force_maximum(g, 0.0, 1.0, 4001), abs=1e-9)
    assert len(set(problem.optimum.tolist())) == 5


def test_with_one_function_a_replicate_the_values_are_its_own():
    slopes = torch.tensor([1.0, -2.0, 3.0], dtype=F64)

    def f(x):
        return slopes.reshape(3, *[1] * (x.dim() - 2)) * x[..., 0]

    problem = cell_problem(f, replicates=3)
    cells = torch.tensor([[[0.0], [0.5]], [[0.5], [1.0]]], dtype=F64)
    expected = slopes.unsqueeze(-1) * torch.tensor([0.25, 0.75], dtype=F64)
    torch.testing.assert_close(problem.values(cells), expected)
    torch.testing.assert_close(problem.f_at(cells[:, 0]), slopes.unsqueeze(-1) * cells[:, 0, 0])
    own = problem.observe(cells[[0, 1, 0]], ReplicateGenerators(range(3)).at(1))
    assert own.shape == (3,)
    torch.testing.assert_close(problem.value(cells[[0, 1, 0]]), expected[[0, 1, 2], [0, 1, 0]])


def test_observations_are_values_plus_gaussian_noise():
    problem = cell_problem(wave, noise_std=0.3)
    cells = UNIT.expand(4000, 2, 1)
    observed = problem.observe(cells, ReplicateGenerators(range(4000)).at(1))
    noise = (observed - problem.value(cells)) / 0.3
    assert abs(float(noise.mean())) < 4 / math.sqrt(4000)
    assert abs(float(noise.var()) - 1) < 4 * math.sqrt(2 / 4000)
    assert abs(float((noise**3).mean())) < 4 * math.sqrt(15 / 4000)
    assert abs(float((noise**4).mean()) - 3) < 4 * math.sqrt(96 / 4000)


def test_without_noise_the_value_is_observed():
    problem = cell_problem(wave, noise_std=0.0)
    cells = UNIT.expand(2, 2, 1)
    assert torch.equal(problem.observe(cells, ReplicateGenerators([0, 1]).at(1)), problem.value(cells))


def test_another_box_is_searched_whole_and_not_left():
    bounds = torch.tensor([[-3.0, 10.0], [5.0, 12.0]], dtype=F64)

    def f(x):
        return -((x[..., 0] + 1.7) ** 2) - (x[..., 1] - 11.9) ** 2

    problem = cell_problem(f, 2, points_per_cell=4, noise_std=0.01, bounds=bounds)
    assert float(problem.optimum) == pytest.approx(0.0, abs=1e-10)
    policy = made(GPOO, problem, rbf_kernel(2.0, 10.0), delta=lambda h: 20 * 2 ** (-h / 2))
    history = simulate(problem, policy, 40, [0, 1], progress=False)
    queries = history["query"]
    assert bool(((queries >= bounds[0]) & (queries <= bounds[1])).all())
    found = history["recommendation"][:, -1].mean(-2)
    torch.testing.assert_close(found, torch.tensor([[-1.7, 11.9]], dtype=F64).expand(2, 2), rtol=0, atol=0.5)


def test_a_split_rule_of_ones_own_cuts_the_cells_that_are_drawn():
    def thirds(cells, depth, branching):
        """One third and two thirds."""
        low, high = cells.unbind(-2)
        cut = low + (high - low) / 3
        return torch.stack([torch.stack([low, cut], -2), torch.stack([cut, high], -2)], 1)

    problem = cell_problem(wave, split=thirds)
    policy = made(GPOO, problem, rbf_kernel(0.2), delta=lambda h: 14 * 2.0**-h)
    history = simulate(problem, policy, 3, [0], progress=False)
    third = torch.tensor([0.0, 1 / 3, 1.0], dtype=F64)
    torch.testing.assert_close(history["query"][0, 0], UNIT)
    children = [third[[0, 1]].unsqueeze(-1), third[[1, 2]].unsqueeze(-1)]
    for cell in history["query"][0, 1:]:
        assert any(torch.allclose(cell, child, rtol=0, atol=1e-9) for child in children)
    assert not torch.equal(history["query"][0, 1], history["query"][0, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_std": -0.1}, "noise_std must be nonnegative and finite, got -0.1"),
        ({"noise_std": math.nan}, "noise_std must be nonnegative and finite, got nan"),
        ({"replicates": 0}, "replicates must be an integer of at least 1, got 0"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        CellProblem(Space(UNIT), wave, **arguments)


def test_a_problem_takes_a_space_first():
    with pytest.raises(ValueError, match=r"space must be an aggregated.Space, got <function"):
        CellProblem(wave, Space(UNIT))


def test_the_plain_cells_are_those_of_the_library():
    for dim, branching in ((1, 2), (1, 3), (2, 2), (2, 3), (3, 2)):
        problem = cell_problem(hills, dim, branching, points_per_cell=6)
        tree, mirror = problem.space.partition(), plain.Tree(plain.World(None, dim, branching, 6))
        for depth in range(4):
            level = tree.complete(depth)
            for node in level:
                key = (int(tree.depth[node]), int(tree.index[node]))
                np.testing.assert_allclose(tree.boxes[node].numpy(), mirror.cells[key], rtol=0, atol=1e-9)
                mirror.expand(key)
            points = np.array([plain.representatives(c.numpy(), 6) for c in tree.boxes[level]])
            np.testing.assert_allclose(problem.space.representatives(tree.boxes[level]), points, rtol=0, atol=1e-9)


def test_a_function_for_each_replicate_needs_as_many_queries():
    problem = cell_problem(lambda x: x[..., 0], replicates=3)
    with pytest.raises(ValueError, match="query must hold one cell for each of 3 replicates, got 2"):
        problem.observe(problem.space.bounds.expand(2, 2, 1), [torch.Generator()] * 2)
