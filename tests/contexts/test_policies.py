"""The policies, round by round against plain NumPy, by hand and simulated, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from book.contexts.controls import KnownDensity, RandomDecisions
from book.contexts.quadrature import ContextDistribution
from cbo_lib.contexts import ContextPolicy, Space
from cbo_lib.contexts.baselines import (
    DRBOMMD,
    GPUCB,
    DRBOMMDMinimax,
    StableOpt,
    context_grid,
)
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, TotalVariationRadius
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
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


def test_in_the_initial_design_the_largest_value_seen_is_recommended(histories):
    history = histories["SBO-KDE", PROBLEM.name]
    for step in range(DESIGN - 1):
        best = history["observation"][:, : step + 1].argmax(-1)
        assert torch.equal(history["recommendation"][:, step], history["query"][torch.arange(2), best])


def test_all_policies_have_the_same_design_a_sobol_set_of_each_replicates_own(histories):
    design = histories["random", PROBLEM.name]["query"][:, :DESIGN]
    for name in NAMES:
        assert torch.equal(histories[name, PROBLEM.name]["query"][:, :DESIGN], design)
    for r, seed in enumerate(SEEDS):
        scramble = int(torch.randint(2**31 - 1, (), generator=choices(seed, 0)))
        engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=scramble)
        torch.testing.assert_close(design[r], 2 * engine.draw(DESIGN, dtype=F64), rtol=0, atol=2**-13)
    quarters = (design / 2 * DESIGN).floor().sort(1).values
    torch.testing.assert_close(quarters, torch.arange(4, dtype=F64)[None, :, None].expand(2, -1, -1))


@pytest.mark.parametrize("name", NAMES)
def test_decisions_have_the_policys_resolution(name, histories):
    steps = histories[name, WIDE.name]["query"] * 2**13
    assert torch.equal(steps, steps.round())
    coarse = run(name, resolution=0.125, steps=5)["query"] / 0.25
    torch.testing.assert_close(coarse, coarse.round(), rtol=0, atol=1e-12)


def test_contexts_are_the_worlds_and_differ_between_seeds(histories):
    contexts = [histories[name, PROBLEM.name]["context"][:, 0, 0] for name in NAMES]
    for context in contexts:
        assert torch.equal(context, contexts[0])
    assert float((contexts[0][0] - contexts[0][1]).abs()) > 1e-6


def test_the_trace_names_the_design_and_the_hyperparameters(histories):
    history = histories["SBO-KDE", WIDE.name]
    assert history["initial"].tolist() == [[True] * 4 + [False] * 3] * 2
    assert history["lengthscale"].shape == (2, STEPS, 4)
    for key in ("lengthscale", "scale", "mean", "noise_std", "acquisition"):
        assert bool((history[key][:, :4] == 0).all())
        assert bool((history[key][:, 4:] != 0).all())
    assert history["converged"].dtype == torch.bool


def test_a_history_can_be_saved_and_says_what_made_it(tmp_path, histories):
    history = histories["DRBO-KDE", PROBLEM.name]
    history.save(tmp_path / "run.npz")
    policy = History.load(tmp_path / "run.npz").config["policy"]
    assert policy["class"] == "DRBOKDE"
    assert policy.items() >= SMALL.items()


@pytest.mark.parametrize("name", NAMES)
def test_a_context_that_never_changes_is_no_obstacle(name):
    history = run(name, constant(), steps=6, seeds=[3])
    assert bool((history["context"] == 0.3).all())
    assert bool(torch.isfinite(history["acquisition"]).all())


def test_contexts_that_never_change_may_be_told_by_hand():
    for name in NAMES:
        policy = make(name)
        policy.tell(np.linspace(0, 2, 5), np.arange(5.0), context=np.full(5, 0.3))
        assert 0 <= float(policy.ask()) <= 2


def test_a_known_prior_is_used_and_not_fitted(monkeypatch):
    monkeypatch.setattr("cbo_lib.former.surrogate.fit_gaussian_process", None)
    prior = GaussianProcess(rbf_kernel(0.3), 0.05)
    history = run("SBO-KDE", steps=6, prior=prior)
    assert "lengthscale" not in history.tensors


def test_a_prior_may_differ_between_replicates_and_a_kernel_need_not_be_a_product():
    kernels = MaternKernel(nu=2.5, ard_num_dims=2, batch_shape=torch.Size([2])).to(F64)
    kernels.lengthscale = torch.tensor([[[0.3, 0.4]], [[0.5, 0.2]]], dtype=F64)
    prior = GaussianProcess(kernels.requires_grad_(False), torch.full((2, 1), 0.05, dtype=F64))
    history = run("SBO-KDE", steps=6, prior=prior)
    assert torch.isfinite(history["acquisition"]).all()
    alone = GaussianProcess(kernels[1], 0.05)
    torch.testing.assert_close(run("SBO-KDE", steps=6, prior=alone, seeds=SEEDS[1:])["query"][0], history["query"][1])
    run("DRBO-KDE", steps=6, kernel=MaternKernel(nu=1.5, ard_num_dims=2))


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


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GPUCB(PROBLEM.space, initial=1), "initial must be an integer of at least 2, got"),
        (lambda: GPUCB(PROBLEM.space, starts=0), "starts must be an integer from 1 to 128, got"),
        (lambda: GPUCB(PROBLEM.space, starts=33, raw=32), "starts must be an integer from 1 to 32, got"),
        (lambda: GPUCB(PROBLEM.space, iterations=0), "iterations must be an integer of at least 1, got"),
        (lambda: GPUCB(PROBLEM.space, refit_every=0), "refit_every must be an integer of at least 1, got"),
        (lambda: GPUCB(PROBLEM.space, kernel="cosine"), "kernel must be 'matern', 'rbf' or a GPyTorch kernel"),
        (lambda: GPUCB(PROBLEM.space, resolution=2.0), "resolution must lie in"),
        (lambda: GPUCB(PROBLEM.space, sqrt_beta=-1.0), "sqrt_beta must be nonnegative"),
        (lambda: SBOKDE(PROBLEM.space, samples=0), "samples must be an integer of at least 1, got"),
        (lambda: DRBOKDE(PROBLEM.space, cover=0), "cover must be an integer of at least 1, got"),
        (lambda: StableOpt(PROBLEM.space, cover=0), "cover must be an integer of at least 1, got"),
        (lambda: DRBOMMD(PROBLEM.space, size=0), "size must be an integer of at least 1, got"),
        (lambda: DRBOMMD(PROBLEM.space, gamma=1.0), "gamma must lie in"),
        (lambda: KnownDensity(PROBLEM.space, distribution=WIDE.distribution), "distribution must be on the box of co"),
        (lambda: RandomDecisions(PROBLEM.space).acquisition(None), "has no acquisition"),
    ],
)
def test_arguments_out_of_range_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_policies_take_a_space_and_no_truth():
    with pytest.raises(TypeError, match="distribution"):
        KnownDensity(PROBLEM.space)
    for name in NAMES:
        policy = make(name)
        assert isinstance(policy, ContextPolicy) and policy.space is PROBLEM.space
        assert not any(value is PROBLEM for value in vars(policy).values())


# By hand.


def by_hand(policy, problem, steps, seed, first=1):
    noise = ReplicateGenerators([seed], stream=0)
    for step in range(first, first + steps):
        x = policy.ask()
        seen = problem.observe(x.unsqueeze(0), noise.at(step))
        policy.tell(x, seen["y"][0], context=seen["context"][0])
    return policy


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_by_hand_alone_and_saved_is_the_simulated_run_in_company(name, histories, tmp_path):
    """A replicate is the same alone and in company, by hand and simulated; and a policy that was saved goes on so."""
    history, seed = histories[name, PROBLEM.name], SEEDS[1]

    def goes_on(policy, steps):
        for step in steps:
            by_hand(policy, PROBLEM, 1, seed, step)
            assert torch.equal(policy.recommend(), history["recommendation"][1, step - 1])
        return policy

    policy = goes_on(make(name, seed=seed), range(1, 6))
    policy.save(tmp_path / "policy.npz")
    kept = type(policy).load(tmp_path / "policy.npz")
    assert kept.count == 5
    for one in (policy, kept):
        goes_on(one, range(6, STEPS + 1))
        assert one.count == STEPS and one.posterior.batch_shape == ()
        for part, told in (("query", "query"), ("context", "context"), ("observation", "y")):
            close = {"rtol": 0, "atol": 1e-12 if told == "y" else 0}
            torch.testing.assert_close(one.data[told][0], history[part][1], **close)


OLD = np.random.default_rng(0).uniform(0, 1, (9, 5))
FORMS = {
    "arrays": np.asarray,
    "lists": np.ndarray.tolist,
    "tensors": torch.as_tensor,
    "single tensors": lambda a: torch.as_tensor(a, dtype=torch.float32),
    "frames": lambda a: pd.DataFrame(a) if a.ndim == 2 else pd.Series(a),
}


@pytest.mark.parametrize("form", FORMS)
def test_old_data_in_any_form_comes_first_and_counts_for_the_design(form):
    give, policy = FORMS[form], make("SBO-KDE", WIDE)
    policy.tell(give(OLD[:, :2]), give(OLD[:, 4]), context=give(OLD[:, 2:4]))
    assert policy.count == 9
    np.testing.assert_allclose(policy.data["context"][0], OLD[:, 2:4], rtol=0, atol=1e-7)
    usual = make("SBO-KDE", WIDE)
    for row in OLD.astype(np.float32 if form == "single tensors" else float):
        usual.tell(row[:2], row[4], context=row[2:4])
    x = policy.ask()
    assert torch.equal(x, usual.ask()) and torch.equal(policy.ask(), x)
    assert bool(policy.record()["acquisition"] != 0)  # the design is over


def test_with_one_coordinate_numbers_will_do():
    numbers, rows = make("SBO-KDE"), make("SBO-KDE")
    numbers.tell(OLD[:, 0], OLD[:, 1], context=OLD[:, 2])
    numbers.tell(0.7, 1, context=0)
    rows.tell(OLD[:, :1], OLD[:, 1], context=OLD[:, 2:3])
    rows.tell([0.7], [1.0], context=[[0.0]])
    assert torch.equal(numbers.ask(), rows.ask())


def test_another_decision_may_be_made_than_was_asked():
    policy = by_hand(make("SBO-KDE"), PROBLEM, 5, 0)
    policy.ask()
    policy.tell(0.123456, 2.0, context=0.5)
    assert float(policy.data["query"][0, -1]) == 0.123456
    assert policy.count == 6 and float(policy.recommend()) == 0.123456
    assert float(policy.posterior.data.measure.points[-1, 0, 0]) == 0.123456
    policy.ask()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "density known"])
def test_units_do_not_matter(name):
    """The box is 64 by 32 as large and elsewhere, values are shifted and four times as large."""
    low, side = torch.tensor([16.0, -8.0], dtype=F64), torch.tensor([64.0, 32.0], dtype=F64)
    unit = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    box = low + side * unit
    here, there = (Space(b[:, :1], b[:, 1:]) for b in (unit, box))
    options = {"initial": 3, "raw": 16, "starts": 2, "iterations": 8}
    priors = [
        GaussianProcess(rbf_kernel(0.3), 0.1),
        GaussianProcess(rbf_kernel((0.3 * side).tolist(), 16.0), 0.4, 5.0),
    ]
    if name == "GP-UCB":
        priors[1] = GaussianProcess(rbf_kernel(0.3 * 64, 16.0), 0.4, 5.0)
    first, second = (
        MAKERS[name](Holder(space), prior=prior, sqrt_beta=1.5, **options)
        for space, prior in zip((here, there), priors, strict=True)
    )
    for k in range(6):
        x, z = first.ask(), second.ask()
        torch.testing.assert_close((z - low[0]) / side[0], x, rtol=0, atol=1e-9)
        c, y = OLD[k, 2], np.sin(6 * float(x)) + OLD[k, 2]
        first.tell(x, y, context=c)
        second.tell(z, 5 + 4 * y, context=float(low[1]) + float(side[1]) * c)
    torch.testing.assert_close((second.recommend() - low[0]) / side[0], first.recommend(), rtol=0, atol=1e-9)


class Holder:
    def __init__(self, space):
        self.space = space


@pytest.mark.parametrize(
    ("told", "match"),
    [
        (([0.1], [1.0], {}), r"tell takes query, y, context; context is missing$"),
        (([0.1], [1.0], {"contexts": [0.1]}), "; context is missing and contexts is unknown$"),
        (([0.1, 0.2], [1.0], {"context": [0.1, 0.2]}), "y must hold as many rows as query, 2, got 1"),
        (([0.1, 0.2], [1.0, 2.0], {"context": [0.1]}), "context must hold as many rows as query, 2, got 1"),
        (([0.1], [np.nan], {"context": [0.1]}), "y must be finite"),
        (([0.1], [1.0], {"context": [np.inf]}), "context must be finite"),
        (([2.1], [1.0], {"context": [0.1]}), r"query must lie in the box \[\[0.0\], \[2.0\]\], got \[2.1\]"),
        (([[0.1, 0.2]], [1.0], {"context": [0.1]}), "query must have 1 coordinates, got 2"),
        (([[0.1]], [1.0], {"context": [[0.1, 0.2]]}), "context must have 1 coordinates, got 2"),
        ((["red"], [1.0], {"context": [0.1]}), "query must be numbers"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_learned(told, match):
    policy = make("SBO-KDE")
    query, y, seen = told
    with pytest.raises(ValueError, match=match):
        policy.tell(query, y, **seen)
    assert policy.count == 0
    with pytest.raises(ValueError, match="recommend must follow an observation"):
        policy.recommend()


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
        np.testing.assert_allclose(weights[r], expected, rtol=0, atol=1e-12)


def test_grids_have_the_papers_sizes():
    assert len(context_grid(PROBLEM.space.contexts, 100)) == 100
    square = context_grid(WIDE.space.contexts, 100)
    assert square.shape == (100, 2)
    assert len({tuple(p) for p in square.tolist()}) == 100
    np.testing.assert_allclose(np.sort(square, 0), np.sort(plain.grid([0, 0], [1, 1], 100), 0), rtol=0, atol=1e-15)
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


def test_contexts_are_counted_where_they_lie_in_units_far_apart(rng):
    """Pascal beside a mole fraction."""
    side = torch.tensor([1e6, 1e-5], dtype=F64)
    policy = DRBOMMD(Space([[0.0], [1.0]], torch.stack([0 * side, side])), size=100)
    seen = torch.rand(50, 2, generator=rng, dtype=F64)
    policy.tell(torch.rand(50, 1, generator=rng, dtype=F64), torch.zeros(50, dtype=F64), context=seen * side)
    grid = (policy.points / side * 9).round().long()
    nearest = (seen * 9).round().long()
    counts = (grid == nearest.unsqueeze(1)).all(-1).double().mean(0)
    torch.testing.assert_close(policy.reference()[0], counts)


def test_a_kernel_may_be_zero_at_decision_zero(rng):
    """As that of a value linear in the decision."""
    kernel = ScaleKernel(LinearKernel(active_dims=(0,)) * RBFKernel(active_dims=(1,)))
    kernel.base_kernel.kernels[0].register_prior("own", GammaPrior(2.0, 2.0), "variance")
    kernel.base_kernel.kernels[1].register_prior("own", GammaPrior(3.0, 6.0), "lengthscale")
    kernel.register_prior("own", GammaPrior(2.0, 0.5), "outputscale")
    policy = DRBOMMD(Space([[0.0], [1.0]], [[0.0], [1.0]]), kernel=kernel, size=20, initial=2)
    x, c = torch.rand(8, 1, generator=rng, dtype=F64), torch.rand(8, 1, generator=rng, dtype=F64)
    policy.tell(x, (x * torch.sin(6 * c))[:, 0], context=c)
    assert policy.ask().shape == (1,)
