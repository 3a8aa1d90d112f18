"""Students' policies as the judge sees them: asked in their box, and judged by what they ask.

What a policy says of itself counts for nothing. What it spent is counted here.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from book._grading.box import Kind
from book.checks import finite
from cbo_lib import indirect, subsets
from cbo_lib.aggregated import GPOO
from cbo_lib.checks import require
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.hyperparameters import CandidatePolicy
from cbo_lib.policy import Policy


def _inside(points: Tensor, bounds: Tensor, name: str) -> None:
    low, high = bounds
    require((points >= low - 1e-9) & (points <= high + 1e-9), f"{name} must lie in the box", points)


def _listed(points: Tensor, listed: Tensor, name: str) -> None:
    near = (points[:, None] - listed).abs().amax(-1) <= 1e-9
    require(near.any(-1), f"{name} must be points of the domain", points)


class Remote(Policy):
    """A policy that asks and recommends what an object in a box does; the classes that ``remote`` makes have ``kind``.

    A class for a setting stands before the class of the library that students derive theirs from.
    """

    kind: ClassVar[Kind]

    def __init__(self, space: Any, *, seeds: Any, **options: Any) -> None:
        Policy.__init__(self, space, seeds, self.shape(space))
        self._twin = self.kind.make(space, seeds=list(seeds), **options)

    @staticmethod
    def shape(space: Any) -> tuple[int, ...]:
        """Of one query."""
        return (space.dim,)

    def check(self, points: Tensor, name: str) -> None:
        """Raise ``ValueError`` if queries or recommendations ``replicates x ...`` lie where nobody may ask."""
        require(self.space.contains(points), f"{name} must be points of the domain", points)

    def _points(self, method: str, name: str, shape: tuple[int, ...]) -> Tensor:
        points = self.kind.box.call(self._twin, method)
        if not isinstance(points, Tensor):
            raise ValueError(f"{method} must give a tensor, got {points!r}")
        finite(points)
        require(points.shape == (len(self.y), *shape), f"{name} must have shape {shape} each", tuple(points.shape))
        self.check(points, name)
        return points.to(self.y)

    def ask(self) -> Tensor:
        """The student's queries, if they may be asked."""
        return self._points("ask", "query", self.shape(self.space))

    def recommend(self) -> Tensor:
        """The student's recommendation, if there is such a point."""
        return self._points("recommend", "recommendation", self.shape(self.space))

    def tell(self, query: Tensor, y: Tensor, **seen: Tensor) -> None:
        """Tell the student's object, and count the rounds."""
        Policy.tell(self, query, y)
        for name, part in seen.items():
            setattr(self, name, torch.cat([getattr(self, name), part.unsqueeze(1)], 1))
        self.kind.box.call(self._twin, "tell", query, y, **seen)


class RemoteCells(Remote, GPOO):
    """Over cells of a tree."""

    @staticmethod
    def shape(space: Any) -> tuple[int, ...]:
        """Of one cell."""
        return (2, space.dim)

    def check(self, points: Tensor, name: str) -> None:
        """Cells lie in the root."""
        _inside(points, self.space.bounds.unsqueeze(1), name)


class RemoteActions(Remote, indirect.IndirectPolicy):
    """Over actions, recommending a point of the inputs."""

    @staticmethod
    def shape(space: Any) -> tuple[int, ...]:
        """Of one action."""
        return tuple(space.actions.shape[1:])

    def check(self, points: Tensor, name: str) -> None:
        """Actions and points are those of the space."""
        _listed(points, self.space.actions if name == "query" else self.space.points, name)

    def recommend(self) -> Tensor:
        """The student's points, if they are those of the space."""
        return self._points("recommend", "recommendation", tuple(self.space.points.shape[1:]))


class RemoteDecisions(Remote, ContextPolicy):
    """Over decisions under unknown contexts."""

    def __init__(self, space: Any, *, seeds: Any, **options: Any) -> None:
        Remote.__init__(self, space, seeds=seeds, **options)
        self.context = space.like.new_zeros(len(self.y), 0, space.context_dim)

    @staticmethod
    def shape(space: Any) -> tuple[int, ...]:
        """Of one decision."""
        return (space.decision_dim,)

    def check(self, points: Tensor, name: str) -> None:
        """Decisions lie in their box."""
        _inside(points, self.space.decisions, name)


class RemotePlays(Remote, subsets.SubsetPolicy):
    """Over variable subsets; what was spent is counted here."""

    sees = subsets.SubsetPolicy.sees

    def __init__(self, space: Any, *, seeds: Any, **options: Any) -> None:
        super().__init__(space, seeds=seeds, **options)
        self.cost, self.spent = self.y, torch.zeros(len(self.y)).to(self.y)

    @staticmethod
    def shape(space: Any) -> tuple[int, ...]:
        """Of one play: a subset and values of all variables."""
        return (1 + space.dim,)

    def check(self, points: Tensor, name: str) -> None:
        """There is such a subset, and the values lie in the box."""
        _inside(points[:, 1:], self.space.bounds, name)
        index = points[:, 0]
        known = (index >= 0) & (index < self.space.m) & (index == index.round())
        require(known, f"{name} must begin with the index of a subset", index)

    def tell(self, query: Tensor, y: Tensor, **seen: Tensor) -> None:
        """Tell the student's object, and count what it spent."""
        super().tell(query, y, **seen)
        self.spent = self.spent + seen["cost"]


class RemotePoints(Remote, CandidatePolicy):
    """Over points, with candidates."""


#: What stands for a class that is derived from one of the library's.
REMOTE: dict[type, type] = {
    GPOO: RemoteCells,
    indirect.IndirectPolicy: RemoteActions,
    ContextPolicy: RemoteDecisions,
    subsets.SubsetPolicy: RemotePlays,
    CandidatePolicy: RemotePoints,
}


def remote(kind: Kind) -> type[Any] | None:
    """A class for the judge that stands for a student's class; none if that is derived from no policy."""
    for base, stand_in in REMOTE.items():
        if f"{base.__module__}.{base.__qualname__}" in kind.bases:
            made = type(kind.name, (stand_in,), {"kind": kind})
            made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # the box has them
            return made
    return None
