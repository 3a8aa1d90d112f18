"""A stranger's own problem: nothing but a space, in own units, with old data, and plays that were not asked."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from book.subsets.marginals import TruncatedNormal, truncated_normal
from cbo_lib import subsets
from cbo_lib.former import surrogate
from cbo_lib.gp import GaussianProcess
from cbo_lib.random import ReplicateGenerators
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, CheapestGoodSubset, GroupETC, Play, Space
from cbo_lib.subsets.baselines import InverseRoot
from tests.subsets.helpers import F64, FEW, hill, prior, run, solid, unit

LOW, HIGH = torch.tensor([-2.0, 100.0, 0.0], dtype=F64), torch.tensor([2.0, 180.0, 1e-3], dtype=F64)
ROWS = torch.rand(20, 3, generator=torch.Generator().manual_seed(5), dtype=F64)
SETS = ((0,), (2, 1), (0, 1, 2))
PRICES = {(0,): 1.0, (2, 1): 3.0, (0, 1, 2): 9.0}
MAKERS = {
    "proposed": lambda space, **options: CheapestGoodSubset(space, **options),
    "thompson": lambda space, **options: TSPSQ(space, features=64, **options),
    "ucb": lambda space, **options: UCBPSQ(space, **options),
    "cvs": lambda space, **options: UCBCVS(space, cost_means=[1, 3, 9], **options),
    "etc": lambda space, **options: GroupETC(space, plays_per_group=2, **options),
}


def own(budget=60.0, **changes):
    """Three variables in units of their own; how they vary was observed."""
    return Space(
        **({"bounds": [LOW, HIGH], "control_sets": SETS, "free": LOW + (HIGH - LOW) * ROWS} | changes), budget=budget
    )


def test_bounds_may_be_a_list_of_tensors_or_anything_else():
    given = [own(bounds=b) for b in (torch.stack([LOW, HIGH]), [LOW.tolist(), HIGH.tolist()])]
    given.append(own(bounds=np.stack([LOW.numpy(), HIGH.numpy()]), control_sets=[[0], [2, 1], np.array([0, 1, 2])]))
    for space in given:
        assert space.control_sets == SETS and torch.equal(space.bounds, torch.stack([LOW, HIGH]))
        assert space.center.tolist() == [0.0, 140.0, 5e-4] and (space.dim, space.m) == (3, 3)


def known(low=LOW, high=HIGH):
    """A prior in the units of a box."""
    return GaussianProcess(scaled(low, high), 0.1, 2.0)


def scaled(low, high):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=3)).to(dtype=F64)
    kernel.base_kernel.lengthscale = torch.tensor([0.4, 0.7, 0.6], dtype=F64) * (high - low)
    kernel.outputscale = torch.tensor(1.0, dtype=F64)
    return kernel.requires_grad_(False)


class Plant:
    """What happens when a play is made: free variables vary, the operator reads a value and a bill."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, play):
        x = ROWS[self.rng.integers(len(ROWS))].numpy() * (HIGH - LOW).numpy() + LOW.numpy()
        x[list(play.subset)] = play.values.numpy()
        y = float(hill((torch.tensor(x) - LOW) / (HIGH - LOW))) + 0.1 * self.rng.normal()
        return x, y, PRICES[play.subset] * self.rng.uniform(0.9, 1.1)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_loop_by_hand_is_a_simulation(name, fitted):
    problem = solid()
    options = {"effort": FEW} | ({} if fitted else {"prior": prior(problem)})
    make = {**MAKERS, "cvs": lambda s, **o: UCBCVS(s, cost_means=problem.cost_means, **o)}[name]
    steps = 5 if fitted else 9
    history = run(problem, make(problem.space, **options), steps, [7])
    policy, noise = make(problem.space, seed=7, **options), ReplicateGenerators([7], stream=0)
    for t in range(steps):
        play = policy.ask()
        query = history["query"][0, t]
        assert play.subset == problem.space.control_sets[int(query[0])]
        assert torch.equal(play.values, query[1:][list(play.subset)]) and policy.ask().values.equal(play.values)
        seen = problem.observe(query.unsqueeze(0), noise.at(t + 1))
        policy.tell(seen["played"][0].numpy(), float(seen["y"]), subset=play.subset, cost=float(seen["cost"]))
        best, recommended = policy.recommend(), history["recommendation"][0, t]
        assert torch.equal(best.values, recommended[1:][list(best.subset)])
        for key, value in policy.trace().items():
            torch.testing.assert_close(value, history[key][0, t], rtol=0, atol=0, equal_nan=True)
    assert policy.count == steps and policy.plays.sum() == steps


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray, list, lambda rows: pd.DataFrame(np.asarray(rows))])
def test_any_form_of_old_data_will_do(form):
    x, y = LOW + (HIGH - LOW) * ROWS[:6], hill(ROWS[:6])
    first, policy = (CheapestGoodSubset(own(), effort=FEW) for _ in range(2))
    sets = [(0,), (1, 2), (0, 1, 2), (0,), (2, 1), (2, 0, 1)]
    first.tell(x, y, subset=sets, cost=[1.0, 3, 9, 1, 3, 9])
    costs = form(np.array([1.0, 3, 9, 1, 3, 9]))
    policy.tell(form(x.tolist()), form(y.tolist()), subset=[list(s) for s in sets], cost=costs)
    assert policy.plays.tolist() == [[2, 2, 2]] and policy.paid.tolist() == [[2.0, 6.0, 18.0]]
    assert float(policy.spent) == 0 and policy.count == 6  # old costs are not charged
    one, other = first.ask(), policy.ask()
    assert one.subset == other.subset and torch.equal(one.values, other.values)


