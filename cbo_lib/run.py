"""A single run of a policy for a user: no replicates, the user's units, arrays, lists and frames, and files.

A file holds the settings and what was told; loading it tells that again. No code of a file is executed, and what was
told can be read whatever the version that wrote it.
"""

import importlib
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from gpytorch.utils.transforms import inv_softplus
from torch import Tensor
from torch.nn.functional import softplus
from torch.nn.modules.module import _WrappedHook

from cbo_lib.checks import as_count, as_values, require
from cbo_lib.gp import Posterior

#: Of files. One of another format is refused; its observations can be read all the same.
FORMAT = 2


class Run:
    """A single run of a policy in its user's units, made by the policy's name: ``GPOO(space, seed=0)``.

    Args:
        kind: the policy.
        space: what the learner knows.
        seed: a nonnegative integer. Default 0.
        settings: those of the policy.

    Attributes:
        batch: the batch of this one run.
    """

    def __init__(self, kind: Any, space: Any, *, seed: int = 0, **settings: Any) -> None:
        self.kind, self.space, self.seed, self.settings = kind, space, as_count("seed", seed), settings
        self.batch = self.start([self.seed])
        self._asked: Tensor | None = None
        self._told: list[int] = []  # how many observations at once
        self._names: dict[str, list[str]] = {}

    def start(self, seeds: Sequence[int]) -> Any:
        """A batch with the same settings that knows nothing yet."""
        return self.kind(self.space, seeds=seeds, **self.settings)

    @property
    def count(self) -> int:
        """How many observations are known."""
        return self.batch.y.shape[-1]

    @torch.no_grad()
    def ask(self, **known: Any) -> Tensor:
        """The next query; the same one until something is told. What is ``known`` of the round goes by its name."""
        if known:
            parts = {name: self.space.read_seen(name, part) for name, part in known.items()}
            return self.batch.ask_for(**parts)[0].clone()
        if self._asked is None:
            self._asked = self.batch.ask()
        return self._asked[0].clone()

    def tell(self, query: Any, y: Any = None, **seen: Any) -> None:
        """Learn from observations of what was asked, of what was done instead, or old ones; one or many.

        Args:
            query: one query or ``n``: tensors, arrays, lists or a frame; or what ``to_frame`` gave, with ``y`` in it.
            y: what was observed there, a number or ``n``.
            seen: what else was seen, as the policy's ``sees`` names it.

        Raises:
            ValueError: if something is missing, does not fit or is not finite; nothing is learned then.
        """
        if y is None and isinstance(query, pd.DataFrame) and "y" in query:
            named = getattr(self.space, "seen_columns", {})
            for name, columns in self._seen_columns().items():
                if {*columns} <= {*query}:
                    part = query[columns] if name in named else query[name]
                    seen, query = {name: part, **seen}, query.drop(columns=columns)
            query, y = query.drop(columns="y"), query["y"]
        rows = self._read(query, y, seen)
        before, self._asked = self.observations(), None
        try:
            self._learn(rows, [len(rows["y"])])
        except BaseException:  # a part may be known: begin anew with what was known before
            self.batch = self.start([self.seed])
            self._learn(before, self._told)
            raise
        self._told.append(len(rows["y"]))

    @torch.no_grad()
    def _learn(self, rows: Mapping[str, Tensor], sizes: Sequence[int]) -> None:
        """Tell rows ``n x ...`` as they were told: alone, or several at once."""
        parts = (rows[name].unsqueeze(0).split(list(sizes), 1) for name in ("query", "y", *self.kind.sees))
        for part in zip(*parts, strict=True):
            if part[1].shape[1] == 1:
                self.batch.tell(*(x.squeeze(1).clone() for x in part))
            else:
                self.batch.learn(*(x.clone() for x in part))

    def _read(self, query: Any, y: Any, seen: Mapping[str, Any]) -> dict[str, Tensor]:
        """What was told, as rows ``n x ...``, checked."""
        require(y is not None, "tell takes query and y; y must be numbers", "none")
        given = {"query": query, "y": y, **seen}
        wanted = ("query", "y", *self.kind.sees)
        require(given.keys() == set(wanted), f"tell takes {', '.join(wanted)}", ", ".join(given))
        indexes = {name: list(part.index) for name, part in given.items() if isinstance(part, pd.DataFrame | pd.Series)}
        for name, index in indexes.items():
            first, other = next(iter(indexes.items()))
            require(index == other, f"{name} must have the index of {first}, {other[:5]} ...", index[:5])
        for name, part in given.items():
            if name == "query" and isinstance(part, pd.DataFrame) and {*part.columns} == {*self.space.columns}:
                query = part[list(self.space.columns)]
            elif isinstance(part, pd.DataFrame):
                names = self._names.setdefault(name, list(map(str, part.columns)))
                require(list(map(str, part.columns)) == names, f"{name} must have the columns {names}", [*part.columns])
        values = as_values("y", y, like=self.space.like).reshape(-1)
        require(values.abs() < 1e100, "y must be smaller than 1e100 in size", values)
        rows = {"query": self.space.read(query), "y": values}
        rows |= {name: self.space.read_seen(name, seen[name]) for name in self.kind.sees}
        for name, part in rows.items():
            require(len(part) == len(values), f"{name} must hold as many rows as y, {len(values)}", len(part))
        return rows

    @torch.no_grad()
    def recommend(self) -> Tensor:
        """What the policy would name best now; a ``ValueError`` if nothing was told yet."""
        require(self.count > 0, "recommend must follow an observation", "none")
        return self.batch.recommend()[0].clone()

    @property
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told."""
        with torch.no_grad():
            return self.batch.posterior.select(0)

    def observations(self) -> dict[str, Tensor]:
        """What was told, by name, ``n x ...`` each, as ``tell`` of a new policy takes it."""
        known = {"query": self.batch.queries, "y": self.batch.y} | {s: getattr(self.batch, s) for s in self.kind.sees}
        return {name: part[0] for name, part in known.items()}

    def _seen_columns(self) -> dict[str, list[str]]:
        """The columns of what is seen besides ``y``: those that the space names; of a number one of its own name."""
        named = getattr(self.space, "seen_columns", {})
        numbers = [name for name in self.kind.sees if getattr(self.batch, name).dim() == 2]
        return {name: named.get(name, [name]) for name in self.kind.sees if name in named or name in numbers}

    def to_frame(self) -> pd.DataFrame:
        """One row an observation, in columns that ``tell`` takes again; ``y`` is the last."""
        rows = self.batch.queries[0].reshape(self.count, len(self.space.columns))
        frame = pd.DataFrame(rows.cpu().numpy(), columns=list(self.space.columns))
        for name, columns in self._seen_columns().items():
            frame[columns] = getattr(self.batch, name)[0].reshape(self.count, len(columns)).cpu().numpy()
        return frame.assign(y=self.batch.y[0].cpu().numpy())

    def amend(self, place: int, **seen: Any) -> None:
        """Say later what else was seen with an observation, such as a bill that came late.

        Args:
            place: which observation, from 0.
            seen: by name, as ``tell`` takes it.

        Raises:
            ValueError: if there is no such observation, or nothing of that name is seen.
        """
        as_count("place", place, 0, self.count - 1)
        rows = self.observations()
        for name, value in seen.items():
            require(name in self.kind.sees, f"amend takes {', '.join(self.kind.sees)}", name)
            rows[name] = rows[name].clone()
            rows[name][place] = self.space.read_seen(name, value)[0]
        self.batch, self._asked = self.start([self.seed]), None
        self._learn(rows, self._told)

    def __repr__(self) -> str:
        best = f", best y {float(self.batch.y.max()):.4g}" if self.count else ""
        return f"{self.kind.__module__.split('.')[-2]}.{self.kind.__name__}({self.count} observations{best})"

    def save(self, path: str | Path) -> None:
        """Write the settings and what was told to one file; a ``ValueError`` names a setting that can't be stored."""
        stored = {"space": self.space, **self.settings}
        for name, value in stored.items():
            try:
                _packed(value)
            except Exception as error:
                message = f"{name} must be a number or an object of a module to be saved, got {value}"
                raise ValueError(message) from error
        about = {"format": FORMAT, "version": version("cbo_lib"), "seed": self.seed}
        about |= {"policy": f"{self.kind.__module__}:{self.kind.__qualname__}", "told": self._told}
        parts: dict[str, Any] = {name: part.cpu().numpy() for name, part in self.observations().items()}
        with open(path, "wb") as file:
            np.savez(file, about=json.dumps(about), settings=np.frombuffer(_packed(stored), np.uint8), **parts)

    @classmethod
    def load(cls, path: str | Path, kind: Any) -> "Run":
        """See ``Policy.load``."""
        about, known, blob = _read_file(path)
        name = f"{kind.__module__}:{kind.__qualname__}"
        expected = f"path must hold a {name} of format {FORMAT} (cbo_lib {version('cbo_lib')})"
        found = f"{about['policy']} of format {about['format']} (cbo_lib {about['version']}); see read_observations"
        require(about["format"] == FORMAT and about["policy"] == name, expected, found)
        try:
            with torch.serialization.safe_globals(_classes(kind)):
                stored = torch.load(io.BytesIO(blob), weights_only=True)
        except pickle.UnpicklingError as error:
            found = str(error).rpartition("WeightsUnpickler error: ")[2].splitlines()[0]
            raise ValueError(f"path must hold settings of this library's classes, got {path} ({found})") from error
        run = cls(kind, stored.pop("space"), seed=about["seed"], **stored)
        run._learn({name: torch.from_numpy(part).to(run.space.like) for name, part in known.items()}, about["told"])
        run._told = about["told"]
        return run


