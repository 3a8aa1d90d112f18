"""The accounts recomputed by plain loops, their identity, and claims that hold, and fail where they should."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from book.functions import rkhs_samples
from book.hyperparameters.problems import draws_of_candidates, lengthscale_candidates
from book.hyperparameters.regret import (
    confidence_ratio,
    critical_rounds,
    cumulative_regret,
    information_gains,
    initial_rounds,
    instantaneous_regret,
    ledger,
    robust_claim,
    rounds,
    simple_regret,
)
from book.hyperparameters.slips import printed_sqrt_beta
from book.hyperparameters.widths import frequentist_sqrt_beta
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    Candidates,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
)
from cbo_lib.kernels import rbf_kernel
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    SEEDS,
    SETTINGS,
    bump,
    changed,
    doctored,
    line,
    noise_draws,
    problem_of,
    run,
    setting,
)

STEPS, FAILURE, BOUND = 18, 0.3, 2.5
CLAIMS = [
    "confidence",
    "noise",
    "truth survives",
    "one round",
    "critical rounds",
    "prediction errors",
    "counts",
    "realized gain",
    "maximum gain",
    "sum",
]


def irregular(name):
    """A setting on random points: none are tied, so that the greedy gain is the same whatever the rounding."""
    case = setting(name)
    domain, rng = case.problem.space.points, torch.Generator().manual_seed(11)
    points = domain.amax(0) * torch.rand(30, domain.shape[-1], generator=rng, dtype=F64)
    return case.replaced(points=points)


class Recomputed:
    """Everything that the ledger holds about one replicate, from the paper's definitions, round by round."""

    def __init__(self, case, history, replicate, seed):
        world, truth = case.world(replicate), torch.as_tensor(case.problem.truth).expand(len(SEEDS))[replicate].item()
        loop = plain.HEGPUCB(world, case.beta, FAILURE)
        everything = loop.run(noise_draws(seed, STEPS), case.design(history, replicate))
        played, count, R = [r for r in everything if r.t >= 1], len(case.priors), world.noise_std
        values, points = world.values, world.points
        start = len(everything) - len(played)
        self.candidate = [r.candidate for r in played]
        self.index = [r.index for r in played]
        self.error = [r.observation - r.mean[r.candidate] for r in played]
        self.width = [(r.beta * r.std)[r.candidate] for r in played]
        self.noise = [r.observation - values[r.index] for r in played]
        self.lost = [float(not r.alive[truth]) for r in played]
        self.critical, self.ratio, self.gains, self.noise_sum, self.noise_right = [], [], [], [], []
        self.count, self.square, self.top, self.regret, self.terms = [], [], [], [], []
        self.kept_errors, self.kept_widths = [], []
        gamma = np.max([plain.greedy_gain(prior, R, points, len(played)) for prior in case.priors], 0)[1:]
        self.gamma = gamma * math.e / (math.e - 1)
        regret, terms, kept_error = 0.0, np.zeros(4), 0.0
        for t, r in enumerate(played, start=1):
            sets = [[i for i in range(t) if self.candidate[i] == u] for u in range(count)]
            xi = plain.xi(t, R, count, FAILURE)
            own = sets[r.candidate]
            right = math.sqrt(xi * len(own)) + sum(self.width[i] for i in own)
            self.critical.append(abs(sum(self.error[i] for i in own)) > right)
            before = everything[: start + t - 1]
            x, y = points[[b.index for b in before]], np.array([b.observation for b in before])
            mean, std = plain.posterior(case.priors[truth], R, x, y, points)
            self.ratio.append(max(abs(values - mean) / (r.beta[truth] * std)))
            self.gains.append(
                [plain.gain(p, R, points[[self.index[i] for i in s]]) for p, s in zip(case.priors, sets, strict=True)]
            )
            self.noise_sum.append([abs(sum(self.noise[i] for i in s)) for s in sets])
            self.noise_right.append([math.sqrt(xi * len(s)) for s in sets])
            self.count.append([len(s) for s in sets])
            self.square.append(sum(self.noise_right[-1]))
            self.top.append(max(max(q.beta) for q in played[:t]))
            gap = max(values) - values[r.index]
            regret += gap
            upper = r.mean[r.candidate] + self.width[t - 1]
            if self.critical[-1]:
                terms = terms + np.array([gap, 0, 0, 0])
            else:
                over = r.mean[r.candidate] - values[r.index]
                terms = terms + np.array([0, max(values) - upper, self.width[t - 1], over])
                kept_error += self.error[t - 1]
            self.regret.append(regret)
            self.terms.append(terms)
            self.kept_errors.append(kept_error)
            self.kept_widths.append(terms[2])
        within = np.array(self.noise_sum) <= np.array(self.noise_right) + 1e-9
        self.good = max(self.ratio) <= 1 and bool(within.all())
        self.constant = 2 / math.log1p(1 / R**2)
        self.steps = np.arange(1, len(played) + 1)