def test_rows_without_a_subset_or_a_cost_inform_the_posterior_alone():
    policy = CheapestGoodSubset(own(), prior=known(), effort=FEW)
    x = LOW + (HIGH - LOW) * ROWS[:4]
    policy.tell(x, hill(ROWS[:4]))
    policy.tell(x[0], 2.0, cost=5.0)
    policy.tell(x[0], 2.0, subset=(0,))
    assert policy.count == 6 and policy.posterior.count == 6 and not policy.plays.any() and not policy.paid.any()
    best = policy.recommend()  # nothing was asked: the largest lower bound of the posterior
    assert isinstance(best, Play) and best.subset in SETS
    again = CheapestGoodSubset(own(), prior=known(), effort=FEW)
    again.tell(x, hill(ROWS[:4]))
    again.tell(x[:1].repeat(2, 1), [2.0, 2.0])
    one, other = policy.ask(), again.ask()  # to recommend has moved nothing
    assert one.subset == other.subset == (0,) and torch.equal(one.values, other.values)


@pytest.mark.parametrize("name", ["proposed", "etc"])
def test_a_play_whose_bill_is_missing_counts_as_one(name):
    options = {"prior": known(), "effort": FEW}
    policy = CheapestGoodSubset(own(), rounds=1, **options) if name == "proposed" else MAKERS["etc"](own(), **options)
    asked = []
    for t in range(5):
        play = policy.ask()
        asked.append(play.subset)
        x = LOW + (HIGH - LOW) * ROWS[t]
        x[list(play.subset)] = play.values
        policy.tell(x, hill(ROWS[t]), **({"cost": 2.0} if t == 1 else {}))
    assert asked[:3] == list(SETS) if name == "proposed" else {len(s) for s in asked[2:4]} == {2}
    assert policy.plays.sum() == 5 and policy.billed.sum() == 1 and float(policy.spent) == float(policy.paid.sum()) == 2


def test_old_plays_of_one_group_are_not_those_of_another():
    policy = GroupETC(own(), prior=known(), effort=FEW, plays_per_group=3)
    x = LOW + (HIGH - LOW) * ROWS[:3]
    policy.tell(x, hill(ROWS[:3]), subset=[(0, 1, 2)] * 3, cost=[9.0] * 3)
    assert policy.ask().subset == (0,)


