import functools
import math

import numpy as np
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, ProductKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense

from cbo_lib import kernels
from cbo_lib.former.history import describe
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import (
    GaussianMeasureKernel,
    StackedKernel,
    TabulatedKernel,
    matern_kernel,
    rbf_kernel,
)
from cbo_lib.measure import Measure, covariance, variance
from tests.oracles import condition, matern52, rbf, sets
from tests.toys import normal, random_measure

F64 = torch.float64


def test_rbf_kernel_is_the_squared_exponential(rng):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    for lengthscale in (0.4, 2, [10.0, 8.0], torch.tensor([0.3, 0.7]), np.array([0.2])):
        kernel = rbf_kernel(lengthscale, 1.3)
        np.testing.assert_allclose(kernel(x, x).to_dense(), rbf(x, x, lengthscale, 1.3), atol=1e-7)
        assert not any(parameter.requires_grad for parameter in kernel.parameters())
    np.testing.assert_allclose(rbf_kernel(0.4, 1.3)(x, x).to_dense(), rbf(x, x, 0.4, 1.3), atol=1e-14)


@pytest.mark.parametrize("lengthscale", [0.4, [0.3, 0.7]])
def test_matern_kernel_is_that_of_its_smoothness(rng, lengthscale):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    r = np.sqrt(-2 * np.log(rbf(x, x, lengthscale)))  # the scaled distance
    for nu, expected in (
        (0.5, 1.3 * np.exp(-r)),
        (1.5, 1.3 * (1 + math.sqrt(3) * r) * np.exp(-math.sqrt(3) * r)),
        (2.5, matern52(x, x, lengthscale, 1.3)),
    ):
        kernel = matern_kernel(lengthscale, 1.3, nu)
        np.testing.assert_allclose(kernel(x, x).to_dense(), expected, atol=1e-7)
        assert not any(parameter.requires_grad for parameter in kernel.parameters())
    assert matern_kernel(0.4).base_kernel.nu == 2.5
    assert matern_kernel(lengthscale, dtype=torch.float32)(x.float()).to_dense().dtype == torch.float32


