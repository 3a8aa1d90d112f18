"""The accounts recomputed by plain loops, their identity, and claims that hold, and fail where they should."""

import math

import numpy as np
import pytest
import torch

from book.hyperparameters.problems import draws_of_candidates, lengthscale_candidates
from book.hyperparameters.regret import (
    confidence_ratio,
    critical_rounds,
    cumulative_regret,
    information_gains,
    initial_rounds,
    ledger,
    robust_claim,
    rounds,
)
from cbo_lib.hyperparameters import (
    HEGPUCB,
    HEStableOpt,
)
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    SEEDS,
    SETTINGS,
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
    assert bool((gains.diff(dim=1) >= -1e-9).all())


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
        assert book.claims[name].frequency == pytest.approx(1), name
        assert book.claims[name].checked > 0
    good = book.claims["confidence"].held & book.claims["noise"].held
    assert float(good.double().mean()) >= 1 - failure
    book.check_identity(1e-8)
    assert bool((book.regret <= book.bounds["Inequality 9"] + 1e-8).all(-1)[good].all())
    assert bool((book.bounds["Inequality 9"] <= book.bounds["final bound"] + 1e-9).all())


def test_on_draws_from_the_prior_the_truth_survives(drawn):
    problem, history, book, _ = drawn
    good = book.claims["confidence"].held & book.claims["noise"].held
    alive = history["alive"].gather(-1, problem.truth[:, None, None].expand(-1, ROUNDS, 1)).squeeze(-1)
    assert alive[good].all()
    assert bool((book.terms["f* - UCB"][good] <= 1e-9).all())


# ---- robust optimization


@pytest.fixture(scope="module")
def perturbed():
    truth = torch.arange(30) % 3
    candidates = lengthscale_candidates((0.07, 0.15, 0.4))
    f = draws_of_candidates(candidates, truth, range(30))
    problem = problem_of(f, candidates, line(50), truth=truth, epsilon=0.05, replicates=30)
    return problem, run(problem, HEStableOpt(problem.space, initial=2), 22, range(30))


def test_the_robust_claim_holds_while_the_intervals_of_the_truth_hold_and_it_is_left(perturbed):
    problem, history = perturbed
    claim = robust_claim(history, problem)
    alive = history["alive"].gather(-1, problem.truth[:, None, None].expand(-1, 22, 1)).squeeze(-1)[:, 2:]
    event = (confidence_ratio(history, problem) <= 1).all(-1) & alive.all(-1)
    assert float(event.double().mean()) >= 0.9
    assert claim.holds[event].all()
    assert bool((claim.left > 0.1).any())
