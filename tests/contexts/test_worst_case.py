"""Worst expectations against linear and conic programs, small closed forms, and what any worst case must obey."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning

from book.contexts.slips import IdentityBall
from cbo_lib.contexts import MMDBall, tv_worst_case
from cbo_lib.contexts.conic import SimplexBall, _Newton, _Point
from cbo_lib.kernels import rbf_kernel
from tests import accelerator
from tests.contexts.programs import discrepancy, mmd_cone, root, tv_dual, tv_primal
from tests.rounding import other_rounding

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


@given(samples, st.floats(0, 6), st.floats(0, 2.5))
def test_a_floor_above_the_smallest_sample_does_not_count(values, above, radius):
    values = np.array(values)
    found = float(tv_worst_case(tensor(values), tensor(values.min() + above), radius))
    assert found == pytest.approx(tv_primal(values, values.min() + above, radius), abs=1e-6)
    assert found == float(tv_worst_case(tensor(values), tensor(math.inf), radius))


def test_the_papers_dual_is_the_largest_of_a_fine_grid_in_alpha_and_beta(rng):
    """The program as it is printed, by exhaustive search: no solver, no reformulation."""
    values = torch.randn(40, generator=rng, dtype=F64)
    floor, radius = values.min() - 0.3, 0.6
    alpha, beta = torch.linspace(0, 4, 801, dtype=F64)[:, None], torch.linspace(-4, 4, 1601, dtype=F64)
    inner = torch.stack([torch.minimum(v + beta, alpha) for v in values]).mean(0)
    objective = (-beta - radius * alpha + inner).masked_fill(alpha + beta < -floor - 1e-12, -torch.inf)
    found = float(tv_worst_case(values, floor, radius))
    assert found - 0.02 <= float(objective.max()) <= found + 1e-12


def test_by_hand():
    values, floor = tensor([4.0, 1.0, 3.0, 2.0], -1.0)
    # A third of the mass: all of the 4, a third of the 3.
    assert float(tv_worst_case(values, floor, 2 / 3)) == pytest.approx((1 + 2 + 3 * 2 / 3) / 4 - 1 / 3)
    assert float(tv_worst_case(values, floor, 0.0)) == pytest.approx(2.5)
    for radius in (2.0, 2.1, 100.0, math.inf):
        assert float(tv_worst_case(values, floor, radius)) == pytest.approx(-1.0)


def test_one_sample():
    assert float(tv_worst_case(tensor([3.0]), tensor(1.0), 0.5)) == pytest.approx(0.75 * 3 + 0.25)


@given(st.integers(0, 10_000), st.floats(0, 2.2))
def test_a_batch_is_its_elements(seed, radius):
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 4, 17, generator=rng, dtype=F64)
    floor = values.amin(-1) - torch.rand(3, 4, generator=rng, dtype=F64)
    batched = tv_worst_case(values, floor, radius)
    radii = 2.5 * torch.rand(4, generator=rng, dtype=F64)
    several = tv_worst_case(values, floor, radii)
    shared = tv_worst_case(values, floor.amin(), radius)
    assert batched.shape == several.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            one, low = values[i, j], floor[i, j]
            torch.testing.assert_close(batched[i, j], tv_worst_case(one, low, radius))
            torch.testing.assert_close(several[i, j], tv_worst_case(one, low, float(radii[j])))
            torch.testing.assert_close(shared[i, j], tv_worst_case(one, floor.amin(), radius))


def test_the_worst_case_falls_and_is_convex_in_the_radius(rng):
    values = torch.randn(50, generator=rng, dtype=F64)
    radii = torch.linspace(0, 2.5, 101, dtype=F64)
    curve = tv_worst_case(values.expand(101, 50), values.min() - 1, radii)
    assert bool((curve.diff() <= 1e-12).all()) and bool((curve.diff().diff() >= -1e-12).all())
    torch.testing.assert_close(curve[0], values.mean())


def test_gradients(rng):
    values = torch.randn(2, 9, generator=rng, dtype=F64, requires_grad=True)
    floor = (values.amin(-1) - 0.5).detach().requires_grad_()
    for radius in (0.0, 0.37, 1.1, 2.0):
        assert torch.autograd.gradcheck(lambda v, f, r=radius: tv_worst_case(v, f, r), (values, floor))
    # The gradient is the worst distribution: of sum one together with the mass on the floor.
    for radius in (0.0, 0.37, 2.5):
        dv, df = torch.autograd.grad(tv_worst_case(values, floor, radius).sum(), (values, floor))
        torch.testing.assert_close(dv.sum(-1) + df, torch.ones(2, dtype=F64))
        torch.testing.assert_close(df, torch.full((2,), min(radius / 2, 1.0), dtype=F64))
        assert bool((dv >= -1e-15).all())


@pytest.mark.parametrize(
    ("values", "floor", "radius", "message"),
    [
        ([1.0, 2.0], 0.0, -0.1, "radius must be nonnegative, got -0.1"),
        ([1.0, 2.0], 0.0, math.nan, "radius must be nonnegative, got nan"),
        ([1.0, math.nan], 0.0, 0.1, "values must be finite"),
        ([1.0, math.inf], 0.0, 0.1, "values must be finite"),
        ([1.0, 2.0], math.nan, 0.1, "floor must be a number or inf"),
        ([1.0, 2.0], -math.inf, 0.1, "floor must be a number or inf"),
        ([], 0.0, 0.1, r"values must have shape \(..., m\) with m >= 1, got \(0,\)"),
        (1.0, 0.0, 0.1, r"values must have shape \(..., m\) with m >= 1, got \(\)"),
        ([1.0, 2.0], [0.0, 0.0], 0.1, r"floor must broadcast to \(\), got"),
        ([[1.0, 2.0]], 0.0, [0.1, 0.2], r"radius must broadcast to \(1,\), got"),
    ],
)
def test_total_variation_refuses(values, floor, radius, message):
    with pytest.raises(ValueError, match=message):
        tv_worst_case(tensor(values), tensor(floor), radius if isinstance(radius, float) else tensor(radius))


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


@given(st.integers(0, 10**6), st.floats(-100, 100), st.floats(0.01, 100))
def test_the_worst_case_moves_with_the_values(seed, shift, scale):
    values, reference, gram, radius = setting(seed)
    v, p, k = tensor(values / abs(values).max(), reference, gram)
    plain, moved = mmd_worst_case(v, p, k, radius), mmd_worst_case(scale * v + shift, p, k, radius)
    torch.testing.assert_close(moved, scale * plain + shift, rtol=0, atol=1e-4 * scale + 1e-9)


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
    assert torch.equal(gradient, ball.worst_distribution(v))
    # The minimum is concave in the values: its slope lies between the quotients to the right and to the left.
    direction, step = torch.randn(4, 30, generator=rng, dtype=F64), 1e-2
    behind, here, ahead = (ball.worst_case(v.detach() + s * step * direction, tolerance=1e-8) for s in (-1, 0, 1))
    slope = (gradient * direction).sum(-1)
    right, left = (ahead - here) / step, (here - behind) / step
    slack = 2e-5 * (v.amax(-1) - v.amin(-1)).detach() / step
    assert bool((right - slack <= slope).all()) and bool((slope <= left + slack).all())
    assert float((left - right).max()) < 0.3 * float(slope.abs().max())


def test_a_tighter_tolerance_comes_nearer_to_the_conic_solver(rng):
    values, reference, gram, _ = setting(12)
    v, p, k = tensor(values, reference, gram)
    exact = np.array([mmd_cone(row, reference, root(gram), 0.2)[1] for row in values])
    errors = [
        float((MMDBall(p, k, 0.2).worst_case(v, tolerance).numpy() - exact).max()) for tolerance in (0.1, 1e-3, 1e-6)
    ]
    assert errors[0] > errors[1] > errors[2] - 1e-9 and abs(errors[2]) <= 2e-5 * abs(values).max()


# Of eight thousand programs those that are hardest for systems of the rank of the kernel, or near the end for any.
@pytest.mark.parametrize("seed", [1424, 569, 1308, 463, 189, 647, 301, 368, 963, 2509, 4624, 4655])
@pytest.mark.filterwarnings("ignore:the worst case of:linear_operator.utils.warnings.NumericalWarning")
def test_any_tolerance_is_kept(seed):
    """Whatever is asked for, a distribution of the ball comes out that is no worse than a looser one."""
    values, reference, gram, radius = setting(seed)
    v, ball = tensor(values), MMDBall(*tensor(reference, gram), radius)
    span, finest = v.amax(-1) - v.amin(-1), ball.worst_case(v, 1e-8)
    digits = 1e-12 * v.abs().amax(-1)  # of which functions that are constant have no others
    for tolerance in (1e-3, 2e-5, 1e-6, 1e-7, 1e-8, 1e-12):
        worst = ball.worst_distribution(v, tolerance).numpy()
        above = ball.worst_case(v, tolerance) - finest
        assert bool((above >= -1e-7 * span - digits).all())
        assert bool((above <= max(tolerance, 1e-7) * span + digits).all())
        assert worst.min() >= 0 and abs(worst.sum(-1) - 1).max() <= 1e-8
        assert max(discrepancy(q, reference, gram) for q in worst) <= radius * (1 + 1e-5) + 1e-6


@pytest.mark.parametrize("radius", [0.3, 0.05])
@pytest.mark.parametrize(("lengthscale", "small"), [(0.5, True), (0.05, True), (0.003, False)])
def test_rounding_hardly_reaches_the_worst_case(lengthscale, small, radius, rng):
    """A search would magnify what does: around a maximum, values at neighbors on its grid are nearly the same."""
    grid = torch.linspace(0, 1, 100, dtype=F64)[:, None]
    gram = rbf_kernel(lengthscale)(grid).to_dense()
    reference = torch.rand(100, generator=rng, dtype=F64).pow(8)
    values = torch.linalg.cholesky(gram + 1e-8 * torch.eye(100)) @ torch.randn(40, 100, 1, generator=rng, dtype=F64)

    def worst():
        ball = MMDBall(reference / reference.sum(), gram, radius)
        return ball.worst_case(values.squeeze(-1)), ball._solver.factor.shape[-2]

    (here, rank), moved = worst(), []
    for seed in (1, 2, 3):
        with other_rounding(seed):
            moved.append(float((worst()[0] - here).abs().max()))
    assert (3 * rank < 2 * 100) == small and 0 < max(moved) < 1e-10


@pytest.mark.parametrize("seed", [1231, 7309, 562])
def test_pivots_that_are_nearly_tied_are_those_of_any_rounding(seed):
    """Another pivot would leave out another part of the kernel matrix, and move the worst case by up to 1e-8."""
    values, reference, gram, radius = setting(seed)
    v, span = tensor(values), np.ptp(values, axis=-1)
    here = MMDBall(*tensor(reference, gram), radius).worst_case(v)
    for rounding in range(1, 7):
        with other_rounding(rounding):
            ball = MMDBall(*tensor(reference, gram), radius)
            assert ball._solver is not None  # its factor is made here
        assert abs((ball.worst_case(v) - here).numpy())[span > 0].max() < 1e-10 * span.max()


@pytest.mark.parametrize(("k", "nearness"), [(3, 1e-2), (3, 1e-6), (12, 1e-2), (12, 1e-6), (20, 1e-2), (20, 1e-6)])
def test_both_systems_of_a_step_are_that_of_its_derivation(k, nearness, rng):
    """``diag(z / q) + F' W^-2 F`` made by hand, with ``W`` written out, near to the end and farther away."""
    m = 20
    factor, reference = torch.randn(1, k, m, generator=rng, dtype=F64), torch.full((1, m), 1 / m, dtype=F64)
    ball = SimplexBall(factor, reference, torch.tensor([0.7], dtype=F64))
    q = torch.rand(1, 2, m, generator=rng, dtype=F64)
    q = torch.where(q < 0.5, nearness * q, q) / 10
    u, e = (torch.randn(1, 2, k, generator=rng, dtype=F64) for _ in range(2))
    u, e = 0.6 * u / u.norm(dim=-1, keepdim=True), 0.1 * e / e.norm(dim=-1, keepdim=True)
    point = _Point(q, u, 0.01 * nearness / q, torch.full((1, 2, 1), 0.2, dtype=F64), e)
    x = torch.randn(1, 2, m, generator=rng, dtype=F64)
    for row in range(2):
        system = (
            np.diag((point.z / q)[0, row].numpy())
            + factor[0].numpy().T @ lower_block(0.7, u[0, row].numpy(), 0.2, e[0, row].numpy()) @ factor[0].numpy()
        )
        expected = np.linalg.solve(system, x[0, row].numpy())
        for small, refined in ((False, False), *[(True, True), (True, False)] * ball.small):
            found = _Newton(ball, point, small, refined)._solve(x)[0, row].numpy()
            assert abs(found - expected).max() <= 1e-7 * abs(expected).max()


