"""The links of the proofs on runs, and the rates that are stored."""

import math

import numpy as np
import pytest
import torch

from book.contexts import proof, rates
from cbo_lib.contexts import GaussianKDE, tv_worst_case
from cbo_lib.contexts.density import silverman_bandwidth
from tests.contexts.helpers import F64


@pytest.fixture(scope="module")
def runs():
    """Few short runs on draws of the prior."""
    return proof.runs("draws", rounds=10, seeds=3)


@pytest.mark.parametrize("policy", ["SBO-KDE", "DRBO-KDE"])
def test_what_holds_in_every_run_holds(policy, runs):
    for name, (left, right) in runs[policy].links().items():
        if not name.endswith("in mean") and name != "maximization":  # a sample average is maximized
            assert bool((left <= right + 1e-3).all()), name


def test_the_terms_have_their_bounds_and_add_up(runs):
    for found in runs.values():
        terms = found.terms()
        total = sum(term for term, _ in terms.values())
        torch.testing.assert_close(total, found.regret.cumsum(-1).mean(0), rtol=0, atol=1e-8)
        assert all(bool((term <= bound + 2.0).all()) for term, bound in terms.values())


def test_what_is_stored_is_loaded_again(tmp_path, monkeypatch, runs):
    monkeypatch.setattr(proof, "PROBLEMS", {})
    monkeypatch.setattr(proof, "runs", lambda *_: runs)
    proof.store(tmp_path / "a.npz", 10, 3)
    found, loaded = runs["DRBO-KDE"], proof.load("draws", "DRBO-KDE", tmp_path / "a.npz")
    torch.testing.assert_close(loaded.regret, found.regret, rtol=1e-6, atol=1e-6)
    assert list(loaded.links) == list(found.links()) and list(loaded.terms) == list(found.terms())
    for name, sides in found.links().items():
        for ours, theirs in zip(loaded.links[name], sides, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize(
    ("left", "right", "word"), [(1.0, 1.5, "tight"), (1.0, 3.0, "loose"), (-1.0, 0.0, "loose"), (2.0, 1.0, "broken")]
)
def test_a_link_is_tight_loose_or_broken(left, right, word):
    assert proof.verdict(left, right) == word


def test_waves_average_like_many_samples(rng):
    waves = rates.Waves.draw(2, 2, rng, "cpu", waves=64)
    seen = 0.5 + 0.15 * torch.randn(2, 30, 2, generator=rng, dtype=F64)
    x = torch.tensor([[0.2, 0.9]] * 2, dtype=F64)
    law = waves.transform(seen).mean(1) * waves.smoothing(rates.rule(seen))
    torch.testing.assert_close(rates.rule(seen), silverman_bandwidth(seen))
    many = GaussianKDE(seen).sample(200_000, [rng, rng])
    for k in range(2):
        values = waves(x[:, k : k + 1].expand(-1, 200_000), many).mean(-1)
        torch.testing.assert_close(waves.average(law, x)[:, k], values, rtol=0, atol=0.02)
    true = 0.5 + 0.15 * torch.randn(2, 200_000, 2, generator=rng, dtype=F64)
    values = waves(x[:, :1].expand(-1, 200_000), true).mean(-1)
    torch.testing.assert_close(waves.average(waves.truth, x)[:, 0], values, rtol=0, atol=0.02)


def test_a_grown_inverse_is_the_inverse(rng):
    z = torch.rand(2, 6, 3, generator=rng, dtype=F64)
    gram = (-0.5 * (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1) / 0.09).exp()
    inverse = torch.zeros(2, 6, 6, dtype=F64)
    for t in range(6):
        rates.grow(inverse, gram[:, t, :t], t)
    torch.testing.assert_close(inverse, torch.linalg.inv(gram + rates.NOISE**2 * torch.eye(6, dtype=F64)))


def test_the_worst_average_is_the_librarys(rng):
    values = torch.randn(4, 16, generator=rng, dtype=F64)
    for radius in (0.0, 0.3, 1.1):
        torch.testing.assert_close(rates.worst(values, radius), tv_worst_case(values, values.amin(-1), radius))


def test_the_distance_of_an_estimate_is_that_of_an_integral(rng):
    seen = 0.5 + 0.15 * torch.randn(1, 40, 1, generator=rng, dtype=F64)
    c = torch.linspace(-0.5, 1.5, 4001, dtype=F64)[:, None]
    true = (-0.5 * ((c[:, 0] - 0.5) / 0.15) ** 2).exp() / (0.15 * math.sqrt(2 * math.pi))
    exact = torch.trapezoid((GaussianKDE(seen).density(c) - true).abs(), c[:, 0])
    ours = rates.distance(seen, rates.rule(seen), rng, 20_000)
    torch.testing.assert_close(ours, exact, rtol=0, atol=0.02)


def test_an_exponent_is_fitted_with_its_error(rng):
    t = torch.arange(1, 60)
    rows = 3 * t**-0.4 * (0.1 * torch.randn(50, 1, generator=rng, dtype=F64)).exp()
    slope, error = rates.exponent(t, rows)
    assert slope == pytest.approx(-0.4, abs=1e-9) and error == pytest.approx(0, abs=1e-9)


def test_short_runs_have_their_shapes(rng):
    found = rates.regret(2, 2, 6, rng, "cpu", decisions=9, samples=8)
    for rows in found.values():
        assert rows.shape == (len(rates.POLICIES), 2, 6)
    assert float(found["regret"].min()) >= 0


def test_what_is_stored_is_complete():
    for dim in rates.DIMS:
        stored = rates.load("regret", dim)
        assert stored["regret"].shape == (len(rates.POLICIES), 30, 50)
        assert np.isfinite(stored["regret"].numpy()).all()
        assert rates.load("estimation", dim)["error"].shape == (300, len(rates.COUNTS))
