"""The experiments as the authors of [Zhang2022] published them (Mengyanz/GPOO, `simulation.py` and `run_sim.py`).

Their code differs from their text in the curves, in what the learner is told, in the order of steps and in what is
recommended. ``Configuration`` names each difference, so that a path leads from one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.aggregated.experiments import PUBLISHED_GPTREE
from book.aggregated.problem import CellProblem
from book.aggregated.problems import LENGTHSCALES, UNIT, VARIANCE, Curve, posterior_mean_curve
from cbo_lib.aggregated import GPOO, GPTree, Space
from cbo_lib.former.maximize import argmax_finite
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators, standard_normal

#: The variance that the published code calls ``gp_noise_var``, of the curve and in the learner's model.
PUBLISHED_NOISE_VARIANCE = 0.005


@dataclass(frozen=True)
class Configuration:
    """What the paper's text and the published code do differently.

    Args:
        curve_noise: standard deviation with which the curve is conditioned on its listed points.
        regions: how many regions the ripple of *periodic* and *spike* has.
        peaks_lengthscale: of the kernel that makes *peaks*.
        learner_lengthscale: of the learner's kernel. Default: that of the curve.
        learner_noise: standard deviation of the noise in the learner's model; the true one is 0.1.
        small_beta: whether ``beta_t = 0.1 log(pi^2 t^2 / 0.6)``, and not that of Lemma 1.
        noise_in_width: whether the noise variance is added to every posterior variance.
        late_split: whether a cell is tested with the width after its draw, its children wait a round, and the run
            begins with a draw of every child of the root.
        running: whether the recommendation is replaced only when a node is expanded, by that node.
    """

    curve_noise: float = 0.005
    regions: int = 10
    peaks_lengthscale: float = 0.05
    learner_lengthscale: float | None = None
    learner_noise: float = 0.1
    small_beta: bool = False
    noise_in_width: bool = False
    late_split: bool = False
    running: bool = False


_NOISE = PUBLISHED_NOISE_VARIANCE**0.5
CONFIGURATIONS = {
    "text": Configuration(),
    "published": Configuration(_NOISE, 9, 0.1, 0.05, _NOISE, True, True, True, True),
}
#: The path from the text to the published code: what changes at each step, and how.
PATH: tuple[tuple[str, dict[str, Any]], ...] = (
    ("text", {}),
    ("curve: noise variance 0.005", {"curve_noise": _NOISE}),
    ("curve: nine regions, peaks with ℓ = 0.1", {"regions": 9, "peaks_lengthscale": 0.1}),
    ("learner: ℓ = 0.05", {"learner_lengthscale": 0.05}),
    ("learner: noise variance 0.005", {"learner_noise": _NOISE}),
    ("β of the code", {"small_beta": True}),
    ("noise in the width", {"noise_in_width": True}),
    ("split tested after the draw", {"late_split": True}),
    ("recommendation: published", {"running": True}),
)


def path() -> Iterator[tuple[str, Configuration]]:
    """The configurations between text and published code, one change after the other."""
    now = CONFIGURATIONS["text"]
    for name, change in PATH:
        now = replace(now, **change)
        yield name, now


def published_sqrt_beta(t: int) -> float:
    """The multiplier in the authors' published code, ``sqrt(0.1 log(pi^2 t^2 / 0.6))``, far below that of Lemma 1."""
    return math.sqrt(0.1 * math.log(math.pi**2 * t**2 / 0.6))


def configured_problem(curve: Curve, setting: Configuration, points: int = 10, branching: int = 2) -> CellProblem:
    """One of the paper's curves under a configuration."""
    lengthscale = setting.peaks_lengthscale if curve == "peaks" else LENGTHSCALES[curve]
    f = posterior_mean_curve(curve, lengthscale, setting.curve_noise, setting.regions)
    return CellProblem(Space(UNIT, branching, points), f, 0.1)


def known_prior(curve: Curve, setting: Configuration) -> GaussianProcess:
    """What the learner believes under a configuration."""
    own = setting.peaks_lengthscale if curve == "peaks" else LENGTHSCALES[curve]
    return GaussianProcess(rbf_kernel(setting.learner_lengthscale or own, VARIANCE), setting.learner_noise)


