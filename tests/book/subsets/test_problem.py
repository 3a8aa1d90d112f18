"""Variable subsets on small functions whose expectations are known in closed form."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, truncnorm

from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from cbo_lib.distributions import Uniform
from cbo_lib.random import ReplicateGenerators
from cbo_lib.subsets import Space
from tests.subsets.helpers import unit

F64 = torch.float64
SETS = ((0,), (1, 2), (0, 1, 2))
MARGINALS = (truncated_normal(0.04), Uniform(), truncated_normal(0.02))
WAVES = ((3.0, 0.3), (7.0, 0.0), (5.0, 1.0))


def waves(x):
    """A product of one wave a variable, so that its expectations factor."""
    return torch.stack([1 + torch.sin(a * x[..., k] + b) for k, (a, b) in enumerate(WAVES)]).prod(0)


def expected(subset, x):
    """The expectation of ``waves`` by one-dimensional quadrature."""
    factors = []
    for k, (a, b) in enumerate(WAVES):

        def wave(z, a=a, b=b):
            return 1 + math.sin(a * z + b)

        def weighted(z, k=k, wave=wave):
            return wave(z) * float(MARGINALS[k].density(torch.tensor(z, dtype=F64)))

        factors.append(wave(x[k]) if k in SETS[subset] else quad(weighted, 0, 1, epsabs=1e-11)[0])
    return math.prod(factors)


def space(**changes):
    return Space(**({"bounds": unit(3), "control_sets": SETS, "free": MARGINALS, "budget": 100.0} | changes))


def problem(**changes):
    known = {name: changes.pop(name) for name in ("bounds", "control_sets", "free", "budget") if name in changes}
    arguments = {
        "f": waves,
        "cost_means": torch.tensor([0.01, 0.2, 1.0], dtype=F64),
        "cost_std": torch.tensor([0.0, 0.02, 0.02], dtype=F64),
        "noise_std": 0.1,
    }
    return SubsetProblem(space(**known), **(arguments | changes))


def queries(seed=0, n=12):
    generator = torch.Generator().manual_seed(seed)
    subsets = torch.arange(n) % len(SETS)
    return torch.cat([subsets[:, None].to(F64), torch.rand(n, 3, generator=generator, dtype=F64)], -1)


def generators(seeds=(5, 6, 7), step=0):
    return ReplicateGenerators(seeds).at(step)


def test_values_are_expectations():
    p = problem()
    q = queries()
    values, errors = p.value(q), p.value_error(q)
    for row, value, error in zip(q.tolist(), values.tolist(), errors.tolist(), strict=True):
        truth = expected(int(row[0]), row[1:])
        assert abs(value - truth) < 4 * error + 1e-12
        assert error < 2e-3 or row[0] == 2
    assert bool((errors[q[:, 0] == 2] == 0).all())
    assert torch.equal(values[q[:, 0] == 2], waves(q[q[:, 0] == 2, 1:]))


def test_the_error_of_values_is_what_it_says():
    """Root mean squared over scrambles, the stated and the true error agree."""
    p, q = problem(nodes=64), queries(1, 6)
    q = q[q[:, 0] < 2]
    truth = torch.tensor([expected(int(row[0]), row[1:]) for row in q.tolist()])
    stated = p.value_error(q, scrambles=400)
    rules = [p.space.samples(64, k, 9) for k in range(400)]
    actual = torch.stack([p._rows(*p._split(q), rule) - truth for rule in rules]).square().mean(0).sqrt()
    torch.testing.assert_close(stated, actual, rtol=0.25, atol=0)


def test_more_nodes_make_smaller_errors():
    q = queries()[:2]
    errors = torch.stack([problem(nodes=n).value_error(q, 16) for n in (16, 128, 1024, 4096)])
    assert bool((errors[:-1] > 3 * errors[1:]).all())


def test_values_do_not_depend_on_their_company_or_shape():
    p, q = problem(), queries()
    together = p.value(q)
    assert torch.equal(torch.stack([p.value(row) for row in q]), together)
    assert torch.equal(p.value(q.reshape(2, 3, 2, 4)), together.reshape(2, 3, 2))
    assert p.value(q[:0]).shape == (0,)
    assert p.value(q[0]).shape == ()
    blind = q.clone()
    blind[:, 1:][~p.space.controlled[q[:, 0].long()]] = math.nan
    assert torch.equal(p.value(blind), together)
    assert torch.equal(p.subset_values(1, q[:, 1:]), p.value(torch.cat([torch.ones(12, 1, dtype=F64), q[:, 1:]], -1)))


def test_learners_share_no_points_with_the_truth():
    p = problem()
    truth = {tuple(row) for row in p._nodes.tolist()}
    for seed in (0, 1, 2):
        own = p.space.samples(256, seed)
        assert own.shape == (256, 3)
        assert torch.equal(own, p.space.samples(256, seed))
        assert not truth & {tuple(row) for row in own.tolist()}
        assert not bool((own == p.space.samples(256, seed + 1)).any())
        for k, marginal in enumerate(MARGINALS):
            fine = marginal.inverse_cdf((torch.arange(4096, dtype=F64) + 0.5) / 4096)
            assert float(own[:, k].var()) == pytest.approx(float(fine.var()), rel=0.03)
    with pytest.raises(ValueError, match="count must be an integer of at least 1, got 0"):
        p.space.samples(0, 1)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        p.space.samples(4, -1)


def test_observations_hold_the_point_the_value_and_the_cost():
    p = problem(noise_std=0.0)
    q = queries()[:3]
    seen = p.observe(q, generators())
    assert set(seen) == {"played", "y", "subset", "cost"} and torch.equal(seen["subset"], q[:, 0].long())
    point, cost = seen["played"], seen["cost"]
    assert point.shape == (3, 3) and point.dtype == F64 and cost.shape == (3,)
    controlled = p.space.controlled[q[:, 0].long()]
    assert torch.equal(point[controlled], q[:, 1:][controlled])
    assert not bool((point[~controlled] == q[:, 1:][~controlled]).any())
    assert torch.equal(seen["y"], waves(point))
    assert float(cost[0]) == 0.01 and not bool((cost[1:] == p.cost_means[1:]).any())


def test_replicates_are_the_same_alone_and_in_company():
    p, q = problem(), queries()[:3]
    together = p.observe(q, generators())
    for r, seed in enumerate((5, 6, 7)):
        for name, part in p.observe(q[r : r + 1], generators([seed])).items():
            assert torch.equal(part[0], together[name][r])
    # What a replicate plays does not shift its later numbers.
    other = q.clone()
    other[0, 0] = 2.0
    a, b = generators(), generators()
    p.observe(q, a), p.observe(other, b)
    assert torch.equal(p.observe(q, a)["y"], p.observe(q, b)["y"])


def test_free_coordinates_noise_and_costs_have_their_distributions():
    p, draws = problem(), ReplicateGenerators(range(4))
    q = torch.tensor([[0, 0.3, 0.5, 0.5], [1, 0.5, 0.2, 0.9], [2, 0.1, 0.6, 0.7], [1, 0.5, 0.2, 0.9]], dtype=F64)
    rows = [p.observe(q, draws.at(t)) for t in range(1500)]
    seen = torch.stack([torch.cat([row["played"], row["y"][:, None], row["cost"][:, None]], -1) for row in rows])
    free = seen[:, [1, 3], 0].flatten().numpy()
    a = 0.5 / MARGINALS[0].scale
    assert kstest(free, truncnorm(-a, a, 0.5, MARGINALS[0].scale).cdf).pvalue > 1e-4
    assert kstest(seen[:, 0, 1].numpy(), "uniform").pvalue > 1e-4
    noise = (seen[..., 3] - waves(seen[..., :3])).flatten().numpy()
    assert kstest(noise / 0.1, "norm").pvalue > 1e-4
    cost = seen[:, [1, 3], 4].flatten().numpy()
    assert kstest((cost - 0.2) / 0.02, "norm").pvalue > 1e-4
    assert kstest((seen[:, 2, 4].numpy() - 1.0) / 0.02, "norm").pvalue > 1e-4
    parts = np.corrcoef(np.stack([seen[:, 1, k].numpy() for k in (0, 3, 4)]))
    assert np.abs(parts - np.eye(3)).max() < 0.6  # y depends on the free point, nothing is a copy
    # A mean of y is the value of the query.
    spread = seen[:, 0, 3].std() / math.sqrt(1500)
    assert float((seen[:, 0, 3].mean() - p.value(q[0])).abs() / spread) < 4


@pytest.mark.parametrize("std", [0.0, 0.02, math.sqrt(0.02), 5.0])
def test_costs_are_never_negative_and_keep_their_mean(std):
    p = problem(cost_means=torch.tensor([0.0, 0.1, 1.0], dtype=F64), cost_std=std)
    u = torch.linspace(0, 1, 20001, dtype=F64)[1:-1]
    for i, mean in enumerate((0.0, 0.1, 1.0)):
        cost = p._costs(torch.full_like(u, i).long(), u)
        assert float(cost.min()) >= 0 and float(cost.max()) <= 2 * mean
        assert float(cost.mean()) == pytest.approx(mean, abs=1e-12)
        if std > 0 and mean > 0:
            theirs = truncnorm(-mean / std, mean / std, mean, std)
            np.testing.assert_allclose(cost, theirs.ppf(u.numpy()), rtol=1e-9, atol=1e-9)
        else:
            assert bool((cost == mean).all())
    ends = p._costs(torch.tensor([1, 1, 2]), torch.tensor([0.0, 1 - 2**-53, 0.5], dtype=F64))
    assert bool(torch.isfinite(ends).all()) and float(ends[2]) == 1.0


def test_best_values_are_those_of_a_fine_grid():
    p = problem(nodes=128)
    line = torch.linspace(0, 1, 201, dtype=F64)
    for i, subset in enumerate(SETS[:2]):
        x = torch.full((201 ** len(subset), 3), 0.5, dtype=F64)
        x[:, list(subset)] = torch.cartesian_prod(*[line] * len(subset)).reshape(-1, len(subset))
        grid = torch.cat([p._average(p.space.controlled[i], part, p._nodes) for part in x.split(4096)])
        assert float(p.best_values[i] - grid.max()) == pytest.approx(0, abs=2e-3)
        assert float(p.best_values[i]) >= float(grid.max())
        assert float((p.best_points[i] - x[grid.argmax()]).abs().max()) < 0.01
    assert float(p.best_values[2]) == pytest.approx(8, abs=1e-9)  # every wave reaches its top
    assert torch.equal(p.best_points[~p.space.controlled], torch.full((3,), 0.5, dtype=F64))


def test_best_values_are_values_and_nothing_random_is_better():
    p = problem()
    index = torch.arange(3, dtype=F64).unsqueeze(-1)
    assert torch.equal(p.value(torch.cat([index, p.best_points], -1)), p.best_values)
    q = queries(3, 600)
    assert bool((p.value(q) <= p.best_values[q[:, 0].long()]).all())


SLOPES = st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.25, 1.0, 3.0]), min_size=4, max_size=4)


@given(SLOPES, st.sets(st.integers(1, 15), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=8)
def test_linear_functions_have_best_values_in_closed_form(slopes, codes, random):
    """E X = 1/2, so a subset gains ``|a_l| / 2`` on the middle for each variable that it holds."""
    sets = tuple(tuple(k for k in range(4) if code >> k & 1) for code in sorted(codes, key=lambda _: random.random()))
    a = torch.tensor(slopes, dtype=F64)
    costs = torch.tensor([random.choice([0.01, 0.1, 1.0]) for _ in sets], dtype=F64)
    space = Space(unit(4), sets, (truncated_normal(0.03),) * 4, 100.0)
    p = SubsetProblem(space, lambda x: 10 + x @ a, costs)
    best = torch.stack([10 + a.sum() / 2 + a[list(s)].abs().sum() / 2 for s in sets])
    torch.testing.assert_close(p.best_values, best, rtol=0, atol=2e-3)
    for i, s in enumerate(sets):
        assert torch.equal(p.best_points[i, list(s)], (a[list(s)] > 0).to(F64))
    for alpha in (0.0, 0.03, 0.3):
        allowed = best >= (1 - alpha) * best.max() - 1e-9
        if float((best - (1 - alpha) * best.max()).abs().min()) < 5e-3 and alpha > 0:
            continue  # too close to the threshold to call
        if alpha > 0:
            assert torch.equal(p.acceptable(alpha), allowed)
        chosen = p.cheapest(alpha)
        assert bool(p.acceptable(alpha)[chosen])
        assert float(costs[chosen]) == float(costs[p.acceptable(alpha)].min())


def constants(values, costs, sets=((0,), (1,), (0, 1))):
    """A problem whose best values are given."""
    p = SubsetProblem(Space(unit(2), sets, (Uniform(),) * 2, 100.0), waves, torch.tensor(costs, dtype=F64))
    p.__dict__["_best"] = (torch.zeros(len(sets), 2, dtype=F64), torch.tensor(values, dtype=F64))
    return p


def test_the_cheapest_acceptable_subset_and_its_ties():
    p = constants([9.0, 9.5, 10.0], [0.3, 0.1, 0.2])
    assert p.acceptable(0.1).tolist() == [True, True, True] and p.cheapest(0.1) == 1
    assert p.acceptable(0.07).tolist() == [False, True, True] and p.cheapest(0.07) == 1
    assert p.acceptable(0.0).tolist() == [False, False, True] and p.cheapest(0.0) == p.best_subset == 2
    assert float(p.optimum) == 10.0
    assert constants([9.0, 9.5, 10.0], [0.1, 0.1, 0.2]).cheapest(0.5) == 1  # equally cheap: the better one
    assert constants([10.0, 9.5, 10.0], [0.1, 0.1, 0.1]).cheapest(0.5) == 0  # equal in both: the first
    assert constants([10.0 - 1e-8, 10.0, 3.0], [0.2, 1.0, 0.1]).best_subset == 0  # as good as the best, and cheaper
    assert constants([10.0 - 1e-8, 10.0, 3.0], [0.2, 0.2, 0.1]).best_subset == 0


def test_a_fraction_of_a_negative_optimum_is_refused():
    with pytest.raises(ValueError, match=r"f must not be below space\.floor = 0 at its best, got an optimum of -1"):
        constants([-2.0, -1.0, -3.0], [0.1, 0.1, 0.1]).acceptable(0.1)
    assert constants([-2.0, 0.0, -3.0], [0.1, 0.1, 0.1]).acceptable(0.1).tolist() == [False, True, False]
    for alpha in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\), got"):
            constants([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]).acceptable(alpha)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control_sets": ((0,), (), (1,))}, r"control_sets must be nonempty, .* got \(\)"),
        ({"control_sets": ((0,), (1, 1), (2,))}, "control_sets must be nonempty, with different variables, got"),
        ({"control_sets": ((0,), (1, 3), (2,))}, "control_sets must be an integer from 0 to 2, got"),
        ({"control_sets": ((-1,), (1, 2), (2,))}, "control_sets must be an integer from 0 to 2, got"),
        ({"control_sets": ((0, 1), (1, 0), (2,))}, "control_sets must all be different"),
        ({"control_sets": ()}, "control_sets must be one or more sets of indices, got"),
        ({"control_sets": (0, 1)}, "control_sets must be one or more sets of indices, got"),
        ({"free": MARGINALS[:2]}, "free must be one distribution a variable, 3, got"),
        ({"free": [[0.1, 0.2]]}, r"free must have shape \(n, 3\) with n >= 1, got"),
        ({"free": [[0.1, 0.2, math.nan]]}, "free must be finite, got"),
        ({"bounds": [[1.0, 0, 0], [2.0, 1, 1]]}, r"free must vary in the units of bounds, \[1, 2\] of variable 0, got"),
        ({"bounds": [[1.0, 0, 0], [0.0, 1, 1]]}, "bounds must have each lower bound below the upper, got"),
        ({"cost_means": torch.tensor([0.1, 0.2], dtype=F64)}, r"cost_means must be floats, one a control set \(3,\)"),
        ({"cost_means": torch.tensor([1, 2, 3])}, r"cost_means must be floats, .* got torch.int64"),
        ({"cost_means": torch.tensor([0.1, -0.2, 1.0])}, "cost_means must be nonnegative and finite"),
        ({"cost_means": torch.tensor([0.1, math.nan, 1.0])}, "cost_means must be nonnegative and finite"),
        ({"cost_std": -0.1}, "cost_std must be nonnegative and finite, got -0.1"),
        ({"cost_std": torch.zeros(2)}, r"cost_std must be a number or one a control set \(3,\), got shape \(2,\)"),
        ({"noise_std": -1.0}, "noise_std must be nonnegative and finite"),
        ({"noise_std": math.inf}, "noise_std must be nonnegative and finite"),
        ({"budget": 0.005}, r"pay for the cheapest control set \(0.01\), got 0.005"),
        ({"budget": 0.0, "cost_means": torch.zeros(3)}, "budget must be positive"),
        ({"budget": math.inf}, "budget must be positive and finite"),
        ({"budget": math.nan}, "budget must be positive and finite"),
        ({"nodes": 1000}, "nodes must be a power of two, got 1000"),
        ({"nodes": 0}, "nodes must be a power of two, got 0"),
    ],
)
def test_bad_problems_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        problem(**changes)


def test_what_is_allowed_at_the_edge():
    assert problem(control_sets=((0, 1), (1, 2), (0, 2))).space.m == 3  # overlapping, and none is full
    assert problem(budget=0.01).space.budget == 0.01
    assert problem(control_sets=((2, 0), (1,), (0,))).space.controlled.tolist() == [
        [True, False, True],
        [False, True, False],
        [True, False, False],
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([3, 0.5, 0.5, 0.5], "query must begin with the index of a control set, 0 to 2"),
        ([-1, 0.5, 0.5, 0.5], "query must begin with the index of a control set"),
        ([0.5, 0.5, 0.5, 0.5], "query must begin with the index of a control set"),
        ([math.nan, 0.5, 0.5, 0.5], "query must begin with the index of a control set"),
        ([0, 1.01, 0.5, 0.5], r"query must have its controlled coordinates in the box"),
        ([1, 0.5, 0.5, -0.01], r"query must have its controlled coordinates in the box"),
        ([0, math.nan, 0.5, 0.5], r"query must have its controlled coordinates in the box"),
        ([0, 0.5, 0.5], r"query must have shape \(\.\.\., 4\)"),
    ],
)
def test_bad_queries_are_refused(row, message):
    query = torch.tensor([row], dtype=F64)
    with pytest.raises(ValueError, match=message):
        problem().value(query)
    with pytest.raises(ValueError, match=message.replace(r"\.\.\.", "replicates")):
        problem().observe(query, generators([1]))


def test_more_or_fewer_queries_than_replicates_are_refused():
    with pytest.raises(ValueError, match="generators must be one a replicate, 3, got 1"):
        problem().observe(queries()[:3], generators([1]))
    with pytest.raises(ValueError, match=r"query must have shape \(replicates, 4\), got \(4,\)"):
        problem().observe(queries()[0], generators([1]))
    with pytest.raises(ValueError, match="scrambles must be at least 2, got 1"):
        problem().value_error(queries(), 1)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_dtypes_are_those_of_the_box(dtype):
    p = problem(bounds=unit(3).to(dtype), cost_means=torch.tensor([0.01, 0.2, 1.0], dtype=dtype))
    q, samples = queries()[:3].to(dtype), p.space.samples(8, 0)
    for tensor in (p.value(q), p.observe(q, generators())["y"], p.best_values, p.best_points, samples):
        assert tensor.dtype == dtype and bool(torch.isfinite(tensor).all())


def test_functions_of_many_hills_do_not_trap_the_search():
    """Rastrigin's function: some thousand local maxima, the largest at a point of its own."""
    top = torch.tensor([0.137, 0.718, 0.42, 0.9], dtype=F64)

    def rastrigin(x):
        z = 8 * (x - top)
        return (torch.cos(2 * math.pi * z) * 2 - z.square()).sum(-1)

    known = Space(unit(4), ((0, 1), (0, 1, 2, 3)), (Uniform(),) * 4, 100.0)
    p = SubsetProblem(known, rastrigin, torch.tensor([0.1, 1.0], dtype=F64))
    torch.testing.assert_close(p.best_points[1], top, rtol=0, atol=1e-6)
    torch.testing.assert_close(p.best_points[0, :2], top[:2], rtol=0, atol=1e-6)
    line = np.linspace(0, 1, 4001)
    side = [np.mean(2 * np.cos(16 * math.pi * (line - t)) - 64 * (line - t) ** 2) for t in (0.42, 0.9)]
    assert float(p.best_values[0]) == pytest.approx(4 + sum(side), abs=0.02)
    assert p.acceptable(0.0).tolist() == [False, True]


