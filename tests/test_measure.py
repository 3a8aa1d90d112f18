import math
import re

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.integrate import nquad

from cbo_lib import measure as module
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance, variance
from tests.oracles import gram, matern52, rbf, sets
from tests.toys import random_measure

F64 = torch.float64


def loop(kernel, a, b):
    """Covariance of every pair of point sets, one pair of points at a time."""
    out = np.zeros((len(a), len(b)))
    for i, (x, w) in enumerate(a):
        for j, (z, v) in enumerate(b):
            for r in range(len(w)):
                for s in range(len(v)):
                    out[i, j] += w[r] * float(kernel(x[[r]], z[[s]])[0, 0]) * v[s]
    return out


def batched_rbf(lengthscales, variances):
    kernel = ScaleKernel(RBFKernel(batch_shape=lengthscales.shape), batch_shape=lengthscales.shape).to(F64)
    kernel.base_kernel.lengthscale = lengthscales[..., None, None]
    kernel.outputscale = variances
    return kernel.requires_grad_(False)


def test_expectation_equals_the_loop_over_points(rng):
    m = random_measure(rng, 4, 5, p=3, d=2)
    got = m.expectation(lambda x: torch.sin(x[..., 0]) * x[..., 1])
    for b in range(4):
        for i in range(5):
            expected = sum(
                float(m.weights[b, i, j]) * math.sin(float(m.points[b, i, j, 0])) * float(m.points[b, i, j, 1])
                for j in range(3)
            )
            assert float(got[b, i]) == pytest.approx(expected, abs=1e-14)


def test_expectation_rejects_a_function_that_keeps_the_input_dimension(rng):
    with pytest.raises(ValueError, match=r"f must map points \(\.\.\., d\) to values"):
        random_measure(rng, 5).expectation(lambda x: x)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)])
def test_expectations_of_a_batch_of_functions_equal_the_loop_over_them(rng, shape):
    m, levels = random_measure(rng, *shape, 5), torch.tensor([0.5, -1.0, 2.0], dtype=F64)
    got = m.expectation(lambda x: levels[:, None, None] * x[..., 0] + x[..., 1].square())
    assert got.shape == (*torch.broadcast_shapes(shape, (3,)), 5)
    for u, level in enumerate(levels):
        at = m
        if shape:
            index = u if shape[-1] == 3 else 0
            at = Measure(m.points[..., index, :, :, :], m.weights[..., index, :, :])
        alone = at.expectation(lambda x, level=level: level * x[..., 0] + x[..., 1].square())
        torch.testing.assert_close(got[..., u, :], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: x.sum((-1, -2)), "(2, 1, 5)"),
        (lambda x: x[..., :1, 0], "(2, 1, 5, 1)"),
        (lambda x: x[..., :1, :, 0], "(2, 1, 1, 3)"),
        (lambda x: x[0, 0, ..., 0], "(5, 3)"),
        (lambda x: x[0, ..., 0], "(1, 5, 3)"),
        (lambda x: x[:1, ..., 0], "(1, 1, 5, 3)"),
        (lambda x: x[..., 0].repeat(2, 1, 1, 1), "(4, 1, 5, 3)"),
        (lambda x: x[..., 0].mT, "(2, 1, 3, 5)"),
        (lambda x: x[0, 0, 0, 0, 0], "()"),
    ],
)
def test_expectation_rejects_values_that_do_not_fit_the_points(rng, f, shape):
    message = rf"f must map points (..., d) to values (...), here (2, 1, 5, 3), got {shape}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        random_measure(rng, 2, 1, 5).expectation(f)


def test_dirac_evaluates_at_the_point(rng):
    x = torch.rand(3, 4, 2, generator=rng, dtype=F64)
    m = Measure.dirac(x)
    assert (m.n, m.p, m.dim, m.batch_shape) == (4, 1, 2, (3,))
    assert torch.equal(m.expectation(lambda p: p[..., 1]), x[..., 1])


