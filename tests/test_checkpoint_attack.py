"""Attacks on checkpoints: whatever is done to a log, a run on it gives the right result or says what is wrong."""

import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from cbo_lib.former.history import CheckpointLog, History
from cbo_lib.former.policy import Policy
from cbo_lib.former.simulate import simulate
from tests import attack
from tests.toys import Bumps, Grid, Watched

ROOT = Path(__file__).parents[1]
STEPS, SEEDS = 4, [0]
RIGHT, ERROR, FULL = "right result", "clear ValueError", "OSError with the history, then right result"

#: What became of every attack. A log is its magic and records: the header, and one a step; a record is its number, its
#: length, the checksum of its content, the checksum of these three, and its content.
PARTS = ("number", "length", "checksum", "own checksum", "content")
RECORDS = ("header", "first step", "step between", "last step")
OUTCOMES = {
    **{("killed at 20 moments", name): RIGHT for name in attack.SETTINGS},
    ("cut off within", "magic"): RIGHT,
    ("a bit flipped in", "magic"): ERROR,
    ("disk full within", "magic"): FULL,
    **{("cut off within", f"{part} of {record}"): RIGHT for record in RECORDS for part in PARTS},
    **{("a bit flipped in", f"{part} of {record}"): ERROR for record in RECORDS for part in PARTS},
    **{("disk full within", f"{part} of {record}"): FULL for record in RECORDS for part in PARTS},
    ("cut out", "a record"): ERROR,
    ("cut out", "a byte"): ERROR,
    ("written twice", "a record"): ERROR,
    ("exchanged", "two records"): ERROR,
    ("appended", "less than the head of a record"): RIGHT,
    ("appended", "zeros"): ERROR,
    ("appended", "another log"): ERROR,
    ("an earlier version's", "magic"): ERROR,
    ("two writers", "one after the other"): RIGHT,
    ("two writers", "in two processes, the first"): RIGHT,
    ("two writers", "in two processes, the second"): ERROR,
    ("two writers", "in one process"): ERROR,
    ("two writers", "without a lock"): ERROR,
    ("edited", "a lambda"): ERROR,
    ("edited", "a method"): ERROR,
    ("moved", "a lambda"): RIGHT,
}


class Same(Policy):
    """Asks the same query again and again, so that its queries tell nothing of whose step is whose."""

    query_dims = 0

    def propose(self):
        return torch.full((self.replicates,), 2)

    def learn(self, row, asked):
        pass

    def best(self):
        return torch.full((self.replicates,), int(self.data["y"][0, -1] > 0))

    def record(self):
        return {"mean": self.data["y"].mean(-1)}

    def posteriors(self):
        raise NotImplementedError


def run(log=None, steps=STEPS, problem=None):
    return simulate(problem or Bumps(5), Same(Grid(5)), steps, SEEDS, checkpoint=log, progress=False)


def equal(one, other):
    assert list(one.tensors) == list(other.tensors) and one.config == other.config
    return all(
        one[name].dtype == other[name].dtype and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one.tensors
    )


def outcome(log, expected, **options):
    """What a run on the log comes to."""
    before = log.read_bytes()
    try:
        history = run(log, **options)
    except ValueError as error:
        clear = str(error).startswith("checkpoint must ") and str(log) in str(error)
        return (ERROR if log.read_bytes() == before else "the file was changed") if clear else f"unclear: {error}"
    return RIGHT if equal(history, expected) else "WRONG"


@pytest.fixture
def whole():
    return run()


@pytest.fixture
def log(tmp_path):
    run(tmp_path / "log")
    return tmp_path / "log"


def spans(content):
    """Where each part of a log lies, by name; read without the library."""
    end = content.index(b"\n") + 1
    found, records = {"magic": (0, end)}, 0
    while end < len(content):
        _, length = struct.unpack_from("<QQ", content, end)
        record = RECORDS[min(records, 2) if records < STEPS else 3]
        sizes = (8, 8, 4, 4, length)
        for part, size in zip(PARTS, sizes, strict=True):
            found[f"{part} of {record}"] = (end, end + size)
            end += size
        records += 1
    assert records == STEPS + 1 and end == len(content)
    return found


def places(first, last):
    """All bytes of a short part; of a long one the first, the last and some between."""
    return range(first, last) if last - first < 40 else [*range(first, last - 1, 97), last - 1]


def expected(attack):
    return {part: {became} for (kind, part), became in OUTCOMES.items() if kind == attack}


