"""Batches of replicates against plain loops, and what the policies refuse."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from book.indirect.controls import RandomQueries
from book.indirect.problem import IndirectProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ActionPolicy, ClippedGaussian, Point, Space
from cbo_lib.kernels import rbf_kernel
from tests.indirect import plain
from tests.indirect.helpers import (
    F64,
    SEEDS,
    UNIT,
    grams,
    identity,
    known,
    learned,
    noise_draws,
    priced,
    problem_of,
    ripple,
    run,
    square,
    tabulated_prior,
    uniforms,
)

STEPS, INITIAL = 12, 2


def usual(problem, prior, acquisition, length=0.3, **settings):
    on_actions = GaussianProcess(rbf_kernel(length), 0.2)
    return ActionPolicy(problem.space, acquisition=acquisition, prior=prior, action_prior=on_actions, **settings)


def plain_run(problem, prior, replicate, seeds=SEEDS, budget=math.inf):
    gram = grams(prior, len(seeds))[replicate]
    return plain.Run(gram, problem.table.numpy(), problem.n, problem.noise.numpy(), problem.space.costs.numpy(), budget)


def assert_same_rounds(history, replicate, rounds):
    names = ("query", "observation", "mean", "std", "cost", "active", "recommendation")
    for name, expected in zip(names, zip(*rounds, strict=True), strict=True):
        got = history[name][replicate]
        if got.is_floating_point():
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8, err_msg=name)
        else:
            assert got.tolist() == list(expected), name


def posteriors(history, problem, prior, replicate, step):
    """Mean and standard deviation of all places before a round, solved anew from the history."""
    seen = history["query"][replicate, :step].tolist()
    y = history["observation"][replicate, :step].numpy()
    gram = grams(prior, history.replicates)[replicate]
    mean, cov = plain.posterior(gram, seen, y, problem.noise.numpy()[seen])
    return mean, np.sqrt(np.maximum(np.diag(cov), 0.0))


@pytest.mark.parametrize("initial", [0, INITIAL])
@pytest.mark.parametrize("kind", ["learned", "known"])
def test_a_batch_of_cmes_is_the_plain_loop_for_each_replicate(kind, initial):
    problem = square(cosine=True)
    prior = learned(problem) if kind == "learned" else known(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=initial, samples=4), STEPS)
    for r, seed in enumerate(SEEDS):
        samples, design = history["max_samples"][r].numpy(), history["query"][r, :initial].tolist()
        rounds = plain.cmes(plain_run(problem, prior, r), noise_draws(seed, STEPS), samples, design)
        assert_same_rounds(history, r, rounds)
    assert len(history["query"][:, initial:].unique()) > 5


def test_samples_of_the_maximum_are_gumbel_draws_from_the_quartiles():
    problem = square()
    prior = learned(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=INITIAL, samples=4), 6)
    for r, seed in enumerate(SEEDS):
        for step in range(INITIAL, 6):
            mean, std = posteriors(history, problem, prior, r, step)
            expected = plain.gumbel(mean[problem.n :], std[problem.n :], uniforms(seed, step + 1, 4))
            np.testing.assert_allclose(history["max_samples"][r, step], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("budget", [3.4, 7.0])
def test_costs_divide_the_information_and_the_budget_ends_a_run(budget):
    problem = priced()
    prior = known(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=1, budget=budget, samples=3), 16)
    for r, seed in enumerate(SEEDS):
        samples, design = history["max_samples"][r].numpy(), history["query"][r, :1].tolist()
        rounds = plain.cmes(plain_run(problem, prior, r, budget=budget), noise_draws(seed, 16), samples, design)
        assert_same_rounds(history, r, rounds)
    assert bool((history["cost"].sum(-1) <= budget + 1e-9).all())
    assert bool((history["cost"].sum(-1) > budget - 0.5).all())  # no action could be paid any more


@pytest.mark.parametrize("name", ["cmes", "thompson", "random", "mes", "ucb", "ei"])
def test_whoever_is_exhausted_asks_no_more_and_learns_nothing(name):
    problem, budget = priced(), 4.0
    prior = known(problem)
    policy = {
        "cmes": lambda: CMES(problem.space, prior=prior, initial=2, budget=budget),
        "thompson": lambda: CMES(problem.space, prior=prior, initial=2, budget=budget, sampling="thompson"),
        "random": lambda: RandomQueries(problem.space, prior=prior, initial=2, budget=budget),
    }.get(name, lambda: usual(problem, prior, name, initial=2, budget=budget))()
    policy_means = []

    class Watched(type(policy)):
        def tell(self, query, y):
            super().tell(query, y)
            policy_means.append((self.mean.clone(), self.std.clone(), None if name != "thompson" else self.paths))

    policy.__class__ = Watched
    history = run(problem, policy, 12)
    active, cost = history["active"], history["cost"]
    assert bool((cost.sum(-1) <= budget + 1e-9).all()) and not active[:, -1].any() and active[:, 0].all()
    assert bool((cost > 0)[active].all()) and bool((cost == 0)[~active].all())
    for t in range(1, 12):
        for r in torch.nonzero(~active[:, t]).flatten().tolist():
            if t >= 2:  # in the design a dear action may be skipped
                assert not active[r, t:].any()
            assert history["query"][r, t] == history["query"][r, t - 1]
            for before, after in zip(policy_means[t - 1], policy_means[t], strict=True):
                if before is not None:
                    torch.testing.assert_close(before[r], after[r], rtol=0, atol=1e-12)
    assert bool((history["recommendation"][:, -1] == history["recommendation"][:, -2]).all())


def test_with_one_sample_cmes_minimizes_the_standardized_gap():
    """Lemma 1: an upper confidence bound whose multiplier is that minimum."""
    problem = square(cosine=True)
    prior = learned(problem)
    history = run(problem, CMES(problem.space, prior=prior, samples=1), STEPS)
    for r in range(len(SEEDS)):
        for step in range(STEPS):
            mean, std = (part[: problem.n] for part in posteriors(history, problem, prior, r, step))
            best = float(history["max_samples"][r, step, 0])
            gamma, index = (best - mean) / std, int(history["query"][r, step])
            kappa = float(history["kappa"][r, step])
            assert gamma[index] == pytest.approx(gamma.min(), abs=1e-6) == kappa
            upper = mean + kappa * std
            assert upper[index] == pytest.approx(upper.max(), abs=1e-6) == best


def test_a_far_maximum_leaves_lemma_1_as_it_is():
    """The information is tiny everywhere if g stays far below the maximum of f; its order still counts."""
    problem = square(noise_std=0.1, spread=0.3)
    history = run(problem, CMES(problem.space, prior=known(problem), samples=1), 25)
    kappa = history["kappa"]
    assert 20 < float(kappa.max()) < 38
    attained = (history["max_samples"][..., 0] - history["mean"]) / history["std"]
    torch.testing.assert_close(attained, kappa, rtol=0, atol=1e-6)


def test_a_very_far_maximum_leaves_lemma_1_as_it_is():
    problem = square(noise_std=0.05, spread=0.3)
    history = run(problem, CMES(problem.space, prior=known(problem), samples=1), 25)
    attained = (history["max_samples"][..., 0] - history["mean"]) / history["std"]
    assert float(history["kappa"].max()) > 45
    torch.testing.assert_close(attained, history["kappa"], rtol=0, atol=1e-6)


def test_an_average_far_above_the_maximum_is_asked():
    """Signed weights may put g above every sample of ``f*``."""
    gram = torch.diag(torch.tensor([1.0, 1e-12, 1.0, 1.0], dtype=F64))
    problem = problem_of(ripple, UNIT, UNIT, ClippedGaussian(identity, 0.1))
    policy = CMES(problem.space, prior=tabulated_prior(gram, 0.1), samples=1)
    policy.start([0])
    policy.max_samples = lambda: torch.tensor([[-1.0]], dtype=F64)
    assert policy.ask().tolist() == [1]  # gamma is -1 and -10^6


@pytest.mark.parametrize("noisy", [False, True])
def test_several_samples_and_the_noisy_form_maximize_the_mean_information(noisy):
    problem = square()
    prior = learned(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=1, samples=3, noisy=noisy), 6)
    for r in range(len(SEEDS)):
        for step in range(1, 6):
            mean, std = (part[: problem.n] for part in posteriors(history, problem, prior, r, step))
            gain = np.zeros(problem.n)
            for best in history["max_samples"][r, step].tolist():
                gamma = (best - mean) / std
                if not noisy:
                    gain += plain.truncation_gain(gamma)
                    continue
                c = std / np.sqrt(std**2 + problem.noise.numpy()[: problem.n] ** 2)
                gain += plain.noisy_gain(gamma, c)
            index = int(history["query"][r, step])
            assert gain[index] >= gain.max() * (1 - 1e-3)


@pytest.mark.parametrize("kind", ["learned", "known"])
def test_updated_paths_have_the_moments_of_the_posterior(kind):
    """Matheron's rule, over twenty thousand paths of each replicate."""
    problem, count = square(count=3), 20000
    seeds = SEEDS[:2]
    prior = learned(problem, seeds) if kind == "learned" else known(problem)
    policy = CMES(problem.space, prior=prior, samples=count, sampling="thompson")
    history = run(problem, policy, 5, seeds)
    for r in range(2):
        seen, y = history["query"][r].tolist(), history["observation"][r].numpy()
        mean, cov = plain.posterior(grams(prior, 2)[r], seen, y, problem.noise.numpy()[seen])
        paths, std = policy.paths[r].numpy(), np.sqrt(np.diag(cov))
        assert np.abs((paths.mean(0) - mean) / std).max() < 4.5 / count**0.5
        scale = np.outer(std, std)
        assert np.abs((np.cov(paths.T) - cov) / scale).max() < 6 / count**0.5
        assert kstest((paths[:, 4] - mean[4]) / std[4], "norm").pvalue > 1e-3
    assert torch.equal(policy.max_samples(), policy.paths[..., 9:].amax(-1))


