"""Distributions of the input against draws and quadrature, and what the problem says and refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from cbo_lib.indirect import ClippedGaussian, FinitePolicies, IndirectProblem, UniformWindow
from cbo_lib.indirect.problem import cosine_map, unit_grid
from cbo_lib.random import ReplicateGenerators
from tests.indirect.helpers import F64, SEEDS, UNIT, identity, priced, ripple, square

ARMS = torch.tensor([[0.1], [0.5], [0.8]], dtype=F64)


def agents(a):
    return (a * torch.tensor([1.0, 2.0, -1.0], dtype=F64)).softmax(-1)


def wave(x):
    return torch.sin(6 * x[..., 0]) + x[..., 0] ** 2


def height(x):
    return math.sin(6 * x) + x**2


def generators(seeds=SEEDS, stream=4):
    return ReplicateGenerators(seeds, stream=stream).generators


CONDITIONALS = {
    "normal": ClippedGaussian(lambda a: 0.2 + 0.5 * a[..., :1], 0.15),
    "normal, own width": ClippedGaussian(lambda a: a[..., :1], lambda a: 0.05 + 0.1 * a[..., 0]),
    "clipped": ClippedGaussian(lambda a: a[..., :1], 0.3, torch.tensor([[0.0], [1.0]], dtype=F64)),
    "window": UniformWindow(),
    "policies": FinitePolicies(agents, ARMS),
}


def actions_of(name):
    a = torch.tensor([[0.05, 0.02], [0.4, 0.3], [0.9, 0.1]], dtype=F64)
    return a if name == "window" else a[:, :1]


@pytest.mark.parametrize("name", CONDITIONALS)
def test_averages_are_those_of_draws(name):
    """Twenty thousand replicates of one draw an action each."""
    conditional, actions = CONDITIONALS[name], actions_of(name)
    mean = conditional.measure(actions, 65).expectation(wave)
    copies = actions.repeat(20000, 1).expand(2, -1, -1)
    draws = wave(conditional.sample(copies, generators((5, 6)))).reshape(40000, 3)
    error = 4 * draws.std(0) / 200 + (0.005 if name == "clipped" else 0)
    assert bool(((draws.mean(0) - mean).abs() < error).all())


@pytest.mark.parametrize("name", CONDITIONALS)
def test_weights_are_probabilities_and_draws_belong_to_their_replicate(name):
    conditional, actions = CONDITIONALS[name], actions_of(name)
    measure = conditional.measure(actions, 9)
    assert measure.n == 3 and measure.dim == 1
    torch.testing.assert_close(measure.weights.sum(-1), torch.ones(3, dtype=F64), rtol=0, atol=1e-12)
    drawn = conditional.sample(actions.expand(3, -1, -1), generators())
    assert drawn.shape == (3, 3, 1)
    for r, seed in enumerate(SEEDS):
        assert torch.equal(drawn[r], conditional.sample(actions.expand(1, -1, -1), generators([seed]))[0])


@pytest.mark.parametrize("name", ["normal", "normal, own width", "window"])
def test_averages_are_integrals(name):
    conditional, actions = CONDITIONALS[name], actions_of(name)
    got = conditional.measure(actions, 40).expectation(wave).tolist()
    for action, value in zip(actions.tolist(), got, strict=True):
        if name == "window":
            (c, r) = action
            expected = quad(height, c - r, c + r)[0] / (2 * r)
        else:
            h, tau = (0.2 + 0.5 * action[0], 0.15) if name == "normal" else (action[0], 0.05 + 0.1 * action[0])
            expected = quad(lambda x, h=h, t=tau: height(x) * norm.pdf(x, h, t), h - 9 * tau, h + 9 * tau)[0]
        assert value == pytest.approx(expected, abs=1e-8)


def test_clipped_averages_approach_the_integral_slowly():
    clipped, action = CONDITIONALS["clipped"], torch.tensor([[0.9]], dtype=F64)
    inside = quad(lambda x: height(x) * norm.pdf(x, 0.9, 0.3), 0, 1)[0]
    expected = inside + height(0) * norm.cdf(-3) + height(1) * norm.sf(1 / 3)
    errors = [
        max(abs(float(clipped.measure(action, n).expectation(wave)) - expected) for n in range(order, order + 10, 3))
        for order in (15, 60, 180)
    ]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]


def test_clipped_draws_and_nodes_stay_in_the_box():
    clipped, actions = CONDITIONALS["clipped"], torch.linspace(0, 1, 50, dtype=F64)[:, None]
    for points in (clipped.measure(actions, 20).points, clipped.sample(actions.expand(3, -1, -1), generators())):
        assert float(points.min()) == 0.0 and float(points.max()) == 1.0


def test_a_normal_distribution_without_width_is_a_point():
    point = ClippedGaussian(identity, 0.0)
    assert point.measure(UNIT, 5).expectation(ripple).tolist() == pytest.approx(ripple(UNIT).tolist())
    assert torch.equal(point.sample(UNIT.expand(3, -1, -1), generators()), UNIT.expand(3, -1, -1))


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        (lambda a: 0.5 * agents(a), "probabilities must be nonnegative and sum to one for every action"),
        (lambda a: agents(a) * 1.001, "probabilities must be nonnegative and sum to one for every action"),
        (lambda a: torch.cat([a - 2, 3 - a, 0 * a], -1), "probabilities must be nonnegative and sum to one"),
        (lambda a: agents(a) * math.nan, "probabilities must be nonnegative and sum to one"),
        (lambda a: agents(a)[..., :2], r"probabilities must give 3 numbers an action, got shape \(4, 2\)"),
        (lambda a: agents(a)[0], r"probabilities must give 3 numbers an action, got shape \(3,\)"),
    ],
)
def test_policies_that_are_no_probabilities_are_refused(probabilities, message):
    policies, a = FinitePolicies(probabilities, ARMS), torch.linspace(0, 1, 4, dtype=F64)[:, None]
    with pytest.raises(ValueError, match=message):
        policies.measure(a)
    with pytest.raises(ValueError, match="probabilities must"):
        policies.sample(a.expand(3, -1, -1), generators())


def test_the_table_holds_g_at_actions_then_f_at_points():
    grid = unit_grid(9)  # more actions than one slice
    problem = IndirectProblem(ripple, unit_grid(3), grid, ClippedGaussian(cosine_map, 0.1), order=12)
    assert problem.n == 81 and problem.table.shape == (90,)
    assert torch.equal(problem.table[81:], ripple(unit_grid(3)))
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    for i in (0, 17, 63, 64, 80):
        center = cosine_map(grid[i]).numpy()
        x, y = np.meshgrid(*(c + 0.1 * math.sqrt(2) * nodes for c in center), indexing="ij")
        values = ripple(torch.from_numpy(np.stack([x, y], -1))).numpy()
        assert float(problem.table[i]) == pytest.approx(weights @ values @ weights / math.pi, abs=1e-10)
    assert float(problem.optimum) == float(ripple(unit_grid(3)).max())
    assert torch.equal(problem.value(torch.tensor([3, 85])), problem.table[[3, 85]])


def test_observations_have_the_noise_of_their_place():
    problem = priced()
    query = torch.tensor([0, 2, 7, 30])
    draws = ReplicateGenerators(range(4), stream=0)
    seen = torch.stack([problem.observe(query, draws.at(t)) for t in range(2000)])
    noise = [*problem.noise_std[[0, 2, 7]].tolist(), float(problem.noise_std.min())]
    np.testing.assert_allclose(problem.noise[query], noise, rtol=1e-14)
    for r in range(4):
        assert float(seen[:, r].mean()) == pytest.approx(float(problem.table[query[r]]), abs=4 * noise[r] / 2000**0.5)
        assert float(seen[:, r].std()) == pytest.approx(noise[r], rel=0.08)
    assert float(torch.corrcoef(seen.T).triu(1).abs().max()) < 0.1


def test_a_number_as_noise_keeps_its_digits():
    assert square().noise.tolist() == [0.2] * 72


def test_one_cost_for_all_is_taken_or_refused():
    grid = unit_grid(2)
    try:
        problem = IndirectProblem(ripple, grid, grid, UniformWindow(), cost=torch.tensor(2.0, dtype=F64))
    except ValueError:
        return
    assert problem.costs.tolist() == [2.0] * 8


def test_costs_are_one_unless_given():
    problem = priced()
    assert problem.costs.shape == (50,) and torch.equal(problem.costs[:25], problem.cost)
    assert bool((problem.costs[25:] == 2.5).all()) and bool((square().costs == 1).all())


def test_data_are_draws_of_uniform_actions():
    problem = square()
    bounds = torch.tensor([[0.2, -1.0], [0.4, 3.0]], dtype=F64)
    x, a = problem.data(generators(), 2000, bounds)
    assert x.shape == a.shape == (3, 2000, 2)
    assert bool(((a >= bounds[0]) & (a <= bounds[1])).all())
    share = (a - bounds[0]) / (bounds[1] - bounds[0])
    np.testing.assert_allclose(share.mean((0, 1)), 0.5, atol=0.02)
    np.testing.assert_allclose(share.var((0, 1)), 1 / 12, atol=0.005)
    inside = (a > 0.3) & (a < 0.7)
    np.testing.assert_allclose((x - a)[inside].mean(), 0.0, atol=0.02)
    np.testing.assert_allclose((x - a)[inside].std(), 0.08, atol=0.005)
    assert not torch.equal(a[0], a[1])


def test_one_more_replicate_leaves_the_data_of_the_others():
    problem = square()
    few, more = problem.data(generators([4, 9]), 10, UNIT), problem.data(generators([4, 9, 2]), 10, UNIT)
    for one, other in zip(few, more, strict=True):
        assert torch.equal(one, other[:2])


def test_a_grid_has_the_centers_of_equal_cells():
    assert unit_grid(2, 1).tolist() == [[0.25], [0.75]]
    assert unit_grid(2).tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    assert unit_grid(3, 3).shape == (27, 3)


def test_the_cosine_map_turns_the_box_around():
    got = cosine_map(torch.tensor([0.0, 1 / 3, 0.5, 1.0], dtype=F64))
    np.testing.assert_allclose(got, [1.0, math.sqrt(3) / 2, math.sqrt(0.5), 0.0], atol=1e-15)


@pytest.mark.parametrize("query", [[-1, 0, 0], [0, 72, 0], [0, 0, 999]])
def test_places_that_do_not_exist_cannot_be_observed(query):
    with pytest.raises(ValueError, match=r"query must lie in \[0, 72\), got"):
        square().observe(torch.tensor(query), generators())


@pytest.mark.parametrize("count", [0, -3])
def test_no_pairs_cannot_be_drawn(count):
    with pytest.raises(ValueError, match=f"count must be at least 1, got {count}"):
        square().data(generators(), count, UNIT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": torch.zeros(0, 2)}, r"points must have shape \(n, d\) with n >= 1, got \(0, 2\)"),
        ({"points": torch.zeros(4)}, r"points must have shape \(n, d\) with n >= 1, got \(4,\)"),
        ({"actions": torch.zeros(0, 2)}, r"actions must have shape \(n, d\) with n >= 1, got \(0, 2\)"),
        ({"actions": torch.zeros(1, 4, 2)}, r"actions must have shape \(n, d\) with n >= 1, got \(1, 4, 2\)"),
        ({"noise_std": 0.0}, "noise_std must be positive and finite, got 0"),
        ({"noise_std": -0.1}, "noise_std must be positive and finite, got -0.1"),
        ({"noise_std": math.inf}, "noise_std must be positive and finite, got inf"),
        ({"noise_std": math.nan}, "noise_std must be positive and finite, got nan"),
        ({"noise_std": torch.tensor([0.1, 0.2, 0.3])}, r"noise_std must be a number or one an action \(4,\), got"),
        ({"noise_std": torch.tensor([0.1, 0.2, 0.0, 0.3])}, "noise_std must be positive and finite, got 0"),
        ({"cost": torch.tensor([1.0, 0.0, 1.0, 1.0])}, "cost must be positive and finite, got 0"),
        ({"cost": torch.tensor([1.0, 2.0])}, r"cost must be a number or one an action \(4,\), got"),
        ({"cost": torch.full((4,), math.inf)}, "cost must be positive and finite, got inf"),
        ({"order": 0}, "order must be at least 1, got 0"),
    ],
)
def test_bad_arguments_of_the_problem_are_refused(change, message):
    grid = unit_grid(2)
    settings = {"f": ripple, "points": grid, "actions": grid, "conditional": ClippedGaussian(identity, 0.1)}
    with pytest.raises(ValueError, match=message):
        IndirectProblem(**{**settings, **change})
