"""``choose`` against a literal transcription of the lines of Algorithm 1."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from book.subsets.choice import choose
from cbo_lib.subsets.policies import cost_lower_bound, good_enough
from tests.subsets import plain
from tests.subsets.helpers import F64

VALUE = st.floats(-5, 5).map(lambda v: round(v, 3))
COST = st.sampled_from([0.0, 0.0, 0.01, 0.1, 0.2, 1.0]) | st.floats(0, 1)


@st.composite
def states(draw, most=7):
    """Bounds of some subsets; today's upper bounds are not below the smallest so far."""
    m = draw(st.integers(1, most))
    ucb = draw(st.lists(VALUE, min_size=m, max_size=m))
    cost = draw(st.lists(COST, min_size=m, max_size=m))
    above = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.25]), min_size=m, max_size=m))
    lcb = draw(st.sampled_from([-math.inf, *ucb]) | VALUE)
    alpha = draw(st.sampled_from([0.0, 0.1, 0.5, 0.999]) | st.floats(0, 0.999))
    return ucb, cost, lcb, alpha, [u + a for u, a in zip(ucb, above, strict=True)]


def chosen(ucb, cost, lcb, alpha, current=None):
    current = None if current is None else torch.tensor(current, dtype=F64)
    return choose(torch.tensor(ucb, dtype=F64), torch.tensor(cost, dtype=F64), lcb, alpha, current)


@given(states(), st.booleans(), st.booleans())
def test_choose_is_the_lines_of_the_paper(state, own, as_tensor):
    ucb, cost, lcb, alpha, current = state
    expected = plain.choice(ucb, cost, lcb, alpha, ucb if own else current)
    given_lcb = torch.tensor(lcb, dtype=F64) if as_tensor else lcb
    if expected is None:
        with pytest.raises(ValueError, match="ucb must pass"):
            chosen(ucb, cost, given_lcb, alpha, None if own else current)
    else:
        got = chosen(ucb, cost, given_lcb, alpha, None if own else current)
        assert got == expected and isinstance(got, int)


@given(states(), st.randoms(use_true_random=False))
def test_the_order_in_which_subsets_are_listed_does_not_matter(state, random):
    """The same subset is chosen, whatever its number, where no two of the cheapest are tied."""
    ucb, cost, lcb, alpha, current = state
    assume(len(set(current)) == len(current) and plain.choice(ucb, cost, lcb, alpha, current) is not None)
    order = list(range(len(ucb)))
    random.shuffle(order)
    moved = [[row[i] for i in order] for row in (ucb, cost, current)]
    assert order[chosen(moved[0], moved[1], lcb, alpha, moved[2])] == chosen(ucb, cost, lcb, alpha, current)


@given(states())
def test_a_dearer_subset_is_never_picked_while_a_cheaper_one_is_good_enough(state):
    ucb, cost, lcb, alpha, current = state
    good = [u > (1 - alpha) * lcb for u in ucb]
    assume(any(good))
    got = chosen(ucb, cost, lcb, alpha, current)
    assert good[got]
    assert all(cost[got] <= c for c, g in zip(cost, good, strict=True) if g)
    rivals = [current[i] for i in range(len(ucb)) if good[i] and cost[i] == cost[got]]
    assert current[got] == max(rivals)


def test_costs_that_descend_do_not_mislead():
    """The first subset whose bound comes near, in a list that is taken to ascend, would be the dearest."""
    ucb = [2.0, 1.95, 1.9, 0.5]
    assert chosen(ucb, [1.0, 0.5, 0.1, 0.01], 1.0, 0.1) == 2
    assert chosen(ucb, [0.5, 1.0, 0.6, 0.01], 1.0, 0.1) == 0
    assert chosen(ucb, [0.5, 0.1, 1.0, 0.01], 1.0, 0.1) == 1


def test_cheapest_subsets_that_tie_at_zero_are_told_apart_by_todays_bound():
    assert chosen([2.0, 2.5, 3.0, 9.0], [0.0, 0.0, 0.1, 0.2], 1.0, 0.1) == 1
    assert chosen([2.0, 2.5, 3.0, 9.0], [0.0, 0.0, 0.1, 0.2], 1.0, 0.1, [2.6, 2.5, 3.0, 9.0]) == 0
    assert chosen([2.0, 2.0, 3.0], [0.0, 0.0, 0.1], 1.0, 0.1) == 0  # a tie in both: the first


def test_the_threshold_is_strict():
    """Line 16 has ``>``; a bound that equals the threshold is dropped."""
    assert chosen([1.0, 0.5], [1.0, 0.0], 1.0, 0.5) == 0
    assert chosen([1.0, math.nextafter(0.5, 1)], [1.0, 0.0], 1.0, 0.5) == 1
    assert good_enough(torch.tensor([0.5, 0.51], dtype=F64), 1.0, 0.5).tolist() == [False, True]


