import math

import numpy as np
import pytest
import torch

from book.checks import called, finite, watched

SPOILED = [math.nan, np.float64("nan"), np.array([1, math.nan]), torch.tensor([[math.nan]]), [1, (2, math.nan)]]


@pytest.mark.parametrize("value", SPOILED)
def test_nan_is_no_answer(value):
    for attempt in (lambda: finite(value), lambda: watched((1, value)), watched((1, lambda: value))[1]):
        with pytest.raises(ValueError, match="NaN is no answer"):
            attempt()


def test_what_is_an_answer_stays():
    function, kind, number, array = watched((math.hypot, dict, 1, np.array([1, math.inf])))
    assert (function(3, 4), kind, number, array[1]) == (5, dict, 1, math.inf)
    assert finite("text") == "text" and finite(torch.tensor([1, 2])).tolist() == [1, 2]

    def double(x):
        """Twice."""
        return 2 * x

    assert watched(double)(3) == 6 and watched(double).__doc__ == "Twice."


@pytest.mark.parametrize(
    "function",
    [
        lambda a, omega: math.exp(-omega) * torch.sin(a),
        lambda a, omega: torch.exp(-omega) * a.sin(),
        lambda a, omega: math.exp(-omega) * math.sin(a),
        lambda a, omega: [math.exp(-omega) * math.sin(x) for x in a],
        lambda a, omega: np.exp(-omega) * np.sin(a.numpy()),
    ],
)
def test_a_function_may_be_written_for_numbers_or_for_tensors(function):
    a = torch.linspace(0, 1, 5, dtype=torch.float64)
    expected = math.exp(-0.5) * a.sin()
    torch.testing.assert_close(torch.as_tensor(called(function, a, 0.5), dtype=torch.float64), expected)


@pytest.mark.parametrize("function", [lambda w: math.exp(-w), lambda w: torch.exp(-w), lambda w: w.neg().exp()])
def test_a_function_of_a_number_may_be_one_of_a_tensor(function):
    assert float(called(function, 0.5)) == pytest.approx(math.exp(-0.5))
