"""What a simulation recorded, on disk without pickle: a finished history, and the log of a run under way."""

import io
import json
import os
import platform
import re
import secrets
import socket
import struct
import subprocess
import sys
import types
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, timedelta
from enum import Enum
from functools import _lru_cache_wrapper, cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cbo_lib.checks import require

_METADATA = "__metadata__"


@dataclass(frozen=True, eq=False)
class History:
    """Named tensors of a simulation, ``replicates x steps x ...`` each, and what made them.

    Args:
        tensors: by name: ``query``, ``observation``, ``value``, ``recommendation``, ``recommended_value``, the trace's.
        seeds: one a replicate.
        config: the problem and the policy, as JSON values.
        provenance: versions, device and git revision; filled in when left empty.
    """

    tensors: Mapping[str, Tensor]
    seeds: Sequence[int]
    config: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Every tensor must hold one entry a replicate and step."""
        for name, tensor in self.tensors.items():
            shape = (len(self.seeds), self.steps)
            wanted = f"tensors[{name!r}] must have shape (replicates, steps, ...), here {shape}"
            require(tensor.dim() >= 2 and tensor.shape[:2] == shape, wanted, tuple(tensor.shape))
        object.__setattr__(self, "seeds", [int(seed) for seed in self.seeds])
        object.__setattr__(self, "provenance", dict(self.provenance) or provenance())

    def __getitem__(self, name: str) -> Tensor:
        """The tensor of that name, ``replicates x steps x ...``."""
        if name not in self.tensors:
            raise KeyError(f"{name!r} was not recorded; there is {', '.join(sorted(self.tensors))}")
        return self.tensors[name]

    @property
    def replicates(self) -> int:
        """How many independent runs."""
        return len(self.seeds)

    @property
    def steps(self) -> int:
        """How many steps each run took."""
        first = next(iter(self.tensors.values()), None)
        return 0 if first is None or first.dim() < 2 else first.shape[1]

    def save(self, path: str | Path) -> None:
        """Write to an ``.npz`` file, whole or not at all."""
        metadata = {"seeds": self.seeds, "config": self.config, "provenance": self.provenance}
        write_atomically(path, pack_arrays({_METADATA: np.array(json.dumps(metadata)), **self.tensors}))

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read what ``save`` wrote, and execute nothing; a ``ValueError`` if the file is damaged or another."""
        with reading(path, "History.save") as content:
            arrays = unpack_arrays(content)
            metadata = json.loads(str(arrays.pop(_METADATA)))
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            return cls(tensors, metadata["seeds"], metadata["config"], metadata["provenance"])

    def to_frame(self) -> pd.DataFrame:
        """One row a replicate and step; tensors of more dimensions become columns ``name[i,j]``."""
        seeds = np.repeat(np.asarray(self.seeds), self.steps)
        columns: dict[str, Any] = {"seed": seeds, "step": np.tile(np.arange(1, self.steps + 1), self.replicates)}
        for name, tensor in self.tensors.items():
            values = tensor.detach().cpu().numpy().reshape(self.replicates * self.steps, *tensor.shape[2:])
            for at in np.ndindex(values.shape[1:]):
                columns[f"{name}[{','.join(map(str, at))}]" if at else name] = values[(slice(None), *at)]
        return pd.DataFrame(columns)


