"""What the tree policies share: leaves, expansions and draws of every replicate on one tree, and a posterior of it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.aggregated.space import Space
from cbo_lib.checks import as_schedule, as_tensor, nearly, require, require_inside
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.former.policy import Policy
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.former.tracked import TrackedPosterior
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure, variance
from cbo_lib.partition import INDEX_LIMIT, PartitionTree

#: The smoothness function: an upper bound of how much f varies in a cell of depth h (a tensor of depths).
Smoothness = Callable[[Tensor], Tensor]


class TreePolicy(Policy):
    """What the tree policies share: leaves, expansions and draws of every replicate.

    Any box may be told. One that is a node of the tree counts as a draw of it; the others inform the posterior alone.
    A leaf is expanded by a draw that was asked.

    Who writes a tree policy of their own overrides ``scores``, ``estimates``, ``may_expand`` and ``recommended``.

    Args:
        space: the cells.
        prior: the Gaussian process prior of f, its noise included. Default: a kernel, a mean and a noise are fitted to
            what is told, by maximum a posteriori.
        kernel: what is fitted without a prior, see ``cbo_lib.former.fit``. Default Matern-5/2.
        options: those of ``Policy`` but ``initial`` and ``resolution``. These policies draw no random numbers.

    Attributes:
        tree: the nodes of all replicates.
        leaf: whether a node is a leaf, boolean ``replicates x nodes``.
        expanded: whether a node was expanded, boolean ``replicates x nodes``.
        draws: how often a node was told, ``replicates x nodes``.
        chosen: the node that was asked, ``replicates``.
        drawn: the node that was told last, -1 if the box was none, ``replicates``.
        splits: whether that expanded it, boolean ``replicates``.
    """

    query_dims: ClassVar[int] = 2
    space: Space
    leaf: Tensor
    expanded: Tensor
    draws: Tensor
    splits: Tensor

    def __init__(
        self, space: Space, *, prior: GaussianProcess | None = None, kernel: str | Kernel = "matern", **options: Any
    ) -> None:
        require(isinstance(space, Space), "space must be an aggregated.Space", space)
        require("resolution" not in options, "resolution must be left out, queries are cells", options)
        super().__init__(space, resolution=None, **options)
        self.prior, self.kernel = prior, kernel
        replicates = prior.kernel.batch_shape.numel() if isinstance(prior, GaussianProcess) else 1
        Surrogate(space.bounds, replicates, prior, kernel)  # raises now if one of them is out of range

    # Hooks of a tree policy.

    @abstractmethod
    def scores(self) -> Tensor:
        """The optimistic value of every node, ``replicates x nodes``; the leaf of the largest is asked."""

    @abstractmethod
    def estimates(self) -> Tensor:
        """The estimated value of every node, ``replicates x nodes``."""

    def may_expand(self, node: Tensor) -> Tensor:
        """Whether the draw just taken in expands each replicate's node, boolean ``replicates``. Default: never."""
        return torch.zeros_like(node, dtype=torch.bool)

    def recommended(self) -> Tensor:
        """The node to recommend, ``replicates``: the best estimate among the deepest expanded ones."""
        depth = torch.where(self.expanded, self.tree.depth, -1)
        return self.best_of(self.expanded & (depth == depth.amax(-1, keepdim=True)))

    def choose(self) -> Tensor:
        """The node to ask, ``replicates``: the leaf of the largest score, the first by depth and index if several."""
        return argmax_finite(self.scores(), self.leaf, self.tree.order)

    def take(self, row: Mapping[str, Tensor], node: Tensor) -> None:
        """Learn from one observation of a box a replicate, the value of ``node`` where that is not -1."""
        if self.prior is None:
            self.surrogate.observe(self.space.measure(row["query"].unsqueeze(1)), row["y"].unsqueeze(1))

    # What hooks use.

    @property
    def rows(self) -> Tensor:
        """``0, 1, ...``, one a replicate, to index with ``node``."""
        return torch.arange(self.replicates, device=self.leaf.device)

    def best_of(self, candidates: Tensor, values: Tensor | None = None) -> Tensor:
        """The best node ``replicates`` among candidates ``replicates x nodes``; the root where there is none.

        Args:
            candidates: boolean; further dimensions may come first.
            values: what is best, ``replicates x nodes``. Default the estimates.
        """
        allowed = torch.where(candidates.any(-1, keepdim=True), candidates, self.tree.depth == 0)
        values = (self.estimates() if values is None else values).expand(allowed.shape)
        return argmax_finite(values, allowed, self.tree.order)

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Turn one leaf a replicate into its children, in the replicates where ``where``."""
        replicates, nodes = self.rows[where], node[where]
        children = self.tree.children(nodes)
        self.grow()
        self.leaf[replicates, nodes] = False
        self.expanded[replicates, nodes] = True
        self.leaf[replicates.unsqueeze(-1), children] = True

    def grow(self) -> None:
        """Make room for the nodes that the tree gained."""
        if extra := len(self.tree) - self.leaf.shape[1]:
            pad = torch.nn.functional.pad
            self.leaf, self.expanded, self.draws = (pad(a, (0, extra)) for a in (self.leaf, self.expanded, self.draws))

    # Hooks of every policy.

    def begin(self) -> None:
        """The root is the only leaf."""
        self.tree, self._other = self.space.partition(), self.space.partition()
        self.leaf = torch.ones(self.replicates, 1, dtype=torch.bool, device=self.space.bounds.device)
        self.expanded = torch.zeros_like(self.leaf)
        self.draws = torch.zeros_like(self.leaf, dtype=torch.long)
        self.surrogate = Surrogate(self.space.bounds, self.replicates, self.prior, self.kernel)
        self.chosen = torch.zeros_like(self.draws[:, 0])
        self._named: Tensor | None = None

    def propose(self) -> Tensor:
        """The cells of ``choose``."""
        self.chosen = self.choose()
        return self.tree.boxes[self.chosen]

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Count the draws of nodes, ``take`` the observation in and expand."""
        told = self.chosen if bool(asked.all()) else self._nodes_of(row["query"])
        self.drawn = torch.where(asked, self.chosen, told)
        at = (self.drawn >= 0).nonzero().squeeze(-1)
        self.draws[at, self.drawn[at]] += 1
        self.take(row, self.drawn)
        self.splits = asked & self.may_expand(torch.where(asked, self.chosen, 0)) if bool(asked.any()) else asked
        self.expand(self.drawn, self.splits)
        self._named = None

    def best(self) -> Tensor:
        """The cells of ``recommended``."""
        return self.tree.boxes[self._recommended()]

    def posteriors(self) -> Posterior:
        """The posterior of f given all that was told, a fitted one without a prior."""
        if self.prior is None:
            return self.surrogate.posterior()
        prior = self.prior.posterior(None if self.prior.kernel.batch_shape else self.replicates)
        return prior.extend(self.space.measure(self.data["query"]), self.data["y"]) if self.count else prior

    def record(self) -> Mapping[str, Tensor]:
        """Depth and index of the drawn node (-1 if none), depth of the recommended one, whether each is expanded."""
        named, known = self._recommended(), self.drawn >= 0
        return {
            "depth": torch.where(known, self.tree.depth[self.drawn], -1),
            "index": torch.where(known, self.tree.index[self.drawn], -1),
            "expanded": self.splits,
            "recommended_depth": self.tree.depth[named],
            "recommended_was_expanded": self.expanded[self.rows, named],
        }

    def encode(self, name: str, value: Any) -> Tensor:
        """Cells are boxes ``2 x d``, or rows of ``2 d`` numbers, lower corner first, such as those of a frame."""
        rows = as_tensor(name, value, self.space.like)
        if name == "query" and rows.dim() in (1, 2) and rows.shape[-1] == 2 * self.space.dim:
            rows = rows.unflatten(-1, (2, self.space.dim))
        return super().encode(name, rows)

    def check(self, **rows: Tensor) -> None:
        """Cells lie in the root cell, lower corner first; a point is a cell without volume."""
        cells, shape = rows["query"], (2, self.space.dim)
        require(cells.shape[2:] == shape, f"query must be boxes {shape}", cells.shape[2:])
        require(cells[..., 0, :] <= cells[..., 1, :], "query must have the lower corner first", cells)
        require_inside("query", cells, self.space.bounds)

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """Whether a row's cells are those asked, to a twentieth of their sides."""
        off = (row["query"] - asked).abs()
        return (off <= 0.05 * (asked[:, 1:] - asked[:, :1])).flatten(1).all(-1)

    def _recommended(self) -> Tensor:
        if self._named is None:
            self._named = self.recommended()
        return self._named

    def _nodes_of(self, boxes: Tensor) -> Tensor:
        """The nodes that boxes ``m x 2 x d`` are, nearly; -1 for a box that is none. They need not be leaves."""
        found = _find(self._other, boxes)  # the tree of the run gets no nodes for boxes that are none
        known = (found >= 0).nonzero().squeeze(-1)
        found[known] = _find(self.tree, boxes[known])
        self.grow()
        return found


