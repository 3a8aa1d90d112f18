"""Variances at many contexts from those at few."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from cbo_lib.former.partial import PartialPosterior
from cbo_lib.gp import GaussianProcess
from cbo_lib.measure import Measure

F64 = torch.float64


def process(lengthscale, scale=1.5, noise_std=0.05):
    """One replicate a row of lengthscales."""
    batch = lengthscale.shape[:1]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=lengthscale.shape[-1], batch_shape=batch), batch_shape=batch).to(F64)
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale.unsqueeze(-2), scale * torch.ones(batch, dtype=F64)
    return GaussianProcess(kernel.requires_grad_(False), noise_std, 0.3)


def posterior(rng, lengthscales, t=30):
    """One replicate a row of lengthscales."""
    lengthscale = torch.tensor(lengthscales, dtype=F64)
    count, dim = lengthscale.shape
    x = torch.rand(count, t, dim, generator=rng, dtype=F64)
    return process(lengthscale).condition(Measure.dirac(x), torch.randn(count, t, generator=rng, dtype=F64))


def contexts(rng, count, m, dim):
    return (0.5 + 0.2 * torch.randn(count, m, dim, generator=rng, dtype=F64)).clamp(0.0, 1.0)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-10, 1e-13])
@pytest.mark.parametrize("context_dim", [1, 2])
def test_the_variance_is_as_exact_as_promised(rng, context_dim, tolerance):
    dim = 2 + context_dim
    given = posterior(rng, [[0.5] * dim, [0.9] * dim, [0.4] * dim])
    controlled = torch.arange(dim) < 2
    c, x = contexts(rng, 3, 700, dim), torch.rand(3, 9, dim, generator=rng, dtype=F64)
    fast = PartialPosterior(given, c, controlled, tolerance, True)
    exact = PartialPosterior(given, c, controlled, tolerance=None)
    assert fast.chosen < 175
    mean, variance = fast.mean_and_variance(x)
    expected_mean, expected = exact.mean_and_variance(x)
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=1e-11)
    assert float((variance - expected).abs().max()) <= 1.5**2 * tolerance**0.5
    upper = expected_mean - 0.7 * expected.sqrt()
    torch.testing.assert_close(fast.ucb(x, -0.7), upper, rtol=0, atol=50 * 1.5 * tolerance**0.5)


def test_with_too_many_contexts_needed_nothing_is_interpolated(rng):
    given, controlled = posterior(rng, [[0.3, 0.02]]), torch.tensor([True, False])
    c, x = contexts(rng, 1, 60, 2), torch.rand(1, 4, 2, generator=rng, dtype=F64)
    exact = PartialPosterior(given, c, controlled, None).mean_and_variance(x)
    for tolerance in (None, 1e-10):
        fast = PartialPosterior(given, c, controlled, tolerance, True)
        assert fast.chosen == 60
        for ours, theirs in zip(fast.mean_and_variance(x), exact, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_gradients_are_those_of_the_exact_average(rng):
    given, controlled = posterior(rng, [[0.3, 0.3]]), torch.tensor([True, False])
    c = contexts(rng, 1, 300, 2)
    x = torch.rand(1, 5, 2, generator=rng, dtype=F64)
    slopes = []
    for tolerance in (None, 1e-12):
        leaf = x.clone().requires_grad_()
        PartialPosterior(given, c, controlled, tolerance, True).ucb(leaf, 1.5).mean(-1).sum().backward()
        slopes.append(leaf.grad[..., 0])
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=1e-4)
