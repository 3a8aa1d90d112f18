"""Distributions against scipy: densities, draws, truncation, observed rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from book.contexts.marginals import Burr, Cauchy, Mixture
from book.contexts.quadrature import ContextDistribution
from book.subsets.marginals import TruncatedNormal, truncated_normal
from cbo_lib.distributions import Law, Normal, Uniform

F64 = torch.float64
UNIT = torch.tensor([[0.0], [1.0]], dtype=F64)
SQUARE = UNIT.expand(2, 2)
PAIRS = [
    (Normal(0.5, 0.15), stats.norm(0.5, 0.15)),
    (Cauchy(0.2, 0.02), stats.cauchy(0.2, 0.02)),
    (Uniform(), stats.uniform()),
    (Uniform(-1.0, 2.0), stats.uniform(-1.0, 3.0)),
    (TruncatedNormal(0.2, 0.6), stats.truncnorm(-1 / 3, 4 / 3, 0.2, 0.6)),
    (TruncatedNormal(-3.0, 1.0, -1.0, 2.5), stats.truncnorm(2.0, 5.5, -3.0, 1.0)),
    (TruncatedNormal(1.5, 0.1, 0.0, 1.0), stats.truncnorm(-15.0, -5.0, 1.5, 0.1)),
    (Burr(2.0, 20.0), stats.burr12(2.0, 20.0)),
    (Burr(3.5, 0.8), stats.burr12(3.5, 0.8)),
]
MIXTURE = Mixture((Normal(0.1, 0.02), Cauchy(0.2, 0.02), Normal(0.7, 0.075)))


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def mixture_cdf(c):
    return (stats.norm.cdf(c, 0.1, 0.02) + stats.cauchy.cdf(c, 0.2, 0.02) + stats.norm.cdf(c, 0.7, 0.075)) / 3


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_marginals_are_scipys(ours, theirs):
    c, u = torch.linspace(-2, 3, 401, dtype=F64), torch.linspace(0.001, 0.999, 333, dtype=F64)
    np.testing.assert_allclose(ours.density(c).numpy(), theirs.pdf(c.numpy()), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(ours.cdf(c).numpy(), theirs.cdf(c.numpy()), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.inverse_cdf(u).numpy(), theirs.ppf(u.numpy()), rtol=1e-9)
    np.testing.assert_allclose(ours.cdf(ours.inverse_cdf(u)).numpy(), u.numpy(), rtol=1e-9)


def test_a_mixture_is_the_mean_of_its_parts():
    c = torch.linspace(-2, 3, 401, dtype=F64)
    np.testing.assert_allclose(MIXTURE.cdf(c).numpy(), mixture_cdf(c.numpy()), rtol=1e-10)
    slope = np.gradient(mixture_cdf(c.numpy() + np.array([[-1e-6], [1e-6]])), 2e-6, axis=0)[0]
    np.testing.assert_allclose(MIXTURE.density(c).numpy(), slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("marginal", "cdf"), [*((a, b.cdf) for a, b in PAIRS), (MIXTURE, mixture_cdf)])
def test_draws_follow_the_distribution(marginal, cdf):
    distribution = ContextDistribution((marginal,), UNIT)
    draws = distribution.sample(generators(4), (20_000,), clip=False)
    assert draws.shape == (1, 20_000, 1)
    assert stats.kstest(draws.flatten().numpy(), cdf).pvalue > 1e-3
    assert torch.equal(distribution.sample(generators(4), (20_000,)), draws.clamp(0, 1))


def test_extreme_uniform_numbers_give_finite_draws():
    u = torch.tensor([[0.0], [1.0], [1 / 3], [2 / 3]], dtype=F64)
    for marginal in (*(a for a, _ in PAIRS), MIXTURE):
        assert bool(torch.isfinite(ContextDistribution((marginal,), UNIT).from_uniform(u, clip=False)).all())


# The truncated normal distribution

PAPER = (0.02, 0.04)


def scipys(marginal):
    a = 0.5 / marginal.scale
    return stats.truncnorm(-a, a, loc=0.5, scale=marginal.scale)


@given(st.floats(1e-6, 1 / 12 - 1e-4))
def test_the_variance_is_that_of_the_truncated_variable(variance):
    ours = truncated_normal(variance)
    theirs = scipys(ours)
    assert theirs.var() == pytest.approx(variance, rel=1e-9)
    assert theirs.mean() == pytest.approx(0.5, abs=1e-9)
    assert ours.scale**2 > variance * (1 + 1e-6 * (variance > 0.01) - 1e-12)  # truncation takes variance away


@given(st.floats(1e-4, 1 / 12 - 1e-4))
def test_quantiles_and_densities_are_scipys(variance):
    ours, x = truncated_normal(variance), np.linspace(-0.25, 1.25, 301)
    u = np.linspace(0, 1, 201)
    np.testing.assert_allclose(ours.inverse_cdf(torch.from_numpy(u)), scipys(ours).ppf(u), rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours.density(torch.from_numpy(x)), scipys(ours).pdf(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variance", [*PAPER, 0.08])
def test_moments_are_integrals_of_the_density(variance):
    marginal = truncated_normal(variance)

    def density(x):
        return float(marginal.density(torch.tensor(x, dtype=F64)))

    moments = [quad(lambda x, k=k: x**k * density(x), 0, 1, epsabs=1e-12)[0] for k in range(3)]
    assert moments[:2] == pytest.approx([1.0, 0.5], abs=1e-10)
    assert moments[2] - moments[1] ** 2 == pytest.approx(variance, abs=1e-10)


@pytest.mark.parametrize("location", [-8.0, 0.3, 0.5, 9.0])
def test_tails_keep_their_digits(location):
    ours, theirs = TruncatedNormal(location, 0.6), stats.truncnorm(-location / 0.6, (1 - location) / 0.6, location, 0.6)
    u = torch.tensor([1e-6, 0.3, 1 - 1e-6], dtype=F64)
    np.testing.assert_allclose(ours.inverse_cdf(u).numpy(), theirs.ppf(u.numpy()), rtol=1e-6, atol=1e-9)


class Gumbel(Law):
    """How a user makes any distribution of torch a marginal."""

    def law(self, like):
        return torch.distributions.Gumbel(like.new_tensor(0.4), like.new_tensor(0.1))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_any_distribution_of_torch_is_a_marginal(dtype):
    distribution = ContextDistribution((Gumbel(), Normal(0.1, 0.2)), SQUARE.to(dtype))
    draws = distribution.sample(generators(3), (20_000,), clip=False)
    assert draws.dtype == dtype
    assert stats.kstest(draws[0, :, 0].double().numpy(), stats.gumbel_r(0.4, 0.1).cdf).pvalue > 1e-3
    assert distribution.marginals[0].density(draws).dtype == dtype
