"""Regrets by brute force, and the proof's terms against the runs that they account for."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from book.indirect.regret import (
    band,
    information_gain,
    instantaneous_regret,
    ledger,
    recommendation_regret,
    simple_regret,
    theorem_1_rounds,
    zeta,
)
from cbo_lib.indirect import CMES
from tests.indirect.helpers import (
    F64,
    drawn,
    grams,
    known,
    priced,
    run,
    square,
)

STEPS = 15


@pytest.fixture(scope="module")
def single():
    """One sample of the maximum and no design."""
    prior = known(square())
    problem = drawn(square(), prior, 5)
    return problem, run(problem, CMES(problem.space, prior=prior, samples=1), STEPS, range(4))


@pytest.fixture(scope="module")
def spent():
    problem = priced()
    return problem, run(problem, CMES(problem.space, prior=known(problem), initial=2, budget=6.0, samples=2), 14)


@pytest.mark.parametrize("fixture", ["single", "spent"])
def test_regrets_are_those_of_their_definitions(fixture, request):
    problem, history = request.getfixturevalue(fixture)
    best = float(problem.table[problem.n :].max())
    f, g = problem.table.numpy(), history["query"].numpy()
    for r in range(history.replicates):
        for t in range(history.steps):
            recommended = f[history["recommendation"][r, : t + 1].numpy()]
            asked = [f[q] for q, active in zip(g[r, : t + 1], history["active"][r, : t + 1], strict=True) if active]
            assert float(simple_regret(history, problem)[r, t]) == pytest.approx(best - recommended.max(), abs=1e-9)
            assert float(recommendation_regret(history, problem)[r, t]) == pytest.approx(best - recommended[-1])
            assert float(instantaneous_regret(history, problem)[r, t]) == pytest.approx(best - max(asked), abs=1e-9)
    assert bool((instantaneous_regret(history, problem) >= best - f[: problem.n].max() - 1e-9).all())


@pytest.mark.parametrize("failure", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("two_sided", [False, True])
def test_zeta_is_that_of_lemma_2(failure, two_sided):
    got = zeta(torch.tensor([1, 2, 17, 1000]), failure, two_sided)
    for t, value in zip((1, 2, 17, 1000), got.tolist(), strict=True):
        ratio = math.pi**2 * t**2 / 6 / (failure if two_sided else 2 * failure)
        assert value == pytest.approx(math.sqrt(max(0.0, 2 * math.log(ratio))), rel=1e-9)
        assert float(zeta(t, failure, two_sided)) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("failure", [0.05, 0.5, 0.95])
def test_the_chance_of_a_miss_adds_up_to_at_most_the_failure(failure):
    """The union bound behind Lemma 2: no approximation of the normal tail is needed."""
    rounds = torch.arange(1, 20001)
    assert norm.sf(zeta(rounds, failure).numpy()).sum() <= failure
    assert 2 * norm.sf(zeta(rounds, failure, True).numpy()).sum() <= failure


def test_bands_of_all_points_and_rounds_share_the_failure():
    """The union over the points keeps the promise, and uses the whole of what the tail bound allows."""
    rounds, n, failure = torch.arange(1, 2000), 60, 0.1
    width = band(rounds, n, failure)
    assert 2 * n * norm.sf(width.numpy()).sum() <= failure
    assert float((n * (-0.5 * width.square()).exp()).sum()) == pytest.approx(failure, rel=1e-3)


def test_the_information_gain_is_that_of_the_determinant(single):
    problem, history = single
    gain = information_gain(history, 0.2)
    gram = grams(known(problem), 4)
    for r in range(4):
        for t in range(1, STEPS + 1):
            seen = history["query"][r, :t].tolist()
            expected = 0.5 * np.linalg.slogdet(np.eye(t) + gram[r][np.ix_(seen, seen)] / 0.04)[1]
            assert float(gain[r, t - 1]) == pytest.approx(expected, rel=1e-6)


def test_the_terms_of_the_ledger_add_up_to_the_regret(single):
    problem, history = single
    accounts = ledger(history, problem)
    accounts.check_identity(1e-8)
    expected = (problem.optimum - problem.table[history["query"]]).cumsum(-1)
    torch.testing.assert_close(accounts.regret, expected, rtol=0, atol=1e-10)
    steps = {name: term.diff(dim=-1, prepend=torch.zeros(4, 1, dtype=F64)) for name, term in accounts.terms.items()}
    sample, mean, std = history["max_samples"][..., 0], history["mean"], history["std"]
    torch.testing.assert_close(steps["f* - sample"], problem.optimum - sample, rtol=0, atol=1e-9)
    torch.testing.assert_close(steps["kappa std"], history["kappa"] * std, rtol=0, atol=1e-9)
    torch.testing.assert_close(steps["mean - g"], mean - problem.table[history["query"]], rtol=0, atol=1e-9)
    assert float(steps["sample - upper bound"].abs().max()) < 1e-6


def test_the_certain_claims_hold_and_the_others_as_often_as_promised():
    """Functions drawn from the prior, one a problem, with four replicates each."""
    base = square()
    prior = known(base)
    held, promised, checked = [], [], 0
    for seed in range(10):
        problem = drawn(base, prior, seed)
        accounts = ledger(run(problem, CMES(problem.space, prior=prior, samples=1), 10, range(4)), problem, 0.3)
        assert accounts.claims["attained"].violations == 0
        assert accounts.claims["sum of squares"].violations == 0
        late = accounts.claims["one round"]
        assert bool((late.holds | ~accounts.claims["concentration"].holds).all()), "Lemma 3 needs no more than Lemma 2"
        checked += accounts.claims["one round"].checked
        held += accounts.claims["concentration"].held.tolist()
        promised.append(accounts.claims["concentration"].probability)
    assert set(promised) == {0.7} and checked > 50
    assert sum(held) / len(held) >= 0.7 - 2 * math.sqrt(0.21 / len(held))


def test_the_bound_is_the_proofs_with_what_was_realized(single):
    problem, history = single
    bound = ledger(history, problem, 0.2).bounds["Theorem 1, realized"]
    gain = information_gain(history, 0.2).numpy()
    constant = 2 / math.log(1 + 0.2**-2)
    for r in range(4):
        for t in range(1, STEPS + 1):
            kappa = float(history["kappa"][r, :t].max())
            width = math.sqrt(2 * math.log(math.pi**2 * t**2 / 6 / 0.2))
            expected = (kappa + width) * math.sqrt(constant * t * gain[r, t - 1])
            assert float(bound[r, t - 1]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("T", "w", "failure"), [(1, 0.5, 0.1), (10, 0.3, 0.05), (40, 0.9, 0.5)])
def test_the_rounds_of_theorem_1_are_its_sum(T, w, failure):
    expected = sum(math.log(failure / (2 * math.pi**2 * i * i / 6), w) for i in range(1, T + 1))
    assert theorem_1_rounds(T, w, failure) == pytest.approx(expected, rel=1e-9)
    assert theorem_1_rounds(T, w, failure) > T * math.log(0.5 * failure, w) * 0.999
