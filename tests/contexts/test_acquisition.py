"""Acquisition functions against plain NumPy, and in BoTorch's own optimizer."""

import warnings

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim import optimize_acqf

from cbo_lib.acquisition import ExpectedUpperConfidenceBound as Expected
from cbo_lib.acquisition import RobustUpperConfidenceBound as Robust
from cbo_lib.contexts.acquisition import MinimaxUpperConfidenceBound as Minimax
from cbo_lib.contexts.acquisition import MMDUpperConfidenceBound as MMD
from cbo_lib.contexts.acquisition import TotalVariationUpperConfidenceBound as TotalVariation
from cbo_lib.contexts.worst_case import MMDBall
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.contexts import plain
from tests.contexts.helpers import F64, box

LENGTHSCALE, SCALE, MEAN, NOISE = [0.3, 0.5, 0.4], 1.3, 0.2, 0.1
MODEL = plain.Model(np.array(LENGTHSCALE), SCALE, MEAN, NOISE)
RADIUS = 0.4


@pytest.fixture
def data(rng):
    x = torch.rand(2, 9, 3, generator=rng, dtype=F64)
    return x, torch.randn(2, 9, generator=rng, dtype=F64)


PROCESS = GaussianProcess(rbf_kernel(LENGTHSCALE, SCALE**2), NOISE, MEAN)


@pytest.fixture
def batch(data):
    """Two replicates of two decisions and one context."""
    return PROCESS.condition(Measure.dirac(data[0]), data[1])


@pytest.fixture
def single(data):
    """The first of them, without a batch dimension."""
    return PROCESS.condition(Measure.dirac(data[0][0]), data[1][0])


def functions(posterior, batched):
    """Every acquisition, and the plain function of the bounds that it should be."""
    points = torch.linspace(-0.2, 1.1, 12, dtype=F64)[:, None]
    extra = torch.linspace(-0.5, 1.5, 7, dtype=F64)[:, None]
    weights = torch.arange(1, 13, dtype=F64) / 78
    gram = torch.as_tensor(plain.discrepancy_kernel(MODEL, points.numpy()))
    w, k = weights.numpy(), gram.numpy()
    if batched:
        points, extra, weights, gram = (part.expand(2, *part.shape) for part in (points, extra, weights, gram))
    ball = MMDBall(weights, gram, RADIUS)
    everything = np.concatenate([np.linspace(-0.2, 1.1, 12), np.linspace(-0.5, 1.5, 7)])[:, None]
    few = everything[:12]
    return {
        "average": (Expected(posterior, points), few, np.mean),
        "weighted": (Expected(posterior, points, weights=weights), few, lambda v: w @ v),
        "total variation": (
            TotalVariation(posterior, points, extra, RADIUS),
            everything,
            lambda v: plain.tv_program(v[:12], v[12:].min(), RADIUS),
        ),
        "robust": (Robust(posterior, points), few, np.min),
        "mmd": (MMD(posterior, points, ball), few, lambda v: plain.mmd_program(v, w, k, RADIUS)),
        "minimax": (Minimax(posterior, points, ball), few, lambda v: plain.minimax(v, w, k, RADIUS)),
    }


NAMES = ["average", "weighted", "total variation", "robust", "mmd", "minimax"]
LOOSE = {"mmd": 1e-4}


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_replicates_equal_plain_loops(name, rng, data, batch):
    ours, contexts, reduce = functions(batch, True)[name]
    x = torch.rand(2, 5, 2, generator=rng, dtype=F64)
    values = ours.values(x)
    assert values.shape == (2, 5)
    for r in range(2):
        for i in range(5):
            bounds = MODEL.ucb(data[0][r].numpy(), data[1][r].numpy(), x[r, i].tolist(), contexts, 1.5)
            assert float(values[r, i]) == pytest.approx(reduce(bounds), abs=LOOSE.get(name, 1e-8))


