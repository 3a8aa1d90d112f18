import functools

import numpy as np
import torch

from book.aggregated.problem import CellProblem
from book.aggregated.problems import aggregated_reward_curve
from cbo_lib.aggregated import Space
from cbo_lib.gp import GaussianProcess
from cbo_lib.random import ReplicateGenerators, standard_normal
from tests.aggregated.plain import World

F64 = torch.float64


UNIT = torch.tensor([[0.0], [1.0]], dtype=F64)


def cell_problem(f, dim=1, branching=2, points_per_cell=10, noise_std=0.1, replicates=None, **options):
    """A problem on the unit box, or on other ``bounds``."""
    bounds = options.pop("bounds", UNIT.expand(2, dim))
    return CellProblem(Space(bounds, branching, points_per_cell, **options), f, noise_std, replicates)


def made(policy, problem, kernel, noise_std=None, **options):
    """A policy that knows the kernel, and the noise of the problem or another one."""
    return policy(problem.space, prior=GaussianProcess(kernel, noise_std or problem.noise_std), **options)


def hills(x):
    """Two unequal bumps on the unit square, off every grid."""
    near = torch.exp(-8 * ((x[..., 0] - 0.31) ** 2 + (x[..., 1] - 0.77) ** 2))
    return near + 0.8 * torch.exp(-12 * ((x[..., 0] - 0.83) ** 2 + (x[..., 1] - 0.21) ** 2))


@functools.cache
def curve(name):
    return hills if name == "hills" else aggregated_reward_curve(name)


def both(name, branching=2, points=10, noise_std=0.1):
    """One problem for the library, and the same for the plain policies."""
    f, dim = curve(name), 2 if name == "hills" else 1
    problem = cell_problem(f, dim, branching, points, noise_std)

    def plain_f(x):
        return f(torch.from_numpy(x)).numpy()

    return problem, World(plain_f, dim, branching, points, noise_std)


def noise_draws(seed, steps):
    """What the simulation draws for one replicate, one number a round."""
    generators = ReplicateGenerators([seed], stream=0)
    like = torch.zeros(1, dtype=F64)
    return np.array([float(standard_normal(generators.at(t), (), like)) for t in range(1, steps + 1)])


def nodes_of(tree, boxes):
    """The pairs (depth, index) of cells ``m x 2 x d`` of a tree."""
    found = []
    for box in boxes:
        same = (tree.boxes == box).all(-1).all(-1).nonzero().flatten()
        assert len(same) == 1
        found.append((int(tree.depth[same]), int(tree.index[same])))
    return found


def fourier(seed):
    """A random smooth function of points of any dimension."""
    rng = np.random.default_rng(seed)
    weights, frequencies, phases = rng.normal(size=6), rng.normal(size=6) * 5, rng.uniform(0, 6, 6)

    def f(x):
        terms = [w * torch.cos(q * x.sum(-1) + p) for w, q, p in zip(weights, frequencies, phases, strict=True)]
        return torch.stack(terms).sum(0)

    return f
