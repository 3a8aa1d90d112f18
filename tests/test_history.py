import io
import json
from contextlib import closing

import numpy as np
import pytest
import torch

from cbo_lib.former.history import CheckpointLog, History, provenance


def example(**more):
    tensors = {
        "query": torch.arange(12).reshape(2, 3, 2),
        "value": torch.linspace(0, 1, 6, dtype=torch.float64).reshape(2, 3),
    }
    return History({**tensors, **more}, [7, 2], {"problem": {"class": "Bumps", "noise_std": 0.1}}, {"device": "cpu"})


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


def test_provenance_names_the_versions():
    made = provenance()
    assert made["versions"]["numpy"] == np.__version__ and set(made["versions"]) >= {
        "python",
        "botorch",
        "gpytorch",
    }
    assert made["revision"] is None or len(made["revision"]) >= 40
    json.dumps(made)


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
