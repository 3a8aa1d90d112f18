"""What a policy believes of g and f: the conditional mean process [Chau2021], tracked on all places."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import nearest, require
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.former.tracked import TrackedPosterior
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding
from cbo_lib.indirect.space import GrowingTable, Point, Space, box_of, measure, tabulate
from cbo_lib.kernels import TabulatedKernel
from cbo_lib.measure import Measure


class Belief:
    """A Gaussian process given what was seen, at actions, at points, and at whatever other actions were told.

    Places are numbered as in ``Space``; what was told and is not in the space comes behind, in the order of telling.

    Args:
        space: what the learner knows.
        replicates: how many.
        prior: see ``IndirectPolicy``.
        kernel: see ``IndirectPolicy``.

    Raises:
        ValueError: if the prior or the samples are of another number of replicates.
    """

    def __init__(
        self, space: Space, replicates: int, prior: GaussianProcess | None = None, kernel: str | Kernel = "matern"
    ) -> None:
        self.space, self.replicates, self.given = space, replicates, prior
        #: The actions of the space, then those that were told and that it does not hold.
        self.told = self._found = space.actions
        self.index = torch.zeros(replicates, 0, dtype=torch.long, device=space.like.device)
        self.y = space.like.new_zeros(replicates, 0)
        self.learned = self.index.bool()
        self.surrogate = None if prior is not None else Surrogate(space.bounds, replicates, kernel=kernel)
        self._version = 0
        self._of(None, space.actions) if prior is None else self._follow(prior)  # raises if no samples are near

    def known(self, place: Tensor) -> Tensor:
        """Whether places ``...`` are actions."""
        row = self._row(place)
        return (place >= 0) & (row < len(self.told)) & ((place < self.space.n) | (row >= self.space.n))

    def coordinates(self, place: Tensor) -> Tensor:
        """The actions of places ``...``, ``... x q``."""
        return self.told[self._row(place)]

    def find(self, rows: Tensor) -> Tensor:
        """The places of actions ``n x q``. New ones get the next numbers, and ``keep`` adds them.

        A new one is a ValueError if the prior is a table of places.
        """
        told = self.told
        row = nearest(rows, told, self.space.actions)
        for i in (row < 0).nonzero().flatten().tolist():
            new = rows[i : i + 1]
            row[i] = nearest(new, told, self.space.actions)  # one before may be the same
            if int(row[i]) < 0:
                table = self.given is not None and isinstance(self.given.kernel, TabulatedKernel)
                require(not table, "query must be one of the space, as the prior is a table", rows[i])
                row[i] = len(told)
                self._of(self.given, new)  # raises where there are no samples
                told = torch.cat([told, new])
        self._found = told
        return torch.where(row < self.space.n, row, row + self.space.m)

    def keep(self) -> None:
        """Add the new actions of the last ``find``, once nothing is wrong with the rows that hold them."""
        if len(self._found) > len(self.told):
            self.told, self._version = self._found, -1

    def _row(self, place: Tensor) -> Tensor:
        return torch.where(place < self.space.n, place, place - self.space.m)

    def observe(self, place: Tensor, y: Tensor, learned: Tensor) -> None:
        """Take in values ``replicates`` of places ``replicates``, where ``learned`` is true."""
        self.index = torch.cat([self.index, place.unsqueeze(1)], 1)
        self.y = torch.cat([self.y, y.unsqueeze(1)], 1)
        self.learned = torch.cat([self.learned, learned.unsqueeze(1)], 1)
        if self.surrogate is None:
            self._catch_up()
        else:
            noise = None if self.space.noise is None else self.noise_at(place).unsqueeze(1)
            self.surrogate.observe(self._measure(self.index[:, -1:]), y.unsqueeze(1), learned, noise)

    @property
    def process(self) -> GaussianProcess:
        """The prior of f in force; given, or of the last fit."""
        return self.given if self.surrogate is None else self.surrogate.prior  # type: ignore[return-value]

    @property
    def tracked(self) -> TrackedPosterior:
        """The posterior of all places."""
        self._catch_up()
        return self._tracked

    def _catch_up(self) -> None:
        """Go over to a new prior, or to more places, if there are; take in what was observed since."""
        version = 0 if self.surrogate is None else (self.surrogate.posterior(), self.surrogate.version)[1]
        if version != self._version:
            self._follow(self.process)
            self._version = version
        if self._table is not None and self._tracked.count < self.index.shape[1]:
            self._table.grow(self.index)
        for t in range(self._tracked.count, self.index.shape[1]):
            place, learned = self.index[:, t], self.learned[:, t]
            self._tracked.observe(place, self.y[:, t], self.noise_at(place), learned)

    def _follow(self, process: GaussianProcess) -> None:
        """Track all places under a prior."""
        space = self.space
        self._table: GrowingTable | None = None
        self._whole: Callable[[], GaussianProcess] | None = None  # the same table with all its rows
        if isinstance(process.kernel, TabulatedKernel):
            queries = Measure.dirac(torch.arange(space.n + space.m)[:, None].to(space.like))
        else:
            more = self.told[space.n :]
            points = measure(process, Point(), space.points)
            groups = [self._of(process, space.actions), points, *([self._of(process, more)] if len(more) else [])]
            if any(group.p > 1 or group.batch_shape for group in groups):
                cheap = isinstance(space.conditional, ConditionalMeanEmbedding)  # one kernel gives all rows
                if process.kernel.batch_shape and not groups[0].batch_shape and not cheap:
                    self._table, self._whole = GrowingTable(process.kernel, groups), partial(tabulate, process, *groups)
                process = tabulate(process, *groups, table=self._table)
                queries = Measure.dirac(torch.arange(process.kernel.gram.shape[-1])[:, None].to(space.like))
            else:
                queries = Measure.cat(groups)
        self._start = self._posterior(process)
        self._tracked = self._start.track(queries)

    def _of(self, process: GaussianProcess | None, rows: Tensor) -> Measure:
        assert self.space.conditional is not None
        found = measure(process, self.space.conditional, rows)
        if self.given is not None or not isinstance(self.space.conditional, ConditionalMeanEmbedding):
            return found
        mass = found.weights.sum(-1, keepdim=True)  # nearly one; a fitted mean would make structure of the rest
        far = rows.expand(*mass.shape[:-1], -1)[~(mass[..., 0] > 0.5)]
        require(not len(far), "samples must have actions near all that are asked or told", far[:1])
        return Measure(found.points, found.weights / mass)

    def _posterior(self, process: GaussianProcess) -> Posterior:
        batch = process.kernel.batch_shape
        expected = f"prior and samples must have no batch or one of {self.replicates} replicates"
        require(batch in ((), (self.replicates,)), expected, batch)
        return process.posterior(None if batch else self.replicates)

    def _measure(self, place: Tensor) -> Measure:
        """The measures of told places ``replicates x t``."""
        return self._of(self.given, self.coordinates(place))

    def _condition(self, prior: Posterior, measures: Measure) -> Posterior:
        """Take in all that was learned; what was not learned has weight zero."""
        if not self.index.shape[1]:
            return prior
        weights = measures.weights * self.learned.unsqueeze(-1)
        seen = Measure(measures.points.expand(*weights.shape, measures.dim), weights)
        return prior.extend(seen, self.y * self.learned, self.noise_at(self.index))

    @property
    def mean(self) -> Tensor:
        """Posterior means of the places of the space, ``replicates x (n + m)``."""
        return self.tracked.mean[:, : self.space.n + self.space.m]

    @property
    def std(self) -> Tensor:
        """Posterior standard deviations of the places of the space, ``replicates x (n + m)``."""
        return self.tracked.variance[:, : self.space.n + self.space.m].sqrt()

    def noise_at(self, place: Tensor) -> Tensor:
        """The noise of places ``replicates`` or ``replicates x t``; of one not in the space, that of the nearest."""
        if self.space.noise is None:
            noise = torch.as_tensor(self.process.noise_std).to(self.space.like)
            return (noise.squeeze(-1) if noise.dim() > place.dim() else noise).expand(place.shape)
        rows = self.space.actions
        if bool((self._row(place) < len(rows)).all()):
            return self.space.noise[place]
        side = box_of(rows).diff(dim=0)
        told = self.coordinates(place).flatten(0, -2)
        nearest = torch.cdist(told / side, rows / side).argmin(-1).reshape(place.shape)
        return self.space.noise[nearest]

    def posterior(self) -> Posterior:
        """The posterior of f, of batch shape ``(replicates,)``; of places, if the prior is a table of them."""
        process = self.process
        if isinstance(process.kernel, TabulatedKernel):
            return self.of_places()
        prior = self._posterior(process)
        return self._condition(prior, self._measure(self.index)) if self.index.shape[1] else prior

    def of_places(self) -> Posterior:
        """The posterior of ``tracked.queries`` in a form that can be drawn from."""
        queries = self.tracked.queries
        if self._whole is not None:
            self._start, self._whole = self._posterior(self._whole()), None
        return self._condition(self._start, Measure(queries.points[self.index], queries.weights[self.index]))

    def draw(self, samples: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Joint draws of all places, ``replicates x samples x places``."""
        return self.of_places().sample(self.tracked.queries, samples, list(generators))
