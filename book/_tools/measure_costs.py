"""What the paper's scale costs: times parts of every experiment in one process, and says what was timed and how.

    python book/_tools/measure_costs.py [NAME ...]
    python book/_tools/measure_costs.py --runs runs/paper
    python book/_tools/measure_costs.py --pages

The first adds to ``book/practice/costs.json``, part by part; a part that stands there is not timed again. Parts are
taken from all over an experiment until its time is over: ``ENOUGH`` and ``LIMIT``, CPU seconds for an experiment and
for a part, and ``PARTS``, words that the parts begin with. CPU seconds of one thread, so that other programs of a busy
machine count little. A part that its limit ends is carried on by its rounds where ``rounds_of`` knows how many there
are: by a line through the seconds of the rounds that were seen, if these are many. Of the policies of Figure 1 of the
unknown contexts Table 1 knows 100 rounds. The second command takes what real runs took, of the parts that they have
finished. The third writes the tables of the page and the README.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from book import registry, tasks
from cbo_lib.former.history import write_atomically
from cbo_lib.former.policy import Policy

COSTS, COMMAND = tasks.ROOT / "book" / "practice" / "costs.json", "python book/_tools/measure_costs.py"
#: CPU seconds after which no further part of an experiment is begun, and after which one is ended.
ENOUGH, LIMIT = float(os.environ.get("ENOUGH", 15)), float(os.environ.get("LIMIT", 30))
#: How the names of the parts begin that are timed.
PARTS = tuple(os.environ.get("PARTS", "").split(","))
#: Rounds that a line needs, without those of the initial design; of fewer the slope is that of their scatter.
FEWEST, DESIGN = 50, 10


class _TooLongError(Exception):
    pass


def _stop(*_: object) -> None:
    raise _TooLongError


@contextmanager
def _rounds() -> Iterator[list[float]]:
    """The CPU seconds at which any policy is asked."""
    stamps: list[float] = []
    ask = Policy.ask

    def stamped(policy: Policy) -> Any:
        stamps.append(time.process_time())
        return ask(policy)

    Policy.ask = stamped  # type: ignore[assignment, method-assign]
    try:
        yield stamps
    finally:
        Policy.ask = ask  # type: ignore[method-assign]


def timed(task: tasks.Task) -> tuple[float, bool, list[float]]:
    """CPU seconds of a task, whether it was done, and the seconds at which its policies were asked."""
    done = True
    with tempfile.TemporaryDirectory() as folder, _rounds() as stamps:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            tasks.perform(task, folder)
        except _TooLongError:
            done = False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return time.process_time() - start, done, [stamp - start for stamp in stamps]


def rounds_of(name: str, part: str) -> int | None:
    """How many rounds a part has that is one run of one policy, if that is known before."""
    if name in ("contexts.figure_1", "contexts.figure_2"):
        from book.contexts.experiments import PANELS, budget

        panel, _, policy = part.partition("/")
        return PANELS[panel].limits.get(policy, budget("paper").steps)
    if name in ("subsets.figure_1", "subsets.figure_2"):
        from book.harness import stored
        from book.subsets.registry import HOME

        panel, _, policy = part.partition("/")
        return int(stored(tasks.ROOT / HOME, panel, [policy])[policy]["evaluations"].max())
    return None


def carried_on(stamps: Sequence[float], rounds: int) -> float | None:
    """The seconds of all rounds, from when the first were asked: a line through the seconds of the later ones."""
    later, seen = np.diff(stamps)[DESIGN:], len(stamps) - 1
    if len(later) < FEWEST or rounds <= seen:
        return None
    at, left = np.arange(DESIGN, seen), np.arange(seen, rounds)
    slope = max(np.polyfit(at, later, 1)[0], 0.0)  # the line goes through the two means
    return float(stamps[-1] + (later.mean() + slope * (left - at.mean())).sum())


def from_table_1() -> dict[str, Any]:
    """The policies on Ackley, five seeds in a batch, from the seconds that Table 1 has of 100 rounds."""
    from book.contexts.experiments import RESULTS
    from book.harness import load_table

    table, found = load_table(RESULTS / "table_1.json"), {}
    for policy, seconds in table["in a batch"].items():
        row = {"seconds": round(table.attrs["runs"] * seconds, 2), "how": "rounds", "rounds": 100, "of": 350}
        found[f"ackley/{policy}"] = row | {"estimate": round(5 * 3.5 * seconds, 2)}
    return found


def kind_of(part: str) -> str:
    """What stands after the last slash."""
    return part.rpartition("/")[2]


def spread_out(parts: Sequence[str]) -> list[str]:
    """One part of each kind, then more, from all over the list."""
    kinds = defaultdict(list)
    for part in parts:
        kinds[kind_of(part)].append(part)
    order = sorted(kinds.values(), key=len)
    first = [group[0] for group in order]
    more = [part for group in order for part in group[1:][:: max(1, len(group) // 3)]]
    return [*first, *more, *(part for part in parts if part not in {*first, *more})]


def measure(name: str, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Times parts of an experiment that are not ``known``; gives all that is known after each."""
    parts = list(registry.load(name).parts())
    known, spent = {part: row for part, row in known.items() if part in parts}, 0.0
    for part in spread_out([part for part in parts if part.startswith(PARTS)]):
        if spent > ENOUGH:
            return
        if part in known:
            continue
        work = tasks.plan(name, "paper", parts=[part])
        seconds, done, stamps = timed(work[0])
        spent += seconds
        row: dict[str, Any] = {"seconds": round(seconds, 2), "how": "whole" if done else "ended"}
        if not done and (rounds := rounds_of(name, part)) and (whole := carried_on(stamps, rounds)):
            row |= {"how": "rounds", "rounds": len(stamps) - 1, "of": rounds}
            seconds = whole
        known[part] = row | {"estimate": round(len(work) * seconds, 2)}  # chunks of seeds are alike
        print(name, part, known[part], flush=True)
        yield known


