"""A run on many workers on paper: what a task costs the scheduler here, and what that means for a thousand.

    python book/_tools/simulate_run.py

measures on two workers what sending and receiving a task costs, checks the simulation against a run of tasks that
sleep, and stores both and the simulated runs in ``book/practice/thousand.json``.
"""

from __future__ import annotations

import heapq
import json
import pickle
import random
import time
from collections.abc import Sequence
from typing import Any

from book import registry, spread, tasks
from cbo_lib.former.history import write_atomically

STORED = tasks.ROOT / "book" / "practice" / "thousand.json"


def simulated(
    durations: Sequence[float], workers: int, *, overhead: float, startup: float = 0.0, lost: float = 0.0
) -> dict[str, float]:
    """How long a run takes whose scheduler does one thing at a time.

    Args:
        durations: seconds of each task, in the order in which they are begun.
        workers: how many, each with one task at a time.
        overhead: seconds of the scheduler for each task.
        startup: seconds of a worker before its first task (it imports).
        lost: how often a worker dies in a task, which then is begun again after another startup.

    Returns:
        ``seconds`` of the run, ``busy`` (share of the workers' time that went into tasks), and ``scheduler`` (share of
        the run in which the scheduler was at work).
    """
    chance = random.Random(0)
    free = [(startup, worker) for worker in range(workers)]
    heapq.heapify(free)
    scheduler = end = done = served = 0.0
    waiting = list(reversed(durations))
    while waiting:
        duration, (at, worker) = waiting.pop(), heapq.heappop(free)
        scheduler = max(scheduler, at) + overhead
        served += overhead
        if chance.random() < lost:  # half done, on average
            waiting.append(duration)
            heapq.heappush(free, (scheduler + duration / 2 + startup, worker))
            continue
        done += duration
        end = max(end, scheduler + duration)
        heapq.heappush(free, (scheduler + duration, worker))
    return {"seconds": end, "busy": done / (workers * end), "scheduler": served / end}


def nap(number: int, seconds: float) -> int:
    """A task that does nothing."""
    time.sleep(seconds)
    return number


def measured(count: int, seconds: float, workers: int) -> float:
    """Seconds of a run of tasks that sleep, on a cluster that is there already."""
    with spread.client_of(workers) as client:
        client.gather([client.submit(nap, i, 0.0, key=f"warm-{i}") for i in range(20)])
        start = time.perf_counter()
        client.gather([client.submit(nap, i, seconds, key=f"nap-{i}", pure=False) for i in range(count)])
        return time.perf_counter() - start


def sizes() -> dict[str, Any]:
    """Bytes of a task as it is sent; how many tasks the paper's scale has, as they are and with chunks of one seed."""
    task = tasks.plan("contexts.figure_1", "paper", parts=["newsvendor/SBO-KDE"])[0]
    counts = {"tasks": 0, "tasks of one seed": 0}
    for name in registry.TITLES:
        counts["tasks"] += len(tasks.plan(name, "paper"))
        counts["tasks of one seed"] += len(tasks.plan(name, "paper", chunk=1))
    return {"bytes": len(pickle.dumps(task)), **counts}


def main() -> None:
    """Measure, simulate and store."""
    empty = measured(400, 0.0, 2) / 400
    real, expected = measured(200, 0.05, 2), simulated([0.05] * 200, 2, overhead=empty)["seconds"]
    rows = []
    for mean in (0.1, 1.0, 5.0, 60.0):
        chance = random.Random(1)
        durations = sorted((mean * chance.lognormvariate(-0.5, 1.0) for _ in range(20_000)), reverse=True)
        for order in ("longest first", "as they come"):
            if order == "as they come":
                chance.shuffle(durations)
            found = simulated(durations, 1000, overhead=round(empty, 4), startup=20.0, lost=0.001)
            rows.append({"mean": mean, "order": order, **{k: round(v, 3) for k, v in found.items()}})
    content = {
        "about": {"command": "python book/_tools/simulate_run.py", "tasks": 20_000, "workers": 1000, "startup": 20.0},
        "seconds a task": round(empty, 5),
        "check": {
            "tasks": 200,
            "of seconds": 0.05,
            "workers": 2,
            "took": round(real, 2),
            "simulated": round(expected, 2),
        },
        "sent": sizes(),
        "rows": rows,
    }
    write_atomically(STORED, (json.dumps(content, indent=1) + "\n").encode())
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
