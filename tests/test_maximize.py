import logging
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.former.maximize import argmax_finite, maximize_box, search_box
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.toys import grid, normal

F64 = torch.float64
INF = float("inf")


def choose(values, allowed=None, order=None, **options):
    values = torch.tensor(values, dtype=F64)
    allowed = torch.ones_like(values, dtype=torch.bool) if allowed is None else torch.tensor(allowed)
    order = torch.arange(values.shape[-1]) if order is None else torch.tensor(order)
    return argmax_finite(values, allowed, order, **options).tolist()


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31))
def test_without_ties_it_is_the_argmax_of_the_allowed(replicates, n, seed):
    generator = np.random.default_rng(seed)
    values = generator.permutation(replicates * n).reshape(replicates, n).astype(float)
    allowed = generator.random((replicates, n)) < 0.5
    allowed[np.arange(replicates), generator.integers(n, size=replicates)] = True
    expected = [max(np.flatnonzero(a), key=lambda i, v=v: v[i]) for v, a in zip(values, allowed, strict=True)]
    got = argmax_finite(torch.tensor(values), torch.tensor(allowed), torch.tensor(generator.permutation(n)))
    assert got.tolist() == expected


def test_ties_go_to_the_lowest_rank():
    assert choose([[1.0, 3.0, 3.0, 3.0]], order=[0, 9, 2, 5]) == [2]
    assert choose([[1.0, 3.0, 3.0, 3.0]], order=[0, 9, 7, 5]) == [3]


def test_values_within_the_tolerance_are_tied():
    values = [[1.0, 1.0 + 1e-10, 1.0 - 1e-7]]
    assert choose(values) == [0]
    assert choose(values, order=[1, 0, 2]) == [1]
    assert choose([[1.0, 1.0 + 1e-8]]) == [1]


@pytest.mark.parametrize("unit", [1e-12, 1e-9, 1e-6])
def test_in_a_tiny_unit_the_tolerance_is_relative(unit):
    assert choose([[unit, 1.5 * unit, -unit]]) == [1]
    assert choose([[unit, (1 + 1e-10) * unit, -INF]]) == [0]
    assert choose([[0.0, 0.0]]) == [0]


def test_rounding_does_not_decide(rng):
    base = torch.tensor([[0.1, 0.7, 0.7, 0.2]], dtype=F64).repeat(50, 1)
    noisy = base + 1e-12 * torch.randn(50, 4, generator=rng, dtype=F64)
    assert noisy.argmax(-1).unique().numel() == 2  # the plain argmax would be decided by rounding
    assert argmax_finite(noisy, torch.ones(4, dtype=torch.bool), torch.tensor([0, 2, 1, 3])).unique().tolist() == [2]


def test_infinities_win_and_tie_among_themselves():
    assert choose([[0.0, INF, 5.0, INF]], order=[0, 3, 1, 2]) == [3]
    assert choose([[0.0, INF, 5.0, INF]], allowed=[[True, False, True, False]]) == [2]


def test_minus_infinity_everywhere_still_chooses_an_allowed_candidate():
    assert choose([[-INF, -INF, -INF]], allowed=[[False, True, True]], order=[0, 2, 1]) == [2]


def test_a_mask_is_shared_by_broadcasting():
    assert choose([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], allowed=[True, True, False]) == [1, 0]


def test_leading_dimensions_are_kept():
    values = torch.arange(24, dtype=F64).reshape(2, 3, 4)
    got = argmax_finite(values, torch.ones(4, dtype=torch.bool), torch.arange(4))
    assert got.tolist() == [[3, 3, 3], [3, 3, 3]]
    assert int(argmax_finite(values[0, 0], torch.ones(4, dtype=torch.bool), torch.arange(4))) == 3


def test_a_nan_that_is_not_allowed_does_not_matter():
    assert choose([[1.0, float("nan"), 0.0]], allowed=[[True, False, True]]) == [0]


def test_a_nan_that_is_allowed_is_refused():
    with pytest.raises(ValueError, match="values must not be NaN where a candidate is allowed"):
        choose([[1.0, float("nan"), 0.0], [1.0, 2.0, 3.0]])


