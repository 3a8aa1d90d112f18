"""The links of the proofs on runs."""

import math

import pytest
import torch

from book.contexts import proof
from cbo_lib.former.history import pack_arrays


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


def test_problems_with_several_contexts_walk_too():
    found = proof.runs("branin, 2", rounds=7, seeds=2)
    for policy, run in found.items():
        total = sum(term for term, _ in run.terms().values())
        torch.testing.assert_close(total, run.regret.cumsum(-1).mean(0), rtol=0, atol=1e-8)
        for name, (left, right) in run.links().items():
            if not name.endswith("in mean") and name != "maximization":
                assert bool((left <= right + 1e-3).all()), (policy, name)


def test_what_is_stored_is_loaded_again(tmp_path, monkeypatch, runs):
    monkeypatch.setattr(proof, "PROBLEMS", {})
    monkeypatch.setattr(proof, "runs", lambda *_: runs)
    arrays = {f"draws/{key}": array for key, array in proof.arrays_of("draws", 10, 3).items()}
    (tmp_path / "a.npz").write_bytes(pack_arrays(arrays))
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
