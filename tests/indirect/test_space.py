"""Distributions of the input against draws and integrals, their estimate, and what the learner knows and refuses."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from book.indirect.problems import draw_data, draw_inputs, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ClippedGaussian, ConditionalMeanEmbedding, Point, Space, UniformWindow
from cbo_lib.indirect.embedding import cross_validate, embedding_loss, embedding_weights
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from cbo_lib.measure import Measure, covariance
from cbo_lib.random import ReplicateGenerators
from tests.indirect import plain
from tests.indirect.helpers import ACTION_LENGTH, F64, LENGTH, RIDGE, UNIT, cosine_map, ripple, square

CONDITIONALS = {
    "normal": ClippedGaussian(lambda a: a[..., :1], lambda a: 0.05 + 0.1 * a[..., 0]),
    "clipped": ClippedGaussian(lambda a: a[..., :1], 0.3, torch.tensor([[0.0], [1.0]], dtype=F64)),
    "window": UniformWindow(),
}


def wave(x):
    return torch.sin(6 * x[..., 0]) + x[..., 0] ** 2


def height(x):
    return math.sin(6 * x) + x**2


def actions_of(name):
    a = torch.tensor([[0.05, 0.02], [0.4, 0.3], [0.9, 0.1]], dtype=F64)
    return a if name == "window" else a[:, :1]


@pytest.mark.parametrize("name", CONDITIONALS)
def test_averages_are_those_of_draws_and_of_integrals(name):
    """Twenty thousand replicates of one draw an action each."""
    conditional, actions = CONDITIONALS[name], actions_of(name)
    mean = conditional.measure(actions, 65).expectation(wave)
    generators = ReplicateGenerators((5, 6), stream=4).generators
    draws = wave(draw_inputs(conditional, actions.repeat(20000, 1).expand(2, -1, -1), generators)).reshape(40000, 3)
    error = 4 * draws.std(0) / 200 + (0.005 if name == "clipped" else 0)
    assert bool(((draws.mean(0) - mean).abs() < error).all())
    for action, value in zip(actions.tolist(), mean.tolist(), strict=True):
        if name == "window":
            c, r = action
            expected = quad(height, c - r, c + r)[0] / (2 * r)
        else:
            h, tau = action[0], 0.05 + 0.1 * action[0] if name == "normal" else 0.3
            low, high = (h - 9 * tau, h + 9 * tau) if name == "normal" else (0, 1)
            expected = quad(lambda x, h=h, t=tau: height(x) * norm.pdf(x, h, t), low, high)[0]
            if name == "clipped":
                expected += height(0) * norm.cdf(-h / tau) + height(1) * norm.sf((1 - h) / tau)
        assert value == pytest.approx(expected, abs=0.02 if name == "clipped" else 1e-8)


def test_the_closed_form_of_gaussian_averages_is_that_of_their_quadrature():
    conditional = ClippedGaussian(cosine_map, lambda a: 0.05 + 0.2 * a[..., 0])
    grid = unit_grid(3)
    rule = conditional.measure(grid, 40)
    closed = GaussianMeasureKernel(LENGTH, 1.3)(conditional.gaussian(grid)).to_dense()
    torch.testing.assert_close(closed, covariance(rbf_kernel(LENGTH, 1.3), rule, rule), rtol=0, atol=1e-9)


@pytest.fixture
def data(rng):
    """Thirty pairs, and five actions to predict for."""
    a = torch.rand(30, 2, generator=rng, dtype=F64)
    x = cosine_map(a) + 0.05 * torch.randn(30, 2, generator=rng, dtype=F64)
    return x, a, torch.rand(5, 2, generator=rng, dtype=F64)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
def test_weights_are_those_of_equation_12(data, ridge):
    x, a, query = data
    expected = plain.ridge_weights(a.numpy(), query.numpy(), ACTION_LENGTH, ridge)
    np.testing.assert_allclose(embedding_weights(a, rbf_kernel(ACTION_LENGTH), ridge, query), expected, atol=1e-8)
    estimate = ConditionalMeanEmbedding(x, a, ACTION_LENGTH, ridge).measure(query)
    np.testing.assert_allclose(estimate.weights, expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(estimate.expectation(ripple), expected @ ripple(x).numpy(), rtol=0, atol=1e-8)
    if ridge < 0.1:
        whole = ConditionalMeanEmbedding(x, a, ACTION_LENGTH, ridge, normalize=True).measure(query)
        np.testing.assert_allclose(whole.weights, expected / expected.sum(-1, keepdims=True), atol=1e-8)


def test_the_leave_one_out_error_is_that_of_leaving_one_out_and_the_smallest_is_taken(data):
    x, a, _ = (part[:12] for part in data)
    for ridge, action_length in ((1e-3, 0.25), (1e-1, 0.6)):
        errors = []
        for i in range(12):
            rest = [j for j in range(12) if j != i]
            # The ridge 12 lambda stays as it is.
            w = plain.ridge_weights(a[rest].numpy(), a[i : i + 1].numpy(), action_length, ridge * 12 / 11)[0]
            to_rest = plain.rbf(x[i : i + 1], x[rest], LENGTH)[0]
            errors.append(1 - 2 * w @ to_rest + w @ plain.rbf(x[rest], x[rest], LENGTH) @ w)
        got = embedding_loss(x, a, rbf_kernel(LENGTH), rbf_kernel(action_length), ridge)
        assert float(got) == pytest.approx(np.mean(errors), rel=1e-7)
    lengths, ridges = (0.05, 0.3, 2.0), (1e-5, 1e-2, 1.0)
    chosen = cross_validate(x, a, rbf_kernel(LENGTH), lengths, ridges)
    losses = {
        (n, c): float(embedding_loss(x, a, rbf_kernel(LENGTH), rbf_kernel(n), c)) for n in lengths for c in ridges
    }
    assert losses[chosen] == min(losses.values())


def test_the_estimate_approaches_the_truth_as_pairs_are_added():
    problem, _ = square()
    errors = []
    for count in (20, 80, 320):
        x, a = draw_data(problem, count, range(6), UNIT)
        estimate = ConditionalMeanEmbedding(x, a, ACTION_LENGTH, 0.03 / count).measure(problem.space.actions)
        errors.append(float((estimate.expectation(ripple) - problem.g).square().mean().sqrt()))
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]


def test_a_space_takes_frames_arrays_lists_and_tensors(rng):
    x, a = torch.rand(20, 3, generator=rng, dtype=F64), torch.rand(20, 2, generator=rng, dtype=F64)
    for form in (lambda t: t, lambda t: t.numpy(), lambda t: t.tolist(), lambda t: pd.DataFrame(t.numpy())):
        space = Space(form(unit_grid(3)), samples=(form(x), form(a)), noise_std=0.1)
        assert space.n == 9 and space.m == 20 and space.bounds.shape == (2, 3) and list(space.columns) == ["0", "1"]
        assert space.noise_std.tolist() == [0.1] * 9 and space.cost.tolist() == [1.0] * 9
    wide = Space([0.0, 1.0], conditional=Point(), bounds=[[0.0], [1.0]])
    assert wide.m == 512 and 0 <= float(wide.points.min()) < 0.01


def test_an_action_of_another_unit_or_far_from_all_pairs_is_refused(data):
    x, a, _ = data
    space = Space(unit_grid(3), samples=(x, a))
    with pytest.raises(ValueError, match="query must have its coordinates in the order and units of"):
        space.read([0.5, 300.0])
    with pytest.raises(ValueError, match="samples must have actions near all"):
        CMES(Space(unit_grid(3) + 20, samples=(x, a)), prior=GaussianProcess(rbf_kernel(LENGTH), 0.1)).ask()
    with pytest.raises(ValueError, match="prior must have a kernel of points, as ConditionalMeanEmbedding"):
        CMES(space, prior=GaussianProcess(GaussianMeasureKernel(LENGTH), 0.1)).ask()
    assert RIDGE > 0 and Measure.dirac(x).n == 30
