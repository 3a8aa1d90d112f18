"""Gaussian process optimistic optimization ([Zhang2022])."""

from typing import Any

import torch
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.aggregated.tree import Smoothness, TreePolicy, smoothness
from cbo_lib.checks import as_number, as_schedule
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.measure import Measure, variance
from cbo_lib.search import argmax_finite


class GPOO(TreePolicy):
    """Gaussian process optimistic optimization ([Zhang2022], Algorithm 1).

    Args:
        space: the cells.
        delta: the smoothness function: positive, decreasing in the depth, in the units of y; or a number, that of the
            root, which shrinks by ``K^(-1 / d)`` a level. Default: twice the prior deviation of
            ``f(center) - f(corner)`` in the widest cell of the depth, or of a deeper one if that is larger.
        failure: the probability ``theta`` with which some confidence width may fail. Default 0.1.
        sqrt_beta: the multiplier of the deviation, a number or a function of the round ``t = 1, 2, ...``. Default: a
            union over the leaves that a round can have, ``sqrt(2 log((1 + (K - 1)(t - 1)) pi^2 t^2 / (6 theta)))``.
        options: ``prior``, ``kernel`` and ``seeds`` of ``TreePolicy``, or ``seed`` of ``Run``.

    Attributes:
        node: the leaf that was asked last, ``replicates``.
        width, allowed: the confidence width and ``delta`` of every node when it was, ``replicates x nodes``.

    Raises:
        ValueError: if ``delta`` is not positive and decreasing, or another argument is out of range.
    """

    def __init__(
        self,
        space: Space,
        *,
        delta: float | Smoothness | None = None,
        failure: float = 0.1,
        sqrt_beta: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        self.given_delta = None if delta is None else smoothness(delta, space)
        self.failure = as_number("failure", failure, 0, 1, "()")
        self.given_sqrt_beta = None if sqrt_beta is None else as_schedule("sqrt_beta", sqrt_beta)
        self.asked_at = 0

    def sqrt_beta(self, t: int) -> float:
        """The multiplier of round ``t``, with which all leaves of all rounds are within their widths at once."""
        if self.given_sqrt_beta is None:
            return union_bound_sqrt_beta(1 + (self.space.branching - 1) * (t - 1), t, self.failure)
        return self.given_sqrt_beta(t) if callable(self.given_sqrt_beta) else self.given_sqrt_beta

    def delta(self, depth: Tensor) -> Tensor:
        """The smoothness function at depths ``n``, ``... x n``."""
        if self.given_delta is not None:
            return self.given_delta(depth)
        ends = self.space.center_and_corner(int(depth.max()) + 1)  # levels 2 D
        difference = Measure(ends, ends.new_tensor([1.0, -1.0]).expand(len(ends), 2))
        deviation = variance(self.prior.kernel, difference).clamp_min(0).sqrt()
        never_growing = deviation.flip(-1).cummax(-1).values.flip(-1)
        return 2 * never_growing[..., depth]

    def ask(self) -> Tensor:
        """The leaf of the largest b-value, ``replicates x 2 x d``."""
        mean, std = self.belief()
        self.width = self.sqrt_beta(self.round) * std
        self.allowed = self.delta(self.tree.depth).expand_as(mean)
        b = mean + self.width + self.allowed
        self.node = argmax_finite(b, self.leaf, self.tree.order)  # line 2
        self.asked_at = self.round
        return self.tree.boxes[self.node]

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Learn the average ``y`` (``replicates``) over the cell that was asked, and split it if it is known."""
        if self.asked_at != self.round:
            self.ask()
        if not torch.equal(self.find(cell), self.node):  # something else was done
            return self.learn(cell.unsqueeze(1), y.unsqueeze(1))
        super().tell(cell, y)  # lines 3 and 4
        self.expand(self.node, self.known())  # line 5

    def known(self) -> Tensor:
        """Whether the width of the chosen leaf, before its answer, is at most ``delta``, boolean ``replicates``."""
        return (self.width <= self.allowed).gather(1, self.node.unsqueeze(1)).squeeze(1)

    def learn(self, query: Tensor, y: Tensor) -> None:
        """Old averages, ``n`` at once; then lines 2 and 5 without a question, at most once for each."""
        for i in range(y.shape[1]):
            super().tell(query[:, i], y[:, i])
        for _ in range(y.shape[1]):
            self.ask()
            if not bool((known := self.known()).any()):
                break
            self.expand(self.node, known)
        self.asked_at = 0

    def recommend(self) -> Tensor:
        """The largest posterior mean among the split cells of the deepest level that has any."""
        return self.deepest_split(self.belief()[0])  # line 7
