"""Regrets of a run that is written down, the steps of the proof on runs, and the bounds."""

import math

import pytest
import torch

from book.subsets import regret
from book.subsets.garden import NOISE, garden, prior
from cbo_lib.simulate import History
from cbo_lib.subsets import CheapestGoodSubset

F64 = torch.float64
PROBLEM, TAU, T, ALPHA = garden(1e6), 4, 40, 0.1


@pytest.fixture(scope="module")
def run():
    policy = CheapestGoodSubset(
        PROBLEM.space, prior=prior(), alpha=ALPHA, rounds=TAU, horizon=T, contexts=16, raw=32, steps=6
    )
    return regret.walk(PROBLEM, policy, T, range(3))


def test_regrets_of_a_written_run():
    query = torch.tensor([[[0.0, 0.5, 0.5, 0.5], [4.0, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.5]]], dtype=F64)
    value = torch.tensor([[1.0, 2.0, 1.8]], dtype=F64)
    spent = torch.tensor([[0.1, 1.1, 1.25]], dtype=F64)
    history = History({"query": query, "value": value, "spent": spent}, [0])
    best = float(PROBLEM.optimum)
    torch.testing.assert_close(regret.quality_regret(history, PROBLEM, ALPHA), 0.9 * best - value)
    costs = regret.cost_regret(history, PROBLEM, ALPHA)
    torch.testing.assert_close(costs, torch.tensor([[0.0, 0.85, 0.0]], dtype=F64))  # the goal is light, at 0.15
    weighted = regret.cost_varying_regret(history, PROBLEM)
    torch.testing.assert_close(weighted, torch.tensor([[0.1, 1.0, 0.15]], dtype=F64) * (best - value))
    assert regret.at_cost(history, PROBLEM, value, 1.2).tolist() == [2.0]
    assert regret.at_cost(history, PROBLEM, value, 9.0).tolist() == [1.8]


def test_every_step_of_the_proof_holds_in_runs(run):
    late = ~run["exploring"][0]
    assert int(late.sum()) == T - TAU * PROBLEM.space.m
    sets, W = regret.subsets_of(run), 2.0 * run["expected_std"]
    upper, lower = run["upper"][:, late], run["lower"][:, late]
    assert bool((upper >= PROBLEM.best_values - 1e-9).all() and (lower <= PROBLEM.optimum).all())  # Step 2
    assert bool((run["good"][:, late] | ~PROBLEM.acceptable(ALPHA)).all())  # Step 5
    turns = ~late & (sets == PROBLEM.best_subset)[0]
    assert bool(((PROBLEM.optimum - lower) <= 2 * W[:, turns].amin(-1, keepdim=True)).all())  # Step 6
    own = upper.gather(-1, sets[:, late, None]).squeeze(-1)
    assert bool(((1 - ALPHA) * lower < own).all())  # Step 7, line 16
    before = run["plays"].gather(-1, sets[..., None]).squeeze(-1).clamp_min(1)
    radius = (2 * math.log(T) / before).sqrt()
    assert bool((regret.cost_regret(run, PROBLEM, ALPHA) <= 2 * radius + 1e-9)[:, late].all())  # Step 9


def test_dear_sets_are_played_as_rarely_as_the_bound_says(run):
    gaps = PROBLEM.cost_means - PROBLEM.cost_means[PROBLEM.cheapest(ALPHA)]
    counts = torch.stack([(regret.subsets_of(run) == i).sum(-1) for i in range(PROBLEM.space.m)], -1)
    dear = gaps > 0
    most = (8 * math.log(T) / gaps[dear] ** 2 + 1).clamp_min(TAU)
    assert bool((counts[:, dear] <= most).all())


def test_the_information_of_points_is_that_of_their_matrix(run):
    x = run["query"][0, :5, 1:]
    gram = prior().kernel(x).to_dense()
    told, exact = [], torch.linalg.slogdet(torch.eye(5, dtype=F64) + gram / NOISE**2)[1] / 2
    posterior = prior().posterior()
    from cbo_lib.measure import Measure

    for row in x:
        here = Measure.dirac(row.unsqueeze(0))
        told.append(posterior.variance(here).sqrt())
        posterior = posterior.extend(here, [0.0])
    torch.testing.assert_close(regret.gained(torch.cat(told), NOISE)[-1], exact)


def test_bounds_grow_as_the_page_says():
    def gain(t):
        return math.log(1 + t)

    def sqrt_beta(t):
        return 2.0

    totals = [sum(regret.theorem_1(h, (h / 5) ** (2 / 3), 5, 2.0, gain, sqrt_beta).values()) for h in (1e12, 1e15)]
    assert 0.6 < math.log10(totals[1] / totals[0]) / 3 < 0.75
    tau = regret.smallest_exploration(0.2, 0.1, 5, gain, sqrt_beta)
    for t, right in ((tau, True), (tau / 1.01, False)):
        width = 2 * math.sqrt(4 * (t + 2) * gain(t)) + regret.constant(0.1, 5)
        assert (2 * 2.0 * width / t <= 0.2 / 1.9) == right
    assert regret.constant(0.1, 5) - regret.constant(0.1) == pytest.approx(4 * math.log(5))
