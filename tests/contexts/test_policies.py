"""The policies, round by round against plain NumPy, and what they refuse."""

import numpy as np
import pytest
import torch

from cbo_lib.contexts.policies import (
    DRBOKDE,
    GPUCB,
    SBOKDE,
    KnownDensity,
    RandomDecisions,
    Settings,
    TotalVariationRadius,
)
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt, context_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.history import History
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import simulate
from tests.contexts import plain
from tests.contexts.helpers import F64, SMALL, choices, constant, hill, kde_draws, plane

SEEDS, STEPS, SAMPLES, COVER = [5, 11], 7, 48, 32
PROBLEM, WIDE = hill(), plane()


def policies(problem, settings=SMALL):
    return {
        "SBO-KDE": SBOKDE(problem, settings, SAMPLES),
        "DRBO-KDE": DRBOKDE(problem, settings, SAMPLES, cover=COVER),
        "density known": KnownDensity(problem, settings, SAMPLES),
        "StableOpt": StableOpt(problem, settings, COVER),
        "DRBO-MMD": DRBOMMD(problem, settings, size=9),
        "minimax": DRBOMMDMinimax(problem, settings, size=16),
        "GP-UCB": GPUCB(problem, settings),
        "random": RandomDecisions(problem, settings),
    }


NAMES = list(policies(PROBLEM))
SEARCHING = NAMES[:-1]


def run(name, problem=PROBLEM, steps=STEPS, seeds=SEEDS, settings=SMALL):
    return simulate(problem, policies(problem, settings)[name], steps, seeds, progress=False)


@pytest.fixture(scope="module")
def histories():
    return {(name, problem.name): run(name, problem) for name in NAMES for problem in (PROBLEM, WIDE)}


def sobol(n, dim):
    return torch.quasirandom.SobolEngine(dim, scramble=False).draw(n, dtype=F64).numpy()


def plain_acquisition(name, problem, model, x, y, contexts, seed, step):
    """The acquisition of one replicate as a function of the decision."""
    low, high = (corner.numpy() for corner in problem.context_bounds)
    t, dim = len(contexts) + 1, problem.context_dim
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
    low, high = (corner.numpy() for corner in world.bounds)
    rng = np.random.default_rng(0)
    for r, seed in enumerate(SEEDS):
        queries, seen = history["query"][r].numpy(), history["observation"][r].numpy()
        full = queries if name == "GP-UCB" else np.concatenate([queries, seen[:, :-1]], -1)
        for step in range(SMALL.initial, STEPS):
            hyper = {k: history[k][r, step].numpy() for k in ("lengthscale", "scale", "mean", "noise_std")}
            model = plain.Model(*(hyper["lengthscale"], *(float(hyper[k]) for k in ("scale", "mean", "noise_std"))))
            value = plain_acquisition(
                name, world, model, full[:step], seen[:step, -1], seen[:step, :-1], seed, step + 1
            )
            reached = float(history["acquisition"][r, step])
            assert reached == pytest.approx(value(queries[step]), abs=1e-3 if name == "DRBO-MMD" else 2e-5)
            others = low + (high - low) * rng.random((12, len(low)))
            assert max(value(d) for d in others) <= reached + 5e-3
            assert bool(((queries[step] >= low) & (queries[step] <= high)).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_recommendation_is_the_best_posterior_mean_over_the_contexts_seen(name, histories):
    history, last = histories[name, PROBLEM.name], STEPS - 1
    settings = Settings(**{**vars(SMALL), "refit_every": 1})
    policy = policies(PROBLEM, settings)[name]
    policy.start(ReplicateGenerators(SEEDS, stream=1).generators)
    assert policy.surrogate is not None
    policy._query = history["query"][:, 0]
    for step in range(STEPS):
        policy._query = history["query"][:, step]
        policy.tell(history["query"][:, step], history["observation"][:, step])
    fit = policy.surrogate
    recommended = policy.recommend()
    torch.testing.assert_close(recommended, history["recommendation"][:, last], rtol=0, atol=0)
    assert fit.hyperparameters is not None
    for r in range(len(SEEDS)):
        h = fit.hyperparameters
        model = plain.Model(h.lengthscale[r].numpy(), float(h.scale[r]), float(h.mean[r]), float(h.noise_std[r]))
        x, y, decisions = fit.x[r].numpy(), fit.y[r].numpy(), history["query"][r].numpy()
        if name == "GP-UCB":
            best = decisions[np.argmax(model.posterior(x, y, decisions)[0])]
        else:
            best = plain.recommendation(model, x, y, decisions, history["observation"][r, :, :-1].numpy())
        np.testing.assert_allclose(recommended[r], best, rtol=0, atol=0)


def test_in_the_initial_design_the_largest_value_seen_is_recommended(histories):
    history = histories["SBO-KDE", PROBLEM.name]
    for step in range(SMALL.initial - 1):
        best = history["observation"][:, : step + 1, -1].argmax(-1)
        assert torch.equal(history["recommendation"][:, step], history["query"][torch.arange(2), best])


def test_all_policies_have_the_same_design_a_sobol_set_of_each_replicates_own(histories):
    design = histories["random", PROBLEM.name]["query"][:, : SMALL.initial]
    for name in NAMES:
        assert torch.equal(histories[name, PROBLEM.name]["query"][:, : SMALL.initial], design)
    for r, seed in enumerate(SEEDS):
        scramble = int(torch.randint(2**31 - 1, (), generator=choices(seed, 0)))
        engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=scramble)
        torch.testing.assert_close(design[r], 2 * engine.draw(SMALL.initial, dtype=F64), rtol=0, atol=0)
    quarters = (design / 2 * SMALL.initial).floor().sort(1).values
    torch.testing.assert_close(quarters, torch.arange(4, dtype=F64)[None, :, None].expand(2, -1, -1))


