"""The experiments at a tiny scale, the tables beside the paper's, what is stored and how it is drawn."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.contexts import experiments, tables
from book.contexts.experiments import PANELS, POLICIES, Budget, Panel, budget, make_policy
from book.contexts.slips import SLIPS
from tests.contexts.helpers import hill

TINY = Budget([100, 101], 5, 16, {"initial": 3, "raw": 8, "starts": 1, "iterations": 2})


@pytest.fixture
def tiny(monkeypatch):
    """A budget of two evaluations after a design of three, whatever the scale."""
    monkeypatch.setattr(experiments, "budget", lambda scale: TINY)


def test_scales_are_the_papers_and_the_readers():
    paper, reader = budget("paper"), budget("reader")
    assert (list(paper.seeds), paper.steps, paper.samples) == ([100, 101, 102, 103, 104], 350, None)
    assert list(reader.seeds) == list(paper.seeds)[:3]
    for size in (paper, reader):
        policy = make_policy("SBO-KDE", hill(), **size.options)
        assert (policy.initial, policy.sqrt_beta, policy.kernel) == (10, 1.5, "rbf")
    with pytest.raises(ValueError, match="scale must be one of reader, paper, got 'mid'"):
        budget("mid")


@pytest.mark.parametrize("panel", [name for name in PANELS if name != "newsvendor"])
def test_every_panel_runs(tiny, panel):
    comparison = experiments.figure_1(panel, only=["SBO-KDE"])
    curve = experiments.curves(comparison)["SBO-KDE"]
    assert curve.shape == (2, 5)
    assert bool((curve.diff(dim=-1) >= -1e-9).all())


def test_final_values_are_ordered_by_merit(tiny):
    comparison = experiments.figure_1("newsvendor", only=["GP-UCB", "random"])
    for kind, ascending in (("regret", True), ("reward", False)):
        frame, curves = experiments.final(comparison, kind), experiments.curves(comparison, kind)
        assert frame["mean"].is_monotonic_increasing if ascending else frame["mean"].is_monotonic_decreasing
        for name, curve in curves.items():
            assert frame.loc[name, "mean"] == pytest.approx(float(curve[:, -1].mean()))
            assert frame.loc[name, "standard error"] == pytest.approx(float(curve[:, -1].std()) / 2**0.5)
    with pytest.raises(ValueError, match="measure must be one of regret, reward"):
        experiments.curves(comparison, "loss")


def test_a_policy_may_stop_earlier_and_final_values_are_compared_where_all_are(tiny, monkeypatch):
    panel = Panel(hill, limits={"GP-UCB": 4})
    monkeypatch.setattr(experiments, "PANELS", {"hill": panel})
    comparison = experiments.figure_1("hill", only=["GP-UCB", "random"])
    assert {name: history.steps for name, history in comparison.histories.items()} == {"GP-UCB": 4, "random": 5}
    curves = experiments.curves(comparison)
    assert experiments.final(comparison).loc["random", "mean"] == pytest.approx(float(curves["random"][:, 3].mean()))
    last = experiments.final(comparison, at=5)
    assert list(last.index) == ["random"]
    assert last.loc["random", "mean"] == pytest.approx(float(curves["random"][:, -1].mean()))


def test_the_stored_results_are_there():
    folder = experiments.RESULTS
    for panel, chosen in PANELS.items():
        found = experiments.stored(panel, folder)
        assert tuple(found.histories) == POLICIES
        for name, history in found.histories.items():
            assert history["observation"].shape == history["value"].shape == (5, chosen.limits.get(name, 350))
    for name in SLIPS:
        assert list(experiments.small_slip(name, folder).histories) == ["as written", "slip"]


def test_table_2_agrees_with_the_papers():
    raw = tables.table_2()
    assert raw.shape == (8, 5)
    assert bool((raw["standard errors apart"].abs() <= 3).all())
    clipped = tables.table_2(clipped=True)
    assert bool((clipped["standard errors apart"].abs() <= 3).all())
    # On the unit interval alone the complicated distribution is out of reach.
    unit = tables.table_2(low=0.0, high=1.0).loc["complicated"]
    assert bool((unit["mean"] < raw.loc["complicated"]["mean"]).all())
    assert float(unit.loc[10, "standard errors apart"]) < -3


def test_table_2_is_the_distance_of_each_run():
    frame = tables.table_2(runs=3, counts=(10,))
    assert frame.loc[("normal", 10), "paper"] == 0.3222
    other = tables.table_2(runs=2, counts=(17,))
    assert np.isnan(other.loc[("normal", 17), "paper"])
    assert isinstance(other.index, pd.MultiIndex)


@pytest.mark.parametrize("name", list(SLIPS))
def test_a_slip_changes_a_run_and_nothing_else(tiny, name):
    chosen = SLIPS[name]
    right = experiments.figure_1(chosen.panel, only=[chosen.policy]).histories[chosen.policy]
    wrong = experiments.slip(name).histories[name]
    assert torch.equal(right["query"][:, :3], wrong["query"][:, :3])
    if name == "raw contexts":  # few contexts are clipped
        assert [h.config["problem"]["class"] for h in (right, wrong)] == ["ContextProblem", "RawContexts"]
    elif name == "identity":  # in the first rounds the ball holds everything
        assert [h.config["policy"]["class"] for h in (right, wrong)] == ["DRBOMMDMinimax", "IdentityMinimax"]
    else:
        assert not torch.equal(right["acquisition"], wrong["acquisition"])


@given(st.floats(-2, 2), st.floats(0.01, 100))
def test_a_power_law_is_recovered(slope, constant):
    t = torch.tensor([3, 10, 40, 200])
    fit = tables.PowerLaw.fit(t, constant * t.double() ** slope)
    assert fit.slope == pytest.approx(slope, abs=1e-9)
    assert fit.constant == pytest.approx(constant, rel=1e-8)
    torch.testing.assert_close(fit(t), constant * t.double() ** slope)
