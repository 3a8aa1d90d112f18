"""CMETS [Zhang2025]: max-value entropy search over the nodes of a tree, coarse and cheap ones first."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, require
from cbo_lib.indirect.policies import CMES
from cbo_lib.indirect.space import Space
from cbo_lib.partition import PartitionTree, split_by_factors


@dataclass(frozen=True)
class Nodes:
    """The nodes of a complete tree over a box, as actions ``(center, radius)``.

    Args:
        actions: centers and radius (half the longest side), ``n x (d + 1)``, level by level.
        level: ``l(a)`` of each node, ``n``, the root is 0.
        parent: index of the parent, ``n``; the root is its own.
        children: indices, ``n x K``; -1 at the deepest level.
    """

    actions: Tensor
    level: Tensor
    parent: Tensor
    children: Tensor

    @classmethod
    def complete(cls, bounds: Tensor, levels: int, branching: int = 4) -> "Nodes":
        """All nodes down to a level.

        Args:
            bounds: the box of the root, ``2 x d``, all sides alike, as those of each node must be: it has one radius.
            levels: the deepest level, nonnegative.
            branching: children of a node; four quarter a square. Default 4.

        Raises:
            ValueError: if a node has sides that differ.
        """
        tree = PartitionTree(bounds, branching, split_by_factors)
        tree.complete(as_count("levels", levels))  # numbers the nodes level by level
        radius = (sides := tree.boxes[:, 1] - tree.boxes[:, 0]).amax(-1, keepdim=True) / 2
        alike = "bounds and branching must give cubes, as a node has one radius: scale inputs, take 2^d children"
        require(sides >= 2 * radius * (1 - 1e-6), alike, f"sides {sides[-1].tolist()}")
        children = torch.full((len(tree), branching), -1, device=radius.device)
        inner = (tree.depth < levels).nonzero().flatten()
        children[inner] = tree.children(inner)
        return cls(torch.cat([tree.boxes.mean(-2), radius], -1), tree.depth, tree.parent.clamp_min(0), children)

    def cost(self) -> Tensor:
        """``0.5 log2(1 / d)`` with ``d = 2^-(l + 1)``, so ``(l + 1) / 2`` ([Zhang2025], section 7)."""
        return 0.5 * (self.level + 1).to(self.actions)


class CMETS(CMES):
    """Conditional max-value entropy tree search ([Zhang2025], Algorithm 1).

    Only leaves of the tree grown so far and their children may be asked. A leaf that is asked is split; if a child of a
    leaf is asked, both are. So the leaves always partition the box. The information is divided by the cost.

    Args:
        space: whose actions are the nodes.
        nodes: the tree.
        options: those of ``CMES`` but ``initial``: there is no initial design. Errors too.
    """

    def __init__(self, space: Space, *, nodes: Nodes, **options: Any) -> None:
        super().__init__(space, initial=0, **options)
        require(isinstance(nodes, Nodes), "nodes must be Nodes", nodes)
        same = torch.equal(nodes.actions, space.actions)
        require(same, f"nodes must be the {space.n} actions of the space", len(nodes.level))
        self.nodes = nodes

    def begin(self) -> None:
        """The root is the only leaf."""
        super().begin()
        self.leaf = torch.zeros(self.replicates, self.n, dtype=torch.bool, device=self.rows.device)
        self.leaf[:, 0] = True
        self.child = self.children_of(self.leaf)

    def children_of(self, nodes: Tensor) -> Tensor:
        """Which nodes are children of those marked, ``replicates x n``."""
        marked = nodes[:, self.nodes.parent].clone()
        marked[:, 0] = False
        return marked

    def allowed(self) -> Tensor:
        """The leaves and their children."""
        return torch.nn.functional.pad(self.leaf | self.child, (0, self.space.m))

    def advance(self, query: Tensor, asked: Tensor) -> None:
        """Split what was asked, and its parent if that is a leaf still."""
        for node in (self.nodes.parent[query], query):
            self.split(node, asked)

    def split(self, node: Tensor, where: Tensor) -> None:
        """Put the children of nodes ``replicates`` in their place, where these are leaves that have any."""
        where = where & self.leaf[self.rows, node] & (self.nodes.children[node, 0] >= 0)
        rows, node = self.rows[where], node[where]
        leaf = self.leaf.clone()
        leaf[rows, node] = False
        leaf[rows.unsqueeze(-1), self.nodes.children[node]] = True
        self.leaf, self.child = leaf, self.children_of(leaf)

    def record(self) -> Mapping[str, Tensor]:
        """Also the level of the asked node and the number of leaves."""
        return {**super().record(), "level": self.nodes.level[self.last], "leaves": self.leaf.sum(-1)}