def test_contexts_are_the_worlds_and_differ_between_seeds(histories):
    contexts = [histories[name, PROBLEM.name]["observation"][:, 0, 0] for name in NAMES]
    for context in contexts:
        assert torch.equal(context, contexts[0])
    assert float((contexts[0][0] - contexts[0][1]).abs()) > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_a_replicate_is_the_same_alone_and_in_company(name, histories):
    alone = run(name, seeds=SEEDS[1:])
    together = histories[name, PROBLEM.name]
    for key in ("query", "observation", "recommendation"):
        torch.testing.assert_close(alone[key][0], together[key][1], rtol=0, atol=1e-5)


def test_the_trace_names_the_design_and_the_hyperparameters(histories):
    history = histories["SBO-KDE", WIDE.name]
    assert history["initial"].tolist() == [[True] * 4 + [False] * 3] * 2
    assert history["lengthscale"].shape == (2, STEPS, 4)
    for key in ("lengthscale", "scale", "mean", "noise_std", "acquisition"):
        assert bool((history[key][:, :4] == 0).all())
        assert bool((history[key][:, 4:] != 0).all())


def test_a_history_can_be_saved_and_says_what_made_it(tmp_path, histories):
    history = histories["DRBO-KDE", PROBLEM.name]
    history.save(tmp_path / "run.npz")
    policy = History.load(tmp_path / "run.npz").config["policy"]
    assert policy["class"] == "DRBOKDE"
    assert policy["settings"] == {"class": "Settings", **vars(SMALL)}


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_never_changes_is_no_obstacle(name):
    history = run(name, constant(), steps=6, seeds=[3])
    assert bool((history["observation"][..., 0] == 0.3).all())
    assert bool(torch.isfinite(history["acquisition"]).all())


def test_a_known_prior_is_used_and_not_fitted(monkeypatch):
    monkeypatch.setattr("cbo_lib.contexts.surrogate.fit_hyperparameters", None)
    prior = GaussianProcess(rbf_kernel(0.3), 0.05)
    settings = Settings(initial=3, raw=16, starts=1, iterations=5, prior=prior)
    history = run("SBO-KDE", steps=5, settings=settings)
    assert "lengthscale" not in history.tensors
    one = GaussianProcess(rbf_kernel(0.3), 0.05).posterior(2)
    assert one.batch_shape == (2,)


def test_multipliers_may_depend_on_the_round():
    rounds = []

    def schedule(t):
        rounds.append(t)
        return 0.1 * t

    history = run("GP-UCB", settings=Settings(**{**vars(SMALL), "sqrt_beta": schedule}))
    assert sorted(set(rounds)) == list(range(SMALL.initial + 1, STEPS + 1))
    assert bool(torch.isfinite(history["acquisition"]).all())
    bad = Settings(**{**vars(SMALL), "sqrt_beta": lambda t: 1.5 if t < 6 else -1.0})
    with pytest.raises(ValueError, match=r"sqrt_beta must be nonnegative and finite, got -1.0 at round 6"):
        run("GP-UCB", settings=bad)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"initial": 1}, "initial must be at least 2"),
        ({"starts": 0}, "starts must lie in"),
        ({"starts": 33}, r"starts must lie in \[1, raw = 32\], got 33"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"refit_every": 0}, "refit_every must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        Settings(**{**vars(SMALL), **change})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SBOKDE(PROBLEM, SMALL, 0), "samples must be at least 1"),
        (lambda: DRBOMMD(PROBLEM, SMALL, size=0), "size must be at least 1"),
        (lambda: DRBOMMD(PROBLEM, SMALL, gamma=1.0), "gamma must lie in"),
        (lambda: DRBOMMD(PROBLEM, SMALL, grid="half"), "grid must be 'full' or 'diagonal'"),
        (lambda: RandomDecisions(PROBLEM).acquisition(None), "has no acquisition"),
    ],
)
def test_arguments_out_of_range_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_the_order_of_calls_and_the_shapes_are_checked():
    policy = GPUCB(PROBLEM, SMALL)
    for call in (policy.ask, policy.recommend, policy.trace):
        with pytest.raises(ValueError, match="start must be called first"):
            call()
    policy.start(ReplicateGenerators(SEEDS, stream=1).generators)
    seen = torch.zeros(2, 2, dtype=F64)
    with pytest.raises(ValueError, match="tell must follow ask"):
        policy.tell(torch.zeros(2, 1, dtype=F64), seen)
    for call in (policy.recommend, policy.trace):
        with pytest.raises(ValueError, match="must follow"):
            call()
    query = policy.ask()
    with pytest.raises(ValueError, match="query must be what was asked last"):
        policy.tell(query + 0.1, seen)
    with pytest.raises(ValueError, match=r"observation must have shape \(2, 2\), got \(2,\)"):
        policy.tell(query, seen[:, 0])
    with pytest.raises(ValueError, match="observation must be finite"):
        policy.tell(query, seen * torch.nan)
    policy.tell(query, seen)
    assert torch.equal(policy.recommend(), query)
    policy.ask()
    with pytest.raises(ValueError, match="trace must follow ask and tell"):
        policy.trace()