def lower_block(s0, s1, t0, t1):
    """Of ``W^-2`` all but the first row and column; the scaled point ``W^-1 s = W t`` is checked."""
    sign = np.diag([1.0, *[-1.0] * len(s1)])
    s, t = np.concatenate([[s0], s1]), np.concatenate([[t0], t1])
    a, b = math.sqrt(s @ sign @ s), math.sqrt(t @ sign @ t)
    w = (s / a + sign @ t / b) / math.sqrt(2 * (1 + s @ t / (a * b)))
    square = (a / b) * (2 * np.outer(w, w) - sign)  # W^2
    np.testing.assert_allclose(square @ t, s, rtol=0, atol=1e-12)
    return np.linalg.inv(square)[1:, 1:]


def test_replicates_are_those_of_their_own_balls(rng):
    contexts = torch.rand(3, 25, 2, generator=rng, dtype=F64)
    gram = torch.stack([tensor(rbf(c.numpy(), 0.4)) for c in contexts])
    p = torch.rand(3, 25, generator=rng, dtype=F64)
    p = p / p.sum(-1, keepdim=True)
    radius = torch.tensor([0.1, 0.5, 0.2], dtype=F64)
    v = torch.randn(3, 6, 25, generator=rng, dtype=F64)
    together, approx = MMDBall(p, gram, radius), MMDBall(p, gram, radius).minimax_approx(v)
    for r in range(3):
        alone = MMDBall(p[r], gram[r], float(radius[r]))
        torch.testing.assert_close(together.worst_case(v)[r], alone.worst_case(v[r]), rtol=0, atol=1e-4)
        torch.testing.assert_close(approx[r], alone.minimax_approx(v[r]))
    shared = MMDBall(p, gram[0], 0.3).worst_case(v)
    each = torch.stack([MMDBall(p[r], gram[0], 0.3).worst_case(v[r]) for r in range(3)])
    torch.testing.assert_close(shared, each, rtol=0, atol=1e-4)


