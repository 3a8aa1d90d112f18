"""The distance of a density estimate from a density, against quadrature and its rate."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from book.contexts.regret import density_distance
from cbo_lib.contexts import GaussianKDE

F64 = torch.float64


def normal(mean, std):
    return lambda c: torch.as_tensor(stats.norm.pdf(c.squeeze(-1).numpy(), mean, std))


def test_the_distance_is_the_integral_of_the_difference(rng):
    samples = torch.rand(7, 1, generator=rng, dtype=F64)
    kde = GaussianKDE(samples)

    def gap(c):
        return abs(float(kde.density(torch.tensor([[c]], dtype=F64))) - stats.norm.pdf(c, 0.5, 0.2))

    expected, _ = integrate.quad(gap, -0.5, 1.5, limit=200)
    assert float(density_distance(kde, normal(0.5, 0.2), -0.5, 1.5)) == pytest.approx(expected, abs=1e-5)


def test_the_distance_is_that_of_densities_and_not_half_of_it():
    far = GaussianKDE(torch.tensor([[0.0], [0.1]], dtype=F64))
    assert float(density_distance(far, normal(5, 0.1), -3.0, 8.0, 20_001)) == pytest.approx(2.0, abs=1e-6)
    assert float(density_distance(far, lambda c: far.density(c), -3.0, 3.0)) < 1e-9


def test_distances_of_replicates(rng):
    samples = torch.rand(4, 11, 1, generator=rng, dtype=F64)
    found = density_distance(GaussianKDE(samples), normal(0.5, 0.3), 0.0, 1.0)
    assert found.shape == (4,)
    for r in range(4):
        torch.testing.assert_close(found[r], density_distance(GaussianKDE(samples[r]), normal(0.5, 0.3), 0.0, 1.0))


def test_more_samples_come_nearer_at_about_the_rate_of_the_theory():
    """E |p_hat - p|_1 falls like n^(-2/5): here from 25 to 1600 samples, averaged over 40 replicates."""
    contexts = torch.randn(40, 1600, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    sizes = [25, 100, 400, 1600]
    mean = [float(density_distance(GaussianKDE(contexts[:, :n]), normal(0, 1), -5.0, 5.0, 201).mean()) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(mean), 1)[0]
    assert slope == pytest.approx(-0.4, abs=0.05)
