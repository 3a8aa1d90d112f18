"""The same problems for the library and for the plain policies."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch

from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import decomposition_candidates, lengthscale_candidates, periodic_kernel
from book.hyperparameters.regret import watch
from cbo_lib.hyperparameters import Candidates, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators, standard_normal
from cbo_lib.simulate import simulate
from tests.hyperparameters import plain

F64 = torch.float64
SEEDS = (3, 0, 8)


def problem_of(
    f,
    candidates,
    points=None,
    bounds=None,
    noise_std=0.1,
    truth=None,
    epsilon=0.0,
    replicates=None,
):
    """A problem and its space in one."""
    space = Space(candidates, bounds=bounds, points=points, epsilon=epsilon, noise_std=noise_std)
    return UnknownPriorProblem(space, f, truth=truth, replicates=replicates)


def changed(problem, **changes):
    """The same problem but for some arguments of it or of its space."""
    known = {"candidates", "points", "bounds", "epsilon", "noise_std"}
    space = replace(problem.space, **{name: value for name, value in changes.items() if name in known})
    rest = {name: value for name, value in changes.items() if name not in known}
    return replace(problem, space=space, noise_std=None, **rest)


def line(count, low=0.0, high=1.0):
    return torch.linspace(low, high, count, dtype=F64)[:, None]


def run(problem, policy, steps, seeds=SEEDS, **options):
    return simulate(problem, policy, steps, seeds, watch=watch, **options)


def noise_draws(seed, steps):
    """What the simulation draws for one replicate, one number a round."""
    generators = ReplicateGenerators([seed], stream=0)
    like = torch.zeros(1, dtype=F64)
    return np.array([float(standard_normal(generators.at(t), (), like)) for t in range(1, steps + 1)])


@dataclass(frozen=True)
class Setting:
    """A problem, what the plain policies need of it, and multipliers under which candidates are dropped."""

    problem: UnknownPriorProblem
    priors: tuple
    initial: int
    scale: float = 1.0

    def beta(self, t):
        """Different for every candidate."""
        return self.scale * (0.4 + 0.15 * np.arange(len(self.priors))) * np.sqrt(np.log(t + 2.0))

    def sqrt_beta(self, t):
        return torch.from_numpy(self.beta(t))

    def make(self, policy, **options):
        """A policy with these multipliers and this design."""
        return policy(self.problem.space, sqrt_beta=self.sqrt_beta, initial=self.initial, **options)

    def world(self, replicate):
        problem, values = self.problem, self.problem.values.numpy()
        values = values if problem.replicates is None else values[replicate]
        return plain.World(problem.space.points.numpy(), values, list(self.priors), problem.noise_std)

    def design(self, history, replicate):
        """The initial design of a replicate, as indices."""
        first = history["query"][replicate, : self.initial]
        return [int((self.problem.space.points == x).all(-1).nonzero()) for x in first]

    def robust(self, epsilon):
        return replace(self, problem=changed(self.problem, epsilon=epsilon))


def bump(x):
    """A slope, and a narrow peak that long lengthscales do not expect."""
    return 0.8 * x[..., 0] - 0.3 + 1.1 * torch.exp(-0.5 * ((x[..., 0] - 0.23) / 0.05) ** 2)


def wave(x):
    """Of period one, with a faster wave inside."""
    return torch.sin(2 * torch.pi * x[..., 0] + 0.4) + 0.5 * torch.sin(8 * torch.pi * x[..., 0])


def mixed(x):
    """Only the first two coordinates interact."""
    return 1.2 * torch.sin(4 * x[..., 0] * x[..., 1] + 0.3) + 0.4 * torch.cos(5 * x[..., 2])


LENGTHSCALES = (0.05, 0.12, 0.3, 0.8)
PERIODS = ((1.0, 0.6), (0.25, 0.7), (0.37, 0.9))
GROUPS = (((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (1, 2)))
TALLEST = (1, 4, -1)


@dataclass(frozen=True)
class Mounds:
    """A prior mean with six bumps, one higher; for points of NumPy and of PyTorch."""

    tallest: int

    def heights(self):
        return [3.0 if i == self.tallest else 1.5 for i in range(6)]

    def __call__(self, x):
        exp = np.exp if isinstance(x, np.ndarray) else torch.exp
        return sum(h * exp(-0.5 * ((x[..., 0] - (i + 0.5) / 6) / 0.05) ** 2) for i, h in enumerate(self.heights()))


def own_mounds(x):
    """One function a replicate: other mounds, another phase."""
    parts = []
    for r, points in enumerate(x):
        parts.append(Mounds(TALLEST[(r + 1) % 3])(points) + 0.4 * torch.sin(7 * points[..., 0] + r))
    return torch.stack(parts)


def mounds_and_slope(x):
    return Mounds(1)(x) + 0.5 * x[..., 0]


@functools.cache
def setting(name):
    if name == "lengthscale":
        problem = problem_of(bump, lengthscale_candidates(LENGTHSCALES), line(40), truth=0)
        return Setting(problem, tuple(plain.Prior(plain.rbf(lengthscale)) for lengthscale in LENGTHSCALES), 2)
    if name == "period":
        kernels = tuple(periodic_kernel(*values) for values in PERIODS)
        candidates = Candidates(tuple(f"period {period}" for period, _ in PERIODS), kernels)
        problem = problem_of(wave, candidates, line(50, 0.0, 2.0), noise_std=0.15, truth=0)
        return Setting(problem, tuple(plain.Prior(plain.periodic(*values)) for values in PERIODS), 3)
    if name == "decomposition":
        axes = [torch.linspace(0, 1, n, dtype=F64) for n in (6, 5, 3)]
        candidates = decomposition_candidates(GROUPS, 0.4)
        problem = problem_of(mixed, candidates, torch.cartesian_prod(*axes), noise_std=0.05, truth=1)
        return Setting(problem, tuple(plain.Prior(plain.additive(groups, 0.4)) for groups in GROUPS), 2)
    if name == "mean":
        means = tuple(Mounds(i) for i in TALLEST)
        candidates = Candidates(("left", "right", "none"), (rbf_kernel(0.3), rbf_kernel(0.2), rbf_kernel(0.1)), means)
        truth = torch.tensor([1, 2, 0])
        problem = problem_of(own_mounds, candidates, line(45), noise_std=0.1, truth=truth, replicates=3)
        kernels = [plain.rbf(lengthscale) for lengthscale in (0.3, 0.2, 0.1)]
        return Setting(problem, tuple(plain.Prior(k, m) for k, m in zip(kernels, means, strict=True)), 0)
    if name == "shared kernel":  # means alone differ, so all candidates have one factor and one variance
        means = (Mounds(4), Mounds(1), 0.7)
        candidates = Candidates(("right", "left", "flat"), (rbf_kernel(0.15),) * 3, means)
        problem = problem_of(mounds_and_slope, candidates, line(42), truth=1)
        own = (means[0], means[1], lambda x: np.full(len(x), 0.7))
        return Setting(problem, tuple(plain.Prior(plain.rbf(0.15), m) for m in own), 2)
    raise ValueError(name)


SETTINGS = ("lengthscale", "period", "decomposition", "mean", "shared kernel")
