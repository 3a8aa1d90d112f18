"""What the rates are computed from: sums of waves, distances, and the bounds of all policies at once."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from book.contexts import rates
from book.contexts.regret import density_distance
from cbo_lib.contexts import GaussianKDE
from cbo_lib.contexts.acquisition import TotalVariationUpperConfidenceBound
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.contexts.helpers import F64

DRAWS, DIM, SEEN = 2, 2, 6


def contexts(rng, n, dim=DIM):
    return rates.CENTER + rates.SPREAD * torch.randn(DRAWS, n, dim, generator=rng, dtype=F64)


def quadrature(centers, width):
    """Nodes and weights of equally weighted normal distributions about centers ``n x d``, by the Gauss-Hermite rule."""
    nodes, weights = (torch.as_tensor(a, dtype=F64) for a in np.polynomial.hermite_e.hermegauss(20))
    dim = centers.shape[-1]
    z = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim)
    weights = torch.cartesian_prod(*[weights / weights.sum()] * dim).reshape(-1, dim).prod(-1)
    points = (centers.unsqueeze(-2) + width * z).flatten(-3, -2)
    return points, weights.repeat(len(centers)) / len(centers)


def test_waves_average_as_by_quadrature(rng):
    waves = rates.Waves.draw(DRAWS, DIM, rng, "cpu", waves=64)
    seen, x = contexts(rng, 7), torch.rand(DRAWS, 1, generator=rng, dtype=F64)
    h = GaussianKDE(seen).bandwidth
    center = torch.full((1, DIM), rates.CENTER, dtype=F64)
    laws = {
        "estimate": (
            waves.transform(seen).mean(1) * waves.smoothing(h),
            [quadrature(*one) for one in zip(seen, h, strict=True)],
        ),
        "truth": (waves.truth, [quadrature(center, rates.SPREAD)] * DRAWS),
    }
    for name, (transform, rules) in laws.items():
        c, weights = (torch.stack(part) for part in zip(*rules, strict=True))
        expected = (waves(x.expand(-1, c.shape[1]), c) * weights).sum(-1, keepdim=True)
        torch.testing.assert_close(waves.average(transform, x), expected, rtol=0, atol=1e-10, msg=name)


def test_waves_have_the_kernel_of_the_prior(rng):
    waves = rates.Waves.draw(2000, 1, rng, "cpu", waves=64)
    x, c = torch.tensor([0.3, 0.4, 0.3], dtype=F64), torch.tensor([[0.5], [0.5], [0.9]], dtype=F64)
    values = waves(x.expand(2000, -1), c.expand(2000, -1, -1))
    gram = rbf_kernel(torch.tensor(rates.LENGTHSCALES, dtype=F64))(torch.cat([x[:, None], c], -1)).to_dense()
    torch.testing.assert_close(values.mT @ values / 2000, gram, rtol=0, atol=0.1)


def test_the_distance_of_an_estimate_is_that_of_an_integral(rng):
    estimate = GaussianKDE(contexts(rng, 40, 1))
    exact = density_distance(estimate, lambda c: torch.as_tensor(stats.norm.pdf(c[:, 0], 0.5, 0.15)), -0.5, 1.5)
    torch.testing.assert_close(rates.distance(estimate, rng, 20_000), exact, rtol=0, atol=0.02)


@pytest.fixture
def runs(rng):
    """Six rounds with any decisions and values."""
    runs = rates.Runs(contexts(rng, SEEN + 1))
    for _ in range(SEEN):
        asked = torch.rand(len(rates.POLICIES), DRAWS, generator=rng, dtype=F64)
        runs.tell(asked, torch.randn(asked.shape, generator=rng, dtype=F64))
    return runs


@pytest.mark.parametrize("name", rates.POLICIES)
def test_the_bounds_are_those_of_the_librarys_posterior(name, runs, rng):
    x, drawn, k = torch.tensor([0.1, 0.45, 0.8], dtype=F64), runs.draw(8, rng), rates.POLICIES.index(name)
    bounds, widths = (part[k] for part in runs.bounds(x, drawn))
    t = SEEN + 1  # the round that is decided
    parts = math.ceil(t**2 * 2.9 * 10 * math.sqrt(math.pi) / 2)
    root = math.sqrt(2 * math.log(t**2 * parts / math.sqrt(2 * math.pi))) if name == "estimate, theory" else 1.5
    prior = GaussianProcess(rbf_kernel(torch.tensor([0.2, 0.5, 0.5], dtype=F64)), rates.NOISE)
    for draw in range(DRAWS):
        seen = runs.seen[draw]
        observed = torch.cat([runs.asked[k, draw, :SEEN, None], seen], -1)
        posterior = prior.condition(Measure.dirac(observed), runs.y[k, draw, :SEEN])
        if name.startswith("robust"):
            radius = 0.3 if name == "robust, constant" else t ** (-2 / (4 + DIM))
            samples = drawn[k, draw]
            policy = TotalVariationUpperConfidenceBound(posterior, samples, samples, radius, 1.5)
            policy.tolerance = None
            expected = policy.values(x[:, None])
        else:
            width = 0.0 if name == "empirical" else GaussianKDE(seen).bandwidth
            known = torch.full((1, DIM), rates.CENTER, dtype=F64), rates.SPREAD
            c, weights = quadrature(*(known if name == "known" else (seen, width)))
            points = torch.cat([x[:, None, None].expand(-1, len(c), -1), c.expand(len(x), -1, -1)], -1)
            mean = posterior.mean(Measure(points, weights.expand(len(x), -1)))
            expected = mean + widths[draw]
        torch.testing.assert_close(bounds[draw], expected, rtol=0, atol=1e-8)
        points = torch.cat([x.repeat_interleave(8)[:, None], drawn[k, draw].repeat(len(x), 1)], -1)
        std = posterior.variance(Measure.dirac(points)).sqrt().reshape(len(x), 8)
        torch.testing.assert_close(widths[draw], root * std.mean(-1), rtol=0, atol=1e-8)
