"""What a user may give as a space."""

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import Candidates, Space
from cbo_lib.kernels import rbf_kernel
from tests.hyperparameters.helpers import F64

UNIT = [[0.0], [1.0]]
MODEL = GaussianProcess(rbf_kernel(0.2), 0.1, 0.5)


@pytest.mark.parametrize(
    "box", [[[0, 1], [2, 4]], np.array([[0, 1], [2, 4]]), pd.DataFrame([[0.0, 1.0], [2.0, 4.0]])], ids=type
)
def test_a_domain_may_come_in_any_form(box):
    space = Space([RBFKernel()], bounds=box)
    assert space.bounds.dtype == F64 and space.bounds.tolist() == [[0, 1], [2, 4]] and space.dim == 2
    points = Space([RBFKernel()], points=box)
    assert points.like.tolist() == [[0, 1], [2, 4]] and len(points.finite()) == 2
    assert points.contains(torch.tensor([[0.0, 1.0], [0.0, 1.1]], dtype=F64)).tolist() == [True, False]
    assert space.contains(torch.tensor([[0.0, 4.0], [2.1, 2.0]], dtype=F64)).tolist() == [True, False]


def test_kernels_are_copied_and_of_the_run_s_precision():
    own = MaternKernel(2.5)
    space = Space([own, RBFKernel()], bounds=UNIT, names=["rough", "smooth"])
    assert space.candidates.names == ("rough", "smooth") and space.fitted == (True, True)
    assert space.noise_std is None and space.candidates.means == (0.0, 0.0)
    kernel = space.candidates.kernels[0]
    assert kernel is not own and own.raw_lengthscale.requires_grad and own.raw_lengthscale.dtype == torch.float32
    assert not kernel.raw_lengthscale.requires_grad and kernel.raw_lengthscale.dtype == F64


def test_gaussian_processes_are_taken_as_they_are():
    other = GaussianProcess(rbf_kernel(0.4, 9.0), 0.1, torch.tensor(2.0))
    space = Space([MODEL, other], bounds=UNIT)
    assert space.fitted == (False, False) and space.noise_std == 0.1 and space.candidates.means == (0.5, 2.0)
    assert space.candidates.kernels[0] is MODEL.kernel and space.candidates.names == ("candidate 1", "candidate 2")
    loud = Space([MODEL, GaussianProcess(rbf_kernel(0.4), 0.3)], bounds=UNIT)
    assert loud.noise_std.tolist() == [0.1, 0.3]
    assert loud.select([1]).noise_std == 0.3 and loud.select([1]).candidates.names == ("candidate 2",)


def test_noise_is_one_number_or_one_a_candidate():
    kernels, points = [rbf_kernel(0.2), rbf_kernel(0.4)], torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
    for wrong in ([0.1, 0.2], torch.full((2, 1), 0.1)):
        with pytest.raises(ValueError, match="noise_std must be a number, or with Candidates one each"):
            Space(kernels, points=points, noise_std=wrong)
    listed = Candidates(("a", "b"), kernels, (0.0, 0.0))
    with pytest.raises(ValueError, match="noise_std must be a number, or with Candidates one each"):
        Space(listed, points=points, noise_std=[0.1, 0.2, 0.3])
    assert Space(listed, points=points, noise_std=[0.1, 0.2]).noise_std.tolist() == [0.1, 0.2]
    assert Space(listed, points=points, noise_std=torch.tensor(0.5, dtype=torch.float64)).noise_std == 0.5
