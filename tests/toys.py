"""Random measures and numbers, and a grid."""

import torch

from cbo_lib.measure import Measure


def random_measure(rng, *shape, p=3, d=2):
    """Signed weights that sum to nothing in particular."""
    points = torch.rand(*shape, p, d, generator=rng, dtype=torch.float64)
    return Measure(points, torch.randn(*shape, p, generator=rng, dtype=torch.float64))


def normal(rng, *shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def grid(count, device=None):
    return torch.linspace(0, 1, count, dtype=torch.float64, device=device).unsqueeze(-1)
