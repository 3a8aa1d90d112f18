import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.stats import multivariate_normal

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import TabulatedKernel, rbf_kernel
from cbo_lib.measure import Measure
from tests.oracles import condition, gram, rbf, sets
from tests.toys import normal, random_measure

F64 = torch.float64


def k(x, z):
    return rbf(x, z, 0.4, 1.3)


def wave(x):  # works on tensors and arrays
    return 0.5 + x[..., 0] ** 2 - 2 * x[..., 1]


MEANS = {
    "zero": (0.0, lambda x: np.zeros(len(x))),
    "number": (0.7, lambda x: np.full(len(x), 0.7)),
    "integer": (2, lambda x: np.full(len(x), 2.0)),
    "tensor": (torch.tensor(-1.2, dtype=F64), lambda x: np.full(len(x), -1.2)),
    "function": (wave, wave),
}
NOISES = {
    "number": 0.2,
    "tensor": torch.tensor(0.3, dtype=F64),
    "per observation": torch.tensor([0.1, 0.5, 0.2, 0.05, 1.0], dtype=F64),
}


def same(posterior, other, queries, tolerance=1e-9):
    for one, two in (
        (posterior.mean(queries), other.mean(queries)),
        (posterior.variance(queries), other.variance(queries)),
        (posterior.covariance(queries, queries), other.covariance(queries, queries)),
        (posterior.log_marginal_likelihood, other.log_marginal_likelihood),
    ):
        torch.testing.assert_close(one, two, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("noise", NOISES)
def test_posterior_is_the_textbook_formula(rng, mean, noise):
    m, numpy_mean = MEANS[mean]
    observed, queries, other = (
        random_measure(rng, 5),
        random_measure(rng, 4, p=3),
        random_measure(rng, 3, p=1),
    )
    y = normal(rng, 5)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), NOISES[noise], m).condition(observed, y)
    every = sets(queries) + sets(other)
    expected, joint = condition(k, sets(observed), y.numpy(), np.asarray(NOISES[noise]), every, numpy_mean)
    np.testing.assert_allclose(posterior.mean(queries), expected[:4], rtol=0, atol=1e-9)
    np.testing.assert_allclose(posterior.variance(queries), np.diag(joint)[:4], rtol=0, atol=1e-9)
    np.testing.assert_allclose(posterior.covariance(queries, queries), joint[:4, :4], rtol=0, atol=1e-9)
    np.testing.assert_allclose(posterior.covariance(queries, other), joint[:4, 4:], rtol=0, atol=1e-9)
    dense = gram(k, sets(observed), sets(observed)) + np.diag(np.broadcast_to(np.asarray(NOISES[noise]), (5,)) ** 2)
    prior = [w @ numpy_mean(x) for x, w in sets(observed)]
    log_density = multivariate_normal(prior, dense).logpdf(y)
    assert float(posterior.log_marginal_likelihood) == pytest.approx(log_density, abs=1e-9)
    assert posterior.count == 5


@pytest.mark.parametrize("mean", MEANS)
def test_prior_counts_the_mean_as_often_as_the_weights(rng, mean):
    m, numpy_mean = MEANS[mean]
    queries = random_measure(rng, 4, p=3)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), 0.1, m).posterior()
    dense = gram(k, sets(queries), sets(queries))
    np.testing.assert_allclose(posterior.mean(queries), [w @ numpy_mean(x) for x, w in sets(queries)], atol=1e-9)
    np.testing.assert_allclose(posterior.variance(queries), np.diag(dense), atol=1e-9)
    np.testing.assert_allclose(posterior.covariance(queries, queries), dense, atol=1e-9)
    assert posterior.count == 0


