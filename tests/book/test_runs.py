"""``python -m book``: the same numbers whoever does the work, nothing lost, nothing twice."""

import errno
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
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
    from cbo_lib.former.history import unpack_arrays

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
    ("name", "near"),
    [
        ("contexts.figur_1", "contexts.figure_1"),
        ("table_1", "contexts.table_1"),
        ("subset.map", "subsets.map"),
        ("phases-maen", "hyperparameters.phases-mean"),
    ],
)
def test_an_unknown_name_meets_its_neighbors(name: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", name])
    assert stop.value.code == 2
    assert near in capsys.readouterr().err


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


def test_a_device_beyond_the_last_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(SystemExit):
        main(["run", NAME, "--out", str(tmp_path), "--device", "cuda:2"])
    assert "--device must be below cuda:2, torch finds 2, got 'cuda:2'" in capsys.readouterr().err


def test_a_pattern_may_match_parts_of_one_experiment_among_several(tmp_path: Path) -> None:
    other = "aggregated.figure_4"
    part = registry.load(other).parts()[0]
    assert part not in registry.load(NAME).parts()
    assert main(["run", NAME, other, "--parts", part, "--seeds", "0", "--steps", "2", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [other]


def test_seeds_a_task_are_refused_where_a_task_has_all(tmp_path: Path, capsys) -> None:
    whole = [name for name in registry.TITLES if registry.load(name).chunk is None]
    assert "aggregated.figure_6" in whole and NAME not in whole
    with pytest.raises(SystemExit):
        main(["run", NAME, *whole[:2], "--chunk", "1", "--out", str(tmp_path)])
    assert f"--chunk does not apply to {', '.join(whole[:2])}, whose tasks have all seeds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_tasks_must_take_results_too(tmp_path: Path, capsys, monkeypatch) -> None:
    import tempfile

    own = tempfile.TemporaryFile

    def refuse(*, dir: Path):
        if Path(dir) == tmp_path / NAME:
            raise PermissionError(errno.EACCES, "Permission denied")
        return own(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(SystemExit):
        main(["run", NAME, "--out", str(tmp_path)])
    assert f"can be written, got {tmp_path / NAME}: Permission denied" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("arguments", [["list"], ["list", "--parts"]])
def test_who_reads_only_the_first_lines_sees_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "book", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # before anything is printed
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_another_pipe_that_breaks_is_said(tmp_path: Path, capfd, monkeypatch) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(spread, "run", fail)
    assert main(["run", NAME, "--out", str(tmp_path)]) == 1
    assert "The same command does the rest." in capfd.readouterr().err


@pytest.mark.parametrize("below", ["", "below"])
def test_a_folder_that_cannot_be_written_is_said_before_any_work(below: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["run", NAME, "--out", str(tmp_path / "file" / below)])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "--out must be a folder that can be written" in said.err and not said.out


@pytest.mark.parametrize("name", sorted(registry.WITHOUT_ROUNDS))
def test_steps_are_refused_where_there_are_no_rounds(name: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", name, "--steps", "5", "--out", str(tmp_path)])
    assert f"--steps does not apply to {name}" in capsys.readouterr().err


def test_steps_that_change_nothing_are_those_that_are_refused() -> None:
    """What a chapter does for a part reads its limit of rounds, unless the experiment has none."""
    import inspect
    import re

    for name in registry.TITLES:
        work = registry.load(name).work
        _, _, body = inspect.getsource(work).partition("steps: int | None")
        body = body or inspect.getsource(work).partition("steps:")[2]
        assert bool(re.search(r"\bsteps\b", body)) == (name not in registry.WITHOUT_ROUNDS), name


def test_a_folder_has_the_last_run_and_the_pages_get_no_other(tmp_path: Path, capsys, monkeypatch) -> None:
    from book import outputs
    from cbo_lib.former.history import History

    home = tmp_path / registry.load(NAME).home
    monkeypatch.setattr(outputs, "ROOT", tmp_path)
    results = tmp_path / "r" / NAME / "results"

    def files(folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()}

    command = ["run", NAME, "--out", str(tmp_path / "r"), "--seeds"]
    assert main([*command, "0:2", "--publish"]) == 0
    assert files(results) == files(home) == {"figure_5-1.npz", "figure_5-10.npz"}
    assert main([*command, "0:3", "--parts", "1", "--publish"]) == 0
    assert files(results) == {"figure_5-1.npz"}
    assert json.loads((results.parent / "about.json").read_text("utf-8"))["results"] == ["figure_5-1.npz"]
    # Of some parts these alone are published, and the others stay.
    assert [len(History.load(home / f"figure_5-{part}.npz").seeds) for part in (1, 10)] == [3, 2]


def test_some_parts_of_a_table_are_not_published_for_the_whole(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["run", "contexts.table_2", "--parts", "raw", "--publish", "--out", str(tmp_path)])
    assert "--publish must go with all parts of contexts.table_2" in capsys.readouterr().err


def test_a_run_that_is_interrupted_says_that_it_goes_on(tmp_path: Path, capsys, monkeypatch) -> None:
    def stop(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spread, "run", stop)
    assert main(["run", NAME, "--out", str(tmp_path)]) == 130
    said = capsys.readouterr().err
    assert said == "Interrupted. What is done is stored, and the same command does the rest.\n"


def test_ctrl_c_reaches_workers_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "book", "run", NAME, "--seeds", "0:40", "--chunk", "1", "--workers", "1"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # CI may ignore it
    ) as process:
        while process.poll() is None and not list(of(tmp_path).glob("*.npz")):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said and "the same command does the rest." in said
    assert 0 < len(list(of(tmp_path).glob("*.npz"))) < 80


def test_a_run_leaves_figure_history_provenance_and_command(tmp_path: Path, capsys, monkeypatch) -> None:
    from cbo_lib.former.history import History

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
    history = History.load(folder / "results" / "figure_5-10.npz")
    assert history.seeds == list(SEEDS)
    assert history["regret"].shape == (4, 4)
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
    assert "1, end: the same in 4 seeds" in said or "mean difference" in said
    assert main(["compare", str(folder), str(folder)]) == 0
    assert "the same in 4 seeds" in capsys.readouterr().out


def test_a_run_that_ends_while_its_folder_is_written_leaves_none_to_compare(tmp_path, monkeypatch, capsys) -> None:
    from book import outputs

    command = ["run", NAME, "--seeds", "0:2", "--workers", "0", "--out", str(tmp_path), "--steps"]
    assert main([*command, "3"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_write_json", lambda *given: os.open(tmp_path, os.O_WRONLY))
        with pytest.raises(IsADirectoryError):
            main([*command, "2"])
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / NAME), str(tmp_path / NAME)])
    assert "must hold a finished run" in capsys.readouterr().err
    assert main([*command, "2"]) == 0
    damaged = sorted(of(tmp_path).glob("*.npz"))
    for path in damaged:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SystemExit):
        main([*command, "2"])
    said = capsys.readouterr().err
    assert re.search(r"\.npz is damaged; once it is removed the same command does it", said), said
    for path in damaged:
        path.unlink()
    assert main([*command, "2"]) == 0


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


def test_runs_that_differ_say_how_and_other_experiments_are_refused(tmp_path: Path, capsys) -> None:
    numbers = {"end": [0.5, 0.25]}
    own = finished(tmp_path / "a", numbers, steps=5)
    changed = {"steps": 6, "scale": "paper", "device": "cuda", "code": "d", "versions": {"torch": "3"}}
    changed |= {"seeds": {"p": [3, 4]}, "tasks": {"one": 1.0}}
    other = finished(tmp_path / "b", numbers, **changed)
    assert main(["compare", str(own), str(other)]) == 0
    said = capsys.readouterr().out
    assert f"steps differs: 5 in {own}, 6 in {other}\n" in said
    assert all(f"{key} differs" in said for key in ("scale", "device", "code", "torch"))
    assert f"seeds differs: none in {own}, 2 from 3 to 4 in {other}" in said and "number of tasks differs" in said
    with pytest.raises(SystemExit):
        main(["compare", str(own), str(finished(tmp_path / "c", numbers, experiment="contexts.map"))])
    assert f"one experiment, got {NAME} in {own} and contexts.map in" in capsys.readouterr().err


def test_a_verdict_needs_seeds_and_spread(tmp_path: Path) -> None:
    from book import outputs

    def verdict_of(name: str, own: list[float], other: list[float]) -> str:
        folders = (finished(tmp_path / name / side, {"end": values}) for side, values in (("a", own), ("b", other)))
        return outputs.compare(*folders)[0].loc["p, end", "verdict"]

    assert verdict_of("few", [1.0, 2.0, 3.0, 4.0], [2.0, 3.5, 4.0, 5.0]) == "too few seeds"
    assert verdict_of("shifted", [0.1 * n for n in range(6)], [0.1 * n + 0.7 for n in range(6)]) == "no spread"
    assert verdict_of("enough", [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.5, 4.0, 5.0, 6.0]) == "holds"


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


def test_results_without_numbers_by_seed_are_compared_as_they_are(tmp_path: Path, capsys) -> None:
    import pandas as pd

    from book.harness import save_table

    own, other = (finished(tmp_path / name, {}) for name in "ab")
    for folder, last in ((own, 2.0), (other, 3.0)):
        frame = pd.DataFrame({"name": ["x", "y"], "mean": [1.0, None]})
        frame.attrs = {"command": str(folder)}
        save_table(frame, folder / "results" / "same.json")
        save_table(frame.fillna(last), folder / "results" / "other.json")
        np.savez(folder / "results" / "arrays.npz", x=np.array([np.nan, 1.0]))
    np.savez(own / "results" / "more.npz", x=np.zeros(1))
    assert main(["compare", str(own), str(other)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "no numbers by seed, so the results are compared as they are",
        "arrays.npz: equal",
        f"more.npz: only in {own}",
        "other.json: not equal",
        "same.json: equal",
    ]


@pytest.mark.parametrize("name", ["contexts.table_2", "contexts.proof", "contexts.rates", "synthesis.combined"])
def test_seeds_that_are_only_counted_begin_at_zero(name: str) -> None:
    part = registry.load(name).parts()[0]
    assert tasks.plan(name, "reader", seeds=range(3), parts=[part])[0].seeds == (0, 1, 2)
    with pytest.raises(ValueError, match="seeds must be 0:n"):
        tasks.plan(name, "reader", seeds=range(1, 4), parts=[part])


def test_seeds_need_not_follow_each_other() -> None:
    experiment = registry.load("subsets.map")
    part = "plant-cheap-0.04-12/pilot/repaired:none"
    first, other = (experiment.work(part, seeds, "reader", 5) for seeds in ([0, 5], [5]))
    assert len(first["regret"]) == 2 and (first["regret"][1] == other["regret"][0]).all()


def test_a_task_is_named_by_all_that_numbers_depend_on() -> None:
    from dataclasses import replace

    first = the_plan()[0]
    others = [
        replace(first, **change)
        for change in ({"seeds": (0, 1)}, {"scale": "paper"}, {"steps": None}, {"device": "cuda"}, {"code": "x"})
    ]
    assert len({task.file for task in [first, *others]}) == 6
    with pytest.raises(ValueError, match="code must be that of the client"):
        tasks.perform(others[-1], "nowhere")


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


def test_two_schedulers_share_a_folder(alone: Path, tmp_path: Path) -> None:
    """Half of the tasks by one scheduler, then all by another: the second does the other half."""
    started, python = [], [sys.executable, "-m"]
    try:
        addresses = []
        for _ in range(2):
            scheduler = subprocess.Popen(
                [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(scheduler)
            for line in scheduler.stderr:
                if found := re.search(r"tcp://127\.0\.0\.1:\d+", line):
                    addresses.append(found[0])
                    break
            worker = [*python, "distributed.cli.dask_worker", addresses[-1], "--nthreads", "1"]
            worker += ["--no-dashboard", "--local-directory", str(tmp_path / "scratch")]
            own = {**os.environ, "MALLOC_MMAP_MAX_": "0"}  # as the page on long runs exports it
            started.append(subprocess.Popen(worker, cwd=ROOT, stderr=subprocess.DEVNULL, env=own))
        plan, folder = the_plan(), tmp_path / "tasks"
        first = run(plan[:4], folder, scheduler=addresses[0])
        second = run(plan, folder, scheduler=addresses[1])
        with spread.client_of(1, addresses[1]) as client:
            assert list(client.run(os.getenv, "MALLOC_MMAP_MAX_").values()) == ["0"]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.communicate()
    assert (len(first), len(second)) == (4, 4)
    assert {record["by"] for record in first} != {record["by"] for record in second}
    assert numbers(folder) == numbers(alone)


def test_a_shared_disk_may_show_a_file_late(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(spread, "PATIENCE", 30.0)
    late = tmp_path / "folder" / "late.npz"

    def write() -> None:
        time.sleep(0.3)
        late.parent.mkdir()
        late.write_bytes(b"")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        assert spread.seen(late)
    monkeypatch.setattr(spread, "PATIENCE", 0.1)
    assert not spread.seen(tmp_path / "never.npz")


def test_a_scheduler_without_workers_and_a_lost_one_are_said(tmp_path: Path, monkeypatch) -> None:
    """It has no worker, so nothing is done when it is killed."""
    monkeypatch.setattr(spread, "LOOK", 0.2)
    said = threading.Event()
    monkeypatch.setattr(spread.tqdm, "write", lambda text: said.set() if text.startswith("No worker") else None)
    python = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([*python, "--no-dashboard"], cwd=ROOT, stderr=subprocess.PIPE, text=True) as scheduler:
        address = next(found[0] for line in scheduler.stderr if (found := re.search(r"tcp://127\.0\.0\.1:\d+", line)))

        def kill() -> None:
            said.wait(30)
            scheduler.kill()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(kill)
            with pytest.raises(ConnectionError, match=f"the scheduler is lost, {address}"):
                run(the_plan(), tmp_path, scheduler=address)
    assert said.is_set()


def test_a_worker_of_this_machine_that_stands_still_is_not_given_up(monkeypatch) -> None:
    import dask
    import distributed

    class Started(Exception):
        pass

    def cluster(**options) -> None:
        raise Started(dask.config.get("distributed.scheduler.worker-ttl"))

    monkeypatch.setattr(distributed, "LocalCluster", cluster)
    with pytest.raises(Started) as told, spread.client_of(1):
        pass
    assert told.value.args == (None,)  # Dask would kill it after five minutes


def test_workers_of_this_machine_have_one_thread_and_keep_what_was_freed(monkeypatch) -> None:
    for name in spread._ENVIRONMENT:  # what is set already, by a cluster before this one too, has precedence
        monkeypatch.delenv(name, raising=False)
    with spread.client_of(1) as client:
        kept = {name: next(iter(client.run(os.getenv, name).values())) for name in spread._ENVIRONMENT}
    assert kept == spread._ENVIRONMENT and kept["MALLOC_MMAP_MAX_"] == "0" and kept["OMP_NUM_THREADS"] == "1"
    assert int(kept["MALLOC_TRIM_THRESHOLD_"]) >= 2**28  # Dask's own is 2^16


def test_a_scheduler_that_does_not_answer_is_said_in_a_line(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(spread, "ANSWER", 1.0)
    with socket.socket() as silent:  # bound, but nobody listens
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["run", NAME, "--out", str(tmp_path), "--scheduler", address]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"no scheduler answers at {address}"


@pytest.mark.parametrize(
    ("error", "known"),
    [(ConnectionError("gone"), True), (OSError(errno.ENOSPC, "full"), True), (FileNotFoundError("absent"), False)],
)
def test_what_ends_a_run_from_outside_is_said_without_a_traceback(
    error: OSError, known: bool, tmp_path: Path, capsys, monkeypatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(spread, "run", fail)
    command = ["run", NAME, "--out", str(tmp_path)]
    if known:
        assert main(command) == 1
        assert "The same command does the rest." in capsys.readouterr().err
    else:
        with pytest.raises(FileNotFoundError, match="absent"):
            main(command)


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


def test_costs_on_the_pages_are_those_of_what_is_registered() -> None:
    from book._tools import measure_costs

    for row in json.loads(measure_costs.COSTS.read_text("utf-8"))["rows"]:
        assert row["timed"] and measure_costs.summary(row["experiment"], row["timed"]) == row
    for path, text in measure_costs.with_tables().items():
        assert path.read_text("utf-8") == text, f"{path}: python book/_tools/measure_costs.py --pages"


def test_a_part_whose_tasks_are_all_in_a_folder_costs_what_they_took(tmp_path: Path) -> None:
    from book._tools.measure_costs import of_runs

    for scale, steps, part, chunks in (("paper", None, "1", 2), ("paper", None, "10", 1), ("paper", 3, "10", 2)):
        for task in tasks.plan("aggregated.figure_5", scale, steps=steps, parts=[part])[:chunks]:
            file = tmp_path / task.experiment / "tasks" / task.file
            file.parent.mkdir(parents=True, exist_ok=True)
            about = {"task": asdict(task), "seconds": 1.25}
            file.write_bytes(tasks.pack({"numbers": np.zeros(1)}, about))
    row = {"seconds": 2.5, "how": "whole", "estimate": 2.5}
    assert of_runs(tmp_path) == {"aggregated.figure_5": {"1": row}}


def test_a_part_is_carried_on_by_a_line_through_its_later_rounds() -> None:
    from book._tools.measure_costs import DESIGN, FEWEST, carried_on

    each = [5.0] * DESIGN + [1 + 0.1 * n for n in range(DESIGN, 200)]
    stamps = [0.5 + sum(each[:n]) for n in range(200)]
    seen = DESIGN + FEWEST
    assert carried_on(stamps[: seen + 1], 199) == pytest.approx(stamps[199])
    assert carried_on(stamps[:seen], 199) is None  # too few
    faster = [60 * n - 0.1 * n * n for n in range(100)]
    mean = (faster[99] - faster[DESIGN]) / (99 - DESIGN)
    assert carried_on(faster, 199) == pytest.approx(faster[99] + 100 * mean)  # rounds get no shorter


def test_what_the_page_says_of_a_gpu() -> None:
    from book._tools import measure_device

    stored = json.loads(measure_device.STORED.read_text("utf-8"))
    page = (ROOT / "book/practice/long_runs.md").read_text("utf-8")
    rows = stored["rows"]
    assert [row["experiment"] for row in rows[::3]] == list(measure_device.PARTS)
    assert [(row["part"], row["rounds"]) for row in rows[::3]] == list(measure_device.PARTS.values())
    assert [row["replicates"] for row in rows] == [*measure_device.COUNTS] * len(measure_device.PARTS)
    assert f"on an {stored['about']['device']} (PyTorch {stored['about']['torch'][:4]})" in page
    ratios = [[row["one core"] / row["device"] for row in rows[start::3]] for start in range(3)]
    assert "slower than one core in four of the five chapters, and with 100 in two" in page
    assert [sum(ratio < 1 for ratio in some) for some in ratios] == [4, 2, 0] and "faster in all five" in page
    assert "no more than a few cores" in page and max(ratios[1]) < 4
    spread = [row["ratio before"] * row["device"] / row["one core"] for row in rows]
    assert f"ratios between {min(spread):.1f} and {max(spread):.1f} times these" in page
    assert "at most 100 replicates a part" in page
    for name in registry.match("*.figure_*"):
        experiment = registry.load(name)
        assert max(len(experiment.seeds(part, "paper")) for part in experiment.parts()) <= 100


def test_a_gpu_is_measured_by_one_batch_each() -> None:
    """Beside itself the CPU has the same numbers, of as many replicates as were asked for."""
    from book._tools.measure_device import alike, measured

    (seconds, here), (_, there) = (measured("aggregated.figure_5", 7, "cpu") for _ in range(2))
    assert seconds > 0 and all(len(values) == 7 for values in here.values()) and alike(here, there) == 1
    there["end"][2] += 1e-3
    assert alike(here, there) == pytest.approx(6 / 7)
    there["over rounds"][2], there["over rounds"][3] = float("nan"), 0.0
    assert alike(here, there) == pytest.approx(5 / 7)


def test_what_the_page_says_of_a_thousand_workers() -> None:
    from book._tools import simulate_run
    from book.contexts.experiments import PANELS
    from book.harness import load_table

    page = (ROOT / "book/practice/long_runs.md").read_text("utf-8")
    stored = json.loads(simulate_run.STORED.read_text("utf-8"))
    sent = simulate_run.sizes()
    assert stored["sent"] == sent and sent["bytes"] < 200
    assert f"has {sent['tasks']:,} tasks" in page and f"and {sent['tasks of one seed']:,} if" in page
    assert f"took {1000 * stored['seconds a task']:.1f} ms" in page
    assert (
        f"took {stored['check']['took']:.1f} seconds" in page
        and f"simulated {stored['check']['simulated']:.1f}" in page
    )
    slow = [row for row in stored["rows"] if row["mean"] == 60]
    assert [row["order"] for row in slow] == ["longest first", "as they come"]
    assert 0.45 < slow[0]["busy"] < 0.6 and slow[1]["seconds"] > 1.3 * slow[0]["seconds"]
    durations = [60 * size for size in (37, *[1] * 1000)]
    assert simulate_run.simulated(durations, 1000, overhead=0.0)["seconds"] == 37 * 60
    seconds = load_table(ROOT / "book/contexts/results/table_1.json")["in a batch"]
    assert f"{seconds.sum() * 5 * 3.5 * 7 / 3600:.1f} hours" in page
    assert 0.4 < seconds[["DRBO-MMD", "DRBO-MMD-MinimaxApprox"]].sum() / seconds.sum() < 0.5
    rows = json.loads((ROOT / "book/practice/costs.json").read_text("utf-8"))["rows"]
    timed = next(row["timed"] for row in rows if row["experiment"] == "contexts.figure_1")
    whole = {name: part["seconds"] / 60 for name, part in timed.items() if part["how"] == "whole"}
    seven = [
        [minutes for name, minutes in whole.items() if name.endswith(f"/{policy}")]
        for policy in ("StableOpt", "DRBO-KDE", "DRBO-MMD")
    ]
    assert all(len(minutes) == 7 for minutes in seven)
    drawn = [row["timed"] for row in rows if ".figure_" in row["experiment"]]
    parts = [part for timed in drawn for part in timed.values()]
    assert len(drawn) == 10 and {part["how"] for part in parts} == {"whole"}
    assert f"the figures took {sum(part['seconds'] for part in parts) / 3600:.1f} hours of one core" in page
    assert all(row["whole"] == row["parts"] for row in rows if ".figure_" in row["experiment"])
    others = [row for row in rows if row["experiment"].partition(".")[0] not in ("contexts", "subsets")]
    longest = max(part["seconds"] for row in others for part in row["timed"].values())
    assert f"the longest that was timed {longest:.0f} of them; those begin anew" in page
    assert "With four contexts DRBO-MMD ends after 60" in page and PANELS["ackley_4"].limits == {"DRBO-MMD": 60}
    took = "StableOpt's seven panels took {:.0f} minutes, DRBO-KDE's {:.0f}, and DRBO-MMD's {:.0f}."
    assert took.format(*map(sum, seven)) in page
    two = (whole[f"{panel}/DRBO-MMD-MinimaxApprox"] for panel in ("branin", "newsvendor"))
    assert "The approximation took {:.0f} minutes on Branin and {:.0f} on the newsvendor.".format(*two) in page
    three = (whole[f"{panel}/StableOpt"] for panel in ("ackley", "branin", "portfolio_uniform"))
    assert "took {:.1f} minutes there, and {:.1f} on Branin and {:.1f} on the portfolio".format(*three) in page


@pytest.fixture(scope="module")
def there() -> dict[str, str]:
    """What became of every figure on an accelerator, pretended where there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.figures_on_device"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.timeout(2400)  # the first of them runs every figure
@pytest.mark.parametrize("name", registry.TITLES)
def test_every_figure_runs_on_an_accelerator(name: str, there: dict[str, str]) -> None:
    assert there[name].startswith("ran"), there[name]
