"""Three ways to the same posterior, and what each costs."""

import pytest
import torch

from book.aggregated import cost, studies
from book.aggregated.experiments import delta
from book.aggregated.problems import curve_problem, prior
from cbo_lib.aggregated import GPOO
from cbo_lib.measure import Measure


@pytest.fixture(scope="module")
def run():
    problem = curve_problem("peaks", 2)
    policy = GPOO(problem.space, prior=prior("peaks"), delta=delta)
    return problem, cost.record(problem, policy, 25)


def test_every_way_gives_the_posterior_of_the_leaves(run):
    _, found = run
    steps = {name: way(found) for name, way in cost.WAYS.items()}
    for t in range(25):
        results = {name: step(t) for name, step in steps.items()}
        for mean, variance in results.values():
            torch.testing.assert_close(mean, results["anew"][0], rtol=0, atol=1e-10)
            torch.testing.assert_close(variance, results["anew"][1], rtol=0, atol=1e-10)


def test_a_recorded_run_is_that_of_the_policy(run):
    problem, found = run
    policy = GPOO(problem.space, prior=prior("peaks"), delta=delta)
    policy.start([0])
    for answer, node, leaves in zip(found.answers, found.drawn, found.leaves, strict=True):
        query = policy.ask()
        assert int(policy.chosen[0]) == node
        assert torch.equal(policy.leaf[0].nonzero()[:, 0], leaves)
        policy.tell(query, answer[None])
    posterior = prior("peaks").condition(
        Measure.average(problem.space.representatives(policy.tree.boxes[found.drawn[:24]])), found.answers[:24]
    )
    at = Measure.average(problem.space.representatives(policy.tree.boxes[found.leaves[24]]))
    step = cost.rank_one(found)
    mean, variance = [step(t) for t in range(25)][-1]
    torch.testing.assert_close(mean, posterior.mean(at), rtol=0, atol=1e-9)
    torch.testing.assert_close(variance, posterior.variance(at), rtol=0, atol=1e-9)


def test_remark_2_bounds_the_leaves_and_the_count(run):
    _, found = run
    for t, leaves in enumerate(found.leaves):
        assert len(leaves) <= 1 + t
    counted = cost.multiplications(found)
    assert bool((counted["appended"] <= counted["anew"] + 25).all())
    assert float(counted["rank one"][-1]) < float(counted["appended"][-1])


def test_the_first_rounds_of_the_stored_costs_are_what_a_run_gives():
    stored = studies.load("cost")
    first = stored.iloc[0]["N"][0]
    for row, (_, kept) in zip(studies.cost([0], steps=first), stored.iterrows(), strict=True):
        assert row["way"] == kept["way"]
        assert row["multiplications"][-1] == kept["multiplications"][0]
        assert row["leaves"][-1] == kept["leaves"][0]
        assert kept["apart"] < 1e-9
