import copy
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.former import history as module
from cbo_lib.former.history import CheckpointLog, History, describe, provenance, write_atomically
from cbo_lib.kernels import TabulatedKernel

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex128,
]


def example(**more):
    tensors = {
        "query": torch.arange(12).reshape(2, 3, 2),
        "value": torch.linspace(0, 1, 6, dtype=torch.float64).reshape(2, 3),
    }
    return History({**tensors, **more}, [7, 2], {"problem": {"class": "Bumps", "noise_std": 0.1}}, {"device": "cpu"})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_saving_and_loading_keeps_every_dtype(tmp_path, dtype):
    tensor = (torch.arange(24).reshape(2, 3, 4) % 3).to(dtype)
    example(more=tensor).save(tmp_path / "run.npz")
    loaded = History.load(tmp_path / "run.npz")
    assert loaded["more"].dtype == dtype and torch.equal(loaded["more"], tensor)


def test_saving_and_loading_keeps_everything_else(tmp_path):
    saved = example(odd=torch.tensor([[float("nan"), float("inf"), -0.0]] * 2, dtype=torch.float64))
    saved.save(tmp_path / "run.npz")
    loaded = History.load(tmp_path / "run.npz")
    assert list(loaded.tensors) == list(saved.tensors)
    for name in ("query", "value"):
        assert torch.equal(loaded[name], saved[name]) and loaded[name].dtype == saved[name].dtype
    assert loaded["odd"].numpy().tobytes() == saved["odd"].numpy().tobytes()
    assert list(loaded.seeds) == [7, 2]
    assert loaded.config == saved.config and loaded.provenance == saved.provenance


def test_seeds_of_any_integer_kind_can_be_saved(tmp_path):
    for seeds in (range(2), (0, 1), np.arange(2)):
        History({"value": torch.zeros(2, 1)}, seeds).save(tmp_path / "run.npz")
        assert list(History.load(tmp_path / "run.npz").seeds) == [0, 1]


@pytest.mark.parametrize("name", ["file", "args", "arr_0", "a/b"])
def test_any_name_can_be_saved(tmp_path, name):
    example(**{name: torch.ones(2, 3)}).save(tmp_path / "run.npz")
    assert torch.equal(History.load(tmp_path / "run.npz")[name], torch.ones(2, 3))


def test_tensors_with_gradients_and_views_can_be_saved(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4).requires_grad_()
    History({"view": whole.T[:2]}, [0, 1]).save(tmp_path / "run.npz")
    assert torch.equal(History.load(tmp_path / "run.npz")["view"], whole.detach().T[:2])


def test_the_file_is_read_without_pickle_and_under_the_name_it_was_given(tmp_path):
    example().save(tmp_path / "run")
    assert os.listdir(tmp_path) == ["run"]
    with np.load(tmp_path / "run", allow_pickle=False) as file:
        assert {"query", "value"} < set(file.files)
        assert all(file[name].dtype != object for name in file.files)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("the file was executed",))


def test_a_file_with_objects_is_refused_and_not_executed(tmp_path):
    np.savez(
        tmp_path / "run.npz",
        value=np.array([[Bomb()]], dtype=object),
        __metadata__=np.array(json.dumps({"seeds": [0], "config": {}, "provenance": {}})),
    )
    with pytest.raises(ValueError, match=r"path .*run\.npz.*Object arrays cannot be loaded when allow_pickle=False"):
        History.load(tmp_path / "run.npz")


