"""The links of the proofs on runs."""

import math

import pytest
import torch

from book.contexts import proof


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


def test_the_gain_is_at_most_what_variances_of_one_tell():
    gain = proof.setting("draws", seeds=1).gain(40)
    most = torch.arange(1, 41, dtype=torch.float64) * math.log1p(proof.NOISE**-2) / 2
    assert bool((gain <= most + 1e-9).all()) and bool((gain.diff() > 0).all())
    torch.testing.assert_close(gain[:10], most[:10])  # greedy choice alone would bound it by more


@pytest.mark.parametrize(
    ("left", "right", "word"), [(1.0, 1.5, "tight"), (1.0, 3.0, "loose"), (-1.0, 0.0, "loose"), (2.0, 1.0, "broken")]
)
def test_a_link_is_tight_loose_or_broken(left, right, word):
    assert proof.verdict(left, right) == word