def test_thompson_samples_are_the_maxima_of_the_paths_before_the_round():
    problem = square(count=4)
    prior = known(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=1, samples=5, sampling="thompson"), 6)
    for r, seed in enumerate(SEEDS):
        rows = plain.cmes(
            plain_run(problem, prior, r),
            noise_draws(seed, 6),
            history["max_samples"][r].numpy(),
            history["query"][r, :1].tolist(),
        )
        assert_same_rounds(history, r, rows)
    samples = history["max_samples"][:, 1:]
    assert bool((samples.diff(dim=1) != 0).all())


@pytest.mark.parametrize("acquisition", ["ucb", "ei", "mes"])
@pytest.mark.parametrize("initial", [0, 3])
def test_the_baselines_follow_the_plain_formulas_on_actions(acquisition, initial):
    problem, length = square(cosine=True), 0.35
    prior = known(problem)
    policy = usual(problem, prior, acquisition, length, initial=initial, samples=6, sqrt_beta=1.7)
    history = run(problem, policy, STEPS)
    gram = plain.rbf(problem.space.actions, problem.space.actions, length)
    noise, asked = problem.noise.numpy(), []
    for r, seed in enumerate(SEEDS):
        queries, y = history["query"][r].tolist(), history["observation"][r].numpy()
        best = -1e3
        for step in range(STEPS):
            seen = queries[:step]
            mean, cov = plain.posterior(gram, seen, y[:step], noise[seen])
            std = np.sqrt(np.maximum(np.diag(cov), 0.0))
            if step:
                best = max(best, mean[queries[step - 1]])
            if step < initial:
                continue
            if acquisition == "ucb":
                score = mean + 1.7 * std
            elif acquisition == "ei":
                z = (mean - best) / std
                score = np.log((mean - best) * norm.cdf(z) + std * norm.pdf(z))
            else:
                samples = plain.gumbel(mean, std, uniforms(seed, step + 1, 6))
                score = np.log(np.mean([plain.truncation_gain((g - mean) / std) for g in samples], 0))
            assert score[queries[step]] == pytest.approx(score.max(), abs=1e-4)
            asked.append(queries[step])
    assert len(set(asked)) > 3


