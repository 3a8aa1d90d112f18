"""Batches of replicates against plain loops, and what the policies refuse."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from book.indirect.controls import RandomQueries
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, ActionPolicy
from cbo_lib.kernels import rbf_kernel
from tests.indirect import plain
from tests.indirect.helpers import (
    SEEDS,
    grams,
    known,
    learned,
    noise_draws,
    priced,
    run,
    square,
    uniforms,
)

STEPS, INITIAL = 8, 2


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


def test_all_learn_the_function_and_cmes_more_than_chance():
    """Mean squared error of f after twenty rounds, over twelve replicates."""
    problem, seeds = square(noise_std=0.1), range(12)
    prior = known(problem)
    errors = {}
    for name, kind in {"cmes": CMES, "random": RandomQueries}.items():
        history = run(problem, kind(problem.space, prior=prior), 20, seeds)
        errors[name] = float((problem.optimum - history["recommended_value"][:, -1]).mean())
    assert errors["cmes"] < 0.2 and errors["random"] < 0.5
