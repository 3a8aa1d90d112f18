"""Pictures of runs with unknown contexts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.contexts.problem import ContextProblem
from book.functions import interval
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.random import ReplicateGenerators


def loop_steps(
    problem: ContextProblem, decisions: Sequence[float], seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """The loop with an unknown context, three frames a round, for ``figures.slider``.

    Args:
        problem: with one decision and one context.
        decisions: what is decided, one a round.
        seed: of the contexts.

    Returns:
        Figures, labels and alternative texts: a decision is made, context and value are seen, the round is judged.
    """
    rng = torch.Generator().manual_seed(seed)
    x = torch.tensor(decisions)[:, None]
    c = problem.distribution.sample([rng], (len(x),))[0]
    y, worth = problem.f(problem.space.join(x, c)), problem.value(x)
    frames, labels, alts = [], [], []
    for k in range(len(x)):
        day, lost = f"round {k + 1}", float(problem.optimum - worth[k])
        frames.append(_loop(problem, x[: k + 1], c[:k], y[:k]))
        frames.append(_loop(problem, x[: k + 1], c[: k + 1], y[: k + 1]))
        frames.append(_loop(problem, x[: k + 1], c[: k + 1], y[: k + 1], judged=True))
        labels.append(f"{day}: {x[k].item():g} is decided, any context may come")
        labels.append(f"{day}: the context {c[k].item():.2f} and the value {y[k].item():.2f} are seen")
        labels.append(f"{day}: judged by the average, {lost:.2f} below the best; nobody sees that")
        alts.append(f"{day}: an upright line at the decision {x[k].item():g} crosses every context; none has come.")
        alts.append(
            f"{day}: a square on that line at the context {c[k].item():.2f}; right, a square at {y[k].item():.2f}."
        )
        alts.append(f"{day}: a line leads from the average {worth[k].item():.2f} of the decision up to the best one.")
    return frames, labels, alts


def _loop(problem: ContextProblem, x: Tensor, c: Tensor, y: Tensor, judged: bool = False) -> Figure:
    """Decisions and contexts so far, left, and what they brought, right; the last decision may wait for its context."""
    (blue, red, *_), n = figures.COLORS, len(c)
    figure, axes = figures.subplots(1, 2, figsize=(9.6, 3.8))
    plane, profit = axes[0]
    contexts, line = interval(problem.space.contexts, 201), interval(problem.space.decisions, 201)
    density = problem.distribution.density(contexts)
    plane.plot(0.12 * density / density.max(), contexts[:, 0], "--", color="0.5", label="p, seen by nobody")
    profit.plot(line[:, 0], problem.value(line), "--", color="0.5", label="average, seen by nobody")
    if n < len(x):
        plane.axvline(float(x[-1, 0]), color=blue, linewidth=1, label="decided")
        profit.axvline(float(x[-1, 0]), color=blue, linewidth=1)
    if n:
        plane.plot(x[:n, 0], c[:, 0], "s", color=red, label="seen: decision and context")
        profit.plot(x[:n, 0], y, "s", color=red, label="seen: decision and value")
    if judged:
        at, worth = float(x[-1, 0]), float(problem.value(x[-1:]))
        profit.plot([at, at], [worth, float(problem.optimum)], color=blue, label="regret of the round")
    plane.set(xlim=(0, 0.5), ylim=(0, 0.6), xlabel="decision x", ylabel="context c")
    profit.set(xlim=(0, 0.5), ylim=(-1.5, 2), xlabel="decision x", ylabel="value (units of f)")
    for axis in axes[0]:
        axis.legend(fontsize="small", loc="upper right")
    return figure


@torch.no_grad()
def density_steps(
    problem: ContextProblem, policy: Any, steps: Sequence[int], seed: int = 100
) -> tuple[list[Figure], list[str], list[str]]:
    """The density estimate and the acquisition as contexts arrive, for ``figures.slider``.

    Args:
        problem: with one decision and one context.
        policy: an ``SBOKDE``, of which one replicate runs.
        steps: after how many evaluations to draw, each past the initial design.
        seed: of the replicate.

    Returns:
        Figures, labels and alternative texts.
    """
    frames, labels, alts = [], [], []
    c, x = (interval(box, 301) for box in (problem.space.contexts, problem.space.decisions))
    value, batch, world = problem.value(x), policy.start([seed]), ReplicateGenerators([seed])
    for step in range(1, max(steps) + 1):
        decision = batch.ask()
        seen = problem.observe(decision, world.at(step))
        batch.tell(decision, seen["y"], seen["context"])
        if step not in steps:
            continue
        estimate = GaussianKDE(batch.seen)
        drawn = estimate.sample(256, batch.generators, problem.space.contexts)
        acquisition = batch.ucb(drawn)(x[None]).mean(-1)[0]
        figure, axes = figures.subplots(1, 2, figsize=(9.6, 3.6))
        axes[0, 0].plot(c[:, 0], problem.distribution.density(c), color=figures.COLORS[-1], label="true density")
        axes[0, 0].plot(c[:, 0], estimate.density(c)[0], "--", color=figures.COLORS[0], label="estimate")
        axes[0, 0].plot(batch.seen[0, :, 0], torch.zeros(step), "|", color=figures.COLORS[1], label="contexts")
        axes[0, 0].set(xlabel="context c", ylabel="density")
        axes[0, 1].plot(x[:, 0], value, color=figures.COLORS[-1], label="expected value")
        axes[0, 1].plot(x[:, 0], acquisition, "--", color=figures.COLORS[0], label="acquisition")
        best = float(x[acquisition.argmax(), 0])
        axes[0, 1].axvline(best, color=figures.COLORS[1], linewidth=1, label="next decision")
        axes[0, 1].set(xlabel="decision x", ylabel="units of f")
        for axis in axes.flat:
            axis.legend(fontsize="small")
        frames.append(figure)
        labels.append(f"{step} contexts")
        alts.append(
            f"After {step} evaluations: the density estimate beside the true density of the context, and the "
            f"acquisition beside the expected value; the next decision is {best:.3f}."
        )
    return frames, labels, alts
