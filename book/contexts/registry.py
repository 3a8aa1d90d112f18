"""How the experiments on unknown contexts are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from book.contexts import experiments, regret
from book.contexts.experiments import CONIC, FIVE, PANELS, PAPER, ROUNDS, SLOW, SLOW_ROUNDS, STORED, STORED_4, Effort
from book.registry import Experiment, Scale


def _seeds(part: str, scale: Scale) -> range:
    """Fresh seeds at the paper's scale, from 4000 on; five, as in the paper, for the two with balls of MMD."""
    return range(3) if scale == "reader" else range(4000, 4005 if "/DRBO-MMD" in part else 4020)


def _panel(long: Mapping[str, int], effort: Effort, **of_panels: Effort) -> Any:
    def work(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
        panel, _, policy = part.partition("/")
        rounds = (long[panel] if scale == "paper" else 20) if steps is None else steps
        return experiments.figure_1(panel, [policy], seeds, rounds, of_panels.get(panel, effort))

    return work


def _table_1(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return experiments.table_1([part], (11, 55, 100) if steps is None else (11, 12, 13))


def _estimates(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return regret.estimates(int(part), len(seeds))


def _figure(name: str, policies: Sequence[str], work: Any) -> Experiment:
    return Experiment(
        parts=lambda: [f"{panel}/{policy}" for panel in PANELS for policy in policies],
        work=work,
        seeds=_seeds,
        file=f"{name}.json",
        draw=experiments.draw_figure_1,
    )


RUNS: Mapping[str, Experiment] = {
    "figure_1": _figure("figure_1", FIVE, _panel(ROUNDS, STORED, ackley_4=STORED_4)),
    "baselines": replace(
        _figure("baselines", SLOW, _panel(dict.fromkeys(PANELS, SLOW_ROUNDS), STORED)),
        parts=lambda: [f"{p}/{policy}" for p in PANELS for policy in SLOW if policy != "DRBO-MMD" or p in CONIC],
    ),
    "whole": _figure("whole", (*FIVE, *SLOW), _panel(dict.fromkeys(PANELS, 350), PAPER)),
    "estimates": Experiment(
        parts=lambda: ["1", "2", "4", "8"],
        work=_estimates,
        seeds=lambda part, scale: range(30 if scale == "paper" else 4),
        file="estimates.json",
        counted=True,
    ),
    "table_1": Experiment(
        parts=lambda: list(experiments.PAPER_TABLE_1),
        work=_table_1,
        seeds=lambda part, scale: range(1),
        file="table_1.json",
    ),
}
