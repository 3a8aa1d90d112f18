"""Repairs of Algorithm 1: none changes nothing, and each does what it says and no more."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from book.subsets.repaired import (
    AveragePosterior,
    Repaired,
    cost_radius,
    halved_once,
    halved_with_budget,
)
from cbo_lib.subsets.policies import cost_lower_bound
from tests.subsets.helpers import F64, FEW, prior, run, solid, told


def known(problem, **changes):
    """Two rounds, then exploitation."""
    options = {"prior": prior(problem), "effort": FEW, "rounds": 2, "cost_spread": 1.0}
    return problem.space, options | changes


@functools.cache
def played(**changes):
    """Thirty plays of some variant."""
    problem = solid()
    space, options = known(problem, **changes)
    return run(problem, Repaired(space, **options), 30)


def test_bounds_of_averages_are_those_of_the_dense_formula():
    problem = solid()
    search = told(problem, prior(problem), 3, 7)
    points = torch.rand(3, problem.space.m, 4, 3, generator=torch.Generator().manual_seed(5), dtype=F64)
    posterior = AveragePosterior(search.posterior, search.contexts, search.controlled)
    mean, variance = posterior.mean_and_variance(points)
    for r in range(3):
        belief = search.belief(r)
        for i in range(problem.space.m):
            for n in range(4):
                full = belief.world.completed(i, points[r, i, n].numpy())
                assert float(mean[r, i, n]) == pytest.approx(belief.moments(full)[0].mean(), abs=1e-8)
                assert float(variance[r, i, n]) == pytest.approx(belief.covariance(full).mean(), abs=1e-8)
    torch.testing.assert_close(posterior.expected_ucb(points, -2.0), mean - 2 * variance.sqrt())


def test_student_radius_is_the_interval_of_the_textbook():
    plays, variance = torch.tensor([[2.0, 9.0, 50.0]], dtype=F64), torch.tensor([[0.3, 0.01, 4e-4]], dtype=F64)
    got = cost_radius("student", plays, variance, torch.tensor([20.0], dtype=F64))[0]
    for radius, n, v in zip(got.tolist(), plays[0].tolist(), variance[0].tolist(), strict=True):
        low, high = student.interval(1 - 2 / 20.0**4, n - 1, loc=0.4, scale=math.sqrt(v / n))
        assert [0.4 - radius, 0.4 + radius] == pytest.approx([low, high], rel=1e-6)


def test_bernstein_radius_is_theorem_4():
    """``sqrt(2 V ln(2 / delta) / n) + 7 ln(2 / delta) / (3 (n - 1))`` with ``delta = T^-4`` on each side."""
    delta = 20.0**-4
    for n, v in ((2.0, 0.3), (9.0, 0.01), (50.0, 0.0)):
        log = math.log(2 / delta)
        expected = math.sqrt(2 * v * log / n) + 7 * log / (3 * (n - 1))
        got = cost_radius("bernstein", *(torch.tensor([[value]], dtype=F64) for value in (n, v)), torch.tensor([20.0]))
        assert float(got) == pytest.approx(expected, rel=1e-6)


def test_radii_fail_as_rarely_as_they_say():
    """``T = 2`` allows a failure of one in eight; Student's radius has just that on normal costs."""
    generator, n, replicates = torch.Generator().manual_seed(0), 6, 40_000
    horizon, plays = torch.tensor([2.0], dtype=F64), torch.full((replicates, 1), float(n), dtype=F64)
    samples = {
        "student": 0.5 + 0.02 * torch.randn(replicates, n, generator=generator, dtype=F64),
        "bernstein": (torch.rand(replicates, n, generator=generator, dtype=F64) < 0.5).double(),
    }
    missed = {}
    for kind, costs in samples.items():
        radius = cost_radius(kind, plays, costs.var(-1, keepdim=True), horizon)
        missed[kind] = float(((costs.mean(-1, keepdim=True) - 0.5).abs() > radius).double().mean())
    assert missed["student"] == pytest.approx(2 / 2**4, abs=0.006)
    assert missed["bernstein"] <= 2 / 2**4
    average = samples["bernstein"].mean(-1, keepdim=True)
    lower = cost_lower_bound(average, plays, horizon)  # the algorithm's own radius, one side
    assert float((lower > 0.5).double().mean()) <= 1 / 2**4


@pytest.mark.parametrize("kind", ["student", "bernstein"])
def test_cost_bounds_are_made_of_the_costs_that_were_paid(kind):
    history = played(radius=kind, horizon=3)
    costs, subsets = history["cost"].numpy(), history["subset"].numpy()
    for r in range(3):
        for step in (9, 29):
            for i in range(4):
                paid = costs[r, :step][subsets[r, :step] == i]
                arguments = (torch.tensor([[v]], dtype=F64) for v in (float(len(paid)), np.var(paid, ddof=1)))
                radius = float(cost_radius(kind, *arguments, torch.tensor([3.0], dtype=F64)))
                expected = max(paid.mean() - radius, 0.0)
                assert float(history["cost_lower"][r, step, i]) == pytest.approx(expected, abs=1e-9)
    assert (float(history["cost_lower"].max()) > 0) == (kind == "student")


def test_schedules_of_alpha():
    assert [halved_once(s, 5) for s in (0, 4, 5, 50)] == [0.1, 0.1, 0.05, 0.05]
    left = [halved_with_budget(share) for share in (1.0, 0.6, 0.5, 0.25, 0.0)]
    assert left == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.1 / 2**19])