def test_a_replicate_without_a_candidate_is_refused():
    with pytest.raises(ValueError, match="allowed must leave every replicate a candidate"):
        choose([[1.0, 2.0], [1.0, 2.0]], allowed=[[True, False], [False, False]])


def box(dim, low=0.0, high=1.0):
    return torch.tensor([[low] * dim, [high] * dim], dtype=F64)


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_the_maximum_of_a_quadratic_is_its_center_clipped_to_the_box(rng, dim, shared):
    centers = 3 * torch.rand(20, 1, dim, generator=rng, dtype=F64) - 1
    steep = 1 + torch.rand(20, 1, dim, generator=rng, dtype=F64)
    bounds = box(dim)
    raw = torch.rand(*([8] if shared else [20, 8]), dim, generator=rng, dtype=F64)
    points, values = maximize_box(lambda x: 2 - (steep * (x - centers).square()).sum(-1), bounds, raw)
    inside = centers.clamp(0, 1)
    assert ((inside != centers).any() and (inside == centers).any()) and points.shape == (20, dim)
    torch.testing.assert_close(points, inside.squeeze(1), rtol=0, atol=1e-4)
    torch.testing.assert_close(values, 2 - (steep * (inside - centers).square()).sum((1, 2)), rtol=0, atol=1e-7)


def test_a_box_may_have_unequal_sides_and_one_of_length_zero(rng):
    bounds = torch.tensor([[-10.0, 2.0, 0.0], [-5.0, 2.0, 0.01]], dtype=F64)
    raw = bounds[0] + (bounds[1] - bounds[0]) * torch.rand(9, 3, generator=rng, dtype=F64)
    center = torch.tensor([-6.5, 1.0, 5.0], dtype=F64)
    points, _ = maximize_box(lambda x: -(x - center).square().sum(-1), bounds, raw)
    torch.testing.assert_close(points, torch.tensor([[-6.5, 2.0, 0.01]], dtype=F64), rtol=0, atol=1e-5)


def test_the_best_of_many_peaks_is_found(rng):
    phase = 6 * torch.rand(12, 1, generator=rng, dtype=F64)

    def values(x):
        return torch.sin(17 * x[..., 0] + phase) + torch.sin(5 * x[..., 0] - phase)

    _, best = maximize_box(values, box(1), grid(40))
    dense = values(grid(20_001).unsqueeze(0)).amax(-1)
    assert (best >= dense - 1e-8).all() and (best <= dense + 1e-5).all()


def acquisition(x, y):
    """An upper confidence bound of each replicate, whose observations are ``replicates x t``."""
    posterior = GaussianProcess(rbf_kernel(0.3), 0.1).condition(Measure.dirac(x), y)

    def values(at):
        measure = Measure.dirac(at)
        return posterior.mean(measure) + 2 * posterior.variance(measure).sqrt()

    return values


def test_a_replicate_does_not_depend_on_its_company(rng):
    x, y = torch.rand(12, 9, 2, generator=rng, dtype=F64), normal(rng, 12, 9)
    raw = torch.rand(30, 2, generator=rng, dtype=F64)
    points, values = maximize_box(acquisition(x, y), box(2), raw)
    for group in ([7], [7, 2, 11], [0, 1, 2, 3, 4, 5, 6, 7]):
        some, results = maximize_box(acquisition(x[group], y[group]), box(2), raw)
        torch.testing.assert_close(some, points[group], rtol=0, atol=1e-9)
        torch.testing.assert_close(results, values[group], rtol=0, atol=1e-9)


def test_a_steep_neighbor_changes_nothing():
    """One joint L-BFGS would share its steps and its end between these two."""
    steep, center = torch.tensor([[1e6], [1.0]], dtype=F64), torch.tensor([[0.123], [0.777]], dtype=F64)

    def values(of):
        return lambda x: -torch.log1p(steep[of] * (x[..., 0] - center[of]).square())

    both, _ = maximize_box(values([0, 1]), box(1), grid(7))
    torch.testing.assert_close(both, center, rtol=0, atol=1e-4)
    for r in range(2):
        torch.testing.assert_close(maximize_box(values([r]), box(1), grid(7))[0], both[[r]], rtol=0, atol=1e-9)


