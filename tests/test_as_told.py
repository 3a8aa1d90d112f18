"""What was done instead of what was asked, what was told of it, and what a policy makes of that, in all settings."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cbo_lib import indirect, subsets
from cbo_lib.checks import nearest
from cbo_lib.distributions import Uniform
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel

F64 = torch.float64


# Points of a list.


def test_of_listed_points_the_nearest_counts_and_none_that_is_closer_to_another():
    listed = torch.logspace(-9, 0, 10, dtype=F64).unsqueeze(-1)
    told = torch.tensor([*listed.flatten(), 5e-7, 3e-8, 0.1 + 1e-8, 0.2], dtype=F64).unsqueeze(-1)
    assert nearest(told, listed, listed).tolist() == [*range(10), -1, -1, 8, -1]
    assert nearest(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]), listed).tolist() == [
        0
    ]


def dose(x: Tensor) -> Tensor:
    return -(x.log10() + 6).square() / 10


def test_actions_on_a_logarithmic_scale_are_not_taken_for_their_neighbors():
    actions = torch.logspace(-8, 0, 9, dtype=F64)
    conditional = indirect.ClippedGaussian(lambda a: a.log10(), 0.05)
    space = indirect.Space(actions, conditional=conditional, points=torch.linspace(-8, 0, 33), noise_std=0.01)
    policy = indirect.CMES(space, prior=GaussianProcess(rbf_kernel(1.0), 0.01))
    for _ in range(8):
        asked = policy.ask()
        policy.tell(asked, float(dose(asked)))
        assert float(policy.batch.queries[0, -1]) == float(asked) and bool((actions == asked).any())
    assert abs(float(policy.recommend()) + 6) < 0.3


# Recommendations.


def plant(*control_sets, **options):
    options = {"budget": 40.0, "floor": -50.0, **options}
    return subsets.Space([[0.0, 0.0], [100.0, 100.0]], list(control_sets), free=[Uniform(0.0, 100.0)] * 2, **options)


def test_subsets_recommend_what_was_made_where_that_is_not_quite_what_was_asked():
    policy = subsets.UCBPSQ(plant((0,), (1,), (0, 1)))
    tried = []
    for t in range(14):
        play = policy.ask()
        point = torch.full((2,), 50.0, dtype=F64)
        point[list(play.subset)] = play.values if t == 0 else (play.values / 2).round() * 2
        y = 10 - float(((point - torch.tensor([60.0, 40.0])) / 20).square().sum())
        policy.tell(point, y, subset=play.subset, cost=1.0)
        tried.append((y, point, play.subset))
    named = policy.recommend()
    assert any(s == named.subset and torch.equal(p[list(s)], named.values) for _, p, s in tried)
    made = max(y for y, p, s in tried if s == named.subset and torch.equal(p[list(s)], named.values))
    assert made > max(y for y, _, _ in tried) - 1.0


# Costs that nobody told.


def test_a_subset_whose_bill_never_came_is_not_free():
    policy = subsets.CheapestGoodSubset(plant((0,), (1,), (0, 1), budget=8.0), alpha=0.9)
    plays = []
    while not policy.finished and len(plays) < 40:
        play = policy.ask()
        plays.append(play.subset)
        point = torch.full((2,), 50.0, dtype=F64)
        point[list(play.subset)] = play.values
        cost = {} if play.subset == (0, 1) else {"cost": 1.0}
        policy.tell(point, 5 + math.sin(len(plays)), subset=play.subset, **cost)
    assert policy.finished and plays.count((0, 1)) < len(plays) / 2


# What was told, told again.


def test_the_observations_of_one_policy_are_told_to_another_with_another_space():
    rng = np.random.default_rng(0)
    wide = np.linspace(0, 100, 21)
    policy = indirect.CMES(indirect.Space(wide[::2], conditional=indirect.Point(), points=wide))
    policy.tell([20.0, 40.0, 63.0], [1.0, 2.0, 1.5])
    other = indirect.CMES(indirect.Space(wide, conditional=indirect.Point(), points=wide))
    other.tell(**policy.observations())
    assert other.observations()["query"].flatten().tolist() == [20.0, 40.0, 63.0]
    plays = subsets.UCBPSQ(plant((0,), (1,), (0, 1)))
    plays.tell(rng.uniform(0, 100, (3, 2)), [1.0, 2.0, 3.0], subset=[(0,), (1,), (0, 1)], cost=[1.0, math.nan, 2.0])
    plays.tell([[50.0, 50.0]], [2.0])
    again = subsets.UCBPSQ(plant((0,), (1,), (0, 1), budget=80.0))
    again.tell(**plays.observations())
    for name, rows in plays.data.items():
        torch.testing.assert_close(again.data[name], rows, equal_nan=True)
    assert again.billed.tolist() == plays.billed.tolist() == [[1, 0, 1]]
    with pytest.raises(ValueError, match="cost must be finite"):
        plays.tell([50.0, 50.0], 1.0, subset=(0,), cost=math.inf)


# Averages that are learned from pairs.


def pairs():
    rng = np.random.default_rng(0)
    a = rng.uniform(0, 100, 120)
    return np.clip(0.9 * a + rng.normal(0, 5, 120), 0, 100), a
