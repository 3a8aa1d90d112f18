"""The fitted prior against the likelihood as scipy computes it."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from book.subsets.prior import fit_prior
from cbo_lib.random import ReplicateGenerators
from tests.subsets import plain
from tests.subsets.helpers import F64, flat, hill, solid


def parameters(process):
    """Mean, log variance, log lengthscales."""
    kernel = process.kernel
    lengthscales = kernel.base_kernel.lengthscale.flatten().tolist()
    return np.array([process.mean, math.log(float(kernel.outputscale)), *map(math.log, lengthscales)])


def evidence(theta, x, y, noise_std):
    gram = plain.rbf(x, x, np.exp(theta[2:]), math.exp(theta[1])) + noise_std**2 * np.eye(len(y))
    return multivariate_normal(np.full(len(y), theta[0]), gram).logpdf(y)


def pilot(problem, count, seed):
    """The data of the pilot study."""
    x = torch.quasirandom.SobolEngine(problem.space.dim, scramble=True, seed=seed).draw(count, dtype=F64)
    (generator,) = ReplicateGenerators([seed], stream=5).at(0)
    y = problem.f(x) + problem.noise_std * torch.randn(count, generator=generator, dtype=F64)
    return x.numpy(), y.numpy()


@pytest.mark.parametrize("make", [solid, flat])
def test_no_other_hyperparameters_are_more_likely(make):
    problem, count = make(), 60
    process = fit_prior(problem, count, seed=3)
    x, y = pilot(problem, count, 3)
    found = parameters(process)
    best = evidence(found, x, y, problem.noise_std)
    other = minimize(lambda theta: -evidence(theta, x, y, problem.noise_std), found, method="Nelder-Mead")
    assert -other.fun <= best + 0.02
    for k in range(len(found)):
        for step in (-0.5, 0.5):
            moved = found.copy()
            moved[k] += step
            assert evidence(moved, x, y, problem.noise_std) < best


def test_a_variable_that_does_not_matter_gets_a_long_lengthscale():
    problem = dataclasses.replace(solid(), f=lambda x: torch.sin(4 * x[..., 0]) + x[..., 2] ** 2)
    lengthscales = np.exp(parameters(fit_prior(problem, 80))[2:])
    assert lengthscales[1] > 5 and lengthscales[0] < 2 and lengthscales[2] < 5


def test_the_prior_follows_the_scale_of_f():
    """f and its noise in other units, with another origin."""
    problem = solid()
    other = dataclasses.replace(problem, f=lambda x: 50 * hill(x) - 300, noise_std=50 * problem.noise_std)
    a, b = (parameters(fit_prior(p, 40)) for p in (problem, other))
    assert b[0] == pytest.approx(50 * a[0] - 300, abs=0.5)
    assert b[1] == pytest.approx(a[1] + 2 * math.log(50), abs=0.02)
    np.testing.assert_allclose(b[2:], a[2:], rtol=0, atol=0.02)