def test_it_beats_a_fine_grid_and_repeats_itself(rng):
    x, y = torch.rand(5, 12, 2, generator=rng, dtype=F64), normal(rng, 5, 12)
    values, raw = acquisition(x, y), torch.rand(60, 2, generator=rng, dtype=F64)
    points, best = maximize_box(values, box(2), raw, starts=8)
    fine = torch.cartesian_prod(*[torch.linspace(0, 1, 61, dtype=F64)] * 2)
    assert (best >= values(fine.unsqueeze(0)).amax(-1) - 1e-6).all()
    torch.testing.assert_close(values(points.unsqueeze(1)).squeeze(1), best, rtol=0, atol=1e-12)
    again = maximize_box(values, box(2), raw, starts=8)
    assert torch.equal(again[0], points) and torch.equal(again[1], best)


@pytest.mark.parametrize("starts", [1, 3, 10])
@pytest.mark.parametrize("height", [1.0, 5e-10])  # the second counts as a tie
def test_it_is_never_worse_than_the_best_raw_point(rng, starts, height):
    """A needle that no gradient leads to, at one raw point of each replicate."""
    raw = torch.rand(10, 2, generator=rng, dtype=F64)
    needle = raw[torch.tensor([3, 8, 0, 3])].unsqueeze(1)

    def values(x):
        smooth = 1e-4 * torch.sin(40 * x).sum(-1)
        return height * (smooth + torch.where((x - needle).abs().amax(-1) < 1e-12, 1.0, 0.0))

    points, best = maximize_box(values, box(2), raw, starts)
    torch.testing.assert_close(points, needle.squeeze(1), rtol=0, atol=1e-12)
    assert (best >= values(raw.unsqueeze(0)).amax(-1)).all()


def test_refinement_improves_on_the_raw_points(rng):
    x, y = torch.rand(5, 12, 2, generator=rng, dtype=F64), normal(rng, 5, 12)
    values, raw = acquisition(x, y), torch.rand(20, 2, generator=rng, dtype=F64)
    _, best = maximize_box(values, box(2), raw, starts=1)
    assert (best > values(raw.unsqueeze(0)).amax(-1) + 1e-4).all()


def test_more_starts_find_a_peak_that_the_best_raw_point_does_not_lead_to():
    def values(x):
        return (-50 * (x[..., 0] - 0.25).square()).exp() + 2 * (-300 * (x[..., 0] - 0.75).square()).exp()

    raw = torch.tensor([[0.25], [0.7], [0.0]], dtype=F64)
    for starts, place in ((1, 0.25), (2, 0.75), (3, 0.75)):
        points, _ = maximize_box(values, box(1), raw, starts)
        assert float(points) == pytest.approx(place, abs=1e-4)


def test_equal_peaks_are_decided_by_the_order_of_the_raw_points(rng):
    raw = torch.tensor([[0.8], [0.2], [0.5]], dtype=F64)
    rounding = 1e-13 * normal(rng, 50, 1)

    def values(x):
        return rounding * x[..., 0] - ((x[..., 0] - 0.5).abs() - 0.25).square()

    points, _ = maximize_box(values, box(1), raw, starts=2)
    torch.testing.assert_close(points, torch.full((50, 1), 0.75, dtype=F64), rtol=0, atol=1e-4)
    points, _ = maximize_box(values, box(1), raw[[1, 0, 2]], starts=2)
    torch.testing.assert_close(points, torch.full((50, 1), 0.25, dtype=F64), rtol=0, atol=1e-4)


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_gradients_are_needed_inside_alone(rng, context):
    center = torch.full((3, 1, 2), 0.3, dtype=F64, requires_grad=True)
    with context():
        points, values = maximize_box(
            lambda x: -(x - center).square().sum(-1), box(2), torch.rand(5, 2, generator=rng, dtype=F64)
        )
        assert torch.is_grad_enabled() == (context is torch.enable_grad)
    assert not points.requires_grad and not values.requires_grad and center.grad is None
    torch.testing.assert_close(points, torch.full((3, 2), 0.3, dtype=F64), rtol=0, atol=1e-6)


