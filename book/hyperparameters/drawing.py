"""Pictures of a run of HE-GP-UCB, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from book import figures
from book.harness import rounds
from book.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.hyperparameters import HEGPUCB, Candidates
from cbo_lib.measure import Measure


def elimination_steps(
    problem: UnknownPriorProblem, policy: HEGPUCB, steps: int, seed: int = 0, limits: tuple[float, float] = (-3.5, 3.5)
) -> tuple[list[Figure], list[str], list[str]]:
    """The confidence bands of the candidates left, round by round, for ``figures.slider``.

    Args:
        problem: of one variable, on a finite domain.
        policy: to run for one replicate.
        steps: how many rounds after the initial design.
        seed: of the replicate.
        limits: of the vertical axis; what reaches beyond is cut.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    names = policy.space.candidates.names
    history: list[tuple[float, float]] = []
    with torch.no_grad():
        for _, query, told in rounds(problem, policy, steps + policy.initial, seed):
            before, (mean, std), t = policy.alive[0].clone(), policy.moments(), policy.round
            multiplier = policy.multiplier().expand(len(names)) if t >= 1 else None
            policy.tell(**told)
            x, y = float(query[0, 0]), float(told["y"][0])
            if multiplier is not None:
                chosen = int(policy.candidate[0])
                figure, axes = figures.subplots(figsize=(7.2, 4))
                _plot_bands(axes[0, 0], problem, names, before, chosen, mean[0], multiplier[:, None] * std[0])
                seen = torch.tensor(history).reshape(-1, 2)
                axes[0, 0].plot(seen[:, 0], seen[:, 1], "k.", label="seen before")
                axes[0, 0].plot(x, y, "k*", markersize=13, label="seen in this round")
                axes[0, 0].set(xlabel="x", ylabel="f", ylim=limits)
                axes[0, 0].legend(fontsize="x-small", ncols=2, loc="lower right")
                frames.append(figure)
                dropped = (before & ~policy.alive[0]).nonzero().flatten().tolist()
                what = " and ".join(names[u] for u in dropped) or "none"
                what += " are dropped" if len(dropped) > 1 else " is dropped"
                left = [name for name, alive in zip(names, policy.alive[0].tolist(), strict=True) if alive]
                labels.append(f"round {t}: {names[chosen]} chooses; {what}")
                alts.append(
                    f"Round {t}. {names[chosen]} has the highest upper bound, at x = "
                    f"{x:.2f}, and {y:.2f} is seen there; {what}. Left: {', '.join(left)}."
                )
            history.append((x, y))
    return frames, labels, alts


def round_steps(
    candidates: Candidates, truth: int, f: Callable[[Tensor], Tensor], places: Sequence[float], noise: Sequence[float]
) -> tuple[list[Figure], list[str], list[str]]:
    """Frames, labels and alternative texts for ``figures.slider``: each round as chosen, as seen, and as it is.

    Args:
        candidates: the priors, of one variable on [0, 1].
        truth: which of them f was drawn from.
        f: maps ``n x 1`` to ``n``.
        places: where f is asked, one a round.
        noise: what is added to each answer.
    """
    frames, labels, alts = [], [], []
    prior, grid = candidates.prior(0.1), torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    x = grid.new_tensor(places)[:, None]
    value, best = f(x), float(f(grid).max())
    y = value + torch.as_tensor(noise).to(value)
    for t in range(len(places)):
        posterior = prior.condition(Measure.dirac(x[:t]), y[:t]) if t else prior.posterior()
        mean, variance = posterior.mean_and_variance(Measure.dirac(grid))
        here, there = posterior.mean_and_variance(Measure.dirac(x[t : t + 1]))
        off = ((y[t] - here).abs() / (there + 0.1**2).sqrt()).flatten().tolist()
        apart = " and ".join(f"{gap:.1f} from {name}'s mean" for gap, name in zip(off, candidates.names, strict=True))
        told = (
            f"The learner asks at x = {places[t]:.2f}.",
            f"It sees y = {float(y[t]):.2f}; in predicted deviations that is {apart}.",
            f"Unseen: f, its regret {best - float(value[t]):.2f}, and that {candidates.names[truth]} is true.",
        )
        for stage, words in enumerate(("chosen", "seen", "what only the world knows")):
            figure, axes = figures.subplots(figsize=(7.2, 3.8))
            ax = axes[0, 0]
            for u, name in enumerate(candidates.names):
                width = 2 * variance[u].sqrt()
                ax.plot(grid[:, 0], mean[u], ("-", "-.")[u % 2], color=figures.COLORS[u], label=name)
                low, high = mean[u] - width, mean[u] + width
                ax.fill_between(grid[:, 0], low, high, color=figures.COLORS[u], alpha=0.15, linewidth=0)
            ax.axvline(places[t], color="0.5", linestyle=":", label="asked")
            ax.plot(x[: t + (stage > 0)], y[: t + (stage > 0)], "ko", label="seen")
            if stage == 2:
                ax.plot(grid[:, 0], f(grid), "k--", linewidth=1, label="f")
            ax.set(xlabel="x", ylabel="f (units of f)", ylim=(-3, 3))
            ax.legend(fontsize="x-small", ncols=2, loc="lower left")
            frames.append(figure)
            labels.append(f"round {t + 1}: {words}")
            alts.append(f"Round {t + 1}. {told[stage]}")
    return frames, labels, alts


def _plot_bands(
    axes: Axes,
    problem: UnknownPriorProblem,
    names: Sequence[str],
    alive: Tensor,
    chosen: int,
    mean: Tensor,
    width: Tensor,
) -> None:
    """Mean and confidence band of every candidate left, before the observation."""
    x = problem.space.finite()[:, 0]
    axes.plot(x, problem.values if problem.replicates is None else problem.values[0], "k--", linewidth=1, label="f")
    for u, name in enumerate(names):
        if alive[u]:
            color, heavy = figures.COLORS[u % len(figures.COLORS)], u == chosen
            axes.plot(x, mean[u], color=color, linewidth=2 if heavy else 1, label=f"{name}{', chooses' * heavy}")
            low, high = mean[u] - width[u], mean[u] + width[u]
            axes.fill_between(x, low, high, color=color, alpha=0.3 if heavy else 0.1, linewidth=0)


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
