"""What is done at a time: a part of an experiment with a few seeds, known by its name alone.

A task has no objects in it, so that any process can do it that has the same code: ``perform`` builds problem and policy
from the name, and writes one ``.npz`` under a name made of the task. A task whose file is there is done. All that
numbers depend on is in the name: seeds that run as one batch, the device, the code and the versions of the packages.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from book import registry
from book.registry import Scale

ROOT = Path(__file__).resolve().parents[1]
#: Files of the book that no number depends on.
_APART = {"__main__.py", "registry.py", "spread.py", "outputs.py", "checks.py"}
_APART |= {"figures.py", "frames.py", "looks.py", "steppers.py"}


@dataclass(frozen=True)
class Task:
    """A part of an experiment.

    Args:
        experiment: a name of ``registry.TITLES``.
        part: one of its parts.
        seeds: which run as one batch.
        scale: ``"reader"`` or ``"paper"``.
        steps: most rounds; None as many as the scale has.
        device: where tensors lie.
        code: ``code_of`` the chapter.
    """

    experiment: str
    part: str
    seeds: tuple[int, ...]
    scale: Scale
    steps: int | None
    device: str
    code: str

    @property
    def file(self) -> str:
        """The name of its file: readable first, then what tells it from all others."""
        text = json.dumps(asdict(self), sort_keys=True)
        seeds = f"{self.seeds[0]}-{self.seeds[-1]}"
        readable = re.sub(r"[^a-z0-9.]+", "_", self.part.lower()).strip("_")[:60]
        return f"{readable}-{seeds}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npz"


@cache
def code_of(chapter: str) -> str:
    """A checksum of all code that numbers of a chapter depend on, and of the versions below it."""
    files = [*(ROOT / "cbo_lib").rglob("*.py"), *(ROOT / "book" / chapter).glob("*.py")]
    files += [file for file in (ROOT / "book").glob("*.py") if file.name not in _APART]
    digest = hashlib.sha256(platform.python_version().encode())
    for file in sorted(files):
        digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    for package in ("torch", "numpy", "scipy", "gpytorch", "botorch"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:12]


def plan(
    name: str,
    scale: Scale,
    *,
    seeds: Sequence[int] | None = None,
    chunk: int | None = None,
    steps: int | None = None,
    device: str = "cpu",
    parts: Sequence[str] | None = None,
) -> list[Task]:
    """The tasks of an experiment, the same whoever does them.

    Args:
        name: of the experiment.
        scale: ``"reader"`` or ``"paper"``.
        seeds: others than those of the scale.
        chunk: seeds a task, where the experiment can be cut; default its own.
        steps: most rounds.
        device: where tensors lie.
        parts: which; default all.

    Raises:
        ValueError: for seeds that the experiment cannot have.
    """
    experiment, code, tasks = registry.load(name), code_of(name.partition(".")[0]), []
    if experiment.counted and seeds is not None and list(seeds) != list(range(len(seeds))):
        raise ValueError(f"--seeds must be 0:n in {name}, which only counts them, got {list(seeds)}")
    for part in experiment.parts() if parts is None else parts:
        own = tuple(experiment.seeds(part, scale) if seeds is None else seeds)
        size = len(own) if experiment.chunk is None else (chunk or experiment.chunk)
        for first in range(0, len(own), size):
            tasks.append(Task(name, part, own[first : first + size], scale, steps, device, code))
    return tasks


def perform(task: Task, folder: str) -> dict[str, Any]:
    """Do a task unless its file is in the folder; gives the file's name, what it took and who did it.

    Raises:
        ValueError: if this process has other code than the one that named the task.
    """
    if task.code != code_of(task.experiment.partition(".")[0]):
        raise ValueError(f"code must be that of the client in {task.experiment}, {socket.gethostname()} has other code")
    from book.files import write_atomically

    target = Path(folder) / task.file
    done = {"file": task.file, "seconds": 0.0, "by": f"{socket.gethostname()}:{os.getpid()}"}
    if target.exists():
        return done
    start = time.process_time()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _surroundings(task, registry.load(task.experiment)) as experiment:
        result = experiment.work(task.part, task.seeds, task.scale, task.steps)
        seconds = time.process_time() - start
        try:
            write_atomically(target, pack(result, {"task": asdict(task), "seconds": round(seconds, 3)}))
        except FileNotFoundError:
            if not target.exists():  # done by another process, which removed what was half written
                raise
    return {**done, "seconds": seconds}


@contextmanager
def _surroundings(task: Task, experiment: registry.Experiment) -> Iterator[registry.Experiment]:
    """One thread, a dtype, a device and a global seed of its own, and afterwards what was there before."""
    import torch

    from book.device import on_device

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if experiment.float64 else torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), on_device(task.device):
            torch.manual_seed(0)
            yield experiment
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def pack(result: Any, about: Mapping[str, Any]) -> bytes:
    """A table or arrays as the content of one ``.npz``."""
    import numpy as np
    import pandas as pd

    from book.files import pack_arrays, table_text

    arrays: dict[str, Any]
    if isinstance(result, pd.DataFrame):
        kind, arrays = "table", {"table": np.array(table_text(result, digits=15))}
    else:
        kind, arrays = "arrays", dict(result)
    return pack_arrays({"about": np.array(json.dumps({**about, "kind": kind})), **arrays})


def unpack(content: bytes) -> tuple[Any, dict[str, Any]]:
    """The result, and what is said of it."""
    from book.files import table_of, unpack_arrays

    arrays = unpack_arrays(content)
    about = json.loads(str(arrays.pop("about")))
    if about["kind"] == "table":
        return table_of(str(arrays["table"])), about
    return arrays, about
