"""How experiments are run: tasks that each leave a file, who does them, and what is made of their files.

A task is a part of an experiment with a few seeds. It has no objects in it: any process with the same code builds
problem and policy from its names. All that numbers depend on is in the name of its file, and a task whose file is there
is not done again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import platform
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from book import files, registry
from book.device import on_device

tqdm.set_lock(threading.RLock())  # the default is a semaphore of the system, which a worker that ends early would leave
ROOT = Path(__file__).resolve().parents[1]
#: Files of the book that no number depends on.
_APART = {"__main__.py", "registry.py", "checks.py", "figures.py", "frames.py", "looks.py", "steppers.py"}


@dataclass(frozen=True)
class Task:
    """A part of an experiment with the seeds that run as one batch; ``code`` is ``code_of`` its chapter."""

    experiment: str
    part: str
    seeds: tuple[int, ...]
    scale: registry.Scale
    steps: int | None
    device: str
    code: str

    def path(self, root: Path) -> Path:
        """Its file in the folder of a run: readable words first, then what tells it from all other tasks."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        words = re.sub(r"[^a-z0-9.]+", "_", self.part.lower()).strip("_")[:60]
        return root / self.experiment / "tasks" / f"{words}-{self.seeds[0]}-{self.seeds[-1]}-{digest}.pickle"


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on."""
    packages = ("torch", "numpy", "pandas", "scipy", "gpytorch", "botorch")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


@cache
def code_of(chapter: str) -> str:
    """A checksum of all code that numbers of a chapter depend on, and of the versions below it."""
    code = [*(ROOT / "cbo_lib").rglob("*.py"), *(ROOT / "book" / chapter).glob("*.py")]
    code += [file for file in (ROOT / "book").glob("*.py") if file.name not in _APART]
    digest = hashlib.sha256(repr(versions()).encode())
    for file in sorted(code):
        digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def plan(
    name: str, parts: Sequence[str], seeds: Sequence[int] | None, scale: registry.Scale, steps: int | None, device: str
) -> list[Task]:
    """The tasks of some parts of an experiment; without seeds those of the scale."""
    experiment, code, tasks = registry.load(name), code_of(name.partition(".")[0]), []
    for part in parts:
        own = tuple(experiment.seeds(part, scale) if seeds is None else seeds)
        size = experiment.chunk or len(own)
        chunks = [own[first : first + size] for first in range(0, len(own), size)]
        tasks += [Task(name, part, chunk, scale, steps, device, code) for chunk in chunks]
    return tasks


def perform(task: Task, root: Path) -> None:
    """Do a task in one thread, from a global seed of its own, and store its result and its CPU time."""
    torch.set_num_threads(1)
    dtype = torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]), on_device(task.device):
            experiment = registry.load(task.experiment)
            torch.set_default_dtype(torch.float64 if experiment.float64 else torch.float32)
            torch.manual_seed(0)
            start = time.process_time()
            result = experiment.work(task.part, task.seeds, task.scale, task.steps)
            seconds = time.process_time() - start
    finally:
        torch.set_default_dtype(dtype)
    files.write_atomically(task.path(root), pickle.dumps((result, seconds)))


def perform_all(tasks: Sequence[Task], root: Path, workers: int | None = 0) -> None:
    """Do the tasks that have no file yet, with a bar in a terminal.

    Args:
        tasks: what to do.
        root: the folder of the run.
        workers: processes; 0 this one, None as many as there are cores.
    """
    left = [task for task in tasks if not task.path(root).exists()]
    with tqdm(total=len(tasks), initial=len(tasks) - len(left), unit="task", disable=None) as bar:
        if workers == 0 or not left:
            for task in left:
                perform(task, root)
                bar.update()
            return
        # Ctrl-C in a terminal reaches the workers too: they end without a word.
        silent = signal.signal, (signal.SIGINT, signal.SIG_DFL)
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), *silent) as pool:
            try:
                for future in as_completed([pool.submit(perform, task, root) for task in left]):
                    future.result()
                    bar.update()
            except BaseException:  # do not wait for tasks that are under way, which may take hours
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def joined(tasks: Sequence[Task], results: Sequence[Any]) -> Any:
    """The results of tasks as one table, or as arrays ``part/name`` with a row a seed."""
    if isinstance(results[0], pd.DataFrame):
        return pd.concat(results, ignore_index=True)
    pieces: dict[str, list[Any]] = {}
    for task, result in zip(tasks, results, strict=True):
        for key, array in result.items():
            pieces.setdefault(f"{task.part}/{key}", []).append(array)
    return {key: np.concatenate(arrays) for key, arrays in pieces.items()}


def finish(name: str, tasks: Sequence[Task], root: Path, command: str) -> None:
    """Make an experiment's results, its figure and ``about.json`` from its tasks, in place of those of an older run."""
    experiment, folder, first = registry.load(name), root / name, tasks[0]
    results, seconds = zip(*(pickle.loads(task.path(root).read_bytes()) for task in tasks), strict=True)
    parts = list(dict.fromkeys(task.part for task in tasks))
    for old in [folder / "about.json", *folder.glob("figure.*")]:
        old.unlink(missing_ok=True)
    content, file = joined(tasks, results), folder / "results" / experiment.file
    if isinstance(content, pd.DataFrame):
        content.attrs = {"command": command}
        files.save_table(content, file)
    else:
        files.save_arrays(content, file)
    if experiment.draw is not None and experiment.whole and len(parts) < len(experiment.parts()):
        print(f"{name}: the figure needs all parts and is left out")
    elif experiment.draw is not None:
        figure = experiment.draw(content)
        figure.savefig(folder / "figure.svg", metadata={"Date": None})
        figure.savefig(folder / "figure.png", dpi=110)
    status, revision = subprocess.getstatusoutput(f"git -C {shlex.quote(str(ROOT))} rev-parse HEAD")
    about = {
        "title": registry.TITLES[name][0],
        "command": command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": None if status else revision,
        "versions": versions(),
        "platform": platform.platform(),
        **{key: value for key, value in asdict(first).items() if key not in ("part", "seeds")},
        "seeds": {part: [seed for task in tasks if task.part == part for seed in task.seeds] for part in parts},
        "seconds": round(sum(seconds), 3),
    }
    files.write_atomically(folder / "about.json", (json.dumps(about, indent=1) + "\n").encode())
    print(f"{folder}: {len(tasks)} tasks, {about['seconds']:.1f} s of work")


def publish(name: str, root: Path) -> None:
    """Put the results of a run where the pages read them; arrays of parts that were not run stay there."""
    file = registry.load(name).file
    made, read = root / name / "results" / file, ROOT / "book" / name.partition(".")[0] / "results" / file
    if file.endswith(".npz") and read.exists():
        files.save_arrays({**files.load_arrays(read), **files.load_arrays(made)}, read)
    else:
        files.write_atomically(read, made.read_bytes())
    print(f"    {read}")
