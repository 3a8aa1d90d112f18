"""Queries of growing resolution on a schedule: the setting of Theorem 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.kernels import GaussianMeasureKernel
from cbo_lib.maximize import argmax_finite
from cbo_lib.measure import Function, Measure
from cbo_lib.policy import Policy
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class Blurs:
    """Queries ``(x, tau)`` of Gaussian averages around points.

    Args:
        points: where the maximum is looked for, ``n x d``.
        noise_std: of the observations, positive. Default 0.1.
    """

    points: Tensor
    noise_std: float = 0.1

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.points


@dataclass(frozen=True)
class BlurredProblem:
    """Noisy values of Gaussian averages ``g_tau(a) = E f(a + tau * noise)`` of a chosen width ([Zhang2025], 6.2).

    A query is ``(a_1, ..., a_d, tau)``; with ``tau = 0`` it is the value at a point.

    Args:
        space: see ``Blurs``.
        f: one function a replicate: points ``replicates x ... x d`` to values ``replicates x ...``.
        order: Gauss-Hermite nodes a dimension for the true averages. Default 41.
    """

    space: Blurs
    f: Function
    order: int = 41

    def value(self, query: Tensor) -> Tensor:
        """``g_tau(a)`` of one query a replicate, ``replicates``."""
        blur = ClippedGaussian(lambda a: a[..., :-1], lambda a: a[..., -1])
        return blur.measure(query.unsqueeze(1), self.order).expectation(self.f).squeeze(-1)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one query a replicate."""
        value = self.value(query)
        return value + self.space.noise_std * standard_normal(generators, (), value)

    def values(self, replicates: int) -> Tensor:
        """f at the points, ``replicates x n``."""
        return self.f(self.space.points.expand(replicates, *self.space.points.shape))


class ScheduledUCB(Policy):
    """GP-UCB on f with queries blurred by ``tau_t`` at round ``t`` ([Zhang2025], Theorem 2).

    Args:
        space: see ``Blurs``.
        lengthscale: of the RBF kernel of f, of variance 1.
        tau: the standard deviation of the blur at round ``t = 1, 2, ...``, nonnegative.
        sqrt_beta: the multiplier at round ``t``.
    """

    space: Blurs

    def __init__(
        self,
        space: Blurs,
        *,
        lengthscale: float,
        tau: Callable[[int], float],
        sqrt_beta: Callable[[int], float],
    ) -> None:
        super().__init__(space, sqrt_beta=sqrt_beta)
        self.lengthscale, self.tau = lengthscale, tau

    def begin(self) -> None:
        """Nothing is known."""
        points = self.space.points
        self.points = Measure.dirac(torch.cat([points, torch.zeros_like(points[:, :1])], -1))
        prior = GaussianProcess(GaussianMeasureKernel(self.lengthscale), self.space.noise_std)
        self.belief: Posterior = prior.posterior(self.replicates)

    def propose(self) -> Tensor:
        """The point of the largest upper confidence bound of f, and this round's ``tau``, ``replicates x (d + 1)``."""
        tau = self.tau(self.round)
        if not 0 <= tau < math.inf:
            raise ValueError(f"tau must be nonnegative and finite, got {tau} at round {self.round}")
        query = self._first(
            self.belief.mean(self.points) + self.multiplier() * self.belief.variance(self.points).sqrt()
        )
        return torch.cat([query[:, :-1], torch.full_like(query[:, :1], tau)], -1)

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition each replicate on its blurred observation."""
        self.belief = self.belief.extend(Measure.dirac(row["query"].unsqueeze(1)), row["y"].unsqueeze(1))

    def best(self) -> Tensor:
        """The point of the largest posterior mean of f, as a query without blur."""
        return self._first(self.belief.mean(self.points))

    def posteriors(self) -> Posterior:
        """The posterior of averages ``(x, tau)``."""
        return self.belief

    def _first(self, values: Tensor) -> Tensor:
        order = torch.arange(self.points.n, device=values.device)
        index = argmax_finite(values, torch.ones_like(order, dtype=torch.bool), order)
        return self.points.points[index].squeeze(-2)
