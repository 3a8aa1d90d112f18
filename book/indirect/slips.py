"""Algorithm 1 of [Zhang2025] as it is printed."""

from __future__ import annotations

from torch import Tensor

from cbo_lib.indirect import CMETS


class PrintedCMETS(CMETS):
    """The children of leaves are never forgotten, siblings of an asked child are lost, a node may be asked again."""

    def advance(self, query: Tensor, asked: Tensor) -> None:
        """Update the two sets as they stand there."""
        rows, node = self.rows[asked], query[asked]
        parent, children = self.nodes.parent[node], self.nodes.children[node]
        of_leaf, deepest = self.child[rows, node], children[:, 0] < 0
        leaf, child = self.leaf.clone(), self.child.clone()
        leaf[rows[of_leaf], parent[of_leaf]] = False
        leaf[rows[~of_leaf & ~deepest], node[~of_leaf & ~deepest]] = False
        leaf[rows[~deepest].unsqueeze(-1), children[~deepest]] = True
        child[rows[of_leaf], node[of_leaf]] = False
        # A deepest node has no children; it stays, or the tree could run out of nodes.
        leaf[rows[deepest], node[deepest]] = True
        self.leaf, self.child = leaf, child | self.children_of(leaf)
