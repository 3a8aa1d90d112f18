"""How the experiments on indirect queries are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from book import harness
from book.indirect import factors, mismatch, pilots, quick, schedule
from book.indirect.experiments import application
from book.indirect.problems import bandit_problem, district_problem
from book.indirect.regret import recommendation_regret
from book.registry import Experiment, Scale
from cbo_lib.former.history import History

HOME = "book/indirect"
_APPLICATIONS: Mapping[str, tuple[Any, float]] = {
    "bandit": (bandit_problem, 0.15),
    "districts": (district_problem, 0.12),
}
_POLICIES = ("CMES", "MES on g", "UCB on g", "random")


def _cell(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> dict[str, Any]:
    work = quick.run if quick.knows(part) else factors.run
    if steps is None:
        return work(part, seeds)
    return work(part, seeds, steps, budget=float(max(steps, 4)))


def _map(*kinds: str) -> Experiment:
    return Experiment(
        parts=lambda: [name for name in factors.names() if name.startswith(kinds)],
        work=_cell,
        seeds=lambda part, scale: range(factors.SEEDS if scale == "paper" else 10),
        file=lambda part: factors.file_of(part).name,
        home=f"{HOME}/map",
        key=lambda part, key: key,
        chunk=factors.SEEDS,
        merge=lambda chunks: {name: factors.side_by_side([c[name] for c in chunks]) for name in chunks[0]},
        by_seed=lambda key, array: {f"{key}, {n}": array[i, :, -1] for i, n in enumerate(factors.NOTIONS)},
        float64=True,
    )


def _application(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    name, _, policy = part.partition("/")
    make, lengthscale = _APPLICATIONS[name]
    problem = make()
    with harness.alone(policy, steps):
        found = application(problem, lengthscale, seeds=seeds, name=name)
    history = found.histories[policy]
    return harness.with_curve(history, recommendation_regret(history, problem))


def _pilots(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    if steps is None:
        return pilots.pilots(scale=scale, seeds=seeds)
    return pilots.lengthscales("linear", (0.2, 1e-3), 30, seeds, steps)


def _schedule(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> dict[str, Any]:
    found = schedule.accounts(part, steps or 200, seeds)
    return {kind: values.numpy().astype("float32") for kind, values in found.items()}


def _mismatch(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> dict[str, Any]:
    kind, blur, *kernels = part.split("/")
    limits: dict[str, Any] = {} if steps is None else {"steps": steps}
    if kind == "peaks":
        return mismatch.peaks(float(blur), kernels[0], seeds, **limits)
    if kind == "family":
        return mismatch.family(float(blur), seeds, **limits)
    return {"": mismatch.efficiency(float(blur), seeds, draws=20_000 if steps is None else 2560)}


_MOST = {"peaks": 40, "family": mismatch.SEEDS, "efficiency": 12}

RUNS: Mapping[str, Experiment] = {
    "figure_1": _map("fixed/"),
    "figure_2": _map("budget/", "learned/"),
    "applications": Experiment(
        parts=lambda: [f"{name}/{policy}" for name in _APPLICATIONS for policy in _POLICIES],
        work=_application,
        seeds=lambda part, scale: harness.choose(scale, range(10), range(30)),
        file=lambda part: harness.path("", *part.split("/")).name,
        home=f"{HOME}/results",
        chunk=30,
    ),
    "pilots": Experiment(
        parts=lambda: ["all"],
        work=_pilots,
        seeds=lambda part, scale: harness.choose(scale, range(10), range(40)),
        file=lambda part: "pilots.json",
        home=f"{HOME}/results",
    ),
    "schedules": Experiment(
        parts=lambda: list(schedule.SCHEDULES),
        work=_schedule,
        seeds=lambda part, scale: harness.choose(scale, range(5), range(30)),
        file=lambda part: "schedules.npz",
        home=HOME,
        chunk=30,
    ),
    "mismatch": Experiment(
        parts=lambda: [
            *(f"peaks/{blur}/{kernels}" for kernels in ("chosen", "matched", "fitted") for blur in (0.15, 0.3)),
            *(f"{kind}/{blur}" for blur in mismatch.BLURS for kind in ("family", "efficiency")),
        ],
        work=_mismatch,
        seeds=lambda part, scale: range(min(harness.choose(scale, 10, 100), _MOST[part.partition("/")[0]])),
        file=lambda part: "mismatch.npz",
        home=HOME,
        key=lambda part, key: f"{part}/{key}" if key else part,
        float64=True,
    ),
}
