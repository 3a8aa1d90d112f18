"""What a user does by hand, with their own data: any form, in any order, of any point; saved and loaded."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
    Space,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters.helpers import F64, line, run

NOISE = 0.05
SCALES = (0.05, 0.15, 0.5)
PRIORS = [GaussianProcess(rbf_kernel(scale), NOISE) for scale in SCALES]
KERNELS = [MaternKernel(2.5), RBFKernel()]
SPACES = {
    "points": Space(PRIORS, points=line(41)),
    "box": Space(PRIORS, bounds=[[0.0], [1.0]]),
    "kernels, points": Space(KERNELS, points=line(31)),
    "kernels, box": Space(KERNELS, bounds=[[0.0], [1.0]]),
}
POLICIES = {
    "HE-GP-UCB": HEGPUCB,
    "MLE": MaximumLikelihood,
    "averaged": AveragedUCB,
    "A-GP-UCB": functools.partial(AGPUCB, lengthscales=SCALES),
    "GP-UCB": functools.partial(OracleGPUCB, candidate=1),
}
every_policy = pytest.mark.parametrize("name", POLICIES)
every_space = pytest.mark.parametrize("domain", SPACES)


def f(x):
    return torch.sin(9 * x[..., 0]) + x[..., 0]


def fits(name, domain):
    """The policies of known priors have no use for kernels alone."""
    return name in ("HE-GP-UCB", "MLE", "averaged") or "kernels" not in domain


@every_policy
@every_space
def test_a_run_by_hand_is_that_of_the_simulation(name, domain):
    if not fits(name, domain):
        pytest.skip("needs known priors")
    space = SPACES[domain]
    problem = UnknownPriorProblem(space, f, noise_std=NOISE)
    history = run(problem, POLICIES[name](space=space, initial=3), 7, [4])
    policy, noise = POLICIES[name](space=space, seed=4, initial=3), ReplicateGenerators([4])
    for t in range(7):
        x = policy.ask()
        assert x.shape == (1,) and torch.equal(x, history["query"][0, t])
        assert torch.equal(policy.ask(), x)  # asking again changes nothing
        policy.tell(x, problem.observe(x.unsqueeze(0), noise.at(t + 1))[0])
        assert torch.equal(policy.recommend(), history["recommendation"][0, t])
        for key, value in policy.trace().items():
            torch.testing.assert_close(value, history[key][0, t], rtol=0, atol=0, msg=key)
    assert policy.count == 7
    count = 1 if name == "GP-UCB" else len(space.candidates)
    assert policy.posterior.batch_shape == (count,) and policy.posterior.count == 7


@pytest.mark.parametrize("domain", ["points", "kernels, box"])
def test_any_form_of_data_is_the_same_data(domain):
    rng = np.random.default_rng(0)
    x, y = rng.random((5, 1)), rng.random(5)
    forms = [
        (torch.tensor(x), torch.tensor(y)),
        (x, y),
        (x.tolist(), y.tolist()),
        (x[:, 0], y[:, None]),
        (pd.DataFrame(x, columns=["speed"]), pd.Series(y)),
        (torch.tensor(x), pd.DataFrame(y)),
    ]
    asked = []
    for told in forms:
        policy = HEGPUCB(SPACES[domain])
        policy.tell(*told)
        asked.append(policy.ask())
    assert all(torch.equal(asked[0], other) for other in asked[1:])
    one_by_one = HEGPUCB(SPACES[domain])
    for point, value in zip(x[:, 0], y, strict=True):
        one_by_one.tell(float(point), float(value))
    assert one_by_one.count == 5
    torch.testing.assert_close(one_by_one.ask(), asked[0], rtol=0, atol=0)


@every_policy
@every_space
def test_a_saved_policy_goes_on_as_it_would_have(name, domain, tmp_path):
    if not fits(name, domain):
        pytest.skip("needs known priors")
    policy = POLICIES[name](space=SPACES[domain], seed=2)
    policy.tell([[0.1], [0.77], [0.4567]], [0.3, -0.2, 0.9])
    for _ in range(3):
        x = policy.ask()
        policy.tell(x, f(x))
    policy.ask()
    policy.save(tmp_path / "run.npz")
    loaded = type(policy).load(tmp_path / "run.npz")
    for _ in range(2):
        x = policy.ask()
        assert torch.equal(loaded.ask(), x)
        policy.tell(x, f(x))
        loaded.tell(x, f(x))
        assert torch.equal(loaded.recommend(), policy.recommend())
        for key, value in policy.trace().items():
            assert torch.equal(loaded.trace()[key], value), key


@pytest.mark.parametrize("kind", [HEStableOpt, functools.partial(OracleStableOpt, candidate=0)])
def test_a_saved_robust_policy_goes_on_as_it_would_have(kind, tmp_path):
    policy = kind(space=Space(PRIORS, points=line(41), epsilon=0.06))
    policy.tell([0.2, 0.9], [0.5, 0.1])
    policy.tell(policy.ask(), 0.7)
    policy.save(tmp_path / "run.npz")
    assert torch.equal(type(policy).load(tmp_path / "run.npz").ask(), policy.ask())


@every_space
def test_old_data_teach_the_posterior_and_judge_nobody(domain):
    space = SPACES[domain]
    x = torch.linspace(0.03, 0.93, 8, dtype=F64)[:, None]
    policy = HEGPUCB(space, initial=2)
    policy.tell(x, 1e3 * f(x))  # no candidate of a known size would survive this
    assert bool(policy.alive.all()) and policy.count == 8 and policy.round == 7
    assert policy.trace()["candidate"] == -1
    assert policy.ask().shape == (1,)  # and the initial design is over
    if "kernels" not in domain:
        expected = space.candidates.prior(NOISE).condition(Measure.dirac(x), 1e3 * f(x))
        at = Measure.dirac(line(9))
        torch.testing.assert_close(policy.posterior.mean(at), expected.mean(at), rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("domain", ["points", "box"])
def test_the_test_counts_the_rounds_whose_asked_point_was_played(domain):
    space = Space([GaussianProcess(rbf_kernel(0.2), NOISE, m) for m in (4.0, 0.0)], **where(domain))
    asked, other = HEGPUCB(space, sqrt_beta=1.0), HEGPUCB(space, sqrt_beta=1.0)
    x = asked.ask()
    assert torch.equal(other.ask(), x)
    asked.tell(x, 0.0)  # the first candidate expected 4
    assert asked.candidate.tolist() == [0] and asked.alive.tolist() == [[False, True]]
    other.tell(x + 0.013, 0.0)
    assert other.candidate.tolist() == [-1] and other.alive.tolist() == [[True, True]]
    here = other.moments(x.reshape(1, 1, 1) + 0.013)[0]  # but its posterior has learned
    assert float(here[0, 0, 0]) < 0.5


def where(domain):
    return {"points": line(41)} if domain == "points" else {"bounds": [[0.0], [1.0]]}


def test_a_told_point_outside_a_finite_domain_counts_and_is_not_recommended():
    policy = HEGPUCB(SPACES["points"])
    policy.tell([0.0131, 0.5], [9.0, 0.3])
    assert policy.recommend().tolist() == [0.5]
    assert policy.moments()[0].shape == (1, 3, 41)  # of the domain alone
    exact = SPACES["points"].candidates.prior(NOISE)
    exact = exact.condition(
        Measure.dirac(torch.tensor([[0.0131], [0.5]], dtype=F64)), torch.tensor([9.0, 0.3], dtype=F64)
    )
    torch.testing.assert_close(policy.moments()[0][0], exact.mean(Measure.dirac(line(41))), rtol=0, atol=1e-9)
    only = HEGPUCB(SPACES["points"])
    only.tell(0.0131, 9.0)
    assert bool(SPACES["points"].contains(only.recommend()))  # the best of the domain, since nothing told is in it
    assert float((only.recommend() - 0.0131).abs()) < 0.02
    box = HEGPUCB(SPACES["box"])
    box.tell([1.2, 0.5], [9.0, 0.3])
    assert box.recommend().tolist() == [0.5]


def test_in_a_box_queries_have_a_resolution():
    policy = HEGPUCB(Space(PRIORS, bounds=[[-2.0], [6.0]]), resolution=1 / 16, initial=2)
    for _ in range(5):
        x = policy.ask()
        assert float(2 * x) == round(float(2 * x))
        policy.tell(x, math.sin(float(x)))


def test_the_seed_alone_suffices_and_a_multiplier_of_zero_is_none():
    x = line(5)
    for domain, space in SPACES.items():
        policy = HEGPUCB(space, seed=1)
        assert policy.ask().shape == (1,)
        assert policy.initial == (4 if "kernels" in domain else 0)
        greedy = AveragedUCB(space, sqrt_beta=0.0)
        greedy.tell(x, f(x))
        best = greedy.moments(greedy.ask().reshape(1, 1, 1))[0]
        grid = greedy.moments(None if space.bounds is None else line(41).unsqueeze(0))[0]
        weights = greedy.weights().unsqueeze(-1)
        assert float((weights * best).sum(1)) >= float((weights * grid).sum(1).max()) - 1e-3
    assert HEGPUCB(SPACES["box"]).sqrt_beta == 2.0
    expected = math.sqrt(2 * math.log(41 * math.pi**2 * 9 / (3 * 0.1)))
    assert HEGPUCB(SPACES["points"]).sqrt_beta(3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (([[0.1, 0.2]], 1.0), "query must be points of dimension 1, got 2"),
        (([0.1, 0.2], 1.0), "y must hold as many rows as query, 2, got 1"),
        ((0.1, math.nan), "y must be finite, got"),
        ((math.inf, 1.0), "query must be finite, got"),
        (("here", 1.0), "query must be numbers"),
    ],
)
@every_space
def test_what_cannot_be_learned_from_is_refused_and_changes_nothing(domain, told, message):
    policy = HEGPUCB(SPACES[domain])
    x = policy.ask()
    with pytest.raises(ValueError, match=message):
        policy.tell(*told)
    assert policy.count == 0 and torch.equal(policy.ask(), x)


def test_a_policy_of_one_s_own_needs_no_underscore():
    class Cautious(HEGPUCB):
        def score(self, mean, std):
            lower = mean - self.multiplier() * std
            return lower.masked_fill(~self.alive.unsqueeze(-1), math.inf).amin(1)

    policy = Cautious(SPACES["points"], sqrt_beta=1.0)
    policy.tell(0.5, 0.2)
    assert policy.ask().tolist() == [0.5]  # elsewhere less is certain


@pytest.mark.parametrize("domain", ["points", "box"])
def test_candidates_may_have_a_noise_of_their_own(domain):
    priors = [GaussianProcess(rbf_kernel(0.2), 0.05), GaussianProcess(rbf_kernel(0.2), 0.5, 1.0)]
    policy = HEGPUCB(Space(priors, **where(domain)))
    policy.tell([0.1, 0.6], [0.3, 0.9])
    x = [torch.tensor([[0.1], [0.6]], dtype=F64)]
    y = [0.3, 0.9]
    for t in range(3):
        x.append(policy.ask().unsqueeze(0))
        y.append(0.2 * t)
        policy.tell(x[-1], y[-1])
    for u, prior in enumerate(priors):
        exact = prior.condition(Measure.dirac(torch.cat(x)), torch.tensor(y, dtype=F64))
        for found in (
            policy.moments(line(41).unsqueeze(0))[0][0, u],
            policy.posterior.mean(Measure.dirac(line(41)))[u],
        ):
            torch.testing.assert_close(found, exact.mean(Measure.dirac(line(41))), rtol=0, atol=1e-9)
        torch.testing.assert_close(policy.likelihood[0, u], exact.log_marginal_likelihood, rtol=0, atol=1e-9)