class GaussianProcessTreePolicy(TreePolicy):
    """A tree policy that tracks the posterior of every node's value. Arguments are those of ``TreePolicy``."""

    def begin(self) -> None:
        """The root is the only leaf, and nothing is known of it."""
        super().begin()
        self._tracked: TrackedPosterior | None = None
        self._version = 0
        self._variation: tuple[int, Tensor] | None = None

    @property
    def tracked(self) -> TrackedPosterior:
        """The posterior of every node's value: ``mean`` and ``variance``, ``replicates x nodes``."""
        if self.prior is None:
            self.surrogate.posterior()  # fits anew if that is due
            if self._version != self.surrogate.version:
                self._tracked, self._version = None, self.surrogate.version
        if self._tracked is None:
            self._tracked = self.posteriors().track(self.space.measure(self.tree.boxes))
        return self._tracked

    def grow(self) -> None:
        """Make room for the nodes that the tree gained."""
        before = self.leaf.shape[1]
        super().grow()
        if self._tracked is not None and len(self.tree) > before:
            self._tracked.add(self.space.measure(self.tree.boxes[before:]))

    def widths(self) -> Tensor:
        """The confidence width of every node, ``replicates x nodes``."""
        return self.multiplier() * self.tracked.variance.sqrt()

    def estimates(self) -> Tensor:
        """Posterior means."""
        return self.tracked.mean

    def take(self, row: Mapping[str, Tensor], node: Tensor) -> None:
        """A value of nodes moves the tracked posterior; after one of another box it is made anew."""
        super().take(row, node)
        query, boxes = row["query"], self.tree.boxes[node]  # mostly equal, which takes one look
        known = torch.equal(query, boxes) or bool(nearly(query, boxes, self.space.bounds).all() & (node >= 0).all())
        self._tracked = self._tracked if known else None
        if self._tracked is not None:
            self._tracked.observe(node, row["y"])

    def record(self) -> Mapping[str, Tensor]:
        """Also the hyperparameters, where they are fitted."""
        return {**super().record(), **self.surrogate.record()}

    def prior_variation(self, levels: int) -> Tensor:
        """How much f varies in a cell of each depth below ``levels``, by the prior.

        Twice the prior standard deviation of ``f(center) - f(corner)`` in the widest cell of the depth; of an odd
        kernel, the largest at this depth or below, so that it does not grow with the depth. Its shape is ``levels``, or
        ``replicates x levels`` where the prior is fitted.
        """
        kernel = (self.prior or self.surrogate.prior).kernel
        if self._variation is None or self._variation[0] != self.surrogate.version:
            cells = self.space.widest_cells(levels)
            ends = torch.stack([cells.mean(1), cells[:, 0]], 1)  # levels 2 d
            difference = Measure(ends, ends.new_tensor([1.0, -1.0]).expand(levels, 2))
            deviation = variance(kernel, difference).clamp_min(0.0).sqrt()
            self._variation = self.surrogate.version, 2 * deviation.flip(-1).cummax(-1).values.flip(-1)
        return self._variation[1]


