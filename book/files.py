"""Files of results: arrays as ``.npz`` and tables as JSON, written whole or not at all."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file, and its folder, so that a reader, or a crash, sees the old content or the new, never a part."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def save_arrays(arrays: Mapping[str, Any], path: str | Path) -> None:
    """Store arrays by name, whole or not at all."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_atomically(path, content.getvalue())


def load_arrays(path: str | Path) -> dict[str, Any]:
    """What ``save_arrays`` stored; nothing in the file is executed."""
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def save_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Store a table and what ``frame.attrs`` says of it as JSON, a line a row, whole or not at all."""
    parts = {"about": frame.attrs, **json.loads(frame.to_json(orient="split"))}
    rows = ",\n".join(map(json.dumps, parts.pop("data")))
    head = "".join(f'"{name}": {json.dumps(part)},\n' for name, part in parts.items())
    write_atomically(path, f'{{{head}"data": [\n{rows}\n]}}\n'.encode())


def load_table(path: str | Path) -> pd.DataFrame:
    """What ``save_table`` stored."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    about = content.pop("about")
    frame = pd.DataFrame(**content)
    frame.attrs = about
    return frame


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
