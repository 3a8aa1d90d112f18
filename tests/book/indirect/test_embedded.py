"""The prior through an estimated embedding, its error, and what signed weights do."""

import numpy as np
import pytest
import torch

from book.indirect import embedded
from book.indirect.embedded import Embedded
from book.indirect.problems import UNIT, draw_data, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ConditionalMeanEmbedding, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.indirect.helpers import F64, square

GRID, LENGTH, RIDGE = unit_grid(4), 0.3, 1e-3


@pytest.fixture(scope="module")
def estimate():
    embedding = ConditionalMeanEmbedding(*draw_data(square(), 30, [3, 5], UNIT), LENGTH, RIDGE)
    return Embedded(embedding, GRID, GRID[:5])


def test_the_exact_prior_is_that_of_the_library(estimate):
    space = Space(GRID, conditional=estimate.embedding, points=GRID[:5], noise_std=0.1)
    expected = space.tabulate(GaussianProcess(rbf_kernel(0.25), 0.1)).kernel.gram
    np.testing.assert_allclose(estimate.prior(0.25, 0.1).kernel.gram, expected, atol=1e-8)


def test_the_deviation_is_the_posterior_covariance_of_a_regression(estimate):
    """A Gaussian process on actions with the same posterior mean, conditioned by the library."""
    s2 = 0.7
    noise = (s2 * 30 * RIDGE) ** 0.5
    for r in range(2):
        a = estimate.embedding.a[r]
        y = torch.sin(5 * estimate.embedding.x[r, :, 0])
        posterior = GaussianProcess(rbf_kernel(LENGTH, s2), noise).condition(Measure.dirac(a), y)
        at = Measure.dirac(GRID)
        np.testing.assert_allclose(estimate.averages(y.expand(2, -1))[r], posterior.mean(at), atol=1e-8)
        expected = posterior.covariance(at, at) / (s2 * 30 * RIDGE)  # for v = 1
        np.testing.assert_allclose(estimate.deviation()[r], expected, rtol=1e-5, atol=1e-8)


def test_leaving_one_out_finds_the_variance_within_actions():
    """x is a, or noise that has nothing to do with a: the variance of f given a is then zero, or that of f."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(1, 200, 1, generator=generator, dtype=F64)
    elsewhere = torch.rand(1, 200, 1, generator=generator, dtype=F64)
    same, apart = (
        embedded.within_variance(ConditionalMeanEmbedding(x, a, 0.3, ridge), 0.3)
        for x, ridge in ((a, 1e-6), (elsewhere, 1e-1))
    )
    k = torch.exp(-((elsewhere[0] - elsewhere[0].T) ** 2) / (2 * 0.3**2))
    spread = 1 - float((k.sum() - 200) / (200 * 199))  # of k(x, x) - k(x, x'), for independent x
    assert same < 0.01 and apart == pytest.approx(spread, rel=0.1)


def test_signed_weights_pass_the_maximum_and_projected_ones_do_not():
    a = torch.tensor([[[0.0], [0.3], [0.6], [1.0]]], dtype=F64)
    x = torch.tensor([[[0.0], [1.0], [0.0], [0.0]]], dtype=F64)
    both = Embedded(ConditionalMeanEmbedding(x, a, 0.5, 1e-6), torch.linspace(0, 1, 41, dtype=F64)[:, None], a[0])
    f = 1 - (x[..., 0] - 1).square()  # largest, one, at x = 1
    assert float(both.averages(f).max()) > 1.01 and float(both.averages(f).min()) < -0.01
    kept = both.averages(f, project=True)
    assert float(kept.min()) >= 0 and float(kept.max()) <= 1
    weights = embedded.projected(torch.tensor([[0.5, -0.5, 1.0]]))
    np.testing.assert_allclose(weights, [[1 / 3, 0, 2 / 3]], rtol=1e-6)
