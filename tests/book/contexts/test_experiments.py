"""The experiments at a tiny scale, the tables beside the paper's, what is stored and how it is drawn."""

import numpy as np
import pandas as pd
import pytest
import torch

from book import figures
from book.contexts import experiments, panels, problems, tables
from book.contexts.panels import PANELS, POLICIES, Budget, budget, make_policy
from book.contexts.slips import SLIPS, RawContexts
from cbo_lib.contexts.policies import SBOKDE, Settings
from cbo_lib.contexts.regret import contexts_seen
from cbo_lib.history import History
from cbo_lib.simulate import simulate
from tests.contexts.helpers import F64, hill

TINY = Budget([100, 101], 5, Settings(initial=3, raw=8, starts=1, iterations=2), samples=16)


@pytest.fixture
def tiny(monkeypatch):
    """A budget of two evaluations after a design of three, whatever the scale."""
    for module in (experiments, panels):
        monkeypatch.setattr(module, "budget", lambda scale: TINY)


def test_scales_are_the_papers_and_the_readers():
    paper, reader = budget("paper"), budget("reader")
    assert (list(paper.seeds), paper.steps, paper.samples) == ([100, 101, 102, 103, 104], 350, None)
    assert paper.settings.initial == reader.settings.initial == 10
    assert paper.settings.sqrt_beta == reader.settings.sqrt_beta == 1.5
    assert list(reader.seeds) == list(paper.seeds)[:3]
    with pytest.raises(ValueError, match="scale must be 'reader' or 'paper', got 'mid'"):
        budget("mid")


def test_panels_are_the_problems_of_both_figures():
    dims = {name: (p.decision_dim, p.context_dim) for name, p in ((n, panel.make()) for n, panel in PANELS.items())}
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
        described = history.config["policy"]
        assert described["settings"] == {"class": "Settings", **vars(TINY.settings)}, name
    sizes = {name: make_policy(name, hill(), TINY.settings, 16) for name in POLICIES}
    assert sizes["SBO-KDE"].samples == sizes["DRBO-KDE"].cover == sizes["StableOpt"].cover == 16
    assert len(sizes["DRBO-MMD"].points) == 100
    with pytest.raises(ValueError, match="policy must be one of SBO-KDE"):
        make_policy("SBO", hill(), TINY.settings)


@pytest.mark.parametrize("panel", [name for name in PANELS if name != "newsvendor"])
def test_every_panel_runs(tiny, panel):
    comparison = experiments.figure_1(panel, only=["SBO-KDE"])
    curve = comparison.curves()["SBO-KDE"]
    assert curve.shape == (2, 5)
    assert bool((curve.diff(dim=-1) >= -1e-9).all())


def test_figure_2_is_ackley_with_four_contexts(tiny):
    assert experiments.figure_2(only=["random"]).problem.name == "Ackley (2+4)"
    with pytest.raises(ValueError, match="panel must be one of ackley, "):
        experiments.figure_1("rosenbrock")


def test_final_values_are_ordered_by_merit(tiny):
    comparison = experiments.figure_1("newsvendor", only=["GP-UCB", "random"])
    for kind, ascending in (("regret", True), ("reward", False)):
        frame, curves = comparison.final(kind), comparison.curves(kind)
        assert frame["mean"].is_monotonic_increasing if ascending else frame["mean"].is_monotonic_decreasing
        for name, curve in curves.items():
            assert frame.loc[name, "mean"] == pytest.approx(float(curve[:, -1].mean()))
            assert frame.loc[name, "standard error"] == pytest.approx(float(curve[:, -1].std()) / 2**0.5)
    with pytest.raises(ValueError, match="measure must be 'regret' or 'reward'"):
        comparison.curves("loss")


def test_a_policy_may_stop_earlier_and_final_values_are_compared_where_all_are(tiny, monkeypatch):
    panel = panels.Panel(hill, limits={"GP-UCB": 4})
    monkeypatch.setattr(experiments, "PANELS", {"hill": panel})
    comparison = experiments.figure_1("hill", only=["GP-UCB", "random"])
    assert {name: history.steps for name, history in comparison.histories.items()} == {"GP-UCB": 4, "random": 5}
    curves = comparison.curves()
    assert comparison.final().loc["random", "mean"] == pytest.approx(float(curves["random"][:, 3].mean()))
    last = comparison.final(at=5)
    assert list(last.index) == ["random"]
    assert last.loc["random", "mean"] == pytest.approx(float(curves["random"][:, -1].mean()))
    for at in (0, 6):
        with pytest.raises(ValueError, match=rf"at must lie in \[1, 5\], got {at}"):
            comparison.final(at=at)


