"""Runs on an accelerator without a word of it in the experiments.

The library follows the tensors that it is given. So inside ``on_device`` whatever the book's own code makes from
nothing is made on the device, problems and kernels above all, and all that follows lies there too. Random numbers are
drawn on the CPU, whose generators give the same ones for any device, and then moved. Constants of the book's modules
are made when these are imported, so a process has one device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

#: Where kernels are made; of all else that makes tensors, the caller has the word.
_MAKERS = ("book.", "cbo_lib.kernels")
_BELOW = ("torch", "botorch", "gpytorch", "linear_operator", "cbo_lib.checks", "book.device", "contextlib", "functools")
#: What reads and draws results, which come from files.
_READERS = ("book.runs", "book.figures", "book.verdict")


class _OnDevice(TorchFunctionMode):
    """Makes tensors of the book on a device, unless told where."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.makers = torch.device(device), _device_constructors()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.makers and kwargs.get("device") is None and _made_by_the_book():
            if kwargs.get("generator") is not None:
                return func(*args, **kwargs).to(self.device)
            if not (args and isinstance(args[0], torch.Tensor)):
                kwargs["device"] = self.device
        elif func in (torch.Tensor.numpy, torch.Tensor.__array__) and args[0].device.type != "cpu":
            return func(args[0].cpu(), *args[1:], **kwargs)
        return func(*args, **kwargs)


def _made_by_the_book() -> bool:
    """Whether the module that asked for a tensor, past those that all tensors come from, is one that makes problems."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_BELOW):
            return name.startswith(_MAKERS) and not name.startswith(_READERS)
        frame = frame.f_back
    return False


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """What the book's code makes from nothing inside is made on the device; on the CPU nothing is changed.

    Raises:
        ValueError: if the device is not there.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        yield
        return
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be there, torch finds no CUDA device for {device!r}")
    with _OnDevice(device):
        yield
