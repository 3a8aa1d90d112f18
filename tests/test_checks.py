"""Arguments are checked and converted in one place."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.checks import (
    as_box,
    as_number,
    as_option,
    as_schedule,
    as_tensor,
    as_values,
)

F64 = torch.float64
ROWS = [[1, 2.5], [3, 4]]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(ROWS),
        np.array(ROWS),
        np.array(ROWS, dtype=np.float32),
        pd.DataFrame(ROWS, columns=["a", "b"]),
        torch.tensor(ROWS, dtype=F64),
        [np.array(row) for row in ROWS],
    ],
    ids=["list", "tuple", "array", "single", "frame", "tensor", "arrays"],
)
def test_everything_that_holds_numbers_becomes_a_tensor(given):
    tensor = as_tensor("x", given)
    assert tensor.dtype == F64 and tensor.tolist() == [[1.0, 2.5], [3.0, 4.0]]


@pytest.mark.parametrize("given", ["text", [[1.0], [1.0, 2.0]], object(), {"a": 1}])
def test_what_holds_no_numbers_is_refused_by_name(given):
    with pytest.raises(ValueError, match="speed must be numbers"):
        as_tensor("speed", given)


def test_a_box_is_two_corners():
    assert as_box("bounds", [[0, -1], [2, 5]]).tolist() == [[0.0, -1.0], [2.0, 5.0]]


@pytest.mark.parametrize(
    ("given", "interval", "words"),
    [
        (0.0, (0, math.inf, "()"), "be positive and finite, got 0.0"),
        (-1, (0,), "be nonnegative and finite, got -1"),
        (math.inf, (0,), "be nonnegative and finite, got inf"),
        (math.nan, (), "be finite, got nan"),
        (1, (0, 1, "[)"), r"lie in \[0, 1\), got 1"),
        (0, (0, 1, "(]"), r"lie in \(0, 1\], got 0"),
        (0.5, (1,), "be at least 1 and finite, got 0.5"),
        (1, (1, math.inf, "()"), "be above 1 and finite, got 1"),
    ],
)
def test_numbers_lie_in_their_interval(given, interval, words):
    with pytest.raises(ValueError, match=f"^share must {words}$"):
        as_number("share", given, *interval)
    low, high, ends = (*interval, *(-math.inf, math.inf, "[]")[len(interval) :])
    tensor = torch.tensor([[0.5, given, given]], dtype=F64) if interval[:1] != (1,) else torch.tensor([[2.0, given]])
    with pytest.raises(ValueError, match=rf"^share must {words.split(', got')[0]}, got .* at \[0, 1\]$"):
        as_values("share", tensor, None, low, high, ends)


def test_options_and_functions():
    assert as_option("kernel", "a", "a", "b") == "a" and as_schedule("beta", len) is len
    assert as_schedule("beta", 0) == 0
    for wrong in ("c", None, torch.zeros(2), ["a"]):
        with pytest.raises(ValueError, match=r"^kernel must be 'a', 'b' or 2.5, got "):
            as_option("kernel", wrong, "a", "b", 2.5)
    with pytest.raises(ValueError, match=r"^beta must be nonnegative and finite, got -1"):
        as_schedule("beta", -1)
