"""How the experiments on indirect queries are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book.indirect import experiments
from book.indirect.experiments import Kind
from book.indirect.problems import Transformation
from book.registry import Experiment, Scale


def _seeds(reader: int, paper: int) -> Any:
    """Fresh seeds at the paper's scale: from 1000 on, which nobody looked at before."""
    return lambda part, scale: range(1000, 1000 + paper) if scale == "paper" else range(reader)


def _arrays(found: Mapping[str, Any]) -> dict[str, Any]:
    """Regrets with the seeds first, as the registry puts replicates side by side."""
    return {name: values.transpose(0, 1).numpy().astype("float32") for name, values in found.items()}


def _figure_1(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> Mapping[str, Any]:
    kind, h = cast(tuple[Kind, Transformation], part.split("/"))
    return _arrays(experiments.figure_1(kind, h, seeds, steps or experiments.ROUNDS))


def _figure_2(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> Mapping[str, Any]:
    h, unit, levels = cast(tuple[Transformation, str, str], part.split("/"))
    # A budget has no rounds: with --steps it is 7, enough for two of the dearest queries.
    costs = experiments.COSTS if steps is None else experiments.COSTS[:4]
    return _arrays(experiments.figure_2(h, unit, int(levels), seeds, costs=costs))


def _floor(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> Mapping[str, Any]:
    count, noise = part.split("/")
    found = experiments.floor(None if count == "known" else int(count), float(noise), seeds, steps or 60)
    return {"regret": found.numpy().astype("float32")}


def _peaks(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> Mapping[str, Any]:
    return _arrays(experiments.peaks(float(part), seeds, steps or 40))


def _drawn(draw: Callable[[Mapping[str, Tensor]], Figure]) -> Callable[[Mapping[str, Any]], Figure]:
    """Draws stored arrays, all as tensors in double precision, as the pages read them."""
    return lambda arrays: draw({name: torch.from_numpy(array).double() for name, array in arrays.items()})


def _draw_peaks(arrays: Mapping[str, Tensor]) -> Figure:
    runs: dict[str, dict[str, Tensor]] = {}
    for name, values in arrays.items():
        blur, policy = name.split("/")
        runs.setdefault(blur, {})[policy] = values.transpose(0, 1)
    return experiments.draw_peaks(runs)


RUNS: Mapping[str, Experiment] = {
    "figure_1": Experiment(
        parts=lambda: [f"{kind}/{h}" for kind in (*experiments.SETUPS, "fitted", "short") for h in experiments.MAPS],
        work=_figure_1,
        seeds=lambda part, scale: _seeds(10, 20 if part.startswith("moved") else 40)(part, scale),
        file="figure_1.npz",
        draw=_drawn(experiments.draw_differences),
        whole=True,
        chunk=20,
        float64=True,
    ),
    "figure_2": Experiment(
        parts=lambda: [
            f"{h}/{unit}/{n}" for n in experiments.LEVELS for unit in experiments.UNITS for h in experiments.MAPS
        ],
        work=_figure_2,
        seeds=_seeds(5, 20),
        file="figure_2.npz",
        draw=_drawn(experiments.draw_figure_2),
        whole=True,
        chunk=20,
        float64=True,
    ),
    "floor": Experiment(
        parts=lambda: [f"{count or 'known'}/{noise}" for count in experiments.SIZES for noise in experiments.NOISES],
        work=_floor,
        seeds=_seeds(10, 20),
        file="floor.npz",
        draw=_drawn(experiments.draw_floor),
        whole=True,
        chunk=20,
        float64=True,
    ),
    "peaks": Experiment(
        parts=lambda: [str(blur) for blur in experiments.BLURS],
        work=_peaks,
        seeds=_seeds(20, 60),
        file="peaks.npz",
        draw=_drawn(_draw_peaks),
        float64=True,
    ),
}
