"""Both theorems of [Zhang2025] on draws of the prior: a policy for each stand-in for ``f*``, and scheduled blurs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from book.functions import prior_samples
from book.indirect import regret
from book.indirect.problem import IndirectProblem
from book.indirect.problems import known_prior
from cbo_lib.indirect import CMES, ClippedGaussian, ScheduledUCB, Space
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance
from cbo_lib.random import standard_normal
from cbo_lib.simulate import simulate

LENGTHSCALE, BLUR, NOISE, FAILURE = 0.15, 0.07, 0.1, 0.1


class PosteriorDraw(CMES):
    """CMES with the maximum of one new draw of f given all that was seen, as section 5.1 describes it.

    Attributes:
        drawn: the maximum of the average of the draw, its gap below the maximum of the draw, where it lies, and the
            largest standardized draw of an average, ``replicates`` each.
        before: the point that was recommended before the answer, and mean and deviation of f there.
    """

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, samples=1, **options)

    def max_samples(self) -> Tensor:
        """The maximum over the points of one draw, ``replicates x 1``."""
        n, (mean, std) = self.space.n, self.belief()
        index = mean[:, n:].argmax(-1, keepdim=True)
        self.before = index[:, 0], *(part[:, n:].gather(1, index)[:, 0] for part in (mean, std))
        g, f = (mean + self.deviation()).split([n, self.space.m], -1)
        self.drawn = g.amax(-1), f.amax(-1) - g.amax(-1), g.argmax(-1), ((g - mean[:, :n]) / std[:, :n]).amax(-1)
        return f.amax(-1, keepdim=True)

    def deviation(self) -> Tensor:
        """What a joint draw of g at the actions and f at the points has beyond the mean, ``replicates x (n + m)``."""
        white = self.process.white[:, : self.round - 1, :-1]
        return self.normal(self.prior_covariance() - white.mT @ white)

    def prior_covariance(self) -> Tensor:
        """Of all places, ``(n + m) x (n + m)``."""
        prior = self.process.prior
        assert prior is not None
        places = Measure.cat([self.space.measure(self.space.actions, prior), self.space.measure_points(prior)])
        return covariance(prior.kernel, places, places)

    def normal(self, matrix: Tensor) -> Tensor:
        """One normal vector a replicate with these covariances, but for a little jitter."""
        factor = torch.linalg.cholesky(matrix + 1e-8 * torch.eye(matrix.shape[-1]).to(matrix))
        noise = standard_normal(self.generators, matrix.shape[-1:], matrix)
        return (factor @ noise.unsqueeze(-1)).squeeze(-1)


class UpperBound(PosteriorDraw):
    """The largest upper confidence bound of f by Lemma 5, for half of ``FAILURE``: in most runs never below ``f*``."""

    def max_samples(self) -> Tensor:
        """``max_x m(x) + sqrt(beta_t) sigma(x)``, ``replicates x 1``."""
        super().max_samples()
        mean, std = (part[:, self.space.n :] for part in self.belief())
        return (mean + regret.band(self.round, self.space.m, FAILURE / 2) * std).amax(-1, keepdim=True)


def drawn(replicates: int, blur: float = BLUR) -> IndirectProblem:
    """Draws of an RBF prior on an interval, seen through a Gaussian blur at 60 places."""
    wide = torch.tensor([[-0.5], [1.5]], dtype=torch.float64)
    grid = torch.linspace(0, 1, 60, dtype=torch.float64)[:, None]
    space = Space(grid, conditional=ClippedGaussian(lambda a: a, blur), points=grid, noise_std=NOISE)
    f = prior_samples(rbf_kernel(LENGTHSCALE), wide, range(replicates), grid=161)
    return IndirectProblem(space, f, order=41, replicates=replicates)


def watch(batch: Any) -> Mapping[str, Tensor]:
    """What was believed when the question was asked: of g there, the stand-in, kappa, the draw, the recommendation."""
    mean, std, index = batch.asked
    kappa = ((batch.stars - mean) / std).amin(-1)
    there = (part.gather(1, index[:, None])[:, 0] for part in (mean, std))
    names = ("mean", "std", "kappa", "star", "drawn_g", "drawn_gap", "drawn_std", "largest", "before", "before_mean")
    g, gap, at, largest = batch.drawn
    drawn_std = std.gather(1, at[:, None])[:, 0]
    widest = {"widest": std.amax(-1), "before_std": batch.before[2]}
    values = (*there, kappa, batch.stars[:, 0], g, gap, drawn_std, largest, batch.before[0], batch.before[1])
    return dict(zip(names, values, strict=True)) | widest


def group_lengths(count: int, w: float = 0.5) -> list[int]:
    """``k_i = log_w(delta / (2 pi_i))``, rounded up, of the first groups of Theorem 1."""
    return [math.ceil(regret.group_length(i, w, FAILURE)) for i in range(1, count + 1)]


def covered(above: Tensor, lengths: Sequence[int]) -> Tensor:
    """Whether each group so far holds a stand-in above ``f*``, ``replicates x groups``.

    Args:
        above: in which rounds it was, boolean ``replicates x T``.
        lengths: of the groups, one after the other; their sum is at most ``T``.
    """
    parts = above[:, : sum(lengths)].split(list(lengths), -1)
    return torch.stack([part.any(-1) for part in parts], -1).cummin(-1).values


def frozen_coverage(lengths: Sequence[int]) -> Tensor:
    """How often all groups so far would be covered if the posterior never changed, ``groups``.

    Then ``w`` is one uniform number for the whole run, and the chance is the integral of ``prod_i (1 - w^(k_i))``.
    """
    w = (torch.arange(20_000, dtype=torch.float64).unsqueeze(-1) + 0.5) / 20_000
    return (1 - w ** torch.as_tensor(lengths)).cumprod(-1).mean(0)


# Theorem 2.


class BlurredProblem(IndirectProblem):
    """Queries ``(x, tau)`` of any width: noisy values of ``g_tau(x) = E f(x + tau * noise)``."""

    def value(self, query: Tensor) -> Tensor:
        """``g_tau(x)`` of one query a replicate, ``replicates``."""
        rule = self.space.conditional.measure(query.unsqueeze(1), self.order)
        return rule.expectation(self.f).squeeze(-1)


def blurred(replicates: int, count: int = 100) -> BlurredProblem:
    """Draws of the prior on an interval, with points for the x of queries."""
    wide = torch.tensor([[-2.0], [3.0]], dtype=torch.float64)
    points = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    actions = torch.cat([points, torch.zeros_like(points)], -1)
    conditional = ClippedGaussian(lambda a: a[..., :1], lambda a: a[..., 1])
    space = Space(actions, conditional=conditional, points=points, noise_std=NOISE)
    f = prior_samples(rbf_kernel(LENGTHSCALE), wide, range(replicates), grid=257)
    return BlurredProblem(space, f, order=31, replicates=replicates)


#: ``tau_t`` in units of the lengthscale.
SCHEDULES: dict[str, Callable[[int], float]] = {
    "no blur": lambda t: 0.0,
    "constant 2": lambda t: 2.0,
    "Theorem 2, from 1/2": lambda t: 0.5 * t**-0.25 * max(1.0, math.log(t)) ** 0.25,
    "1/t, from 1/2": lambda t: 0.5 / t,
}


def accounts(name: str, rounds: int, replicates: int) -> dict[str, Tensor]:
    """The terms of Theorem 2 in runs of one schedule, each ``replicates x T``.

    Returns:
        ``regret``, that is ``f* - g_t(a_t)``; ``search``, that is ``f* - f(a_t)``; ``std`` and ``blurred_std``, the
        posterior deviations of ``f(a_t)`` and ``g_t(a_t)`` before the answer.
    """
    problem = blurred(replicates)
    policy = ScheduledUCB(
        problem.space, tau=lambda t: LENGTHSCALE * SCHEDULES[name](t), prior=known_prior(LENGTHSCALE), failure=FAILURE
    )

    def see(batch: Any) -> Mapping[str, Tensor]:
        last = torch.linalg.cholesky(batch.process.gram)[:, -1, -1]
        return {"std": batch.asked[2], "blurred_std": (last.square() - NOISE**2).clamp_min(0).sqrt()}

    run = simulate(problem, policy, rounds, range(replicates), watch=see)
    at = problem.f(run["query"][..., :1])
    best = problem.optimum
    terms = {"regret": best - run["value"], "search": best - at}
    return terms | {"std": run["std"], "blurred_std": run["blurred_std"]}


def blur_cost(tau: float | Tensor, dim: int = 1) -> Tensor:
    """The prior deviation ``b`` of ``f(a) - g_tau(a)`` for an RBF kernel of variance 1 and a Gaussian blur.

    ``b^2 = k(0) - 2 E k(e) + E k(e - e')``, at most ``d (d + 2) tau^4 / (4 l^4)``.
    """
    squared = (torch.as_tensor(tau, dtype=torch.float64) / LENGTHSCALE).square()
    once, twice = ((1 + scale * squared) ** (-dim / 2) for scale in (1, 2))
    return (1 - 2 * once + twice).clamp_min(0.0).sqrt()


def least_variance(T: Tensor, tau: float) -> Tensor:
    """What no ``T`` actions can bring the variance of f at a point below, for a constant blur, in one variable.

    ``max_w v - T v^2 exp(-tau^2 w^2) / sigma^2`` with ``v = P(|N(0, 1 / l^2)| > w)``.
    """
    w = torch.linspace(0, 8, 4001, dtype=torch.float64) / LENGTHSCALE
    v = torch.special.erfc(w * LENGTHSCALE / math.sqrt(2))
    rounds = torch.as_tensor(T, dtype=torch.float64).unsqueeze(-1)
    return (v - rounds * v.square() * (-(tau * w).square()).exp() / NOISE**2).amax(-1)
