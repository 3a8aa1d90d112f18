"""Policies: ask, tell, recommend.

An algorithm is written for a *batch* of independent runs, one a seed, which stands in front of every tensor: that is
what ``simulate`` runs, on any device. Without ``seeds`` the same name makes a *single run* for a user (``Run``): no
replicate axis, the user's units, arrays, lists and frames, old data, and what was done in place of what was asked::

    policy = GPOO(Space([[0.0], [1.0]]), seed=0)
    policy.tell(old_cells, old_averages)
    cell = policy.ask()
    policy.tell(cell, average)
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from cbo_lib.gp import Posterior
from cbo_lib.random import ReplicateGenerators
from cbo_lib.run import Run


class Space(Protocol):
    """What the learner knows of its problem; each setting has its own."""

    #: Names of the numbers of one query, in their order; they are the columns of ``Run.to_frame``.
    columns: Sequence[str]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""

    def read(self, query: Any) -> Tensor:
        """What a user gives as one or ``n`` queries, ``n x ...``; a ``ValueError`` if they are none."""


class _OneName(ABCMeta):
    """Makes a batch of a policy that gets ``seeds``, else a single run."""

    def __call__(cls, *args: Any, seeds: Sequence[int] | None = None, **settings: Any) -> Any:
        return Run(cls, *args, **settings) if seeds is None else super().__call__(*args, seeds=seeds, **settings)


class Policy(metaclass=_OneName):
    """A batch of independent runs of one algorithm, one a seed.

    Args:
        space: what the learner knows.
        seeds: one nonnegative integer a replicate. Without it the name of the class makes a ``Run``, a single one.
        shape: of one query.

    Attributes:
        queries: what was asked or told so far, ``replicates x t x ...``.
        y: what was observed there, ``replicates x t``.
    """

    #: What ``tell`` takes besides the query and ``y``.
    sees: ClassVar[tuple[str, ...]] = ()

    def __init__(self, space: Any, seeds: Sequence[int], shape: Sequence[int]) -> None:
        self.space, self.streams = space, ReplicateGenerators(seeds, stream=1)
        self.y = space.like.new_zeros(len(seeds), 0)
        self.queries = space.like.new_zeros(len(seeds), 0, *shape)

    @property
    def round(self) -> int:
        """The round ``t`` under way, from 1: one more than the observations known."""
        return self.y.shape[-1] + 1

    @property
    def generators(self) -> list[torch.Generator]:
        """One random generator a replicate; its numbers depend on the seed and the round alone."""
        return self.streams.at(self.round)

    @abstractmethod
    def ask(self) -> Tensor:
        """The next query of each replicate, ``replicates x ...``."""

    @torch.no_grad()
    def tell(self, query: Tensor, y: Tensor) -> None:
        """Learn one observation a replicate: ``y`` (``replicates``) at the query (``replicates x ...``)."""
        self.queries = torch.cat([self.queries, query.unsqueeze(1)], 1)
        self.y = torch.cat([self.y, y.unsqueeze(1)], 1)

    def learn(self, query: Tensor, y: Tensor) -> None:
        """Old observations, ``n`` at once: ``replicates x n x ...`` and ``replicates x n``."""
        for i in range(y.shape[1]):
            self.tell(query[:, i], y[:, i])

    @abstractmethod
    def recommend(self) -> Tensor:
        """What each replicate would name best now, ``replicates x ...``."""

    @property
    @abstractmethod
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told, its first batch dimension the replicates."""

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """The single run that ``Run.save`` wrote, which asks what that would.

        Raises:
            ValueError: if the file is of another policy or format, or damaged; ``read_observations`` may read it still.
        """
        return Run.load(path, cls)
