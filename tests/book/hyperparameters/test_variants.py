"""Our own variants of the policies, the tables over what the paper leaves open, and the robust accounts."""

import math

import pytest
import torch

from book import figures
from book.hyperparameters import experiments, maps, panels, phases, problems, regret
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.variants import EveryoneTested, TemperedUCB
from cbo_lib.confidence import noise_threshold
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import HEGPUCB, AveragedUCB, HEStableOpt, Space

SEEDS, STEPS = range(4), 25


def hills(epsilon=0.0, extra=10.0):
    candidates = problems.hill_candidates(2.0, extra)
    truth = problems.random_truth(len(candidates), SEEDS)
    f = problems.draws_of_candidates(candidates, truth, SEEDS)
    points = torch.linspace(0, 1, 80, dtype=torch.float64)[:, None]
    space = Space(candidates, points=points, epsilon=epsilon, noise_std=0.1)
    return UnknownPriorProblem(space, f, truth=truth, replicates=len(SEEDS))


def test_everyone_is_tested_on_all_rounds_and_the_truth_survives():
    problem = hills()
    run = simulate(problem, EveryoneTested(problem.space), STEPS, SEEDS)
    errors = (run["observation"][..., None] - run["mean"]).cumsum(1).abs()
    xi = noise_threshold(torch.arange(1, STEPS + 1), 0.1, len(problem.space.candidates))
    room = (xi * torch.arange(1, STEPS + 1)).sqrt()[:, None] + (run["sqrt_beta"] * run["std"]).cumsum(1)
    assert not bool((run["alive"] & (errors > room + 1e-9)).any())
    assert bool(run["alive"][torch.arange(4), -1, problem.truth].all())


def test_testing_everyone_refutes_more():
    problem = hills()
    runs = [simulate(problem, kind(problem.space, sqrt_beta=2.0), 60, SEEDS) for kind in (EveryoneTested, HEGPUCB)]
    assert int(runs[0]["alive"].sum()) < int(runs[1]["alive"].sum())


def test_a_round_that_would_refute_everyone_refutes_nobody():
    problem = hills()
    policy = EveryoneTested(problem.space, sqrt_beta=0.0)
    run = simulate(problem, policy, STEPS, SEEDS)
    assert bool(run["alive"].any(-1).all())


def test_tempered_weights_are_those_of_the_averaged_likelihood():
    problem = hills()
    policy = TemperedUCB(problem.space)
    policy.start([0])
    query = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
    policy.tell(query.unsqueeze(1)[:1, 0], y=torch.tensor([1.0], dtype=torch.float64))
    one = AveragedUCB.weights(policy)
    torch.testing.assert_close(policy.weights(), one)
    policy.tell(query.unsqueeze(1)[1:, 0], y=torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(policy.weights(), (policy.likelihood / 2).softmax(-1))


def test_robust_accounts_balance_and_the_repaired_links_hold():
    problem = hills(epsilon=0.02)
    run = simulate(problem, HEStableOpt(problem.space), STEPS, SEEDS)
    ledger = regret.robust_ledger(run, problem)
    ledger.check_identity(1e-8)
    claims = ledger.claims
    for name in claims:
        if name not in ("errors of u", "errors of v"):
            assert claims[name].frequency == 1.0, name
    assert bool((ledger.regret <= ledger.bounds["sum"]).all())
    assert bool((ledger.bounds["sum"] <= ledger.bounds["Theorem 6.1, repaired"] + 1e-9).all())


@pytest.mark.parametrize("panel", phases.PANELS)
def test_stored_tables_hold_every_setting(panel):
    table, settings = phases.stored(panel), phases.settings(panel)
    assert table.attrs["seeds"] == 200 and panel in table.attrs["command"]
    names = list(settings[0])
    found = {tuple(row) for row in table[names].astype(object).where(table[names].notna(), None).to_numpy()}
    assert found == {tuple(setting[name] for name in names) for setting in settings}


def test_a_setting_gives_rows_for_all_policies_and_horizons():
    setting = phases.settings("mean")[0]
    rows = [{**setting, **row} for row in phases.rows("mean", setting, range(2))]
    assert {row["policy"] for row in rows} == set(phases.stored("mean").policy)
    assert {row["horizon"] for row in rows} == {50, 100}
    assert all(row["end_mean"] == 0 for row in rows if row["policy"] == "HE-GP-UCB")


@pytest.mark.parametrize("panel", ["lengthscale", "landscape"])
def test_a_table_has_the_policies_of_its_panel_in_order(panel):
    made = phases.PANELS[panel][0](multiplier="half")
    assert list(phases.policies(panel, made)) == list(dict.fromkeys(phases.stored(panel).policy))


def test_readings_of_a_multiplier_are_applied_in_every_panel():
    for build, drawn in ((panels.decomposition, {}), (panels.mean, {"seeds": range(2)}), (panels.landscape, {})):
        printed, root, half = (build(multiplier=m, steps=3, **drawn).sqrt_beta(2) for m in ("printed", "root", "half"))
        torch.testing.assert_close(root, printed**0.5)
        torch.testing.assert_close(half, printed / 2)


def test_the_landscape_is_run_by_policies_that_need_no_truth():
    runs = experiments.landscape(steps=2, seeds=[3, 4])
    assert list(runs.histories) == list(experiments.contenders(runs.problem.space))
    assert runs.problem.truth is None and {history.steps for history in runs.histories.values()} == {6}


def test_unknown_panel_is_refused():
    with pytest.raises(ValueError, match="panel must be one of lengthscale, period"):
        phases.settings("periods")


def test_a_map_counts_verdicts_and_draws_them():
    table = phases.stored("mean")
    part = table[table.horizon == 100]
    count = maps.count(part, "MLE")
    own = part[part.policy == "MLE"]
    assert count == {
        "holds": int((own.end_low > 0).sum()),
        "undecided": int(((own.end_low <= 0) & (own.end_high >= 0)).sum()),
        "fails": int((own.end_high < 0).sum()),
    }
    assert maps.counted(part, "MLE").startswith(f"holds in {count['holds']}, undecided")
    figures.show(maps.verdicts(part, "MLE", ["height", "extra"], ["multiplier", "noise"]), "A map.")
    one = part[(part.height == 5) & (part.extra == 2) & (part.noise == 0.1)]
    figures.show(maps.risk(one, ["HE-GP-UCB", "MLE"]), "Bars.")


def test_the_landscape_is_what_matplotlib_ships():
    candidates, points, f = problems.landscape_problem(10)
    values = f(points)
    assert points.shape == (100, 2) and len(candidates) == 6
    assert abs(float(values.mean())) < 1e-9 and abs(float(values.std()) - 1) < 1e-9
    for kernel in candidates.kernels:
        assert float(kernel(points[:1], points[:1]).to_dense()) == pytest.approx(1.0)
    periodic = candidates.kernels[candidates.names.index("periodic")]
    again = points[:1] + torch.tensor([[0.5, 0.0], [0.0, 1.0], [0.25, 0.0]], dtype=points.dtype)
    expected = torch.tensor([[1.0, 1.0, math.exp(-2)]], dtype=points.dtype)  # half a period away in one coordinate
    torch.testing.assert_close(periodic(points[:1], again).to_dense(), expected)
