import warnings

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.means import ZeroMean
from scipy.stats import norm

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.models import AveragedModel
from tests.oracles import condition, matern52, rbf, sets

F64 = torch.float64


def k(x, z):
    return rbf(x, z, 0.4, 1.3)


def wave(x):  # works on tensors and arrays
    return 0.5 + x[..., 0] ** 2 - 2 * x[..., 1]


@pytest.fixture
def fitted(rng):
    x = torch.rand(6, 2, generator=rng, dtype=F64)
    y = torch.sin(5 * x[:, 0]) - x[:, 1]
    averages = Measure.average(torch.rand(3, 4, 2, generator=rng, dtype=F64))
    observed = Measure.cat([Measure.dirac(x), averages])
    values = torch.cat([y, averages.expectation(lambda p: torch.sin(5 * p[..., 0]) - p[..., 1])])
    return observed, values, GaussianProcess(rbf_kernel(0.4, 1.3), 0.1, wave).condition(observed, values)


def moments(fitted, x):
    observed, y, _ = fitted
    mean, cov = condition(k, sets(observed), y.numpy(), 0.1, [(p[None], np.ones(1)) for p in x], wave)
    return mean, np.sqrt(np.diag(cov))


def improvement(mean, std, best):
    u = (mean - best) / std
    return np.log(std * (norm.pdf(u) + u * norm.cdf(u)))


def test_acquisition_functions_equal_their_formulas(rng, fitted):
    x = torch.rand(7, 2, generator=rng, dtype=F64)
    model = fitted[2].as_botorch()
    mean, std = moments(fitted, x.numpy())
    for beta in (0.5, 4.0):
        got = UpperConfidenceBound(model, beta=beta)(x.unsqueeze(-2))
        np.testing.assert_allclose(got, mean + np.sqrt(beta) * std, atol=1e-9)
    np.testing.assert_allclose(
        LogExpectedImprovement(model, best_f=0.2)(x.unsqueeze(-2)), improvement(mean, std, 0.2), atol=1e-7
    )


@pytest.mark.parametrize("name", ["ucb", "logei"])
def test_gradient_of_an_acquisition_function_in_its_points(rng, fitted, name):
    x = torch.rand(5, 1, 2, generator=rng, dtype=F64, requires_grad=False).requires_grad_()
    model = fitted[2].as_botorch()
    acquisition = UpperConfidenceBound(model, beta=4.0) if name == "ucb" else LogExpectedImprovement(model, best_f=0.2)

    def oracle(p):
        mean, std = moments(fitted, p)
        return mean + 2 * std if name == "ucb" else improvement(mean, std, 0.2)

    (got,) = torch.autograd.grad(acquisition(x).sum(), x)
    at, numeric = x.detach().numpy()[:, 0], np.zeros((5, 2))
    for i in range(2):
        step = 1e-5 * np.eye(2)[i]
        numeric[:, i] = (oracle(at + step) - oracle(at - step)) / 2e-5
    np.testing.assert_allclose(got[:, 0], numeric, rtol=1e-5, atol=1e-6)


def test_optimize_acqf_beats_a_fine_grid(fitted):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    acquisition = UpperConfidenceBound(fitted[2].as_botorch(), beta=4.0)
    best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=F64)] * 2)
    mean, std = moments(fitted, grid.numpy())
    assert best.shape == (1, 2) and float(best.min()) >= 0 and float(best.max()) <= 1
    assert float(value) >= (mean + 2 * std).max() - 1e-6