def test_grids_have_the_papers_sizes():
    assert len(context_grid(PROBLEM.context_bounds, 100)) == 100
    square = context_grid(WIDE.context_bounds, 100)
    assert square.shape == (100, 2)
    assert len({tuple(p) for p in square.tolist()}) == 100
    np.testing.assert_allclose(np.sort(square, 0), np.sort(plain.grid([0, 0], [1, 1], 100), 0), rtol=0, atol=1e-15)
    four = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=F64)
    assert [len(context_grid(four, n)) for n in (100, 1024)] == [4**4, 6**4]
    diagonal = context_grid(WIDE.context_bounds, 1024, "diagonal")
    assert diagonal.shape == (32, 2)
    assert torch.equal(diagonal[:, 0], diagonal[:, 1])


def test_the_discrepancys_kernel_is_one_on_the_diagonal_and_kept_between_fits(histories):
    policy = DRBOMMD(PROBLEM, SMALL, size=9)
    simulate(PROBLEM, policy, 6, SEEDS, progress=False)
    assert policy.surrogate is not None
    posterior = policy.surrogate.posterior()
    gram = policy.gram(posterior)
    torch.testing.assert_close(gram.diagonal(dim1=-2, dim2=-1), torch.ones(2, 9, dtype=F64))
    assert policy.gram(posterior) is gram
    weights = policy.reference()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, dtype=F64))
    for r in range(2):
        expected = plain.empirical(policy.contexts[r].numpy(), policy.points.numpy())
        np.testing.assert_allclose(weights[r], expected, rtol=0, atol=1e-12)


def test_the_radius_shrinks_as_the_paper_says():
    assert [TotalVariationRadius(d)(1) for d in (1, 2, 4)] == [1.0, 1.0, 1.0]
    assert TotalVariationRadius(1)(32) == pytest.approx(32**-0.4)
    assert TotalVariationRadius(4)(10) == pytest.approx(10 ** (-1 / 4))
    fixed = DRBOKDE(PROBLEM, SMALL, SAMPLES, radius=lambda t: 0.0, cover=COVER)
    same = simulate(PROBLEM, fixed, 6, SEEDS, progress=False)["query"]
    torch.testing.assert_close(same, run("SBO-KDE", steps=6)["query"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("make", [StableOpt, DRBOKDE])
def test_reflected_points_leave_the_box_of_contexts(make, monkeypatch):
    points = {}
    for reflected in (False, True):
        policy = make(PROBLEM, SMALL, cover=COVER, reflected=reflected)
        seen = []
        original = policy.acquisition

        def spy(posterior, original=original, seen=seen):
            found = original(posterior)
            seen.append(found.partial._exact._contexts[..., -COVER:, -1])
            return found

        policy.acquisition = spy
        simulate(PROBLEM, policy, 6, SEEDS, progress=False)
        points[reflected] = torch.stack(seen)
    assert bool((points[False] >= -1).all()) and bool((points[False] <= 1).all())
    if make is DRBOKDE:
        torch.testing.assert_close(points[True], -2 - points[False], rtol=0, atol=1e-12)
    else:
        assert not torch.equal(points[True], points[False])


def test_more_rounds_bring_the_policies_to_the_optimum():
    problem = hill(noise_std=0.01)
    settings = Settings(initial=4, raw=32, starts=1, iterations=10, refit_every=3)
    for policy in (SBOKDE(problem, settings, 64), DRBOKDE(problem, settings, 64, cover=32)):
        history = simulate(problem, policy, 20, [0, 1], progress=False)
        gap = problem.optimum - history["recommended_value"][:, -1]
        assert float(gap.max()) < 0.05
