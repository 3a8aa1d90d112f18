"""What the paper's Figures 4 to 6 run, and the census, each with its picture: see ``book.aggregated.registry``.

The paper's text and its published code describe two configurations, ``"text"`` and ``"published"``. A table has a row a
policy: ``end`` is the regret after the last round, one number a seed; ``one rule`` is what the same reports are worth
if every policy names its best cell by the same rule; ``by round`` is the mean regret of every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures, files
from book.aggregated.census import PRIOR, census, smoothness
from book.aggregated.problem import CellProblem
from book.aggregated.problems import Curve, curve_problem, prior
from book.aggregated.published import (
    PromptAveStoOO,
    PromptStoOO,
    PublishedGPOO,
    PublishedGPTree,
    PublishedStoOO,
    published_prior,
    published_problem,
)
from book.files import numbers
from book.verdict import Paired, holm, paired
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, UniformGrid
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.gp import GaussianProcess
from cbo_lib.measure import covariance
from cbo_lib.search import argmax_finite
from cbo_lib.simulate import History, simulate

Setup = Literal["published", "text"]
SETUPS: tuple[Setup, ...] = ("published", "text")
#: Curve and points a cell of Figure 4 ([Zhang2022]).
PANELS: tuple[tuple[Curve, int], ...] = (("peaks", 1), ("peaks", 10), ("periodic", 1), ("periodic", 10))
RIVALS = ("uniform grid", "GPTree", "StoOO", "AVE-StoOO")
#: Points a cell, children and budgets of Figure 6.
POINTS, CHILDREN, BUDGETS = (1, 10, 20, 30, 40, 50), (2, 3, 4, 5), (25, 50)
RESULTS = Path(__file__).parent / "results"


def delta(depth: Tensor) -> Tensor:
    """The paper's smoothness function, ``14 * 2^-h`` ([Zhang2022], Appendix E)."""
    return 14 * 2.0**-depth


def gpoo(setup: Setup, problem: CellProblem, known: GaussianProcess) -> Any:
    """GPOO in a configuration. The text's multiplier is a union over all cells down to depth 10, of 0.1."""
    if setup == "published":
        return PublishedGPOO(problem.space, prior=known, delta=delta)
    K = problem.space.branching
    cells = (K**11 - 1) // (K - 1)
    return GPOO(problem.space, prior=known, delta=delta, sqrt_beta=partial(union_bound_sqrt_beta, cells, failure=0.1))


def panel(setup: Setup, curve: Curve, points: int, rounds: int) -> tuple[CellProblem, GaussianProcess, dict[str, Any]]:
    """A panel of Figure 4: the curve, what the learner believes of it, and every policy."""
    own = setup == "published"
    problem = published_problem(curve, points) if own else curve_problem(curve, points)
    known, space = published_prior() if own else prior(curve), problem.space
    return (
        problem,
        known,
        {
            "GPOO": gpoo(setup, problem, known),
            "uniform grid": UniformGrid(space, prior=known, budget=rounds),
            "GPTree": (PublishedGPTree if own else GPTree)(space, prior=known, budget=rounds),
            "StoOO": (PublishedStoOO if own else PromptStoOO)(space, delta=delta, budget=rounds),
            "AVE-StoOO": PromptAveStoOO(space, delta=delta),
        },
    )


def one_rule(history: History, problem: CellProblem, known: GaussianProcess, depth: int = 6) -> Tensor:
    """The regret of the cell of that depth with the best posterior mean, whoever collected the reports, ``replicates``.

    The posterior is that of the known prior given the reports of the run.
    """
    tree, y = problem.space.partition(), history["observation"]
    level = tree.complete(depth)
    asked, row = history["query"].flatten(0, 1).unique(dim=0, return_inverse=True)
    row, cells = row.view_as(y), problem.space.measure(torch.cat([asked, tree.boxes[level]]))
    gram, mean = covariance(known.kernel, cells, cells), known.prior_mean(cells)
    inner = gram[row.unsqueeze(-1), row.unsqueeze(-2)] + known.noise_std**2 * torch.eye(y.shape[1]).to(gram)
    weights = torch.linalg.solve(inner, y - mean[row])
    means = mean[-len(level) :] + (gram[row][..., -len(level) :] * weights.unsqueeze(-1)).sum(1)
    best = tree.boxes[level[argmax_finite(means)]]
    return problem.optimum - problem.value(best.unsqueeze(1)).squeeze(1)


def compared(
    problem: CellProblem, known: GaussianProcess, policies: Mapping[str, Any], rounds: int, seeds: Sequence[int]
) -> pd.DataFrame:
    """Every policy on one problem, a row each."""
    rows = []
    for name, policy in policies.items():
        history = simulate(problem, policy, rounds, seeds)
        regret = problem.optimum.unsqueeze(-1) - history["recommended_value"]
        numbers = {"end": regret[:, -1], "one rule": one_rule(history, problem, known), "by round": regret.mean(0)}
        rows.append({"policy": name, **{key: _rounded(values) for key, values in numbers.items()}})
    return pd.DataFrame(rows)


