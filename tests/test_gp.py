import math
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from linear_operator.utils.warnings import NumericalWarning
from scipy.stats import multivariate_normal

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import TabulatedKernel, rbf_kernel
from cbo_lib.measure import Measure
from tests.oracles import condition, condition_exactly, gram, matern52, rbf, sets
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
    np.testing.assert_allclose(posterior.mean(queries), [w @ numpy_mean(x) for x, w in sets(queries)], atol=1e-12)
    np.testing.assert_allclose(posterior.variance(queries), np.diag(dense), atol=1e-12)
    np.testing.assert_allclose(posterior.covariance(queries, queries), dense, atol=1e-12)
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


def test_queries_may_have_batches_of_their_own(rng):
    observed, queries, y = random_measure(rng, 3, 4), random_measure(rng, 3, 4), normal(rng, 3, 4)
    posterior = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2).condition(observed, y)
    for r in range(3):
        one, asked = (Measure(m.points[r], m.weights[r]) for m in (observed, queries))
        expected, joint = condition(k, sets(one), y[r].numpy(), 0.2, sets(asked))
        np.testing.assert_allclose(posterior.mean(queries)[r], expected, atol=1e-9)
        np.testing.assert_allclose(posterior.covariance(queries, queries)[r], joint, atol=1e-9)


def hyperparameter_kernel(lengthscales):
    kernel = ScaleKernel(MaternKernel(2.5, batch_shape=lengthscales.shape), batch_shape=lengthscales.shape).to(F64)
    kernel.base_kernel.lengthscale = lengthscales[..., None, None]
    kernel.outputscale = torch.full(lengthscales.shape, 1.3, dtype=F64)
    return kernel.requires_grad_(False)


@pytest.mark.parametrize("replicates", [None, 3])
def test_a_batch_of_kernels_is_a_batch_of_priors(rng, replicates):
    lengthscales = torch.tensor([0.2, 0.5, 1.1], dtype=F64)
    process = GaussianProcess(hyperparameter_kernel(lengthscales), 0.2)
    front = () if replicates is None else (replicates,)
    observed, y = random_measure(rng, *front, *[1] * len(front), 4), normal(rng, *front, *[1] * len(front), 4)
    queries = random_measure(rng, 3)
    posterior = process.condition(observed, y)
    grown = process.posterior()
    for i in range(4):
        grown = grown.extend(observed[[i]], y[..., [i]])
    assert posterior.batch_shape == (*front, 3)
    for at in np.ndindex(*front, 3):
        one = (*at[:-1], *[0] * len(front))
        points = sets(Measure(observed.points[one], observed.weights[one]))
        expected, joint = condition(
            lambda x, z, at=at: matern52(x, z, float(lengthscales[at[-1]]), 1.3),
            points,
            y[one].numpy(),
            0.2,
            sets(queries),
        )
        for p in (posterior, grown):
            np.testing.assert_allclose(p.mean(queries)[at], expected, atol=1e-9)
            np.testing.assert_allclose(p.variance(queries)[at], np.diag(joint), atol=1e-9)
            np.testing.assert_allclose(p.covariance(queries, queries)[at], joint, atol=1e-9)


@pytest.mark.parametrize("u", [(1,), (3,), (2, 3)])
@pytest.mark.parametrize("replicates", [1, 2, 3])
def test_replicates_stand_in_front_of_a_batch_of_kernels(rng, u, replicates):
    lengthscales = torch.linspace(0.2, 1.1, math.prod(u), dtype=F64).reshape(u)
    process = GaussianProcess(hyperparameter_kernel(lengthscales), 0.2, 0.7)
    start, queries = process.posterior(replicates), random_measure(rng, 4)
    assert process.posterior().batch_shape == u and start.batch_shape == (replicates, *u)
    assert start.mean(queries).shape == start.variance(queries).shape == (replicates, *u, 4)
    assert start.log_marginal_likelihood.shape == (replicates, *u)
    generators = [torch.Generator().manual_seed(s) for s in range(replicates)]
    assert start.sample(queries, 2, generators).shape == (replicates, *u, 2, 4)
    observed, y = random_measure(rng, replicates, *[1] * len(u), 3), normal(rng, replicates, *[1] * len(u), 3)
    posterior = start.extend(observed[:2], y[..., :2]).extend(observed[2:], y[..., 2:])
    assert posterior.batch_shape == (replicates, *u)
    for r, *member in np.ndindex(replicates, *u):
        at, member = (r, *[0] * len(u)), tuple(member)
        alone = GaussianProcess(hyperparameter_kernel(lengthscales[member]), 0.2, 0.7)
        alone = alone.condition(Measure(observed.points[at], observed.weights[at]), y[at])
        for name in ("mean", "variance"):
            got, expected = getattr(posterior, name)(queries)[r][member], getattr(alone, name)(queries)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
        joint = posterior.covariance(queries, queries)[r][member]
        torch.testing.assert_close(joint, alone.covariance(queries, queries), rtol=0, atol=1e-9)
        likelihood = posterior.log_marginal_likelihood[r][member]
        torch.testing.assert_close(likelihood, alone.log_marginal_likelihood, rtol=0, atol=1e-9)


