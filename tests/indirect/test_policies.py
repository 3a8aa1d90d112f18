"""The classes against the plain formulas of ``plain.py``, twenty rounds each, and what a single run adds."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kstest

from book.indirect.controls import PrintedCMETS
from book.indirect.problem import IndirectProblem
from book.indirect.problems import UNIT, known_prior, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, CMETS, EI, MES, UCB, ClippedGaussian, Nodes, RandomActions, ScheduledUCB, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import simulate
from tests.accelerator import DEVICE, close, needed
from tests.indirect import plain
from tests.indirect.helpers import F64, LENGTH, SEEDS, gram, identity, ripple, square, uniforms

ROUNDS = 20


def batch_of(problem, policy, rounds=ROUNDS, seeds=SEEDS):
    """A batch after so many rounds, and what it believed, sampled and asked in each, by index."""
    noise, batch, asked = ReplicateGenerators(seeds, stream=0), policy.start(seeds), []
    for t in range(1, rounds + 1):
        query = batch.ask()
        asked.append((problem.space.nearest(query.unsqueeze(1))[:, 0], getattr(batch, "stars", None)))
        batch.tell(query, problem.observe(query, noise.at(t)))
        asked[-1] += (batch.recommend(),)
    return batch, asked


def beliefs(covariance, batch, asked, replicate, t):
    """Mean and deviation of all places before round ``t`` from 0, solved anew."""
    seen = [int(index[replicate]) for index, *_ in asked[:t]]
    noise = torch.as_tensor(batch.space.noise_std).numpy()
    y = batch.y[replicate, :t].numpy()
    mean, cov = plain.posterior(covariance, seen, y, noise[seen])
    return mean, np.sqrt(np.maximum(np.diag(cov), 1e-18))


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", ["learned", "known"])
def test_cmes_is_the_plain_algorithm(kind, noisy):
    problem, prior = square(kind, priced=noisy)
    batch, asked = batch_of(problem, CMES(problem.space, prior=prior, initial=2, samples=4, noisy=noisy))
    n, cost = problem.space.n, problem.space.cost.numpy()
    for r, seed in enumerate(SEEDS):
        covariance = gram(problem, kind, r)
        for t in range(2, ROUNDS):
            mean, std = beliefs(covariance, batch, asked, r, t)
            stars = plain.gumbel(mean[n:], std[n:], uniforms(seed, t + 1, 4))
            np.testing.assert_allclose(asked[t][1][r], stars, rtol=0, atol=1e-5)
            score = plain.score(mean[:n], std[:n], stars, 0.2, noisy) / cost
            assert score[int(asked[t][0][r])] >= score.max() * (1 - (5e-3 if noisy else 1e-4))
            mean, _ = beliefs(covariance, batch, asked, r, t + 1)
            named = int(torch.cdist(asked[t][2][r : r + 1], problem.space.points).argmin())
            assert mean[n + named] >= mean[n:].max() - 1e-8
    assert len(torch.stack([index for index, *_ in asked]).unique()) > 5


@pytest.mark.parametrize("kind", ["learned", "known"])
def test_the_belief_and_the_posterior_are_those_of_equations_11_and_12(kind):
    problem, prior = square(kind)
    batch, asked = batch_of(problem, RandomActions(problem.space, prior=prior))
    mean, std = batch.belief()
    for r in range(len(SEEDS)):
        expected = beliefs(gram(problem, kind, r), batch, asked, r, ROUNDS)
        np.testing.assert_allclose(mean[r], expected[0], rtol=0, atol=1e-8)
        np.testing.assert_allclose(std[r], expected[1], rtol=0, atol=1e-6)
    points = problem.space.measure_points(prior)
    torch.testing.assert_close(batch.posterior.mean(points), mean[:, problem.space.n :])


@pytest.mark.parametrize("kind", [MES, UCB, EI])
def test_the_rivals_are_the_plain_formulas_on_actions(kind):
    problem, prior = square()
    options = {"samples": 6} if kind is MES else {"sqrt_beta": 1.7} if kind is UCB else {}
    policy = kind(problem.space, prior=prior, action_prior=GaussianProcess(rbf_kernel(0.35), 0.1), initial=2, **options)
    batch, asked = batch_of(problem, policy)
    grid = problem.space.actions.numpy()
    covariance = plain.rbf(grid, grid, 0.35)
    for r, seed in enumerate(SEEDS):
        for t in range(2, ROUNDS):
            mean, std = beliefs(covariance, batch, asked, r, t)
            seen = [int(index[r]) for index, *_ in asked[:t]]
            if kind is UCB:
                score = mean + 1.7 * std
            elif kind is EI:
                score = plain.improvement(mean, std, mean[seen].max())
            else:
                score = plain.score(mean, std, plain.gumbel(mean, std, uniforms(seed, t + 1, 6)), 0.2, False)
            assert score[int(asked[t][0][r])] >= score.max() - 1e-4 * abs(score.max())


def test_with_one_sample_cmes_is_an_upper_confidence_bound():
    """Lemma 1: the multiplier is the smallest standardized gap."""
    problem, prior = square()
    batch = CMES(problem.space, prior=prior, samples=1).start(SEEDS)
    for t in range(ROUNDS):
        query = batch.ask()
        mean, std, index = batch.asked
        kappa = ((batch.stars - mean) / std).amin(-1, keepdim=True)
        upper = mean + kappa * std
        torch.testing.assert_close(upper.gather(1, index[:, None]), upper.amax(-1, keepdim=True))
        torch.testing.assert_close(upper.amax(-1, keepdim=True), batch.stars)
        batch.tell(query, problem.value(query) + 0.1 * math.sin(t))


def test_thompson_samples_are_maxima_of_new_joint_draws():
    problem, prior = square(count=4)
    batch = CMES(problem.space, prior=prior, samples=4000, sampling="thompson").start([1, 2])
    batch.tell(problem.space.actions[[3, 9]], torch.tensor([1.0, 0.3], dtype=F64))
    points = problem.space.measure_points(prior)
    drawn = batch.posterior.sample(points, 4000, torch.Generator().manual_seed(0)).amax(-1)
    found = batch.max_samples()
    assert all(kstest(found[r], drawn[r]).pvalue > 1e-3 for r in range(2))
    batch.tell(problem.space.actions[[3, 9]], torch.tensor([1.0, 0.3], dtype=F64))
    assert not torch.equal(batch.max_samples(), found)


# Trees.


def tree(levels=3):
    nodes = Nodes.complete(UNIT, levels)
    conditional = ClippedGaussian(identity, lambda a: a[..., 2] / 2, UNIT)
    cost = nodes.cost()
    space = Space(nodes.actions, conditional=conditional, points=unit_grid(5), noise_std=0.5 / cost, cost=cost)
    return IndirectProblem(space, ripple, order=21), nodes


def test_nodes_are_the_cells_of_grids_and_cost_what_section_7_says():
    nodes = Nodes.complete(UNIT, 4)
    assert nodes.level.tolist() == [level for level in range(5) for _ in range(4**level)]
    for level in range(5):
        here = nodes.actions[nodes.level == level]
        assert here[:, 2].tolist() == pytest.approx([0.5 / 2**level] * 4**level)
        assert float(torch.cdist(here[:, :2], unit_grid(2**level)).amin(-1).max()) < 1e-6
    expected = [0.5 * math.log2(1 / 2.0 ** -(level + 1)) for level in nodes.level.tolist()]
    np.testing.assert_allclose(nodes.cost(), expected, rtol=1e-9)


@pytest.mark.parametrize(("kind", "noisy"), [(CMETS, False), (CMETS, True), (PrintedCMETS, False)])
def test_cmets_is_the_plain_algorithm(kind, noisy):
    problem, nodes = tree()
    noise, cost = problem.space.noise_std.numpy(), problem.space.cost.numpy()
    batch = kind(problem.space, nodes=nodes, prior=known_prior(LENGTH), samples=3, noisy=noisy).start(SEEDS)
    streams = ReplicateGenerators(SEEDS, stream=0)
    asked, sets, open_ = [], [], []
    for t in range(1, ROUNDS + 1):
        open_.append((batch.leaf | batch.child).numpy())
        query = batch.ask()
        mean, std, index = (part.numpy() for part in batch.asked)
        for r in range(len(SEEDS)):
            score = plain.score(mean[r], std[r], batch.stars[r].numpy(), noise, noisy) / cost
            score[~open_[-1][r]] = 0
            assert score[index[r]] >= score.max() * (1 - (5e-3 if noisy else 1e-4))
        batch.tell(query, problem.observe(query, streams.at(t)))
        asked.append(index)
        sets.append([(set(a.nonzero().flatten().tolist()), set(b.nonzero().flatten().tolist()))
                     for a, b in zip(batch.leaf, batch.child, strict=True)])  # fmt: skip
    children, parent = [[c for c in row if c >= 0] for row in nodes.children.tolist()], nodes.parent.tolist()
    for r in range(len(SEEDS)):
        queries = [int(index[r]) for index in asked]
        if kind is CMETS:
            assert [leaves for leaves, _ in (s[r] for s in sets)] == plain.partition(children, parent, queries)
            area = (4 * nodes.actions[:, 2] ** 2 * batch.leaf[r]).sum()
            assert float(area) == pytest.approx(1.0)
        else:
            deepest = (nodes.level == 3).tolist()
            assert [s[r] for s in sets] == plain.printed_tree(children, parent, deepest, queries)[1:]


def test_told_nodes_split_the_path_to_the_root_and_other_actions_nothing():
    problem, nodes = tree()
    policy = CMETS(problem.space, nodes=nodes, prior=known_prior(LENGTH))
    policy.tell([0.3, 0.4, 0.2], 1.0)  # no node
    assert policy.batch.leaf.sum() == 1
    policy.tell(nodes.actions[-1].tolist(), 1.0)
    assert set(nodes.level[policy.batch.leaf[0]].tolist()) == {1, 2, 3}


def test_a_schedule_asks_the_largest_bound_of_f_with_the_blur_of_the_round():
    points = torch.linspace(0, 1, 30, dtype=F64)[:, None]
    actions = torch.cat([points, torch.zeros_like(points)], -1)
    space = Space(actions, conditional=ClippedGaussian(lambda a: a[..., :1], lambda a: a[..., 1]), points=points)
    policy = ScheduledUCB(space, tau=lambda t: 0.2 / t, prior=known_prior(0.15), failure=0.1)
    batch = policy.start([0, 1])
    for t in range(1, 11):
        query = batch.ask()
        measure = Measure.dirac(torch.cat([points, torch.zeros_like(points)], -1))
        mean, variance = batch.posterior.mean_and_variance(measure)
        root_beta = math.sqrt(2 * math.log(2 * 30 * math.pi**2 * t**2 / 6 / 0.1))
        best = (mean + root_beta * variance.sqrt()).amax(-1)
        index = batch.asked[0]
        chosen = (mean + root_beta * variance.sqrt()).gather(1, index[:, None])[:, 0]
        torch.testing.assert_close(chosen, best)
        assert query[:, 1].tolist() == pytest.approx([0.2 / t] * 2)
        batch.tell(query, torch.sin(6 * query[:, 0]))


# A single run.


DOSES = np.arange(5.0, 101, 5)


def study(count=200):
    trial = np.random.default_rng(4)
    asked = trial.uniform(0, 100, size=count)
    return asked * trial.beta(5, 2, size=count), asked


def respond(dose):
    return 10 * math.exp(-(((float(dose) * 0.71 - 40) / 15) ** 2))


@pytest.mark.parametrize("kind", [CMES, MES, UCB, EI, RandomActions])
def test_a_user_asks_tells_saves_and_goes_on(tmp_path, kind):
    space = Space(pd.DataFrame({"dose": DOSES}), samples=study())
    policy = kind(space, seed=2)
    policy.tell([20.0, 60.0, 100.0], [respond(d) for d in (20, 60, 100)])
    for _ in range(4):
        dose = policy.ask()
        policy.tell(dose, respond(dose))
    policy.tell([43.0], respond(43))  # another dose than was asked, and none of the list
    policy.save(tmp_path / "run.npz")
    again = kind.load(tmp_path / "run.npz")
    assert again.count == 8 and torch.equal(again.ask(), policy.ask())
    assert torch.equal(again.recommend(), policy.recommend()) and abs(float(policy.recommend()) - 40) < 15
    other = kind(space, seed=2)
    other.tell(policy.to_frame())
    assert list(policy.to_frame()) == ["dose", "y"] and torch.equal(other.recommend(), policy.recommend())
    assert policy.posterior.mean(Measure.dirac(torch.tensor([[40.0]], dtype=F64))).shape == (1,)
    assert repr(policy).startswith(f"indirect.{kind.__name__}(8 observations, best y ")


def test_many_pairs_are_thinned_and_few_are_kept():
    space = Space(DOSES, samples=study(3000))
    assert len(space.conditional.x) == 750 and len(Space(DOSES, samples=study(300)).conditional.x) == 300


def test_a_replicate_does_not_depend_on_its_company():
    problem, prior = square()
    policy = CMES(problem.space, prior=prior, initial=1)
    alone, together = (simulate(problem, policy, 8, seeds, progress=False) for seeds in ([3], [1, 3, 4]))
    assert torch.equal(alone["query"][0], together["query"][1])


def test_a_fit_serves_the_default_policy():
    problem, _ = square("learned", noise_std=0.05)
    run = simulate(problem, CMES(problem.space), 25, SEEDS, progress=False)
    lost = problem.optimum - run["recommended_value"]
    assert float(lost[:, -1].mean()) < 0.5 * float(lost[:, 0].mean())


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (([0.1, 0.2, 0.3], 1.0), "query must have shape"),
        (([0.5, 900.0], 1.0), "in the order and units of"),
        (([0.5, 0.5], math.nan), "y must be finite"),
        (([[0.5, 0.5]], [1.0, 2.0]), "query must hold as many rows as y, 2"),
        ((pd.DataFrame({"0": [0.5]}), [1.0]), "query must have shape"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_learned(told, message):
    problem, prior = square()
    policy = CMES(problem.space, prior=prior)
    policy.tell([0.25, 0.25], 0.3)
    asked = policy.ask()
    with pytest.raises(ValueError, match=message):
        policy.tell(*told)
    assert policy.count == 1 and torch.equal(policy.ask(), asked)


@needed
@pytest.mark.parametrize("kind", [CMES, CMETS, MES, UCB, EI, RandomActions])
def test_a_policy_asks_the_same_on_a_gpu(kind):
    asked = []
    for device in ("cpu", DEVICE):
        nodes = Nodes.complete(UNIT.to(device), 2)
        conditional = ClippedGaussian(identity, 0.1, UNIT.to(device))
        space = Space(nodes.actions, conditional=conditional, points=unit_grid(5).to(device), noise_std=0.2)
        options = {"nodes": nodes} if kind is CMETS else {}
        if kind in (MES, UCB, EI):
            options["action_prior"] = GaussianProcess(rbf_kernel(0.3).to(device), 0.1)
        batch = kind(space, prior=known_prior(0.3), seeds=range(3), **options)
        for _ in range(4):
            query = batch.ask()
            batch.tell(query, ripple(query))
        asked.append(batch.recommend())
    close(asked[1], asked[0])
