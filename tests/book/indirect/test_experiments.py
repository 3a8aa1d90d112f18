"""The experiments run what they say, in small, and their figures show what was run."""

import inspect

import numpy as np
import pytest
import torch

from book.indirect import experiments, problems, regret
from cbo_lib.indirect import CMES, Nodes
from cbo_lib.indirect.embedding import embedding_loss
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import simulate
from tests.indirect import plain
from tests.indirect.helpers import UNIT

FIT = experiments.Hyperparameters(0.25, 0.2, 1e-4, 0.3)
NOTIONS = {
    "simple": regret.simple_regret,
    "instant": regret.instantaneous_regret,
    "recommendation": regret.recommendation_regret,
}
NAMES = ["CMES", "MES on g", "UCB on g", "EI on g", "random", "CMES, p known", "MES on f, direct"]


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


@pytest.fixture(scope="module")
def fixed():
    return experiments.figure_1("cosine", "reader", 40, 4, 2, hyperparameters=FIT)


@pytest.fixture(scope="module")
def budgeted():
    return experiments.figure_2("linear", "reader", 5.0, 2)


def test_scales_are_thirty_replicates_and_the_first_of_them(reader):
    assert experiments.replicates("paper") == range(30) and experiments.replicates("reader") == range(reader)
    runners = (experiments.figure_1, experiments.figure_2, experiments.application, experiments.schedules)
    assert {inspect.signature(runner).parameters["scale"].default for runner in runners} == {"paper"}


@pytest.mark.parametrize("scale", ["Reader", "", "full"])
def test_another_scale_is_refused(scale):
    bandit = problems.bandit_problem(4, 3)
    for call in (
        lambda: experiments.replicates(scale),
        lambda: experiments.figure_1("linear", scale, 10, 1, 1, hyperparameters=FIT),
        lambda: experiments.application(bandit, 0.2, scale, 1),
        lambda: experiments.schedules(scale, 1),
    ):
        with pytest.raises(ValueError, match=f"scale must be one of reader, paper, got {scale!r}"):
            call()


def test_hyperparameters_are_the_best_of_the_pilot():
    problem = problems.branin_problem("linear", count=6)
    fit = experiments.fit_hyperparameters(problem, 30, 12)
    assert fit == experiments.fit_hyperparameters(problem, 30, 12)
    x, a = (part[0] for part in problems.draw_data(problem, 30, [10**6], UNIT))

    def loss(length, ridge):
        return float(embedding_loss(x, a, rbf_kernel(0.2), rbf_kernel(length), ridge))

    best = loss(fit.action_lengthscale, fit.regularization)
    lengths, ridges = (0.05, 0.1, 0.2, 0.4, 0.8), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    assert best == min(loss(length, ridge) for length in lengths for ridge in ridges)
    assert 0.08 <= fit.lengthscale <= 0.6 and 0.08 <= fit.baseline_lengthscale <= 0.6


def test_figure_1_compares_all_policies(fixed, reader):
    assert list(fixed.histories) == NAMES
    finite(fixed, reader, 4)
    first = fixed.histories["CMES"]["query"][:, :2]
    for name, history in fixed.histories.items():
        assert torch.equal(history["query"][:, :2], first) == (name != "MES on f, direct")
        assert history.seeds == list(range(reader))


def test_figure_1_runs_chosen_policies_alone(fixed):
    few = experiments.figure_1("cosine", "reader", 40, 4, 2, only=["EI on g", "random"], hyperparameters=FIT)
    assert list(few.histories) == ["EI on g", "random"]
    for name, history in few.histories.items():
        for key in ("query", "observation", "recommendation"):
            assert torch.equal(history[key], fixed.histories[name][key])


def test_figure_1_refuses_a_policy_that_does_not_exist():
    with pytest.raises(ValueError, match="only"):
        experiments.figure_1("cosine", "reader", 20, 1, 1, only=["CEMS"], hyperparameters=FIT)


def test_figure_2_spends_the_budget_and_no_more(budgeted, reader):
    finite(budgeted, reader)
    names = ["CMETS", "CMES, all nodes", "CMES", "MES on g", "UCB on g", "EI on g", "random"]
    assert list(budgeted.histories) == names
    for name, history in budgeted.histories.items():
        problem = budgeted.problems[name]
        spent = history["cost"].sum(-1)
        assert bool((spent <= 5 + 1e-9).all())
        torch.testing.assert_close(history["cost"], problem.space.costs[history["query"]] * history["active"])
        if name not in ("CMETS", "CMES, all nodes"):
            assert problem.n == 16 and bool((history["cost"] == 1.5).all()) and history.steps == 3
        np.testing.assert_allclose(problem.noise[: problem.n], 0.5 / problem.space.cost, rtol=1e-6)


