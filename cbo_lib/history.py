"""What a simulation recorded, on disk without pickle: a finished history, and the log of a run under way."""

import io
import json
import os
import platform
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_METADATA = "__metadata__"


@dataclass(frozen=True, eq=False)
class History:
    """Named tensors of a simulation, ``replicates x steps x ...`` each, and what made them.

    Args:
        tensors: by name (``query``, ``observation``, ``value``, ``recommendation``, ``recommended_value`` and what
            the policy traces).
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
            if tensor.dim() < 2 or tensor.shape[:2] != (len(self.seeds), self.steps):
                raise ValueError(
                    f"tensors[{name!r}] must have shape (replicates, steps, ...), "
                    f"here ({len(self.seeds)}, {self.steps}), got {tuple(tensor.shape)}"
                )
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
        arrays = {_METADATA: np.array(json.dumps(metadata)), **_arrays(self.tensors)}
        write_atomically(path, pack_arrays(arrays))

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read what ``save`` wrote; nothing in the file is executed.

        Raises:
            ValueError: if the file holds no history.
        """
        with open(path, "rb") as stream:
            arrays = unpack_arrays(stream) if zipfile.is_zipfile(stream) else {}
        if _METADATA not in arrays:
            raise ValueError(f"path must name a file written by History.save, got {path}")
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
                label = f"{name}[{','.join(map(str, at))}]" if at else name
                columns[label] = values[(slice(None), *at)]
        return pd.DataFrame(columns)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an ``.npz`` file; unlike ``numpy.savez`` it takes any name."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return content.getvalue()


def unpack_arrays(content: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file; nothing in it is executed."""
    with np.load(content, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
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

    Plain values stand for themselves, tensors are given by a checksum, functions by their name, and other objects by
    their class and their public attributes.
    """
    if isinstance(thing, bool | int | float | str | None):
        return thing
    if isinstance(thing, Tensor):
        return f"{thing.dtype}{list(thing.shape)} crc32 {_checksum(thing):08x}"
    if isinstance(thing, list | tuple):
        return [describe(item) for item in thing]
    if isinstance(thing, Mapping):
        return {str(key): describe(value) for key, value in thing.items()}
    if isinstance(thing, torch.nn.Module):
        return {"class": type(thing).__name__, **describe(thing.state_dict(keep_vars=True))}
    if callable(thing):
        return getattr(thing, "__qualname__", type(thing).__name__)
    names = [f.name for f in fields(thing)] if is_dataclass(thing) else getattr(thing, "__dict__", ())
    public = {name: describe(getattr(thing, name)) for name in names if not name.startswith("_")}
    return {"class": type(thing).__name__, **public}


# Of tensors that were described, and the version of their content then. A table of covariances may hold a gigabyte,
# and every run on it describes it.
_CHECKSUMS = WeakTensorKeyDictionary()


def _checksum(tensor: Tensor) -> int:
    version, checksum = _CHECKSUMS.get(tensor, (None, 0))
    if version != tensor._version:
        checksum = zlib.crc32(tensor.detach().cpu().contiguous().numpy().data)
        _CHECKSUMS[tensor] = tensor._version, checksum
    return checksum


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
    """The steps of a run under way, one record appended a step.

    A record is its length, a checksum and an ``.npz`` of one step. A record that a kill left unfinished fails the
    check and is cut off, so at most one step is lost. A bad record before the last is damage, and refused.

    Args:
        path: the file; created if it does not exist.
        header: what identifies the run; an existing log must carry the same.

    Raises:
        ValueError: if the file is no log, is damaged, or is the log of another run.
    """

    _magic = b"cbo_lib checkpoint 1\n"
    _frame = struct.Struct("<QI")

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.steps: list[dict[str, np.ndarray]] = []
        expected = json.dumps(header, sort_keys=True).encode()
        content = self.path.read_bytes() if self.path.exists() else b""
        if not content:
            write_atomically(self.path, self._magic + self._framed(expected))
            return
        if not content.startswith(self._magic):
            raise ValueError(f"checkpoint must name a log that simulate wrote, or a new file, got {self.path}")
        records, end = self._complete(content)
        if not records or records[0] != expected:
            found = records[0].decode() if records else "nothing"
            raise ValueError(
                f"checkpoint must belong to this run; {self.path} was written by {found}, "
                f"this run is {expected.decode()}"
            )
        self.steps = [unpack_arrays(io.BytesIO(record)) for record in records[1:]]
        if end < len(content):
            os.truncate(self.path, end)

    def append(self, step: Mapping[str, Tensor]) -> None:
        """Add one step and wait until it is on disk."""
        with open(self.path, "ab") as file:
            file.write(self._framed(pack_arrays(_arrays(step))))
            file.flush()
            os.fsync(file.fileno())

    def _framed(self, record: bytes) -> bytes:
        return self._frame.pack(len(record), zlib.crc32(record)) + record

    def _complete(self, content: bytes) -> tuple[list[bytes], int]:
        """The complete records, and where the last of them ends."""
        records, end = [], len(self._magic)
        while (start := end + self._frame.size) <= len(content):
            length, checksum = self._frame.unpack_from(content, end)
            record = content[start : start + length]
            if zlib.crc32(record) != checksum:
                if start + length < len(content):
                    raise ValueError(f"checkpoint must be undamaged; {self.path} has a bad record before its last")
                break
            records.append(record)
            end = start + length
        return records, end
