"""The experiments run what the paper describes, and their figures show what was run."""

import inspect
import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from book import figures, harness
from book.hyperparameters import experiments, panels, problems
from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problems import (
    draws_of_candidates,
    four_sines,
    hidden_corner,
    hill_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from book.hyperparameters.regret import cumulative_regret, simple_regret
from book.hyperparameters.slips import printed_sqrt_beta
from book.hyperparameters.widths import frequentist_sqrt_beta
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
)
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, LENGTHSCALES, line, run, setting

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


def test_the_period_of_the_whole_is_one_and_the_waves_look_shorter(reader):
    periods = reader["unknown_period"].problem.space.candidates
    assert len(periods) == 5 and periods.names[0] == "all: period 1"
    fitted = [float(kernel.period_length) for kernel in periods.kernels]
    assert fitted[0] == pytest.approx(1.0, abs=1e-9)
    assert fitted[1:4] == pytest.approx([0.25, 3 / 14, 0.25], abs=0.006)
    assert all(0.1 <= period < 0.5 for period in fitted[1:])
    assert [name.split(":")[0] for name in periods.names] == ["all", "wave 1", "wave 2", "wave 3", "wave 4"]


def test_all_candidates_may_share_one_lengthscale(reader):
    periods, shared = reader["unknown_period"].problem.space.candidates, period_candidates(shared=0.7)
    x = line(9, 0.0, 2.0).numpy()
    for own, common in zip(periods.kernels, shared.kernels, strict=True):
        period = float(own.period_length)
        assert float(common.period_length) == period
        found = common(torch.from_numpy(x)).to_dense()
        np.testing.assert_allclose(found, plain.periodic(period, 0.7)(x, x), atol=1e-12)
        scale = math.sqrt(float(own.lengthscale))  # GPyTorch's is the square of the usual one
        assert 0.1 <= scale <= 10**0.6 + 1e-9
        found = own(torch.from_numpy(x)).to_dense()
        np.testing.assert_allclose(found, plain.periodic(period, scale)(x, x), atol=1e-12)


# ---- the panels of Figure 2


@every_panel
@pytest.mark.parametrize("scale", ["Reader", "", "full", None])
def test_another_scale_is_refused(name, scale, reader, monkeypatch):
    monkeypatch.setattr(panels, "period_candidates", lambda *_: reader["unknown_period"].problem.space.candidates)
    with pytest.raises(ValueError, match=f"scale must be one of reader, paper, got {scale!r}"):
        getattr(experiments, name)(scale=scale)


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
        torch.testing.assert_close(noise, noises[0], rtol=0, atol=1e-11)
    queries = [history["query"] for history in comparison.histories.values()]
    assert not all(torch.equal(queries[0], query) for query in queries)


def test_the_reader_sees_the_first_ten_replicates_of_the_paper(reader):
    paper = experiments.unknown_mean(steps=3)
    assert torch.equal(paper.problem.truth[:10], reader["unknown_mean"].problem.truth)
    for name, many in paper.histories.items():
        for key, tensor in reader["unknown_mean"].histories[name].tensors.items():
            torch.testing.assert_close(tensor, many[key][:10], rtol=0, atol=1e-7, msg=f"{name} {key}")


