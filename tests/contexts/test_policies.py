"""The policies, round by round against plain NumPy, by hand and simulated, and what they refuse."""

import numpy as np
import pytest
import torch

from book.contexts.controls import KnownDensity, RandomDecisions
from book.contexts.quadrature import ContextDistribution
from cbo_lib.contexts.baselines import (
    DRBOMMD,
    GPUCB,
    DRBOMMDMinimax,
    StableOpt,
    context_grid,
)
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, TotalVariationRadius
from cbo_lib.former.simulate import simulate
from cbo_lib.random import ReplicateGenerators
from tests.contexts import plain
from tests.contexts.helpers import F64, SMALL, choices, constant, hill, kde_draws, plane

SEEDS, STEPS, SAMPLES, COVER = [5, 11], 7, 48, 32
PROBLEM, WIDE = hill(), plane()
DESIGN = SMALL["initial"]


def plain_law(problem):
    """The distribution as a user writes it down: without a rule for expectations."""
    return ContextDistribution(problem.distribution.marginals, problem.distribution.bounds)


MAKERS = {
    "SBO-KDE": lambda p, **o: SBOKDE(p.space, samples=SAMPLES, **o),
    "DRBO-KDE": lambda p, **o: DRBOKDE(p.space, samples=SAMPLES, cover=COVER, **o),
    "density known": lambda p, **o: KnownDensity(p.space, distribution=plain_law(p), samples=SAMPLES, **o),
    "StableOpt": lambda p, **o: StableOpt(p.space, cover=COVER, **o),
    "DRBO-MMD": lambda p, **o: DRBOMMD(p.space, size=9, **o),
    "minimax": lambda p, **o: DRBOMMDMinimax(p.space, size=16, **o),
    "GP-UCB": lambda p, **o: GPUCB(p.space, **o),
    "random": lambda p, **o: RandomDecisions(p.space, **o),
}
NAMES = list(MAKERS)
SEARCHING = NAMES[:-1]


def make(name, problem=PROBLEM, **options):
    return MAKERS[name](problem, **{**SMALL, **options})


def run(name, problem=PROBLEM, steps=STEPS, seeds=SEEDS, **options):
    return simulate(problem, make(name, problem, **options), steps, seeds, progress=False)


@pytest.fixture(scope="module")
def histories():
    return {(name, problem.name): run(name, problem) for name in NAMES for problem in (PROBLEM, WIDE)}


def sobol(n, dim):
    return torch.quasirandom.SobolEngine(dim, scramble=False).draw(n, dtype=F64).numpy()


def plain_acquisition(name, problem, model, x, y, contexts, seed, step):
    """The acquisition of one replicate as a function of the decision."""
    low, high = (corner.numpy() for corner in problem.space.contexts)
    t, dim = len(contexts) + 1, problem.space.context_dim
    generator = choices(seed, step)
    if name in ("SBO-KDE", "DRBO-KDE"):
        samples = plain.kde_samples(contexts, *kde_draws(generator, SAMPLES, dim, len(contexts)), low, high)
    if name == "SBO-KDE":
        return lambda d: model.ucb(x, y, d, samples, 1.5).mean()
    if name == "DRBO-KDE":
        both = np.concatenate([samples, low + (high - low) * sobol(COVER, dim)])

        def worst(d):
            values = model.ucb(x, y, d, both, 1.5)
            return plain.tv_program(values[:SAMPLES], values.min(), t ** (-2 / (4 + dim)))

        return worst
    if name == "density known":
        samples = problem.distribution.sample([generator], (SAMPLES,))[0].numpy()
        return lambda d: model.ucb(x, y, d, samples, 1.5).mean()
    if name == "StableOpt":
        region = plain.stable_region(contexts, low, high, sobol(COVER, dim))
        return lambda d: model.ucb(x, y, d, region, 1.5).min()
    if name == "GP-UCB":

        def upper(d):
            mean, std = model.posterior(x, y, np.array([d]))
            return mean[0] + 1.5 * std[0]

        return upper
    points = plain.grid(low, high, 9 if name == "DRBO-MMD" else 16)
    weights, gram = plain.empirical(contexts, points), plain.discrepancy_kernel(model, points)
    solve = plain.mmd_program if name == "DRBO-MMD" else plain.minimax
    return lambda d: solve(model.ucb(x, y, d, points, 1.5), weights, gram, plain.mmd_radius(t))


