"""How the experiments on aggregated feedback are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from book.aggregated import experiments
from book.aggregated.experiments import Setup
from book.aggregated.problems import Curve
from book.registry import Experiment, Scale


def _seeds(reader: int, paper: int) -> Any:
    """Fresh seeds at the paper's scale: from 1000 on, which nobody looked at before."""
    return lambda part, scale: range(1000, 1000 + paper) if scale == "paper" else range(reader)


def _figure_4(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    setup, curve, points = cast(tuple[Setup, Curve, str], part.split("/"))
    return experiments.figure_4(setup, curve, int(points), seeds, steps or 80)


def _figure_5(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> Mapping[str, Any]:
    return experiments.figure_5(int(part), seeds, steps or 80)


def _figure_6(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    setup, points = cast(tuple[Setup, str], part.split("/"))
    return experiments.figure_6(setup, int(points), seeds, steps or 50)


def _census(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return experiments.census_runs(seeds, steps or 40)


RUNS: Mapping[str, Experiment] = {
    "figure_4": Experiment(
        parts=lambda: [f"{s}/{curve}/{points}" for s in experiments.SETUPS for curve, points in experiments.PANELS],
        work=_figure_4,
        seeds=_seeds(20, 60),
        file="figure_4.json",
        draw=experiments.draw_figure_4,
    ),
    "figure_5": Experiment(
        parts=lambda: ["1", "10"],
        work=_figure_5,
        seeds=_seeds(20, 100),
        file="figure_5.npz",
        chunk=50,
        draw=experiments.draw_figure_5,
    ),
    "figure_6": Experiment(
        parts=lambda: [f"{s}/{points}" for s in experiments.SETUPS for points in experiments.POINTS],
        work=_figure_6,
        seeds=_seeds(10, 100),
        file="figure_6.json",
        draw=experiments.draw_figure_6,
    ),
    "census": Experiment(
        parts=lambda: ["islands"],
        work=_census,
        seeds=_seeds(20, 60),
        file="census.json",
        draw=experiments.draw_census,
    ),
}
