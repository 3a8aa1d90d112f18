"""The experiments run what the paper describes, and their figures show what was run."""

import inspect

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from book import figures, harness
from book.hyperparameters import experiments, panels
from book.hyperparameters.problems import (
    draws_of_candidates,
    four_sines,
    hidden_corner,
    random_truth,
    slope_and_peak,
)
from book.hyperparameters.regret import cumulative_regret, simple_regret
from cbo_lib.hyperparameters import (
    HEGPUCB,
)
from tests.hyperparameters.helpers import LENGTHSCALES, run, setting

# Name, the paper's replicates, initial points, default steps, policies.
PANELS = {
    "unknown_lengthscale": (
        50,
        3,
        50,
        ["HE-GP-UCB", "no elimination", "MLE", "ExpectedUCB", "GP-UCB, shortest", "GP-UCB, longest", "A-GP-UCB"],
    ),
    "unknown_period": (50, 5, 50, ["HE-GP-UCB", "no elimination", "MLE", "ExpectedUCB", "GP-UCB, truth"]),
    "unknown_decomposition": (
        100,
        3,
        50,
        ["HE-GP-UCB", "no elimination", "MLE", "ExpectedUCB", "GP-UCB, truth", "GP-UCB, additive"],
    ),
    "unknown_mean": (50, 0, 100, ["HE-GP-UCB", "no elimination", "MLE", "ExpectedUCB", "GP-UCB, truth"]),
    "robust": (
        50,
        0,
        50,
        ["HE-StableOpt", "StableOpt, truth", "StableOpt, shortest", "StableOpt, longest", "HE-GP-UCB"],
    ),
}
every_panel = pytest.mark.parametrize("name", PANELS)


@pytest.fixture(scope="module")
def reader():
    return {name: getattr(experiments, name)(scale="reader", steps=3) for name in PANELS}


# ---- the panels of Figure 2


@every_panel
def test_scales_are_the_papers_replicates_and_ten_of_them(name, reader, monkeypatch):
    paper, initial, steps, _ = PANELS[name]
    parameters = inspect.signature(getattr(experiments, name)).parameters
    assert parameters["scale"].default == "paper" and parameters["steps"].default == steps
    asked = []

    def noted(problem, policies, steps, seeds, folder, name):
        asked.append((list(seeds), steps, {policy.initial for policy in policies.values()}))
        assert folder is None and name in experiments.EXPERIMENTS

    monkeypatch.setattr(harness, "run", noted)
    monkeypatch.setattr(panels, "period_candidates", lambda *_: reader["unknown_period"].problem.space.candidates)
    for scale in ("paper", "reader"):
        getattr(experiments, name)(scale=scale)
    getattr(experiments, name)(seeds=[4, 7])
    total = steps + initial
    assert asked == [(list(seeds), total, {initial}) for seeds in (range(paper), range(10), [4, 7])]


@every_panel
def test_every_policy_runs_from_the_same_initial_design_and_has_a_finite_regret(name, reader):
    _, initial, _, policies = PANELS[name]
    comparison = reader[name]
    assert list(comparison.histories) == policies
    designs = [history["query"][:, :initial] for history in comparison.histories.values()]
    assert all(torch.equal(designs[0], design) for design in designs)
    noises = []
    for history in comparison.histories.values():
        assert history.seeds == list(range(10)) and history.steps == initial + 3
        cumulative, simple = (notion(history, comparison.problem) for notion in (cumulative_regret, simple_regret))
        for curve in (cumulative, simple):
            assert curve.shape == (10, 3) and bool(torch.isfinite(curve).all() and (curve >= -1e-9).all())
        assert bool((simple[:, -1:] <= cumulative + 1e-9).all())
        noises.append(history["observation"] - comparison.problem.f(history["query"]))
    for noise in noises[1:]:
        torch.testing.assert_close(noise, noises[0], rtol=0, atol=1e-7)
    queries = [history["query"] for history in comparison.histories.values()]
    assert not all(torch.equal(queries[0], query) for query in queries)


