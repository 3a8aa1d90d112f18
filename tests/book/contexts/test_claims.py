"""The map of verdicts: what is stored, how it is decided, and that the command runs."""

import pandas as pd
import pytest
import torch
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior

from book import figures
from book.contexts import claims, experiments
from book.contexts.experiments import PANELS, Budget
from book.contexts.regret import cumulative_regret
from book.contexts.slips import RawContexts, ReflectedDRBOKDE, ReflectedStableOpt


@pytest.mark.parametrize("name", [*claims.MAP, *claims.STUDIES])
def test_every_entry_is_stored_as_it_is_told(name):
    entry, runs = {**claims.MAP, **claims.STUDIES}[name], claims.stored(name)
    assert list(runs.histories) == list(entry.steps)
    for policy, history in runs.histories.items():
        assert history["value"].shape == (len(entry.seeds), entry.steps[policy])
        assert history.seeds == list(entry.seeds)
        kernel = history.config["policy"]["kernel"]
        assert kernel == entry.kernel or (entry.kernel in ("older", "published") and kernel["class"] == "ScaleKernel")
        assert history.config["policy"]["raw"] == entry.effort.get("raw", 128)
        assert bool((history["lengthscale"][:, 10:] > 0).all())
    values = [history["value"][:, :10] for history in runs.histories.values()]
    assert all(torch.equal(values[0], value) for value in values)  # one initial design


def test_the_older_kernel_is_botorchs_of_that_time():
    theirs = get_matern_kernel_with_gamma_prior(2)
    space = PANELS["ackley"].make().space
    alone = claims.older_kernel(space, contexts=False)
    both = claims.older_kernel(space)
    parts = [alone.base_kernel, *both.base_kernel.kernels]
    assert [part.ard_num_dims for part in parts] == [2, 2, 1]
    assert [part.active_dims.tolist() for part in parts[1:]] == [[0, 1], [2]]
    for kernel in (alone, both):
        same, prior = theirs.outputscale_prior, kernel.outputscale_prior
        assert (prior.concentration, prior.rate) == (same.concentration, same.rate)
    for part in parts:
        same, prior = theirs.base_kernel.lengthscale_prior, part.lengthscale_prior
        assert (prior.concentration, prior.rate, part.nu) == (same.concentration, same.rate, theirs.base_kernel.nu)


def test_the_published_configuration_has_one_kernel_raw_contexts_and_a_smaller_multiplier():
    entry = claims.Entry("ackley", {"SBO-KDE": 3, "GP-UCB": 3}, [100], kernel="published")
    problem = entry.problem()
    base = claims.older_kernel(problem.space, product=False).base_kernel
    assert base.ard_num_dims == 3 and isinstance(problem, RawContexts)
    made = {name: entry.policy(name, problem, 16, raw=8, starts=1) for name in experiments.POLICIES[:4]}
    assert made["SBO-KDE"].kernel.base_kernel.ard_num_dims == 3 and made["GP-UCB"].kernel.base_kernel.ard_num_dims == 2
    assert made["GP-UCB"].multiplier(1) == pytest.approx(1.5**0.5) and made["StableOpt"].multiplier(1) == 1.5
    assert isinstance(made["StableOpt"], ReflectedStableOpt) and isinstance(made["DRBO-KDE"], ReflectedDRBOKDE)


def test_other_radii_are_shares_of_the_papers():
    problem = PANELS["ackley"].make()
    paper, half, twice = (claims.MAKERS[f"DRBO-KDE{name}"](problem, 16) for name in ("", ", half", ", twice"))
    assert paper.radius(32) == pytest.approx(0.25) and half.radius(32) == pytest.approx(0.125)
    assert twice.radius(32) == 2 * paper.radius(32) and half.cover == twice.samples == 16


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


def test_runs_are_cut_to_the_same_seeds_and_steps():
    runs = claims.cut(claims.stored("branin"), 5, 40)
    for name, history in runs.histories.items():
        assert history["value"].shape == (5, 40) and history.seeds == list(range(100, 105)), name
    assert claims.decide("branin", "matern", runs).n.tolist() == [5, 5, 5]


def test_a_table_has_a_line_a_row_and_a_figure_a_dot():
    frame = claims.decide("branin", "matern", claims.stored("branin"))
    table = claims.table(frame, 2)
    first = table.iloc[0]
    assert len(table) == 3 and first.claim == "branin: SBO-KDE before GP-UCB"
    assert first.verdict == first["on average"] == "holds"
    _, axes = figures.subplots()
    claims.plot(axes[0, 0], frame)
    assert len(axes[0, 0].get_yticklabels()) == 3


def test_the_whole_map_has_every_panel_twenty_seeds_and_350_evaluations():
    assert len(claims.WHOLE) == 2 * len(PANELS)
    for panel in PANELS:
        four, others = claims.WHOLE[f"whole, {panel}"], claims.WHOLE[f"whole, {panel}, others"]
        assert len(four.seeds) == 20 and len(others.seeds) == 10 and not four.effort
        assert {*four.steps, *others.steps, "random"} == set(experiments.POLICIES)
        assert set(four.steps.values()) == set(others.steps.values()) == {350}


def test_the_sizes_are_those_with_the_most_seeds_and_their_efforts():
    frame = claims.sizes()
    assert list(frame.index) == list(PANELS) and "random" not in frame.columns
    assert frame.loc["newsvendor", "SBO-KDE"] == "20 x 86" and frame.loc["ackley_4", "GP-UCB"] == "20 x 30 g"
    assert frame.loc["hartmann", "DRBO-KDE"] == "20 x 50 s" and frame.loc["ackley_4", "DRBO-MMD"] == "5 x 30 g"
    assert claims.mark(claims.MAP["newsvendor, whole"]) == " l"


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


def test_other_panels_are_compared_with_every_baseline():
    frame = claims.other_panels()
    assert isinstance(frame, pd.DataFrame) and len(frame) == 8 * 11
    assert frame.t.where(frame.rival != "DRBO-MMD", 350).eq(350).all() and frame.n.eq(5).all()
