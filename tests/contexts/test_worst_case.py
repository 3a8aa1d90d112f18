"""Worst expectations against linear and conic programs, small closed forms, and what any worst case must obey."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from book.contexts.slips import IdentityBall
from cbo_lib.contexts import MMDBall, tv_worst_case
from tests import accelerator
from tests.contexts.programs import discrepancy, mmd_cone, root, tv_dual, tv_primal

F64 = torch.float64


def tensor(*parts):
    made = [torch.as_tensor(np.asarray(part), dtype=F64) for part in parts]
    return made[0] if len(made) == 1 else made


def mmd_worst_case(values, reference, gram, radius):
    return MMDBall(reference, gram, radius).worst_case(values)


# ---- total variation

samples = st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=1, max_size=12)


@given(samples, st.floats(0, 6), st.floats(0, 2.5))
def test_the_closed_form_is_the_minimum_of_the_linear_program_and_of_the_papers_dual(values, below, radius):
    values = np.array(values)
    floor = values.min() - below
    found = float(tv_worst_case(tensor(values), tensor(floor), radius))
    assert found == pytest.approx(tv_primal(values, floor, radius), abs=1e-6)
    assert found == pytest.approx(tv_dual(values, floor, radius), abs=1e-6)


def test_the_papers_dual_is_the_largest_of_a_fine_grid_in_alpha_and_beta(rng):
    """The program as it is printed, by exhaustive search: no solver, no reformulation."""
    values = torch.randn(40, generator=rng, dtype=F64)
    floor, radius = values.min() - 0.3, 0.6
    alpha, beta = torch.linspace(0, 4, 801, dtype=F64)[:, None], torch.linspace(-4, 4, 1601, dtype=F64)
    inner = torch.stack([torch.minimum(v + beta, alpha) for v in values]).mean(0)
    objective = (-beta - radius * alpha + inner).masked_fill(alpha + beta < -floor - 1e-12, -torch.inf)
    found = float(tv_worst_case(values, floor, radius))
    assert found - 0.02 <= float(objective.max()) <= found + 1e-9


def test_by_hand():
    values, floor = tensor([4.0, 1.0, 3.0, 2.0], -1.0)
    # A third of the mass: all of the 4, a third of the 3.
    assert float(tv_worst_case(values, floor, 2 / 3)) == pytest.approx((1 + 2 + 3 * 2 / 3) / 4 - 1 / 3)
    assert float(tv_worst_case(values, floor, 0.0)) == pytest.approx(2.5)
    for radius in (2.0, 2.1, 100.0, math.inf):
        assert float(tv_worst_case(values, floor, radius)) == pytest.approx(-1.0)


def test_the_worst_case_falls_and_is_convex_in_the_radius(rng):
    values = torch.randn(50, generator=rng, dtype=F64)
    radii = torch.linspace(0, 2.5, 101, dtype=F64)
    curve = tv_worst_case(values.expand(101, 50), values.min() - 1, radii)
    assert bool((curve.diff() <= 1e-9).all()) and bool((curve.diff().diff() >= -1e-9).all())
    torch.testing.assert_close(curve[0], values.mean())


def test_gradients(rng):
    values = torch.randn(2, 9, generator=rng, dtype=F64, requires_grad=True)
    floor = (values.amin(-1) - 0.5).detach().requires_grad_()
    for radius in (0.0, 0.37, 1.1, 2.0):
        assert torch.autograd.gradcheck(lambda v, f, r=radius: tv_worst_case(v, f, r), (values, floor), nondet_tol=1e-9)
    # The gradient is the worst distribution: of sum one together with the mass on the floor.
    for radius in (0.0, 0.37, 2.5):
        dv, df = torch.autograd.grad(tv_worst_case(values, floor, radius).sum(), (values, floor))
        torch.testing.assert_close(dv.sum(-1) + df, torch.ones(2, dtype=F64))
        torch.testing.assert_close(df, torch.full((2,), min(radius / 2, 1.0), dtype=F64))
        assert bool((dv >= -1e-9).all())


# ---- maximum mean discrepancy


def rbf(points, lengthscale):
    square = ((points[:, None] - points) ** 2).sum(-1)
    return np.exp(-0.5 * square / lengthscale**2)


def setting(seed):
    """Contexts, a reference, a kernel matrix (smooth, rough, identity, of low rank) and values of several kinds."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(1, 60)), int(rng.integers(1, 4))
    points = np.linspace(0, 1, m)[:, None] if rng.random() < 0.4 else rng.random((m, d))
    gram = [rbf(points, 10 ** rng.uniform(-2, 1)), np.eye(m), points @ points.T][rng.choice(3, p=[0.8, 0.1, 0.1])]
    reference = rng.multinomial(int(rng.integers(1, 200)), rng.dirichlet(np.full(m, 0.3)))
    scale = 10 ** rng.uniform(-3, 3)
    kinds = [rng.standard_normal(m), np.sin(6 * points[:, 0]), np.round(rng.standard_normal(m)), points[:, 0] > 0.5]
    values = scale * np.stack(kinds) + rng.choice([0.0, 10.0]) * scale
    return values, reference / reference.sum(), gram, 10 ** rng.uniform(-2.5, 0.4)


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_the_solver_agrees_with_a_conic_solver(seed):
    values, reference, gram, radius = setting(seed)
    found = mmd_worst_case(*tensor(values, reference, gram), radius)
    worst = MMDBall(*tensor(reference, gram), radius).worst_distribution(tensor(values)).numpy()
    assert worst.min() >= 0
    np.testing.assert_allclose(worst.sum(-1), 1.0, rtol=0, atol=1e-10)
    for v, q, value in zip(values, worst, found.tolist(), strict=True):
        assert value == pytest.approx(float(q @ v), abs=1e-10 * abs(v).max())
        assert discrepancy(q, reference, gram) <= radius * (1 + 1e-5) + 1e-7
        assert abs(value - mmd_cone(v, reference, root(gram), radius)[1]) <= 1e-4 * abs(v).max()