def _find(tree: PartitionTree, boxes: Tensor) -> Tensor:
    """The nodes of a tree, which grows for it, that boxes ``m x 2 x d`` are to a thousandth of their sides, else -1."""
    slack = 1e-3 * (boxes[:, 1] - boxes[:, 0])
    node = torch.zeros(len(boxes), dtype=torch.long, device=boxes.device)
    found = torch.full_like(node, -1)
    going = (slack > 0).all(-1).nonzero().squeeze(-1)
    while len(going):
        here, box, off = tree.boxes[node[going]], boxes[going], slack[going]
        same = ((here - box).abs() <= off.unsqueeze(1)).flatten(1).all(-1)
        found[going[same]] = node[going[same]]
        inside = ((here[:, 0] <= box[:, 0] + off) & (box[:, 1] <= here[:, 1] + off)).all(-1)
        inside &= tree.branching ** (tree.depth[node[going]] + 1.0) <= INDEX_LIMIT
        going = going[inside & ~same]
        children = tree.children(node[going])
        center = boxes[going].mean(-2, keepdim=True)
        holds = ((tree.boxes[children, 0] <= center) & (center <= tree.boxes[children, 1])).all(-1)
        node[going] = children.gather(1, holds.to(torch.uint8).argmax(1, keepdim=True)).squeeze(1)
    return found


def shrinking(start: float, rate: float, depth: Tensor) -> Tensor:
    """The smoothness function ``start * rate^depth``."""
    return start * rate**depth


def check_smoothness(delta: float | Smoothness, depth: int, space: Space) -> Smoothness:
    """``delta``, positive and decreasing; of a number the function that begins there and shrinks like a cell's side."""
    given = as_schedule("delta", delta, ends="()")
    if not callable(given):
        given = partial(shrinking, given, space.branching ** (-1 / space.dim))
    levels = as_tensor("delta", given(torch.arange(depth + 1, device=space.like.device)))
    fits = levels.shape == (depth + 1,) and (levels.diff() <= 0).all() and levels[0] > levels[1] and levels[-1] > 0
    require(fits, "delta must be positive and decreasing in the depth", levels)
    return given
