"""``python -m book``: the same numbers whoever does the work, nothing lost, nothing twice."""

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from book import files, registry, runs
from book.__main__ import main
from book.aggregated.registry import RUNS

ROOT = Path(__file__).resolve().parents[2]
#: GPOO on two parts: four rounds of a few seeds take a tenth of a second.
NAME = "aggregated.figure_5"
SMALL = ["run", NAME, "--seeds", "0:2", "--steps", "4"]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task a seed, so that the small run has four."""
    monkeypatch.setitem(RUNS, "figure_5", replace(RUNS["figure_5"], chunk=1))


def stored(out: Path) -> dict[str, np.ndarray]:
    return files.load_arrays(out / NAME / "results" / "figure_5.npz")


def times(out: Path) -> dict[str, int]:
    """When each task was stored."""
    return {path.name: path.stat().st_mtime_ns for path in (out / NAME / "tasks").iterdir()}


def test_names_are_listed_without_torch() -> None:
    script = "import sys; from book.__main__ import main; main(['list']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(registry.TITLES)
    for line, (title, cost) in zip(lines, registry.TITLES.values(), strict=True):
        assert re.search(rf" {re.escape(cost)} +{re.escape(title)}$", line)


def test_every_chapter_registers_what_is_listed() -> None:
    for chapter in {name.partition(".")[0] for name in registry.TITLES}:
        listed = {name.partition(".")[2] for name in registry.TITLES if name.startswith(f"{chapter}.")}
        module = __import__(f"book.{chapter}.registry", fromlist=["RUNS"])
        assert set(module.RUNS) == listed, chapter
        assert len({experiment.file for experiment in module.RUNS.values()}) == len(listed), chapter
        for figure, experiment in module.RUNS.items():
            parts = experiment.parts()
            assert len(parts) == len(set(parts)) > 0, figure
            for scale in ("reader", "paper"):
                assert len(experiment.seeds(parts[0], scale)) > 0, figure


def test_figures_are_drawn_from_what_the_pages_read() -> None:
    drawn = []
    for name in registry.TITLES:
        experiment = registry.load(name)
        file = ROOT / "book" / name.partition(".")[0] / "results" / experiment.file
        if experiment.draw is not None and file.exists():
            load = files.load_arrays if file.suffix == ".npz" else files.load_table
            figure = experiment.draw(load(file))
            assert all(axis.has_data() for axis in figure.axes), name
            drawn.append(name)
    assert len(drawn) > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME, "--seeds", "1-3"], "argument --seeds: must be numbers or ranges"),
        ([NAME, "--seeds", "3:3"], "such as 0:30, got '3:3'"),
        ([NAME, "--seeds", "0:3", "2"], "--seeds must name each seed once, got 2 twice"),
        (["synthesis.combined", "--seeds", "5"], "--seeds must be 0:n in synthesis.combined"),
        (["contexts.estimates", "--steps", "3"], "--steps does not apply to contexts.estimates"),
        ([NAME, "--steps", "0"], "--steps must be a positive number, got 0"),
        ([NAME, "--steps", "few"], "argument --steps: invalid int value: 'few'"),
        ([NAME, "--workers", "-1"], "--workers must be a number from 0 on, got -1"),
        ([NAME, "--steps", "5", "--publish"], "--publish must go without --steps"),
        (["aggregated.figure_4", "--parts", "text/*", "--publish"], "--publish must go with all parts of aggregated"),
        ([NAME, "--parts", "1", "none/*"], f"--parts must match a part of {NAME}, got 'none/*'"),
        ([NAME, "--device", "cuda:99"], "--device must be cpu"),
        ([NAME, "--device", "foo"], "on this machine, got 'foo'"),
        (["figure_5"], f"no experiment is called 'figure_5'; did you mean {NAME}?"),
        (["agregated.figure_5"], f"did you mean {NAME}"),
        (["zzz"], "no experiment is called 'zzz'; see: python -m book list"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", *arguments, "--out", str(tmp_path)])
    assert end.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_work(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main([*SMALL, "--out", str(tmp_path / "file")])
    assert f"--out must be a folder to write in, got {tmp_path / 'file'}" in capsys.readouterr().err


def test_a_run_leaves_results_figure_and_provenance_and_is_not_repeated(tmp_path: Path, capsys) -> None:
    assert main([*SMALL, "--out", str(tmp_path), "--workers", "0"]) == 0
    left = {path.name for path in (tmp_path / NAME).iterdir()}
    assert left == {"about.json", "figure.png", "figure.svg", "results", "tasks"}
    assert {key: array.shape for key, array in stored(tmp_path).items()} == {
        f"{part}/{setup}": (2, 4) for part in (1, 10) for setup in ("published", "text")
    }
    about = json.loads((tmp_path / NAME / "about.json").read_text("utf-8"))
    assert about["command"] == f"python -m book run {NAME} --seeds 0:2 --steps 4"  # wherever it is done
    assert about["seeds"] == {"1": [0, 1], "10": [0, 1]}
    assert about["versions"]["torch"] == torch.__version__
    assert about["platform"] and about["code"] and about["seconds"] > 0
    before = times(tmp_path)
    assert main([*SMALL, "--out", str(tmp_path)]) == 0
    assert times(tmp_path) == before


def test_code_steps_and_seeds_are_in_the_name_of_a_task(tmp_path: Path) -> None:
    (task, _) = runs.plan(NAME, ["1", "10"], [0, 1], "reader", 4, "cpu")
    others = [{"code": "0"}, {"steps": 5}, {"seeds": (0, 3)}, {"scale": "paper"}, {"device": "cuda"}, {"part": "10"}]
    assert len({replace(task, **other).path(tmp_path) for other in [{}, *others]}) == 7


@pytest.mark.same_bits
def test_two_workers_find_what_one_process_finds(tmp_path: Path, chunks: None) -> None:
    for workers in ("0", "2"):
        assert main([*SMALL, "--out", str(tmp_path / workers), "--workers", workers]) == 0
    alone, shared = stored(tmp_path / "0"), stored(tmp_path / "2")
    assert times(tmp_path / "0").keys() == times(tmp_path / "2").keys() and len(times(tmp_path / "0")) == 4
    assert alone.keys() == shared.keys()
    assert all(np.allclose(alone[key], shared[key], atol=1e-6) for key in alone)


@pytest.mark.same_bits
def test_an_interrupted_run_goes_on(tmp_path: Path, chunks: None, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    perform = runs.perform

    def interrupted(task: runs.Task, root: Path) -> None:
        if (tmp_path / "b" / NAME / "tasks").exists() and len(times(tmp_path / "b")) == 2:
            raise KeyboardInterrupt
        perform(task, root)

    assert main([*SMALL, "--out", str(tmp_path / "a")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(runs, "perform", interrupted)
        assert main([*SMALL, "--out", str(tmp_path / "b")]) == 130
    assert "Interrupted. What is done is stored" in capsys.readouterr().err
    first = times(tmp_path / "b")
    assert len(first) == 2 and not (tmp_path / "b" / NAME / "results").exists()
    assert main([*SMALL, "--out", str(tmp_path / "b")]) == 0
    assert first.items() < times(tmp_path / "b").items()
    whole, resumed = stored(tmp_path / "a"), stored(tmp_path / "b")
    assert all(np.allclose(whole[key], resumed[key], atol=1e-6) for key in whole)


def test_a_figure_that_needs_all_parts_is_left_out(tmp_path: Path, capsys) -> None:
    name = "indirect.floor"
    (tmp_path / name).mkdir()
    (tmp_path / name / "figure.svg").touch()  # of an older run
    command = ["run", name, "--parts", "known/0.1", "--seeds", "0", "--steps", "6", "--out", str(tmp_path)]
    assert main(command) == 0
    assert f"{name}: the figure needs all parts and is left out" in capsys.readouterr().out
    assert not list((tmp_path / name).glob("figure.*"))


def test_what_is_published_is_where_pages_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def work(part: str, seeds: range, scale: str, steps: int | None) -> dict[str, np.ndarray]:
        return {"text": np.full((len(seeds), 3), float(part)), "published": np.zeros((len(seeds), 3))}

    monkeypatch.setitem(RUNS, "figure_5", replace(RUNS["figure_5"], work=work))
    monkeypatch.setattr(runs, "code_of", lambda chapter: "none")
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    file = tmp_path / "book" / "aggregated" / "results" / "figure_5.npz"
    command = ["run", NAME, "--out", str(tmp_path / "runs"), "--publish", "--seeds"]
    assert main([*command, "0:2"]) == 0
    assert len(stored(tmp_path / "runs")) == 4
    assert main([*command, "0:3", "--parts", "1"]) == 0
    assert len(stored(tmp_path / "runs")) == 2
    assert str(file) in capsys.readouterr().out
    published = files.load_arrays(file)  # the part that was run, and the other as it was
    assert [len(published[f"{part}/text"]) for part in (1, 10)] == [3, 2]


def test_a_table_is_published_whole_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = runs.plan("synthesis.combined", ["a", "b"], [0], "reader", None, "cpu")
    table = runs.joined(tasks, [pd.DataFrame({"end": [[1.0]]}), pd.DataFrame({"end": [[2.0], [3.0]]})])
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    table.attrs = {"command": "python -m book run synthesis.combined"}
    files.save_table(table, tmp_path / "synthesis.combined" / "results" / "combined.json")
    runs.publish("synthesis.combined", tmp_path)
    found = files.load_table(tmp_path / "book" / "synthesis" / "results" / "combined.json")
    assert found["end"].tolist() == [[1.0], [2.0], [3.0]] and found.index.tolist() == [0, 1, 2]
    assert found.attrs == table.attrs


def test_commands_named_on_pages_exist() -> None:
    """Every ``python -m book`` in a page or a docstring names what there is."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "book").rglob("*.md"), *(ROOT / "book").rglob("*.ipynb")]
    pages += [*(ROOT / "book").glob("*/*.py"), *(ROOT / "book").glob("*/results/*.json")]
    options = set(re.findall(r"--\w+", (ROOT / "book" / "__main__.py").read_text("utf-8")))
    named = {}
    for page in pages:
        for command in re.findall(r"python -m book(?: \w+|\.[\w.]+)[^`\n\\#)\"]*", page.read_text("utf-8")):
            named.setdefault(command.rstrip("', "), page)
    assert len(named) > 20
    for command, page in named.items():
        words = command.replace("'", "").split()
        if words[2] == "book":
            assert words[3] in ("list", "run"), (page, command)
            names = list(itertools.takewhile(lambda word: word[0] not in "-|", words[4:]))
            assert all(registry.match(name) for name in names), (page, command)
            assert {word for word in words if word.startswith("--")} <= options, (page, command)
        else:
            path = ROOT / (words[2].replace(".", "/") + ".py")
            assert path.exists() and "__main__" in path.read_text("utf-8"), (page, command)