def test_another_play_than_the_one_asked():
    policy, x = CheapestGoodSubset(own(), prior=known(), effort=FEW), LOW + (HIGH - LOW) * ROWS[0]
    play = policy.ask()
    assert play.subset == (0,)
    policy.tell(x, 2.5, subset=(2, 1), cost=3.0)  # another subset
    assert policy.plays.tolist() == [[0, 1, 0]] and float(policy.spent) == 3.0
    assert policy.ask().subset == (0,)  # it is still the first of those played least
    policy.tell(x, 2.5, subset=[0], cost=1.0)  # other values
    assert policy.plays.tolist() == [[1, 1, 0]] and policy.ask().subset == (0, 1, 2)
    done = x.clone()
    done[:] = policy.ask().values
    policy.tell(done, 3.0, cost=9.0)  # what was asked needs no subset
    assert policy.plays.tolist() == [[1, 1, 1]] and float(policy.spent) == 13.0
    assert policy.recommend().subset == (0,) and torch.equal(policy.recommend().values, x[:1])  # made, if not as asked
    assert policy.posterior.count == 3


@pytest.mark.parametrize("name", MAKERS)
def test_own_units_are_those_of_the_unit_box(name):
    """The same prior in both units; shifts, scales and resolution included."""
    ours, plain = own(), Space(unit(3), SETS, ROWS, 60.0)
    box = unit(3)
    pair = [
        MAKERS[name](space, prior=known(*b), effort=FEW, seed=3) for space, b in ((ours, (LOW, HIGH)), (plain, box))
    ]
    rng = torch.Generator().manual_seed(1)
    for t in range(8):
        one, other = (policy.ask() for policy in pair)
        where = list(one.subset)
        assert one.subset == other.subset
        torch.testing.assert_close((one.values - LOW[where]) / (HIGH - LOW)[where], other.values, rtol=0, atol=1e-9)
        assert float((other.values * 2**13 % 1).abs().max()) == 0
        u = torch.rand(3, generator=rng, dtype=F64)
        u[where] = other.values
        y = float(hill(u))
        x = LOW + (HIGH - LOW) * u
        x[where] = one.values
        pair[0].tell(x, y, subset=one.subset, cost=0.5 + t % 3)
        pair[1].tell(u, y, subset=other.subset, cost=0.5 + t % 3)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_a_saved_policy_goes_on_as_if_nothing_had_happened(name, fitted, tmp_path):
    options = {"effort": FEW} | ({} if fitted else {"prior": known()})
    policy, plant = MAKERS[name](own(), **options), Plant()
    for t in range(7):
        play = policy.ask()
        if t in (0, 3, 6):
            policy.save(tmp_path / "policy.npz")
            loaded = type(policy).load(tmp_path / "policy.npz")
            again = loaded.ask()
            assert again.subset == play.subset and torch.equal(again.values, play.values)
            policy = loaded
        x, y, cost = plant(play)
        policy.tell(x, y, subset=play.subset, cost=cost)
    with pytest.raises(ValueError, match="must hold a"):
        (UCBPSQ if name != "ucb" else TSPSQ).load(tmp_path / "policy.npz")


@pytest.mark.parametrize(("bill", "budget", "plays"), [(0.1, 1.0, 10), (0.1, 0.8, 8), (0.7, 2.1, 3), (0.3, 1.0, 4)])
def test_a_budget_that_is_spent_to_rounding_is_spent(bill, budget, plays):
    policy, asked = UCBPSQ(own(budget), prior=known()), 0
    while not policy.finished and asked < 20:
        play = policy.ask()
        policy.tell(HIGH, 1.0, subset=play.subset, cost=bill)
        asked += 1
    assert asked == plays


