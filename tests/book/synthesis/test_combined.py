"""Elimination inside SBO-KDE: the account is an identity, and the parts are what they say."""

import math

import pytest
import torch

from book.synthesis import combined
from book.synthesis.combined import SIDE, averaged, cases, density, eliminate, ledger, likeliest, play, told, worlds


@pytest.fixture(scope="module", params=["truth: lengthscale 0.25", "truth: one of five hills"])
def game(request):
    family, truth = cases(5)[request.param]
    world = worlds(family, truth, seed=3)
    return family, world, {rule.__name__: play(family, world, rule, combined.theory) for rule in (eliminate, told)}


def test_terms_add_up_to_the_regret_and_no_claim_fails(game):
    family, _, played = game
    account = ledger(played["eliminate"], len(family.names))
    account.check_identity()
    assert account.claims["optimism"].violations == 0
    assert account.claims["optimism"].checked > 200
    assert account.claims["widths"].violations == 0
    assert bool((account.regret.diff() >= -1e-9).all())


def test_told_follows_the_truth(game):
    _, world, played = game
    assert bool((played["told"]["candidate"] == world.truth[:, None]).all())


def test_a_density_without_data_is_flat_and_follows_data():
    assert torch.allclose(density(torch.empty(2, 0, dtype=torch.long)), torch.full((2, SIDE), 1 / SIDE).double())
    estimate = density(torch.full((1, 50), 7))
    assert int(estimate.argmax()) == 7
    assert math.isclose(float(estimate.sum()), 1.0)


def test_rules_choose_among_candidates():
    scores = torch.arange(12.0).view(1, 3, 4)
    state = combined.State(torch.tensor([[True, True, False]]), torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([1]))
    assert int(eliminate(scores, state).flatten(1).argmax()) == 7
    assert int(likeliest(scores, state).flatten(1).argmax()) == 3
    assert int(told(scores, state).flatten(1).argmax()) == 7
    weights = torch.softmax(state.likelihood, 1)[0]
    assert torch.allclose(averaged(scores, state)[0, 0], weights @ scores[0])
    assert bool(torch.isinf(averaged(scores, state)[0, 1:]).all())


def test_the_stored_map_has_every_case_and_its_verdicts_follow_from_its_intervals():
    rows = combined.load()
    assert {(row["case"], row["multiplier"]) for row in rows} == {
        (case, b) for case in cases(1) for b in ("2", "theory")
    }
    for pair in (row[rival] for row in rows for rival in ("likeliest", "averaged")):
        assert (pair["verdict"] == "holds") == (pair["low"] > 0)
        assert (pair["verdict"] == "fails") == (pair["high"] < 0)
