"""The links of Lemma 3, the counting of Theorem 1, and the policies and problems that test them."""

import math

import pytest
import torch

from book.aggregated import chain, theory
from book.aggregated.experiments import delta
from book.aggregated.problems import UNIT, curve_problem, prior
from book.aggregated.regret import ledger
from cbo_lib.aggregated import GPOO, Space
from cbo_lib.former.simulate import simulate
from cbo_lib.random import ReplicateGenerators
from tests.aggregated.helpers import F64


@pytest.fixture(scope="module")
def stairs():
    problem = curve_problem("peaks", 10)
    policy = GPOO(problem.space, prior=prior("peaks"), delta=delta)
    return problem, policy, chain.staircase(problem, policy, 40, range(4))


def test_there_is_a_staircase_for_every_expansion(stairs):
    problem, policy, found = stairs
    history = simulate(problem, policy, 40, range(4))
    split = history["expanded"].mT.nonzero()  # by step, then replicate
    assert torch.equal(torch.stack([found.step - 1, found.replicate], -1), split)
    at = split[:, 1], split[:, 0]
    assert torch.equal(found.depth, history["depth"][at])
    torch.testing.assert_close(found.links[:, 0], history["value"][at])
    three = 3 * delta(found.depth.to(F64))
    torch.testing.assert_close(found.links[:, 5], problem.optimum - three)
    # b = mean + width + delta, so the second and third links differ by 2 (delta - width).
    width = history["width"][at]
    torch.testing.assert_close(found.links[:, 1] - found.links[:, 2], 2 * (three / 3 - width))


def test_no_link_breaks_where_both_events_hold(stairs):
    problem, policy, found = stairs
    claims = ledger(simulate(problem, policy, 40, range(4)), problem, policy).claims
    assert claims["xi_1"].frequency == claims["xi_2"].frequency == 1
    assert float(found.links.diff(dim=-1).max()) <= 1e-9
    # The last sign has two parts: the lowest point and its distance.
    low = found.low + found.reach - 3 * delta(found.depth.to(F64))
    assert bool((found.links[:, 4] >= low - 1e-9).all())
    assert bool((low >= found.links[:, 5] - 1e-9).all())


def test_after_the_observation_the_drawn_cell_need_not_win():
    problem = curve_problem("peaks", 10)
    policy = GPOO(problem.space, prior=prior("peaks"), delta=delta)
    found = chain.staircase(problem, policy, 40, range(4), after=True)
    broken = (found.links.diff(dim=-1) > 1e-9).sum(0)
    assert int(broken[2]) > 0
    assert broken[[0, 1, 3, 4]].tolist() == [0, 0, 0, 0]


def test_the_toy_of_the_page():
    draws, counts = [3, 4, 10, 34], [1, 1, 2, 2]
    assert chain.absorbed(draws, counts, 2)[:4] == [3, 11, 31, 167]
    budgets = (3, 4, 11, 12, 31, 32)
    assert [chain.depth_reached(n, draws, counts, 2) for n in budgets] == [-1, 0, 0, 1, 1, 2]
    assert chain.counting_table(draws, counts, 2)["rounds up to here"].tolist() == [3, 11, 31, 167]


@pytest.mark.parametrize("steps", [3, 12, 40, 200])
def test_the_counting_is_that_of_the_corrected_theorem(steps):
    levels, counts = delta(torch.arange(6, dtype=F64)), [1.0, 2.0, 3.0, 4.0, 4.0]
    draws = chain.most_draws(30.0, levels, 0.1)
    assert chain.depth_reached(steps, draws, counts, 2) == theory.theorem_depth(steps, 30.0, counts, levels, 2, 0.1)


def test_a_prior_that_knows_the_average_saves_draws():
    levels = torch.tensor([1.0, 0.1], dtype=F64)
    plain = chain.most_draws(30.0, levels, 0.1)
    sharp = chain.most_draws(30.0, levels, 0.1, torch.tensor([0.001, 0.1], dtype=F64))
    assert plain == pytest.approx([2.3, 32.0])
    assert sharp == pytest.approx([1.0, 31.9])  # 2.3 - 10 is below one draw


def test_an_isolated_cell_learns_from_its_own_draws_alone():
    problem = curve_problem("peaks", 10, 2, 0.5)
    policy = chain.IsolatedGPOO(problem.space, prior=prior("peaks", 0.5), delta=delta)
    history = simulate(problem, policy, 30, [0])
    mean, variance = policy.own()
    node = int(policy.draws[0].argmax())
    box = policy.tree.boxes[node]
    hit = (history["query"][0] == box).flatten(1).all(-1)
    kappa = float(policy.prior.posterior(None).variance(problem.space.measure(box[None])))
    times = int(hit.sum())
    assert times == int(policy.draws[0, node]) > 1
    assert float(variance[0, node]) == pytest.approx(kappa * 0.25 / (0.25 + times * kappa))
    expected = kappa * float(history["observation"][0][hit].sum()) / (0.25 + times * kappa)
    assert float(mean[0, node]) == pytest.approx(expected)


def test_bounded_rewards_stay_within_their_reach_and_have_their_deviation():
    problem = chain.BoundedProblem(Space(UNIT), lambda x: 0.5 + 0 * x[..., 0], 0.1)
    seeds = range(2000)
    seen = problem.observe(UNIT.expand(2000, 1, 2, 1)[:, 0], ReplicateGenerators(list(seeds)).at(1))
    assert float((seen - 0.5).abs().max()) <= math.sqrt(3) * 0.1
    assert float(seen.std()) == pytest.approx(0.1, rel=0.05)