@pytest.mark.parametrize("world", [PROBLEM, WIDE], ids=lambda p: p.name)
@pytest.mark.parametrize("name", SEARCHING)
def test_every_round_maximizes_what_plain_numpy_computes(name, world, histories):
    history = histories[name, world.name]
    low, high = (corner.numpy() for corner in world.space.decisions)
    rng = np.random.default_rng(0)
    for r, seed in enumerate(SEEDS):
        queries, contexts, y = (history[part][r].numpy() for part in ("query", "context", "observation"))
        full = queries if name == "GP-UCB" else np.concatenate([queries, contexts], -1)
        for step in range(DESIGN, STEPS):
            hyper = {k: history[k][r, step].numpy() for k in ("lengthscale", "scale", "mean", "noise_std")}
            model = plain.Model(*(hyper["lengthscale"], *(float(hyper[k]) for k in ("scale", "mean", "noise_std"))))
            value = plain_acquisition(name, world, model, full[:step], y[:step], contexts[:step], seed, step + 1)
            reached = float(history["acquisition"][r, step])
            # The decision is rounded after the search: up to 2^-14 of the box away from where the value was reached.
            assert reached == pytest.approx(value(queries[step]), abs=2e-3)
            others = low + (high - low) * rng.random((12, len(low)))
            assert max(value(d) for d in others) <= reached + 5e-3
            assert bool(((queries[step] >= low) & (queries[step] <= high)).all())


@pytest.mark.parametrize("name", SEARCHING)
def test_without_a_resolution_the_search_ends_where_its_value_is(name):
    history = run(name, resolution=None, steps=6, seeds=SEEDS[:1])
    queries, contexts, y = (history[part][0].numpy() for part in ("query", "context", "observation"))
    full = queries if name == "GP-UCB" else np.concatenate([queries, contexts], -1)
    hyper = {k: history[k][0, 5].numpy() for k in ("lengthscale", "scale", "mean", "noise_std")}
    model = plain.Model(*(hyper["lengthscale"], *(float(hyper[k]) for k in ("scale", "mean", "noise_std"))))
    value = plain_acquisition(name, PROBLEM, model, full[:5], y[:5], contexts[:5], SEEDS[0], 6)
    reached = float(history["acquisition"][0, 5])
    assert reached == pytest.approx(value(queries[5]), abs=1e-3 if name == "DRBO-MMD" else 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_recommendation_is_the_best_posterior_mean_over_the_contexts_seen(name, histories):
    history = histories[name, PROBLEM.name]
    policy = make(name, refit_every=1)
    policy.start(SEEDS)
    policy.tell(history["query"], history["observation"], context=history["context"])
    recommended, fit = policy.recommend(), policy.surrogate.fit
    torch.testing.assert_close(recommended, history["recommendation"][:, -1], rtol=0, atol=0)
    for r in range(len(SEEDS)):
        hyper = [getattr(fit, k)[r].numpy() for k in ("lengthscale", "scale", "mean", "noise_std")]
        model = plain.Model(hyper[0], *map(float, hyper[1:]))
        decisions, contexts, y = (history[part][r].numpy() for part in ("query", "context", "observation"))
        if name == "GP-UCB":
            best = decisions[np.argmax(model.posterior(decisions, y, decisions)[0])]
        else:
            full = np.concatenate([decisions, contexts], -1)
            best = plain.recommendation(model, full, y, decisions, contexts)
        np.testing.assert_allclose(recommended[r], best, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_never_changes_is_no_obstacle(name):
    history = run(name, constant(), steps=6, seeds=[3])
    assert bool((history["context"] == 0.3).all())
    assert bool(torch.isfinite(history["acquisition"]).all())


def test_the_default_kernel_is_a_product_of_two_matern_kernels():
    policy = SBOKDE(WIDE.space, initial=4)
    policy.start([1])
    rows = torch.rand(1, 6, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    policy.tell(rows[..., :2], rows.sum(-1), context=rows[..., 2:])
    kernel = policy.posterior.prior.kernel.base_kernel
    assert [type(part).__name__ for part in kernel.kernels] == ["MaternKernel"] * 2
    assert [part.active_dims.tolist() for part in kernel.kernels] == [[0, 1], [2, 3]]
    assert {part.nu for part in kernel.kernels} == {2.5}


def test_multipliers_may_depend_on_the_round():
    rounds = []

    def schedule(t):
        rounds.append(t)
        return 0.1 * t

    history = run("GP-UCB", sqrt_beta=schedule)
    assert sorted(set(rounds)) == list(range(DESIGN + 1, STEPS + 1))
    assert bool(torch.isfinite(history["acquisition"]).all())
    with pytest.raises(ValueError, match=r"sqrt_beta must be nonnegative and finite at round 6, got -1.0"):
        run("GP-UCB", sqrt_beta=lambda t: 1.5 if t < 6 else -1.0)


# By hand.


def by_hand(policy, problem, steps, seed, first=1):
    noise = ReplicateGenerators([seed], stream=0)
    for step in range(first, first + steps):
        x = policy.ask()
        seen = problem.observe(x.unsqueeze(0), noise.at(step))
        policy.tell(x, seen["y"][0], context=seen["context"][0])
    return policy


def test_another_decision_may_be_made_than_was_asked():
    policy = by_hand(make("SBO-KDE"), PROBLEM, 5, 0)
    policy.ask()
    policy.tell(0.123456, 2.0, context=0.5)
    assert float(policy.data["query"][0, -1]) == 0.123456
    assert policy.count == 6 and float(policy.recommend()) == 0.123456
    assert float(policy.posterior.data.measure.points[-1, 0, 0]) == 0.123456
    policy.ask()


# Parts of them.


def test_the_discrepancys_kernel_is_one_on_the_diagonal_and_kept_between_fits():
    policy = make("DRBO-MMD")
    simulate(PROBLEM, policy, 6, SEEDS, progress=False)
    gram = policy.gram(policy.posterior)
    torch.testing.assert_close(gram.diagonal(dim1=-2, dim2=-1), torch.ones(2, 9, dtype=F64))
    assert policy.gram(policy.posterior) is gram
    weights = policy.reference()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, dtype=F64))
    for r in range(2):
        expected = plain.empirical(policy.contexts[r].numpy(), policy.points.numpy())
        np.testing.assert_allclose(weights[r], expected, rtol=0, atol=1e-9)


def test_grids_have_the_papers_sizes():
    assert len(context_grid(PROBLEM.space.contexts, 100)) == 100
    square = context_grid(WIDE.space.contexts, 100)
    assert square.shape == (100, 2)
    assert len({tuple(p) for p in square.tolist()}) == 100
    np.testing.assert_allclose(np.sort(square, 0), np.sort(plain.grid([0, 0], [1, 1], 100), 0), rtol=0, atol=1e-9)
    four = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=F64)
    assert [len(context_grid(four, n)) for n in (100, 1024)] == [4**4, 6**4]


