"""The experiments run what they say, in small, store it and find it again, and their figures show what was run."""

import functools
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from book import figures
from book.subsets import experiments, problems, regret
from book.subsets.marginals import truncated_normal
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.policies import CheapestGoodSubset
from cbo_lib.subsets.search import Effort
from tests.subsets.helpers import F64, flat, prior, solid

TINY = Effort(contexts=4, candidates=8, iterations=2)
NAMES = ["proposed", "TS-PSQ", "UCB-PSQ", "ETC-50", "UCB-CVS, costs known"]


@functools.cache
def small(budget=2.0):
    return flat(cost_std=0.02).with_budget(budget)


@pytest.fixture(scope="module")
def comparison():
    """Two policies and two replicates, of which one is done earlier than the other."""
    problem = small()
    chosen = experiments.policies(problem, prior(problem), TINY)
    return experiments.compare(problem, {name: chosen[name] for name in ("proposed", "UCB-PSQ")}, [4, 7])


def by_policy(comparison, costs):
    return {name: experiments.curves(h, comparison.problem, costs) for name, h in comparison.histories.items()}


# ---- problems whose theory is known


def interpolant_norm(kernel, x, y):
    """The smallest norm of a function through the values: never above that of the function that gave them."""
    return math.sqrt(float(y @ torch.linalg.solve(kernel(x).to_dense() + 1e-7 * torch.eye(len(x), dtype=F64), y)))


@pytest.mark.parametrize(("norm", "seed"), [(2.0, 0), (2.0, 3), (0.7, 1)])
def test_the_problem_of_known_norm_is_what_it_says(norm, seed):
    costs = (0.3, 0.1, 0.2, 0.4, 0.9)
    problem, process = experiments.known_norm(norm, seed, 0.05, costs, 0.03)
    assert problem.space.control_sets == ((0,), (1,), (2,), (0, 1), (0, 1, 2))
    assert problem.cost_means.tolist() == list(costs) and problem.cost_std == pytest.approx(0.01)
    assert problem.noise_std == process.noise_std == 0.05
    assert problem.space.free == (truncated_normal(0.03),) * 3
    assert float(process.kernel.outputscale) == 1 and float(process.kernel.base_kernel.lengthscale) == pytest.approx(
        0.4
    )
    x = torch.quasirandom.SobolEngine(3).draw(400, dtype=F64)
    centered = problem.f(x) - process.mean
    assert 0.995 * norm <= interpolant_norm(process.kernel, x, centered) <= norm * (1 + 1e-9)
    # The smallest value is zero: never below, and nearly reached by some point of a fine grid.
    many = problem.f(torch.quasirandom.SobolEngine(3, scramble=True, seed=5).draw(2**13, dtype=F64))
    edge = problem.f(torch.cartesian_prod(*(torch.linspace(0, 1, 21, dtype=F64),) * 3))
    least = min(float(many.min()), float(edge.min()))
    assert -1e-9 <= least <= 0.01 * norm
    # No two draws alike, and the same draw again.
    again, other = (experiments.known_norm(norm, s, 0.05, costs, 0.03)[0].f(x) for s in (seed, seed + 1))
    assert torch.equal(again, problem.f(x)) and not torch.allclose(other, problem.f(x))


