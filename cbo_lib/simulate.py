"""The loop that runs every experiment: ask, observe, tell, record; all replicates as one batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from cbo_lib.history import CheckpointLog, History, describe, provenance
from cbo_lib.random import ReplicateGenerators


class Problem(Protocol):
    """What may be queried and what is seen. Problems keep no state."""

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Noisy observations ``replicates`` of the queries ``replicates x ...``.

        A problem that shows more than one number gives ``replicates x k``.
        """
        ...

    def value(self, query: Tensor) -> Tensor:
        """What the queries are worth, ``replicates``, without noise."""
        ...


class Policy(Protocol):
    """What to ask next."""

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one independent replicate a generator."""
        ...

    def ask(self) -> Tensor:
        """The next query of each replicate, ``replicates x ...``."""
        ...

    def tell(self, query: Tensor, observation: Tensor) -> None:
        """Learn from the observations ``replicates``, or ``replicates x k``, of the queries."""
        ...

    def recommend(self) -> Tensor:
        """The query that each replicate would name best now, ``replicates x ...``."""
        ...

    def trace(self) -> Mapping[str, Tensor]:
        """What else of the last step is worth recording, each ``replicates x ...``."""
        ...


class ObservationError(ValueError):
    """An observation was not a finite number.

    Attributes:
        history: everything up to the step that failed.
    """

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message)
        self.history = history


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
        policy: see ``Policy``; it is started anew.
        steps: how many queries each replicate asks, nonnegative.
        seeds: one nonnegative integer a replicate.
        checkpoint: a file to which every step is appended. If it exists the run resumes where it stopped: recorded
            observations are told to the policy again, none is made again, and the result is that of an uninterrupted
            run. A kill loses at most the step under way.
        progress: whether to show a progress bar. Default: only in a terminal.
        stop: maps what a step recorded to a boolean ``replicates``, true where a replicate needs no further step. The
            run ends once that was said of every replicate; until then all go on, so that a replicate that was done
            early holds more steps than it needed. Default: ``steps`` steps are run.

    Returns:
        A ``History`` with ``query``, ``observation``, ``value`` (of the query), ``recommendation`` (after the step),
        ``recommended_value`` and the policy's trace.

    Raises:
        ValueError: if an argument is out of range, ``checkpoint`` belongs to another run, or an observation or what
            ``stop`` gives has another shape.
        ObservationError: if an observation is NaN or infinite; the history so far is its ``history``.
    """
    if steps < 0:
        raise ValueError(f"steps must be nonnegative, got {steps}")
    noise, choices = ReplicateGenerators(seeds, stream=0), ReplicateGenerators(seeds, stream=1)
    policy.start(choices.at(0))
    config = {"problem": describe(problem), "policy": describe(policy)}
    log = None
    if checkpoint is not None:
        log = CheckpointLog(checkpoint, {"config": config, "seeds": noise.seeds})
    records: list[dict[str, Tensor]] = []
    device = None
    done = torch.zeros(len(noise.seeds), dtype=torch.bool)
    shown = sys.stderr.isatty() if progress is None else progress
    for step in tqdm(range(steps), desc=type(policy).__name__, disable=not shown):
        choices.at(step + 1)
        query = policy.ask()
        device = query.device
        if log is not None and step < len(log.steps):
            recorded = {name: torch.from_numpy(array).to(device) for name, array in log.steps[step].items()}
            if not torch.equal(recorded["query"], query):
                raise ValueError(
                    f"checkpoint must belong to this run; at step {step + 1} {checkpoint} holds other queries"
                )
            policy.tell(query, recorded["observation"])
            records.append(recorded)
            done |= _done(stop, recorded, len(done))
            if bool(done.all()):
                break
            continue
        observation = problem.observe(query, noise.at(step + 1))
        if observation.dim() not in (1, 2) or len(observation) != len(noise.seeds):
            raise ValueError(
                f"observations must be one value a replicate, shape ({len(noise.seeds)},), or one row a replicate, "
                f"got {tuple(observation.shape)}"
            )
        if not bool(torch.isfinite(observation).all()):
            broken = ~torch.isfinite(observation).reshape(len(observation), -1).all(-1)
            bad = [noise.seeds[r] for r in torch.nonzero(broken).flatten().tolist()]
            raise ObservationError(
                f"observations must be finite, got a NaN or an infinity at step {step + 1} for seeds {bad}",
                _history(records, noise.seeds, config, device),
            )
        policy.tell(query, observation)
        recommendation = policy.recommend()
        record = {
            "query": query,
            "observation": observation,
            "value": problem.value(query),
            "recommendation": recommendation,
            "recommended_value": problem.value(recommendation),
        }
        trace = policy.trace()
        if taken := record.keys() & trace.keys():
            raise ValueError(f"policy.trace must not use the names {sorted(taken)}, simulate records them itself")
        record.update(trace)
        records.append(record)
        if log is not None:
            log.append(record)
        done |= _done(stop, record, len(done))
        if bool(done.all()):
            break
    return _history(records, noise.seeds, config, device)


def rounds(problem: Problem, policy: Policy, steps: int, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The steps of one replicate of ``simulate``, for whoever looks at the policy before and after it learns.

    The caller tells the policy what was seen before it asks for the next step.

    Args:
        problem: see ``Problem``.
        policy: see ``Policy``; it is started anew.
        steps: how many queries.
        seed: of the replicate.

    Yields:
        The number of the step, from 1, its query ``1 x ...`` and its observation ``1`` or ``1 x k``.
    """
    noise, choices = ReplicateGenerators([seed], stream=0), ReplicateGenerators([seed], stream=1)
    policy.start(choices.at(0))
    for step in range(1, steps + 1):
        choices.at(step)
        query = policy.ask()
        yield step, query, problem.observe(query, noise.at(step))


def _done(stop: Callable[[Mapping[str, Tensor]], Tensor] | None, record: Mapping[str, Tensor], count: int) -> Tensor:
    """Which replicates need no further step, ``count`` booleans on the CPU."""
    if stop is None:
        return torch.zeros(count, dtype=torch.bool)
    done = stop(record)
    if not isinstance(done, Tensor):
        raise ValueError(f"stop must give a tensor, one boolean a replicate, got {done!r}")
    if done.dtype != torch.bool or done.shape != (count,):
        raise ValueError(
            f"stop must give one boolean a replicate, shape ({count},), got {done.dtype} of shape {tuple(done.shape)}"
        )
    return done.cpu()


def _history(
    records: list[dict[str, Tensor]], seeds: list[int], config: dict[str, Any], device: torch.device | None
) -> History:
    names = records[0] if records else {}
    tensors = {name: torch.stack([record[name] for record in records], 1) for name in names}
    return History(tensors, seeds, config, {**provenance(), "device": str(device or "none")})
