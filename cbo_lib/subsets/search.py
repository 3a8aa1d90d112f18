"""The search for decisions: the largest expected confidence bound, or draw, over the values of a subset's variables."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, require
from cbo_lib.former.maximize import argmax_finite, maximize_box
from cbo_lib.former.partial import PartialPosterior
from cbo_lib.former.partial_tracked import TrackedPartial
from cbo_lib.former.split import SplitKernel
from cbo_lib.gp import Posterior
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal, uniform
from cbo_lib.subsets.space import Space


@dataclass(frozen=True)
class Effort:
    """How hard a policy looks for the best decision; the same for all policies that are compared.

    Args:
        contexts: how many Sobol draws of the free variables stand for their distribution. Default 32.
        candidates: how many Sobol points of each subset are kept under observation. Default 128.
        iterations: of L-BFGS-B, from the best candidate or the last maximizer, which moves little. Default 4.

    Raises:
        ValueError: if a number is out of range.
    """

    contexts: int = 32
    candidates: int = 128
    iterations: int = 4

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("contexts", "candidates", "iterations"):
            object.__setattr__(self, name, as_count(name, getattr(self, name), 1))


@dataclass(frozen=True)
class Decisions:
    """One decision a replicate and subset, and what the posterior expects of it.

    Attributes:
        points: ``replicates x m x d``; free coordinates are the center of the box.
        mean: ``E[mu([x^i, X^-i])]``, ``replicates x m``; minus infinity where nothing was asked for.
        std: ``E[sigma([x^i, X^-i])]``, ``replicates x m``; zero where nothing was asked for.
    """

    points: Tensor
    mean: Tensor
    std: Tensor

    def bound(self, sqrt_beta: float) -> Tensor:
        """``E[mu + sqrt_beta sigma]``; negative ``sqrt_beta`` for the lower bound."""
        return self.mean + sqrt_beta * self.std

    def of(self, subset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Point ``replicates x d``, mean and std ``replicates`` of one subset a replicate."""
        rows = torch.arange(len(subset), device=subset.device)
        return self.points[rows, subset], self.mean[rows, subset], self.std[rows, subset]

    def where(self, replicates: Tensor, other: "Decisions") -> "Decisions":
        """These for the replicates that are marked, ``replicates`` booleans, and the other's for the rest."""
        mark = replicates.unsqueeze(-1)
        points = torch.where(mark.unsqueeze(-1), self.points, other.points)
        return Decisions(points, torch.where(mark, self.mean, other.mean), torch.where(mark, self.std, other.std))


