"""The classes against the plain algorithms of ``plain.py``, and what a single run adds."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.distributions import Normal, Uniform
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from cbo_lib.run import read_observations
from cbo_lib.simulate import simulate
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, CheapestGoodSubset, GroupETC, Space
from cbo_lib.subsets.search import Path, PlayBelief
from tests.accelerator import DEVICE, close, needed
from tests.subsets import plain
from tests.subsets.helpers import F64, SETS, flat, prior, world

CLOSE = 0.02  # how far a search may stay below the best of a fine grid
GRID = 41
HARD = {"contexts": 8, "raw": 64, "steps": 20}


class Today:
    """What the posterior says, by a grid of decisions, each expectation a loop."""

    def __init__(self, belief, batch, replicate):
        self.belief, self.batch, self.r = belief, batch, replicate

    def grid(self, i, beta):
        points = self.belief.world.grid(i, GRID if len(SETS[i]) == 1 else 21)
        return points, self.belief.expected_bounds(i, points, beta)


def beliefs(batch):
    x, y = batch.queries[..., 1:].numpy(), batch.y.numpy()
    return [plain.Belief(world(batch.contexts), x[r], y[r]) for r in range(len(y))]


def run(policy, rounds, seeds=(3, 0), see=None):
    problem, batch = flat(), policy.start(list(seeds))
    noise = ReplicateGenerators(list(seeds), stream=0)
    with torch.no_grad():
        for t in range(1, rounds + 1):
            query = batch.ask()
            if see is not None:
                see(batch, query)
            seen = problem.observe(query, noise.at(t))
            batch.tell(seen["played"], seen["y"], seen["cost"])
    return batch


def test_algorithm_one_line_by_line():
    """Bounds of every round against the best of a grid, and sets, thresholds and costs exactly."""
    policy = CheapestGoodSubset(flat().space, prior=prior(), alpha=0.2, rounds=3, horizon=60, **HARD)
    paid = [[[] for _ in SETS], [[] for _ in SETS]]
    uppers = [[math.inf] * 3, [math.inf] * 3]

    def see(batch, query):
        step = batch.round - 1
        for r, belief in enumerate(beliefs(batch)):
            played = int(query[r, 0])
            exploring = step < 9
            for i in [step % 3] if exploring else range(3):  # lines 5, 11 and 15
                best = Today(belief, batch, r).grid(i, 2.0)[1].max()
                uppers[r][i] = min(uppers[r][i], best)
                assert batch.upper[r, i] == pytest.approx(uppers[r][i], abs=CLOSE)
            low = max(Today(belief, batch, r).grid(i, -2.0)[1].max() for i in range(3))
            assert batch.lower[r] <= max(low, float(batch.lower[r]) if step else low) + CLOSE
            if exploring:
                assert played == step % 3 and batch.begun[r] == -1  # line 4
            else:
                good = [float(u) > 0.8 * float(batch.lower[r]) for u in batch.upper[r]]  # line 16
                assert good == batch.good[r].tolist()
                bounds = [plain.cost_bound(costs, 60) for costs in paid[r]]  # lines 22 to 24
                np.testing.assert_allclose(batch.cost_lower[r].numpy(), bounds, atol=1e-9)
                least = min(b for b, ok in zip(bounds, good, strict=True) if ok)
                assert good[played] and bounds[played] == pytest.approx(least)  # lines 25 and 26

    problem, batch = flat(), policy.start([3, 0])
    noise = ReplicateGenerators([3, 0], stream=0)
    with torch.no_grad():
        for t in range(1, 21):
            query = batch.ask()
            see(batch, query)
            seen = problem.observe(query, noise.at(t))
            for r in range(2):
                paid[r][int(query[r, 0])].append(float(seen["cost"][r]))
            batch.tell(seen["played"], seen["y"], seen["cost"])
    assert batch.begun.tolist() == [9, 9] and batch.T.tolist() == [60, 60]


def test_every_expected_bound_is_the_plain_one():
    batch = run(UCBPSQ(flat().space, prior=prior(), **HARD), 12)
    points = torch.rand(2, 3, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    mean, std = batch.belief.moments(points, flat().space.controlled)
    for r, belief in enumerate(beliefs(batch)):
        for i in range(3):
            expected = belief.expected(i, points[r, i].numpy())
            assert (float(mean[r, i]), float(std[r, i])) == pytest.approx(expected, abs=1e-6)
    fresh = PlayBelief(flat().space, prior(), batch.queries[..., 1:], batch.y, batch.contexts)
    torch.testing.assert_close(batch.belief.inverse, fresh.inverse, rtol=1e-6, atol=1e-6)  # grown row by row


@pytest.mark.parametrize("kind", [UCBPSQ, UCBCVS, GroupETC])
def test_rivals_choose_as_the_plain_rules(kind):
    costs = [0.2, 0.1, 0.5]
    own = {"cost_means": costs, "epsilon": 0.3} if kind is UCBCVS else {}
    own |= {"plays_per_group": 4} if kind is GroupETC else {}

    def see(batch, query):
        for r, belief in enumerate(beliefs(batch)):
            upper = [float(Today(belief, batch, r).grid(i, 2.0)[1].max()) for i in range(3)]
            played, step = int(query[r, 0]), batch.round - 1
            if kind is UCBCVS:
                near = [i for i in range(3) if upper[i] + 0.3 + CLOSE >= max(upper)]
                surely = [i for i in range(3) if upper[i] + 0.3 - CLOSE >= max(upper)]
                assert played in near and costs[played] <= min(costs[i] for i in surely)
            else:
                allowed = range(2) if kind is GroupETC and step < 4 else range(3)
                assert played in allowed and upper[played] >= max(upper[i] for i in allowed) - CLOSE

    run(kind(flat().space, prior=prior(), **own, **HARD), 12, see=see)


def test_a_draw_has_the_mean_and_the_deviation_of_the_posterior():
    batch = run(UCBPSQ(flat().space, prior=prior(), **HARD), 8)
    x, y = (part[:1].expand(600, *part.shape[1:]) for part in (batch.queries[..., 1:], batch.y))
    belief = PlayBelief(flat().space, prior(), x, y, batch.contexts)
    points = torch.tensor([[0.3, 0.6]], dtype=F64).expand(3, 2)
    path = Path(belief, ReplicateGenerators(range(600)).at(0), 512)
    draws = path.expected([0, 1, 2])(points.expand(600, 3, 2).unsqueeze(2)).squeeze(-1)
    for i in range(3):
        full = torch.where(flat().space.controlled[i], points[0], batch.contexts)
        exact = prior().condition(Measure.dirac(x[0]), y[0])
        measure = Measure.average(full.unsqueeze(0))
        std = float(exact.variance(measure).sqrt())
        assert float(draws[:, i].mean()) == pytest.approx(float(exact.mean(measure)), abs=4 * std / 600**0.5 + 0.01)
        assert float(draws[:, i].std()) == pytest.approx(std, rel=0.15)


def test_replicates_do_not_know_each_other():
    policy = CheapestGoodSubset(flat().space, prior=prior(), rounds=2, contexts=8)
    both, one = simulate(flat(), policy, 9, [1, 2]), simulate(flat(), policy, 9, [2])
    torch.testing.assert_close(both["query"][1], one["query"][0], rtol=0, atol=1e-6)
    draws = TSPSQ(flat().space, prior=prior(), contexts=8, features=64)
    both, one = simulate(flat(), draws, 5, [1, 2]), simulate(flat(), draws, 5, [2])
    torch.testing.assert_close(both["query"][1], one["query"][0], rtol=0, atol=1e-6)


def told(policy, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        row = policy.ask()
        row[1:] = torch.where(flat().space.controlled[int(row[0])], row[1:], torch.rand(2, generator=generator).to(F64))
        policy.tell(row, float(flat().f(row[1:])), cost=float(flat().cost_means[int(row[0])]))
    return policy


def test_a_run_is_saved_and_goes_on_exactly(tmp_path):
    space = Space(flat().space.bounds, SETS, (Uniform(), Normal(0.5, 0.2)), 6.0, floor=0.0)
    policy = told(CheapestGoodSubset(space, prior=prior(), rounds=2, contexts=8), 8)
    policy.save(tmp_path / "run.npz")
    again = CheapestGoodSubset.load(tmp_path / "run.npz")
    assert again.count == 8 and again.batch.begun.tolist() == policy.batch.begun.tolist() == [6]
    torch.testing.assert_close(again.ask(), policy.ask())
    torch.testing.assert_close(again.recommend(), policy.recommend())
    assert set(read_observations(tmp_path / "run.npz")) == {"query", "y", "cost"}


def test_frames_come_back_and_a_fit_needs_no_prior():
    policy = told(UCBPSQ(flat().space, contexts=8), 5)
    frame = policy.to_frame()
    assert list(frame.columns) == ["subset", "1", "2", "cost", "y"]
    other = UCBPSQ(flat().space, contexts=8)
    other.tell(frame)
    pd.testing.assert_frame_equal(other.to_frame(), frame)
    assert policy.posterior.mean(Measure.dirac(torch.rand(4, 2, dtype=F64))).isfinite().all()
    assert "UCBPSQ(5 observations" in repr(policy) and set(flat().space.chosen(policy.ask())) <= {"1", "2"}


def test_a_bill_may_come_late():
    now, late = (CheapestGoodSubset(flat().space, prior=prior(), rounds=2, contexts=8) for _ in range(2))
    row = [1, 0.2, 0.4]
    now.tell(row, 1.0, cost=0.1)
    late.tell(row, 1.0, cost=float("nan"))
    assert late.batch.billed.sum() == 0 and late.batch.spent == 0
    late.amend(0, cost=0.1)
    assert late.batch.billed.tolist() == now.batch.billed.tolist() and late.batch.spent == now.batch.spent
    torch.testing.assert_close(late.ask(), now.ask())
    with pytest.raises(ValueError, match="place must be an integer from 0 to 0"):
        late.amend(1, cost=0.1)


def test_old_plays_with_bills_are_exploration_that_was_paid():
    rows = np.column_stack([np.arange(30) % 3, np.linspace(0.1, 0.9, 30), np.linspace(0.8, 0.2, 30)])
    y = flat().f(torch.tensor(rows[:, 1:])).numpy()
    bills = np.array([0.2, 0.1, 0.5])[rows[:, 0].astype(int)]
    policy = CheapestGoodSubset(flat().space, prior=prior(), contexts=8)
    policy.tell(rows, y, cost=bills)
    assert policy.batch.begun.tolist() == [30] and policy.batch.spent == 0  # 8 units: above 60 percent of 6
    assert policy.batch.plays.tolist() == [[10, 10, 10]]
    unpaid = CheapestGoodSubset(flat().space, prior=prior(), contexts=8)
    unpaid.tell(rows, y, cost=np.full(30, np.nan))
    assert unpaid.batch.begun.tolist() == [-1] and unpaid.recommend().shape == (3,)


def test_a_negative_outcome_without_a_floor_is_refused_at_once():
    space = Space(flat().space.bounds, SETS, flat().space.free, 6.0)
    policy = CheapestGoodSubset(space, prior=prior(), contexts=8)
    policy.tell([0, 0.5, 0.5], 1.0, cost=0.2)
    with pytest.raises(ValueError, match="y must not be negative unless the space has a floor"):
        policy.tell([1, 0.5, 0.5], -0.1, cost=0.1)
    assert policy.count == 1 and policy.ask().shape == (3,)


def test_exploration_ends_by_the_budget_and_a_lost_set_brings_a_reset():
    policy = CheapestGoodSubset(flat().space, prior=prior(), exploration_budget=2.0, contexts=8)
    batch = policy.start([0])
    batch.upper[:], batch.lower[:] = 0.1, 50.0  # bounds that contradict each other
    batch.begun[:] = 0
    rows = torch.tensor([[[0, 0.1, 0.2], [1, 0.5, 0.5], [2, 0.8, 0.3]]], dtype=F64)
    batch.learn(rows, torch.tensor([[1.0, 1.2, 1.4]], dtype=F64), torch.tensor([[0.2, 0.1, 0.5]], dtype=F64))
    batch.ask()
    assert batch.resets.tolist() == [1] and bool(batch.good.any()) and float(batch.lower) < 5
    spent = told(CheapestGoodSubset(flat().space, prior=prior(), exploration_budget=2.0, contexts=8), 9)
    assert spent.batch.begun.tolist() == [6]  # 0.8 a round: a third would be too many


@needed
def test_a_run_on_the_device():
    space = Space(flat().space.bounds.to(DEVICE), SETS, flat().space.free, 6.0, floor=0.0)
    there, here = UCBPSQ(space, contexts=8).start([1]), UCBPSQ(flat().space, contexts=8).start([1])
    with torch.no_grad():
        close(there.ask(), here.ask(), 1e-4)
