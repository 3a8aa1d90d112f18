"""A K-ary partition tree of a box, grown node by node.

One tree serves all replicates: a node that two replicates reach is stored once, and each policy keeps its own mask of
the nodes that a replicate has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_box, as_count, require

#: Splits boxes ``m x 2 x d`` of the given depths ``m`` into ``m x K x 2 x d`` equal or unequal parts. Boxes come
#: relative to the root, which is the unit box then: a long side is one that was cut seldom, in whatever units.
SplitRule = Callable[[Tensor, Tensor, int], Tensor]

# Indices within a level stay below this, so that depth and index fit one integer (see PartitionTree.order).
INDEX_LIMIT = 2**48


def split_longest_side(boxes: Tensor, depth: Tensor, branching: int) -> Tensor:
    """Cut each box across its longest side into equal parts, ``m x branching x 2 x d``; of equal sides the first.

    Args:
        boxes: an ``m x 2 x d`` tensor, lower corner first.
        depth: the depths ``m`` of the boxes (unused by this rule).
        branching: how many parts, in increasing order along the side that was cut.
    """
    low, high = boxes.unbind(-2)
    size = high - low
    # Sides that differ by rounding alone count as equal.
    longest = (size > size.amax(-1, keepdim=True) * (1 - _slack(boxes))).to(torch.uint8).argmax(-1)
    side = torch.nn.functional.one_hot(longest, boxes.shape[-1]).to(boxes.dtype)  # m d
    cuts = torch.linspace(0, 1, branching + 1, dtype=boxes.dtype, device=boxes.device)
    cut = low.unsqueeze(1) + cuts.unsqueeze(-1) * (size * side).unsqueeze(1)  # m K+1 d
    upper = torch.where(side.unsqueeze(1).bool(), cut[:, 1:], high.unsqueeze(1))
    upper[:, -1] = high  # exactly, so that rounding leaves no gap
    return torch.stack([cut[:, :-1], upper], -2)


def split_by_factors(boxes: Tensor, depth: Tensor, branching: int) -> Tensor:
    """Cut each box by the prime factors of ``branching``, largest first, each across the side that is longest then.

    So four children of a square are its quarters. Arguments and result are those of ``split_longest_side``.
    """
    cells = boxes.unsqueeze(1)
    for factor in _prime_factors(branching):
        merged = cells.flatten(0, 1)
        split = split_longest_side(merged, depth.repeat_interleave(cells.shape[1]), factor)
        cells = split.unflatten(0, cells.shape[:2]).flatten(1, 2)
    return cells


def _slack(boxes: Tensor) -> float:
    """Relative differences that rounding may cause."""
    return max(1e-9, 8 * torch.finfo(boxes.dtype).eps)


def subcell_centers(boxes: Tensor, count: int) -> Tensor:
    """Centers of ``count`` equal sub-cells of each box, ``... x count x d``.

    In one dimension these are equal intervals; in more dimensions see ``split_by_factors``.

    Args:
        boxes: a ``... x 2 x d`` tensor, lower corner first.
        count: how many sub-cells, at least 1.
    """
    as_count("count", count, 1)
    if boxes.shape[-1] == 1:
        fractions = (torch.arange(count, dtype=boxes.dtype, device=boxes.device) + 0.5) / count
        return torch.lerp(boxes[..., :1, :], boxes[..., 1:, :], fractions.unsqueeze(-1))
    flat = boxes.reshape(-1, 2, boxes.shape[-1])
    cells = split_by_factors(flat, torch.zeros(len(flat), dtype=torch.long, device=flat.device), count)
    return cells.mean(-2).reshape(*boxes.shape[:-2], count, boxes.shape[-1])


def _prime_factors(count: int) -> list[int]:
    """Prime factors of a positive integer, largest first."""
    factors, divisor = [], 2
    while count > 1:
        while count % divisor == 0:
            factors.append(divisor)
            count //= divisor
        divisor += 1
    return factors[::-1]


class PartitionTree:
    """A tree whose nodes are boxes; the children of a node partition it.

    Nodes are numbered in order of creation, the root is 0. A node is also known by its depth ``h`` and its index
    ``i`` in ``[0, K^h)``; its children have the indices ``K i, ..., K i + K - 1``.

    Args:
        bounds: the root box, ``2 x d``, lower corner first.
        branching: the number ``K`` of children, at least 2.
        split: how a box is cut into children. Default: equal parts across the side longest relative to the root's.

    Attributes:
        boxes: ``n x 2 x d``, lower corner first.
        depth: ``n`` integers.
        index: ``n`` integers.
        parent: ``n`` integers, -1 for the root.

    Raises:
        ValueError: if the bounds are not a box, ``branching`` is below 2 or a split does not partition its box.
    """

    def __init__(self, bounds: Any, branching: int = 2, split: SplitRule = split_longest_side) -> None:
        self.branching, self.split = as_count("branching", branching, 2), split
        self.boxes = as_box("bounds", bounds).unsqueeze(0).clone()
        low = torch.zeros_like(self.boxes[:, 0])
        self._relative = torch.stack([low, low + 1], 1)
        root = torch.zeros(1, dtype=torch.long, device=low.device)
        self.depth, self.index, self.parent, self._first_child = root, root, root - 1, root - 1

    def __len__(self) -> int:
        """How many nodes the tree has."""
        return len(self.depth)

    def children(self, nodes: Tensor) -> Tensor:
        """The children of ``m`` nodes, ``m x K``; those that do not exist yet are created.

        Parts that do not partition their box, and indices of a level past 2^48, are a ValueError.
        """
        offsets = torch.arange(self.branching, device=nodes.device)
        new = nodes[self._first_child[nodes] < 0].unique()
        if new.numel():
            # By depth and index, so that the numbering does not depend on the order of the request.
            new = new[torch.argsort(self.order[new])]
            depth = int(self.depth[new].max()) + 1
            fits = self.branching**depth <= INDEX_LIMIT
            require(fits, f"depth must keep the {self.branching}^depth indices below 2^48", depth)
            parts = self.split(self._relative[new], self.depth[new], self.branching)
            self._check(parts, new)
            parts, parent = parts.flatten(0, 1), new.repeat_interleave(self.branching)
            self._first_child[new] = len(self) + self.branching * torch.arange(len(new), device=new.device)
            self._relative = torch.cat([self._relative, parts])
            boxes = torch.lerp(self.boxes[0, 0], self.boxes[0, 1], parts)  # exact at both ends
            self.boxes = torch.cat([self.boxes, boxes])
            self.depth = torch.cat([self.depth, self.depth[parent] + 1])
            index = self.index[new].unsqueeze(-1) * self.branching + offsets
            self.index = torch.cat([self.index, index.flatten()])
            self.parent = torch.cat([self.parent, parent])
            self._first_child = torch.cat([self._first_child, torch.full_like(parent, -1)])
        return self._first_child[nodes].unsqueeze(-1) + offsets

    @property
    def order(self) -> Tensor:
        """A rank of each node by depth, then index: the same however the tree came to be."""
        return self.depth * INDEX_LIMIT + self.index

    def complete(self, depth: int) -> Tensor:
        """Grow all nodes down to ``depth``; returns those of that depth in order of their index."""
        level = torch.zeros(1, dtype=torch.long, device=self.depth.device)
        for _ in range(as_count("depth", depth)):
            level = self.children(level).flatten()
        return level

    def _check(self, parts: Tensor, nodes: Tensor) -> None:
        """A split must give K boxes inside their parent that do not overlap and whose volumes add up to its volume."""
        parent = self._relative[nodes]
        shape = (len(nodes), self.branching, *parent.shape[1:])
        require(parts.shape == shape, f"split must return shape {shape}", parts.shape)
        size = parent[:, 1] - parent[:, 0]
        slack = _slack(parent) * size.unsqueeze(1)
        inside = (parts[:, :, 0] >= parent[:, None, 0] - slack) & (parts[:, :, 1] <= parent[:, None, 1] + slack)
        volume = (parts[:, :, 1] - parts[:, :, 0]).prod(-1)
        filled = (volume.sum(-1) - size.prod(-1)).abs() <= 1e3 * _slack(parent) * size.prod(-1)
        high = torch.minimum(parts[:, :, None, 1], parts[:, None, :, 1])
        shared = high - torch.maximum(parts[:, :, None, 0], parts[:, None, :, 0])  # m K K d
        same = torch.eye(self.branching, dtype=torch.bool, device=parts.device)
        apart = (shared <= slack.unsqueeze(1)).any(-1) | same
        right = all(bool(x.all()) for x in (inside, volume > 0, filled, apart))
        require(right, "split must return boxes of positive volume that fill their parent without overlap", parts)
