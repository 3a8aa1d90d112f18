"""Arguments, checked and converted: one place where it is said what was expected and what was given.

Each function takes the name of an argument and what was given; it raises ``ValueError("<name> must ..., got ...")`` or
returns that as it is used. Tensors are checked once, where a user gives them: to look at values waits for a device.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A budget that pays for this share of a cost pays for it, and one of which this share is spent is spent: rounding.
NEARLY = 1 - 1e-9
# Messages show tensors up to this many numbers, and texts up to this length.
_SHOWN, _CUT = 16, 300


def require(holds: Any, expected: str, got: Any) -> None:
    """Raise ``ValueError("<expected>, got <got>")`` unless something holds.

    Args:
        holds: a boolean, or a tensor of booleans that must all be true.
        expected: the argument's name and what is expected of it, such as ``"y must be finite"``.
        got: what was given. Text is shown as it is, of a large tensor the shape.
    """
    if not bool(holds.all() if isinstance(holds, Tensor) else holds):
        raise ValueError(f"{expected}, got {_shown(got)}")


def _slack(at: Tensor, span: Tensor) -> Tensor:
    """A millionth of the span and what single precision is off at a coordinate, of a span far from zero 2^-13 of it."""
    return torch.minimum(1e-6 * span + 2**-24 * at.abs(), 2**-13 * span) + 16 * torch.finfo(at.dtype).eps * at.abs()


def nearly(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """Which coordinates ``... x d`` agree, by the spans of points ``n x d`` and to single precision (``_slack``)."""
    return (a - b).abs() <= _slack(b, like.amax(-2) - like.amin(-2))


def nearest(points: Tensor, listed: Tensor, like: Tensor) -> Tensor:
    """Which of points ``... x n x d`` each of ``... x m x d`` nearly is, if the next is 20 times as far; -1: none."""
    span = like.amax(-2) - like.amin(-2)
    off = ((points.unsqueeze(-2) - listed.unsqueeze(-3)).abs() / torch.where(span > 0, span, 1.0)).amax(-1)
    least, first = off.min(-1)
    other = off.masked_fill(off == least.unsqueeze(-1), math.inf).amin(-1)  # a slack may hold several
    found = listed.expand(*first.shape[:-1], -1, -1).take_along_dim(first.unsqueeze(-1), -2)
    return torch.where(nearly(points, found, like).all(-1) & (20 * least <= other), first, -1)


def outside(points: Tensor, box: Tensor) -> Tensor:
    """Which coordinates ``... x d`` lie outside of a box ``2 x d``, by more than single precision is off."""
    slack = _slack(box.abs().amax(0), box[1] - box[0])
    return ~((points >= box[0] - slack) & (points <= box[1] + slack))


def require_inside(name: str, points: Tensor, box: Tensor, where: Tensor | bool = True) -> None:
    """Raise ``ValueError`` unless points ``... x d`` lie in a box ``2 x d``, in the coordinates ``where``."""
    off = (outside(points, box) & where).any(-1)
    if bool(off.any()):
        first = points.expand(*off.shape, -1)[off][0].tolist()
        raise ValueError(f"{name} must lie in the box {box.tolist()}, got {first}")


def as_near(name: str, points: Tensor, like: Tensor) -> Tensor:
    """Points ``... x d`` within a hundred spans of others ``n x d``; those farther off have other units, or orders."""
    dim, low, span = like.shape[-1], like.amin(-2), like.amax(-2) - like.amin(-2)
    require(points.shape[-1] == dim, f"{name} must be points of dimension {dim}", points.shape[-1])
    far = (((points - low).abs() > 100 * span) & (span > 0) & points.isfinite()).any(-1)
    expected = f"{name} must have its coordinates in the order and units of {_shown(torch.stack([low, low + span]))}"
    require(~far, expected, points[far][:1].tolist())
    return points


def as_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, ends: str = "[]") -> float:
    """A finite number from an interval: Python's, NumPy's or a tensor without dimensions; neither boolean nor text.

    ``low`` and ``high`` are its ends, by default none; ``ends`` says as in mathematics whether they belong to it:
    ``"[]"``, ``"()"``, ``"(]"`` or ``"[)"``.
    """
    number = _plain(value)
    if number is None or not (_lies(number, low, high, ends) and math.isfinite(number)):  # words cost more than numbers
        require(number is not None, f"{name} must be a number", repr(value))
        require(False, f"{name} must {_words(low, high, ends)}", number)
    return number


def as_count(name: str, value: Any, least: int = 0, most: float = math.inf) -> int:
    """An integer of at least ``least`` and at most ``most``; neither boolean nor a float."""
    number = _plain(value)
    if not (isinstance(number, int) and least <= number <= most):
        words = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        require(False, f"{name} must be an integer {words}", repr(value))
    return number


def as_schedule(name: str, value: Any, low: float = 0.0, high: float = math.inf, ends: str = "[]") -> Any:
    """A function as it is, such as one of the round, or a number from an interval, see ``as_number``."""
    if callable(value) and not isinstance(value, Tensor):
        return value
    require(_plain(value) is not None, f"{name} must be a number or a function", repr(value))
    return as_number(name, value, low, high, ends)


def as_option(name: str, value: Any, *options: str | float) -> Any:
    """One of some options."""
    listed = f"{', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
    require(isinstance(value, str | int | float) and value in options, f"{name} must be {listed}", repr(value))
    return value


def as_tensor(name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """What a user gave as a tensor: of a tensor, a NumPy array, nested lists, or a pandas frame or series.

    ``like`` gives dtype and device, by default float64 on the CPU, or those of a floating tensor of single or double
    precision. Integers become floating. Booleans and text are no numbers, nor rows of unequal lengths.
    """
    tensor = value
    if not isinstance(value, Tensor):
        try:
            array = np.asarray(np.ma.filled(value.astype(float), np.nan) if np.ma.isMaskedArray(value) else value)
            texts = array.dtype.kind == "O" and any(isinstance(x, str | bool | np.bool_) for x in array.flat)
            tensor = torch.tensor(array.astype(np.float64) if array.dtype.kind in "iufO" and not texts else None)
        except (TypeError, ValueError, RuntimeError) as error:
            message = f"{name} must be numbers, a tensor, an array, a list or a frame, got {_shown(value)}"
            raise ValueError(message) from error
    dense, real = tensor.layout == torch.strided, not tensor.is_complex() and tensor.dtype != torch.bool
    half = like is None and tensor.dtype in (torch.float16, torch.bfloat16)  # in which nothing can be factored
    kind = str(tensor.dtype if dense else tensor.layout)
    require(dense and real and not half, f"{name} must be real numbers, not of half precision, in a dense tensor", kind)
    if like is not None:
        return tensor.to(like)
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def as_values(
    name: str,
    value: Any,
    shape: tuple[Any, ...] | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    ends: str = "[]",
    like: Tensor | None = None,
) -> Tensor:
    """Finite numbers from an interval as a tensor, see ``as_tensor``, ``require_shape`` and ``as_number``."""
    tensor = as_tensor(name, value, like)
    if shape is not None:
        require_shape(name, tensor, *shape)
    right = torch.isfinite(tensor)
    if (low, high) != (-math.inf, math.inf):
        right = right & _lies(tensor, low, high, ends)
    if not bool(right.all()):
        first = tuple((~right).nonzero()[0].tolist())
        at = f" at {list(first)}" if first else ""
        raise ValueError(f"{name} must {_words(low, high, ends)}, got {tensor[first].item():g}{at}")
    return tensor


def as_points(name: str, value: Any, dim: int | str = "d", like: Tensor | None = None) -> Tensor:
    """Finite rows ``n x d``, at least one; ``dim`` fixes ``d``."""
    return as_values(name, value, ("n >= 1", dim), like=like).detach().clone()  # a caller may change it


def as_box(name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """A finite box ``2 x d``, lower corner first, of sides that have a length. For ``like`` see ``as_tensor``.

    A list of pairs ``(low, high)``, one a variable, as other libraries write a box, is refused and not misread.
    """
    pairs = isinstance(value, list) and value and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)
    require(not pairs, f"{name} must be two rows, all lower ends first: write pairs (low, high) by columns", value)
    box = as_values(name, value, (2, "d >= 1"), like=like)
    require(box[0] < box[1], f"{name} must have each lower bound below the upper", box)
    return box.detach().clone()  # a caller may change it


def require_shape(name: str, tensor: Tensor, *shape: Any) -> None:
    """Raise ``ValueError`` unless a tensor has a shape.

    It is a number for each dimension, or a label, such as ``"n"`` or ``"n >= 1"``; equal labels want equal sizes.
    ``...`` in front stands for any more dimensions.
    """
    wanted = shape[1:] if shape[:1] == (...,) else shape
    given = tuple(tensor.shape[tensor.dim() - len(wanted) :]) if len(wanted) <= tensor.dim() else ()
    sizes: dict[Any, int] = {}
    holds = len(given) == len(wanted) and (len(wanted) < len(shape) or tensor.dim() == len(wanted))
    for label, size in zip(wanted, given, strict=False):
        least = isinstance(label, str) and label.endswith(">= 1")
        holds &= size >= least and (size == label or (isinstance(label, str) and sizes.setdefault(label, size) == size))
    if not holds:
        listed = ", ".join("..." if part is ... else str(part).removesuffix(" >= 1") for part in shape)
        counted = [f" with {label}" for label in dict.fromkeys(wanted) if str(label).endswith(">= 1")]
        shown = f"({listed}{',' if len(shape) == 1 else ''}){' and'.join(counted).replace('and with', 'and')}"
        require(False, f"{name} must have shape {shown}", tensor.shape)


def _plain(value: Any) -> Any:
    """A number as one of Python's; None of anything else."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and not value.ndim:
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _lies(value: Any, low: float, high: float, ends: str) -> Any:
    """Whether a number or each of a tensor lies in an interval."""
    return (value > low if ends[0] == "(" else value >= low) & (value < high if ends[1] == ")" else value <= high)


def _words(low: float, high: float, ends: str) -> str:
    """An interval in words."""
    if (low, high) == (-math.inf, math.inf):
        return "be finite"
    if high == math.inf:
        sign, bound = ("positive", "above") if ends[0] == "(" else ("nonnegative", "at least")
        return f"be {sign if low == 0 else f'{bound} {low:g}'} and finite"
    return f"lie in {ends[0]}{low:g}, {high:g}{ends[1]}"


def _shown(value: Any) -> str:
    """What was given, for a message."""
    if isinstance(value, Tensor):
        value = value.tolist() if value.numel() <= _SHOWN else f"a tensor of shape {tuple(value.shape)}"
    elif isinstance(value, torch.Size):
        value = tuple(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _CUT else f"{text[:_CUT]} ..."
