"""Pictures of a square and of a run on its tree, round by round."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.harness import rounds
from book.indirect.problem import IndirectProblem
from cbo_lib.indirect import CMETS


def plot_square(axes: Axes, values: Tensor, title: str) -> None:
    """A function on the square grid of cell centers as colors."""
    count = math.isqrt(len(values))
    image = axes.imshow(np.asarray(values.reshape(count, count).T), origin="lower", extent=(0, 1, 0, 1), cmap="cividis")
    axes.set(title=title)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes)


def tree_steps(
    problem: IndirectProblem, policy: CMETS, steps: int, seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """Nodes asked, and posterior means of g on the leaves and of f, round by round, for ``figures.slider``.

    Args:
        problem: in two dimensions.
        policy: to run for one replicate.
        steps: how many rounds.
        seed: of the replicate.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    with torch.no_grad():
        for step, query, told in rounds(problem, policy, steps, seed):
            policy.tell(**told)
            x, y, radius = policy.nodes.actions[query[0]].tolist()
            level, best = int(policy.nodes.level[query[0]]), policy.present(policy.recommend()[0]).tolist()
            figure, axes = figures.subplots(1, 2, figsize=(9, 3.9))
            for axis, title in zip(axes.flat, ("g on the leaves, posterior mean", "f, posterior mean"), strict=True):
                axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="x1", ylabel="x2", aspect="equal")
                axis.grid(False)
                axis.set_title(title)
            leaves = policy.leaf[0].nonzero().flatten()
            means = policy.mean[0, leaves]
            scale = {"vmin": -2.0, "vmax": 1.2}
            axes[0, 0].set_facecolor("0.9")
            for leaf, mean in zip(leaves.tolist(), means.tolist(), strict=True):
                cx, cy, r = policy.nodes.actions[leaf].tolist()
                axes[0, 0].imshow([[mean]], extent=(cx - r, cx + r, cy - r, cy + r), cmap="cividis", **scale)
            corner = (x - radius, y - radius)
            axes[0, 0].add_patch(_rectangle(corner, 2 * radius))
            axes[0, 0].set(xlim=(0, 1), ylim=(0, 1))
            count = math.isqrt(problem.space.m)
            field = np.asarray(policy.mean[0, problem.n :].reshape(count, count).T)
            image = axes[0, 1].imshow(field, origin="lower", extent=(0, 1, 0, 1), cmap="cividis", **scale)
            axes[0, 1].plot(*best, "*", color=figures.COLORS[1], markersize=13, label="recommended")
            axes[0, 1].legend(fontsize="small", loc="upper right")
            figure.colorbar(image, ax=axes, label="sd of f")
            frames.append(figure)
            labels.append(f"round {step}: level {level} at ({x:.2f}, {y:.2f})")
            alts.append(
                f"Round {step}. The node of level {level} centered at ({x:.2f}, {y:.2f}) is asked and "
                f"{float(told['y'][0]):.2f} is seen. The tree has {len(leaves)} leaves; "
                f"the point ({best[0]:.2f}, {best[1]:.2f}) is recommended."
            )
    return frames, labels, alts


def _rectangle(corner: tuple[float, float], side: float):  # type: ignore[no-untyped-def]
    from matplotlib.patches import Rectangle

    return Rectangle(corner, side, side, fill=False, edgecolor=figures.COLORS[1], linewidth=3)