def configured_gpoo(
    problem: CellProblem, curve: Curve, setting: Configuration, delta: Callable[[Tensor], Tensor]
) -> GPOO:
    """GPOO under a configuration: the library's, or with the control flow of the published code."""
    options: dict[str, Any] = {"prior": known_prior(curve, setting), "delta": delta, "max_depth": 10}
    if setting.small_beta:
        options["sqrt_beta"] = published_sqrt_beta
    kind = LateGPOO if setting.late_split else PromptGPOO
    return kind(problem.space, noise_in_width=setting.noise_in_width, running=setting.running, **options)


class PromptGPOO(GPOO):
    """GPOO with the order of steps of Algorithm 1, and two choices of the published code.

    Args:
        space: the cells.
        noise_in_width: whether the noise variance is added to every posterior variance.
        running: whether the recommendation changes only when a node is expanded: to that node if it is deeper than the
            recommended one, or as deep and of a larger posterior mean at that time. The published code reports it one
            round later than it could; so does ``LateGPOO``.
        options: those of ``GPOO``.
    """

    def __init__(self, space: Space, *, noise_in_width: bool, running: bool, **options: Any) -> None:
        super().__init__(space, **options)
        self.noise_in_width, self.running = noise_in_width, running

    def begin(self) -> None:
        """Nothing was recommended."""
        super().begin()
        self.named = torch.zeros_like(self.rows)

    def widths(self) -> Tensor:
        """The confidence width of every node, with the noise or without."""
        assert self.prior is not None
        extra = self.prior.noise_std**2 if self.noise_in_width else 0.0
        return self.multiplier() * (self.tracked.variance + extra).sqrt()

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Expand, and recommend the node if it is deeper or better."""
        depth, before = self.tree.depth[node], self.tree.depth[self.named]
        mean = self.tracked.mean
        better = (depth == before) & (mean[self.rows, node] > mean[self.rows, self.named])
        self.named = torch.where(where & ((depth > before) | better), node, self.named)
        super().expand(node, where)

    def recommended(self) -> Tensor:
        """The running recommendation, or that of the library."""
        return self.named if self.running else super().recommended()


class LateGPOO(PromptGPOO):
    """GPOO in the order of the published code.

    The children of the root are drawn first. From then on the node that was drawn last is split if the width after its
    draw allows, its children cannot be drawn in the round that follows, and what is recommended after round t was
    decided before its draw. Arguments are those of ``PromptGPOO``.
    """

    def begin(self) -> None:
        """The root is split before any draw."""
        super().begin()
        self.fresh = torch.zeros_like(self.leaf)
        self.shown, self.told = self.named, 0
        super().expand(torch.zeros_like(self.rows), self.active)

    def multiplier(self, t: int | None = None) -> float | Tensor:
        """That of the number of observations known."""
        return super().multiplier(max(self.told, 1) if t is None else t)

    def grow(self) -> None:
        """Make room for the nodes that the tree gained."""
        super().grow()
        self.fresh = torch.nn.functional.pad(self.fresh, (0, self.leaf.shape[1] - self.fresh.shape[1]))

    def choose(self) -> Tensor:
        """Children of the root in turn, then the best leaf that is not new."""
        branching = self.space.branching
        if self.told < branching:
            return self.tree.children(torch.zeros_like(self.rows))[:, self.told]
        if self.told == branching:
            self.test(argmax_finite(self.scores(), self.leaf, self.tree.order))
        return argmax_finite(self.scores(), self.leaf & ~self.fresh, self.tree.order)

    def test(self, node: Tensor) -> Tensor:
        """Split the node where the widths now allow; whether they did."""
        delta = self.delta_at(self.tree.depth)[node]
        ready = (delta >= self.widths()[self.rows, node]) & (self.tree.depth[node] <= self.max_depth)
        before = self.leaf.shape[1]
        was_leaf = self.leaf.clone()
        self.expand(node, ready)
        self.fresh = self.leaf & ~torch.nn.functional.pad(was_leaf, (0, self.leaf.shape[1] - before))
        return ready

    def take(self, row: Any, node: Tensor) -> None:
        """Learn, and show what was recommended before."""
        super().take(row, node)
        self.told += 1
        if self.told <= self.space.branching:
            self.named = node
        self.shown = self.named

    def may_expand(self, node: Tensor) -> Tensor:
        """Line 6 with the widths after the draw; the splitting itself is done here, so that children can wait."""
        if self.told > self.space.branching:
            self.ready = self.test(node)
        return torch.zeros_like(node, dtype=torch.bool)

    def recommended(self) -> Tensor:
        """What was recommended before the draw, or the library's rule among the nodes expanded now."""
        return self.shown if self.running else super().recommended()


