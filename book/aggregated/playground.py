"""GPOO in the published page, without a kernel: readers set its constants, and the page runs it again.

``gpoo.js`` computes and draws. What it needs stands in the page as JSON: the curve, the prior and the normals that a
slider scales to noise. Where no script runs, the page shows one round, which is computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from book import figures
from book.aggregated.problems import LENGTHSCALES, UNIT, VARIANCE, aggregated_reward_curve
from book.functions import maximum
from book.steppers import embed
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matrix, rbf_kernel
from cbo_lib.measure import Measure

#: The points of the curve *peaks* ([Zhang2022], Appendix E); what the curve is between them follows from its values.
CENTERS = (0.05, 0.2, 0.4, 0.65, 0.9)
#: What the sliders offer: δ(0) in steps of a tenth, and the standard deviation of the noise.
DELTAS = [float(f"{0.5 * 120 ** (k / 53):.2g}") for k in range(54)]
NOISES = [round(0.02 + k / 100, 2) for k in range(49)]
ROUNDS, POINTS, FAILURE, TIE = 30, 2, 0.1, 1e-9
#: Of the values that are drawn, and the levels of the tree that are.
LIMITS, DEPTHS = (-1, 3), 7

Cell = tuple[int, int]  # depth and index


@dataclass(frozen=True)
class Round:
    """What the learner believes of each leaf before the draw, and what the round does.

    Attributes:
        leaves: by depth, then index.
        mean, width, b: of each leaf.
        drawn: the leaf of the largest b-value.
        report: what is seen of it.
        seen: the cells that were drawn before.
        split: the cells that are split after the round.
        recommended: after the round.
    """

    leaves: list[Cell]
    mean: np.ndarray
    width: np.ndarray
    b: np.ndarray
    drawn: Cell
    report: float
    seen: list[Cell]
    split: list[Cell]
    recommended: Cell


def settings() -> dict[str, Any]:
    """What ``gpoo.js`` runs with."""
    f, kernel = aggregated_reward_curve("peaks"), rbf_kernel(LENGTHSCALES["peaks"], VARIANCE)
    centers = torch.tensor(CENTERS, dtype=torch.float64).unsqueeze(-1)
    weights = VARIANCE * torch.linalg.solve(matrix(kernel, centers), f(centers))
    _, optimum = maximum(f, UNIT)
    return {
        "centers": CENTERS,
        "weights": weights.tolist(),
        "optimum": float(optimum),
        "lengthscale": LENGTHSCALES["peaks"],
        "variance": VARIANCE,
        "branching": 2,
        "points": POINTS,
        "failure": FAILURE,
        "normals": np.random.default_rng(0).standard_normal(ROUNDS).round(3).tolist(),
    }


def bounds(cell: Cell) -> tuple[float, float]:
    """Where a cell begins and ends."""
    depth, index = cell
    return index / 2**depth, (index + 1) / 2**depth


def first_of_largest(values: np.ndarray) -> int:
    """The place of the largest value; of equal ones the first."""
    return int((values >= values.max() - TIE).argmax())


def rounds(given: dict[str, Any], delta: float, noise: float, count: int) -> list[Round]:
    """The first rounds of GPOO ([Zhang2022], Algorithm 1), as ``gpoo.js`` runs it, with the posterior of the library.

    Args:
        given: the ``settings``.
        delta: what a cell of depth 0 may hide; half of it a level deeper.
        noise: standard deviation.
        count: how many.
    """
    f, kernel = aggregated_reward_curve("peaks"), rbf_kernel(given["lengthscale"], given["variance"])
    prior = GaussianProcess(kernel, noise)

    def measure(cells: list[Cell]) -> Measure:
        parts = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
        return Measure.average(torch.stack([(index + parts) / 2**depth for depth, index in cells]).unsqueeze(-1))

    leaves: list[Cell] = [(0, 0)]
    drawn: list[Cell] = []
    split: list[Cell] = []
    y: list[float] = []

    def believed(cells: list[Cell]) -> tuple[np.ndarray, np.ndarray]:
        seen = prior.condition(measure(drawn), torch.tensor(y, dtype=torch.float64)) if drawn else prior.posterior()
        mean, variance = seen.mean_and_variance(measure(cells))
        return mean.numpy(), variance.clamp_min(0).sqrt().numpy()

    found = []
    for t in range(1, count + 1):
        mean, std = believed(leaves)
        width = std * math.sqrt(2 * math.log(t * math.pi**2 * t**2 / (6 * given["failure"])))  # t leaves at most
        allowed = np.array([delta / 2**depth for depth, _ in leaves])
        b = mean + width + allowed  # line 2
        k = first_of_largest(b)  # line 3
        before, seen, (depth, index) = leaves, list(drawn), leaves[k]
        drawn.append((depth, index))  # lines 4 and 5
        y.append(float(measure(drawn[-1:]).expectation(f)) + noise * given["normals"][t - 1])
        if width[k] <= allowed[k]:  # line 6
            split.append((depth, index))  # line 7
            leaves = sorted([*leaves[:k], *leaves[k + 1 :], (depth + 1, 2 * index), (depth + 1, 2 * index + 1)])
        deepest = sorted(cell for cell in split if cell[0] == max(split)[0])
        best = deepest[first_of_largest(believed(deepest)[0])] if split else (0, 0)
        found.append(Round(before, mean, width, b, (depth, index), y[-1], seen, list(split), best))
    return found


def picture(now: Round) -> Figure:
    """One round as ``gpoo.js`` draws it."""
    figure, axes = figures.subplots(2, 1, figsize=(7.2, 5.6), sharex=True, height_ratios=(3, 2))
    above, below = axes[:, 0]
    low, high = np.array([bounds(cell) for cell in now.leaves]).T
    colors = [figures.COLORS[cell == now.drawn] for cell in now.leaves]
    for bottom, height, alpha in ((now.mean + now.width, now.b - now.mean - now.width, 0.24),
                                  (now.mean - now.width, 2 * now.width, 0.5)):  # fmt: skip
        above.bar(low, height, high - low, bottom, align="edge", color=colors, alpha=alpha, edgecolor="white")
    above.hlines(now.mean, low, high, colors=colors, linewidth=2)
    figures.plot_function(above, aggregated_reward_curve("peaks"), UNIT, linewidth=1.4)
    above.plot(sum(bounds(now.drawn)) / 2, now.report, "D", color="black", markersize=5)
    above.set(ylim=LIMITS, ylabel="value (units of f)")
    for cell in {*now.split, *now.leaves}:
        start, end = bounds(cell)
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": "gray"}
        if cell == now.drawn or cell in now.seen:
            look = {"facecolor": figures.COLORS[cell == now.drawn], "edgecolor": "white"}
        below.bar(start, 0.8, end - start, cell[0] - 0.4, align="edge", **look)
    below.plot(sum(bounds(now.recommended)) / 2, now.recommended[0], "*", color="black", markersize=10)
    figure.legend(
        [
            *(Patch(facecolor=figures.COLORS[0], alpha=alpha) for alpha in (0.5, 0.24)),
            Patch(facecolor=figures.COLORS[0]),
            Patch(facecolor="none", edgecolor="gray"),
            Patch(facecolor=figures.COLORS[1]),
            Line2D([], [], color="black", marker="*", linestyle=""),
        ],
        ["leaf: mean ± width", "+ δ, up to b", "drawn before", "not yet drawn", "drawn now", "recommended after it"],
        loc="outside lower center",
        ncols=3,
        fontsize="small",
    )
    below.set(xlim=(0, 1), ylim=(DEPTHS + 0.6, -0.6), yticks=range(DEPTHS + 1), xlabel="x", ylabel="depth")
    return figure


def gpoo_playground(delta: float = 9.0, noise: float = 0.1, start: int = 20, caption: str = "", name: str = "") -> HTML:
    """GPOO on the curve *peaks*, whose δ(0), noise and round readers set in the page.

    Args:
        delta: at first, one of ``DELTAS``.
        noise: at first, one of ``NOISES``.
        start: the round that is shown at first, from 1; where no script runs it stays.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.

    Raises:
        ValueError: for a value that the sliders do not have.
    """
    if delta not in DELTAS or noise not in NOISES or not 1 <= start <= ROUNDS:
        raise ValueError(f"delta, noise and start must be values of the sliders, got {delta}, {noise} and {start}")
    given = settings()
    now = rounds(given, delta, noise, start)[-1]
    (low, high), (left, right) = bounds(now.drawn), bounds(now.recommended)
    alt = (
        f"Round {start} of GPOO with δ(0) = {delta:g} and σ = {noise:g}: above, f and what is believed of each of "
        f"{len(now.leaves)} cells, the cell [{low:g}, {high:g}] marked, which is drawn; below, the tree of cells, "
        f"those that were drawn filled, and a star at the recommended one, [{left:g}, {right:g}]."
    )
    data = {"kind": "gpoo", **given, "deltas": DELTAS, "noises": NOISES, "limits": LIMITS, "depths": DEPTHS}
    data |= {"start": start, "start_delta": DELTAS.index(delta), "start_noise": NOISES.index(noise), "ms": 600}
    note = f"Round {start} of {ROUNDS}. The other rounds and the two sliders need JavaScript."
    still = str(figures.show(picture(now), alt).data)
    return embed(data, still, note, "cbo-stepper cbo-answer", caption, name)
