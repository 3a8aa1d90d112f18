"""How the experiments on unknown contexts are run; see ``book.registry``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from book import harness
from book.contexts import audit, caution, claims, experiments, proof, rates, tables
from book.contexts.regret import cumulative_regret
from book.contexts.slips import SLIPS
from book.registry import Experiment, Scale
from cbo_lib.former.history import History

HOME = "book/contexts/results"
_FIGURE_1 = [panel for panel in experiments.PANELS if panel != "ackley_4"]
_CLAIMS = {**claims.MAP, **claims.STUDIES}


def _panel(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    panel, _, policy = part.partition("/")
    with harness.alone(policy, steps):
        return _kept(experiments.figure_1(panel, scale=scale, seeds=seeds, only=[policy]), policy)


def _slip(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    with harness.alone(part, steps):
        return _kept(experiments.slip(part, scale=scale, seeds=seeds), part)


def _claim(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> History:
    entry, _, policy = part.partition("/")
    with harness.alone(policy, steps):
        return _kept(claims.run(entry, scale=scale, seeds=seeds), policy, ("value", "lengthscale"))


def _kept(found: Any, policy: str, names: Sequence[str] = ("value", "observation")) -> History:
    """What the pages read of a run, and its cumulative regret."""
    history = found.histories[policy]
    regret = cumulative_regret(history, found.problems[policy]).float()
    return harness.with_curve(experiments.compact(history, [n for n in names if n in history.tensors]), regret)


def _table_1(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return experiments.table_1(scale=scale, seeds=seeds, evaluations=steps or 100, only=[part])


def _table_1_effort(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    efforts = {part: experiments.paper_effort(scale, *experiments.PAPER_EFFORT[part])}
    return experiments.table_1(scale=scale, seeds=seeds, evaluations=steps or 100, only=[part], efforts=efforts)


def _table_2(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    frame = tables.table_2(part == "clipped", len(seeds)).reset_index()
    return frame.assign(clipped=part == "clipped")


def _step_seconds(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    rounds = (11, 55, 100) if steps is None else (steps + 1, steps + 2, steps + 3)
    return experiments.step_seconds(scale=scale, seeds=seeds, rounds=rounds, only=[part])


def _step_work(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return experiments.step_work(scale=scale, seeds=seeds, count=steps or 55, only=[part])


def _known_function(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return caution.known_function(scale=scale, seeds=seeds, only=[part])


def _discrepancy(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return caution.discrepancy(scale=scale, seeds=seeds, only=[float(part)])


def _proof(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> dict[str, Any]:
    return proof.arrays_of(part, proof.SIZES[part][0] if steps is None else max(steps, 7), len(seeds))


def _effort(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> pd.DataFrame:
    return audit.effort(scale=scale, seeds=seeds, panels=[part])


def _rates(part: str, seeds: Sequence[int], scale: Scale, steps: int | None) -> dict[str, Any]:
    return rates.arrays_of(int(part), len(seeds), steps or harness.choose(scale, 100, 1000))


def _table(name: str, parts: Sequence[str], work: Any, reader: range, paper: range, **options: Any) -> Experiment:
    return Experiment(
        parts=lambda: list(parts),
        work=work,
        seeds=lambda part, scale: harness.choose(scale, reader, paper),
        file=lambda part: f"{name}.json",
        home=HOME,
        **options,
    )


def _runs(parts: Sequence[str], work: Any, file: Any, seeds: Any, chunk: int) -> Experiment:
    return Experiment(parts=lambda: list(parts), work=work, seeds=seeds, file=file, home=HOME, chunk=chunk)


def _arrays(name: str, parts: Sequence[str], work: Any, seeds: Any, **options: Any) -> Experiment:
    return Experiment(
        parts=lambda: list(parts),
        work=work,
        seeds=seeds,
        file=lambda part: f"{name}.npz",
        home="book/contexts",
        counted=True,
        **options,
    )


def _of_figures(part: str, scale: Scale) -> Sequence[int]:
    return experiments.budget(scale).seeds


def _of_claims(part: str, scale: Scale) -> Sequence[int]:
    seeds = {**_CLAIMS, **claims.WHOLE}[part.partition("/")[0]].seeds
    return seeds if scale == "paper" else seeds[:3]


def _of_proofs(part: str, scale: Scale) -> Sequence[int]:
    return range(harness.choose(scale, 5, proof.SIZES[part][1]))


def _of_rates(part: str, scale: Scale) -> Sequence[int]:
    return range(harness.choose(scale, 3, 30))


def _named(part: str) -> str:
    return harness.path("", *part.split("/")).name


def _claims(entries: Mapping[str, claims.Entry]) -> Experiment:
    return _runs(
        [f"{name}/{policy}" for name, entry in entries.items() for policy in entry.steps],
        _claim,
        lambda part: harness.path("", claims.file_of(part.partition("/")[0]), part.partition("/")[2]).name,
        _of_claims,
        20,
    )


RUNS: Mapping[str, Experiment] = {
    "figure_1": _runs([f"{p}/{n}" for p in _FIGURE_1 for n in experiments.POLICIES], _panel, _named, _of_figures, 5),
    "figure_2": _runs([f"ackley_4/{n}" for n in experiments.POLICIES], _panel, _named, _of_figures, 5),
    "slips": _runs(list(SLIPS), _slip, lambda part: harness.path("", "slip", part).name, _of_figures, 5),
    "map": _claims(_CLAIMS),
    "whole": _claims(claims.WHOLE),
    "table_1": _table("table_1", experiments.POLICIES, _table_1, range(100, 102), range(100, 110)),
    "table_1_effort": _table(
        "table_1_effort", list(experiments.PAPER_TABLE_1), _table_1_effort, range(100, 101), range(100, 110)
    ),
    "table_2": _table("table_2", ["raw", "clipped"], _table_2, range(20), range(20), counted=True),
    "step_seconds": _table("step_seconds", list(experiments.PAPER_TABLE_1), _step_seconds, range(1), range(3)),
    "step_work": _table("step_work", experiments.WORKED, _step_work, range(100, 101), range(100, 103)),
    "known_function": _table(
        "known_function",
        list(caution.LAWS),
        _known_function,
        range(100, 108),
        range(100, 140),
        chunk=10,
        merge=partial(pd.concat, axis=1),
    ),
    "discrepancy": _table("discrepancy", ["0.05", "0.2", "1.0"], _discrepancy, range(100, 104), range(100, 120)),
    "effort": _table("effort", list(experiments.PANELS), _effort, range(1), range(2)),
    "proof": _arrays("proof", list(proof.SIZES), _proof, _of_proofs),
    "rates": _arrays("rates", [str(dim) for dim in rates.DIMS], _rates, _of_rates, key=lambda part, key: key),
}
