"""What was done instead of what was asked, what was told of it, and what a policy makes of that, in all settings."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from cbo_lib import aggregated, contexts, hyperparameters, indirect, subsets
from cbo_lib.checks import nearest
from cbo_lib.distributions import Uniform
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel

F64 = torch.float64
UNIT = [[0.0], [1.0]]


# Points of a list.


def test_of_listed_points_the_nearest_counts_and_none_that_is_closer_to_another():
    listed = torch.logspace(-9, 0, 10, dtype=F64).unsqueeze(-1)
    told = torch.tensor([*listed.flatten(), 5e-7, 3e-8, 0.1 + 1e-8, 0.2], dtype=F64).unsqueeze(-1)
    assert nearest(told, listed, listed).tolist() == [*range(10), -1, -1, 8, -1]
    assert nearest(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]), listed).tolist() == [
        0
    ]


def test_of_many_points_each_is_what_a_loop_finds():
    """Points of lists, a little off and far off, among near and far neighbors."""
    rng = torch.Generator().manual_seed(0)
    listed = torch.rand(3, 40, 2, generator=rng, dtype=F64) ** 6
    near = listed[:, torch.randint(40, (60,), generator=rng)]
    told = near + 10 ** -torch.linspace(2, 12, 60, dtype=F64)[:, None] * torch.randn(60, 2, generator=rng, dtype=F64)
    like = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=F64)
    expected = []
    for points, places in zip(told, listed, strict=True):
        for point in points:
            off = ((point - places).abs() / like[1]).amax(-1)
            first, second = off.sort().indices[:2].tolist()
            slack = torch.minimum(1e-6 * like[1] + 2**-24 * places[first], 2**-13 * like[1])
            right = bool(((point - places[first]).abs() <= slack).all()) and 20 * off[first] <= off[second]
            expected.append(first if right else -1)
    assert nearest(told, listed, like).flatten().tolist() == expected
    assert 40 < expected.count(-1) < 140


@pytest.mark.parametrize("shift", [0.0, 1013.1, -500.0])
def test_lists_and_boxes_far_from_zero_know_their_points_in_single_precision(shift):
    listed = shift + torch.linspace(0, 1, 11, dtype=F64).unsqueeze(-1)
    assert nearest(listed.float().double(), listed, listed).tolist() == list(range(11))
    box = [[shift], [shift + 1]]
    policy = contexts.SBOKDE(contexts.Space(box, UNIT))
    policy.tell(np.float32([[shift], [shift + 1]]), [1.0, 0.0], context=[[0.5], [0.5]])
    assert shift <= float(policy.recommend()) <= shift + 1


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
        assert float(actions[policy.data["query"][0, -1]]) == float(asked)
    assert abs(float(policy.recommend()) + 6) < 0.3


def test_what_a_neighbor_on_the_list_costs_is_not_paid_for_what_was_asked():
    space = indirect.Space([1e-8, 1e-7, 1e-2, 1.0], conditional=indirect.Point(), points=[0.0, 1.0], noise_std=0.1)
    policy = indirect.CMES(space, prior=GaussianProcess(rbf_kernel(0.3), 0.1), budget=3.0)
    asked = float(policy.ask())
    policy.tell([1e-7 if asked != 1e-7 else 1e-8], 0.0)
    assert float(policy.left) == 3.0


def test_a_finite_domain_on_a_logarithmic_scale_finds_its_best_point():
    points = torch.logspace(-8, 0, 9, dtype=F64).unsqueeze(-1)
    space = hyperparameters.Space([GaussianProcess(MaternKernel(0.5).to(F64), 0.01)] * 2, points=points)
    policy = hyperparameters.HEGPUCB(space)
    policy.tell(points, dose(points[:, 0]))
    assert float(policy.recommend()) == 1e-6


@pytest.mark.parametrize("known", [False, True])
def test_points_told_in_single_precision_are_those_of_the_domain_and_named_as_it_has_them(known):
    points = torch.linspace(0, 1, 11, dtype=F64).unsqueeze(-1)
    kernels = [rbf_kernel(0.2), rbf_kernel(0.4)]
    space = hyperparameters.Space([GaussianProcess(k, 0.1) for k in kernels] if known else kernels, points=points)
    policy = hyperparameters.HEGPUCB(space)
    policy.tell(points.float(), -((points[:, 0] - 0.3) ** 2) * 10)
    assert policy.recommend().tolist() == points[3].tolist()


# Recommendations.


@pytest.mark.parametrize("domain", [{"bounds": UNIT}, {"points": np.linspace(0, 1, 11)[:, None]}])
def test_a_robust_recommendation_was_chosen_or_told_also_where_f_lies_below_its_prior_mean(domain):
    known = GaussianProcess(rbf_kernel(0.05), 0.05)
    policy = hyperparameters.HEStableOpt(hyperparameters.Space([known, known], epsilon=0.1, **domain))
    policy.tell([0.1, 0.3, 0.5], [-5.0, -3.0, -4.0])
    assert float(policy.recommend()) == pytest.approx(0.3)
    policy.ask()


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


@pytest.mark.parametrize("kind", [aggregated.GPOO, aggregated.GPTree])
def test_a_tree_policy_has_no_initial_design_and_no_resolution(kind):
    space = aggregated.Space(UNIT, 2)
    with pytest.raises(ValueError, match=r"initial must be 0, .* has no initial design, got 3"):
        kind(space, initial=3)
    with pytest.raises(ValueError, match="resolution must be left out, queries are cells"):
        kind(space, resolution=0.1)


def test_gptree_has_a_depth_that_the_cells_allow_in_many_dimensions():
    space = aggregated.Space([[0.0] * 8, [1.0] * 8], 2, quadrature_order=1)
    policy = aggregated.GPTree(space, budget=500)
    assert policy.ask().shape == (2, 8) and policy.max_depth == 47


def test_one_replicate_as_asked_and_one_with_a_cell_that_the_tree_lacks():
    policy = aggregated.GPOO(aggregated.Space(UNIT, 2))
    policy.start([0, 1])
    query = policy.ask().clone()
    query[1] = torch.tensor([[0.0], [2.0**-6]])
    policy.tell(query, torch.tensor([1.0, 2.0]))
    assert policy.count == 1 and policy.drawn.tolist()[0] == 0
    policy.ask()


def test_the_tree_takes_a_prior_of_two_replicates():
    kernel = RBFKernel(batch_shape=torch.Size([2])).to(F64)
    kernel.lengthscale = torch.tensor([[[0.1]], [[0.3]]], dtype=F64)
    prior = GaussianProcess(kernel.requires_grad_(False), 0.1)
    policy = aggregated.GPOO(aggregated.Space(UNIT, 2), prior=prior)
    policy.start([0, 1])
    policy.tell(policy.ask(), torch.tensor([1.0, 2.0]))
    assert policy.recommend().shape == (2, 2, 1)


def test_gpoo_asks_the_same_in_every_unit_of_the_outcome():
    asked = {}
    for unit in (1.0, 2.0**-10, 2.0**10):
        policy = aggregated.GPOO(aggregated.Space(UNIT, 2))
        asked[unit] = []
        for _ in range(10):
            cell = policy.ask()
            asked[unit].append(cell.flatten().tolist())
            policy.tell(cell, unit * (3 + float(torch.sin(5 * cell.mean()))))
    assert asked[1.0] == asked[2.0**-10] == asked[2.0**10]


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


def test_without_any_bill_exploration_says_what_it_waits_for():
    policy = subsets.CheapestGoodSubset(plant((0,), (1,)))
    for _ in range(2):
        play = policy.ask()
        policy.tell([50.0, 50.0], 1.0, subset=play.subset)
    with pytest.raises(ValueError, match="cost must be told of at least one play in a round of exploration"):
        policy.ask()
    policy.tell([50.0, 50.0], 1.0, subset=(0,), cost=2.0)
    policy.ask()


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


def test_what_broke_off_half_way_is_told_to_another():
    steps = iter((2.0, 2.0))
    space = hyperparameters.Space([GaussianProcess(rbf_kernel(0.2), 0.1)], bounds=UNIT)
    policy = hyperparameters.HEGPUCB(space, sqrt_beta=lambda t: next(steps))
    policy.tell([0.2, 0.7], [1.0, 2.0])
    for call in (lambda: policy.tell(0.4, 1.5), policy.ask):
        with pytest.raises((RuntimeError, StopIteration, ValueError)):
            call()
    other = hyperparameters.HEGPUCB(space)
    other.tell(**policy.observations())
    assert other.data["query"].flatten().tolist() == [0.2, 0.7] and other.data["y"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("unit", [2.0**-13, 2.0**-20])
def test_outcomes_in_a_tiny_unit_lead_to_the_same_places(unit):
    def asked(unit):
        policy, found = contexts.SBOKDE(contexts.Space([[0.0] * 2, [1.0] * 2], UNIT), samples=64), []
        contexts_seen = torch.rand(12, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
        for c in contexts_seen:
            found.append(policy.ask())
            y = -(found[-1] - 0.3).square().sum() + 0.3 * c[0] * found[-1][0]
            policy.tell(found[-1], unit * float(y), context=c)
        return torch.stack(found)

    torch.testing.assert_close(asked(unit), asked(1.0), rtol=0, atol=2e-3)


# Averages that are learned from pairs.


def pairs():
    rng = np.random.default_rng(0)
    a = rng.uniform(0, 100, 120)
    return np.clip(0.9 * a + rng.normal(0, 5, 120), 0, 100), a


def asked_of(policy, offset):
    asked = []
    for _ in range(9):
        asked.append(float(policy.ask()))
        policy.tell(asked[-1], offset + 10 * math.exp(-(((asked[-1] - 45) / 15) ** 2)))
    return asked, float(policy.recommend())


def test_an_offset_of_the_outcome_makes_no_structure_of_learned_averages():
    space = indirect.Space(np.linspace(5, 95, 19), samples=pairs(), points=np.linspace(0, 100, 51))
    runs = [asked_of(indirect.CMES(space, seed=1), offset) for offset in (0.0, 1024.0, -4096.0)]
    assert runs[0] == runs[1] == runs[2]


def test_actions_that_no_pair_is_near_are_refused_and_nothing_is_numbered():
    with pytest.raises(ValueError, match="samples must have actions near all that are asked or told, got"):
        indirect.CMES(indirect.Space([5.0, 400.0], samples=pairs())).ask()
    policy = indirect.CMES(indirect.Space([5.0, 50.0, 95.0], samples=pairs()))
    with pytest.raises(ValueError, match="samples must have actions near all"):
        policy.tell(400.0, 1.0)
    policy.tell(50.0, 1.0)
    assert policy.ask().shape == (1,)


@pytest.mark.parametrize("offset", [0.0, -8192.0])
def test_expected_improvement_of_averages_works_below_a_thousand(offset):
    grid = np.linspace(0, 100, 15)
    space = indirect.Space(grid, conditional=indirect.Point(), points=grid)
    asked, named = asked_of(indirect.ActionPolicy(space, acquisition="ei"), offset)
    assert len(set(asked)) > 4 and abs(named - 45) < 10


# Sizes and kernels.


@pytest.mark.parametrize("variance", [1e-6, 100.0, 1e8])
def test_kernels_of_candidates_say_nothing_of_the_size_of_f(variance):
    x = torch.linspace(0, 100, 14, dtype=F64).unsqueeze(-1)
    y = torch.sin(x[:, 0] / 9)

    def asked(v):
        policy = hyperparameters.HEGPUCB(
            hyperparameters.Space([rbf_kernel(8.0, v), rbf_kernel(30.0, v)], bounds=[[0.0], [100.0]])
        )
        policy.tell(x, y)
        return policy.ask(), policy.posterior.prior.noise_std

    for got, expected in zip(asked(variance), asked(1.0), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(expected), rtol=1e-6, atol=0.02)


BOX = contexts.Space([[0.0, 0.0], [1.0, 1.0]], UNIT)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (rbf_kernel(10.0), "kernel must have parameters to fit, of the unit box"),
        (RBFKernel(ard_num_dims=5), "kernel must have one lengthscale, or 3"),
        (ScaleKernel(RBFKernel(active_dims=(7,))), "kernel must have a kernel of 3 coordinates, got IndexError"),
    ],
)
def test_a_kernel_that_cannot_be_fitted_is_refused_at_once(kernel, expected):
    with pytest.raises(ValueError, match=expected):
        contexts.SBOKDE(BOX, kernel=kernel)


def test_a_prior_whose_parts_do_not_fit_is_refused_at_once():
    kernel = (RBFKernel(active_dims=[0]) * RBFKernel(active_dims=[9])).to(F64)
    with pytest.raises(ValueError, match="prior must have a kernel of 3 coordinates, got IndexError"):
        contexts.SBOKDE(BOX, prior=GaussianProcess(kernel, 0.1))
    with pytest.raises(ValueError, match="candidates must have a kernel of 1 coordinates, got IndexError"):
        hyperparameters.Space([kernel], bounds=UNIT)
