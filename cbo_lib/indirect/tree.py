"""CMETS: max-value entropy search over the nodes of a tree, coarse and cheap ones first.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.policies import CMES
from cbo_lib.indirect.problem import IndirectProblem
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
    def complete(cls, bounds: Tensor, levels: int, branching: int = 4) -> Nodes:
        """All nodes down to a level.

        Args:
            bounds: the box of the root, ``2 x d``.
            levels: the deepest level, nonnegative.
            branching: children of a node; four quarter a square. Default 4.
        """
        if levels < 0:
            raise ValueError(f"levels must be nonnegative, got {levels}")
        tree = PartitionTree(bounds, branching, split_by_factors)
        for level in range(levels + 1):
            tree.complete(level)
        order = tree.order.argsort()
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        boxes, parent = tree.boxes[order], rank[tree.parent[order].clamp_min(0)]
        radius = (boxes[:, 1] - boxes[:, 0]).amax(-1, keepdim=True) / 2
        children = torch.full((len(order), branching), -1, device=order.device)
        inner = torch.arange(1, len(order), device=order.device)
        # Level by level, the children of a node follow one another.
        children[parent[inner], (inner - 1) % branching] = inner
        return cls(torch.cat([boxes.mean(-2), radius], -1), tree.depth[order], parent, children)

    def cost(self) -> Tensor:
        """``0.5 log2(1 / d)`` with ``d = 2^-(l + 1)``, so ``(l + 1) / 2`` ([Zhang2025]_, section 7)."""
        return 0.5 * (self.level + 1).to(self.actions)


class CMETS(CMES):
    """Conditional max-value entropy tree search ([Zhang2025]_, Algorithm 1).

    Only leaves of the tree grown so far and their children may be asked. A leaf that is asked is split; if a child of a
    leaf is asked, both are. The information is divided by the cost.

    Args:
        problem: whose actions are the nodes.
        nodes: the tree.
        prior: see ``CMES``.
        budget: see ``CMES``.
        samples: see ``CMES``.
        sampling: see ``CMES``.
        noisy: see ``CMES``.
        update: ``"partition"``: the leaves always partition the box. ``"printed"``: the sets of Algorithm 1 as they
            stand there, where the children of leaves are never forgotten and a node may be asked again.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        problem: IndirectProblem,
        nodes: Nodes,
        prior: GaussianProcess,
        budget: float = math.inf,
        samples: int = 10,
        sampling: Literal["gumbel", "thompson"] = "gumbel",
        noisy: bool = False,
        update: Literal["partition", "printed"] = "partition",
    ) -> None:
        super().__init__(problem, prior, 0, budget, samples, sampling, noisy)
        if len(nodes.level) != problem.n:
            raise ValueError(f"nodes must be the {problem.n} actions of the problem, got {len(nodes.level)}")
        if update not in ("partition", "printed"):
            raise ValueError(f"update must be 'partition' or 'printed', got {update!r}")
        self.nodes, self.update = nodes, update

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything; the root is the only leaf."""
        super().start(generators)
        self.leaf = torch.zeros(len(generators), self.problem.n, dtype=torch.bool, device=self.order.device)
        self.leaf[:, 0] = True
        self.child = self._children_of(self.leaf)

    def _children_of(self, nodes: Tensor) -> Tensor:
        """Which nodes are children of those marked, ``replicates x n``."""
        marked = nodes[:, self.nodes.parent].clone()
        marked[:, 0] = False
        return marked

    def _allowed(self) -> Tensor:
        return torch.nn.functional.pad(self.leaf | self.child, (0, len(self.problem.points)))

    def _learn(self, query: Tensor, observation: Tensor) -> None:
        super()._learn(query, observation)
        rows = self._rows[self._active]
        node = query[self._active]
        parent, children = self.nodes.parent[node], self.nodes.children[node]
        deepest = children[:, 0] < 0
        leaf = self.leaf.clone()
        of_leaf = self.child[rows, node]
        if self.update == "partition":
            of_leaf = of_leaf & ~leaf[rows, node]
            split = of_leaf.nonzero().flatten()
            leaf[rows[split], parent[split]] = False
            leaf[rows[split].unsqueeze(-1), self.nodes.children[parent[split]]] = True
            gone = ~deepest
            leaf[rows[gone], node[gone]] = False
            leaf[rows[gone].unsqueeze(-1), children[gone]] = True
            self.leaf, self.child = leaf, self._children_of(leaf)
            return
        leaf[rows[of_leaf], parent[of_leaf]] = False
        leaf[rows[~of_leaf & ~deepest], node[~of_leaf & ~deepest]] = False
        grown = ~deepest
        leaf[rows[grown].unsqueeze(-1), children[grown]] = True
        child = self.child.clone()
        child[rows[of_leaf], node[of_leaf]] = False
        # A deepest node has no children; it stays, or the tree could run out of nodes.
        leaf[rows[deepest], node[deepest]] = True
        self.leaf, self.child = leaf, child | self._children_of(leaf)

    def trace(self) -> Mapping[str, Tensor]:
        """Also the level of the asked node and the number of leaves."""
        return {**super().trace(), "level": self.nodes.level[self._query], "leaves": self.leaf.sum(-1)}