def slopes(x):
    """Three mean functions in one, ``... x n x p`` to the batch of the kernel."""
    return torch.tensor([0.5, -1.0, 2.0], dtype=F64)[:, None, None] * x[..., 0] + x[..., 1].square()


@pytest.mark.parametrize("replicates", [None, 2])
def test_a_mean_function_for_each_kernel_of_a_batch(rng, replicates):
    lengthscales = torch.tensor([0.2, 0.5, 1.1], dtype=F64)
    start = GaussianProcess(hyperparameter_kernel(lengthscales), 0.2, slopes).posterior(replicates)
    front = () if replicates is None else (replicates, 1)
    observed, y, queries = random_measure(rng, *front, 4), normal(rng, *front, 4), random_measure(rng, 5)
    posterior = start.extend(observed[:1], y[..., :1]).extend(observed[1:], y[..., 1:])
    for u in range(3):
        alone = GaussianProcess(hyperparameter_kernel(lengthscales[u]), 0.2, lambda x, u=u: slopes(x)[u])
        prior = alone.posterior(replicates).mean(queries)
        torch.testing.assert_close(start.mean(queries)[..., u, :], prior, rtol=0, atol=1e-12)
        for r in range(replicates or 1):
            at = (r, 0) if replicates else ()
            one = alone.condition(Measure(observed.points[at], observed.weights[at]), y[at])
            place = (r, u) if replicates else (u,)
            torch.testing.assert_close(posterior.mean(queries)[place], one.mean(queries), rtol=0, atol=1e-9)
            torch.testing.assert_close(
                posterior.log_marginal_likelihood[place], one.log_marginal_likelihood, rtol=0, atol=1e-9
            )


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


def test_a_batch_of_means_is_a_batch_of_priors(rng):
    means = torch.tensor([[0.0], [1.0], [-2.0]], dtype=F64)
    observed, queries, y = random_measure(rng, 3), random_measure(rng, 4), normal(rng, 3)
    process = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, means)
    together = process.condition(observed, y)
    assert process.posterior().mean(queries).shape == together.mean(queries).shape == (3, 4)
    for r in range(3):
        alone = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2, float(means[r])).condition(observed, y)
        torch.testing.assert_close(together.mean(queries)[r], alone.mean(queries), rtol=0, atol=1e-10)


def test_posterior_of_replicates_starts_as_so_many_priors(rng):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.2, 0.7).posterior(5)
    queries = random_measure(rng, 4)
    assert posterior.batch_shape == (5,) and posterior.count == 0
    assert posterior.mean(queries).shape == posterior.variance(queries).shape == (5, 4)
    assert posterior.covariance(queries, queries).shape == (5, 4, 4)
    same(
        posterior.extend(queries, torch.ones(4, dtype=F64)),
        posterior.extend(queries, torch.ones(5, 4, dtype=F64)),
        queries,
    )


def test_without_data_the_log_marginal_likelihood_is_zero_in_the_dtype_of_the_kernel(rng):
    got = GaussianProcess(rbf_kernel(0.4), 0.2).posterior(3).log_marginal_likelihood
    assert got.tolist() == [0.0, 0.0, 0.0] and got.dtype == F64


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


