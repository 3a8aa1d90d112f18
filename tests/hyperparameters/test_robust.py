"""HE-StableOpt against an exhaustive search, and what its two tests do to the set of candidates."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from book.hyperparameters.problems import lengthscale_candidates
from book.hyperparameters.regret import critical_rounds, rounds
from book.hyperparameters.slips import WidthAfter
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import Candidates, HEStableOpt
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import (
    F64,
    SEEDS,
    line,
    noise_draws,
    problem_of,
    run,
    setting,
)

STEPS = 12


class StableAfter(WidthAfter, HEStableOpt):
    """HE-StableOpt with the rule as printed."""


def robust(name, epsilon, order=None, scale=1.0):
    case = setting(name) if order is None else setting(name).reordered(order)
    return dataclasses.replace(case.replaced(epsilon=epsilon), scale=scale)


CASES = {
    "lengthscale": lambda: robust("lengthscale", 0.06),
    "long first": lambda: robust("lengthscale", 0.06, (3, 2, 1, 0)),
    "wide": lambda: robust("lengthscale", 0.2, scale=2.0),
    "period": lambda: robust("period", 0.09),
    "decomposition": lambda: robust("decomposition", 0.26),
    "four times as wide": lambda: robust("decomposition", 0.26, (1, 0, 2), 4.0),
    "mean": lambda: robust("mean", 0.05),
    "mean, other order": lambda: robust("mean", 0.05, (2, 1, 0)),
    "shared kernel": lambda: robust("shared kernel", 0.05, (1, 0, 2)),
}
KEEPING = [
    ("lengthscale", "before"),
    ("wide", "before"),
    ("mean, other order", "before"),
    ("shared kernel", "before"),
    ("four times as wide", "before"),
    ("period", "after"),
    ("decomposition", "after"),
]
LOSING = [  # candidate 0 is dropped in some replicate
    ("period", "before"),
    ("decomposition", "before"),
    ("mean", "before"),
    ("long first", "before"),
    ("lengthscale", "after"),
    ("four times as wide", "after"),
]


def assert_same_run(case, history, replicate, played):
    points = case.problem.space.points
    for name, indices in (
        ("query", [r.index for r in played]),
        ("chosen", [r.center for r in played]),
        ("recommendation", [r.recommended for r in played]),
    ):
        assert torch.equal(history[name][replicate], points[torch.tensor(indices)]), name
    assert history["candidate"][replicate].tolist() == [r.candidate for r in played]
    assert history["pessimist"][replicate].tolist() == [r.pessimist for r in played]
    assert history["alive"][replicate].tolist() == [r.alive for r in played]
    assert history["refuted"][replicate].tolist() == [r.refuted for r in played]
    for name, values in (("mean", [r.mean for r in played]), ("std", [r.std for r in played])):
        np.testing.assert_allclose(history[name][replicate], np.array(values), rtol=0, atol=1e-9)


def assert_is_plain(case, policy, options=None):
    history = run(case.problem, policy, STEPS)
    for replicate, seed in enumerate(SEEDS):
        own = {} if options is None else options(replicate)
        loop = plain.HEStableOpt(case.world(replicate), case.beta, case.problem.space.epsilon, **own)
        played = loop.run(noise_draws(seed, STEPS), case.design(history, replicate))
        assert_same_run(case, history, replicate, played)
    return history


@pytest.mark.parametrize(("name", "width"), [*KEEPING, *LOSING])
def test_he_stable_opt_is_the_exhaustive_search(name, width):
    case = CASES[name]()
    policy = case.make(StableAfter if width == "after" else HEStableOpt)
    history = assert_is_plain(case, policy, lambda r: {"after": width == "after"})
    assert name == "wide" or not history["alive"].all()
    start = case.initial
    assert bool((history["query"] != history["chosen"])[:, start:].any())
    assert not torch.equal(history["candidate"][:, start:], history["pessimist"][:, start:])
    distance = (history["query"] - history["chosen"]).norm(dim=-1)
    assert float(distance.max()) <= case.problem.space.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_without_elimination_all_candidates_are_kept(name):
    case = CASES[name]()
    policy = case.make(HEStableOpt, elimination="never")
    history = assert_is_plain(case, policy, lambda r: {"eliminate": False})
    assert history["alive"].all() and not history["refuted"].any()


@pytest.mark.parametrize("name", ["lengthscale", "mean, other order", "four times as wide"])
def test_candidates_are_dropped_by_either_test(name):
    case = CASES[name]()
    history = run(case.problem, case.make(HEStableOpt), 22)
    alive = torch.cat([torch.ones_like(history["alive"][:, :1]), history["alive"]], 1)[:, case.initial :]
    dropped = alive[:, :-1] & ~alive[:, 1:]
    critical = []
    for role in ("candidate", "pessimist"):
        seen = rounds(history, case.problem, role)
        chosen = torch.nn.functional.one_hot(seen.candidate, len(case.priors)).bool()
        assert not (chosen & ~alive[:, :-1]).any()
        critical.append(chosen & critical_rounds(seen, case.problem).unsqueeze(-1))
    refuted = critical[0] | critical[1]
    spared = (alive[:, :-1] & ~refuted).any(-1)  # somebody is left
    assert torch.equal(dropped[spared], refuted[spared])
    assert bool((dropped & ~critical[0]).any())  # the pessimist's test alone did that


def flat(*means):
    """f is zero, and every candidate expects another constant."""
    candidates = Candidates(tuple(map(str, range(len(means)))), (rbf_kernel(0.3),) * len(means), means)
    return problem_of(lambda x: 0 * x[..., 0], candidates, line(20), noise_std=0.05, epsilon=0.1)


def one_round(problem):
    policy = HEStableOpt(problem.space, sqrt_beta=lambda t: 0.5)
    policy.start([1])
    query = policy.ask()
    policy.tell(query, problem.observe(query, ReplicateGenerators([1]).at(1)))
    return policy, policy.trace()


def test_both_candidates_of_a_round_may_be_dropped_and_neither_undoes_the_other():
    _, trace = one_round(flat(0.0, 4.0, -4.0))
    assert (int(trace["candidate"][0]), int(trace["pessimist"][0])) == (1, 2)
    assert trace["alive"].tolist() == [[True, False, False]]
    assert not trace["refuted"].any()
    history = run(flat(0.0, 4.0, -4.0), HEStableOpt(flat(0.0, 4.0, -4.0).space, sqrt_beta=lambda t: 0.5), 6)
    assert history["alive"].tolist() == [[[True, False, False]] * 6] * 3
    assert bool((history["candidate"][:, 1:] == 0).all() and (history["pessimist"][:, 1:] == 0).all())


def test_of_two_refuted_candidates_the_second_is_kept_as_the_last():
    _, trace = one_round(flat(4.0, -4.0))
    assert (int(trace["candidate"][0]), int(trace["pessimist"][0])) == (0, 1)
    assert trace["alive"].tolist() == [[False, True]] and trace["refuted"].tolist() == [True]


# ---- properties and what is refused


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 30), st.floats(0.0, 0.5), st.floats(0.2, 3.0))
def test_choices_are_optimal_on_irregular_points(seed, n, epsilon, multiplier):
    rng = torch.Generator().manual_seed(seed)
    points = torch.rand(n, 2, generator=rng, dtype=F64)
    problem = problem_of(
        lambda x: torch.sin(5 * x[..., 0]) * torch.cos(4 * x[..., 1]),
        lengthscale_candidates((0.1, 0.3, 0.8)),
        points,
        epsilon=epsilon,
    )
    priors = [plain.Prior(plain.rbf(scale)) for scale in (0.1, 0.3, 0.8)]
    policy = HEStableOpt(problem.space, sqrt_beta=lambda t: multiplier, elimination="never")
    history = simulate(problem, policy, 6, [seed], progress=False)
    world = plain.World(points.numpy(), problem.values.numpy(), priors, 0.1)
    loop = plain.HEStableOpt(world, lambda t: multiplier, epsilon, eliminate=False)
    played = loop.run(noise_draws(seed, 6))
    assert torch.equal(history["query"][0], points[torch.tensor([r.index for r in played])])
    assert torch.equal(history["chosen"][0], points[torch.tensor([r.center for r in played])])


# ---- in a box


def ball(center, epsilon, n=401):
    """A grid of a ball on a line or a square, cut to the unit box."""
    side = np.linspace(-1.0, 1.0, n if len(center) == 1 else 61)
    grid = np.stack(np.meshgrid(*[side] * len(center)), -1).reshape(-1, len(center))
    grid = grid[np.linalg.norm(grid, axis=1) <= 1 + 1e-9]
    return np.clip(center + epsilon * grid, 0.0, 1.0)


def bands(priors, x, y, at, noise, multiplier):
    """Lower and upper bounds of all candidates at points, ``|U| x n`` each."""
    moments = [plain.posterior(prior, noise, x, y, at) for prior in priors]
    return [np.array([mean + sign * multiplier * std for mean, std in moments]) for sign in (-1, 1)]


@pytest.mark.parametrize(("dim", "epsilon", "scales"), [(1, 0.07, (0.08, 0.2, 0.5)), (2, 0.15, (0.2, 0.6))])
def test_in_a_box_both_choices_are_those_of_a_dense_search(dim, epsilon, scales):
    noise, multiplier, initial, steps, near = 0.1, 2.0, 4, 5, 0.005 if dim == 1 else 0.05

    def f(x):
        return torch.sin(7 * x).sum(-1)

    box = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=F64)
    problem = problem_of(f, lengthscale_candidates(scales), bounds=box, epsilon=epsilon, noise_std=noise)
    policy = HEStableOpt(problem.space, sqrt_beta=multiplier, initial=initial)
    history = simulate(problem, policy, initial + steps, [3], progress=False)
    priors = [plain.Prior(plain.rbf(scale)) for scale in scales]
    query, chosen, y = (history[name][0].numpy() for name in ("query", "chosen", "observation"))
    side = np.linspace(0.0, 1.0, 301 if dim == 1 else 25)
    places = np.stack(np.meshgrid(*[side] * dim), -1).reshape(-1, dim)
    for t in range(initial, initial + steps):
        alive = history["alive"][0, t - 1].numpy()

        def around(center, t=t):
            return bands(priors, query[:t], y[:t], ball(center, epsilon), noise, multiplier)

        def worst(center, around=around, alive=alive):
            return np.where(alive, around(center)[1].min(1), -np.inf)

        best = max(worst(place).max() for place in places)
        own = worst(chosen[t])
        assert own.max() >= best - near  # the grid of the ball is finer than the policy's points
        assert own[history["candidate"][0, t]] >= own.max() - near
        lower = np.where(alive[:, None], around(chosen[t])[0], np.inf)
        asked = bands(priors, query[:t], y[:t], query[t][None], noise, multiplier)[0][:, 0]
        assert asked[history["pessimist"][0, t]] <= np.where(alive, asked, np.inf).min() + 1e-9
        assert np.where(alive, asked, np.inf).min() <= lower.min() + near
        assert np.linalg.norm(query[t] - chosen[t]) <= epsilon + dim * 2.0**-13
    assert bool((history["query"] != history["chosen"])[:, initial:].any())
