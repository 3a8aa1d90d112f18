"""A kernel of the unit box, at points of it, is its image in the user's box at the images of the points."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from cbo_lib.former.unit_box import in_units, lengthscales

F64 = torch.float64
LOW, SIDE = torch.tensor([-3.0, 100.0], dtype=F64), torch.tensor([10.0, 0.5], dtype=F64)


class Doubled(Kernel):
    """A kernel that only its author knows, with an RBF kernel inside."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = RBFKernel()

    def forward(self, x1, x2, diag=False, **params):
        return 2 * self.inner.forward(x1, x2, diag=diag, **params)


# Kernels, and which coordinates have exactly one lengthscale.
KERNELS = {
    "one lengthscale": (lambda: RBFKernel(), [True, True]),
    "one a coordinate": (lambda: MaternKernel(nu=1.5, ard_num_dims=2), [True, True]),
    "one coordinate": (lambda: ScaleKernel(RBFKernel(active_dims=[1])), [False, True]),
    "a product": (lambda: RBFKernel(active_dims=[0]) * MaternKernel(active_dims=[1]), [True, True]),
    "a sum": (lambda: ScaleKernel(RBFKernel()) + MaternKernel(active_dims=[0]), [False, True]),
    "another kind": (lambda: ScaleKernel(PeriodicKernel()), [False, False]),
    "one of another kind": (
        lambda: ScaleKernel(RBFKernel(active_dims=[0])) * PeriodicKernel(active_dims=[1]),
        [True, False],
    ),
    "a kernel inside": (lambda: Doubled(active_dims=[1]) + RBFKernel(active_dims=[0]), [True, False]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_lengthscales_are_those_of_the_unit_box(name, rng):
    make, known = KERNELS[name]
    kernel = make().to(F64)
    for parameter in kernel.parameters():
        parameter.data = 0.5 * torch.rand(parameter.shape, generator=rng, dtype=F64) - 1.0
    x, z = (torch.rand(n, 2, generator=rng, dtype=F64) for n in (5, 7))
    other = in_units(kernel, LOW, SIDE)
    expected = kernel(x, z).to_dense()
    torch.testing.assert_close(other(LOW + SIDE * x, LOW + SIDE * z).to_dense(), expected, rtol=1e-9, atol=1e-9)
    found = (lengthscales(other, 1, SIDE) / SIDE)[0]
    assert found.isfinite().tolist() == known
    if name == "one lengthscale":
        torch.testing.assert_close(found, kernel.lengthscale.detach().expand(1, 2)[0])
    if name == "one of another kind":
        torch.testing.assert_close(found[0], kernel.kernels[0].base_kernel.lengthscale.detach()[0, 0])
