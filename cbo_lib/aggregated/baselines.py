"""The policies that GPOO is compared with ([Munos2014], [Shekhar2018], [Zhang2022])."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.aggregated.tree import Smoothness, TreePolicy, smoothness
from cbo_lib.checks import as_count, as_number
from cbo_lib.measure import Measure, variance
from cbo_lib.search import argmax_finite


class StoOO(TreePolicy):
    """Stochastic optimistic optimization ([Munos2014], section 3.3), for cells of any number of points.

    A leaf is split by its width from before the draw, as the proof needs; the paper tests it after the draw.

    Args:
        space: the cells.
        delta: the smoothness function, see ``GPOO``. Default ``span K^(-depth / d)``.
        budget: the number ``N`` of rounds that the widths are made for. Default 100.
        failure: error probability ``theta``. Default 0.1.
        span: the length of the interval that observations lie in. Default 1, as in the paper.
        options: those of ``TreePolicy``; ``prior`` and ``kernel`` are of ``posterior``, which the policy does not use.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        delta: float | Smoothness | None = None,
        budget: int = 100,
        failure: float = 0.1,
        span: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.budget, self.failure = as_count("budget", budget, 1), as_number("failure", failure, 0, 1, "()")
        self.span = as_number("span", span, 0, ends="()")
        self.delta = smoothness(self.span if delta is None else delta, space)
        self.draws = torch.zeros_like(self.leaf, dtype=space.like.dtype)
        self.sums = torch.zeros_like(self.draws)

    def squared_width(self) -> float:
        """The squared confidence width of a node that was drawn once, for a span of 1."""
        return math.log(self.budget**2 / self.failure) / 2

    def widths(self) -> Tensor:
        """The confidence width of every node by what is known now, infinite before its first draw."""
        return self.span * (self.squared_width() / self.draws).sqrt()

    def ask(self) -> Tensor:
        """The leaf of the largest upper bound, ``replicates x 2 x d``."""
        b = self.means() + self.widths() + self.delta(self.tree.depth)
        self.node = argmax_finite(b, self.leaf, self.tree.order)  # line 2
        return self.tree.boxes[self.node]

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Count the average ``y`` (``replicates``) for the node that the cell is, and split it if it is known."""
        found, row = self.find(cell), torch.arange(len(y), device=y.device)
        own, node = found >= 0, found.clamp_min(0)
        known = (self.widths() <= self.delta(self.tree.depth))[row, node]  # line 4, by the width before the answer
        super().tell(cell, y)
        self.draws[row, node] += own.to(y)  # line 3
        self.sums[row, node] += torch.where(own, y, 0.0)
        self.expand(node, own & known)

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Also make room for the counts of new nodes."""
        super().expand(node, where)
        new = len(self.tree) - self.draws.shape[1]
        self.draws, self.sums = (torch.nn.functional.pad(a, (0, new)) for a in (self.draws, self.sums))

    def means(self) -> Tensor:
        """The mean of each node's observations, zero before the first."""
        return self.sums / self.draws.clamp_min(1)

    def recommend(self) -> Tensor:
        """The largest mean among the split cells of the deepest level that has any."""
        return self.deepest_split(self.means())  # line 6


class AveStoOO(StoOO):
    """StoOO for aggregated feedback ([Zhang2022], Algorithm 2): its widths follow the round and not the budget.

    Arguments are those of ``StoOO``; ``budget`` is not used.
    """

    def squared_width(self) -> float:
        """``2 log(t^2 / theta)`` ([Zhang2022], Eq. 12)."""
        return 2 * math.log(self.round**2 / self.failure)


