"""Pictures of a run of HE-GP-UCB, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from book import figures
from book.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.random import ReplicateGenerators


@torch.no_grad()
def elimination_steps(
    problem: UnknownPriorProblem,
    policy: Any,
    steps: int,
    seed: int,
    places: Sequence[float],
    limits: tuple[float, float],
) -> tuple[list[Figure], list[str], list[str]]:
    """Whose bound is followed and who is left, round by round, for ``figures.slider``.

    Args:
        problem: of one variable, on a list of points, with one replicate.
        policy: an ``HEGPUCB``, a single run without an initial design, whose settings are used.
        steps: how many rounds.
        seed: of the replicate.
        places: where each candidate promises most; not a number for one that promises nothing special.
        limits: of the vertical axis; what reaches beyond is cut.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    batch, noise = policy.start([seed]), ReplicateGenerators([seed], stream=0)
    names, x = problem.space.candidates.names, problem.space.points[:, 0]
    where = torch.as_tensor(places)
    for t in range(1, steps + 1):
        before = batch.alive[0].clone()
        mean, std = (part[0] for part in batch.belief.moments())
        width = batch.multiplier()[:, None] * std
        query = batch.ask()
        u, answer = int(batch.candidate), problem.observe(query, noise.at(t))
        seen = batch.queries[0, :, 0], batch.y[0]
        batch.tell(query, answer)
        gone = before & ~batch.alive[0]
        figure, ((ax,),) = figures.subplots(figsize=(7.2, 4.2))
        ax.plot(x, problem.values.flatten(), "--", color="black", linewidth=1, label="f")
        hope = (mean + width).masked_fill(~before[:, None], -torch.inf).amax(0)
        ax.plot(x, hope.clamp(*limits), color="0.55", label="largest upper bound of all left")
        low, high = ((mean[u] + sign * width[u]).clamp(*limits) for sign in (-1, 1))
        ax.fill_between(x, low, high, color=figures.COLORS[0], alpha=0.25, linewidth=0, label=f"band of {names[u]}")
        ax.plot(*seen, "o", color="black", markersize=4, label="seen before")
        ax.plot(query[0], answer, "*", color="black", markersize=13, label="seen now")
        top = limits[1] - 0.04 * (limits[1] - limits[0])
        ax.plot(where[batch.alive[0]], torch.full_like(where[batch.alive[0]], top), "^", label="left")
        ax.plot(
            where[gone], torch.full_like(where[gone], top), "x", color=figures.COLORS[1], markersize=9, label="dropped"
        )
        ax.set(xlabel="x", ylabel="f (units of f)", xlim=(0, 1), ylim=limits)
        ax.legend(loc="lower center", ncols=3, fontsize="x-small")
        frames.append(figure)
        what = " and ".join(name for name, lost in zip(names, gone.tolist(), strict=True) if lost) or "none"
        labels.append(f"round {t}: {names[u]} is followed; {what} is dropped")
        alts.append(
            f"Round {t}. {names[u]} has the largest upper bound, at x = {float(query):.2f}, and {float(answer):.2f} is "
            f"seen there; {what} is dropped, {int(batch.alive.sum())} are left."
        )
    return frames, labels, alts


def responsibility(
    candidate: Tensor, critical: Tensor, names: Sequence[str], truth: int, u: int, total: Tensor, room: Tensor
) -> Figure:
    """Who chose in each round of one run, and the sum of errors of one candidate against its allowance.

    Args:
        candidate: the responsible one of each round, ``T``.
        critical: in which rounds it was refuted, boolean ``T``.
        names: of the candidates.
        truth: index of the true one.
        u: whose sums are shown.
        total: its sum of errors after each of its rounds, ``n``.
        room: what the rule allows it, ``n``.
    """
    figure, axes = figures.subplots(2, 1, figsize=(7.2, 6), height_ratios=(3, 2))
    top, bottom = axes[:, 0]
    rounds = torch.arange(1, len(candidate) + 1)
    for mask, marker, label in ((~critical, ".", "chose"), (critical, "x", "refuted")):
        top.plot(rounds[mask], candidate[mask], marker, color=figures.COLORS[int(marker == "x")], label=label)
    labels = [name + (" (true)" if i == truth else "") for i, name in enumerate(names)]
    top.set_yticks(range(len(names)), labels, fontsize="small")
    top.set(xlabel="round", ylim=(-0.5, len(names) - 0.5))
    top.legend(fontsize="small", loc="upper right")
    own = range(1, len(total) + 1)
    bottom.plot(own, -total, "o-", label="minus the sum of errors")
    bottom.plot(own, room, "k--", label="allowed by line 12")
    bottom.axvspan(len(total) - 0.5, len(total) + 0.5, color="0.9", label="its critical round")
    bottom.set(xlabel=f"rounds of {names[u]}", ylabel="sum (units of f)")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.legend(fontsize="small")
    return figure