@pytest.fixture(scope="module", params=SETTINGS)
def accounts(request):
    case = irregular(request.param)
    policy = case.make(HEGPUCB, failure=FAILURE)
    history = run(case.problem, policy, STEPS)
    recomputed = [Recomputed(case, history, r, seed) for r, seed in enumerate(SEEDS)]
    return case, history, ledger(history, case.problem, BOUND, FAILURE), recomputed


def same(found, expected, tolerance=1e-8):
    expected = torch.tensor(np.array(expected), dtype=F64)
    torch.testing.assert_close(found.to(F64), expected, rtol=tolerance, atol=tolerance)


def test_the_quantities_of_each_round(accounts):
    case, history, _, recomputed = accounts
    seen = rounds(history, case.problem)
    assert initial_rounds(history) == case.initial
    assert seen.candidate.tolist() == [r.candidate for r in recomputed]
    for name in ("error", "width", "noise"):
        same(getattr(seen, name), [getattr(r, name) for r in recomputed])
    for r, own in enumerate(recomputed):
        assert torch.equal(seen.point[r], case.problem.space.points[torch.tensor(own.index)])


def test_critical_rounds_are_those_of_line_12(accounts):
    case, history, _, recomputed = accounts
    found = critical_rounds(rounds(history, case.problem), case.problem, FAILURE)
    assert found.tolist() == [r.critical for r in recomputed]
    assert found.any() and not found.all()


def test_the_confidence_ratio_is_the_worst_point_of_each_round(accounts):
    case, history, _, recomputed = accounts
    same(confidence_ratio(history, case.problem), [r.ratio for r in recomputed], 1e-7)


def test_information_gains_are_of_the_rounds_of_each_candidate(accounts):
    case, history, _, recomputed = accounts
    gains = information_gains(rounds(history, case.problem), case.problem)
    same(gains, [r.gains for r in recomputed])
    assert bool((gains.diff(dim=1) >= -1e-12).all())


def test_the_terms_are_the_plain_ones_and_add_up_to_the_regret(accounts):
    _, _, book, recomputed = accounts
    assert list(book.terms) == ["critical rounds", "f* - UCB", "widths", "mean - f"]
    for i, term in enumerate(book.terms.values()):
        same(term, [[terms[i] for terms in r.terms] for r in recomputed])
    same(book.regret, [r.regret for r in recomputed])
    book.check_identity(1e-8)


def test_the_bounds_are_the_plain_ones(accounts):
    case, _, book, recomputed = accounts
    U, R = len(case.priors), case.problem.noise_std
    nine = [2 * U * BOUND + 2 * np.array(r.square) + 2 * np.array(r.kept_widths) for r in recomputed]
    same(book.bounds["Inequality 9"], nine)
    r = recomputed[0]
    xi = np.array([plain.xi(t, R, U, FAILURE) for t in r.steps])
    final = 2 * U * BOUND + 2 * np.sqrt(U * xi * r.steps)
    same(book.bounds["final bound"], final + 2 * np.array(r.top) * np.sqrt(r.constant * r.steps * U * r.gamma))


