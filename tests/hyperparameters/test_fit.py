"""Sizes that kernels leave open, against a search over everything, in other units, alone and in company."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from cbo_lib.hyperparameters import Space
from cbo_lib.hyperparameters.fit import fit_scale
from tests.hyperparameters.helpers import F64


def rbf(scale):
    kernel = RBFKernel()
    kernel.lengthscale = torch.tensor(scale)
    return kernel


SPACE = Space([rbf(0.1), rbf(0.4), MaternKernel(1.5)], bounds=[[0.0], [1.0]])


def fitted(space, x, y):
    process, record = fit_scale(space, x, y)
    noise = process.noise_std.squeeze(-1)
    assert torch.equal(record["noise_std"], noise[:, 0])
    return SimpleNamespace(process=process, noise=noise, mean=record["prior_mean"], **record)


def data(seeds, n=14, scale=3.0, mean=20.0, noise=0.4):
    """Draws of the second kernel."""
    xs, ys = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        x = rng.random((n, 1))
        gram = np.exp(-((x - x.T) ** 2) / (2 * 0.4**2))
        f = np.linalg.cholesky(gram + 1e-10 * np.eye(n)) @ rng.standard_normal(n)
        xs.append(torch.from_numpy(x))
        ys.append(torch.from_numpy(mean + scale * f + noise * rng.standard_normal(n)))
    return torch.stack(xs), torch.stack(ys)


def loss(parameters, x, y, known=None):
    """From the docstring: likelihoods averaged over kernels, in standardized outputs, with the priors."""
    z = (y - y.mean()) / y.std(ddof=1)
    scale, mean = math.exp(parameters[0]), parameters[1]
    noise = known / y.std(ddof=1) if known is not None else math.exp(parameters[2])
    likelihoods = []
    for kernel in SPACE.candidates.kernels:
        gram = kernel(x, x).to_dense().numpy()
        density = multivariate_normal(np.full(len(z), mean), scale**2 * gram + noise**2 * np.eye(len(z)))
        likelihoods.append(density.logpdf(z))
    prior = -0.5 * (math.log(scale) ** 2 + mean**2)
    if known is None:
        prior += -0.5 * (math.log(noise**2) + 4) ** 2 - math.log(noise**2)
    return -(np.logaddexp.reduce(likelihoods) + prior) / len(z)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [None, 0.3])
def test_the_fit_is_the_best_of_a_search_from_many_starts(seed, known):
    x, y = data([seed])
    space = Space(SPACE.candidates.kernels, bounds=SPACE.bounds, noise_std=known)
    fit = fitted(space, x, y)
    z, spread = y[0].numpy(), float(y[0].std())
    starts = [(a, b, c)[: 3 if known is None else 2] for a in (-1, 1) for b in (-0.5, 0.5) for c in (-3, -0.5)]
    best = min(
        minimize(loss, start, (x[0], z, known), method="Nelder-Mead", options={"fatol": 1e-10}).fun for start in starts
    )
    noise = float(fit.noise[0, 0])
    found = [math.log(float(fit.scale) / spread), (float(fit.mean) - z.mean()) / spread, math.log(noise / spread)]
    assert loss(found, x[0], z, known) == pytest.approx(best, abs=2e-4)  # the values are rounded
    assert bool(fit.converged.all()) and (known is None or noise == known)


def test_the_noise_and_the_mean_of_draws_are_found():
    x, y = data(range(30), n=60)
    fit = fitted(SPACE, x, y)
    assert float(fit.noise[:, 0].mean()) == pytest.approx(0.4, rel=0.1)
    assert float((fit.mean - 20).abs().mean()) < 3


def test_a_candidate_that_fits_nothing_does_not_decide_the_noise():
    x, y = data([0], n=40, noise=0.02)
    good = Space([rbf(0.4)], bounds=SPACE.bounds)
    mixed = Space([rbf(0.4), rbf(50.0)], bounds=SPACE.bounds)
    assert torch.equal(fitted(good, x, y).noise[:, 0], fitted(mixed, x, y).noise[:, 0])


@pytest.mark.parametrize("y", [[], [7.0], [7.0, 7.0, 7.0]])
def test_few_or_equal_data_make_no_trouble(y):
    y = torch.tensor([y], dtype=F64)
    fit = fitted(SPACE, torch.rand(1, y.shape[1], 1, dtype=F64), y)
    assert float(fit.mean) == pytest.approx(7.0 if y.numel() else 0.0)
    assert bool(torch.isfinite(fit.scale).all()) and 0 < float(fit.noise[0, 0]) < 1
    if y.shape[1] < 2:
        assert (float(fit.scale), float(fit.noise[0, 0])) == (1.0, pytest.approx(0.1))
