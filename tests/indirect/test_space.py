"""Distributions of the input against draws and quadrature, and what the learner knows and refuses."""

import math

import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from book.indirect.problems import FinitePolicies, draw_inputs, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, ConditionalMeanEmbedding, Point, Space, UniformWindow
from cbo_lib.kernels import GaussianMeasureKernel, matern_kernel, rbf_kernel
from cbo_lib.measure import Measure, covariance
from cbo_lib.random import ReplicateGenerators
from tests.indirect.helpers import F64, SEEDS, identity, ripple

ARMS = torch.tensor([[0.1], [0.5], [0.8]], dtype=F64)


def agents(a):
    return (a * torch.tensor([1.0, 2.0, -1.0], dtype=F64)).softmax(-1)


def wave(x):
    return torch.sin(6 * x[..., 0]) + x[..., 0] ** 2


def height(x):
    return math.sin(6 * x) + x**2


def generators(seeds=SEEDS, stream=4):
    return ReplicateGenerators(seeds, stream=stream).generators


CONDITIONALS = {
    "normal": ClippedGaussian(lambda a: 0.2 + 0.5 * a[..., :1], 0.15),
    "normal, own width": ClippedGaussian(lambda a: a[..., :1], lambda a: 0.05 + 0.1 * a[..., 0]),
    "clipped": ClippedGaussian(lambda a: a[..., :1], 0.3, torch.tensor([[0.0], [1.0]], dtype=F64)),
    "window": UniformWindow(),
    "policies": FinitePolicies(agents, ARMS),
}


def actions_of(name):
    a = torch.tensor([[0.05, 0.02], [0.4, 0.3], [0.9, 0.1]], dtype=F64)
    return a if name == "window" else a[:, :1]


@pytest.mark.parametrize("name", CONDITIONALS)
def test_averages_are_those_of_draws(name):
    """Twenty thousand replicates of one draw an action each."""
    conditional, actions = CONDITIONALS[name], actions_of(name)
    mean = conditional.measure(actions, 65).expectation(wave)
    copies = actions.repeat(20000, 1).expand(2, -1, -1)
    draws = wave(draw_inputs(conditional, copies, generators((5, 6)))).reshape(40000, 3)
    error = 4 * draws.std(0) / 200 + (0.005 if name == "clipped" else 0)
    assert bool(((draws.mean(0) - mean).abs() < error).all())


@pytest.mark.parametrize("name", CONDITIONALS)
def test_weights_are_probabilities_and_draws_belong_to_their_replicate(name):
    conditional, actions = CONDITIONALS[name], actions_of(name)
    measure = conditional.measure(actions, 9)
    assert measure.n == 3 and measure.dim == 1
    torch.testing.assert_close(measure.weights.sum(-1), torch.ones(3, dtype=F64), rtol=0, atol=1e-9)
    drawn = draw_inputs(conditional, actions.expand(3, -1, -1), generators())
    assert drawn.shape == (3, 3, 1)
    for r, seed in enumerate(SEEDS):
        assert torch.equal(drawn[r], draw_inputs(conditional, actions.expand(1, -1, -1), generators([seed]))[0])


@pytest.mark.parametrize("name", ["normal", "normal, own width", "window"])
def test_averages_are_integrals(name):
    conditional, actions = CONDITIONALS[name], actions_of(name)
    got = conditional.measure(actions, 40).expectation(wave).tolist()
    for action, value in zip(actions.tolist(), got, strict=True):
        if name == "window":
            (c, r) = action
            expected = quad(height, c - r, c + r)[0] / (2 * r)
        else:
            h, tau = (0.2 + 0.5 * action[0], 0.15) if name == "normal" else (action[0], 0.05 + 0.1 * action[0])
            expected = quad(lambda x, h=h, t=tau: height(x) * norm.pdf(x, h, t), h - 9 * tau, h + 9 * tau)[0]
        assert value == pytest.approx(expected, abs=1e-8)


def test_clipped_averages_approach_the_integral_slowly():
    clipped, action = CONDITIONALS["clipped"], torch.tensor([[0.9]], dtype=F64)
    inside = quad(lambda x: height(x) * norm.pdf(x, 0.9, 0.3), 0, 1)[0]
    expected = inside + height(0) * norm.cdf(-3) + height(1) * norm.sf(1 / 3)
    errors = [
        max(abs(float(clipped.measure(action, n).expectation(wave)) - expected) for n in range(order, order + 10, 3))
        for order in (15, 60, 180)
    ]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]


