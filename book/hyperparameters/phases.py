"""Where the claims of Figure 2 hold: every panel over what the paper leaves open.

    python -m book run hyperparameters.phases-mean --scale paper --publish

A table has one row for each setting, horizon and policy: regret over 200 seeds, and the paired difference to HE-GP-UCB
of the same seeds. What is stored is one run's; other processors may differ in the last digits of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book.harness import load_table
from book.hyperparameters import panels
from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.experiments import contenders
from book.hyperparameters.panels import Panel
from book.hyperparameters.problems import LENGTHSCALES
from book.hyperparameters.regret import cumulative_regret, simple_regret
from book.verdict import paired
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import CandidatePolicy

#: A run has failed if it never came this near to the optimum, in units of f.
NEAR = 0.1
QUANTILES = (0.1, 0.5, 0.9)
RESULTS = Path(__file__).parent / "results"
Setting = Mapping[str, Any]


def settings(panel: str) -> list[Setting]:
    """What is varied in a panel of Figure 2, or in one with other kernels."""
    readings = ("printed", "root", "half", "derived")
    if panel == "lengthscale":
        peak = grid(reading=("peak",), multiplier=readings, noise=(0.01, 0.1, 0.5), norm=(1.0, 2.0, 4.0))
        return peak + grid(reading=("density",), multiplier=readings, noise=(0.01, 0.1, 0.5), norm=(2.0,))
    if panel == "period":
        return grid(shared=(None, 0.16, 0.4, 0.83), multiplier=readings, noise=(0.03, 0.1, 0.5), norm=(2.0,))
    if panel == "decomposition":
        family = grid(hills=(0.5, 1.0), peak=(1.5, 2.0), width=(0.1, 0.15, 0.25), multiplier=readings, noise=(0.1,))
        return family + grid(hills=(1.0,), peak=(1.5,), width=(0.15,), multiplier=readings, noise=(0.03, 0.5))
    if panel == "mean":
        hills = ((2.0, 2.0), (5.0, 2.0), (5.0, 5.0), (2.0, 10.0))
        return [
            {"height": height, "extra": extra, **rest}
            for height, extra in hills
            for rest in grid(multiplier=readings[:3], noise=(0.03, 0.1, 0.5))
        ]
    if panel == "lengthscale-matern":
        return grid(nu=(2.5,), multiplier=readings, noise=(0.1,), norm=(3.0,))
    if panel == "mean-matern":
        return grid(nu=(0.5, 2.5), height=(5.0,), extra=(2.0,), multiplier=readings[:3], noise=(0.03, 0.1))
    if panel == "landscape":
        return grid(multiplier=readings[:3], noise=(0.1,))
    raise ValueError(f"panel must be one of {', '.join(PANELS)}, got {panel!r}")


def grid(**values: Sequence[Any]) -> list[Setting]:
    """All combinations."""
    return [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]


def policies(panel: str, made: Panel) -> dict[str, CandidatePolicy]:
    """The policies of a panel in the order of its table."""
    found = contenders(made.problem.space, **made.options)
    if panel.startswith("lengthscale"):
        found["A-GP-UCB"] = AGPUCB(made.problem.space, lengthscales=LENGTHSCALES, **made.options)
    return {name: found[name] for name in dict.fromkeys(("HE-GP-UCB", "everyone tested", *found))}


def rows(panel: str, setting: Setting, seeds: Sequence[int], steps: int | None = None) -> Iterator[dict[str, Any]]:
    """Run the policies and give one row for each horizon and policy; ``steps`` cuts the horizons."""
    build, horizons = PANELS[panel]
    horizons = tuple(min(horizon, steps or horizon) for horizon in horizons)
    drawn = {"seeds": seeds} if panel.startswith("mean") else {}
    made = build(**setting, **drawn, steps=horizons[-1])
    problem, initial = made.problem, made.initial
    runs: dict[str, tuple[Tensor, Tensor]] = {}
    left: dict[str, Tensor] = {}
    for name, policy in policies(panel, made).items():
        history = simulate(problem, policy, made.steps + initial, seeds)
        curves = [notion(history, problem).cpu() for notion in (cumulative_regret, simple_regret)]
        runs[name] = curves[0], curves[1]
        if "alive" in history.tensors:
            left[name] = history["alive"][:, initial:].cpu()
    # Where no candidate is true, "lost" speaks of the first and means nothing.
    truth = torch.as_tensor(0 if problem.truth is None else problem.truth).cpu().expand(len(seeds))
    for name, horizon in itertools.product(runs, horizons):
        (cumulative, best), at = runs[name], horizon - 1
        regret = cumulative[:, at]
        row = {"policy": name, "horizon": horizon, "mean": regret.mean(), "error": regret.std() / len(seeds) ** 0.5}
        row |= {f"q{100 * q:.0f}": regret.quantile(q) for q in QUANTILES}
        row |= {"best": best[:, at].mean(), "failed": (best[:, at] > NEAR).double().mean()}
        if name in left:
            row["left"] = left[name][:, at].sum(-1).double().mean()
            row["lost"] = 1 - left[name][:, at].gather(-1, truth[:, None]).double().mean()
        own = runs["HE-GP-UCB"][0]
        pairs = {
            "end": (own[:, at], regret),
            "rounds": (own[:, :horizon].mean(-1), cumulative[:, :horizon].mean(-1)),
            "mle": (regret, runs["MLE"][0][:, at]),
        }
        for when, pair in pairs.items():
            found = paired(*pair)
            row |= {f"{when}_{key}": getattr(found, key) for key in ("mean", "low", "high")}
            if when == "end":
                row["end_median"] = found.median
        row["wins"] = (own[:, at] < regret - 1e-9).double().mean()
        yield {key: round(float(v), 3) if isinstance(v, (float, Tensor)) else v for key, v in row.items()}


#: The panels and after how many rounds they are read.
PANELS: Mapping[str, tuple[Callable[..., Panel], tuple[int, ...]]] = {
    "lengthscale": (panels.lengthscale, (50,)),
    "period": (panels.period, (50,)),
    "decomposition": (panels.decomposition, (25, 50, 100)),
    "mean": (panels.mean, (50, 100)),
    "landscape": (panels.landscape, (60,)),
    "lengthscale-matern": (panels.lengthscale, (50,)),
    "mean-matern": (panels.mean, (50, 100)),
}


def stored(panel: str) -> pd.DataFrame:
    """The stored table of a panel."""
    return load_table(RESULTS / f"phases-{panel}.json")
