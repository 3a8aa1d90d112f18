"""Queries of growing resolution on a schedule: the setting of Theorem 2, and what its proof sums.

    python -m book run indirect.schedules --scale paper --publish

runs every schedule on 30 draws of a prior and makes ``schedules.npz``. One core takes about ten minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from book.functions import prior_samples
from book.indirect import regret
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.former.policy import Policy
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from cbo_lib.measure import Function, Measure
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
        mean, variance = self.belief.mean(self.points), self.belief.variance(self.points)
        index = self._first(mean + self.multiplier() * variance.sqrt())
        query = torch.cat([self.space.points[index], torch.full_like(mean[:, :1], tau)], -1)
        blurred = Measure.dirac(query.unsqueeze(1))
        rows = index.unsqueeze(-1)
        self._asked_with = {
            "mean": mean.gather(-1, rows).squeeze(-1),
            "std": variance.gather(-1, rows).squeeze(-1).clamp_min(0.0).sqrt(),
            "blurred_mean": self.belief.mean(blurred).squeeze(-1),
            "blurred_std": self.belief.variance(blurred).squeeze(-1).clamp_min(0.0).sqrt(),
        }
        return query

    def record(self) -> Mapping[str, Tensor]:
        """Before the observation, at the point asked: mean and deviation of f, and of its blurred value."""
        return self._asked_with

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition each replicate on its blurred observation."""
        self.belief = self.belief.extend(Measure.dirac(row["query"].unsqueeze(1)), row["y"].unsqueeze(1))

    def best(self) -> Tensor:
        """The point of the largest posterior mean of f, as a query without blur."""
        index = self._first(self.belief.mean(self.points))
        return torch.cat([self.space.points[index], torch.zeros_like(self.space.points[index][:, :1])], -1)

    def posteriors(self) -> Posterior:
        """The posterior of averages ``(x, tau)``."""
        return self.belief

    def _first(self, values: Tensor) -> Tensor:
        order = torch.arange(self.points.n, device=values.device)
        return argmax_finite(values, torch.ones_like(order, dtype=torch.bool), order)


def embedding_gap(tau: float | Tensor, lengthscale: float, dim: int = 1) -> Tensor:
    """The prior deviation of ``f(a) - g_tau(a)`` for an RBF kernel of variance 1 and a Gaussian blur.

    ``b^2 = k(0) - 2 E k(e) + E k(e - e')``, at most ``d (d + 2) tau^4 / (4 l^4)``.

    Args:
        tau: the standard deviations of the blur.
        lengthscale: of the kernel, positive.
        dim: ``d``.
    """
    squared = (torch.as_tensor(tau, dtype=torch.float64) / lengthscale).square()
    once, twice = ((1 + scale * squared) ** (-dim / 2) for scale in (1, 2))
    return (1 - 2 * once + twice).clamp_min(0.0).sqrt()


def least_variance(T: Tensor, tau: float, lengthscale: float, noise_std: float) -> Tensor:
    """What no ``T`` actions can bring the variance of f at a point below, for a constant blur, in one variable.

    ``max_w v - T v^2 exp(-tau^2 w^2) / sigma^2`` with ``v = P(|N(0, 1 / l^2)| > w)``.

    Args:
        T: numbers of observations.
        tau: the standard deviation of the blur, positive.
        lengthscale: of the RBF kernel of variance 1.
        noise_std: of the observations.
    """
    w = torch.linspace(0, 8, 4001, dtype=torch.float64) / lengthscale
    v = torch.special.erfc(w * lengthscale / math.sqrt(2))
    lost = (
        torch.as_tensor(T, dtype=torch.float64).unsqueeze(-1) * v.square() * (-(tau * w).square()).exp() / noise_std**2
    )
    return (v - lost).amax(-1)


