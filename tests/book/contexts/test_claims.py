"""The map of verdicts: what is stored, how it is decided, and that the command runs."""

import pytest

from book.contexts import claims, experiments
from book.contexts.experiments import PANELS, Budget
from book.contexts.regret import cumulative_regret


def test_decisions_are_those_of_the_differences():
    runs = claims.stored("branin")
    frame = claims.decide("branin", "matern", runs)
    assert list(zip(frame.policy, frame.rival, strict=True)) == list(claims.PAIRS)
    assert list(frame.t) == [106, 60, 60] and set(frame.n) == {20}
    own, other = (cumulative_regret(runs.histories[name], runs.problem)[:, 59] for name in claims.PAIRS[1])
    row = frame.iloc[1]
    assert row["mean"] == pytest.approx(float((other - own).mean()), rel=1e-5)
    assert row.low < row["mean"] < row.high and row.wins == pytest.approx(float((own < other).double().mean()))
    assert row.rival_regret == pytest.approx(float(other.mean()))
    assert claims.decide("x", "matern", claims.stored("newsvendor, today")).policy.tolist() == ["SBO-KDE"]


def test_the_whole_map_has_every_panel_twenty_seeds_and_350_evaluations():
    assert len(claims.WHOLE) == 2 * len(PANELS)
    for panel in PANELS:
        four, others = claims.WHOLE[f"whole, {panel}"], claims.WHOLE[f"whole, {panel}, others"]
        assert len(four.seeds) == 20 and len(others.seeds) == 10 and not four.effort
        assert {*four.steps, *others.steps, "random"} == set(experiments.POLICIES)
        assert set(four.steps.values()) == set(others.steps.values()) == {350}


def test_an_entry_runs_and_is_stored(monkeypatch, tmp_path, capsys):
    tiny = Budget([100, 101], 4, 16, {"initial": 3, "raw": 8, "starts": 1, "iterations": 2})
    monkeypatch.setattr(experiments, "budget", lambda scale: tiny)
    entry = claims.Entry("newsvendor", {"SBO-KDE": 5, "GP-UCB": 4}, [100, 101])
    monkeypatch.setattr(claims, "MAP", {"newsvendor, small": entry})
    live = claims.run("newsvendor, small", scale="reader")
    assert {name: history.steps for name, history in live.histories.items()} == {"SBO-KDE": 4, "GP-UCB": 4}
    claims.run("newsvendor, small", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "map-newsvendor-small-gp_ucb.npz",
        "map-newsvendor-small-sbo_kde.npz",
    ]
    kept = claims.stored("newsvendor, small", tmp_path)
    assert kept.histories["SBO-KDE"]["lengthscale"].shape == (2, 5, 2)
    with pytest.raises(ValueError, match="name must be one of newsvendor, small"):
        claims.run("typo")