def test_forks_do_not_touch_each_other(rng):
    process, queries = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2), random_measure(rng, 4)
    m, y = random_measure(rng, 3), normal(rng, 3)
    trunk = process.condition(m, y)
    before = trunk.mean(queries).clone(), trunk.variance(queries).clone()
    branches = [(random_measure(rng, 2), normal(rng, 2)) for _ in range(2)]
    forks = [trunk.extend(*branch) for branch in branches]
    for (extra, values), fork in zip(branches, forks, strict=True):
        same(fork, process.condition(Measure.cat([m, extra]), torch.cat([y, values])), queries)
    assert torch.equal(trunk.mean(queries), before[0]) and torch.equal(trunk.variance(queries), before[1])
    assert trunk.count == 3


def test_replicates_part_when_they_observe_different_queries(rng):
    process, queries = GaussianProcess(rbf_kernel(0.4, 1.3), 0.2), random_measure(rng, 6)
    index, y = torch.tensor([[0, 1], [5, 5], [2, 0]]), normal(rng, 3, 2)
    posterior = process.posterior(3)
    for t in range(2):
        posterior = posterior.extend(queries[index[:, t, None]], y[:, t, None])
    for r in range(3):
        alone = process.condition(queries[index[r]], y[r])
        torch.testing.assert_close(posterior.mean(queries)[r], alone.mean(queries), rtol=0, atol=1e-10)
        torch.testing.assert_close(posterior.variance(queries)[r], alone.variance(queries), rtol=0, atol=1e-10)


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


def test_replicates_of_kernel_batches_draw_from_the_generator_of_the_replicate(rng):
    process = GaussianProcess(hyperparameter_kernel(torch.tensor([0.2, 0.5], dtype=F64)), 0.2)
    observed, y, queries = random_measure(rng, 3, 1, 2), normal(rng, 3, 1, 2), random_measure(rng, 4)
    together = process.condition(observed, y).sample(queries, 5, [torch.Generator().manual_seed(s) for s in range(3)])
    assert together.shape == (3, 2, 5, 4)
    alone = process.condition(Measure(observed.points[[2]], observed.weights[[2]]), y[[2]])
    draws = alone.sample(queries, 5, [torch.Generator().manual_seed(2)])
    torch.testing.assert_close(together[2], draws[0], rtol=0, atol=1e-10)


def test_equal_generators_draw_equal_samples(rng):
    posterior, queries = GaussianProcess(rbf_kernel(0.4), 0.3).posterior(), random_measure(rng, 3)
    first, second = (posterior.sample(queries, 4, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, posterior.sample(queries, 4))


@pytest.mark.parametrize("unit", [1.0, 1e-16, 1e-20, 1e20])
def test_samples_know_no_unit(rng, unit):
    x, z = torch.rand(5, 1, generator=rng, dtype=F64), torch.linspace(0, 1, 40, dtype=F64)[:, None]
    prior = GaussianProcess(rbf_kernel(0.5, unit**2), 0.1 * unit)
    posterior = prior.condition(Measure.dirac(x), unit * torch.sin(6 * x[:, 0]))
    draws = posterior.sample(Measure.dirac(z), 4000, torch.Generator().manual_seed(1))
    ratio = draws.std(-2) / posterior.variance(Measure.dirac(z)).sqrt()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0.1, atol=0)


def test_an_element_of_a_batch_may_share_a_kernel_of_batch_one(rng):
    x = torch.rand(3, 4, 1, generator=rng, dtype=F64)
    kernel = RBFKernel(batch_shape=torch.Size([1])).double()
    y, z = x.sin().squeeze(-1), Measure.dirac(torch.rand(6, 1, generator=rng, dtype=F64))
    posterior = GaussianProcess(kernel, 0.1).condition(Measure.dirac(x), y)
    for r in range(3):
        one = posterior.select(r)
        assert one.batch_shape == ()
        torch.testing.assert_close(one.mean(z), posterior.mean(z)[r])
        torch.testing.assert_close(one.variance(z), posterior.variance(z)[r])


def test_repeated_points_can_be_sampled(rng):
    x = torch.full((6, 2), 0.3, dtype=F64)
    draws = GaussianProcess(rbf_kernel(0.4), 0.3).posterior().sample(Measure.dirac(x), 10, rng)
    np.testing.assert_allclose(draws, draws[:, :1].expand(-1, 6), atol=1e-3)
    assert float(draws.std()) > 0.1