def test_average_is_the_arithmetic_mean(rng):
    points = torch.rand(4, 7, 2, generator=rng, dtype=F64)
    got = Measure.average(points).expectation(lambda x: x.prod(-1))
    np.testing.assert_allclose(got, np.prod(points.numpy(), -1).mean(-1), rtol=1e-13)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_uniform_is_exact_for_polynomials_up_to_its_degree_and_not_beyond(order, dim):
    low, high = np.array([-1.0, 0.5, 2.0])[:dim], np.array([1.5, 0.75, 5.0])[:dim]
    m = Measure.uniform(torch.tensor(np.stack([low, high])[None]), order)
    assert m.p == order**dim

    def mean_of_power(k):  # of sum_i x_i^k over the box
        return sum((h ** (k + 1) - lo ** (k + 1)) / ((k + 1) * (h - lo)) for lo, h in zip(low, high, strict=True))

    for k in range(2 * order):
        assert float(m.expectation(lambda x, k=k: x.pow(k).sum(-1))) == pytest.approx(mean_of_power(k), rel=1e-12)
    beyond = float(m.expectation(lambda x: x.pow(2 * order).sum(-1)))
    assert abs(beyond - mean_of_power(2 * order)) > 1e-8 * abs(mean_of_power(2 * order))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_uniform_agrees_with_adaptive_quadrature(dim):
    low, high = [0.1, -1.0, 0.3][:dim], [0.9, 0.5, 1.3][:dim]
    total, _ = nquad(lambda *x: math.exp(-x[0]) * math.cos(sum(x)), list(zip(low, high, strict=True)))
    volume = math.prod(h - lo for lo, h in zip(low, high, strict=True))
    m = Measure.uniform(torch.tensor([[low, high]], dtype=F64), 10)
    got = m.expectation(lambda x: torch.exp(-x[..., 0]) * torch.cos(x.sum(-1)))
    assert float(got) == pytest.approx(total / volume, abs=1e-10)


