"""What the paper's Figure 2 runs, panel by panel, its picture and verdicts: see ``book.hyperparameters.registry``.

The paper writes a multiplier ``beta`` before the deviation. *printed* takes it so; *root* takes its root, as BoTorch's
``UpperConfidenceBound`` does of its argument. A table has a row a policy: ``T = 50`` is the cumulative regret after 50
rounds, one number a seed, ``best`` the best regret at the end; ``by round`` and ``best by round`` are means.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures, files
from book.files import numbers
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import (
    DECOMPOSITIONS,
    LENGTHSCALES,
    decomposition_candidates,
    draws_of_candidates,
    four_sines,
    hidden_corner,
    hill_candidates,
    lengthscale_candidates,
    period_candidates,
    random_truth,
    slope_and_peak,
)
from book.hyperparameters.slips import printed_sqrt_beta
from book.verdict import Paired, holm, paired
from cbo_lib.confidence import union_bound_sqrt_beta
from cbo_lib.hyperparameters import AGPUCB, HEGPUCB, Candidates, ExpectedUCB, MaximumLikelihood, Space
from cbo_lib.simulate import simulate

Panel = Literal["lengthscale", "period", "decomposition", "mean"]
Reading = Literal["printed", "root"]
#: The panels of Figure 2 and after how many rounds the paper reads them.
PANELS: Mapping[Panel, int] = {"lengthscale": 50, "period": 50, "decomposition": 50, "mean": 100}
TITLES = dict(zip(PANELS, ("(a) lengthscale", "(b) period", "(c) decomposition", "(d) mean"), strict=True))
READINGS: tuple[Reading, ...] = ("printed", "root")
RIVALS = ("ExpectedUCB", "tempered", "MLE", "A-GP-UCB", "no elimination")
#: What is kept of a run: its cumulative regret after so many rounds.
HORIZONS = (5, 10, 15, 25, 50, 100)
#: A run has failed if it never came this near to the optimum, in units of f.
NEAR = 0.1
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Setup:
    """A problem, the multiplier of each round and the number of uniform points that precede the policies."""

    problem: UnknownPriorProblem
    sqrt_beta: Callable[[int], Tensor | float]
    initial: int


def setup(panel: Panel, reading: Reading, seeds: Sequence[int], rounds: int, noise: float = 0.1, **more: Any) -> Setup:
    """A panel of Figure 2, with ``B = 2`` in (a) to (c) and what else the paper leaves open filled in.

    Args:
        panel: which.
        reading: of the multiplier.
        seeds: in (d) each has a function of its own.
        rounds: how many will be asked for.
        noise: ``R``.
        more: of the functions: ``width`` of (c), ``extra`` of (d).
    """
    if panel == "mean":
        candidates, points = hill_candidates(5.0, more.get("extra", 2.0)), _line(1, 200)
        truth = random_truth(len(candidates), seeds)
        values = draws_of_candidates(candidates, truth, seeds)(points.expand(len(seeds), -1, -1))
        space = Space(candidates, points=points, noise_std=noise)
        problem = UnknownPriorProblem(space, partial(_looked_up, values), truth=truth, replicates=len(seeds))
        return Setup(problem, partial(_bayesian, reading), 0)
    initial, f, points, candidates = _fixed(panel, noise, **more)
    space = Space(candidates, points=points, noise_std=noise)
    schedule = partial(_read, reading, printed_sqrt_beta(space, 2.0, rounds + initial))
    return Setup(UnknownPriorProblem(space, f, truth=1 if panel == "decomposition" else 0), schedule, initial)


def policies(made: Setup) -> dict[str, Any]:
    """HE-GP-UCB, itself without elimination, and its rivals; A-GP-UCB where there are lengthscales to shrink."""
    space = made.problem.space
    options: dict[str, Any] = {"sqrt_beta": made.sqrt_beta, "initial": made.initial}
    found: dict[str, Any] = {
        "HE-GP-UCB": HEGPUCB(space, **options),
        "ExpectedUCB": ExpectedUCB(space, **options),
        "tempered": ExpectedUCB(space, likelihood="tempered", **options),
        "MLE": MaximumLikelihood(space, **options),
        "no elimination": HEGPUCB(space, eliminate=False, **options),
    }
    if space.candidates.names[0].startswith("lengthscale"):
        found["A-GP-UCB"] = AGPUCB(space, **options)
    return found


def figure_2(
    panel: Panel, reading: Reading, seeds: Sequence[int], rounds: int | None = None, **more: Any
) -> pd.DataFrame:
    """All policies on a panel, a row each."""
    T = PANELS[panel] if rounds is None else rounds
    made, rows = setup(panel, reading, seeds, T, **more), []
    problem = made.problem
    for name, policy in policies(made).items():
        watch = _left if isinstance(policy.batch, HEGPUCB) else None
        history = simulate(problem, policy, T + made.initial, seeds, watch=watch)
        regret = (problem.optimum.unsqueeze(-1) - history["value"])[:, made.initial :]
        total, best = regret.cumsum(-1), regret.cummin(-1).values
        row: dict[str, Any] = {"panel": panel, "reading": reading, "policy": name}
        row |= {f"T = {h}": _rounded(total[:, h - 1]) for h in sorted({*HORIZONS, T}) if h <= T}
        row |= {"best": _rounded(best[:, -1]), "by round": _rounded(total.mean(0))}
        row |= {"best by round": _rounded(best.mean(0))}
        row["dropped"] = _rounded(len(problem.space.candidates) - history["left"][:, -1]) if watch else None
        rows.append(row)
    return pd.DataFrame(rows)


def _left(batch: HEGPUCB) -> dict[str, Tensor]:
    return {"left": batch.alive.sum(-1).to(batch.y)}


def _fixed(panel: Panel, noise: float, width: float = 0.15) -> tuple[int, Any, Tensor, Candidates]:
    """Initial points, f, the domain and the candidates of a panel whose f is the same for all seeds."""
    if panel == "lengthscale":
        return 3, slope_and_peak, _line(1, 500), lengthscale_candidates(LENGTHSCALES)
    if panel == "period":
        return 5, four_sines, _line(2, 500), period_candidates(noise_std=noise)
    axes = [torch.linspace(0, 1, n, dtype=torch.float64) for n in (15, 15, 5)]
    f = partial(hidden_corner, width=width)
    return 3, f, torch.cartesian_prod(*axes), decomposition_candidates(DECOMPOSITIONS, 0.3)


def _line(high: float, count: int) -> Tensor:
    return torch.linspace(0, high, count, dtype=torch.float64)[:, None]


def _read(reading: Reading, schedule: Callable[[int], Any], t: int) -> Any:
    return schedule(t) if reading == "printed" else schedule(t) ** 0.5


def _bayesian(reading: Reading, t: int) -> float:
    return _read(reading, partial(union_bound_sqrt_beta, 200, failure=0.05), t)


def _looked_up(values: Tensor, points: Tensor) -> Tensor:
    """The function of equally spaced points of [0, 1] with these values, ``replicates x n``."""
    index = (points[..., 0] * (values.shape[-1] - 1)).round().long()
    return values.gather(-1, index.reshape(len(values), -1)).reshape(index.shape)


def _rounded(values: Tensor) -> list[float]:
    return [round(float(x), 3) for x in values]


# What is decided: a rival's regret minus that of HE-GP-UCB, one number a seed.


def stored(name: Literal["figure_2", "changed"] = "figure_2") -> pd.DataFrame:
    """What a run at the paper's scale left in ``results``."""
    return files.load_table(RESULTS / f"{name}.json")


