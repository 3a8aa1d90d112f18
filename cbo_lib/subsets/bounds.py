"""What the posterior says of every subset: the largest expected confidence bound over the values of its variables.

.. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
   Subsets with No-Regret Costs. 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbo_lib.expectation import PartialPosterior, TrackedPartial
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.maximize import maximize_box
from cbo_lib.measure import Measure
from cbo_lib.separable import SplitKernel, pivoted_factor
from cbo_lib.subsets.problem import SubsetProblem


@dataclass(frozen=True)
class Effort:
    """How hard a policy looks for the best decision; the same for all policies that are compared.

    Args:
        contexts: how many Sobol draws of the free variables stand for their distribution. Default 32.
        candidates: how many Sobol points of each subset are kept under observation. Default 128.
        iterations: of L-BFGS-B, from the better of the best candidate and the last maximizer. Default 4: the maximizer
            moves little from one step to the next.
        tolerance: see ``PartialPosterior``. Default 1e-10.

    Raises:
        ValueError: if a number is out of range.
    """

    contexts: int = 32
    candidates: int = 128
    iterations: int = 4
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("contexts", "candidates", "iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")


@dataclass(frozen=True)
class Decisions:
    """One decision a replicate and subset, and what the posterior expects of it.

    Attributes:
        points: ``replicates x m x d``; free coordinates are 0.5.
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

    def where(self, replicates: Tensor, other: Decisions) -> Decisions:
        """These for the replicates that are marked, ``replicates`` booleans, and the other's for the rest."""
        mark = replicates.unsqueeze(-1)
        points = torch.where(mark.unsqueeze(-1), self.points, other.points)
        return Decisions(points, torch.where(mark, self.mean, other.mean), torch.where(mark, self.std, other.std))


