"""Batches of replicates against plain Python, step by step, and what the policies promise and refuse."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from book.subsets.regret import counted
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from tests.subsets import plain
from tests.subsets.helpers import (
    F64,
    FEW,
    HARD,
    SEEDS,
    choices,
    drawn_path,
    exhausted,
    flat,
    partial,
    prior,
    run,
    solid,
    watched,
    world_of,
)

FEATURES = 40


class Today:
    """What the plain posterior says of the decisions that the library found in one step."""

    def __init__(self, spy, replicate, step, sqrt_beta=2.0):
        self.belief, self.candidates = spy.belief(replicate, step), spy.candidates.numpy()
        self.controlled, self.sqrt_beta, self.points = spy.controlled.numpy(), sqrt_beta, {}
        for count, side, wanted, decisions in spy.found:
            if count == step:
                for i in torch.nonzero(wanted[replicate]).flatten().tolist():
                    point = decisions.points[replicate, i].numpy()
                    self.points.setdefault((i, 1 if side > 0 else -1), []).append(point)

    def tracked_lower(self):
        subsets = range(len(self.controlled))
        return max(self.belief.expected_bounds(i, self.candidates, -self.sqrt_beta).max() for i in subsets)

    def search(self, i, sign):
        """Searches are asked for in the order in which the library made them."""
        self.last = self.points[i, sign].pop(0)
        mean, std = self.belief.expected(i, self.last)
        start = self.belief.expected_bounds(i, self.candidates, sign * self.sqrt_beta).max()
        # no worse than the best candidate, but for the resolution
        assert mean + sign * self.sqrt_beta * std >= start - 1e-3
        return mean, std

    def uppers(self):
        """The bounds of the subsets that were searched, minus infinity for the others."""
        upper = [-math.inf] * len(self.controlled)
        for i, _ in list(self.points):
            mean, std = self.search(i, 1)
            upper[i] = mean + self.sqrt_beta * std
        return upper

    def nothing_is_left(self):
        return not any(self.points.values())


# A problem, another belief about it, what the policy is told, and the steps.
SCENARIOS = {
    "default": (solid, {}, {"exploration_budget": 2.5}, 18),
    "rounds": (solid, {}, {"rounds": 2, "horizon": 300, "alpha": lambda s: 0.45}, 14),
    "costs decide": (
        lambda: solid((0.1, 0.2, 0.6, 0.5)),
        {},
        {"rounds": 3, "horizon": 1, "alpha": lambda s: 0.4 / 3 ** (s // 3)},
        24,
    ),
    "costs that vary little": (
        lambda: solid((0.3, 0.34, 0.8, 0.32), 0.05),
        {},
        {"rounds": 2, "cost_spread": 0.05, "alpha": lambda s: 0.3},
        18,
    ),
    "one round": (solid, {}, {"exploration_budget": 0.1}, 9),
    "noisy costs": (lambda: solid(cost_std=0.3), {}, {"exploration_budget": 3.0}, 20),
    "costs without noise": (flat, {}, {}, 20),
    "a subset for nothing": (lambda: solid((0.0, 0.05, 0.6, 0.2), 0.0), {}, {"exploration_budget": 1.5}, 11),
    "no full set": (partial, {}, {"exploration_budget": 1.3}, 14),
    "overconfident": (solid, {"mean": 4.0, "variance": 0.01}, {"rounds": 1}, 16),
    "far too high": (solid, {"mean": 6.0, "variance": 0.01}, {"rounds": 1, "alpha": lambda s: 0.3}, 16),
    "below zero": (solid, {"mean": -4.0, "variance": 1e-4}, {"rounds": 2, "alpha": lambda s: 0.3}, 12),
    "no alpha": (solid, {}, {"rounds": 3, "alpha": lambda s: 0.0, "sqrt_beta": 1.0}, 16),
}


@functools.cache
def played(name):
    """One run of Algorithm 1, with its spy."""
    make, belief, options, steps = SCENARIOS[name]
    problem = make()
    options = {"cost_spread": 1.0, **options}
    policy = CheapestGoodSubset(problem.space, prior=prior(problem, **belief), effort=FEW, **options)
    return problem, policy, run(problem, watched(problem, policy), steps)


@pytest.mark.parametrize("name", SCENARIOS)
def test_algorithm_1_is_replayed_step_by_step_from_the_observations(name):
    """The plain code keeps its own state and costs.

    It takes over where each maximum was found, and its own posterior says what is there.
    """
    problem, policy, history = played(name)
    for r in range(len(SEEDS)):
        world = world_of(problem, policy.prior, FEW)
        algorithm = plain.AlgorithmOne(world, problem.space.budget, **SCENARIOS[name][2])
        for t in range(history["subset"].shape[1]):
            today = Today(policy.search, r, t, algorithm.sqrt_beta)
            subset = algorithm.choose(today)
            record = {key: tensor[r, t].tolist() for key, tensor in history.tensors.items()}
            assert today.nothing_is_left()
            assert record["subset"] == subset
            assert record["good"] == algorithm.good
            assert (record["exploring"], record["resets"]) == (algorithm.exploring, algorithm.resets)
            assert (record["horizon"], record["alpha"]) == (algorithm.horizon, algorithm.alpha_now)
            for key in ("upper", "lower", "cost_lower"):
                np.testing.assert_allclose(record[key], getattr(algorithm, key), rtol=0, atol=1e-7, err_msg=key)
            assert_learned(history, policy, r, t, today)
            algorithm.pay(record["cost"])
            assert record["spent"] == pytest.approx(sum(map(sum, algorithm.paid)), abs=1e-9)
        assert policy.plays[r].tolist() == [len(paid) for paid in algorithm.paid]
        np.testing.assert_allclose(policy.paid[r], [sum(paid) for paid in algorithm.paid], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["default", "costs decide"])
def test_what_algorithm_1_finds_is_hardly_worse_than_a_dense_grid(name):
    """The search climbs one hill, from the best candidate or the last maximizer; another may be a little higher."""
    make, belief, options, _ = SCENARIOS[name]
    problem = make()
    policy = CheapestGoodSubset(problem.space, prior=prior(problem, **belief), effort=HARD, **options)
    run(problem, watched(problem, policy), 14, SEEDS[:1])
    for count, sqrt_beta, wanted, decisions in policy.search.found:
        if count in (1, 6, 12, 13):
            dense = policy.search.belief(0, count)
            for i in torch.nonzero(wanted[0]).flatten().tolist():
                grid = dense.world.grid(i, {1: 101, 2: 21, 3: 9}[len(problem.space.control_sets[i])])
                best = dense.expected_bounds(i, grid, sqrt_beta).max()
                assert float(decisions.bound(sqrt_beta)[0, i]) >= best - 0.02


def assert_learned(history, policy, replicate, step, today):
    """What every policy records."""
    record = {key: tensor[replicate, step].tolist() for key, tensor in history.tensors.items()}
    query, full = np.array(record["query"]), np.array(record["played"])
    expected = today.belief.expected(record["subset"], query[1:])
    assert (record["expected_mean"], record["expected_std"]) == pytest.approx(expected, abs=1e-7)
    there = [float(part[0]) for part in today.belief.moments(full[None])]
    assert (record["mean"], record["std"]) == pytest.approx(there, abs=1e-7)
    free = [1 + j for j in range(len(query) - 1) if j not in policy.space.control_sets[record["subset"]]]
    assert bool((query[free] == 0.5).all()) and record["subset"] == query[0]
    assert record["spent"] == pytest.approx(float(history["cost"][replicate, : step + 1].sum()), abs=1e-9)


def schedule(t):
    return 1.2 / t**0.5


@pytest.mark.parametrize("make", [solid, partial, lambda: solid((1.0, 0.05, 0.3, 0.6), 0.0)])
@pytest.mark.parametrize("name", ["ucb", "cvs", "etc", "etc without plays"])
def test_the_baselines_choose_as_plain_code_does(name, make):
    problem = make()
    process, sizes = prior(problem), [len(controls) for controls in problem.space.control_sets]
    policy, choose = {
        "ucb": (UCBPSQ(problem.space, prior=process, effort=FEW), lambda upper, t: plain.first_best(upper)),
        "cvs": (
            UCBCVS(problem.space, cost_means=problem.cost_means, prior=process, effort=FEW, epsilon=schedule),
            lambda upper, t: plain.ucb_cvs(upper, problem.cost_means.tolist(), schedule(t + 1)),
        ),
        "etc": (
            GroupETC(problem.space, prior=process, effort=FEW, plays_per_group=5),
            lambda upper, t: plain.etc(upper, sizes, t, 5),
        ),
        "etc without plays": (
            GroupETC(problem.space, prior=process, effort=FEW, plays_per_group=0),
            lambda upper, t: plain.etc(upper, sizes, t, 0),
        ),
    }[name]
    history = run(problem, watched(problem, policy), 13)
    for r in range(len(SEEDS)):
        for t in range(13):
            today = Today(policy.search, r, t)
            upper = today.uppers()
            assert int(history["subset"][r, t]) == choose(upper, t)
            (found,) = (d for count, _, _, d in policy.search.found if count == t)
            asked = history["query"][r, t]
            assert torch.equal(asked[1:], found.points[r, int(asked[0])])
            assert_learned(history, policy, r, t, today)
            groups = sorted(set(sizes))[:-1] if name == "etc" else []
            searched = [len(groups) <= t // 5 or size == groups[t // 5] for size in sizes]
            assert [u > -math.inf for u in upper] == searched


@pytest.mark.parametrize("make", [solid, partial])
def test_thompson_sampling_plays_the_largest_expectation_of_a_plain_path(make):
    problem = make()
    process = prior(problem)
    policy = watched(problem, TSPSQ(problem.space, prior=process, effort=HARD, features=FEATURES))
    steps = 6
    history = run(problem, policy, steps)
    for r, seed in enumerate(SEEDS):
        for t in range(steps):
            today = Today(policy.search, r, t)
            path = drawn_path(today.belief, choices(seed, t + 1), FEATURES)
            maxima, points = (part[r].numpy() for part in policy.search.sampled[t])
            values = [path.expected(i, points[i]) for i in range(problem.space.m)]
            np.testing.assert_allclose(maxima, values, rtol=0, atol=1e-7)
            subset = plain.first_best(values)
            assert int(history["subset"][r, t]) == subset
            assert history["query"][r, t, 1:].tolist() == points[subset].tolist()
            assert_learned(history, policy, r, t, today)
            for i, controls in enumerate(problem.space.control_sets if r == 0 else ()):
                # With three variables the best candidate may stand at the foot of a lesser hill.
                grid = today.belief.world.grid(i, 41 if len(controls) == 1 else 13)
                others = policy.search.candidates.numpy() if len(controls) == 3 else grid
                assert values[i] >= max(path.expected(i, x) for x in others) - 1e-4


MAKERS = {
    "proposed": lambda p, prior: CheapestGoodSubset(p.space, prior=prior, effort=FEW, exploration_budget=1.6),
    "theory": lambda p, prior: CheapestGoodSubset(
        p.space, prior=prior, effort=FEW, rounds=1, alpha=lambda s: 0.2, horizon=99
    ),
    "thompson": lambda p, prior: TSPSQ(p.space, prior=prior, effort=FEW, features=FEATURES),
    "ucb": lambda p, prior: UCBPSQ(p.space, prior=prior, effort=FEW),
    "cvs": lambda p, prior: UCBCVS(p.space, cost_means=p.cost_means, prior=prior, effort=FEW),
    "etc": lambda p, prior: GroupETC(p.space, prior=prior, effort=FEW, plays_per_group=4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_recommendation_is_the_asked_decision_of_the_largest_lower_bound(name):
    problem = solid()
    history = run(problem, MAKERS[name](problem, prior(problem)), 9)
    lower = history["expected_mean"] - 2 * history["expected_std"]
    for r in range(len(SEEDS)):
        for t in range(9):
            best = int(lower[r, : t + 1].argmax())
            assert torch.equal(history["recommendation"][r, t], history["query"][r, best])
    torch.testing.assert_close(history["recommended_value"], problem.value(history["recommendation"]))


@settings(max_examples=10)
@given(
    name=st.sampled_from(sorted(MAKERS)),
    costs=st.lists(st.sampled_from([0.02, 0.1, 0.2, 0.5, 1.0]), min_size=3, max_size=3),
    cost_std=st.sampled_from([0.0, 0.05, 0.4]),
    budget=st.sampled_from([0.5, 1.0, 2.5]),
    seed=st.integers(0, 1000),
)
def test_the_budget_is_never_overspent(name, costs, cost_std, budget, seed):
    """The plays that count are paid for, and the first that does not count could not be."""
    problem = dataclasses.replace(
        flat().with_budget(max(budget, min(costs))), cost_means=torch.tensor(costs, dtype=F64), cost_std=cost_std
    )
    policy = MAKERS[name](problem, prior(problem))
    policy.effort, policy.features, steps = Effort(4, 4, 1), 8, 20
    history = run(problem, policy, steps, [seed, seed + 1], stop=exhausted(problem))
    paid = counted(history, problem)
    for r in range(2):
        spent, plays = 0.0, 0
        for cost in history["cost"][r].tolist():
            if spent + cost > problem.space.budget:
                break
            spent, plays = spent + cost, plays + 1
        assert paid[r].tolist() == [t < plays for t in range(paid.shape[1])]
        assert float(history["cost"][r][paid[r]].sum()) <= problem.space.budget + 1e-9
    if paid.shape[1] < steps:  # the run ended when, and only when, nobody could go on
        assert not paid[:, -1].any()
    assert paid.shape[1] == 1 or paid[:, -2].any()


@settings(max_examples=10)
@given(
    costs=st.lists(st.sampled_from([0.05, 0.1, 0.2, 0.5]), min_size=3, max_size=3),
    cost_std=st.sampled_from([0.0, 0.0, 0.05, 0.4]),
    allowed=st.sampled_from([0.01, 0.5, 1.0, 2.0]),
    seed=st.integers(0, 1000),
)
def test_exploration_keeps_to_its_budget(costs, cost_std, allowed, seed):
    """Whole rounds, at least one; each but the first was within the budget at the averages before it.

    So exploration exceeds its budget by no more than what one round costs above those averages, unless the first round
    does alone; without noise it never does. And it goes on while another round fits.
    """
    problem = flat().with_budget(9.0)
    problem = dataclasses.replace(problem, cost_means=torch.tensor(costs, dtype=F64), cost_std=cost_std)
    policy = CheapestGoodSubset(problem.space, prior=prior(problem), effort=Effort(4, 4, 1), exploration_budget=allowed)
    history = run(problem, policy, 15, [seed, seed + 1])
    for r in range(2):
        explored, cost = int(history["exploring"][r].sum()), history["cost"][r]
        rounds, rest = divmod(explored, 3)
        assert bool(history["exploring"][r, :explored].all())
        assert history["subset"][r, :explored].tolist() == [0, 1, 2] * rounds + list(range(rest))
        table = cost[: 3 * rounds].reshape(rounds, 3)
        for k in range(1, rounds):
            assert float(table[:k].sum() + table[:k].mean(0).sum()) <= allowed + 1e-9
        if explored < 15:
            assert rest == 0 and rounds >= 1
            assert float(table.sum() + table.mean(0).sum()) > allowed - 1e-9
            if rounds > 1:
                above = float((table[-1] - table[:-1].mean(0)).sum())
                assert float(table.sum()) <= allowed + max(above, 0.0) + 1e-9
                assert cost_std > 0 or float(table.sum()) <= allowed + 1e-9


def test_the_policies_find_the_best_decision_of_an_easy_problem():
    """Simple regret after twenty-five plays, and the proposed method spends less than those that look for the best."""
    problem = solid((0.05, 0.1, 0.2, 1.0), 0.0)
    ends, spent = {}, {}
    for name in ("proposed", "ucb", "thompson"):
        history = run(problem, MAKERS[name](problem, prior(problem)), 25)
        ends[name] = problem.optimum - history["value"].amax(-1)
        spent[name] = float(history["spent"][:, -1].mean())
    assert all(bool((end < 0.05).all()) for end in ends.values())
    assert spent["proposed"] < min(spent["ucb"], spent["thompson"])
