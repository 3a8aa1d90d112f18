import warnings

import numpy as np
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.means import ZeroMean
from scipy.stats import norm

from cbo_lib.former.partial import moments as found_moments
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel, rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.models import AveragedModel
from tests.oracles import condition, matern52, rbf, sets
from tests.toys import normal, random_measure

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


def test_joint_posterior_of_several_points(rng, fitted):
    x = torch.rand(3, 4, 2, generator=rng, dtype=F64)
    observed, y, posterior = fitted
    model = posterior.as_botorch()
    joint, noisy = model.posterior(x), model.posterior(x, observation_noise=True)
    assert model.num_outputs == 1 and model.batch_shape == ()
    assert joint.mean.shape == joint.variance.shape == (3, 4, 1)
    for b in range(3):
        mean, cov = condition(k, sets(observed), y.numpy(), 0.1, [(p[None], np.ones(1)) for p in x[b].numpy()], wave)
        np.testing.assert_allclose(joint.mean[b, :, 0], mean, atol=1e-9)
        np.testing.assert_allclose(joint.distribution.covariance_matrix[b], cov, atol=1e-9)
        np.testing.assert_allclose(noisy.variance[b, :, 0], np.diag(cov) + 0.01, atol=1e-9)


def test_observation_noise_may_be_a_tensor_of_variances_as_in_botorch(rng, fitted):
    x = torch.rand(4, 2, generator=rng, dtype=F64)
    variances = torch.tensor([[0.1], [0.2], [0.3], [0.4]], dtype=F64)  # q x m
    model = fitted[2].as_botorch()
    got = model.posterior(x, observation_noise=variances).variance - model.posterior(x).variance
    np.testing.assert_allclose(got, variances, atol=1e-9)


def test_posterior_transform_is_applied(rng, fitted):
    x, model = torch.rand(4, 2, generator=rng, dtype=F64), fitted[2].as_botorch()
    double = ScalarizedPosteriorTransform(weights=torch.tensor([2.0], dtype=F64), offset=1.0)
    torch.testing.assert_close(
        model.posterior(x, posterior_transform=double).mean,
        1 + 2 * model.posterior(x).mean,
        rtol=0,
        atol=1e-12,
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


def test_a_model_of_replicates_evaluates_each_at_the_points(rng):
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2)
    observed, y = random_measure(rng, 3, 4), normal(rng, 3, 4)
    posterior = process.condition(observed, y)
    model, x = posterior.as_botorch(), torch.rand(5, 1, 1, 2, generator=rng, dtype=F64)
    assert model.batch_shape == (3,)
    got = model.posterior(x)
    assert got.mean.shape == (5, 3, 1, 1)
    for r in range(3):
        one = Measure(observed.points[r], observed.weights[r])
        mean, cov = condition(k, sets(one), y[r].numpy(), 0.2, [(p[None], np.ones(1)) for p in x[:, 0, 0].numpy()])
        np.testing.assert_allclose(got.mean[:, r, 0, 0], mean, atol=1e-9)
        np.testing.assert_allclose(got.variance[:, r, 0, 0], np.diag(cov), atol=1e-9)


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


def test_conditioning_the_botorch_model_extends_the_posterior(rng, fitted):
    x, y, points = normal(rng, 2, 2), normal(rng, 2, 1), normal(rng, 5, 2)
    model = fitted[2].as_botorch().condition_on_observations(x, y)
    direct = fitted[2].extend(Measure.dirac(x), y.squeeze(-1)).as_botorch()
    torch.testing.assert_close(model.posterior(points).mean, direct.posterior(points).mean, rtol=0, atol=1e-12)
    assert model.measure_posterior.count == fitted[2].count + 2


def test_conditioning_the_botorch_model_takes_the_noise_it_is_given(rng, fitted):
    x, y, points = normal(rng, 2, 2), normal(rng, 2, 1), normal(rng, 5, 2)
    model = fitted[2].as_botorch().condition_on_observations(x, y, noise=torch.full_like(y, 4.0))
    direct = fitted[2].extend(Measure.dirac(x), y.squeeze(-1), torch.full((2,), 2.0, dtype=F64)).as_botorch()
    torch.testing.assert_close(model.posterior(points).mean, direct.posterior(points).mean, rtol=0, atol=1e-12)


