"""Small problems that the tests share."""

import functools

import torch

from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from cbo_lib.distributions import Uniform
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.subsets import Space
from tests.subsets import plain

F64 = torch.float64
LENGTHS, VARIANCE, NOISE, MEAN = (0.4, 0.7), 1.3, 0.1, 1.5
SETS = ((0,), (1,), (0, 1))


def unit(dim):
    return torch.tensor([[0.0] * dim, [1.0] * dim], dtype=F64)


def tilted(x):
    """Of two variables; positive."""
    return 1.5 + torch.sin(5 * x[..., 0]) - (x[..., 1] - 0.3) ** 2 + 0.4 * x[..., 0] * x[..., 1]


@functools.cache
def flat(costs=(0.2, 0.1, 0.5), budget=6.0):
    """Two variables, each alone and both; costs do not ascend."""
    space = Space(unit(2), SETS, (truncated_normal(0.02), Uniform()), budget, floor=0.0)
    return SubsetProblem(space, tilted, torch.tensor(costs, dtype=F64), 0.02, NOISE, "flat", nodes=128)


def prior():
    return GaussianProcess(rbf_kernel(list(LENGTHS), VARIANCE), NOISE, MEAN)


def world(contexts):
    """The same as plain numbers."""
    return plain.World(SETS, torch.tensor(LENGTHS).numpy(), VARIANCE, NOISE, MEAN, contexts.numpy())