@pytest.mark.parametrize("name", NAMES)
def test_one_posterior_makes_a_botorch_acquisition_function(name, rng, batch, single):
    x = torch.rand(6, 1, 2, generator=rng, dtype=F64)
    forward = functions(single, False)[name][0]
    values = forward(x)
    assert values.shape == (6,)
    expected = functions(batch, True)[name][0].values(x[:, 0].expand(2, -1, -1))[0]
    torch.testing.assert_close(values, expected, rtol=0, atol=LOOSE.get(name, 1e-8))
    torch.testing.assert_close(forward(x.reshape(2, 3, 1, 2)), values.reshape(2, 3), rtol=0, atol=1e-10)
    with warnings.catch_warnings():  # a line search may end at a kink of a worst case
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", OptimizationWarning)
        point, value = optimize_acqf(forward, box(0.0, 1.0, 2), 1, len(x), batch_initial_conditions=x.detach())
    assert float(value) >= float(values.detach().max()) - 1e-2
    torch.testing.assert_close(forward(point[None])[0], value, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_slopes_agree_with_finite_differences(name, rng, batch):
    ours = functions(batch, True)[name][0]
    x = torch.rand(2, 3, 2, generator=rng, dtype=F64).requires_grad_()
    (slope,) = torch.autograd.grad(ours.values(x).sum(), x)
    step = 1e-4 if name == "mmd" else 1e-6
    for k in range(2):
        move = torch.zeros(2, dtype=F64)
        move[k] = step
        with torch.no_grad():
            rise = (ours.values(x + move) - ours.values(x - move)) / (2 * step)
        torch.testing.assert_close(slope[..., k], rise, rtol=0, atol=5e-2 if name == "mmd" else 1e-4)


def test_without_exploration_the_mean_counts(rng, batch):
    points = torch.rand(2, 11, 1, generator=rng, dtype=F64)
    x = torch.rand(2, 4, 2, generator=rng, dtype=F64)
    torch.testing.assert_close(
        Expected(batch, points, 0.0).values(x), Expected(batch, points).mean(x), rtol=0, atol=1e-10
    )


def test_the_radius_spans_from_the_average_to_the_minimum(rng, batch):
    samples, cover = torch.rand(2, 40, 1, generator=rng, dtype=F64), torch.rand(2, 30, 1, generator=rng, dtype=F64)
    x = torch.rand(2, 4, 2, generator=rng, dtype=F64)
    curves = torch.stack(
        [TotalVariation(batch, samples, cover, radius).values(x) for radius in (0.0, 0.5, 1.0, 2.0, 5.0)]
    )
    torch.testing.assert_close(curves[0], Expected(batch, samples).values(x), rtol=0, atol=1e-5)
    lowest = Robust(batch, torch.cat([samples, cover], -2)).values(x)
    torch.testing.assert_close(curves[3], lowest, rtol=0, atol=1e-5)
    torch.testing.assert_close(curves[4], curves[3], rtol=0, atol=1e-9)
    assert bool((curves.diff(dim=0) <= 1e-9).all())


# Which decisions lead, from few distributions


def searched(rng, batch, batched=True):
    """The acquisition over a ball, decisions in three groups of twenty, their values, and how far these may be off."""
    acquisition = functions(batch, batched)["mmd"][0]
    x = torch.rand(2, 3, 20, 2, generator=rng, dtype=F64)
    bounds = acquisition.bounds(x.flatten(1, 2))
    error = 2e-5 * (bounds.amax(-1) - bounds.amin(-1)).max()  # of a worst case, by its duality gap
    return acquisition, x, acquisition.values(x.flatten(1, 2)).view(2, 3, 20), float(error)


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("batched", [True, False])
def test_decisions_that_lead_have_their_worst_case_and_the_others_no_less(rng, batch, count, batched):
    acquisition, x, wanted, error = searched(rng, batch, batched)
    for _ in range(2):  # the second time with the distributions that the first one found
        found = acquisition.leading(x, count, torch.full_like(wanted[..., 0], -torch.inf))
        torch.testing.assert_close(found.topk(count).values, wanted.topk(count).values, rtol=0, atol=error)
        assert bool((found >= wanted - error).all())
