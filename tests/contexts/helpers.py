"""Small problems, and the random draws of a run, shared by the tests of unknown contexts."""

from dataclasses import dataclass, replace

import torch

from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal, Uniform
from cbo_lib.random import ReplicateGenerators

F64 = torch.float64
SMALL = {"kernel": "rbf", "initial": 4, "raw": 32, "starts": 2, "iterations": 15}


def box(low, high, dim):
    return torch.tensor([[low] * dim, [high] * dim], dtype=F64)


def hill(noise_std=0.05, scale=1.0):
    """One decision in [0, 2], one context in [-1, 1]: the best decision moves with the context."""

    def f(points):
        x, c = points[..., 0], points[..., 1]
        return scale * ((-((x - 0.8 - 0.5 * c) ** 2) / 0.1).exp() + 0.6 * (-((x - 1.6) ** 2) / 0.02).exp() - 0.2 * c)

    contexts = QuadratureDistribution((Normal(0.1, 0.4),), box(-1.0, 1.0, 1), ((-0.5, 0.0, 0.5),))
    return ContextProblem(Space(box(0.0, 2.0, 1), box(-1.0, 1.0, 1)), f, contexts, noise_std, name="hill")


def plane(noise_std=0.05):
    """Two decisions and two contexts in the unit box."""

    def f(points):
        x, c = points[..., :2], points[..., 2:]
        return (-((x - 0.3 - 0.4 * c).square().sum(-1)) / 0.2).exp() + 0.3 * c[..., 0]

    contexts = QuadratureDistribution((Normal(0.5, 0.2), Uniform()), box(0.0, 1.0, 2), order=8)
    return ContextProblem(Space(box(0.0, 1.0, 2), box(0.0, 1.0, 2)), f, contexts, noise_std, name="plane")


@dataclass(frozen=True)
class Always:
    """A marginal whose draws all agree."""

    place: float

    def density(self, c):
        return torch.ones_like(c)

    def cdf(self, c):
        return (c >= self.place).to(c)

    def inverse_cdf(self, u):
        return torch.full_like(u, self.place)


def constant(place=0.3):
    """``hill`` with a context that never changes."""
    contexts = QuadratureDistribution((Always(place),), box(-1.0, 1.0, 1))
    return replace(hill(), distribution=contexts, name="constant")


def choices(seed, step):
    """The generator of a policy's choices at a step, from 1; step 0 is the start."""
    return ReplicateGenerators([seed], stream=1).at(step)[0]


def kde_draws(generator, samples, dim, n):
    """Indices and normal numbers in the order in which ``GaussianKDE.sample`` draws them."""
    index = torch.randint(n, (samples,), generator=generator)
    return index.numpy(), torch.randn(samples, dim, generator=generator, dtype=F64).numpy()