def test_random_queries_are_uniform_over_the_affordable():
    problem = priced()
    seeds = range(300)
    history = run(problem, RandomQueries(problem.space, prior=known(problem)), 5, seeds)
    counts = history["query"].flatten().bincount(minlength=25)
    assert len(counts) == 25 and float(((counts - 60) ** 2 / 60).sum()) < 51  # chi-squared, 0.999
    poor = run(problem, RandomQueries(problem.space, prior=known(problem), budget=1.9), 1, seeds)
    assert bool((problem.space.cost[poor["query"]] <= 1.9).all()) and len(poor["query"].unique()) == 17


def test_direct_search_asks_points_and_learns_f():
    points = square(count=4).space.points
    problem = IndirectProblem(Space(points, conditional=Point(), points=points, noise_std=0.2), ripple)
    prior = known(problem)
    history = run(problem, CMES(problem.space, prior=prior, samples=2), 8)
    torch.testing.assert_close(history["value"], ripple(points)[history["query"]])
    for r, seed in enumerate(SEEDS):
        for step in (0, 3, 7):
            mean, std = (part[problem.n :] for part in posteriors(history, problem, prior, r, step))
            samples = plain.gumbel(mean, std, uniforms(seed, step + 1, 2))
            gain = np.mean([plain.truncation_gain((best - mean) / std) for best in samples], 0)
            assert gain[history["query"][r, step]] >= gain.max() * (1 - 1e-4)