def gain_bound(T: Tensor, reach: float, tau: float, lengthscale: float, noise_std: float) -> Tensor:
    """An upper bound of the information in ``T`` averages of f around actions of ``[-reach, reach]``.

    The kernel, an RBF of variance 1, has features whose squares at ``x`` are the Poisson probabilities of mean
    ``(x / l)^2``. All but the first ``D`` add ``P(Poisson >= D)`` to the variance of a point, and no more than the mean
    of that to the variance of an average of points. So the gain is at most
    ``D / 2 log(1 + T / (D sigma^2)) + T / (2 sigma^2) E P(Poisson((X / l)^2) >= D)`` with ``X ~ N(reach, tau^2)``, the
    outermost action; the best ``D`` is taken.

    Args:
        T: numbers of observations.
        reach: half the length of the interval of actions.
        tau: the largest standard deviation of a blur.
        lengthscale: of the kernel.
        noise_std: of the observations.
    """
    normal = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    density = (-0.5 * normal.square()).exp()
    count = torch.arange(1, 400, dtype=torch.float64).unsqueeze(-1)
    mean = ((reach + tau * normal) / lengthscale).square()
    tail = (torch.special.gammainc(count, mean.expand(len(count), -1)) * density).sum(-1) / density.sum()
    rounds, count = torch.as_tensor(T, dtype=torch.float64).unsqueeze(-1), count.squeeze(-1)
    kept = 0.5 * count * (1 + rounds / (count * noise_std**2)).log()
    return (kept + 0.5 * rounds / noise_std**2 * tail).amin(-1)


LENGTHSCALE, NOISE, FAILURE, POINTS = 0.15, 0.1, 0.1, 200
STORED = Path(__file__).with_name("schedules.npz")


def _theorem(start: float) -> Callable[[int], float]:
    return lambda t: start * t**-0.25 * max(1.0, math.log(t)) ** 0.25


#: ``tau_t`` in units of the lengthscale.
SCHEDULES: dict[str, Callable[[int], float]] = {
    "no blur": lambda t: 0.0,
    "constant 1/2": lambda t: 0.5,
    "constant 2": lambda t: 2.0,
    "slower, 1/2": lambda t: 0.5 * t**-0.125,
    "Theorem 2, 1/2": _theorem(0.5),
    "Theorem 2, 2": _theorem(2.0),
    "faster, 1/2": lambda t: 0.5 / t,
}


def sqrt_beta(t: Tensor | int) -> Tensor:
    """``sqrt(2 log(2 n pi_t / delta))``, for two events of ``n`` points each."""
    return regret.band(t, POINTS, FAILURE / 2)


def accounts(name: str, steps: int, seeds: Sequence[int]) -> dict[str, Tensor]:
    """The terms of Theorem 2 in runs of one schedule on draws of the prior, each ``replicates x T``.

    Args:
        name: of the schedule.
        steps: ``T``.
        seeds: one a function.

    Returns:
        ``regret``, that is ``f* - g_t(a_t)``; ``search``, that is ``f* - f(a_t)``; ``std`` and ``blurred_std``, the
        posterior deviations of ``f(a_t)`` and ``g_t(a_t)``; and ``simple``, the regret of the recommendation.
    """
    wide = torch.tensor([[-2.0], [3.0]], dtype=torch.float64)
    f = prior_samples(rbf_kernel(LENGTHSCALE), wide, seeds, grid=257)
    problem = BlurredProblem(Blurs(torch.linspace(0, 1, POINTS, dtype=torch.float64)[:, None], NOISE), f)
    best = problem.values(len(seeds)).amax(-1, keepdim=True)
    policy = ScheduledUCB(
        problem.space,
        lengthscale=LENGTHSCALE,
        tau=lambda t: LENGTHSCALE * SCHEDULES[name](t),
        sqrt_beta=lambda t: float(sqrt_beta(t)),
    )
    history = simulate(problem, policy, steps, seeds)
    return {
        "regret": best - history["value"],
        "search": best - f(history["query"][..., :1]),
        "std": history["std"],
        "blurred_std": history["blurred_std"],
        "simple": best - f(history["recommendation"][..., :1]),
    }


def stored(name: str) -> dict[str, Tensor]:
    """The stored accounts of a schedule."""
    with np.load(STORED) as arrays:
        kinds = ("regret", "search", "std", "blurred_std", "simple")
        return {kind: torch.as_tensor(arrays[f"{name}/{kind}"], dtype=torch.float64) for kind in kinds}
