"""One way to run, store and compare the experiments of every chapter.

In an experiments module::

    def figure_1(curve, *, scale="paper", seeds=None, folder=None):
        seeds = harness.choose(scale, range(10), range(30)) if seeds is None else seeds
        return harness.run(problem, policies, 80, seeds, folder=folder, name=f"figure_1-{curve}")

``python -m book`` runs it in parts, see ``registry``.

What there is:

- ``choose(scale, reader, paper)``: what a scale has; ``pick(table, name, argument)``: an entry, or an error with near
  names.
- ``run(problem, policies, steps, seeds, stop=, folder=, name=, keep=) -> Comparison``: one list of seeds for all
  policies; ``problem`` and ``steps`` may be given by policy. With a folder, each history is stored once it is there.
- ``rounds(problem, policy, steps, seed)``: the steps of one replicate, to look at the policy in between.
- ``Comparison(problems, histories)``: ``.problem``, ``.regrets(function)``, ``.final(function, at=)``,
  ``.paired(function, policy, rival, at=, limit=) -> verdict.Paired``, ``.save(folder, name)``.
- ``load(problem, folder, name, policies) -> Comparison``, ``stored(folder, name, policies)``: what was stored, in files
  named by ``path``.
- ``save_table(frame, path)`` and ``load_table(path)``: tables with their attributes, as JSON.
- ``alone(policy, steps)``: inside, ``run`` runs one policy, for at most so many steps; ``with_curve(history, regret)``.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import pandas as pd
from torch import Tensor

from book.verdict import Paired, paired
from cbo_lib.former.history import History, write_atomically
from cbo_lib.former.simulate import Policy, Problem, observed, simulate
from cbo_lib.random import ReplicateGenerators

Scale = Literal["reader", "paper"]
At = int | Literal["end", "mean"]
T = TypeVar("T")
P = TypeVar("P", bound=Problem)


def choose(scale: Scale, reader: T, paper: T) -> T:
    """What a scale has: the reader's size, small enough to wait for, or the paper's.

    Raises:
        ValueError: for another scale.
    """
    return pick({"reader": reader, "paper": paper}, scale, "scale")


def pick(table: Mapping[str, T], name: str, argument: str = "name") -> T:
    """The entry of a table, for names that people type.

    Args:
        table: by name.
        name: which.
        argument: what the message calls it.

    Raises:
        ValueError: for a name that is not there, with the nearest names first.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, cutoff=0.5) or [known for known in table if str(name) in known]
    hint = f"; did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
    raise ValueError(f"{argument} must be one of {', '.join(table)}, got {name!r}{hint}")


_alone: ContextVar[tuple[str, int | None] | None] = ContextVar("alone", default=None)


@contextmanager
def alone(policy: str, steps: int | None = None) -> Iterator[None]:
    """Inside, ``run`` runs one of the policies that it is given, for at most so many steps: a part of an experiment."""
    token = _alone.set((policy, steps))
    try:
        yield
    finally:
        _alone.reset(token)


def rounds(
    problem: Problem, policy: Policy, steps: int, seed: int
) -> Iterator[tuple[int, Tensor, Mapping[str, Tensor]]]:
    """The steps of one replicate of ``simulate``, for whoever looks at the policy before and after it learns.

    The policy is told what was seen when the next step is asked for, or by ``policy.tell(query, **seen)`` before.

    Args:
        problem: see ``Problem``.
        policy: it is started anew.
        steps: how many queries.
        seed: of the replicate.

    Yields:
        The number of the step, from 1, its query ``1 x ...`` and what is to be told: ``y`` ``1`` and what else is seen.
    """
    noise = ReplicateGenerators([seed], stream=0)
    policy.start([seed])
    for step in range(1, steps + 1):
        query = policy.ask()
        seen = observed(problem.observe(query, noise.at(step)), 1)
        told = {"query": seen.pop("played", query), **seen}
        yield step, query, told
        if policy.count < step:
            policy.tell(**told)


