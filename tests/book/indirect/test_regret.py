"""Regrets by brute force, the terms of both proofs on their runs, and what the problem shows."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from book.indirect import proof
from book.indirect.problem import IndirectProblem
from book.indirect.problems import Turned, branin, known_prior, unit_grid
from book.indirect.regret import at_cost, band, group_length, instant_regret, simple_regret, zeta
from cbo_lib.indirect import CMES, ClippedGaussian, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import simulate
from tests.indirect.helpers import F64, cosine_map, identity, ripple, square


def test_a_problem_shows_averages_and_counts_points():
    grid = unit_grid(9)  # more actions than one slice
    space = Space(grid, conditional=ClippedGaussian(cosine_map, 0.1), points=unit_grid(3), noise_std=0.1)
    problem = IndirectProblem(space, ripple, order=12)
    nodes, weights = np.polynomial.hermite.hermgauss(20)
    for i in (0, 17, 63, 64, 80):
        center = cosine_map(grid[i]).numpy()
        x, y = np.meshgrid(*(c + 0.1 * math.sqrt(2) * nodes for c in center), indexing="ij")
        values = ripple(torch.from_numpy(np.stack([x, y], -1))).numpy()
        assert float(problem.g[0, i]) == pytest.approx(weights @ values @ weights / math.pi, abs=1e-10)
        assert float(problem.value(grid[i : i + 1])) == float(problem.g[0, i])
    assert float(problem.worth(unit_grid(3)[4:5])) == float(ripple(unit_grid(3)[4]))
    draws = ReplicateGenerators(range(4), stream=0)
    seen = torch.stack([problem.observe(grid[[0, 2, 7, 30]], draws.at(t)) for t in range(2000)])
    assert float((seen.mean(0) - problem.g[0, [0, 2, 7, 30]]).abs().max()) < 4 * 0.1 / 2000**0.5
    assert seen.std(0).tolist() == pytest.approx([0.1] * 4, rel=0.08)


def test_the_truth_may_differ_from_what_the_learner_knows():
    grid = unit_grid(2)
    known, true = ClippedGaussian(identity, 0.1), ClippedGaussian(cosine_map, 0.1)
    problem = IndirectProblem(Space(grid, points=grid, conditional=known, noise_std=0.3), ripple, true, 0.5)
    assert torch.allclose(problem.g[0], true.measure(grid, 65).expectation(ripple))
    assert problem.noise_std.tolist() == [0.5] * 4


def test_moved_functions_are_standardized_copies_of_branin():
    f, grid = Turned((0, 1, 2)), unit_grid(64)
    values = f(grid.expand(3, -1, -1))
    assert values.mean(-1).tolist() == pytest.approx([0] * 3, abs=1e-9)
    assert values.std(-1).tolist() == pytest.approx([1] * 3)
    assert float((values[0] - values[1]).abs().max()) > 0.5
    still = branin(unit_grid(128))
    assert float(still.mean()) == pytest.approx(0, abs=1e-9) and float(still.std()) == pytest.approx(1)


def test_regrets_are_those_of_their_definitions():
    problem, prior = square()
    history = simulate(problem, CMES(problem.space, prior=prior, initial=2), 10, [3, 4], progress=False)
    best = float(problem.values.max())
    for r in range(2):
        for t in range(10):
            named = [float(problem.worth(x[None])) for x in history["recommendation"][r, : t + 1]]
            asked = [float(problem.value(a[None])) for a in history["query"][r, : t + 1]]
            assert float(simple_regret(history, problem)[r, t]) == pytest.approx(best - max(named))
            assert float(instant_regret(history, problem)[r, t]) == pytest.approx(best - max(asked))


def test_regret_by_cost_is_that_of_the_last_round_that_is_paid():
    values = torch.tensor([[5.0, 4.0, 3.0], [9.0, 8.0, 7.0]], dtype=F64)
    spent = torch.tensor([[1.0, 2.5, 4.0], [2.0, 3.0, 6.0]], dtype=F64)
    assert at_cost(values, spent, [2, 3, 4]).tolist() == [[5.0, 4.0, 3.0], [9.0, 8.0, 8.0]]
    with pytest.raises(ValueError, match="budgets must pay for the first action"):
        at_cost(values, spent, [1, 4])
    with pytest.raises(ValueError, match="budgets must be spent"):
        at_cost(values, spent, [2, 30])


def test_widths_are_those_of_the_lemmas():
    for t in (1, 2, 17, 1000):
        weight = math.pi**2 * t**2 / 6
        assert float(zeta(t, 0.1)) == pytest.approx(math.sqrt(2 * math.log(weight / 0.2)))
        assert float(band(t, 60, 0.1)) == pytest.approx(math.sqrt(2 * math.log(60 * weight / 0.1)))
    assert group_length(1, 0.5, 0.1) == pytest.approx(math.log2(2 * math.pi**2 / 6 / 0.1))


@pytest.fixture(scope="module")
def runs():
    problem, prior = proof.drawn(20), known_prior(proof.LENGTHSCALE)
    kinds = (proof.PosteriorDraw, proof.UpperBound)
    return problem, [simulate(problem, k(problem.space, prior=prior), 12, range(20), watch=proof.watch) for k in kinds]


def test_kappa_attains_the_stand_in_and_lies_between_its_bounds(runs):
    _, (posterior, upper) = runs
    for run in (posterior, upper):
        torch.testing.assert_close(run["mean"] + run["kappa"] * run["std"], run["star"])
    high = posterior["largest"] + posterior["drawn_gap"] / posterior["drawn_std"]
    assert bool((posterior["kappa"] <= high + 1e-6).all())
    gap = posterior["drawn_gap"] >= 0
    assert float((posterior["kappa"] - posterior["drawn_gap"] / posterior["widest"])[gap].min()) > -6


def test_a_posterior_draw_is_above_the_maximum_half_of_the_time_and_upper_bounds_are_always(runs):
    problem, (posterior, upper) = runs
    assert 0.3 < float((posterior["star"] >= problem.optimum).double().mean()) < 0.7
    assert bool((upper["star"] >= problem.optimum).all())


def test_groups_are_covered_as_an_integral_says_if_the_posterior_stands_still():
    lengths = proof.group_lengths(3)
    found = proof.frozen_coverage(lengths)
    for i in range(3):
        exact = quad(lambda w, i=i: math.prod(1 - w**k for k in lengths[: i + 1]), 0, 1)[0]
        assert float(found[i]) == pytest.approx(exact, abs=1e-6)
    above = torch.tensor([[True, False, False, True], [False, False, True, True]])
    assert proof.covered(above, [1, 2]).tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("tau", [0.05, 0.15, 0.4])
def test_the_cost_of_a_blur_is_the_prior_deviation_of_the_difference(tau):
    kernel, point = rbf_kernel(proof.LENGTHSCALE), torch.zeros(1, 1, dtype=F64)
    rule = ClippedGaussian(lambda a: a, tau).measure(point, 60)
    both = [Measure.dirac(point), rule]
    (a, b), (_, c) = ([float(covariance(kernel, m, n)) for n in both] for m in both)
    expected = math.sqrt(a - 2 * b + c)
    assert float(proof.blur_cost(tau)) == pytest.approx(expected, abs=1e-6)
    assert float(proof.blur_cost(tau)) <= math.sqrt(3) / 2 * (tau / proof.LENGTHSCALE) ** 2


def test_no_actions_bring_the_variance_below_its_least():
    """Fifty answers at equal distances, of a blur of two lengthscales."""
    tau, x = 2 * proof.LENGTHSCALE, torch.linspace(0, 1, 50, dtype=F64)[:, None]
    prior = known_prior(proof.LENGTHSCALE, noise_std=proof.NOISE)
    seen = prior.condition(Measure.dirac(torch.cat([x, torch.full_like(x, tau)], -1)), torch.zeros(50, dtype=F64))
    left = seen.variance(Measure.dirac(torch.tensor([[0.5, 0.0]], dtype=F64)))
    assert float(left) >= float(proof.least_variance(torch.tensor(50.0), tau)) > 0.05


def test_the_terms_of_theorem_2_add_up_and_the_bridge_holds():
    for name in ("no blur", "constant 2"):
        part = proof.accounts(name, 8, 6)
        tau = proof.LENGTHSCALE * torch.tensor([proof.SCHEDULES[name](t) for t in range(1, 9)], dtype=F64)
        assert bool((part["std"] <= part["blurred_std"] + proof.blur_cost(tau) + 1e-6).all())
        if name == "no blur":
            torch.testing.assert_close(part["std"], part["blurred_std"], rtol=0, atol=1e-6)
            torch.testing.assert_close(part["regret"], part["search"], rtol=0, atol=1e-6)