def test_all_start_with_the_same_design_and_recommend_by_the_same_process():
    problem = square()
    prior = learned(problem)
    policies = [
        CMES(problem.space, prior=prior, initial=4),
        CMES(problem.space, prior=prior, initial=4, sampling="thompson"),
        RandomQueries(problem.space, prior=prior, initial=4),
        usual(problem, prior, "ei", initial=4),
    ]
    histories = [run(problem, policy, 5) for policy in policies]
    for history in histories[1:]:
        for name in ("query", "observation", "recommendation"):
            assert torch.equal(history[name][:, :4], histories[0][name][:, :4])
    for history in histories:
        for r in range(len(SEEDS)):
            for step in range(5):
                mean, _ = posteriors(history, problem, prior, r, step + 1)
                best = problem.n + plain.first_best(mean[problem.n :])
                assert int(history["recommendation"][r, step]) == best
        torch.testing.assert_close(history["recommended_value"], problem.table[history["recommendation"]])


MAKERS = {
    "gumbel": lambda p, prior: CMES(p.space, prior=prior, initial=2, samples=3),
    "thompson": lambda p, prior: CMES(p.space, prior=prior, initial=2, samples=3, sampling="thompson"),
    "noisy": lambda p, prior: CMES(p.space, prior=prior, initial=2, samples=3, noisy=True),
    "budget": lambda p, prior: CMES(p.space, prior=prior, initial=2, budget=5.0, samples=3),
    "random": lambda p, prior: RandomQueries(p.space, prior=prior, initial=2),
    **{name: lambda p, prior, name=name: usual(p, prior, name, initial=2) for name in ("mes", "ucb", "ei")},
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", ["learned", "known"])
def test_a_replicate_alone_is_the_same_as_among_others(name, kind):
    problem = square(count=5)
    prior = (lambda seeds: learned(problem, seeds)) if kind == "learned" else (lambda seeds: known(problem))
    together = run(problem, MAKERS[name](problem, prior(SEEDS)), 7)
    for r, seed in enumerate(SEEDS):
        alone = run(problem, MAKERS[name](problem, prior([seed])), 7, [seed])
        for key in together.tensors:
            one, other = together[key][r], alone[key][0]
            if one.is_floating_point():
                torch.testing.assert_close(one, other, rtol=0, atol=1e-7, equal_nan=True)
            else:
                assert torch.equal(one, other), key


@pytest.mark.parametrize("name", MAKERS)
def test_a_run_resumes_from_its_checkpoint(name, tmp_path):
    problem = square(count=5)
    prior, path = learned(problem), tmp_path / "log"
    whole = run(problem, MAKERS[name](problem, prior), 8)
    run(problem, MAKERS[name](problem, prior), 5, checkpoint=path)
    resumed = run(problem, MAKERS[name](problem, prior), 8, checkpoint=path)
    for key in whole.tensors:
        torch.testing.assert_close(resumed[key], whole[key], rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_of_another_map_is_refused(tmp_path):
    """Two problems whose averages and covariances differ, with the same initial design."""
    path, grid = tmp_path / "log", square(count=4).space.points
    parts = [
        problem_of(ripple, grid, grid, ClippedGaussian(lambda a, scale=scale: scale * a, 0.1), 0.2, order=9)
        for scale in (1.0, 0.5)
    ]
    run(parts[0], CMES(parts[0].space, prior=known(parts[0]), initial=3), 2, checkpoint=path)
    with pytest.raises(ValueError, match="checkpoint must belong to this run"):
        run(parts[1], CMES(parts[1].space, prior=known(parts[1]), initial=3), 4, checkpoint=path)


def test_the_trace_says_what_was_believed_and_spent():
    problem = square()
    prior = known(problem)
    history = run(problem, CMES(problem.space, prior=prior, initial=2, samples=3), 6)
    kept = {"query", "observation", "value", "recommendation", "recommended_value", "mean", "std", "cost", "active"}
    assert set(history.tensors) == kept | {"max_samples", "kappa"}
    assert history["max_samples"].shape == (3, 6, 3)
    assert bool(history["max_samples"][:, :2].isnan().all()) and bool(history["kappa"][:, :2].isnan().all())
    assert not bool(history["max_samples"][:, 2:].isnan().any()) and not bool(history["kappa"][:, 2:].isnan().any())
    assert set(run(problem, RandomQueries(problem.space, prior=prior), 2).tensors) == kept
    for r in range(3):
        for step in range(6):
            mean, std = posteriors(history, problem, prior, r, step)
            index = int(history["query"][r, step])
            assert float(history["mean"][r, step]) == pytest.approx(mean[index], abs=1e-9)
            assert float(history["std"][r, step]) == pytest.approx(std[index], abs=1e-9)


def test_a_new_start_forgets_everything():
    problem = square()
    policy = CMES(problem.space, prior=known(problem), initial=2, budget=6.0, sampling="thompson")
    first, second = run(problem, policy, 7), run(problem, policy, 7)
    for key in first.tensors:
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=0, equal_nan=True)


def test_all_learn_the_function_and_cmes_more_than_chance():
    """Mean squared error of f after twenty rounds, over twelve replicates."""
    problem, seeds = square(noise_std=0.1), range(12)
    prior = known(problem)
    errors = {}
    for name, kind in {"cmes": CMES, "random": RandomQueries}.items():
        history = run(problem, kind(problem.space, prior=prior), 20, seeds)
        errors[name] = float((problem.optimum - history["recommended_value"][:, -1]).mean())
    assert errors["cmes"] < 0.2 and errors["random"] < 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial": -1}, "initial must be an integer of at least 0, got"),
        ({"budget": 0.99}, "budget must pay for the cheapest action, 1, got 0.99"),
        ({"budget": math.nan}, "budget must be finite, got"),
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"sampling": "sobol"}, "sampling must be 'gumbel' or 'thompson', got 'sobol'"),
    ],
)
def test_bad_arguments_of_cmes_are_refused(settings, message):
    problem = square()
    with pytest.raises(ValueError, match=message):
        CMES(problem.space, prior=known(problem), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acquisition": "pi"}, "acquisition must be 'mes', 'ucb' or 'ei', got 'pi'"),
        ({"acquisition": "ei", "initial": -2}, "initial must be an integer of at least 0, got"),
        ({"acquisition": "ucb", "budget": 0.0}, "budget must pay for the cheapest action, 1, got 0.0"),
    ],
)
def test_bad_arguments_of_a_baseline_are_refused(settings, message):
    problem = square()
    with pytest.raises(ValueError, match=message):
        usual(problem, known(problem), **settings)


def test_a_prior_of_other_replicates_is_refused():
    problem = square()
    with pytest.raises(ValueError, match="prior and samples must have no batch or one of 2 replicates, got \\(3,\\)"):
        run(problem, CMES(problem.space, prior=learned(problem)), 2, [1, 2])