def test_a_log_cut_off_anywhere_resumes(log, whole):
    content, found = log.read_bytes(), {}
    for part, (first, last) in spans(content).items():
        for cut in places(first, last):
            log.write_bytes(content[:cut])
            found.setdefault(part, set()).add(outcome(log, whole))
            assert log.read_bytes() == content
    assert found == expected("cut off within")


def test_a_flipped_bit_anywhere_is_reported_and_nothing_is_cut_off(log, whole):
    content, found = log.read_bytes(), {}
    for part, (first, last) in spans(content).items():
        for place in places(first, last):
            for bit in (0, place % 6 + 1, 7):
                flipped = bytearray(content)
                flipped[place] ^= 1 << bit
                log.write_bytes(flipped)
                found.setdefault(part, set()).add(outcome(log, whole))
    assert found == expected("a bit flipped in")


def test_the_message_about_a_flipped_bit_tells_how_to_go_on(log, whole):
    content = bytearray(log.read_bytes())
    first, _ = spans(content)["content of last step"]
    content[first] ^= 1
    log.write_bytes(content)
    with pytest.raises(ValueError, match="a byte of record 4 is wrong") as caught:
        run(log)
    (end,) = re.findall(r"The first (\d+) bytes, a log by themselves, hold the 3 steps before", str(caught.value))
    log.write_bytes(content[: int(end)])
    assert outcome(log, whole) == RIGHT


def test_records_that_are_missing_doubled_or_exchanged_are_reported(log, whole, tmp_path):
    content = log.read_bytes()
    at = [first for name, (first, _) in spans(content).items() if name.startswith("number")] + [len(content)]
    header, one, *_ = records = [content[a:b] for a, b in zip([0, *at[1:-1]], at[1:], strict=True)]
    between, last = b"".join(records[2:-1]), records[-1]
    run(tmp_path / "other", problem=Bumps(5, noise_std=0.2))
    # What two processes without a lock did: both append their steps, of the same numbers. Nine of ten observations
    # were wrong then, as the queries were those that were asked.
    changes = {
        ("cut out", "a record"): header + between + last,
        ("cut out", "a byte"): content[:-100] + content[-99:] + bytes(1),
        ("written twice", "a record"): header + one + one + between + last,
        ("exchanged", "two records"): header + between + one + last,
        ("appended", "less than the head of a record"): content + b"end",
        ("appended", "zeros"): content + bytes(4096),
        ("appended", "another log"): content + (tmp_path / "other").read_bytes(),
        ("an earlier version's", "magic"): content.replace(b"checkpoint 2", b"checkpoint 1"),
        ("two writers", "without a lock"): header + one + b"".join(records[1:]),
    }
    found = {}
    for name, changed in changes.items():
        log.write_bytes(changed)
        found[name] = outcome(log, whole)
    assert found == {name: OUTCOMES[name] for name in changes}


def test_a_full_disk_leaves_the_history_and_a_log_that_resumes(log, whole):
    """The system refuses to let the file grow beyond a size; Python ignores the signal that comes with it."""
    content, found = log.read_bytes(), {}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for part, (first, last) in spans(content).items():
        for size in {first, (first + last) // 2, last - 1}:
            log.unlink(missing_ok=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
            try:
                with pytest.raises(OSError, match="File too large") as caught:
                    run(log)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert log.read_bytes() == content[:size]
            if "step" in part:  # before that there is nothing to keep
                kept = caught.value.history
                assert kept.steps >= 1 and torch.equal(kept["observation"], whole["observation"][:, : kept.steps])
                assert "last" not in part or kept.steps == STEPS  # also the step that found no place
            found.setdefault(part, set()).add(FULL if outcome(log, whole) == RIGHT else "WRONG")
    assert found == expected("disk full within")


class Curve:
    def __init__(self, f):
        self.f = f

    def value(self, query):
        return self.f(query)

    def observe(self, query, generators):
        return self.value(query)


def made(source):
    """What a cell of a notebook defines."""
    cell = {"Curve": Curve, "__name__": "__main__"}
    exec(source, cell)
    return cell["problem"]


SOURCE = "problem = Curve(lambda query: 2.0 * query.double())"
METHOD = "class Own(Curve):\n    def value(self, query):\n        return query.double() + 1\nproblem = Own(None)"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (("edited", "a lambda"), SOURCE, SOURCE.replace("2.0", "3.0")),
        (("edited", "a method"), METHOD, METHOD.replace("+", "-")),
        (("moved", "a lambda"), SOURCE, f"\n\n\n{SOURCE}"),
    ],
    ids=["edited lambda", "edited method", "moved lambda"],
)
def test_a_log_belongs_to_the_code_that_made_it(tmp_path, name, before, after):
    run(tmp_path / "log", 2, made(before))
    expected = run(problem=made(after))
    assert outcome(tmp_path / "log", expected, problem=made(after)) == OUTCOMES[name]


