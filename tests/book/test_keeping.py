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

from book import keeping, tasks
from cbo_lib.former.simulate import simulate
from tests.runs import make

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


def same(a, b, steps):
    """The same run, of which the first steps were not done again."""
    assert a.tensors.keys() == b.tensors.keys() and (a.seeds, a.config) == (b.seeds, b.config)
    assert a.steps == b.steps
    for name in a.tensors:
        torch.testing.assert_close(a[name][:, :steps], b[name][:, :steps], equal_nan=True)


@pytest.fixture
def case(tmp_path):
    made = make("hyperparameters", "HE-GP-UCB")
    whole = simulate(made.problem, made.policy, STEPS, SEEDS, progress=False)
    return whole, lambda **more: run("hyperparameters", "HE-GP-UCB", tmp_path / "task", **more)


def test_with_a_damaged_policy_a_run_thinks_again(case, tmp_path):
    whole, go_on = case
    go_on(stop_at=9)
    (file,) = tmp_path.glob(".*.policy")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    proposed, history, under = go_on()
    same(history, whole, 9)
    assert min(proposed) < 9 and under.earlier == 0


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


@pytest.mark.parametrize("written", ["", ".policy"], ids=["at any moment", "policy"])
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
    same(one, other, 1)
    for part in (about, again):
        part.pop("seconds")
    assert json.dumps(about) == json.dumps(again)
