"""Gaussian process optimistic optimization ([Zhang2022])."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.aggregated.tree_policy import GaussianProcessTreePolicy, Smoothness, check_smoothness
from cbo_lib.checks import as_count, as_number
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.former.policy import Schedule


class GPOO(GaussianProcessTreePolicy):
    """Gaussian process optimistic optimization ([Zhang2022], Algorithm 1).

    Draws the leaf with the largest b-value, posterior mean + confidence width + ``delta(depth)``, and expands it if the
    width that it was drawn with is at most ``delta(depth)``. Recommends the best of the deepest expanded (Theorem 1).

    Args:
        space: the cells.
        delta: the smoothness function: positive, decreasing in the depth, in the units of y; or a number, that
            of the root, which shrinks by ``K^(-1 / d)`` a level. Default: twice the prior
            standard deviation of ``f(center) - f(corner)`` in the widest cell of the depth.
        max_depth: the deepest level whose nodes may be expanded, so that nodes reach depth ``max_depth + 1``
            (Algorithm 1, line 6). Default 10 a dimension, less where a level would have more than 2^48 cells.
        failure: the probability ``theta`` with which some confidence interval may fail. Default 0.1.
        sqrt_beta: the multiplier of the standard deviation, a number or a function of the round ``t = 1, 2, ...``.
            Default that of Lemma 1, ``sqrt(2 log(M pi^2 t^2 / (6 theta)))``, ``M`` the nodes down to ``max_depth``.
        options: those of ``TreePolicy``: ``prior``, ``kernel`` and ``seed``.

    Attributes:
        width: the confidence width that the drawn node was drawn with, ``replicates``; NaN if it was not asked.
        widths_before: those of all nodes before the last observation that was asked, ``replicates x nodes``.

    Raises:
        ValueError: if ``delta`` is not positive and decreasing, or another argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        delta: float | Smoothness | None = None,
        max_depth: int | None = None,
        failure: float = 0.1,
        sqrt_beta: Schedule | None = None,
        **options: Any,
    ) -> None:
        super().__init__(space, sqrt_beta=2.0 if sqrt_beta is None else sqrt_beta, **options)
        deepest = math.floor(48 * math.log(2) / math.log(space.branching)) - 1
        wanted = min(10 * space.dim, deepest) if max_depth is None else max_depth
        self.max_depth = as_count("max_depth", wanted, 0, deepest)
        self.failure, self.follows_lemma_1 = as_number("failure", failure, 0, 1, "()"), sqrt_beta is None
        if sqrt_beta is None:
            nodes = sum(space.branching**h for h in range(self.max_depth + 1))
            self.sqrt_beta = partial(union_bound_sqrt_beta, nodes, failure=failure)
        self.delta = None if delta is None else check_smoothness(delta, self.max_depth + 1, space)

    def delta_at(self, depth: Tensor) -> Tensor:
        """The smoothness function at depths ``n``: ``n``, or ``replicates x n`` if it derives from a fitted prior."""
        if self.delta is not None:
            return self.delta(depth)
        return self.prior_variation(self.max_depth + 2)[..., depth.clamp_max(self.max_depth + 1)]

    def scores(self) -> Tensor:
        """The b-values of all nodes (Eq. 5; Algorithm 1, line 2)."""
        return self.tracked.mean + self.widths() + self.delta_at(self.tree.depth)

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Note the widths from the data before ``t``, then learn."""
        self.width = torch.full_like(row["y"], torch.nan)
        if bool(asked.any()):
            self.widths_before, self._delta = self.widths(), self.delta_at(self.tree.depth)
        super().learn(row, asked)
        self.width = torch.where(asked, self.width, torch.nan)

    def may_expand(self, node: Tensor) -> Tensor:
        """Algorithm 1, line 6, by what held before the draw: the widths that the proof of Lemma 3 uses."""
        self.width = self.widths_before[self.rows, node]
        delta = self._delta.expand(self.replicates, -1)[self.rows, node]
        return (delta >= self.width) & (self.tree.depth[node] <= self.max_depth)

    def record(self) -> Mapping[str, Tensor]:
        """Also the drawn node's width, and what the paper's rules name, in line 11 (leaves too) and in the text."""
        deepest = torch.where(self.expanded, self.tree.depth, -1).amax(-1, keepdim=True)
        rules = torch.stack([(self.leaf | self.expanded) & (self.tree.depth == deepest), self.expanded])
        line_11, best_expanded = self.tree.boxes[self.best_of(rules)]
        return {**super().record(), "width": self.width, "line_11": line_11, "best_expanded": best_expanded}