def test_the_panels_have_the_papers_problems(reader):
    lengthscale, period, decomposition, mean = (reader[name].problem for name in list(PANELS)[:4])
    assert lengthscale.space.points.shape == (500, 1) and lengthscale.space.points[[0, -1], 0].tolist() == [0, 1]
    assert lengthscale.space.candidates.names == tuple(f"lengthscale {s:g}" for s in (0.3, 0.4, 0.5, 0.7, 1.0))
    assert lengthscale.truth == 0
    assert torch.equal(lengthscale.values, slope_and_peak(lengthscale.space.points))
    assert period.space.points.shape == (500, 1) and period.space.points[[0, -1], 0].tolist() == [0, 2]
    assert torch.equal(period.values, four_sines(period.space.points)) and period.truth == 0
    assert decomposition.space.points.shape == (1125, 3)
    assert decomposition.space.candidates.names == (
        "(x1) + (x2) + (x3)",
        "(x1, x2) + (x3)",
        "(x1) + (x2, x3)",
        "(x2) + (x1, x3)",
    )
    assert decomposition.truth == 1 and torch.equal(decomposition.values, hidden_corner(decomposition.space.points))
    assert mean.space.points.shape == (200, 1) and len(mean.space.candidates) == 11
    assert torch.equal(mean.truth, random_truth(11, range(10))) and mean.replicates == 10
    expected = draws_of_candidates(mean.space.candidates, mean.truth, range(10))(mean.space.points.expand(10, -1, -1))
    assert torch.equal(mean.values, expected)
    perturbed = reader["robust"].problem
    assert (perturbed.space.epsilon, perturbed.truth, perturbed.replicates) == (0.05, 1, 10)
    for problem in (lengthscale, period, decomposition, mean, perturbed):
        assert problem.noise_std == 0.1


def test_the_policies_of_a_panel_are_what_their_names_say():
    kinds = {
        "HE-GP-UCB": (HEGPUCB, "errors"),
        "no elimination": (HEGPUCB, "never"),
        "MLE": (MaximumLikelihood, None),
        "ExpectedUCB": (AveragedUCB, None),
        "GP-UCB, truth": (OracleGPUCB, "never"),
    }
    problem = setting("lengthscale").problem
    policies = experiments.baselines(problem.space, 0, sqrt_beta=1.5, initial=2)
    assert list(policies) == list(kinds)
    for name, (kind, elimination) in kinds.items():
        policy = policies[name]
        assert type(policy) is kind and policy.initial == 2 and policy.sqrt_beta == 1.5
        if elimination:
            assert (policy.elimination, policy.failure) == (elimination, 0.1)
    assert int(policies["GP-UCB, truth"].trusted) == 0
    shifted = experiments.baselines(problem.space, 2)
    assert int(shifted["GP-UCB, truth"].trusted) == 2
    expected = plain.case_a_beta(40, 7, 0.1)
    assert all(policy.sqrt_beta(7) == pytest.approx(expected) for policy in shifted.values())


@pytest.mark.parametrize("name", ["unknown_lengthscale", "unknown_period", "unknown_decomposition"])
def test_the_frequentist_panels_use_the_printed_widths(name, reader):
    comparison, initial = reader[name], PANELS[name][1]
    schedule = printed_sqrt_beta(comparison.problem.space, 2.0, 3, initial)
    for policy, history in comparison.histories.items():
        for t in (1, 2, 3):
            used = history["sqrt_beta"][:, initial + t - 1]
            trusted = {"GP-UCB, shortest": 0, "GP-UCB, longest": 4, "GP-UCB, truth": None, "GP-UCB, additive": 0}
            expected = schedule(t)
            if policy in trusted:
                one = trusted[policy] if trusted[policy] is not None else comparison.problem.truth
                expected = expected[one : one + 1]
            assert torch.equal(used, expected.expand(10, -1)), policy


def test_the_settings_of_the_lengthscale_panel_reach_it():
    other = experiments.unknown_lengthscale(3.0, 0.2, "density", printed=False, steps=2, scale="reader")
    assert other.problem.noise_std == 0.2
    assert torch.equal(other.problem.values, slope_and_peak(other.problem.space.points, "density"))
    kernel = other.problem.space.candidates.prior(0.2).kernel
    derived = frequentist_sqrt_beta(kernel, other.problem.space.points, 0.2, 3.0, 2, 3)
    for history in (other.histories["MLE"], other.histories["A-GP-UCB"]):
        assert torch.equal(history["sqrt_beta"][0, 3:], torch.stack([derived(1), derived(2)]))