def test_a_constant_has_norm_zero_without_the_draw():
    problem, process = experiments.known_norm(0.0)
    x = torch.rand(20, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert process.mean == 0 and float(problem.f(x).abs().max()) == 0


@pytest.mark.parametrize("seed", [0, 5])
def test_two_subsets_are_equally_good(seed):
    problem, process = experiments.equally_good(seed, 0.08)
    values, costs = problem.best_values, problem.cost_means
    assert problem.space.control_sets == ((0, 1, 2), (0, 1), (0,), (1,))
    assert float(values[0]) == pytest.approx(float(values[1]), abs=1e-6)
    assert bool((values[2:] < values[0] - 0.01).all())
    assert costs[0] > costs[1] and problem.acceptable(0.0).tolist() == [True, True, False, False]
    assert problem.cheapest(0.0) == problem.best_subset == 1  # not the first of the list
    assert (problem.noise_std, process.noise_std, problem.cost_std) == (0.08, 0.08, pytest.approx(0.016))
    x = torch.rand(300, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)
    moved = x.clone()
    moved[:, 2] = torch.rand(300, generator=torch.Generator().manual_seed(9), dtype=F64)
    assert torch.equal(problem.f(x), problem.f(moved))
    torch.testing.assert_close(process.kernel(x, moved).to_dense(), process.kernel(x).to_dense(), rtol=0, atol=1e-14)
    expected = torch.exp(-(torch.cdist(x[:, :2], x[:, :2]) ** 2) / 0.32)
    torch.testing.assert_close(process.kernel(x).to_dense(), expected, rtol=0, atol=1e-12)
    assert bool((problem.f(x) >= -1e-9).all())
    assert 1.97 <= interpolant_norm(process.kernel, x, problem.f(x) - process.mean) <= 2 * (1 + 1e-9)


def test_of_two_equally_good_subsets_the_cheaper_one_is_played_by_the_proposed_method_alone():
    """The paper's case for two regrets: the regret of Tay et al. stops growing, the regret of costs does not."""
    problem, process = experiments.equally_good()
    problem = problem.with_budget(1e6)
    effort = Effort(contexts=8, candidates=32, iterations=4)
    options = {"alpha": 0.0, "rounds": 4, "horizon": 40, "effort": effort, "cost_spread": 1.0}
    grown = {}
    for policy in (
        CheapestGoodSubset(problem.space, prior=process, **options),
        UCBPSQ(problem.space, prior=process, effort=effort),
    ):
        history = simulate(problem, policy, 40, [0])
        weighted = regret.cost_varying_regret(history, problem).cumsum(-1)[0]
        cost = regret.cost_regret(history, problem, 0.0).cumsum(-1)[0]
        grown[type(policy)] = [float(curve[-1] - curve[-15]) for curve in (weighted, cost)]
    assert grown[CheapestGoodSubset][1] < 0.5 and grown[UCBPSQ][1] > 10 * max(grown[CheapestGoodSubset][1], 0.1)
    assert grown[UCBPSQ][0] < 0.5


# ---- what is compared


def test_the_policies_of_a_comparison():
    problem, process = small(), prior(small(), variance=2.25)
    chosen = experiments.policies(problem, process, TINY)
    assert list(chosen) == NAMES
    assert [type(policy) for policy in chosen.values()] == [CheapestGoodSubset, TSPSQ, UCBPSQ, GroupETC, UCBCVS]
    for policy in chosen.values():
        assert policy.space is problem.space and policy.prior is process and policy.effort is TINY
        assert policy.sqrt_beta == 2.0
    assert chosen["ETC-50"].plays_per_group == 50
    proposed = chosen["proposed"]
    assert proposed.cost_spread == 1
    assert proposed.exploration_budget == pytest.approx(0.6 * problem.space.budget) and proposed.rounds is None
    assert [proposed.alpha(s) for s in range(5)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])  # d = 2
    assert [chosen[NAMES[4]].epsilon(t) for t in (1, 4, 100)] == pytest.approx([1.5, 0.75, 0.15])
    assert all(policy.effort == Effort() for policy in experiments.policies(problem, process).values())


def test_a_run_ends_when_every_replicate_has_spent_the_budget(comparison):
    problem = comparison.problem
    for history in comparison.histories.values():
        assert history.seeds == [4, 7]
        over = history["spent"] > problem.space.budget
        assert bool(over[:, -1].all()) and not bool(over[:, -2].all())
        pays = regret.counted(history, problem)
        assert bool(((history["cost"] * pays).sum(-1) <= problem.space.budget).all())
        assert torch.equal(pays, ~over)


def test_the_policies_of_a_comparison_run_as_if_alone(comparison):
    problem = comparison.problem
    for name, policy in experiments.policies(problem, prior(problem), TINY).items():
        if name in comparison.histories:
            history = comparison.histories[name]
            alone = simulate(problem, policy, history.steps, [7])
            assert torch.equal(alone["query"][0], history["query"][1])
            for key in ("observation", "played", "spent"):
                torch.testing.assert_close(alone[key][0], history[key][1], rtol=0, atol=1e-9)