@pytest.mark.parametrize("radius", [0.05, 0.3, 0.7, 1.2, 1.5])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_two_contexts_have_a_closed_form(radius, share):
    """On two contexts the discrepancy is the moved mass times the distance of the contexts in the kernel's space."""
    gram = np.array([[1.0, 0.4], [0.4, 0.8]])
    distance = math.sqrt(1.0 + 0.8 - 2 * 0.4)
    p = np.array([share, 1 - share])
    moved = min(share, radius / distance)
    expected = 5.0 * (share - moved) + 2.0 * (1 - share + moved)
    found = float(mmd_worst_case(*tensor([5.0, 2.0], p, gram), radius))
    assert found == pytest.approx(expected, abs=1e-4)


def test_uncorrelated_contexts_have_a_closed_form_while_no_weight_reaches_zero(rng):
    """With the identity for a kernel matrix the worst direction is that of the centered values."""
    v = torch.randn(12, generator=rng, dtype=F64)
    p = torch.full((12,), 1 / 12, dtype=F64)
    radius = 0.05
    expected = v.mean() - radius * (v - v.mean()).norm()
    torch.testing.assert_close(mmd_worst_case(v, p, torch.eye(12, dtype=F64), radius), expected, rtol=0, atol=1e-4)


@given(st.integers(0, 10**6))
def test_a_larger_ball_is_worse_and_the_curve_is_convex(seed):
    values, reference, gram, _ = setting(seed)
    v, p, k = tensor(values / abs(values).max(), reference, gram)
    radii = [0.0, 0.05, 0.1, 0.15, 0.2, 0.4, 0.6, 3.0]
    curve = torch.stack([mmd_worst_case(v, p, k, radius) for radius in radii])
    torch.testing.assert_close(curve[0], v @ p)
    far = math.sqrt(max(k.diagonal().max() * 4, 0.0))
    torch.testing.assert_close(mmd_worst_case(v, p, k, far + 1e-9), v.amin(-1))
    assert bool((curve.diff(dim=0) <= 5e-5).all()) and bool((curve >= v.amin(-1) - 1e-9).all())
    assert bool((curve[1:5].diff(dim=0).diff(dim=0) >= -2e-4).all())


