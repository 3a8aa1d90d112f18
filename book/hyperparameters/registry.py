"""How the experiments on unknown hyperparameters are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd

from book.hyperparameters import experiments
from book.hyperparameters.experiments import Panel, Reading
from book.registry import Experiment, Scale

PARTS = [f"{panel}/{reading}" for panel in experiments.PANELS for reading in experiments.READINGS]
#: What turns a verdict: a narrower corner in (c), more noise in (d), a hill that promises more.
CHANGES: Mapping[str, tuple[Panel, Mapping[str, Any]]] = {
    "narrow corner": ("decomposition", {"width": 0.1}),
    "more noise": ("mean", {"noise": 0.5}),
    "higher hill": ("mean", {"extra": 10.0}),
}


def _seeds(parts: Sequence[str], start: int, reader: int, paper: int) -> Any:
    """Fresh seeds at the paper's scale, which nobody looked at before, others for each part."""
    return lambda part, scale: (
        range(start + 1000 * parts.index(part), start + 1000 * parts.index(part) + paper)
        if scale == "paper"
        else range(reader)
    )


def _figure_2(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    panel, reading = cast(tuple[Panel, Reading], part.split("/"))
    rounds = 100 if panel == "decomposition" and scale == "paper" else None
    return experiments.figure_2(panel, reading, seeds, steps or rounds)


def _changed(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    name, reading = part.split("/")
    panel, more = CHANGES[name]
    return experiments.figure_2(panel, cast(Reading, reading), seeds, steps, **more).assign(change=name)


_CHANGED = [f"{name}/{reading}" for name in CHANGES for reading in experiments.READINGS]
RUNS: Mapping[str, Experiment] = {
    "figure_2": Experiment(
        parts=lambda: PARTS,
        work=_figure_2,
        seeds=_seeds(PARTS, 10_000, 20, 100),
        file="figure_2.json",
        draw=experiments.draw_figure_2,
    ),
    "changed": Experiment(
        parts=lambda: _CHANGED,
        work=_changed,
        seeds=_seeds(_CHANGED, 30_000, 20, 100),
        file="changed.json",
    ),
}