def test_a_good_subset_is_chosen_even_if_todays_bound_says_nothing():
    """Subsets whose bounds were not computed today have minus infinity."""
    assert chosen([1.0, 3.0, 3.0], [0.0, 0.1, 0.1], 2.0, 0.1, [-math.inf] * 3) == 1


def test_no_subset_that_is_good_enough_is_refused():
    with pytest.raises(
        ValueError, match=r"ucb must pass \(1 - alpha\) lcb_best = 0.9 for some subset, got \[0.9, 0.1\]"
    ):
        chosen([0.9, 0.1], [0.0, 0.0], 1.0, 0.1)
    with pytest.raises(ValueError, match="ucb must pass"):
        chosen([math.inf], [0.0], math.inf, 0.0)


@pytest.mark.parametrize("alpha", [-0.01, 1.0, 1.5, math.nan, math.inf])
def test_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\), got"):
        chosen([1.0], [0.0], 0.5, alpha)


@pytest.mark.parametrize("place", ["ucb", "cost", "current", "lcb"])
def test_nan_is_refused(place):
    parts = {"ucb": [1.0, 2.0], "cost": [0.0, 0.0], "lcb": 0.5, "alpha": 0.1, "current": [1.0, 2.0]}
    parts[place] = math.nan if place == "lcb" else [1.0, math.nan]
    with pytest.raises(ValueError, match="ucb, cost_lcb, current and lcb_best must be numbers, got"):
        chosen(**parts)


@pytest.mark.parametrize(
    ("ucb", "cost", "current"),
    [([], [], None), ([1.0], [0.0, 0.0], None), ([1.0, 2.0], [0.0, 0.0], [1.0]), ([[1.0]], [[0.0]], None)],
)
def test_shapes_that_do_not_fit_are_refused(ucb, cost, current):
    with pytest.raises(ValueError, match=r"(ucb|current|cost_lcb) must have shape \(.*\).*, got"):
        chosen(ucb, cost, 0.0, 0.1, current)


@given(st.lists(states(most=4).filter(lambda s: len(s[0]) == 3), min_size=1, max_size=4))
def test_good_subsets_of_a_batch_are_those_of_each_row(rows):
    ucb = torch.tensor([row[0] for row in rows], dtype=F64)
    lcb, alpha = (torch.tensor([row[k] for row in rows], dtype=F64) for k in (2, 3))
    got = good_enough(ucb, lcb, alpha)
    assert got.dtype == torch.bool
    for row, (u, _, low, a, _) in zip(got.tolist(), rows, strict=True):
        assert row == [v > (1 - a) * low for v in u]


@given(
    st.lists(st.lists(st.floats(0, 2), min_size=1, max_size=30), min_size=1, max_size=5),
    st.floats(1, 1e6),
    st.sampled_from([1.0, 0.04, 3.0]),
)
def test_cost_bounds_are_those_of_plain_averages(paid, horizon, spread):
    mean = torch.tensor([sum(costs) / len(costs) for costs in paid], dtype=F64)
    plays = torch.tensor([len(costs) for costs in paid])
    got = cost_lower_bound(mean, plays, horizon, spread)
    assert got.tolist() == pytest.approx([plain.cost_bound(costs, horizon, spread) for costs in paid], abs=1e-12)
    assert bool((got >= 0).all())
    rows = cost_lower_bound(mean.expand(2, -1), plays, torch.tensor([horizon, 1.0], dtype=F64), spread)
    assert torch.equal(rows[0], got) and torch.equal(rows[1], mean)  # log 1 is zero


def test_cost_bounds_refuse_what_was_never_played_no_horizon_and_no_spread():
    mean = torch.tensor([0.1, 0.2], dtype=F64)
    with pytest.raises(ValueError, match=r"plays must be at least 1 of every subset, got \[3, 0\]"):
        cost_lower_bound(mean, torch.tensor([3, 0]), 10.0)
    for spread in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"spread must be positive and finite, got {spread:g}"):
            cost_lower_bound(mean, torch.tensor([3, 1]), 10.0, spread)
    for horizon in (0.5, math.nan, -3.0):
        with pytest.raises(ValueError, match="horizon must be at least 1 and finite, got"):
            cost_lower_bound(mean, torch.tensor([3, 1]), horizon)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes_are_kept(dtype):
    ucb = torch.tensor([1.0, 2.0], dtype=dtype)
    assert cost_lower_bound(ucb, torch.tensor([1, 2]), 3).dtype == dtype
    assert choose(ucb, ucb, 0.5, 0.1) == 0