def failed(frame: pd.DataFrame, **key: Any) -> Tensor:
    """Whether each seed's run of a row never came within ``NEAR`` of the optimum, zero or one."""
    return (numbers(frame, "best", **key) > NEAR).double()


def claims(table: pd.DataFrame | None = None) -> dict[tuple[str, ...], Paired]:
    """Every claim of the chapter, with intervals widened by Holm over all of them.

    Keys are panel, reading, rival and what is compared: ``"end"``, the cumulative regret where the paper reads it;
    ``"T = 10"`` in (c); ``"failures"``, the share of runs that fail. Positive numbers speak for HE-GP-UCB, and in (d)
    ``"behind ExpectedUCB"`` for that.
    """
    table = stored() if table is None else table
    found: dict[tuple[str, ...], Paired] = {}
    for panel, reading, rival in itertools.product(PANELS, READINGS, RIVALS):
        if rival == "A-GP-UCB" and panel != "lengthscale":
            continue
        ours, theirs = ({"panel": panel, "reading": reading, "policy": name} for name in ("HE-GP-UCB", rival))
        columns = {"end": f"T = {PANELS[panel]}"}
        if panel == "decomposition" and rival != "no elimination":
            columns["T = 10"] = "T = 10"
        for what, column in columns.items():
            pair = numbers(table, column, **ours), numbers(table, column, **theirs)
            found[panel, reading, rival, what] = paired(*pair)
        if rival in ("MLE", "ExpectedUCB", "tempered"):
            found[panel, reading, rival, "failures"] = paired(failed(table, **ours), failed(table, **theirs))
        if (panel, rival) == ("mean", "MLE"):
            average = numbers(table, "T = 100", **ours | {"policy": "ExpectedUCB"})
            found[panel, reading, rival, "behind ExpectedUCB"] = paired(average, numbers(table, "T = 100", **theirs))
    return holm(found)