def test_the_command_stores_small_curves_and_skips_what_exists(tiny, tmp_path, capsys):
    arguments = [
        "--panel",
        "newsvendor",
        "--policy",
        "GP-UCB",
        "--policy",
        "SBO, density known",
        "--out",
        str(tmp_path),
    ]
    experiments.main(arguments)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["newsvendor-gp_ucb.npz", "newsvendor-sbo_density_known.npz"]
    before = (tmp_path / files[0]).stat().st_mtime_ns
    capsys.readouterr()
    experiments.main(arguments)
    assert capsys.readouterr().out.count("exists") == 2
    assert (tmp_path / files[0]).stat().st_mtime_ns == before
    live = experiments.figure_1("newsvendor", only=["GP-UCB"])
    kept = experiments.stored("newsvendor", tmp_path)
    assert list(kept.histories) == ["GP-UCB", "SBO, density known"]
    history = kept.histories["GP-UCB"]
    assert history["value"].dtype == history["observation"].dtype == torch.float32
    assert history.seeds == [100, 101] and "versions" in history.provenance
    assert history.config["policy"]["class"] == "GPUCB"
    for kind in ("regret", "reward"):
        torch.testing.assert_close(
            kept.curves(kind)["GP-UCB"].double(), live.curves(kind)["GP-UCB"], rtol=1e-5, atol=1e-5
        )
    with pytest.raises(ValueError, match="folder must hold curves of the panel 'ackley'"):
        experiments.stored("ackley", tmp_path)


def test_a_stored_panel_takes_little_room(tmp_path):
    rng = torch.Generator().manual_seed(0)
    tensors = {
        "value": torch.randn(5, 350, generator=rng, dtype=F64),
        "observation": torch.randn(5, 350, 2, generator=rng),
    }
    experiments.compact(History(tensors, range(100, 105), {"problem": "x"})).save(tmp_path / "panel.npz")
    assert (tmp_path / "panel.npz").stat().st_size < 20_000


def test_table_1_times_runs_alone_and_in_a_batch():
    frame = experiments.table_1(evaluations=11, runs=2, only=["GP-UCB", "random"])
    assert list(frame.index) == ["GP-UCB", "random"]
    assert bool((frame[["alone", "in a batch"]] > 0).all(axis=None))
    assert frame.loc["GP-UCB", "paper"] == 11.35
    assert np.isnan(frame.loc["random", "paper"])
    assert frame.attrs["runs"] == 2 and frame.attrs["device"].startswith("CPU (")


def test_table_1_is_stored_with_what_it_was_timed_on(tmp_path, monkeypatch):
    made = pd.DataFrame({"alone": [1.5, 2.0], "paper": [np.nan, 11.35]}, index=["random", "GP-UCB"])
    made.attrs = {"device": "CPU", "runs": 4}
    monkeypatch.setattr(experiments, "table_1", lambda runs: made if runs == 4 else None)
    experiments.main(["--times", "4", "--out", str(tmp_path)])
    kept = experiments.load_table(tmp_path / "table_1.json")
    pd.testing.assert_frame_equal(kept, made)
    assert kept.attrs == made.attrs


def test_table_2_agrees_with_the_papers():
    raw = experiments.table_2()
    assert raw.shape == (8, 5)
    assert bool((raw["standard errors apart"].abs() <= 3).all())
    clipped = experiments.table_2(clipped=True)
    assert bool((clipped["standard errors apart"].abs() <= 3).all())
    # On the unit interval alone the complicated distribution is out of reach.
    unit = experiments.table_2(low=0.0, high=1.0).loc["complicated"]
    assert bool((unit["mean"] < raw.loc["complicated"]["mean"]).all())
    assert float(unit.loc[10, "standard errors apart"]) < -3