def test_a_failing_line_search_is_silent_and_other_warnings_are_not(rng, recwarn, capfd, caplog):
    """A wrong gradient leads every line search uphill."""

    class Lies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return -(x - 0.4).square().sum(-1)

        @staticmethod
        def backward(ctx, g):
            return -g.unsqueeze(-1).expand(*g.shape, 2)

    raw = 0.4 + 0.1 * torch.rand(5, 2, generator=rng, dtype=F64)
    with caplog.at_level(logging.WARNING):
        _, best = maximize_box(Lies.apply, box(2), raw)
    assert float(best) >= float(Lies.apply(raw).max())
    assert capfd.readouterr() == ("", "") and not caplog.records and not recwarn.list

    def warns(x):
        if x.requires_grad:
            warnings.warn("mind the gap", stacklevel=1)
        return -x.square().sum(-1)

    with pytest.warns(UserWarning, match="mind the gap"):
        maximize_box(warns, box(2), raw)


def test_few_iterations_end_early_without_a_word(rng, capfd):
    x, y = torch.rand(2, 12, 2, generator=rng, dtype=F64), normal(rng, 2, 12)
    values, raw = acquisition(x, y), torch.rand(9, 2, generator=rng, dtype=F64)
    few, many = (maximize_box(values, box(2), raw, max_iterations=n)[1] for n in (1, 100))
    assert (few <= many + 1e-9).all() and (few < many - 1e-6).any()
    assert capfd.readouterr() == ("", "")


def test_float32_stays_float32(rng):
    points, values = maximize_box(
        lambda x: -(x - 0.3).square().sum(-1), box(2).float(), torch.rand(6, 2, generator=rng)
    )
    assert points.dtype == values.dtype == torch.float32
    torch.testing.assert_close(points, torch.full((1, 2), 0.3), rtol=0, atol=1e-4)


def test_a_raw_point_may_leave_the_box_by_a_rounding_error():
    raw = torch.tensor([[0.3 + 1e-16], [0.1]], dtype=F64).nextafter(torch.ones(1, dtype=F64))
    points, _ = maximize_box(lambda x: x[..., 0], box(1, 0.1, 0.3), raw, starts=2)
    assert float(points) == 0.3


def square(x):
    return -x.square().sum(-1)


RAW = torch.linspace(0, 1, 10, dtype=F64).reshape(5, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((square, box(2)[0], RAW), r"bounds must have shape \(2, d\) with d >= 1, got"),
        ((square, torch.zeros(3, 2, dtype=F64), RAW), r"bounds must have shape \(2, d\) with d >= 1, got"),
        ((square, torch.zeros(2, 0, dtype=F64), RAW), r"bounds must have shape \(2, d\) with d >= 1, got"),
        ((square, box(2, 1.0, 0.0), RAW), "bounds must have each lower bound at most the upper, got"),
        ((square, box(2, 0.0, INF), RAW), "bounds must be finite, got inf"),
        ((square, box(2, float("nan")), RAW), "bounds must be finite, got nan"),
        ((square, box(3), RAW), r"raw must have shape \(n, 3\) with n >= 1, got"),
        ((square, box(2), RAW[0]), r"raw must have shape \(n, 2\) with n >= 1, got"),
        ((square, box(2), RAW[:0]), r"raw must have shape .*, got \(0, 2\)"),
        ((square, box(2), RAW.float()), "raw must have the floating dtype and device of bounds"),
        ((square, box(2), RAW + 0.1), "raw must lie in the box of bounds, got a point outside"),
        ((square, box(2), RAW * float("nan")), "raw must lie in the box of bounds, got a point outside"),
        ((square, box(2), RAW, 0), "starts must be an integer from 1 to 5, got"),
        ((square, box(2), RAW, 6), "starts must be an integer from 1 to 5, got"),
        ((square, box(2), RAW, 2, 0), "max_iterations must be an integer of at least 1, got 0"),
        ((lambda x: x, box(2), RAW), r"values must map points \(1, 5, 2\) to values \(replicates, 5\), got"),
        ((lambda x: x[0, :, 0], box(2), RAW), r"values must map points \(1, 5, 2\) to values \(replicates, 5\), got"),
        (
            (lambda x: square(x)[:2], box(2), RAW.expand(3, 5, 2)),
            r"values must map points \(3, 5, 2\) to values \(3, 5\), got",
        ),
        ((lambda x: square(x)[:, :5], box(2), RAW.repeat(2, 1)), r"to values \(replicates, 10\), got"),
        (
            (lambda x: square(x) if x.shape[1] == 5 else square(x)[:, :1], box(2), RAW),
            r"values must map points \(1, 4, 2\) to values \(1, 4\), got",
        ),
        ((lambda x: square(x).log(), box(2), RAW), "values must be finite at all raw points, got"),
        ((lambda x: x[..., 0].log(), box(2), RAW), "values must be finite at all raw points, got"),
        (
            (lambda x: torch.where(x[..., 0] > 0.95, torch.nan, x.sum(-1)), box(2), RAW),
            "values must be finite in the box, got a NaN or an infinity",
        ),
        ((lambda x: -square(x).neg().sqrt(), box(2), RAW), "values must have a finite gradient, got a NaN"),
        ((lambda x: square(x.detach()), box(2), RAW), "values must be differentiable in the points"),
    ],
)
def test_maximization_of_nonsense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        maximize_box(*arguments)


