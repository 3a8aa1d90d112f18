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


def test_a_grown_inverse_is_the_inverse(rng):
    z = torch.rand(2, 6, 3, generator=rng, dtype=F64)
    gram = (-0.5 * (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1) / 0.09).exp()
    inverse = torch.zeros(2, 6, 6, dtype=F64)
    for t in range(6):
        rates.grow(inverse, gram[:, t, :t], t)
    torch.testing.assert_close(inverse, torch.linalg.inv(gram + rates.NOISE**2 * torch.eye(6, dtype=F64)))


@pytest.fixture
def runs(rng):
    """Six rounds with any decisions and values."""
    runs = rates.Runs(contexts(rng, SEEN + 1))
    for _ in range(SEEN):
        asked = torch.rand(len(rates.POLICIES), DRAWS, generator=rng, dtype=F64)
        runs.tell(asked, torch.randn(asked.shape, generator=rng, dtype=F64))
    return runs


def test_contexts_are_drawn_as_each_policy_believes_them(runs):
    drawn = dict(zip(rates.POLICIES, runs.draw(9, torch.Generator().manual_seed(5)), strict=True))
    sample = GaussianKDE(runs.seen).sample(9, torch.Generator().manual_seed(5))
    for name in ("estimate", "robust", "robust, constant", "estimate, theory"):
        torch.testing.assert_close(drawn[name], sample)
    same = (drawn["empirical"].unsqueeze(2) == runs.seen.unsqueeze(1)).all(-1)  # draws samples seen
    assert bool(same.any(-1).all())
    many = runs.draw(4096, torch.Generator().manual_seed(5))[rates.KNOWN]
    torch.testing.assert_close(many.mean(1), torch.full((DRAWS, DIM), rates.CENTER, dtype=F64), rtol=0, atol=0.01)
    torch.testing.assert_close(many.std(1), torch.full((DRAWS, DIM), rates.SPREAD, dtype=F64), rtol=0, atol=0.01)


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


def test_an_exponent_is_fitted_with_its_error(rng):
    t = torch.arange(1, 60, dtype=F64)
    rows = 3 * t**-0.4 * (0.1 * torch.randn(50, 1, generator=rng, dtype=F64)).exp()
    slope, error = rates.exponent(t, rows)
    assert slope == pytest.approx(-0.4, abs=1e-9) and error == pytest.approx(0, abs=1e-9)


def small(rounds=8):
    return rates.regret(2, 2, rounds, torch.Generator().manual_seed(3), "cpu", decisions=9, samples=8)


def test_a_small_run_is_reproducible():
    first, again = small(), small()
    for name, rows in first.items():
        assert rows.shape == (len(rates.POLICIES), 2, 8)
        torch.testing.assert_close(rows, again[name], rtol=0, atol=0)
    assert float(first["regret"].min()) >= 0
    assert bool((first["regret"][:, :, :3] == first["regret"][:1, :, :3]).all())  # one initial design for all


def test_the_initial_design_has_no_terms():
    found = small()
    for name in ("width", "at best", "at asked"):
        assert bool((found[name][..., :3] == 0).all()) and bool((found[name][..., 3:] != 0).all())


def test_errors_and_bias_of_an_expectation_are_those_by_quadrature(monkeypatch):
    monkeypatch.setattr(rates, "COUNTS", (10,))
    found = rates.estimation(1, DRAWS, torch.Generator().manual_seed(1), "cpu", decisions=17)
    again = torch.Generator().manual_seed(1)
    waves, seen = rates.Waves.draw(DRAWS, 1, again, "cpu"), contexts(again, 10, 1)
    x, h = torch.linspace(0, 1, 17, dtype=F64), GaussianKDE(seen).bandwidth
    center = torch.full((1, 1), rates.CENTER, dtype=F64)

    def values(draw, centers, width):
        c, weights = quadrature(centers, width)
        one = rates.Waves(*(part[draw : draw + 1] for part in (waves.x, waves.c, waves.phase, waves.height)))
        pairs = x.repeat_interleave(len(c))[None], c.repeat(len(x), 1)[None]
        return one(*pairs).reshape(len(x), -1) @ weights

    for draw in range(DRAWS):
        truth = values(draw, center, rates.SPREAD)
        star = truth.argmax()
        for name, width in (("", h[draw]), ("empirical ", 0.0)):
            estimate = values(draw, seen[draw], width)
            error, lost = found[name + "error"][draw, 0], found[name + "regret"][draw, 0]
            torch.testing.assert_close(error, (truth - estimate)[star], rtol=0, atol=1e-8)
            torch.testing.assert_close(lost, truth.max() - truth[estimate.argmax()], rtol=0, atol=1e-8)
        blurred = values(draw, center, (rates.SPREAD**2 + h[draw] ** 2).sqrt())
        torch.testing.assert_close(found["bias"][draw, 0], (truth - blurred)[star], rtol=0, atol=1e-8)
    assert float((found["deviation"] * 10**0.5).max()) < 1.5 and bool((found["deviation"] > 0).all())


def test_what_is_stored_is_complete():
    for dim in rates.DIMS:
        stored = rates.load("regret", dim)
        assert stored["regret"].shape == (len(rates.POLICIES), 30, 50)
        assert np.isfinite(stored["regret"].numpy()).all()
        assert rates.load("estimation", dim)["error"].shape == (300, len(rates.COUNTS))
