"""The loop that runs every experiment: ask, observe, tell, record; all replicates as one batch."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from cbo_lib.checks import as_count, require
from cbo_lib.random import ReplicateGenerators


class Problem(Protocol):
    """What may be queried and what is seen. Problems keep no state."""

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor | Mapping[str, Tensor]:
        """Noisy observations ``replicates`` of the queries ``replicates x ...``.

        A problem that shows more gives a mapping: ``y``, and what else the policy ``sees``, each ``replicates x ...``.
        ``played`` is told as the query, where it is not the query that was asked.
        """

    def value(self, query: Tensor) -> Tensor:
        """What the queries are worth, ``replicates``, without noise.

        Where a recommendation is of another kind than a query, a method ``worth`` says what that is worth.
        """


@dataclass(frozen=True, eq=False)
class History:
    """Named tensors of a simulation, ``replicates x rounds x ...`` each, and the seeds that made them."""

    tensors: Mapping[str, Tensor]
    seeds: Sequence[int]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name, ``replicates x rounds x ...``."""
        require(name in self.tensors, f"name must be one of {', '.join(sorted(self.tensors))}", repr(name))
        return self.tensors[name]

    def save(self, path: str | Path) -> None:
        """Write to a compressed ``.npz`` file."""
        arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in self.tensors.items()}
        np.savez_compressed(path, **arrays, __seeds__=np.array(json.dumps([*self.seeds])))

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read what ``save`` wrote; a ``ValueError`` if the file is another."""
        with np.load(path, allow_pickle=False) as archive:
            require("__seeds__" in archive, "path must name a file that History.save wrote", path)
            tensors = {name: torch.from_numpy(archive[name]) for name in archive.files if name != "__seeds__"}
            return cls(tensors, json.loads(str(archive["__seeds__"])))

    def to_frame(self) -> pd.DataFrame:
        """One row a replicate and round; tensors of more dimensions become columns ``name[i,j]``."""
        rounds = next(iter(self.tensors.values())).shape[1]
        columns: dict[str, Any] = {"seed": np.repeat(self.seeds, rounds)}
        columns["round"] = np.tile(np.arange(1, rounds + 1), len(self.seeds))
        for name, tensor in self.tensors.items():
            flat = tensor.cpu().numpy().reshape(len(columns["seed"]), *tensor.shape[2:])
            for at in np.ndindex(flat.shape[1:]):
                columns[f"{name}[{','.join(map(str, at))}]" if at else name] = flat[(slice(None), *at)]
        return pd.DataFrame(columns)


@torch.no_grad()
def simulate(
    problem: Problem,
    policy: Any,
    rounds: int,
    seeds: Sequence[int],
    watch: Callable[[Any], Mapping[str, Tensor]] | None = None,
    progress: bool | None = None,
    stop: Callable[[Any], bool] | None = None,
) -> History:
    """Run a policy on a problem, one replicate a seed, all replicates as one batch.

    Replicate ``r`` depends on ``seeds[r]`` alone, not on the other replicates.

    Args:
        problem: see ``Problem``.
        policy: a single run, of whose settings a batch with these seeds is made; it is left as it is.
        rounds: how many queries each replicate asks.
        seeds: one nonnegative integer a replicate.
        watch: what else to record: a function of the batch, called after each ``tell``, that gives named tensors
            ``replicates x ...``.
        progress: whether to show a progress bar. Default: only in a terminal.
        stop: whether the runs end before, a function of the batch, called after each ``tell``. Default: never.

    Returns:
        A ``History`` with ``query``, ``observation`` (the ``y`` of the problem) and what else it showed, ``value`` (of
        the query), ``recommendation`` (after the round), ``recommended_value`` and what ``watch`` gave.

    Raises:
        ValueError: if an observation is not finite.

    Whatever is raised once the run has begun, Ctrl-C too, carries what was recorded until then as ``error.history``.
    """
    as_count("rounds", rounds)
    noise = ReplicateGenerators(seeds, stream=0)
    batch, worth = policy.start(noise.seeds), getattr(problem, "worth", problem.value)
    records: list[dict[str, Tensor]] = []
    try:
        hidden = not (sys.stderr.isatty() if progress is None else progress)
        for t in tqdm(range(1, rounds + 1), desc=type(batch).__name__, disable=hidden):
            query = batch.ask()
            shown = problem.observe(query, noise.at(t))
            seen = dict(shown) if isinstance(shown, Mapping) else {"y": shown}
            for name, part in seen.items():
                require(torch.isfinite(part), f"observations must be finite, {name} in round {t}", part)
            batch.tell(
                seen.get("played", query), seen["y"], **{name: seen[name] for name in batch.sees if name in seen}
            )
            best = batch.recommend()
            record = {"query": query, "observation": seen.pop("y"), "value": problem.value(query), **seen}
            record |= {"recommendation": best, "recommended_value": worth(best)}
            records.append(record | dict(watch(batch) if watch is not None else {}))
            if stop is not None and stop(batch):
                break
    except BaseException as error:
        vars(error)["history"] = _history(records, noise.seeds)
        raise
    return _history(records, noise.seeds)


def _history(records: list[dict[str, Tensor]], seeds: list[int]) -> History:
    names = records[0] if records else {}
    return History({name: torch.stack([record[name] for record in records], 1) for name in names}, seeds)
