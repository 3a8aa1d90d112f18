"""Small problems, shared by the tests of unknown contexts."""

import torch

from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal, Uniform

F64 = torch.float64


def box(low, high, dim):
    return torch.tensor([[low] * dim, [high] * dim], dtype=F64)


def hill(noise_std=0.05):
    """One decision in [0, 2], one context in [-1, 1]: the best decision moves with the context."""

    def f(points):
        x, c = points[..., 0], points[..., 1]
        return (-((x - 0.8 - 0.5 * c) ** 2) / 0.1).exp() + 0.6 * (-((x - 1.6) ** 2) / 0.02).exp() - 0.2 * c

    contexts = QuadratureDistribution((Normal(0.1, 0.4),), box(-1.0, 1.0, 1), ((-0.5, 0.0, 0.5),))
    return ContextProblem(Space(box(0.0, 2.0, 1), box(-1.0, 1.0, 1)), f, contexts, noise_std, name="hill")


def plane(noise_std=0.05):
    """Two decisions and two contexts in the unit box."""

    def f(points):
        x, c = points[..., :2], points[..., 2:]
        return (-((x - 0.3 - 0.4 * c).square().sum(-1)) / 0.2).exp() + 0.3 * c[..., 0]

    contexts = QuadratureDistribution((Normal(0.5, 0.2), Uniform()), box(0.0, 1.0, 2), order=8)
    return ContextProblem(Space(box(0.0, 1.0, 2), box(0.0, 1.0, 2)), f, contexts, noise_std, name="plane")
