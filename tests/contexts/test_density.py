"""The density estimate against scipy, against mixtures written out, and where there is no density at all."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from cbo_lib.contexts import GaussianKDE
from cbo_lib.contexts.density import silverman_bandwidth
from tests import accelerator

F64 = torch.float64


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@given(st.integers(0, 10_000), st.integers(2, 60))
def test_one_dimension_is_scipys_estimate(seed, n):
    rng = np.random.default_rng(seed)
    samples, where = rng.normal(0.3, 0.2, n), np.linspace(-1, 2, 40)
    theirs = stats.gaussian_kde(samples, "silverman")
    ours = GaussianKDE(torch.as_tensor(samples)[:, None])
    np.testing.assert_allclose(ours.bandwidth.numpy(), np.sqrt(theirs.covariance[0]), rtol=1e-9)
    np.testing.assert_allclose(
        ours.density(torch.as_tensor(where)[:, None]).numpy(), theirs(where), rtol=1e-9, atol=1e-250
    )


@given(st.integers(0, 10_000), st.integers(2, 25), st.integers(1, 4))
def test_several_dimensions_are_a_mixture_of_normal_distributions(seed, n, d):
    rng = np.random.default_rng(seed)
    samples, where = rng.random((n, d)) * 10.0 ** rng.integers(-3, 3, d), rng.random((9, d))
    ours = GaussianKDE(torch.as_tensor(samples))
    h = np.std(samples, axis=0, ddof=1) * (n * (d + 2) / 4) ** (-1 / (d + 4))
    np.testing.assert_allclose(ours.bandwidth.numpy(), h, rtol=1e-9)
    parts = [stats.norm.pdf(where, c, h).prod(-1) for c in samples]
    np.testing.assert_allclose(ours.density(torch.as_tensor(where)).numpy(), np.mean(parts, 0), rtol=1e-7, atol=1e-250)


def test_the_bandwidth_is_that_of_section_4_1_written_out(rng):
    contexts = torch.rand(7, 2, generator=rng, dtype=F64)
    expected = (4 / (2 + 2)) ** (1 / 6) * contexts.std(0) * 7 ** (-1 / 6)
    torch.testing.assert_close(silverman_bandwidth(contexts), expected)


def test_the_estimate_is_a_density_and_the_printed_kernel_is_none(rng):
    """The paper's kernel (2 pi)^(-d/2) exp(-|x|^2) has the integral 2^(-d/2)."""
    ours = GaussianKDE(torch.rand(8, 2, generator=rng, dtype=F64))

    def at(x, y):
        return float(ours.density(torch.tensor([[x, y]], dtype=F64)))

    total, _ = integrate.dblquad(at, -1, 2, -1, 2, epsabs=1e-3)
    assert total == pytest.approx(1.0, abs=5e-3)
    printed, _ = integrate.quad(lambda x: math.exp(-(x**2)) / math.sqrt(2 * math.pi), -np.inf, np.inf)
    assert printed == pytest.approx(2**-0.5)


def test_draws_follow_the_estimate(rng):
    samples = torch.rand(6, 1, generator=rng, dtype=F64)
    kde = GaussianKDE(samples[None])
    draws = kde.sample(20_000, generators(3))[0].squeeze(-1).numpy()
    h = float(kde.bandwidth)

    def cdf(x):
        return np.mean([stats.norm.cdf(x, c, h) for c in samples[:, 0].tolist()], 0)

    assert stats.kstest(draws, cdf).pvalue > 1e-3
    assert draws.var() == pytest.approx(float(samples.var(correction=0)) + h**2, rel=0.03)


def test_a_draw_follows_the_estimate_and_many_lie_evenly(rng):
    """Each draw alone, over 2,000 replicates; and the error of an average over 64 against that of independent draws."""
    samples = torch.rand(9, 1, generator=rng, dtype=F64)
    kde = GaussianKDE(samples.expand(2000, -1, -1))
    draws = kde.sample(64, generators(*range(2000)))[..., 0]
    h = float(kde.bandwidth[0])

    def cdf(x):
        return np.mean([stats.norm.cdf(x, c, h) for c in samples[:, 0].tolist()], 0)

    assert all(stats.kstest(draws[:, i].numpy(), cdf).pvalue > 1e-3 for i in (0, 1, 40))
    mean, spread = float(samples.mean()), float((samples.var(correction=0) + h**2).sqrt())
    averages = draws.mean(-1)
    assert abs(float(averages.mean()) - mean) < 4 * float(averages.std()) / 2000**0.5
    assert float(averages.std()) < spread / 8 / 5  # independent ones: spread / 8


def test_draws_can_be_clipped_onto_the_box(rng):
    samples = torch.tensor([[0.0, 0.5], [1.0, 0.6]], dtype=F64)
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    free, clipped = (GaussianKDE(samples[None]).sample(200, generators(2), bounds=b) for b in (None, box))
    assert bool((free < 0).any()) and bool((free > 1).any())
    assert torch.allclose(clipped, free.clamp(0, 1))


def test_a_given_bandwidth(rng):
    samples = torch.rand(4, 1, generator=rng, dtype=F64)
    kde = GaussianKDE(samples, torch.tensor([0.3], dtype=F64))
    expected = np.mean([stats.norm.pdf(0.2, c, 0.3) for c in samples[:, 0].tolist()])
    assert float(kde.density(torch.tensor([[0.2]], dtype=F64))) == pytest.approx(expected)


# ---- no density


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.0, 1e8])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_constant_contexts_are_a_point_mass(value, n):
    kde = GaussianKDE(torch.full((1, n, 1), value, dtype=F64))
    assert float(kde.bandwidth) == 0.0  # exactly, whatever the rounding of the mean
    assert kde.sample(20, generators(0)).unique().tolist() == [value]
    with pytest.raises(ValueError, match="samples must differ for a density"):
        kde.density(torch.tensor([[value]], dtype=F64))


@accelerator.needed
def test_on_a_gpu_the_estimate_is_as_on_the_cpu(rng):
    samples = torch.rand(2, 9, 1, generator=rng, dtype=F64)
    cpu, gpu = GaussianKDE(samples), GaussianKDE(samples.to(accelerator.DEVICE))
    pairs = [(kde.sample(7, generators(1, 2)), kde.density(kde.samples)) for kde in (cpu, gpu)]
    for expected, found in zip(*pairs, strict=True):
        assert found.device.type == accelerator.DEVICE
        torch.testing.assert_close(found.cpu(), expected)
