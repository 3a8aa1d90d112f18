"""Policies to judge the others by: one that does not look, those that know the distribution or see it otherwise."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from book.contexts.quadrature import ContextDistribution
from cbo_lib.acquisition import DecisionAcquisition, PartialAcquisition
from cbo_lib.contexts.baselines import DRBOMMD
from cbo_lib.contexts.density import GaussianKDE, silverman_bandwidth
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, ContextPolicy, TotalVariationRadius
from cbo_lib.contexts.space import Space
from cbo_lib.gp import Posterior
from cbo_lib.kernels import matern_kernel, matrix
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


#: Of a bandwidth, in shares of the rule of thumb: every quarter of an octave from 1/32 to 2.
SHARES = tuple(2 ** (k / 4) for k in range(-20, 5))


def cross_validated_bandwidth(samples: Tensor) -> Tensor:
    """The share of the rule of thumb, of ``SHARES``, under which each sample is likeliest given the others.

    The mean log density at a sample of the estimate from all others; what ``GridSearchCV`` of scikit-learn does with
    ``KernelDensity`` and ``LeaveOneOut``, for all replicates as one batch.

    Args:
        samples: ``... x n x d``, ``n >= 2``.

    Returns:
        ``... x d``.
    """
    n, rule = samples.shape[-2], silverman_bandwidth(samples)
    scaled = samples / rule.unsqueeze(-2)
    square = (scaled.unsqueeze(-2) - scaled.unsqueeze(-3)).square().sum(-1)
    square = square.masked_fill(torch.eye(n, dtype=torch.bool), torch.inf)
    dim = samples.shape[-1]
    scores = [(-square / (2 * share**2)).logsumexp(-1).mean(-1) - dim * math.log(share) for share in SHARES]
    return rule * square.new_tensor(SHARES)[torch.stack(scores).argmax(0)].unsqueeze(-1)


def no_bandwidth(samples: Tensor) -> Tensor:
    """Zero, ``... x d`` of samples ``... x n x d``: the estimate is the empirical law."""
    return torch.zeros_like(samples[..., 0, :])


class OtherEstimate(DRBOKDE):
    """DRBO-KDE around another estimate, or SBO-KDE with it at radius zero.

    Args:
        space: see ``ContextPolicy``.
        bandwidth: of the kernel density estimate, from contexts ``... x n x Dc`` to ``... x Dc``. Default: the rule
            of thumb. ``no_bandwidth`` leaves each context that was seen, equally often.
        options: see ``DRBOKDE``.
    """

    def __init__(
        self, space: Space, *, bandwidth: Callable[[Tensor], Tensor] = silverman_bandwidth, **options: Any
    ) -> None:
        super().__init__(space, **options)
        self.bandwidth = bandwidth

    def acquisition(self, posterior: Posterior) -> PartialAcquisition:
        """The average where there is no ball."""
        return (SBOKDE if self.radius == 0 else DRBOKDE).acquisition(self, posterior)

    def draw(self) -> Tensor:
        """``M`` contexts, ``replicates x M x Dc``."""
        estimate = GaussianKDE(self.contexts, self.bandwidth(self.contexts))
        return estimate.sample(self.samples, self.generators, self.space.contexts)


@dataclass(frozen=True)
class ShareOfRadius(TotalVariationRadius):
    """A multiple of the radius of DRBO-KDE."""

    share: float

    def __call__(self, t: int) -> float:
        """At round ``t``, from 1."""
        return self.share * super().__call__(t)


class CautiousKnownDensity(DRBOKDE):
    """DRBO around the true distribution: its caution has no reason.

    Args:
        space: see ``ContextPolicy``.
        distribution: of the contexts.
        options: see ``DRBOKDE``.
    """

    def __init__(self, space: Space, *, distribution: ContextDistribution, **options: Any) -> None:
        super().__init__(space, **options)
        self.distribution = distribution

    def draw(self) -> Tensor:
        """``M`` contexts, ``replicates x M x Dc``."""
        return self.distribution.sample(self.generators, (self.samples,))


class FixedDiscrepancy(DRBOMMD):
    """DRBO-MMD whose discrepancy has a Matérn-5/2 kernel of one lengthscale, whatever the model has fitted.

    Args:
        space: see ``DRBOMMD``.
        lengthscale: of the contexts.
        options: see ``DRBOMMD``.
    """

    def __init__(self, space: Space, *, lengthscale: float, **options: Any) -> None:
        super().__init__(space, **options)
        self.lengthscale = lengthscale

    def gram(self, posterior: Posterior) -> Tensor:
        """The kernel on the grid, ``M x M``."""
        return matrix(matern_kernel(self.lengthscale), self.points)