def test_figure_1_takes_the_objective_the_costs_the_variance_and_the_scale(monkeypatch):
    asked = []

    def make(costs, variance):
        asked.append((costs, variance))
        return small(30.0)

    def compare(problem, chosen, seeds, **storing):
        return problem, chosen, seeds

    monkeypatch.setattr(experiments, "OBJECTIVES", {"toy": make})
    monkeypatch.setattr(experiments, "compare", compare)
    monkeypatch.setattr(experiments, "fit_prior", lambda problem: prior(problem, variance=9.0))
    problem, chosen, seeds = experiments.figure_1("toy", "moderate", 0.04, scale="reader", effort=TINY)
    assert asked == [("moderate", 0.04)] and problem.space.budget == 25 and list(seeds) == [0, 1, 2]
    assert list(chosen) == NAMES and all(p.effort is TINY and p.space is problem.space for p in chosen.values())
    assert chosen[NAMES[4]].epsilon(1) == pytest.approx(3.0)
    problem, _, seeds = experiments.figure_1("toy")
    assert asked[1] == ("cheap", 0.02) and problem.space.budget == 100 and len(seeds) == 5


def test_figure_1_refuses_what_does_not_exist(monkeypatch):
    with pytest.raises(ValueError, match="objective must be one of hartmann, ackley, plant, airfoil, got 'levy'"):
        experiments.figure_1("levy")
    monkeypatch.setattr(experiments, "OBJECTIVES", {"toy": lambda costs, variance: small()})
    with pytest.raises(ValueError, match="scale must be"):
        experiments.figure_1("toy", scale="quick")


def test_the_objectives_are_the_four_of_the_paper():
    assert dict(experiments.OBJECTIVES) == {
        "hartmann": problems.hartmann,
        "ackley": problems.ackley,
        "plant": problems.plant,
        "airfoil": problems.airfoil,
    }


# ---- accounts of a comparison


def test_curves_against_cost_are_those_of_each_run(comparison):
    problem = comparison.problem
    costs = torch.linspace(0, 3, 13, dtype=F64)
    curves = by_policy(comparison, costs)
    assert list(curves) == list(comparison.histories)
    for name, curve in curves.items():
        history = comparison.histories[name]
        assert (curve.seeds, curve.config, curve.provenance) == (history.seeds, history.config, history.provenance)
        assert sorted(curve.tensors) == ["cost", "evaluations", "plays", "simple_regret"]
        assert curve["plays"].shape == (2, 13, problem.space.m)
        assert torch.equal(curve["cost"], costs.expand(2, -1))
        for r, (j, amount) in itertools.product(range(2), enumerate(costs.tolist())):
            limit = min(amount, problem.space.budget)
            paid = [t for t in range(history.steps) if float(history["spent"][r, t]) <= limit]
            losses = [float(problem.optimum - history["value"][r, t]) for t in paid]
            assert float(curve["evaluations"][r, j]) == len(paid)
            np.testing.assert_equal(float(curve["simple_regret"][r, j]), min(losses) if losses else math.nan)
            subsets = [int(history["subset"][r, t]) for t in paid]
            assert curve["plays"][r, j].tolist() == [subsets.count(i) for i in range(problem.space.m)]
        assert bool((curve["evaluations"].diff() >= 0).all()) and bool(curve["simple_regret"][:, 0].isnan().all())


def test_the_summary_counts_paid_plays_alone(comparison):
    problem = comparison.problem
    for alpha in (0.1, 0.0):
        rows = experiments.summary(comparison, alpha)
        assert list(rows) == list(comparison.histories)
        cheapest, best = problem.cheapest(alpha), float(problem.optimum)
        for name, row in rows.items():
            history = comparison.histories[name]
            for r in range(2):
                paid = [t for t in range(history.steps) if float(history["spent"][r, t]) <= problem.space.budget]
                values = [float(history["value"][r, t]) for t in paid]
                subsets = [int(history["subset"][r, t]) for t in paid]
                costs = [float(problem.cost_means[i] - problem.cost_means[cheapest]) for i in subsets]
                late = subsets[9 * len(paid) // 10 :]
                expected = {
                    "simple regret": best - max(values),
                    "evaluations": len(paid),
                    "share of i_*": late.count(cheapest) / len(late),
                    "quality regret": sum((1 - alpha) * best - v for v in values),
                    "cost regret": sum(max(c, 0) for c in costs),
                }
                assert {key: float(row[key][r]) for key in row} == pytest.approx(expected, abs=1e-9)


def test_who_could_pay_for_nothing_has_no_regret_to_show():
    tensors = {
        "spent": torch.tensor([[9.0, 18.0], [1.0, 19.0]], dtype=F64),
        "value": torch.tensor([[1.0, 2.0], [0.5, 2.0]], dtype=F64),
        "subset": torch.zeros(2, 2, dtype=torch.long),
    }
    problem = small()
    row = experiments.summary(experiments.Comparison({"dear": problem}, {"dear": History(tensors, [0, 1])}))["dear"]
    np.testing.assert_allclose(row["simple regret"], [math.nan, float(problem.optimum) - 0.5], rtol=0, atol=1e-12)
    assert row["evaluations"].tolist() == [0, 1] and row["share of i_*"].tolist() == [0, 1]
    assert float(row["quality regret"][0]) == float(row["cost regret"][0]) == 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=45), st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.7]))
