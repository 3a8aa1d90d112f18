"""The links of Lemma 3 at every expansion of real runs, and the counting behind Theorem 1 ([Zhang2022]).

``IsolatedGPOO`` is GPOO without what a cell learns from its neighbors, ``BoundedProblem`` the setting of Appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pandas as pd
import torch
from torch import Tensor

from book.aggregated.problem import CellProblem
from book.aggregated.regret import lipschitz_constant
from cbo_lib.aggregated import GPOO
from cbo_lib.random import ReplicateGenerators

#: The six quantities of Lemma 3's chain, the largest first.
LINKS = ("average of the cell", "μ - width", "b - 3δ", "b* - 3δ", "average* + δ* - 3δ", "f* - 3δ")


@dataclass(frozen=True)
class Staircase:
    """Lemma 3 at every expansion.

    Args:
        links: the six quantities of ``LINKS``, ``n x 6``; the proof says that they do not increase.
        depth: of the expanded node, ``n``.
        replicate: in which it was expanded, ``n``.
        step: when, from 1, ``n``.
        low: the smallest value of f at a representative point of the cell that holds the maximizer, ``n``.
        reach: ``L`` times the distance from that point to the maximizer, ``n``.
    """

    links: Tensor
    depth: Tensor
    replicate: Tensor
    step: Tensor
    low: Tensor
    reach: Tensor


def staircase(problem: CellProblem, policy: GPOO, steps: int, seeds: Sequence[int], after: bool = False) -> Staircase:
    """Run a policy and evaluate the chain of Lemma 3 whenever it expands a node.

    Args:
        problem: the cells.
        policy: to run; it is started anew.
        steps: how many rounds.
        seeds: one a replicate.
        after: whether the posterior *after* the observation is read, with which the chain need not hold.
    """
    noise = ReplicateGenerators(list(seeds), stream=0)
    policy.start(list(seeds))
    x_star = problem.maximizer.expand(len(seeds), -1)
    optimum = problem.optimum.expand(len(seeds))
    slope = lipschitz_constant(problem, policy.delta_at(torch.arange(policy.max_depth + 2)))
    found: dict[str, list[Tensor]] = {name: [] for name in Staircase.__annotations__}
    for step in range(1, steps + 1):
        query = policy.ask()
        node, tree = policy.chosen, policy.tree
        inside = ((tree.boxes[:, 0] <= x_star[:, None]) & (x_star[:, None] <= tree.boxes[:, 1])).all(-1)
        star = (policy.leaf & inside).to(torch.uint8).argmax(-1)
        rows, delta = policy.rows, policy.delta_at(tree.depth)
        mean, width = policy.tracked.mean.clone(), policy.widths()
        policy.tell(query, problem.observe(query, noise.at(step)))
        split = policy.splits.nonzero().squeeze(-1)
        if after:
            mean, width = policy.tracked.mean[:, : len(delta)], policy.widths()[:, : len(delta)]
        b = mean + width + delta
        points = problem.space.representatives(tree.boxes[star])  # replicates S d
        value, three = problem.f(points), 3 * delta[node]
        lowest = value.argmin(-1)
        links = [
            problem.value(query.unsqueeze(1)).squeeze(1),
            mean[rows, node] - width[rows, node],
            b[rows, node] - three,
            b[rows, star] - three,
            value.mean(-1) + delta[star] - three,
            optimum - three,
        ]
        entries = {
            "links": torch.stack(links, -1),
            "depth": tree.depth[node],
            "replicate": rows,
            "step": torch.full_like(rows, step),
            "low": value[rows, lowest],
            "reach": slope * (points[rows, lowest] - x_star).abs().sum(-1),
        }
        for name, entry in entries.items():
            found[name].append(entry[split])
    return Staircase(**{name: torch.cat(parts) for name, parts in found.items()})


class IsolatedGPOO(GPOO):
    """GPOO that learns a cell from its own draws alone: its variance is ``c s^2 / (s^2 + T c)``."""

    def begin(self) -> None:
        """Nothing was drawn."""
        super().begin()
        self.sums = self.draws.to(self.space.like)

    def grow(self) -> None:
        """Make room for the nodes that the tree gained."""
        super().grow()
        self.sums = torch.nn.functional.pad(self.sums, (0, self.leaf.shape[1] - self.sums.shape[1]))

    def take(self, row: Mapping[str, Tensor], node: Tensor) -> None:
        """Add the observation to those of its node."""
        super().take(row, node)
        self.sums[self.rows, node] += row["y"]

    def own(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of every node, ``replicates x nodes``."""
        assert self.prior is not None
        prior = self.prior.posterior(None).variance(self.space.measure(self.tree.boxes))
        noise = self.prior.noise_std**2
        total = noise + self.draws * prior
        return prior * self.sums / total, prior * noise / total

    def widths(self) -> Tensor:
        """From the own draws alone."""
        return self.multiplier() * self.own()[1].sqrt()

    def estimates(self) -> Tensor:
        """From the own draws alone."""
        return self.own()[0]

    def scores(self) -> Tensor:
        """The b-values."""
        mean, variance = self.own()
        return mean + self.multiplier() * variance.sqrt() + self.delta_at(self.tree.depth)


def most_draws(beta: float, delta: Tensor, noise_std: float, prior_variance: Tensor | None = None) -> list[float]:
    """``T(h)``: a node of depth h is drawn fewer times than this, or once, before it is split.

    ``2 + beta sigma^2 / delta^2``; with the prior variance c of the cells' averages ``sigma^2 / c`` less, not below 1.

    Args:
        beta: the squared multiplier at the end of the budget.
        delta: the smoothness function of every depth.
        noise_std: the noise.
        prior_variance: c of every depth. Default: infinite, as in Proposition 2.
    """
    draws = 2 + beta * noise_std**2 / delta.square()
    if prior_variance is not None:
        draws = (draws - noise_std**2 / prior_variance).clamp_min(1.0)
    return draws.tolist()


def absorbed(draws: Sequence[float], counts: Sequence[float], branching: int) -> list[float]:
    """How many rounds a tree absorbs whose split nodes have depths below 0, below 1, and so on.

    ``[T(0), T(0) + K |I_0| T(1), ...]``: the corrected right side of Eq. 8.
    """
    levels = [branching * count * more for count, more in zip(counts, draws[1:], strict=False)]
    return list(accumulate([draws[0], *levels]))


def counting_table(draws: Sequence[float], counts: Sequence[int], branching: int) -> pd.DataFrame:
    """The counting behind Theorem 1 as a table, one row a depth."""
    totals = absorbed(draws, counts, branching)
    rows = {
        h: {
            "T(h)": draws[h],
            "|I_h|": counts[h],
            "drawn nodes": 1 if h == 0 else branching * counts[h - 1],
            "rounds up to here": totals[h],
        }
        for h in range(len(counts))
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "depth h"
    return frame


def depth_reached(steps: int, draws: Sequence[float], counts: Sequence[float], branching: int) -> int:
    """``h_N``: a node of this depth was split after ``steps`` rounds; -1 if none need have been."""
    totals = absorbed(draws, counts, branching)
    return next((i for i, total in enumerate(totals) if total >= steps), len(totals)) - 1


@dataclass(frozen=True)
class BoundedProblem(CellProblem):
    """The setting of Appendix C: rewards in [0, 1], uniform around the average; ``noise_std`` is their deviation."""

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A reward of one cell a replicate."""
        value = self.value(query)
        uniform = [torch.rand((), generator=g, dtype=torch.float64) for g in generators]
        return value + math.sqrt(12) * self.noise_std * (torch.stack(uniform).to(value) - 0.5)
