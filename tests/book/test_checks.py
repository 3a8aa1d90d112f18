import math

import numpy as np
import pytest
import torch

from book.checks import finite, watched

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
