"""The proof of Theorem 1: both sides of its steps against plain loops, and what the chapter corrects."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.aggregated import regret
from book.aggregated.census import census
from book.functions import prior_samples
from cbo_lib.aggregated import GPOO, AveStoOO
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import History, simulate
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, both, cell_problem, fourier, made, noise_draws

ROUNDS, SEEDS = 18, [0, 5]


def shrinking(h):
    return 6 * 2.0**-h


# What happened


@given(st.integers(0, 10_000), st.integers(1, 2), st.integers(1, 12))
def test_aggregated_regret_is_at_least_the_simple_regret_of_the_best_representative(seed, dim, points):
    problem = cell_problem(fourier(seed), dim, points_per_cell=points)
    cells = torch.from_numpy(np.sort(np.random.default_rng(seed).random((3, 4, 2, dim)), 2))
    values = torch.stack([problem.value(c) for c in cells.unbind(1)], 1)
    history = History({"recommendation": cells, "recommended_value": values}, range(3))
    aggregated = problem.optimum.unsqueeze(-1) - history["recommended_value"]
    simple = regret.simple_regret(history, problem)
    assert aggregated.shape == simple.shape == (3, 4)
    assert bool((aggregated >= simple - 1e-12).all()) and bool((simple >= -1e-9).all())
    at = [float(problem.f(torch.from_numpy(x))) for x in plain.representatives(cells[1, 2].numpy(), points)]
    assert float(aggregated[1, 2]) == pytest.approx(float(problem.optimum) - np.mean(at), abs=1e-9)
    assert float(simple[1, 2]) == pytest.approx(float(problem.optimum) - max(at), abs=1e-9)


@pytest.mark.parametrize(("name", "branching", "points", "depth"), [("peaks", 2, 10, 5), ("hills", 3, 4, 3)])
def test_level_values_are_those_of_a_loop_over_the_cells(name, branching, points, depth):
    problem, world = both(name, branching, points)
    cells = [world.root()]
    for _ in range(depth):
        cells = [part for cell in cells for part in plain.cut(cell, branching)]
    expected = torch.tensor([world.value(cell) for cell in cells], dtype=F64)
    torch.testing.assert_close(regret.level_values(problem, depth), expected, rtol=0, atol=1e-9)
    for slack in (0.05, 0.2, 0.5):
        count = sum(1 for value in expected.tolist() if value >= float(problem.optimum) - slack)
        assert int(regret.near_optimal_cells(problem, depth, slack)) == count


def test_a_level_of_too_many_cells_is_an_error():
    with pytest.raises(ValueError, match="depth must leave at most 1048576 cells in the level, got 4194304"):
        regret.level_values(cell_problem(fourier(0), branching=4), 11)


@pytest.mark.parametrize(("name", "branching", "points"), [("peaks", 2, 10), ("peaks", 3, 1), ("hills", 2, 6)])
def test_the_lipschitz_constant_is_the_largest_that_delta_covers(name, branching, points):
    problem, world = both(name, branching, points)
    delta = torch.tensor([1.7 * 0.6**h for h in range(6)], dtype=F64)
    constant, rng, worst = regret.lipschitz_constant(problem, delta), np.random.default_rng(0), 0.0
    for depth, width in enumerate(delta.tolist()):
        cell = world.root()
        for _ in range(depth):
            cell = plain.cut(cell, branching)[rng.integers(branching)]
        for x in itertools.product(*cell.T):
            distance = np.abs(plain.representatives(cell, points) - np.array(x)).sum(1).max()
            worst = max(worst, constant * distance / width)
    assert worst == pytest.approx(1.0, abs=1e-9)


def test_the_address_of_the_oldest_place_is_its_region_at_every_depth():
    problem = census(range(3))
    home = regret.address(problem)
    for h in (3, 10):
        values = regret.level_values(problem, h).gather(1, (home * 2**h).long()).squeeze(1)
        assert bool((values <= problem.optimum + 1e-9).all())
    torch.testing.assert_close(values, problem.optimum)  # of single places


# Both sides of every step


@pytest.fixture(scope="module")
def walked():
    draw = prior_samples(rbf_kernel(0.05, 0.1), UNIT, [3])

    def f(x):
        return draw(x.unsqueeze(0))[0]

    problem = cell_problem(f, points_per_cell=4)
    world = plain.World(lambda x: f(torch.from_numpy(x)).numpy(), 1, 2, 4, 0.1)
    policy = made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=shrinking)
    return problem, world, policy, regret.walk(problem, policy, ROUNDS, SEEDS)


def test_a_walk_is_the_run_of_the_plain_algorithm(walked):
    problem, world, _, found = walked
    best, x_star = float(problem.optimum), float(problem.maximizer)
    levels = [regret.level_values(problem, h).max() for h in range(8)]
    for r, seed in enumerate(SEEDS):
        process = plain.Process(world, 0.05, 0.1, world.noise_std)
        tree, rounds = plain.gpoo(world, process, shrinking, noise_draws(seed, ROUNDS))
        leaves, draws, split, means = {plain.ROOT}, {}, [], {plain.ROOT: 0.0}
        for t, one in enumerate(rounds):
            h, i = one.node
            star = next(n for n in leaves if tree.cells[n][0, 0] <= x_star <= tree.cells[n][1, 0])
            draws[one.node] = draws.get(one.node, 0) + 1
            assert (int(found.depth[r, t]), int(found.draws[r, t])) == (h, draws[one.node])
            assert bool(found.split[r, t]) == one.expanded
            average, home, three = world.value(tree.cells[one.node]), world.value(tree.cells[star]), 3 * shrinking(h)
            expected = [
                average,
                means[one.node] - one.width,
                means[one.node] + one.width + shrinking(h) - three,
                home + shrinking(star[0]) - three,
                best - three,
            ]
            links = found.links[r, t, [0, 1, 2, 4, 5]]
            torch.testing.assert_close(links, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-6)
            assert float(found.fall[r, t]) == pytest.approx(best - home, abs=1e-9)
            assert float(found.allowed_star[r, t]) == pytest.approx(shrinking(star[0]))
            if one.expanded:
                leaves = leaves - {one.node} | {(h + 1, 2 * i), (h + 1, 2 * i + 1)}
                split.append(h)
            means, deepest = one.means, max(split, default=-1)
            assert int(found.deepest[r, t]) == deepest
            lost = best - world.value(tree.cells[one.recommended])
            assert float(found.regret[r, t]) == pytest.approx(lost, abs=1e-9)
            assert float(found.resolution[r, t]) == pytest.approx(best - float(levels[max(deepest, 0)]), abs=1e-9)


def test_where_both_events_hold_no_step_is_broken(walked):
    _, _, policy, found = walked
    beta = torch.tensor([policy.batch.sqrt_beta(t) ** 2 for t in range(1, ROUNDS + 1)], dtype=F64)
    claims = found.claims(beta, 0.1, 0.1)
    assert claims["Step 1"].frequency == claims["Step 2"].frequency == 1
    assert float(found.links[found.split].diff(dim=-1).max()) <= 1e-9
    for name in ("Step 3", "Proposition 2", "Step 5", "theorem"):
        assert claims[name].violations == 0, name
    assert claims["Lemma 4 as printed"].frequency == 0  # broken by the root in every run
    sharper = regret.most_draws(1.0, found.allowed / beta.sqrt(), 0.1, found.prior_variance)
    assert bool((found.draws <= torch.tensor(sharper)).all())


# Lemma 1: the union over the leaves


@pytest.mark.parametrize("branching", [2, 3, 5])
def test_the_leaves_of_all_rounds_spend_no_more_than_theta(branching):
    policy = GPOO(cell_problem(fourier(0), branching=branching).space, failure=0.2)
    spent = sum(
        (1 + (branching - 1) * (t - 1)) * math.exp(-(policy.batch.sqrt_beta(t) ** 2) / 2) for t in range(1, 2000)
    )
    assert 0.199 < spent < 0.2
    # A normal variable leaves its band with no larger probability than the sum is made of.
    assert all(math.erfc(z / math.sqrt(2)) <= math.exp(-z * z / 2) for z in np.linspace(0, 8, 81))


def test_a_round_has_no_more_leaves_and_leaves_stay_within_their_widths_as_often_as_promised():
    kernel, replicates = rbf_kernel(0.2, 1.0), 80
    functions = prior_samples(kernel, UNIT, range(replicates))
    problem = cell_problem(functions, branching=3, points_per_cell=3, noise_std=0.5, replicates=replicates)
    policy = made(GPOO, problem, kernel, delta=lambda h: 4 * 3.0**-h, failure=0.5)
    seen = simulate(problem, policy, 15, range(replicates), watch=lambda batch: {"leaves": batch.leaf.sum(1)})
    assert bool((seen["leaves"] <= 1 + 2 * torch.arange(1, 16)).all())
    found = regret.walk(problem, policy, 15, range(replicates))
    assert float((found.error <= 1).all(1).double().mean()) >= 0.5
    assert float(found.error.max()) > 0.5  # widths that say something


# Lemma 5: the widths of AVE-StoOO as printed


def test_the_printed_widths_fail_with_probability_below_two_theta():
    # Azuma with steps in an interval of length 1: P <= 2 exp(-2 n w^2) with w^2 = 2 log(m^2 / theta) / n, at most m
    # pairs of a node and a draw a round.
    for theta in (0.01, 0.1, 0.3, 0.49):
        union = sum(m * 2 * math.exp(-4 * math.log(m**2 / theta)) for m in range(1, 5000))
        assert union == pytest.approx(2 * 1.00834928 * theta**4, rel=1e-6)
        assert union < 2 * theta
    assert union == pytest.approx(0.116, abs=0.001)


def test_the_nth_draw_of_the_jth_node_comes_no_earlier_than_in_round_j_plus_n_minus_1():
    rng = np.random.default_rng(0)
    for _ in range(200):
        order, draws = {}, {}
        for t, node in enumerate(rng.integers(0, 6, 30), start=1):
            j = order.setdefault(node, len(order) + 1)
            draws[node] = draws.get(node, 0) + 1
            assert t >= j + draws[node] - 1


def test_means_of_coins_leave_the_printed_widths_no_more_often_than_the_union_says():
    theta, rounds, paths = 0.49, 300, 20_000
    rng = np.random.default_rng(1)
    n = np.arange(1, rounds + 1)
    outside = np.zeros(paths, dtype=bool)
    for part in range(0, paths, 2000):
        means = rng.integers(0, 2, (2000, rounds)).cumsum(1) / n
        outside[part : part + 2000] = (np.abs(means - 0.5) > np.sqrt(2 * np.log(n**2 / theta) / n)).any(1)
    assert outside.mean() <= 0.116


def test_ave_stooo_splits_near_optimal_cells_and_draws_no_node_too_often():
    class Coins:
        """The tent through rewards of 0 and 1."""

        def __init__(self, problem):
            self.problem, self.value = problem, problem.value

        def observe(self, query, generators):
            uniform = torch.stack([torch.rand((), generator=g, dtype=F64) for g in generators])
            return (uniform < self.problem.value(query.unsqueeze(1)).squeeze(1)).to(F64)

    problem = cell_problem(lambda x: 0.8 - (x[..., 0] - 0.6).abs(), points_per_cell=2)
    policy = AveStoOO(problem.space, delta=lambda h: 2.0**-h, failure=0.1)

    def watch(batch):
        depth = batch.tree.depth.expand_as(batch.draws)
        gap = problem.optimum - problem.values(batch.tree.boxes) - 3 * 2.0**-depth
        limit = 2 + 2 * math.log((batch.round - 1) ** 2 / 0.1 + 1) * 4.0**depth
        return {"gap": gap.masked_fill(~batch.split, -1).amax(1), "over": (batch.draws - limit).amax(1)}

    seen = simulate(Coins(problem), policy, 250, range(6), watch=watch)
    assert float(seen["gap"].max()) <= 1e-9
    assert float(seen["over"].max()) <= 0


# The counting


def test_the_toy_of_the_page():
    draws, counts = [3, 4, 10, 34], [1, 1, 2]
    assert regret.absorbed(draws, counts, 2) == [3, 11, 31, 167]
    assert [regret.depth_reached(n, draws, counts, 2) for n in (3, 4, 11, 12, 31, 32)] == [-1, 0, 0, 1, 1, 2]


@given(
    st.integers(1, 10_000),
    st.floats(1, 40),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0.1, 0.9),
    st.integers(2, 4),
    st.floats(0.01, 0.5),
    st.booleans(),
)
def test_the_depth_of_theorem_1_is_that_of_a_hand_written_sum(rounds, beta, counts, rho, branching, noise, printed):
    delta = [2 * rho**h for h in range(len(counts) + 1)]

    def limit(depth):
        return beta * noise**2 / delta[depth] ** 2

    reached = None
    for depth in range(len(counts)):
        if printed:
            total = sum(branching * counts[h] * limit(h) for h in range(depth + 1))
        else:
            total = 2 + limit(0) + sum(branching * counts[h] * (2 + limit(h + 1)) for h in range(depth + 1))
        if abs(total / rounds - 1) < 1e-9:
            return  # rounding decides
        if total >= rounds and reached is None:
            reached = depth
    reached = len(counts) if reached is None else reached
    deltas = torch.tensor(delta, dtype=F64)
    if printed:
        assert regret.printed_depth(rounds, beta, counts, deltas, branching, noise) == reached
    else:
        found = regret.depth_reached(rounds, regret.most_draws(beta, deltas, noise), counts, branching)
        assert found == (-1 if rounds <= 2 + limit(0) else reached)


def test_equation_8_promises_no_regret_after_one_round_when_the_noise_vanishes():
    delta = 14 * 2.0 ** -torch.arange(40, dtype=F64)
    counts = [2.0 * 2**h for h in range(39)]  # more than there are
    promises = [3 * float(delta[regret.printed_depth(1, 20.0, counts, delta, 2, s)]) for s in (1e-2, 1e-4, 1e-6, 1e-8)]
    assert promises == sorted(promises, reverse=True) and promises[-1] < 1e-4
    problem, _ = both("peaks", 2, 1, noise_std=1e-8)
    policy = made(GPOO, problem, rbf_kernel(0.05, 0.1), delta=lambda h: 14 * 2.0**-h)
    found = regret.walk(problem, policy, 1, [0])
    assert bool((found.fall <= found.allowed_star).all()) and float(found.error.max()) < 1
    assert float(found.regret[0, 0]) > 0.1
    assert regret.depth_reached(1, regret.most_draws(20.0, delta, 1e-8), counts, 2) == -1  # corrected: no promise


def test_corollary_1_as_printed_is_below_what_equation_8_gives_it():
    branching, constant, noise, rho, beta, rounds = 2, 4.0, 0.1, 0.5, 30.0, 100
    for d in (0.0, 0.5, 1.0):
        delta = rho ** torch.arange(40, dtype=F64)
        counts = (constant * (3 * delta) ** -d).tolist()
        h = regret.printed_depth(rounds, beta, counts, delta, branching, noise)
        c_1 = 3**-d * branching * constant * noise**2 / (rho ** -(d + 2) - 1)
        printed = c_1 * (beta / rounds) ** (1 / (d + 2))
        derived = 3 * (c_1 * rho ** -(d + 2) * beta / rounds) ** (1 / (d + 2))
        assert printed < 3 * float(delta[h]) <= derived
        assert c_1 ** ((d + 1) / (d + 2)) < 3 / rho
