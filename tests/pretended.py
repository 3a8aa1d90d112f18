"""An accelerator that this machine does not have.

Tensors on it say `pretended:0`, keep their numbers on the CPU and refuse to meet CPU tensors, as those of a GPU do. So
a forgotten `.to(device)`, a way through NumPy or a CPU generator asked for numbers of the device shows itself anywhere.
How fast a GPU is, and what its kernels lack, does not.

PyTorch keeps a device that was registered until the process ends, so this is for a process of its own: as a plugin,
`pytest -p tests.pretended -m cuda` runs the tests of a GPU on it, see `tests/accelerator.py`.
"""

import functools
import os
import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.operations import OperationsMode

NAME = "pretended"
# Copies meet both sides; an index may lie on the CPU.
_MEETING = {"_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_library = None
_status = 1


class _Tensor(torch.Tensor):
    """A tensor of the device; `numbers` holds what is in it."""

    # Nothing is to be done there that `_Python` does not do, and to pass takes a quarter of an operation.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=f"{NAME}:0"
        )
        made.numbers = numbers
        return made

    def __repr__(self):
        return f"pretended {self.numbers}"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


def _bare(x):
    return x.numbers if type(x) is _Tensor else x


def _dressed(x):
    """A result with its tensors on the device."""
    if isinstance(x, torch.Tensor):
        return x if type(x) is _Tensor else _Tensor(x)
    return type(x)(map(_dressed, x)) if type(x) in (list, tuple) else x


def _stripped(x, there, here):
    """Arguments with the numbers of tensors of the device, these tensors, and those of the CPU.

    PyTorch's own way through a tree takes several times as long.
    """
    if type(x) is _Tensor:
        there.append(x)
        return x.numbers
    if isinstance(x, torch.Tensor):
        here.append(x)
    elif type(x) in (list, tuple):
        return type(x)([_stripped(part, there, here) for part in x])
    return x


@functools.cache
def _known(operation):
    """The name of an operation and whether it writes into its first argument; to ask takes longer than to add."""
    name = operation._schema.name.removeprefix("aten::")
    return name, operation._schema.is_mutable and name.endswith("_")


def _run(operation, args, kwargs):
    """Run an operation on the numbers, and dress what comes out if that is to lie on the device."""
    there, here = [], []
    bare = [_stripped(x, there, here) for x in args]
    named = {key: _stripped(x, there, here) for key, x in kwargs.items()} if kwargs else kwargs
    device = named.get("device")
    onto = device is None or torch.device(device).type == NAME
    if not there and (device is None or not onto):  # most are those of the CPU; nothing is to be checked there
        return operation(*args, **kwargs)
    name, writes = _known(operation)
    if there:
        _check_meeting(name, args, here)
    if onto and named.get("generator") is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    if onto and device is not None:
        named["device"] = torch.device("cpu")
    out = operation(*bare, **named)
    if writes:
        return args[0]
    return _dressed(out) if onto else out


def _check_meeting(name, args, here):
    if name in _MEETING:
        if name.startswith(("index", "_index", "_unsafe")) and type(args[0]) is not _Tensor:
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    elif strangers := [x for x in here if x.dim()]:  # a number from the CPU may meet anything
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} got one of shape {tuple(strangers[0].shape)} "
            f"on cpu and others on {NAME}:0"
        )


class _Operations(OperationsMode):
    """Operations that have no tensor of the device among their arguments, but may make one."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


def _made(function, args, kwargs):
    device = kwargs.pop("device", None)
    if isinstance(args[0], torch.Tensor) and function is not torch.tensor:
        return args[0].to(device=device or args[0].device, dtype=kwargs.get("dtype") or args[0].dtype)
    made = function(*args, **kwargs)
    return made if device is None else made.to(device)


def _made_like(function, args, kwargs):
    like = args[0]
    return torch.tensor(args[1], dtype=kwargs.get("dtype", like.dtype)).to(kwargs.get("device", like.device))


def _given(function, args, kwargs):
    if type(args[0]) is _Tensor:
        args[0].numbers = _bare(args[1])
    return function(*args, **kwargs)


def _to_numpy(function, args, kwargs):
    if type(args[0]) is _Tensor:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")
    return function(*args, **kwargs)


def _to_list(function, args, kwargs):
    return function(*map(_bare, args), **kwargs)


class _Python(TorchFunctionMode):
    """What goes between PyTorch and Python without passing the dispatcher."""

    ways = {  # noqa: RUF012
        **dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray), _made),
        **dict.fromkeys((torch.Tensor.numpy, torch.Tensor.__array__), _to_numpy),
        torch.Tensor.tolist: _to_list,
        torch.Tensor.new_tensor: _made_like,
        torch.Tensor.data.__set__: _given,
    }

    def __torch_function__(self, function, types, args=(), kwargs=None):
        way = self.ways.get(function)
        return function(*args, **kwargs or {}) if way is None else way(function, args, dict(kwargs or {}))


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return _Tensor(torch.empty(size, dtype=dtype or torch.get_default_dtype()))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return _Tensor(torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype()))


def _copy_from(source, target, non_blocking=False):
    _bare(target).copy_(_bare(source))
    return target


def _fill(x, value):
    _bare(x).fill_(value)
    return x


def pretend():
    """Make the device known, and let this thread use it until the process ends."""
    global _library
    _setup_privateuseone_for_python_backend(NAME)
    _library = torch.library.Library("aten", "IMPL")  # what C++ makes without asking a mode
    for name, function in {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
        "fill_.Scalar": _fill,
    }.items():
        _library.impl(name, function, "PrivateUse1")
    _Python().__enter__()
    _Operations().__enter__()


def pytest_configure():
    """Of a plugin: before tests are collected."""
    pretend()


def pytest_sessionfinish(exitstatus):
    """Remember how the tests ended."""
    global _status
    _status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    """End at once: autograd's thread of the device cannot be joined, and C++ may end the process for it."""
    end(_status)


def end(status=0):
    """Leave the process without its teardown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
