"""The classes against the plain algorithms of ``plain.py``, a few rounds each, and what a single run adds."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from book.hyperparameters.regret import critical_rounds, rounds
from book.hyperparameters.slips import WidthAfter
from cbo_lib.hyperparameters import (
    AGPUCB,
    HEGPUCB,
    Candidates,
    ExpectedUCB,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
    Space,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.run import read_observations
from cbo_lib.simulate import simulate
from tests.accelerator import DEVICE, close, needed
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    LENGTHSCALES,
    SEEDS,
    SETTINGS,
    Mounds,
    changed,
    line,
    noise_draws,
    run,
    setting,
)

ROUNDS, NOISE = 14, 0.05
every_setting = pytest.mark.parametrize("name", SETTINGS)


def assert_plain(case, policy, make):
    """Every replicate of a batch against a plain policy made from its world."""
    history, points = run(case.problem, policy, ROUNDS), case.problem.space.points
    for replicate, seed in enumerate(SEEDS):
        played = make(case.world(replicate)).run(noise_draws(seed, ROUNDS), case.design(history, replicate))
        for name, indices in (
            ("query", [r.index for r in played]),
            ("recommendation", [r.recommended for r in played]),
            *([("chosen", [r.center for r in played])] if "chosen" in history.tensors else []),
        ):
            assert torch.equal(history[name][replicate], points[torch.tensor(indices)]), name
        for name in ("candidate", "pessimist"):
            if name in history.tensors:
                assert history[name][replicate].tolist() == [getattr(r, name) for r in played]
        for name, values in (("mean", [r.mean for r in played]), ("std", [r.std for r in played])):
            np.testing.assert_allclose(history[name][replicate], np.array(values), rtol=0, atol=1e-7)
        if "alive" in history.tensors:
            assert history["alive"][replicate].tolist() == [r.alive for r in played]
    return history


@every_setting
@pytest.mark.parametrize(("kind", "after"), [(HEGPUCB, False), (WidthAfter, True)])
def test_he_gp_ucb_is_the_plain_algorithm(name, kind, after):
    case = replace(setting(name), scale=0.6)  # so small that candidates go
    history = assert_plain(case, case.make(kind), lambda world: plain.HEGPUCB(world, case.beta, after=after))
    left = history["alive"][:, -1]
    assert not left.all() and left.any(-1).all()
    assert len(history["candidate"][:, case.initial :].unique()) > 1


@every_setting
def test_he_gp_ucb_with_its_own_multipliers_is_the_plain_algorithm(name):
    case, failure = setting(name), 0.3
    policy = HEGPUCB(case.problem.space, initial=case.initial, failure=failure)
    n = len(case.problem.space.points)
    assert_plain(case, policy, lambda world: plain.HEGPUCB(world, lambda t: plain.case_a_beta(n, t, failure), failure))


@every_setting
def test_the_baselines_are_the_plain_ones(name):
    case = setting(name)
    assert_plain(case, case.make(MaximumLikelihood), lambda world: plain.MaximumLikelihood(world, case.beta))
    history = assert_plain(case, case.make(ExpectedUCB), lambda world: plain.ExpectedUCB(world, case.beta))
    assert bool((history["candidate"] == -1).all())

    def tempered(world):
        policy = plain.ExpectedUCB(world, case.beta)
        policy.tempered = True
        return policy

    assert_plain(case, case.make(ExpectedUCB, likelihood="tempered"), tempered)
    never = assert_plain(
        case, case.make(HEGPUCB, eliminate=False), lambda world: plain.HEGPUCB(world, case.beta, eliminate=False)
    )
    assert never["alive"].all()
    u = len(case.priors) - 1
    only = [i == u for i in range(u + 1)]
    assert_plain(
        case,
        case.make(OracleGPUCB, candidate=u),
        lambda world: plain.HEGPUCB(world, case.beta, eliminate=False, alive=only),
    )


@pytest.mark.parametrize("g", [None, 1.7])
def test_a_gp_ucb_is_the_plain_baseline(g):
    case = setting("lengthscale")
    growth = (lambda t: t**0.9) if g is None else (lambda t: g)
    for options in ({"lengthscales": LENGTHSCALES}, {}):  # by default those of the kernels
        assert_plain(
            case,
            case.make(AGPUCB, g=g, **options),
            lambda world: plain.AGPUCB(world, case.beta, LENGTHSCALES, growth, case.initial),
        )


ROBUST = {"lengthscale": 0.06, "period": 0.09, "decomposition": 0.26, "mean": 0.05, "shared kernel": 0.05}


@every_setting
def test_he_stable_opt_is_the_exhaustive_search(name):
    case, epsilon = setting(name).robust(ROBUST[name]), ROBUST[name]
    history = assert_plain(case, case.make(HEStableOpt), lambda world: plain.HEStableOpt(world, case.beta, epsilon))
    start = case.initial
    assert bool((history["query"] != history["chosen"])[:, start:].any())
    assert float((history["query"] - history["chosen"]).norm(dim=-1).max()) <= epsilon * (1 + 1e-9)
    u = len(case.priors) - 1
    only = [i == u for i in range(u + 1)]
    assert_plain(
        case,
        case.make(OracleStableOpt, candidate=u),
        lambda world: plain.HEStableOpt(world, case.beta, epsilon, eliminate=False, alive=only),
    )


@every_setting
def test_eliminations_are_the_critical_rounds_of_the_recorded_history(name):
    case = setting(name)
    history = run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta), 40)
    critical = critical_rounds(rounds(history, case.problem), case.problem)
    for r in range(len(SEEDS)):
        before = torch.ones(len(case.priors), dtype=torch.bool)
        for t in range(40):
            candidate, alive = int(history["candidate"][r, t]), history["alive"][r, t]
            assert before[candidate]  # only what is left can choose
            dropped = critical[r, t] and before.sum() > 1
            assert (before & ~alive).nonzero().flatten().tolist() == ([candidate] if dropped else [])
            before = alive


def test_the_last_candidate_is_kept():
    means = Candidates(("four", "three"), (rbf_kernel(0.3),) * 2, (4.0, 3.0))
    space = Space(means, points=line(20), noise_std=NOISE)
    batch = HEGPUCB(space, sqrt_beta=0.5, seeds=SEEDS)
    for left in ([False, True], [False, True]):  # zero refutes both
        batch.tell(batch.ask(), torch.zeros(3, dtype=F64))
        assert batch.alive.tolist() == [left] * 3


def test_the_truth_is_lost_less_often_than_promised():
    """Draws around mounds of which one is higher, 300 runs: at most a tenth may lose the truth."""
    seeds, points = range(300), line(40)
    means = Candidates(("second", "fifth", "none"), (rbf_kernel(0.2),) * 3, (Mounds(1), Mounds(4), Mounds(-1)))
    root = torch.linalg.cholesky(rbf_kernel(0.2)(points).to_dense() + 1e-9 * torch.eye(40, dtype=F64))
    generator = torch.Generator().manual_seed(5)
    f = Mounds(4)(points) + torch.randn(300, 40, generator=generator, dtype=F64) @ root.mT
    batch = HEGPUCB(Space(means, points=points, noise_std=NOISE), seeds=seeds)
    for _ in range(30):
        x = batch.ask()
        y = f.gather(1, (x * 39).round().long()).squeeze(1)
        batch.tell(x, y + NOISE * torch.randn(300, generator=generator, dtype=F64))
    assert float(batch.alive[:, 1].double().mean()) >= 0.9 and not bool(batch.alive.all())


def test_a_replicate_does_not_depend_on_its_company():
    case = setting("mean")
    space = case.problem.space
    problem = changed(case.problem, f=lambda x: torch.sin(9 * x[..., 0]), truth=None, replicates=None)
    alone, together = (simulate(problem, HEGPUCB(space, initial=2), 9, seeds) for seeds in ([3], [1, 3, 4]))
    assert torch.equal(alone["query"][0], together["query"][1])


def test_the_initial_design_is_uniform_and_the_same_for_all_policies():
    space = setting("lengthscale").problem.space
    designs = []
    for kind in (HEGPUCB, MaximumLikelihood, ExpectedUCB, AGPUCB, HEStableOpt):
        batch, asked = kind(space, initial=15, seeds=range(40)), []
        for _ in range(15):
            asked.append(batch.ask())
            batch.tell(asked[-1], torch.zeros(40, dtype=F64))
        designs.append(torch.stack(asked))
    assert all(torch.equal(designs[0], design) for design in designs)
    counts = torch.bincount((designs[0].flatten() * 39).round().long(), minlength=40).double()
    assert float(((counts - 15) ** 2 / 15).sum()) < 72  # the 0.999 quantile of chi squared with 39 degrees


def test_in_a_box_he_gp_ucb_asks_as_on_a_dense_grid():
    case = setting("lengthscale")
    candidates, unit = case.problem.space.candidates, torch.tensor([[0.0], [1.0]], dtype=F64)
    domains = {"points": line(4001)}, {"bounds": unit}
    dense, free = (
        HEGPUCB(Space(candidates, noise_std=0.1, **where), sqrt_beta=case.sqrt_beta, seeds=[0, 1]) for where in domains
    )
    first = torch.tensor([[[0.3], [0.8]], [[0.1], [0.6]]], dtype=F64)
    for batch in (dense, free):
        batch.learn(first, case.problem.f(first))
    for _ in range(7):
        there, here = dense.ask(), free.ask()
        assert torch.equal(dense.candidate, free.candidate)
        torch.testing.assert_close(here, there, rtol=0, atol=1e-3)
        for batch in (dense, free):  # both learn of the point of the grid
            batch.asked = there
            batch.predict()
            batch.tell(there, case.problem.f(there))
        torch.testing.assert_close(free.errors, dense.errors, rtol=0, atol=1e-6)
    assert torch.equal(dense.alive, free.alive)


# A single run.


def f(x):
    return torch.sin(9 * x[..., 0]) + x[..., 0]


SPACES = {
    "points": Space([rbf_kernel(scale) for scale in (0.05, 0.15, 0.5)], points=line(41), noise_std=NOISE),
    "box": Space([rbf_kernel(scale) for scale in (0.05, 0.15, 0.5)], bounds=[[0.0], [1.0]], noise_std=NOISE),
}
every_domain = pytest.mark.parametrize("domain", SPACES)


@every_domain
def test_old_data_teach_all_candidates_and_drop_those_that_they_leave_in_no_doubt(domain):
    space, x = SPACES[domain], torch.rand(60, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = f(x) + NOISE * torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=F64)
    policy = HEGPUCB(space, initial=2)
    policy.tell(x, y)
    exact = space.candidates.prior(NOISE).condition(Measure.dirac(x), y)
    at = Measure.dirac(line(9))
    torch.testing.assert_close(policy.posterior.mean(at), exact.mean(at), rtol=0, atol=1e-7)
    torch.testing.assert_close(policy.batch.likelihood[0], exact.log_marginal_likelihood, rtol=1e-8, atol=1e-6)
    behind = exact.log_marginal_likelihood.max() - exact.log_marginal_likelihood
    assert policy.batch.alive[0].tolist() == (behind <= math.log(3 / 0.1)).tolist()
    assert 0 < int(policy.batch.alive.sum()) < 3
    assert policy.ask().shape == (1,) and float((policy.recommend() - 0.87).abs()) < 0.08


@every_domain
def test_only_who_chose_a_point_answers_for_it(domain):
    kernels = [rbf_kernel(0.2), rbf_kernel(0.2)]
    where = {"points": line(41)} if domain == "points" else {"bounds": [[0.0], [1.0]]}
    space = Space(Candidates(("four", "zero"), kernels, (4.0, 0.0)), noise_std=NOISE, **where)
    asked, other = (HEGPUCB(space, sqrt_beta=1.0) for _ in range(2))
    x = asked.ask()
    other.ask()
    asked.tell(x, 0.0)
    assert asked.batch.candidate.tolist() == [0] and asked.batch.alive.tolist() == [[False, True]]
    other.tell(x + 0.013, 3.0)  # between both: old data leave nobody in doubt
    assert other.batch.candidate.tolist() == [-1] and other.batch.rounds.tolist() == [[0.0, 0.0]]


def test_a_told_point_outside_of_the_domain_counts_and_is_not_recommended():
    policy = HEGPUCB(SPACES["points"])
    policy.tell(0.5, 0.3)
    policy.tell([0.0131, 0.0262], [9.0, 1.0])
    assert policy.recommend().tolist() == [0.5] and policy.count == 3
    x, y = torch.tensor([[0.5], [0.0131], [0.0262]], dtype=F64), torch.tensor([0.3, 9.0, 1.0], dtype=F64)
    exact = SPACES["points"].candidates.prior(NOISE).condition(Measure.dirac(x), y)
    mean, std = policy.batch.belief.moments()
    torch.testing.assert_close(mean[0, :, :41], exact.mean(Measure.dirac(line(41))), rtol=0, atol=1e-7)
    torch.testing.assert_close(std[0, :, :41] ** 2, exact.variance(Measure.dirac(line(41))), rtol=0, atol=1e-7)
    box = HEGPUCB(SPACES["box"])
    box.tell([1.2, 0.5], [9.0, 0.3])
    assert box.recommend().tolist() == [0.5]


def test_many_old_rows_are_told_quickly():
    policy = HEGPUCB(SPACES["points"])
    x = torch.rand(1500, 1, generator=torch.Generator().manual_seed(2), dtype=F64)
    begin = time.process_time()
    policy.tell(x, f(x))
    assert time.process_time() - begin < 20  # two seconds on a quiet machine
    assert policy.ask().shape == (1,)


@every_domain
@pytest.mark.parametrize("kind", [HEGPUCB, HEStableOpt, MaximumLikelihood, ExpectedUCB, AGPUCB])
def test_a_saved_run_goes_on_as_it_would_have(tmp_path, kind, domain):
    if kind is HEStableOpt and domain == "box":
        return
    policy = kind(SPACES[domain], seed=3, initial=2)
    for _ in range(6):
        x = policy.ask()
        policy.tell(x, float(f(x)))
    policy.tell([0.2, 0.3], [1.0, 1.1])
    policy.save(tmp_path / "run.npz")
    again = kind.load(tmp_path / "run.npz")
    assert torch.equal(again.ask(), policy.ask()) and torch.equal(again.recommend(), policy.recommend())
    new = kind(SPACES[domain])
    new.tell(**read_observations(tmp_path / "run.npz"))
    assert new.count == again.count == 8
    new = kind(SPACES[domain])
    new.tell(policy.to_frame())
    assert new.count == 8


@needed
@pytest.mark.parametrize("kind", [HEGPUCB, HEStableOpt, MaximumLikelihood, ExpectedUCB, AGPUCB])
def test_a_policy_asks_the_same_on_a_gpu(kind):
    asked = []
    for device in ("cpu", DEVICE):
        kernels = [rbf_kernel(scale).to(device) for scale in (0.1, 0.3)]
        batch = kind(Space(kernels, points=line(30).to(device), noise_std=NOISE), initial=1, seeds=range(3))
        for _ in range(5):
            x = batch.ask()
            batch.tell(x, f(x))
        asked.append(batch.recommend())
    close(asked[1], asked[0])
