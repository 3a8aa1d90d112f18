"""Students' policies as the judge sees them: asked in their box, and judged by what they ask.

What a policy says of itself counts for nothing. What it spent, and which runs are over, is counted here.
"""

from typing import Any

import torch
from torch import Tensor

from book._grading.boxes import Kind
from cbo_lib import hyperparameters, indirect, subsets
from cbo_lib.aggregated import GPOO
from cbo_lib.checks import require
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.former.policy import Policy
from cbo_lib.policy import Policy as CellPolicy


def _inside(points: Tensor, bounds: Tensor, name: str) -> None:
    low, high = bounds
    require((points >= low - 1e-9) & (points <= high + 1e-9), f"{name} must lie in the box", points)


def _place(query: Tensor, low: int, high: int, name: str) -> None:
    right = not query.is_floating_point() and bool(((query >= low) & (query < high)).all())
    require(right, f"{name} must be places from {low} to {high - 1}", query)


def check_point(space: Any, query: Tensor, name: str) -> None:
    """Raise ``ValueError`` if queries or recommendations of a batch lie where nobody may ask."""
    if isinstance(space, subsets.Space):
        _inside(query[:, 1:], space.bounds, name)
        index = query[:, 0]
        known = (index >= 0) & (index < space.m) & (index == index.round())
        require(known, f"{name} must begin with the index of a subset", index)
    elif isinstance(space, indirect.Space):
        low, high = (0, space.n) if name == "query" else (space.n, space.n + space.m)
        _place(query, low, high, name)
    elif isinstance(space, hyperparameters.Space):
        if space.points is None:
            _inside(query, space.bounds, name)
        else:
            near = (query[:, None] - space.points).abs().amax(-1) <= 1e-9
            require(near.any(-1), f"{name} must be points of the domain", query)


class Remote:
    """What ``simulate`` needs of a policy, asked of an object in a box; mixed into the class that it is derived from.

    The classes that ``remote`` makes have ``kind``, the student's class.
    """

    kind: Kind
    space: Any
    initial: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._twin = self.kind.make(*arguments, **options)

    def start(self, seeds: Any) -> None:
        """Begin a batch, and its accounts."""
        self._twin.tell("start", list(seeds))
        self._count = len(list(seeds))
        self._told = 0
        self._trace: dict[str, Tensor] = {}
        if isinstance(self.space, subsets.Space):
            self._spent = torch.zeros(self._count)
        elif isinstance(self.space, indirect.Space):
            budget = getattr(self, "budget", torch.inf)
            self._left = torch.full((self._count,), float(budget)).to(self.space.like)
            self._open = torch.ones(self._count, dtype=torch.bool)

    def _point(self, method: str, name: str) -> Tensor:
        point = self._twin.ask(method)
        require(len(point.shape) > 0 and len(point) == self._count, f"{name} must be one a replicate", point.shape)
        check_point(self.space, point, name)
        return point

    def ask(self) -> Tensor:
        """The student's query, if it may be asked."""
        return self._point("ask", "query")

    def recommend(self) -> Tensor:
        """The student's recommendation, if there is such a point."""
        return self._point("recommend", "recommendation")

    def tell(self, query: Tensor, y: Tensor, **seen: Tensor) -> None:
        """Tell the student's object, and keep the accounts; a run that is over shows nothing more."""
        self._told += 1
        if isinstance(self.space, hyperparameters.Space):
            self._trace = {"initial": torch.full((self._count,), self._told <= self.initial)}
        elif isinstance(self.space, subsets.Space):
            self._spent = self._spent + seen["cost"].to(self._spent)
            self._trace = {"spent": self._spent}
        elif isinstance(self.space, indirect.Space):
            y = torch.where(self._open, y, 0.0)
            cost = torch.where(self._open, self.space.costs[query], 0.0)
            self._left = self._left - cost
            self._trace = {"cost": cost, "active": self._open}
            self._open = self._open & (self._left >= self.space.costs[: self.space.n].amin() - 1e-9)
        self._twin.tell("tell", query, y, **seen)

    def trace(self) -> dict[str, Tensor]:
        """The accounts."""
        return self._trace


class RemoteCells(GPOO):
    """A policy over cells that asks and recommends what the student's object does."""

    kind: Kind

    def __init__(self, space: Any, *, seeds: Any, **options: Any) -> None:
        CellPolicy.__init__(self, space, seeds, (2, space.dim))
        self._twin = self.kind.make(space, seeds=list(seeds), **options)

    def _cells(self, method: str, name: str) -> Tensor:
        cells, shape = self._twin.ask(method), (len(self.y), 2, self.space.dim)
        require(cells.shape == shape, f"{name} must have shape {shape}", tuple(cells.shape))
        _inside(cells, self.space.bounds.unsqueeze(1), name)
        return cells.to(self.y)

    def ask(self) -> Tensor:
        """The student's cells, if they lie in the root."""
        return self._cells("ask", "query")

    def recommend(self) -> Tensor:
        """The student's recommendation."""
        return self._cells("recommend", "recommendation")

    def tell(self, cell: Tensor, y: Tensor) -> None:
        """Tell the student's object, and count the rounds."""
        CellPolicy.tell(self, cell, y)
        self._twin.tell("tell", cell, y)


class RemoteDecisions(ContextPolicy):
    """A policy for unknown contexts that asks and recommends what the student's object does."""

    kind: Kind

    def __init__(self, space: Any, *, seeds: Any, **options: Any) -> None:
        CellPolicy.__init__(self, space, seeds, (space.decision_dim,))
        self.context = space.like.new_zeros(len(self.y), 0, space.context_dim)
        self._twin = self.kind.make(space, seeds=list(seeds), **options)

    def _decisions(self, method: str, name: str) -> Tensor:
        found, shape = self._twin.ask(method), (len(self.y), self.space.decision_dim)
        require(found.shape == shape, f"{name} must have shape {shape}", tuple(found.shape))
        _inside(found, self.space.decisions, name)
        return found.to(self.y)

    def ask(self) -> Tensor:
        """The student's decisions, if they lie in their box."""
        return self._decisions("ask", "query")

    def recommend(self) -> Tensor:
        """The student's recommendation."""
        return self._decisions("recommend", "recommendation")

    def tell(self, query: Tensor, y: Tensor, context: Tensor) -> None:
        """Tell the student's object, and count the rounds."""
        super().tell(query, y, context)
        self._twin.tell("tell", query, y, context)


def remote(kind: Kind, known: dict[str, type[Policy]]) -> type[Any] | None:
    """A class for the judge that stands for a student's class; none if that is derived from no policy.

    Args:
        kind: the student's class.
        known: the judge's own classes, by module and name.
    """
    if f"{GPOO.__module__}.{GPOO.__qualname__}" in kind.bases:
        return type(kind.name, (RemoteCells,), {"kind": kind})
    if f"{ContextPolicy.__module__}.{ContextPolicy.__qualname__}" in kind.bases:
        return type(kind.name, (RemoteDecisions,), {"kind": kind})
    base = next((known[name] for name in kind.bases if name in known), None)
    if base is None:
        return None
    made = type(kind.name, (Remote, base), {"kind": kind})
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return made
