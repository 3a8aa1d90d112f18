"""Files of results: arrays as ``.npz`` and tables as JSON, written whole or not at all, and what made them."""

from __future__ import annotations

import io
import json
import os
import platform
import secrets
import socket
import subprocess
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor


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


def pack_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The content of an ``.npz`` file; unlike ``numpy.savez`` it takes any name, such as ``file``."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return content.getvalue()


def unpack_arrays(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an ``.npz`` file, each checked by its checksum; nothing in it is executed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        if (damaged := archive.zip.testzip()) is not None:
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        return dict(archive)


def table_text(frame: pd.DataFrame, digits: int = 10) -> str:
    """A table and what ``frame.attrs`` says of it, as JSON of a line a row, with so many decimals."""
    parts = {"about": frame.attrs, **json.loads(frame.to_json(orient="split", double_precision=digits))}
    rows = ",\n".join(map(json.dumps, parts.pop("data")))
    head = "".join(f'"{name}": {json.dumps(part)},\n' for name, part in parts.items())
    return f'{{{head}"data": [\n{rows}\n]}}\n'


def table_of(text: str) -> pd.DataFrame:
    """The table that ``table_text`` wrote."""
    content = json.loads(text)
    about = content.pop("about")
    frame = pd.DataFrame(**content)
    frame.attrs = about
    return frame


def save_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Store a table, whole or not at all."""
    write_atomically(path, table_text(frame).encode())


def load_table(path: str | Path) -> pd.DataFrame:
    """What ``save_table`` stored."""
    return table_of(Path(path).read_text(encoding="utf-8"))


def numbers(frame: pd.DataFrame, column: str, **key: Any) -> Tensor:
    """What a column has, one number a seed, in the row that the key names.

    Raises:
        ValueError: unless it names exactly one.
    """
    chosen = frame
    for name, value in key.items():
        chosen = chosen[chosen[name] == value]
    if len(chosen) != 1:
        raise ValueError(f"key must name one row of the table, {key} names {len(chosen)}")
    return torch.tensor(chosen.iloc[0][column], dtype=torch.float64)


@cache
def provenance() -> dict[str, Any]:
    """Versions of what computes, and the git revision if this is a checkout."""
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