class SubsetBounds:
    """The posteriors of all replicates, and the maximizers of expected bounds over each subset.

    ``E[u([x^i, X^-i])]`` is an average over ``effort.contexts`` quasi-random draws of the free variables, the same for
    every subset and step. Sobol points of every subset are tracked by rank-one steps; the best of them and the last
    maximizer compete for the start of a local search.

    Args:
        problem: the control sets and marginals.
        prior: of f; its kernel must be a product over the coordinates.
        replicates: how many.
        effort: see ``Effort``.
    """

    def __init__(self, problem: SubsetProblem, prior: GaussianProcess, replicates: int, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.posterior: Posterior = prior.posterior(replicates)
        self.contexts = problem.free_samples(effort.contexts, seed=0)
        like = self.contexts
        sobol = torch.quasirandom.SobolEngine(problem.dim, scramble=True, seed=1)
        self.candidates = sobol.draw(effort.candidates, dtype=torch.float64).to(like)
        self.controlled = problem.controlled.to(like.device)
        self._box = torch.stack([torch.zeros_like(like[0]), torch.ones_like(like[0])])
        self._warm = {side: torch.full((replicates, problem.m, problem.dim), 0.5).to(like) for side in (1, -1)}
        self._track()
        # Where the free variables hardly matter to the kernel, a factor of low rank pays.
        self._low_rank = [self._rank(i) <= effort.contexts // 4 for i in range(problem.m)]

    def observe(self, points: Tensor, y: Tensor) -> None:
        """Take in one noisy value ``replicates`` at a full point ``replicates x d``."""
        self.posterior = self.posterior.extend(Measure.dirac(points.unsqueeze(-2)), y.unsqueeze(-1))
        self._tracked.update(self.posterior)

    def tracked(self, sqrt_beta: float) -> Tensor:
        """``E[mu + sqrt_beta sigma]`` of the tracked candidates, ``replicates x m x n``."""
        return (self._tracked.mean + sqrt_beta * self._tracked.variance.sqrt()).mean(-1)

    def prediction(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of f at one full point a replicate, ``replicates`` each."""
        measure = Measure.dirac(points.unsqueeze(-2))
        return self.posterior.mean(measure).squeeze(-1), self.posterior.variance(measure).sqrt().squeeze(-1)

    def expect(self, points: Tensor, wanted: Tensor) -> Decisions:
        """What is expected of decisions ``replicates x m x d`` where they are wanted, ``replicates x m`` booleans."""
        parts = {}
        for subsets in self._alike(wanted):
            chosen = torch.where(self.controlled[subsets], points[:, subsets], 0.5)
            parts[tuple(subsets)] = self._moments(subsets, chosen)
        return self._gather(parts, wanted)

    def maximize(self, wanted: Tensor, sqrt_beta: float) -> Decisions:
        """The decisions of the largest ``E[mu + sqrt_beta sigma]``, ``m`` a replicate.

        Args:
            wanted: of which subsets, ``replicates x m`` booleans. What is computed for one replicate does not depend
                on what others want.
            sqrt_beta: the multiplier; negative for the lower bound.
        """
        side, parts = 1 if sqrt_beta >= 0 else -1, {}
        bound = self.tracked(sqrt_beta)
        for subsets in self._alike(wanted):
            partial = self._partial(subsets)
            start = self.candidates[bound[:, subsets].argmax(-1)]
            points = torch.where(self.controlled[subsets], start, 0.5)
            if self.posterior.count:  # before, all decisions are alike
                values = functools.partial(partial.expected_ucb, sqrt_beta=sqrt_beta)
                points = self._search(values, subsets, [start, self._warm[side][:, subsets]])
            parts[tuple(subsets)] = self._moments(subsets, points, partial)
        found = self._gather(parts, wanted)
        self._warm[side] = torch.where(wanted.unsqueeze(-1), found.points, self._warm[side])
        return found

    def maximize_paths(self, values: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The largest expectation of one function a replicate over every subset.

        Args:
            values: the expectations of decisions ``replicates x m x n x d``, ``replicates x m x n``; see
                ``SamplePaths``.

        Returns:
            The maxima ``replicates x m`` and the decisions ``replicates x m x d``.
        """
        warm = self._warm[1]
        best = values(self.candidates.expand(*warm.shape[:2], *self.candidates.shape)).argmax(-1)
        points = self._search(values, list(range(self.problem.m)), [self.candidates[best], warm])
        self._warm[1] = points
        return values(points.unsqueeze(-2)).squeeze(-1), points

    def _alike(self, wanted: Tensor) -> list[list[int]]:
        """The subsets that any replicate wants, those with a factor of low rank apart from the others."""
        some = torch.nonzero(wanted.any(0)).flatten().tolist()
        kinds = [[i for i in some if self._low_rank[i] is kind] for kind in (True, False)]
        return [kind for kind in kinds if kind]

    def _track(self) -> None:
        self._tracked = TrackedPartial(self.posterior, self.candidates, self.contexts, self.controlled)

    def _partial(self, subsets: list[int]) -> PartialPosterior:
        tolerance = self.effort.tolerance if self._low_rank[subsets[0]] else None
        return PartialPosterior(self.posterior, self.contexts, self.controlled[subsets], tolerance)

    def _moments(self, subsets: list[int], points: Tensor, partial: PartialPosterior | None = None) -> Decisions:
        partial = partial or self._partial(subsets)
        mean, variance = partial.mean_and_variance(points.unsqueeze(-2))
        return Decisions(points, mean.mean(-1).squeeze(-1), variance.sqrt().mean(-1).squeeze(-1))

    def _gather(self, parts: dict[tuple[int, ...], Decisions], wanted: Tensor) -> Decisions:
        """Some subsets' decisions as columns among all."""
        points = torch.full((*wanted.shape, self.problem.dim), 0.5).to(self.contexts)
        mean, std = torch.full_like(points[..., 0], -torch.inf), torch.zeros_like(points[..., 0])
        for subsets, part in parts.items():
            columns = list(subsets)
            points[:, columns], mean[:, columns], std[:, columns] = part.points, part.mean, part.std
        return Decisions(points, mean.masked_fill(~wanted, -torch.inf), std.masked_fill(~wanted, 0.0))

    def _search(self, values: Callable[[Tensor], Tensor], subsets: list[int], starts: list[Tensor]) -> Tensor:
        """Maximizers ``replicates x c x d`` of functions of ``replicates x c x n x d``, from the best of the starts."""
        raw = torch.where(self.controlled[subsets].unsqueeze(-2), torch.stack(starts, -2), 0.5)
        shape = (*raw.shape[:2], -1, raw.shape[-1])
        points, _ = maximize_box(
            lambda x: values(x.reshape(shape)).flatten(0, 1),
            self._box,
            raw.flatten(0, 1),
            starts=1,
            max_iterations=self.effort.iterations,
        )
        return points.reshape(raw.shape[0], raw.shape[1], raw.shape[-1])

    def _rank(self, subset: int) -> int:
        """The numerical rank of the kernel of the draws in the variables that a subset leaves free."""
        split = SplitKernel.of(self.posterior.prior.kernel, self.controlled[subset], 0)
        basis = pivoted_factor(split.free, self.contexts, self.effort.contexts, self.effort.tolerance)
        assert basis is not None
        return basis.shape[-1]
