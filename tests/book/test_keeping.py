"""A task that is stopped goes on where it was: the same bits, and little is thought about twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from book import harness, keeping, registry, tasks
from cbo_lib.former.history import CheckpointLog
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import HEGPUCB
from tests.runs import ALL, make

ROOT = Path(__file__).parents[2]
STEPS, SEEDS = 14, [3, 4]


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(keeping, "EVERY", 0.0)


def run(setting, name, path, given=True, stop_at=None):
    """One run of a task: before which rounds its policy thought, the history (None: it was stopped), what is kept."""
    made, proposed = make(setting, name, given), []
    policy = made.policy
    kind, propose = type(policy), type(policy).propose

    def counted(self):
        if self.count == stop_at:
            raise KeyboardInterrupt
        proposed.append(self.count)
        return propose(self)

    with pytest.MonkeyPatch.context() as patch, keeping.kept(path) as under:
        patch.setattr(kind, "propose", counted)
        try:
            history = keeping.run(made.problem, policy, STEPS, SEEDS, None)
        except KeyboardInterrupt:
            history = None
    assert type(policy) is kind
    return proposed, history, under


def same(a, b):
    assert a.tensors.keys() == b.tensors.keys() and (a.seeds, a.config) == (b.seeds, b.config)
    assert all(torch.equal(a[name].nan_to_num(7.0), b[name].nan_to_num(7.0)) for name in a.tensors)


@pytest.mark.parametrize(
    ("setting", "name", "given"), [case for case in ALL if case[2] or case[1] in ("SBO-KDE", "HE-GP-UCB", "proposed")]
)
def test_every_policy_goes_on_where_it_was(setting, name, given, tmp_path):
    made = make(setting, name, given)
    whole = simulate(made.problem, made.policy, STEPS, SEEDS, progress=False)
    first, nothing, _ = run(setting, name, tmp_path / "task", given, stop_at=12)
    again, history, under = run(setting, name, tmp_path / "task", given)
    assert nothing is None and first
    same(history, whole)
    assert all(count >= 12 for count in again) and under.earlier > 0
    under.forget()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def case(tmp_path):
    made = make("hyperparameters", "HE-GP-UCB")
    whole = simulate(made.problem, made.policy, STEPS, SEEDS, progress=False)
    return whole, lambda **more: run("hyperparameters", "HE-GP-UCB", tmp_path / "task", **more)


def test_a_run_that_dies_between_its_two_files_goes_on(case, monkeypatch):
    """The policy was written, and what it was told of was not."""
    whole, go_on = case
    append, written = CheckpointLog.append, []

    def dying(log, record):
        if len(written) == 7:
            raise KeyboardInterrupt
        written.append(append(log, record))

    monkeypatch.setattr(CheckpointLog, "append", dying)
    assert go_on()[1] is None
    monkeypatch.undo()
    proposed, history, _ = go_on()
    same(history, whole)
    assert min(proposed) >= 7  # seven records, and a policy that knows eight


def test_it_may_be_stopped_again_and_again(case):
    whole, go_on = case
    for at in (5, 7, 8):
        proposed, history, _ = go_on(stop_at=at)
        assert history is None
    assert proposed == [7]
    same(go_on()[1], whole)


def test_without_its_policy_a_run_thinks_again(case, tmp_path):
    whole, go_on = case
    go_on(stop_at=9)
    (file,) = tmp_path.glob(".*.policy")
    file.unlink()
    proposed, history, _ = go_on()
    same(history, whole)
    assert min(proposed) < 9


def test_with_a_damaged_policy_a_run_thinks_again(case, tmp_path):
    whole, go_on = case
    go_on(stop_at=9)
    (file,) = tmp_path.glob(".*.policy")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    proposed, history, under = go_on()
    same(history, whole)
    assert min(proposed) < 9 and under.earlier == 0


def test_a_run_that_is_killed_while_it_writes_has_what_it_wrote_before(case, monkeypatch):
    whole, go_on = case
    save, written = keeping.save_object, []

    def dying(*about):
        if len(written) == 8:
            raise KeyboardInterrupt
        written.append(save(*about))

    monkeypatch.setattr(keeping, "save_object", dying)
    assert go_on()[1] is None
    monkeypatch.undo()
    proposed, history, _ = go_on()
    same(history, whole)
    assert min(proposed) == 8


def test_without_its_log_a_run_begins_anew(case, tmp_path):
    whole, go_on = case
    go_on(stop_at=9)
    (file,) = tmp_path.glob(".*.log")
    file.unlink()
    same(go_on()[1], whole)


def test_two_processes_at_the_same_task_do_not_wait_for_each_other(case, tmp_path):
    whole, go_on = case
    log = CheckpointLog(tmp_path / ".task-1.log", {})
    try:
        same(go_on()[1], whole)
    finally:
        log.close()


def test_a_policy_that_cannot_be_written_is_asked_again(case, tmp_path, monkeypatch):
    whole, go_on = case
    begin = HEGPUCB.begin

    def begin_with_a_function(self):
        begin(self)
        self.thought = lambda t: t

    monkeypatch.setattr(HEGPUCB, "begin", begin_with_a_function)
    go_on(stop_at=9)
    assert not list(tmp_path.glob(".*.policy"))
    proposed, history, _ = go_on()
    same(history, whole)
    assert min(proposed) < 9


def test_outside_of_a_task_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = make("hyperparameters", "HE-GP-UCB")
    harness.run(made.problem, {"HE-GP-UCB": made.policy}, 4, SEEDS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("contexts.figure_1", "branin/StableOpt"),
        ("contexts.figure_2", "ackley_4/GP-UCB"),
        ("contexts.map", "newsvendor/SBO-KDE"),
        ("contexts.slips", None),
        ("subsets.figure_1", "hartmann-cheap-0.02/UCB-PSQ"),
        ("subsets.map", "hartmann-cheap-0.04-25/pilot/UCB-PSQ"),
    ],
)
def test_the_long_tasks_are_kept(name, part, tmp_path, monkeypatch):
    found, forget = [], keeping.UnderWay.forget

    def looking(under):
        found.extend(path.suffix for path in tmp_path.iterdir())
        forget(under)

    monkeypatch.setattr(keeping.UnderWay, "forget", looking)
    part = part or registry.load(name).parts()[0]
    (task,) = tasks.plan(name, "reader", seeds=[0], steps=2, parts=[part])
    tasks.perform(task, str(tmp_path))
    assert sorted(found) == [".log", ".npz", ".policy"]


CODE = """
import os, sys
from book import keeping, tasks
keeping.EVERY = 0.0
replace, left = os.replace, {".policy": 5, ".npz": 1}
def killing(partial, target):
    if sys.argv[2] and str(target).endswith(sys.argv[2]):
        left[sys.argv[2]] -= 1
    if 0 in left.values():
        os.kill(os.getpid(), 9)
    replace(partial, target)
