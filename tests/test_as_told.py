"""What was done instead of what was asked, what was told of it, and what a policy makes of that, in all settings."""

import math

import numpy as np
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


# Costs that nobody told.


def test_a_subset_whose_bill_never_came_is_not_free():
    policy = subsets.CheapestGoodSubset(plant((0,), (1,), (0, 1), budget=8.0), alpha=0.9, contexts=8, raw=8, steps=2)
    played = []
    while policy.batch.spent < 8 and len(played) < 40:
        row = policy.ask()
        played.append(int(row[0]))
        policy.tell(row, 5 + math.sin(len(played)), cost=math.nan if row[0] == 2 else 1.0)
    assert policy.batch.spent >= 8 and played.count(2) < len(played) / 2


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
    rows = np.column_stack([[0, 1, 2], rng.uniform(0, 100, (3, 2))])
    plays.tell(rows, [1.0, 2.0, 3.0], cost=[1.0, math.nan, 2.0])
    again = subsets.UCBPSQ(plant((0,), (1,), (0, 1), budget=80.0))
    again.tell(**plays.observations())
    for name, part in plays.observations().items():
        torch.testing.assert_close(again.observations()[name], part, equal_nan=True)
    assert again.batch.billed.tolist() == plays.batch.billed.tolist() == [[1, 0, 1]]


# Averages that are learned from pairs.


def pairs():
    rng = np.random.default_rng(0)
    a = rng.uniform(0, 100, 120)
    return np.clip(0.9 * a + rng.normal(0, 5, 120), 0, 100), a
