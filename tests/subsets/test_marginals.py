"""Marginals against scipy's truncated normal, their limits, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, truncnorm

from cbo_lib.random import ReplicateGenerators
from cbo_lib.subsets.marginals import TruncatedNormal, Uniform

F64 = torch.float64
PAPER = (0.02, 0.04)


def scipys(marginal):
    a = 0.5 / marginal.scale
    return truncnorm(-a, a, loc=0.5, scale=marginal.scale)


@given(st.floats(1e-6, 1 / 12 - 1e-4))
def test_the_variance_is_that_of_the_truncated_variable(variance):
    ours = TruncatedNormal(variance)
    theirs = scipys(ours)
    assert theirs.var() == pytest.approx(variance, rel=1e-9)
    assert theirs.mean() == pytest.approx(ours.mean, abs=1e-12)
    assert ours.scale**2 > variance * (1 + 1e-6 * (variance > 0.01) - 1e-12)  # truncation takes variance away


@given(st.floats(1e-4, 1 / 12 - 1e-4))
def test_quantiles_and_densities_are_scipys(variance):
    ours, x = TruncatedNormal(variance), np.linspace(-0.25, 1.25, 301)
    u = np.linspace(0, 1, 201)
    np.testing.assert_allclose(ours.inverse_cdf(torch.from_numpy(u)), scipys(ours).ppf(u), rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours.density(torch.from_numpy(x)), scipys(ours).pdf(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("marginal", [*(TruncatedNormal(v) for v in PAPER), TruncatedNormal(0.08), Uniform()], ids=str)
def test_moments_are_integrals_of_the_density(marginal):
    def density(x):
        return float(marginal.density(torch.tensor(x, dtype=F64)))

    moments = [quad(lambda x, k=k: x**k * density(x), 0, 1, epsabs=1e-12)[0] for k in range(3)]
    assert moments[0] == pytest.approx(1, abs=1e-10)
    assert moments[1] == pytest.approx(marginal.mean, abs=1e-10)
    assert moments[2] - moments[1] ** 2 == pytest.approx(marginal.variance, abs=1e-10)


@pytest.mark.parametrize("marginal", [TruncatedNormal(0.04), Uniform()], ids=str)
def test_quantiles_invert_the_distribution(marginal):
    for u in (0.0, 0.001, 0.2, 0.5, 0.7, 0.999, 1.0):
        x = float(marginal.inverse_cdf(torch.tensor(u, dtype=F64)))
        below = quad(lambda z: float(marginal.density(torch.tensor(z, dtype=F64))), 0, x, epsabs=1e-12)[0]
        assert below == pytest.approx(u, abs=1e-9)


@pytest.mark.parametrize("marginal", [*(TruncatedNormal(v) for v in PAPER), Uniform()], ids=str)
def test_draws_follow_the_distribution(marginal):
    generators = ReplicateGenerators([3]).generators
    drawn = marginal.sample(generators, (20000,), torch.zeros((), dtype=F64)).flatten().numpy()
    theirs = scipys(marginal) if isinstance(marginal, TruncatedNormal) else None
    cdf = theirs.cdf if theirs else (lambda x: x)
    assert kstest(drawn, cdf).pvalue > 1e-3
    assert abs(drawn.mean() - 0.5) < 4 * math.sqrt(marginal.variance / 20000)


@pytest.mark.parametrize("marginal", [TruncatedNormal(0.02), Uniform()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_draws_belong_to_their_replicate_and_stay_inside(marginal, dtype):
    like = torch.zeros((), dtype=dtype)
    together = marginal.sample(ReplicateGenerators((5, 6, 7)).generators, (40, 3), like)
    assert together.shape == (3, 40, 3) and together.dtype == dtype
    assert float(together.min()) >= 0 and float(together.max()) <= 1
    for r, seed in enumerate((5, 6, 7)):
        assert torch.equal(together[r], marginal.sample(ReplicateGenerators([seed]).generators, (40, 3), like)[0])


@given(st.floats(1e-6, 0.08), st.floats(0, 1))
def test_quantiles_are_symmetric_monotone_and_inside(variance, u):
    ours = TruncatedNormal(variance)
    u = torch.tensor([u, 1 - u, 0.5, 0.0, 1.0], dtype=F64)
    x = ours.inverse_cdf(u)
    assert float(x[0] + x[1]) == pytest.approx(1, abs=1e-9)
    assert float(x[2]) == 0.5 and float(x.min()) >= 0 and float(x.max()) <= 1
    order = u.argsort()
    assert bool((x[order].diff() >= 0).all())


def test_the_uniform_distribution_is_the_limit_of_large_variance():
    u = torch.linspace(0, 1, 101, dtype=F64)
    gaps = [float((TruncatedNormal(1 / 12 - e).inverse_cdf(u) - u).abs().max()) for e in (1e-3, 1e-5, 1e-7, 1e-12)]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2] and gaps[3] < 1e-8
    # Close to the limit the variance is 1/12 - 1 / (360 scale^2).
    assert TruncatedNormal(1 / 12 - 1e-7).scale == pytest.approx(math.sqrt(1 / 3.6e-5), rel=1e-3)


def test_a_small_variance_is_hardly_truncated():
    assert TruncatedNormal(1e-4).scale == pytest.approx(0.01, rel=1e-12)
    assert TruncatedNormal(0.02).scale ** 2 == pytest.approx(0.0201, abs=5e-5)
    assert TruncatedNormal(0.04).scale ** 2 == pytest.approx(0.0456, abs=5e-5)


@pytest.mark.parametrize("variance", [1 / 12, 0.0834, 1.0, 0.0, -0.02, math.nan, math.inf])
def test_variances_that_no_truncated_normal_has_are_refused(variance):
    with pytest.raises(ValueError, match=r"variance of a truncated normal distribution on \[0, 1\] must lie in"):
        TruncatedNormal(variance)
