"""A policy without adaptation, to judge the others by."""

from typing import Any

import torch
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.aggregated.tree_policy import GaussianProcessTreePolicy


class UniformGrid(GaussianProcessTreePolicy):
    """Draws the cells of one level of the tree in turn, whatever it sees: the baseline without adaptation.

    It shares the posterior of GPOO, so the two differ in where they look alone. The level is the deepest that the
    budget can visit once; of the cells drawn least, the first in bit-reversed order comes next, so that every prefix is
    spread out. It recommends the best posterior mean among the visited cells.

    Args:
        space: the cells.
        budget: the number of rounds to plan for. Default 100.
        options: those of ``TreePolicy``: ``prior``, ``kernel`` and ``seed``.
    """

    def __init__(
        self,
        space: Space,
        *,
        budget: int = 100,
        **options: Any,
    ) -> None:
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        super().__init__(space, **options)
        self.budget = budget
        self.level = 0
        while space.branching ** (self.level + 1) <= budget:
            self.level += 1

    def begin(self) -> None:
        """Lay out the grid."""
        super().begin()
        for _ in range(self.level):
            for node in self.leaf[0].nonzero().flatten():
                self.expand(node.expand_as(self.rows), self.active)
        cells = self.leaf[0].nonzero().flatten()
        index = self.tree.index[cells]
        reversed_index, rest = torch.zeros_like(index), index.clone()
        for _ in range(self.level):
            reversed_index = reversed_index * self.tree.branching + rest % self.tree.branching
            rest = rest // self.tree.branching
        self._visits = cells[reversed_index.argsort()]

    def choose(self) -> Tensor:
        """The next cell of the grid."""
        draws = self.draws[:, self._visits]
        return self._visits[(draws == draws.amin(-1, keepdim=True)).to(torch.uint8).argmax(-1)]

    def recommended(self) -> Tensor:
        """The best estimate among the cells that were drawn."""
        return self.best_of(self.draws > 0)

    def scores(self) -> Tensor:
        """Posterior means; the grid does not use them."""
        return self.tracked.mean
