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
    return simulate(problem, policy, 5, [0, 1], progress=False)["query"]


def test_with_the_rule_of_thumb_both_methods_are_the_librarys():
    problem = problems.newsvendor()
    for mine, theirs in (
        ({"radius": 0}, SBOKDE(problem.space, **EFFORT)),
        ({"cover": 16}, DRBOKDE(problem.space, cover=16, **EFFORT)),
    ):
        found, wanted = run(OtherEstimate(problem.space, **mine, **EFFORT), problem), run(theirs, problem)
        assert_close(found, wanted, rtol=0, atol=1e-3)


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
