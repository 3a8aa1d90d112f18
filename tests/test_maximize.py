import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.maximize import argmax_finite

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
    assert choose(values, tolerance=0.0) == [1]
    assert choose(values, order=[1, 2, 0], tolerance=1e-6) == [2]


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


@pytest.mark.parametrize("tolerance", [-1e-3, float("nan")])
def test_a_tolerance_below_zero_is_refused(tolerance):
    with pytest.raises(ValueError, match="tolerance must be nonnegative"):
        choose([[1.0, 2.0]], tolerance=tolerance)
