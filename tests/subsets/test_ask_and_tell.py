"""A stranger's own problem: nothing but a space, in own units, with old data, and plays that were not asked."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from cbo_lib.gp import GaussianProcess
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, CheapestGoodSubset, GroupETC, Play, Space
from tests.subsets.helpers import F64, FEW, hill

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
    assert policy.plays.sum() == 5 and policy.billed.sum() == 1
    assert [float(policy.spent), float(policy.paid.sum())] == pytest.approx([2, 2])


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
