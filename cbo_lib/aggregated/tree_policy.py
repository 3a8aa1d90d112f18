"""What the tree policies share: masks of leaves and expansions on one tree, and a posterior of its nodes.

All of them grow one partition tree that the replicates share; each replicate has its own mask of leaves and of
expanded nodes, ``replicates x nodes``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.aggregated.problem import CellProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.maximize import argmax_finite

#: The smoothness function: an upper bound of how much f varies in a cell of depth h (a tensor of depths).
Smoothness = Callable[[Tensor], Tensor]


class TreePolicy(ABC):
    """What the tree policies share: leaves, expansions and draw counts of every replicate.

    A subclass says how a leaf is scored (``_scores``), when the drawn leaf is expanded (``_may_expand``) and how good
    a node looks (``_estimate``).
    """

    def __init__(self, problem: CellProblem) -> None:
        self.problem = problem
        self._started = False

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator; each holds the root as its only leaf."""
        self.tree = self.problem.partition()
        device = self.problem.bounds.device
        self._rows = torch.arange(len(generators), device=device)
        shape = (len(generators), 1)
        self.leaf = torch.ones(shape, dtype=torch.bool, device=device)
        self.expanded = torch.zeros(shape, dtype=torch.bool, device=device)
        self.draws = torch.zeros(shape, dtype=torch.long, device=device)
        self.round = 1
        self._started, self._waiting = True, False
        self._recommendation: Tensor | None = None

    def ask(self) -> Tensor:
        """The leaf with the largest score of each replicate, as a cell ``replicates x 2 x d``."""
        self._require_start()
        return self._asked(self._best_leaf())

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Learn from the observations ``replicates`` of the cells that ``ask`` returned, and expand."""
        self._require_start()
        if not self._waiting or not torch.equal(query, self.tree.boxes[self._node]):
            raise ValueError("query must be the cells that the last ask returned, each told once")
        if observation.shape != self._rows.shape or not bool(torch.isfinite(observation).all()):
            raise ValueError(
                f"observation must be one finite value a replicate, shape ({len(self._rows)},), got {observation}"
            )
        self._waiting = False
        self.draws[self._rows, self._node] += 1
        self._learn(self._node, observation)
        self._expands = self._may_expand(self._node)
        self._expand(self._rows[self._expands], self._node[self._expands])
        self.round += 1

    def recommend(self) -> Tensor:
        """The cell that each replicate would name best now, ``replicates x 2 x d``."""
        self._require_start()
        self._recommendation = self._recommended()
        return self.tree.boxes[self._recommendation]

    def trace(self) -> Mapping[str, Tensor]:
        """Depth and index of the drawn node, depth of the recommended one, and whether each is expanded."""
        self._require_start()
        if self._waiting or self._recommendation is None or self.round == 1:
            raise ValueError("trace must follow ask, tell and recommend, one of them is missing")
        recommended = self._recommendation
        return {
            "depth": self.tree.depth[self._node],
            "index": self.tree.index[self._node],
            "expanded": self._expands,
            "recommended_depth": self.tree.depth[recommended],
            "recommended_was_expanded": self.expanded[self._rows, recommended],
        }

    def _require_start(self) -> None:
        if not self._started:
            raise ValueError("start must be called before the first round")

    def _asked(self, node: Tensor) -> Tensor:
        """Remember the nodes that are to be told, and return their cells."""
        self._node, self._waiting = node, True
        return self.tree.boxes[node]

    def _best_leaf(self) -> Tensor:
        return argmax_finite(self._scores(), self.leaf, self.tree.order)

    def _recommended(self) -> Tensor:
        """The deepest expanded node, the best estimate among several; the root before any expansion."""
        return self._best_of(self._deepest_expanded())

    def _best_of(self, candidates: Tensor) -> Tensor:
        """The node ``replicates`` of the best estimate among candidates ``replicates x nodes``; none means the root."""
        root = torch.zeros_like(candidates)
        root[:, 0] = True
        allowed = torch.where(candidates.any(-1, keepdim=True), candidates, root)
        return argmax_finite(self._estimate(), allowed, self.tree.order)

    def _deepest_expanded(self) -> Tensor:
        depth = torch.where(self.expanded, self.tree.depth, -1)
        return self.expanded & (depth == depth.amax(-1, keepdim=True))

    def _expand(self, replicates: Tensor, nodes: Tensor) -> None:
        """Turn one leaf of some replicates into their children."""
        if len(nodes) == 0:
            return
        before = len(self.tree)
        children = self.tree.children(nodes)
        self._grow(before)
        self.leaf[replicates, nodes] = False
        self.expanded[replicates, nodes] = True
        self.leaf[replicates.unsqueeze(-1), children] = True

    def _grow(self, before: int) -> None:
        """Make room for the nodes that the tree gained."""
        extra = len(self.tree) - before
        if extra:
            pad = torch.nn.functional.pad
            self.leaf, self.expanded, self.draws = (pad(a, (0, extra)) for a in (self.leaf, self.expanded, self.draws))

    @abstractmethod
    def _scores(self) -> Tensor:
        """The optimistic value of every node, ``replicates x nodes``."""

    @abstractmethod
    def _estimate(self) -> Tensor:
        """The estimated value of every node, ``replicates x nodes``."""

    @abstractmethod
    def _learn(self, node: Tensor, observation: Tensor) -> None:
        """Take in the observations of one node a replicate."""

    @abstractmethod
    def _may_expand(self, node: Tensor) -> Tensor:
        """Whether each replicate's drawn node is to be expanded, boolean ``replicates``."""


class GaussianProcessTreePolicy(TreePolicy):
    """A tree policy that tracks the posterior of every node's value."""

    def __init__(self, problem: CellProblem, kernel: Kernel, noise_std: float | None) -> None:
        super().__init__(problem)
        self.kernel = kernel
        self.noise_std = problem.noise_std if noise_std is None else noise_std
        self.prior = GaussianProcess(kernel, self.noise_std)

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator; each holds the root as its only leaf."""
        super().start(generators)
        root = self.problem.measure(self.tree.boxes)
        self.posterior = self.prior.posterior(len(generators)).track(root)

    def _grow(self, before: int) -> None:
        super()._grow(before)
        self.posterior.add(self.problem.measure(self.tree.boxes[before:]))

    def _estimate(self) -> Tensor:
        return self.posterior.mean

    def _learn(self, node: Tensor, observation: Tensor) -> None:
        self.posterior.observe(node, observation)


def check_smoothness(delta: Smoothness, depth: int, like: Tensor) -> Smoothness:
    """Return ``delta``, or raise ``ValueError`` unless it is positive and decreasing down to ``depth``."""
    levels = torch.as_tensor(delta(torch.arange(depth + 1, device=like.device)))
    if levels.shape != (depth + 1,) or not bool((levels > 0).all()) or not bool((levels.diff() < 0).all()):
        raise ValueError(f"delta must be positive and decreasing in the depth, got {levels.tolist()}")
    return delta
