"""What the paper's scale costs: times a share of every experiment in one process, and says how large the share was.

    python book/_tools/measure_costs.py [NAME ...]
    python book/_tools/measure_costs.py --pages

The first adds to ``book/practice/costs.json``. A part is timed whole, or for a tenth of its rounds where it takes
long (see ``TENTH``); parts are taken from all over an experiment until the time is over. CPU seconds of one thread, so
that other programs of a busy machine do not count. The second writes the tables of the page and of the README.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from book import registry, tasks
from cbo_lib.history import write_atomically

COSTS = tasks.ROOT / "book" / "practice" / "costs.json"
#: CPU seconds after which no further part of an experiment is begun, and after which one is broken off.
ENOUGH, LIMIT = float(os.environ.get("ENOUGH", 15)), float(os.environ.get("LIMIT", 30))
#: A tenth of the rounds of those whose parts take long: 350 evaluations; a budget that pays for some hundred plays.
TENTH = {"contexts.figure_1": 35, "contexts.figure_2": 35, "contexts.slips": 35, "contexts.map": 10}
TENTH |= {"subsets.figure_1": 30, "subsets.figure_2": 30, "subsets.map": 30, "subsets.walk": 10}


class _TooLongError(Exception):
    pass


def _stop(*_: object) -> None:
    raise _TooLongError


def timed(task: tasks.Task) -> float | None:
    """CPU seconds of a task, none if it was broken off."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            tasks.perform(task, folder)
        except _TooLongError:
            return None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return time.process_time() - start


def spread_out(parts: list[str]) -> list[str]:
    """One part of each kind (what stands after the last ``/``), then more, from all over the list."""
    kinds = defaultdict(list)
    for part in parts:
        kinds[part.rpartition("/")[2]].append(part)
    order = sorted(kinds.values(), key=len)
    return [group[0] for group in order] + [part for group in order for part in group[1:][:: max(1, len(group) // 3)]]


def measure(name: str) -> dict[str, Any]:
    """Times parts of an experiment and says what all of it would take."""
    parts = list(registry.load(name).parts())
    steps, spent, seconds, long = TENTH.get(name), 0.0, {}, []
    for part in spread_out(parts):
        if spent > ENOUGH:
            break
        work = tasks.plan(name, "paper", parts=[part], steps=steps)
        own = timed(work[0])
        if own is None:
            long.append(part)
            spent += LIMIT
        else:
            seconds[part] = own * len(work)  # chunks of seeds are alike
            spent += own
    factor = 10 if steps else 1
    kinds = defaultdict(list)
    for part, value in seconds.items():
        kinds[part.rpartition("/")[2]].append(value * factor)
    known = [value for values in kinds.values() for value in values]
    mean = sum(known) / len(known) if known else LIMIT * factor
    least = {part.rpartition("/")[2] for part in long}
    whole = 0.0
    for part in parts:
        kind = part.rpartition("/")[2]
        own = kinds.get(kind)
        whole += sum(own) / len(own) if own else LIMIT * factor if kind in least else mean
    return {
        "experiment": name,
        "parts": len(parts),
        "tasks": len(tasks.plan(name, "paper")),
        "parts timed": len(seconds),
        "of their rounds": 0.1 if steps else 1.0,
        "seconds timed": round(spent, 1),
        "broken off": len(long),
        "limit, seconds": LIMIT,
        "estimate, seconds": round(whole, 1),
    }


def in_words(seconds: float) -> str:
    """Two digits, in the unit that suits: ``45 s``, ``12 min``, ``3.4 h``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"


def page_table() -> str:
    """The costs as a table, one row an experiment."""
    rows = json.loads(COSTS.read_text("utf-8"))["rows"]
    lines = ["| Experiment | Parts | Timed | Of their rounds | Broken off | CPU time, measured | CPU time, estimate |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [f"`{row['experiment']}`", row["parts"], row["parts timed"], f"{row['of their rounds']:.0%}"]
        least = "more than " if row["broken off"] else ""
        cells += [row["broken off"], in_words(row["seconds timed"]), least + in_words(row["estimate, seconds"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    missing = [name for name in registry.TITLES if name not in {row["experiment"] for row in rows}]
    if missing:
        lines += ["", "Not timed: " + ", ".join(f"`{name}`" for name in missing) + "."]
    return "\n".join(lines)


def readme_table() -> str:
    """The costs by chapter."""
    rows = json.loads(COSTS.read_text("utf-8"))["rows"]
    lines = ["| Chapter | Experiments timed | CPU time at the paper's scale, estimate |", "|---|---|---|"]
    for chapter in dict.fromkeys(row["experiment"].partition(".")[0] for row in rows):
        own = [row for row in rows if row["experiment"].startswith(f"{chapter}.")]
        all_of_it = sum(name.startswith(f"{chapter}.") for name in registry.TITLES)
        least = "more than " if any(row["broken off"] for row in own) else ""
        whole = in_words(sum(row["estimate, seconds"] for row in own))
        lines.append(f"| {chapter} | {len(own)} of {all_of_it} | {least}{whole} |")
    return "\n".join(lines)


def thousand_table() -> str:
    """The simulated runs."""
    rows = json.loads(COSTS.with_name("thousand.json").read_text("utf-8"))["rows"]
    lines = ["| Seconds a task, mean | Order | The run takes | Busy | The scheduler works |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [f"{row['mean']:g}", row["order"], in_words(row["seconds"])]
        lines.append("| " + " | ".join([*cells, f"{row['busy']:.0%}", f"{row['scheduler']:.0%}"]) + " |")
    return "\n".join(lines)


def with_tables() -> dict[Path, str]:
    """The pages, their tables made anew between their marks."""
    page, readme = tasks.ROOT / "book" / "practice" / "long_runs.md", tasks.ROOT / "README.md"
    texts = {path: path.read_text("utf-8") for path in (page, readme)}
    for path, mark, table in (
        (page, "costs", page_table()),
        (page, "thousand", thousand_table()),
        (readme, "costs", readme_table()),
    ):
        start, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        head, _, rest = texts[path].partition(start)
        texts[path] = head + start + table + "\n" + end + rest.partition(end)[2]
    return texts


def main() -> None:
    """Measure and store after each experiment."""
    if sys.argv[1:] == ["--pages"]:
        for path, text in with_tables().items():
            path.write_text(text, encoding="utf-8")
        return
    signal.signal(signal.SIGPROF, _stop)
    stored = json.loads(COSTS.read_text("utf-8")) if COSTS.exists() else {}
    rows = {row["experiment"]: row for row in stored.get("rows", [])}
    for name in sys.argv[1:] or [name for name in registry.TITLES if name not in rows]:
        rows[name] = measure(name)
        print(rows[name], flush=True)
        about = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "command": "python book/_tools/measure_costs.py",
        }
        ordered = [rows[key] for key in registry.TITLES if key in rows]
        write_atomically(COSTS, (json.dumps({"about": about, "rows": ordered}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