def test_single_task_gp_with_the_same_kernel_agrees(rng):
    x = torch.rand(12, 2, generator=rng, dtype=F64)
    x = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    y = torch.sin(5 * x[:, 0]) - x[:, 1]
    y = ((y - y.mean()) / y.std()).unsqueeze(-1)
    kernel = rbf_kernel(0.4, 1.3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model inputs are of type")
        model = SingleTaskGP(
            x,
            y,
            torch.full_like(y, 0.04),
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()
    ours = GaussianProcess(kernel, 0.2).condition(Measure.dirac(x), y.squeeze(-1)).as_botorch()
    points = torch.rand(9, 2, generator=rng, dtype=F64)
    theirs, mine = model.posterior(points), ours.posterior(points)
    torch.testing.assert_close(mine.mean, theirs.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(
        mine.distribution.covariance_matrix, theirs.distribution.covariance_matrix, rtol=0, atol=1e-8
    )


# Candidates that are no points


def cells(corners):
    """Boxes from their two corners, flattened, lower corner first in every coordinate."""
    a, b = corners.unflatten(-1, (2, -1)).unbind(-2)
    return Measure.uniform(torch.stack([torch.minimum(a, b), torch.maximum(a, b)], -2), 3)


def corners(rng, *shape):
    return torch.rand(*shape, 4, generator=rng, dtype=F64)


def moments_of(fitted, measure):
    observed, y, _ = fitted
    return condition(k, sets(observed), y.numpy(), 0.1, sets(measure), wave)


def test_acquisition_functions_score_cells(rng, fitted):
    x = corners(rng, 7)
    model = fitted[2].as_botorch(cells)
    mean, cov = moments_of(fitted, cells(x))
    got = LogExpectedImprovement(model, best_f=0.2)(x.unsqueeze(-2))
    np.testing.assert_allclose(got, improvement(mean, np.sqrt(np.diag(cov)), 0.2), atol=1e-6)
    np.testing.assert_allclose(model.posterior(x).distribution.covariance_matrix, cov, atol=1e-9)


# Averages of a model of BoTorch


@pytest.fixture
def single(rng):
    """A model of standardized outputs, and the same in dense algebra: kernel, mean, points, values, noise."""
    x = torch.rand(12, 2, generator=rng, dtype=F64)
    y = 30 + 10 * (torch.sin(5 * x[:, 0]) - x[:, 1])
    kernel, scale = matern_kernel([0.4, 0.7], 1.3), y.std()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The model inputs are of type")
        noise = torch.full((12, 1), 0.04, dtype=F64) * scale.square()
        model = SingleTaskGP(
            x, y.unsqueeze(-1), noise, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=Standardize(1)
        ).eval()
    prior = GaussianProcess(matern_kernel([0.4, 0.7], 1.3 * float(scale) ** 2), 0.2 * float(scale), float(y.mean()))
    return model, prior.condition(Measure.dirac(x), y), (x.numpy(), y.numpy(), float(scale), float(y.mean()))


def test_averages_of_a_model_are_those_of_the_same_process(rng, single):
    model, posterior, (x, y, scale, mean) = single
    ours, theirs, at = AveragedModel(model, cells), posterior.as_botorch(cells), corners(rng, 3, 4)
    got, expected = ours.posterior(at), theirs.posterior(at)
    assert ours.num_outputs == 1 and ours.batch_shape == () and got.mean.shape == (3, 4, 1)
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-6)
    covariance = expected.distribution.covariance_matrix
    torch.testing.assert_close(got.distribution.covariance_matrix, covariance, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        ours.posterior(at, observation_noise=True).variance, got.variance + (0.2 * scale) ** 2, rtol=0, atol=1e-5
    )

    def kernel(a, b):
        return matern52(a, b, [0.4, 0.7], 1.3 * scale**2)

    for b in range(3):
        dense = condition(kernel, sets(Measure.dirac(torch.tensor(x))), y - mean, 0.2 * scale, sets(cells(at[b])))
        np.testing.assert_allclose(got.mean[b, :, 0], mean + dense[0], atol=1e-6)
        np.testing.assert_allclose(got.distribution.covariance_matrix[b], dense[1], atol=1e-5)


@pytest.mark.parametrize("which", ["points", "cells"])
def test_the_knowledge_gradient_can_be_optimized(single, which):
    model = single[1].as_botorch() if which == "points" else single[1].as_botorch(cells)
    dim = 2 if which == "points" else 4
    bounds = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=F64)
    acquisition = qKnowledgeGradient(model, num_fantasies=3, sampler=SobolQMCNormalSampler(torch.Size([3]), seed=0))
    torch.manual_seed(0)
    best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 20})
    assert best.shape == (1, dim) and bool(torch.isfinite(value))
    # What is known after one more observation is worth more than now, on average.
    now = max(float(model.posterior(b.unsqueeze(0)).mean) for b in torch.rand(200, dim, dtype=F64))
    assert float(value) > now
