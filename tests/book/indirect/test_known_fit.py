"""Where p(x | a) is known, the prior has a lengthscale that was fitted with p known, not through an estimate."""

import pytest

from book.indirect import factors
from book.indirect.problems import known_prior
from cbo_lib.indirect import ClippedGaussian


@pytest.fixture
def priors(monkeypatch):
    """What ``known_prior`` was called with; nothing is run."""
    calls = []

    def watch(space, lengthscale, *rest):
        calls.append((space, lengthscale))
        return known_prior(space, lengthscale, *rest)

    monkeypatch.setattr(factors, "GRID", 6)
    monkeypatch.setattr(factors, "known_prior", watch)
    monkeypatch.setattr(factors, "_regrets", lambda *parts: {})
    return calls


@pytest.mark.parametrize(
    "name", ["fixed/linear/known/0.3/sd/exact", "fixed/cosine/known/0.24/raw/exact", "budget/cosine/one/0.3/sd/2"]
)
def test_known_prior_has_the_lengthscale_of_the_cell_and_the_true_distribution(priors, name):
    factors.run(name, range(2))
    assert priors
    for space, lengthscale in priors:
        assert isinstance(space.conditional, ClippedGaussian)
        assert lengthscale == float(name.split("/")[3])
