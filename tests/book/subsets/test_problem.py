"""Variable subsets on small functions whose expectations are known in closed form."""

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
        assert abs(value - truth) < 4 * error + 1e-9
        assert error < 2e-3 or row[0] == 2
    assert bool((errors[q[:, 0] == 2] < 1e-9).all())
    assert torch.allclose(values[q[:, 0] == 2], waves(q[q[:, 0] == 2, 1:]))


def test_observations_hold_the_point_the_value_and_the_cost():
    p = problem(noise_std=0.0)
    q = queries()[:3]
    seen = p.observe(q, generators())
    assert set(seen) == {"played", "y", "cost"} and torch.equal(seen["played"][:, 0], q[:, 0])
    point, cost = seen["played"][:, 1:], seen["cost"]
    assert point.shape == (3, 3) and point.dtype == F64 and cost.shape == (3,)
    controlled = p.space.controlled[q[:, 0].long()]
    assert torch.equal(point[controlled], q[:, 1:][controlled])
    assert not bool((point[~controlled] == q[:, 1:][~controlled]).any())
    assert torch.allclose(seen["y"], waves(point))
    assert float(cost[0]) == 0.01 and not bool((cost[1:] == p.cost_means[1:]).any())


def test_free_coordinates_noise_and_costs_have_their_distributions():
    p, draws = problem(), ReplicateGenerators(range(4))
    q = torch.tensor([[0, 0.3, 0.5, 0.5], [1, 0.5, 0.2, 0.9], [2, 0.1, 0.6, 0.7], [1, 0.5, 0.2, 0.9]], dtype=F64)
    rows = [p.observe(q, draws.at(t)) for t in range(1500)]
    seen = torch.stack([torch.cat([row["played"][:, 1:], row["y"][:, None], row["cost"][:, None]], -1) for row in rows])
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
        assert float(cost.mean()) == pytest.approx(mean, abs=1e-9)
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
    assert torch.allclose(p.value(torch.cat([index, p.best_points], -1)), p.best_values)
    q = queries(3, 600)
    assert bool((p.value(q) <= p.best_values[q[:, 0].long()] + 1e-9).all())


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


def test_observed_rows_are_drawn_together_and_averaged_exactly(rng):
    """The rows keep how variables vary together, and ``value`` is their average."""
    rows = torch.rand(37, 3, generator=rng, dtype=F64)
    for table in (rows, rows.numpy(), rows.tolist(), pd.DataFrame(rows.numpy(), columns=["a", "b", "c"])):
        p = problem(free=table, noise_std=0.0)
        q = queries()[:3]
        mark = p.space.controlled[q[:, 0].long()]
        full = torch.where(mark.unsqueeze(1), q[:, 1:].unsqueeze(1), rows)
        torch.testing.assert_close(p.value(q), waves(full).mean(-1), rtol=0, atol=1e-9)
        played = torch.cat([p.observe(q[:1], generators([s]))["played"][:, 1:] for s in range(60)])
        pairs = {tuple(row) for row in rows[:, 1:].tolist()}
        assert all(tuple(row) in pairs for row in played[:, 1:].tolist()) and len(played.unique(dim=0)) > 20
    assert torch.equal(p.space.samples(64), rows) and p.space.samples(16).shape == (16, 3)