@dataclass(frozen=True, eq=False)
class Comparison(Generic[P]):
    """Several policies, run with the same seeds.

    Args:
        problems: by policy.
        histories: by policy; whole ones, or what was kept of them.
    """

    problems: Mapping[str, P]
    histories: Mapping[str, History]

    @property
    def problem(self) -> P:
        """What all policies were run on.

        Raises:
            ValueError: if they were not run on one problem.
        """
        first, *others = self.problems.values()
        if any(other is not first for other in others):
            raise ValueError("problem must be one for all policies; here they have problems of their own")
        return first

    def regrets(self, function: Callable[[History, P], Tensor]) -> dict[str, Tensor]:
        """What a notion of regret gives for each policy, ``replicates x T``; any other function of a run will do."""
        return {name: function(history, self.problems[name]) for name, history in self.histories.items()}

    def final(self, function: Callable[[History, P], Tensor], at: At = "end") -> pd.DataFrame:
        """Mean and standard error over replicates, one row a policy, the smallest mean first.

        Args:
            function: see ``regrets``.
            at: ``"end"``, after the last round that all policies have; ``"mean"``, averaged over these rounds; or a
                round, from 1. Policies that end before it are left out.

        Raises:
            ValueError: if no policy has that round.
        """
        values = _at(self.regrets(function), at)
        rows = {
            name: (float(v.mean()), float(v.std()) / len(v) ** 0.5 if len(v) > 1 else nan) for name, v in values.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "standard error"]).sort_values("mean")

    def paired(
        self,
        function: Callable[[History, P], Tensor],
        policy: str,
        rival: str,
        at: At = "end",
        limit: float | None = None,
    ) -> Paired:
        """Whether a policy has less regret than a rival, seed by seed.

        Args:
            function: see ``regrets``.
            policy: which is claimed to be better.
            rival: with which it is compared.
            at: see ``final``.
            limit: see ``paired``.

        Raises:
            ValueError: for another name or round, or if the seeds differ.
        """
        pair = {name: pick(self.histories, name, "policy") for name in (policy, rival)}
        if list(pair[policy].seeds) != list(pair[rival].seeds):
            raise ValueError(f"seeds must be the same, got {pair[policy].seeds} and {pair[rival].seeds}")
        values = _at({name: function(history, self.problems[name]) for name, history in pair.items()}, at)
        return paired(pick(values, policy, "policy"), pick(values, rival, "rival"), limit)

    def save(self, folder: str | Path, name: str) -> list[Path]:
        """Store every history, with the versions and the git revision that made it; gives the files."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        paths = [path(folder, name, policy) for policy in self.histories]
        for file, history in zip(paths, self.histories.values(), strict=True):
            history.save(file)
        return paths


def _at(values: Mapping[str, Tensor], at: At) -> dict[str, Tensor]:
    """One number a replicate: at a round, or over the rounds that all have."""
    shared = min(value.shape[-1] for value in values.values())
    if at == "mean":
        return {name: value[:, :shared].mean(-1) for name, value in values.items()}
    column = shared if at == "end" else at
    found = {name: value[:, column - 1] for name, value in values.items() if 1 <= column <= value.shape[-1]}
    if not found:
        longest = max(value.shape[-1] for value in values.values())
        raise ValueError(f"at must be 'end', 'mean' or a round in [1, {longest}], got {at!r}")
    return found


def run(
    problem: P | Mapping[str, P],
    policies: Mapping[str, Policy],
    steps: int | Mapping[str, int],
    seeds: Sequence[int],
    *,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
    folder: str | Path | None = None,
    name: str = "",
    keep: Callable[[History], History] | None = None,
) -> Comparison[P]:
    """Run policies with the same seeds.

    Args:
        problem: one for all, or one for each policy.
        policies: by name.
        steps: rounds of all, or of each policy.
        seeds: one a replicate.
        stop: see ``simulate``.
        folder: where each history is stored as soon as it is there. What is there already is read and not run again.
            Default: nothing is stored.
        name: of the experiment, the beginning of the files' names.
        keep: what is stored of a history. Default all.

    Raises:
        ValueError: if a stored history has other seeds.
    """
    if (part := _alone.get()) is not None:
        policies = {part[0]: pick(policies, part[0], "policy")}
    problems, rounds = _each(problem, policies), _each(steps, policies)
    if part is not None and part[1] is not None:
        rounds = {label: min(count, part[1]) for label, count in rounds.items()}
    histories: dict[str, History] = {}
    for label, policy in policies.items():
        file = None if folder is None else path(folder, name, label)
        if file is not None and file.exists():
            histories[label] = History.load(file)
            if list(histories[label].seeds) != list(seeds):
                raise ValueError(f"seeds must be those of {file}, {histories[label].seeds}, got {list(seeds)}")
            continue
        start, history = time.perf_counter(), simulate(problems[label], policy, rounds[label], seeds, stop=stop)
        histories[label] = history if keep is None else keep(history)
        if folder is not None:
            Comparison(problems, {label: histories[label]}).save(folder, name)
            print(f"{file}: {time.perf_counter() - start:.0f} s", flush=True)
    return Comparison(problems, histories)


def load(problem: P | Mapping[str, P], folder: str | Path, name: str, policies: Sequence[str]) -> Comparison[P]:
    """What was stored of an experiment, see ``stored``, with what the policies were run on."""
    histories = stored(folder, name, policies)
    return Comparison(_each(problem, histories), histories)


def stored(folder: str | Path, name: str, policies: Sequence[str]) -> dict[str, History]:
    """The stored histories of an experiment: those of the policies that are there.

    Raises:
        ValueError: if none is there.
    """
    paths = {policy: path(folder, name, policy) for policy in policies}
    histories = {policy: History.load(file) for policy, file in paths.items() if file.exists()}
    if not histories:
        raise ValueError(f"folder must hold results of {name!r}, got {folder}")
    return histories


def with_curve(history: History, regret: Tensor, names: Sequence[str] | None = None) -> History:
    """A history and, as ``regret``, what its problem says of it; of the rest all, or the names that are kept."""
    kept = history.tensors if names is None else {name: history[name] for name in names}
    return replace(history, tensors={**kept, "regret": regret})


def path(folder: str | Path, name: str, policy: str) -> Path:
    """Where the history of one policy in one experiment is stored: ``newsvendor-sbo_kde.npz``."""
    return Path(folder) / f"{name}-{re.sub('[^a-z0-9]+', '_', policy.lower())}.npz"


def _each(thing: T | Mapping[str, T], names: Mapping[str, object]) -> dict[str, T]:
    return {name: thing[name] for name in names} if isinstance(thing, Mapping) else dict.fromkeys(names, thing)


def table_text(frame: pd.DataFrame, digits: int = 10) -> str:
    """A table and what ``frame.attrs`` says of it, as JSON of a line a row, with so many decimals."""
    parts = {"about": frame.attrs, **json.loads(frame.to_json(orient="split", double_precision=digits))}
    rows = ",\n".join(map(json.dumps, parts.pop("data")))
    head = "".join(f'"{name}": {json.dumps(part)},\n' for name, part in parts.items())
    return f'{{{head}"data": [\n{rows}\n]}}\n'


def table_of(text: str) -> pd.DataFrame:
    """The table that ``table_text`` wrote."""
    content = json.loads(text)
    about = content.pop("about")
    frame = pd.DataFrame(**content)
    frame.attrs = about
    return frame


def save_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Store a table, whole or not at all."""
    write_atomically(path, table_text(frame).encode())


def load_table(path: str | Path) -> pd.DataFrame:
    """What ``save_table`` stored."""
    return table_of(Path(path).read_text(encoding="utf-8"))


class Study(Protocol):
    """What a chapter runs by name: several policies, or a table."""

    def __call__(self, *, scale: Scale, seeds: Sequence[int] | None, folder: Path | None) -> Comparison | pd.DataFrame:
        """Run at a scale, with its seeds or others; hand ``folder`` to ``run``."""
        ...