def test_gradients_may_be_given(rng):
    """The same maxima as with automatic ones; and the given ones are what is followed."""
    place = torch.rand(4, 1, 2, generator=rng, dtype=F64)
    raw = torch.rand(4, 9, 2, generator=rng, dtype=F64)

    def wells(x):
        return -(x - place).square().sum(-1).sqrt().cosh()

    def slopes(x):
        assert not x.requires_grad
        gap = x - place
        distance = gap.square().sum(-1, keepdim=True).sqrt()
        return wells(x), -distance.sinh() * gap / distance

    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    automatic = maximize_box(wells, bounds, raw, starts=3)
    given_ones = maximize_box(wells, bounds, raw, starts=3, slopes=slopes)
    for got, expected in zip(given_ones, automatic, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(given_ones[0], place.squeeze(1), rtol=0, atol=1e-4)
    stuck, _ = maximize_box(wells, bounds, raw, starts=3, slopes=lambda x: (wells(x), torch.zeros_like(x)))
    assert bool((stuck.unsqueeze(1) == raw).all(-1).any(-1).all())


# The search of functions with kinks.


def creases(rng, replicates=200):
    """The mean of a few bounds and half of their smallest, per replicate, in the plane; and raw points."""
    slope, place = (torch.randn(replicates, 1, 40, 2, generator=rng, dtype=F64) for _ in range(2))
    raw = torch.rand(replicates, 16, 2, generator=rng, dtype=F64)

    def values(x):
        away = x.unsqueeze(-2) - 0.5 - 0.2 * place[: len(x)]
        bounds = (slope[: len(x)] * away).sum(-1) - 3 * away.square().sum(-1)
        return bounds.mean(-1) + bounds.amin(-1) / 2

    return values, raw


def test_a_search_that_sees_rounded_numbers_is_not_moved_by_rounding(rng):
    values, raw = creases(rng)

    def otherwise(x):  # errors of a posterior, other ones at each call
        return values(x) + 1e-13 * torch.rand(x.shape[:-1], generator=rng, dtype=F64)

    found = {}
    for kinks in (True, False):
        points, found[kinks] = maximize_box(values, box(2), raw, 2, 30, kinks=kinks)
        moved = (maximize_box(otherwise, box(2), raw, 2, 30, kinks=kinks)[0] != points).any(-1)
        assert not moved.any() if kinks else moved.sum() > 100
        alone, _ = maximize_box(values, box(2), raw[:1], 2, 30, kinks=kinks)
        assert torch.equal(alone, points[:1])
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=0.02)
    assert abs(float((found[True] - found[False]).mean())) <= 1e-4  # neither finds more