def test_degenerate_balls(rng):
    v = torch.randn(3, 8, generator=rng, dtype=F64)
    gram, p = torch.eye(8, dtype=F64), torch.full((8,), 1 / 8, dtype=F64)
    torch.testing.assert_close(mmd_worst_case(v, p, gram, 0.0), v.mean(-1))
    assert torch.equal(mmd_worst_case(v, p, gram, math.inf), v.amin(-1))
    flat = torch.full((8,), 2.5, dtype=F64)
    for radius in (0.0, 0.1, 9.0):
        assert float(mmd_worst_case(flat, p, gram, radius)) == pytest.approx(2.5)
    # One context; and a kernel that cannot tell contexts apart, whose every ball holds every distribution.
    assert float(mmd_worst_case(tensor([3.0]), tensor([1.0]), tensor([[1.0]]), 0.2)) == 3.0
    torch.testing.assert_close(mmd_worst_case(v, p, torch.ones(8, 8, dtype=F64), 1e-3), v.amin(-1))


@pytest.mark.parametrize("seed", range(5))
def test_single_precision(seed):
    rng = torch.Generator().manual_seed(seed)
    v, p = torch.randn(5, 40, generator=rng), torch.full((40,), 1 / 40)
    contexts = torch.linspace(0, 1, 40)
    gram = (-0.5 * ((contexts[:, None] - contexts) / 0.2).square()).exp()
    found = mmd_worst_case(v, p, gram, 0.3)
    assert found.dtype == torch.float32
    exact = mmd_worst_case(v.double(), p.double(), gram.double(), 0.3)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radius": -0.1}, "radius must be nonnegative, got -0.1"),
        ({"radius": math.nan}, "radius must be nonnegative, got nan"),
        ({"values": [1.0, math.nan]}, "values must be finite"),
        ({"values": [1.0, 2.0, 3.0]}, r"values must have shape \(..., 2\), got \(3,\)"),
        ({"reference": [0.5, 0.6]}, "reference must be nonnegative and sum to one"),
        ({"reference": [1.5, -0.5]}, "reference must be nonnegative and sum to one"),
        ({"reference": [math.nan, 1.0]}, "reference must be nonnegative and sum to one"),
        ({"reference": [1.0]}, r"reference must have shape \(\.\.\., 2\), got"),
        ({"gram": [[1.0, 0.2], [0.4, 1.0]]}, "gram must be finite and symmetric"),
        ({"gram": [[1.0, math.nan], [math.nan, 1.0]]}, "gram must be finite and symmetric"),
        ({"gram": [[1.0, 0.2]]}, r"gram must have shape \(..., m, m\) with m >= 1, got \(1, 2\)"),
        ({"radius": [0.1, 0.2]}, r"values must have shape \(2, n, 2\), got \(2,\)"),
    ],
)
def test_maximum_mean_discrepancy_refuses(change, message):
    good = {"values": [1.0, 2.0], "reference": [0.5, 0.5], "gram": [[1.0, 0.2], [0.2, 1.0]], "radius": 0.1}
    with pytest.raises(ValueError, match=message):
        mmd_worst_case(**{name: tensor(value) for name, value in {**good, **change}.items()})


