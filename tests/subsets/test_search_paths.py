"""Sample paths against plain paths from the same random numbers, and their moments against the posterior."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from cbo_lib.gp import GaussianProcess
from cbo_lib.subsets.search import SamplePaths, _spectral
from tests.subsets.helpers import F64, FEW, HARD, Spy, choices, drawn_path, flat, prior, solid, told

FEATURES = 60


@pytest.mark.parametrize("count", [0, 1, 9])
def test_paths_are_plain_paths_averaged_over_the_draws(rng, count):
    problem = solid()
    bounds = told(problem, prior(problem, variance=1.7), 2, count)
    paths = SamplePaths(bounds, [choices(seed, 1) for seed in (5, 2)], FEATURES)
    x = torch.rand(2, problem.space.m, 3, problem.space.dim, generator=rng, dtype=F64)
    got = paths(x)
    assert got.shape == (2, problem.space.m, 3)
    for r, seed in enumerate((5, 2)):
        path = drawn_path(bounds.belief(r), choices(seed, 1), FEATURES)
        for i in range(problem.space.m):
            expected = [path.expected(i, point.numpy()) for point in x[r, i]]
            np.testing.assert_allclose(got[r, i], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("count", [0, 3, 10])
def test_moments_over_many_draws_are_those_of_the_posterior(count):
    """Expectations of decisions under the posterior are normal, with averages of means and of covariances."""
    problem, process, batch, batches = flat(), prior(flat(), (0.3, 0.5), 1.3, 1.0), 250, 16
    single = told(problem, process, 1, count)
    bounds = Spy(problem, process, batch, FEW)
    for points, y in single.told:
        bounds.observe(points.expand(batch, -1), y.expand(batch))
    x = torch.tensor([[[0.1, 0.5], [0.7, 0.5]], [[0.5, 0.2], [0.5, 0.9]], [[0.4, 0.6], [0.8, 0.1]]], dtype=F64)
    x = x.expand(batch, -1, -1, -1)
    draws = []
    for k in range(batches):
        generators = [torch.Generator().manual_seed(1000 * k + r) for r in range(batch)]
        draws.append(SamplePaths(bounds, generators, 128)(x).flatten(1))
    draws = torch.cat(draws).numpy()
    belief, n = single.belief(0), len(draws)

    full = [belief.world.completed(i, x[0, i, j].numpy()) for i in range(3) for j in range(2)]
    mean = np.array([belief.moments(points)[0].mean() for points in full])
    joint = belief.covariance(np.concatenate(full)).reshape(6, FEW.contexts, 6, FEW.contexts).mean((1, 3))
    centered = draws - mean
    errors = np.abs(centered.mean(0)) / (draws.std(0) / n**0.5)
    assert errors.max() < 4
    products = centered[:, :, None] * centered[:, None, :]
    errors = np.abs(products.mean(0) - joint) / (products.std(0) / n**0.5)
    assert errors.max() < 4.5


def test_the_largest_expectations_are_found():
    problem = flat()
    bounds = told(problem, prior(problem), 2, 6, HARD)
    paths = SamplePaths(bounds, [choices(seed, 1) for seed in (5, 2)], FEATURES)
    maxima, points = bounds.maximize_paths(paths)
    for i, subset in enumerate(problem.space.control_sets):
        grid = bounds.belief(0).world.grid(i, 201 if len(subset) == 1 else 41)
        x = torch.tensor(grid).expand(2, problem.space.m, -1, -1)
        best = paths(x)[:, i].amax(-1)
        assert bool((maxima[:, i] >= best - 1e-4).all()) and bool((maxima[:, i] <= best + 2e-2).all())
        assert bool((points[:, i][:, ~problem.space.controlled[i]] == 0.5).all())
    torch.testing.assert_close(paths(points.unsqueeze(-2)).squeeze(-1), maxima, rtol=0, atol=1e-9)


def test_matern_kernels_have_features_with_heavy_tails():
    """Draws from the prior have the kernel's covariance; the frequencies of a product are sums."""
    problem = flat()
    kernel = ScaleKernel(MaternKernel(2.5, active_dims=(0,)) * MaternKernel(1.5, active_dims=(1,))).to(dtype=F64)
    kernel = kernel.requires_grad_(False)
    kernel.base_kernel.kernels[0].lengthscale = torch.tensor(0.4, dtype=F64)
    kernel.outputscale = torch.tensor(1.7, dtype=F64)
    search = Spy(problem, GaussianProcess(kernel, 0.1), 400, FEW)
    full = problem.space.control_sets.index((1, 0))
    x = torch.tensor([[0.1, 0.2], [0.4, 0.2], [0.1, 0.7], [0.8, 0.9]], dtype=F64)
    paths = SamplePaths(search, [choices(seed, 1) for seed in range(400)], 200)
    draws = paths(x.expand(400, problem.space.m, -1, -1))[:, full]
    torch.testing.assert_close(draws.mT @ draws / 400, kernel(x).to_dense(), rtol=0, atol=0.4)
    distances = torch.tensor([[0.0, 0.5]], dtype=F64)
    frequency, scale = _spectral(kernel, torch.zeros(1, 100_000, 2, dtype=F64), [choices(0, 1)])
    wave = (frequency @ distances.mT).cos().mean(1)
    assert float(scale) == pytest.approx(1.7) and float(wave) == pytest.approx(
        float(kernel(distances, 0 * distances).to_dense()) / 1.7, abs=0.01
    )
