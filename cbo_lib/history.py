"""What a simulation recorded, on disk without pickle: a finished history, and the log of a run under way."""

from __future__ import annotations

import io
import json
import os
import platform
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

_METADATA = "__metadata__"


@dataclass(frozen=True)
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
        """Every tensor must hold one entry a replicate."""
        for name, tensor in self.tensors.items():
            if tensor.dim() < 2 or tensor.shape[0] != len(self.seeds):
                raise ValueError(
                    f"tensors[{name!r}] must have shape ({len(self.seeds)} replicates, steps, ...), "
                    f"got {tuple(tensor.shape)}"
                )

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
        return next(iter(self.tensors.values())).shape[1] if self.tensors else 0

    def save(self, path: str | Path) -> None:
        """Write to an ``.npz`` file, whole or not at all."""
        metadata = {"seeds": list(self.seeds), "config": self.config, "provenance": self.provenance}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.tensors.items()}
        content = io.BytesIO()
        # Arrays by name are what savez takes; its stub asks for more.
        np.savez_compressed(content, **arrays, **{_METADATA: np.array(json.dumps(metadata))})  # type: ignore[arg-type]
        write_atomically(path, content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read what ``save`` wrote; nothing in the file is executed.

        Raises:
            ValueError: if the file holds no history.
        """
        with np.load(path, allow_pickle=False) as file:
            if _METADATA not in file:
                raise ValueError(f"path must name a file written by History.save, got {path}")
            metadata = json.loads(str(file[_METADATA]))
            tensors = {name: torch.from_numpy(file[name]) for name in file.files if name != _METADATA}
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


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    target = Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def describe(thing: object) -> dict[str, Any]:
    """The class and the plain settings of a problem or a policy, as JSON values."""
    plain = {
        name: value
        for name, value in vars(thing).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str | None)
    }
    return {"class": type(thing).__name__, **plain}


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
    check and is cut off, so at most one step is lost.

    Args:
        path: the file; created if it does not exist.
        header: what identifies the run; an existing log must carry the same.

    Raises:
        ValueError: if the file is no log, or the log of another run.
    """

    _magic = b"cbo_lib checkpoint 1\n"
    _frame = struct.Struct("<QI")

    def __init__(self, path: str | Path, header: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.steps: list[dict[str, np.ndarray]] = []
        expected = json.dumps(header, sort_keys=True).encode()
        if not self.path.exists() or self.path.stat().st_size == 0:
            write_atomically(self.path, self._magic + self._pack(expected))
            return
        content = self.path.read_bytes()
        if not content.startswith(self._magic):
            raise ValueError(f"checkpoint must name a log that simulate wrote, or a new file, got {self.path}")
        records, end = self._unpack(content)
        if not records or records[0] != expected:
            found = records[0].decode() if records else "nothing"
            raise ValueError(
                f"checkpoint must belong to this run; {self.path} was written by {found}, "
                f"this run is {expected.decode()}"
            )
        for record in records[1:]:
            with np.load(io.BytesIO(record), allow_pickle=False) as arrays:
                self.steps.append({name: arrays[name] for name in arrays.files})
        if end < len(content):
            os.truncate(self.path, end)

    def append(self, step: Mapping[str, Tensor]) -> None:
        """Add one step and wait until it is on disk."""
        content = io.BytesIO()
        np.savez(content, **{name: tensor.cpu().numpy() for name, tensor in step.items()})  # type: ignore[arg-type]
        with open(self.path, "ab") as file:
            file.write(self._pack(content.getvalue()))
            file.flush()
            os.fsync(file.fileno())

    def _pack(self, record: bytes) -> bytes:
        return self._frame.pack(len(record), zlib.crc32(record)) + record

    def _unpack(self, content: bytes) -> tuple[list[bytes], int]:
        """The complete records, and where the last of them ends."""
        records, at = [], len(self._magic)
        while at + self._frame.size <= len(content):
            length, checksum = self._frame.unpack_from(content, at)
            start = at + self._frame.size
            record = content[start : start + length]
            if len(record) < length or zlib.crc32(record) != checksum:
                break
            records.append(record)
            at = start + length
        return records, at