def test_the_last_bit_does_not_decide_whether_a_step_reaches_a_bound(rng):
    """At a bound or 1e-17 off it the next step is not as long; that shows after few steps, in one search of 1,500."""
    frequency = 4 * torch.randn(6000, 1, 12, 3, generator=rng, dtype=F64)
    phase = 6 * torch.rand(6000, 1, 12, generator=rng, dtype=F64)
    raw = torch.rand(6000, 2, 3, generator=rng, dtype=F64)

    def values(x):
        return ((x.unsqueeze(-2) * frequency).sum(-1) + phase).cos().sum(-1)

    def otherwise(x):
        return values(x) * (1 + 4e-16 * (2 * torch.rand(x.shape[:-1], generator=rng, dtype=F64) - 1))

    points, _ = maximize_box(values, box(3), raw, 1, 4)
    assert ((points == 0) | (points == 1)).any(-1).sum() > 2000
    for _ in range(3):
        torch.testing.assert_close(maximize_box(otherwise, box(3), raw, 1, 4)[0], points, rtol=0, atol=1e-7)


def test_at_kinks_starts_that_ended_are_left_out_and_all_others_are_evaluated(rng):
    values, raw = creases(rng, 20)
    sizes = {}
    for kinks in (True, False):
        sizes[kinks] = []

        def seen(x, sizes=sizes[kinks]):
            sizes.append(tuple(x.shape[:2]))
            return values(x)

        maximize_box(seen, box(2), raw, 6, 30, kinks=kinks)
    assert set(sizes[False][1:]) == {(20, 6)}
    assert sizes[True][:2] == [(20, 16), (20, 6)]
    assert sizes[True][-1][1] < 6 and all(replicates == 20 for replicates, _ in sizes[True])


def test_at_kinks_nothing_is_asked_where_rounding_told_no_difference_twice(rng):
    values, raw = creases(rng, 40)
    again = 0
    for r in range(40):
        asked = []

        def one(x, asked=asked, r=r):
            found = values(x.expand(40, -1, -1))[r : r + 1]
            if x.requires_grad:
                asked.append((x.detach().flatten(), found.detach().item()))
            return found

        _, best = maximize_box(one, box(2), raw[r : r + 1], 1, 30, kinks=True)
        seen = values(raw)[r]
        unit = 2.0 ** (torch.frexp(seen.amax() - seen.amin()).exponent.item() - 27)
        there, highest, same, reach = asked[0][0], -math.inf, 0, 0.0
        for x, value in asked:
            value, far = round(value / unit), (x - there).abs().amax().item()
            assert same < 2 or far > reach  # as near the best point, values were the best one twice
            again += same >= 2 and value == highest
            same, reach = (same + 1 if value == highest else 0), far
            there, highest = (x, value) if value > highest else (there, highest)
        assert abs(best.item() / unit - highest) <= 1 or best == seen.amax()
    assert again > 20  # farther away it was asked for nothing, so that is not left out by the way


def test_a_side_of_length_zero_and_a_constant_are_searched_with_kinks():
    flat = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=F64)
    raw = flat[:1].repeat(3, 1)
    points, best = maximize_box(lambda x: -(x - 0.3).abs().sum(-1), flat, raw.unsqueeze(0), 2, kinks=True)
    torch.testing.assert_close(points, torch.tensor([[0.3, 1.0]], dtype=F64), rtol=0, atol=1e-4)
    points, best = maximize_box(lambda x: 0.0 * x.sum(-1), flat, raw.unsqueeze(0), 2, kinks=True)
    assert torch.equal(points, flat[:1]) and float(best) == 0.0


STEP = 2**-10


def on_grid(x):
    return (x / STEP).round() * STEP


def ridge(dim):
    """The smallest of a few slopes per replicate, whose top is a point of the grid, and that point, ``3 x d``."""
    top = on_grid(torch.linspace(0.2, 0.9, 3 * dim, dtype=F64).view(3, dim))

    def values(x):
        away = x - top.unsqueeze(1)
        across = (away - away.mean(-1, keepdim=True)).abs().sum(-1) if dim > 1 else 0.0
        return -away.abs().sum(-1) - 4 * across

    return values, top


