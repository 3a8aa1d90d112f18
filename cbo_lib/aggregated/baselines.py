"""The policies that GPOO is compared with ([Munos2014], [Shekhar2018], [Zhang2022])."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.aggregated.tree_policy import GaussianProcessTreePolicy, Smoothness, TreePolicy, check_smoothness
from cbo_lib.checks import as_count, as_number, require


class StoOO(TreePolicy):
    """Stochastic optimistic optimization ([Munos2014], section 3.3), for cells of any number of points.

    The score is the mean of the node's own observations + ``span sqrt(log(n^2 / failure) / (2 T))`` + ``delta(depth)``
    after ``T`` draws, infinite at first. A node is expanded after ``span^2 log(n^2 / failure) / (2 delta^2)`` draws.

    Args:
        space: the cells.
        delta: the smoothness function, see ``GPOO``. Default ``span K^(-depth / d)``.
        budget: the number ``n`` of rounds that the widths are made for. Default 100.
        failure: error probability. Default 0.1.
        span: the length of the interval that observations lie in, 1 in the paper. Default: the range told so far, or 1.
        options: those of ``TreePolicy``; ``prior`` is of ``posterior``, which the policy does not use. Errors too.
    """

    def __init__(
        self,
        space: Space,
        *,
        delta: float | Smoothness | None = None,
        budget: int = 100,
        failure: float = 0.1,
        span: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.budget = as_count("budget", budget, 1)
        self.failure = as_number("failure", failure, 0, 1, "()")
        self.given_span = None if span is None else as_number("span", span, 0, ends="()")
        self.delta = None if delta is None else check_smoothness(delta, 10 * space.dim, space)

    def begin(self) -> None:
        """The root is the only leaf, and nothing is known of it."""
        super().begin()
        self.sums = self.draws.to(self.space.like)
        infinite = self.space.like.new_full((self.replicates, 1), torch.inf)
        self.lowest, self.highest = infinite, -infinite

    @property
    def span(self) -> Tensor:
        """The length of the interval that observations lie in, ``replicates x 1``."""
        if self.given_span is not None:
            return torch.full_like(self.lowest, self.given_span)
        seen = self.highest - self.lowest
        return torch.where(seen > 0, seen, 1.0)

    def delta_at(self, depth: Tensor) -> Tensor:
        """The smoothness function at depths ``n``: ``n``, or ``replicates x n`` where it follows the span."""
        if self.delta is not None:
            return self.delta(depth)
        return self.span * self.space.branching ** (-depth.to(self.sums) / self.space.dim)

    def squared_width(self) -> float:
        """The squared confidence width of a node that was drawn once, for a span of 1."""
        return math.log(self.budget**2 / self.failure) / 2

    def grow(self) -> None:
        """Make room for the nodes that the tree gained."""
        super().grow()
        self.sums = torch.nn.functional.pad(self.sums, (0, len(self.tree) - self.sums.shape[1]))

    def scores(self) -> Tensor:
        """The upper confidence bounds of all nodes."""
        width = self.span * (self.squared_width() / self.draws).sqrt()
        return self.estimates() + width + self.delta_at(self.tree.depth)

    def estimates(self) -> Tensor:
        """The mean of each node's observations, zero before the first."""
        return self.sums / self.draws.clamp_min(1)

    def take(self, row: Mapping[str, Tensor], node: Tensor) -> None:
        """Add the observation to those of its node."""
        super().take(row, node)
        y, at = row["y"], (node >= 0).nonzero().squeeze(-1)
        self.sums[at, node[at]] += y[at]
        self.lowest = torch.minimum(self.lowest, y.unsqueeze(-1))
        self.highest = torch.maximum(self.highest, y.unsqueeze(-1))

    def may_expand(self, node: Tensor) -> Tensor:
        """Whether its width has come down to delta."""
        delta = (self.delta_at(self.tree.depth) / self.span)[self.rows, node]
        return self.draws[self.rows, node] >= self.squared_width() / delta.square()


class AveStoOO(StoOO):
    """StoOO for aggregated feedback ([Zhang2022], Algorithm 2): the squared width is ``2 log(t^2 / theta) / T``.

    Its widths follow the round and not the budget, and are twice as large as those of ``StoOO`` at ``t = n``. Arguments
    are those of ``StoOO``; ``failure`` is the error probability ``theta``, ``budget`` is not used.
    """

    def squared_width(self) -> float:
        """Eq. 12."""
        return 2 * math.log(self.round**2 / self.failure)


