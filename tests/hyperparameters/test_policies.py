"""Batches of replicates against the plain policies, and what the policies refuse."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problems import lengthscale_candidates
from book.hyperparameters.regret import critical_rounds, ledger, rounds
from book.hyperparameters.slips import WidthAfter
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.former.simulate import ObservationError
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    Candidates,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
    Space,
)
from cbo_lib.hyperparameters.baselines import OneCandidate
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    LENGTHSCALES,
    SEEDS,
    SETTINGS,
    bump,
    changed,
    line,
    noise_draws,
    problem_of,
    run,
    setting,
)

STEPS = 22


def assert_same_run(history, replicate, played, points, tolerance=1e-9):
    """Everything that the plain policy left behind against the history of one replicate."""

    def at(indices):
        return points[torch.tensor(indices)]

    assert torch.equal(history["query"][replicate], at([r.index for r in played]))
    assert history["candidate"][replicate].tolist() == [r.candidate for r in played]
    assert torch.equal(history["recommendation"][replicate], at([r.recommended for r in played]))
    for name, values in (
        ("observation", [r.observation for r in played]),
        ("mean", [r.mean for r in played]),
        ("std", [r.std for r in played]),
        ("sqrt_beta", [r.beta for r in played]),
    ):
        expected = torch.from_numpy(np.array(values))
        torch.testing.assert_close(history[name][replicate], expected, rtol=0, atol=tolerance)
    if "alive" in history.tensors and played[-1].alive is not None:
        assert history["alive"][replicate].tolist() == [r.alive for r in played]
        assert history["refuted"][replicate].tolist() == [r.refuted for r in played]


def assert_is_plain(case, policy, make, steps=STEPS, seeds=SEEDS):
    """Every replicate of a batch against a plain policy made from its world."""
    history = run(case.problem, policy, steps, seeds)
    for replicate, seed in enumerate(seeds):
        played = make(case.world(replicate), replicate).run(noise_draws(seed, steps), case.design(history, replicate))
        assert_same_run(history, replicate, played, case.problem.space.points)
    return history


@pytest.mark.parametrize("name", SETTINGS)
def test_he_gp_ucb_is_the_plain_algorithm(name):
    case = setting(name)
    history = assert_is_plain(
        case,
        case.make(HEGPUCB),
        lambda world, r: plain.HEGPUCB(world, case.beta),
    )
    assert not history["alive"][:, -1].all()  # candidates were dropped,
    assert history["alive"][:, -1].any(-1).all()  # not all,
    assert len(history["candidate"][:, case.initial :].unique()) > 1  # and several had the largest bound


@pytest.mark.parametrize("name", SETTINGS)
def test_he_gp_ucb_with_its_own_multipliers_is_the_plain_algorithm(name):
    case, failure = setting(name), 0.3
    n = len(case.problem.space.points)
    assert_is_plain(
        case,
        HEGPUCB(case.problem.space, initial=case.initial, failure=failure),
        lambda world, r: plain.HEGPUCB(world, lambda t: plain.case_a_beta(n, t, failure), failure),
    )


@pytest.mark.parametrize("failure", [0.01, 0.9])
def test_the_failure_moves_the_threshold(failure):
    case = setting("period")
    assert_is_plain(
        case,
        case.make(HEGPUCB, failure=failure),
        lambda world, r: plain.HEGPUCB(world, case.beta, failure),
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_width_after_the_observation_is_the_plain_one(name):
    case = setting(name)
    history = assert_is_plain(
        case,
        case.make(WidthAfter),
        lambda world, r: plain.HEGPUCB(world, case.beta, after=True),
    )
    before = run(case.problem, case.make(HEGPUCB), STEPS)
    # The width is smaller after the observation, so the first candidate is dropped at the same round or sooner.
    first = [(~h["alive"].all(-1)).to(torch.uint8).argmax(-1) for h in (history, before)]
    lost = ~before["alive"][:, -1].all(-1)
    assert bool((first[0] <= first[1])[lost].all())
    assert name in ("period", "shared kernel") or not torch.equal(history["alive"], before["alive"])


@pytest.mark.parametrize("name", SETTINGS)
def test_without_elimination_all_candidates_are_kept(name):
    case = setting(name)
    history = assert_is_plain(
        case,
        case.make(HEGPUCB, elimination="never"),
        lambda world, r: plain.HEGPUCB(world, case.beta, eliminate=False),
    )
    assert history["alive"].all() and not history["refuted"].any()


@pytest.mark.parametrize("name", SETTINGS)
def test_maximum_likelihood_is_the_plain_baseline(name):
    case = setting(name)
    history = assert_is_plain(
        case,
        case.make(MaximumLikelihood),
        lambda world, r: plain.MaximumLikelihood(world, case.beta),
    )
    assert name == "period" or len(history["candidate"][:, case.initial :].unique()) > 1


@pytest.mark.parametrize("name", SETTINGS)
def test_expected_ucb_is_the_plain_baseline(name):
    case = setting(name)
    history = assert_is_plain(
        case,
        case.make(AveragedUCB),
        lambda world, r: plain.ExpectedUCB(world, case.beta),
    )
    assert bool((history["candidate"] == -1).all())


def root(t):
    return math.sqrt(t)


@pytest.mark.parametrize("g", [None, root])
def test_a_gp_ucb_is_the_plain_baseline(g):
    case = setting("lengthscale")
    history = assert_is_plain(
        case,
        case.make(AGPUCB, lengthscales=LENGTHSCALES, g=g),
        lambda world, r: plain.AGPUCB(world, case.beta, LENGTHSCALES, g or (lambda t: t**0.9)),
    )
    likely = run(case.problem, case.make(MaximumLikelihood), case.initial + 1)
    assert torch.equal(history["candidate"][:, case.initial], likely["candidate"][:, -1])
    if g is None:
        assert history["candidate"][:, -5:].unique().tolist() == [0]


def test_a_gp_ucb_finds_the_lengthscales_of_its_kernels():
    case = setting("lengthscale")
    assert case.make(AGPUCB).lengthscales.tolist() == pytest.approx(LENGTHSCALES, rel=1e-12)
    with pytest.raises(ValueError, match="lengthscales must be given for kernels without exactly one"):
        AGPUCB(setting("decomposition").problem.space)


def test_the_shrinking_factor_is_never_below_one():
    case = setting("lengthscale")
    policy = AGPUCB(case.problem.space, lengthscales=LENGTHSCALES, g=lambda t: 0.3, sqrt_beta=case.sqrt_beta, initial=2)
    likely = run(case.problem, MaximumLikelihood(case.problem.space, sqrt_beta=case.sqrt_beta, initial=2), 12)
    assert torch.equal(run(case.problem, policy, 12)["candidate"], likely["candidate"])
    assert bool((likely["candidate"][:, 2:] < 3).any())


@pytest.mark.parametrize("name", SETTINGS)
def test_gp_ucb_with_one_candidate_is_the_plain_policy_with_that_prior(name):
    case = setting(name)
    for u in range(len(case.priors)):
        policy = case.make(OracleGPUCB, u)
        history = run(case.problem, policy, STEPS)
        assert history["mean"].shape[-1] == 1
        for replicate, seed in enumerate(SEEDS):
            loop = plain.HEGPUCB(case.world(replicate, [u]), lambda t, u=u: case.beta(t)[u], eliminate=False)
            played = loop.run(noise_draws(seed, STEPS), case.design(history, replicate))
            assert_same_run(history, replicate, played, case.problem.space.points)


@pytest.mark.parametrize("name", SETTINGS)
def test_gp_ucb_with_a_candidate_a_replicate_is_the_plain_policy(name):
    case, trusted = setting(name), torch.tensor([2, 0, 1])
    count = len(case.priors)
    history = assert_is_plain(
        case,
        case.make(OracleGPUCB, trusted),
        lambda world, r: plain.HEGPUCB(
            world, case.beta, eliminate=False, alive=[u == int(trusted[r]) for u in range(count)]
        ),
    )
    assert torch.equal(history["candidate"][:, case.initial :], trusted[:, None].expand(3, STEPS - case.initial))
    for u in range(3):  # and the same as with one candidate for all
        alone = run(case.problem, case.make(OracleGPUCB, u), STEPS)
        r = trusted.tolist().index(u)
        assert torch.equal(history["query"][r], alone["query"][r])


@pytest.mark.parametrize("u", [0, 2])
def test_gp_ucb_equals_he_gp_ucb_on_the_reduced_problem(u):
    case = setting("decomposition")
    reduced = changed(case.problem, candidates=case.problem.space.candidates.select([u]), truth=None)
    one = run(case.problem, OracleGPUCB(case.problem.space, u, sqrt_beta=case.sqrt_beta, initial=2), 15)
    other = run(
        reduced, HEGPUCB(reduced.space, sqrt_beta=lambda t: float(case.beta(t)[u]), initial=2, elimination="never"), 15
    )
    for name in one.tensors:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("schedule", [lambda t: 2.0, lambda t: torch.tensor(2.0), lambda t: torch.full((4,), 2.0)])
def test_one_multiplier_is_that_of_all_candidates(schedule):
    case = setting("lengthscale")
    expected = run(case.problem, OracleGPUCB(case.problem.space, 3, sqrt_beta=lambda t: 2.0, initial=2), 8)
    found = run(case.problem, OracleGPUCB(case.problem.space, 3, sqrt_beta=schedule, initial=2), 8)
    assert torch.equal(found["query"], expected["query"])
    assert found["sqrt_beta"][:, 2:].unique().tolist() == [2.0]


# What makes each policy, from a problem and its multipliers.
POLICIES = {
    "HE-GP-UCB": lambda c: c.make(HEGPUCB),
    "after": lambda c: c.make(WidthAfter),
    "never": lambda c: c.make(HEGPUCB, elimination="never"),
    "GP-UCB": lambda c: c.make(OracleGPUCB, 1),
    "MLE": lambda c: c.make(MaximumLikelihood),
    "A-GP-UCB": lambda c: AGPUCB(c.problem.space, lengthscales=LENGTHSCALES, sqrt_beta=c.sqrt_beta, initial=c.initial),
    "ExpectedUCB": lambda c: c.make(AveragedUCB),
    "HE-StableOpt": lambda c: c.make(HEStableOpt),
    "StableOpt": lambda c: c.make(OracleStableOpt, 0),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_replicate_is_the_same_alone_and_among_many(name):
    case = setting("lengthscale").replaced(epsilon=0.06 if "Stable" in name else 0.0)
    many = run(case.problem, POLICIES[name](case), 15, range(12))
    alone = run(case.problem, POLICIES[name](case), 15, [7])
    for what, tensor in many.tensors.items():
        torch.testing.assert_close(tensor[7], alone[what][0], rtol=0, atol=1e-12, msg=what)
    assert len({tuple(row) for row in many["observation"].tolist()}) == 12


def test_a_replicate_with_a_function_and_a_truth_of_its_own_is_the_same_alone():
    case = setting("mean")
    problem = case.problem
    many = run(problem, HEGPUCB(problem.space, sqrt_beta=case.sqrt_beta), 15)
    r = 1

    def own(x):
        return problem.f(x.expand(3, *x.shape[1:]))[[r]]

    single = changed(problem, f=own, replicates=1, truth=problem.truth[[r]])
    alone = run(single, HEGPUCB(single.space, sqrt_beta=case.sqrt_beta), 15, [SEEDS[r]])
    for what, tensor in many.tensors.items():
        torch.testing.assert_close(tensor[r], alone[what][0], rtol=0, atol=1e-12, msg=what)


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_resumed_from_a_checkpoint_equals_an_uninterrupted_one(name, tmp_path):
    case = setting("lengthscale").replaced(epsilon=0.06 if "Stable" in name else 0.0)
    whole = run(case.problem, POLICIES[name](case), 12)
    run(case.problem, POLICIES[name](case), 5, checkpoint=tmp_path / "log")
    resumed = run(case.problem, POLICIES[name](case), 12, checkpoint=tmp_path / "log")
    for what, tensor in whole.tensors.items():
        assert torch.equal(tensor, resumed[what]), what


def test_a_checkpoint_of_other_candidates_is_refused(tmp_path):
    case = setting("lengthscale")
    run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=2), 3, checkpoint=tmp_path / "log")
    other = changed(case.problem, candidates=lengthscale_candidates((0.05, 0.12, 0.3, 0.9)))
    with pytest.raises(ValueError, match="checkpoint must belong to this run"):
        run(other, HEGPUCB(other.space, sqrt_beta=case.sqrt_beta, initial=2), 5, checkpoint=tmp_path / "log")


@pytest.mark.parametrize("name", POLICIES)
def test_a_started_policy_has_forgotten_its_last_run(name):
    case = setting("lengthscale").replaced(epsilon=0.06 if "Stable" in name else 0.0)
    policy = POLICIES[name](case)
    first = run(case.problem, policy, 10)
    run(case.problem, policy, 14, [11])
    again = run(case.problem, policy, 10)
    for what, tensor in first.tensors.items():
        assert torch.equal(tensor, again[what]), what


def test_the_initial_design_is_uniform_and_the_same_for_all_policies():
    case = setting("lengthscale")
    designs = [
        run(case.problem, make(case), 2, range(40))["query"] for name, make in POLICIES.items() if "Stable" not in name
    ]
    assert all(torch.equal(designs[0], design) for design in designs)
    many = run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=60), 60, range(10))
    counts = torch.bincount((many["query"].flatten() * 39).round().long(), minlength=40).double()
    expected = 600 / 40
    assert float(((counts - expected) ** 2 / expected).sum()) < 72  # the 0.999 quantile of chi squared with 39 degrees
    assert not many["alive"].logical_not().any() and bool((many["candidate"] == -1).all())


def test_without_an_initial_design_the_first_of_equal_points_and_candidates_is_taken():
    problem = problem_of(bump, lengthscale_candidates((0.4, 0.1)), line(30))
    history = run(problem, HEGPUCB(problem.space), 1)
    assert history["query"].flatten().tolist() == [0.0] * 3
    assert history["candidate"].flatten().tolist() == [0] * 3


@pytest.mark.parametrize("name", SETTINGS)
def test_eliminations_are_the_critical_rounds_of_the_recorded_history(name):
    case = setting(name)
    history = run(case.problem, case.make(HEGPUCB), 40)
    critical = critical_rounds(rounds(history, case.problem), case.problem)
    alive, refuted = history["alive"][:, case.initial :], history["refuted"][:, case.initial :]
    for r in range(len(SEEDS)):
        before = torch.ones(len(case.priors), dtype=torch.bool)
        for t in range(alive.shape[1]):
            candidate = int(history["candidate"][r, case.initial + t])
            assert before[candidate]  # only what is left can choose
            dropped = before & ~alive[r, t]
            if critical[r, t] and before.sum() == 1:
                assert not dropped.any() and refuted[r, t]
            else:
                assert dropped.nonzero().flatten().tolist() == ([candidate] if critical[r, t] else [])
            before = alive[r, t]
    assert critical.any()


def wrong_means(*values):
    return Candidates(tuple(f"mean {m:g}" for m in values), (rbf_kernel(0.3),) * len(values), values)


def test_the_last_candidate_is_kept_and_the_trace_says_that_it_was_refuted():
    candidates = wrong_means(4.0, 3.0)
    problem = problem_of(lambda x: 0 * x[..., 0], candidates, line(20), noise_std=0.05)
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 0.5), 8)
    assert history["candidate"][:, :2].tolist() == [[0, 1]] * 3
    assert history["alive"][:, 0].tolist() == [[False, True]] * 3
    assert history["alive"][:, 1:].tolist() == [[[False, True]] * 7] * 3
    refuted = history["refuted"]
    assert not refuted[:, 0].any() and refuted[:, -1].all()
    assert bool((refuted.int().diff(dim=1) >= 0).all())  # it stays refuted
    # The numbers behind it: the second candidate is off by more than its width and the noise explain.
    error = history["observation"][:, 1] - history["mean"][:, 1, 1]
    width = 0.5 * history["std"][:, 1, 1] + math.sqrt(plain.xi(2, 0.05, 2, 0.1))
    assert torch.equal(refuted[:, 1], error.abs() > width)


def test_a_single_candidate_is_refuted_but_kept():
    problem = problem_of(bump, wrong_means(6.0), line(20))
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 0.5), 4)
    assert history["alive"].all() and history["refuted"].all()
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=lambda t: 0.5, elimination="never"), 4)
    assert history["alive"].all() and not history["refuted"].any()


@settings(max_examples=25)
@given(
    st.integers(0, 10_000),
    st.lists(st.floats(0.03, 2.0), min_size=1, max_size=5),
    st.floats(0.0, 3.0),
    st.floats(0.02, 0.5),
    st.sampled_from([HEGPUCB, WidthAfter]),
)
def test_the_set_of_candidates_shrinks_by_the_chosen_one_and_never_empties(seed, scales, multiplier, noise, kind):
    problem = problem_of(
        lambda x: 3 * torch.sin(17 * x[..., 0]),
        Candidates(tuple(map(str, range(len(scales)))), tuple(rbf_kernel(s) for s in scales)),
        line(15),
        noise_std=noise,
    )
    history = run(problem, kind(problem.space, sqrt_beta=lambda t: multiplier + 1e-3), 12, [seed, seed + 1])
    alive = torch.cat([torch.ones_like(history["alive"][:, :1]), history["alive"]], 1)
    dropped = alive[:, :-1] & ~alive[:, 1:]
    assert not (alive[:, 1:] & ~alive[:, :-1]).any()
    assert alive.any(-1).all()
    assert bool((dropped.sum(-1) <= 1).all())
    chosen = torch.nn.functional.one_hot(history["candidate"], len(scales)).bool()
    assert not (dropped & ~chosen).any() and not (chosen & ~alive[:, :-1]).any()
    # The choice is optimal: no candidate left has a larger bound at the asked point.
    upper = history["mean"] + history["sqrt_beta"] * history["std"]
    best = upper.masked_fill(~alive[:, :-1], -torch.inf).amax(-1)
    assert bool((upper.gather(-1, history["candidate"].unsqueeze(-1)).squeeze(-1) >= best - 1e-9).all())


@pytest.mark.parametrize("name", ["HE-GP-UCB", "MLE", "ExpectedUCB"])
def test_the_recommendation_has_the_largest_weighted_mean_of_all_asked_points(name):
    case = setting("lengthscale")
    policy = POLICIES[name](case)
    noise = ReplicateGenerators(SEEDS)
    policy.start(SEEDS)
    asked, seen = [], []
    for t in range(1, 13):
        query = policy.ask()
        observation = case.problem.observe(query, noise.at(t))
        policy.tell(query, observation)
        asked.append(query)
        seen.append(observation)
        x, y = torch.stack(asked, 1).numpy(), torch.stack(seen, 1).numpy()
        for r in range(3):
            means = [plain.posterior(prior, 0.1, x[r], y[r], x[r])[0] for prior in case.priors]
            log = np.array([plain.log_likelihood(prior, 0.1, x[r], y[r]) for prior in case.priors])
            weights = {
                "HE-GP-UCB": policy.alive[r].double().numpy() / int(policy.alive[r].sum())
                if name == "HE-GP-UCB"
                else None,
                "MLE": np.eye(4)[log.argmax()],
                "ExpectedUCB": np.exp(log - np.logaddexp.reduce(log)),
            }[name]
            mean = weights @ np.array(means)
            recommended = policy.recommend()[r].numpy()
            assert mean[(x[r] == recommended).all(-1)].max() >= mean.max() - 1e-9


@pytest.mark.parametrize("name", SETTINGS)
def test_the_weights_of_the_candidates_are_their_posterior_probabilities(name):
    case = setting(name)
    for make in (MaximumLikelihood, AveragedUCB):
        policy = make(case.problem.space, sqrt_beta=case.sqrt_beta)
        history = run(case.problem, policy, 5)
        for r in range(3):
            x, y = history["query"][r].numpy(), history["observation"][r].numpy()
            log = np.array([plain.log_likelihood(prior, case.problem.noise_std, x, y) for prior in case.priors])
            expected = np.exp(log) / np.exp(log).sum()
            if make is MaximumLikelihood:
                expected = np.eye(len(log))[plain.first_best(log)]
            np.testing.assert_allclose(policy.weights()[r], expected, rtol=0, atol=1e-9)


def test_the_trace_holds_what_was_known_before_the_observation():
    case = setting("lengthscale")
    policy = HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=2)
    noise = ReplicateGenerators(SEEDS)
    policy.start(SEEDS)
    for t in range(1, 7):
        query = policy.ask()
        index = torch.cdist(query, case.problem.space.points).argmin(-1)
        mean, std = policy.moments()
        policy.tell(query, case.problem.observe(query, noise.at(t)))
        trace = policy.trace()
        assert set(trace) == {"initial", "candidate", "mean", "std", "sqrt_beta", "alive", "refuted"}
        for r in range(3):
            assert torch.equal(trace["mean"][r], mean[r, :, index[r]])
            assert torch.equal(trace["std"][r], std[r, :, index[r]])
        assert trace["candidate"].dtype == torch.long and trace["alive"].dtype == torch.bool
        early = t <= 2
        assert bool((trace["candidate"] == -1).all()) == early
        expected = torch.zeros(3, 4, dtype=F64) if early else case.sqrt_beta(t - 2).expand(3, 4)
        assert torch.equal(trace["sqrt_beta"], expected)
    held = trace["alive"]
    policy.alive[0, 0] = not policy.alive[0, 0]
    assert bool(held[0, 0]) != bool(policy.alive[0, 0])  # a record is not changed by what follows


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_traces_the_same_names_at_every_step(name):
    case = setting("lengthscale").replaced(epsilon=0.06 if "Stable" in name else 0.0)
    history = run(case.problem, POLICIES[name](case), 4)
    own = {"alive", "refuted"} if isinstance(POLICIES[name](case), HEGPUCB) else set()
    robust = {"chosen", "pessimist"} if "Stable" in name else set()
    recorded = {"query", "observation", "value", "recommendation", "recommended_value"}
    assert set(history.tensors) == recorded | {"initial", "candidate", "mean", "std", "sqrt_beta"} | own | robust


# ---- what is refused

PROBLEM = problem_of(bump, lengthscale_candidates((0.1, 0.3)), line(12))
BOX = problem_of(bump, lengthscale_candidates((0.1, 0.3)), bounds=torch.tensor([[0.0], [1.0]], dtype=F64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HEGPUCB(PROBLEM.space, initial=-1), "initial must be an integer of at least 0, got"),
        (lambda: MaximumLikelihood(PROBLEM.space, initial=-2), "initial must be an integer of at least 0, got"),
        (lambda: HEGPUCB(PROBLEM.space, failure=0.0), r"failure must lie in \(0, 1\), got 0.0"),
        (lambda: HEGPUCB(PROBLEM.space, failure=1.0), r"failure must lie in \(0, 1\), got 1.0"),
        (
            lambda: HEGPUCB(PROBLEM.space, sqrt_beta=lambda t: 1.0, failure=-0.5),
            r"failure must lie in \(0, 1\), got -0.5",
        ),
        (lambda: HEGPUCB(BOX.space, sqrt_beta=lambda t: 1.0, failure=2.0), r"failure must lie in \(0, 1\), got 2.0"),
        (lambda: HEGPUCB(PROBLEM.space, elimination="error"), "elimination must be 'errors' or 'never', got 'error'"),
        (lambda: HEGPUCB(PROBLEM.space, elimination=None), "elimination must be 'errors' or 'never', got None"),
        (lambda: OracleGPUCB(PROBLEM.space, 2), r"candidate must hold integers in \[0, 2\), got"),
        (lambda: OracleGPUCB(PROBLEM.space, -1), "candidate must be an integer of at least 0, got"),
        (
            lambda: OracleGPUCB(PROBLEM.space, torch.tensor([0, 1, 5])),
            r"candidate must hold integers in \[0, 2\), got",
        ),
        (lambda: AGPUCB(PROBLEM.space, lengthscales=(0.1,)), r"lengthscales must have shape \(2,\), got"),
        (lambda: AGPUCB(PROBLEM.space, lengthscales=()), r"lengthscales must have shape \(2,\), got"),
        (
            lambda: AGPUCB(PROBLEM.space, lengthscales=(0.1, 0.0)),
            "lengthscales must be positive and finite, got",
        ),
    ],
)
def test_an_argument_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


SMALL = {
    "HE-GP-UCB": lambda p: HEGPUCB(p.space, sqrt_beta=lambda t: 1.0),
    "GP-UCB": lambda p: OracleGPUCB(p.space, 1, sqrt_beta=lambda t: 1.0),
    "MLE": lambda p: MaximumLikelihood(p.space, sqrt_beta=lambda t: 1.0),
    "A-GP-UCB": lambda p: AGPUCB(p.space, lengthscales=(0.1, 0.3), sqrt_beta=lambda t: 1.0),
    "ExpectedUCB": lambda p: AveragedUCB(p.space, sqrt_beta=lambda t: 1.0),
}
both_domains = pytest.mark.parametrize("problem", [PROBLEM, BOX], ids=["points", "box"])


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@both_domains
def test_an_observation_that_is_no_number_leaves_the_state_as_it_was(name, bad, problem):
    clean, policy = SMALL[name](problem), SMALL[name](problem)
    clean.start([4, 5])
    policy.start([4, 5])
    for t in range(3):
        query = policy.ask()
        torch.testing.assert_close(query, clean.ask(), rtol=0, atol=0)
        with pytest.raises(ValueError, match="y must be finite, got"):
            policy.tell(query, torch.tensor([0.3, bad], dtype=F64))
        assert policy.count == t
        observation = torch.tensor([0.3 + t, -0.2], dtype=F64)
        policy.tell(query, observation)
        clean.tell(query, observation)
        for key, tensor in policy.trace().items():
            assert torch.equal(tensor, clean.trace()[key]), key
        assert torch.equal(policy.recommend(), clean.recommend())


def test_a_nan_stops_the_simulation_and_the_history_is_kept():
    calls = []

    def f(x):
        calls.append(0)
        return bump(x) * (math.nan if len(calls) > 9 else 1.0)

    problem = problem_of(f, lengthscale_candidates((0.1, 0.3)), line(12))
    with pytest.raises(ObservationError, match="observations must be finite") as error:
        run(problem, HEGPUCB(problem.space), 20)
    assert error.value.history.steps == 3  # three calls a step: observed, worth, recommended


def test_as_many_candidates_as_replicates_must_be_trusted():
    policy = OracleGPUCB(PROBLEM.space, torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="candidate must be one index or one for each of 2 replicates, got 3"):
        run(PROBLEM, policy, 2, [0, 1])


def test_a_function_a_replicate_needs_that_many_seeds():
    case = setting("mean")
    with pytest.raises(ValueError, match="query must hold one point for each of 3 replicates, got 2"):
        run(case.problem, HEGPUCB(case.problem.space), 2, [0, 1])


@pytest.mark.parametrize("name", ["HE-GP-UCB", "MLE", "ExpectedUCB"])
def test_the_same_prior_may_come_under_two_names(name):
    kernel = rbf_kernel(0.1)
    twins = problem_of(bump, Candidates(("one", "two"), (kernel, kernel)), line(12))
    equal = problem_of(bump, Candidates(("one", "two"), (kernel, rbf_kernel(0.1))), line(12))
    found, expected = run(twins, SMALL[name](twins), 4), run(equal, SMALL[name](equal), 4)
    assert found["mean"].shape == expected["mean"].shape == (3, 4, 2)
    assert torch.equal(found["query"], expected["query"])


def test_a_trace_of_nothing_is_refused_like_a_recommendation_of_nothing():
    policy = HEGPUCB(PROBLEM.space)
    with pytest.raises(ValueError, match="trace must follow"):
        policy.trace()


def test_a_multiplier_for_other_candidates_is_refused():
    with pytest.raises(ValueError, match="sqrt_beta"):
        run(PROBLEM, HEGPUCB(PROBLEM.space, sqrt_beta=lambda t: torch.ones(3)), 2)


@pytest.mark.parametrize("multiplier", [-1.0, math.inf, math.nan])
def test_a_multiplier_out_of_range_is_refused_before_anything_changes(multiplier):
    policy = HEGPUCB(PROBLEM.space, sqrt_beta=lambda t: multiplier)
    policy.start([0])
    with pytest.raises(ValueError, match=f"sqrt_beta must be nonnegative and finite at round 1, got {multiplier}"):
        policy.tell(policy.ask(), torch.zeros(1, dtype=F64))
    assert policy.count == 0 and len(policy.data) == 0


# ---- a box


def box_of(problem, low=0.0, high=1.0):
    return changed(problem, points=None, bounds=torch.tensor([[low], [high]], dtype=F64))


def test_in_a_box_he_gp_ucb_follows_its_run_on_a_dense_grid():
    problem = changed(setting("lengthscale").problem, points=line(2001), truth=None)
    schedule = setting("lengthscale").sqrt_beta
    dense = run(problem, HEGPUCB(problem.space, sqrt_beta=schedule), 9, [0, 3])
    free = run(box_of(problem), HEGPUCB(box_of(problem).space, sqrt_beta=schedule), 9, [0, 3])
    torch.testing.assert_close(free["query"], dense["query"], rtol=0, atol=2e-3)
    assert torch.equal(free["candidate"], dense["candidate"])
    assert torch.equal(free["alive"], dense["alive"])
    torch.testing.assert_close(free["mean"], dense["mean"], rtol=0, atol=2e-2)
    upper = [(h["mean"] + h["sqrt_beta"] * h["std"]).amax(-1) for h in (free, dense)]
    torch.testing.assert_close(upper[0], upper[1], rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", ["HE-GP-UCB", "MLE", "ExpectedUCB"])
def test_in_a_box_a_replicate_is_the_same_alone_and_resumed(name, tmp_path):
    case = setting("lengthscale").replaced(points=None, bounds=torch.tensor([[0.0], [1.0]], dtype=F64))
    many = run(case.problem, POLICIES[name](case), 5, range(4))
    alone = run(case.problem, POLICIES[name](case), 5, [2])
    for what, tensor in many.tensors.items():
        torch.testing.assert_close(tensor[2], alone[what][0], rtol=0, atol=1e-7, msg=what)
    run(case.problem, POLICIES[name](case), 3, range(4), checkpoint=tmp_path / "log")
    resumed = run(case.problem, POLICIES[name](case), 5, range(4), checkpoint=tmp_path / "log")
    for what, tensor in many.tensors.items():
        assert torch.equal(tensor, resumed[what]), what
    assert bool(((many["query"] >= 0) & (many["query"] <= 1)).all())


@pytest.mark.parametrize("name", ["period", "decomposition", "mean", "shared kernel"])
def test_in_a_box_candidates_of_every_kind_are_dropped_one_by_one(name):
    case = setting(name)
    points = case.problem.space.points
    bounds = torch.stack([points.amin(0), points.amax(0)])
    problem = changed(case.problem, points=None, bounds=bounds)
    history = run(problem, HEGPUCB(problem.space, sqrt_beta=case.sqrt_beta, initial=1), 7)
    alive = torch.cat([torch.ones_like(history["alive"][:, :1]), history["alive"]], 1)
    assert not (alive[:, 1:] & ~alive[:, :-1]).any() and alive.any(-1).all()
    assert bool(((history["query"] >= bounds[0]) & (history["query"] <= bounds[1])).all())
    x, y = history["query"].numpy(), history["observation"].numpy()
    for r in range(3):  # the moments in the trace are those of the textbook formula
        for u, prior in enumerate(case.priors):
            mean, std = plain.posterior(prior, problem.noise_std, x[r, :6], y[r, :6], x[r, 6:])
            assert float(history["mean"][r, 6, u]) == pytest.approx(mean[0], abs=1e-8)
            assert float(history["std"][r, 6, u]) == pytest.approx(std[0], abs=1e-8)


@pytest.mark.parametrize("domain", ["points", "box"])
def test_everything_runs_in_single_precision_if_the_domain_says_so(domain):
    single = torch.float32
    where = {"points": line(20).to(single)} if domain == "points" else {"bounds": torch.tensor([[0.0], [1.0]])}
    problem = problem_of(bump, lengthscale_candidates((0.1, 0.3), single), truth=0, **where)
    make = [HEGPUCB, MaximumLikelihood, AveragedUCB, HEStableOpt]
    for policy in make:
        history = run(problem, policy(problem.space, sqrt_beta=1.5, initial=2), 6)
        for name in ("query", "observation", "value", "mean", "std", "sqrt_beta", "recommendation"):
            assert history[name].dtype == single, name
    if domain == "points":
        book = ledger(run(problem, HEGPUCB(problem.space, initial=2), 8), problem)
        book.check_identity(1e-4)
        assert book.regret.dtype == single


def test_ties_of_recommendations_go_to_the_point_asked_first():
    policy = HEGPUCB(PROBLEM.space, sqrt_beta=lambda t: 1.0)
    policy.start([0])
    for _ in range(3):
        policy.tell(policy.ask(), torch.zeros(1, dtype=F64))
    points = policy.data["query"]
    means, _ = policy.moments(points)
    assert float(means.abs().max()) == 0.0
    assert torch.equal(policy.recommend(), points[:, 0])
    assert int(argmax_finite(means[0, 0], torch.ones(3, dtype=torch.bool), torch.arange(3))) == 0


def test_a_policy_that_asks_beside_its_own_proposal_learns_where_it_asked():
    class Beside(HEGPUCB):
        def propose(self):
            place = super().propose()
            return torch.where(place < 0.5, self.space.points[-1], self.space.points[0])

    problem = problem_of(bump, lengthscale_candidates(LENGTHSCALES), line(30), truth=0)
    policy = Beside(problem.space, sqrt_beta=2.0)
    policy.start([0, 1])
    told = HEGPUCB(problem.space, sqrt_beta=2.0)
    told.start([0, 1])
    for y in (0.3, -0.2, 0.7):
        query = policy.ask()
        for one in (policy, told):
            one.tell(query, torch.tensor([y, -y], dtype=F64))
        for mine, theirs in zip(policy.moments(), told.moments(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_multiplier_may_be_a_list_and_may_be_changed():
    space = Space([rbf_kernel(0.1), rbf_kernel(0.3)], bounds=[[0.0], [1.0]])
    policy = HEGPUCB(space, sqrt_beta=lambda t: [1.0, 2.0])
    policy.ask()
    assert policy.multiplier().tolist() == [1.0, 2.0]
    policy.sqrt_beta = 9.0
    assert float(policy.multiplier()) == 9.0
    known = Space([GaussianProcess(rbf_kernel(length), 0.1) for length in (0.1, 0.3)], bounds=[[0.0], [1.0]])
    trusted = OneCandidate(known, candidate=1, sqrt_beta=lambda t: np.array([1.0, 2.0]))
    trusted.ask()
    assert float(trusted.multiplier()) == 2.0


@pytest.mark.parametrize("level", [0.1, 0.3, -729999.9])
def test_a_constant_that_is_no_binary_fraction_is_one(level):
    asked = []
    for constant in (0.5, level):
        policy = HEGPUCB(Space([rbf_kernel(0.1), rbf_kernel(0.3)], bounds=[[0.0], [1.0]]), seed=1)
        for _ in range(8):
            policy.tell(policy.ask(), constant)
        asked.append(policy.observations()["query"])
    torch.testing.assert_close(asked[0], asked[1], rtol=0, atol=2**-8)


def test_a_measurement_repeated_where_the_kernel_is_zero():
    policy = HEGPUCB(Space([LinearKernel().to(F64)], bounds=[[0.0], [1.0]]))
    policy.tell([[0.0], [0.0]], [1.0, 2.0])
    assert bool(torch.isfinite(policy.recommend()).all())
