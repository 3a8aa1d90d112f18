"""An accelerator that this machine does not have.

Tensors on it say `pretended:0`, keep their numbers on the CPU and refuse to meet CPU tensors, as those of a GPU do. So
a forgotten `.to(device)`, a way through NumPy or a CPU generator asked for numbers of the device shows itself anywhere.
How fast a GPU is, and what its kernels lack, does not. `WAITS` counts by line of the library where a program would wait
until the device has a number to look at: `.item()`, `bool(...)`, `.tolist()`, results whose size depends on numbers.

PyTorch keeps a device that was registered until the process ends, so this is for a process of its own: as a plugin,
`pytest -p tests.pretended -m cuda` runs the tests of a GPU on it, see `tests/accelerator.py`.
"""

import sys
from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
WAITS: Counter[str] = Counter()
# A number leaves the device, or decides how large a result is.
_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
# Copies meet both sides; an index may lie on the CPU.
_MEETING = {"_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_library = None


class _Tensor(torch.Tensor):
    """A tensor of the device; `numbers` holds what is in it."""

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


def _there(x):
    return isinstance(x, _Tensor)


def _bare(x):
    return x.numbers if _there(x) else x


def _dressed(x):
    return _Tensor(x) if isinstance(x, torch.Tensor) and not _there(x) else x


def _names_it(device):
    return device is not None and torch.device(device).type == NAME


def _each(change, x):
    """Arguments or results with their tensors changed; PyTorch's own way through a tree takes several times as long."""
    if isinstance(x, torch.Tensor):
        return change(x)
    return type(x)(_each(change, part) for part in x) if type(x) in (list, tuple) else x


def _tensors(x, found):
    """The tensors in arguments, appended to a list."""
    if isinstance(x, torch.Tensor):
        found.append(x)
    elif isinstance(x, list | tuple):
        for part in x:
            _tensors(part, found)
    return found


def _run(operation, args, kwargs):
    """Run an operation on the numbers, and dress what comes out if that is to lie on the device."""
    device = kwargs.get("device")
    tensors = _tensors(tuple(kwargs.values()), _tensors(args, []))
    there, named = any(map(_there, tensors)), _names_it(device)
    if not there and not named:  # most are those of the CPU; nothing is to be checked there
        return operation(*args, **kwargs)
    name, onto = operation._schema.name.removeprefix("aten::"), named or device is None
    if there:
        _check_meeting(name, args, tensors)
        _count(name, args)
    if kwargs.get("generator") is not None and onto:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    bare = {key: _each(_bare, value) for key, value in kwargs.items()}
    if named:
        bare["device"] = torch.device("cpu")
    out = operation(*_each(_bare, args), **bare)
    if operation._schema.is_mutable and name.endswith("_"):
        return args[0]
    return _each(_dressed, out) if onto else out


def _check_meeting(name, args, tensors):
    strangers = [x for x in tensors if not _there(x) and x.dim()]  # a number from the CPU may meet anything
    if name in _MEETING:
        if name.startswith(("index", "_index", "_unsafe")) and not _there(args[0]):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    elif strangers:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} got one of shape {tuple(strangers[0].shape)} "
            f"on cpu and others on {NAME}:0"
        )


def _count(name, args):
    masks = name in _MEETING and name != "copy_" and len(args) > 1 and isinstance(args[1], list | tuple)
    if name == "equal" and args[0].shape != args[1].shape:  # decided without a look
        return
    if name in _WAITING or (masks and any(_there(i) and i.dtype == torch.bool for i in args[1])):
        note_wait()


def note_wait():
    """Count a wait for the innermost line of the library that asked for it; a check was asked for by its caller."""
    frame = sys._getframe(1)  # a traceback of all frames would take most of the time of a test
    while frame is not None:
        file = frame.f_code.co_filename
        if ("/cbo_lib/" in file or "/book/" in file) and not file.endswith("/cbo_lib/checks.py"):
            WAITS[f"{file.rsplit('/cbo_lib/')[-1]}:{frame.f_lineno}"] += 1
            return
        frame = frame.f_back


class _Operations(TorchDispatchMode):
    """Operations that have no tensor of the device among their arguments, but may make one."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


class _Python(TorchFunctionMode):
    """What goes between PyTorch and Python without passing the dispatcher."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor, torch.asarray):
            given, device = args[0], kwargs.pop("device", None)
            if isinstance(given, torch.Tensor) and function is not torch.tensor:
                return given.to(device=device or given.device, dtype=kwargs.get("dtype") or given.dtype)
            made = function(*args, **kwargs)
            return made if device is None else made.to(device)
        if function is torch.Tensor.new_tensor:
            like = args[0]
            made = torch.tensor(args[1], dtype=kwargs.get("dtype", like.dtype))
            return made.to(kwargs.get("device", like.device))
        if args and _there(args[0]):
            if function == torch.Tensor.data.__set__:
                args[0].numbers = _bare(args[1])
            elif function in (torch.Tensor.numpy, torch.Tensor.__array__):
                raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")
            if function is torch.Tensor.tolist:
                note_wait()
                return args[0].numbers.tolist()
            if function is torch.Tensor.cpu:
                note_wait()
        return function(*args, **kwargs)


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