def figure_4(setup: Setup, curve: Curve, points: int, seeds: Sequence[int], rounds: int = 80) -> pd.DataFrame:
    """All policies on a panel of Figure 4."""
    frame = compared(*panel(setup, curve, points, rounds), rounds, seeds)
    return frame.assign(setup=setup, curve=curve, S=points)[["setup", "curve", "S", *frame.columns]]


def spike(setup: Setup, points: int, branching: int, seeds: Sequence[int], rounds: int) -> Tensor:
    """Regret of GPOO on *spike*, ``seeds x rounds``."""
    own = setup == "published"
    problem = (published_problem if own else curve_problem)("spike", points, branching)
    history = simulate(problem, gpoo(setup, problem, published_prior() if own else prior("spike")), rounds, seeds)
    return problem.optimum - history["recommended_value"]


def figure_5(points: int, seeds: Sequence[int], rounds: int = 80) -> dict[str, np.ndarray]:
    """Regret with one point a cell, or ten, by configuration, ``seeds x rounds``."""
    return {setup: spike(setup, points, 2, seeds, rounds).numpy().astype(np.float32) for setup in SETUPS}


def figure_6(setup: Setup, points: int, seeds: Sequence[int], rounds: int = 50) -> pd.DataFrame:
    """Regret at both budgets by points a cell and children."""
    rows = []
    for K in CHILDREN:
        regret = spike(setup, points, K, seeds, rounds)
        rows += [
            {"setup": setup, "S": points, "K": K, "N": N, "end": _rounded(regret[:, min(N, rounds) - 1])}
            for N in BUDGETS
        ]
    return pd.DataFrame(rows)


def census_policies(problem: CellProblem, rounds: int) -> dict[str, Any]:
    """Who searches the islands: with a fitted kernel, with the prior that made them, and without one."""
    space = problem.space
    return {
        "GPOO": GPOO(space),
        "GPOO, prior known": GPOO(space, prior=PRIOR),
        "GPTree": GPTree(space, budget=rounds),
        "uniform grid": UniformGrid(space, budget=rounds),
        "AVE-StoOO": AveStoOO(space, delta=smoothness, span=20.0),
    }


def census_runs(seeds: Sequence[int], rounds: int = 40) -> pd.DataFrame:
    """The census, an island a seed, in years."""
    problem = census(seeds)
    return compared(problem, PRIOR, census_policies(problem, rounds), rounds, seeds)


def _rounded(values: Tensor) -> list[float]:
    return [round(float(x), 4) for x in values]


# What is decided: a rival's regret minus GPOO's, or what else a sentence of the paper claims, one number a seed.


def stored(name: str) -> Any:
    """What a run at the paper's scale left in ``results``."""
    if name == "figure_5":
        with np.load(RESULTS / "figure_5.npz") as arrays:
            return {key: arrays[key] for key in arrays.files}
    return files.load_table(RESULTS / f"{name}.json")


def against(frame: pd.DataFrame, rivals: Sequence[str], **key: Any) -> dict[tuple[str, str], Paired]:
    """The regret of each rival minus that of GPOO, by rival and by who names the cell."""
    return {
        (rival, rule): paired(numbers(frame, rule, policy="GPOO", **key), numbers(frame, rule, policy=rival, **key))
        for rival in rivals
        for rule in ("end", "one rule")
    }


def claims() -> dict[tuple[str, ...], Paired]:
    """Every claim of the chapter, from the stored runs, with intervals widened by Holm over all of them.

    Keys are the figure, the configuration, what is compared and where. Positive numbers speak for the claim.
    """
    found: dict[tuple[str, ...], Paired] = {}
    table, curves, sizes = stored("figure_4"), stored("figure_5"), stored("figure_6")
    for setup in SETUPS:
        for curve, S in PANELS:
            pairs = against(table, RIVALS, setup=setup, curve=curve, S=S)
            found |= {("4", setup, rival, rule, f"{curve}, S = {S}"): pair for (rival, rule), pair in pairs.items()}
        one, ten = (torch.from_numpy(curves[f"{S}/{setup}"]) for S in (1, 10))
        found["5", setup, "S = 10 before S = 1", "N = 25"] = paired(ten[:, 24], one[:, 24])
        found["5", setup, "S = 1 before S = 10", "N = 80"] = paired(one[:, 79], ten[:, 79])
        for N in BUDGETS:
            cells = {(S, K): numbers(sizes, "end", setup=setup, S=S, K=K, N=N) for S in POINTS for K in CHILDREN}
            by_K = {K: torch.stack([cells[S, K] for S in POINTS]).mean(0) for K in CHILDREN}
            by_S = {S: torch.stack([cells[S, K] for K in CHILDREN]).mean(0) for S in POINTS}
            found |= {("6", setup, f"K = 3 before {K}", f"N = {N}"): paired(by_K[3], by_K[K]) for K in (2, 4, 5)}
            for few, many in ((1, 10), (10, 50)):
                found["6", setup, f"S = {many} before {few}", f"N = {N}"] = paired(by_S[many], by_S[few])
    rivals = [name for name in stored("census")["policy"] if name != "GPOO"]
    pairs = against(stored("census"), rivals)
    return holm(found | {("census", "", rival, rule, "N = 40"): pair for (rival, rule), pair in pairs.items()})