@pytest.mark.parametrize("make", [rbf_kernel, matern_kernel])
@pytest.mark.parametrize("name", ["lengthscale", "variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [], [1.0, -1.0], [[1.0]]])
def test_kernel_parameters_that_are_not_positive_are_refused(make, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be (positive and finite|a number|a number, or one.*), got"):
        make(**{"lengthscale": 0.4, name: value})


def test_another_smoothness_is_refused():
    with pytest.raises(ValueError, match=r"nu must be 0\.5, 1\.5 or 2\.5, got 2"):
        matern_kernel(0.4, nu=2)


def members():
    """Different in structure; some have gradients."""
    smooth, rough = RBFKernel(active_dims=[0]).to(F64), MaternKernel(2.5, active_dims=[1]).to(F64)
    sine = PeriodicKernel(active_dims=[1]).to(F64)
    smooth.lengthscale, rough.lengthscale, sine.lengthscale, sine.period_length = 0.3, 0.6, 0.8, 0.7
    return [
        rbf_kernel(0.4, 1.3),
        (ScaleKernel(smooth) + ScaleKernel(rough)).to(F64).requires_grad_(False),
        ScaleKernel(RBFKernel(active_dims=[0]) * sine).to(F64),
        (RBFKernel(ard_num_dims=2) + LinearKernel()).to(F64),
    ]


def part(x, u):
    return x if x.dim() == 2 else x[..., u if x.shape[-3] == 4 else 0, :, :]


SHAPES = [(), (1,), (4,), (3, 1), (3, 4), (1, 1), (1, 4), (2, 3, 1), (2, 1, 4)]


@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.parametrize("second", SHAPES)
def test_the_matrix_is_the_stack_of_the_members(rng, first, second):
    kernels = members()
    x, z = torch.rand(*first, 5, 2, generator=rng, dtype=F64), torch.rand(*second, 6, 2, generator=rng, dtype=F64)
    batch = torch.broadcast_shapes(first, second, (4,))
    got = StackedKernel(kernels)(x, z)
    assert got.shape == (*batch, 5, 6)
    for u, kernel in enumerate(kernels):
        alone = kernel(part(x, u), part(z, u)).to_dense()
        torch.testing.assert_close(got.to_dense()[..., u, :, :], alone.expand(*batch[:-1], 5, 6), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("other", [None, "same", "one"])
def test_the_diagonal_is_the_stack_of_the_diagonals(rng, shape, other):
    kernels = members()
    x = torch.rand(*shape, 5, 2, generator=rng, dtype=F64)
    z = {None: None, "same": x, "one": torch.rand(5, 2, generator=rng, dtype=F64)}[other]
    batch = torch.broadcast_shapes(shape, (4,))
    stacked = StackedKernel(kernels)
    got = stacked(x, z, diag=True)
    assert got.shape == (*batch, 5)
    torch.testing.assert_close(
        stacked(x, z).diagonal(dim1=-1, dim2=-2), got, rtol=0, atol=1e-7
    )  # a Matern distance of equal points is 1e-15 on the diagonal and 1e-8 beside it
    for u, kernel in enumerate(kernels):
        alone = kernel(part(x, u), None if z is None else part(z, u)).to_dense().diagonal(dim1=-1, dim2=-2)
        torch.testing.assert_close(got[..., u, :], alone.expand(*batch[:-1], 5), rtol=0, atol=1e-7)


def test_members_follow_their_textbook_formulas(rng):
    x, z = torch.rand(5, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    kernels = members()
    scales = [float(kernel.outputscale) for kernel in kernels[1].kernels]
    got = StackedKernel(kernels)(x, z).to_dense().detach()
    a, b = x.numpy(), z.numpy()
    additive = rbf(a[:, :1], b[:, :1], 0.3, scales[0]) + matern52(a[:, 1:], b[:, 1:], 0.6, scales[1])
    np.testing.assert_allclose(got[0], rbf(a, b, 0.4, 1.3), atol=1e-12)
    np.testing.assert_allclose(got[1], additive, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_one_member_sees_a_whole_batch_of_inputs(rng, shape):
    kernel = members()[1]
    x, z = torch.rand(*shape, 5, 2, generator=rng, dtype=F64), torch.rand(6, 2, generator=rng, dtype=F64)
    stacked, batch = StackedKernel([kernel]), shape or (1,)
    torch.testing.assert_close(
        stacked(x, z).to_dense(), kernel(x, z).to_dense().expand(*batch, 5, 6), rtol=0, atol=1e-14
    )
    torch.testing.assert_close(stacked(x, diag=True), kernel(x, diag=True).expand(*batch, 5), rtol=0, atol=1e-14)


def test_parts_of_the_matrix_are_parts_of_the_dense_matrix(rng):
    x, z = torch.rand(3, 1, 5, 2, generator=rng, dtype=F64), torch.rand(6, 2, generator=rng, dtype=F64)
    got = StackedKernel(members())(x, z)
    dense = got.to_dense()
    for index in [(1, 0), (2, 3), (slice(None), slice(1, 3)), (..., slice(1, 4), slice(0, 2)), (0, slice(None), 2, 3)]:
        chosen = got[index]
        chosen = chosen if isinstance(chosen, torch.Tensor) else chosen.to_dense()
        torch.testing.assert_close(chosen, dense[index], rtol=0, atol=0)


def test_members_can_be_chosen(rng):
    kernels = members()
    stacked, x = StackedKernel(kernels), torch.rand(5, 2, generator=rng, dtype=F64)
    whole = stacked(x).to_dense()
    assert stacked[2] is kernels[2] and stacked[(-1,)] is kernels[3]
    for index in (slice(1, 3), [3, 0], torch.tensor([1]), torch.tensor([True, False, False, True]), ...):
        chosen = stacked[index]
        assert isinstance(chosen, StackedKernel)
        torch.testing.assert_close(chosen(x).to_dense(), whole[index], rtol=0, atol=0)
    for index in (4, (0, 0), torch.tensor([[0, 1]])):
        with pytest.raises(IndexError):
            stacked[index]


def test_a_scaled_stack_is_the_stack_of_the_scaled(rng):
    x = torch.rand(3, 1, 5, 2, generator=rng, dtype=F64)
    scale = ScaleKernel(StackedKernel(members())).to(F64)
    scale.outputscale = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=F64)
    assert scale.batch_shape == (4,)
    expected = scale.outputscale[:, None, None] * StackedKernel(members())(x).to_dense()
    torch.testing.assert_close(scale(x).to_dense(), expected, rtol=0, atol=1e-14)


def test_a_stack_knows_its_batch_and_its_members_parameters():
    stacked = StackedKernel(members())
    assert stacked.batch_shape == (4,) and stacked.dtype == F64
    assert len(list(stacked.parameters())) == sum(len(list(kernel.parameters())) for kernel in members())
    assert not stacked.is_stationary and StackedKernel([RBFKernel(), MaternKernel()]).is_stationary


def test_gradients_reach_inputs_and_hyperparameters(rng):
    x = torch.rand(3, 2, generator=rng, dtype=F64).requires_grad_()
    z = torch.rand(4, 2, 2, generator=rng, dtype=F64).requires_grad_()
    kernels = members()
    stacked = StackedKernel(kernels)
    assert torch.autograd.gradcheck(lambda a, b: stacked(a, b).to_dense(), (x, z))
    (got,) = torch.autograd.grad(stacked(x, z).to_dense().sum(), kernels[2].raw_outputscale)
    (alone,) = torch.autograd.grad(kernels[2](x, z[2]).to_dense().sum(), kernels[2].raw_outputscale)
    torch.testing.assert_close(got, alone)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (4,)])
@pytest.mark.parametrize("p", [1, 3])
def test_sums_over_measures_equal_those_of_the_members(rng, shape, p):
    kernels = members()
    stacked = StackedKernel(kernels)
    a, b = random_measure(rng, *shape, 5, p=p), random_measure(rng, 4, p=p)
    for u, kernel in enumerate(kernels):
        at, index = a, u if 4 in shape else 0
        if shape:
            at = Measure(a.points[..., index, :, :, :], a.weights[..., index, :, :])
        torch.testing.assert_close(
            covariance(stacked, a, b)[..., u, :, :], covariance(kernel, at, b), rtol=0, atol=1e-13
        )
        torch.testing.assert_close(variance(stacked, a)[..., u, :], variance(kernel, at), rtol=0, atol=1e-7)


@pytest.mark.parametrize("replicates", [None, 3])
@pytest.mark.parametrize("initial", [0, 4])
def test_a_posterior_equals_the_loop_over_members(rng, replicates, initial):
    front = () if replicates is None else (replicates, 1)
    batch = () if replicates is None else (replicates,)
    kernels, queries = members(), random_measure(rng, 5)
    together = GaussianProcess(StackedKernel(kernels), 0.2, 0.4).posterior(replicates)
    alone = [GaussianProcess(kernel, 0.2, 0.4).posterior(replicates) for kernel in kernels]
    for count in (initial, 1, 2):
        observed, y = random_measure(rng, *front, count), normal(rng, *front, count)
        together = together.extend(observed, y)
        one = observed if replicates is None else Measure(observed.points[:, 0], observed.weights[:, 0])
        alone = [posterior.extend(one, y if replicates is None else y[:, 0]) for posterior in alone]
    assert together.batch_shape == (*batch, 4)
    for u, posterior in enumerate(alone):
        for got, expected, dims in (
            (together.mean(queries), posterior.mean(queries), 1),
            (together.variance(queries), posterior.variance(queries), 1),
            (together.covariance(queries, queries[:2]), posterior.covariance(queries, queries[:2]), 2),
            (together.log_marginal_likelihood, posterior.log_marginal_likelihood, 0),
        ):
            torch.testing.assert_close(got.select(len(batch), u), expected, rtol=0, atol=1e-9)
            assert got.shape[: got.dim() - dims] == (*batch, 4)


def test_members_may_observe_different_queries(rng):
    kernels, queries = members(), random_measure(rng, 5)
    observed, y = random_measure(rng, 4, 3), normal(rng, 4, 3)
    together = GaussianProcess(StackedKernel(kernels), 0.2).condition(observed, y)
    for u, kernel in enumerate(kernels):
        alone = GaussianProcess(kernel, 0.2).condition(Measure(observed.points[u], observed.weights[u]), y[u])
        torch.testing.assert_close(together.mean(queries)[u], alone.mean(queries), rtol=0, atol=1e-9)
        torch.testing.assert_close(together.variance(queries)[u], alone.variance(queries), rtol=0, atol=1e-9)


@pytest.mark.parametrize("initial", [0, 3])
def test_a_tracked_posterior_equals_the_loop_over_members(rng, initial):
    kernels, queries, more = members(), random_measure(rng, 6), random_measure(rng, 2)
    first, values = random_measure(rng, initial), normal(rng, initial)
    together = GaussianProcess(StackedKernel(kernels), 0.2).posterior(3).extend(first, values).track(queries)
    alone = [GaussianProcess(kernel, 0.2).posterior(3).extend(first, values).track(queries) for kernel in kernels]
    assert together.batch_shape == (3, 4)
    for t in range(12):
        index, y = torch.randint(together.n, (3, 4), generator=rng), normal(rng, 3, 4)
        together.observe(index, y)
        for u, tracked in enumerate(alone):
            tracked.observe(index[:, u], y[:, u])
        if t == 6:
            for tracked in (together, *alone):
                tracked.add(more)
    for u, tracked in enumerate(alone):
        torch.testing.assert_close(together.mean[:, u], tracked.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.variance[:, u], tracked.variance, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            together.log_marginal_likelihood[:, u], tracked.log_marginal_likelihood, rtol=0, atol=1e-9
        )


def test_a_posterior_equals_the_textbook_formula(rng):
    observed, y, queries = random_measure(rng, 4), normal(rng, 4), random_measure(rng, 3)
    rough = MaternKernel(2.5).to(F64)
    rough.lengthscale = 0.5
    posterior = GaussianProcess(StackedKernel([rbf_kernel(0.4, 1.3), rough]), 0.2).condition(observed, y)
    formulas = [lambda x, z: rbf(x, z, 0.4, 1.3), lambda x, z: matern52(x, z, 0.5)]
    for u, formula in enumerate(formulas):
        mean, joint = condition(formula, sets(observed), y.numpy(), 0.2, sets(queries))
        np.testing.assert_allclose(posterior.mean(queries)[u].detach(), mean, atol=1e-9)
        np.testing.assert_allclose(posterior.covariance(queries, queries)[u].detach(), joint, atol=1e-9)


def test_an_acquisition_function_of_botorch_sees_every_member(rng):
    kernels, x = members(), torch.rand(7, 1, 1, 2, generator=rng, dtype=F64)
    observed, y = random_measure(rng, 4), normal(rng, 4)
    model = GaussianProcess(StackedKernel(kernels), 0.2).condition(observed, y).as_botorch()
    assert model.batch_shape == (4,)
    got = model.posterior(x)
    assert got.mean.shape == (7, 4, 1, 1)
    bounds = UpperConfidenceBound(model, beta=4.0)(x)
    for u, kernel in enumerate(kernels):
        alone = GaussianProcess(kernel, 0.2).condition(observed, y).as_botorch()
        torch.testing.assert_close(got.mean[:, u], alone.posterior(x[:, 0]).mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(got.variance[:, u], alone.posterior(x[:, 0]).variance, rtol=0, atol=1e-9)
        torch.testing.assert_close(bounds[:, u], UpperConfidenceBound(alone, beta=4.0)(x[:, 0]), rtol=0, atol=1e-9)


def test_an_empty_stack_is_refused():
    with pytest.raises(ValueError, match="kernels must hold at least one kernel, got none"):
        StackedKernel([])


@pytest.mark.parametrize("batched", [RBFKernel(batch_shape=torch.Size([3])), StackedKernel([RBFKernel()])])
def test_a_member_with_batch_dimensions_is_refused(batched):
    shape = rf"\({batched.batch_shape[0]},\)"
    with pytest.raises(ValueError, match=rf"kernels must have no batch dimensions, got batch shape {shape} at index 1"):
        StackedKernel([RBFKernel(), batched])


@pytest.mark.parametrize(("first", "second"), [((3,), ()), ((), (4, 2)), ((2, 1), (3, 4))])
def test_inputs_of_another_batch_are_refused(first, second):
    x, z = torch.zeros(*first, 5, 2, dtype=F64), torch.zeros(*second, 6, 2, dtype=F64)
    with pytest.raises(ValueError, match=r"x1 and x2 must have batch dimensions that broadcast with \(4,\), got"):
        StackedKernel(members())(x, z)


def test_a_member_of_another_dtype_is_refused_by_name(rng):
    stacked, m = StackedKernel([rbf_kernel(0.4), rbf_kernel(0.4, dtype=torch.float32)]), random_measure(rng, 3)
    with pytest.raises(ValueError, match=r"got kernels\.1\.raw_outputscale of \(torch.float32"):
        covariance(stacked, m, m)


def test_coordinates_as_batches_are_refused(rng):
    x = torch.rand(5, 2, generator=rng, dtype=F64)
    with (
        pytest.warns(DeprecationWarning, match="last_dim_is_batch"),
        pytest.raises(ValueError, match="last_dim_is_batch must be False"),
    ):
        StackedKernel(members())(x, last_dim_is_batch=True)


def table(rng, *batch, n=6):
    """Covariances of a finite set."""
    root = torch.randn(*batch, n, n, generator=rng, dtype=F64)
    return root @ root.mT + 0.1 * torch.eye(n, dtype=F64)


def indices(*values):
    return torch.tensor(values, dtype=F64)[:, None]


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (1,)])
def test_a_table_is_looked_up(rng, batch):
    gram = table(rng, *batch)
    kernel = TabulatedKernel(gram)
    assert kernel.batch_shape == batch
    x, z = indices(4, 0, 0, 5), indices(2, 4, 1)
    i, j = [4, 0, 0, 5], [2, 4, 1]
    assert torch.equal(kernel(x, z).to_dense(), gram[..., i, :][..., j])
    assert torch.equal(kernel(x).to_dense(), gram[..., i, :][..., i])
    assert torch.equal(kernel(x, diag=True), gram[..., i, i])
    assert torch.equal(kernel(x[:2], z[:2], diag=True), gram[..., i[:2], j[:2]])


@pytest.mark.parametrize("make", [lambda rng: TabulatedKernel(table(rng, 4)), lambda rng: StackedKernel(members())])
def test_a_diagonal_may_be_as_long_as_the_batch(rng, make):
    kernel, x = make(rng), torch.arange(4, dtype=F64)[:, None].expand(4, 2)
    assert kernel(x, diag=True).shape == (4, 4)


def test_a_table_of_a_batch_sees_a_batch_of_indices(rng):
    gram = table(rng, 3)
    x, z = torch.randint(6, (2, 3, 4, 1), generator=rng).to(F64), torch.randint(6, (3, 5, 1), generator=rng).to(F64)
    got = TabulatedKernel(gram)(x, z).to_dense()
    assert got.shape == (2, 3, 4, 5)
    for a, r, i, j in np.ndindex(*got.shape):
        assert got[a, r, i, j] == gram[r, int(x[a, r, i]), int(z[r, j])]


@pytest.mark.parametrize("batch", [(), (3,)])
def test_sums_over_a_table_are_weighted_sums(rng, batch):
    gram = table(rng, *batch)
    kernel = TabulatedKernel(gram)
    points = torch.randint(6, (4, 2, 1), generator=rng).to(F64)
    a = Measure(points, torch.randn(4, 2, generator=rng, dtype=F64))
    spread = torch.zeros(4, 6, dtype=F64)
    for i, j in np.ndindex(4, 2):
        spread[i, int(points[i, j])] += a.weights[i, j]
    expected = spread @ gram @ spread.mT
    torch.testing.assert_close(covariance(kernel, a, a), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(variance(kernel, a), expected.diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_process_on_a_table_is_that_on_the_points(rng, batch):
    """Tabulated covariances of points and averages, tracked and conditioned, against the kernel itself."""
    measures, kernel = random_measure(rng, 7, p=2), rbf_kernel(0.4, 1.3)
    gram = covariance(kernel, measures, measures)
    looked_up = TabulatedKernel(((gram + gram.mT) / 2).expand(*batch, 7, 7))
    where = Measure.dirac(torch.arange(7, dtype=F64)[:, None])
    direct = GaussianProcess(kernel, 0.2).posterior(3).track(measures)
    tabulated = GaussianProcess(looked_up, 0.2).posterior(None if batch else 3).track(where)
    for _ in range(6):
        index, y = torch.randint(7, (3,), generator=rng), normal(rng, 3)
        direct.observe(index, y)
        tabulated.observe(index, y)
    torch.testing.assert_close(tabulated.mean, direct.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(tabulated.variance, direct.variance, rtol=0, atol=1e-10)
    torch.testing.assert_close(tabulated.log_marginal_likelihood, direct.log_marginal_likelihood, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (torch.zeros(3), r"gram must have shape \(\.\.\., n, n\) with n >= 1, got \(3,\)"),
        (torch.zeros(2, 3), r"gram must have shape \(\.\.\., n, n\) with n >= 1, got \(2, 3\)"),
        (torch.zeros(0, 0), r"gram must have shape \(\.\.\., n, n\) with n >= 1, got \(0, 0\)"),
        (torch.tensor([[1.0, 0.5], [0.4, 1.0]]), "gram must be symmetric, got"),
        (torch.tensor([[1.0, np.nan], [np.nan, 1.0]]), "gram must be finite, got nan"),
    ],
)
def test_a_table_that_is_no_covariance_is_refused(gram, message):
    with pytest.raises(ValueError, match=message):
        TabulatedKernel(gram)


def test_a_table_with_infinities_is_refused():
    with pytest.raises(ValueError, match="gram must be finite, got inf"):
        TabulatedKernel(torch.tensor([[np.inf, 0.0], [0.0, 1.0]]))


def test_a_table_is_told_from_another_and_follows_its_kernel():
    one, other = (TabulatedKernel(scale * torch.eye(2)) for scale in (1.0, 2.0))
    assert describe(one) != describe(other)
    assert one.to(F64).gram.dtype == F64


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_covariances_of_normal_averages_are_those_of_their_quadrature(rng, dim):
    length, scale = 0.4, 1.3
    nodes, weights = np.polynomial.hermite_e.hermegauss(24 if dim < 3 else 14)
    grid = torch.cartesian_prod(*[torch.from_numpy(nodes)] * dim).reshape(-1, dim)
    mass = torch.cartesian_prod(*[torch.from_numpy(weights / weights.sum())] * dim).reshape(-1, dim).prod(-1)
    inputs = torch.cat([torch.rand(3, dim, generator=rng, dtype=F64), torch.tensor([[0.0], [0.15], [0.3]])], -1)
    points = inputs[:, None, :dim] + inputs[:, None, dim:] * grid
    averages = Measure(points, mass.expand(points.shape[:-1]))
    got = GaussianMeasureKernel(length, scale)(inputs).to_dense()
    torch.testing.assert_close(got, covariance(rbf_kernel(length, scale), averages, averages), rtol=0, atol=1e-6)


def test_covariances_of_normal_averages_are_those_of_draws(rng):
    (x, s), (z, t), count = ([0.2, 0.5], 0.3), ([0.6, 0.1], 0.15), 400000
    draws = torch.randn(2, count, 2, generator=rng, dtype=F64)
    drawn = (-((torch.tensor(x) + s * draws[0] - torch.tensor(z) - t * draws[1]) ** 2).sum(-1) / (2 * 0.4**2)).exp()
    inputs = torch.tensor([[*x, s], [*z, t]], dtype=F64)
    got = GaussianMeasureKernel(0.4)(inputs).to_dense()[0, 1]
    assert float(got) == pytest.approx(float(drawn.mean()), abs=4.5 * float(drawn.std()) / count**0.5)


def test_averages_without_width_are_points(rng):
    x, z = torch.rand(5, 2, generator=rng, dtype=F64), torch.rand(4, 2, generator=rng, dtype=F64)
    points = [torch.cat([part, torch.zeros(len(part), 1, dtype=F64)], -1) for part in (x, z)]
    got = GaussianMeasureKernel(0.4, 1.3)(*points).to_dense()
    np.testing.assert_allclose(got, rbf(x, z, 0.4, 1.3), atol=1e-14)


@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_a_kernel_of_averages_takes_batches_and_diagonals(rng, shape):
    kernel = GaussianMeasureKernel(0.4, 1.3)
    x, z = torch.rand(*shape, 5, 3, generator=rng, dtype=F64), torch.rand(4, 3, generator=rng, dtype=F64)
    got = kernel(x, z).to_dense()
    assert got.shape == (*shape, 5, 4)
    for at in np.ndindex(*shape):
        torch.testing.assert_close(got[at], kernel(x[at], z).to_dense(), rtol=0, atol=1e-15)
    torch.testing.assert_close(
        kernel(x, diag=True), kernel(x, x).to_dense().diagonal(dim1=-2, dim2=-1), rtol=0, atol=1e-14
    )
    torch.testing.assert_close(kernel(x)[..., 1:3, :2].to_dense(), kernel(x).to_dense()[..., 1:3, :2])


def test_a_kernel_of_averages_is_positive_and_has_gradients(rng):
    kernel = GaussianMeasureKernel(0.4)
    x = torch.rand(30, 3, generator=rng, dtype=F64)
    assert float(torch.linalg.eigvalsh(kernel(x).to_dense()).min()) > -1e-12
    assert torch.autograd.gradcheck(lambda a: kernel(a, x[:2]).to_dense(), x[2:4].clone().requires_grad_())


@pytest.mark.parametrize("value", [0.0, -0.3, float("nan")])
def test_parameters_of_a_kernel_of_averages_must_be_positive(value):
    with pytest.raises(ValueError, match="lengthscale must be positive and finite, got"):
        GaussianMeasureKernel(value)
    with pytest.raises(ValueError, match="variance must be positive and finite, got"):
        GaussianMeasureKernel(0.3, value)


RBF, MATERN = RBFKernel, functools.partial(MaternKernel, nu=2.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda batch: MATERN(ard_num_dims=2, batch_shape=batch),
        lambda batch: RBF(ard_num_dims=2, active_dims=(0, 1), batch_shape=batch),
        lambda batch: ProductKernel(*(RBF(active_dims=(i,), ard_num_dims=1, batch_shape=batch) for i in (1, 0))),
        lambda batch: ProductKernel(RBF(batch_shape=batch, ard_num_dims=2), RBF(active_dims=(0,), batch_shape=batch)),
    ],
    ids=["Matern", "RBF", "product", "product that shares a coordinate"],
)
@pytest.mark.parametrize(
    ("batch", "left", "right"),
    [((3,), (3, 4, 2), (3, 6, 2)), ((3,), (4, 2), (6, 2)), ((), (5, 1, 4, 2), (3, 6, 2)), ((3,), (5, 3, 4, 2), (6, 2))],
)
def test_a_kernel_has_the_same_slopes_in_closed_form(rng, make, batch, left, right):
    kernel = make(torch.Size(batch)).to(F64)
    factors = kernels._factors(kernel)
    for part in factors:
        part.lengthscale = 0.2 + torch.rand(part.lengthscale.shape, generator=rng, dtype=F64)
    x, y = (torch.rand(shape, generator=rng, dtype=F64) for shape in (left, right))
    wrt = (x.requires_grad_(), y.requires_grad_(), *kernel.parameters())
    got, expected = kernels._closed(kernel, factors, x, y), to_dense(kernel(x, y))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    weights = torch.randn(got.shape, generator=rng, dtype=F64)
    slopes = [torch.autograd.grad((weights * matrix).sum(), wrt) for matrix in (got, expected)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-10)
    assert bool((kernels._closed(kernel, factors, x, x, diag=True) == 1).all())


@pytest.mark.parametrize(
    "kernel",
    [MATERN(), RBF(), MaternKernel(nu=1.5, ard_num_dims=2), ProductKernel(MATERN(), RBF()), ScaleKernel(RBF())],
)
def test_other_kernels_keep_the_slopes_of_gpytorch(kernel):
    assert not kernels._factors(kernel)


def test_a_kernel_is_its_own_again_after_a_fit_that_broke_off(rng):
    kernel, x = MATERN(ard_num_dims=2).to(F64), torch.rand(4, 2, generator=rng, dtype=F64)

    def broken_off():
        with kernels.slopes_in_closed_form(kernel):
            assert "forward" in vars(kernel)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert "forward" not in vars(kernel) and kernel(x).to_dense().shape == (4, 4)