def test_every_claim_has_both_sides_of_the_paper(accounts):
    case, _, book, recomputed = accounts
    U = len(case.priors)
    assert list(book.claims) == CLAIMS

    def check(name, left, right, tolerance=1e-8):
        same(book.claims[name].left, [left(r) for r in recomputed], tolerance)
        same(book.claims[name].right, [right(r) for r in recomputed], tolerance)

    check("confidence", lambda r: r.ratio, lambda r: np.ones(len(r.ratio)), 1e-7)
    check("noise", lambda r: r.noise_sum, lambda r: r.noise_right)
    check("truth survives", lambda r: r.lost, lambda r: np.zeros(len(r.lost)))
    check(
        "one round",
        lambda r: np.diff(r.regret, prepend=0.0),
        lambda r: np.array(r.noise) - np.array(r.error) + np.array(r.width),
    )
    check("critical rounds", lambda r: np.cumsum(r.critical), lambda r: np.full(len(r.critical), U))
    check(
        "prediction errors", lambda r: -np.array(r.kept_errors), lambda r: np.array(r.square) + np.array(r.kept_widths)
    )
    check("counts", lambda r: np.sqrt(r.count).sum(-1), lambda r: np.sqrt(U * r.steps))
    check(
        "realized gain",
        lambda r: r.kept_widths,
        lambda r: np.array(r.top) * np.sqrt(r.constant * r.steps * np.sum(r.gains, -1)),
    )
    check(
        "maximum gain",
        lambda r: r.kept_widths,
        lambda r: np.array(r.top) * np.sqrt(r.constant * r.steps * U * r.gamma),
    )
    check(
        "sum",
        lambda r: r.regret,
        lambda r: 2 * U * BOUND + 2 * np.array(r.square) + 2 * np.array(r.kept_widths),
    )


def test_what_follows_from_the_good_event_is_claimed_there_alone(accounts):
    _, _, book, recomputed = accounts
    good = torch.tensor([r.good for r in recomputed])
    for name, claim in book.claims.items():
        if name in ("truth survives", "one round", "sum"):
            assert torch.equal(claim.applies.all(-1), good) and torch.equal(claim.applies.any(-1), good)
        else:
            assert claim.applies is None
        promised = 1 - FAILURE / 2 if name in ("confidence", "noise") else 1.0
        assert claim.probability == pytest.approx(promised)
        assert claim.source


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("elimination", ["errors", "never"])
def test_terms_add_up_on_every_problem(name, elimination):
    case = setting(name)
    history = run(
        case.problem,
        case.make(HEGPUCB, elimination=elimination),
        25,
    )
    ledger(history, case.problem).check_identity(1e-8)


@pytest.mark.parametrize("name", SETTINGS)
def test_terms_add_up_under_perturbation_too(name):
    case = setting(name).replaced(epsilon=0.1)
    history = run(
        case.problem,
        case.make(HEStableOpt, elimination="never"),
        25,
    )
    accounts = ledger(history, case.problem)
    accounts.check_identity(1e-8)
    torch.testing.assert_close(accounts.regret, cumulative_regret(history, case.problem))


def test_an_identity_that_is_off_is_found():
    case = setting("period")
    book = ledger(run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=3), 9), case.problem)
    wrong = dataclasses.replace(book, terms={**book.terms, "widths": book.terms["widths"] + 1e-6})
    with pytest.raises(ValueError, match="the terms miss the regret by up to 1e-06"):
        wrong.check_identity(1e-8)


def test_the_default_bound_is_the_largest_value_in_any_replicate():
    case = setting("mean")
    history = run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta), 6)
    largest = max(abs(v) for row in case.problem.values.tolist() for v in row)
    given, default = ledger(history, case.problem, largest), ledger(history, case.problem)
    torch.testing.assert_close(given.bounds["Inequality 9"], default.bounds["Inequality 9"])