os.replace = killing
(task,) = tasks.plan("contexts.figure_1", "reader", seeds=[100], steps=40, parts=["newsvendor/SBO-KDE"])
tasks.perform(task, sys.argv[1])
"""


@pytest.fixture(scope="module")
def done_alone(tmp_path_factory):
    """A task, and the file of one that nothing stopped."""
    (task,) = tasks.plan("contexts.figure_1", "reader", seeds=[100], steps=40, parts=["newsvendor/SBO-KDE"])
    folder = tmp_path_factory.mktemp("alone")
    tasks.perform(task, str(folder))
    return task, folder / task.file


@pytest.mark.parametrize("written", ["", ".policy", ".npz"], ids=["at any moment", "policy", "result"])
def test_a_killed_task_goes_on(written, done_alone, tmp_path):
    """At any moment, and at the end of writing a file."""
    (task, alone), folder = done_alone, tmp_path
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(folder), written]
    with subprocess.Popen(command, cwd=ROOT) as process:
        while process.poll() is None and not (found := list(folder.glob(".*.policy"))):
            time.sleep(0.01)
        if not written:
            time.sleep(0.5)  # some steps more
            process.kill()
    assert process.returncode == -signal.SIGKILL and found and not (folder / task.file).exists()
    assert not written or [path.name.split(".")[-4] for path in folder.glob("*.partial")] == [written[1:]]
    done = tasks.perform(task, str(folder))
    assert os.listdir(folder) == [task.file] and done["seconds"] > 0
    both = [path.read_bytes() for path in (alone, folder / task.file)]
    (one, about), (other, again) = map(tasks.unpack, both)
    same(one, other)
    for part in (about, again):
        part.pop("seconds")
    assert json.dumps(about) == json.dumps(again)


def test_two_processes_that_end_the_same_task_at_once(tmp_path, monkeypatch):
    (task,) = tasks.plan("contexts.figure_1", "reader", seeds=[100], steps=2, parts=["newsvendor/random"])
    replace = os.replace

    def later(partial, target):
        monkeypatch.setattr(os, "replace", replace)
        tasks.perform(task, str(tmp_path))
        replace(partial, target)

    monkeypatch.setattr(os, "replace", later)
    tasks.perform(task, str(tmp_path))
    assert os.listdir(tmp_path) == [task.file] and tasks.unpack((tmp_path / task.file).read_bytes())

    def lost(partial, target):
        Path(partial).unlink()
        replace(partial, target)

    monkeypatch.setattr(os, "replace", lost)
    with pytest.raises(FileNotFoundError):
        tasks.perform(task, str(tmp_path / "gone"))
