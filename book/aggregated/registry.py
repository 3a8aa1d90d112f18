"""How the experiments on aggregated feedback are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from book.aggregated import experiments, studies
from book.aggregated.published import CONFIGURATIONS, configured_gpoo, configured_problem
from book.aggregated.regret import aggregated_regret
from book.harness import with_curve
from book.registry import Experiment, Scale
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOME = "book/aggregated/results"
#: How many seeds the studies have at the paper's scale.
_SEEDS = {
    "figure_4": 60,
    "figure_6": 100,
    "path": 60,
    "prior_draws": 200,
    "matern_draws": 100,
    "exponent": 10,
    "cost": 1,
}


def _study(name: str, **options: Any) -> Experiment:
    parts, most = studies.STUDIES[name], _SEEDS[name]

    def work(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
        return pd.DataFrame(list(parts[part](seeds=seeds, **({} if steps is None else {"steps": steps}))))

    return Experiment(
        parts=lambda: list(parts),
        work=work,
        seeds=lambda part, scale: range(most if scale == "paper" else min(10, most)),
        file=lambda part: f"{name}.json",
        home=HOME,
        **options,
    )


def _spike(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    problem = configured_problem("spike", CONFIGURATIONS["published"], int(part))
    policy = configured_gpoo(problem, "spike", CONFIGURATIONS["published"], experiments.delta)
    history = simulate(problem, policy, steps or 80, seeds, progress=False)
    return with_curve(history, aggregated_regret(history, problem))


def _trees(results: Mapping[str, History]) -> Figure:
    """The trees of the first seed, which is run again: a history has no tree. Of one part alone, its regret."""
    from book.aggregated import drawing
    from book.outputs import drawn_histories

    if len(results) < 2:
        return drawn_histories({f"/{part}": history for part, history in results.items()})
    found = {}
    for part, history in results.items():
        problem = configured_problem("spike", CONFIGURATIONS["published"], int(part))
        policy = configured_gpoo(problem, "spike", CONFIGURATIONS["published"], experiments.delta)
        found[int(part)] = problem, policy, simulate(problem, policy, history.steps, history.seeds[:1], progress=False)
    return drawing.plot_figure_5(found)


def _curves(results: Mapping[str, pd.DataFrame]) -> Figure:
    """Figure 4: regret by round, a panel for each curve, number of points and configuration."""
    from book import figures

    figure, axes = figures.subplots(2, 4, figsize=(12, 6), sharex=True)
    for axis, (part, frame) in zip(axes.flat, results.items(), strict=False):
        for row in frame.to_dict("records"):
            axis.plot(range(1, len(row["by round"]) + 1), row["by round"], label=row["policy"])
        axis.set(title=part, xlabel="round", ylabel="aggregated regret")
        axis.legend(fontsize="x-small")
    return figure


RUNS: Mapping[str, Experiment] = {
    "figure_4": _study("figure_4", draw=_curves),
    "figure_5": Experiment(
        parts=lambda: ["1", "10"],
        work=_spike,
        seeds=lambda part, scale: range(100 if scale == "paper" else 10),
        file=lambda part: f"figure_5-{part}.npz",
        home=HOME,
        chunk=50,
        draw=_trees,
    ),
    "figure_6": _study("figure_6"),
    "path": _study("path"),
    "prior_draws": _study("prior_draws", chunk=20, merge=studies.joined),
    "matern_draws": _study("matern_draws", chunk=20, merge=studies.joined),
    "exponent": _study("exponent"),
    "cost": _study("cost"),
}