@pytest.mark.parametrize("count", [1, 4])
def test_a_wrong_number_of_generators_is_refused(rng, count):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.3).posterior(3)
    with pytest.raises(
        ValueError, match=rf"generator must be one generator or one a replicate \(\(3,\)\), got {count}"
    ):
        posterior.sample(random_measure(rng, 2), 1, [torch.Generator()] * count)


def test_generators_for_a_posterior_without_replicates_are_refused(rng):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.3).posterior()
    with pytest.raises(ValueError, match="generator must be one generator or one a replicate"):
        posterior.sample(random_measure(rng, 2), 1, [torch.Generator()])


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


SELECTED = {
    "data": ((), (3, 4), 0.2, 0.0),
    "noise and mean": ((), (3, 4), torch.tensor([[0.1], [0.5], [1.0]], dtype=F64), normal(torch.Generator(), 3, 1)),
    "kernels": ((3,), (4,), 0.2, wave),
    "means of replicates": ((3,), (3, 4), 0.2, level),
    "all": ((3,), (3, 4), torch.tensor([[0.1], [0.5], [1.0]], dtype=F64), torch.tensor(0.4, dtype=F64)),
}


@pytest.mark.parametrize("case", SELECTED)
def test_an_element_of_a_batch_is_a_posterior_of_its_own(rng, case):
    batch, shape, noise, mean = SELECTED[case]
    kernel = rbf_kernel(0.4, 1.3)
    if batch:
        kernel = ScaleKernel(
            MaternKernel(2.5, ard_num_dims=2, active_dims=[0, 1], batch_shape=batch), batch_shape=batch
        )
        kernel = kernel.to(F64).requires_grad_(False)
        kernel.base_kernel.lengthscale = 0.3 + torch.rand(*batch, 1, 2, generator=rng, dtype=F64)
        kernel.outputscale = 0.5 + torch.rand(batch, generator=rng, dtype=F64)
    posterior = GaussianProcess(kernel, noise, mean).condition(random_measure(rng, *shape), normal(rng, 3, 4))
    queries, more, y = random_measure(rng, 5), random_measure(rng, 2), normal(rng, 3, 2)
    assert posterior.batch_shape == (3,)
    for r in range(3):
        alone = posterior.select(r)
        assert alone.batch_shape == () and alone.prior.kernel.batch_shape == ()
        for whole, one in ((posterior, alone), (posterior.extend(more, y), alone.extend(more, y[r]))):
            torch.testing.assert_close(one.mean(queries), whole.mean(queries)[r], rtol=0, atol=1e-10)
            expected = whole.covariance(queries, queries)[r]
            torch.testing.assert_close(one.covariance(queries, queries), expected, rtol=0, atol=1e-10)
            expected = whole.log_marginal_likelihood[r]
            torch.testing.assert_close(one.log_marginal_likelihood, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seen", [False, True])
def test_a_replicate_of_a_batch_of_kernels_keeps_the_kernels(rng, seen):
    kernel = ScaleKernel(RBFKernel(batch_shape=(2,))).to(F64).requires_grad_(False)
    kernel.base_kernel.lengthscale = torch.tensor([0.2, 0.7], dtype=F64).reshape(2, 1, 1)
    means = torch.tensor([0.5, -1.0], dtype=F64)
    process = GaussianProcess(kernel, 0.2, lambda x: means[:, None, None] + x.sum(-1))
    posterior, queries = process.posterior(3), random_measure(rng, 3, 2, 5)
    if seen:
        posterior = posterior.extend(random_measure(rng, 3, 1, 4), normal(rng, 3, 1, 4))
    for r in range(3):
        alone, one = posterior.select(r), Measure(queries.points[r], queries.weights[r])
        assert alone.batch_shape == (2,)
        torch.testing.assert_close(alone.mean(one), posterior.mean(queries)[r], rtol=0, atol=1e-12)
        torch.testing.assert_close(alone.variance(one), posterior.variance(queries)[r], rtol=0, atol=1e-12)
        twice = alone.select(1)
        torch.testing.assert_close(twice.mean(one)[1], posterior.mean(queries)[r, 1], rtol=0, atol=1e-12)
        assert twice.batch_shape == ()


@pytest.mark.parametrize("index", [-1, 3])
def test_an_element_that_a_batch_lacks_is_refused(index):
    with pytest.raises(ValueError, match=rf"index must choose .* the batch \(3,\), got {index}"):
        GaussianProcess(rbf_kernel(0.4), 0.1).posterior(3).select(index)
    with pytest.raises(ValueError, match=r"index must choose .* the batch \(\), got 0"):
        GaussianProcess(rbf_kernel(0.4), 0.1).posterior().select(0)


class Trend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=F64))

    def forward(self, x):
        return x @ self.slope