class Search:
    """The maximizers of expected bounds over each subset, for the posteriors of all replicates.

    ``E[u([x^i, X^-i])]`` is an average over ``effort.contexts`` draws of the free variables, the same for every subset
    and step. Sobol points of every subset are tracked by rank-one steps; the best of them and the last maximizer
    compete for the start of a local search.

    Args:
        space: the box, the control sets and how free variables vary.
        posterior: of f, batch ``(replicates,)``; its kernel must be a product over the coordinates.
        replicates: how many.
        effort: see ``Effort``.
        rounded: what is found is mapped by it to what may be asked. Default: as it is.
    """

    def __init__(
        self, space: Space, posterior: Posterior, replicates: int, effort: Effort, rounded: Function = torch.clone
    ) -> None:
        self.space, self.effort, self.rounded = space, effort, rounded
        self.contexts = space.samples(effort.contexts)
        sobol = torch.quasirandom.SobolEngine(space.dim, scramble=True, seed=1)
        low, high = space.bounds
        self.candidates = low + (high - low) * sobol.draw(effort.candidates, dtype=torch.float64).to(low)
        self.controlled = space.controlled
        self._ahead: tuple[Posterior, float, Tensor, Decisions] | None = None
        self._warm = {side: space.center.repeat(replicates, space.m, 1) for side in (True, False)}
        self.restart(posterior)

    def restart(self, posterior: Posterior) -> None:
        """Go over to another posterior, with whatever prior."""
        self.posterior = posterior
        self._tracked = TrackedPartial(posterior, self.candidates, self.contexts, self.controlled)

    def update(self, posterior: Posterior) -> None:
        """Go over to the same posterior with one observation more."""
        self.posterior = posterior
        self._tracked.update(posterior)

    def tracked(self, sqrt_beta: float) -> Tensor:
        """``E[mu + sqrt_beta sigma]`` of the tracked candidates, ``replicates x m x n``."""
        return (self._tracked.mean + sqrt_beta * self._tracked.variance.sqrt()).mean(-1)

    def expect(self, points: Tensor, wanted: Tensor) -> Decisions:
        """What is expected of decisions ``replicates x m x d`` where they are wanted, ``replicates x m`` booleans."""
        subsets = torch.nonzero(wanted.any(0)).flatten().tolist() or [0]
        return self._gather(subsets, self._moments(subsets, self._fill(subsets, points[:, subsets])), wanted)

    def maximize(self, wanted: Tensor, sqrt_beta: float, keep: bool = True, ahead: Tensor | None = None) -> Decisions:
        """The decisions of the largest ``E[mu + sqrt_beta sigma]``, ``m`` a replicate.

        Args:
            wanted: of which subsets, ``replicates x m`` booleans; a replicate's result does not depend on others'.
            sqrt_beta: the multiplier; negative for the lower bound.
            keep: whether the next search begins where this one ends. Default yes.
            ahead: of which subsets, if any, the next call with ``-sqrt_beta`` will want some: one search finds both.
        """
        known, self._ahead = self._ahead, None
        if known is None or known[0] is not self.posterior or known[1] != sqrt_beta or bool((wanted & ~known[2]).any()):
            both = self._maximize(wanted if ahead is None else torch.cat([wanted, ahead], -1), sqrt_beta)
            parts, m = (both.points, both.mean, both.std), self.space.m
            found, rest = Decisions(*(part[:, :m] for part in parts)), Decisions(*(part[:, m:] for part in parts))
            self._ahead = None if ahead is None else (self.posterior, -sqrt_beta, ahead, rest)
        else:
            found = known[3]
        if keep:
            warm = self._warm[sqrt_beta >= 0]
            self._warm[sqrt_beta >= 0] = torch.where(wanted.unsqueeze(-1), found.points, warm)
        mean, std = found.mean.masked_fill(~wanted, -torch.inf), found.std.masked_fill(~wanted, 0.0)
        return Decisions(found.points, mean, std)

    def _maximize(self, wanted: Tensor, sqrt_beta: float) -> Decisions:
        """Columns from the ``m``-th on are of the same subsets and the bound with ``-sqrt_beta``."""
        multipliers, m = [sqrt_beta, -sqrt_beta][: wanted.shape[-1] // self.space.m], self.space.m
        bound = torch.cat([self.tracked(b) for b in multipliers], 1)
        warm = torch.cat([self._warm[b >= 0] for b in multipliers], 1)
        columns = torch.nonzero(wanted.any(0)).flatten().tolist() or [0]
        subsets = [i % m for i in columns]
        partial = self._partial(subsets)
        start = self.candidates[argmax_finite(bound[:, columns])]
        points = self.rounded(self._fill(subsets, start))
        if self.posterior.count:  # before, all decisions are alike
            each = bound.new_tensor([[multipliers[i // m]] for i in columns])
            values = functools.partial(partial.expected_ucb, sqrt_beta=each)
            closed = getattr(partial, "closed", False)
            slopes = functools.partial(partial.expected_ucb_and_slope, sqrt_beta=each) if closed else None
            points = self._search(values, subsets, [start, warm[:, columns]], slopes)
        return self._gather(columns, self._moments(subsets, points, partial), wanted)

    def maximize_paths(self, values: Function) -> tuple[Tensor, Tensor]:
        """The largest expectation of one function a replicate over every subset, ``replicates x m``, and the decisions.

        ``values`` maps decisions ``replicates x m x n x d`` to ``replicates x m x n``; see ``SamplePaths``.
        """
        warm = self._warm[True]
        best = argmax_finite(values(self.candidates.expand(*warm.shape[:2], *self.candidates.shape)))
        points = self._search(values, list(range(self.space.m)), [self.candidates[best], warm])
        self._warm[True] = points
        return values(points.unsqueeze(-2)).squeeze(-1), points

    def _fill(self, subsets: list[int], points: Tensor) -> Tensor:
        """Points ``replicates x c x ... x d`` with the center in free coordinates."""
        mark = self.controlled[subsets]
        return torch.where(mark.reshape(len(subsets), *[1] * (points.dim() - 3), -1), points, self.space.center)

    def _partial(self, subsets: list[int]) -> PartialPosterior:
        return PartialPosterior(self.posterior, self.contexts, self.controlled[subsets], None)

    def _moments(self, subsets: list[int], points: Tensor, partial: PartialPosterior | None = None) -> Decisions:
        mean, variance = (partial or self._partial(subsets)).mean_and_variance(points.unsqueeze(-2))
        return Decisions(points, mean.mean(-1).squeeze(-1), variance.sqrt().mean(-1).squeeze(-1))

    def _gather(self, columns: list[int], part: Decisions, wanted: Tensor) -> Decisions:
        """Some subsets' decisions as columns among all."""
        points = self.space.center.repeat(*wanted.shape, 1)
        mean, std = torch.full_like(points[..., 0], -torch.inf), torch.zeros_like(points[..., 0])
        points[:, columns], mean[:, columns], std[:, columns] = part.points, part.mean, part.std
        return Decisions(points, mean.masked_fill(~wanted, -torch.inf), std.masked_fill(~wanted, 0.0))

    def _search(self, values: Function, subsets: list[int], starts: list[Tensor], slopes: Any = None) -> Tensor:
        """Maximizers ``replicates x c x d`` of functions of ``replicates x c x n x d``, from the best of the starts."""
        raw = self._fill(subsets, torch.stack(starts, -2))
        shape = (*raw.shape[:2], -1, raw.shape[-1])
        points, _ = maximize_box(
            lambda x: values(x.reshape(shape)).flatten(0, 1),
            self.space.bounds,
            raw.flatten(0, 1),
            starts=1,
            max_iterations=self.effort.iterations,
            slopes=slopes and (lambda x: [part.flatten(0, 1) for part in slopes(x.reshape(shape))]),
        )
        return self.rounded(points.reshape(*raw.shape[:2], raw.shape[-1]))


class SamplePaths:
    """One function a replicate, drawn from its posterior.

    A draw from the prior is a sum of random Fourier features ([Rahimi2007]); the data correct it by a sum of
    kernels at the observed points ([Wilson2020], Eq. 13). Both are products over the coordinates, so the expectation
    over the free variables is an average of cosines and of kernels that is taken once.

    A call maps decisions ``replicates x m x n x d`` to differentiable expectations ``replicates x m x n``.

    Args:
        search: the posteriors, and the draws that stand for the free variables.
        generators: one a replicate.
        features: how many random features, at least 1.

    Raises:
        ValueError: if ``features`` is below 1, or the kernel is no product of RBF and Matern kernels.
    """

    def __init__(self, search: Search, generators: Sequence[torch.Generator], features: int) -> None:
        as_count("features", features, 1)
        posterior, contexts, controlled = search.posterior, search.contexts, search.controlled
        prior, replicates = posterior.prior, len(generators)
        normal = standard_normal(generators, (features, search.space.dim + 1), contexts)
        self._phase = 2 * math.pi * uniform(generators, (features,), contexts)
        self._frequency, scale = _spectral(prior.kernel, normal[..., :-1], generators)  # replicates features d
        self._amplitude = normal[..., -1] * (2 * scale / features).sqrt()
        mean = torch.as_tensor(prior.mean, dtype=contexts.dtype, device=contexts.device)
        self._mean = mean.unsqueeze(-1) if mean.dim() else mean
        # E cos(a + b) = cos a E cos b - sin a E sin b, with b the part of the free variables
        self._low = search.space.bounds[0]  # phases count from there, so that units do not matter
        free = (self._frequency.unsqueeze(1) * ~controlled.unsqueeze(-2)).mT
        angle = (contexts - self._low) @ free  # replicates m M features
        cosine, sine = angle.cos().mean(-2, keepdim=True), angle.sin().mean(-2, keepdim=True)
        amplitude = self._amplitude.unsqueeze(1).unsqueeze(-2)
        self._cosine, self._sine = cosine * amplitude, sine * amplitude
        self._own = (self._frequency.unsqueeze(1) * controlled.unsqueeze(-2)).mT
        self._observed: Tensor | None = None
        if posterior.data is None:
            return
        data, t = posterior.data, posterior.count
        observed = data.measure.points.squeeze(-2).expand(replicates, t, -1)
        # y - prior mean, from what conditioning keeps
        y = (data.factor @ data.whitened.unsqueeze(-1)).squeeze(-1).expand(replicates, t)
        angle = (observed - self._low) @ self._frequency.mT + self._phase.unsqueeze(-2)
        drawn = (angle.cos() * self._amplitude.unsqueeze(-2)).sum(-1)
        noise_std = torch.as_tensor(prior.noise_std, dtype=contexts.dtype, device=contexts.device)
        noise = noise_std * standard_normal(generators, (t,), contexts)
        factor = data.factor.expand(replicates, t, t)
        weights = torch.cholesky_solve((y - drawn - noise).unsqueeze(-1), factor).squeeze(-1)
        self._split = SplitKernel.of(prior.kernel, controlled, 1)
        self._observed = observed.unsqueeze(1)
        average = self._split.free(self._observed, contexts).mean(-1)  # replicates m t
        self._weights = (average * weights.unsqueeze(1)).unsqueeze(-1)

    def __call__(self, x: Tensor) -> Tensor:
        """Expectations of decisions, see the class."""
        angle = (x - self._low) @ self._own + self._phase.unsqueeze(1).unsqueeze(-2)
        value = (angle.cos() * self._cosine - angle.sin() * self._sine).sum(-1) + self._mean
        if self._observed is None:
            return value
        return value + (self._split.controlled(x, self._observed) @ self._weights).squeeze(-1)


def _spectral(kernel: Kernel, normal: Tensor, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """Random frequencies ``replicates x features x d`` of a product of kernels, and its value at distance zero.

    The frequencies of a product are sums of those of its factors: normal ones of RBF kernels, of a Matern kernel normal
    ones over the root of an independent chi-square variable of ``2 nu`` degrees over its mean.
    """
    split = SplitKernel.of(kernel, torch.ones_like(normal[0, 0], dtype=torch.bool), 1)
    named = [type(part).__name__ for part in kernel.modules() if isinstance(part, Kernel)]
    require(split.squares, "the kernel must be a product of RBF and Matern kernels", named)
    assert split.squares is not None
    (_, squared), *others = split.squares
    heavy = torch.zeros_like(normal)
    for nu, weight in others:
        chi = standard_normal(generators, (normal.shape[1], int(2 * nu)), normal).square().mean(-1, keepdim=True)
        heavy = heavy + standard_normal(generators, normal.shape[1:], normal) * (weight.unsqueeze(-2) / chi).sqrt()
    return normal * squared.unsqueeze(-2).sqrt() + heavy, split.scale.unsqueeze(-1)
