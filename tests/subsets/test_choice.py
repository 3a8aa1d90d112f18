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
    assert got.tolist() == pytest.approx([plain.cost_bound(costs, horizon, spread) for costs in paid], abs=1e-9)
    assert bool((got >= 0).all())
    rows = cost_lower_bound(mean.expand(2, -1), plays, torch.tensor([horizon, 1.0], dtype=F64), spread)
    assert torch.allclose(rows[0], got) and torch.allclose(rows[1], mean)  # log 1 is zero
