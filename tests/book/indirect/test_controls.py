"""The policies that judge the others do what they say."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from book.indirect.controls import NoisyCMES, NoisyCMETS, noisy_log_gain
from book.indirect.problems import TAU, UNIT, known_prior, transformation, unit_grid
from cbo_lib.former.simulate import simulate
from cbo_lib.indirect import CMES, CMETS, ClippedGaussian, Nodes
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