def test_the_radius_shrinks_as_the_paper_says():
    assert [TotalVariationRadius(d)(1) for d in (1, 2, 4)] == [1.0, 1.0, 1.0]
    assert TotalVariationRadius(1)(32) == pytest.approx(32**-0.4)
    assert TotalVariationRadius(4)(10) == pytest.approx(10 ** (-1 / 4))
    fixed = make("DRBO-KDE", radius=lambda t: 0.0)
    same = simulate(PROBLEM, fixed, 6, SEEDS, progress=False)["query"]
    torch.testing.assert_close(same, run("SBO-KDE", steps=6)["query"], rtol=0, atol=1e-3)


def test_search_points_lie_in_the_box_of_contexts():
    for name in ("DRBO-KDE", "StableOpt"):
        policy = make(name)
        policy.start(SEEDS)
        edge = torch.tensor([[[-1.0], [-0.9]], [[0.9], [1.0]]], dtype=F64)
        policy.tell(torch.ones(2, 2, 1, dtype=F64), torch.zeros(2, 2, dtype=F64), context=edge)
        points = policy.covered() if name == "DRBO-KDE" else policy.feared()
        assert points.shape[-2:] == (COVER, 1)
        assert bool((points >= -1).all()) and bool((points <= 1).all())


def test_more_rounds_bring_the_policies_to_the_optimum():
    problem = hill(noise_std=0.01)
    options = {"initial": 4, "raw": 32, "starts": 1, "iterations": 10, "refit_every": 3}
    for kind in (SBOKDE, DRBOKDE):
        policy = kind(problem.space, samples=64, **options)
        history = simulate(problem, policy, 20, [0, 1], progress=False)
        gap = problem.optimum - history["recommended_value"][:, -1]
        assert float(gap.max()) < 0.05
