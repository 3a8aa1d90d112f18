"""The problems are those of the paper, and what their descriptions say."""

import math

import numpy as np
import pytest
import torch
from botorch.test_functions import Branin

from book.indirect import problems
from book.indirect.problems import unit_grid
from tests.indirect.helpers import F64, SEEDS, UNIT, square


def test_branin_is_standardized_and_keeps_its_maxima():
    values = problems.branin(unit_grid(200))
    assert float(values.mean()) == pytest.approx(0, abs=0.01) and float(values.std()) == pytest.approx(1, abs=0.01)
    problem = Branin(negate=True, dtype=F64)
    optimizers = torch.tensor([[-math.pi, 12.275], [math.pi, 2.275], [9.42478, 2.475]], dtype=F64)
    unit = (optimizers - torch.tensor([-5.0, 0.0])) / 15
    top = problems.branin(unit)
    np.testing.assert_allclose(top, float(top[0]), atol=1e-5)
    assert float(values.max()) <= float(top.max()) + 1e-9
    # An affine map of the original.
    x = torch.rand(4, 5, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    raw = problem((x * 15 + torch.tensor([-5.0, 0.0])).reshape(-1, 2)).reshape(4, 5)
    slope = (problems.branin(x) - problems.branin(x[:1, :1])) / (raw - raw[0, 0])
    np.testing.assert_allclose(slope.flatten()[1:], float(slope[1, 1]), rtol=1e-9)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_the_problem_is_that_of_section_7(name):
    problem = problems.branin_problem(name, 0.3, 6)
    a = problem.space.actions
    assert problem.n == 36 and torch.equal(a, unit_grid(6)) and bool((problem.noise == 0.3).all())
    center = a if name == "linear" else torch.cos(math.pi * a / 2)
    torch.testing.assert_close(problem.conditional.center(a), center, rtol=0, atol=1e-9)
    assert problem.conditional.std == pytest.approx(math.sqrt(0.5) / 15)  # a variance of 1/2 on sides of 15
    assert problem.conditional.bounds.tolist() == UNIT.tolist()


def test_two_peaks_and_their_blurred_average_differ():
    x = torch.linspace(-1, 4, 2001, dtype=F64)[:, None]
    f = problems.two_peaks(x)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    blurred = sum(w * problems.two_peaks(x + 0.3 * n) for n, w in zip(nodes, weights / weights.sum(), strict=True))
    assert float(x[f.argmax()]) == pytest.approx(0.5, abs=0.05)
    assert float(x[blurred.argmax()]) == pytest.approx(2.0, abs=0.1)


def test_a_district_without_pixels_is_its_nearest_pixel():
    pixels = unit_grid(2)
    districts = problems.Districts(torch.tensor([[0.25, 0.25], [0.3, 0.3], [0.9, 0.9]], dtype=F64), pixels)
    weights = districts.measure(districts.centers).weights
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=F64))
    assert any(weights[1].tolist() == pytest.approx(w) for w in ([1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]))


def test_data_are_draws_of_uniform_actions():
    problem = square()
    bounds = torch.tensor([[0.2, -1.0], [0.4, 3.0]], dtype=F64)
    x, a = problems.draw_data(problem, 2000, SEEDS, bounds)
    assert x.shape == a.shape == (3, 2000, 2)
    assert bool(((a >= bounds[0]) & (a <= bounds[1])).all())
    share = (a - bounds[0]) / (bounds[1] - bounds[0])
    np.testing.assert_allclose(share.mean((0, 1)), 0.5, atol=0.02)
    np.testing.assert_allclose(share.var((0, 1)), 1 / 12, atol=0.005)
    inside = (a > 0.3) & (a < 0.7)
    np.testing.assert_allclose((x - a)[inside].mean(), 0.0, atol=0.02)
    np.testing.assert_allclose((x - a)[inside].std(), 0.08, atol=0.005)
    assert not torch.equal(a[0], a[1])


def test_a_grid_has_the_centers_of_equal_cells():
    assert unit_grid(2, 1).tolist() == [[0.25], [0.75]]
    assert unit_grid(2).tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    assert unit_grid(3, 3).shape == (27, 3)
