"""Batches of replicates against the plain policies, and what the policies refuse."""

import math

import numpy as np
import pytest
import torch

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.regret import critical_rounds, rounds
from book.hyperparameters.slips import WidthAfter
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    Candidates,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    LENGTHSCALES,
    SEEDS,
    SETTINGS,
    changed,
    line,
    noise_draws,
    problem_of,
    run,
    setting,
)

STEPS = 12


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