def archive(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def single():
    content = io.BytesIO()
    np.save(content, np.zeros(3))
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [archive(value=np.zeros((1, 1))), single(), b"", b"hello", archive(value=np.zeros((1, 1)))[:-30]],
    ids=["another archive", "a single array", "empty", "text", "torn"],
)
def test_a_file_that_holds_no_history_is_refused(tmp_path, content):
    (tmp_path / "run.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"path must name a file written by History\.save, got .*run\.npz"):
        History.load(tmp_path / "run.npz")


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run\.npz"):
        History.load(tmp_path / "run.npz")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    example().save(tmp_path / "run.npz")
    before = (tmp_path / "run.npz").read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        example(more=torch.zeros(2, 3)).save(tmp_path / "run.npz")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["run.npz"] and (tmp_path / "run.npz").read_bytes() == before


def test_a_reader_never_sees_a_part(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    write_atomically(path, b"old" * 1000)
    original = os.fsync
    # after all was written and before it counts
    monkeypatch.setattr(module.os, "fsync", lambda handle: seen.append(path.read_bytes()) or original(handle))
    write_atomically(path, b"new" * 1000)
    assert seen == [b"old" * 1000] and path.read_bytes() == b"new" * 1000


def test_unfinished_files_have_names_of_their_own(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(module.os, "replace", lambda source, target: seen.append(os.path.basename(source)))
    for _ in range(2):
        write_atomically(tmp_path / "file", b"x")
    assert len(set(seen)) == 2 and os.listdir(tmp_path) == []


def test_files_get_the_permissions_that_any_new_file_gets(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    example().save(tmp_path / "run.npz")
    assert stat.S_IMODE(os.stat(tmp_path / "run.npz").st_mode) == stat.S_IMODE(os.stat(tmp_path / "plain").st_mode)


def test_frame_has_one_row_a_replicate_and_step(tmp_path):
    matrix = torch.arange(24.0).reshape(2, 3, 2, 2)
    frame = example(matrix=matrix).to_frame()
    assert list(frame.columns) == [
        "seed", "step", "query[0]", "query[1]", "value",
        "matrix[0,0]", "matrix[0,1]", "matrix[1,0]", "matrix[1,1]",
    ]  # fmt: skip
    assert frame["seed"].tolist() == [7, 7, 7, 2, 2, 2] and frame["step"].tolist() == [1, 2, 3, 1, 2, 3]
    row = frame[(frame.seed == 2) & (frame.step == 3)].iloc[0]
    assert (row["query[0]"], row["query[1]"], row["value"], row["matrix[1,0]"]) == (10, 11, 1.0, 22.0)
    assert frame["query[0]"].dtype == np.int64 and frame["value"].dtype == np.float64


def test_frame_of_no_steps_is_empty():
    assert len(History({}, [1, 2]).to_frame()) == 0


def test_sizes_and_names():
    h = example()
    assert (h.replicates, h.steps) == (2, 3) and History({}, [1]).steps == 0
    assert torch.equal(h["value"], h.tensors["value"])
    with pytest.raises(KeyError, match="'cost' was not recorded; there is query, value"):
        h["cost"]


@pytest.mark.parametrize("shape", [(3, 4), (2,), ()])
def test_tensors_of_other_replicates_are_refused(shape):
    with pytest.raises(ValueError, match=r"tensors\['value'\] must have shape \(replicates, steps, \.\.\.\), here"):
        History({"value": torch.zeros(shape)}, [1, 2])


def test_tensors_of_unequal_steps_are_refused():
    with pytest.raises(ValueError, match=r"tensors\['value'\] must have"):
        History({"query": torch.zeros(2, 3), "value": torch.zeros(2, 4)}, [1, 2])


def test_provenance_is_filled_in_when_left_empty():
    assert History({}, [1]).provenance["versions"]["torch"] == torch.__version__


def test_provenance_names_the_versions():
    made = provenance()
    assert made["versions"]["numpy"] == np.__version__ and set(made["versions"]) >= {
        "python",
        "botorch",
        "gpytorch",
    }
    assert made["revision"] is None or len(made["revision"]) >= 40
    json.dumps(made)


def test_description_holds_the_plain_public_settings():
    class Thing:
        def __init__(self):
            self.rate, self.name, self.flag, self.nothing, self.count = 0.5, "a", True, None, 3
            self.tensor, self._secret = torch.ones(2), 1

    described = describe(Thing())
    assert described.pop("class code").startswith("crc32 ")
    assert described == {
        "class": "Thing", "rate": 0.5, "name": "a", "flag": True, "nothing": None, "count": 3,
        "tensor": f"torch.float32[2] crc32 {zlib.crc32(np.ones(2, np.float32).tobytes()):08x}",
    }  # fmt: skip


# The log of a run under way

STEPS = [{"query": torch.tensor([i, 1]), "value": torch.tensor([0.5 * i, float("nan")])} for i in range(4)]


@pytest.fixture
def log(tmp_path):
    return written(tmp_path / "log", STEPS)


def written(path, steps):
    """A log of these steps, closed."""
    with closing(CheckpointLog(path, {"seeds": [1]})) as made:
        for step in steps:
            made.append(step)
    return path


def opened(path):
    return closing(CheckpointLog(path, {"seeds": [1]}))


def same_steps(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        assert all(one[name].tobytes() == other[name].numpy().tobytes() for name in other)


def test_a_log_gives_back_its_steps(log):
    with opened(log) as again:
        same_steps(again.steps, STEPS)
        again.append(STEPS[0])
    with opened(log) as again:
        same_steps(again.steps, [*STEPS, STEPS[0]])


def test_a_record_torn_anywhere_is_cut_off_and_the_log_goes_on(log, tmp_path):
    whole, shorter = log.read_bytes(), written(tmp_path / "shorter", STEPS[:3]).read_bytes()
    assert whole.startswith(shorter)
    for cut in range(len(shorter), len(whole)):
        log.write_bytes(whole[:cut])
        with opened(log) as found:
            same_steps(found.steps, STEPS[:3])
        assert log.read_bytes() == shorter
    with opened(log) as found:
        found.append(STEPS[3])
    assert log.read_bytes() == whole


def test_a_log_torn_before_its_first_step_is_begun_anew(log, tmp_path):
    whole, empty = log.read_bytes(), written(tmp_path / "empty", []).read_bytes()
    for cut in range(len(empty)):
        log.write_bytes(whole[:cut])
        with opened(log) as found:
            assert not found.steps
        assert log.read_bytes() == empty


def test_the_log_of_another_run_is_refused_and_left_alone(log):
    before = log.read_bytes() + b"torn"
    log.write_bytes(before)
    with pytest.raises(ValueError, match=r'checkpoint must belong to this run.*"seeds": \[2\].*"seeds": \[1\]'):
        CheckpointLog(log, {"seeds": [2]})
    assert log.read_bytes() == before


def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    for content in (b"my notes", b"cbo_lib checkpoint 1\n" + bytes(100), CheckpointLog._magic[1:]):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"checkpoint must name a log that simulate wrote, .*, or a new file, got .*notes"
        ):
            CheckpointLog(path, {})
        assert path.read_bytes() == content


def test_an_empty_file_becomes_a_log(tmp_path):
    (tmp_path / "log").touch()
    written(tmp_path / "log", STEPS[:1])
    with opened(tmp_path / "log") as found:
        same_steps(found.steps, STEPS[:1])


def test_records_hold_no_pickle(log):
    content = log.read_bytes()
    start = content.index(b"PK\x03\x04")
    with zipfile.ZipFile(io.BytesIO(content[start:])) as file:
        assert all(name.endswith(".npy") for name in file.namelist())
    assert b"pickle" not in content


def test_a_tensor_that_changes_in_place_is_described_anew():
    table = torch.arange(6.0).reshape(2, 3)
    before, same = describe(table), describe(table.clone())
    table[0, 0] = 7.0
    after = describe(table)
    assert before == same != after
    assert after == describe(table.clone())


@pytest.mark.parametrize("tensor", [torch.tensor(2.5), torch.zeros(0, 3), torch.arange(6).reshape(2, 3).T])
def test_a_tensor_of_any_shape_and_layout_is_described_by_its_values(tensor):
    assert describe(tensor) == describe(tensor.clone().contiguous())
    assert f"crc32 {zlib.crc32(tensor.contiguous().numpy().tobytes()):08x}" in describe(tensor)


def test_a_buffer_that_changes_in_place_changes_the_description_of_its_module():
    kernel = TabulatedKernel(torch.eye(3))
    before = describe(kernel)
    kernel.gram[0, 0] = 2.0
    assert describe(kernel) != before


# Functions are known by their code


def defined(source, **names):
    """What a cell of a notebook would call ``f``."""
    cell = {"__name__": "__main__", **names}
    exec(source, cell)
    return cell["f"]


FUNCTION = """
def make(scale):
    def f(x, shift=1.0, *, power=2):
        "Words."
        def inner(y):
            return y + 3 if x in {"one", "two", "three"} else y
        try:
            return scale * inner(x) ** power + shift
        except ZeroDivisionError:
            return (lambda z: z)(x)
    return f
f = make(2.0)
"""
EDITS = {
    "a constant": ("+ 3", "+ 4"),
    "the kind of a constant": ("+ 3", "+ 3.0"),
    "a constant of a set": ('"two"', '"four"'),
    "an operation": ("** power + shift", "** power - shift"),
    "a nested lambda": ("lambda z: z", "lambda z: -z"),
    "a default": ("shift=1.0", "shift=1.5"),
    "a keyword's default": ("power=2", "power=3"),
    "what it closes over": ("make(2.0)", "make(2.5)"),
    "the name of an argument": ("shift", "offset"),
    "what it catches": ("ZeroDivisionError", "ValueError"),
    "its name": ("def f(x,", "def g(x,"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_function_is_another(edit):
    changed = FUNCTION.replace(*EDITS[edit]).replace("return f\n", "return g\n" if edit == "its name" else "return f\n")
    assert changed != FUNCTION
    assert describe(defined(FUNCTION)) == describe(defined(FUNCTION)) != describe(defined(changed))


def test_a_function_that_moved_is_the_same():
    moved = "\n\n# elsewhere\n" + FUNCTION.replace("\n    return", "\n\n    return")
    assert describe(defined(FUNCTION)) == describe(defined(moved))


PAIRS = {
    "partial": "import functools\nf = functools.partial(lambda x, y: x, y=VALUE)",
    "partial of another": "import functools\nf = functools.partial(lambda x: x + VALUE)",
    "cached": "import functools\nf = functools.lru_cache(lambda x: x + VALUE)",
    "bound method": "class A:\n    def __init__(self): self.x = VALUE\n    def g(self): return self.x\nf = A().g",
    "code of a bound method": "class A:\n    def g(self): return VALUE\nf = A().g",
    "property": "class A:\n    @property\n    def g(self): return VALUE\nf = A()",
    "private method": "class A:\n    def _g(self): return VALUE\nf = A()",
    "static method": "class A:\n    @staticmethod\n    def g(): return VALUE\nf = A()",
    "inherited method": "class B:\n    def g(self): return VALUE\nclass A(B): pass\nf = A()",
    "attribute of a class": "class A:\n    scale = VALUE\nf = A()",
    "object that can be called": "class A:\n    def __call__(self, x): return x * VALUE\nf = A()",
    "setting of what can be called": "class A:\n    __call__ = abs\nf = A()\nf.scale = VALUE",
    "class": "class f:\n    def g(self): return VALUE",
    "dataclass": "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass A:\n    x: int = VALUE\nf = A()",
    "recursive": "def make():\n    def f(n): return f(n - VALUE) if n else 0\n    return f\nf = make()",
    "closure over itself": "def make():\n    x = [VALUE]\n    x.append(x)\n    return lambda: x\nf = make()",
    "empty cell": "def make():\n    def f(): return late, VALUE\n    if not f: late = 1\n    return f\nf = make()",
    "array": "import numpy as np\nf = np.full(3, VALUE)",
    "array of objects": "import numpy as np\nf = [np.array([None, VALUE], dtype=object)]",
    "set": "f = {'a', 'b', VALUE}",
    "enumeration": "import enum\nf = enum.Enum('f', ['a', 'b'])['ab'[VALUE - 1]]",
    "NumPy's functions": "import numpy as np\nf = [np.sin, np.cos][VALUE - 1]",
    "PyTorch's functions": "import torch\nf = [torch.sin, torch.cos][VALUE - 1]",
    "built-in functions": "import math\nf = [math.sin, math.cos][VALUE - 1]",
    "smoothness": "from gpytorch.kernels import MaternKernel\nf = MaternKernel(nu=VALUE + 0.5)",
    "kernel within": "from gpytorch.kernels import *\nf = ScaleKernel([RBFKernel(), MaternKernel()][VALUE - 1])",
    "fraction": "from fractions import Fraction\nf = Fraction(1, 2 + VALUE)",
    "time": "import datetime\nf = datetime.timedelta(VALUE)",
}


@pytest.mark.parametrize("name", PAIRS)
def test_other_things_are_told_apart_too(name):
    one, same, other = (describe(defined(PAIRS[name].replace("VALUE", value))) for value in ("1", "1", "2"))
    assert json.dumps(one) == json.dumps(same) != json.dumps(other)
    assert "0x" not in json.dumps(one)


def test_a_derived_value_is_no_setting():
    thing = defined(
        "import functools\nclass A:\n    @functools.cached_property\n    def table(self): return 3\nf = A()"
    )
    before = describe(thing)
    assert thing.table == 3 and "table" in vars(thing) and describe(thing) == before


def test_a_description_does_not_depend_on_the_process():
    sources = [FUNCTION, *(source.replace("VALUE", "1") for source in PAIRS.values())]
    script = (
        "import json, sys\nfrom cbo_lib.former.history import describe\nfound = []\n"
        "for source in json.load(sys.stdin):\n    cell = {'__name__': '__main__'}\n    exec(source, cell)\n"
        "    found.append(describe(cell['f']))\nprint(json.dumps(found))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    other = {**os.environ, "PYTHONHASHSEED": "4", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=other, input=json.dumps(sources), text=True, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == [describe(defined(source)) for source in sources]


# Files that are not as they were


def metadata(**changes):
    """A file like that of a history, but for what is said beside its tensors."""
    said = {"seeds": [0], "config": {}, "provenance": {"device": "cpu"}, **changes}
    text = json.dumps({name: value for name, value in said.items() if value is not None})
    return {"value": np.zeros((1, 1)), "__metadata__": np.array(text)}


@pytest.mark.parametrize(
    "content",
    [
        metadata(seeds=None),
        metadata(seeds=[0, 1]),
        metadata(seeds=["zero"]),
        metadata(provenance=None),
        {**metadata(), "__metadata__": np.array('{"seeds": [0')},
        {**metadata(), "__metadata__": np.array("[]")},
        {**metadata(), "value": np.array([["word"]])},
    ],
    ids=["no seeds", "other seeds", "words for seeds", "no provenance", "torn JSON", "other JSON", "words"],
)
def test_a_file_that_is_malformed_inside_is_refused_by_name(tmp_path, content):
    (tmp_path / "run.npz").write_bytes(archive(**content))
    with pytest.raises(ValueError, match=r"path must name a file written by History\.save, got .*run\.npz"):
        History.load(tmp_path / "run.npz")


def test_a_flip_or_a_cut_anywhere_is_reported_or_does_not_matter(tmp_path):
    """What does not matter: dates, and other bytes of an archive that no one reads."""
    path, saved = tmp_path / "run.npz", History({"value": torch.tensor([[0.5, 2.0]])}, [7], {"a": 1}, {"device": "cpu"})
    saved.save(path)
    content, harmless, named = path.read_bytes(), 0, []
    for place in range(len(content)):
        for bit in (place % 8, (place + 4) % 8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            try:
                loaded = History.load(path)
            except ValueError as error:
                named.append("path must name a file written by History.save" in str(error) and "run.npz" in str(error))
                continue
            harmless += 1
            assert torch.equal(loaded["value"], saved["value"]) and list(loaded.tensors) == ["value"]
            assert (loaded.seeds, loaded.config, loaded.provenance) == ([7], {"a": 1}, {"device": "cpu"})
        path.write_bytes(content[:place])
        with pytest.raises(ValueError, match="path must name a file written by"):
            History.load(path)
    assert all(named) and 0 < harmless < len(named)


def test_an_array_of_which_a_part_would_be_read_is_checked_whole(tmp_path):
    """With a bit of the shape wrong an array is shorter; what is read of it then is right, and not all."""
    content = archive(**{**metadata(), "value": np.ones((1, 1, 3000))})
    assert content.count(b"(1, 1, 3000)") == 1
    (tmp_path / "run.npz").write_bytes(content.replace(b"(1, 1, 3000)", b"(1, 1, 1000)"))
    with pytest.raises(ValueError, match=r"path must name a file written by .*Bad CRC"):
        History.load(tmp_path / "run.npz")


@pytest.mark.parametrize("kind", [pd.DataFrame, pd.Series])
def test_a_frame_is_described_by_what_it_holds(kind):
    one, other = (kind({"a": x, "b": [3.0, 4.0]} if kind is pd.DataFrame else x) for x in ([1.0, 2.0], [1.0, 2.5]))
    assert describe(one) == describe(one.copy()) != describe(other)
    assert describe(one) != describe(one.rename("c") if kind is pd.Series else one.rename(columns={"a": "c"}))


def test_frames_and_dates_are_told_apart_and_large_ones_are_short():
    def dated(year):
        return pd.DataFrame({"day": pd.to_datetime([f"{year}-01-01"]), "y": [1.0]})

    different = [
        dated(2020),
        dated(2021),
        dated(2020).rename(columns={"y": "z"}),
        dated(2020).astype({"y": "float32"}),
        dated(2020).set_index("day"),
        pd.DataFrame({"cells": [[1, 2], [3]]}),
        pd.DataFrame({"cells": [[1, 2], [4]]}),
        pd.Series([pd.Timedelta(1)]),
        pd.Series([pd.Timedelta(2)]),
        pd.Index([1, 2]),
        pd.Index([1, 3]),
        pd.Timestamp("2020-01-01"),
        pd.Timestamp("2021-01-01"),
    ]
    found = [json.dumps(describe(thing)) for thing in different]
    assert len(set(found)) == len(different) and json.dumps(describe(dated(2020))) == found[0]
    assert len(json.dumps(describe(pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 5)))))) < 500


class Own:
    def __init__(self, level):
        self.level = level


class Emulator(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part


@pytest.mark.parametrize(
    "parts",
    [
        (torch.tensor([0.2]), torch.tensor([0.8])),
        ([0.2], [0.8]),
        ({"c": 1}, {"c": 2}),
        (np.zeros(2), np.ones(2)),
        (Own(1.0), Own(2.0)),
    ],
)
def test_what_a_module_keeps_is_described(parts):
    one, other = map(Emulator, parts)
    assert describe(one) == describe(Emulator(copy.deepcopy(parts[0]))) != describe(other)
    assert describe(Emulator(lambda x: x)) != describe(Emulator(lambda x: 2 * x))
