"""How the experiments on unknown hyperparameters are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pandas as pd
import torch

from book import harness
from book.hyperparameters import beyond, experiments, phases
from book.hyperparameters.regret import cumulative_regret
from book.registry import Experiment, Scale
from cbo_lib.former.history import History

HOME = "book/hyperparameters/results"
_BASE = ("HE-GP-UCB", "no elimination", "MLE", "ExpectedUCB")
_OURS = ("everyone tested", "tempered")
#: The policies of each panel, and its replicates at both scales.
_PANELS: Mapping[str, tuple[Sequence[str], int, int]] = {
    "lengthscale": ((*_BASE, "GP-UCB, shortest", "GP-UCB, longest", "A-GP-UCB"), 10, 50),
    "period": ((*_BASE, "GP-UCB, truth"), 10, 50),
    "decomposition": ((*_BASE, "GP-UCB, truth", "GP-UCB, additive"), 10, 100),
    "mean": ((*_BASE, "GP-UCB, truth"), 10, 50),
    "robust": (("HE-StableOpt", "StableOpt, truth", "StableOpt, shortest", "StableOpt, longest", "HE-GP-UCB"), 10, 50),
    "landscape": ((*_BASE, *_OURS), 20, 100),
}


def _panel(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    panel, _, policy = part.partition("/")
    with harness.alone(policy, steps):
        found: Any = experiments.EXPERIMENTS[panel](scale=scale, seeds=seeds, folder=None)
    history = found.histories[policy]
    regret = cumulative_regret(history, found.problems[policy])
    missing = history.steps - regret.shape[1]  # of the initial design
    return harness.with_curve(history, torch.nn.functional.pad(regret, (missing, 0), value=float("nan")))


def _figure(*panels: str) -> Experiment:
    return Experiment(
        parts=lambda: [f"{panel}/{policy}" for panel in panels for policy in _PANELS[panel][0]],
        work=_panel,
        seeds=lambda part, scale: range(harness.choose(scale, *_PANELS[part.partition("/")[0]][1:])),
        file=lambda part: harness.path("", *part.split("/")).name,
        home=HOME,
        chunk=50,
    )


def _phase(panel: str) -> Experiment:
    settings = {",".join(f"{k}={v}" for k, v in setting.items()): setting for setting in phases.settings(panel)}

    def work(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
        rows = phases.rows(panel, settings[part], seeds, steps)
        frame = pd.DataFrame([{**settings[part], **row} for row in rows])
        frame.attrs = {"seeds": len(seeds), "near": phases.NEAR}
        return frame

    return Experiment(
        parts=lambda: list(settings),
        work=work,
        seeds=lambda part, scale: range(harness.choose(scale, 10, 200)),
        file=lambda part: f"phases-{panel}.json",
        home=HOME,
    )


def _masters(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return pd.DataFrame(list(beyond.masters(seeds, part, steps)))


def _boxes(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    kind, sizes = part.split("/")
    limits: dict[str, Any] = {} if steps is None else {"steps": steps}
    return pd.DataFrame(list(beyond.box(sizes == "known", kind, seeds, **limits)))  # type: ignore[arg-type]


def _beyond(name: str, parts: Sequence[str], work: Any, paper: int) -> Experiment:
    return Experiment(
        parts=lambda: list(parts),
        work=work,
        seeds=lambda part, scale: range(harness.choose(scale, 10, paper)),
        file=lambda part: f"{name}.json",
        home=HOME,
    )


KINDS = get_args(beyond.Kind)
RUNS: Mapping[str, Experiment] = {
    "figure_2": _figure("lengthscale", "period", "decomposition", "mean"),
    "robust": _figure("robust"),
    "landscape": _figure("landscape"),
    **{f"phases-{panel}": _phase(panel) for panel in phases.PANELS},
    "masters": _beyond("masters", list(beyond.PANELS), _masters, 100),
    "boxes": _beyond("boxes", [f"{kind}/{sizes}" for sizes in ("known", "fitted") for kind in KINDS], _boxes, 20),
}
