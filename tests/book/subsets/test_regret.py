"""Every account against a plain loop, its identity and signs on real runs, and bounds against their formulas."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.subsets import regret
from cbo_lib.former.history import History
from cbo_lib.kernels import rbf_kernel
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from tests.subsets.helpers import F64, flat, prior, run

TINY = Effort(contexts=8, candidates=16, iterations=2)
ALPHA, ROUNDS, STEPS = 0.1, 3, 26


def made(replicates=1, **tensors):
    """A history from nested lists."""
    arrays = {name: torch.from_numpy(np.array(values)) for name, values in tensors.items()}
    return History(arrays, range(replicates))


def doctored(history, **tensors):
    """The same run with other entries."""
    return History({**history.tensors, **tensors}, history.seeds)


@functools.cache
def priced(costs=(0.2, 0.1, 0.5), budget=6.0):
    """Two variables and three subsets; the first and the last are acceptable at a tenth, the first is cheaper."""
    return dataclasses.replace(flat().with_budget(budget), cost_means=torch.tensor(costs, dtype=F64))


def play(sqrt_beta=2.0, alpha=lambda s: ALPHA, replicates=3):
    """The full set is so dear that its lower bound tells: subsets with a free variable are played too."""
    problem = priced((0.2, 0.1, 3.0), 1e6)
    options = {"cost_spread": 1.0, "alpha": alpha, "rounds": ROUNDS, "horizon": STEPS, "effort": TINY}
    policy = CheapestGoodSubset(problem.space, prior=prior(problem), sqrt_beta=sqrt_beta, **options)
    return problem, run(problem, policy, STEPS, range(replicates))


@pytest.fixture(scope="module")
def fixed():
    """Algorithm 1 with a fixed alpha, so wide that all bounds hold."""
    return play(4.0)


@pytest.fixture(scope="module")
def narrow():
    """Algorithm 1 with bounds that are wrong from the start, so that no subset is left at times."""
    return play(0.1)


MOMENTS = ("value", "expected_mean", "expected_std", "mean", "std", "lower", "horizon", "cost", "spent")


def plain(history, names=MOMENTS):
    return {name: history[name].tolist() for name in (*names, "subset", "exploring", "upper", "good")}


# ---- notions of regret


@given(
    subsets=st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=3),
    values=st.lists(st.floats(-3, 3), min_size=15, max_size=15),
    alpha=st.sampled_from([0.0, 0.1, 0.19, 0.9]),
)
def test_notions_of_regret_are_those_of_their_definitions(subsets, values, alpha):
    problem, count = priced(), len(subsets)
    value = [values[5 * r : 5 * r + 5] for r in range(count)]
    history = made(count, subset=subsets, value=value)
    bests, costs = problem.best_values.tolist(), problem.cost_means.tolist()
    best = max(bests)
    good = [i for i in range(3) if bests[i] >= (1 - alpha) * best]
    cheapest = min(costs[i] for i in good)
    quality, cost = regret.quality_regret(history, problem, alpha), regret.cost_regret(history, problem, alpha)
    weighted, simple = regret.cost_varying_regret(history, problem), regret.simple_regret(history, problem)
    for r, t in itertools.product(range(count), range(5)):
        i = subsets[r][t]
        assert float(quality[r, t]) == pytest.approx((1 - alpha) * best - value[r][t], abs=1e-9)
        assert float(cost[r, t]) == pytest.approx(max(costs[i] - cheapest, 0), abs=1e-9)
        assert float(weighted[r, t]) == pytest.approx(costs[i] * (best - value[r][t]), abs=1e-9)
        assert float(simple[r, t]) == pytest.approx(min(best - v for v in value[r][: t + 1]), abs=1e-9)


# ---- the ledger


def plain_terms(history, problem, sqrt_beta, alpha, r, t):
    """What one play adds to each term."""
    own, best, rows = plain(history), float(problem.optimum), [0.0] * 7
    i, value = own["subset"][r][t], own["value"][r][t]
    if own["exploring"][r][t]:
        rows[1 if i == problem.best_subset else 0] = (1 - alpha) * best - value
        return rows
    L, U = own["lower"][r][t], own["upper"][r][t][i]
    mean, width = own["expected_mean"][r][t], sqrt_beta * own["expected_std"][r][t]
    rows[2:] = [(1 - alpha) * (best - L), (1 - alpha) * L - U, U - mean - width, width, mean - value]
    return rows


TERMS = [
    "exploring other subsets",
    "exploring the best subset",
    "threshold below the best",
    "above the threshold",
    "smallest bound so far",
    "width",
    "error of the mean",
]


@pytest.mark.parametrize(("name", "sqrt_beta"), [("fixed", 4.0), ("narrow", 0.1)])
@pytest.mark.parametrize("alpha", [ALPHA, 0.0])
def test_the_ledger_is_an_identity_with_the_terms_of_the_proof(name, sqrt_beta, alpha, request):
    problem, history = request.getfixturevalue(name)
    ledger = regret.quality_ledger(history, problem, sqrt_beta, alpha)
    ledger.check_identity(1e-10)
    assert list(ledger.terms) == TERMS
    total = np.zeros((len(history.seeds), len(TERMS)))
    for t in range(STEPS):
        total += [plain_terms(history, problem, sqrt_beta, alpha, r, t) for r in range(3)]
        found = torch.stack([term[:, t] for term in ledger.terms.values()], -1)
        np.testing.assert_allclose(found, total, rtol=0, atol=1e-10)
        happened = [
            (1 - alpha) * float(problem.optimum) * (t + 1) - float(history["value"][r, : t + 1].sum())
            for r in (0, 1, 2)
        ]
        np.testing.assert_allclose(ledger.regret[:, t], happened, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "sqrt_beta"), [("fixed", 4.0), ("narrow", 0.1)])
def test_the_terms_have_the_signs_that_are_promised(name, sqrt_beta, request):
    problem, history = request.getfixturevalue(name)
    ledger = regret.quality_ledger(history, problem, sqrt_beta, ALPHA)
    each = {term: values.diff(dim=-1, prepend=torch.zeros(3, 1, dtype=F64)) for term, values in ledger.terms.items()}
    exploiting = ~history["exploring"]
    assert bool((history["subset"][exploiting] != 2).any())
    assert bool((each["above the threshold"][exploiting] < 1e-9).all())
    assert float(each["above the threshold"].min()) < -0.1
    assert bool((each["smallest bound so far"] <= 1e-9).all()) and float(each["smallest bound so far"].min()) < 0
    assert bool((each["width"][exploiting] > 0).all())
    below = (history["lower"] <= problem.optimum) & exploiting
    assert bool((each["threshold below the best"][below] >= -1e-9).all())
    for term in TERMS[:2]:
        assert bool((each[term][exploiting].abs() < 1e-9).all())
    for term in TERMS[2:]:
        assert bool((each[term][~exploiting] == 0).all())


# ---- claims

CLAIMS = [
    "mean within the width",
    "lower bound below the best value",
    "upper bounds above the best values",
    "acceptable subsets are kept",
    "average cost within its radius",
]


def test_every_claim_has_both_sides_of_the_paper(fixed):
    problem, history = fixed
    found = regret.claims(history, problem, 4.0, ALPHA, failure=0.2)
    assert list(found) == CLAIMS and all(claim.source for claim in found.values())
    assert [claim.probability for claim in found.values()][:4] == [0.8] * 4
    own, acceptable = plain(history), problem.acceptable(ALPHA).tolist()
    values = [problem.f(history["played"][r]).tolist() for r in range(3)]
    mean, lower, upper, kept, costs = found.values()
    for r in range(3):
        paid = [[] for _ in range(problem.space.m)]
        for t in range(STEPS):
            assert float(mean.left[r, t]) == pytest.approx(abs(own["mean"][r][t] - values[r][t]), abs=1e-9)
            assert float(mean.right[r, t]) == pytest.approx(4 * own["std"][r][t], abs=1e-9)
            assert float(lower.left[r, t]) == own["lower"][r][t]
            assert float(lower.right[r, t]) == float(problem.optimum)
            later = t >= ROUNDS * problem.space.m
            for i in range(problem.space.m):
                assert bool(upper.applies[r, t, i]) == later
                assert float(upper.right[r, t, i]) == own["upper"][r][t][i]
                assert float(upper.left[r, t, i]) == float(problem.best_values[i])
                assert bool(kept.applies[r, t, i]) == later
                assert bool(kept.holds[r, t, i]) == (not later or not acceptable[i] or own["good"][r][t][i])
                assert bool(costs.applies[r, t, i]) == (later and bool(paid[i]))
                if later:
                    radius = math.sqrt(2 * math.log(STEPS) / len(paid[i]))
                    average = sum(paid[i]) / len(paid[i])
                    assert float(costs.right[r, t, i]) == pytest.approx(radius, abs=1e-9)
                    off = abs(average - float(problem.cost_means[i]))
                    assert float(costs.left[r, t, i]) == pytest.approx(off, abs=1e-9)
            paid[own["subset"][r][t]].append(own["cost"][r][t])


def test_wide_bounds_keep_every_claim_and_narrow_ones_fail(fixed, narrow):
    assert all(c.violations == 0 and c.checked for c in regret.claims(fixed[1], fixed[0], 4.0, ALPHA).values())
    found = regret.claims(narrow[1], narrow[0], 0.1, ALPHA)
    assert all(found[name].frequency < 1 for name in CLAIMS[:4])


def test_average_costs_leave_their_radius_as_rarely_as_promised():
    """Costs of zero or one, the widest with support [0, 1]."""
    replicates, steps = 3000, 24
    problem = priced(costs=(0.5, 0.5, 0.5))
    rng = torch.Generator().manual_seed(5)
    cost = torch.randint(0, 2, (replicates, steps), generator=rng).double()
    subset = torch.randint(0, 3, (replicates, steps), generator=rng)
    upper = torch.full((replicates, steps, 3), 9.0, dtype=F64)

    def claim(horizon):
        tensors = {
            "subset": subset,
            "cost": cost,
            "exploring": torch.zeros(replicates, steps, dtype=torch.bool),
            "horizon": torch.full((replicates, steps), float(horizon), dtype=F64),
            "played": torch.zeros(replicates, steps, 2, dtype=F64),
            "upper": upper,
            "good": upper > 0,
            "lower": upper[..., 0] - 9,
        }
        tensors |= {name: torch.ones(replicates, steps, dtype=F64) for name in ("mean", "std")}
        return regret.claims(History(tensors, range(replicates)), problem, 1.0, 0.5)[CLAIMS[4]]

    whole = claim(steps)
    assert whole.probability == pytest.approx(1 - 2 * 3 * steps / steps**4)
    assert whole.probability >= 1 - 2 / steps**2  # of the paper, for at most T subsets
    assert whole.frequency >= whole.probability
    # With too short a horizon the radius is too small, and less is promised.
    short = claim(3)
    assert short.frequency < 0.999 and short.probability == 0
    assert 0 < claim(6).probability < whole.probability and claim(6).frequency >= claim(6).probability
    assert claim(1).probability == 0


def test_lemma_7_holds_as_often_as_promised():
    """A standard deviation of one with probability p, else zero: only the rare ones add to the right side."""
    problem, rng, failure = priced(), torch.Generator().manual_seed(3), 0.9
    for p in (0.02, 0.3):
        std = (torch.rand(2000, 600, generator=rng) < p).double()
        tensors = {"subset": torch.zeros(2000, 600, dtype=torch.long), "std": std, "expected_std": 0 * std + p}
        claim = regret.expected_widths(History(tensors, range(2000)), problem, failure)["{1}"]
        assert claim.frequency >= claim.probability
        bare = claim.left <= claim.right - (4 * math.log(3 / failure) + 8 * math.log(4) + 1)
        assert float(bare.all(-1).double().mean()) < claim.probability  # without the constant it does not


def test_the_cost_bound_by_a_loop(fixed):
    problem, history = fixed
    assert regret.cost_bound(history, problem, ALPHA).violations == 0
    subset = torch.randint(0, 3, history["subset"].shape, generator=torch.Generator().manual_seed(0))
    history = doctored(history, subset=subset)
    claim = regret.cost_bound(history, problem, ALPHA, failure=0.2)
    assert claim.probability == pytest.approx(0.8 - 2 * 3 * STEPS / STEPS**4)
    costs, cheapest = problem.cost_means.tolist(), problem.cheapest(ALPHA)
    for r in range(3):
        left, later = 0.0, 0
        for t in range(STEPS):
            if t >= ROUNDS * problem.space.m:
                later += 1
                left += max(costs[int(history["subset"][r, t])] - costs[cheapest], 0)
            right = 2 * later * math.sqrt(2 * math.log(STEPS) / ROUNDS)
            assert float(claim.left[r, t]) == pytest.approx(left, abs=1e-9)
            assert float(claim.right[r, t]) == pytest.approx(right, abs=1e-9)
    assert claim.violations == 0
    short = doctored(history, horizon=torch.ones_like(history["horizon"]), subset=torch.full_like(history["subset"], 2))
    assert regret.cost_bound(short, problem, ALPHA).violations > 0
    assert regret.cost_bound(short, problem, ALPHA).probability == 0


# ---- information, Lemma 2 and Theorem 1


SPREAD = regret.spectral_gain(rbf_kernel(0.4), torch.quasirandom.SobolEngine(2).draw(32, dtype=F64), 0.1)


@pytest.mark.parametrize(("tau", "m", "largest", "failure"), [(3, 4, 2.5, 0.1), (40, 2, 0.3, 0.01)])
def test_the_terms_of_theorem_1_are_those_of_its_proof(tau, m, largest, failure):
    def beta(t):
        return 2.0 + math.sqrt(2 * (SPREAD(t) + math.log(1 / failure)))

    horizons = [m * tau, m * tau + 1, 10 * m * tau, 10**6]
    found = regret.theorem_1(torch.tensor(horizons), tau, m, largest, SPREAD, beta, failure)
    assert list(found) == ["exploring other subsets", "exploring the best subset", "exploitation", "threshold"]
    constant = 4 * math.log(m / failure) + 8 * math.log(4) + 1
    once = 2 * math.sqrt(4 * (tau + 2) * SPREAD(tau)) + constant
    for k, T in enumerate(horizons):
        other, best, late, lag = (float(term[k]) for term in found.values())
        assert other == pytest.approx(2 * (m - 1) * tau * largest)
        assert best == pytest.approx(2 * beta(tau * m) * once)
        assert lag == pytest.approx(2 * (T - m * tau) / tau * beta(tau * m) * once)
        # The last O of Eq. 3 holds both.
        assert best + lag == pytest.approx(2 * (T - (m - 1) * tau) / tau * beta(tau * m) * once)
        if k:
            root = math.sqrt(4 * (T + 2 - m * tau) * SPREAD(T - m * tau))
            assert late == pytest.approx(2 * beta(T) * (2 * root + m * constant))


def test_the_chain_of_the_proof_holds_in_a_run_whose_bounds_hold(fixed):
    """Phase 2 before the lemmas on sums: regret <= 2 sum beta E sigma + 2 (T - m tau) (average width of the best)."""
    problem, history = fixed
    best, later = problem.best_subset, ~history["exploring"]
    loss = regret.quality_regret(history, problem, ALPHA)
    width = 4 * history["expected_std"]
    for r in range(3):
        turns = ~later[r] & (history["subset"][r] == best)
        average = float(width[r][turns].mean())
        right = 2 * float(width[r][later[r]].sum()) + 2 * int(later[r].sum()) * average
        assert float(loss[r][later[r]].sum()) <= right
        # Phase 1: others at most 2 (m - 1) tau M, the best at most twice its widths.
        largest = float(
            problem.f(torch.rand(500, 2, generator=torch.Generator().manual_seed(1), dtype=F64)).abs().max()
        )
        others = ~later[r] & (history["subset"][r] != best)
        assert float(loss[r][others].sum()) <= 2 * (problem.space.m - 1) * ROUNDS * largest
        assert float(loss[r][turns].sum()) <= 2 * float(width[r][turns].sum())
    # And so the theorem, whose right side only adds to this.
    points = torch.quasirandom.SobolEngine(2).draw(64, dtype=F64)
    gain = regret.spectral_gain(prior(problem).kernel, points, 0.1)
    steps = torch.arange(ROUNDS * problem.space.m, STEPS + 1)
    terms = regret.theorem_1(steps, ROUNDS, problem.space.m, largest, gain, lambda t: 4.0)
    assert bool((loss.cumsum(-1)[:, ROUNDS * problem.space.m - 1 :] <= sum(terms.values())).all())
