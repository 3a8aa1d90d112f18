"""``python -m book``: the same numbers whoever does the work, nothing lost, nothing twice."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from book import registry, spread, tasks
from book.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
#: GPOO on two parts with a few seeds: a task takes a tenth of a second.
NAME, SEEDS = "aggregated.figure_5", range(4)


def of(folder: Path) -> Path:
    return folder / NAME / "tasks"


def the_plan(chunk: int = 1) -> list[tasks.Task]:
    return tasks.plan(NAME, "reader", seeds=SEEDS, chunk=chunk, steps=4)


def numbers(folder: Path) -> dict[str, bytes]:
    """The bits of every array of every task."""
    from book.files import unpack_arrays

    found = {}
    for file in sorted(folder.glob("*.npz")):
        for name, array in unpack_arrays(file.read_bytes()).items():
            if name != "about":
                found[f"{file.name}/{name}"] = array.tobytes()
    return found


def run(plan: list[tasks.Task], folder: Path, **options) -> list[dict]:
    return spread.run(plan, [folder] * len(plan), progress=False, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks done in this process."""
    folder = tmp_path_factory.mktemp("alone")
    assert len(run(the_plan(), folder)) == len(the_plan()) == 8
    return folder


def test_names_are_listed_without_torch() -> None:
    script = "import sys; from book.__main__ import main; main(['list']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(registry.TITLES)


def test_every_chapter_registers_what_is_listed() -> None:
    for chapter in dict.fromkeys(name.partition(".")[0] for name in registry.TITLES):
        listed = {name.partition(".")[2] for name in registry.TITLES if name.startswith(f"{chapter}.")}
        module = __import__(f"book.{chapter}.registry", fromlist=["RUNS"])
        assert set(module.RUNS) == listed, chapter
        for figure, experiment in module.RUNS.items():
            parts = experiment.parts()
            assert len(parts) == len(set(parts)) > 0, figure
            assert (ROOT / experiment.home).is_dir(), figure
            for scale in ("reader", "paper"):
                assert len(experiment.seeds(parts[0], scale)) > 0, figure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1-3"], "ranges such as 0:30, got '1-3'"),
        (["--seeds", "3:1"], "end after they begin, such as 0:30, got '3:1'"),
        (["--seeds", "3:3"], "end after they begin, such as 0:30, got '3:3'"),
        (["--seeds", "0:3", "2"], "each seed once, got 2 twice in 0:3 2"),
        (["--steps", "0"], "positive whole number"),
        (["--workers", "-1"], "whole number from 0 on, got '-1'"),
        (["--steps", "5", "--publish"], "--publish must go without --steps"),
        (["--parts", "none"], f"--parts must name a part of {NAME}, got none"),
        (["--parts", "1", "bogus", "none/*"], f"--parts must name a part of {NAME}, got bogus none/*"),
        (["--workers", "2", "--scheduler", "tcp://a:1"], "not allowed with"),
        (["--device", "cuda"], "torch finds no CUDA device"),
        (["--device", "cuda:0"], "torch finds no CUDA device"),
        (["--device", "foo"], "--device must be cpu or cuda, or one of several such as cuda:1, got 'foo'"),
        (["--device", "mps"], "--device must be cpu or cuda, or one of several such as cuda:1, got 'mps'"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str, tmp_path: Path, capsys) -> None:
    import torch

    if "torch finds no" in message and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        main(["run", NAME, "--out", str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_has_the_last_run_and_the_pages_get_no_other(tmp_path: Path, capsys, monkeypatch) -> None:
    from book import outputs

    home = tmp_path / registry.load(NAME).home
    monkeypatch.setattr(outputs, "ROOT", tmp_path)
    results = tmp_path / "r" / NAME / "results"

    def files(folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()}

    command = ["run", NAME, "--out", str(tmp_path / "r"), "--seeds"]
    assert main([*command, "0:2", "--publish"]) == 0
    assert files(results) == files(home) == {"figure_5.npz"}
    assert main([*command, "0:3", "--parts", "1", "--publish"]) == 0
    assert json.loads((results.parent / "about.json").read_text("utf-8"))["results"] == ["figure_5.npz"]
    # Of some parts these alone are published, and the others stay.
    with np.load(home / "figure_5.npz") as arrays:
        assert [len(arrays[f"{part}/text"]) for part in (1, 10)] == [3, 2]


def test_a_run_leaves_figure_history_provenance_and_command(tmp_path: Path, capsys, monkeypatch) -> None:
    arguments = ["run", NAME, "--seeds", "0:4", "--steps", "4", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["book", *arguments])
    assert main(arguments) == 0
    folder = tmp_path / NAME
    assert {path.name for path in folder.iterdir()} == {
        "figure.svg",
        "figure.png",
        "results",
        "scores.json",
        "about.json",
        "tasks",
    }
    assert np.load(folder / "results" / "figure_5.npz")["1/text"].shape == (4, 4)
    about = json.loads((folder / "about.json").read_text("utf-8"))
    assert about["command"] == f"python -m book run {NAME} --seeds 0:4 --steps 4 --out {tmp_path}"
    assert about["seeds"]["1"] == list(SEEDS)
    assert about["versions"]["torch"] and about["platform"] and about["seconds"] > 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "tasks").iterdir()}
    assert main(arguments) == 0  # nothing is done again
    assert {path: path.stat().st_mtime_ns for path in (folder / "tasks").iterdir()} == before
    capsys.readouterr()
    other = [*arguments[:-1], str(tmp_path / "other"), "--chunk", "2"]
    assert main(other) == 0
    assert main(["compare", str(folder), str(tmp_path / "other" / NAME)]) == 0
    said = capsys.readouterr().out
    assert "1, text: the same in 4 seeds" in said or "mean difference" in said
    assert main(["compare", str(folder), str(folder)]) == 0
    assert "the same in 4 seeds" in capsys.readouterr().out