def test_the_panels_have_the_papers_problems(reader):
    lengthscale, period, decomposition, mean = (reader[name].problem for name in list(PANELS)[:4])
    assert lengthscale.space.points.shape == (500, 1) and lengthscale.space.points[[0, -1], 0].tolist() == [0, 1]
    assert lengthscale.space.candidates.names == tuple(f"lengthscale {s:g}" for s in (0.3, 0.4, 0.5, 0.7, 1.0))
    assert lengthscale.truth == 0
    assert torch.allclose(lengthscale.values, slope_and_peak(lengthscale.space.points))
    assert period.space.points.shape == (500, 1) and period.space.points[[0, -1], 0].tolist() == [0, 2]
    assert torch.allclose(period.values, four_sines(period.space.points)) and period.truth == 0
    assert decomposition.space.points.shape == (1125, 3)
    assert decomposition.space.candidates.names == (
        "(x1) + (x2) + (x3)",
        "(x1, x2) + (x3)",
        "(x1) + (x2, x3)",
        "(x2) + (x1, x3)",
    )
    assert decomposition.truth == 1 and torch.allclose(decomposition.values, hidden_corner(decomposition.space.points))
    assert mean.space.points.shape == (200, 1) and len(mean.space.candidates) == 11
    assert torch.equal(mean.truth, random_truth(11, range(10))) and mean.replicates == 10
    expected = draws_of_candidates(mean.space.candidates, mean.truth, range(10))(mean.space.points.expand(10, -1, -1))
    assert torch.allclose(mean.values, expected)
    perturbed = reader["robust"].problem
    assert (perturbed.space.epsilon, perturbed.truth, perturbed.replicates) == (0.05, 1, 10)
    for problem in (lengthscale, period, decomposition, mean, perturbed):
        assert problem.noise_std == 0.1


# ---- figures


@every_panel
def test_a_comparison_is_drawn_as_cumulative_and_best_regret(name, reader):
    comparison = reader[name]
    figure = experiments.plot_comparison(comparison)
    figures.show(figure, "Two panels.")
    left, right = figure.axes
    for axis, notion in ((left, cumulative_regret), (right, simple_regret)):
        curves = comparison.regrets(notion)
        assert [curve.get_label() for curve in axis.lines] == list(comparison.histories)
        for curve, values in zip(axis.lines, curves.values(), strict=True):
            np.testing.assert_allclose(curve.get_ydata(), values.mean(0))
            assert list(curve.get_xdata()) == [1, 2, 3]
        assert axis.get_xlabel() == "round"
    assert left.get_ylabel() == "cumulative regret (units of f)"
    assert right.get_ylabel() == "best regret so far (units of f)"
    assert [text.get_text() for text in left.get_legend().get_texts()] == list(comparison.histories)
    other = experiments.plot_comparison(comparison, "best epsilon-regret").axes[1]
    assert other.get_ylabel() == "best epsilon-regret (units of f)"
    styles = [(to_hex(curve.get_color()), curve.get_linestyle()) for curve in left.lines]
    assert len(set(styles)) == len(styles)


def test_survivors_are_shares_of_replicates():
    case = setting("lengthscale")
    history = run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=2), 20, range(4, 12))
    comparison = harness.Comparison(
        dict.fromkeys(("HE-GP-UCB", "other"), case.problem), {"HE-GP-UCB": history, "other": history}
    )
    for options in ({}, {"policy": "other"}):
        figure, axes = figures.subplots()
        experiments.plot_survivors(axes[0, 0], comparison, **options)
        figures.show(figure, "Shares.")
        curves = axes[0, 0].lines
        assert [curve.get_label() for curve in curves] == [f"lengthscale {s:g}" for s in LENGTHSCALES]
        for u, curve in enumerate(curves):
            expected = [sum(history["alive"][:, 2 + t, u].tolist()) / 8 for t in range(18)]
            np.testing.assert_allclose(curve.get_ydata(), expected)
            assert list(curve.get_xdata()) == list(range(1, 19))
        assert (axes[0, 0].get_xlabel(), axes[0, 0].get_ylabel()) == ("round", "share of replicates that keep it")
    assert min(min(curve.get_ydata()) for curve in curves) < 1
