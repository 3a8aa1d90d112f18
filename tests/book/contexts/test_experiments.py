"""The experiments at a tiny scale, the tables beside the paper's, what is stored and how it is drawn."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book import figures
from book.contexts import experiments, problems, tables, theory
from book.contexts.experiments import PANELS, POLICIES, Budget, Panel, budget, make_policy
from book.contexts.registry import RUNS
from book.contexts.slips import SLIPS, DiagonalDRBOMMD, RawContexts, ReflectedDRBOKDE, ReflectedStableOpt
from cbo_lib.former.history import History
from tests.contexts.helpers import F64, hill, plane

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


def test_panels_are_the_problems_of_both_figures():
    dims = {n: (p.decision_dim, p.context_dim) for n, p in ((n, panel.make().space) for n, panel in PANELS.items())}
    assert dims == {
        "ackley": (2, 1),
        "branin": (2, 2),
        "hartmann": (5, 1),
        "complicated_hartmann": (5, 1),
        "newsvendor": (1, 1),
        "portfolio_normal": (3, 2),
        "portfolio_uniform": (3, 2),
        "ackley_4": (2, 4),
    }


def test_every_policy_runs_with_the_same_settings_and_samples(tiny):
    comparison = experiments.figure_1("newsvendor")
    assert list(comparison.histories) == list(POLICIES)
    for name, history in comparison.histories.items():
        assert history["query"].shape == (2, 5, 1)
        assert history.config["policy"].items() >= {"kernel": "rbf", **TINY.options}.items(), name
    sizes = {name: make_policy(name, hill(), 16) for name in POLICIES}
    assert sizes["SBO-KDE"].samples == sizes["DRBO-KDE"].cover == sizes["StableOpt"].cover == 16
    assert len(sizes["DRBO-MMD"].points) == 100
    with pytest.raises(ValueError, match=r"policy must be one of SBO-KDE.* did you mean 'SBO-KDE'"):
        make_policy("SBO_KDE", hill())


@pytest.mark.parametrize("panel", [name for name in PANELS if name != "newsvendor"])
def test_every_panel_runs(tiny, panel):
    comparison = experiments.figure_1(panel, only=["SBO-KDE"])
    curve = experiments.curves(comparison)["SBO-KDE"]
    assert curve.shape == (2, 5)
    assert bool((curve.diff(dim=-1) >= -1e-9).all())


def test_another_panel_is_refused():
    with pytest.raises(ValueError, match="panel must be one of ackley, "):
        experiments.figure_1("rosenbrock")


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


def test_stored_curves_are_those_of_a_live_run(tiny, tmp_path, capsys):
    names = ["GP-UCB", "SBO, density known"]
    experiments.figure_1("newsvendor", folder=tmp_path, only=names)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["newsvendor-gp_ucb.npz", "newsvendor-sbo_density_known.npz"]
    live = experiments.figure_1("newsvendor", only=["GP-UCB"])
    kept = experiments.stored("newsvendor", tmp_path)
    assert list(kept.histories) == names
    history = kept.histories["GP-UCB"]
    assert history["value"].dtype == history["observation"].dtype == torch.float32
    assert history.seeds == [100, 101] and history.config["policy"]["class"] == "GPUCB"
    for kind in ("regret", "reward"):
        ours, theirs = (experiments.curves(each, kind)["GP-UCB"].double() for each in (kept, live))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="folder must hold results of 'ackley'"):
        experiments.stored("ackley", tmp_path)


def test_the_stored_results_are_there():
    folder = experiments.RESULTS
    for panel, chosen in PANELS.items():
        found = experiments.stored(panel, folder)
        assert tuple(found.histories) == POLICIES
        for name, history in found.histories.items():
            assert history["observation"].shape == history["value"].shape == (5, chosen.limits.get(name, 350))
    for name in SLIPS:
        assert list(experiments.small_slip(name, folder).histories) == ["as written", "slip"]


def test_a_stored_panel_takes_little_room(tmp_path):
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "value": torch.randn(5, 350, generator=rng, dtype=F64),
        "observation": torch.randn(5, 350, generator=rng),
    }
    experiments.compact(History(tensors, range(100, 105), {"problem": "x"})).save(tmp_path / "panel.npz")
    assert (tmp_path / "panel.npz").stat().st_size < 20_000


def test_table_1_times_runs_alone_and_in_a_batch():
    frame = experiments.table_1(evaluations=11, scale="reader", only=["GP-UCB", "random"])
    assert list(frame.index) == ["GP-UCB", "random"]
    assert bool((frame[["alone", "in a batch"]] > 0).all(axis=None))
    assert frame.loc["GP-UCB", "paper"] == 11.35
    assert np.isnan(frame.loc["random", "paper"])
    assert frame.attrs["runs"] == 2 and frame.attrs["device"].startswith("CPU (")


def test_table_1_times_one_run_at_the_papers_effort(monkeypatch):
    made = []
    make = experiments.make_policy
    monkeypatch.setattr(experiments, "make_policy", lambda *names, **o: made.append(o) or make(*names, **o))
    frame = RUNS["table_1_effort"].work("GP-UCB", [100], "reader", 11)
    assert made == [{"raw": 16, "starts": 2, "iterations": 5, "refit_every": 1, "kernel": "matern"}]
    assert frame.loc["GP-UCB", "alone"] > 0 and np.isnan(frame.loc["GP-UCB", "in a batch"])
    paper = {name: experiments.paper_effort("paper", *effort) for name, effort in experiments.PAPER_EFFORT.items()}
    assert (paper["SBO-KDE"]["raw"], paper["DRBO-MMD"]["starts"]) == (1024, 5)


def test_steps_are_timed_at_both_efforts():
    frame = experiments.step_seconds(scale="reader", only=["GP-UCB", "DRBO-KDE"], rounds=(6, 7, 8))
    assert list(frame.index) == ["GP-UCB, 16 and 2", "DRBO-KDE, 16 and 2"]
    assert bool((frame > 0).all(axis=None)) and frame.loc["DRBO-KDE, 16 and 2", "paper"] == 180.61
    mean = (frame["round 6"] + 4 * frame["round 7"] + frame["round 8"]) / 6
    np.testing.assert_allclose(frame["90 rounds"], 90 * mean)


def test_the_work_of_a_step_is_counted_after_own_and_random_decisions():
    frame = experiments.step_work(scale="reader", seeds=[100], count=12, only=["SBO-KDE", "DRBO-KDE"])
    assert list(frame.index) == ["SBO-KDE, own", "SBO-KDE, random", "DRBO-KDE, own", "DRBO-KDE, random"]
    assert bool((frame > 0).all(axis=None)) and bool((frame.active <= 1).all())
    assert (frame.contexts <= 1024).all() and (frame.evaluations >= 5).all()
    assert (frame.unrounded == frame.evaluations).filter(like="SBO-KDE,").iloc[:2].all()  # it sees no rounded numbers


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


def test_the_estimate_of_a_normal_context_has_the_papers_rate_and_of_the_mixture_not():
    errors, fit = tables.density_rate(problems.ackley(), counts=(10, 30, 100, 300))
    assert errors.shape == (20, 4)
    assert fit.slope == pytest.approx(-2 / 5, abs=0.06)
    _, slow = tables.density_rate(problems.complicated_hartmann(), counts=(10, 30, 100, 300))
    assert slow.slope > -0.15  # the standard deviation of Cauchy draws grows: so does the bandwidth
    _, clipped = tables.density_rate(problems.complicated_hartmann(), counts=(10, 30, 100, 300), clipped=True)
    assert clipped.slope < slow.slope


def test_the_ledgers_of_both_theorems_add_up():
    ledgers = theory.theorem_ledgers("reader", sqrt_beta=1.5)
    assert list(ledgers) == ["SBO-KDE", "DRBO-KDE"]
    for book in ledgers.values():
        book.check_identity(1e-8)
        assert book.regret.shape == (10, 37)
    with pytest.raises(ValueError, match="scale must be"):
        theory.theorem_ledgers("mid")


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


def test_slips_are_stored_beside_the_panels_they_change(tiny, tmp_path, capsys):
    experiments.figure_1("ackley", folder=tmp_path, only=["GP-UCB"])
    experiments.slip("root of beta", folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ackley-gp_ucb.npz", "slip-root_of_beta.npz"}
    kept = experiments.small_slip("root of beta", tmp_path)
    assert list(kept.histories) == ["as written", "slip"]
    with pytest.raises(ValueError, match="folder must hold results of 'branin'"):
        experiments.small_slip("diagonal", experiments.RESULTS.parent)


def test_slips_have_names():
    with pytest.raises(ValueError, match="name must be one of root of beta, "):
        experiments.slip("typo", scale="reader")


def test_mirrored_points_leave_the_box_of_contexts_and_the_diagonal_is_one():
    edge = torch.tensor([[[-1.0], [-0.9]], [[0.9], [1.0]]], dtype=F64)
    told = torch.ones(2, 2, 1, dtype=F64), torch.zeros(2, 2, dtype=F64)
    for kind, points in ((ReflectedDRBOKDE, "covered"), (ReflectedStableOpt, "feared")):
        pair = [each(hill().space, cover=32) for each in (kind, kind.__mro__[1])]
        for policy in pair:
            policy.start([1, 2])
            policy.tell(*told, context=edge)
        wrong, right = (getattr(policy, points)() for policy in pair)
        assert bool((wrong < -1).any()) and bool((right >= -1).all())
        if points == "covered":
            torch.testing.assert_close(wrong, -2 - right, rtol=0, atol=1e-12)
    diagonal = DiagonalDRBOMMD(plane().space, size=1024).points
    assert diagonal.shape == (32, 2)
    assert torch.equal(diagonal[:, 0], diagonal[:, 1])


def test_raw_contexts_are_shown_while_f_sees_clipped_ones():
    problem = problems.complicated_hartmann()
    raw = RawContexts.of(problem)
    generators = [torch.Generator().manual_seed(seed) for seed in range(400)]
    x = torch.full((400, 5), 0.4, dtype=F64)
    seen = raw.observe(x, generators)
    context = seen["context"]
    assert 0 < int(((context < 0) | (context > 1)).sum()) < 40
    torch.testing.assert_close(seen["y"], problem.evaluate(x, context.clamp(0, 1)))
    same = problem.observe(x, [torch.Generator().manual_seed(seed) for seed in range(400)])
    torch.testing.assert_close(same["context"], context.clamp(0, 1))


@pytest.mark.parametrize("measure", ["regret", "reward"])
def test_a_comparison_is_drawn_with_units(tiny, measure):
    _, axes = figures.subplots()
    experiments.plot_comparison(axes[0, 0], experiments.figure_1("newsvendor", only=["GP-UCB", "random"]), measure)
    assert axes[0, 0].get_ylabel() == f"cumulative {measure} (units of f)"
    lines = axes[0, 0].get_lines()
    assert [line.get_label() for line in lines] == ["GP-UCB", "random"]
    other = figures.subplots()[1][0, 0]
    experiments.plot_comparison(other, experiments.figure_1("newsvendor", only=["random"]), measure)
    same, again = lines[1], other.get_lines()[0]
    assert (same.get_color(), same.get_linestyle()) == (again.get_color(), again.get_linestyle())


@given(st.floats(-2, 2), st.floats(0.01, 100))
def test_a_power_law_is_recovered(slope, constant):
    t = torch.tensor([3, 10, 40, 200])
    fit = tables.PowerLaw.fit(t, constant * t.double() ** slope)
    assert fit.slope == pytest.approx(slope, abs=1e-9)
    assert fit.constant == pytest.approx(constant, rel=1e-8)
    torch.testing.assert_close(fit(t), constant * t.double() ** slope)
