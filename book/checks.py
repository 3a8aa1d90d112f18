"""What the checks of all exercises share."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import numpy as np
from torch import Tensor


def finite(value: Any) -> Any:
    """A value without NaN, which compares with nothing and would pass for anything.

    Raises:
        ValueError: if there is one.
    """
    if isinstance(value, float | np.ndarray | Tensor) and bool(np.isnan(np.asarray(value)).any()):
        raise ValueError("NaN is no answer")
    if isinstance(value, list | tuple):
        for part in value:
            finite(part)
    return value


def watched(answer: Any) -> Any:
    """An answer that is refused where it holds NaN, and whose functions are refused where they return it.

    Raises:
        ValueError: if it holds NaN.
    """
    if isinstance(answer, tuple):
        return tuple(watched(part) for part in answer)
    if not isinstance(answer, FunctionType):
        return finite(answer)

    @functools.wraps(answer)
    def call(*arguments: Any, **named: Any) -> Any:
        return finite(answer(*arguments, **named))

    return call