def test_uniform_serves_batches_of_boxes(rng):
    low = torch.rand(3, 4, 1, 2, generator=rng, dtype=F64)
    boxes = torch.cat([low, low + 0.1 + torch.rand(3, 4, 1, 2, generator=rng, dtype=F64)], -2)
    m = Measure.uniform(boxes, 4)
    assert (m.batch_shape, m.n, m.p) == ((3,), 4, 16)
    np.testing.assert_allclose(m.weights.sum(-1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(m.expectation(lambda x: x[..., 0]), boxes[..., 0].mean(-1), rtol=1e-13)


def test_points_weights_and_their_order_survive_selection(rng):
    m = random_measure(rng, 2, 6)
    for index in (slice(1, 4), torch.tensor([5, 0, 0]), [2, 3]):
        chosen = m[index]
        assert torch.equal(chosen.points, m.points[:, index])
        assert torch.equal(chosen.weights, m.weights[:, index])


def test_index_of_two_dimensions_gives_a_batch(rng):
    m = random_measure(rng, 6)
    chosen = m[torch.tensor([[1], [5], [1]])]
    assert chosen.batch_shape == (3,) and chosen.n == 1
    assert torch.equal(chosen.points[1, 0], m.points[5])


def test_expand_repeats_along_a_batch(rng):
    m = random_measure(rng, 6).expand(4)
    assert m.batch_shape == (4,) and torch.equal(m.points[0], m.points[3]) and torch.equal(m.weights[1], m.weights[2])


def test_cat_pads_without_effect(rng):
    parts = [random_measure(rng, 2, p=1), random_measure(rng, 3, p=4), random_measure(rng, 1, p=2)]
    joined, kernel = Measure.cat(parts), rbf_kernel(0.4)
    assert (joined.n, joined.p) == (6, 4)
    expected = torch.cat([m.expectation(lambda x: x.square().sum(-1)) for m in parts])
    torch.testing.assert_close(joined.expectation(lambda x: x.square().sum(-1)), expected, rtol=1e-14, atol=1e-14)
    unpadded = [s for m in parts for s in sets(m)]
    dense = gram(lambda x, z: rbf(x, z, 0.4), unpadded, unpadded)
    np.testing.assert_allclose(covariance(kernel, joined, joined), dense, atol=1e-12)
    np.testing.assert_allclose(variance(kernel, joined), np.diag(dense), atol=1e-12)


def test_cat_pads_batches(rng):
    a, b = random_measure(rng, 3, 2, p=1), random_measure(rng, 3, 4, p=3)
    joined = Measure.cat([a, b])
    assert joined.batch_shape == (3,) and joined.n == 6
    f = torch.sum
    expected = torch.cat([a.expectation(lambda x: f(x, -1)), b.expectation(lambda x: f(x, -1))], -1)
    torch.testing.assert_close(joined.expectation(lambda x: f(x, -1)), expected)


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("name", ["rbf", "matern"])
def test_covariance_equals_the_double_loop(rng, p, q, name):
    a, b = random_measure(rng, 4, p=p), random_measure(rng, 5, p=q)
    lengthscale = [0.3, 0.7]
    base, oracle = (
        (RBFKernel(ard_num_dims=2), rbf) if name == "rbf" else (MaternKernel(nu=2.5, ard_num_dims=2), matern52)
    )
    kernel = ScaleKernel(base).to(F64)
    kernel.base_kernel.lengthscale = torch.tensor(lengthscale, dtype=F64)
    kernel.outputscale = 1.7

    def k(x, z):
        return oracle(x, z, lengthscale, 1.7)

    np.testing.assert_allclose(covariance(kernel, a, b).detach(), loop(k, sets(a), sets(b)), atol=1e-12)
    np.testing.assert_allclose(variance(kernel, a).detach(), np.diag(loop(k, sets(a), sets(a))), atol=1e-12)


# Equal sizes on purpose: a dimension taken for another one would go unseen by the shapes.
@pytest.mark.parametrize("u", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape_a", [(), (3,), (2, 1), (2, 3)])
@pytest.mark.parametrize("p", [1, 2])
def test_batches_of_kernels_and_measures_broadcast(rng, u, shape_a, p):
    lengthscales = 0.2 + torch.rand(u, generator=rng, dtype=F64)
    variances = 0.5 + torch.rand(u, generator=rng, dtype=F64)
    kernel = batched_rbf(lengthscales, variances) if u else rbf_kernel(float(lengthscales), float(variances))
    a, b = random_measure(rng, *shape_a, 3, p=p), random_measure(rng, 2, p=p)
    got, own = covariance(kernel, a, b), variance(kernel, a)
    batch = torch.broadcast_shapes(u, shape_a)
    assert got.shape == (*batch, 3, 2) and own.shape == (*batch, 3)
    wide = a.expand(*batch)
    for at in np.ndindex(*batch):
        scale, size = lengthscales.expand(batch)[at], variances.expand(batch)[at]
        one = sets(Measure(wide.points[at], wide.weights[at]))

        def k(x, z, scale=scale, size=size):
            return rbf(x, z, float(scale), float(size))

        np.testing.assert_allclose(got[at], gram(k, one, sets(b)), atol=1e-12)
        np.testing.assert_allclose(own[at], np.diag(gram(k, one, one)), atol=1e-12)


def test_batches_on_both_sides_broadcast(rng):
    a, b, kernel = random_measure(rng, 2, 1, 4), random_measure(rng, 3, 4, p=2), rbf_kernel(0.5)
    got = covariance(kernel, a, b)
    assert got.shape == (2, 3, 4, 4)
    for i in range(2):
        for j in range(3):
            one, other = Measure(a.points[i, 0], a.weights[i, 0]), Measure(b.points[j], b.weights[j])
            np.testing.assert_allclose(got[i, j], gram(lambda x, z: rbf(x, z, 0.5), sets(one), sets(other)), atol=1e-12)


@pytest.mark.parametrize("entries", [1, 20, 100, 10_000])
@pytest.mark.parametrize("u", [(), (3,)])
def test_slices_of_a_large_matrix_give_the_whole(rng, monkeypatch, entries, u):
    kernel = batched_rbf(torch.full(u, 0.4, dtype=F64), torch.ones(u, dtype=F64)) if u else rbf_kernel(0.4)
    a, b = random_measure(rng, 2, *[1] * len(u), 7), random_measure(rng, 5, p=2)
    whole, own, gram = covariance(kernel, a, b), variance(kernel, a), covariance(kernel, a, a)
    calls = []
    original = type(kernel).forward
    monkeypatch.setattr(type(kernel), "forward", lambda *args, **kw: calls.append(1) or original(*args, **kw))
    monkeypatch.setattr(module, "_SLICE_ENTRIES", entries)
    torch.testing.assert_close(covariance(kernel, a, b), whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(variance(kernel, a), own, rtol=0, atol=1e-14)
    assert (len(calls) > 2) == (entries < 10_000)
    symmetric = covariance(kernel, a, a)
    torch.testing.assert_close(symmetric, gram, rtol=0, atol=1e-14)
    assert torch.equal(symmetric, symmetric.mT) or entries == 10_000


def test_of_measures_with_themselves_slices_hold_one_half(rng, monkeypatch):
    kernel, a = rbf_kernel(torch.tensor([0.4, 0.7], dtype=F64)), random_measure(rng, 3, 40, p=2)
    sizes, original = [], ScaleKernel.forward
    counted = lambda *args, **kw: sizes.append((k := original(*args, **kw)).shape.numel()) or k  # noqa: E731
    monkeypatch.setattr(ScaleKernel, "forward", counted)
    monkeypatch.setattr(module, "_SLICE_ENTRIES", 3 * 2 * 40 * 2)
    kernel.requires_grad_(True)
    gradients = {}
    for other in (a, a[:]):
        sizes.clear()
        kernel.zero_grad()
        covariance(kernel, a, other).square().sum().backward()
        gradients[sum(sizes)] = [parameter.grad.clone() for parameter in kernel.parameters()]
    half, whole = sorted(gradients)
    assert half < 0.52 * whole
    for one, both in zip(gradients[half], gradients[whole], strict=True):
        torch.testing.assert_close(one, both, rtol=1e-10, atol=0)


def test_slices_stay_below_the_limit(rng, monkeypatch):
    monkeypatch.setattr(module, "_SLICE_ENTRIES", 50)
    made = []
    original = ScaleKernel.forward
    monkeypatch.setattr(
        ScaleKernel,
        "forward",
        lambda *args, **kw: made.append((k := original(*args, **kw)).shape.numel()) or k,
    )
    covariance(rbf_kernel(0.4), random_measure(rng, 7, p=2), random_measure(rng, 4, p=3))
    assert len(made) == 4 and max(made) <= 50


def test_no_measures_have_an_empty_covariance(rng):
    none, some = random_measure(rng, 0), random_measure(rng, 4)
    kernel = batched_rbf(torch.ones(3, dtype=F64), torch.ones(3, dtype=F64))
    assert covariance(kernel, none, some).shape == (3, 0, 4)
    assert covariance(kernel, some, none).shape == (3, 4, 0)


def test_no_measures_have_an_empty_variance(rng):
    kernel = batched_rbf(torch.ones(3, dtype=F64), torch.ones(3, dtype=F64))
    assert variance(kernel, random_measure(rng, 0)).shape == (3, 0)
    assert variance(rbf_kernel(1.0), random_measure(rng, 0)).shape == (0,)


def test_gradients_reach_points_and_weights(rng):
    m = random_measure(rng, 3)
    points, weights = m.points.clone().requires_grad_(), m.weights.clone().requires_grad_()
    other = random_measure(rng, 2)
    kernel = rbf_kernel(0.6)
    assert torch.autograd.gradcheck(lambda x, w: covariance(kernel, Measure(x, w), other), (points, weights))
    assert torch.autograd.gradcheck(lambda x, w: variance(kernel, Measure(x, w)), (points, weights))


def test_float32_stays_float32(rng):
    m = Measure.average(torch.rand(3, 4, 2, generator=rng))
    kernel = rbf_kernel(0.5, dtype=torch.float32)
    assert covariance(kernel, m, m).dtype == variance(kernel, m).dtype == torch.float32


def test_measures_can_be_compared_for_equality_without_an_error(rng):
    m = random_measure(rng, 3)
    assert (m == m) is True
    assert isinstance(m == random_measure(rng, 3), bool)


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2), r"points must have shape \(\.\.\., n, p, d\), got \(2, 3\)"),
        (torch.zeros(2, 3, 1), torch.zeros(2, 4), r"weights must have shape \(2, 3\).*got \(2, 4\)"),
        (torch.zeros(2, 3, 1), torch.zeros(3), r"weights must have shape \(2, 3\).*got \(3,\)"),
        (
            torch.zeros(2, 3, 1),
            torch.zeros(2, 3, dtype=F64),
            r"points and weights must have one dtype, torch\.float32, got",
        ),
        (
            torch.zeros(2, 3, 1, dtype=bool),
            torch.zeros(2, 3),
            "points must be real numbers, not of half precision, in a dense tensor, got torch.bool",
        ),
        (torch.full((2, 3, 1), torch.nan), torch.zeros(2, 3), "points must be finite"),
        (torch.zeros(2, 3, 1), torch.full((2, 3), torch.inf), "weights must be finite"),
    ],
)
def test_ill_formed_measures_are_refused(points, weights, message):
    with pytest.raises(ValueError, match=message):
        Measure(points, weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Measure.dirac(torch.zeros(3)), r"x must have shape \(\.\.\., n, d\), got \(3,\)"),
        (lambda: Measure.average(torch.zeros(3, 2)), r"points must have shape .* got \(3, 2\)"),
        (lambda: Measure.average(torch.zeros(3, 0, 2)), r"with p >= 1, got \(3, 0, 2\)"),
        (
            lambda: Measure.uniform(torch.zeros(2, 2), 3),
            r"boxes must have shape \(\.\.\., n, 2, d\) with d >= 1, got",
        ),
        (lambda: Measure.uniform(torch.zeros(1, 3, 2), 3), r"boxes must have shape .* got \(1, 3, 2\)"),
        (lambda: Measure.uniform(torch.zeros(1, 2, 2), 0), "order must be an integer of at least 1, got 0"),
    ],
)
def test_ill_formed_constructions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_kernel_of_another_dtype_is_refused_by_name(rng):
    m = random_measure(rng, 3)
    kernel = rbf_kernel(0.5, dtype=torch.float32)
    for compute in (lambda: covariance(kernel, m, m), lambda: variance(kernel, m)):
        with pytest.raises(ValueError, match=r"kernel must have the dtype.*raw_outputscale of \(torch.float32"):
            compute()