@example([0] * 9 + [1], 0, 0.0)
@example([0] * 8 + [2, 1, 0], 1, 0.7)
@example([1] * 5, 5, 0.0)
def test_shares_from_stored_curves_are_those_of_the_run(subsets, unpaid, first):
    """With an amount for every play, whether or not the amounts begin at nothing."""
    problem = small(50.0)
    paid = max(len(subsets) - unpaid, 0)
    spent = [0.5 * (t + 1) if t < paid else 99.0 for t in range(len(subsets))]
    tensors = {
        "spent": torch.tensor([spent], dtype=F64),
        "subset": torch.tensor([subsets]),
        "value": torch.zeros(1, len(subsets), dtype=F64),
    }
    history = History(tensors, [0])
    curve = experiments.curves(history, problem, torch.arange(first, 50.1, 0.25, dtype=F64))
    for i in range(3):
        expected = regret.share_of_last_tenth(history, problem, i)
        torch.testing.assert_close(experiments.late_share(curve, i), expected.double())


def test_shares_from_stored_curves_of_real_runs(comparison):
    fine = by_policy(comparison, torch.linspace(0, comparison.problem.space.budget, 2001, dtype=F64))
    for name, history in comparison.histories.items():
        shares = torch.stack([experiments.late_share(fine[name], i) for i in range(3)])
        torch.testing.assert_close(shares.sum(0), torch.ones(2, dtype=F64))
        for i in range(3):
            expected = regret.share_of_last_tenth(history, comparison.problem, i)
            torch.testing.assert_close(shares[i], expected.double())


def test_a_coarse_grid_gives_a_share_of_at_least_the_last_tenth():
    tensors = {
        "evaluations": torch.tensor([[0.0, 10.0, 20.0]], dtype=F64),
        "plays": torch.tensor([[[0, 0], [10, 0], [13, 7]]], dtype=torch.int16),
    }
    assert float(experiments.late_share(History(tensors, [0]), 1)) == pytest.approx(0.7)
    assert float(experiments.late_share(History(tensors, [0]), 0)) == pytest.approx(0.3)


# ---- what alpha trades


@pytest.fixture(scope="module")
def sweep():
    problem = solid()
    patch = pytest.MonkeyPatch()
    patch.setattr(experiments, "fit_prior", lambda problem: prior(problem, mean=3.0))
    runs = experiments.sweep_alpha(problem, (0.0, 0.3), [2, 5], steps=18, rounds=2, effort=TINY)
    patch.undo()
    return problem, runs


def test_a_sweep_has_one_run_an_alpha_with_the_rounds_and_the_horizon(sweep):
    problem, runs = sweep
    assert list(runs) == [0.0, 0.3]
    for alpha, history in runs.items():
        assert history.seeds == [2, 5] and history.steps == 18
        assert float(history["spent"].max()) < 1e9 and history.config["policy"]["horizon"] == 18
        exploring = torch.arange(18) < 2 * problem.space.m
        assert bool((history["exploring"] == exploring).all())
        assert bool((history["alpha"][:, ~exploring] == alpha).all())
        assert bool((history["horizon"][:, ~exploring] == 18).all())
    # What is explored does not depend on alpha.
    early = [history["query"][:, : 2 * problem.space.m] for history in runs.values()]
    assert torch.equal(*early)


def test_a_sweep_goes_on_beyond_the_budget():
    problem = solid().with_budget(0.3)
    patch = pytest.MonkeyPatch()
    patch.setattr(experiments, "fit_prior", lambda problem: prior(problem, mean=3.0))
    history = experiments.sweep_alpha(problem, [0.1], [0], steps=9, rounds=1, effort=TINY)[0.1]
    patch.undo()
    assert history.steps == 9 and float(history["spent"][0, -1]) > 0.3


