"""The experiments as the authors of [Zhang2022] published them (Mengyanz/GPOO, ``simulation.py`` and ``run_sim.py``).

Their code differs from their text in the curves, in what the learner is told, in the order of its steps and in what it
recommends. Here are its curves, its learner and its three policies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from book.aggregated.problem import CellProblem
from book.aggregated.problems import LENGTHSCALES, UNIT, VARIANCE, Curve, posterior_mean_curve
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, Space, StoOO
from cbo_lib.aggregated.tree import TreePolicy
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.search import argmax_finite

#: Deviation of the noise with which curves are conditioned, and which the learner believes in; its variance is 0.005.
NOISE = 0.005**0.5


def published_problem(curve: Curve, points: int = 10, branching: int = 2) -> CellProblem:
    """A curve of the published code: nine regions of the ripple, and *peaks* made with lengthscale 0.1."""
    lengthscale = 0.1 if curve == "peaks" else LENGTHSCALES[curve]
    return CellProblem(Space(UNIT, branching, points), posterior_mean_curve(curve, lengthscale, NOISE, regions=9), 0.1)


def published_prior() -> GaussianProcess:
    """What the learner of the published code believes of every curve."""
    return GaussianProcess(rbf_kernel(0.05, VARIANCE), NOISE)


def published_sqrt_beta(t: int) -> float:
    """The multiplier of the published code, ``sqrt(0.1 log(pi^2 t^2 / 0.6))``."""
    return math.sqrt(0.1 * math.log(math.pi**2 * t**2 / 0.6))


class PublishedGPOO(GPOO):
    """GPOO in the order of the published code.

    The children of the root are drawn first. A cell is split by its width *after* the draw, and children wait a round.
    Widths hold the noise. A cell that is split becomes the recommendation if it is deeper than the one before, or as
    deep and better at that time; it is named a round later.

    Args:
        space: the cells.
        options: those of ``GPOO``.
    """

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, sqrt_beta=published_sqrt_beta, **options)
        root = torch.zeros_like(self.leaf[:, 0], dtype=torch.long)
        super().expand(root, torch.ones_like(self.leaf[:, 0]))
        self.first, self.chosen, self.named = self.tree.children(root), root, root
        self.fresh = torch.zeros_like(self.leaf)

    def bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        """Posterior mean, width and delta of every node, ``replicates x nodes``."""
        mean, std = self.belief()
        width = self.sqrt_beta(self.round - 1) * (std.square() + self.prior.noise_std**2).sqrt()
        return mean, width, self.delta(self.tree.depth).expand_as(mean)

    def ask(self) -> Tensor:
        """The children of the root in turn, then the leaf of the largest b-value that did not come last round."""
        asked = self.round - 1
        if asked < self.space.branching:
            return self.tree.boxes[self.first[:, asked]]
        if asked == self.space.branching:
            self.test(argmax_finite(torch.stack(self.bounds()).sum(0), self.leaf, self.tree.order))
        return self.tree.boxes[
            argmax_finite(torch.stack(self.bounds()).sum(0), self.leaf & ~self.fresh, self.tree.order)
        ]

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Learn the average ``y`` (``replicates``); split the cell if its width allows now."""
        TreePolicy.tell(self, cell, y)
        node = self.find(cell)
        first = self.round - 1 <= self.space.branching
        self.chosen = node if first else self.chosen
        self.named = self.chosen
        if not first:
            self.test(node)

    def test(self, node: Tensor) -> None:
        """Split a leaf (``replicates``) if it is known to ``delta``, and choose it if it is deeper or better."""
        mean, width, delta = (part.gather(1, torch.stack([node, self.chosen], 1)) for part in self.bounds())
        split, deeper = width[:, 0] <= delta[:, 0], self.tree.depth[node] - self.tree.depth[self.chosen]
        self.chosen = torch.where(
            split & ((deeper > 0) | ((deeper == 0) & (mean[:, 0] > mean[:, 1]))), node, self.chosen
        )
        before = self.leaf.clone()
        self.expand(node, split)
        self.fresh = self.leaf & ~torch.nn.functional.pad(before, (0, self.leaf.shape[1] - before.shape[1]))

    def recommend(self) -> Tensor:
        """What was chosen before the last draw."""
        return self.tree.boxes[self.named]


class PublishedGPTree(GPTree):
    """GPTree of the published code: constants, noise in the widths, and the first cell split at its depth is named."""

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, metric_bound=lambda r: 0.1 * r, alpha=0.5, scale=0.25, **options)
        self.named = torch.zeros_like(self.leaf[:, 0], dtype=torch.long)

    def belief(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the next report of every node, ``replicates x nodes``."""
        mean, std = super().belief()
        return mean, (std.square() + self.prior.noise_std**2).sqrt()

    def ask(self) -> Tensor:
        """The root, then as in ``GPTree``."""
        return super().ask() if self.y.shape[1] else self.tree.boxes[self.named]

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Split, and name the cell if it is deeper."""
        self.named = torch.where(where & (self.tree.depth[node] > self.tree.depth[self.named]), node, self.named)
        super().expand(node, where)

    def recommend(self) -> Tensor:
        """The first cell that was split at its depth."""
        return self.tree.boxes[self.named]


class PromptStoOO(StoOO):
    """StoOO that tests a cell right after its draw, as [Munos2014] has it; the library's needs a second draw."""

    def known(self) -> Tensor:
        """Whether the width of every node is at most ``delta``, ``replicates x nodes``."""
        return self.widths() <= self.delta(self.tree.depth)

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Count the average ``y`` (``replicates``) for the cell, and split it if it is known now."""
        node, one = self.find(cell).unsqueeze(1), y.unsqueeze(1)
        self.draws = self.draws.scatter_add(1, node, torch.ones_like(one))
        self.sums = self.sums.scatter_add(1, node, one)
        ready = self.known().gather(1, node).squeeze(1)  # the round is the one of the draw until the next line
        TreePolicy.tell(self, cell, y)
        self.expand(node.squeeze(1), ready)


class PromptAveStoOO(PromptStoOO, AveStoOO):
    """AVE-StoOO that tests a cell right after its draw, as Algorithm 2 of [Zhang2022] has it."""


class PublishedStoOO(PromptStoOO):
    """StoOO of the published code: its width is squared, and a cell is split once its draws reach that, whatever delta.

    The published code runs it anew for every budget.
    """

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, **options)
        self.named = torch.zeros_like(self.leaf[:, 0], dtype=torch.long)

    def widths(self) -> Tensor:
        """``log(N^2 / theta) / (2 draws)`` for every node."""
        return self.squared_width() / self.draws

    def known(self) -> Tensor:
        """Whether the draws of every node are as many as its width."""
        return self.draws >= self.widths()

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Split, and name the cell if it is deeper."""
        self.named = torch.where(where & (self.tree.depth[node] > self.tree.depth[self.named]), node, self.named)
        super().expand(node, where)

    def recommend(self) -> Tensor:
        """The first cell that was split at its depth."""
        return self.tree.boxes[self.named]
