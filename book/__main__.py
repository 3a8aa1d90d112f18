"""``python -m book list | run | compare``: every figure and table of the book by one command."""

from __future__ import annotations

import argparse
import errno
import os
import re
import select
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from book import registry


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and do; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m book", description="Figures and tables of the book by name.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="what can be run")
    listing.add_argument("name", nargs="*", help="names, or patterns such as 'contexts.*'")
    listing.add_argument("--parts", action="store_true", help="and the parts of each")
    running = commands.add_parser("run", help="run what is not done yet, and make the figures")
    running.add_argument("name", nargs="+", help="names, or patterns such as '*.figure_*'; '*' is all")
    running.add_argument("--scale", choices=("reader", "paper"), default="reader", help="default: reader")
    running.add_argument("--seeds", nargs="+", metavar="SEED", help="numbers, or ranges such as 0:30")
    running.add_argument("--parts", nargs="+", metavar="PATTERN", help="some parts, such as 'newsvendor/*'")
    running.add_argument(
        "--chunk", type=_count, help="seeds a task, of experiments that may be cut; the last digits depend on it"
    )
    running.add_argument("--steps", type=_count, help="at most so many rounds, to try or to time a run")
    where = running.add_mutually_exclusive_group()
    where.add_argument("--workers", type=_natural, help="processes of this machine; 0: this one, the reader's default")
    where.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask scheduler, tcp://host:8786")
    running.add_argument("--device", default="cpu", help="where tensors lie: cpu, cuda or cuda:1, say; default: cpu")
    running.add_argument("--out", type=Path, help="a folder; default: runs/<scale>. Each experiment has its own in it")
    running.add_argument("--publish", action="store_true", help="put the results where the pages read them")
    comparing = commands.add_parser("compare", help="two runs of an experiment as paired differences")
    comparing.add_argument("folder", type=Path, help="runs/paper/contexts.figure_1, say")
    comparing.add_argument("other", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        status = {"list": _list, "run": _run, "compare": _compare}[chosen.command](chosen)
        sys.stdout.flush()
        return status
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        if chosen.command == "run":
            print("Interrupted. What is done is stored, and the same command does the rest.", file=sys.stderr)
        return 130
    except OSError as error:
        if isinstance(error, ConnectionRefusedError) and error.errno is None:  # of `spread.run`: nothing was begun
            print(error, file=sys.stderr)
            return 1
        if isinstance(error, BrokenPipeError) and _unread():
            return 128 + signal.SIGPIPE
        if not isinstance(error, ConnectionError | TimeoutError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"{error}\nWhat is done is stored. The same command does the rest.", file=sys.stderr)
        return 1


def _unread() -> bool:
    """Whether nobody reads what is printed any more, as behind ``| head``; then nothing more is printed."""
    try:
        out = sys.stdout.fileno()
    except (OSError, ValueError):  # it has none, as in a program that keeps what is printed
        return False
    watch = select.poll()
    watch.register(out, 0)
    gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)  # where Python puts what is left at its end
    return gone


def _list(chosen: argparse.Namespace) -> int:
    names = [name for pattern in chosen.name or ["*"] for name in registry.match(pattern)]
    width = max(map(len, names))
    for name in dict.fromkeys(names):
        print(f"{name:{width}s}  {registry.TITLES[name]}")
        if chosen.parts:
            print(*(f"    {part}" for part in registry.load(name).parts()), sep="\n")
    return 0


def _run(chosen: argparse.Namespace) -> int:
    if chosen.publish and chosen.steps is not None:
        raise ValueError("--publish must go without --steps: the pages show whole runs")
    seeds = None if chosen.seeds is None else [seed for text in chosen.seeds for seed in _seeds(text)]
    if seeds is not None and len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise ValueError(f"--seeds must name each seed once, got {twice} twice in {' '.join(chosen.seeds)}")
    names = list(dict.fromkeys(name for pattern in chosen.name for name in registry.match(pattern)))
    _check_device(chosen.device)
    from book.device import on_device

    with on_device(chosen.device):  # before the chapters are imported
        return _run_all(chosen, names, seeds)


