"""Repairs of Algorithm 1: none changes nothing, and each does what it says and no more."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from book.subsets.repaired import (
    AveragePosterior,
    AverageSearch,
    Repaired,
    cost_radius,
    halved_once,
    halved_with_budget,
)
from cbo_lib.measure import Measure
from cbo_lib.subsets import CheapestGoodSubset
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


@functools.cache
def overconfident(discard):
    """The same under a prior of a mean far below the truth and nearly no variance."""
    problem = solid()
    space, options = known(problem, prior=prior(problem, variance=0.02, mean=0.2))
    return run(problem, Repaired(space, discard=discard, **options), 30)


@pytest.mark.parametrize("changes", [{}, {"alpha": 0.2, "horizon": 50, "cost_spread": 0.05}])
def test_without_repairs_it_plays_as_the_library(changes):
    problem = solid()
    space, options = known(problem, **changes)
    ours = run(problem, Repaired(space, **options), 20)
    theirs = run(problem, CheapestGoodSubset(space, **options), 20)
    assert bool((~ours["exploring"]).any()) and not bool(ours["discarded"].any())
    for name in theirs.tensors:
        assert torch.equal(ours[name], theirs[name]), name


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


def test_before_any_data_averages_have_the_prior_and_the_variance_of_a_mean():
    problem = solid()
    search = told(problem, prior(problem), 2, 0)
    posterior = AveragePosterior(search.posterior, search.contexts, search.controlled)
    mean, variance = posterior.mean_and_variance(search.candidates.expand(2, problem.space.m, *search.candidates.shape))
    belief = search.belief(0)
    assert bool((mean == 2.0).all())
    for i in range(problem.space.m):
        expected = belief.covariance(belief.world.completed(i, search.candidates[0].numpy())).mean()
        torch.testing.assert_close(variance[:, i], torch.full_like(variance[:, i], expected))


def test_widths_of_averages_are_below_averages_of_widths_and_equal_for_the_full_set():
    problem = solid()
    search = told(problem, prior(problem), 3, 7)
    averages = AverageSearch(problem.space, search.posterior, 3, FEW)
    torch.testing.assert_close(averages.tracked(0.0), search.tracked(0.0), rtol=0, atol=1e-6)
    narrow, wide = averages.tracked(1.0) - averages.tracked(0.0), search.tracked(1.0) - search.tracked(0.0)
    assert bool((narrow <= wide + 1e-6).all()) and bool((narrow[:, :3] < wide[:, :3]).all())
    torch.testing.assert_close(narrow[:, 3], wide[:, 3], rtol=0, atol=1e-6)
    found = averages.maximize(torch.ones(3, 4, dtype=torch.bool), 2.0)
    assert bool((found.bound(2.0) >= averages.tracked(2.0).amax(-1) - 1e-9).all())


def test_averages_play_with_hyperparameters_that_are_fitted_in_the_run():
    """Every replicate has a mean and a kernel of its own then; for the full set the average is f."""
    problem = solid()
    space, options = known(problem, prior=None, refit_every=5)
    policy = Repaired(space, averages=True, **options)
    run(problem, policy, 14)
    posterior, points = policy.search.posterior, policy.search.candidates[:5]
    average = AveragePosterior(posterior, policy.search.contexts, space.controlled[[3]])
    found = average.mean_and_variance(points.expand(3, 1, 5, 3))
    for part, expected in zip(found, posterior.mean_and_variance(Measure.dirac(points)), strict=True):
        torch.testing.assert_close(part[:, 0], expected, rtol=0, atol=1e-7)


def test_nothing_is_given_up_where_all_bounds_hold():
    problem, history = solid(), played(discard=True, sqrt_beta=8.0)
    assert bool((history["upper"] >= problem.best_values).all())
    assert bool((history["lower"] <= problem.optimum).all())
    assert not bool(history["discarded"].any())


def test_a_bound_below_todays_lower_bound_is_given_up():
    """That the upper bound of what is played is not below its own lower bound is what the repair says."""
    frozen = {}
    for discard in (False, True):
        history = overconfident(discard)
        upper = history["upper"].gather(-1, history["subset"].unsqueeze(-1)).squeeze(-1)
        low = history["expected_mean"] - 2 * history["expected_std"]
        frozen[discard] = bool((upper < low - 1e-9).any())
        assert bool(history["discarded"][:, -1].any()) == discard
        assert bool((history["discarded"].diff(dim=-1) >= 0).all())
    assert frozen == {False: True, True: False}


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


def test_one_play_says_nothing_and_a_horizon_of_one_allows_everything():
    plays, variance = torch.tensor([[50.0, 1.0]], dtype=F64), torch.tensor([[4e-4, 0.0]], dtype=F64)
    for kind in ("student", "bernstein"):
        assert cost_radius(kind, plays, variance, torch.tensor([100.0], dtype=F64)).isinf().tolist() == [[False, True]]
    none = cost_radius("student", plays, variance, torch.tensor([1.0], dtype=F64))
    assert none.tolist() == [[0.0, math.inf]]


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


def test_ties_go_to_the_least_average_cost():
    chosen = {}
    for cheap in (False, True):
        history = played(cheap_ties=cheap)
        own = torch.nn.functional.one_hot(history["subset"], 4)
        before = (own.cumsum(1) - own).clamp_min(1)
        average = ((own * history["cost"].unsqueeze(-1)).cumsum(1) - own * history["cost"].unsqueeze(-1)) / before
        tied = history["good"] & (history["cost_lower"] == 0)
        least = average.masked_fill(~tied, torch.inf).argmin(-1)
        late = ~history["exploring"] & (tied.sum(-1) > 1)
        assert bool(late.any())
        chosen[cheap] = bool((history["subset"] == least)[late].all())
    assert chosen == {False: False, True: True}


def test_schedules_of_alpha():
    assert [halved_once(s, 5) for s in (0, 4, 5, 50)] == [0.1, 0.1, 0.05, 0.05]
    left = [halved_with_budget(share) for share in (1.0, 0.6, 0.5, 0.25, 0.0)]
    assert left == pytest.approx([0.1, 0.1, 0.05, 0.025, 0.1 / 2**19])


def test_alpha_follows_the_budget_that_is_left_to_the_exploitation():
    history, budget = played(tolerance=halved_with_budget), solid().space.budget
    for r in range(3):
        paid = [0.0, *history["spent"][r].tolist()]  # before each play
        begun = int(history["exploring"][r].sum())
        for step in range(30):
            share = max(budget - paid[step], 0.0) / (budget - paid[begun])
            expected = 0.0 if step < begun else halved_with_budget(share)
            assert float(history["alpha"][r, step]) == pytest.approx(expected)
    assert len(history["alpha"].unique()) >= 3
