import pytest
import torch
from gpytorch.kernels import MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.kernels.rbf_kernel_grad import RBFKernelGrad
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.former.split import SplitKernel, pivoted_factor
from cbo_lib.kernels import StackedKernel, rbf_kernel

F64 = torch.float64
MASKS = torch.tensor([[True, False, True], [False, True, False], [True, True, True], [False, False, False]])


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=F64)


def random_kernel(rng, batch=()):
    """A scaled product of scaled RBFs on all and on some coordinates, with hyperparameters of its own an element."""
    parts = []
    for dims in (None, [0, 2], [1]):
        kernel = RBFKernel(ard_num_dims=3 if dims is None else len(dims), active_dims=dims, batch_shape=batch).to(F64)
        kernel.lengthscale = 0.3 + torch.rand(kernel.lengthscale.shape, generator=rng, dtype=F64)
        scaled = ScaleKernel(kernel, batch_shape=batch).to(F64)
        scaled.outputscale = 0.5 + torch.rand(batch, generator=rng, dtype=F64)
        parts.append(scaled)
    return ProductKernel(*parts).requires_grad_(False)


# Splitting


@pytest.mark.parametrize("batch", [(), (4,), (2, 4)])
def test_the_factors_multiply_to_the_kernel(rng, batch):
    kernel = random_kernel(rng, torch.Size(batch))
    x, y = uniform(rng, 5, 3), uniform(rng, 6, 3)
    wanted = kernel(x, y).to_dense()
    assert wanted.shape == (*batch, 5, 6)
    for controlled in MASKS:
        split = SplitKernel.of(kernel, controlled, len(batch))
        torch.testing.assert_close(split.controlled(x, y) * split.free(x, y), wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(split.scale, kernel(x[:1], x[:1]).to_dense()[..., 0, 0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_each_factor_sees_its_own_coordinates_alone(rng, batch):
    kernel = random_kernel(rng, torch.Size(batch))
    x, y = uniform(rng, 5, 3), uniform(rng, 6, 3)
    for controlled in MASKS:
        split = SplitKernel.of(kernel, controlled, len(batch))
        for factor, own, at_zero in ((split.controlled, controlled, split.scale), (split.free, ~controlled, 1.0)):
            value = factor(x, y)
            other = factor(*(torch.where(own, p, torch.tensor(float("nan"), dtype=F64)) for p in (x, y)))
            assert torch.allclose(value, other) and torch.allclose(
                value, factor(*(torch.where(own, p, 9.0) for p in (x, y)))
            )
            diagonal = factor(x, x).diagonal(dim1=-2, dim2=-1)
            wanted = torch.as_tensor(at_zero, dtype=F64).unsqueeze(-1).expand_as(diagonal)
            torch.testing.assert_close(diagonal, wanted, rtol=0, atol=1e-9)


def test_other_kernels_are_divided_by_their_value_at_zero(rng):
    batch = torch.Size([4])
    matern = ScaleKernel(MaternKernel(1.5, active_dims=[1], batch_shape=batch), batch_shape=batch).to(F64)
    matern.outputscale, matern.base_kernel.lengthscale = 0.5 + uniform(rng, 4), 0.2 + uniform(rng, 4, 1, 1)
    kernel = ProductKernel(random_kernel(rng, batch), ProductKernel(rbf_kernel(0.4, 3.0), matern)).requires_grad_(False)
    x, y = uniform(rng, 5, 3), uniform(rng, 6, 3)
    for controlled in MASKS:
        split = SplitKernel.of(kernel, controlled, 1)
        torch.testing.assert_close(
            split.controlled(x, y) * split.free(x, y), kernel(x, y).to_dense(), rtol=0, atol=1e-9
        )
        torch.testing.assert_close(
            split.free(x, x).diagonal(dim1=-2, dim2=-1), torch.ones(4, 5, dtype=F64), rtol=0, atol=1e-9
        )


def test_kernels_that_only_look_like_an_rbf_are_refused():
    """One gives derivatives beside values, the other is a list of kernels that may differ."""
    for kernel in (RBFKernelGrad(), StackedKernel([rbf_kernel(0.3), rbf_kernel(0.4)])):
        with pytest.raises(ValueError, match=f"got a {type(kernel).__name__} that is not"):
            SplitKernel.of(kernel, MASKS[0], 1)


# Pivoted factors


def unit_rbf(x, y):
    return (-0.5 * torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()).exp()


def clusters(seed, sizes, spread, d, box):
    """Points in clumps, some of them one point several times."""
    rng = torch.Generator().manual_seed(seed)
    centers = box * uniform(rng, len(sizes), d)
    return torch.cat(
        [c + spread * torch.randn(n, d, generator=rng, dtype=F64) for c, n in zip(centers, sizes, strict=True)]
    )


@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    spread=st.sampled_from([0.0, 1e-9, 1e-4, 0.1, 1.0]),
    d=st.integers(1, 4),
    box=st.sampled_from([0.01, 1.0, 10.0, 1e3]),
    tolerance=st.sampled_from([1e-30, 1e-14, 1e-10, 1e-4, 0.3]),
)
def test_a_factor_leaves_no_more_than_it_says(seed, sizes, spread, d, box, tolerance):
    points = clusters(seed, sizes, spread, d, box)
    factor = pivoted_factor(unit_rbf, points, len(points), tolerance)
    assert factor is not None and factor.shape[0] == len(points) and 1 <= factor.shape[1] <= len(points)
    rest = unit_rbf(points, points) - factor @ factor.mT
    assert float(rest.abs().max()) <= max(tolerance, 8 * torch.finfo(F64).eps) + 5e-15


def test_as_many_columns_as_there_are_different_points():
    points = torch.tensor([[0.0], [7.0], [0.0], [7.0], [7.0], [30.0]], dtype=F64)
    factor = pivoted_factor(unit_rbf, points, 6, 1e-14)
    assert factor.shape == (6, 3)
    torch.testing.assert_close(factor @ factor.mT, unit_rbf(points, points), rtol=0, atol=1e-9)