def read_observations(path: str | Path) -> dict[str, np.ndarray]:
    """What a saved policy of any format was told, by name, as ``tell`` of a new one takes it.

    Raises:
        ValueError: if the file is damaged or no saved policy.
    """
    return _read_file(path)[1]


def _read_file(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray], bytes]:
    content = io.BytesIO(Path(path).read_bytes())
    try:
        with np.load(content, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files}
        about = json.loads(str(parts.pop("about")))
        return about, parts, parts.pop("settings").tobytes()
    except Exception as error:  # zip, JSON, NumPy and keys have errors of their own
        raise ValueError(f"path must name an undamaged file that save wrote, got {path} ({error})") from error


def _no_hook() -> Any:
    """In the place of the hooks that every kernel holds for ``load_state_dict``, which files need not name."""
    return _no_hook


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        return (_no_hook, ()) if isinstance(thing, _WrappedHook) else NotImplemented


def _packed(value: Any) -> bytes:
    blob = io.BytesIO()
    torch.save(value, blob, pickle_module=SimpleNamespace(__name__="pickle", Pickler=_Pickler))
    return blob.getvalue()


def _classes(kind: Any) -> list[Any]:
    """What a file may name: classes of GPyTorch, classes and functions of this library and of the policy's module."""
    own = [kind.__module__, f"{kind.__module__.rpartition('.')[0]}.space"]
    ours = [f"cbo_lib.{name}" for name in ("gp", "kernels", "fit", "partition", "distributions")]
    theirs = [f"gpytorch.{name}" for name in ("kernels", "constraints", "priors")]
    known = [softplus, inv_softplus, torch.nn.ModuleList, torch.nn.Softplus, _no_hook]
    for name in (*theirs, *ours, *own):
        for thing in vars(importlib.import_module(name)).values():
            if isinstance(thing, type | FunctionType) and thing.__module__.startswith(("gpytorch", "cbo_lib")):
                known.append(thing)
    return known
