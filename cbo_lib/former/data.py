"""Objects as files without pickle.

A file holds names of classes, plain values and arrays. Reading one runs no code but that of the packages named here and
of the package in which the class that is loaded stands; the classes there are looked up and not imported.
"""

import functools
import importlib
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cbo_lib.checks import require
from cbo_lib.former.history import pack_arrays, provenance, reading, unpack_arrays, write_atomically

T = TypeVar("T")

# Classes and functions of these may be named by a file.
_PACKAGES = {"cbo_lib", "gpytorch", "botorch", "linear_operator", "torch", "collections", "math"}
_DOCUMENT = "document"
_CONTAINERS = (dict, list, tuple, set, frozenset)


def save_object(path: str | Path, thing: object, known: Sequence[object] = ()) -> None:
    """Write an object of this library, and what it holds but for what is ``known``, to one file, whole or not at all.

    What can't be stored is a ValueError that says where it is.
    """
    writer = _Writer(type(thing).__module__, known)
    document = {"root": writer.encode(thing, type(thing).__name__), "provenance": provenance()}
    write_atomically(path, pack_arrays({**writer.arrays, _DOCUMENT: np.array(json.dumps(document))}))


def load_object(path: str | Path, kind: type[T], known: Sequence[object] = ()) -> T:
    """Read what ``save_object`` wrote.

    Args:
        path: the file.
        kind: the class of the object, or a base class of it.
        known: what takes the places of what was ``known`` to the writer, in the same order.

    Raises:
        ValueError: if the file is none of these, is damaged, or holds an object of another class.
    """
    with reading(path, "save") as content:
        arrays = unpack_arrays(content)
        thing = _Reader(arrays, kind.__module__, known).decode(json.loads(str(arrays[_DOCUMENT]))["root"])
    require(isinstance(thing, kind), f"path must hold a {kind.__name__}", f"a {type(thing).__name__} in {path}")
    return thing