def of_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """By experiment and part what runs at the paper's scale took, of the parts all of whose tasks are in a folder."""
    seconds: dict[tuple[str, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    for file in sorted(folder.glob("*/tasks/*.npz")):
        _, about = tasks.unpack(file.read_bytes())
        task = about["task"]
        if task["scale"] == "paper" and task["steps"] is None:
            seconds[task["experiment"], task["part"]][tuple(task["seeds"])] = about["seconds"]
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (name, part), done in seconds.items():
        if {task.seeds for task in tasks.plan(name, "paper", parts=[part])} == set(done):
            whole = round(sum(done.values()), 2)
            found[name][part] = {"seconds": whole, "how": "whole", "estimate": whole}
    return dict(found)


def summary(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """What all of an experiment takes: a part that was not timed takes what those of its kind do, or all parts."""
    parts = list(registry.load(name).parts())
    if name == "contexts.figure_1":
        known = {**from_table_1(), **{part: row for part, row in known.items() if row["how"] != "ended"}}
    kinds = defaultdict(list)
    for part, row in known.items():
        kinds[kind_of(part)].append(row["estimate"])
    every = [row["estimate"] for row in known.values()]
    whole = 0.0
    for part in parts:
        own = [known[part]["estimate"]] if part in known else kinds.get(kind_of(part)) or every
        whole += sum(own) / len(own)
    count = {how: sum(row["how"] == how for row in known.values()) for how in ("whole", "rounds", "ended")}
    return {
        "experiment": name,
        "parts": len(parts),
        "tasks": len(tasks.plan(name, "paper")),
        **count,
        "seconds timed": round(sum(row["seconds"] for row in known.values()), 1),
        "estimate, seconds": round(whole, 1),
        "timed": known,
    }


def in_words(seconds: float) -> str:
    """Two digits, in the unit that suits: ``45 s``, ``12 min``, ``3.4 h``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"


def parts_timed(row: dict[str, Any]) -> str:
    """How many parts were timed, and how: ``1 of 56 parts whole, 7 of 56 for some rounds``."""
    ways = {"whole": "parts whole", "rounds": "for some rounds", "ended": "ended early"}
    return ", ".join(f"{row[how]} of {row['parts']} {words}" for how, words in ways.items() if row[how])


def page_table() -> str:
    """The costs as a table, one row an experiment."""
    rows = json.loads(COSTS.read_text("utf-8"))["rows"]
    lines = ["| Experiment | Timed | Measured | Estimate |", "|---|---|---|---|"]
    for row in rows:
        least = "more than " if row["ended"] else ""
        cells = [f"`{row['experiment']}`", parts_timed(row), in_words(row["seconds timed"])]
        lines.append("| " + " | ".join([*cells, least + in_words(row["estimate, seconds"])]) + " |")
    missing = [name for name in registry.TITLES if name not in {row["experiment"] for row in rows}]
    if missing:
        lines += ["", "Not timed: " + ", ".join(f"`{name}`" for name in missing) + "."]
    return "\n".join(lines)


def readme_table() -> str:
    """The costs of the papers' figures, and of all that a chapter has."""
    rows = json.loads(COSTS.read_text("utf-8"))["rows"]
    wanted = registry.match("*.figure_*")
    figures = [row for row in rows if row["experiment"] in wanted]
    lines = ["| Paper's figures | CPU time | Timed |", "|---|---|---|"]
    for row in figures:
        least = "more than " if row["ended"] else ""
        lines.append(f"| `{row['experiment']}` | {least}{in_words(row['estimate, seconds'])} | {parts_timed(row)} |")
    every = sum(row["estimate, seconds"] for row in figures)
    there = {row["experiment"] for row in figures}
    missing = [f"`{name}`" for name in wanted if name not in there]
    without = f"without {' and '.join(missing)}, not timed" if missing else ""
    least = "more than " if missing or any(row["ended"] for row in figures) else ""
    lines.append(f"| **together** | {least}{in_words(every)} | {without} |")
    lines += ["", "Beside the figures, the tables and maps:", ""]
    lines += ["| Chapter | Tables and maps timed | CPU time, estimate |", "|---|---|---|"]
    names = [name for name in registry.TITLES if ".figure_" not in name]
    for chapter in dict.fromkeys(name.partition(".")[0] for name in names):
        of_it = [name for name in names if name.startswith(f"{chapter}.")]
        own = [row for row in rows if row["experiment"] in of_it]
        least = "more than " if any(row["ended"] for row in own) or len(own) < len(of_it) else ""
        whole = least + in_words(sum(row["estimate, seconds"] for row in own)) if own else "not timed"
        lines.append(f"| {chapter} | {len(own)} of {len(of_it)} | {whole} |")
    return "\n".join(lines)


def thousand_table() -> str:
    """The simulated runs."""
    rows = json.loads(COSTS.with_name("thousand.json").read_text("utf-8"))["rows"]
    lines = ["| Seconds a task, mean | Order | The run takes | Busy | The scheduler works |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [f"{row['mean']:g}", row["order"], in_words(row["seconds"])]
        lines.append("| " + " | ".join([*cells, f"{row['busy']:.0%}", f"{row['scheduler']:.0%}"]) + " |")
    return "\n".join(lines)


def device_table() -> str:
    """What a GPU gains."""
    stored = json.loads(COSTS.with_name("device.json").read_text("utf-8"))
    titles = ["Figure", "Rounds", "Replicates", "Core", stored["about"]["device"].split()[-1], "Ratio", "Alike"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for row in stored["rows"]:
        core, device = row["one core"], row["device"]
        cells = [row["experiment"], f"{row['rounds']}", f"{row['replicates']:,}"]
        cells += [f"{core:.2g} s", f"{device:.2g} s", f"{core / device:.1f}", f"{row['alike']:.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    parts = dict.fromkeys(f"`{row['part']}` of `{row['experiment']}`" for row in stored["rows"])
    return "\n".join([*lines, "", f"The parts are {', '.join(parts)}."])


def with_tables() -> dict[Path, str]:
    """The pages, their tables made anew between their marks."""
    page, readme = tasks.ROOT / "book" / "practice" / "long_runs.md", tasks.ROOT / "README.md"
    texts = {path: path.read_text("utf-8") for path in (page, readme)}
    for path, mark, table in (
        (page, "costs", page_table()),
        (page, "thousand", thousand_table()),
        (page, "device", device_table()),
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

    def store(name: str, known: dict[str, Any]) -> None:
        rows[name] = summary(name, known)
        ordered = [rows[key] for key in registry.TITLES if key in rows]
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "command": COMMAND}
        write_atomically(COSTS, (json.dumps({"about": about, "rows": ordered}, indent=1) + "\n").encode())

    if sys.argv[1:2] == ["--runs"]:
        for name, known in of_runs(Path(sys.argv[2])).items():
            store(name, {**rows.get(name, {}).get("timed", {}), **known})
        return
    wanted = [name for pattern in sys.argv[1:] for name in registry.match(pattern)]
    for name in dict.fromkeys(wanted or [name for name in registry.TITLES if name not in rows]):
        for known in measure(name, rows.get(name, {}).get("timed", {})):
            store(name, known)


if __name__ == "__main__":
    main()
