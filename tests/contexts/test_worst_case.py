"""Worst cases against general solvers, and what balls of distributions promise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cbo_lib.contexts import tv_worst_case
from cbo_lib.contexts.worst_case import mmd_minimax, mmd_reach, mmd_worst_distribution
from tests.contexts import plain

F64 = torch.float64


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0, 2.5), st.floats(-2, 2))
def test_the_sort_solves_the_linear_program(seed, m, radius, floor):
    values = np.random.default_rng(seed).normal(size=m)
    found = tv_worst_case(torch.as_tensor(values), floor, radius)
    assert float(found) == pytest.approx(plain.tv_program(values, floor, radius), abs=1e-7)


@given(st.integers(0, 10_000), st.floats(0.01, 1.9))
def test_the_sort_is_the_best_price_of_the_dual(seed, radius):
    """Proposition 2: the largest of E[min(g, k)] - radius / 2 (k - floor) over levels k, which are sample values."""
    g = np.random.default_rng(seed).normal(size=30)
    floor = g.min() - 0.5
    levels = np.append(g, floor)
    dual = max(np.minimum(g, k).mean() - radius / 2 * (k - floor) for k in levels)
    assert float(tv_worst_case(torch.as_tensor(g), floor, radius)) == pytest.approx(dual, abs=1e-9)


def ball(seed, m, length=0.2):
    rng = np.random.default_rng(seed)
    c = np.sort(rng.random(m))
    gram = np.exp(-0.5 * ((c[:, None] - c) / length) ** 2)
    reference = rng.random(m)
    return rng.normal(size=(1, 3, m)), reference[None] / reference.sum(), gram[None]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 14), st.floats(0.02, 1.2))
def test_the_interior_point_method_finds_what_a_general_solver_finds(seed, m, radius):
    v, p, K = (torch.as_tensor(part) for part in ball(seed, m))
    q = mmd_worst_distribution(v, p, K, radius)
    away = q - p.unsqueeze(1)
    assert bool(((away @ K * away).sum(-1) <= radius**2 + 1e-8).all())
    assert bool((q >= 0).all()) and torch.allclose(q.sum(-1), torch.ones(1, 3, dtype=F64))
    for i in range(3):
        wanted = plain.mmd_program(v[0, i].numpy(), p[0].numpy(), K[0].numpy(), radius)
        assert float(q[0, i] @ v[0, i]) <= wanted + 1e-4 * float(v[0, i].max() - v[0, i].min())


@given(st.integers(0, 10_000), st.floats(0.02, 1.2))
def test_the_minimax_approximation_is_that_of_the_textbook_formula(seed, radius):
    v, p, K = ball(seed, 9)
    found = mmd_minimax(*(torch.as_tensor(part) for part in (v, p, K)), radius)
    for i in range(3):
        assert float(found[0, i]) == pytest.approx(plain.minimax(v[0, i], p[0], K[0], radius), abs=1e-6)


def test_a_ball_that_holds_everything_or_nothing_needs_no_solver():
    v, p, K = (torch.as_tensor(part) for part in ball(1, 6))
    torch.testing.assert_close((mmd_worst_distribution(v, p, K, 5.0) * v).sum(-1), v.amin(-1))
    torch.testing.assert_close(mmd_worst_distribution(v, p, K, 0.0), p.unsqueeze(1).expand_as(v))
    torch.testing.assert_close(mmd_worst_distribution(0 * v, p, K, 0.1), p.unsqueeze(1).expand_as(v))
    corner = torch.eye(6, dtype=F64)
    for j in range(6):
        d = corner[j] - p[0]
        assert float(mmd_reach(p, K)[0, j]) == pytest.approx(float((d @ K[0] @ d).sqrt()))


def test_a_hundred_contexts_are_solved_at_once():
    v, p, K = (torch.as_tensor(part) for part in ball(2, 100))
    q = mmd_worst_distribution(v, p, K, 0.3)
    finer = mmd_worst_distribution(v, p, K, 0.3, tolerance=1e-9)
    torch.testing.assert_close((q * v).sum(-1), (finer * v).sum(-1), rtol=0, atol=1e-4)