def test_the_largest_multiplier_so_far_stands_in_the_bounds_where_multipliers_fall():
    problem = setting("lengthscale").problem
    falling = [3.0, 2.0, 2.5, 1.0, 3.5, 0.5]
    policy = HEGPUCB(problem.space, sqrt_beta=lambda t: torch.tensor([1.0, 0.5, 0.9, 0.2], dtype=F64) * falling[t - 1])
    history = run(problem, policy, 6)
    claim, steps = ledger(history, problem).claims["realized gain"], torch.arange(1, 7)
    gains = information_gains(rounds(history, problem), problem).sum(-1)
    root = (2 / math.log1p(1 / problem.noise_std**2) * steps * gains).sqrt()
    torch.testing.assert_close(claim.right / root, torch.tensor([3.0, 3.0, 3.0, 3.0, 3.5, 3.5], dtype=F64).expand(3, 6))


# ---- the regret itself


@pytest.mark.parametrize("name", SETTINGS)
def test_regret_counts_from_the_first_round_after_the_initial_design(name):
    case = setting(name)
    history = run(case.problem, case.make(HEGPUCB), 12)
    found = instantaneous_regret(history, case.problem)
    assert found.shape == (3, 12 - case.initial)
    values = case.problem.values.expand(3, -1)
    for r in range(3):
        best, total, least = max(values[r].tolist()), 0.0, math.inf
        for t in range(12 - case.initial):
            query = history["query"][r, case.initial + t]
            at = int((case.problem.space.points == query).all(-1).nonzero())
            gap = best - float(values[r, at])
            total, least = total + gap, min(least, gap)
            assert float(found[r, t]) == pytest.approx(gap, abs=1e-12)
            assert float(cumulative_regret(history, case.problem)[r, t]) == pytest.approx(total, abs=1e-12)
            assert float(simple_regret(history, case.problem)[r, t]) == pytest.approx(least, abs=1e-12)


def test_regret_under_perturbation_is_of_the_chosen_point_and_of_the_worst_value():
    problem = changed(setting("lengthscale").problem, epsilon=0.06)
    history = run(problem, HEStableOpt(problem.space, sqrt_beta=lambda t: 3.0, initial=2), 12)
    values, points = problem.values.tolist(), problem.space.points.flatten().tolist()

    def worst(x):
        return min(v for v, z in zip(values, points, strict=True) if abs(x - z) <= 0.06 * (1 + 1e-9))

    best = max(worst(x) for x in points)
    expected = [[best - worst(float(x)) for x in row] for row in history["chosen"][:, 2:, 0]]
    np.testing.assert_allclose(instantaneous_regret(history, problem), expected, rtol=0, atol=1e-12)
    assert bool((instantaneous_regret(history, problem) >= 0).all())


@pytest.mark.parametrize("make", [AveragedUCB, MaximumLikelihood, HEGPUCB])
@pytest.mark.parametrize("initial", [0, 3])
def test_the_initial_rounds_can_be_told_from_the_history_of_any_policy(make, initial):
    problem = setting("lengthscale").problem
    assert initial_rounds(run(problem, make(problem.space, sqrt_beta=0.01, initial=initial), 5)) == initial


def test_a_policy_that_does_not_explore_has_a_regret_too():
    problem = setting("lengthscale").problem
    history = run(problem, OracleGPUCB(problem.space, problem.truth, sqrt_beta=lambda t: 0.0, initial=3), 8)
    assert cumulative_regret(history, problem).shape == (3, 5)


# ---- draws from the prior: what holds, and how often

SCALES, COUNT, ROUNDS = (0.06, 0.12, 0.25, 0.6), 60, 30


@pytest.fixture(scope="module", params=[0.1, 0.6])
def drawn(request):
    """Draws of the true prior, another in each replicate, and a run with the widths of Theorem 4.2, case A."""
    failure = request.param
    truth = torch.arange(COUNT) % len(SCALES)
    candidates = lengthscale_candidates(SCALES)
    f = draws_of_candidates(candidates, truth, range(COUNT))
    problem = problem_of(f, candidates, line(60), noise_std=0.2, truth=truth, replicates=COUNT)
    history = run(problem, HEGPUCB(problem.space, initial=0, failure=failure), ROUNDS, range(COUNT))
    return problem, history, ledger(history, problem, failure=failure), failure


