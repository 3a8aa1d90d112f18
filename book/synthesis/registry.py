"""How the map of the synthesis is run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from book.registry import Experiment, Scale
from book.synthesis import combined


def _combined(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return pd.DataFrame(combined.study(part, len(seeds)))


RUNS: Mapping[str, Experiment] = {
    "combined": Experiment(
        parts=lambda: list(combined.cases(1)),
        work=_combined,
        seeds=lambda part, scale: range(100 if scale == "paper" else 10),
        file="combined.json",
        counted=True,
    ),
}