class PublishedGPTree(GPTree):
    """GPTree of the published code: noise in every width, and the first deepest expanded node is recommended."""

    def begin(self) -> None:
        """The root is recommended."""
        super().begin()
        self.named = torch.zeros_like(self.rows)

    def expand(self, node: Tensor, where: Tensor) -> None:
        """Expand, and recommend the node if it is deeper."""
        deeper = where & (self.tree.depth[node] > self.tree.depth[self.named])
        self.named = torch.where(deeper, node, self.named)
        super().expand(node, where)

    def widths(self) -> Tensor:
        """The confidence width of a new observation of every node."""
        assert self.prior is not None
        return self.multiplier() * (self.tracked.variance + self.prior.noise_std**2).sqrt()

    def choose(self) -> Tensor:
        """The root is drawn before it may be expanded."""
        return super().choose() if self.count else torch.zeros_like(self.rows)

    def recommended(self) -> Tensor:
        """The first node that was expanded at its depth."""
        return self.named


def published_gptree(problem: CellProblem, curve: Curve, budget: int, setting: Configuration) -> PublishedGPTree:
    """GPTree as published, with its constants."""
    known = known_prior(curve, setting)
    return PublishedGPTree(problem.space, prior=known, budget=budget, **PUBLISHED_GPTREE)


def published_stooo(problem: CellProblem, steps: int, seeds: list[int], failure: float = 0.1) -> Tensor:
    """Aggregated regret of StoOO as published, ``seeds x steps``: one run for every budget from 0 to ``steps - 1``.

    Its width is the *square* of StoOO's, a node is split once its draws reach that width (whatever ``delta`` is), and
    the first deepest split node is recommended. ``delta(h) = 14 2^-h``.
    """
    tree = problem.space.partition()
    optimum = float(problem.optimum)
    values: list[float] = []

    def value(node: int) -> float:
        while len(values) < len(tree):
            at = len(values)
            values.extend(problem.value(tree.boxes[at:]).tolist())
        return values[node]

    def recommended(noise: np.ndarray, budget: int) -> int:
        scores, sums, draws, best = {0: math.inf}, {0: 0.0}, {0: 0}, 0
        log = math.log(budget**2 / failure) / 2 if budget else 0.0
        for epsilon in noise[:budget]:
            node = max(scores, key=scores.__getitem__)
            sums[node] += value(node) + problem.noise_std * epsilon
            draws[node] += 1
            depth = int(depths[node])
            scores[node] = sums[node] / draws[node] + log / draws[node] + 14 * 2.0**-depth
            if draws[node] >= log / draws[node]:
                del scores[node]
                if depth > depths[best]:
                    best = node
                for child in tree.children(torch.tensor([node]))[0].tolist():
                    scores[child], sums[child], draws[child] = math.inf, 0.0, 0
                    depths.setdefault(child, depth + 1)
        return best

    depths: dict[int, int] = {0: 0}
    regret = torch.zeros(len(seeds), steps, dtype=torch.float64)
    for row, seed in enumerate(seeds):
        draws = ReplicateGenerators([seed], stream=0)
        noise = np.array([float(standard_normal(draws.at(t), (), UNIT)) for t in range(1, steps + 1)])
        named = [recommended(noise, budget) for budget in range(steps)]
        regret[row] = optimum - torch.tensor([value(node) for node in named], dtype=torch.float64)
    return regret