@pytest.mark.parametrize("tolerance", [-1e-9, math.nan])
def test_a_tolerance_is_not_negative(tolerance):
    ball = MMDBall(torch.full((2,), 0.5, dtype=F64), torch.eye(2, dtype=F64), 0.1)
    with pytest.raises(ValueError, match=r"tolerance must be .*, got (-1e-09|nan)"):
        ball.worst_case(torch.tensor([1.0, 2.0], dtype=F64), tolerance)


def test_a_ball_a_replicate_refuses_values_of_another_shape():
    ball = MMDBall(torch.full((3, 4), 0.25, dtype=F64), torch.eye(4, dtype=F64), 0.1)
    for shape in ((3, 4), (2, 5, 4), (3, 5, 6)):
        with pytest.raises(ValueError, match=r"values must have shape \(3, n, 4\)"):
            ball.worst_case(torch.zeros(shape, dtype=F64))


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


@pytest.mark.parametrize(("dtype", "accuracy"), [(F64, 1e-6), (torch.float32, 1e-3)])
@pytest.mark.parametrize(("lengthscale", "ranks"), [(2.0, (5, 30)), (0.3, (60, 140)), (0.02, (190, 200))])
def test_the_slope_at_any_rank_is_that_of_the_dense_inverse(lengthscale, ranks, dtype, accuracy, rng):
    """Values that the kernel makes and values that it does not."""
    grid = torch.rand(200, 2, generator=rng, dtype=F64)
    gram = rbf_kernel(lengthscale)(grid).to_dense()
    values = torch.cat([gram[:4] / 3, torch.randn(4, 200, generator=rng, dtype=F64), grid.mT])
    inverse = torch.linalg.inv(gram + 1e-3 * torch.eye(200))
    one = inverse.sum(-1)
    expected = ((values @ inverse) * values).sum(-1) - (values @ one).square() / one.sum()
    ball = MMDBall(torch.full((200,), 1 / 200, dtype=dtype), gram.to(dtype), 0.1)
    found = ball.squared_slope(values.unsqueeze(0).to(dtype)).flatten()
    assert ranks[0] <= ball._inverse[0].shape[-2] <= ranks[1]
    assert float((found.double() / expected - 1).abs().max()) < accuracy