def test_the_gradient_is_the_worst_distribution(rng):
    contexts = torch.linspace(0, 1, 30, dtype=F64)
    gram = (-0.5 * ((contexts[:, None] - contexts) / 0.3).square()).exp()
    p = torch.rand(30, generator=rng, dtype=F64)
    ball = MMDBall(p / p.sum(), gram, 0.3)
    v = torch.randn(4, 30, generator=rng, dtype=F64).cumsum(-1).requires_grad_()
    (gradient,) = torch.autograd.grad(ball.worst_case(v).sum(), v)
    torch.testing.assert_close(gradient, ball.worst_distribution(v), rtol=0, atol=1e-4)
    # The minimum is concave in the values: its slope lies between the quotients to the right and to the left.
    direction, step = torch.randn(4, 30, generator=rng, dtype=F64), 1e-2
    behind, here, ahead = (ball.worst_case(v.detach() + s * step * direction, tolerance=1e-8) for s in (-1, 0, 1))
    slope = (gradient * direction).sum(-1)
    right, left = (ahead - here) / step, (here - behind) / step
    slack = 2e-5 * (v.amax(-1) - v.amin(-1)).detach() / step
    assert bool((right - slack <= slope).all()) and bool((slope <= left + slack).all())
    assert float((left - right).max()) < 0.3 * float(slope.abs().max())


# ---- the minimax approximation


def minimax_by_hand(v, p, gram, radius, inverse):
    mean, worst = p @ v, v.min()
    one = np.ones(len(v))
    slope = math.sqrt(max(v @ inverse @ v - (one @ inverse @ v) ** 2 / (one @ inverse @ one), 0.0))
    corner = np.eye(len(v))[v.argmin()]
    far = discrepancy(corner, p, gram)
    if radius >= far:
        return worst, worst, worst
    lower, upper = max(mean - radius * slope, worst), mean + radius * (worst - mean) / far
    return lower, upper, (lower + upper) / 2


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.2, 0.6]))
def test_the_minimax_approximation_is_its_formula(seed, radius):
    values, reference, gram, _ = setting(seed)
    v, p, k = tensor(values, reference, gram)
    jittered = np.linalg.inv(gram + 1e-3 * np.eye(len(gram)))
    for kind, inverse in ((MMDBall, jittered), (IdentityBall, np.eye(len(gram)))):
        found = kind(p, k, radius).minimax_approx(v)
        expected = [minimax_by_hand(row, reference, gram, radius, inverse)[2] for row in values]
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-7 * abs(values).max())


@given(st.integers(0, 10**6))
def test_the_bounds_hold_the_worst_case_between_them(seed):
    rng = np.random.default_rng(seed)
    points, radius = rng.random((15, 2)), 10 ** rng.uniform(-2, 0)
    gram = rbf(points, 0.15) + 0.05 * np.eye(15)  # well conditioned: no jitter is needed
    reference, values = rng.dirichlet(np.ones(15)), rng.standard_normal((3, 15))
    ball = MMDBall(*tensor(reference, gram), radius)
    ball.jitter = 1e-12
    approx, truth = ball.minimax_approx(tensor(values)), ball.worst_case(tensor(values))
    for v, a, t in zip(values, approx.tolist(), truth.tolist(), strict=True):
        lower, upper, _ = minimax_by_hand(v, reference, gram, radius, np.linalg.inv(gram))
        assert lower - 1e-4 <= t <= upper + 1e-4
        assert abs(a - t) <= (upper - lower) / 2 + 1e-4


# ---- another device


@accelerator.needed
def test_on_a_gpu_the_worst_cases_are_as_on_the_cpu():
    values, reference, gram, _ = setting(12)
    v, p, k = tensor(values, reference, gram)
    scale = float(v.abs().max())
    found = mmd_worst_case(v.to(accelerator.DEVICE), p.to(accelerator.DEVICE), k.to(accelerator.DEVICE), 0.2)
    assert found.device.type == accelerator.DEVICE
    torch.testing.assert_close(found.cpu(), mmd_worst_case(v, p, k, 0.2), rtol=0, atol=1e-4 * scale)
    found = tv_worst_case(v.to(accelerator.DEVICE), v.to(accelerator.DEVICE).amin(-1) - 1, 0.4)
    torch.testing.assert_close(found.cpu(), tv_worst_case(v, v.amin(-1) - 1, 0.4))