def test_the_lengthscale_panel_shrinks_from_the_likely_lengthscale(reader):
    histories = reader["unknown_lengthscale"].histories
    assert torch.equal(histories["A-GP-UCB"]["candidate"][:, 3], histories["MLE"]["candidate"][:, 3])
    assert bool((histories["GP-UCB, longest"]["candidate"][:, 3:] == 0).all())  # of a problem with it alone


def test_the_settings_of_the_other_panels_reach_them(monkeypatch):
    monkeypatch.setattr(harness, "run", lambda problem, policies, *_, **options: (problem, policies))
    fitted = []

    def fit(f, x, periods, lengthscales, noise_std):
        fitted.append((float(f(torch.tensor([[0.3]], dtype=F64))), noise_std))
        return 0.5, 1.0, None

    monkeypatch.setattr(problems, "fit_period", fit)
    problem, _ = experiments.unknown_period(shared=0.6, phase=None, noise_std=0.2, steps=2)
    assert torch.equal(problem.values, four_sines(problem.space.points, None)) and problem.noise_std == 0.2
    assert fitted == [(pytest.approx(1.5 * math.sin(28 / 3 * math.pi)), 0.2)] * 5
    for kernel in problem.space.candidates.kernels:
        assert float(kernel.lengthscale) == pytest.approx(0.36)
    problem, policies = experiments.unknown_decomposition(1.0, 0.3, 0.5, steps=2)
    x = problem.space.points[:5].numpy()
    for kernel, groups in zip(problem.space.candidates.kernels, problems.DECOMPOSITIONS, strict=True):
        np.testing.assert_allclose(
            kernel(problem.space.points[:5]).to_dense(), plain.additive(groups, 0.5)(x, x), atol=1e-14
        )
    assert (int(policies["GP-UCB, additive"].trusted), int(policies["GP-UCB, truth"].trusted)) == (0, 1)
    problem, _ = experiments.unknown_mean(3.0, 1.0, 0.4, 0.3, steps=2)
    assert problem.space.candidates.means == hill_candidates(3.0, 1.0).means and problem.noise_std == 0.3
    problem, policies = experiments.robust((0.1, 0.2), 0, 0.02, 0.3, steps=2)
    assert (problem.space.epsilon, problem.truth, problem.noise_std, len(problem.space.candidates)) == (0.02, 0, 0.3, 2)
    kinds = [type(policy) for policy in policies.values()]
    assert kinds == [HEStableOpt, OracleStableOpt, OracleStableOpt, OracleStableOpt, HEGPUCB]
    trusted = [int(policies[f"StableOpt, {which}"].trusted) for which in ("truth", "shortest", "longest")]
    assert trusted == [0, 0, 1]


def test_a_comparison_runs_each_policy_as_if_it_were_alone(reader):
    comparison = reader["unknown_decomposition"]
    problem = comparison.problem
    schedule = printed_sqrt_beta(problem.space, 2.0, 3, 3)
    for name, policy in (
        ("HE-GP-UCB", HEGPUCB(problem.space, sqrt_beta=schedule, initial=3)),
        ("MLE", MaximumLikelihood(problem.space, sqrt_beta=schedule, initial=3)),
        ("GP-UCB, additive", OracleGPUCB(problem.space, 0, sqrt_beta=schedule, initial=3)),
    ):
        alone = run(problem, policy, 6, [4])
        assert torch.equal(alone["query"][0], comparison.histories[name]["query"][4])
    problem = reader["unknown_lengthscale"].problem
    policy = AGPUCB(
        problem.space,
        lengthscales=problems.LENGTHSCALES,
        sqrt_beta=printed_sqrt_beta(problem.space, 2.0, 3, 3),
        initial=3,
    )
    found = reader["unknown_lengthscale"].histories["A-GP-UCB"]["query"]
    assert torch.equal(run(problem, policy, 6, [4])["query"][0], found[4])


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