def test_a_nearly_noiseless_model_evaluates_at_its_data_without_a_warning():
    x = torch.linspace(0, 1, 30, dtype=F64).unsqueeze(-1)
    posterior = GaussianProcess(rbf_kernel(0.3), 1e-5).condition(Measure.dirac(x), x.squeeze(-1))
    got = UpperConfidenceBound(posterior.as_botorch(), beta=4.0)(x.unsqueeze(-2))
    np.testing.assert_allclose(got, x.squeeze(-1), atol=1e-3)


def test_a_thousand_points_on_a_line_have_means_and_variances():
    """Their covariance is singular to rounding, and nobody asks for its factor."""
    x = torch.linspace(0, 1, 1001, dtype=F64).unsqueeze(-1)
    seen = x[::250]
    posterior = GaussianProcess(rbf_kernel(0.5), 1e-2).condition(Measure.dirac(seen), seen.squeeze(-1))
    got = posterior.as_botorch().posterior(x)
    np.testing.assert_allclose(got.mean.squeeze(-1), posterior.mean(Measure.dirac(x)), atol=1e-12)
    np.testing.assert_allclose(got.variance.squeeze(-1), posterior.variance(Measure.dirac(x)), atol=1e-9)


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


def test_optimize_acqf_chooses_a_cell(rng, fitted):
    acquisition = LogExpectedImprovement(fitted[2].as_botorch(cells), best_f=0.2)
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=F64)
    best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=64)
    mean, cov = moments_of(fitted, cells(corners(rng, 300)))
    assert float(value) >= improvement(mean, np.sqrt(np.diag(cov)), 0.2).max() - 1e-6 and best.shape == (1, 4)


def test_conditioning_a_model_of_cells_observes_cells(rng, fitted):
    x, y, points = corners(rng, 2), normal(rng, 2, 1), corners(rng, 5)
    model = fitted[2].as_botorch(cells).condition_on_observations(x, y)
    direct = fitted[2].extend(cells(x), y.squeeze(-1)).as_botorch(cells)
    torch.testing.assert_close(model.posterior(points).mean, direct.posterior(points).mean, rtol=0, atol=1e-12)


def test_an_encoding_that_loses_candidates_is_refused(rng, fitted):
    model = fitted[2].as_botorch(lambda x: Measure.average(x.unsqueeze(-3)))
    with pytest.raises(ValueError, match=r"measure must map candidates \(5, 2\) to measures \(5,\), got \(1,\)"):
        model.posterior(torch.rand(5, 2, generator=rng, dtype=F64))


def test_a_moved_model_moves_as_a_whole(rng, fitted):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    expected = fitted[2].as_botorch().posterior(x).mean
    for move in (lambda m: m.to(torch.float32), lambda m: m.float()):
        got = move(fitted[2].as_botorch()).posterior(x.float()).mean
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(fitted[2].as_botorch().posterior(x).mean, expected, rtol=0, atol=0)


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


def test_observed_averages_condition_the_model_exactly(rng, single):
    model, posterior, _ = single
    at, y = corners(rng, 5), 30 + normal(rng, 6, 3, 1)
    first, second = corners(rng, 3), corners(rng, 6, 3)
    ours = AveragedModel(model, cells).condition_on_observations(first, y[0])
    ours = ours.condition_on_observations(second, y, noise=torch.full((6, 3, 1), 4.0, dtype=F64))
    posterior = posterior.extend(cells(first), y[0, :, 0])
    posterior = posterior.extend(cells(second), y.squeeze(-1), torch.full((3,), 2.0, dtype=F64))
    got, expected = ours.posterior(at), posterior.as_botorch(cells).posterior(at)
    assert ours.batch_shape == (6,)
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(got.variance, expected.variance, rtol=0, atol=1e-5)
    low = ours.float().posterior(at.float())
    assert low.mean.dtype == torch.float32
    torch.testing.assert_close(low.mean.double(), expected.mean, rtol=0, atol=0.2)


