"""Queries of growing resolution on a schedule: the setting of Theorem 2.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect.problem import ClippedGaussian
from cbo_lib.kernels import GaussianMeasureKernel
from cbo_lib.maximize import argmax_finite
from cbo_lib.measure import Function, Measure
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class BlurredProblem:
    """Noisy values of Gaussian averages ``g_tau(a) = E f(a + tau * noise)`` of a chosen width ([Zhang2025]_, 6.2).

    A query is ``(a_1, ..., a_d, tau)``; with ``tau = 0`` it is the value at a point.

    Args:
        f: one function a replicate: points ``replicates x ... x d`` to values ``replicates x ...``.
        points: where the maximum is looked for, ``n x d``.
        noise_std: of the observations, positive.
        order: Gauss-Hermite nodes a dimension for the true averages. Default 41.
    """

    f: Function
    points: Tensor
    noise_std: float = 0.1
    order: int = 41

    def value(self, query: Tensor) -> Tensor:
        """``g_tau(a)`` of one query a replicate, ``replicates``."""
        blur = ClippedGaussian(lambda a: a[..., :-1], lambda a: a[..., -1])
        return blur.measure(query.unsqueeze(1), self.order).expectation(self.f).squeeze(-1)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one query a replicate."""
        value = self.value(query)
        return value + self.noise_std * standard_normal(generators, (), value)

    def values(self, replicates: int) -> Tensor:
        """f at the points, ``replicates x n``."""
        return self.f(self.points.expand(replicates, *self.points.shape))


class ScheduledUCB:
    """GP-UCB on f with queries blurred by ``tau_t`` at round ``t`` ([Zhang2025]_, Theorem 2).

    Args:
        problem: see ``BlurredProblem``.
        lengthscale: of the RBF kernel of f, of variance 1.
        tau: the standard deviation of the blur at round ``t = 1, 2, ...``, nonnegative.
        sqrt_beta: the multiplier at round ``t``.
    """

    def __init__(
        self,
        problem: BlurredProblem,
        lengthscale: float,
        tau: Callable[[int], float],
        sqrt_beta: Callable[[int], float],
    ) -> None:
        self.problem, self.lengthscale, self.tau, self.sqrt_beta = problem, lengthscale, tau, sqrt_beta

    @cached_property
    def _points(self) -> Measure:
        points = self.problem.points
        return Measure.dirac(torch.cat([points, torch.zeros_like(points[:, :1])], -1))

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        prior = GaussianProcess(GaussianMeasureKernel(self.lengthscale), self.problem.noise_std)
        self._posterior: Posterior = prior.posterior(len(generators))
        self.round = 1

    def ask(self) -> Tensor:
        """The point of the largest upper confidence bound of f, and this round's ``tau``, ``replicates x (d + 1)``."""
        mean, std = self._posterior.mean(self._points), self._posterior.variance(self._points).sqrt()
        order = torch.arange(len(self.problem.points), device=mean.device)
        index = argmax_finite(mean + self.sqrt_beta(self.round) * std, torch.ones_like(order, dtype=torch.bool), order)
        tau = self.tau(self.round)
        if not 0 <= tau < math.inf:
            raise ValueError(f"tau must be nonnegative and finite, got {tau} at round {self.round}")
        points = self.problem.points[index]
        return torch.cat([points, torch.full_like(points[:, :1], tau)], -1)

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Condition each replicate on its blurred observation."""
        self._posterior = self._posterior.extend(Measure.dirac(query.unsqueeze(1)), observation.unsqueeze(1))
        self.round += 1

    def recommend(self) -> Tensor:
        """The point of the largest posterior mean of f, as a query without blur."""
        mean = self._posterior.mean(self._points)
        order = torch.arange(mean.shape[-1], device=mean.device)
        index = argmax_finite(mean, torch.ones_like(order, dtype=torch.bool), order)
        return self._points.points[index].squeeze(-2)

    def trace(self) -> Mapping[str, Tensor]:
        """Nothing more."""
        return {}