def finished(folder: Path, measures: dict[str, list[float]], part: str = "p", **about: object) -> Path:
    """A folder as a run leaves it, without its results."""
    (folder / "results").mkdir(parents=True)
    seeds = list(range(max(map(len, measures.values()), default=0)))
    (folder / "scores.json").write_text(json.dumps({part: {"seeds": seeds, "measures": measures}}))
    same = {"experiment": NAME, "scale": "reader", "steps": None, "device": "cpu", "code": "c"}
    (folder / "about.json").write_text(json.dumps({**same, "versions": {"torch": "2"}, **about}))
    return folder


def test_two_runs_are_compared_in_pairs(tmp_path: Path) -> None:
    from book import outputs

    own = finished(tmp_path / "a", {"end": [0.5, 0.25, 0.5, 0.25, 0.5], "old": [1.0] * 5})
    other = finished(tmp_path / "b", {"end": [1.5, 1.25, 2.0, 1.25, 1.5], "new": [1.0] * 5})
    table, words = outputs.compare(own, other)
    assert table.loc["p, end", "verdict"] == "holds" and table.loc["p, end", "n"] == 5
    assert words == [f"p, old: only in {own}", f"p, new: only in {other}"]
    words = outputs.compare(own, finished(tmp_path / "c", {"end": [0.5]}, part="q"))[1]
    assert words == [f"p: only in {own}", f"q: only in {tmp_path / 'c'}"]
    with pytest.raises(ValueError, match="folder must hold a finished run"):
        outputs.compare(tmp_path, own)
    rounded = finished(tmp_path / "d", {"end": [value + 1e-15 for value in (0.5, 0.25, 0.5, 0.25, 0.5)]})
    table, words = outputs.compare(own, rounded)
    assert words == ["p, end: the same in 5 seeds, up to rounding", f"p, old: only in {own}"] and table.empty


def test_results_do_not_say_where_they_were_made(tmp_path: Path, monkeypatch) -> None:
    arguments = ["run", "synthesis.combined", "--seeds", "0:2", "--parts", "truth: lengthscale 0.1", "--workers", "0"]
    arguments += [f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["book", *arguments])
    assert main(arguments) == 0
    (file,) = (tmp_path / "synthesis.combined" / "results").iterdir()
    wanted = "python -m book run synthesis.combined --seeds 0:2 --parts 'truth: lengthscale 0.1'"
    assert json.loads(file.read_text("utf-8"))["about"]["command"] == wanted
    for path in (ROOT / "book").glob("*/results/*.json"):
        assert not re.search(r"--(out|scheduler)\b", path.read_text("utf-8")), path


def test_results_are_the_same_bits_with_1_2_and_4_workers_and_after_a_kill(alone: Path, tmp_path: Path) -> None:
    """One cluster that grows; with four workers one is killed while it works, and its nanny starts another."""
    from distributed import Client, LocalCluster

    expected = numbers(alone)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
            host="127.0.0.1",
        ) as cluster,
        Client(cluster) as client,
    ):
        for workers in (1, 2, 4):
            cluster.scale(workers)
            client.wait_for_workers(workers)
            folder = tmp_path / str(workers)
            killed = workers == 4
            plan, pids = the_plan(), client.run(os.getpid)
            futures = [
                client.submit(tasks.perform, task, str(folder), key=f"{workers}-{task.file}", pure=False, retries=2)
                for task in plan
            ]
            if killed:
                while not (any(folder.glob("*.npz")) and (busy := [w for w, k in client.processing().items() if k])):
                    time.sleep(0.02)
                os.kill(pids[busy[0]], signal.SIGKILL)  # one that is at work
            records = client.gather(futures)
            assert numbers(folder) == expected
            written = Counter(record["file"] for record in records)
            assert set(written.values()) == {1} and len(written) == len(plan)
            assert not list(folder.glob("*.partial"))


def test_a_killed_client_is_resumed(alone: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "book", "run", NAME, "--seeds", "0:4", "--chunk", "1", "--steps", "4"]
    command += ["--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(list(of(tmp_path).glob("*.npz"))) < 2:
            time.sleep(0.01)
        process.kill()
    first = {path.name: path.stat().st_mtime_ns for path in of(tmp_path).glob("*.npz")}
    again = run(the_plan(), of(tmp_path))
    assert len(first) >= 2 and len(again) == 8 - len(first)
    assert all((of(tmp_path) / name).stat().st_mtime_ns == at for name, at in first.items())
    assert numbers(of(tmp_path)) == numbers(alone)


def test_commands_named_on_pages_exist() -> None:
    """Every ``python -m book`` in a page or a docstring names what there is."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "book").rglob("*.md"), *(ROOT / "book").rglob("*.ipynb")]
    pages += [*(ROOT / "book").glob("*/*.py"), *(ROOT / "book").glob("*/results/*.json")]
    named = {}
    for page in pages:
        for command in re.findall(r"python -m book(?: (?:run|list)|\.[\w.]+)[^`\n\\#)]*", page.read_text("utf-8")):
            named.setdefault(command.rstrip('", '), page)
    assert len(named) > 20
    for command, page in named.items():
        words = command.replace("'", "").split()
        if words[2] == "book":
            names = list(itertools.takewhile(lambda word: word[0] not in "-|", words[4:]))
            assert all(registry.match(name) for name in names), (page, command)
        else:
            path = ROOT / (words[2].replace(".", "/") + ".py")
            assert path.exists() and "__main__" in path.read_text("utf-8"), (page, command)