# Pictures.


def draw_figure_2(frame: pd.DataFrame) -> Figure:
    """Mean cumulative and best regret by round, a row for each panel."""
    there = [panel for panel in PANELS if panel in set(frame["panel"])]
    readings = [reading for reading in READINGS if reading in set(frame["reading"])]
    columns = [(reading, column) for reading in readings for column in ("by round", "best by round")]
    size = (4.2 * len(columns), 2.5 * len(there) + 0.6)
    figure, axes = figures.subplots(len(there), len(columns), figsize=size)
    for line, panel in zip(axes, there, strict=True):
        for axis, (reading, column) in zip(line, columns, strict=True):
            part = frame[(frame["panel"] == panel) & (frame["reading"] == reading)]
            for policy, means in zip(part["policy"], part[column], strict=True):
                look = {"markevery": max(1, len(means) // 4), "markersize": 4, **figures.style(policy)}
                axis.plot(range(1, len(means) + 1), means, label=policy, **look)
            axis.set_ylim(0, None)
            axis.set_title(f"{TITLES[panel]}, {reading}", fontsize="small")
            axis.set_ylabel("cumulative regret" if column == "by round" else "best regret")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def draw_effects(found: Mapping[tuple[str, ...], Paired]) -> Figure:
    """Regret of each rival minus that of HE-GP-UCB at the end, a picture for each panel; hollow for *root*."""
    figure, axes = figures.subplots(2, 2, figsize=(8.4, 5.2))
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        there = [rival for rival in RIVALS if (panel, "printed", rival, "end") in found]
        for at, rival in enumerate(there):
            for reading, shift, fill in (("printed", -0.15, "full"), ("root", 0.15, "none")):
                pair = found[panel, reading, rival, "end"]
                color = figures.style(rival)["color"]
                axis.plot([pair.low, pair.high], [at + shift] * 2, "-", color=color, linewidth=1.5)
                axis.plot(pair.mean, at + shift, "o", color=color, fillstyle=fill, markersize=5)
        axis.axvline(0, color="black", linewidth=1)
        axis.set_yticks(range(len(there)), there)
        axis.invert_yaxis()
        axis.set_title(TITLES[panel], fontsize="small")
        axis.set_xlabel("regret more than HE-GP-UCB (units of f)")
    return figure


def draw_risk(frame: pd.DataFrame) -> Figure:
    """Cumulative regret of (d), the runs of each policy in the order of their regret, a picture for each reading."""
    figure, axes = figures.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    for axis, reading in zip(axes.flat, READINGS, strict=True):
        part = frame[(frame["panel"] == "mean") & (frame["reading"] == reading)]
        for policy, end in zip(part["policy"], part["T = 100"], strict=True):
            share = [(i + 0.5) / len(end) for i in range(len(end))]
            look = {**figures.style(policy), "marker": ""}
            axis.plot(share, sorted(end), label=policy, **look)
        axis.set(xlabel="share of the runs", yscale="log")
        axis.set_title(reading, fontsize="small")
    axes[0, 0].set_ylabel("cumulative regret (units of f)")
    axes[0, 0].legend(fontsize="small")
    return figure