class GPTree(TreePolicy):
    """The tree policy of [Shekhar2018] for Gaussian process bandits, by the published code of [Zhang2022].

    ``V(h) = 4 g (sqrt(2 u + C4 + h log K + 4 log(1 / g)) + 1)`` with ``C4 = 1 + 2 log(N^2 pi^2 / 6)`` and ``g`` the
    deviation of f across a cell of depth h; ``sqrt_beta = scale sqrt(log N + u)``, the same at all rounds; no node
    deeper than ``log N (1 + 1/alpha) / (2 alpha log(1/rho))`` is split. The constants ``v1``, ``C2``, ``C3`` and
    ``D1``, which the paper leaves open, are 1.

    Args:
        space: the cells.
        budget: the number ``N`` of rounds that the constants are made for. Default 100.
        metric_bound: bounds the standard deviation of ``f(x) - f(x')`` at the distance ``rho^h``; ``g`` is its value.
            Default: that deviation under the prior, between opposite corners of the widest cell of depth h.
        alpha: the exponent of ``metric_bound`` near zero, in (0, 1]. Default 1, that of the RBF kernel.
        rho: how fast cells shrink, ``1 / K`` in one dimension. Default ``K^(-1 / d)``.
        u: confidence, failure probability ``exp(-u)``. Default 2.
        scale: multiplies ``sqrt_beta``; 1 in the paper.
        options: ``prior``, ``kernel`` and ``seeds`` of ``TreePolicy``, or ``seed`` of ``Run``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        budget: int = 100,
        metric_bound: Callable[[float], float] | None = None,
        alpha: float = 1.0,
        rho: float | None = None,
        u: float = 2.0,
        scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.budget, self.metric_bound = as_count("budget", budget, 1), metric_bound
        self.u, alpha = as_number("u", u, 0, ends="()"), as_number("alpha", alpha, 0, 1, "(]")
        self.rho = space.branching ** (-1 / space.dim) if rho is None else as_number("rho", rho, 0, 1, "()")
        self.sqrt_beta = as_number("scale", scale, 0) * math.sqrt(math.log(budget) + u)
        self.max_depth = math.log(budget) * (1 + 1 / alpha) / (2 * alpha * math.log(1 / self.rho))

    def variation(self, depth: Tensor) -> Tensor:
        """``V`` at depths ``n``, ``... x n``."""
        if self.metric_bound is not None:
            g = self.space.like.new_tensor([self.metric_bound(self.rho**h) for h in depth.tolist()])
        else:
            center, corner = self.space.center_and_corner(int(depth.max()) + 1).unbind(1)
            ends = torch.stack([corner, 2 * center - corner], 1)
            across = Measure(ends, ends.new_tensor([1.0, -1.0]).expand(len(ends), 2))
            g = variance(self.prior.kernel, across).clamp_min(0).sqrt()[..., depth]
        inner = 2 * self.u + 1 + 2 * math.log(self.budget**2 * math.pi**2 / 6) + depth * math.log(self.space.branching)
        return 4 * g * ((inner + 4 * (1 / g).log()).clamp_min(0).sqrt() + 1)

    def ask(self) -> Tensor:
        """The leaf of the largest score, after splits that need no draw, ``replicates x 2 x d``."""
        row = torch.arange(len(self.y), device=self.y.device)
        while True:
            mean, std = self.belief()
            depth = self.tree.depth
            V = self.variation(torch.arange(int(depth.max()) + 1, device=depth.device)).expand(len(self.y), -1)
            upper = mean + self.sqrt_beta * std
            from_parent = (upper[:, self.tree.parent] + V[:, depth - 1]).masked_fill(depth == 0, torch.inf)
            score = torch.minimum(upper, from_parent) + V[:, depth]
            node = argmax_finite(score, self.leaf, self.tree.order)  # line 2
            ready = (self.sqrt_beta * std[row, node] <= V[row, depth[node]]) & (depth[node] <= self.max_depth)
            if not bool(ready.any()):
                return self.tree.boxes[node]  # line 4
            self.expand(node, ready)  # line 3

    def recommend(self) -> Tensor:
        """The largest posterior mean among the split cells of the deepest level that has any."""
        return self.deepest_split(self.belief()[0])  # line 6


class UniformGrid(TreePolicy):
    """The baseline without adaptation: the cells of one level in turn, whatever is seen; the posterior is GPOO's.

    The level is the deepest that the budget can visit once. Cells come in bit-reversed order, so that those visited so
    far are always spread out. The visited cell of the largest posterior mean is recommended.

    Args:
        space: the cells.
        budget: the number of rounds to plan for. Default 100.
        options: those of ``TreePolicy``.
    """

    def __init__(self, space: Space, *, budget: int = 100, **options: Any) -> None:
        super().__init__(space, **options)
        level, K, budget = 0, space.branching, as_count("budget", budget, 1)
        while K ** (level + 1) <= budget:
            level += 1
        every = torch.ones_like(self.leaf[:, 0])
        for node in range((K**level - 1) // (K - 1)):
            self.expand(torch.full_like(every, node, dtype=torch.long), every)
        cells = self.tree.complete(level)
        place = torch.zeros_like(cells)
        for i in range(level):
            place = K * place + self.tree.index[cells] // K**i % K
        self.visits = cells[place.argsort()]

    def ask(self) -> Tensor:
        """The next cell of the grid, ``replicates x 2 x d``."""
        return self.tree.boxes[self.visits[(self.round - 1) % len(self.visits)]].expand(len(self.y), -1, -1)

    def recommend(self) -> Tensor:
        """The largest posterior mean among the visited cells."""
        visited = torch.zeros_like(self.leaf)
        visited[:, self.visits[: self.round - 1]] = True
        return self.tree.boxes[argmax_finite(self.belief()[0], visited, self.tree.order)]