def test_wider_windows_change_the_averages_of_high_nodes_alone():
    nodes = Nodes.complete(UNIT, 1)
    comparison = experiments.figure_2("cosine", "reader", 1.0, 1, windows=True)
    conditional = comparison.problems["CMETS"].conditional
    np.testing.assert_allclose(conditional.scale(nodes.actions), [0.25, 0.125, 0.125, 0.125, 0.125], rtol=1e-12)
    finite(comparison, len(experiments.replicates("reader")))


def test_the_bandit_is_that_of_its_description(reader):
    problem = problems.bandit_problem(9, 5, 0.2, 3)
    arms = np.linspace(0, 1, 5)
    np.testing.assert_allclose(problem.space.points[:, 0], arms, atol=1e-15)
    rewards = problem.f(problem.space.points).numpy()
    for i, agent in enumerate(np.linspace(0, 1, 9)):
        logits = -20 * (arms - agent) ** 2 - 2 * (arms - 0.5) ** 2
        p = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(problem.conditional.weights(problem.space.actions)[i], p, atol=1e-14)
        assert float(problem.table[i]) == pytest.approx(p @ rewards, abs=1e-12)
    np.testing.assert_allclose(problem.table[9:], rewards, atol=1e-12)
    other = problems.bandit_problem(9, 5, 0.2, 4)
    assert not np.allclose(other.table, problem.table)
    finite(experiments.application(problem, 0.15, "reader", 4), reader, 4)


def test_districts_are_the_cells_of_their_centers(reader):
    problem = problems.district_problem(7)
    pixels, centers = problem.space.points.numpy(), problem.space.actions.numpy()
    owner = ((pixels[:, None] - centers) ** 2).sum(-1).argmin(-1)
    values = problems.incidence(problem.space.points).numpy()
    for i in range(7):
        assert float(problem.table[i]) == pytest.approx(values[owner == i].mean(), abs=1e-12)
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


def test_schedules_decrease_as_they_say(reader):
    steps = 6
    result = experiments.schedules("reader", steps, 0.15)
    t = np.arange(1, steps + 1)
    rates = [np.ones(steps), t**-0.125, t**-0.25 * np.maximum(1, np.log(t)) ** 0.25, 1 / t]
    assert len(result) == 4
    for (gap, cost), rate in zip(result.values(), rates, strict=True):
        assert gap.shape == (reader, steps) and bool(torch.isfinite(gap).all())
        np.testing.assert_allclose(cost, (1 / rate).cumsum(), rtol=1e-5)
    first = [gap[:, 0] for gap, _ in result.values()]
    for other in first[1:]:
        torch.testing.assert_close(other, first[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("by_cost", [False, True])
def test_a_comparison_is_drawn_with_all_its_curves(fixed, budgeted, by_cost):
    comparison = budgeted if by_cost else fixed
    figure = experiments.plot_comparison(comparison, 5.0 if by_cost else None)
    for axis, kind in zip(figure.axes, ("simple", "instant"), strict=True):
        assert axis.get_yscale() == "log" and axis.get_ylabel() == f"{kind} regret (sd of f)"
        assert axis.get_xlabel() == ("cost" if by_cost else "round")
        lines = {line.get_label(): line for line in axis.lines}
        assert list(lines) == list(comparison.histories)
        if not by_cost:
            for name, values in comparison.regrets(NOTIONS[kind]).items():
                np.testing.assert_allclose(lines[name].get_ydata(), values.clamp_min(1e-4).mean(0), rtol=1e-12)
    assert len({(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}) == 7
    assert [text.get_text() for text in figure.axes[0].get_legend().texts] == list(comparison.histories)


def test_cmes_finds_the_maximum_of_branin():
    """On a coarse grid with known averages: the best cell, or one as good to a tenth of a deviation."""
    problem = problems.branin_problem("linear", 0.05, 9)
    history = simulate(
        problem, CMES(problem.space, prior=problems.known_prior(problem.space, 0.25)), 30, range(6), progress=False
    )
    assert float(regret.recommendation_regret(history, problem)[:, -1].mean()) < 0.1
