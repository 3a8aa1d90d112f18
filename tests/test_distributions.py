"""Distributions against scipy: densities, draws, truncation, observed rows."""

import math

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
    np.testing.assert_allclose(ours.cdf(c).numpy(), theirs.cdf(c.numpy()), rtol=1e-9, atol=1e-15)
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


def test_a_replicate_draws_the_same_alone_and_in_company():
    distribution = ContextDistribution((Normal(0.5, 0.1), MIXTURE), SQUARE)
    together = distribution.sample(generators(1, 2, 3), (5,))
    assert together.shape == (3, 5, 2) and distribution.sample(generators(1, 2, 3)).shape == (3, 2)
    for r, seed in enumerate((1, 2, 3)):
        assert torch.equal(together[r], distribution.sample(generators(seed), (5,))[0])


def test_extreme_uniform_numbers_give_finite_draws():
    u = torch.tensor([[0.0], [1.0], [1 / 3], [2 / 3]], dtype=F64)
    for marginal in (*(a for a, _ in PAIRS), MIXTURE):
        assert bool(torch.isfinite(ContextDistribution((marginal,), UNIT).from_uniform(u, clip=False)).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": UNIT.flip(0)}, "bounds must have each lower bound below the upper, got"),
        ({"bounds": UNIT[:, 0]}, r"bounds must have shape \(2, d\) with d >= 1, got"),
        ({"bounds": UNIT * math.nan}, "bounds must be finite, got"),
        ({"bounds": SQUARE}, "marginals must be one a coordinate, 2, got 1"),
    ],
)
def test_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ContextDistribution(**{"marginals": (Uniform(),), "bounds": UNIT, **change})


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
    assert theirs.mean() == pytest.approx(0.5, abs=1e-12)
    assert ours.scale**2 > variance * (1 + 1e-6 * (variance > 0.01) - 1e-12)  # truncation takes variance away


@given(st.floats(1e-4, 1 / 12 - 1e-4))
def test_quantiles_and_densities_are_scipys(variance):
    ours, x = truncated_normal(variance), np.linspace(-0.25, 1.25, 301)
    u = np.linspace(0, 1, 201)
    np.testing.assert_allclose(ours.inverse_cdf(torch.from_numpy(u)), scipys(ours).ppf(u), rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours.density(torch.from_numpy(x)), scipys(ours).pdf(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("variance", [*PAPER, 0.08])
def test_moments_are_integrals_of_the_density(variance):
    marginal = truncated_normal(variance)

    def density(x):
        return float(marginal.density(torch.tensor(x, dtype=F64)))

    moments = [quad(lambda x, k=k: x**k * density(x), 0, 1, epsabs=1e-12)[0] for k in range(3)]
    assert moments[:2] == pytest.approx([1.0, 0.5], abs=1e-10)
    assert moments[2] - moments[1] ** 2 == pytest.approx(variance, abs=1e-10)


@pytest.mark.parametrize("marginal", [truncated_normal(0.04), Uniform()], ids=str)
def test_quantiles_invert_the_distribution(marginal):
    for u in (0.0, 0.001, 0.2, 0.5, 0.7, 0.999, 1.0):
        x = float(marginal.inverse_cdf(torch.tensor(u, dtype=F64)))
        below = quad(lambda z: float(marginal.density(torch.tensor(z, dtype=F64))), 0, x, epsabs=1e-12)[0]
        assert below == pytest.approx(u, abs=1e-9)


@given(st.floats(1e-6, 0.08), st.floats(0, 1))
def test_quantiles_are_symmetric_monotone_and_inside(variance, u):
    ours = truncated_normal(variance)
    u = torch.tensor([u, 1 - u, 0.5, 0.0, 1.0], dtype=F64)
    x = ours.inverse_cdf(u)
    assert float(x[0] + x[1]) == pytest.approx(1, abs=1e-9)
    assert float(x[2]) == 0.5 and float(x.min()) >= 0 and float(x.max()) <= 1
    order = u.argsort()
    assert bool((x[order].diff() >= 0).all())


def test_the_uniform_distribution_is_the_limit_of_large_variance():
    u = torch.linspace(0, 1, 101, dtype=F64)
    gaps = [float((truncated_normal(1 / 12 - e).inverse_cdf(u) - u).abs().max()) for e in (1e-3, 1e-5, 1e-7, 1e-12)]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2] and gaps[3] < 1e-8
    # Close to the limit the variance is 1/12 - 1 / (360 scale^2).
    assert truncated_normal(1 / 12 - 1e-7).scale == pytest.approx(math.sqrt(1 / 3.6e-5), rel=1e-3)


def test_a_small_variance_is_hardly_truncated():
    assert truncated_normal(1e-4).scale == pytest.approx(0.01, rel=1e-12)
    assert truncated_normal(0.02).scale ** 2 == pytest.approx(0.0201, abs=5e-5)
    assert truncated_normal(0.04).scale ** 2 == pytest.approx(0.0456, abs=5e-5)


@pytest.mark.parametrize("variance", [1 / 12, 0.0834, 1.0, 0.0, -0.02, math.nan, math.inf])
def test_variances_that_no_truncated_normal_has_are_refused(variance):
    with pytest.raises(ValueError, match=r"variance of a truncated normal distribution on \[0, 1\] must lie in"):
        truncated_normal(variance)


@pytest.mark.parametrize(("low", "high"), [(-3.0, 5.0), (100.0, 101.5)])
def test_a_variance_on_another_interval_is_that_of_the_unit_one_scaled(low, high):
    u, width = torch.linspace(0, 1, 33, dtype=F64), high - low
    ours, unit = truncated_normal(0.03 * width**2, low, high), truncated_normal(0.03)
    torch.testing.assert_close(ours.inverse_cdf(u), low + width * unit.inverse_cdf(u), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("location", [-8.0, 0.3, 0.5, 9.0])
def test_tails_keep_their_digits(location):
    ours, theirs = TruncatedNormal(location, 0.6), stats.truncnorm(-location / 0.6, (1 - location) / 0.6, location, 0.6)
    u = torch.tensor([1e-6, 0.3, 1 - 1e-6], dtype=F64)
    np.testing.assert_allclose(ours.inverse_cdf(u).numpy(), theirs.ppf(u.numpy()), rtol=1e-6, atol=1e-13)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normal(0.5, -1.0), "std must be positive and finite, got -1"),
        (lambda: Normal(math.nan, 1.0), "mean must be finite, got nan"),
        (lambda: Uniform(1.0, 1.0), "low must lie below high, got 1.0 and 1.0"),
        (lambda: Uniform(-math.inf, 1.0), "low must be finite, got -inf"),
        (lambda: TruncatedNormal(0.5, 0.0), "scale must be positive and finite, got 0"),
        (lambda: TruncatedNormal(0.5, 1.0, 2.0, 1.0), "low must lie below high, got 2.0 and 1.0"),
        (lambda: TruncatedNormal(0.5, 0.01, 20.0, 21.0), "low and high must hold a part of the normal distribution"),
        (lambda: truncated_normal(0.1, 1.0, 0.0), "variance of a truncated normal distribution on"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