def test_noise_given_with_the_observations_overrides_that_of_the_process(rng):
    observed, queries, y = random_measure(rng, 3), random_measure(rng, 4), normal(rng, 3)
    noise = torch.tensor([0.1, 0.9, 0.4], dtype=F64)
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 5.0)
    expected, joint = condition(k, sets(observed), y.numpy(), noise.numpy(), sets(queries))
    for posterior in (process.condition(observed, y, noise), process.posterior().extend(observed, y, noise)):
        np.testing.assert_allclose(posterior.mean(queries), expected, atol=1e-9)
        np.testing.assert_allclose(posterior.variance(queries), np.diag(joint), atol=1e-9)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_batches_are_independent_posteriors(rng, shape):
    observed, queries, y = random_measure(rng, *shape, 3), random_measure(rng, 3), normal(rng, *shape, 3)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, wave).condition(observed, y)
    assert posterior.batch_shape == shape
    assert posterior.mean(queries).shape == posterior.variance(queries).shape == (*shape, 3)
    assert posterior.covariance(queries, queries).shape == (*shape, 3, 3)
    assert posterior.log_marginal_likelihood.shape == shape
    for at in np.ndindex(*shape):
        one = sets(Measure(observed.points[at], observed.weights[at]))
        expected, joint = condition(k, one, y[at].numpy(), 0.2, sets(queries), wave)
        np.testing.assert_allclose(posterior.mean(queries)[at], expected, atol=1e-9)
        np.testing.assert_allclose(posterior.variance(queries)[at], np.diag(joint), atol=1e-9)
        np.testing.assert_allclose(posterior.covariance(queries, queries)[at], joint, atol=1e-9)


def test_a_mean_for_each_replicate(rng):
    means = torch.tensor([[0.0], [1.0], [-2.0]], dtype=F64)
    observed, queries, y = random_measure(rng, 3), random_measure(rng, 4), normal(rng, 3, 3)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, means).condition(observed, y)
    for r in range(3):
        level = float(means[r])
        expected, _ = condition(
            k, sets(observed), y[r].numpy(), 0.2, sets(queries), lambda x, level=level: np.full(len(x), level)
        )
        np.testing.assert_allclose(posterior.mean(queries)[r], expected, atol=1e-9)


@pytest.mark.parametrize("parts", [[1] * 6, [2, 3, 1], [5, 1], [0, 3, 0, 3]])
@pytest.mark.parametrize("front", [(), (3,)])
def test_extending_equals_conditioning_anew(rng, parts, front):
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, wave)
    observed = [random_measure(rng, *front, n, p=1 + i % 3) for i, n in enumerate(parts)]
    y = [normal(rng, *front, n) for n in parts]
    noise = [0.05 + torch.rand(*front, n, generator=rng, dtype=F64) for n in parts]
    grown = process.posterior()
    for m, values, std in zip(observed, y, noise, strict=True):
        grown = grown.extend(m, values, std)
    anew = process.condition(Measure.cat(observed), torch.cat(y, -1), torch.cat(noise, -1))
    assert grown.count == anew.count == 6
    same(grown, anew, random_measure(rng, 4))


def test_variance_never_turns_negative():
    x = torch.linspace(0, 1, 40, dtype=F64).unsqueeze(-1)
    posterior = GaussianProcess(rbf_kernel(0.5), 1e-5).condition(Measure.dirac(x), x.squeeze(-1))
    assert float(posterior.variance(Measure.dirac(x)).min()) >= 0


# Samples


def test_samples_have_the_moments_of_the_posterior(rng):
    observed, queries, y = random_measure(rng, 2, 3), random_measure(rng, 3), normal(rng, 2, 3)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), 0.3, wave).condition(observed, y)
    count = 40_000
    draws = posterior.sample(queries, count, rng)
    assert draws.shape == (2, count, 3)
    for r in range(2):
        one = sets(Measure(observed.points[r], observed.weights[r]))
        mean, cov = condition(k, one, y[r].numpy(), 0.3, sets(queries), wave)
        std = np.sqrt(np.diag(cov))
        assert (np.abs(draws[r].mean(0).numpy() - mean) < 5 * std / np.sqrt(count)).all()
        # the standard error of an empirical covariance of Gaussian variables
        error = np.sqrt((np.outer(std, std) ** 2 + cov**2) / count)
        assert (np.abs(np.cov(draws[r].numpy().T) - cov) < 5 * error).all()
    cross = np.corrcoef(draws[0, :, 0], draws[1, :, 0])[0, 1]
    assert abs(cross) < 5 / np.sqrt(count)