def test_where_all_contexts_are_the_same_to_the_kernel_the_slope_is_that_of_the_jitter():
    values = torch.tensor([[[1.0, 2.0, 4.0]]], dtype=F64)
    for gram in (torch.zeros(3, 3, dtype=F64), torch.ones(3, 3, dtype=F64)):
        ball = MMDBall(torch.full((3,), 1 / 3, dtype=F64), gram, 0.1)
        slope = 3 * values.var(correction=0) / ball.jitter
        torch.testing.assert_close(ball.squared_slope(values).squeeze(), slope)


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


def test_the_minimax_approximation_is_differentiable(rng):
    contexts = torch.linspace(0, 1, 12, dtype=F64)
    gram = (-0.5 * ((contexts[:, None] - contexts) / 0.3).square()).exp()
    p = torch.rand(12, generator=rng, dtype=F64)
    v = torch.randn(3, 12, generator=rng, dtype=F64, requires_grad=True)
    for radius in (1e-3, 0.2, 5.0):
        ball = MMDBall(p / p.sum(), gram, radius)
        assert torch.autograd.gradcheck(ball.minimax_approx, (v,))
    flat = torch.ones(12, dtype=F64, requires_grad=True)
    value = ball.minimax_approx(flat)
    (gradient,) = torch.autograd.grad(value, flat)
    assert float(value.detach()) == 1.0 and bool(torch.isfinite(gradient).all())


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


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_search_that_stops_before_its_end_says_how_far_it_is(rng, iterations):
    """Every row has a result inside of the ball, no more above the minimum than the gap that was named."""
    reference, gram = torch.full((1, 20), 0.05, dtype=F64), rbf_kernel(0.2)(torch.rand(20, 1, generator=rng, dtype=F64))
    factor = torch.linalg.cholesky(gram.to_dense() + 1e-6 * torch.eye(20)).mT[None]
    ball = SimplexBall(factor, reference, torch.tensor([0.1], dtype=F64))
    values, wanted = torch.rand(1, 6, 20, generator=rng, dtype=F64), torch.ones(1, 6, 1, dtype=torch.bool)
    wanted[0, 0] = False
    with pytest.warns(
        NumericalWarning, match=r"worst case of 5 of 5 functions was not found to 1.0e-06 .* up to \d"
    ) as seen:
        early = ball.minimizers(values, wanted, 1e-6, iterations)
    gap = float(re.search(r"up to (.*)$", str(seen[0].message))[1])
    exact = ball.minimizers(values, wanted, 1e-7)
    above = ((early - exact) * values).sum(-1)[0, 1:]
    assert 1e-6 < float(above.max()) <= 1.1 * gap and float(above.min()) > -2e-7
    assert float((factor @ (early - reference).mT).norm(dim=-2).max()) <= 0.1 and float(early.min()) > 0


def test_the_inverse_is_that_of_the_same_kernel_matrix():
    p, gram = torch.full((2, 4), 0.25, dtype=F64), torch.eye(4, dtype=F64).expand(2, 4, 4) + 0.1
    values = torch.arange(24, dtype=F64).reshape(2, 3, 4).sin()
    first = MMDBall(p, gram, 0.3)
    expected = first.minimax_approx(values)
    second = MMDBall(p, gram, 0.3, first)
    assert second._inverse is first._inverse and torch.equal(second.minimax_approx(values), expected)
    assert "_inverse" not in vars(MMDBall(p, gram.clone(), 0.3, first))  # equal is not the same
    assert "_inverse" not in vars(MMDBall(p.expand(3, 2, 4), gram, 0.3, first))  # another batch
    other = MMDBall(p, 2 * gram, 0.3, first)
    assert torch.equal(other.minimax_approx(values), MMDBall(p, 2 * gram, 0.3).minimax_approx(values))