@pytest.mark.parametrize("mean", [0.7, torch.tensor([0.7], dtype=F64), Trend(), wave])
def test_a_posterior_in_another_precision_shares_nothing(rng, mean):
    process = GaussianProcess(rbf_kernel(0.4, 1.3), torch.tensor(0.2, dtype=F64), mean)
    posterior, queries = process.condition(random_measure(rng, 5), normal(rng, 5)), random_measure(rng, 4)
    moved, low = posterior.to(dtype=torch.float32), Measure(queries.points.float(), queries.weights.float())
    assert moved.prior.noise_std.dtype == torch.float32
    for got, expected in (
        (moved.mean(low), posterior.mean(queries)),
        (moved.variance(low), posterior.variance(queries)),
        (process.to(dtype=torch.float32).prior_mean(low), process.prior_mean(queries)),
    ):
        assert got.dtype == torch.float32 and expected.dtype == F64  # the first has not changed
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=1e-4)


class Shifted:
    def __init__(self):
        self.shift = torch.tensor(0.3, dtype=F64)

    def __call__(self, x):
        return x[..., 0] + self.shift

    def method(self, x):
        return self(x)


@dataclass
class Held:
    """A dataclass with parts, such as the candidates of a space."""

    parts: list

    def mean(self, x):
        return sum(part(x) for part in self.parts)


@pytest.mark.parametrize(
    "mean", [Shifted(), Shifted().method, partial(Shifted()), partial(Held.mean, Held([Shifted()]))]
)
def test_a_mean_that_holds_tensors_of_its_own_is_not_left_behind(rng, mean):
    slope = torch.tensor([1.0, 2.0], dtype=F64)
    for function in (mean, lambda x: x @ slope):
        with pytest.raises(ValueError, match=r"mean must be a torch\.nn\.Module to be moved"):
            GaussianProcess(rbf_kernel(0.4), 0.1, function).to(dtype=torch.float32)


@pytest.mark.parametrize("mean", [Trend().forward, Held([Trend()]).mean, partial(Held.mean, Held([Trend(), wave]))])
def test_means_that_are_methods_or_dataclasses_move_with_their_parts(rng, mean):
    queries = random_measure(rng, 4)
    low = Measure(queries.points.float(), queries.weights.float())
    process = GaussianProcess(rbf_kernel(0.4), 0.1, mean)
    got = process.to(dtype=torch.float32).prior_mean(low)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), process.prior_mean(queries), rtol=0, atol=1e-5)


def test_a_query_that_was_changed_gives_its_own_mean_and_needs_no_versions():
    posterior = GaussianProcess(rbf_kernel(0.1), 0.1).condition(Measure.dirac(torch.tensor([[0.5]], dtype=F64)), [1.0])
    query = Measure.dirac(torch.tensor([[0.4]], dtype=F64))
    once = posterior.mean(query)
    query.weights.mul_(2)
    assert torch.equal(posterior.mean(query), 2 * once)
    with torch.inference_mode():
        torch.testing.assert_close(posterior.mean(Measure.dirac(torch.tensor([[0.4]], dtype=F64))), once)


@pytest.mark.parametrize("keyword", [False, True])
def test_the_tensors_of_a_partial_mean_move_too(keyword):
    shift = torch.tensor(0.3, dtype=F64)
    mean = partial(lambda x, shift: x[..., 0] + shift, shift=shift) if keyword else partial(torch.mul, shift)
    moved = GaussianProcess(rbf_kernel(0.4), 0.1, mean).to(dtype=torch.float32).mean
    held = moved.keywords["shift"] if keyword else moved.args[0]
    assert held.dtype == torch.float32 and shift.dtype == F64


@pytest.mark.parametrize("mean", [Trend(), wave])
def test_the_mean_of_a_replicate_moves_too(rng, mean):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1, mean).posterior(3)
    queries = random_measure(rng, 4)
    low = Measure(queries.points.float(), queries.weights.float())
    got = posterior.select(1).to(dtype=torch.float32).mean(low)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), posterior.mean(queries)[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, -0.1, float("nan"), torch.tensor([0.1, 0.0])])