class GPTree(GaussianProcessTreePolicy):
    """The tree policy of [Shekhar2018] for Gaussian process bandits, as the published code of [Zhang2022] has it.

    The score of a node is the smaller of its own upper confidence bound and its parent's plus ``V(h - 1)``, plus
    ``V(h)``. The best leaf is expanded, without a draw, while ``sqrt_beta * std <= V(h)``; else it is drawn.

    ``V(h) = 4 g (sqrt(2 u + C4 + h log K + 4 log(1 / g)) + 1)`` with ``g = metric_bound(rho^h)`` and
    ``C4 = 1 + 2 log(n^2 pi^2 / 6)``; ``sqrt_beta = scale sqrt(log n + u)``, the same at all rounds; no node deeper
    than ``log n (1 + 1/alpha) / (2 alpha log(1/rho))``, or of a level of more than 2^48 cells, is expanded. The
    constants ``v1``, ``C2``, ``C3`` and ``D1``, which the paper leaves open, are 1.

    Args:
        space: the cells.
        budget: the number ``n`` of rounds that the constants are made for. Default 100.
        metric_bound: ``g``, an upper bound of the standard deviation of ``f(x) - f(x')`` at distance ``r``, below 1
            wherever it is used. Default: in place of the ``V`` above, twice the prior standard deviation of
            ``f(center) - f(corner)`` in the widest cell of the depth, as in ``GPOO``.
        alpha: the exponent of ``g`` near zero, in (0, 1]. Default 1, that of the RBF kernel.
        rho: how fast cells shrink, ``1 / K`` in one dimension. Default ``branching ** (-1 / dim)``.
        u: confidence, failure probability ``exp(-u)``. Default 2.
        scale: multiplies ``sqrt_beta``; 1 in the paper.
        options: those of ``TreePolicy``: ``prior``, ``kernel`` and ``seed``.

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
        self.budget = as_count("budget", budget, 1)
        as_number("u", u, 0, ends="()")
        as_number("scale", scale, 0)
        super().__init__(space, sqrt_beta=scale * math.sqrt(math.log(budget) + u), **options)
        self.rho = space.branching ** (-1 / space.dim) if rho is None else as_number("rho", rho, 0, 1, "()")
        as_number("alpha", alpha, 0, 1, "(]")
        deepest = math.log(budget) * (1 + 1 / alpha) / (2 * alpha * math.log(1 / self.rho))
        self.max_depth = min(deepest, math.floor(48 * math.log(2) / math.log(space.branching)) - 1)
        self._levels = math.floor(self.max_depth) + 2
        self._given: Tensor | None = None
        if metric_bound is not None:
            g = {self.rho**h: metric_bound(self.rho**h) for h in range(self._levels)}
            for r, value in g.items():
                require(0 < value < 1, "metric_bound must lie in (0, 1)", f"{value} at distance {r}")
            c4 = 1 + 2 * math.log(budget**2 * math.pi**2 / 6)
            log_k = math.log(space.branching)
            self._given = space.like.new_tensor(
                [4 * v * (math.sqrt(2 * u + c4 + h * log_k - 4 * math.log(v)) + 1) for h, v in enumerate(g.values())]
            )

    @property
    def variation(self) -> Tensor:
        """``V`` of every depth, ``depths``, or ``replicates x depths`` where it derives from a fitted prior."""
        return self.prior_variation(self._levels) if self._given is None else self._given

    def choose(self) -> Tensor:
        """Expand the best leaf while it is known well enough, then return it."""
        variation = self.variation
        while True:
            node = super().choose()
            depth = self.tree.depth[node]
            allowed = variation.expand(self.replicates, -1)[self.rows, depth]
            ready = (self.widths()[self.rows, node] <= allowed) & (depth <= self.max_depth)
            if not bool(ready.any()):
                return node
            self.expand(node, ready)

    def scores(self) -> Tensor:
        """The smaller of both upper bounds, plus the variation in the cell."""
        variation, depth = self.variation, self.tree.depth.clamp_max(self._levels - 1)  # no leaf is deeper
        upper = self.tracked.mean + self.widths()
        from_parent = upper[:, self.tree.parent] + variation[..., depth - 1]
        from_parent[:, 0] = torch.inf  # the root has none
        return torch.minimum(upper, from_parent) + variation[..., depth]
