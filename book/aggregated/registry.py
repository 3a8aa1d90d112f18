"""How the experiments on aggregated feedback are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from book.aggregated import experiments
from book.aggregated.experiments import Setup
from book.aggregated.problems import Curve
from book.registry import Experiment, Scale

HOME = "book/aggregated/results"


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


def _arrays(results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return {f"{part}/{name}": array for part, found in results.items() for name, array in found.items()}


RUNS: Mapping[str, Experiment] = {
    "figure_4": Experiment(
        parts=lambda: [f"{s}/{curve}/{points}" for s in experiments.SETUPS for curve, points in experiments.PANELS],
        work=_figure_4,
        seeds=_seeds(20, 60),
        file=lambda part: "figure_4.json",
        home=HOME,
        draw=lambda results: experiments.draw_figure_4(pd.concat(results.values())),
    ),
    "figure_5": Experiment(
        parts=lambda: ["1", "10"],
        work=_figure_5,
        seeds=_seeds(20, 100),
        file=lambda part: "figure_5.npz",
        home=HOME,
        chunk=50,
        draw=lambda results: experiments.draw_figure_5(_arrays(results)),
    ),
    "figure_6": Experiment(
        parts=lambda: [f"{s}/{points}" for s in experiments.SETUPS for points in experiments.POINTS],
        work=_figure_6,
        seeds=_seeds(10, 100),
        file=lambda part: "figure_6.json",
        home=HOME,
        draw=lambda results: experiments.draw_figure_6(pd.concat(results.values())),
    ),
    "census": Experiment(
        parts=lambda: ["islands"],
        work=_census,
        seeds=_seeds(20, 60),
        file=lambda part: "census.json",
        home=HOME,
        draw=lambda results: experiments.draw_census(results["islands"]),
    ),
}
