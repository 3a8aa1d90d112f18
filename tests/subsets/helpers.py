"""Small problems, and policies that show what they looked for, which the tests share."""

import functools

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from cbo_lib.distributions import Uniform
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from cbo_lib.subsets import Effort, Space
from cbo_lib.subsets.search import Search
from tests.subsets import plain

F64 = torch.float64
SEEDS = (3, 0, 8)
FEW = Effort(contexts=16, candidates=16, iterations=3)
HARD = Effort(contexts=16, candidates=256, iterations=60)


def hill(x):
    """Positive, with a different best point for every subset."""
    return 2 + torch.sin(4 * x[..., 0]) + x[..., 1] * torch.cos(3 * x[..., 2])


def tilted(x):
    """Of two variables; positive."""
    return 1.5 + torch.sin(5 * x[..., 0]) - (x[..., 1] - 0.3) ** 2 + 0.4 * x[..., 0] * x[..., 1]


def ard(lengthscales, variance=1.0):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=len(lengthscales))).to(dtype=F64)
    kernel.base_kernel.lengthscale = torch.tensor(lengthscales, dtype=F64)
    kernel.outputscale = torch.tensor(variance, dtype=F64)
    return kernel.requires_grad_(False)


def unit(dim):
    return torch.tensor([[0.0] * dim, [1.0] * dim], dtype=F64)


@functools.cache
def solid(costs=(0.3, 0.05, 0.6, 0.2), cost_std=0.02, f=hill, budget=10.0, noise_std=0.1):
    """Three variables; the costs do not ascend, and the full set is not the dearest."""
    free = (truncated_normal(0.02), truncated_normal(0.04), Uniform())
    space = Space(unit(3), ((0,), (1, 2), (0, 1), (0, 1, 2)), free, budget)
    return SubsetProblem(space, f, torch.tensor(costs, dtype=F64), cost_std, noise_std, "solid", nodes=128)


@functools.cache
def flat(costs=(0.2, 0.1, 0.5), cost_std=0.0, budget=6.0):
    """Two variables, two subsets of which no one knows the full set's value, and the full set."""
    space = Space(unit(2), ((0,), (1,), (1, 0)), (truncated_normal(0.02), Uniform()), budget)
    return SubsetProblem(space, tilted, torch.tensor(costs, dtype=F64), cost_std, 0.1, "flat", nodes=128)


@functools.cache
def partial():
    """Three variables and no full set; all subsets are of the same size."""
    space = Space(unit(3), ((2, 0), (0, 1), (1, 2)), (truncated_normal(0.02),) * 3, 8.0)
    costs, noise = torch.tensor([0.3, 0.2, 0.1], dtype=F64), torch.tensor([0.02, 0.02, 0.0], dtype=F64)
    return SubsetProblem(space, hill, costs, noise, 0.1, "partial", nodes=128)


def prior(problem, lengthscales=(0.4, 0.7, 0.6), variance=1.0, mean=2.0, noise_std=None):
    noise_std = problem.noise_std if noise_std is None else noise_std
    return GaussianProcess(ard(lengthscales[: problem.space.dim], variance), noise_std, mean)


def run(problem, policy, steps, seeds=SEEDS, **options):
    return simulate(problem, policy, steps, seeds, progress=False, **options)


def exhausted(problem):
    """Says of which replicates the budget did not pay for the last play."""
    return lambda record: record["spent"] > problem.space.budget


class Spy(Search):
    """Keeps what it was told and what every search found."""

    def __init__(self, problem, process, replicates, effort):
        super().__init__(problem.space, process.posterior(replicates), replicates, effort)
        self.watch(problem)

    def watch(self, problem):
        self.problem, self.told, self.found, self.sampled = problem, [], [], []

    def observe(self, points, y):
        self.update(self.posterior.extend(Measure.dirac(points.unsqueeze(-2)), y.unsqueeze(-1)))
        self.told.append((points, y))

    def maximize(self, wanted, sqrt_beta, keep=True, ahead=None):
        decisions = super().maximize(wanted, sqrt_beta, keep, ahead)
        self.found.append((len(self.told), sqrt_beta, wanted.clone(), decisions))
        return decisions

    def maximize_paths(self, values):
        maxima, points = super().maximize_paths(values)
        self.sampled.append((maxima, points))
        return maxima, points

    def belief(self, replicate, count=None):
        """The plain process of one replicate after some observations, default all."""
        told = self.told[:count]
        x = np.array([points[replicate].numpy() for points, _ in told]).reshape(len(told), self.space.dim)
        y = np.array([float(y[replicate]) for _, y in told])
        return plain.Belief(world_of(self.problem, self.posterior.prior, self.effort), x, y)


def told(problem, process, replicates, count, effort=FEW, seed=1):
    """A search that saw the same number of noisy values at random points of each replicate."""
    search = Spy(problem, process, replicates, effort)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        points = torch.rand(replicates, problem.space.dim, generator=rng, dtype=F64)
        noise = problem.noise_std * torch.randn(replicates, generator=rng, dtype=F64)
        search.observe(points, problem.f(points) + noise)
    return search


def world_of(problem, process, effort):
    """The plain counterpart of a problem, a prior and an effort."""
    kernel = process.kernel
    return plain.World(
        control_sets=problem.space.control_sets,
        lengthscales=kernel.base_kernel.lengthscale.flatten().numpy(),
        variance=float(kernel.outputscale),
        noise_std=float(process.noise_std),
        mean=float(process.mean),
        contexts=problem.space.samples(effort.contexts).numpy(),
    )


def watched(problem, policy):
    """A policy whose search is spied on."""
    begin, learn = policy.begin, policy.learn

    def begins():
        begin()
        policy.search.__class__ = Spy
        policy.search.watch(problem)

    def learns(row, asked):
        learn(row, asked)
        policy.search.told.append((row["query"], row["y"]))

    policy.begin, policy.learn = begins, learns
    return policy


def choices(seed, step):
    """The generator that a policy draws from in a step, counted from one."""
    (generator,) = ReplicateGenerators([seed], stream=1).at(step)
    return generator


def drawn_path(belief, generator, features):
    """The plain path from the numbers that one generator gives."""
    normal = torch.randn(features, belief.world.dim + 1, generator=generator, dtype=F64).numpy()
    phase = 2 * np.pi * torch.rand(features, generator=generator, dtype=F64).numpy()
    count = len(belief.y)
    noise = torch.randn(count, generator=generator, dtype=F64).numpy() if count else None
    return plain.Path(belief, normal[:, :-1], phase, normal[:, -1], noise)
