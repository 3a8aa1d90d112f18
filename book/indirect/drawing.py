"""Pictures of a square, of districts, of a cut normal, of a tree that splits, and of a run on it, round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from book import figures
from book.harness import rounds
from book.indirect.problem import IndirectProblem
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect import CMETS, ClippedGaussian, conditional_max_value_entropy
from cbo_lib.measure import Function, Measure


def plot_square(axes: Axes, values: Tensor, title: str) -> None:
    """A function on the square grid of cell centers as colors."""
    count = math.isqrt(len(values))
    image = axes.imshow(np.asarray(values.reshape(count, count).T), origin="lower", extent=(0, 1, 0, 1), cmap="cividis")
    axes.set(title=title)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes)


def plot_districts(problem: IndirectProblem) -> Figure:
    """The map of districts twice: f at the pixels, and g of every district, each best place marked by a star.

    Args:
        problem: of ``district_problem``.
    """
    space = problem.space
    assert space.conditional is not None
    share = space.conditional.measure(space.actions, 1).weights
    mine = share.argmax(0)  # the district of each pixel
    count = math.isqrt(space.m)
    edges = np.linspace(0, 1, count + 1)
    f, g = problem.table[problem.n :], problem.table[: problem.n]
    borders = np.asarray(mine.reshape(count, count))
    best = int(g.argmax())
    stars = (space.points[f.argmax()], space.points[mine == best].mean(0))
    figure, axes = figures.subplots(1, 2, figsize=(7.9, 3.8), sharey=True)
    scale = {"vmin": float(f.min()), "vmax": float(f.max())}
    titles = ("f at every village (pixel)", "g of every district, its average")
    for axis, values, star, title in zip(axes.flat, (f, g[mine]), stars, titles, strict=True):
        image = axis.pcolormesh(
            edges, edges, np.asarray(values.reshape(count, count).T), cmap="cividis", rasterized=True, **scale
        )
        for i, j in zip(*np.nonzero(borders[1:] != borders[:-1]), strict=True):
            axis.plot([edges[i + 1]] * 2, edges[j : j + 2], color="white", linewidth=0.8)
        for i, j in zip(*np.nonzero(borders[:, 1:] != borders[:, :-1]), strict=True):
            axis.plot(edges[i : i + 2], [edges[j + 1]] * 2, color="white", linewidth=0.8)
        axis.plot(*star.tolist(), "*", color=figures.COLORS[1], markersize=14)
        axis.set(title=title, xlabel="x1", aspect="equal")
        axis.grid(False)
    axes[0, 0].set_ylabel("x2")
    figure.colorbar(image, ax=axes, label="incidence")
    return figure


def plot_cuts(gammas: Sequence[float]) -> Figure:
    """What is left of a standard normal that is cut off at each ``gamma``, and the information of the cut.

    Args:
        gammas: where, one panel each.
    """
    u = torch.linspace(-3.5, 3.5, 701, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros((), dtype=u.dtype), torch.ones((), dtype=u.dtype))
    density = normal.log_prob(u).exp()
    zero, one = u.new_zeros(1), u.new_ones(1)
    figure, axes = figures.subplots(1, len(gammas), figsize=(2.6 * len(gammas), 2.9), sharey=True)
    for axis, gamma in zip(axes.flat, gammas, strict=True):
        left = torch.where(u <= gamma, density / normal.cdf(u.new_tensor(gamma)), torch.nan)
        axis.plot(u, density, "k--", linewidth=1, label="before")
        axis.plot(u, left, color=figures.COLORS[0], label="given g ≤ f*")
        axis.fill_between(u, 0, left, color=figures.COLORS[0], alpha=0.25, linewidth=0)
        axis.axvline(gamma, color=figures.COLORS[1], linewidth=1.5)
        gain = float(conditional_max_value_entropy(zero, one, u.new_tensor([gamma])))
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
        labels.append(f"round {step}, line 4: action {action:g} is picked")
        labels.append(f"round {step}, lines 5 and 6: {float(z):.2f} is seen")
        labels.append(f"round {step}, lines 7 and 8: {_recommended(after, x):.2f} is recommended")
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


def split_steps(policy: CMETS, queries: Sequence[int]) -> tuple[list[Figure], list[str], list[str]]:
    """The leaves and their children before and after each query, on the square and as a tree, for ``figures.slider``.

    Args:
        policy: whose sets are shown; it is started anew, and told nothing but which nodes were queried.
        queries: nodes, in their order; each must be a leaf or a child of one when its turn comes.

    Returns:
        Figures, labels and alternative texts, two a query.

    Raises:
        ValueError: if a node may not be queried in its turn.
    """
    frames, labels, alts = [], [], []
    policy.start([0])
    for step, query in enumerate(queries, start=1):
        if not bool((policy.leaf | policy.child)[0, query]):
            raise ValueError(f"queries must hold leaves or their children, got {query} in round {step}")
        for when in ("before", "after"):
            leaves = policy.leaf[0].nonzero().flatten().tolist()
            children = policy.child[0].nonzero().flatten().tolist()
            frames.append(_sets(policy, leaves, children, query))
            labels.append(f"round {step}, node {query}: {when} the update")
            alts.append(
                f"Round {step}, {when} the update for the queried node {query}. Leaves: {_names(leaves)}. "
                f"Their children: {_names(children)}."
            )
            if when == "before":
                policy.advance(torch.tensor([query]), torch.tensor([True]))
    return frames, labels, alts


def _names(nodes: Sequence[int]) -> str:
    """Increasing numbers in words, runs as "3 to 8"."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"


