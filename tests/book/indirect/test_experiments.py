"""The experiments run what they say, in small, and their figures show what was run."""

import inspect

import numpy as np
import pytest
import torch

from book.indirect import experiments, problems, regret
from cbo_lib.former.simulate import simulate
from cbo_lib.indirect import CMES
from tests.indirect import plain

NOTIONS = {
    "simple": regret.simple_regret,
    "instant": regret.instantaneous_regret,
    "recommendation": regret.recommendation_regret,
}


def finite(comparison, replicates, steps=None):
    for kind, notion in NOTIONS.items():
        for name, values in comparison.regrets(notion).items():
            assert values.shape[0] == replicates and (steps is None or values.shape[1] == steps), name
            assert bool(torch.isfinite(values).all()), (name, kind)
            if kind != "recommendation":
                assert bool((values.diff() <= 0).all())
            if kind != "instant":
                assert bool((values >= 0).all())


@pytest.fixture(scope="module")
def reader():
    return len(experiments.replicates("reader"))


def test_scales_are_thirty_replicates_and_the_first_of_them(reader):
    assert experiments.replicates("paper") == range(30) and experiments.replicates("reader") == range(reader)
    assert inspect.signature(experiments.application).parameters["scale"].default == "paper"


def test_the_bandit_is_that_of_its_description(reader):
    problem = problems.bandit_problem(9, 5, 0.2, 3)
    arms = np.linspace(0, 1, 5)
    np.testing.assert_allclose(problem.space.points[:, 0], arms, atol=1e-9)
    rewards = problem.f(problem.space.points).numpy()
    for i, agent in enumerate(np.linspace(0, 1, 9)):
        logits = -20 * (arms - agent) ** 2 - 2 * (arms - 0.5) ** 2
        p = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(problem.conditional.weights(problem.space.actions)[i], p, atol=1e-9)
        assert float(problem.table[i]) == pytest.approx(p @ rewards, abs=1e-9)
    np.testing.assert_allclose(problem.table[9:], rewards, atol=1e-9)
    other = problems.bandit_problem(9, 5, 0.2, 4)
    assert not np.allclose(other.table, problem.table)
    finite(experiments.application(problem, 0.15, "reader", 4), reader, 4)


def test_districts_are_the_cells_of_their_centers(reader):
    problem = problems.district_problem(7)
    pixels, centers = problem.space.points.numpy(), problem.space.actions.numpy()
    owner = ((pixels[:, None] - centers) ** 2).sum(-1).argmin(-1)
    values = problems.incidence(problem.space.points).numpy()
    for i in range(7):
        assert float(problem.table[i]) == pytest.approx(values[owner == i].mean(), abs=1e-9)
    drawn = problem.conditional.sample(problem.space.actions.expand(2, 7, 2), [torch.Generator(), torch.Generator()])
    for r in range(2):
        for i in range(7):
            pixel = int(np.abs(pixels - drawn[r, i].numpy()).sum(-1).argmin())
            assert owner[pixel] == i
    weights = problem.conditional.measure(problem.space.actions).weights.numpy()
    expected = plain.joint(pixels, weights, pixels[:2], 0.15)
    gram = problems.known_prior(problem.space, 0.15).kernel.gram
    np.testing.assert_allclose(gram[:9, :9], expected, atol=1e-10)
    finite(experiments.application(problem, 0.15, "reader", 3), reader, 3)


def test_cmes_finds_the_maximum_of_branin():
    """On a coarse grid with known averages: the best cell, or one as good to a tenth of a deviation."""
    problem = problems.branin_problem("linear", 0.05, 9)
    history = simulate(
        problem, CMES(problem.space, prior=problems.known_prior(problem.space, 0.25)), 30, range(6), progress=False
    )
    assert float(regret.recommendation_regret(history, problem)[:, -1].mean()) < 0.1