def test_measures_that_weigh_the_same_points_need_no_kernel_of_all_pairs(rng):
    kernel = rbf_kernel(0.4)
    for batch in ((), (3,)):
        shared = torch.rand(*batch, 1, 7, 2, generator=rng, dtype=F64).expand(*batch, 4, 7, 2)
        other = torch.rand(*batch, 1, 6, 2, generator=rng, dtype=F64).expand(*batch, 5, 6, 2)
        a = Measure(shared, torch.randn(*batch, 4, 7, generator=rng, dtype=F64))
        b = Measure(other, torch.randn(*batch, 5, 6, generator=rng, dtype=F64))
        apart = [Measure(m.points.contiguous(), m.weights) for m in (a, b)]
        assert [module._is_shared(m) for m in (a, b, *apart)] == [True, True, False, False]
        plain = random_measure(rng, *batch, 3)
        for left, right in ((a, b), (a, a), (a, plain), (plain, b)):
            same = [apart[(a, b).index(m)] if m in (a, b) else m for m in (left, right)]
            torch.testing.assert_close(covariance(kernel, left, right), covariance(kernel, *same), rtol=0, atol=1e-12)
        torch.testing.assert_close(variance(kernel, a), variance(kernel, apart[0]), rtol=0, atol=1e-12)


def test_an_integer_selects_one_measure_and_keeps_the_dimension(rng):
    measure = Measure.average(torch.rand(3, 5, 2, 1, generator=rng, dtype=torch.float64))
    one = measure[2]
    assert one.n == 1 and one.batch_shape == (3,) and torch.equal(one.points, measure[[2]].points)
    assert [part.n for part in measure] == [1] * 5
