"""The accounts recomputed by plain loops, their identity, and claims that hold, and fail where they should."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from book.hyperparameters import regret
from book.hyperparameters.problems import draws_of_candidates, hill_candidates, lengthscale_candidates, random_truth
from cbo_lib.hyperparameters import HEGPUCB, Candidates, HEStableOpt
from cbo_lib.kernels import rbf_kernel
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, SEEDS, SETTINGS, changed, line, noise_draws, problem_of, run, setting

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
    "realized gain by kernel",
    "maximum gain by kernel",
    "sum",
    "by kernel",
]


def irregular(name):
    """A setting on random points: none are tied, so that the greedy gain is the same whatever the rounding."""
    case = setting(name)
    domain, rng = case.problem.space.points, torch.Generator().manual_seed(11)
    points = domain.amax(0) * torch.rand(30, domain.shape[-1], generator=rng, dtype=F64)
    return replace(case, problem=changed(case.problem, points=points))


class Recomputed:
    """Everything that the ledger holds about one replicate, from the paper's definitions, round by round."""

    def __init__(self, case, history, replicate, seed):
        world, truth = case.world(replicate), torch.as_tensor(case.problem.truth).expand(len(SEEDS))[replicate].item()
        loop = plain.HEGPUCB(world, case.beta, FAILURE)
        everything = loop.run(noise_draws(seed, STEPS), case.design(history, replicate))
        played, count, R = [r for r in everything if not r.initial], len(case.priors), world.noise_std
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
        self.xi = np.array([plain.xi(r.t, R, count, FAILURE) for r in played])
        owner = [id(kernel) for kernel in case.problem.space.candidates.kernels]
        self.kernels = len(set(owner))
        self.by_kernel = []
        total, terms, kept_error = 0.0, np.zeros(4), 0.0
        for t, r in enumerate(played, start=1):
            sets = [[i for i in range(t) if self.candidate[i] == u] for u in range(count)]
            xi = self.xi[t - 1]
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
            lists = [[i for i in range(t) if owner[self.candidate[i]] == k] for k in dict.fromkeys(owner)]
            models = [case.priors[owner.index(k)] for k in dict.fromkeys(owner)]
            self.by_kernel.append(
                [plain.gain(p, R, points[[self.index[i] for i in s]]) for p, s in zip(models, lists, strict=True)]
            )
            self.noise_sum.append([abs(sum(self.noise[i] for i in s)) for s in sets])
            self.noise_right.append([math.sqrt(xi * len(s)) for s in sets])
            self.count.append([len(s) for s in sets])
            self.square.append(sum(self.noise_right[-1]))
            self.top.append(max(max(q.beta) for q in played[:t]))
            gap = max(values) - values[r.index]
            total += gap
            upper = r.mean[r.candidate] + self.width[t - 1]
            if self.critical[-1]:
                terms = terms + np.array([gap, 0, 0, 0])
            else:
                over = r.mean[r.candidate] - values[r.index]
                terms = terms + np.array([0, max(values) - upper, self.width[t - 1], over])
                kept_error += self.error[t - 1]
            self.regret.append(total)
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
    return case, history, regret.ledger(history, case.problem, BOUND, FAILURE), recomputed


def same(found, expected, tolerance=1e-8):
    expected = torch.tensor(np.array(expected), dtype=F64)
    torch.testing.assert_close(found.to(F64), expected, rtol=tolerance, atol=tolerance)


def test_the_quantities_of_each_round(accounts):
    case, history, _, recomputed = accounts
    seen = regret.rounds(history, case.problem)
    assert regret.initial_rounds(history) == case.initial
    assert seen.candidate.tolist() == [r.candidate for r in recomputed]
    for name in ("error", "width", "noise"):
        same(getattr(seen, name), [getattr(r, name) for r in recomputed])
    for r, own in enumerate(recomputed):
        assert torch.equal(seen.point[r], case.problem.space.points[torch.tensor(own.index)])


def test_critical_rounds_are_those_of_line_12(accounts):
    case, history, _, recomputed = accounts
    found = regret.critical_rounds(regret.rounds(history, case.problem), case.problem, FAILURE)
    assert found.tolist() == [r.critical for r in recomputed]
    assert (found.any() or case.priors == setting("lengthscale").priors) and not found.all()  # it drops nobody


def test_the_confidence_ratio_is_the_worst_point_of_each_round(accounts):
    case, history, _, recomputed = accounts
    same(regret.confidence_ratio(history, case.problem), [r.ratio for r in recomputed], 1e-7)