def test_noise_that_is_not_positive_is_refused(noise):
    with pytest.raises(ValueError, match="noise_std must be positive and finite, got"):
        GaussianProcess(rbf_kernel(0.4), noise)


@pytest.mark.parametrize("noise", [0.0, -0.1, float("nan"), torch.tensor([0.1, -0.2, 0.1], dtype=F64)])
def test_noise_of_observations_that_is_not_positive_is_refused(rng, noise):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).posterior()
    with pytest.raises(ValueError, match="noise_std must be positive and finite, got"):
        posterior.extend(random_measure(rng, 3), normal(rng, 3), noise)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1)])
def test_observations_of_the_wrong_number_are_refused(rng, count, shape):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).posterior()
    if count:
        posterior = posterior.extend(random_measure(rng, count), normal(rng, count))
    with pytest.raises(ValueError, match=r"y must have shape \(\.\.\., 3\), got"):
        posterior.extend(random_measure(rng, 3), normal(rng, *shape))


def test_observations_of_another_batch_are_refused(rng):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).posterior(5)
    with pytest.raises(ValueError, match="y must"):
        posterior.extend(random_measure(rng, 3), normal(rng, 4, 3))


def test_noise_that_does_not_broadcast_to_the_observations_is_refused(rng):
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).posterior()
    for noise in (torch.ones(2, dtype=F64), torch.ones(4, 2, dtype=F64)):
        with pytest.raises(ValueError, match="noise_std must"):
            posterior.extend(random_measure(rng, 3), normal(rng, 3), noise)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_observations_that_are_no_numbers_are_refused(rng, bad):
    y = normal(rng, 3)
    y[1] = bad
    with pytest.raises(ValueError, match="y must be finite, got"):
        GaussianProcess(rbf_kernel(0.4), 0.1).condition(random_measure(rng, 3), y)


# Noise that drowns in rounding


def in_parts(posterior, measure, y, parts, noise_std=None):
    start = 0
    for n in parts:
        at = slice(start, start + n)
        noise = None if noise_std is None else noise_std[..., at]
        posterior, start = posterior.extend(measure[at], y[..., at], noise), start + n
    return posterior


@pytest.mark.parametrize("noise", [1e-8, 1e-9, 1e-12])
@pytest.mark.parametrize("parts", [[300], [60] * 5, [299, 1], [1] * 100])
def test_noise_that_drowns_in_rounding_equals_80_digits(rng, parts, noise):
    """Exact duplicates, and near-duplicates to 1e-9; near 80 digits of the noise in force and of what was asked for."""
    x = torch.linspace(0, 1, 15, dtype=F64)
    points, queries = torch.cat([x, x + 1e-9]), torch.rand(6, generator=rng, dtype=F64)
    index = torch.randint(30, (sum(parts),), generator=rng)
    observed, y, asked = (
        Measure.dirac(points[index, None]),
        torch.sin(7 * points[index]),
        Measure.dirac(queries[:, None]),
    )
    start = GaussianProcess(rbf_kernel(0.2), noise).posterior()
    with pytest.warns(NumericalWarning, match=r"a jitter of up to 2\.2e-1[0-4] of the variance was added in 1 of 1"):
        posterior = in_parts(start, observed, y, parts)
    raised = math.sqrt(noise**2 + float(posterior.data.jitter))
    for std, tolerance in ((raised, 1e-6), (noise, 1e-3)):
        mean, variance = condition_exactly(points.tolist(), index.tolist(), y.tolist(), std, queries.tolist(), 0.2)
        np.testing.assert_allclose(posterior.mean(asked), mean, rtol=0, atol=tolerance)
        np.testing.assert_allclose(posterior.variance(asked), variance, rtol=0, atol=1e-2 * tolerance)
    with warnings.catch_warnings():  # once there is a jitter, it holds for what is added too
        warnings.simplefilter("error")
        posterior.extend(observed[:1], y[:1])


