import dataclasses
import math

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from book.hyperparameters.problems import lengthscale_candidates
from cbo_lib.hyperparameters import UnknownPriorProblem
from cbo_lib.hyperparameters.surrogate import BoxSurrogate, FiniteSurrogate, Surrogate
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, SETTINGS, bump, line, setting

REPLICATES = 3


def box_of(case):
    points = case.problem.points
    bounds = torch.stack([points.amin(0), points.amax(0)])
    return dataclasses.replace(case.problem, points=None, bounds=bounds)


def fed(case, domain, count, seed=5):
    """A surrogate that was given the same places and values, and those, ``replicates x count``."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.randint(len(case.problem.points), (REPLICATES, count), generator=rng)
    y = torch.randn(REPLICATES, count, generator=rng, dtype=F64)
    x = case.problem.points[index]
    if domain == "points":
        surrogate = FiniteSurrogate(case.problem, REPLICATES)
    else:
        surrogate = BoxSurrogate(box_of(case), REPLICATES, raw=64, starts=2)
    for t in range(count):
        surrogate.observe(index[:, t] if domain == "points" else x[:, t], y[:, t])
    return surrogate, x, y


both_domains = pytest.mark.parametrize("domain", ["points", "box"])
all_settings = pytest.mark.parametrize("name", SETTINGS)


@all_settings
@both_domains
@pytest.mark.parametrize("count", [0, 1, 6])
def test_moments_at_a_place_are_the_textbook_formula(name, domain, count):
    case = setting(name)
    surrogate, x, y = fed(case, domain, count)
    index = torch.tensor([4, 0, 11])
    place = index if domain == "points" else case.problem.points[index]
    assert torch.equal(surrogate.point(place), case.problem.points[index])
    mean, std = surrogate.at(place)
    assert mean.shape == std.shape == (REPLICATES, len(case.priors))
    for r in range(REPLICATES):
        there = case.problem.points[index[[r]]].numpy()
        for u, prior in enumerate(case.priors):
            expected = plain.posterior(prior, case.problem.noise_std, x[r].numpy(), y[r].numpy(), there)
            assert float(mean[r, u]) == pytest.approx(expected[0][0], abs=1e-9)
            assert float(std[r, u]) == pytest.approx(expected[1][0], abs=1e-9)


@all_settings
def test_all_points_of_a_finite_domain_are_tracked(name):
    case = setting(name)
    surrogate, x, y = fed(case, "points", 7)
    for r in range(REPLICATES):
        for u, prior in enumerate(case.priors):
            mean, std = plain.posterior(
                prior, case.problem.noise_std, x[r].numpy(), y[r].numpy(), case.problem.points.numpy()
            )
            np.testing.assert_allclose(surrogate.tracked.mean[r, u], mean, rtol=0, atol=1e-9)
            np.testing.assert_allclose(surrogate.std[r, u], std, rtol=0, atol=1e-9)


@all_settings
@both_domains
def test_visited_points_come_in_order_with_the_means_now(name, domain):
    case = setting(name)
    surrogate, x, y = fed(case, domain, 6)
    points, means = surrogate.visited()
    assert torch.equal(points, x)
    assert means.shape == (REPLICATES, len(case.priors), 6)
    for r in range(REPLICATES):
        for u, prior in enumerate(case.priors):
            seen = x[r].numpy()
            expected, _ = plain.posterior(prior, case.problem.noise_std, seen, y[r].numpy(), seen)
            np.testing.assert_allclose(means[r, u], expected, rtol=0, atol=1e-9)


class Fixed(gpytorch.means.Mean):
    """A prior mean for GPyTorch's own model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) if callable(self.function) else torch.full_like(x[..., 0], self.function)


class Exact(gpytorch.models.ExactGP):
    """GPyTorch's own regression model."""

    def __init__(self, x, y, likelihood, mean, kernel):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = Fixed(mean), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@all_settings
@both_domains
@pytest.mark.parametrize("count", [1, 8])
def test_marginal_likelihoods_are_those_of_gpytorch_and_of_the_multivariate_normal_density(name, domain, count):
    case = setting(name)
    surrogate, x, y = fed(case, domain, count)
    found = surrogate.log_marginal_likelihood
    assert found.shape == (REPLICATES, len(case.priors))
    candidates, noise = case.problem.candidates, case.problem.noise_std
    for r in range(REPLICATES):
        for u, prior in enumerate(case.priors):
            likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((count,), noise**2, dtype=F64))
            model = Exact(x[r], y[r], likelihood, candidates.means[u], candidates.kernels[u])
            marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
            with torch.no_grad():
                theirs = float(marginal(model(x[r]), y[r])) * count
            z = x[r].numpy()
            density = multivariate_normal(prior.m(z), prior.k(z, z) + noise**2 * np.eye(count)).logpdf(y[r].numpy())
            assert float(found[r, u]) == pytest.approx(theirs, abs=1e-7)
            assert float(found[r, u]) == pytest.approx(float(density), abs=1e-7)
            assert plain.log_likelihood(prior, noise, z, y[r].numpy()) == pytest.approx(float(density), abs=1e-7)


@both_domains
def test_nothing_seen_makes_all_candidates_equally_likely(domain):
    surrogate, _, _ = fed(setting("period"), domain, 0)
    assert torch.equal(surrogate.log_marginal_likelihood, torch.zeros(REPLICATES, 3, dtype=F64))


