"""What all policies of the setting share: the posterior, the search for decisions, the book of costs, the plays."""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import NEARLY, as_count, as_near, nearly, require, require_inside, require_shape
from cbo_lib.former.maximize import argmax_finite, on_grid
from cbo_lib.former.policy import Policy
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure
from cbo_lib.subsets.search import Decisions, Effort, Search
from cbo_lib.subsets.space import Space


class Play(NamedTuple):
    """What a single run asks for.

    Attributes:
        subset: the variables to set, as the space lists them.
        values: theirs, in that order, in the user's units.
    """

    subset: tuple[int, ...]
    values: Tensor


class SubsetPolicy(Policy):
    """What the policies share: the posterior, the search for decisions, the book of costs and the recommendation.

    A single run asks for a ``Play`` and is told the full point that came to be, in the user's units, the value there,
    the subset that was set and what that cost: ``tell(x, y, subset=play.subset, cost=3.2)``, or ``n`` of each. Where
    the point is what was asked, the subset is known; without a subset a row is no play of any, and without a cost it
    says nothing of what they cost. What is told before the first ``ask`` is old: it alone is not charged to the budget,
    and is a play only with its cost. A replicate ends when its budget is spent. A batch is asked rows ``1 + d``, the
    subset's index and a point, and told full points.

    Who writes a policy overrides ``decide``, ``record``, ``begin`` and ``forget`` for a state of its own, and finds
    ``search``, ``plays``, ``billed`` (plays whose cost was told) and ``paid`` (of each subset, ``replicates x m``),
    ``spent`` and what ``Policy`` keeps. The recommendation is the play, of those made after the first ``ask``, whose
    expected lower bound was largest then.

    Args:
        space: the box, the control sets, how free variables vary, and the budget.
        prior: of f, with its noise; its kernel must be a product over the coordinates. Default: fitted to what is told.
        effort: see ``Effort``; give all policies of a comparison the same.
        kernel: what is fitted: ``"matern"`` (default), a product of one Matern-5/2 kernel a variable, or ``"rbf"``.
        refit_every: see ``Surrogate``.
        options: ``seed``, ``sqrt_beta`` and ``resolution``, see ``Policy``.

    Raises:
        ValueError: if an argument is out of range.
    """

    query_dims, listed = 1, "control_sets"
    sees: ClassVar[Mapping[str, int]] = {"subset": 0, "cost": 0}
    optional: ClassVar[frozenset[str]] = frozenset(sees)

    space: Space

    def __init__(
        self,
        space: Space,
        *,
        prior: GaussianProcess | None = None,
        effort: Effort | None = None,
        kernel: str | Kernel = "matern",
        refit_every: int | None = None,
        **options: Any,
    ) -> None:
        require(isinstance(space, Space), "space must be a subsets.Space", space)
        super().__init__(space, **options)
        self.prior, self.kernel, self.refit_every = prior, kernel, refit_every
        self.effort = Effort() if effort is None else effort
        require(isinstance(self.effort, Effort), "effort must be an Effort", self.effort)
        replicates = prior.kernel.batch_shape.numel() if isinstance(prior, GaussianProcess) else 1
        # Raises now if the kernel, the prior or the schedule of the fits is wrong.
        Search(space, self.model(replicates).posterior(), replicates, self.effort)

    # What a policy of one's own overrides.

    @abstractmethod
    def decide(self) -> tuple[Tensor, Decisions]:
        """The subset that each replicate plays, ``replicates`` indices, and decisions that hold its values."""

    def forget(self) -> None:
        """Hyperparameters were fitted anew: give up what was concluded under the old ones."""

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        space, replicates = self.space, self.replicates
        self.surrogate = self.model(replicates)
        rounded = partial(on_grid, bounds=space.bounds, resolution=self.resolution)
        self.search = Search(space, self.surrogate.posterior(), replicates, self.effort, rounded)
        self.plays = self.billed = torch.zeros(replicates, space.m, dtype=torch.long, device=space.like.device)
        self.paid = space.like.new_zeros(replicates, space.m)
        self.spent = space.like.new_zeros(replicates)
        self._opened = False  # whether anything was asked
        self._query = torch.cat([self.paid[:, :1], space.center.repeat(replicates, 1)], -1)
        self._recommended = self._query
        self._lower = self._best = torch.full_like(self.spent, -torch.inf)
        self._expected = self._there = (torch.full_like(self.spent, torch.nan),) * 2
        self._version = self.surrogate.version

    def model(self, replicates: int) -> Surrogate:
        """A Gaussian process that knows nothing yet, for so many replicates."""
        groups = [(j,) for j in range(self.space.dim)]
        return Surrogate(self.space.bounds, replicates, self.prior, self.kernel, groups, self.refit_every)

    def propose(self) -> Tensor:
        """The subset's index, then a point, ``replicates x (1 + d)``."""
        self._follow()
        subset, decisions = self.decide()
        points, mean, std = decisions.of(subset)
        self._opened, self._expected = True, (mean, std)
        self._lower = mean - self.multiplier() * std
        self._query = torch.cat([subset.to(points).unsqueeze(-1), points], -1)
        return self._query

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Take in one full point a replicate, its noisy value, and what was paid for which subset."""
        subset, cost = row["subset"].to(self.spent), row["cost"].to(self.spent)
        subset = torch.where(asked & subset.isnan(), self._query[:, 0], subset)
        told = ~subset.isnan() & (~cost.isnan() | self._opened)
        one = torch.nn.functional.one_hot(subset.nan_to_num(0.0).long(), self.space.m) * told.unsqueeze(-1)
        self.plays = self.plays + one
        self.billed = self.billed + one * ~cost.isnan().unsqueeze(-1)
        self.paid = self.paid + one * cost.nan_to_num(0.0).unsqueeze(-1)
        if self._opened:
            self.spent = self.spent + cost.nan_to_num(0.0)
        made, lower = self._query, self._lower
        if self._opened and bool((other := told & ~asked).any()):  # another play than was asked
            index = subset.nan_to_num(0.0)
            play = torch.where(self.space.controlled[index.long()], row["query"], self.space.center)
            made = torch.where(other.unsqueeze(-1), torch.cat([index.unsqueeze(-1), play], -1), made)
            lower = torch.where(other, self._bound(made), lower)
        better = ((asked | told) if self._opened else asked) & (lower > self._best)
        self._best = torch.where(better, lower, self._best)
        self._recommended = torch.where(better.unsqueeze(-1), made, self._recommended)
        here = Measure.dirac(row["query"].unsqueeze(-2), known=True)
        if self._opened:
            mean, variance = self.search.posterior.mean_and_variance(here)
            self._there = mean.squeeze(-1), variance.sqrt().squeeze(-1)
        self.surrogate.observe(here, row["y"].unsqueeze(-1))
        if self._opened:  # to old rows nothing is fitted until somebody asks
            self._follow()
        self.active = self.active & (self.spent < NEARLY * self.space.budget)

    def _follow(self) -> None:
        """Go over to the posterior of all that was told."""
        before, posterior = self.search.posterior, self.surrogate.posterior()
        if self.surrogate.version == self._version and posterior.count <= before.count + 1:
            if posterior.count > before.count:
                self.search.update(posterior)
            return
        self._version = self.surrogate.version
        self.search.restart(posterior)
        self._best = torch.where(self._best > -torch.inf, self._bound(self._recommended), self._best)
        self.forget()

    def _bound(self, query: Tensor) -> Tensor:
        """The expected lower bounds of plays ``replicates x (1 + d)``."""
        subset, points = query[:, 0].long(), query[:, None, 1:]
        wanted = torch.nn.functional.one_hot(subset, self.space.m).bool()
        _, mean, std = self.search.expect(points.expand(-1, self.space.m, -1), wanted).of(subset)
        return mean - self.multiplier() * std

    def best(self) -> Tensor:
        """The recommendation, ``replicates x (1 + d)``; of the posterior's making where nothing was asked yet."""
        self._follow()
        none = self._best == -torch.inf
        if not bool(none.any()):
            return self._recommended
        found = self.search.maximize(none.unsqueeze(-1).expand_as(self.plays), -self.multiplier(), keep=False)
        subset = argmax_finite(found.bound(-self.multiplier()))
        query = torch.cat([subset.to(self.spent).unsqueeze(-1), found.of(subset)[0]], -1)
        return torch.where(none.unsqueeze(-1), query, self._recommended)

    def posteriors(self) -> Posterior:
        """The posterior of f at full points, its batch the replicates."""
        return self.surrogate.posterior()

    def record(self) -> Mapping[str, Tensor]:
        """Of the last step, ``replicates`` each.

        ``expected_mean`` and ``expected_std`` of what was asked, the averages of posterior mean and standard deviation
        over the free variables; ``mean`` and ``std`` at the full point that came to be, before the observation;
        ``spent``. The first four are NaN until something is asked. Of a fit also ``lengthscale``, ``scale``,
        ``prior_mean``, ``noise_std`` and ``converged``.
        """
        names = ("expected_mean", "expected_std", "mean", "std")
        record = {**dict(zip(names, (*self._expected, *self._there), strict=True)), "spent": self.spent}
        return record | self.surrogate.record()

    # What a single run tells and is asked.

    def encode(self, name: str, value: Any) -> Tensor:
        """Rows of the batch's form; subsets, one or a list of them, become indices."""
        if name != "subset":
            require(not isinstance(value, Play), f"{name} must be the full point that came to be", value)
            rows = super().encode(name, value)
            return as_near("query", rows, self.space.bounds) if name == "query" else rows
        sets = [frozenset(subset) for subset in self.space.control_sets]
        given = value.tolist() if hasattr(value, "tolist") else value
        require(isinstance(given, Collection) and not isinstance(given, str), "subset must be a set of indices", value)
        given = [None if isinstance(row, float) and math.isnan(row) else row for row in given]  # of a table with gaps
        several = given and all(row is None or isinstance(row, Collection | Tensor) for row in given)
        found: list[float] = []
        for row in given if several else [given]:
            asked = None if row is None else frozenset(as_count("each index of subset", j) for j in row)
            require(asked is None or asked in sets, f"subset must be one of {list(self.space.control_sets)}", row)
            found.append(math.nan if asked is None else float(sets.index(asked)))
        return self.space.like.new_tensor(found)

    def decode(self, name: str, rows: Tensor) -> Any:
        """Subsets as such, None where none was told."""
        sets = self.space.control_sets
        return [None if math.isnan(i) else tuple(sets[int(i)]) for i in rows.tolist()] if name == "subset" else rows

    def present(self, query: Tensor) -> Play:
        """The play of a row ``1 + d``."""
        subset = tuple(self.space.control_sets[int(query[0])])
        return Play(subset, query[1:][list(subset)])

    def check(self, **rows: Tensor) -> None:
        """Variables that were set lie in the box, and no cost is negative."""
        space, points, subset = self.space, rows["query"], rows["subset"].to(self.spent)
        require_shape("query", points, ..., space.dim)
        known, index = ~subset.isnan(), subset.nan_to_num(0.0).long()
        require((index >= 0) & (index < space.m), f"subset must be an index from 0 to {space.m - 1}", subset)
        where = space.controlled[index] & known.unsqueeze(-1)
        require_inside("query, in the variables that were set,", points, space.bounds, where)
        require(~(rows["cost"] < 0), "cost must not be negative", rows["cost"])

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """Whether the subset that was asked was set to the values that were asked; free coordinates do not count."""
        subset, told = asked[:, 0], row["subset"].to(asked)
        near = nearly(row["query"], asked[:, 1:], self.space.bounds)
        return ((told == subset) | told.isnan()) & (near | ~self.space.controlled[subset.long()]).all(-1)