def test_on_draws_from_the_prior_every_claim_holds_as_often_as_promised(drawn):
    _, _, book, failure = drawn
    for name in ("confidence", "noise"):
        claim = book.claims[name]
        assert claim.frequency >= claim.probability == pytest.approx(1 - failure / 2)
    for name in CLAIMS[2:]:
        assert book.claims[name].frequency == 1.0, name
        assert book.claims[name].checked > 0
    good = book.claims["confidence"].held & book.claims["noise"].held
    assert float(good.double().mean()) >= 1 - failure
    book.check_identity(1e-8)
    assert bool((book.regret <= book.bounds["Inequality 9"]).all(-1)[good].all())
    assert bool((book.bounds["Inequality 9"] <= book.bounds["final bound"] + 1e-9).all())


def test_on_draws_from_the_prior_the_truth_survives(drawn):
    problem, history, book, _ = drawn
    good = book.claims["confidence"].held & book.claims["noise"].held
    alive = history["alive"].gather(-1, problem.truth[:, None, None].expand(-1, ROUNDS, 1)).squeeze(-1)
    assert alive[good].all()
    assert bool((book.terms["f* - UCB"][good] <= 1e-9).all())


def test_narrow_intervals_fail(drawn):
    problem, _, _, failure = drawn
    narrow = run(
        problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 0.2, initial=0, failure=failure), ROUNDS, range(COUNT)
    )
    claims = ledger(narrow, problem, failure=failure).claims
    assert claims["confidence"].frequency < 0.1
    lost = ~narrow["alive"].gather(-1, problem.truth[:, None, None].expand(-1, ROUNDS, 1)).squeeze(-1)
    assert lost.any()  # and then the truth may be dropped,
    assert claims["truth survives"].violations == 0  # which is no contradiction


def test_on_functions_of_bounded_norm_the_derived_widths_hold_and_the_printed_ones_do_not():
    candidates, norm = lengthscale_candidates((0.05, 0.15, 0.5)), 0.5
    unit = torch.tensor([[0.0], [1.0]], dtype=F64)
    f = rkhs_samples(candidates.kernels[0], unit, norm, range(40))
    problem = problem_of(f, candidates, line(60), noise_std=0.1, truth=0, replicates=40)
    claims = {}
    derived = frequentist_sqrt_beta(candidates.prior(0.1).kernel, line(60), 0.1, norm, 25)
    for printed, schedule in ((True, printed_sqrt_beta(problem.space, norm, 25)), (False, derived)):
        policy = HEGPUCB(problem.space, sqrt_beta=schedule)
        claims[printed] = ledger(run(problem, policy, 25, range(40)), problem, norm).claims
    promised = claims[True]["confidence"].probability
    # The printed factor R belongs to a posterior that is regularized by one, not by R^2.
    assert claims[True]["confidence"].frequency < 0.1 < promised == pytest.approx(0.95)
    assert claims[False]["confidence"].frequency >= promised
    for name in CLAIMS[1:]:
        assert claims[False][name].frequency >= claims[False][name].probability, name
    assert all(claims[False][name].checked > 0 for name in CLAIMS)


# ---- histories that were tampered with


@pytest.fixture(scope="module")
def honest():
    """A run in which both events hold and nothing is dropped."""
    truth = torch.tensor([0, 1, 2])
    candidates = lengthscale_candidates((0.1, 0.25, 0.6))
    f = draws_of_candidates(candidates, truth, range(3))
    problem = problem_of(f, candidates, line(50), noise_std=0.1, truth=truth, replicates=3)
    history = run(problem, HEGPUCB(problem.space, initial=2), 16, range(3))
    return problem, history


def shifted(history, amount):
    """The chosen candidate's mean moved, after the initial design of two rounds."""
    at = history["candidate"].clamp_min(0).unsqueeze(-1)
    step = torch.full_like(history["mean"], amount)
    step[:, :2] = 0
    return history["mean"] + torch.zeros_like(step).scatter(-1, at, step.gather(-1, at))