def test_old_rows_are_fitted_to_when_somebody_asks(monkeypatch):
    """And then it is as if every row had been looked at."""
    points, fits = LOW + (HIGH - LOW) * ROWS, []
    original = surrogate.fit_gaussian_process
    monkeypatch.setattr(surrogate, "fit_gaussian_process", lambda *args: fits.append(1) or original(*args))
    y = torch.sin(5 * ROWS).sum(-1)
    at_once, looked = (CheapestGoodSubset(own(), seed=3) for _ in range(2))
    at_once.tell(points, y)
    assert len(fits) == 0 and bool(at_once.trace()["mean"].isnan())
    asked = at_once.ask()
    assert len(fits) == 1
    for row, value in zip(points, y, strict=True):
        looked.tell(row, value)
        looked.recommend()
    assert len(fits) > 10
    other = looked.ask()
    assert asked.subset == other.subset and torch.equal(asked.values, other.values)
    for policy in (at_once, looked):
        policy.tell(HIGH, 2.0, subset=asked.subset, cost=1.0)
        policy.ask()
    assert torch.equal(at_once.recommend().values, looked.recommend().values)


@pytest.mark.parametrize(
    "given",
    [{"kernel": MaternKernel(ard_num_dims=3)}, {"prior": GaussianProcess(scaled(LOW, HIGH), 0.1, lambda x: x[..., 0])}],
)
def test_a_prior_that_is_no_product_is_refused_at_once(given):
    with pytest.raises(ValueError, match=r"product|mean"):
        CheapestGoodSubset(own(), **given)


def test_the_budget_ends_a_run():
    policy, plant, plays = CheapestGoodSubset(own(20.0), prior=known(), effort=FEW), Plant(), 0
    while not policy.finished:
        play = policy.ask()
        x, y, cost = plant(play)
        policy.tell(x, y, subset=play.subset, cost=cost)
        plays += 1
    assert plays > 3 and 20 <= float(policy.spent) < 20 + 10
    with pytest.raises(ValueError, match="the run is over"):
        policy.ask()
    assert policy.recommend().subset in SETS


def test_hyperparameters_are_fitted_and_recorded():
    policy, plant = CheapestGoodSubset(own(), effort=FEW, kernel="rbf", refit_every=2), Plant()
    for t in range(6):
        play = policy.ask()
        x, y, cost = plant(play)
        policy.tell(x, y, subset=play.subset, cost=cost)
        trace = policy.trace()
        assert trace["lengthscale"].shape == (3,) and bool(trace["lengthscale"].isnan().any()) is (t == 0)
        if t:
            assert bool(trace["converged"]) and float(trace["noise_std"]) > 0
            assert bool((trace["lengthscale"] / (HIGH - LOW) > 0.02).all())
    assert "prior_mean" in policy.trace() and policy.posterior.count == 6


def test_bounds_from_before_a_fit_are_forgotten():
    policy, plant = CheapestGoodSubset(own(), effort=FEW, refit_every=100), Plant()
    seen = []
    for _ in range(4):
        play = policy.ask()
        x, y, cost = plant(play)
        policy.tell(x, y, subset=play.subset, cost=cost)
        seen.append((policy.surrogate.version, bool(policy.upper.isinf().all())))
    assert seen[-1][1] is False or seen[-1][0] > seen[-2][0]
    for (old, _), (new, forgotten) in itertools.pairwise(seen):
        assert forgotten is (new > old)


def test_costs_in_other_units_change_nothing():
    """By default the radius of the cost bounds is in units of the largest average cost."""
    asked = []
    for unit_of_cost in (1.0, 256.0):
        space = own(300.0 * unit_of_cost)
        policy, plant = CheapestGoodSubset(space, prior=known(), effort=FEW, rounds=2), Plant()
        asked.append([])
        for _ in range(14):
            play = policy.ask()
            x, y, cost = plant(play)
            policy.tell(x, y, subset=play.subset, cost=unit_of_cost * cost)
            asked[-1].append((play.subset, play.values.tolist()))
    assert asked[0] == asked[1]


