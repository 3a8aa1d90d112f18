"""How the experiments on variable subsets are run; see ``book.registry``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from book import harness
from book.registry import Experiment, Scale
from book.subsets import experiments, factors, walk
from cbo_lib.former.history import History

HOME = "book/subsets/results"
_POLICIES = ("proposed", "TS-PSQ", "UCB-PSQ", "ETC-50", "UCB-CVS, costs known")


def _panel(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    panel, _, policy = part.partition("/")
    with harness.alone(policy, steps):
        found: Any = experiments.EXPERIMENTS[panel](scale=scale, seeds=seeds)
    problem = found.problem
    amounts = torch.linspace(0, problem.space.budget, 201, dtype=torch.float64)
    return experiments.curves(found.histories[policy], problem, amounts)


def _figure(variance: str) -> Experiment:
    panels = [name for name in experiments.EXPERIMENTS if name.endswith(variance)]
    return Experiment(
        parts=lambda: [f"{panel}/{policy}" for panel in panels for policy in _POLICIES],
        work=_panel,
        seeds=lambda part, scale: harness.choose(scale, range(3), range(5)),
        file=lambda part: harness.path("", *part.split("/")).name,
        home=HOME,
        chunk=5,
        curve="simple_regret",
    )


def _walk(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    objective, prior = part.split("-")
    return walk.run(objective, prior, seeds, steps or walk.STEPS)


RUNS: Mapping[str, Experiment] = {
    "figure_1": _figure("0.02"),
    "figure_2": _figure("0.04"),
    "map": Experiment(
        parts=lambda: [n for n in factors.names() if factors.DATA in os.environ or not n.startswith("measured")],
        work=lambda part, seeds, scale, steps: factors.work(part, seeds, steps),
        seeds=lambda part, scale: factors.parse(part)[0].seeds[: 20 if scale == "paper" else 3],
        file=lambda part: factors.file_of(part).name,
        home="book/subsets/runs",
        key=lambda part, key: key,
        by_seed=factors.by_seed,
    ),
    "walk": Experiment(
        parts=lambda: ["-".join(names) for names in walk.RUNS],
        work=_walk,
        seeds=lambda part, scale: walk.SEEDS,
        file=lambda part: walk.file_of(Path(), part.partition("-")[0], part.partition("-")[2]).name,
        home=HOME,
        chunk=5,
        curve="spent",
    ),
}
