"""How the experiments on variable subsets are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from book.registry import Experiment, Scale
from book.subsets import experiments


def _verdict(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return experiments.panel(part, seeds, steps)


def _experiment(name: str, cheap: bool) -> Experiment:
    return Experiment(
        parts=lambda: experiments.parts(cheap),
        work=_verdict,
        seeds=lambda part, scale: experiments.panel_seeds(part, 20 if scale == "paper" else 3),
        file=f"{name}.json",
        draw=experiments.draw_verdict,
    )


RUNS: Mapping[str, Experiment] = {"verdict": _experiment("verdict", False), "cheap": _experiment("cheap", True)}
