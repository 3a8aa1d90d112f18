"""What caution does where f is known, and the estimates that it is compared with."""

import pytest
import torch
from sklearn.model_selection import GridSearchCV, LeaveOneOut
from sklearn.neighbors import KernelDensity
from torch.testing import assert_close

from book.contexts import caution, problems
from book.contexts.controls import (
    SHARES,
    CautiousKnownDensity,
    FixedDiscrepancy,
    OtherEstimate,
    cross_validated_bandwidth,
    no_bandwidth,
)
from cbo_lib.contexts.density import silverman_bandwidth
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE
from cbo_lib.former.simulate import simulate
from cbo_lib.random import ReplicateGenerators

F64 = torch.float64
EFFORT = {"samples": 32, "initial": 4, "raw": 8, "starts": 1, "iterations": 2}


def contexts(problem, count, seeds=(0, 1, 2)):
    return problem.distribution.sample(ReplicateGenerators(seeds).generators, (count,))


@pytest.mark.parametrize("dim", [1, 2])
def test_the_bandwidth_is_that_of_scikit_learn(dim):
    seen = torch.cat([contexts(problems.complicated_hartmann(), 30, (k, 7)) for k in range(dim)], -1)
    found = cross_validated_bandwidth(seen)
    for each, bandwidth in zip(seen, found, strict=True):
        rule = silverman_bandwidth(each)
        search = GridSearchCV(KernelDensity(), {"bandwidth": list(SHARES)}, cv=LeaveOneOut())
        share = search.fit((each / rule).numpy()).best_params_["bandwidth"]
        assert_close(bandwidth, share * rule)


def run(policy, problem):
    return simulate(problem, policy, 7, [0, 1], progress=False)["query"]


def test_with_the_rule_of_thumb_both_methods_are_the_librarys():
    problem = problems.newsvendor()
    same = run(OtherEstimate(problem.space, radius=0, **EFFORT), problem)
    assert torch.equal(same, run(SBOKDE(problem.space, **EFFORT), problem))
    same = run(OtherEstimate(problem.space, cover=16, **EFFORT), problem)
    assert torch.equal(same, run(DRBOKDE(problem.space, cover=16, **EFFORT), problem))


def test_estimates_draw_what_they_say():
    problem = problems.complicated_hartmann()
    policy = OtherEstimate(problem.space, bandwidth=no_bandwidth, **EFFORT)
    run(policy, problem)
    assert bool((policy.draw().unsqueeze(2) == policy.contexts.unsqueeze(1)).any(2).all())
    known = CautiousKnownDensity(problem.space, distribution=problem.distribution, **EFFORT)
    run(known, problem)
    assert known.draw().shape == (2, 32, 1)


@pytest.mark.parametrize("law", list(caution.LAWS))
def test_nodes_have_the_mean_of_their_law(law):
    problem = problems.complicated_hartmann()
    seen = contexts(problem, 25)
    found = caution.nodes(law, seen, problem)
    assert found.shape == (3, 512, 1)
    points, weights = problem.expectation_nodes
    expected = points[:, 0] @ weights if law == "known" else seen.mean((1, 2))
    assert_close(found.mean((1, 2)), expected.expand(3), rtol=0, atol=0.03)


def test_decisions_under_the_truth_are_the_best_and_a_ball_is_the_worst_average_of_f():
    problem = problems.complicated_hartmann()
    truth = caution.nodes("known", contexts(problem, 5), problem)[:1]
    best = caution.decisions(problem, truth, 0.0)
    assert float(problem.optimum - problem.value(best)) == pytest.approx(0, abs=1e-5)
    everywhere = caution.decisions(problem, truth, 2.0)  # the worst context alone counts
    grid = torch.linspace(0, 1, 257, dtype=F64)[:, None]
    floors = [float(problem.evaluate(x, grid).min()) for x in (everywhere, best)]
    assert floors[0] >= floors[1]


def test_what_is_stored_is_what_runs():
    stored = caution.stored()
    live = caution.known_function(scale="reader", seeds=[100, 101])
    row = live.loc["rule of thumb, 1, 100"]
    kept = stored.loc[("rule of thumb", 1.0, 100)]
    assert list(row) == pytest.approx([kept["100"], kept["101"]], abs=2e-6)
    assert stored.shape == (4 * 4 * 6, 40)


def test_the_ball_of_a_long_lengthscale_holds_more():
    frame = caution.discrepancy(scale="reader", seeds=[100, 101])
    assert frame.loc["1.0, 349", "held"] > frame.loc["0.2, 349", "held"]
    assert bool((frame["lost"] >= 0).all()) and frame.loc["0.05, 10", "stock"] == 0


def test_a_discrepancy_keeps_its_lengthscale_whatever_is_fitted():
    problem = problems.newsvendor()
    effort = {name: value for name, value in EFFORT.items() if name != "samples"}
    policy = FixedDiscrepancy(problem.space, lengthscale=0.2, size=5, **effort)
    history = simulate(problem, policy, 7, [0, 1], progress=False)
    gram = policy.gram(policy.posteriors())
    r = 5**0.5 * 0.25 / 0.2
    assert float(gram[0, 1]) == pytest.approx((1 + r + r**2 / 3) * 2.718281828459045**-r, rel=1e-9)
    assert gram.shape == (5, 5) and bool((history["lengthscale"][:, -1] != 0.2).any())
