"""Pictures of a run of HE-GP-UCB, round by round."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from book import figures
from cbo_lib.hyperparameters.policies import HEGPUCB
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.simulate import rounds


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
    names = policy.problem.candidates.names
    history: list[tuple[float, float]] = []
    with torch.no_grad():
        for step, query, observation in rounds(problem, policy, steps + policy.initial, seed):
            before = policy.alive[0].clone()
            chosen = int(policy._candidate[0])
            if chosen >= 0:
                figure, axes = figures.subplots(figsize=(7.2, 4))
                _plot_bands(axes[0, 0], problem, policy, chosen)
                seen = torch.tensor(history).reshape(-1, 2)
                axes[0, 0].plot(seen[:, 0], seen[:, 1], "k.", label="seen before")
                axes[0, 0].plot(query[0, 0], observation[0], "k*", markersize=13, label="seen in this round")
                axes[0, 0].set(xlabel="x", ylabel="f", ylim=limits)
                axes[0, 0].legend(fontsize="x-small", ncols=2, loc="lower right")
                frames.append(figure)
            policy.tell(query, observation)
            history.append((float(query[0, 0]), float(observation[0])))
            if chosen >= 0:
                dropped = (before & ~policy.alive[0]).nonzero().flatten().tolist()
                what = " and ".join(names[u] for u in dropped) or "none"
                what += " are dropped" if len(dropped) > 1 else " is dropped"
                left = [name for name, alive in zip(names, policy.alive[0].tolist(), strict=True) if alive]
                labels.append(f"round {step - policy.initial}: {names[chosen]} chooses; {what}")
                alts.append(
                    f"Round {step - policy.initial}. {names[chosen]} has the highest upper bound, at x = "
                    f"{float(query[0, 0]):.2f}, and {float(observation[0]):.2f} is seen there; {what}. "
                    f"Left: {', '.join(left)}."
                )
    return frames, labels, alts


def _plot_bands(axes: Axes, problem: UnknownPriorProblem, policy: HEGPUCB, chosen: int) -> None:
    """Mean and confidence band of every candidate left, before the observation."""
    assert policy.surrogate is not None
    x = problem._finite()[:, 0]
    mean, std = policy.surrogate.tracked.mean[0], policy.surrogate.std[0]  # type: ignore[attr-defined]
    multiplier = policy._multiplier.expand(len(mean))
    axes.plot(x, problem.values if problem.replicates is None else problem.values[0], "k--", linewidth=1, label="f")
    for u, name in enumerate(policy.problem.candidates.names):
        if policy.alive[0, u]:
            color, heavy = figures.COLORS[u % len(figures.COLORS)], u == chosen
            axes.plot(x, mean[u], color=color, linewidth=2 if heavy else 1, label=f"{name}{', chooses' * heavy}")
            width = multiplier[u] * std[u]
            axes.fill_between(
                x, mean[u] - width, mean[u] + width, color=color, alpha=0.3 if heavy else 0.1, linewidth=0
            )
