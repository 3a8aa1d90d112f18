"""Small problems that the tests share."""

import functools
from dataclasses import replace

import numpy as np
import torch

from book.indirect.problem import IndirectProblem
from book.indirect.problems import draw_data, known_prior, unit_grid
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, ConditionalMeanEmbedding, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators, standard_normal

F64 = torch.float64
SEEDS = (3, 0, 8)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)


def ripple(x):
    """Smooth, with one best point off the center."""
    return torch.sin(5 * x[..., 0]) + torch.cos(4 * x[..., 1] - 1) - 0.5 * x[..., 0] * x[..., 1]


def identity(a):
    return a[..., :2]


def cosine_map(a):
    return torch.cos(torch.pi * a / 2)


def problem_of(f, points, actions, conditional, noise_std=0.1, cost=None, order=65):
    """A problem whose learner knows p(x | a), the noise and the cost."""
    space = Space(actions, conditional=conditional, points=points, noise_std=noise_std, cost=cost)
    return IndirectProblem(space, f, order=order)


@functools.cache
def square(cosine=False, count=6, noise_std=0.2, spread=0.08):
    """Averages over clipped normal distributions on a grid."""
    grid = unit_grid(count)
    conditional = ClippedGaussian(cosine_map if cosine else identity, spread, UNIT)
    return problem_of(ripple, grid, grid, conditional, noise_std, order=31)


@functools.cache
def priced(count=5):
    """Actions of unequal cost and noise."""
    grid = unit_grid(count)
    cost = 0.5 + torch.arange(len(grid), dtype=F64) % 3
    return problem_of(ripple, grid, grid, ClippedGaussian(identity, 0.08, UNIT), 0.3 / cost, cost, 31)


def drawn(problem, prior, seed):
    """The same problem with g and f drawn from a prior without batch."""
    gram = prior.kernel.gram
    root = torch.linalg.cholesky(gram + 1e-8 * torch.eye(len(gram), dtype=F64))
    other = replace(problem)
    other.__dict__["table"] = root @ torch.randn(len(gram), generator=torch.Generator().manual_seed(seed), dtype=F64)
    return other


def run(problem, policy, steps, seeds=SEEDS, **options):
    return simulate(problem, policy, steps, seeds, progress=False, **options)


def learned(problem, seeds=SEEDS, count=30):
    """A prior with its own D1 for each replicate."""
    return estimated_prior(problem, *draw_data(problem, count, seeds, UNIT), 0.3, 0.25, 1e-3)


def estimated_prior(problem, x, a, lengthscale, action_lengthscale, regularization, variance=1.0):
    space = replace(problem.space, conditional=ConditionalMeanEmbedding(x, a, action_lengthscale, regularization))
    return space.tabulate(GaussianProcess(rbf_kernel(lengthscale, variance), float(problem.noise.amin())))


def known(problem):
    return known_prior(problem.space, 0.3)


def grams(prior, replicates):
    """The covariance of all places for each replicate, as arrays."""
    gram = prior.kernel.gram
    return gram.expand(replicates, *gram.shape[-2:]).numpy()


def noise_draws(seed, steps):
    """What the simulation draws for one replicate, one number a round."""
    generators, like = ReplicateGenerators([seed], stream=0), torch.zeros(1, dtype=F64)
    return np.array([float(standard_normal(generators.at(t), (), like)) for t in range(1, steps + 1)])


def uniforms(seed, step, count):
    """What the policy of one replicate draws first in a round, counted from one."""
    (generator,) = ReplicateGenerators([seed], stream=1).at(step)
    return torch.rand(count, generator=generator, dtype=F64).clamp(1e-6, 1 - 1e-6).numpy()