def test_each_replicate_draws_from_its_own_generator(rng):
    process, queries = GaussianProcess(rbf_kernel(0.4, 1.3), 0.3), random_measure(rng, 3)
    observed, y = random_measure(rng, 4, 3), normal(rng, 4, 3)
    together = process.condition(observed, y).sample(queries, 6, [torch.Generator().manual_seed(s) for s in range(4)])
    for r in range(4):
        alone = process.condition(Measure(observed.points[[r]], observed.weights[[r]]), y[[r]])
        draws = alone.sample(queries, 6, [torch.Generator().manual_seed(r)])
        torch.testing.assert_close(together[r], draws[0], rtol=0, atol=1e-10)
    assert not torch.allclose(together[0], together[1])


def test_repeated_points_can_be_sampled(rng):
    x = torch.full((6, 2), 0.3, dtype=F64)
    draws = GaussianProcess(rbf_kernel(0.4), 0.3).posterior().sample(Measure.dirac(x), 10, rng)
    np.testing.assert_allclose(draws, draws[:, :1].expand(-1, 6), atol=1e-3)
    assert float(draws.std()) > 0.1


# Gradients


@pytest.mark.parametrize("parts", [[5], [2, 1, 2]])
def test_gradient_of_the_log_marginal_likelihood(rng, parts):
    observed, y = random_measure(rng, 5), normal(rng, 5)
    kernel = ScaleKernel(RBFKernel()).to(F64)
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.4, 1.3
    noise = torch.tensor(0.2, dtype=F64, requires_grad=True)
    posterior, start = GaussianProcess(kernel, noise).posterior(), 0
    for n in parts:
        posterior = posterior.extend(observed[start : start + n], y[start : start + n])
        start += n
    posterior.log_marginal_likelihood.backward()

    def softplus(raw):
        return np.log1p(np.exp(raw))

    def log_density(raw_lengthscale, raw_scale, std):
        dense = gram(
            lambda x, z: rbf(x, z, softplus(raw_lengthscale), softplus(raw_scale)),
            sets(observed),
            sets(observed),
        )
        return multivariate_normal(np.zeros(5), dense + std**2 * np.eye(5)).logpdf(y)

    at = np.array([kernel.base_kernel.raw_lengthscale.item(), kernel.raw_outputscale.item(), 0.2])
    step = 1e-5 * np.eye(3)
    numeric = [(log_density(*(at + h)) - log_density(*(at - h))) / 2e-5 for h in step]
    got = [
        kernel.base_kernel.raw_lengthscale.grad.item(),
        kernel.raw_outputscale.grad.item(),
        noise.grad.item(),
    ]
    np.testing.assert_allclose(got, numeric, rtol=1e-6)


# Elsewhere, and one of many


def level(points):
    return torch.tensor([[0.3], [-0.8], [2.0]], dtype=F64).unsqueeze(-1) + 0 * points.sum(-1)  # replicates n p


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1)])
def test_observations_of_the_wrong_number_are_refused(rng, count, shape):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).posterior()
    if count:
        posterior = posterior.extend(random_measure(rng, count), normal(rng, count))
    with pytest.raises(ValueError, match=r"y must have shape \(\.\.\., 3\), got"):
        posterior.extend(random_measure(rng, 3), normal(rng, *shape))


# Noise that drowns in rounding


def in_parts(posterior, measure, y, parts, noise_std=None):
    start = 0
    for n in parts:
        at = slice(start, start + n)
        noise = None if noise_std is None else noise_std[..., at]
        posterior, start = posterior.extend(measure[at], y[..., at], noise), start + n
    return posterior


INDEFINITE = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]], dtype=F64)


@pytest.mark.filterwarnings("ignore:A not p.d.")
@pytest.mark.parametrize("parts", [[3], [2, 1], [1, 1, 1]])
def test_a_kernel_that_is_none_is_refused(rng, parts):
    posterior = GaussianProcess(TabulatedKernel(INDEFINITE), 1e-3).posterior()
    observed, y = Measure.dirac(torch.arange(3, dtype=F64)[:, None]), normal(rng, 3)
    with pytest.raises(ValueError, match="kernel must give finite, positive definite"):
        in_parts(posterior, observed, y, parts)
    assert GaussianProcess(TabulatedKernel(INDEFINITE), 2.0).condition(observed, y).count == 3
