"""What a user may give as a space."""

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from cbo_lib.hyperparameters import Space
from tests.hyperparameters.helpers import F64, line


@pytest.mark.parametrize(
    "box", [[[0, 1], [2, 4]], np.array([[0, 1], [2, 4]]), pd.DataFrame([[0.0, 1.0], [2.0, 4.0]])], ids=type
)
def test_a_domain_may_come_in_any_form(box):
    space = Space([RBFKernel()], bounds=box, noise_std=0.1)
    assert space.bounds.dtype == F64 and space.bounds.tolist() == [[0, 1], [2, 4]] and space.dim == 2
    assert space.columns == ["x1", "x2"]
    points = Space([RBFKernel()], points=box, noise_std=0.1, names=["heat", "time"])
    assert points.like.tolist() == [[0, 1], [2, 4]] and points.columns == ["heat", "time"]
    assert points.contains(torch.tensor([[0.0, 1.0], [0.0, 1.1]], dtype=F64)).tolist() == [True, False]
    assert space.contains(torch.tensor([[0.0, 4.0], [2.1, 2.0]], dtype=F64)).tolist() == [True, False]


def test_kernels_are_copied_and_of_the_run_s_precision():
    own = MaternKernel(2.5)
    space = Space([own, RBFKernel()], points=line(5), noise_std=0.1)
    assert space.candidates.names == ("candidate 1", "candidate 2") and space.candidates.means == (0.0, 0.0)
    kernel = space.candidates.kernels[0]
    assert kernel is not own and own.raw_lengthscale.requires_grad and own.raw_lengthscale.dtype == torch.float32
    assert not kernel.raw_lengthscale.requires_grad and kernel.raw_lengthscale.dtype == F64


def test_the_worst_value_is_that_of_the_points_within_epsilon():
    points = torch.cartesian_prod(*[torch.linspace(0, 1, 6, dtype=F64)] * 2)
    space = Space([RBFKernel()], points=points, noise_std=0.1, epsilon=0.3)
    values = torch.sin(7 * points[:, 0]) * torch.cos(5 * points[:, 1])
    near = (points[:, None] - points).norm(dim=-1) <= 0.3 + 1e-9
    expected = torch.stack([values[row].min() for row in near])
    assert torch.equal(space.worst(values), expected)