# Pictures.


def draw_figure_4(frame: pd.DataFrame) -> Figure:
    """Mean regret by round, a panel for each curve and number of points, a row for each configuration."""
    setups = [setup for setup in SETUPS if setup in set(frame["setup"])]
    figure, axes = figures.subplots(len(setups), 4, figsize=(8.4, 2.7 * len(setups) + 0.6), sharex=True, sharey=True)
    for row, setup in zip(axes, setups, strict=True):
        for axis, (curve, S) in zip(row, PANELS, strict=True):
            part = frame[(frame["setup"] == setup) & (frame["curve"] == curve) & (frame["S"] == S)]
            for policy, means in zip(part["policy"], part["by round"], strict=True):
                look = {"markevery": 20, "markersize": 4, **figures.style(policy)}
                axis.plot(range(1, len(means) + 1), means, label=policy, **look)
            axis.set_title(f"{curve}, S = {S}", fontsize="small")
            axis.set_ylim(0, 1.2)
        row[0].set_ylabel(f"{setup}: mean regret")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize="small")
    return figure


def draw_figure_5(curves: Mapping[str, Any]) -> Figure:
    """Mean regret by round with one point a cell and with ten, a panel for each configuration."""
    figure, axes = figures.subplots(1, 2, figsize=(8, 3.2), sharex=True)
    for axis, setup in zip(axes.flat, SETUPS, strict=True):
        for S, line, marker in ((1, "--", "s"), (10, "-", "o")):
            if f"{S}/{setup}" in curves:
                look = {**figures.style("GPOO"), "linestyle": line, "marker": marker, "color": figures.COLORS[S == 1]}
                values = torch.as_tensor(curves[f"{S}/{setup}"])
                figures.plot_replicates(axis, values, f"S = {S}", spread="standard error", **look)
        axis.set(title=setup, xlabel="round", ylim=(0, None))
    axes[0, 0].set_ylabel("mean regret (units of f)")
    axes[0, 1].legend()
    return figure


def draw_figure_6(frame: pd.DataFrame) -> Figure:
    """Mean regret by children and points a cell, a map for each configuration and budget."""
    setups = [setup for setup in SETUPS if setup in set(frame["setup"])]
    figure, axes = figures.subplots(len(setups), 2, figsize=(8, 2.9 * len(setups)))
    for row, setup in zip(axes, setups, strict=True):
        for axis, N in zip(row, BUDGETS, strict=True):
            part = frame[(frame["setup"] == setup) & (frame["N"] == N)]
            means = {(S, K): float(np.mean(end)) for S, K, end in zip(part["S"], part["K"], part["end"], strict=True)}
            figures.heatmap(axis, means, "children K", "points a cell S", "mean regret")
            axis.set_title(f"{setup}, N = {N}")
    return figure


def draw_census(frame: pd.DataFrame) -> Figure:
    """Mean regret by round on the islands, in years."""
    figure, axes = figures.subplots(figsize=(7.2, 3.4))
    for policy, means in zip(frame["policy"], frame["by round"], strict=True):
        look = {"markevery": 8, "markersize": 4, **figures.style(policy)}
        axes[0, 0].plot(range(1, len(means) + 1), means, label=policy, **look)
    axes[0, 0].set(xlabel="round", ylabel="mean regret (years)", ylim=(0, None))
    axes[0, 0].legend(fontsize="small")
    return figure


def draw_effects(found: Mapping[tuple[str, ...], Paired]) -> Figure:
    """Figure 4 as differences: a column for each configuration, a row for each rival and panel, hollow by one rule."""
    rows = [(rival, f"{curve}, S = {S}") for rival in RIVALS for curve, S in PANELS]
    figure, axes = figures.subplots(1, 2, figsize=(8.4, 6.2), sharey=True)
    for axis, setup in zip(axes.flat, SETUPS, strict=True):
        for at, (rival, where) in enumerate(rows):
            for rule, shift, fill in (("end", -0.16, "full"), ("one rule", 0.16, "none")):
                pair = found["4", setup, rival, rule, where]
                color = figures.style(rival)["color"]
                axis.plot([pair.low, pair.high], [at + shift] * 2, "-", color=color, linewidth=1.5)
                axis.plot(pair.mean, at + shift, "o", color=color, fillstyle=fill, markersize=5)
        for line in (3.5, 7.5, 11.5):
            axis.axhline(line, color="0.8", linewidth=0.8)
        axis.axvline(0, color="black", linewidth=1)
        axis.set_xscale("symlog", linthresh=0.02)
        axis.set_xticks([-0.1, -0.01, 0, 0.01, 0.1, 0.5], ["−0.1", "−.01", "0", ".01", "0.1", "0.5"])
        axis.set(title=setup, xlabel="regret minus GPOO's (units of f)", xlim=(-0.2, 0.8))
    axes[0, 0].set_yticks(range(len(rows)), [f"{rival}: {where}" for rival, where in rows])
    axes[0, 0].invert_yaxis()
    return figure