class _Writer:
    """An object as plain values, and arrays aside; what occurs twice is written once."""

    def __init__(self, module: str, known: Sequence[object]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._module = module
        self._seen = {id(x): i for i, x in enumerate(known)}
        self._kept = [*known]  # as long as they live their ids stay theirs

    def encode(self, x: Any, where: str) -> Any:
        if x is None or isinstance(x, bool | str) or type(x) is int:
            return x
        if isinstance(x, float):
            return {"float": x.hex()}
        if id(x) in self._seen:
            return {"again": self._seen[id(x)]}
        self._seen[id(x)] = number = len(self._kept)
        self._kept.append(x)
        return {"number": number, **self._encode(x, where)}

    def _encode(self, x: Any, where: str) -> dict[str, Any]:
        if isinstance(x, torch.Generator):
            return {"generator": self._array(x.get_state().numpy())}
        if isinstance(x, Tensor):
            # Dimensions that were expanded are stored once, and expanded again.
            core = x.detach()
            for dim, stride in enumerate(x.stride()):
                if stride == 0 and x.shape[dim] > 1:
                    core = core.narrow(dim, 0, 1)
            kind = "parameter" if isinstance(x, torch.nn.Parameter) else "tensor"
            order = sorted(range(core.dim()), key=core.stride, reverse=True)  # decides how sums of it are rounded
            array = self._array(core.permute(order).cpu().numpy())
            return {kind: array, "order": order, "shape": list(x.shape), "grad": x.requires_grad}
        if isinstance(x, np.ndarray | np.generic):
            return {"array": self._array(np.asarray(x))}
        if isinstance(x, torch.dtype | torch.device):
            return {type(x).__name__: str(x).removeprefix("torch.")}
        if isinstance(x, dict):
            pairs = [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in x.items()]
            return {"mapping": pairs, "class": self._name(type(x), where)}
        if isinstance(x, list | tuple | set | frozenset | torch.Size):
            items = [self.encode(item, f"{where}[{i}]") for i, item in enumerate(x)]
            return {"sequence": items, "class": self._name(type(x), where)}
        if isinstance(x, types.MethodType):
            return {"method": x.__name__, "of": self.encode(x.__self__, where)}
        if isinstance(x, functools.partial):
            return {"partial": self.encode([x.func, x.args, x.keywords], where)}
        if isinstance(x, type | types.FunctionType | types.BuiltinFunctionType):
            return {"name": self._name(x, where)}
        state = x.__getstate__()
        return {"object": self._name(type(x), where), "state": self.encode(state, where) if state else None}

    def _array(self, array: np.ndarray) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name

    def _name(self, x: Any, where: str) -> str:
        name = f"{x.__module__}:{x.__name__ if isinstance(x, types.BuiltinFunctionType) else x.__qualname__}"
        try:
            found = _find(name, self._module)
        except ValueError:
            found = None
        if found is not x:
            raise ValueError(f"{where} holds {x!r}, which can't be stored; give a number or what {self._module} has")
        return name


class _Reader:
    """What ``_Writer`` wrote, back as objects."""

    def __init__(self, arrays: dict[str, np.ndarray], module: str, known: Sequence[object]) -> None:
        self._arrays, self._module = arrays, module
        self._made: dict[int, Any] = dict(enumerate(known))

    def decode(self, x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        if "float" in x:
            return float.fromhex(x["float"])
        if "again" in x:
            return self._made[x["again"]]
        if "object" in x:  # known before its state, which may point back to it
            kind = _find(x["object"], self._module)
            made = self._made[x["number"]] = kind.__new__(kind)
            state = self.decode(x["state"])
            if hasattr(made, "__setstate__"):
                made.__setstate__(state)
            elif state:
                made.__dict__.update(state)
            return made
        return self._made.setdefault(x["number"], self._decode(x))

    def _decode(self, x: dict[str, Any]) -> Any:
        if "generator" in x:
            made = torch.Generator()
            made.set_state(torch.from_numpy(self._arrays[x["generator"]]))
            return made
        for kind in ("tensor", "parameter"):
            if kind in x:
                stored = torch.from_numpy(self._arrays[x[kind]])
                tensor = stored.movedim(tuple(range(stored.dim())), tuple(x["order"])).expand(x["shape"])
                return torch.nn.Parameter(tensor, x["grad"]) if kind == "parameter" else tensor
        if "array" in x:
            return self._arrays[x["array"]]
        if "dtype" in x:
            return getattr(torch, x["dtype"])
        if "device" in x:
            return torch.device("cpu")
        if "mapping" in x:
            pairs = ((self.decode(k), self.decode(v)) for k, v in x["mapping"])
            return _find(x["class"], self._module, _CONTAINERS)(pairs)
        if "sequence" in x:
            return _find(x["class"], self._module, _CONTAINERS)(self.decode(item) for item in x["sequence"])
        if "method" in x:
            return getattr(self.decode(x["of"]), x["method"])
        if "partial" in x:
            function, positional, keywords = self.decode(x["partial"])
            return functools.partial(function, *positional, **keywords)
        return _find(x["name"], self._module)


def _find(name: str, module: str, kinds: tuple[type, ...] = ()) -> Any:
    """A class or function by its module and qualified name, of packages that may be named, or beside one module."""
    where, _, path = name.partition(":")
    containers = {kind.__name__: kind for kind in _CONTAINERS}
    if where == "builtins" and path in containers:
        return containers[path]
    package = module.rpartition(".")[0]
    beside = where == module or (package and where.rpartition(".")[0] == package)
    known = where.split(".")[0] in _PACKAGES
    require(known or beside, f"path must name nothing but classes of {sorted(_PACKAGES)} and beside {module}", name)
    try:
        found: Any = importlib.import_module(where) if known else sys.modules[where]
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, KeyError, AttributeError) as error:
        raise ValueError(f"path names {name}, which is not there") from error
    # A module may hold what others define, and packages functions that start a program.
    if isinstance(found, type):
        own = issubclass(found, kinds or object)
    else:
        own = beside or isinstance(found, types.BuiltinFunctionType) or where.split(".")[0] in ("cbo_lib", "gpytorch")
    require(own and getattr(found, "__module__", "") == where, "path must name classes where they are defined", name)
    return found
