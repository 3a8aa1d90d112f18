"""``python -m book list | run``: every figure and table of the book by one command."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from book import registry  # what imports torch comes later: a list needs none of it


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command says; gives the exit status."""
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--workers", type=int, help="processes; 0: this one; default at the paper's scale: all cores")
    where.add_argument("--out", type=Path, help="a folder; default: runs/<scale>. Each experiment has its own in it")
    parser = _parser(where)
    chosen = parser.parse_args(arguments)
    # No number depends on where a run is done, so the command that the results name does not say it.
    command = shlex.join(["python", "-m", "book", *where.parse_known_args(arguments)[1]])
    try:
        names = list(dict.fromkeys(name for pattern in chosen.name for name in registry.match(pattern)))
        if chosen.command == "list":
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for `| head`
            _list(names, chosen.parts)
            return 0
        plans = _plans(names, chosen)
    except ValueError as error:
        parser.error(str(error))
    try:
        _run(plans, chosen, command)
    except (KeyboardInterrupt, BrokenProcessPool) as error:
        why = str(error) or "Interrupted."
        print(f"{why} What is done is stored, and the same command does the rest.", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _parser(where: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m book", description="Figures and tables of the book by name.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="what can be run, and what it costs")
    listing.add_argument("name", nargs="*", default=["*"], help="names, or patterns such as 'contexts.*'")
    listing.add_argument("--parts", action="store_true", help="and the parts of each")
    running = commands.add_parser("run", parents=[where], help="run what is not done yet, and make the figures")
    running.add_argument("name", nargs="+", help="names, or patterns such as '*.figure_*'; '*' is all")
    running.add_argument("--scale", choices=("reader", "paper"), default="reader", help="default: reader")
    running.add_argument("--seeds", nargs="+", type=_seeds, metavar="SEED", help="numbers, or ranges such as 0:30")
    running.add_argument("--parts", nargs="+", metavar="PATTERN", help="some parts, such as 'newsvendor/*'")
    running.add_argument("--steps", type=int, help="at most so many rounds, to try or to time a run")
    running.add_argument("--device", default="cpu", help="where tensors lie: cpu, cuda or cuda:1, say; default: cpu")
    running.add_argument("--publish", action="store_true", help="put the results where the pages read them")
    return parser


def _seeds(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    seeds = range(int(found[1]), int(found[2] or int(found[1]) + 1)) if found else range(0)
    if not seeds:
        raise argparse.ArgumentTypeError(f"must be numbers or ranges that are not empty, such as 0:30, got {text!r}")
    return seeds


def _list(names: Sequence[str], parts: bool) -> None:
    print(f"{'name':25s}  {'paper scale':13s}  title (paper scale: CPU time of one thread, where it was measured)")
    for name in names:
        title, cost = registry.TITLES[name]
        print(f"{name:25s}  {cost:13s}  {title}")
        if parts:
            print(*(f"    {part}" for part in registry.load(name).parts()), sep="\n")


def _plans(names: Sequence[str], chosen: argparse.Namespace) -> dict[str, list[Any]]:
    """The tasks of each experiment that is asked for.

    Raises:
        ValueError: if an argument does not fit the others, the experiments or this machine.
    """
    seeds = None if chosen.seeds is None else list(chain(*chosen.seeds))
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds must name each seed once, got {max(seeds, key=seeds.count)} twice")
    if chosen.steps is not None and chosen.steps < 1:
        raise ValueError(f"--steps must be a positive number, got {chosen.steps}")
    if chosen.workers is not None and chosen.workers < 0:
        raise ValueError(f"--workers must be a number from 0 on, got {chosen.workers}")
    if chosen.publish and chosen.steps is not None:
        raise ValueError("--publish must go without --steps: the pages show whole runs")
    # A task has one thread, since two would make other last digits. NumPy and torch read this when they are imported.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    import torch

    from book import runs
    from book.device import on_device

    devices = ["cpu", *["cuda"] * torch.cuda.is_available(), *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if chosen.device not in devices:
        raise ValueError(f"--device must be {' or '.join(devices)} on this machine, got {chosen.device!r}")
    with on_device(chosen.device):  # where the constants of the chapters lie, which are imported now
        parts = {name: registry.load(name).parts() for name in names}
    for pattern in chosen.parts or []:
        if not any(fnmatch(part, pattern) for part in chain(*parts.values())):
            raise ValueError(f"--parts must match a part of {', '.join(names)}, got {pattern!r}")
    plans = {}
    for name in names:
        some = [part for part in parts[name] if any(fnmatch(part, pattern) for pattern in chosen.parts or ["*"])]
        experiment = registry.load(name)
        if experiment.counted and chosen.steps is not None:
            raise ValueError(f"--steps does not apply to {name}, which has no rounds")
        if experiment.counted and seeds is not None and seeds != list(range(len(seeds))):
            raise ValueError(f"--seeds must be 0:n in {name}, which only counts them, got {seeds}")
        if chosen.publish and experiment.file.endswith(".json") and len(some) < len(parts[name]):
            raise ValueError(f"--publish must go with all parts of {name}, which are one table, got {some}")
        if some:
            plans[name] = runs.plan(name, some, seeds, chosen.scale, chosen.steps, chosen.device)
    chosen.out = chosen.out or Path("runs") / chosen.scale
    for folder in [chosen.out / name / "tasks" for name in plans]:  # before work that could not be stored
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise ValueError(f"--out must be a folder to write in, got {chosen.out}: {error.strerror}") from None
    return plans


def _run(plans: dict[str, list[Any]], chosen: argparse.Namespace, command: str) -> None:
    from book import runs
    from book.device import on_device

    alone = chosen.workers is None and chosen.scale == "reader"
    runs.perform_all(list(chain(*plans.values())), chosen.out, 0 if alone else chosen.workers)
    with on_device(chosen.device):  # a figure may need what lies there
        for name, tasks in plans.items():
            runs.finish(name, tasks, chosen.out, command)
            if chosen.publish:
                runs.publish(name, chosen.out)


if __name__ == "__main__":
    raise SystemExit(main())
