"""Figure 2: what its panels run, what is counted, and what is stored."""

import math

import numpy as np
import pytest
import torch

from book.hyperparameters import experiments, registry
from book.hyperparameters.problems import hidden_corner, slope_and_peak
from book.hyperparameters.slips import printed_sqrt_beta
from cbo_lib.hyperparameters import HEGPUCB
from cbo_lib.simulate import simulate
from tests.hyperparameters import plain

SIZES = {"lengthscale": (500, 5, 3), "period": (500, 5, 5), "decomposition": (1125, 4, 3), "mean": (200, 11, 0)}


@pytest.mark.parametrize("panel", experiments.PANELS)
def test_a_panel_is_that_of_the_paper(panel):
    made = experiments.setup(panel, "printed", range(2), 4)
    points, candidates, initial = SIZES[panel]
    space = made.problem.space
    assert (len(space.points), len(space.candidates), made.initial) == (points, candidates, initial)
    assert experiments.PANELS[panel] == (100 if panel == "mean" else 50)
    sizes = [float(kernel(space.points[:1]).to_dense()) for kernel in space.candidates.kernels]
    assert sizes == pytest.approx([3, 2, 2, 2] if panel == "decomposition" else [1] * candidates)
    root = experiments.setup(panel, "root", range(2), 4)
    for t in (1, 4):
        given, rooted = (torch.as_tensor(s.sqrt_beta(t)).double() for s in (made, root))
        torch.testing.assert_close(rooted.square(), given)
    names = list(experiments.policies(made))
    assert names[0] == "HE-GP-UCB" and set(names[1:]) == set(experiments.RIVALS) - (
        set() if panel == "lengthscale" else {"A-GP-UCB"}
    )


def test_the_multipliers_are_those_of_the_formulas():
    made = experiments.setup("mean", "printed", [0], 5)
    assert made.sqrt_beta(3) == pytest.approx(plain.case_a_beta(200, 3, 0.1))
    space = experiments.setup("lengthscale", "printed", [0], 5).problem.space
    points, prior = space.points.numpy()[::10], plain.Prior(plain.rbf(0.3))
    few = experiments.Space(space.candidates, points=space.points[::10], noise_std=0.1)
    gains = plain.greedy_gain(prior, 0.1, points, 4)
    for t in range(1, 6):
        found = float(printed_sqrt_beta(few, 2.0, 5)(t)[0])
        assert found == pytest.approx(plain.printed_beta(2.0, 0.1, gains[t - 1], 0.1), abs=1e-6)


def test_a_row_counts_the_regret_after_the_initial_design():
    frame = experiments.figure_2("lengthscale", "root", [3, 5], 12)
    made = experiments.setup("lengthscale", "root", [3, 5], 12)
    policy = HEGPUCB(made.problem.space, sqrt_beta=made.sqrt_beta, initial=3)
    history = simulate(made.problem, policy, 15, [3, 5])
    best = float(slope_and_peak(made.problem.space.points).max())
    lost = best - slope_and_peak(history["query"][:, 3:])
    (row,) = frame[frame["policy"] == "HE-GP-UCB"].to_dict("records")
    for h in (5, 10, 12):
        np.testing.assert_allclose(row[f"T = {h}"], lost[:, :h].sum(-1), atol=6e-4)
    np.testing.assert_allclose(row["best"], lost.amin(-1), atol=6e-4)
    np.testing.assert_allclose(row["by round"], lost.cumsum(-1).mean(0), atol=6e-4)
    with pytest.raises(ValueError, match="names 0"):
        experiments.numbers(frame, "best", policy="nobody")


def test_what_is_stored_has_a_hundred_fresh_seeds_and_every_claim():
    table = experiments.stored()
    assert {len(end) for end in table["T = 50"]} == {100}
    assert len(table) == 2 * (6 + 5 + 5 + 5) and set(table["reading"]) == {"printed", "root"}
    seeds = [set(registry.RUNS["figure_2"].seeds(part, "paper")) for part in registry.PARTS]
    assert all(len(s) == 100 and min(s) >= 10_000 for s in seeds)
    assert len(set.union(*seeds)) == 100 * len(seeds)  # no two parts share one
    claims = experiments.claims(table)
    assert len(claims) == 66
    key = ("lengthscale", "printed", "MLE", "end")
    ours, theirs = (
        experiments.numbers(table, "T = 50", panel="lengthscale", reading="printed", policy=name)
        for name in ("HE-GP-UCB", "MLE")
    )
    assert claims[key].mean == pytest.approx(float((theirs - ours).mean()))
    error = float((theirs - ours).std()) / math.sqrt(100)
    assert claims[key].high - claims[key].mean > 1.98 * error  # wider than a plain interval
    assert len(experiments.stored("changed")) == 30


def test_the_pictures_show_every_rival():
    table = experiments.stored()
    figure = experiments.draw_effects(experiments.claims(table))
    assert [[text.get_text() for text in axis.get_yticklabels()] for axis in figure.axes] == [
        [rival for rival in experiments.RIVALS if panel == "lengthscale" or rival != "A-GP-UCB"]
        for panel in experiments.PANELS
    ]
    assert len(experiments.draw_risk(table).axes[0].lines) == 5
    assert len(experiments.draw_figure_2(table).axes) == 16


def test_the_narrow_corner_is_narrower():
    x = torch.tensor([[0.85, 0.65, 0.0]], dtype=torch.float64)
    assert float(hidden_corner(x, width=0.1)) < float(hidden_corner(x)) - 0.3
