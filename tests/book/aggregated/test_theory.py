"""The numbers that the page on regret shows, against hand-written sums and brute force."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from book.aggregated.theory import NearOptimality, corollary_bound, near_optimality, printed_depth, theorem_depth
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, fourier


def power(p):
    return lambda x: 1 - (x[..., 0] - 0.5).abs() ** p


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
def test_the_near_optimality_dimension_of_a_power_is_one_minus_its_inverse(p):
    # The eps-optimal set is an interval of length 2 eps^(1/p); it holds the centers of floor(length / 2r) + 1
    # disjoint balls of radius r = eta eps, about eps^(1/p - 1) / eta.
    eta, scales = 1 / 16, [2.0**-k for k in range(3, 11)]
    near = near_optimality(power(p), UNIT, 1.0, eta, scales, grid=2**17 + 1)
    closed_form = [math.floor(2 * e ** (1 / p) / (2 * eta * e)) + 1 for e in scales]
    assert near.scales.tolist() == scales
    for found, expected in zip(near.packing.tolist(), closed_form, strict=True):
        assert abs(found - expected) <= 1
    assert near.dimension == pytest.approx(1 - 1 / p, abs=0.04)


def test_the_packing_of_a_parabola_is_exact_on_a_grid_that_holds_its_balls():
    scales = [4.0**-k for k in range(1, 7)]
    near = near_optimality(power(2.0), UNIT, 1.0, 1 / 8, scales, grid=2**16 + 1)
    assert near.packing.tolist() == [8 * 2**k + 1 for k in range(1, 7)]
    slope = np.polyfit([k * math.log(4) for k in range(1, 7)], near.packing.log().numpy(), 1)[0]
    assert near.dimension == pytest.approx(slope, abs=1e-12)
    bound = near.constant * near.scales**-near.dimension
    assert bool((near.packing <= bound * (1 + 1e-12)).all())
    assert bool((near.packing >= bound * (1 - 1e-12)).any())  # no smaller constant would do


def test_a_peak_sharper_than_the_metric_has_dimension_zero():
    near = near_optimality(power(0.5), UNIT, 1.0, 1 / 4, [4.0**-k for k in range(2, 6)], grid=2**16 + 1)
    assert near.dimension == 0.0
    assert near.constant == float(near.packing.max())


@given(st.integers(0, 10_000), st.floats(0.02, 0.6), st.floats(0.02, 0.5))
def test_the_greedy_packing_is_the_largest_there_is(seed, scale, eta):
    f = fourier(seed)
    x = torch.linspace(0, 1, 15, dtype=F64).unsqueeze(-1)
    optimum = float(f(x).max())
    near = near_optimality(f, UNIT, optimum, eta, [scale, 2 * scale], grid=15)
    for epsilon, found in zip([scale, 2 * scale], near.packing.tolist(), strict=True):
        inside = x[f(x) >= optimum - epsilon, 0].tolist()
        gap = 2 * eta * epsilon * (1 - 1e-12)
        largest = max(
            bits.bit_count()
            for bits in range(1 << len(inside))
            if all(b - a >= gap for a, b in itertools.pairwise(y for j, y in enumerate(inside) if bits >> j & 1))
        )
        assert found == largest


def test_near_optimality_works_on_other_intervals():
    shifted = torch.tensor([[10.0], [14.0]], dtype=F64)
    near = near_optimality(
        lambda x: 5 - (x[..., 0] - 12).square(),
        shifted,
        5.0,
        1 / 8,
        [4.0**-k for k in range(6)],
        grid=2**14 + 1,
    )
    assert near.packing.tolist() == [8 * 2**k + 1 for k in range(6)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 2), 1.0, 0.1, [0.1, 0.2]), r"bounds must have shape \(2, 1\): one variable"),
        ((UNIT, 1.0, 0.1, [0.1]), "scales must be two or more positive numbers"),
        ((UNIT, 1.0, 0.1, [0.1, 0.0]), "scales must be two or more positive numbers"),
        ((UNIT, 1.0, 0.0, [0.1, 0.2]), r"eta positive, got \[0.1, 0.2\] and 0.0"),
    ],
)
def test_near_optimality_names_an_argument_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        near_optimality(power(2.0), *arguments)


@given(
    st.integers(1, 10_000),
    st.floats(1, 40),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.floats(0.1, 0.9),
    st.integers(2, 4),
    st.floats(0.01, 0.5),
    st.booleans(),
)
def test_the_depth_of_theorem_1_is_that_of_a_hand_written_sum(steps, beta, counts, rho, branching, noise, printed):
    delta = [2 * rho**h for h in range(len(counts) + 1)]

    def limit(depth):
        return beta * noise**2 / delta[depth] ** 2

    totals = []
    for depth in range(len(counts)):
        if printed:
            totals.append(sum(branching * counts[h] * limit(h) for h in range(depth + 1)))
        else:
            children = sum(branching * counts[h] * (2 + limit(h + 1)) for h in range(depth + 1))
            totals.append(2 + limit(0) + children)
    assume(all(abs(total - steps) > 1e-9 * steps for total in [*totals, 2 + limit(0)]))  # no tie left to rounding
    expected = next((depth for depth, total in enumerate(totals) if total >= steps), len(counts))
    if not printed and steps <= 2 + limit(0):
        expected = -1
    depth_of = printed_depth if printed else theorem_depth
    found = depth_of(steps, beta, counts, torch.tensor(delta, dtype=F64), branching, noise)
    assert found == expected


def test_theorem_1_counts_the_draws_of_the_root_and_of_the_children_of_every_level():
    delta = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=F64)
    # As printed the levels absorb 2 * 0.04, 2 * 0.16 and 2 * 0.64 draws.
    assert printed_depth(1, 4.0, [1, 1, 1], delta, 2, 0.1) == 2
    assert printed_depth(10, 4.0, [1, 1, 1], delta, 2, 0.1) == 3
    # The root absorbs 2.04 draws, its children 2 * 2.16 more, theirs 2 * 2.64 more.
    assert [theorem_depth(n, 4.0, [1, 1, 1], delta, 2, 0.1) for n in (1, 2, 3, 6, 7, 11, 12)] == [-1, -1, 0, 0, 1, 1, 2]
    with pytest.raises(ValueError, match="delta must have one level more than counts, 4, got 3"):
        theorem_depth(1, 4.0, [1, 1, 1], delta[:3], 2, 0.1)
    with pytest.raises(ValueError, match="delta must have one level more than counts, 4, got 3"):
        printed_depth(1, 4.0, [1, 1, 1], delta[:3], 2, 0.1)


def depth_from_dimension(steps, beta, scale, rho, near, branching, noise):
    """``h_N`` for the counts that Lemma 2 promises, and ``delta`` there."""
    absorbed, depth = 0.0, -1
    delta = []
    while absorbed < steps:
        depth += 1
        delta.append(scale * rho**depth)
        absorbed += branching * near.constant * (3 * delta[-1]) ** -near.dimension * beta * noise**2 / delta[-1] ** 2
    counts = [near.constant * (3 * width) ** -near.dimension for width in delta]
    widths = torch.tensor([*delta, scale * rho ** (depth + 1)], dtype=F64)
    assert printed_depth(steps, beta, counts, widths, branching, noise) == depth
    return delta[depth]


def dimension(d, c):
    return NearOptimality(torch.ones(2), torch.ones(2), d, c)


@given(
    st.integers(1, 10**7),
    st.floats(0.5, 60),
    st.floats(0.05, 20),
    st.floats(0.1, 0.9),
    st.floats(0, 3),
    st.floats(0.1, 50),
    st.integers(2, 5),
    st.floats(0.01, 2),
)
def test_the_derived_corollary_bounds_three_delta(steps, beta, scale, rho, d, c, branching, noise):
    near = dimension(d, c)
    three_delta = 3 * depth_from_dimension(steps, beta, scale, rho, near, branching, noise)
    budget, multiplier = torch.tensor([float(steps)]), torch.tensor([beta])
    bound = corollary_bound(budget.double(), multiplier.double(), rho, near, branching, noise)["derived"]
    assert float(bound) >= three_delta * (1 - 1e-9)


def test_the_derived_corollary_loses_at_most_one_level_on_large_budgets():
    near = dimension(1.0, 2.0)
    for steps in (10**6, 10**7, 10**8):
        three_delta = 3 * depth_from_dimension(steps, 30.0, 1.0, 0.5, near, 2, 0.1)
        budget, beta = torch.tensor([float(steps)], dtype=F64), torch.tensor([30.0], dtype=F64)
        bound = corollary_bound(budget, beta, 0.5, near, 2, 0.1)["derived"]
        assert float(bound) <= three_delta / 0.5 * 1.001


def test_the_printed_corollary_lies_below_three_delta_on_the_papers_setting():
    # K = 2, sigma = 0.1, delta(h) = 14 * 2^-h, N = 80; d = 0 and C = 1 stand for a sharp peak.
    near = dimension(0.0, 1.0)
    beta = plain.lemma_1_beta(2, 10, 0.1, 80)
    three_delta = 3 * depth_from_dimension(80, beta, 14.0, 0.5, near, 2, 0.1)
    steps = torch.tensor([80.0], dtype=F64)
    bounds = corollary_bound(steps, torch.full_like(steps, beta), 0.5, near, 2, 0.1)
    assert float(bounds["printed"]) < 0.1 * three_delta
    assert float(bounds["derived"]) >= three_delta
    c1 = 2 * 0.01 / 3
    assert float(bounds["printed"]) == pytest.approx(c1 * math.sqrt(beta / 80), rel=1e-12)
    assert float(bounds["derived"]) == pytest.approx(3 * math.sqrt(4 * c1 * beta / 80), rel=1e-12)


def test_the_corollary_names_an_argument_out_of_range():
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"rho must lie in \(0, 1\), got 1.0"):
        corollary_bound(one, one, 1.0, dimension(1.0, 1.0), 2, 0.1)
