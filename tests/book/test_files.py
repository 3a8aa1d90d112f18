"""What is stored comes back, and what is damaged is refused."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from book import files


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"1/text": np.arange(3.0), "linear/CMES's model, target g*": np.array("said"), "none": np.zeros((0, 2))}
    files.save_arrays(arrays, tmp_path / "new" / "a.npz")
    found = files.load_arrays(tmp_path / "new" / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_changed_or_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    files.save_arrays({"y": np.random.default_rng(0).normal(size=1000)}, path)
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    for damaged in (bytes(changed), content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises((zipfile.BadZipFile, zlib.error)):
            files.load_arrays(path)


def test_tables_come_back_with_what_is_said_of_them(tmp_path: Path) -> None:
    frame = pd.DataFrame({"policy": ["a", "b"], "regret": [[0.25, 1 / 3], [1.0, 2.0]]})
    frame.attrs = {"command": "python -m book"}
    files.save_table(frame, tmp_path / "table.json")
    found = files.load_table(tmp_path / "table.json")
    assert found.attrs == frame.attrs and found["policy"].tolist() == ["a", "b"]
    assert found["regret"][0] == pytest.approx([0.25, 1 / 3], abs=1e-9)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    files.write_atomically(path, b"old")

    def full(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
