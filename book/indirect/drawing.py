"""Pictures of a square, of a cut normal, of rounds on the river, of questions at several blurs, and of a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from book import figures
from book.indirect.problem import IndirectProblem
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.indirect.entropy import truncation_log_gain
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators
from cbo_lib.run import Run


def plot_square(axes: Axes, values: Tensor, title: str) -> None:
    """A function on the square grid of cell centers as colors."""
    count = math.isqrt(len(values))
    image = axes.imshow(np.asarray(values.reshape(count, count).T), origin="lower", extent=(0, 1, 0, 1), cmap="cividis")
    axes.set(title=title)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes)


def plot_cuts(gammas: Sequence[float]) -> Figure:
    """What is left of a standard normal that is cut off at each ``gamma``, and the information of the cut.

    Args:
        gammas: where, one panel each.
    """
    u = torch.linspace(-3.5, 3.5, 701, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros((), dtype=u.dtype), torch.ones((), dtype=u.dtype))
    density = normal.log_prob(u).exp()
    figure, axes = figures.subplots(1, len(gammas), figsize=(2.6 * len(gammas), 2.9), sharey=True)
    for axis, gamma in zip(axes.flat, gammas, strict=True):
        left = torch.where(u <= gamma, density / normal.cdf(u.new_tensor(gamma)), torch.nan)
        axis.plot(u, density, "k--", linewidth=1, label="before")
        axis.plot(u, left, color=figures.COLORS[0], label="given g ≤ f*")
        axis.fill_between(u, 0, left, color=figures.COLORS[0], alpha=0.25, linewidth=0)
        axis.axvline(gamma, color=figures.COLORS[1], linewidth=1.5)
        gain = float(truncation_log_gain(u.new_tensor(gamma)).exp())
        axis.set(title=f"γ = {gamma:g}: {gain:.2f} nats", xlabel="(g - ν) / σ of g")
    axes[0, 0].set_ylabel("density")
    axes[0, 0].legend(fontsize="small", loc="upper left")
    return figure


def loop_steps(
    f: Function, blur: ClippedGaussian, prior: GaussianProcess, actions: Sequence[float], seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """The loop of indirect queries in one variable, three frames a round, for ``figures.slider``.

    Args:
        f: the function.
        blur: ``p(x | a)``.
        prior: of f, with a ``GaussianMeasureKernel``.
        actions: what is queried, one a round.
        seed: of the noise.

    Returns:
        Figures, labels and alternative texts: an action is picked, the world answers, the learner recommends.
    """
    x = torch.linspace(-0.5, 3.5, 161, dtype=torch.float64)[:, None]
    rng = torch.Generator().manual_seed(seed)
    asked, answers, frames, labels, alts = x.new_zeros(0, 1), x.new_zeros(0), [], [], []
    posterior = prior.posterior()
    for step, action in enumerate(actions, start=1):
        a, at = x.new_tensor([[action]]), f"Round {step}, action {action:g}"
        average = blur.measure(a, 40).expectation(f)
        z = average + float(torch.as_tensor(prior.noise_std)) * torch.randn(1, generator=rng, dtype=x.dtype)
        told = torch.cat([asked, a]), torch.cat([answers, z])
        after = prior.condition(Measure.dirac(blur.gaussian(told[0])), told[1])
        frames.append(_loop(f, x, posterior, asked, answers, blur, a))
        frames.append(_loop(f, x, posterior, *told, blur, a))
        frames.append(_loop(f, x, after, *told, blur))
        labels.append(f"round {step}, line 2: action {action:g} is picked")
        labels.append(f"round {step}, line 3: {float(z):.2f} is seen")
        labels.append(f"round {step}, lines 4 and 5: {_recommended(after, x):.2f} is recommended")
        alts.append(f"{at}: a bell over the axis shows which inputs it averages; f is not seen.")
        alts.append(f"{at}: a square at {float(z):.2f}, the average {float(average):.2f} with noise.")
        alts.append(f"{at}: the mean of f has moved, the band is narrower, a star marks {_recommended(after, x):.2f}.")
        posterior, asked, answers = after, *told
    return frames, labels, alts


def _points(x: Tensor) -> Measure:
    """Points as averages of width zero."""
    return Measure.dirac(torch.cat([x, torch.zeros_like(x)], -1))


def _recommended(posterior: Posterior, x: Tensor) -> float:
    return float(x[posterior.mean(_points(x)).argmax(), 0])


def _loop(
    f: Function,
    x: Tensor,
    posterior: Posterior,
    asked: Tensor,
    answers: Tensor,
    blur: ClippedGaussian,
    action: Tensor | None = None,
) -> Figure:
    """What the world has and what the learner knows; with an action, what it averages, else what is recommended."""
    mean, std = posterior.mean(_points(x)), posterior.variance(_points(x)).sqrt()
    (blue, red, *_), line = figures.COLORS, x[:, 0]
    figure, axes = figures.subplots(figsize=(7, 3.9))
    axis = axes[0, 0]
    axis.plot(line, f(x), "--", color="0.5", linewidth=1.2, label="f, seen by nobody")
    axis.fill_between(line, mean - 2 * std, mean + 2 * std, color=blue, alpha=0.18, linewidth=0)
    axis.plot(line, mean, color=blue, label="mean of f, and two deviations")
    if len(asked):
        axis.plot(asked[:, 0], answers, "s", color=red, label="feedback: averages")
    if action is None:
        best = _recommended(posterior, x)
        axis.plot([best], [float(mean.max())], "*", color=blue, markersize=13, label="recommended")
    else:
        bell = -1.9 + 0.9 * (-0.5 * ((line - action) / blur.scale(action)).square()[0]).exp()
        axis.fill_between(line, -1.9, bell, color=red, alpha=0.35, linewidth=0, label="p(x | a)")
    axis.set(xlim=(-0.5, 3.5), ylim=(-1.9, 3.4), xlabel="input x, or action a", ylabel="value (units of f)")
    axis.legend(fontsize="small", loc="upper right")
    return figure


def tree_steps(
    problem: IndirectProblem, policy: Run, steps: int, seed: int = 0
) -> tuple[list[Figure], list[str], list[str]]:
    """Nodes queried, and posterior means of g on the leaves and of f, round by round, for ``figures.slider``.

    Args:
        problem: in two dimensions.
        policy: to run for one replicate.
        steps: how many rounds.
        seed: of the replicate.

    Returns:
        Figures, labels and alternative texts, one a round.
    """
    frames, labels, alts = [], [], []
    noise = ReplicateGenerators([seed], stream=0)
    batch: Any = policy.start([seed])
    with torch.no_grad():
        for step in range(1, steps + 1):
            query = batch.ask()
            y = problem.observe(query, noise.at(step))
            batch.tell(query, y)
            x1, x2, radius = query[0].tolist()
            level = int(batch.nodes.level[problem.space.nearest(query)[0]])
            best, belief = batch.recommend()[0].tolist(), batch.belief()[0][0]
            figure, axes = figures.subplots(1, 2, figsize=(9, 3.9))
            for axis, title in zip(axes.flat, ("g on the leaves, posterior mean", "f, posterior mean"), strict=True):
                axis.set(xlabel="x1", ylabel="x2", aspect="equal", title=title)
                axis.grid(False)
            leaves = batch.leaf[0].nonzero().flatten()
            scale = {"vmin": -2.0, "vmax": 1.2}
            for leaf in leaves.tolist():
                cx, cy, r = batch.nodes.actions[leaf].tolist()
                extent = (cx - r, cx + r, cy - r, cy + r)
                axes[0, 0].imshow([[float(belief[leaf])]], extent=extent, cmap="cividis", **scale)
            axes[0, 0].add_patch(_rectangle((x1 - radius, x2 - radius), 2 * radius, figures.COLORS[1], 3))
            axes[0, 0].set(xlim=(0, 1), ylim=(0, 1))
            count = math.isqrt(problem.space.m)
            field = np.asarray(belief[problem.space.n :].reshape(count, count).T)
            image = axes[0, 1].imshow(field, origin="lower", extent=(0, 1, 0, 1), cmap="cividis", **scale)
            axes[0, 1].plot(*best, "*", color=figures.COLORS[1], markersize=13, label="recommended")
            axes[0, 1].legend(fontsize="small", loc="upper right")
            figure.colorbar(image, ax=axes, label="sd of f")
            frames.append(figure)
            labels.append(f"round {step}: level {level} at ({x1:.2f}, {x2:.2f})")
            alts.append(
                f"Round {step}. The node of level {level} centered at ({x1:.2f}, {x2:.2f}) is asked and "
                f"{float(y[0]):.2f} is seen. The tree has {len(leaves)} leaves; "
                f"the point ({best[0]:.2f}, {best[1]:.2f}) is recommended."
            )
    return frames, labels, alts


def _rectangle(corner: tuple[float, float], side: float, color: str, width: float) -> Rectangle:
    return Rectangle(corner, side, side, fill=False, edgecolor=color, linewidth=width)
