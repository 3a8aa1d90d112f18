"""What the problem says and refuses."""

import math

import numpy as np
import pytest
import torch

from book.indirect.problem import IndirectProblem
from book.indirect.problems import unit_grid
from cbo_lib.indirect import ClippedGaussian, Space
from cbo_lib.random import ReplicateGenerators
from tests.indirect.helpers import cosine_map, identity, priced, problem_of, ripple


def test_the_table_holds_g_at_actions_then_f_at_points():
    grid = unit_grid(9)  # more actions than one slice
    problem = problem_of(ripple, unit_grid(3), grid, ClippedGaussian(cosine_map, 0.1), order=12)
    assert problem.n == 81 and problem.table.shape == (90,)
    assert torch.allclose(problem.table[81:], ripple(unit_grid(3)))
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    for i in (0, 17, 63, 64, 80):
        center = cosine_map(grid[i]).numpy()
        x, y = np.meshgrid(*(c + 0.1 * math.sqrt(2) * nodes for c in center), indexing="ij")
        values = ripple(torch.from_numpy(np.stack([x, y], -1))).numpy()
        assert float(problem.table[i]) == pytest.approx(weights @ values @ weights / math.pi, abs=1e-10)
    assert float(problem.optimum) == pytest.approx(float(ripple(unit_grid(3)).max()))
    assert torch.allclose(problem.value(torch.tensor([3, 85])), problem.table[[3, 85]])


def test_observations_have_the_noise_of_their_place():
    problem = priced()
    query = torch.tensor([0, 2, 7, 30])
    draws = ReplicateGenerators(range(4), stream=0)
    seen = torch.stack([problem.observe(query, draws.at(t)) for t in range(2000)])
    noise = [*problem.space.noise_std[[0, 2, 7]].tolist(), float(problem.space.noise_std.min())]
    np.testing.assert_allclose(problem.noise[query], noise, rtol=1e-9)
    for r in range(4):
        assert float(seen[:, r].mean()) == pytest.approx(float(problem.table[query[r]]), abs=4 * noise[r] / 2000**0.5)
        assert float(seen[:, r].std()) == pytest.approx(noise[r], rel=0.08)
    assert float(torch.corrcoef(seen.T).triu(1).abs().max()) < 0.1


def test_the_truth_may_differ_from_what_the_learner_knows():
    grid = unit_grid(2)
    known, true = ClippedGaussian(identity, 0.1), ClippedGaussian(cosine_map, 0.1)
    space = Space(grid, points=grid, conditional=known, noise_std=0.3)
    problem = IndirectProblem(space, ripple, true, 0.5)
    assert torch.allclose(problem.table[:4], true.measure(grid, 65).expectation(ripple)) and problem.noise[0] == 0.5
    problem = IndirectProblem(space, ripple)
    assert torch.allclose(problem.table[:4], known.measure(grid, 65).expectation(ripple)) and problem.noise[0] == 0.3