def test_information_gains_are_of_the_rounds_of_each_candidate(accounts):
    case, history, _, recomputed = accounts
    gains = regret.information_gains(regret.rounds(history, case.problem), case.problem)
    same(gains, [r.gains for r in recomputed])
    assert bool((gains.diff(dim=1) >= -1e-9).all())
    together = regret.information_gains(regret.rounds(history, case.problem), case.problem, by_kernel=True)
    same(together, [r.by_kernel for r in recomputed])


def test_the_terms_are_the_plain_ones_and_add_up_to_the_regret(accounts):
    _, _, book, recomputed = accounts
    assert list(book.terms) == ["critical rounds", "f* - UCB", "widths", "mean - f"]
    for i, term in enumerate(book.terms.values()):
        same(term, [[terms[i] for terms in r.terms] for r in recomputed])
    same(book.regret, [r.regret for r in recomputed])
    book.check_identity(1e-8)


def test_the_bounds_are_the_plain_ones(accounts):
    case, _, book, recomputed = accounts
    U = len(case.priors)
    nine = [2 * U * BOUND + 2 * np.array(r.square) + 2 * np.array(r.kept_widths) for r in recomputed]
    same(book.bounds["Inequality 9"], nine)
    r = recomputed[0]
    paid = 2 * U * BOUND + 2 * np.sqrt(U * r.xi * r.steps)
    for name, lists in (("final bound", U), ("by kernel", r.kernels)):
        width = np.array(r.top) * np.sqrt(r.constant * r.steps * lists * r.gamma)
        same(book.bounds[name], paid + 2 * width)


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
    for name, lists in (("maximum gain", lambda r: U), ("maximum gain by kernel", lambda r: r.kernels)):
        check(
            name,
            lambda r: r.kept_widths,
            lambda r, lists=lists: np.array(r.top) * np.sqrt(r.constant * r.steps * lists(r) * r.gamma),
        )
    check(
        "realized gain by kernel",
        lambda r: r.kept_widths,
        lambda r: np.array(r.top) * np.sqrt(r.constant * r.steps * np.sum(r.by_kernel, -1)),
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
        if name in ("truth survives", "one round", "sum", "by kernel"):
            assert torch.equal(claim.applies.all(-1), good) and torch.equal(claim.applies.any(-1), good)
        else:
            assert claim.applies is None
        promised = 1 - FAILURE / 2 if name in ("confidence", "noise") else 1.0
        assert claim.probability == pytest.approx(promised)
        assert claim.source


@pytest.mark.parametrize("name", SETTINGS)
def test_terms_add_up_under_perturbation_too(name):
    case = setting(name).robust(0.1)
    history = run(
        case.problem,
        case.make(HEStableOpt, eliminate=False),
        25,
    )
    accounts = regret.ledger(history, case.problem)
    accounts.check_identity(1e-8)
    torch.testing.assert_close(accounts.regret, regret.cumulative_regret(history, case.problem))


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
    return problem, history, regret.ledger(history, problem, failure=failure), failure


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


# ---- candidates that share a kernel


def test_candidates_that_share_a_kernel_need_no_split():
    """Both sides by hand: one posterior deviation, one list of rounds, and a bound without the root of ``|U|``."""
    truth, seeds, T, failure = random_truth(11, range(40)), range(40), 25, 0.6
    candidates = hill_candidates(5.0, 2.0)
    f = draws_of_candidates(candidates, truth, seeds)
    problem = problem_of(f, candidates, line(80), truth=truth, replicates=40)
    history = run(problem, HEGPUCB(problem.space, failure=failure), T, seeds)
    assert torch.equal(history["std"], history["std"][..., :1].expand_as(history["std"]))
    book, k = regret.ledger(history, problem, failure=failure), plain.rbf(0.2)
    variances, gain = np.zeros(40), np.zeros(40)
    for i, points in enumerate(history["query"].numpy()):
        for t in range(T):  # one list, whoever chose
            std = plain.posterior(plain.Prior(k), 0.1, points[:t], np.zeros(t), points[t : t + 1])[1]
            assert float(history["std"][i, t, 0]) == pytest.approx(float(std[0]), abs=1e-7)
            variances[i] += float(std[0]) ** 2
        gain[i] = plain.gain(plain.Prior(k), 0.1, points)
    top = plain.case_a_beta(80, T, failure)
    constant = 2 / math.log1p(100)
    assert (variances <= constant * gain + 1e-9).all()
    claim = book.claims["realized gain by kernel"]
    same(claim.right[:, -1], top * np.sqrt(constant * T * gain), 1e-6)
    assert claim.violations == 0
    good = book.claims["confidence"].held & book.claims["noise"].held
    assert float(good.double().mean()) >= 1 - failure
    assert bool((book.regret <= book.bounds["by kernel"])[good].all())
    widths = [book.claims[f"maximum gain{name}"].right[0, -1] for name in ("", " by kernel")]
    assert float(widths[0] / widths[1]) == pytest.approx(math.sqrt(11))


def test_two_kernels_among_six_candidates_count_as_two():
    short, long = rbf_kernel(0.1), rbf_kernel(0.4)
    candidates = Candidates(tuple("abcdef"), (short, long, short, long, long, short), (0.0, 0.0, 1.0, 1.0, -1.0, -1.0))
    truth = torch.arange(12) % 6
    f = draws_of_candidates(candidates, truth, range(12))
    problem = problem_of(f, candidates, line(40), truth=truth, replicates=12)
    assert regret.kernel_of(problem).tolist() == [0, 1, 0, 1, 1, 0]
    book = regret.ledger(run(problem, HEGPUCB(problem.space), 25, range(12)), problem)
    sides = [book.claims[f"maximum gain{name}"].right[0, -1] for name in ("", " by kernel")]
    assert float(sides[0] / sides[1]) == pytest.approx(math.sqrt(3))
    assert all(book.claims[name].violations == 0 for name in CLAIMS if "kernel" in name)


# ---- robust optimization


@pytest.fixture(scope="module", params=["lengthscales", "hills"])
def perturbed(request):
    candidates = (
        lengthscale_candidates((0.07, 0.15, 0.4)) if request.param == "lengthscales" else hill_candidates(2.0, 10.0)
    )
    truth = torch.arange(30) % len(candidates)
    f = draws_of_candidates(candidates, truth, range(30))
    problem = problem_of(f, candidates, line(60), truth=truth, epsilon=0.05, replicates=30)
    return problem, run(problem, HEStableOpt(problem.space, initial=2), 40, range(30))


def test_the_robust_claims_hold_while_the_bands_of_the_truth_hold_and_it_is_left(perturbed):
    problem, history = perturbed
    book = regret.robust_ledger(history, problem)
    book.check_identity(1e-8)
    good = (regret.confidence_ratio(history, problem) <= 1).all(-1)
    assert float(good.double().mean()) >= 0.9 and book.claims["truth survives"].frequency == 1
    for name, claim in book.claims.items():
        if name not in ("errors of u", "errors of v"):  # these are the printed ones
            assert bool(claim.held[good].all()), name
    assert bool((book.claims["one round"].left > 0.1).any())
    assert bool((book.bounds["sum"] <= book.bounds["Theorem 6.1, repaired"] + 1e-9).all())


def test_the_printed_sums_of_errors_break_where_the_other_role_was_refuted():
    candidates, seeds = hill_candidates(2.0, 10.0), range(40)
    truth = random_truth(11, seeds)
    f = draws_of_candidates(candidates, truth, seeds)
    problem = problem_of(f, candidates, line(200), truth=truth, epsilon=0.02, replicates=40)
    book = regret.robust_ledger(run(problem, HEStableOpt(problem.space), 60, seeds), problem)
    assert book.claims["errors of v"].frequency < 0.9
    assert book.claims["errors of u, own rounds"].frequency == book.claims["errors of v, own rounds"].frequency == 1


def test_a_grid_costs_a_box_three_slopes_a_round():
    """A robust regret on the box is at most that on a grid and 3 L h, h the farthest that a point is from the grid."""
    f = draws_of_candidates(lengthscale_candidates((0.05,)), torch.zeros(30, dtype=torch.long), range(30))
    dense = torch.linspace(0, 1, 2001, dtype=F64)[:, None]
    values = f(dense.expand(30, -1, -1))
    slope = (values.diff(dim=-1).abs().amax(-1) * 2000)[:, None]

    def robust_regret(values, points):
        near = (points - points.T).abs() <= 0.02 + 1e-9
        worst = values.unsqueeze(1).masked_fill(~near, torch.inf).amin(-1)
        return worst.amax(-1, keepdim=True) - worst

    box, grid = robust_regret(values, dense)[:, ::50], robust_regret(values[:, ::50], dense[::50])
    assert bool((box <= grid + 3 * slope * 0.0125).all())
