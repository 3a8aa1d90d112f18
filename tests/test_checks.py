"""Arguments are checked and converted in one place."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from cbo_lib.checks import (
    as_box,
    as_count,
    as_expanded,
    as_near,
    as_number,
    as_option,
    as_points,
    as_schedule,
    as_tensor,
    as_values,
    require,
    require_shape,
)
from cbo_lib.former.simulate import simulate
from tests.runs import make

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


def test_dtype_and_device_are_those_that_were_asked_for():
    assert as_tensor("x", [1, 2], torch.zeros((), dtype=torch.float32)).dtype == torch.float32
    assert as_tensor("x", torch.ones(2, dtype=torch.float32)).dtype == torch.float32
    assert as_tensor("x", torch.tensor([1, 2])).dtype == F64
    assert as_tensor("x", torch.tensor([1, 2]), torch.zeros((), dtype=F64), keep=True).dtype == torch.long
    assert as_tensor("x", pd.Series([1, 2])).tolist() == [1.0, 2.0]
    for kind in (torch.float16, torch.bfloat16):  # outcomes may come in half precision, but not what others follow
        assert as_tensor("x", torch.ones(2, dtype=kind), torch.zeros((), dtype=F64)).dtype == F64
        with pytest.raises(ValueError, match="x must be real numbers, not of half precision, in a dense tensor, got"):
            as_tensor("x", torch.ones(2, dtype=kind))


@pytest.mark.parametrize("given", ["text", [[1.0], [1.0, 2.0]], object(), {"a": 1}])
def test_what_holds_no_numbers_is_refused_by_name(given):
    with pytest.raises(ValueError, match="speed must be numbers"):
        as_tensor("speed", given)


def test_complex_numbers_are_refused():
    with pytest.raises(ValueError, match="x must be real numbers"):
        as_tensor("x", torch.tensor([1j]))


def test_a_box_is_two_corners():
    assert as_box("bounds", [[0, -1], [2, 5]]).tolist() == [[0.0, -1.0], [2.0, 5.0]]


@pytest.mark.parametrize(
    ("box", "match"),
    [
        ([0.0, 1.0], r"bounds must have shape \(2, d\) with d >= 1, got"),
        ([[0.0, 1.0]], r"bounds must have shape \(2, d\) with d >= 1, got"),
        ([[0.0], [0.0]], "below the upper"),
        ([[1.0], [0.0]], "below the upper"),
        ([[0.0], [float("inf")]], "finite"),
        ([[], []], r"bounds must have shape \(2, d\) with d >= 1, got"),
    ],
)
def test_what_is_no_box_is_refused(box, match):
    with pytest.raises(ValueError, match=match):
        as_box("bounds", box)


def test_a_box_of_other_dimensions_is_refused():
    with pytest.raises(ValueError, match=r"bounds must have shape \(2, 3\)"):
        as_box("bounds", [[0.0], [1.0]], 3)


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([True]),
        [True, False],
        np.array([True]),
        ["1.5"],
        np.array([1.0, "2"], dtype=object),
        pd.DataFrame({"a": [1.0], "b": ["x"]}),
        torch.eye(2).to_sparse(),
    ],
)
def test_booleans_texts_and_sparse_tensors_are_refused_by_name(given):
    with pytest.raises(ValueError, match=r"speed must be (real )?numbers.*, got"):
        as_tensor("speed", given)


def test_rows_whose_number_is_counted_at_least_once():
    assert as_points("x", [[1, 2]], 2).dtype == F64
    for wrong in ([1.0, 2.0], [[1.0]], torch.zeros(0, 2)):
        with pytest.raises(ValueError, match=r"x must have shape \(n, 2\) with n >= 1, got"):
            as_points("x", wrong, 2)


@pytest.mark.parametrize(
    ("shape", "wanted", "holds"),
    [
        ((3, 2), ("n", "d"), True),
        ((0, 2), ("n", 2), True),
        ((0, 2), ("n >= 1", 2), False),
        ((3, 2), ("n", "n"), False),
        ((4, 3, 3), (..., "n", "n"), True),
        ((3,), (..., "n", "n"), False),
        ((), (), True),
        ((1,), (), False),
        ((2,), (3,), False),
        ((5, 1, 2), (5, 2), False),
        ((), (...,), True),
    ],
)
def test_shapes_are_numbers_and_labels(shape, wanted, holds):
    if holds:
        require_shape("x", torch.zeros(shape), *wanted)
    else:
        with pytest.raises(ValueError, match=r"^x must have shape \(.*\).*, got \("):
            require_shape("x", torch.zeros(shape), *wanted)


def test_the_message_shows_the_wanted_shape():
    with pytest.raises(ValueError, match=r"^x must have shape \(\.\.\., n, 3\), got \(2, 4\)$"):
        require_shape("x", torch.zeros(2, 4), ..., "n", 3)
    with pytest.raises(ValueError, match=r"^x must have shape \(3,\), got \(\)$"):
        require_shape("x", torch.zeros(()), 3)


NUMBERS = [1, 1.5, np.float32(1.5), np.array(2), torch.tensor(2.5), np.int64(3)]


@pytest.mark.parametrize("given", NUMBERS, ids=repr)
def test_numbers_of_any_kind_are_numbers(given):
    found = as_number("x", given, 1, 3)
    assert type(found) in (int, float) and found == given


@pytest.mark.parametrize("given", [True, "1", None, [1.0], np.ones(1), torch.ones(1), 1j, np.True_, torch.tensor(True)])
def test_what_is_no_number_is_refused(given):
    for check in (as_number, as_count):
        with pytest.raises(ValueError, match=r"^size must be (a number|an integer of at least 0), got "):
            check("size", given)
    with pytest.raises(ValueError, match=r"^size must be a number or a function, got "):
        as_schedule("size", given)


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


def test_ends_belong_to_an_interval_or_not():
    assert [as_number("x", x, 0, 1) for x in (0, 1)] == [0, 1]
    assert as_number("x", 1, 0, 1, "(]") == 1 and as_number("x", 0, 0, 1, "[)") == 0


@pytest.mark.parametrize("given", [-1, 4, 2.0, 0.5, math.nan, torch.tensor(2.0)])
def test_counts_are_integers_in_a_range(given):
    with pytest.raises(ValueError, match=r"^n must be an integer from 0 to 3, got "):
        as_count("n", given, 0, 3)
    assert as_count("n", torch.tensor(3), 0, 3) == 3 and type(as_count("n", np.int64(2))) is int


def test_options_and_functions():
    assert as_option("kernel", "a", "a", "b") == "a" and as_schedule("beta", len) is len
    assert as_schedule("beta", 0) == 0
    for wrong in ("c", None, torch.zeros(2), ["a"]):
        with pytest.raises(ValueError, match=r"^kernel must be 'a', 'b' or 2.5, got "):
            as_option("kernel", wrong, "a", "b", 2.5)
    with pytest.raises(ValueError, match=r"^beta must be nonnegative and finite, got -1"):
        as_schedule("beta", -1)


def test_shapes_broadcast_or_the_message_says_so():
    assert as_expanded("y", torch.ones(1, 3), (2, 3)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"^y must broadcast to \(2, 3\), got shape \(4,\)$"):
        as_expanded("y", torch.ones(4), (2, 3))


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("aggregated", "GPOO"),
        ("indirect", "CMES"),
        ("contexts", "SBO-KDE"),
        ("subsets", "proposed"),
        ("hyperparameters", "HE-GP-UCB, box"),
    ],
)
def test_what_is_right_is_not_put_into_words(setting, name, monkeypatch):
    """The text of a tensor takes milliseconds, and one of a space or a measure has many."""

    def text(*_, **__):
        raise AssertionError

    monkeypatch.setattr(torch.Tensor, "__repr__", text)
    run = make(setting, name, True)
    simulate(run.problem, run.policy, run.policy.initial + 2, [0, 1], progress=False)


def test_messages_stay_short():
    with pytest.raises(ValueError, match="x must be numbers") as caught:
        as_tensor("x", ["a" * 10_000])
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"got a tensor of shape \(50,\)"):
        require(torch.zeros(50) > 0, "x must be positive", torch.zeros(50))


def test_points_in_another_unit_are_told_from_points_outside():
    box = torch.tensor([[200.0, 1e-7, 3.0], [400.0, 5e-6, 3.0]], dtype=torch.float64)
    inside, off = [300.0, 1e-6, 1e9], [20_100.0, 1e-6, 3.0]  # the last coordinate has no span
    for row in (inside, off, [float("inf"), 1e-6, 3.0]):  # what is no number is refused as such
        points = torch.tensor([row], dtype=torch.float64)
        assert as_near("query", points, box) is points
    for row in ([20_300.0, 1e-6, 3.0], [1e-6, 300.0, 3.0]):
        with pytest.raises(ValueError, match=r"query must have its coordinates in the order and units of \[\[200.0"):
            as_near("query", torch.tensor([inside, row], dtype=torch.float64), box)
    with pytest.raises(ValueError, match="query must be points of dimension 3, got 2"):
        as_near("query", torch.zeros(1, 2), box)
