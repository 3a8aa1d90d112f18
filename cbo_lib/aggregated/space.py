"""What the learner knows under aggregated feedback: a box, its cells, and what the value of a cell averages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from cbo_lib.checks import as_box, as_count, as_option, as_tensor, as_values, require, require_inside, require_shape
from cbo_lib.measure import Measure
from cbo_lib.partition import INDEX_LIMIT, PartitionTree, SplitRule, split_longest_side, subcell_centers


@dataclass(frozen=True, eq=False)
class Space:
    """The cells that may be asked ([Zhang2022]).

    A query is a cell: a box ``2 x d``, lower corner first. What is seen is the mean of f over the cell's representative
    points, the centers of ``points_per_cell`` equal sub-cells; one point a cell is point feedback at the center.

    Args:
        bounds: the root cell, a box ``2 x d`` in the user's units: a tensor, an array or a list. Dtype and device of a
            run are those of a tensor, float64 on the CPU otherwise.
        branching: the number ``K`` of children of a cell. Default 2.
        points_per_cell: the number ``S`` of representative points; ``2^d`` or ``3^d`` reach every axis. Default 10.
        feedback: ``"points"``, or ``"continuous"`` for the mean over the whole cell ([Zhang2022], Appendix D).
        split: how a cell is cut into children. Default: equal parts across its longest side, as a share of the root's.
        quadrature_order: Gauss-Legendre nodes a dimension that stand for the mean over the whole cell. Accurate where f
            varies little between neighboring nodes. Default 32 in one dimension, 8 in two, 4 in three, else 2.

    Raises:
        ValueError: if an argument is out of range.
    """

    bounds: Any
    branching: int = 2
    points_per_cell: int = 10
    feedback: Literal["points", "continuous"] = "points"
    split: SplitRule = field(default=split_longest_side)
    quadrature_order: int = None  # type: ignore[assignment]  # filled in below, it depends on the dimension
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the arguments; the bounds become a tensor, and the columns of a frame are the names of the inputs."""
        named = self.bounds.columns if isinstance(self.bounds, pd.DataFrame) else None
        vars(self)["bounds"] = as_box("bounds", self.bounds)
        vars(self)["names"] = [str(name) for name in self.names or (range(self.dim) if named is None else named)]
        if self.quadrature_order is None:
            vars(self)["quadrature_order"] = {1: 32, 2: 8, 3: 4}.get(self.dim, 2)
        for name, least in (("branching", 2), ("points_per_cell", 1), ("quadrature_order", 1)):
            vars(self)[name] = as_count(name, getattr(self, name), least)
        as_option("feedback", self.feedback, "points", "continuous")
        require(callable(self.split), "split must be a function of boxes, depths and branching", self.split)

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.bounds

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.bounds.shape[-1]

    @property
    def inputs(self) -> Tensor:
        """The box of the inputs of f, ``2 x D``: the root cell, unless cells are no boxes of inputs."""
        return self.bounds

    @property
    def columns(self) -> list[str]:
        """Names of the numbers of a cell: all of its lower corner, then all of its upper one."""
        return [f"{end} {name}" for end in ("low", "high") for name in self.names or ()]

    def read(self, cells: Any) -> Tensor:
        """Cells as a user gives them, ``n x 2 x d``: boxes, or rows of ``2 d`` numbers, lower corner first.

        Raises:
            ValueError: if they are none, or lie outside of the root cell.
        """
        boxes = as_values("query", cells, like=self.bounds)
        if boxes.dim() in (1, 2) and boxes.shape[-1] == 2 * self.dim:
            boxes = boxes.unflatten(-1, (2, self.dim))
        boxes = boxes.unsqueeze(0) if boxes.dim() == 2 else boxes
        require_shape("query", boxes, "n", 2, self.dim)
        require(boxes[:, 0] <= boxes[:, 1], "query must have the lower corner first", boxes)
        require_inside("query", boxes, self.bounds)
        return boxes

    def partition(self) -> PartitionTree:
        """A new tree that holds the root cell alone."""
        return PartitionTree(self.bounds, self.branching, self.split)

    def representatives(self, cells: Tensor) -> Tensor:
        """The points ``... x S x d`` that stand for cells ``... x 2 x d``."""
        low, side = self.bounds[0], self.bounds[1] - self.bounds[0]
        return low + side * subcell_centers((cells - low) / side, self.points_per_cell)

    def measure(self, cells: Tensor, order: int | None = None) -> Measure:
        """What an observation of each cell ``... x n x 2 x d`` averages.

        Args:
            cells: boxes; one without volume is a point.
            order: replaces ``quadrature_order``.
        """
        cells = as_tensor("cells", cells, self.bounds)
        require_shape("cells", cells, ..., 2, self.dim)
        if self.feedback == "continuous":
            return Measure.uniform(cells, order or self.quadrature_order)
        return Measure.average(self.representatives(cells))

    def center_and_corner(self, levels: int) -> Tensor:
        """Two inputs far apart in the widest cell of each depth below ``levels``, ``levels x 2 x D``.

        With equal splits all cells of a depth have its shape; else it is one on the path of widest children.
        """
        return self._widest[:levels]

    @cached_property
    def _widest(self) -> Tensor:
        tree, side = self.partition(), self.bounds[1] - self.bounds[0]
        node, path = torch.zeros(1, dtype=torch.long, device=side.device), [self.bounds]
        for _ in range(int(math.log(INDEX_LIMIT, self.branching))):
            children = tree.children(node)[0]
            diagonal = (tree.boxes[children].diff(dim=1).squeeze(1) / side).norm(dim=-1)
            node = children[diagonal.argmax()].unsqueeze(0)
            path.append(tree.boxes[node[0]])
        cells = torch.stack(path)
        return torch.stack([cells.mean(1), cells[:, 0]], 1)
