"""What a run leaves in its folder, and two folders side by side.

``results/`` has what the pages read: a table or arrays, under the names that they have there. Beside it lie the
figure, ``scores.json`` with one number a seed, ``about.json`` with the command, the versions, the platform, the seeds
and the time of every task, and ``tasks/``, from which all of it is made. All but ``tasks/`` is of the last run into the
folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from book import figures, verdict
from book.files import load_table, pack_arrays, provenance, save_table, table_text, unpack_arrays, write_atomically
from book.registry import TITLES, Experiment
from book.tasks import ROOT, Task, unpack

#: Most rows, or panels, of a figure that nobody drew for its experiment.
_ROWS, _PANELS = 60, 8
#: Seeds below which ``compare`` has no verdict: of two or three an interval says little.
_FEWEST = 5


def gather(experiment: Experiment, tasks: Sequence[Task], folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """The results by part, chunks of seeds put together, and the seconds of every task."""
    chunks: dict[str, list[Any]] = {}
    seconds = {}
    for task in tasks:
        try:
            result, about = unpack((folder / task.file).read_bytes())
        except (KeyError, ValueError, zipfile.BadZipFile):
            raise ValueError(f"{folder / task.file} is damaged; once it is removed the same command does it") from None
        chunks.setdefault(task.part, []).append(result)
        seconds[task.file] = about["seconds"]
    merge = experiment.merge or side_by_side
    return {part: found[0] if len(found) == 1 else merge(found) for part, found in chunks.items()}, seconds


def side_by_side(chunks: Sequence[Any]) -> Any:
    """Replicates of several chunks as one result."""
    first = chunks[0]
    if isinstance(first, pd.DataFrame):
        return pd.concat(chunks, ignore_index=True)
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in first}


def finish(name: str, experiment: Experiment, tasks: Sequence[Task], folder: Path, command: str) -> dict[str, Any]:
    """Make all of a folder's files from its tasks, for those of an older run; gives what ``about.json`` says."""
    results, seconds = gather(experiment, tasks, folder / "tasks")
    (folder / "about.json").unlink(missing_ok=True)  # what it says is of what is replaced now
    (folder / "results").mkdir(parents=True, exist_ok=True)
    files = stored(experiment, results, _anywhere(command))
    for path in (folder / "results").iterdir():  # of a run with other parts
        if path.name not in files and path.is_file():
            path.unlink()
    for file, content in files.items():
        put(content, folder / "results" / file)
    _write_json(folder / "scores.json", scores(experiment, results, tasks))
    figure = drawn(results) if experiment.draw is None else experiment.draw(results)
    figure.savefig(folder / "figure.svg", metadata={"Date": None})
    figure.savefig(folder / "figure.png", dpi=110)
    first = tasks[0]
    about = {
        "experiment": name,
        "title": TITLES.get(name, name),
        "command": command,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "scale": first.scale,
        "steps": first.steps,
        "device": first.device,
        "code": first.code,
        **provenance(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "seeds": {part: [seed for t in tasks if t.part == part for seed in t.seeds] for part in results},
        "results": sorted(files),
        "seconds": round(sum(seconds.values()), 3),
        "tasks": seconds,
    }
    _write_json(folder / "about.json", about)
    return about


def _anywhere(command: str) -> str:
    """A command without what says where it is done, which no number depends on."""
    where = argparse.ArgumentParser(add_help=False)
    for option in ("--workers", "--scheduler", "--out"):
        where.add_argument(option)
    return shlex.join(where.parse_known_args(shlex.split(command))[1])


def stored(experiment: Experiment, results: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The results as the files that the pages read, by name."""
    first = next(iter(results.values()))
    if isinstance(first, pd.DataFrame):
        frames = list(results.values())
        frame = pd.concat(frames, ignore_index=isinstance(frames[0].index, pd.RangeIndex))
        frame.attrs = {**first.attrs, "command": command}
        return {experiment.file(""): frame}
    files: dict[str, Any] = {}
    for part, result in results.items():
        own = {experiment.key(part, key): array for key, array in result.items()}
        files.setdefault(experiment.file(part), {}).update(own)
    return files


def put(content: Any, path: Path, keep: bool = False) -> None:
    """Write a result; with ``keep`` arrays of an older file that have other names stay in it."""
    if isinstance(content, pd.DataFrame):
        save_table(content, path)
    else:
        old = unpack_arrays(path.read_bytes()) if keep and path.exists() else {}
        write_atomically(path, pack_arrays({**old, **content}))


def one_table(experiment: Experiment) -> bool:
    """Whether the results of all parts are one table, which some parts would replace."""
    return experiment.file(experiment.parts()[0]).endswith(".json")


def publish(experiment: Experiment, folder: Path, files: Sequence[str]) -> list[Path]:
    """Put those of the results that a run made, as ``about.json`` names them, where the pages read them."""
    home = ROOT / experiment.home
    home.mkdir(parents=True, exist_ok=True)
    made = []
    for file in [folder / "results" / name for name in files]:
        if file.suffix == ".npz" and (home / file.name).exists():
            put(unpack_arrays(file.read_bytes()), home / file.name, keep=True)
        else:
            shutil.copyfile(file, home / file.name)
        made.append(home / file.name)
    return made


def scores(experiment: Experiment, results: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """One number a seed, by part and measure: what ``compare`` compares."""
    seeds = {part: [seed for task in tasks if task.part == part for seed in task.seeds] for part in results}
    found: dict[str, Any] = {}
    for part, result in results.items():
        measures: dict[str, list[float]] = {}
        if isinstance(result, pd.DataFrame):
            for label, row in zip(labels(result), result.to_dict("records"), strict=True):
                for key, value in row.items():
                    if isinstance(value, list) and len(value) == len(seeds[part]):
                        measures[f"{label}: {key}"] = [float(x) for x in value]
        else:
            for key, array in result.items():
                if experiment.by_seed is not None:
                    measures |= {name: values.tolist() for name, values in experiment.by_seed(key, array).items()}
                elif array.ndim and len(array) == len(seeds[part]) and array.dtype.kind == "f":
                    measures[key] = array.reshape(len(array), -1)[:, -1].tolist()
        found[part] = {"seeds": seeds[part], "measures": measures}
    return found


def labels(frame: pd.DataFrame) -> list[str]:
    """What tells the rows of a table apart: its index, or the texts and whole numbers before its measures."""
    if not isinstance(frame.index, pd.RangeIndex):
        return [str(name) for name in frame.index]
    keys = []
    for column in frame.columns:
        if isinstance(frame[column].iloc[0], list | dict):
            break
        keys.append(column)
        if not frame.duplicated(keys).any():
            break
    return [", ".join(f"{key} {row[key]}" for key in keys) for row in frame.to_dict("records")]


def drawn(results: Mapping[str, Any]) -> Figure:
    """A figure of any results: intervals of a table's rows, means of arrays."""
    first = next(iter(results.values()))
    if isinstance(first, pd.DataFrame):
        return drawn_table(pd.concat(list(results.values()), ignore_index=isinstance(first.index, pd.RangeIndex)))
    return drawn_arrays({f"{part}/{key}": array for part, found in results.items() for key, array in found.items()})


def drawn_table(frame: pd.DataFrame) -> Figure:
    """The first measure of each row: its mean, with a 95 % interval where there is one number a seed."""
    column = next((c for c in frame.columns if isinstance(frame[c].iloc[0], list)), None)
    if column is None:
        numbers = [c for c in frame.columns if frame[c].dtype.kind == "f"]
        column = numbers[0] if numbers else frame.columns[-1]
    names = labels(frame)[:_ROWS]
    figure, axes = figures.subplots(figsize=(9, 1.2 + 0.24 * len(names)))
    axis = axes[0, 0]
    for row, value in enumerate(frame[column].iloc[:_ROWS]):
        values = np.asarray(value if isinstance(value, list) else [value], dtype=float)
        width = 1.96 * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        axis.errorbar(values.mean(), row, xerr=width, fmt="o", color=figures.COLORS[0])
    axis.set_yticks(range(len(names)), names, fontsize="x-small")
    axis.invert_yaxis()
    left = len(frame) - len(names)
    axis.set(xlabel=str(column), title=f"the first {_ROWS} rows, {left} more are in the table" if left > 0 else "")
    return figure


def drawn_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Figure:
    """Means over all but the last dimension, a panel for what stands before the last ``/``."""
    panels: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        if array.ndim and array.dtype.kind in "fiub" and array.size:
            panel, _, line = name.rpartition("/")
            panels.setdefault(panel, {})[line] = np.nanmean(array.astype(float), axis=tuple(range(array.ndim - 1)))
    shown = dict(list(panels.items())[:_PANELS])
    figure, axes = _panels(len(shown))
    for axis, (panel, lines) in zip(axes, shown.items(), strict=True):
        for line, values in list(lines.items())[:8]:
            axis.plot(np.arange(1, values.size + 1), values.reshape(-1), label=line)
        axis.set(title=panel, xlabel="column")
        axis.legend(fontsize="x-small")
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    columns = min(4, max(1, count))
    rows = max(1, math.ceil(count / columns))
    figure, axes = figures.subplots(rows, columns, figsize=(max(6.0, 3.6 * columns), 3.4 * rows))
    for axis in list(axes.flat)[count:]:
        axis.set_axis_off()
    return figure, list(axes.flat)[:count]


def compare(own: Path, other: Path) -> tuple[pd.DataFrame, list[str]]:
    """Two folders of one experiment as paired differences, the other's scores minus one's own, seed by seed.

    Returns:
        A table of what both have and that is not the same, and in words how the runs differ and what was the same or
        could not be compared.

    Raises:
        ValueError: if a folder holds no finished run, or the two are of different experiments.
    """
    for folder in (own, other):
        if not all((folder / name).exists() for name in ("scores.json", "about.json")):
            raise ValueError(f"folder must hold a finished run (scores.json, about.json), got {folder}")
    abouts = [json.loads((folder / "about.json").read_text("utf-8")) for folder in (own, other)]
    names = [about["experiment"] for about in abouts]
    if names[0] != names[1]:
        raise ValueError(f"folders must hold runs of one experiment, got {names[0]} in {own} and {names[1]} in {other}")
    first, second = (json.loads((folder / "scores.json").read_text("utf-8")) for folder in (own, other))
    rows, words = {}, _differences(abouts, own, other)
    for part in first:
        if part not in second:
            words.append(f"{part}: only in {own}")
            continue
        shared = [seed for seed in first[part]["seeds"] if seed in second[part]["seeds"]]
        at = [[found[part]["seeds"].index(seed) for seed in shared] for found in (first, second)]
        for measure, values in first[part]["measures"].items():
            rival = second[part]["measures"].get(measure)
            if rival is None:
                words.append(f"{part}, {measure}: only in {own}")
                continue
            a = torch.tensor([values[i] for i in at[0]], dtype=torch.float64)
            b = torch.tensor([rival[i] for i in at[1]], dtype=torch.float64)
            if shared and torch.allclose(a, b, rtol=1e-9, atol=1e-12):
                how = "" if torch.equal(a, b) else ", up to rounding"
                words.append(f"{part}, {measure}: the same in {len(shared)} seeds{how}")
            elif len(shared) < 2 or not bool((a.isfinite() & b.isfinite()).all()):
                words.append(f"{part}, {measure}: {len(shared)} seeds in both, too few or not finite")
            else:
                rows[f"{part}, {measure}"] = verdict.paired(a, b)
        words += [
            f"{part}, {measure}: only in {other}"
            for measure in second[part]["measures"]
            if measure not in first[part]["measures"]
        ]
    words += [f"{part}: only in {other}" for part in second if part not in first]
    if not any(found["measures"] for scores in (first, second) for found in scores.values()):
        words += ["no numbers by seed, so the results are compared as they are", *_equal(own, other)]
    table = verdict.table(rows, 4)
    for name, pair in rows.items():
        if pair.n < _FEWEST:
            table.loc[name, "verdict"] = "too few seeds"
        elif pair.high - pair.low <= 1e-12 * abs(pair.mean):  # all differ by the same, up to rounding
            table.loc[name, "verdict"] = "no spread"
    return table, words


def _differences(abouts: Sequence[Mapping[str, Any]], own: Path, other: Path) -> list[str]:
    """How two runs differ in what their numbers depend on, a line each."""
    first, second = (
        {
            **{key: about.get(key) for key in ("scale", "device", "code")},
            "steps": about.get("steps") or "all",
            "seeds": _spoken(about.get("seeds", {})),
            "number of tasks": len(about.get("tasks", {})),  # with other chunks other last digits
            **about.get("versions", {}),
        }
        for about in abouts
    )
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return [f"{key} differs: {first.get(key)} in {own}, {second.get(key)} in {other}" for key in keys]


def _spoken(seeds: Mapping[str, Sequence[int]]) -> str:
    """The seeds of all parts in a few words."""
    found = sorted({seed for part in seeds.values() for seed in part})
    return f"{len(found)} from {found[0]} to {found[-1]}" if found else "none"


def _equal(own: Path, other: Path) -> Iterator[str]:
    """Which results of two folders are equal, a line each, whatever command made them."""
    names = {path.name for folder in (own, other) for path in (folder / "results").iterdir()}
    for name in sorted(names):
        files = [folder / "results" / name for folder in (own, other)]
        if not all(file.exists() for file in files):
            yield f"{name}: only in {own if files[0].exists() else other}"
        else:
            yield f"{name}: {'equal' if _content(files[0]) == _content(files[1]) else 'not equal'}"


def _content(file: Path) -> Any:
    """What is in a file of results, but for what is said of it."""
    if file.suffix == ".json":
        frame = load_table(file)
        frame.attrs = {}
        return table_text(frame)
    arrays = unpack_arrays(file.read_bytes())
    return {k: (a.dtype, a.shape, a.tobytes()) for k, a in arrays.items() if k != "__metadata__"}


def _write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