def alternating(history):
    """One candidate all the time; its first two errors cancel, and the first one refutes it."""
    candidate, mean = history["candidate"].clone(), history["mean"].clone()
    candidate[:, 2:], mean[:, 2:] = 0, history["observation"][:, 2:, None]
    mean[:, 2, 0] -= 100
    mean[:, 3, 0] += 100
    return {"candidate": candidate, "mean": mean}


TAMPER = {
    "confidence": lambda h: {"sqrt_beta": 0.03 * h["sqrt_beta"]},
    "noise": lambda h: {"observation": h["observation"] + 3},
    "truth survives": lambda h: {"alive": torch.zeros_like(h["alive"])},
    "one round": lambda h: {"mean": shifted(h, -50.0)},
    "critical rounds": lambda h: {"mean": shifted(h, -50.0)},
    "prediction errors": alternating,
    "realized gain": lambda h: {"std": 10 * h["std"]},
    "maximum gain": lambda h: {"std": 30 * h["std"]},
}


def test_an_honest_history_violates_nothing(honest):
    problem, history = honest
    claims = ledger(history, problem).claims
    assert all(claim.violations == 0 for claim in claims.values())
    assert all(claims[name].applies.all() for name in ("truth survives", "one round", "sum"))


@pytest.mark.parametrize("name", TAMPER)
def test_a_history_that_was_tampered_with_violates_the_claim(honest, name):
    problem, history = honest
    claim = ledger(doctored(history, **TAMPER[name](history)), problem).claims[name]
    assert claim.violations > 0
    assert claim.frequency == 0.0


def test_inequality_9_fails_with_a_bound_that_is_none():
    # f is a spike that the prior does not expect, next to no noise, and a bound of zero for critical rounds.
    candidates = lengthscale_candidates((0.1, 0.25))
    f = draws_of_candidates(candidates, torch.tensor([0, 0, 1]), range(3))
    problem = problem_of(f, candidates, line(50), noise_std=1e-3, truth=torch.tensor([0, 0, 1]), replicates=3)
    history = run(problem, HEGPUCB(problem.space), 16, range(3))
    wrong = doctored(history, std=torch.zeros_like(history["std"]))
    claim = ledger(wrong, problem, bound=0.0).claims["sum"]
    assert claim.applies.all() and claim.violations > 0
    assert ledger(history, problem).claims["sum"].violations == 0


def test_lemma_5_2_is_an_equality_where_all_candidates_are_chosen_equally_often(honest):
    problem, history = honest
    candidate = history["candidate"].clone()
    candidate[:, 2:] = torch.arange(14) % 3
    claim = ledger(doctored(history, candidate=candidate), problem).claims["counts"]
    assert claim.violations == 0
    balanced = torch.arange(2, 14, 3)  # after 3, 6, ... rounds
    torch.testing.assert_close(claim.left[:, balanced], claim.right[:, balanced])


def test_where_no_candidate_is_true_a_refuted_last_one_makes_more_critical_rounds_than_candidates():
    # The paper drops it and has no candidate left; the library keeps it, and |C| <= |U| need not hold then.
    candidates = Candidates(("one", "two"), (rbf_kernel(0.3),) * 2, (5.0, 4.0))
    problem = problem_of(lambda x: 0 * x[..., 0], candidates, line(20), noise_std=0.05, truth=0)
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 0.5), 12)
    assert history["refuted"][:, -1].all()
    claims = ledger(history, problem).claims
    assert claims["critical rounds"].frequency == 0.0
    assert claims["confidence"].frequency == 0.0  # no good event, so nothing is claimed that follows from it
    assert all(claims[name].checked == 0 for name in ("truth survives", "one round", "sum"))


# ---- robust optimization


@pytest.fixture(scope="module")
def perturbed():
    truth = torch.arange(30) % 3
    candidates = lengthscale_candidates((0.07, 0.15, 0.4))
    f = draws_of_candidates(candidates, truth, range(30))
    problem = problem_of(f, candidates, line(50), truth=truth, epsilon=0.05, replicates=30)
    return problem, run(problem, HEStableOpt(problem.space, initial=2), 22, range(30))


