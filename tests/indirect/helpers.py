"""Small problems that the tests share."""

import functools

import numpy as np
import torch

from book.indirect.problem import IndirectProblem
from book.indirect.problems import draw_data, known_prior, unit_grid
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, ConditionalMeanEmbedding, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators, standard_normal
from tests.indirect import plain

F64 = torch.float64
SEEDS = (3, 0, 8)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
LENGTH, ACTION_LENGTH, RIDGE, PAIRS = 0.3, 0.25, 1e-3, 30


def ripple(x):
    """Smooth, with one best point off the center."""
    return torch.sin(5 * x[..., 0]) + torch.cos(4 * x[..., 1] - 1) - 0.5 * x[..., 0] * x[..., 1]


def identity(a):
    return a[..., :2]


def cosine_map(a):
    return torch.cos(torch.pi * a / 2)


@functools.cache
def square(kind="known", noise_std=0.2, count=6, priced=False):
    """Averages over clipped normal distributions on a grid, seen through the cosine; and a prior.

    Of ``"learned"`` ones each replicate has pairs of its own.
    """
    grid, conditional = unit_grid(count), ClippedGaussian(cosine_map, 0.08, UNIT)
    cost = 0.5 + torch.arange(len(grid), dtype=F64) % 3 if priced else 1.0
    space = Space(grid, conditional=conditional, points=grid, noise_std=noise_std, cost=cost)
    if kind == "known":
        return IndirectProblem(space, ripple, order=31), known_prior(LENGTH)
    estimate = ConditionalMeanEmbedding(*draw_data(space, PAIRS, SEEDS, UNIT), ACTION_LENGTH, RIDGE)
    other = Space(grid, conditional=estimate, points=grid, noise_std=noise_std, cost=cost)
    return IndirectProblem(other, ripple, conditional, order=31), GaussianProcess(rbf_kernel(LENGTH), 0.1)


def gram(problem, kind, replicate):
    """The prior covariance of all places of one replicate, entry by entry."""
    grid = problem.space.actions.numpy()
    if kind == "learned":
        estimate = problem.space.conditional
        weights = plain.ridge_weights(estimate.a[replicate].numpy(), grid, ACTION_LENGTH, RIDGE)
        return plain.joint(estimate.x[replicate].numpy(), weights, grid, LENGTH)
    centers, tau = cosine_map(problem.space.actions).numpy(), 0.08
    places = np.concatenate([centers, grid])
    width = LENGTH**2 + np.add.outer(*[np.repeat([tau**2, 0.0], len(grid))] * 2)
    squared = ((places[:, None] - places[None]) ** 2).sum(-1)
    return LENGTH**2 / width * np.exp(-squared / (2 * width))


def noise_draws(seed, steps):
    """What the simulation draws for one replicate, one number a round."""
    generators, like = ReplicateGenerators([seed], stream=0), torch.zeros(1, dtype=F64)
    return np.array([float(standard_normal(generators.at(t), (), like)) for t in range(1, steps + 1)])


def uniforms(seed, step, count):
    """What the policy of one replicate draws first in a round, counted from one."""
    (generator,) = ReplicateGenerators([seed], stream=1).at(step)
    return torch.rand(count, generator=generator, dtype=F64).clamp(1e-6, 1 - 1e-6).numpy()
