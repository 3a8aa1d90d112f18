"""Policies that take the lead of CMES and CMETS apart; see the experiments."""

from __future__ import annotations

import torch
from torch import Tensor

from cbo_lib.indirect import CMES, CMETS, EI, RandomActions
from cbo_lib.indirect.entropy import gumbel_max_samples
from cbo_lib.random import uniform


class OnMaximumOfG(CMES):
    """CMES's model of g, and the target of MES: the most information about the maximum of g."""

    def max_samples(self) -> Tensor:
        """Samples of ``g*`` given the data, ``replicates x samples``."""
        mean, std = (part[:, : self.space.n] for part in self.belief())
        return gumbel_max_samples(mean, std, uniform(self.generators, (self.samples,), mean))


class PaidEI(EI):
    """Expected improvement on g for the cost: a rival that may ask coarse nodes too."""

    def scores(self, mean: Tensor, std: Tensor) -> Tensor:
        """The logarithm of the improvement over the cost."""
        return super().scores(mean, std) - self.space.cost.log()


class RandomLevels(RandomActions):
    """A random level of a tree and there a random node, so that coarse ones come up often. Costs name the levels."""

    def ask(self) -> Tensor:
        """The node, ``replicates x (d + 1)``."""
        levels, which = self.space.cost.unique(return_inverse=True)
        draws = uniform(self.generators, (self.space.n + 1,), self.y)
        level = (draws[:, :1] * len(levels)).long()
        return self.space.actions[(draws[:, 1:] + (which == level)).argmax(-1)]


class PrintedCMETS(CMETS):
    """Algorithm 1 as printed: siblings of an asked child are lost, and what was asked or lies deeper stays.

    Attributes:
        kept: the children of leaves, present and former, that were not asked; boolean ``replicates x n``.
    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]  # those of CMETS
        self.kept = super().child.clone()

    @property
    def child(self) -> Tensor:
        """As printed."""
        return self.kept

    def tell(self, query: Tensor, y: Tensor) -> None:
        """Update both sets as they stand there; a node of the deepest level stays, or the tree could run out."""
        super(CMETS, self).tell(query, y)
        rows = torch.arange(len(y), device=y.device)
        node = self.space.nearest(query.unsqueeze(1)).squeeze(1)
        parent, children = self.nodes.parent[node], self.nodes.children[node]
        of_leaf, deepest = self.kept[rows, node], children[:, 0] < 0
        self.leaf[rows[of_leaf], parent[of_leaf]] = False
        self.leaf[rows[~of_leaf], node[~of_leaf]] = False
        self.leaf[rows[deepest], node[deepest]] = True
        self.leaf[rows[~deepest].unsqueeze(-1), children[~deepest]] = True
        self.kept[rows[of_leaf], node[of_leaf]] = False
        self.kept = self.kept | super().child