def pack_arrays(arrays: Mapping[str, np.ndarray | Tensor]) -> bytes:
    """The content of an ``.npz`` file; unlike ``numpy.savez`` it takes any name."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                array = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
                np.lib.format.write_array(file, array, allow_pickle=False)
    return content.getvalue()


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, each checked by its checksum; nothing in it is executed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # Members are read whole: one of which a part is read is not checked.
        parts = {name.removesuffix(".npy"): io.BytesIO(archive.read(name)) for name in archive.namelist()}
    counted = int.from_bytes(content[-12:-10], "little")  # by the end of the archive
    require(len(parts) == counted, f"there must be {counted} arrays", len(parts))
    return {name: np.lib.format.read_array(part, allow_pickle=False) for name, part in parts.items()}


@contextmanager
def reading(path: str | Path, writer: str) -> Iterator[bytes]:
    """The content of a file; whatever is wrong with it becomes a ``ValueError`` that names the file and its writer."""
    content = Path(path).read_bytes()
    try:
        yield content
    except Exception as error:  # zip, JSON, NumPy and keys each have errors of their own
        found = f"{path}, which is damaged or another file ({type(error).__name__}: {error})"
        raise ValueError(f"path must name a file written by {writer}, got {found}") from error


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part, on shared disks too."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{socket.gethostname()}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def describe(thing: object) -> Any:
    """What identifies a problem, a policy or a setting of theirs, as a JSON value.

    Plain values stand for themselves, tensors and arrays are given by a checksum, and functions by their name and a
    checksum of their code: bytecode, constants, default arguments and what they close over, not where they stand. Other
    objects are given by their class, their public attributes and, unless the class comes with Python or a package that
    this library stands on, a checksum of the code of the class.

    What a function or method finds in its module is not seen: neither the code of functions that it calls nor the
    values of global variables. Another version of Python has other bytecode.
    """
    return _describe(thing, frozenset())


_CODE = "argcount posonlyargcount kwonlyargcount flags names varnames freevars consts code exceptiontable"
_WRAPPED = {property: "fget", cached_property: "func", staticmethod: "__func__", classmethod: "__func__"}
_WRAPPED[_lru_cache_wrapper] = "__wrapped__"
_INSTALLED = {"cbo_lib", "torch", "gpytorch", "botorch", "linear_operator", "numpy", "pandas"} | sys.stdlib_module_names


def _describe(thing: Any, above: frozenset[int]) -> Any:
    """``describe`` of a part of things that it may refer back to."""
    thing = getattr(thing, _WRAPPED.get(type(thing), ""), thing)
    if isinstance(thing, bool | int | float | str | None):
        return thing
    if isinstance(thing, date | timedelta):
        return repr(thing)
    if isinstance(thing, Tensor | np.ndarray) and thing.dtype != object:
        array = thing.detach().cpu().numpy() if isinstance(thing, Tensor) else thing
        return f"{thing.dtype}{list(thing.shape)} {_crc(np.ascontiguousarray(array).data)}"
    if id(thing) in above:
        return "again"
    inner = partial(_describe, above=above | {id(thing)})
    if isinstance(thing, list | tuple):
        return [inner(item) for item in thing]
    if isinstance(thing, pd.DataFrame | pd.Series | pd.Index):
        frame = pd.DataFrame(thing)
        try:
            rows = _crc(np.ascontiguousarray(pd.util.hash_pandas_object(frame)).data)
        except TypeError:  # cells that have no hash, such as lists
            rows = inner(frame.to_dict(orient="split"))
        return {"columns": [*map(repr, frame.columns)], "dtypes": [*map(str, frame.dtypes)], "rows": rows}
    if isinstance(thing, set | frozenset):
        return sorted(map(inner, thing), key=json.dumps)
    if isinstance(thing, Mapping):
        return {str(key): inner(value) for key, value in thing.items()}
    if isinstance(thing, partial):
        return {"partial": inner([thing.func, thing.args, thing.keywords])}
    if isinstance(thing, types.MethodType):
        return {"method": inner([thing.__func__, thing.__self__])}
    if isinstance(thing, types.CodeType):
        return inner([getattr(thing, f"co_{name}") for name in _CODE.split()])
    if isinstance(thing, types.FunctionType):
        closed = [cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType()]
        return f"{thing.__qualname__} {_crc(inner([thing.__code__, thing.__defaults__, thing.__kwdefaults__, closed]))}"
    if isinstance(thing, type):
        own = [base for base in thing.__mro__ if base.__module__.partition(".")[0] not in _INSTALLED]
        members = {f"{base.__name__}.{name}": x for base in own for name, x in vars(base).items()}
        code = {name: x for name, x in members.items() if "._" not in name or callable(x) or type(x) in _WRAPPED}
        return {"class": thing.__name__, **({"class code": _crc(inner(code))} if own else {})}
    if isinstance(thing, torch.nn.Module):
        plain = {n: x for n, x in vars(thing).items() if n != "training"}
        parts = {**plain, **thing._parameters, **thing._buffers, **thing._modules}
    elif is_dataclass(thing):
        parts = {f.name: getattr(thing, f.name) for f in fields(thing)}
    elif hasattr(thing, "__dict__") and not isinstance(thing, types.ModuleType | np.ufunc | Enum):
        kind = type(thing)
        parts = {n: x for n, x in vars(thing).items() if not isinstance(getattr(kind, n, None), cached_property)}
    else:
        return re.sub(r" (at 0x|from ')[^>]*", "", repr(thing))
    return {**inner(type(thing)), **{name: inner(part) for name, part in parts.items() if not name.startswith("_")}}


def _crc(content: Any) -> str:
    """The checksum of bytes, or of a JSON value."""
    data = content if isinstance(content, memoryview) else json.dumps(content, sort_keys=True).encode()
    return f"crc32 {zlib.crc32(data):08x}"


@cache
def provenance() -> dict[str, Any]:
    """Versions of what computes, and the git revision of this library if it runs from a checkout."""
    versions = {"python": platform.python_version()}
    for package in ("cbo_lib", "torch", "gpytorch", "botorch", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        revision = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    return {"versions": versions, "revision": revision, "machine": platform.machine()}


class CheckpointLog:
    """The steps of a run under way, one record appended a step, by one writer: the file is locked until ``close``.

    A record is its number, the length and a checksum of its content, a checksum of these three, and the content: an
    ``.npz`` of one step, or the header in the first. A record that a kill left unfinished is one whose end is missing
    and whose beginning is right; it is cut off, so at most one step is lost. All else is damage, and refused.

    Args:
        path: the file; created if it does not exist.
        header: what identifies the run; an existing log must carry the same.

    Attributes:
        steps: what the log held, by name.

    Raises:
        ValueError: if the file is no log, is damaged, belongs to another run or has another writer. It is left alone.
    """

    _magic, _frame = b"cbo_lib checkpoint 2\n", struct.Struct("<QQII")
    _number = 0  # of the next record

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.steps: list[dict[str, np.ndarray]] = []
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  # open as long as the run, and with it the lock
        _LOGS.add(self)
        try:
            self._lock()
            self._resume(json.dumps(header, sort_keys=True).encode())
        except BaseException:
            self.close()
            raise

    def append(self, step: Mapping[str, Tensor]) -> None:
        """Add one step and wait until it is on disk."""
        self._write(pack_arrays(step))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _lock(self) -> None:
        """Locks end with their process, however it ends."""
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError) as error:
            raise ValueError(f"checkpoint must have one writer and be lockable, got {self.path} ({error})") from error

    def _resume(self, expected: bytes) -> None:
        self._file.seek(0)
        content = self._file.read()
        # Of a log that was killed before its first step nothing but the magic or its beginning may be there.
        records, end = ([], 0) if self._magic.startswith(content) else self._complete(content)
        found = f"{self.path} of {b''.join(records[:1]).decode()}"
        require(records[:1] in ([], [expected]), f"checkpoint must belong to this run, {expected.decode()}", found)
        self.steps = [unpack_arrays(record) for record in records[1:]]
        self._number = len(records)
        if end < len(content):
            self._file.truncate(end)
        if not records:
            self._write(expected, b"" if end else self._magic)

    def _write(self, record: bytes, before: bytes = b"") -> None:
        frame = self._frame.pack(self._number, len(record), zlib.crc32(record), 0)[:-4]
        rest = before + frame + struct.pack("<I", zlib.crc32(frame)) + record
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())
        self._number += 1

    def _complete(self, content: bytes) -> tuple[list[bytes], int]:
        """The complete records, and where the last of them ends."""
        records: list[bytes] = []
        end = len(self._magic)
        expected = "checkpoint must name a log that simulate wrote, no earlier version of it, or a new file"
        require(content.startswith(self._magic), expected, self.path)
        while (start := end + self._frame.size) <= len(content):
            number, length, checksum, own = self._frame.unpack_from(content, end)
            record = content[start : start + length]
            right = zlib.crc32(content[end : start - 4]) == own and number == len(records)
            if right and len(record) < length:
                break
            if not right or zlib.crc32(record) != checksum:
                raise ValueError(
                    f"checkpoint must be undamaged; in {self.path} a byte of record {len(records)} is wrong, or the "
                    f"record is another, as after a second writer. The first {end} bytes, a log by themselves, hold "
                    f"the {max(0, len(records) - 1)} steps before"
                )
            records.append(record)
            end = start + length
        return records, end


_LOGS: weakref.WeakSet[CheckpointLog] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # or a child of this process would hold the locks of its logs, and outlive it
    os.register_at_fork(after_in_child=lambda: [log.close() for log in _LOGS])  # type: ignore[func-returns-value]