@pytest.mark.parametrize("parts", [[40], [20, 20], [1] * 40])
def test_jitter_is_added_to_one_replicate_alone(rng, parts):
    x = torch.rand(3, 40, 2, generator=rng, dtype=F64)
    x[1, 1:] = x[1, :1]
    noise, y, start = torch.full((3, 40), 0.1, dtype=F64), normal(rng, 3, 40), GaussianProcess(rbf_kernel(0.4), 0.1)
    well = in_parts(start.posterior(3), Measure.dirac(x), y, parts, noise)
    noise[1], y[1] = 1e-9, 0.4
    with pytest.warns(NumericalWarning, match=r"jitter .* was added in 1 of 3 replicates"):
        posterior = in_parts(start.posterior(3), Measure.dirac(x), y, parts, noise)
    assert torch.equal(posterior.data.factor[[0, 2]], well.data.factor[[0, 2]])
    assert torch.equal(posterior.data.whitened[[0, 2]], well.data.whitened[[0, 2]])
    assert posterior.data.jitter.bool().tolist() == [False, True, False]
    assert float(posterior.select(1).mean(Measure.dirac(x[1, :1]))) == pytest.approx(0.4, abs=1e-6)
    assert posterior.to(dtype=torch.float32).data.jitter.dtype == torch.float32


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_jitter_goes_with_the_units_of_the_outputs(scale):
    x, y = torch.full((5, 1), 0.3, dtype=F64), torch.full((5,), 2.0 * scale, dtype=F64)
    process = GaussianProcess(rbf_kernel(0.2, scale**2), 1e-9 * scale)
    with pytest.warns(NumericalWarning, match="jitter of up to 2.2e-14 of the variance"):
        posterior = process.condition(Measure.dirac(x), y)
    assert float(posterior.mean(Measure.dirac(x[:1]))) == pytest.approx(2 * scale, rel=1e-9)


INDEFINITE = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]], dtype=F64)


@pytest.mark.parametrize("parts", [[3], [2, 1], [1, 1, 1]])
def test_a_kernel_that_is_none_is_refused(rng, parts):
    posterior = GaussianProcess(TabulatedKernel(INDEFINITE), 1e-3).posterior()
    observed, y = Measure.dirac(torch.arange(3, dtype=F64)[:, None]), normal(rng, 3)
    with pytest.raises(ValueError, match=r"kernel must give positive definite .* a larger noise_std or bounded"):
        in_parts(posterior, observed, y, parts)
    assert GaussianProcess(TabulatedKernel(INDEFINITE), 2.0).condition(observed, y).count == 3


class Broken(Kernel):
    def forward(self, x1, x2, diag=False, **params):
        return (x1 @ x2.mT) / (x1 @ x2.mT - 0.25)


@pytest.mark.parametrize("parts", [[3], [2, 1]])
def test_a_kernel_that_gives_no_number_is_refused(rng, parts):
    observed, y = Measure.dirac(torch.tensor([[1.0], [2.0], [0.5]], dtype=F64)), normal(rng, 3)
    with pytest.raises(ValueError, match="kernel must give finite covariances, got a NaN or an infinity"):
        in_parts(GaussianProcess(Broken(), 0.1).posterior(), observed, y, parts)


def test_mean_and_variance_together_are_those_apart(rng):
    process = GaussianProcess(rbf_kernel(0.3), 0.1, 0.7)
    queries = Measure.average(torch.rand(5, 3, 2, generator=rng, dtype=torch.float64))
    seen = Measure.dirac(torch.rand(4, 6, 2, generator=rng, dtype=torch.float64))
    for posterior in (process.posterior(), process.condition(seen, seen.points.sum((-2, -1)))):
        mean, variance = posterior.mean_and_variance(queries)
        assert torch.equal(mean, posterior.mean(queries)) and torch.equal(variance, posterior.variance(queries))


@pytest.mark.parametrize("variance", [2.0**-40, 2.0**30])
def test_the_jitter_of_draws_is_relative(rng, variance):
    """Draws of a scaled process are scaled draws, also where their covariance is singular."""
    queries = Measure.dirac(torch.linspace(0, 1, 30, dtype=torch.float64)[:, None])
    draws = [
        GaussianProcess(rbf_kernel(0.4, v), 0.1).posterior().sample(queries, 3, torch.Generator().manual_seed(1))
        for v in (1.0, variance)
    ]
    torch.testing.assert_close(draws[1] / variance**0.5, draws[0], rtol=0, atol=1e-9)
