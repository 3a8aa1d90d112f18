"""What the checks of all exercises share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
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


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives, whether it was written for numbers, for tensors, or for one number after the other.

    Args:
        function: of a student.
        arguments: numbers; the first may be a tensor of n numbers.

    Raises:
        Exception: what the call with the arguments as they are raises, if no other call works either.
    """
    attempts = [lambda: function(*[torch.as_tensor(a, dtype=torch.float64) for a in arguments])]
    if isinstance(first := arguments[0], Tensor) and first.dim() == 1:
        rest = arguments[1:]
        attempts.append(lambda: torch.tensor([float(function(a, *rest)) for a in first.tolist()], dtype=torch.float64))
    wrong_kind = (AttributeError, RuntimeError, TypeError, ValueError)  # what math, torch and NumPy raise then
    try:
        return function(*arguments)
    except wrong_kind as error:
        for attempt in attempts:
            try:
                return attempt()
            except wrong_kind:
                continue
        raise error


def misshapen(name: str, value: Any, shape: Sequence[int]) -> str | None:
    """What is said of a result with another shape than it should have; nothing if it has this one."""
    got = None if value is None else tuple(torch.as_tensor(value).shape)
    return None if got in (None, tuple(shape)) else f"The {name} should have the shape {tuple(shape)}, got {got}."
