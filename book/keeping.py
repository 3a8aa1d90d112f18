"""A task that is stopped in the middle goes on where it was a minute before.

``simulate`` with a checkpoint makes no observation twice, but the policy thinks about every step again. So here the
policy is written to a file now and then; a run that is resumed gives it back its old questions up to there, and what it
had learned by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from cbo_lib.former.data import load_object, save_object
from cbo_lib.former.history import History
from cbo_lib.former.policy import Policy
from cbo_lib.former.simulate import Problem, simulate

#: Seconds between two writings of a policy.
EVERY = 60.0


@dataclass
class UnderWay:
    """What is kept of a task until it is done.

    Args:
        folder: where.
        name: how the names of its files begin.

    Attributes:
        runs: how many runs it has begun.
        earlier: CPU seconds that went, before it was stopped, into what it need not do again.
    """

    folder: Path
    name: str
    runs: int = 0
    earlier: float = 0.0

    def file(self, kind: str) -> Path:
        """A file of the run under way."""
        return self.folder / f".{self.name}-{self.runs}.{kind}"

    def forget(self) -> None:
        """Remove what was kept; a process that is writing the same then finds its file gone."""
        own = self.folder.glob(f".{self.name}-*")
        half_written = self.folder.glob(f".*{self.name}*.partial")  # by a process that was killed
        for path in (*own, *half_written):
            path.unlink(missing_ok=True)


_under_way: ContextVar[UnderWay | None] = ContextVar("under_way", default=None)


@contextmanager
def kept(path: Path) -> Iterator[UnderWay]:
    """Inside, ``run`` keeps what it does, in hidden files beside a path and of its name."""
    token = _under_way.set(under := UnderWay(path.parent, path.name))
    try:
        yield under
    finally:
        _under_way.reset(token)


def run(
    problem: Problem,
    policy: Policy,
    steps: int,
    seeds: Sequence[int],
    stop: Callable[[Mapping[str, Tensor]], Tensor] | None,
) -> History:
    """``simulate``; in a task it begins where it was stopped."""
    under = _under_way.get()
    if under is None or policy.space.like.device.type != "cpu":  # a policy is loaded onto the CPU
        return simulate(problem, policy, steps, seeds, stop=stop)
    under.runs += 1
    earlier = under.earlier
    try:
        with _written(policy, under):
            return simulate(problem, policy, steps, seeds, checkpoint=under.file("log"), stop=stop)
    except ValueError as error:
        if "checkpoint must have one writer" not in str(error):
            raise
    under.earlier = earlier
    return simulate(problem, policy, steps, seeds, stop=stop)  # another process does the same task


@contextmanager
def _written(policy: Policy, under: UnderWay) -> Iterator[None]:
    """Inside, a policy writes itself to a file, and once it is started it goes on from there."""
    kind: Any = type(policy)
    file = under.file("policy")
    asked: list[Tensor] = []
    told, later = 0, None  # what the file has, until all is told that it knows
    begun, earlier, last = time.process_time(), 0.0, time.monotonic()

    class Written(kind):
        def start(self, seeds: Sequence[int]) -> None:
            nonlocal later, earlier
            super().start(seeds)
            if not (file.exists() and under.file("log").exists()):
                return
            with suppress(ValueError):  # damaged: it thinks again
                kept = load_object(file, dict, self._own())
                later, earlier = kept["policy"], kept["seconds"]
                asked.extend(kept["asked"])
                under.earlier += earlier

        def ask(self) -> Any:
            if later is None and len(asked) == told:
                asked.append(super().ask())
            return asked[told].clone()

        def tell(self, query: Any, y: Any, **seen: Any) -> None:
            nonlocal told, later
            told += 1
            if later is None:
                super().tell(query, y, **seen)
                self._write()
            elif told == later["count"]:
                self.__dict__.update(later)
                later = None

        def _own(self) -> list[object]:
            """What does not change, and who makes the policy anew has too: its space, and functions of its own."""
            parts = [getattr(self.space, part.name) for part in fields(self.space)]
            return [self.space, *parts, *filter(callable, self.settings.values())]

        def _write(self) -> None:
            nonlocal last
            if time.monotonic() < last + EVERY:
                return
            seconds = earlier + time.process_time() - begun
            try:
                save_object(file, {"policy": {**vars(self)}, "asked": asked, "seconds": seconds}, self._own())
                last = time.monotonic()
            except (ValueError, FileNotFoundError):  # it holds what can't be stored, or another has done the task
                last = inf

    Written.__name__ = kind.__name__
    policy.__class__ = Written
    try:
        yield
    finally:
        policy.__class__ = kind
