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
from book.subsets.marginals import truncated_normal
from book.subsets.problem import SubsetProblem
from book.subsets.regret import quality_ledger
from book.subsets.walk import ALPHA, SQRT_BETA, Step
from cbo_lib.former.history import History
from cbo_lib.subsets.policies import good_enough
from cbo_lib.subsets.space import Space


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


def two_variables() -> SubsetProblem:
    """A hill over two variables, so that all of a round can be drawn, with prices 0.1, 0.2 and 1."""

    def hill(x: Tensor) -> Tensor:
        first, second = (x[..., 0] - 0.3) / 0.3, (x[..., 1] - 0.65) / 0.25
        return 2 * (-(first.square() + second.square()) / 2).exp() + 0.5

    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    space = Space(box, ((0,), (1,), (0, 1)), (truncated_normal(0.04),) * 2, budget=10.0)
    return SubsetProblem(space, hill, box.new_tensor([0.1, 0.2, 1.0]), 0.03, 0.1, name="two variables")


def round_steps(
    problem: SubsetProblem, decisions: Sequence[tuple[int, float, float]], seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """Frames, labels and alternative texts for ``figures.slider``: each play as chosen, as seen, and as it is.

    Args:
        problem: of two variables.
        decisions: number of the control set and values, of which only those of the set count.
        seed: of what the world draws.
    """
    frames, labels, alts = [], [], []
    queries = torch.tensor(decisions, dtype=torch.float64)
    generators = [torch.Generator().manual_seed(seed + k) for k in range(len(decisions))]
    seen = {key: np.asarray(values) for key, values in problem.observe(queries, generators).items()}
    values, words = problem.value(queries), names(problem)
    for k, query in enumerate(queries):
        subset, name = int(query[0]), words[int(query[0])]
        full = bool(problem.space.controlled[subset].all())
        x, y, cost = (seen[key][k] for key in ("played", "y", "cost"))
        ways = (
            ("nothing is free", "Nothing is drawn")
            if full
            else ("a hill shows how the other one varies", "The other one is drawn")
        )
        told = (
            f"The learner sets {name}; {ways[0]}.",
            f"{ways[1]}: the point ({x[0]:.2f}, {x[1]:.2f}), y = {y:.2f}, cost {cost:.2f}.",
            f"Unseen: f, the decision's average {values[k]:.2f}, the mean cost {problem.cost_means[subset]:g}.",
        )
        for stage, words_of in enumerate(("chosen", "seen", "what only the world knows")):
            figure, axes = figures.subplots(1, 3, figsize=(10, 3.5), width_ratios=(3, 4, 3))
            _plane(axes[0, 0], problem, query, seen["played"][: k + (stage > 0)], stage == 2)
            _line(axes[0, 1], problem, query, (x, y) if stage else None, float(values[k]) if stage == 2 else None)
            _prices(axes[0, 2], problem, seen["subset"], seen["cost"], k + (stage > 0), stage == 2)
            frames.append(figure)
            labels.append(f"round {k + 1}, {name}: {words_of}")
            alts.append(f"Round {k + 1}. {told[stage]}")
    return frames, labels, alts


def _plane(axes: Axes, problem: SubsetProblem, query: Tensor, points: np.ndarray, truth: bool) -> None:
    """The box with what was set, the points that came to be, and f if it is shown."""
    grid = torch.linspace(0, 1, 41, dtype=query.dtype)
    if truth:
        every = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)
        axes.imshow(
            np.asarray(problem.f(every)),
            origin="lower",
            extent=(0, 1, 0, 1),
            cmap="Greys",
            vmin=0,
            vmax=4,
            aspect="auto",
        )
    controlled, values = problem.space.controlled[int(query[0])].tolist(), query[1:].tolist()
    for j, draw in ((0, axes.axvline), (1, axes.axhline)):
        if controlled[j]:
            draw(values[j], color=figures.COLORS[0], linewidth=2)
    axes.plot(points[:, 0], points[:, 1], "o", color=figures.COLORS[1], markersize=5)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="variable 1", ylabel="variable 2", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


def _line(
    axes: Axes, problem: SubsetProblem, query: Tensor, seen: tuple[np.ndarray, float] | None, average: float | None
) -> None:
    """Along the free variable: how it varies, what was seen, and f with its average if they are shown."""
    grid = torch.linspace(0, 1, 101, dtype=query.dtype)
    free = [j for j, fixed in enumerate(problem.space.controlled[int(query[0])].tolist()) if not fixed]
    along = query[1:].repeat(101, 1)
    if free:
        along[:, free[0]] = grid
        density = np.asarray(problem.space.free[free[0]].density(grid)) / 4
        axes.fill_between(grid.numpy(), 0, density, color=figures.COLORS[0], alpha=0.2)
    if average is not None:
        axes.plot(grid, problem.f(along), "k", linewidth=1, label="f")
        axes.axhline(average, color="k", linestyle="--", linewidth=1)
        axes.plot([], [], "k--", linewidth=1, label="its average")
    if seen is not None:
        at = seen[0][free[0]] if free else 0.5
        axes.plot([at], [seen[1]], "o", color=figures.COLORS[1], markersize=6, label="y")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="x-small", loc="upper right")
    label = f"variable {free[0] + 1}, free" if free else "nothing is free"
    axes.set(xlim=(0, 1), ylim=(0, 3.6), xlabel=label, ylabel="value of f", xticks=[0, 0.5, 1])


def _prices(axes: Axes, problem: SubsetProblem, subset: np.ndarray, cost: np.ndarray, paid: int, truth: bool) -> None:
    """What was paid, and the mean costs if they are shown."""
    axes.plot(cost[:paid], subset[:paid], "o", color=figures.COLORS[1], markersize=6, label="paid")
    if truth:
        axes.plot(np.asarray(problem.cost_means), np.arange(problem.space.m), "k|", markersize=14, label="mean")
    if paid:
        axes.legend(fontsize="x-small", loc="upper right")
    axes.set(yticks=np.arange(problem.space.m), yticklabels=names(problem), xlim=(0, 1.25), xlabel="cost")
    axes.set_ylim(problem.space.m - 0.5, -0.5)


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
    for said, key, target in _LINKS:
        left, right = torch.broadcast_tensors(steps[key].left, steps[key].right)
        early = int(history["exploring"][0].sum()) if left.shape[1] < plays else 0
        left, right = (side.expand(-1, plays - early) for side in (left, right))
        missing = left.new_full((early,), torch.nan)
        broken = (left > right + 1e-9).any(0)
        failing = torch.cat([torch.zeros(early, dtype=torch.bool), broken])
        below, above = (torch.cat([missing, side.mean(0)]) for side in (left, right))
        links.append(Link(said, below, above, target, broken=failing))
    terms = {term: values.mean(0) for term, values in ledger.terms.items()}
    return proofs.regret(ledger.regret.mean(0), terms, links, caption=caption, name=name)