def _run_all(chosen: argparse.Namespace, names: Sequence[str], seeds: Sequence[int] | None) -> int:
    from book import outputs, spread, tasks

    root = chosen.out or Path("runs") / chosen.scale
    plans, where = {}, []
    _check_patterns(chosen.parts, names)
    asked = {name: parts for name in names if (parts := _parts(name, chosen.parts))}
    whole = [name for name in asked if registry.load(name).chunk is None] if chosen.chunk else []
    if whole:
        raise ValueError(f"--chunk does not apply to {', '.join(whole)}, whose tasks have all seeds")
    for name, parts in asked.items():
        if chosen.steps is not None and name in registry.WITHOUT_ROUNDS:
            raise ValueError(f"--steps does not apply to {name}, which has no rounds")
        if chosen.publish and len(parts) < len(registry.load(name).parts()) and outputs.one_table(registry.load(name)):
            raise ValueError(f"--publish must go with all parts of {name}, which are one table, got {' '.join(parts)}")
        settings = {"seeds": seeds, "chunk": chosen.chunk, "steps": chosen.steps, "device": chosen.device}
        plans[name] = tasks.plan(name, chosen.scale, parts=parts, **settings)
        where += [root / name / "tasks"] * len(plans[name])
    for folder in dict.fromkeys(where):
        _check_folder(folder.parent)  # for the figure and the results, which come last
        _check_folder(folder)
    every = [task for some in plans.values() for task in some]
    workers = chosen.workers
    if workers is None:
        workers = spread.cores() if chosen.scale == "paper" and len(every) > 1 else 0
    spread.run(every, where, workers=workers, scheduler=chosen.scheduler)
    command = "python -m book " + shlex.join(sys.argv[1:])
    for name, some in plans.items():
        experiment = registry.load(name)
        about = outputs.finish(name, experiment, some, root / name, command)
        print(f"{root / name}: {len(some)} tasks, {about['seconds']:.1f} s of work")
        if chosen.publish:
            print(*(f"    {path}" for path in outputs.publish(experiment, root / name, about["results"])), sep="\n")
    return 0


def _compare(chosen: argparse.Namespace) -> int:
    from book import outputs

    table, words = outputs.compare(chosen.folder, chosen.other)
    if words:
        print(*words, sep="\n")
    if len(table):
        print(f"the second minus the first: positive says that the first has less\n{table.to_string()}")
    return 0


def _parts(name: str, patterns: Sequence[str] | None) -> list[str]:
    found = registry.load(name).parts()
    return [part for part in found if patterns is None or any(fnmatch(part, pattern) for pattern in patterns)]


def _check_patterns(patterns: Sequence[str] | None, names: Sequence[str]) -> None:
    """Refuse patterns that match no part of any of the experiments."""
    vain = [pattern for pattern in patterns or () if not any(_parts(name, [pattern]) for name in names)]
    if vain:
        raise ValueError(f"--parts must name a part of {', '.join(names)}, got {' '.join(vain)}")


def _check_device(device: str) -> None:
    """Refuse a device that no run can have; whether there is CUDA at all is asked later."""
    found = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not found:
        raise ValueError(f"--device must be cpu or cuda, or one of several such as cuda:1, got {device!r}")
    if found[1]:
        import torch

        there = torch.cuda.device_count()
        if 0 < there <= int(found[1]):
            raise ValueError(f"--device must be below cuda:{there}, torch finds {there}, got {device!r}")


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 on, got {text!r}")
    return int(text)


def _check_folder(folder: Path) -> None:
    """Make a folder and try to write there, so that a run does not end with what it cannot store."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ValueError(f"--out must be a folder that can be written, got {folder}: {error.strerror}") from None


def _seeds(text: str) -> Sequence[int]:
    if not re.fullmatch(r"\d+(:\d+)?", text):
        raise ValueError(f"--seeds must be numbers or ranges such as 0:30, got {text!r}")
    first, _, end = text.partition(":")
    if end and int(end) <= int(first):
        raise ValueError(f"--seeds must be ranges that end after they begin, such as 0:30, got {text!r}")
    return range(int(first), int(end)) if end else [int(first)]


if __name__ == "__main__":
    raise SystemExit(main())