def test_values_below_the_floor_are_told_so():
    policy, low = CheapestGoodSubset(own(), prior=known(), effort=FEW, rounds=1), Plant()
    for _ in range(3):
        play = policy.ask()
        x, y, cost = low(play)
        policy.tell(x, y - 100, subset=play.subset, cost=cost)
    for _ in range(2):  # it is no less true when asked again
        with pytest.raises(ValueError, match=r"y must reach space.floor = 0, .* the largest told is -9.*as the floor"):
            policy.ask()
    sunk = CheapestGoodSubset(
        own(floor=-100.0), prior=GaussianProcess(scaled(LOW, HIGH), 0.1, -98.0), effort=FEW, rounds=1
    )
    risen, plants = CheapestGoodSubset(own(), prior=known(), effort=FEW, rounds=1), (Plant(), Plant())
    for _ in range(8):
        plays = [sunk.ask(), risen.ask()]
        assert plays[0].subset == plays[1].subset and torch.allclose(
            plays[0].values, plays[1].values, atol=1e-9, rtol=0
        )
        for policy, play, plant, shift in zip((sunk, risen), plays, plants, (100, 0), strict=True):
            x, y, cost = plant(play)
            policy.tell(x, y - shift, subset=play.subset, cost=cost)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"query": [0.0, 140.0]}, "query must be points of dimension 3, got 2"),
        ({"subset": (0, 1)}, r"subset must be one of \[\(0,\), \(2, 1\), \(0, 1, 2\)\], got"),
        ({"subset": [(0,), (2, 1)]}, "subset must hold as many rows as query, 1, got 2"),
        ({"query": [3.0, 140.0, 5e-4]}, "query, in the variables that were set, must lie in the box"),
        ({"cost": -1.0}, "cost must not be negative, got"),
        ({"cost": math.nan}, "cost must be finite"),
        ({"y": math.inf}, "y must be finite"),
        ({"price": 3.0}, r"tell takes query, y, subset, cost; price is unknown"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_nothing_is(told, message):
    policy = UCBPSQ(own(), prior=known(), effort=FEW)
    row = {"query": [0.0, 140.0, 5e-4], "y": 1.0, "subset": (0,), "cost": 1.0} | told
    with pytest.raises(ValueError, match=message):
        policy.tell(**row)
    assert policy.count == 0 and policy.posterior.count == 0 and not policy.plays.any()
    free = {"query": [0.0, 500.0, 5e-4], "y": 1.0, "subset": (0,)}  # a free variable may leave the box
    policy.tell(**free)
    assert policy.count == 1


def test_columns_in_another_order_are_refused_also_of_old_rows():
    policy = UCBPSQ(own(), prior=known(), effort=FEW)
    with pytest.raises(ValueError, match="query must have its coordinates in the order and units of"):
        policy.tell([[5e-4, 0.0, 140.0], [4e-4, 0.0, 130.0]], [1.0, 2.0])
    assert policy.count == 0


def test_a_batch_is_told_full_points():
    policy = UCBPSQ(own(), prior=known(), effort=FEW)
    policy.start([0, 1])
    query = policy.ask()
    with pytest.raises(ValueError, match=r"query must have shape \(..., 3\), got \(2, 1, 4\)"):
        policy.tell(query, torch.ones(2), cost=torch.ones(2))
    policy.tell(query[:, 1:], torch.ones(2), cost=torch.ones(2))
    assert policy.count == 1 and policy.plays.sum() == 2


def test_a_distribution_of_other_units_is_refused():
    with pytest.raises(ValueError, match=r"free must vary in the units of bounds, \[100, 180\] of variable 1, got"):
        own(free=(truncated_normal(0.04),) * 3)
    own(
        free=[
            TruncatedNormal(low + 0.3 * (high - low), (high - low) / 4, low, high)
            for low, high in zip(LOW.tolist(), HIGH.tolist(), strict=True)
        ]
    )


def test_cost_means_must_fit():
    with pytest.raises(ValueError, match=r"cost_means must have shape \(3,\), got"):
        UCBCVS(own(), cost_means=[1.0, 2.0])
    assert InverseRoot(2.0)(4) == 1.0 and subsets.UCBCVS(own(), cost_means=[1, 2, 3]).cost_means.dtype == F64
