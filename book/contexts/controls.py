"""Policies to judge the others by: one that does not look, and one that knows the distribution."""

from typing import Any

import torch
from torch import Tensor

from book.contexts.quadrature import ContextDistribution
from cbo_lib.acquisition import DecisionAcquisition
from cbo_lib.contexts.policies import SBOKDE, ContextPolicy
from cbo_lib.contexts.space import Space
from cbo_lib.gp import Posterior
from cbo_lib.random import uniform


class RandomDecisions(ContextPolicy):
    """Independent uniform decisions; the model serves the recommendation alone."""

    def propose(self) -> Tensor:
        """A uniform decision."""
        self.posteriors()
        low, high = self.space.decisions
        draws = uniform(self.generators, (len(low),), low)
        return self.asking(low + (high - low) * draws, low.new_zeros(len(draws)))

    def acquisition(self, posterior: Posterior) -> DecisionAcquisition:
        """There is none.

        Raises:
            ValueError: always.
        """
        raise ValueError("a random policy has no acquisition")


class KnownDensity(SBOKDE):
    """SBO with samples of a distribution that its user knows, in the place of the estimate.

    With the true distribution it is the ceiling for SBO-KDE.

    Args:
        space: see ``ContextPolicy``.
        distribution: of the contexts.
        samples: see ``SBOKDE``.
        options: see ``ContextPolicy``.

    Raises:
        ValueError: if the distribution is not on the box of contexts.
    """

    def __init__(self, space: Space, *, distribution: ContextDistribution, samples: int = 1024, **options: Any) -> None:
        super().__init__(space, samples=samples, **options)
        if not torch.equal(distribution.bounds, space.contexts):
            raise ValueError(
                f"distribution must be on the box of contexts {space.contexts.tolist()}, "
                f"got {distribution.bounds.tolist()}"
            )
        self.distribution = distribution

    def draw(self) -> Tensor:
        """``M`` contexts, ``replicates x M x Dc``."""
        return self.distribution.sample(self.generators, (self.samples,))