def test_a_space_takes_frames_arrays_lists_and_tensors(rng):
    x, a = torch.rand(20, 3, generator=rng, dtype=F64), torch.rand(20, 2, generator=rng, dtype=F64)
    grid = unit_grid(3)
    forms = [
        lambda t: t,
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: pd.DataFrame(t.numpy(), columns=[f"c{i}" for i in range(t.shape[-1])]),
    ]
    spaces = [Space(form(grid), samples=(form(x), form(a))) for form in forms]
    for space in spaces:
        assert torch.equal(space.actions, grid) and torch.equal(space.points, spaces[0].points)
        assert space.like.dtype == F64 and space.costs.tolist() == [1.0] * 29 and space.noise is None
        assert isinstance(space.conditional, ConditionalMeanEmbedding)
    assert Space([0.1, 0.5], samples=(x, a[:, 0])).actions.tolist() == [[0.1], [0.5]]


def test_what_may_be_recommended_are_the_distinct_inputs_or_a_box():
    x = torch.tensor([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0]], dtype=F64)
    space = Space([0.0, 1.0], samples=(x, [0.0, 1.0, 0.5]))
    assert space.points.tolist() == [[0.0, 2.0], [1.0, 2.0]]
    assert space.bounds.tolist() == [[0.0, 1.5], [1.0, 2.5]]  # a coordinate that is constant has a side of one
    box = [[-1.0, 10.0], [1.0, 30.0]]
    space = Space([0.0, 1.0], conditional=Point(), bounds=box)
    low, high = torch.tensor(box, dtype=F64)
    assert space.m == 512 and bool(((space.points >= low) & (space.points <= high)).all())
    assert bool((space.points.std(0) > 0.25 * (high - low)).all())


def test_actions_average_as_the_kernel_of_the_prior_wants(rng):
    normal, grid = ClippedGaussian(identity, lambda a: 0.1 + 0.2 * a[..., 0]), unit_grid(3)
    space = Space(grid, conditional=normal, points=grid)
    closed = space.tabulate(GaussianProcess(GaussianMeasureKernel(0.4), 0.1)).kernel.gram
    by_rule = space.tabulate(GaussianProcess(rbf_kernel(0.4), 0.1)).kernel.gram
    torch.testing.assert_close(closed, by_rule, rtol=0, atol=1e-5)
    assert torch.equal(normal.gaussian(grid)[:, :2], grid) and torch.equal(
        normal.gaussian(grid)[:, 2], normal.scale(grid)
    )
    windows = Space([[0.5, 0.1]], conditional=UniformWindow(), points=[0.5])
    with pytest.raises(ValueError, match="as UniformWindow is not Gaussian"):
        windows.tabulate(GaussianProcess(GaussianMeasureKernel(0.4), 0.1))


@pytest.mark.parametrize("mean", [0.0, 0.7, "function", "batch"])
def test_a_table_is_the_prior_of_averages_and_points(rng, mean):
    x, a = torch.rand(3, 12, 2, generator=rng, dtype=F64), torch.rand(3, 12, 2, generator=rng, dtype=F64)
    grid = unit_grid(2)
    embedding = ConditionalMeanEmbedding(x, a, 0.3, 1e-2)
    space = Space(grid, conditional=embedding, points=grid)
    given = {"function": ripple, "batch": torch.tensor([[0.1], [0.2], [0.3]], dtype=F64)}.get(mean, mean)
    process = GaussianProcess(matern_kernel(0.4, 1.3), 0.2, given)
    table = space.tabulate(process)
    assert table.kernel.batch_shape == (3,) and table.noise_std == 0.2
    for r in range(3):
        averages, points = ConditionalMeanEmbedding(x[r], a[r], 0.3, 1e-2).measure(grid), Measure.dirac(grid)
        one = GaussianProcess(process.kernel, 0.2, given[r] if mean == "batch" else given)
        for i, left in enumerate((averages, points)):
            for j, right in enumerate((averages, points)):
                block = table.kernel.gram[r, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
                torch.testing.assert_close(block, covariance(process.kernel, left, right), rtol=0, atol=1e-9)
            means = table.prior_mean(Measure.dirac(torch.arange(8, dtype=F64)[:, None])).expand(3, 8)
            torch.testing.assert_close(means[r, 4 * i : 4 * i + 4], one.prior_mean(left), rtol=0, atol=1e-9)
    index = torch.tensor([[0, 5], [7, 1], [2, 2]])
    means = table.prior_mean(Measure.dirac(torch.arange(8, dtype=F64)[:, None])).expand(3, 8)
    batch = table.prior_mean(Measure.dirac(index[..., None].to(F64)))
    torch.testing.assert_close(batch.expand(3, 2), means.gather(-1, index))