def test_places_of_a_finite_domain_are_drawn_uniformly_and_by_each_generator_alone():
    case = setting("lengthscale")
    surrogate = FiniteSurrogate(case.problem, 2)
    many = surrogate.draw(ReplicateGenerators([1, 2]).at(0), 4000)
    assert many.shape == (2, 4000) and many.dtype == torch.long
    assert torch.equal(many[1:], surrogate.draw(ReplicateGenerators([2]).at(0), 4000))
    for row in many:
        counts = torch.bincount(row, minlength=40).double()
        assert float(((counts - 100) ** 2 / 100).sum()) < 72  # the 0.999 quantile of chi squared with 39 degrees


def test_places_of_a_box_are_drawn_uniformly_and_by_each_generator_alone():
    bounds = torch.tensor([[-1.0, 2.0], [1.0, 5.0]], dtype=F64)
    problem = UnknownPriorProblem(bump, lengthscale_candidates((0.1,)), bounds=bounds)
    surrogate = BoxSurrogate(problem, 2)
    many = surrogate.draw(ReplicateGenerators([1, 2]).at(0), 4000)
    assert many.shape == (2, 4000, 2)
    assert torch.equal(many[1:], surrogate.draw(ReplicateGenerators([2]).at(0), 4000))
    unit = (many - bounds[0]) / (bounds[1] - bounds[0])
    assert bool(((unit >= 0) & (unit < 1)).all())
    torch.testing.assert_close(unit.mean(1), torch.full((2, 2), 0.5, dtype=F64), rtol=0, atol=0.02)
    torch.testing.assert_close(unit.var(1), torch.full((2, 2), 1 / 12, dtype=F64), rtol=0, atol=0.005)


def upper(mean, std):
    return (mean + 1.5 * std).amax(1)


def averaged(mean, std):
    return (mean + 0.7 * std).mean(1)


@pytest.mark.parametrize("score", [upper, averaged])
@all_settings
def test_the_chosen_point_of_a_finite_domain_is_the_first_best(name, score):
    case = setting(name)
    surrogate, x, y = fed(case, "points", 5)
    chosen = surrogate.maximize(score)
    points = case.problem.points.numpy()
    for r in range(REPLICATES):
        moments = [
            plain.posterior(prior, case.problem.noise_std, x[r].numpy(), y[r].numpy(), points) for prior in case.priors
        ]
        mean, std = (torch.from_numpy(np.stack(part))[None] for part in zip(*moments, strict=True))
        assert int(chosen[r]) == plain.first_best(score(mean, std)[0].numpy())


@pytest.mark.parametrize("score", [upper, averaged])
@all_settings
def test_the_chosen_point_of_a_box_is_at_least_as_good_as_a_fine_grid(name, score):
    case = setting(name)
    surrogate, _, _ = fed(case, "box", 6)
    problem = box_of(case)
    dim, low, high = problem.dim, *problem.bounds
    place = surrogate.maximize(score)
    assert bool(((place >= low) & (place <= high)).all())
    axes = [torch.linspace(float(low[j]), float(high[j]), {1: 4001, 3: 21}[dim], dtype=F64) for j in range(dim)]
    grid = torch.cartesian_prod(*axes).reshape(-1, dim)
    fine = score(*surrogate._moments(grid.expand(REPLICATES, -1, -1)))
    reached = score(*(m.unsqueeze(-1) for m in surrogate.at(place))).squeeze(-1)
    assert bool((reached >= fine.amax(-1) - 1e-9).all())
    if dim == 1:
        torch.testing.assert_close(reached, fine.amax(-1), rtol=0, atol=5e-3)
    if dim == 1 and name != "period":  # its maximum comes twice
        best = grid[fine.argmax(-1)]
        assert float(((place - best).abs() / (high - low)).max()) < 1e-2


def test_a_search_of_a_box_draws_nothing_at_random_and_needs_no_gradient_mode():
    case = setting("mean")
    places = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        surrogate, _, _ = fed(case, "box", 4)
        with torch.no_grad():
            places.append(surrogate.maximize(upper))
    assert torch.equal(*places) and not places[0].requires_grad


def test_the_first_choice_in_a_box_of_a_flat_bound_is_the_first_raw_point():
    surrogate, _, _ = fed(setting("lengthscale"), "box", 0)
    assert torch.equal(surrogate.maximize(upper), surrogate.raw[:1].expand(REPLICATES, 1))


@both_domains
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_observation_that_is_no_number_is_refused_and_changes_nothing(domain, bad):
    surrogate, x, _ = fed(setting("period"), domain, 3)
    place = torch.tensor([0, 1, 2]) if domain == "points" else x[:, 0]
    before = [tensor.clone() for tensor in (*surrogate.at(place), *surrogate.visited())]
    with pytest.raises(ValueError, match="y must be finite, got a NaN or an infinity"):
        surrogate.observe(place, torch.tensor([0.0, bad, 1.0], dtype=F64))
    for old, new in zip(before, (*surrogate.at(place), *surrogate.visited()), strict=True):
        assert torch.equal(old, new)


def test_a_surrogate_is_of_points_or_of_a_box():
    with pytest.raises(TypeError, match="abstract"):
        Surrogate()
    problem = UnknownPriorProblem(bump, lengthscale_candidates((0.1,)), line(5))
    with pytest.raises(ValueError, match="points must be given, this problem has a box"):
        FiniteSurrogate(box_of(dataclasses.replace(setting("lengthscale"), problem=problem)), 1)
