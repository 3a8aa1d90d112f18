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
            assert torch.equal(ours, theirs)


def test_groups_are_a_loop_over_their_coordinates(rng):
    given = posterior(rng, [[0.5] * 3, [0.9] * 3])
    groups = torch.tensor([[True, True, False], [True, False, False], [False, True, True]])
    c, x = contexts(rng, 2, 300, 3).unsqueeze(1), torch.rand(2, 1, 4, 3, generator=rng, dtype=F64)
    together = PartialPosterior(given, c, groups, 1e-10, True)
    assert together.chosen < 150
    for i, controlled in enumerate(groups):
        exact = PartialPosterior(given, c[:, 0], controlled, None).mean_and_variance(x[:, 0])
        for ours, theirs in zip(together.mean_and_variance(x), exact, strict=True):
            torch.testing.assert_close(ours[:, i], theirs, rtol=0, atol=2e-5)


def test_a_replicate_is_the_same_alone_and_beside_rougher_ones(rng):
    rows = [[0.4, 0.9], [0.4, 0.15], [0.4, 0.4]]  # of different ranks
    given = posterior(rng, rows)
    controlled = torch.tensor([True, False])
    c, x = contexts(rng, 3, 500, 2), torch.rand(3, 5, 2, generator=rng, dtype=F64)
    together = PartialPosterior(given, c, controlled, 1e-10, True)
    for r in range(3):
        assert given.data is not None
        data = given.data.measure.points[r : r + 1, :, 0]
        y = 0.3 + (given.data.factor[r] @ given.data.whitened[r])
        own = process(torch.tensor(rows[r : r + 1], dtype=F64)).condition(Measure.dirac(data), y[None])
        alone = PartialPosterior(own, c[r : r + 1], controlled, 1e-10, True)
        if r != 1:
            assert alone.chosen < together.chosen
        for ours, theirs in zip(alone.mean_and_variance(x[r : r + 1]), together.mean_and_variance(x), strict=True):
            torch.testing.assert_close(ours[0], theirs[r], rtol=0, atol=1e-9)


def test_contexts_shared_by_all_replicates_and_repeated_ones(rng):
    given, controlled = posterior(rng, [[0.3, 0.3], [0.5, 0.5]]), torch.tensor([True, False])
    shared = contexts(rng, 1, 200, 2)[0]
    repeated = torch.cat([shared, shared])
    x = torch.rand(2, 4, 2, generator=rng, dtype=F64)
    one, other = (PartialPosterior(given, c, controlled, 1e-10, True).ucb(x, 1.0) for c in (shared, repeated))
    torch.testing.assert_close(other[..., :200], other[..., 200:], rtol=0, atol=1e-9)
    torch.testing.assert_close(one, other[..., :200], rtol=0, atol=1e-4)


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


def test_with_four_contexts_nothing_is_interpolated(rng):
    given, controlled = posterior(rng, [[0.9] * 5]), torch.arange(5) < 1
    c, x = contexts(rng, 1, 40, 5), torch.rand(1, 3, 5, generator=rng, dtype=F64)
    fast = PartialPosterior(given, c, controlled, 1e-10, True)
    assert fast.chosen == 40
    exact = PartialPosterior(given, c, controlled, tolerance=None).mean_and_variance(x)
    for ours, theirs in zip(fast.mean_and_variance(x), exact, strict=True):
        assert torch.equal(ours, theirs)


def test_a_replicate_is_interpolated_whatever_the_others_need(rng):
    """The second needs all of its contexts, the first few: it gets what it gets alone, and so does the second."""
    given, controlled = posterior(rng, [[0.5, 0.7], [0.3, 0.02]]), torch.tensor([True, False])
    c, x = contexts(rng, 2, 60, 2), torch.rand(2, 4, 2, generator=rng, dtype=F64)
    together = PartialPosterior(given, c, controlled, 1e-10, True)
    alone = [PartialPosterior(given.select(r), c[r], controlled, 1e-10, True) for r in range(2)]
    assert alone[0].chosen < 30 and alone[1].chosen == together.chosen == 60
    for r in range(2):
        for ours, theirs in zip(together.mean_and_variance(x), alone[r].mean_and_variance(x[r]), strict=True):
            torch.testing.assert_close(ours[r], theirs, rtol=0, atol=1e-13)
    exact = PartialPosterior(given, c, controlled, None).mean_and_variance(x)[1]
    assert float((together.mean_and_variance(x)[1] - exact)[0].abs().max()) > 1e-13  # the first is interpolated
