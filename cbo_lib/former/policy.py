"""The one base of all policies: ask, tell, recommend.

A policy knows its ``space``, what a user could write down, and nothing of the truth. It serves two kinds of callers.

A *single run* is what a user does by hand. It has no replicate axis; queries and observations are in the user's units,
as tensors, NumPy arrays, lists or data frames, and old data may be told before, between or after the questions::

    policy = SBOKDE(space, seed=0)
    policy.tell(X0, y0, context=C0)
    x = policy.ask()
    policy.tell(x, y, context=c)

A *batch* is what ``simulate`` runs: ``start(seeds)`` adds the replicate axis in front of everything, one independent
run a seed. A single run with ``seed`` is the batch of that one seed.

Who writes a policy of their own overrides the hooks, which always see the batch: ``begin``, ``design``, ``propose``,
``learn``, ``best``, ``record`` and ``posteriors``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, as_tensor, nearly, require
from cbo_lib.former.data import load_object, save_object
from cbo_lib.former.maximize import on_grid
from cbo_lib.former.told import read
from cbo_lib.gp import Posterior
from cbo_lib.random import ReplicateGenerators

#: The multiplier of a standard deviation: a number, or a function of the round ``t = 1, 2, ...``.
Schedule = float | Callable[[int], float | Tensor]


class Space(Protocol):
    """What the learner knows of its problem; each setting has its own."""

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""


class Policy(ABC):
    """What all policies share.

    Args:
        space: what the learner knows.
        seed: of a single run, a nonnegative integer; ``start`` gives a batch its own. Default 0.
        sqrt_beta: multiplies the deviation in confidence bounds: nonnegative, or a function of the round. Default 2.
        initial: how many queries of ``design`` are asked before the first that is proposed; old data count. Default 0.
        resolution: queries in a box are multiples of this share of its sides, or None. Default ``2^-13``.

    Attributes:
        count: observations known, of each replicate.
        data: what was told, by name: ``query``, ``y`` and what else ``sees`` names, each ``replicates x count x ...``.
        active: which replicates may still ask, boolean ``replicates``; a hook that ends a replicate clears it.

    Raises:
        ValueError: if an argument is out of range.
    """

    #: The dimensions of one query inside the batch: 0 for an index, 1 for a point ``d``, 2 for a cell ``2 x d``.
    query_dims: ClassVar[int] = 1
    #: The attribute of the space, if any, that holds a list into which queries are indices.
    listed: ClassVar[str | None] = None
    #: What is told besides the query and ``y``, and how many dimensions one of it has.
    sees: ClassVar[Mapping[str, int]] = {}
    #: Of these, what may be left out.
    optional: ClassVar[frozenset[str]] = frozenset()

    count: int = 0
    data: dict[str, Tensor] = {}  # noqa: RUF012, before anything began
    active: Tensor
    _alone: bool = True
    _asked: Tensor | None
    _open: Tensor | None = None  # what was asked and not answered
    _design: Tensor
    _random: ReplicateGenerators

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        sqrt_beta: Schedule = 2.0,
        initial: int = 0,
        resolution: float | None = 2**-13,
    ) -> None:
        self.space, self.seed, self.initial = space, as_count("seed", seed), as_count("initial", initial)
        self.resolution = None if resolution is None else as_number("resolution", resolution, 0, 1, "()")
        self.sqrt_beta = as_schedule("sqrt_beta", sqrt_beta)
        without = self.initial and type(self).design is Policy.design
        require(not without, f"initial must be 0, {type(self).__name__} has no initial design", self.initial)

    # What a caller uses.

    def start(self, seeds: Sequence[int]) -> None:
        """Forget everything and prepare a batch of one replicate a seed."""
        self._begin(seeds, alone=False)

    @torch.no_grad()
    def ask(self) -> Any:
        """The next query: of a single run in the user's form, of a batch ``replicates x ...``.

        Asking again before ``tell`` gives the same query.

        Raises:
            ValueError: if a single run is over, as its budget is used up.
        """
        self._ready()
        if self._asked is None:
            self._unseeded = self.count + 1
            self._asked = self._design[:, self.count] if self.count < self.initial else self.propose()
            self._open = self._asked
        if self._alone and not bool(self.active[0]):
            raise ValueError("the run is over, there is nothing left to ask; policy.finished tells so beforehand")
        asked = self._asked.clone()  # a caller may change it
        return self.present(asked[0]) if self._alone else asked

    @torch.no_grad()
    def tell(self, query: Any, y: Any, **seen: Any) -> None:
        """Learn from observations of what was asked, of what was done instead, or old ones; one or many.

        Args:
            query: of a single run one query or ``n``; of a batch ``replicates x ...`` or ``replicates x n x ...``.
            y: what was observed there: a number or ``n``; of a batch ``replicates`` or ``replicates x n``.
            seen: what else was seen, see ``sees``.

        Raises:
            ValueError: if something is missing, does not fit or is not finite; nothing is learned then.
        """
        self._ready()
        rows = read(self, query, y, seen)
        self.check(**rows)
        self.data = self.data or {name: tensor[:, :0] for name, tensor in rows.items()}
        self._torn = True  # until all is known: Ctrl-C may leave a half of it
        for i in range(rows["y"].shape[1]):
            row = {name: tensor[:, i].clone() for name, tensor in rows.items()}  # a caller may change them
            if self._asked is None:
                self._unseeded = self.count + 1
            asked = torch.zeros_like(self.active) if self._open is None else self.is_asked(row, self._open)
            self.learn(row, asked)
            self.data = {name: torch.cat([self.data[name], row[name].unsqueeze(1)], 1) for name in self.data}
            self._asked, self.count = None, self.count + 1
            self._open = self._open if self._alone and not bool(asked) else None
        self._torn = False

    @torch.no_grad()
    def recommend(self) -> Any:
        """What the policy would name best now, in the form of a query; a ``ValueError`` if nothing was told yet."""
        self._ready()
        require(self.count > 0, "recommend must follow an observation", "none")
        best = self.best().clone()
        return self.present(best[0]) if self._alone else best

    @torch.no_grad()
    def observations(self) -> dict[str, Any]:
        """What was told, as ``tell`` of a new policy takes it, of another space if need be; it charges none of it."""
        known = {name: rows for name, rows in self.data.items() if not bool(rows.isnan().all())}
        return {name: self.decode(name, rows[0]) for name, rows in known.items()} if self._alone else known

    @torch.no_grad()
    def trace(self) -> Mapping[str, Tensor]:
        """What else of the last round is worth recording, of a batch ``replicates x ...``; a ``ValueError`` before."""
        self._ready()
        require(self.count > 0 and self._asked is None, "trace must follow ask and tell", "one of them alone")
        record = self.record()
        return {name: tensor[0] for name, tensor in record.items()} if self._alone else record

    @property
    def posterior(self) -> Posterior:
        """The posterior of f given all that was told; of a single run without the replicate axis."""
        self._ready()
        with torch.no_grad():
            posterior = self.posteriors()
        return posterior.select(0) if self._alone else posterior

    @property
    def finished(self) -> bool:
        """Whether every replicate is over, as its budget is used up."""
        self._ready()
        return not bool(self.active.any())

    def save(self, path: str | Path) -> None:
        """Write the policy and all it knows to a file, without pickle; a ``ValueError`` names what can't be stored."""
        self._ready()
        save_object(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The policy that ``save`` wrote, which asks what that would; a ``ValueError`` if it is none of the class."""
        return load_object(path, cls)

    # What hooks use.

    @property
    def settings(self) -> dict[str, Any]:
        """The public attributes that the constructor set, without the seed: what identifies a policy."""
        names = getattr(self, "_configured", vars(self).keys())
        return {name: getattr(self, name) for name in sorted(names) if not name.startswith("_") and name != "seed"}

    @property
    def replicates(self) -> int:
        """How many runs the batch holds."""
        return len(self.active)

    @property
    def generators(self) -> list[torch.Generator]:
        """One random generator a replicate; its numbers depend on the seed and the round alone."""
        if self._unseeded:  # many policies draw nothing, and seeding takes a while
            self._random.at(self._unseeded)
            self._unseeded = 0
        return self._random.generators

    @property
    def round(self) -> int:
        """The round ``t`` under way, from 1: one more than the observations known."""
        return self.count + 1

    def multiplier(self, t: int | None = None) -> Any:
        """``sqrt_beta`` of round ``t`` (default this one), a number unless it has several; a ``ValueError`` if < 0."""
        if not callable(self.sqrt_beta):
            return self.sqrt_beta
        t = self.round if t is None else t
        number = as_tensor("sqrt_beta", value := self.sqrt_beta(t))
        require((number >= 0) & torch.isfinite(number), f"sqrt_beta must be nonnegative and finite at round {t}", value)
        return number if number.numel() > 1 else float(number)

    def rounded(self, x: Tensor, bounds: Tensor) -> Tensor:
        """Points ``... x d`` of a box ``2 x d`` at the policy's resolution."""
        return on_grid(x, bounds, self.resolution)

    def sobol(self, n: int, bounds: Tensor) -> Tensor:
        """Scrambled Sobol points of a box ``2 x d``, of each replicate its own, ``replicates x n x d``."""
        low, high = bounds
        seeds = [int(torch.randint(2**31 - 1, (), generator=g)) for g in self.generators]
        engines = [torch.quasirandom.SobolEngine(len(low), scramble=True, seed=seed) for seed in seeds]
        return low + (high - low) * torch.stack([engine.draw(n, dtype=low.dtype) for engine in engines]).to(low)

    # Hooks.

    def begin(self) -> None:  # noqa: B027  # a policy without a state of its own needs none
        """Make the state of ``replicates`` runs that know nothing yet."""

    def design(self, n: int) -> Tensor:
        """The ``initial`` queries that come first, ``replicates x n x ...``; called once, if a policy has any."""
        raise NotImplementedError

    @abstractmethod
    def propose(self) -> Tensor:
        """The next query of each replicate, ``replicates x ...``."""

    @abstractmethod
    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Take in one observation a replicate.

        Args:
            row: ``query``, ``y`` and what else was seen, each ``replicates x ...``; NaN where left out.
            asked: whether each replicate did what was asked, boolean ``replicates``; ``data`` lacks the row yet.
        """

    @abstractmethod
    def best(self) -> Tensor:
        """What each replicate would name best now, in the form of a query, ``replicates x ...``."""

    @abstractmethod
    def posteriors(self) -> Posterior:
        """The posterior of f, its first batch dimension the replicates."""

    def record(self) -> Mapping[str, Tensor]:
        """What of the last round is worth recording, each ``replicates x ...``."""
        return {}

    def check(self, **rows: Tensor) -> None:  # noqa: B027  # there may be nothing more to check
        """Raise ``ValueError`` if rows ``replicates x n x ...`` can't be learned from; they are finite and fit."""

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """Whether a row's queries are those asked, but for what single precision loses, boolean ``replicates``."""
        query, like = row["query"], self.space.like
        return nearly(query, asked, like).reshape(len(asked), -1).all(-1) if self.query_dims else query == asked

    def encode(self, name: str, value: Any) -> Tensor:
        """What a single run was told of ``query`` or one of ``sees``, one or ``n``, as rows ``n x ...`` of a batch."""
        rows = as_tensor(name, value, self.space.like)
        dims = self.query_dims if name == "query" else self.sees[name]
        if dims == 0 and rows.dim() == 2 and rows.shape[-1] == 1:
            rows = rows.squeeze(-1)  # a column of a frame
        expected = f"{name} must have {dims} dimensions, or {dims + 1} for several"
        require(rows.dim() in (dims, dims + 1), expected, f"shape {tuple(rows.shape)}")
        return rows.unsqueeze(0) if rows.dim() == dims else rows

    def decode(self, name: str, rows: Tensor) -> Any:
        """Rows ``n x ...`` of a single run's ``data`` in the form in which it is told; NaN or None where left out."""
        return rows

    def present(self, query: Tensor) -> Any:
        """One query of the batch in the form in which a single run asks it."""
        return query

    def _begin(self, seeds: Sequence[int], alone: bool) -> None:
        self._configured = getattr(self, "_configured", None) or frozenset(vars(self)) | {"_configured"}
        for name in vars(self).keys() - self._configured:
            delattr(self, name)
        self._random, self._alone, self._asked, self._open = ReplicateGenerators(seeds, stream=1), alone, None, None
        self.count = self._unseeded = 0
        self.active = torch.ones(len(self._random.seeds), dtype=torch.bool, device=self.space.like.device)
        self.data = {}
        self.begin()
        if self.initial:
            self._design = self.design(self.initial)
        self._torn = False

    def _ready(self) -> None:
        if not hasattr(self, "_torn"):  # nothing began, or an error ended that
            with torch.no_grad():
                self._begin([self.seed], alone=True)
        require(
            not self._torn,
            "tell must not end half way, by Ctrl-C or an error; new_policy.tell(**policy.observations()) goes on",
            "half a row",
        )