# Processes


def environment(seed):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(seed)}


#: Whichever of the two holds the log stays at its first observation until the other has ended.
WRITER = """
import sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from tests.test_checkpoint_attack import run
from tests.toys import Bumps, Watched
folder, name, other = Path(sys.argv[1]), *sys.argv[2:]
last = time.monotonic() + 30
class Patient(Bumps):
    def observe(self, query, generators):
        while not (folder / other).exists() and time.monotonic() < last:
            time.sleep(0.01)
        return super().observe(query, generators)
print("ready", flush=True)
input()
try:
    run(folder / "log", 12, Watched(folder / "side", bumps=Patient(5))).save(folder / name)
except ValueError as error:
    (folder / name).write_text(str(error))
"""


def test_two_processes_on_one_log(tmp_path):
    """A policy that repeats its query: without a lock most observations were wrong, and no one noticed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(i), str(1 - i)],
            env=environment(i),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    try:
        assert [process.stdout.readline() for process in started] == ["ready\n", "ready\n"]
        for process in started:  # both go on at the same moment
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.wait(120) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    expected = run(steps=12, problem=Watched(tmp_path / "other", 0.0, Bumps(5)))
    found = []
    for i in range(2):
        content = (tmp_path / str(i)).read_bytes()
        if content.startswith(b"checkpoint must have one writer"):
            found.append(ERROR)
        else:
            found.append(RIGHT if equal(History.load(tmp_path / str(i)), expected) else "WRONG")
    names = [("two writers", f"in two processes, the {which}") for which in ("first", "second")]
    assert sorted(found) == sorted(OUTCOMES[name] for name in names)
    assert len((tmp_path / "side").read_text().splitlines()) == 12  # one process observed
    again = simulate(Watched(tmp_path / "side", 0.0, Bumps(5)), Same(Grid(5)), 12, SEEDS, checkpoint=tmp_path / "log")
    assert equal(again, expected) and OUTCOMES["two writers", "one after the other"] == RIGHT


def test_a_second_run_in_the_same_process_is_refused(tmp_path):
    class Nested(Bumps):
        def observe(self, query, generators):
            if not found:
                found.append("begun")
                found.append(outcome(tmp_path / "log", None, problem=problem))
            return super().observe(query, generators)

    found = []
    problem = Watched(tmp_path / "side", bumps=Nested(5))  # whose description holds nothing of what it watches
    run(tmp_path / "log", problem=problem)
    assert found == ["begun", OUTCOMES["two writers", "in one process"]]


ORPHAN = """
import os, signal, sys
from cbo_lib.former.history import CheckpointLog
log = CheckpointLog(sys.argv[1], {})
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_lock_even_if_a_child_of_it_lives_on(tmp_path):
    """As the workers of a pool do."""
    command = [sys.executable, "-W", "ignore", "-c", ORPHAN, str(tmp_path / "log")]
    done = subprocess.run(command, env=environment(0), stdout=subprocess.PIPE, text=True, check=False)
    child = int(done.stdout)
    try:
        os.kill(child, 0)  # is alive
        CheckpointLog(tmp_path / "log", {}).close()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where the system has one: to write a thousand records through to a busy disk takes minutes."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_killed_runs_of_every_setting_resume_bit_for_bit(memory):
    """In another process, with another order of hashes, than the one that was killed."""
    command = [sys.executable, "-m", "tests.attack", str(memory)]
    subprocess.run(command, cwd=ROOT, env=environment(17), check=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in attack.SETTINGS:
            expected, lengths = attack.run(name), Counter()
            found = Counter()
            for i in range(attack.KILLS):
                log = memory / f"{name}-{i}"
                lengths[log.stat().st_size if log.exists() else 0] += 1
                found[RIGHT if equal(attack.run(name, log), expected) else "WRONG"] += 1
                assert log.read_bytes() == (memory / f"{name}-whole").read_bytes()
            assert found == {OUTCOMES["killed at 20 moments", name]: 20}
            assert len(lengths) > 2, f"{name} was always killed at the same place"
    finally:
        torch.set_num_threads(threads)