def in_full(values):
    """A function of points as one of groups of points, exact at all of them."""
    return lambda x, count, floor: values(x.flatten(1, 2)).view(x.shape[:-1])


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_top_of_a_ridge_is_found_on_the_grid(rng, dim):
    values, top = ridge(dim)
    raw = on_grid(torch.rand(3, 20, dim, generator=rng, dtype=F64))
    points, best = search_box(in_full(values), box(dim), raw, 2, 300, on_grid)
    assert torch.equal(points, on_grid(points)) and torch.equal(values(points.unsqueeze(1)).squeeze(1), best)
    assert (best >= values(raw).amax(-1)).all()
    assert float((points - top).abs().max()) <= (0 if dim == 1 else 0.02)


def test_neither_rounding_nor_company_moves_a_search_without_gradients(rng):
    values, _ = ridge(2)
    raw = on_grid(torch.rand(3, 20, 2, generator=rng, dtype=F64))
    points, _ = search_box(in_full(values), box(2), raw, 2, 20, on_grid)

    def rounded(x):  # errors as large as those of a posterior, other ones at each call
        return values(x) + 1e-11 * (torch.rand(x.shape[:-1], generator=rng, dtype=F64) - 0.5)

    assert torch.equal(search_box(in_full(rounded), box(2), raw, 2, 20, on_grid)[0], points)
    for r in range(3):
        alone = in_full(lambda x, r=r: values(x.expand(3, -1, -1))[r : r + 1])
        assert torch.equal(search_box(alone, box(2), raw[[r]], 2, 20, on_grid)[0], points[[r]])


def test_a_search_without_gradients_is_that_of_a_plain_loop(rng):
    values, _ = ridge(2)
    raw = on_grid(torch.rand(3, 15, 2, generator=rng, dtype=F64))
    points, best = search_box(in_full(values), box(2), raw, 2, 12, on_grid)
    sobol = 2 * torch.quasirandom.SobolEngine(2).draw(144, dtype=F64) - 1
    axes = [torch.tensor(way, dtype=F64) for way in ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))]
    for r in range(3):

        def value(x, r=r):
            return float(values(x.expand(3, 1, 2))[r, 0])

        ends = []
        for start in sorted(raw[r], key=value, reverse=True)[:2]:
            at, reach = start, 15**-0.5
            for k in range(12):
                ways = [*sobol[12 * k : 12 * k + 12], *axes]
                near = max((on_grid((at + reach * way).clamp(0, 1)) for way in ways), key=value)
                at, reach = (near, reach) if value(near) > value(at) + 1e-9 else (at, reach / 2)
            ends.append(at)
        assert torch.equal(max(ends, key=value), points[r]) and value(points[r]) == float(best[r])


def test_a_search_without_gradients_ends_where_no_step_is_left():
    calls = []

    def values(x):
        calls.append(x.shape)
        return -x.square().sum(-1)

    raw = torch.zeros(1, 4, 2, dtype=F64)
    search_box(in_full(values), box(2), raw, 1, 10_000, on_grid)
    assert 1 < len(calls) < 15  # from a half to 2^-11 in each of them


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**-20])
def test_a_tiny_unit_of_the_values_changes_nothing(unit):
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    raw = torch.quasirandom.SobolEngine(2).draw(32, dtype=torch.float64)

    def hill(x):
        return torch.exp(-20 * (x - 0.37).square().sum(-1)).expand(2, -1) + x[..., 0] / 5

    def found(scale):
        return maximize_box(lambda x: scale * hill(x), box, raw, 4)

    # With the slack that the stopping rules of L-BFGS-B leave in the larger unit.
    torch.testing.assert_close(found(unit)[0], found(1.0)[0], rtol=0, atol=2e-4)
    torch.testing.assert_close(found(unit)[1] / unit, found(1.0)[1], rtol=0, atol=1e-7)
