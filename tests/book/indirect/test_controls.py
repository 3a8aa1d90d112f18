"""The policies that judge the others do what they say."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from book.indirect.controls import NoisyCMES, NoisyCMETS, PaidActionPolicy, RandomLevels, noisy_log_gain
from book.indirect.problems import TAU, UNIT, known_prior, transformation, unit_grid
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, CMETS, ActionPolicy, ClippedGaussian, Nodes
from cbo_lib.kernels import rbf_kernel
from tests.indirect.helpers import F64, known, priced, problem_of, ripple


@pytest.mark.parametrize("ratio", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("gamma", [-3.0, -0.33, 0.0, 1.7, 5.2])
def test_the_table_is_appendix_a_to_a_percent(gamma, ratio):
    gain = float(noisy_log_gain(torch.tensor(gamma, dtype=F64), torch.tensor(ratio, dtype=F64).log()).exp())
    # By definition: the entropy of z minus that of z given g <= f*, on a fine grid; noise 1, f* = 0.
    std, mean = ratio, -gamma * ratio
    z = np.linspace(mean - 12 * (1 + std), mean + 12 * (1 + std), 40001)
    total = np.hypot(std, 1)
    shrunk = mean + std**2 / total**2 * (z - mean)
    density = norm.pdf(z, mean, total) * norm.cdf(-shrunk / (std / total)) / norm.cdf(gamma)
    entropy = -np.trapezoid(np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0), z)
    assert gain == pytest.approx(0.5 * np.log(2 * np.pi * np.e * total**2) - entropy, rel=0.02, abs=1e-6)


def test_beyond_the_table_the_gain_goes_on_falling():
    gain = noisy_log_gain(torch.tensor([13.0, 14.0, 20.0, 40.0], dtype=F64), torch.tensor(0.0, dtype=F64))
    assert bool((gain.diff() < 0).all()) and bool(torch.isfinite(gain).all())


def test_the_fast_form_asks_what_the_exact_one_asks():
    problem = priced()
    runs = [
        simulate(problem, make(problem.space, prior=known(problem), **options), 6, range(8), progress=False)
        for make, options in ((NoisyCMES, {}), (CMES, {"noisy": True}), (CMES, {}))
    ]
    same = [(runs[0]["query"] == other["query"]).double().mean() for other in runs[1:]]
    assert same[0] >= 0.95 and same[1] < 0.9
    assert bool((runs[0]["query"][:, 0] == runs[1]["query"][:, 0]).all())


def test_the_tree_in_the_fast_form_is_a_tree():
    nodes = Nodes.complete(UNIT, 2)
    noise = 0.5 / nodes.cost()
    problem = problem_of(
        ripple, unit_grid(5), nodes.actions, ClippedGaussian(transformation("linear"), TAU, UNIT), noise, nodes.cost()
    )
    prior = known_prior(problem.space, 0.3)
    fast = simulate(problem, NoisyCMETS(problem.space, nodes=nodes, prior=prior), 5, [0, 1], progress=False)
    exact = simulate(problem, CMETS(problem.space, nodes=nodes, prior=prior, noisy=True), 5, [0, 1], progress=False)
    assert torch.equal(fast["query"][:, :2], exact["query"][:, :2])
    assert bool((fast["leaves"][:, 1:] > 1).all())


def test_levels_are_asked_evenly():
    nodes = Nodes.complete(UNIT, 2)
    problem = problem_of(
        ripple, unit_grid(4), nodes.actions, ClippedGaussian(transformation("linear"), TAU, UNIT), 0.1, nodes.cost()
    )
    policy = RandomLevels(problem.space, prior=known_prior(problem.space, 0.3))
    asked = simulate(problem, policy, 12, range(40), progress=False)["query"]
    share = torch.bincount(nodes.level[asked].flatten()).double() / asked.numel()
    np.testing.assert_allclose(share, 1 / 3, atol=0.07)


def test_a_paid_score_is_divided_by_the_cost():
    problem = priced()
    usual = {"acquisition": "ei", "action_prior": GaussianProcess(rbf_kernel(0.3), 0.1), "prior": known(problem)}
    paid, free = PaidActionPolicy(problem.space, **usual), ActionPolicy(problem.space, **usual)
    for policy in (paid, free):
        policy.start([0])
        policy.ask()
    cost = problem.space.costs
    n = problem.n
    np.testing.assert_allclose(paid.scores()[0, :n], free.scores()[0, :n] - cost[:n].log(), rtol=1e-10)
