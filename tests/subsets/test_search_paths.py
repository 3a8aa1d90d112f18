"""Sample paths against plain paths from the same random numbers, and their moments against the posterior."""

import dataclasses

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

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


def test_expectations_are_averages_of_the_path_at_full_points(rng):
    """The full set shows the path itself."""
    problem = solid()
    full = problem.space.control_sets.index((0, 1, 2))
    bounds = told(problem, prior(problem), 2, 7)
    paths = SamplePaths(bounds, [choices(seed, 1) for seed in (5, 2)], FEATURES)
    x = torch.rand(2, problem.space.m, 4, problem.space.dim, generator=rng, dtype=F64)
    got = paths(x)
    for i in range(problem.space.m):
        at = torch.where(problem.space.controlled[i], x[:, i].unsqueeze(-2), bounds.contexts)  # replicates n M d
        points = x.new_zeros(2, problem.space.m, at.shape[1] * at.shape[2], problem.space.dim)
        points[:, full] = at.flatten(1, 2)
        average = paths(points)[:, full].unflatten(-1, at.shape[1:3]).mean(-1)
        torch.testing.assert_close(got[:, i], average, rtol=0, atol=1e-10)


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


def test_paths_pass_through_data_without_noise():
    problem = solid(noise_std=1e-4)
    process = prior(problem, (0.5, 0.8, 0.8))
    bounds = told(problem, process, 2, 15)
    paths = SamplePaths(bounds, [choices(seed, 1) for seed in (5, 2)], 512)
    points = torch.stack([points for points, _ in bounds.told], 1)
    y = torch.stack([y for _, y in bounds.told], 1)
    full = problem.space.control_sets.index((0, 1, 2))
    x = points.unsqueeze(1).expand(-1, problem.space.m, -1, -1)
    torch.testing.assert_close(paths(x)[:, full], y, rtol=0, atol=1e-3)
    elsewhere = paths((x + 0.37) % 1)[:, full] - paths((x + 0.37) % 1)[:1, full]
    assert float(elsewhere[1].abs().max()) > 1e-3  # and differ elsewhere


def test_paths_differentiate_in_the_decisions(rng):
    problem = solid()
    bounds = told(problem, prior(problem), 2, 5)
    paths = SamplePaths(bounds, [choices(seed, 1) for seed in (5, 2)], 20)
    x = torch.rand(2, problem.space.m, 2, problem.space.dim, generator=rng, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(paths, (x,))
    (gradient,) = torch.autograd.grad(paths(x).sum(), x)
    free = ~problem.space.controlled.unsqueeze(-2).expand_as(gradient)
    assert bool((gradient[free] == 0).all()) and bool((gradient[~free] != 0).all())


def test_what_is_free_does_not_matter(rng):
    problem = solid()
    bounds = told(problem, prior(problem), 1, 5)
    paths = SamplePaths(bounds, [choices(5, 1)], FEATURES)
    x = torch.rand(1, problem.space.m, 2, problem.space.dim, generator=rng, dtype=F64)
    other = torch.where(problem.space.controlled.unsqueeze(-2), x, torch.rand(x.shape, generator=rng, dtype=F64))
    assert not torch.equal(x, other)
    torch.testing.assert_close(paths(x), paths(other), rtol=0, atol=1e-12)


def test_a_replicate_draws_the_same_path_in_company(rng):
    problem = solid()
    together, alone = told(problem, prior(problem), 3, 6), Spy(problem, prior(problem), 1, FEW)
    for points, y in together.told:
        alone.observe(points[1:2], y[1:2])
    x = torch.rand(3, problem.space.m, 4, problem.space.dim, generator=rng, dtype=F64)
    one = SamplePaths(alone, [choices(0, 3)], FEATURES)(x[1:2])
    all_ = SamplePaths(together, [choices(seed, 3) for seed in (9, 0, 4)], FEATURES)(x)
    torch.testing.assert_close(all_[1:2], one, rtol=0, atol=1e-10)


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
    torch.testing.assert_close(paths(points.unsqueeze(-2)).squeeze(-1), maxima, rtol=0, atol=0)


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


def test_other_kernels_have_no_such_features():
    problem = flat()
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * RQKernel(active_dims=(1,))).to(dtype=F64)
    space = dataclasses.replace(problem.space, control_sets=((0,),))
    problem = dataclasses.replace(problem, space=space, cost_means=torch.ones(1, dtype=F64))
    search = Spy(problem, GaussianProcess(kernel.requires_grad_(False), 0.1), 1, FEW)
    with pytest.raises(ValueError, match=r"product of RBF and Matern kernels, got .*RQKernel"):
        SamplePaths(search, [choices(5, 1)], FEATURES)


def test_no_features_are_refused():
    bounds = told(flat(), prior(flat()), 1, 2)
    with pytest.raises(ValueError, match="features must be an integer of at least 1, got 0"):
        SamplePaths(bounds, [choices(5, 1)], 0)