def _sets(policy: CMETS, leaves: Sequence[int], children: Sequence[int], query: int) -> Figure:
    """The two sets on the square and as a tree."""
    nodes, (blue, red, _, _, orange, *_) = policy.nodes, figures.COLORS
    figure, axes = figures.subplots(1, 2, figsize=(10, 3.9), gridspec_kw={"width_ratios": (1, 1.7)})
    square, tree = axes[0]
    for node in leaves:
        x, y, radius = nodes.actions[node].tolist()
        square.add_patch(_rectangle((x - radius, y - radius), 2 * radius, blue, 1.5))
        square.text(x, y, str(node), ha="center", va="center", fontsize=9 if radius > 0.1 else 6, color=blue)
    x, y, radius = nodes.actions[query].tolist()
    square.add_patch(_rectangle((x - radius, y - radius), 2 * radius, red, 3))
    square.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="x1", ylabel="x2", aspect="equal", title="leaves")
    square.grid(False)
    place = {0: 0.5}  # from left to right in the order of the children
    deepest = int(nodes.level.max())
    for node in range(len(nodes.level)):
        for number, child in enumerate(nodes.children[node].tolist()):
            if child >= 0:
                width = nodes.children.shape[1] ** -float(nodes.level[child])
                place[child] = place[node] + (number - (nodes.children.shape[1] - 1) / 2) * width
    grown = set(leaves) | set(children)
    for node in list(grown):
        while node:
            node = int(nodes.parent[node])
            grown.add(node)
    for node in sorted(grown - {0}):
        parent = int(nodes.parent[node])
        heights = -int(nodes.level[parent]), -int(nodes.level[node])
        tree.plot([place[parent], place[node]], heights, color="0.6", linewidth=1, zorder=1)
    kinds = (
        ("split", grown - set(leaves) - set(children), {"color": "0.6", "marker": ".", "markersize": 7}),
        ("leaf (L)", set(leaves), {"color": blue, "marker": "s"}),
        ("child of a leaf (L')", set(children), {"color": orange, "marker": "o", "fillstyle": "none"}),
        ("queried", {query}, {"color": red, "marker": "s", "fillstyle": "none", "markersize": 12}),
    )
    for label, members, style in kinds:
        some = sorted(members)
        heights_of = [-int(nodes.level[node]) for node in some]
        look = {"linestyle": "none", "markersize": 5.5, "label": label, **style}
        tree.plot([place[node] for node in some], heights_of, **look)
    for node in sorted(grown):
        if int(nodes.level[node]) < 3:
            tree.text(place[node], -int(nodes.level[node]) + 0.2, str(node), ha="center", fontsize=7)
    tree.set(
        yticks=range(-deepest, 1), yticklabels=range(deepest, -1, -1), ylabel="level", xticks=[], xlim=(-0.02, 1.02)
    )
    tree.set(ylim=(-deepest - 0.35, 0.45), title="the tree grown so far")
    tree.grid(False)
    tree.legend(fontsize="x-small", loc="upper left")
    return figure


def tree_steps(
    problem: IndirectProblem, policy: CMETS, steps: int, seed: int = 0
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
            axes[0, 0].add_patch(_rectangle(corner, 2 * radius, figures.COLORS[1], 3))
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
                f"Round {step}. The node of level {level} centered at ({x:.2f}, {y:.2f}) is queried and "
                f"{float(told['y'][0]):.2f} is seen. The tree has {len(leaves)} leaves; "
                f"the point ({best[0]:.2f}, {best[1]:.2f}) is recommended."
            )
    return frames, labels, alts


def _rectangle(corner: tuple[float, float], side: float, color: str, width: float) -> Rectangle:
    return Rectangle(corner, side, side, fill=False, edgecolor=color, linewidth=width)
