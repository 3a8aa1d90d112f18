"""Pictures of a run of Algorithm 1, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures, proofs
from book.proofs import Link
from book.subsets.problem import SubsetProblem
from book.subsets.regret import quality_ledger
from book.subsets.walk import ALPHA, SQRT_BETA, Step
from cbo_lib.history import History
from cbo_lib.subsets.policies import good_enough


def names(problem: SubsetProblem) -> list[str]:
    """The control sets, variables counted from one."""
    return ["{" + ",".join(str(j + 1) for j in sorted(subset)) + "}" for subset in problem.space.control_sets]


def algorithm_steps(
    history: History, problem: SubsetProblem, alpha: float, steps: Sequence[int], replicate: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """Frames, labels and alternative texts for ``figures.slider``: what is known when each play is chosen.

    Args:
        history: of ``CheapestGoodSubset``.
        problem: what was played.
        alpha: of the policy, for the threshold.
        steps: which plays to show, from 1.
        replicate: of which run.

    Raises:
        ValueError: if a play was not recorded.
    """
    if not all(1 <= step <= history.steps for step in steps):
        raise ValueError(f"steps must lie in 1 to {history.steps}, got {list(steps)}")
    frames, labels, alts = [], [], []
    for step in steps:
        t = step - 1
        figure, axes = figures.subplots(1, 3, figsize=(10, 3.6), width_ratios=(4, 3, 3))
        _values(axes[0, 0], history, problem, alpha, replicate, t)
        _costs(axes[0, 1], history, problem, replicate, t)
        _plays(axes[0, 2], history, problem, replicate, t)
        played = int(history["subset"][replicate, t])
        phase = "exploration" if bool(history["exploring"][replicate, t]) else "exploitation"
        good = [
            name for name, ok in zip(names(problem), _good(history, alpha)[replicate, t].tolist(), strict=True) if ok
        ]
        frames.append(figure)
        labels.append(f"play {step}, {phase}: {names(problem)[played]}")
        alts.append(
            f"Play {step}, {phase}. Subset {names(problem)[played]} is played. "
            f"{len(good)} of {problem.space.m} subsets may be good enough: {', '.join(good)}."
        )
    return frames, labels, alts


def _good(history: History, alpha: float) -> Tensor:
    """Which subsets pass the threshold that is drawn, ``replicates x T x m``; the exploration has none of its own."""
    return good_enough(history["upper"], history["lower"], alpha)


def _values(axes: Axes, history: History, problem: SubsetProblem, alpha: float, replicate: int, t: int) -> None:
    """Upper bounds of every subset, the largest lower bound, the threshold and the truth."""
    upper = np.asarray(history["upper"][replicate, t])
    lower = float(history["lower"][replicate, t])
    best = np.asarray(problem.best_values)
    rows, good = np.arange(problem.space.m), np.asarray(_good(history, alpha)[replicate, t])
    right = 1.35 * max(best.max(), 1e-9)
    shown = np.minimum(np.where(np.isfinite(upper), upper, right), right)
    color = [figures.COLORS[0] if ok else "#999999" for ok in good]
    axes.barh(rows, shown, color=color, alpha=0.35, height=0.6)
    axes.plot(best, rows, "k|", markersize=14, label="true best value")
    if np.isfinite(lower):
        axes.axvline((1 - alpha) * lower, color=figures.COLORS[1], linestyle="--", label="threshold")
        axes.axvline(lower, color=figures.COLORS[1], linestyle=":", label="$L$")
    axes.set(yticks=rows, yticklabels=names(problem), xlim=(0, right), xlabel="upper bound of the value (units of f)")
    axes.set_ylim(problem.space.m - 0.5, -0.5)
    axes.legend(fontsize="x-small", loc="lower left", bbox_to_anchor=(0, 1), ncol=3, frameon=False)


def _costs(axes: Axes, history: History, problem: SubsetProblem, replicate: int, t: int) -> None:
    """Average costs with their radius, and the means."""
    own = np.asarray(history["subset"][replicate, :t])
    paid = np.asarray(history["cost"][replicate, :t])
    rows = np.arange(problem.space.m)
    plays = np.bincount(own, minlength=problem.space.m)
    total = np.bincount(own, weights=paid, minlength=problem.space.m)
    known = plays > 0
    average = total[known] / plays[known]
    low = np.minimum(np.asarray(history["cost_lower"][replicate, t])[known], average)
    axes.errorbar(average, rows[known], xerr=[average - low, np.zeros_like(low)], fmt="o", markersize=4, capsize=3)
    axes.plot(np.asarray(problem.cost_means), rows, "k|", markersize=14)
    axes.set(yticks=rows, yticklabels=[], xlim=(-0.05, 1.15), xlabel="cost: average, lower bound, mean (|)")
    axes.set_ylim(problem.space.m - 0.5, -0.5)


def _plays(axes: Axes, history: History, problem: SubsetProblem, replicate: int, t: int) -> None:
    """Which subsets were played so far; the last one has a ring."""
    own = np.asarray(history["subset"][replicate, : t + 1])
    axes.plot(np.arange(1, t + 2), own, ".", markersize=4)
    axes.plot(t + 1, own[-1], "o", markersize=9, markerfacecolor="none", color=figures.COLORS[1])
    axes.set(
        yticks=np.arange(problem.space.m),
        yticklabels=[],
        ylim=(problem.space.m - 0.5, -0.5),
        xlim=(0, history.steps + 1),
        xlabel="play",
    )


#: What the picture of the proof calls a step of the walk, which step that is, and what it leads to.
_LINKS = (
    ("others explored cost at most f*", "3 others, explored", ""),
    ("best explored costs two widths", "4 best, explored: width", ""),
    ("Lemma 7: mean widths", "4 Lemma 7", "best explored costs two widths"),
    ("Lemma 6: information", "4 Lemma 6", "Lemma 7: mean widths"),
    ("f* - L under the least width", "6 f* - L under least width", ""),
    ("the least under the average", "6 least under average", "f* - L under the least width"),
    ("the average under the lemmas", "6 average under lemmas", "the least under the average"),
    ("threshold under U", "7 threshold under U", ""),
    ("U under today's bound", "7 U under today's", "threshold under U"),
    ("today's bound, two widths", "7 today's under two widths", "U under today's bound"),
    ("f within its width", "1 mean within its width", "today's bound, two widths"),
)


def proof(
    history: History, problem: SubsetProblem, steps: Mapping[str, Step], caption: str = "", name: str = ""
) -> HTML:
    """The quality regret of stored runs, play by play: the terms that add up to it, and the links of the walk.

    Args:
        history: of the runs of ``walk``.
        problem: what was played.
        steps: of ``walk.steps``.
        caption: of the figure.
        name: by which text refers to it.
    """
    ledger, plays = quality_ledger(history, problem, SQRT_BETA, ALPHA), history.steps
    links = []
    for name, key, target in _LINKS:
        left, right = torch.broadcast_tensors(steps[key].left, steps[key].right)
        early = int(history["exploring"][0].sum()) if left.shape[1] < plays else 0
        left, right = (side.expand(-1, plays - early) for side in (left, right))
        missing = left.new_full((early,), torch.nan)
        broken = (left > right + 1e-9).any(0)
        failing = torch.cat([torch.zeros(early, dtype=torch.bool), broken])
        below, above = (torch.cat([missing, side.mean(0)]) for side in (left, right))
        links.append(Link(name, below, above, target, broken=failing))
    terms = {name: term.mean(0) for name, term in ledger.terms.items()}
    return proofs.regret(ledger.regret.mean(0), terms, links, caption=caption, name=name)
