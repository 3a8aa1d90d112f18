"""What a GPU gains: parts of a figure of each chapter with few and with many replicates, on one core and on the device.

    python book/_tools/measure_device.py [DEVICE]

stores seconds and how many replicates ended alike in ``book/practice/device.json``, with the name of the device, and
the ratio that stood there before, which says how much one machine differs from another.
``python book/_tools/measure_costs.py --pages`` puts both on the page.
"""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from book import registry, tasks
from cbo_lib.former.history import write_atomically

STORED, COMMAND = tasks.ROOT / "book" / "practice" / "device.json", "python book/_tools/measure_device.py"
COUNTS, TIMES = (30, 100, 1000), 3
#: Part and rounds by experiment.
PARTS = {
    "aggregated.figure_5": ("10", 40),
    "indirect.figure_1": ("fixed/cosine/300/0.24/sd/exact", 10),
    "contexts.figure_1": ("branin/SBO-KDE", 16),
    "subsets.figure_1": ("hartmann-cheap-0.02/UCB-PSQ", 6),
    "hyperparameters.figure_2": ("period/HE-GP-UCB", 40),
}


def measured(name: str, count: int, device: str) -> tuple[float, dict[str, list[float]]]:
    """Seconds on the clock of a part whose replicates are one batch, and its measures, one number a replicate each.

    The median of ``TIMES`` runs.
    """
    from book.device import on_device
    from book.outputs import scores

    part, steps = PARTS[name]
    with on_device(device):  # before the chapter is imported
        experiment = registry.load(name)
    plan = tasks.plan(name, "reader", seeds=range(count), chunk=count, steps=steps, device=device, parts=[part])
    (task,) = plan
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        tasks.perform(replace(task, seeds=(0, 1), steps=2), folder)  # the first use of the device takes long
        for _ in range(TIMES):
            (Path(folder) / task.file).unlink(missing_ok=True)
            start = time.perf_counter()
            tasks.perform(task, folder)  # over when the result is in a file, so the device has done its work
            seconds.append(time.perf_counter() - start)
        result, _ = tasks.unpack((Path(folder) / task.file).read_bytes())
    return statistics.median(seconds), scores(experiment, {part: result}, plan)[part]["measures"]


def alike(here: Mapping[str, Sequence[float]], there: Mapping[str, Sequence[float]]) -> float:
    """The share of replicates all of whose measures are the same to a millionth."""
    same = [np.isclose(values, there[key], rtol=1e-6, atol=1e-6, equal_nan=True) for key, values in here.items()]
    return float(np.all(same, axis=0).mean())


def rows_of(device: str) -> list[dict[str, Any]]:
    """Both times of all parts, each place in a process of its own: constants of a chapter lie where it was imported."""
    spawn, rows = multiprocessing.get_context("spawn"), []
    with ProcessPoolExecutor(1, spawn) as core, ProcessPoolExecutor(1, spawn) as there:
        for name, (part, steps) in PARTS.items():
            for count in COUNTS:
                seconds, here = core.submit(measured, name, count, "cpu").result()
                faster, found = there.submit(measured, name, count, device).result()
                row = {"experiment": name, "part": part, "rounds": steps, "replicates": count}
                times = {"one core": round(seconds, 3), "device": round(faster, 3)}
                rows.append({**row, **times, "alike": alike(here, found)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure and store."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    about = {"device": torch.cuda.get_device_name(device), "torch": importlib.metadata.version("torch")}
    key = "experiment", "part", "rounds", "replicates"
    before = {tuple(row[k] for k in key): row for row in json.loads(STORED.read_text("utf-8"))["rows"]}
    rows = rows_of(device)
    for row in rows:
        if old := before.get(tuple(row[k] for k in key)):
            row["ratio before"] = round(old["one core"] / old["device"], 2)
    content = {"about": {**about, "command": COMMAND}, "rows": rows}
    write_atomically(STORED, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