def test_a_floor_moves_what_a_share_is_counted_from():
    p = constants([-2.0, -1.0, -3.0], [0.1, 0.1, 0.1])
    p = dataclasses.replace(p, space=dataclasses.replace(p.space, floor=-4.0))
    p.__dict__["_best"] = (torch.zeros(3, 2, dtype=F64), torch.tensor([-2.0, -1.0, -3.0], dtype=F64))
    assert p.acceptable(0.4).tolist() == [True, True, False]


def test_observed_rows_are_drawn_together_and_averaged_exactly(rng):
    """The rows keep how variables vary together, and ``value`` is their average."""
    rows = torch.rand(37, 3, generator=rng, dtype=F64)
    for table in (rows, rows.numpy(), rows.tolist(), pd.DataFrame(rows.numpy(), columns=["a", "b", "c"])):
        p = problem(free=table, noise_std=0.0)
        q = queries()[:3]
        mark = p.space.controlled[q[:, 0].long()]
        full = torch.where(mark.unsqueeze(1), q[:, 1:].unsqueeze(1), rows)
        torch.testing.assert_close(p.value(q), waves(full).mean(-1), rtol=0, atol=1e-12)
        played = torch.cat([p.observe(q[:1], generators([s]))["played"] for s in range(60)])
        pairs = {tuple(row) for row in rows[:, 1:].tolist()}
        assert all(tuple(row) in pairs for row in played[:, 1:].tolist()) and len(played.unique(dim=0)) > 20
    assert torch.equal(p.space.samples(64), rows) and p.space.samples(16).shape == (16, 3)


def test_other_units_are_the_same_problem():
    low, side = torch.tensor([-3.0, 100.0, 0.0], dtype=F64), torch.tensor([2.0, 50.0, 1e-3], dtype=F64)
    rows = torch.rand(16, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    one = problem(free=rows)
    two = problem(
        bounds=[low.tolist(), (low + side).tolist()], free=low + side * rows, f=lambda x: waves((x - low) / side)
    )
    torch.testing.assert_close(one.best_values, two.best_values, rtol=0, atol=1e-9)
    torch.testing.assert_close(low + side * one.best_points, two.best_points, rtol=1e-6, atol=0)
