"""The information about the maximum against entropies integrated directly."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm

from cbo_lib.indirect.entropy import gumbel_max_samples, log_information, noisy_gain
from tests.indirect import plain
from tests.indirect.helpers import F64

GAMMAS = [-6.0, -4.5, -3.0, -1.5, -0.5, 0.0, 0.3, 1.0, 2.0, 3.0, 4.5, 6.0]
CORRELATIONS = [0.01, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999]
NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)


def tensor(values):
    return torch.tensor(values, dtype=F64)


def gain(gammas, std=1.0, noise_std=None):
    """The library's value for each ``gamma``, by way of one sample of zero."""
    gammas = tensor(gammas)
    noise = None if noise_std is None else tensor(noise_std)
    return log_information(-gammas * std, torch.full_like(gammas, std), tensor([0.0]), noise).exp()


def noise_of(correlation, std=1.0):
    """The noise with which g and z have this correlation."""
    return std * math.sqrt(1 / correlation**2 - 1)


def noisy_oracle(gamma, r):
    """``H[u] - H[u | g <= f*]`` on a fine grid, in the form that loses no digits when both are nearly equal.

    With ``1 + e`` the ratio of both densities it is ``E[(1 + e) log(1 + e)] - E[e u^2] / 2`` over a normal ``u``.
    """
    u = np.linspace(-14, 14, 160001)
    e = np.expm1(log_ndtr((gamma - r * u) / math.sqrt(1 - r**2)) - log_ndtr(gamma))
    density = norm.pdf(u)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.where(e > -1, (1 + e) * np.log1p(e), 0.0)
    return float((density * (information - 0.5 * e * u**2)).sum() * (u[1] - u[0]))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_equation_14_is_the_entropy_lost_by_truncation(gamma):
    def integrand(x):
        log_density = norm.logpdf(x) - norm.logcdf(gamma)
        return -math.exp(log_density) * log_density

    truncated, _ = quad(integrand, min(gamma, 0.0) - 12, gamma, points=[min(gamma, 0.0) - 1], epsabs=1e-12, limit=300)
    for std in (1.0, 0.03):  # both entropies move by log(std)
        assert float(gain([gamma], std)) == pytest.approx(NORMAL_ENTROPY - truncated, abs=2e-9)
    assert float(gain([gamma])) == pytest.approx(plain.truncation_gain(gamma), rel=1e-9)


def test_equation_14_decreases_in_gamma_and_is_positive():
    values = gain(np.linspace(-30, 8, 500).tolist())
    assert bool((values.diff() < 0).all()) and bool((values > 0).all())


@pytest.mark.parametrize("gamma", [-1e2, -1e3])
def test_far_below_the_mean_the_gain_grows_like_a_logarithm(gamma):
    # With Mills' ratio, gain = log|gamma| + log(2 pi) / 2 - 1/2 + O(gamma^-2).
    expected = math.log(-gamma) + 0.5 * math.log(2 * math.pi) - 0.5
    assert float(gain([gamma])) == pytest.approx(expected, abs=4 / gamma**2 + 1e-3)


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_the_noisy_form_is_the_entropy_of_appendix_a(correlation):
    expected = np.array([noisy_oracle(gamma, correlation) for gamma in GAMMAS])
    exact = noisy_gain(tensor(GAMMAS), tensor(correlation))
    np.testing.assert_allclose(exact, expected, rtol=1e-4 if correlation <= 0.9 else 5e-3, atol=0)
    read_off = gain(GAMMAS, noise_std=noise_of(correlation))  # the table is a little off between its knots
    np.testing.assert_allclose(read_off, exact, rtol=1e-2, atol=0)


def test_noise_hides_information_and_little_noise_hides_little():
    values = torch.stack([gain(GAMMAS, noise_std=noise) for noise in (1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0)])
    assert bool((values.diff(dim=0) < 0).all()) and bool((values > 0).all())
    torch.testing.assert_close(values[0], gain(GAMMAS), rtol=0.02, atol=0)


def test_beyond_the_table_the_order_of_actions_stays():
    gammas = np.linspace(8, 40, 200).tolist()
    assert bool((gain(gammas, noise_std=0.3)[:150].log().diff() < 0).all())
    small = [float(gain([0.5], std, 1.0)) for std in (1e-5, 1e-4, 1e-3)]  # like the square of std over noise
    assert small[1] / small[0] == pytest.approx(100, rel=1e-2) == small[2] / small[1]


def test_a_gumbel_distribution_has_the_quartiles_of_the_product(rng):
    mean, std = torch.randn(3, 40, generator=rng, dtype=F64), 0.05 + torch.rand(3, 40, generator=rng, dtype=F64)
    quartiles = gumbel_max_samples(mean, std, tensor([0.25, 0.5, 0.75]).expand(3, 3))
    for r in range(3):
        m, s = mean[r].numpy(), std[r].numpy()
        first, median, third = (plain.max_quantile(m, s, level) for level in (0.25, 0.5, 0.75))
        assert float(quartiles[r, 1]) == pytest.approx(median, abs=1e-6)  # the median and the interquartile range
        assert float(quartiles[r, 2] - quartiles[r, 0]) == pytest.approx(third - first, abs=1e-6)
        got = gumbel_max_samples(mean[r], std[r], tensor([0.01, 0.3, 0.99]))
        np.testing.assert_allclose(got, plain.gumbel(m, s, np.array([0.01, 0.3, 0.99])), atol=2e-6)


def test_gumbel_quartiles_are_those_of_drawn_maxima(rng):
    mean, std = torch.linspace(-1, 1, 12, dtype=F64), torch.linspace(1.0, 0.3, 12, dtype=F64)
    draws = (mean + std * torch.randn(200000, 12, generator=rng, dtype=F64)).amax(-1)
    levels = tensor([0.25, 0.5, 0.75])
    torch.testing.assert_close(gumbel_max_samples(mean, std, levels), draws.quantile(levels), rtol=0, atol=0.03)


@pytest.mark.parametrize("std", [1e-9, 1.0, 1e3])
def test_the_maximum_of_one_value_has_the_median_of_a_normal(std):
    got = gumbel_max_samples(tensor([2.0]), tensor([std]), tensor([0.5]))
    assert float(got) == pytest.approx(2.0, abs=2e-6 * std)
