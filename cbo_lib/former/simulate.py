"""The loop that runs every experiment: ask, observe, tell, record; all replicates as one batch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from cbo_lib.checks import as_count, as_tensor, require
from cbo_lib.former.history import CheckpointLog, History, describe, provenance
from cbo_lib.former.policy import Policy
from cbo_lib.random import ReplicateGenerators


class Problem(Protocol):
    """What may be queried and what is seen. Problems keep no state."""

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor | Mapping[str, Tensor]:
        """Noisy observations ``replicates`` of the queries ``replicates x ...``.

        A problem that shows more gives a mapping: ``y``, and what else ``Policy.tell`` takes, each
        ``replicates x ...``. ``played`` is told as the query, where it is not the query that was asked.
        """

    def value(self, query: Tensor) -> Tensor:
        """What the queries are worth, ``replicates``, without noise."""


class ObservationError(ValueError):
    """An observation was not a finite number; ``history`` is everything before."""

    history: History


@torch.no_grad()
def simulate(
    problem: Problem,
    policy: Policy,
    steps: int,
    seeds: Sequence[int],
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
) -> History:
    """Run a policy on a problem, one replicate a seed, all replicates as one batch.

    Replicate ``r`` depends on ``seeds[r]`` alone, not on the other replicates.

    Args:
        problem: see ``Problem``.
        policy: it is started anew, with ``seeds``.
        steps: how many queries each replicate asks, nonnegative.
        seeds: one nonnegative integer a replicate.
        checkpoint: a file to which every step is appended. If it exists the run resumes where it stopped: recorded
            observations are told to the policy again, none is made again, and the result is that of an uninterrupted
            run. A kill loses at most the step under way. The file is locked. That of another run is refused, if that
            shows in queries or in ``describe``, which sees no name with an underscore and no slots.
        progress: whether to show a progress bar. Default: only in a terminal.
        stop: maps what a step recorded to a boolean ``replicates``, true where a replicate needs no further step. The
            run ends once that was said of every replicate; until then all go on, so that a replicate that was done
            early holds more steps than it needed. Default: ``steps`` steps are run.

    Returns:
        A ``History`` with ``query``, ``observation`` (the ``y`` of the problem) and what else it showed, ``value`` (of
        the query), ``recommendation`` (after the step), ``recommended_value`` and the policy's trace.

    Raises:
        ValueError: if an argument is out of range, the policy was built for another list, ``checkpoint`` belongs to
            another run, is in use or damaged, or an observation or what ``stop`` gives has another shape.
        ObservationError: if an observation is NaN or infinite.

    Whatever is raised once the run has begun, by the problem, the policy, the disk or Ctrl-C, carries the history so
    far: ``except BaseException as error: history = error.history``, or later ``sys.last_value.history``.
    """
    as_count("steps", steps)
    require(isinstance(policy, Policy), "policy must be an instance of Policy", repr(policy))
    if (listed := policy.listed) is not None:
        own, wanted = (describe(getattr(x, listed)) for x in (policy.space, getattr(problem, "space", policy.space)))
        require(own == wanted, f"policy must be built for the {listed} of the problem, in its order", "others")
    noise = ReplicateGenerators(seeds, stream=0)
    policy.start(noise.seeds)
    config = {"problem": describe(problem), "policy": {"class": type(policy).__name__, **describe(policy.settings)}}
    log = None if checkpoint is None else CheckpointLog(checkpoint, {"config": config, "seeds": noise.seeds})
    records: list[dict[str, Tensor]] = []
    done = torch.zeros(len(noise.seeds), dtype=torch.bool)
    shown = sys.stderr.isatty() if progress is None else progress
    try:
        for step in tqdm(range(steps), desc=type(policy).__name__, disable=not shown):
            query = policy.ask()
            if log is not None and step < len(log.steps):
                record = {name: torch.from_numpy(array).to(query.device) for name, array in log.steps[step].items()}
                wanted = f"checkpoint must belong to this run at step {step + 1}"
                require(torch.equal(record["query"], query), wanted, f"other queries in {checkpoint}")
                _tell(policy, query, {**record, "y": record["observation"]})
            else:
                record = _step(problem, policy, query, noise, records)
            records.append(record)
            if log is not None and step >= len(log.steps):
                log.append(record)
            done |= _done(stop, record, len(done))
            if bool(done.all()):
                break
    except BaseException as error:  # Ctrl-C too
        notes = [*getattr(error, "__notes__", ()), f"The {len(records)} steps before this are error.history."]
        vars(error).update(history=_history(records, noise.seeds, config), __notes__=notes)
        raise
    finally:
        if log is not None:
            log.close()
    return _history(records, noise.seeds, config)


def _step(problem: Problem, policy: Policy, query: Tensor, noise: ReplicateGenerators, past: list[Any]) -> Any:
    """Observe and tell; what there is to record."""
    count, step = len(noise.seeds), len(past) + 1
    seen = observed(problem.observe(query, noise.at(step)), count)
    if not all(bool(torch.isfinite(part).all()) for part in seen.values()):
        wrong = ~torch.isfinite(torch.cat([part.reshape(count, -1) for part in seen.values()], -1)).all(-1)
        bad = [noise.seeds[r] for r in torch.nonzero(wrong).flatten().tolist()]
        raise ObservationError(f"observations must be finite, got a NaN or an infinity at step {step} for seeds {bad}")
    _tell(policy, query, seen)
    best = policy.recommend()
    same = past and torch.equal(past[-1]["recommendation"], best)
    record = {
        "query": query,
        "observation": seen.pop("y"),
        "value": observed(problem.value(query), count, "values")["y"],
        "recommendation": best,
        "recommended_value": past[-1]["recommended_value"] if same else observed(problem.value(best), count)["y"],
    }
    trace = policy.trace()
    if taken := (record.keys() & seen.keys()) | ({**record, **seen}.keys() & trace.keys()):
        raise ValueError(f"the problem and policy.trace must not use the names {sorted(taken)}, simulate does itself")
    return {**record, **seen, **trace}


def observed(seen: Any, count: int, name: str = "observations") -> dict[str, Tensor]:
    """What a problem showed, by name."""
    named = seen if isinstance(seen, Mapping) else {"y": seen}
    parts = {key: as_tensor(key, part, keep=True) for key, part in named.items()}
    found = tuple(parts["y"].shape) if "y" in parts else f"the names {sorted(parts)}"
    require(found == (count,), f"{name} must be one value a replicate, y of shape ({count},)", found)
    for key, part in parts.items():
        require(part.shape[:1] == (count,), f"{name} must hold one row a replicate", f"{key} {tuple(part.shape)}")
    return parts


def _tell(policy: Policy, query: Tensor, seen: Mapping[str, Tensor]) -> None:
    """Tell what the policy wants to know of what was seen."""
    wanted = {name: seen[name] for name in policy.sees if name in seen}
    policy.tell(seen.get("played", query), seen["y"], **wanted)


def _done(stop: Callable[[Mapping[str, Tensor]], Tensor] | None, record: Mapping[str, Tensor], count: int) -> Tensor:
    """Which replicates need no further step, ``count`` booleans on the CPU."""
    if stop is None:
        return torch.zeros(count, dtype=torch.bool)
    done = stop(record)
    found = f"{done.dtype} of shape {tuple(done.shape)}" if isinstance(done, Tensor) else repr(done)
    expected = f"stop must give a tensor, one boolean a replicate, shape ({count},)"
    require(found == f"{torch.bool} of shape {(count,)}", expected, found)
    return done.cpu()


def _history(records: list[dict[str, Tensor]], seeds: list[int], config: dict[str, Any]) -> History:
    names = records[0] if records else {}
    tensors = {name: torch.stack([record[name] for record in records], 1) for name in names}
    device = str(tensors["query"].device) if tensors else "none"
    return History(tensors, seeds, config, {**provenance(), "device": device})