def test_the_robust_claim_is_the_upper_bound_minus_the_lower_bound_where_it_was_asked(perturbed):
    problem, history = perturbed
    claim = robust_claim(history, problem)
    for r in range(30):
        for t in range(20):
            mean, std, beta = (history[name][r, 2 + t].tolist() for name in ("mean", "std", "sqrt_beta"))
            u, v = int(history["candidate"][r, 2 + t]), int(history["pessimist"][r, 2 + t])
            right = (mean[u] + beta[u] * std[u]) - (mean[v] - beta[v] * std[v])
            assert float(claim.right[r, t]) == pytest.approx(right, abs=1e-9)
    assert torch.equal(claim.left, instantaneous_regret(history, problem))


def test_the_robust_claim_holds_while_the_intervals_of_the_truth_hold_and_it_is_left(perturbed):
    problem, history = perturbed
    claim = robust_claim(history, problem)
    alive = history["alive"].gather(-1, problem.truth[:, None, None].expand(-1, 22, 1)).squeeze(-1)[:, 2:]
    event = (confidence_ratio(history, problem) <= 1).all(-1) & alive.all(-1)
    assert float(event.double().mean()) >= 0.9
    assert claim.holds[event].all()
    assert bool((claim.left > 0.1).any())


def test_with_the_printed_sign_the_robust_claim_fails_where_it_should_hold(perturbed):
    # eta of u_t is the observation minus the mean, so the upper bound minus the observation is the width minus eta.
    problem, history = perturbed
    event = (confidence_ratio(history, problem) <= 1).all(-1)
    optimist, pessimist = rounds(history, problem), rounds(history, problem, "pessimist")
    printed = optimist.width + optimist.error + pessimist.width + pessimist.error
    assert bool((instantaneous_regret(history, problem) > printed + 1e-9)[event].any())


def test_a_robust_history_that_was_tampered_with_violates_the_claim(perturbed):
    problem, history = perturbed
    wrong = doctored(history, std=torch.zeros_like(history["std"]), mean=torch.zeros_like(history["mean"]))
    assert robust_claim(wrong, problem).violations > 0


# ---- what is refused


def test_a_policy_that_averages_has_no_rounds_of_a_candidate():
    problem = setting("lengthscale").problem
    history = run(problem, AveragedUCB(problem.space), 4)
    for account in (rounds, ledger):
        with pytest.raises(ValueError, match="history must be of a policy that chooses a candidate in every round"):
            account(history, problem)


def test_a_history_of_the_initial_design_alone_has_no_accounts():
    problem = setting("lengthscale").problem
    with pytest.raises(ValueError, match="history must hold at least one round after its initial design, got none"):
        ledger(run(problem, HEGPUCB(problem.space, initial=4), 4), problem)


def test_the_truth_must_be_known():
    problem = changed(setting("lengthscale").problem, truth=None)
    history = run(problem, HEGPUCB(problem.space), 3)
    for account in (confidence_ratio, ledger):
        with pytest.raises(ValueError, match="truth must be known to the problem, it is None"):
            account(history, problem)


def test_a_box_has_no_worst_point_to_look_for():
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    problem = problem_of(bump, lengthscale_candidates((0.1, 0.3)), bounds=bounds, truth=0)
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 1.0), 2)
    for account in (confidence_ratio, ledger):
        with pytest.raises(ValueError, match="points must be given, the domain of this space is a box"):
            account(history, problem)


def test_a_history_of_the_reduced_problem_does_not_fit_the_whole_one():
    problem = setting("lengthscale").problem
    history = run(problem, OracleGPUCB(problem.space, 3), 4)
    with pytest.raises(ValueError, match="history"):
        ledger(history, problem)


def test_a_history_without_a_set_of_candidates_is_refused():
    problem = setting("lengthscale").problem
    history = run(problem, MaximumLikelihood(problem.space), 4)
    with pytest.raises(ValueError, match="history"):
        ledger(history, problem)