def test_the_trade_off_is_averaged_over_the_exploitation(sweep):
    problem, runs = sweep
    table = experiments.trade_off(runs, problem)
    assert list(table) == list(runs)
    for alpha, row in table.items():
        history, late = runs[alpha], range(2 * problem.space.m, 18)
        each = list(itertools.product(range(2), late))
        lost = [float(problem.optimum - history["value"][r, t]) for r, t in each]
        paid = [float(problem.cost_means[int(history["subset"][r, t])]) for r, t in each]
        right = [int(history["subset"][r, t]) == problem.cheapest(alpha) for r, t in each]
        assert row == pytest.approx((np.mean(lost), np.mean(paid), np.mean(right)), abs=1e-12)


# ---- stored results


def test_the_stored_panels_are_those_of_the_paper():
    panels = itertools.product(experiments.OBJECTIVES, ("cheap", "moderate"), (0.02, 0.04))
    folder = Path(experiments.__file__).parent / "results"
    names = set()
    for objective, costs, variance in panels:
        found = experiments.load_results(folder, objective, costs, variance)
        assert list(found) == NAMES and all(h.seeds == [0, 1, 2, 3, 4] for h in found.values())
        assert all(float(h["cost"][0, -1]) == 100 and h["plays"].shape[-1] == 7 for h in found.values())
        names.add(f"{objective}-{costs}-{variance:g}")
    curves = [file for file in folder.iterdir() if not file.name.startswith("walk-")]
    assert names == set(experiments.EXPERIMENTS) and len(curves) == 80


def test_a_panel_is_stored_as_curves_and_found_again(tmp_path, monkeypatch):
    asked = []

    def make(costs, variance):
        asked.append((costs, variance))
        return small()

    def few(problem, process, effort):
        same = {"prior": process, "effort": TINY}
        return {"UCB-PSQ": UCBPSQ(problem.space, **same), "ETC-50": GroupETC(problem.space, **same)}

    monkeypatch.setattr(experiments, "OBJECTIVES", {"toy": make})
    monkeypatch.setattr(experiments, "fit_prior", prior)
    monkeypatch.setattr(experiments, "policies", few)
    monkeypatch.setattr(experiments.harness, "choose", lambda scale, reader, paper: {25.0: 1.1}.get(reader, range(2)))
    stored = experiments.figure_1("toy", "moderate", 0.04, folder=tmp_path).histories
    assert asked == [("moderate", 0.04)]
    found = experiments.load_results(tmp_path, "toy", "moderate", 0.04)
    assert list(found) == ["UCB-PSQ", "ETC-50"]
    whole = experiments.figure_1("toy", "moderate", 0.04)
    fresh = by_policy(whole, torch.linspace(0, 1.1, 201, dtype=F64))
    for name, curve in found.items():
        for key in curve.tensors:
            torch.testing.assert_close(curve[key], stored[name][key], rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(curve[key], fresh[name][key], rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match=r"folder must hold results of .toy-cheap-0\.04"):
        experiments.load_results(tmp_path, "toy", "cheap", 0.04)


# ---- figures


@pytest.mark.parametrize(
    ("name", "label"), [("simple_regret", "simple regret (units of f)"), ("evaluations", "evaluations")]
)
def test_curves_are_drawn_as_means_with_standard_errors_in_steps(name, label, comparison):
    costs = torch.linspace(0, 2, 21, dtype=F64)
    curves = by_policy(comparison, costs)
    figure, axes = figures.subplots()
    experiments.plot_against_cost(axes[0, 0], curves, name, label)
    figures.show(figure, "Curves.")
    axis = axes[0, 0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("cost spent", label)
    assert [line.get_label() for line in axis.lines] == list(curves)
    for line, band, curve in zip(axis.lines, axis.collections, curves.values(), strict=True):
        known = ~curve[name].isnan().any(0)
        assert line.get_drawstyle() == "steps-post"
        np.testing.assert_allclose(line.get_xdata(), costs[known])
        np.testing.assert_allclose(line.get_ydata(), curve[name][:, known].mean(0))
        assert not np.isnan(line.get_ydata()).any()
        error = (curve[name][:, known].std(0) / math.sqrt(2)).numpy()
        top = band.get_paths()[0].vertices[:, 1].max()
        assert top == pytest.approx((curve[name][:, known].mean(0).numpy() + error).max())
    if name == "simple_regret":
        assert not known[0] and known[-1]  # nothing is known before the first play
