"""Stand-ins for the maximum: what is drawn, how often groups are covered, and the equality of the repaired theorem."""

import math

import pytest
import torch

from book.indirect import proof, regret
from cbo_lib.former.simulate import simulate
from cbo_lib.measure import Measure
from tests.indirect.helpers import F64

REPLICATES, STEPS = 60, 25
KINDS = {"posterior": proof.PosteriorDraw, "prior": proof.PriorDraw, "upper": proof.UpperBound}


@pytest.fixture(scope="module")
def drawn():
    return proof.drawn(REPLICATES)


@pytest.fixture(scope="module")
def runs(drawn):
    problem, prior = drawn
    return {
        name: simulate(problem, kind(problem.space, prior=prior), STEPS, range(REPLICATES), progress=False)
        for name, kind in KINDS.items()
    }


def test_each_replicate_has_a_function_of_its_own(drawn):
    problem, _ = drawn
    assert problem.table.shape == (REPLICATES, 120) and problem.optimum.shape == (REPLICATES, 1)
    alone, _ = proof.drawn(3)
    torch.testing.assert_close(problem.table[:3], alone.table, rtol=0, atol=1e-6)
    blurred = torch.linspace(-4, 4, 4001, dtype=F64)
    weights = (-0.5 * blurred.square()).exp()
    there = problem.f((0.5 + proof.BLUR * blurred)[None, :, None])
    middle = (there * weights).sum(-1) / weights.sum()
    between = 0.5 * (problem.table[:, 29] + problem.table[:, 30])  # actions on both sides of the middle
    torch.testing.assert_close(between, middle, rtol=0, atol=5e-3)


def test_a_draw_of_the_posterior_has_its_moments(drawn):
    """The covariance that is kept is the one of the posterior, computed at once."""
    problem, prior = drawn
    policy = proof.PosteriorDraw(problem.space, prior=prior)
    history = simulate(problem, policy, 8, range(REPLICATES), progress=False)
    places = Measure.dirac(torch.arange(60, 120, dtype=F64)[:, None])
    for r in (0, 7):
        asked = Measure.dirac(history["query"][r].to(F64)[:, None])
        known = prior.condition(asked, history["observation"][r])
        torch.testing.assert_close(policy.left_over[r], known.covariance(places, places), rtol=0, atol=1e-7)


def test_the_maximum_of_a_draw_is_drawn_from_the_right_distribution():
    covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=F64).expand(4000, 2, 2)
    generators = [torch.Generator().manual_seed(i) for i in range(4000)]
    got = proof.maximum_of_draw(torch.zeros(4000, 2, dtype=F64), covariance, generators)[:, 0]
    assert float(got.mean()) == pytest.approx(math.sqrt(0.5 / math.pi), abs=0.05)  # sqrt((1 - r) / pi)


def test_upper_bounds_are_good_in_all_rounds_of_most_runs(drawn, runs):
    problem, _ = drawn
    good = (runs["upper"]["max_samples"][..., 0] >= problem.optimum).all(-1)
    assert float(good.double().mean()) >= 0.9


def test_prior_draws_do_not_know_the_history(runs):
    values = runs["prior"]["max_samples"][..., 0]
    assert float(values[:, :12].mean()) == pytest.approx(float(values[:, 12:].mean()), abs=0.15)


def test_posterior_draws_cost_kappa_deviations_on_average(drawn, runs):
    """The equality of the repaired theorem, for the kind it is about; upper bounds cost less."""
    problem, _ = drawn

    def score(name):
        run = runs[name]
        gap = (problem.optimum - run["value"] - run["kappa"] * run["std"]).mean(-1)
        return float(gap.mean() / gap.std() * REPLICATES**0.5)

    assert abs(score("posterior")) < 3 and score("upper") < -5


def test_the_terms_add_up_for_every_stand_in(drawn, runs):
    problem, _ = drawn
    for history in runs.values():
        account = regret.ledger(history, problem, proof.FAILURE)
        account.check_identity(1e-8)
        assert account.claims["attained"].violations == 0
        lemma = account.claims["one round"].holds | ~account.claims["concentration"].holds
        assert bool(lemma.all())


def test_a_posterior_that_stands_still_covers_by_its_rank():
    """The maximum of ``k + 1`` exchangeable numbers is the first with probability ``1 / (k + 1)``."""
    got = proof.frozen_coverage([6, 8])
    assert float(got[0]) == pytest.approx(1 - 1 / 7, abs=1e-6)
    assert float(got[1]) == pytest.approx(1 - 1 / 7 - 1 / 9 + 1 / 15, abs=1e-6)