@pytest.mark.parametrize("which", ["own", "averaged"])
def test_fantasies_are_models_of_drawn_observations(rng, single, which):
    model = single[1].as_botorch(cells) if which == "own" else AveragedModel(single[0], cells)
    x, at, sampler = corners(rng, 5, 2), corners(rng, 5, 3), SobolQMCNormalSampler(torch.Size([4]), seed=0)
    for noise in (None, torch.full((2, 1), 9.0, dtype=F64)):
        fantasy = model.fantasize(x, sampler, observation_noise=noise)
        y = sampler(model.posterior(x, observation_noise=True if noise is None else noise))
        direct = model.condition_on_observations(x, y, noise)
        assert fantasy.batch_shape == (4, 5) and fantasy.posterior(at).mean.shape == (4, 5, 3, 1)
        torch.testing.assert_close(fantasy.posterior(at).mean, direct.posterior(at).mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize("which", ["points", "cells", "averaged"])
def test_the_knowledge_gradient_can_be_optimized(single, which):
    if which == "averaged":
        model = AveragedModel(single[0], cells)
    else:
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


@pytest.mark.filterwarnings("ignore:Data .* is not standardized")
def test_a_model_of_several_outputs_is_refused(rng):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    model = SingleTaskGP(x, x, outcome_transform=None)
    with pytest.raises(ValueError, match="model must have one output, got 2"):
        AveragedModel(model, Measure.dirac)


@pytest.mark.filterwarnings("ignore:Data .* is not standardized")
def test_a_model_that_is_not_gaussian_is_refused(rng):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    model = SingleTaskGP(x, 1 + x[:, :1], outcome_transform=Log())
    with pytest.raises(ValueError, match=r"model must have a Gaussian posterior .* got a TransformedPosterior"):
        AveragedModel(model, Measure.dirac).posterior(x)


class Stretched(torch.nn.Module):
    """An encoding that is a module."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sides", torch.tensor([2.0, 0.5], dtype=F64))

    def forward(self, X):
        return Measure.dirac(X * self.sides)


@pytest.mark.parametrize("which", ["own", "any"])
@pytest.mark.parametrize("encoding", [Measure.dirac, Stretched()])
def test_a_model_that_moves_takes_everything_along_and_nothing_from_others(rng, which, encoding):
    x = torch.rand(8, 2, generator=rng, dtype=F64)
    kernel, inner = rbf_kernel(0.4, 1.3), SingleTaskGP(x, (x.sum(-1, keepdim=True) - 1))
    posterior = GaussianProcess(kernel, torch.tensor(0.1, dtype=F64), 0.3).condition(Measure.dirac(x), x.sum(-1))
    models = [posterior.as_botorch(encoding) if which == "own" else AveragedModel(inner, encoding) for _ in range(2)]
    at, y = torch.rand(3, 1, 2, generator=rng, dtype=F64), torch.ones(1, 1, dtype=F64)
    models = [model.condition_on_observations(x[:1], y) for model in models]
    before = models[1].posterior(at).mean
    expected = models[0].posterior(at)
    assert models[0].to(torch.float32) is models[0]
    moved = models[0].posterior(at.float())
    for got, want in ((moved.mean, expected.mean), (moved.variance, expected.variance)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-4)
    tensors = [*models[0].parameters(), *models[0].buffers()]
    assert tensors and not any(t.dtype == F64 for t in tensors)
    assert torch.equal(models[1].posterior(at).mean, before)
    tensors = [*models[1].parameters(), *models[1].buffers(), *kernel.parameters(), *inner.parameters()]
    assert not any(t.dtype == torch.float32 for t in tensors)


def test_moments_of_many_points_are_those_of_a_few(rng):
    posterior = GaussianProcess(rbf_kernel([0.3, 0.5]), 0.1).condition(
        Measure.dirac(torch.rand(9, 2, generator=rng, dtype=F64)), torch.randn(9, generator=rng, dtype=F64)
    )
    points = torch.rand(2**14 + 5, 2, generator=rng, dtype=F64)
    whole = posterior.mean_and_variance(Measure.dirac(points))
    for ours, theirs in zip(found_moments(posterior, points), whole, strict=True):
        torch.testing.assert_close(ours, theirs)
