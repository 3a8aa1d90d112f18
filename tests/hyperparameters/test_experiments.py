"""The experiments run what the paper describes, and their figures show what was run."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from cbo_lib import figures
from cbo_lib.gp import rbf_kernel
from cbo_lib.hyperparameters import (
    AGPUCB,
    GPUCB,
    HEGPUCB,
    Candidates,
    ExpectedUCB,
    HEStableOpt,
    MaximumLikelihood,
    StableOpt,
    UnknownPriorProblem,
    experiments,
)
from cbo_lib.hyperparameters.experiments import (
    Hills,
    draws_of_candidates,
    fit_period,
    four_sines,
    hidden_corner,
    hill_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from cbo_lib.hyperparameters.widths import frequentist_sqrt_beta

from . import plain
from .helpers import F64, LENGTHSCALES, line, run, setting

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
    return {name: getattr(experiments, name)("reader", steps=3) for name in PANELS}


# ---- the functions


@pytest.mark.parametrize(("reading", "height"), [("peak", 1.0), ("density", 1 / (0.08 * math.sqrt(2 * math.pi)))])
def test_the_slope_and_the_peak_are_equation_13_in_both_readings(reading, height):
    for x in (0.0, 0.1, 0.2, 0.28, 0.55, 1.0):
        expected = 0.6 * x + 0.8 * height * math.exp(-((x - 0.2) ** 2) / (2 * 0.08**2))
        assert float(slope_and_peak(torch.tensor([x], dtype=F64), reading)) == pytest.approx(expected, rel=1e-13)
    values = slope_and_peak(line(5001), reading)
    top = float(line(5001)[values.argmax()])
    assert top == pytest.approx(0.2, abs=0.02)  # the peak exceeds the end of the slope
    assert float(values.max()) > 0.6 + 0.2
    assert torch.equal(slope_and_peak(line(7)), slope_and_peak(line(7), "peak"))


def sine_at(u, phase):
    if u < 0.25:
        return math.sin(8 * math.pi * (u - 1 / 8))
    if u < 0.5:
        return 1.5 * math.sin(28 / 3 * math.pi * (1.0 if phase is None else u - phase))
    if u < 5 / 7:
        return 1.2 * math.sin(8 * math.pi * (u - 11 / 28))
    return 0.8 * math.sin(8 * math.pi * (u - 5 / 7))


@pytest.mark.parametrize("phase", [0.0, 0.25, None])
@pytest.mark.parametrize("u", [0.0, 0.1, 0.249, 0.25, 0.31, 0.499, 0.5, 0.6, 0.714, 0.7143, 0.8, 0.999])
def test_the_four_sines_are_equation_14_on_every_piece(phase, u):
    for shift in (0.0, 1.0):
        x = torch.tensor([[u + shift]], dtype=F64)
        assert four_sines(x, phase).shape == (1,)
        assert float(four_sines(x, phase)) == pytest.approx(sine_at(u, phase), abs=1e-12)


def test_the_last_sine_begins_at_five_sevenths():
    for u in (5 / 7, 5 / 7 + 1e-8):
        assert float(four_sines(torch.tensor([[u]], dtype=F64))) == pytest.approx(sine_at(u, 0.0), abs=1e-6)


def test_the_printed_second_sine_is_a_constant():
    printed = four_sines(line(50, 0.26, 0.49), None)
    assert printed.unique().numel() == 1
    assert float(printed[0]) == pytest.approx(1.5 * math.sin(28 / 3 * math.pi), rel=1e-12)
    assert four_sines(line(50, 0.26, 0.49)).unique().numel() > 20
    other = torch.cat([line(40, 0.0, 0.24), line(40, 0.5, 0.99)])
    assert torch.equal(four_sines(other, None), four_sines(other))


def test_the_four_sines_have_period_one():
    x = line(997, 0.0, 0.999)
    torch.testing.assert_close(four_sines(x), four_sines(x + 1), rtol=0, atol=1e-11)
    assert float(four_sines(torch.tensor([2.0], dtype=F64))) == pytest.approx(sine_at(0.0, 0.0))
    best = four_sines(line(20_001, 0.0, 2.0)).max()
    assert float(best) == pytest.approx(1.5, abs=1e-4)


def test_the_corner_is_hidden_from_sums_of_single_coordinates(rng):
    def f(a, b, c=0.0):
        return float(hidden_corner(torch.tensor([a, b, c], dtype=F64)))

    def mixed(a, b):
        return f(a, b) - f(a, 0.0) - f(0.0, b) + f(0.0, 0.0)

    low = [mixed(a, b) for a in np.linspace(0, 0.4, 9) for b in np.linspace(0, 0.4, 9)]
    assert max(map(abs, low)) < 1e-3
    assert mixed(0.85, 0.85) > 1.4
    for a, b, c in torch.rand(20, 3, generator=rng, dtype=F64).tolist():
        hills = 0.5 * sum(math.exp(-((v - 0.25) ** 2) / (2 * 0.25**2)) for v in (a, b))
        corner = 1.5 * math.exp(-((a - 0.85) ** 2 + (b - 0.85) ** 2) / (2 * 0.15**2))
        assert f(a, b, c) == pytest.approx(hills + corner, rel=1e-12)
        assert f(a, b, c) == f(a, b, 1 - c) == pytest.approx(f(b, a, c))
    axes = torch.cartesian_prod(*[torch.linspace(0, 1, 101, dtype=F64)] * 2)
    best = axes[hidden_corner(axes).argmax()].tolist()
    assert best == pytest.approx([0.85, 0.85], abs=0.03)


@pytest.mark.parametrize("tallest", [-1, 0, 7, 9])
def test_hills_are_ten_bells_of_which_one_may_be_higher(tallest):
    mean = Hills(tallest, 5.0, 2.0, 0.03)
    for x in (0.0, 0.05, 0.13, 0.75, 0.951):
        total = 0.0
        for i in range(10):
            height = 7.0 if i == tallest else 5.0
            total += height * math.exp(-((x - 0.05 - 0.1 * i) ** 2) / (2 * 0.03**2))
        assert float(mean(torch.tensor([x], dtype=F64))) == pytest.approx(total, rel=1e-12)
    x = line(2001).reshape(3, 23, 29, 1)
    assert mean(x).shape == (3, 23, 29)
    values = mean(line(2001))
    if tallest >= 0:
        assert float(line(2001)[values.argmax()]) == pytest.approx(0.05 + 0.1 * tallest, abs=1e-3)


def test_hill_candidates_are_every_hill_and_none():
    candidates = hill_candidates(4.0, 1.0, 0.2)
    assert candidates.names == (*(f"hill {i}" for i in range(1, 11)), "none")
    assert candidates.means == (*(Hills(i, 4.0, 1.0) for i in range(10)), Hills(-1, 4.0, 1.0))
    x = line(6)
    for kernel in candidates.kernels:
        np.testing.assert_allclose(kernel(x).to_dense(), plain.rbf(0.2)(x.numpy(), x.numpy()), atol=1e-14)


# ---- draws


def test_draws_have_the_moments_of_the_true_prior():
    count = 3000
    truth = torch.arange(count) % 3
    means = (0.0, 1.5, Hills(2, 1.0, 0.5))
    kernels = (rbf_kernel(0.1), rbf_kernel(0.3), rbf_kernel(0.2))
    f = draws_of_candidates(Candidates(("a", "b", "c"), kernels, means), truth, range(count))
    x = torch.tensor([[0.03], [0.2513], [0.31], [0.9]], dtype=F64)
    values = f(x.expand(count, 4, 1))
    for u, (scale, mean) in enumerate(zip((0.1, 0.3, 0.2), means, strict=True)):
        own = values[truth == u]
        expected = mean(x) if callable(mean) else torch.full((4,), mean, dtype=F64)
        error = 1 / math.sqrt(len(own))
        torch.testing.assert_close(own.mean(0), expected, rtol=0, atol=4.5 * error)
        k = torch.from_numpy(plain.rbf(scale)(x.numpy(), x.numpy()))
        torch.testing.assert_close(own.T.cov(), k, rtol=0, atol=4.5 * math.sqrt(2) * error)


def test_a_draw_depends_on_its_own_seed_and_truth_alone():
    candidates, seeds = hill_candidates(), [5, 0, 9, 4, 7]
    truth = torch.tensor([3, 10, 3, 0, 1])
    x = torch.rand(5, 8, 1, dtype=F64, generator=torch.Generator().manual_seed(0))
    many = draws_of_candidates(candidates, truth, seeds)(x)
    for r, seed in enumerate(seeds):
        alone = draws_of_candidates(candidates, truth[[r]], [seed])(x[[r]])
        torch.testing.assert_close(many[[r]], alone, rtol=0, atol=1e-9)
    reordered = draws_of_candidates(candidates, truth.flip(0), seeds[::-1])(x.flip(0))
    torch.testing.assert_close(many.flip(0), reordered, rtol=0, atol=1e-9)
    # Other truths with one kernel are the same draw over another mean.
    other = draws_of_candidates(candidates, torch.tensor([2] * 5), seeds)(x)
    prior = torch.stack([candidates.means[u](x[r]) for r, u in enumerate(truth.tolist())])
    torch.testing.assert_close(many - prior, other - Hills(2)(x), rtol=0, atol=1e-9)


def test_draws_need_one_truth_a_seed():
    for truth in (torch.tensor([0, 1]), torch.tensor(0), torch.tensor([[0, 1, 2]])):
        with pytest.raises(ValueError, match="truth must hold one index for each of 3 seeds, got shape"):
            draws_of_candidates(hill_candidates(), truth, [0, 1, 2])


def test_the_truth_is_uniform_and_of_each_seed_alone():
    truth = random_truth(11, range(2200))
    assert truth.shape == (2200,)
    assert torch.equal(truth[40:45], random_truth(11, range(40, 45)))
    counts = torch.bincount(truth, minlength=11).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 30  # the 0.999 quantile of chi squared with 10 degrees


# ---- periods


@pytest.mark.parametrize("period", [0.25, 0.4, 1.0])
def test_the_period_of_a_pure_sine_is_found(period):
    periods, scales = torch.linspace(0.1, 1.2, 221, dtype=F64), torch.tensor([0.5, 1.0, 2.0], dtype=F64)
    found, _, _ = fit_period(lambda x: torch.sin(2 * math.pi * x[..., 0] / period), line(60, 0.0, 2.0), periods, scales)
    assert found == pytest.approx(period, abs=0.006)


def test_the_likelihood_of_every_period_and_lengthscale_is_the_plain_one():
    x = line(25, 0.0, 1.3)
    periods, scales = torch.tensor([0.2, 0.31, 0.9], dtype=F64), torch.tensor([0.3, 1.1], dtype=F64)
    period, scale, likelihood = fit_period(four_sines, x, periods, scales, 0.2)
    assert likelihood.shape == (3, 2)
    y = four_sines(x).numpy()
    by_hand = [
        [plain.log_likelihood(plain.Prior(plain.periodic(float(p), float(s))), 0.2, x.numpy(), y) for s in scales]
        for p in periods
    ]
    np.testing.assert_allclose(likelihood, by_hand, rtol=1e-9)
    row, column = np.unravel_index(np.argmax(by_hand), (3, 2))
    assert (period, scale) == (float(periods[row]), float(scales[column]))


def test_the_period_of_the_whole_is_one_and_the_waves_look_shorter(reader):
    periods = reader["unknown_period"].problem.candidates
    assert len(periods) == 5 and periods.names[0] == "all: period 1"
    fitted = [float(kernel.period_length) for kernel in periods.kernels]
    assert fitted[0] == pytest.approx(1.0, abs=1e-9)
    assert fitted[1:4] == pytest.approx([0.25, 3 / 14, 0.25], abs=0.006)
    assert all(0.1 <= period < 0.5 for period in fitted[1:])
    assert [name.split(":")[0] for name in periods.names] == ["all", "wave 1", "wave 2", "wave 3", "wave 4"]


def test_all_candidates_may_share_one_lengthscale(reader):
    periods, shared = reader["unknown_period"].problem.candidates, period_candidates(shared=0.7)
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
    monkeypatch.setattr(experiments, "period_candidates", lambda *_: reader["unknown_period"].problem.candidates)
    with pytest.raises(ValueError, match=f"scale must be 'reader' or 'paper', got {scale!r}"):
        getattr(experiments, name)(scale)
    with pytest.raises(ValueError, match="scale must be"):
        experiments.replicates(scale, 50)


@every_panel
def test_scales_are_the_papers_replicates_and_ten_of_them(name, reader, monkeypatch):
    paper, initial, steps, _ = PANELS[name]
    parameters = inspect.signature(getattr(experiments, name)).parameters
    assert parameters["scale"].default == "paper" and parameters["steps"].default == steps
    asked = []

    def noted(problem, policies, steps, seeds):
        asked.append((list(seeds), steps, {policy.initial for policy in policies.values()}))

    monkeypatch.setattr(experiments, "compare", noted)
    monkeypatch.setattr(experiments, "period_candidates", lambda *_: reader["unknown_period"].problem.candidates)
    for scale in ("paper", "reader"):
        getattr(experiments, name)(scale)
    assert asked == [(list(range(paper)), steps, {initial}), (list(range(10)), steps, {initial})]


@every_panel
def test_every_policy_runs_from_the_same_initial_design_and_has_a_finite_regret(name, reader):
    _, initial, _, policies = PANELS[name]
    comparison = reader[name]
    assert list(comparison.histories) == policies
    designs = [history["query"][:, :initial] for history in comparison.histories.values()]
    assert all(torch.equal(designs[0], design) for design in designs)
    noises = []
    for policy, history in comparison.histories.items():
        assert history.seeds == list(range(10)) and history.steps == initial + 3
        for curve in (comparison.cumulative[policy], comparison.simple[policy]):
            assert curve.shape == (10, 3) and bool(torch.isfinite(curve).all() and (curve >= -1e-9).all())
        assert bool((comparison.simple[policy][:, -1:] <= comparison.cumulative[policy] + 1e-9).all())
        noises.append(history["observation"] - comparison.problem.f(history["query"]))
    for noise in noises[1:]:
        torch.testing.assert_close(noise, noises[0], rtol=0, atol=1e-11)
    queries = [history["query"] for history in comparison.histories.values()]
    assert not all(torch.equal(queries[0], query) for query in queries)


def test_the_reader_sees_the_first_ten_replicates_of_the_paper(reader):
    paper = experiments.unknown_mean("paper", steps=3)
    assert torch.equal(paper.problem.truth[:10], reader["unknown_mean"].problem.truth)
    for name, many in paper.histories.items():
        for key, tensor in reader["unknown_mean"].histories[name].tensors.items():
            torch.testing.assert_close(tensor, many[key][:10], rtol=0, atol=1e-7, msg=f"{name} {key}")


def test_the_panels_have_the_papers_problems(reader):
    lengthscale, period, decomposition, mean = (reader[name].problem for name in list(PANELS)[:4])
    assert lengthscale.points.shape == (500, 1) and lengthscale.points[[0, -1], 0].tolist() == [0, 1]
    assert lengthscale.candidates.names == tuple(f"lengthscale {s:g}" for s in (0.3, 0.4, 0.5, 0.7, 1.0))
    assert lengthscale.truth == 0
    assert torch.equal(lengthscale.values, slope_and_peak(lengthscale.points))
    assert period.points.shape == (500, 1) and period.points[[0, -1], 0].tolist() == [0, 2]
    assert torch.equal(period.values, four_sines(period.points)) and period.truth == 0
    assert decomposition.points.shape == (1125, 3)
    assert decomposition.candidates.names == (
        "(x1) + (x2) + (x3)",
        "(x1, x2) + (x3)",
        "(x1) + (x2, x3)",
        "(x2) + (x1, x3)",
    )
    assert decomposition.truth == 1 and torch.equal(decomposition.values, hidden_corner(decomposition.points))
    assert mean.points.shape == (200, 1) and len(mean.candidates) == 11
    assert torch.equal(mean.truth, random_truth(11, range(10))) and mean.replicates == 10
    expected = draws_of_candidates(mean.candidates, mean.truth, range(10))(mean.points.expand(10, -1, -1))
    assert torch.equal(mean.values, expected)
    perturbed = reader["robust"].problem
    assert (perturbed.epsilon, perturbed.truth, perturbed.replicates) == (0.05, 1, 10)
    for problem in (lengthscale, period, decomposition, mean, perturbed):
        assert problem.noise_std == 0.1


def test_the_policies_of_a_panel_are_what_their_names_say():
    kinds = {
        "HE-GP-UCB": (HEGPUCB, "errors"),
        "no elimination": (HEGPUCB, "never"),
        "MLE": (MaximumLikelihood, None),
        "ExpectedUCB": (ExpectedUCB, None),
        "GP-UCB, truth": (GPUCB, "never"),
    }
    problem = setting("lengthscale").problem
    policies = experiments.baselines(problem, lambda t: 1.5, 2)
    assert list(policies) == list(kinds)
    for name, (kind, elimination) in kinds.items():
        policy = policies[name]
        assert type(policy) is kind and policy.initial == 2 and policy.sqrt_beta(1) == 1.5
        if elimination:
            assert (policy.elimination, policy.failure, policy.width) == (elimination, 0.1, "before")
    assert int(policies["GP-UCB, truth"].candidate) == problem.truth
    shifted = experiments.baselines(dataclasses.replace(problem, truth=2), None, 0)
    assert int(shifted["GP-UCB, truth"].candidate) == 2
    expected = plain.case_a_beta(40, 7, 0.1)
    assert all(policy.sqrt_beta(7) == pytest.approx(expected) for policy in shifted.values())


@pytest.mark.parametrize("name", ["unknown_lengthscale", "unknown_period", "unknown_decomposition"])
def test_the_frequentist_panels_use_the_printed_widths(name, reader):
    comparison, initial = reader[name], PANELS[name][1]
    schedule = frequentist_sqrt_beta(comparison.problem, 2.0, 3, initial)
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
    other = experiments.unknown_lengthscale("reader", 3.0, 0.2, "density", printed=False, steps=2)
    assert other.problem.noise_std == 0.2
    assert torch.equal(other.problem.values, slope_and_peak(other.problem.points, "density"))
    derived = frequentist_sqrt_beta(other.problem, 3.0, 2, 3, printed=False)
    for history in (other.histories["MLE"], other.histories["A-GP-UCB"]):
        assert torch.equal(history["sqrt_beta"][0, 3:], torch.stack([derived(1), derived(2)]))


def test_the_lengthscale_panel_shrinks_from_the_likely_lengthscale(reader):
    histories = reader["unknown_lengthscale"].histories
    assert torch.equal(histories["A-GP-UCB"]["candidate"][:, 3], histories["MLE"]["candidate"][:, 3])
    assert bool((histories["GP-UCB, longest"]["candidate"][:, 3:] == 0).all())  # of a problem with it alone


def test_the_settings_of_the_other_panels_reach_them(monkeypatch):
    monkeypatch.setattr(experiments, "compare", lambda problem, policies, steps, seeds: (problem, policies))
    fitted = []

    def fit(f, x, periods, lengthscales, noise_std):
        fitted.append((float(f(torch.tensor([[0.3]], dtype=F64))), noise_std))
        return 0.5, 1.0, None

    monkeypatch.setattr(experiments, "fit_period", fit)
    problem, _ = experiments.unknown_period("reader", shared=0.6, phase=None, noise_std=0.2, steps=2)
    assert torch.equal(problem.values, four_sines(problem.points, None)) and problem.noise_std == 0.2
    assert fitted == [(pytest.approx(sine_at(0.3, None)), 0.2)] * 5
    for kernel in problem.candidates.kernels:
        assert float(kernel.lengthscale) == pytest.approx(0.36)
    problem, policies = experiments.unknown_decomposition("reader", 1.0, 0.3, 0.5, steps=2)
    x = problem.points[:5].numpy()
    for kernel, groups in zip(problem.candidates.kernels, experiments.DECOMPOSITIONS, strict=True):
        np.testing.assert_allclose(kernel(problem.points[:5]).to_dense(), plain.additive(groups, 0.5)(x, x), atol=1e-14)
    assert (int(policies["GP-UCB, additive"].candidate), int(policies["GP-UCB, truth"].candidate)) == (0, 1)
    problem, _ = experiments.unknown_mean("reader", 3.0, 1.0, 0.4, 0.3, steps=2)
    assert problem.candidates.means == hill_candidates(3.0, 1.0).means and problem.noise_std == 0.3
    problem, policies = experiments.robust("reader", (0.1, 0.2), 0, 0.02, 0.3, steps=2)
    assert (problem.epsilon, problem.truth, problem.noise_std, len(problem.candidates)) == (0.02, 0, 0.3, 2)
    kinds = [type(policy) for policy in policies.values()]
    assert kinds == [HEStableOpt, StableOpt, StableOpt, StableOpt, HEGPUCB]
    trusted = [int(policies[f"StableOpt, {which}"].candidate) for which in ("truth", "shortest", "longest")]
    assert trusted == [0, 0, 1]


def test_a_comparison_runs_each_policy_as_if_it_were_alone(reader):
    comparison = reader["unknown_decomposition"]
    problem = comparison.problem
    schedule = frequentist_sqrt_beta(problem, 2.0, 3, 3)
    for name, policy in (
        ("HE-GP-UCB", HEGPUCB(problem, schedule, 3)),
        ("MLE", MaximumLikelihood(problem, schedule, 3)),
        ("GP-UCB, additive", GPUCB(problem, 0, schedule, 3)),
    ):
        alone = run(problem, policy, 6, [4])
        assert torch.equal(alone["query"][0], comparison.histories[name]["query"][4])
    problem = reader["unknown_lengthscale"].problem
    policy = AGPUCB(problem, experiments.LENGTHSCALES, sqrt_beta=frequentist_sqrt_beta(problem, 2.0, 3, 3), initial=3)
    found = reader["unknown_lengthscale"].histories["A-GP-UCB"]["query"]
    assert torch.equal(run(problem, policy, 6, [4])["query"][0], found[4])


# ---- figures


@every_panel
def test_a_comparison_is_drawn_as_cumulative_and_best_regret(name, reader):
    comparison = reader[name]
    figure = experiments.plot_comparison(comparison)
    figures.show(figure, "Two panels.")
    left, right = figure.axes
    for axis, curves in ((left, comparison.cumulative), (right, comparison.simple)):
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
    history = run(case.problem, HEGPUCB(case.problem, case.sqrt_beta, 2), 20, range(4, 12))
    comparison = experiments.Comparison(case.problem, {"HE-GP-UCB": history, "other": history})
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


@pytest.mark.parametrize("initial", [0, 2])
def test_every_round_of_an_elimination_is_a_frame_that_says_what_happened(initial):
    case = setting("period")
    policy = HEGPUCB(case.problem, case.sqrt_beta, initial)
    frames, labels, alts = experiments.elimination_steps(case.problem, policy, 12, seed=5, limits=(-2.0, 3.0))
    assert len(frames) == len(labels) == len(alts) == 12 and all(alts)
    history = run(case.problem, HEGPUCB(case.problem, case.sqrt_beta, initial), 12 + initial, [5])
    names = case.problem.candidates.names
    left = torch.ones(3, dtype=torch.bool)
    dropped = 0
    for t, (figure, label, alt) in enumerate(zip(frames, labels, alts, strict=True)):
        at = initial + t
        chosen, after = names[int(history["candidate"][0, at])], history["alive"][0, at]
        lost = [name for name, old, new in zip(names, left, after, strict=True) if old and not new]
        dropped += len(lost)
        what = f"{lost[0]} is dropped" if lost else "none is dropped"
        assert label == f"round {t + 1}: {chosen} chooses; {what}"
        x, y = float(history["query"][0, at, 0]), float(history["observation"][0, at])
        assert alt.startswith(
            f"Round {t + 1}. {chosen} has the highest upper bound, at x = {x:.2f}, and {y:.2f} is seen"
        )
        assert alt.endswith(f"Left: {', '.join(name for name, new in zip(names, after, strict=True) if new)}.")
        axes = figure.axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_ylim()) == ("x", "f", (-2.0, 3.0))
        drawn = {curve.get_label(): curve for curve in axes.lines}
        bands = [name for name, alive in zip(names, left, strict=True) if alive]
        assert [name for name in drawn if name.startswith("period")] == [
            name + ", chooses" * (name == chosen) for name in bands
        ]
        assert len(axes.collections) == len(bands)
        np.testing.assert_allclose(drawn["f"].get_ydata(), case.problem.values)
        np.testing.assert_allclose(drawn["seen before"].get_ydata(), history["observation"][0, :at])
        assert (drawn["seen in this round"].get_xdata()[0], drawn["seen in this round"].get_ydata()[0]) == (x, y)
        seen = history["query"][0, :at].numpy(), history["observation"][0, :at].numpy()
        mean, _ = plain.posterior(case.priors[names.index(chosen)], 0.15, *seen, case.problem.points.numpy())
        np.testing.assert_allclose(drawn[f"{chosen}, chooses"].get_ydata(), mean, rtol=0, atol=1e-9)
        left = after
    assert dropped > 0
    text = figures.slider(frames[:2], labels[:2], alts[:2], "Round").data
    assert f"<output>{labels[0]}</output>" in text


def test_frames_of_a_function_a_replicate_show_the_one_that_is_run():
    f = draws_of_candidates(hill_candidates(), torch.tensor([4]), [9])
    problem = UnknownPriorProblem(f, hill_candidates(), line(50), truth=torch.tensor([4]), replicates=1)
    frames, _, _ = experiments.elimination_steps(problem, HEGPUCB(problem), 2, seed=9)
    for figure in frames:
        drawn = {curve.get_label(): curve for curve in figure.axes[0].lines}
        np.testing.assert_allclose(drawn["f"].get_ydata(), problem.values[0])


def test_a_frame_names_every_candidate_that_is_dropped():
    candidates = Candidates(("right", "high", "low"), (rbf_kernel(0.3),) * 3, (0.0, 4.0, -4.0))
    problem = UnknownPriorProblem(lambda x: 0 * x[..., 0], candidates, line(20), noise_std=0.05, epsilon=0.1)
    _, labels, _ = experiments.elimination_steps(problem, HEStableOpt(problem, lambda t: 0.5), 1)
    assert "high" in labels[0].split(";")[1] and "low" in labels[0].split(";")[1]


def test_frames_of_a_policy_with_one_candidate():
    problem = setting("lengthscale").problem
    _, labels, _ = experiments.elimination_steps(problem, GPUCB(problem, 2), 1)
    assert labels[0].startswith("round 1: lengthscale 0.3 chooses")


def test_a_hill_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="tallest"):
        Hills(10)(line(3))
