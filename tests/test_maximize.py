import logging
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


def test_rounding_does_not_decide(rng):
    base = torch.tensor([[0.1, 0.7, 0.7, 0.2]], dtype=F64).repeat(50, 1)
    noisy = base + 1e-12 * torch.randn(50, 4, generator=rng, dtype=F64)
    assert noisy.argmax(-1).unique().numel() == 2  # the plain argmax would be decided by rounding
    assert argmax_finite(noisy, torch.ones(4, dtype=torch.bool), torch.tensor([0, 2, 1, 3])).unique().tolist() == [2]


def test_a_nan_that_is_allowed_is_refused():
    with pytest.raises(ValueError, match="values must not be NaN where a candidate is allowed"):
        choose([[1.0, float("nan"), 0.0], [1.0, 2.0, 3.0]])


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


def test_it_beats_a_fine_grid(rng):
    x, y = torch.rand(5, 12, 2, generator=rng, dtype=F64), normal(rng, 5, 12)
    values, raw = acquisition(x, y), torch.rand(60, 2, generator=rng, dtype=F64)
    points, best = maximize_box(values, box(2), raw, starts=8)
    fine = torch.cartesian_prod(*[torch.linspace(0, 1, 61, dtype=F64)] * 2)
    assert (best >= values(fine.unsqueeze(0)).amax(-1) - 1e-6).all()
    torch.testing.assert_close(values(points.unsqueeze(1)).squeeze(1), best, rtol=0, atol=1e-9)


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
    torch.testing.assert_close(points, needle.squeeze(1), rtol=0, atol=1e-9)
    assert (best >= values(raw.unsqueeze(0)).amax(-1)).all()


def test_more_starts_find_a_peak_that_the_best_raw_point_does_not_lead_to():
    def values(x):
        return (-50 * (x[..., 0] - 0.25).square()).exp() + 2 * (-300 * (x[..., 0] - 0.75).square()).exp()

    raw = torch.tensor([[0.25], [0.7], [0.0]], dtype=F64)
    for starts, place in ((1, 0.25), (2, 0.75), (3, 0.75)):
        points, _ = maximize_box(values, box(1), raw, starts)
        assert float(points) == pytest.approx(place, abs=1e-4)


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


def square(x):
    return -x.square().sum(-1)


# The search of functions with kinks.


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
    assert torch.equal(points, on_grid(points)) and torch.allclose(values(points.unsqueeze(1)).squeeze(1), best)
    assert (best >= values(raw).amax(-1) - 1e-9).all()
    assert float((points - top).abs().max()) <= (0 if dim == 1 else 0.02)
