"""What crosses the border between the judge and a box: JSON behind its length, tensors as bytes.

Nothing that leaves a box is unpickled. What the judge sends in may be, as the judge is trusted.
"""

import base64
import json
import numbers
import socket
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import torch

LIMIT = 16 * 2**20
#: Seconds of silence after which it is looked whether all is well.
PAUSE = 0.4
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


class Broken(Exception):
    """The other side is gone, silent for too long, or talks nonsense."""


def write(sock: socket.socket, message: object) -> None:
    """Send one message."""
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(8, "big") + data)


def read(sock: socket.socket, seconds: float | None = None, look: Callable[[], None] = lambda: None) -> Any:
    """Wait for one message, and call ``look`` meanwhile, several times a second if there is a time.

    Raises:
        Broken: if none comes in time, or no message at all.
    """
    end = None if seconds is None else time.monotonic() + seconds

    def take(size: int) -> bytes:
        parts = []
        while size:
            look()
            if end is not None:
                sock.settimeout(max(min(end - time.monotonic(), PAUSE), 1e-3))
            try:
                part = sock.recv(min(size, 2**20))
            except TimeoutError:
                if end is None or time.monotonic() < end:
                    continue
                raise Broken("it did not stop") from None
            except OSError:
                part = b""
            if not part:
                raise Broken("its process died")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    size = int.from_bytes(take(8), "big")
    if size > LIMIT:
        raise Broken("it gave too much")
    try:
        text = take(size).decode(errors="replace")
        message = json.loads(text)
        if "\\u" in text:  # half a character, which no file could hold
            message = json.loads(json.dumps(message, ensure_ascii=False).encode(errors="replace"))
        return message
    except (ValueError, RecursionError):
        raise Broken("it gave nonsense") from None


def encode(value: Any, keep: Callable[[Any], int], depth: int = 0) -> Any:
    """A value as JSON; functions and classes stay where they are and get a number from ``keep``."""
    try:
        return _encode(value, keep, depth)
    except Exception as error:
        return {"other": f"{type(value).__name__[:100]} ({type(error).__name__}: {error})"[:300]}


def _encode(value: Any, keep: Callable[[Any], int], depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return {"plain": value if not isinstance(value, str) else value[:1000]}
    if isinstance(value, type):
        bases = [f"{base.__module__}.{base.__qualname__}" for base in value.__mro__]
        return {"class": keep(value), "name": value.__name__[:100], "bases": bases}
    if hasattr(value, "to_numpy"):  # pandas
        value = value.to_numpy()
        value = value.item() if value.size == 1 else value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        if value.bit_length() > 1024:
            raise OverflowError("it is too large")
        return {"plain": int(value)}
    if isinstance(value, numbers.Real | Decimal):
        return {"plain": float(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        if value.dtype in (np.longdouble, np.clongdouble):
            value = value.astype(float if value.dtype.kind == "f" else complex)
        value = torch.from_numpy(value.copy())  # in order, and not read-only
    if isinstance(value, torch.Tensor):
        value = value.to_dense() if value.layout != torch.strided else value
        if value.dtype not in DTYPES.values():
            value = value.to(torch.float64 if value.is_floating_point() else torch.int64)
        array = value.detach().cpu().resolve_conj().resolve_neg().contiguous().numpy()
        data = base64.b64encode(array.tobytes()).decode()
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "data": data}
    if isinstance(value, list | tuple) and depth < 4 and len(value) <= 10_000:
        return {"list": [encode(part, keep, depth + 1) for part in value], "tuple": isinstance(value, tuple)}
    if callable(value):
        return {"function": keep(value), "name": str(getattr(value, "__name__", "a function"))[:100]}
    if hasattr(type(value), "__float__"):  # such as a root that an algebra system keeps
        return {"plain": float(value)}
    return {"other": type(value).__name__[:100]}


class Other:
    """Something that is neither a number nor a function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"an object of the class {self.name}"


def decode(data: Any, function: Callable[[int, str], Any], kind: Callable[[int, str, list[str]], Any]) -> Any:
    """What was encoded, made of plain numbers, texts, tensors, lists and tuples alone.

    Args:
        data: from a box, so anything.
        function: makes what stands for a function, from its number and its name.
        kind: makes what stands for a class, from its number, its name and the names of its bases.

    Raises:
        Broken: if it was not made by ``encode``.
    """
    try:
        return _decode(data, function, kind)
    except Exception:
        raise Broken("it gave nonsense") from None


def _decode(data: Any, function: Callable[[int, str], Any], kind: Callable[[int, str, list[str]], Any]) -> Any:
    if "plain" in data:
        if not isinstance(data["plain"], None | bool | int | float | str):
            raise TypeError
        return data["plain"]
    if "tensor" in data:
        flat = torch.frombuffer(bytearray(base64.b64decode(data["data"])) or bytearray(8), dtype=DTYPES[data["tensor"]])
        shape = [int(n) for n in data["shape"]]
        return flat[:0].reshape(shape) if 0 in shape else flat.reshape(shape)
    if "list" in data:
        parts = [_decode(part, function, kind) for part in data["list"]]
        return tuple(parts) if data["tuple"] is True else parts
    if "class" in data:
        return kind(int(data["class"]), str(data["name"]), [str(base) for base in data["bases"]])
    if "function" in data:
        return function(int(data["function"]), str(data["name"]))
    return Other(str(data["other"]))