def test_table_2_is_the_distance_of_each_run():
    frame = experiments.table_2(runs=3, counts=(10,))
    assert frame.loc[("normal", 10), "paper"] == 0.3222
    other = experiments.table_2(runs=2, counts=(17,))
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
    ledgers = experiments.theorem_ledgers("reader", sqrt_beta=1.5)
    assert list(ledgers) == ["SBO-KDE", "DRBO-KDE"]
    for book in ledgers.values():
        book.check_identity(1e-8)
        assert book.regret.shape == (10, 37)
    with pytest.raises(ValueError, match="scale must be"):
        experiments.theorem_ledgers("mid")


@pytest.mark.parametrize("name", list(SLIPS))
def test_a_slip_changes_a_run_and_nothing_else(tiny, name):
    comparison = experiments.small_slip(name)
    right, wrong = comparison.histories["as written"], comparison.histories["slip"]
    assert torch.equal(right["query"][:, :3], wrong["query"][:, :3])
    assert right.config["policy"]["class"] == wrong.config["policy"]["class"]
    if name == "raw contexts":  # few contexts are clipped
        assert [h.config["problem"]["class"] for h in (right, wrong)] == ["ContextProblem", "RawContexts"]
    elif name == "identity":  # in the first rounds the ball holds everything
        assert [h.config["policy"]["sensitivity"] for h in (right, wrong)] == ["kernel", "identity"]
    else:
        assert not torch.equal(right["acquisition"], wrong["acquisition"])


def test_the_command_stores_slips_beside_the_panels_they_change(tiny, tmp_path, capsys):
    command = ["--panel", "ackley", "--policy", "GP-UCB", "--out", str(tmp_path), "--slip", "root of beta"]
    experiments.main(command)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ackley-gp_ucb.npz", "slip-root_of_beta.npz"]
    live, kept = (experiments.small_slip("root of beta", folder=folder) for folder in (None, tmp_path))
    for name, curve in kept.curves().items():
        torch.testing.assert_close(curve.double(), live.curves()[name], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"folder must hold ackley-stableopt\.npz"):
        experiments.small_slip("points outside, StableOpt", folder=tmp_path)


def test_without_names_the_command_runs_everything(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(experiments, "_path", lambda folder, panel, name: asked.append((panel, name)) or tmp_path)
    experiments.main(["--out", str(tmp_path)])
    assert asked == [(panel, name) for panel in PANELS for name in POLICIES] + [("slip", name) for name in SLIPS]
    asked.clear()
    experiments.main(["--out", str(tmp_path), "--slip", "diagonal"])
    assert asked == [("slip", "diagonal")]


def test_slips_have_names():
    with pytest.raises(ValueError, match="name must be one of root of beta, "):
        experiments.small_slip("typo", "reader")


def test_raw_contexts_are_shown_while_f_sees_clipped_ones():
    problem = problems.complicated_hartmann()
    raw = RawContexts.of(problem)
    generators = [torch.Generator().manual_seed(seed) for seed in range(400)]
    x = torch.full((400, 5), 0.4, dtype=F64)
    seen = raw.observe(x, generators)
    outside = (seen[:, 0] < 0) | (seen[:, 0] > 1)
    assert 0 < int(outside.sum()) < 40
    torch.testing.assert_close(seen[:, 1], problem.evaluate(x, seen[:, :1].clamp(0, 1)))
    same = problem.observe(x, [torch.Generator().manual_seed(seed) for seed in range(400)])
    torch.testing.assert_close(same[:, 0], seen[:, 0].clamp(0, 1))


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


def test_frames_step_through_the_estimate_and_the_acquisition():
    problem = hill()
    policy = SBOKDE(problem, TINY.settings, 16)
    frames, labels, alts = experiments.density_steps(problem, policy, [4, 6], seed=3)
    assert labels == ["4 contexts", "6 contexts"]
    assert len(frames) == len(alts) == 2
    assert all(len(figure.axes) == 2 for figure in frames)
    assert alts[0].startswith("After 4 evaluations")
    run = simulate(problem, SBOKDE(problem, TINY.settings, 16), 6, [3], progress=False)
    marks = frames[1].axes[0].lines[2].get_xdata()
    np.testing.assert_allclose(marks, contexts_seen(run)[0, :, 0], rtol=0, atol=1e-12)
