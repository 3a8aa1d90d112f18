"""The method that learns which variables to control, and what it shares with the policies it is compared with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.fit import Surrogate
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure
from cbo_lib.policy import Policy, Schedule
from cbo_lib.subsets.choice import choose, cost_lower_bound, good_enough
from cbo_lib.subsets.search import Decisions, Effort, Search, first_best
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
    the subset that was set and what that cost: ``tell(x, y, subset=play.subset, cost=3.2)``, or ``n`` of each. Without
    a subset, or without a cost, a row informs the posterior alone; where the point is what was asked, the subset is
    known. Costs that are told before the first ``ask`` are old: they are not charged to the budget. A replicate ends
    when its budget is spent. In a batch a query is a row ``1 + d``, the subset's index and a point.

    Who writes a policy overrides ``decide``, ``record``, ``begin`` and ``forget`` for a state of its own, and finds
    ``search``, ``plays`` and ``paid`` (of each subset, ``replicates x m``), ``spent`` and what ``Policy`` keeps. The
    recommendation is the play, of those that were asked and made, whose expected lower bound was largest when asked.

    Args:
        space: the box, the control sets, how free variables vary, and the budget.
        prior: of f, with its noise; its kernel must be a product over the coordinates. Default: fitted to what is told.
        effort: see ``Effort``; give all policies of a comparison the same.
        kernel: what is fitted: ``"matern"``, a product of one Matern-5/2 kernel a variable, or ``"rbf"``. Default
            ``"matern"``.
        refit_every: see ``Surrogate``.
        seed, sqrt_beta, resolution: see ``Policy``.

    Raises:
        ValueError: if an argument is out of range.
    """

    query_dims = 1
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
        seed: int = 0,
        sqrt_beta: Schedule = 2.0,
        resolution: float | None = 2**-13,
    ) -> None:
        super().__init__(space, seed=seed, sqrt_beta=sqrt_beta, resolution=resolution)
        self.prior, self.kernel, self.refit_every = prior, kernel, refit_every
        self.effort = effort or Effort()

    # What a policy of one's own overrides.

    @abstractmethod
    def decide(self) -> tuple[Tensor, Decisions]:
        """The subset that each replicate plays, ``replicates`` indices, and decisions that hold its values."""

    def forget(self) -> None:
        """Hyperparameters were fitted anew: give up what was concluded under the old ones."""

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        space, replicates = self.space, self.replicates
        groups = [(j,) for j in range(space.dim)]
        self.surrogate = Surrogate(space.bounds, replicates, self.prior, self.kernel, groups, self.refit_every)
        posterior = self.surrogate.posterior()
        self.search = Search(space, posterior, replicates, self.effort, self.resolution)
        self.plays = torch.zeros(replicates, space.m, dtype=torch.long, device=space.like.device)
        self.paid = space.like.new_zeros(replicates, space.m)
        self.spent = space.like.new_zeros(replicates)
        self._opened = False  # whether anything was asked
        self._query = torch.cat([self.paid[:, :1], space.center.repeat(replicates, 1)], -1)
        self._recommended = self._query
        self._lower = self._best = torch.full_like(self.spent, -torch.inf)
        self._expected = self._there = (self.spent, self.spent)

    def propose(self) -> Tensor:
        """The subset's index, then a point, ``replicates x (1 + d)``."""
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
        told = ~subset.isnan() & ~cost.isnan()
        at, paid = subset.nan_to_num(0.0).long().unsqueeze(-1), torch.where(told, cost, 0.0)
        self.plays = self.plays.scatter_add(-1, at, told.long().unsqueeze(-1))
        self.paid = self.paid.scatter_add(-1, at, paid.unsqueeze(-1))
        if self._opened:
            self.spent = self.spent + cost.nan_to_num(0.0)
        better = asked & (self._lower > self._best)
        self._best = torch.where(better, self._lower, self._best)
        self._recommended = torch.where(better.unsqueeze(-1), self._query, self._recommended)
        self._there = self.search.prediction(row["query"])
        version = self.surrogate.version
        self.surrogate.observe(Measure.dirac(row["query"].unsqueeze(-2)), row["y"].unsqueeze(-1))
        posterior = self.surrogate.posterior()
        if self.surrogate.version == version:
            self.search.update(posterior)
        else:
            self.search.restart(posterior)
            mean, std = self._expect(self._recommended)
            known = self._best > -torch.inf
            self._best = torch.where(known, mean - self.multiplier() * std, self._best)
            self.forget()
        self.active = self.active & (self.spent < self.space.budget)

    def best(self) -> Tensor:
        """The recommendation, ``replicates x (1 + d)``; of the posterior's making where nothing was asked yet."""
        none = self._best == -torch.inf
        if not bool(none.any()):
            return self._recommended
        found = self.search.maximize(none.unsqueeze(-1).expand_as(self.plays), -self.multiplier(), keep=False)
        subset = first_best(found.bound(-self.multiplier()))
        query = torch.cat([subset.to(self.spent).unsqueeze(-1), found.of(subset)[0]], -1)
        return torch.where(none.unsqueeze(-1), query, self._recommended)

    def multiplier(self, t: int | None = None) -> float:
        """``sqrt_beta`` of round ``t``, by default of this one."""
        return float(super().multiplier(t))

    def posteriors(self) -> Posterior:
        """The posterior of f at full points, its batch the replicates."""
        return self.surrogate.posterior()

    def record(self) -> Mapping[str, Tensor]:
        """Of the last step, ``replicates`` each.

        ``expected_mean`` and ``expected_std`` of what was asked, the averages of posterior mean and standard deviation
        over the free variables; ``mean`` and ``std`` at the full point that came to be, before the observation;
        ``spent``. Of a fit also ``lengthscale``, ``scale``, ``prior_mean``, ``noise_std`` and ``converged``.
        """
        names = ("expected_mean", "expected_std", "mean", "std")
        record = {**dict(zip(names, (*self._expected, *self._there), strict=True)), "spent": self.spent}
        if self.prior is None:
            fit, none = self.surrogate.fit, torch.full_like(self.spent, torch.nan)
            record["lengthscale"] = fit.lengthscale if fit else none.unsqueeze(-1).repeat(1, self.space.dim)
            record["scale"], record["prior_mean"] = (fit.scale, fit.mean) if fit else (none, none)
            record["noise_std"] = fit.noise_std if fit else none
            record["converged"] = fit.converged if fit else torch.zeros_like(self.active)
        return record

    # What a single run tells and is asked.

    def encode(self, name: str, value: Any) -> Tensor:
        """Rows of the batch's form; subsets, one or a list of them, become indices."""
        if name != "subset":
            points = super().encode(name, value)
            if name == "query" and points.shape[-1] != self.space.dim:
                raise ValueError(f"query must be full points of {self.space.dim} coordinates, got {points.shape[-1]}")
            return points
        sets = [frozenset(subset) for subset in self.space.control_sets]
        given = value.tolist() if hasattr(value, "tolist") else list(value)
        rows = (
            given
            if given and all(isinstance(row, list | tuple | set | frozenset | Tensor) for row in given)
            else [given]
        )
        found = []
        for row in rows:
            asked = frozenset(int(j) for j in row)
            if asked not in sets:
                raise ValueError(f"subset must be one of {list(self.space.control_sets)}, got {row}")
            found.append(float(sets.index(asked)))
        return self.space.like.new_tensor(found)

    def present(self, query: Tensor) -> Play:
        """The play of a row ``1 + d``."""
        subset = tuple(self.space.control_sets[int(query[0])])
        return Play(subset, query[1:][list(subset)])

    def check(self, **rows: Tensor) -> None:
        """Variables that were set lie in the box, and no cost is negative."""
        space, points, subset = self.space, rows["query"], rows["subset"].to(self.spent)
        known = ~subset.isnan()
        index = subset.nan_to_num(0.0).long()
        if not bool(((index >= 0) & (index < space.m)).all()):
            raise ValueError(f"subset must be an index from 0 to {space.m - 1}, got {subset.tolist()}")
        low, high = space.bounds
        slack = 1e-9 * (high - low)
        outside = ((points < low - slack) | (points > high + slack)) & space.controlled[index] & known.unsqueeze(-1)
        if bool(outside.any()):
            raise ValueError(
                f"query must have the variables that were set in their bounds {space.bounds.tolist()}, "
                f"got {points[outside.any(-1)][0].tolist()}"
            )
        if bool((rows["cost"] < 0).any()):
            raise ValueError(f"cost must not be negative, got {float(rows['cost'].nan_to_num(0.0).min()):g}")

    def is_asked(self, row: Mapping[str, Tensor], asked: Tensor) -> Tensor:
        """Whether the subset that was asked was set to the values that were asked; free coordinates do not count."""
        subset, told = asked[:, 0], row["subset"].to(asked)
        low, high = self.space.bounds
        near = (row["query"] - asked[:, 1:]).abs() <= 1e-9 * (high - low)
        return ((told == subset) | told.isnan()) & (near | ~self.space.controlled[subset.long()]).all(-1)

    def _expect(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """What is expected of rows ``replicates x (1 + d)``, ``replicates`` each."""
        subset = query[:, 0].long()
        wanted = torch.nn.functional.one_hot(subset, self.space.m).bool()
        _, mean, std = self.search.expect(query[:, None, 1:].expand(-1, self.space.m, -1), wanted).of(subset)
        return mean, std


@dataclass(frozen=True)
class Halving:
    """The schedule ``start / 2^(s // every)``."""

    start: float
    every: int

    def __call__(self, s: int) -> float:
        """The value at evaluation ``s = 0, 1, ...``."""
        return self.start * 0.5 ** (s // self.every)


class CheapestGoodSubset(SubsetPolicy):
    """The paper's method: learn which subsets are good enough, then play the cheapest of these ([Hoang2024], Alg. 1).

    Exploration plays all subsets in turn: always the first of those that were played least. It ends before a round that
    would, at the average costs so far, bring the spending above ``exploration_budget``; or after ``rounds`` rounds. At
    least one round is played.

    Exploitation keeps the smallest upper bound so far of every subset and the largest lower bound so far of any, drops
    the subsets that cannot be good enough and chooses with ``choose``. Bounds of dropped subsets are not computed
    again: the smallest so far cannot rise. If none is left, the bounds are reset to today's (lines 17 to 21). Where
    hyperparameters are fitted, bounds from before a fit are forgotten.

    The lower bound that is maximized in a step is that of the subset asked last, where the data came in; of the others
    the tracked candidates count. So the largest so far may lag behind, and is valid all the same.

    Args:
        space: see ``SubsetPolicy``, as for the other arguments that are not named here.
        alpha: what share of the best value, counted from ``space.floor``, may be given up, in ``[0, 1)``: a number, as
            in the theory, or a function of the evaluation ``s = 0, 1, ...`` of the exploitation. Default 0.1, halved
            after every ``d`` evaluations, as in the experiments.
        exploration_budget: default 60 percent of the budget.
        rounds: ``tau``. Default none: the budget decides.
        horizon: ``T`` of the cost bounds. Default: what was played until exploitation begins, and what remains of the
            budget at the least average cost, or at a hundred-thousandth of the budget if that is more.
        cost_spread: how widely a cost varies, see ``cost_lower_bound``; the paper's costs lie in [0, 1], and it has 1.
            Default: the largest average cost.

    Raises:
        ValueError: if an argument is out of range; on asking, if ``alpha`` is, or if no value that was told when
            exploration ends reaches the floor.
    """

    def __init__(
        self,
        space: Space,
        *,
        alpha: float | Callable[[int], float] | None = None,
        exploration_budget: float | None = None,
        rounds: int | None = None,
        horizon: int | None = None,
        cost_spread: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        if cost_spread is not None and not cost_spread > 0:
            raise ValueError(f"cost_spread must be positive, got {cost_spread}")
        if exploration_budget is not None and not exploration_budget > 0:
            raise ValueError(f"exploration_budget must be positive, got {exploration_budget}")
        for name, value in (("rounds", rounds), ("horizon", horizon)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.alpha = Halving(0.1, space.dim) if alpha is None else alpha
        self.exploration_budget = 0.6 * space.budget if exploration_budget is None else exploration_budget
        self.rounds, self.horizon, self.cost_spread = rounds, horizon, cost_spread

    def begin(self) -> None:
        """Make the state of ``replicates`` runs that know nothing yet."""
        super().begin()
        self.upper = torch.full_like(self.paid, torch.inf)  # the smallest so far, of each subset
        self.lower = torch.full_like(self.spent, -torch.inf)  # the largest so far, of any
        self.exploring = torch.ones_like(self.spent, dtype=torch.bool)
        self._round = torch.zeros_like(self.plays[:, 0])  # of the exploration, the last that was begun
        self._begun = torch.zeros_like(self._round)  # what was known when exploitation began
        self._horizon = torch.ones_like(self.spent)
        self._resets = torch.zeros_like(self._round)
        self._state: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Bounds under other hyperparameters bound nothing."""
        self.upper = torch.full_like(self.upper, torch.inf)
        self.lower = torch.full_like(self.lower, -torch.inf)

    def record(self) -> Mapping[str, Tensor]:
        """What every policy records, and the state of Algorithm 1 at the last choice.

        ``upper`` (``replicates x m``, infinite where not yet known) and ``lower``; ``cost_lower`` and ``good``
        (``S_1``), ``replicates x m``; ``alpha``; ``exploring``; ``horizon``; ``resets`` so far.
        """
        return {**super().record(), **self._state}

    def decide(self) -> tuple[Tensor, Decisions]:
        """One pass through the loops of lines 3 and 13."""
        sqrt_beta = self.multiplier()
        self._end_exploration()
        today_lower = self._lower_today(sqrt_beta)
        self.lower = torch.maximum(self.lower, today_lower)  # lines 10 and 14
        begun = zip(self.exploring.tolist(), self._begun.tolist(), strict=True)
        alpha = self.alpha if callable(self.alpha) else lambda s: self.alpha
        shares = self.spent.new_tensor([0.0 if e else float(alpha(self.count - b)) for e, b in begun])
        if not bool(((shares >= 0) & (shares < 1)).all()):
            raise ValueError(f"alpha must lie in [0, 1), got {shares.tolist()}")

        # Lines 11 and 15, for the subsets that may still pass line 16.
        turn = first_best(-self.plays.to(self.spent))
        alive = torch.where(
            self.exploring.unsqueeze(-1),
            torch.nn.functional.one_hot(turn, self.space.m).bool(),
            self._good(shares),
        )
        decisions = self.search.maximize(alive, sqrt_beta)
        today = decisions.bound(sqrt_beta).masked_fill(~alive, torch.inf)
        self.upper = torch.minimum(self.upper, today)
        self.lower = torch.maximum(self.lower, decisions.bound(-sqrt_beta).amax(-1))
        lost = ~self._good(shares).any(-1) & ~self.exploring
        if bool(lost.any()):
            decisions = self._reset(lost, today_lower, decisions, shares, sqrt_beta)

        known = self.plays.clamp_min(1)
        average = self.paid / known
        largest = average.amax(-1, keepdim=True).clamp_min(torch.finfo(average.dtype).tiny)
        spread = largest if self.cost_spread is None else self.cost_spread
        cost_lower = cost_lower_bound(average, known, self._horizon, spread)
        today, floor = decisions.bound(sqrt_beta), self.space.floor
        subset = turn
        for r in torch.nonzero(~self.exploring).flatten().tolist():
            gap = self.upper[r] - floor, cost_lower[r], self.lower[r] - floor
            subset[r] = choose(*gap, float(shares[r]), today[r])
        self._state = {
            "upper": self.upper,
            "lower": self.lower,
            "cost_lower": cost_lower,
            "good": self._good(shares),
            "alpha": shares,
            "exploring": self.exploring,
            "horizon": self._horizon,
            "resets": self._resets,
        }
        return subset, decisions

    def _good(self, alpha: Tensor) -> Tensor:
        """Line 16, ``replicates x m``."""
        floor = self.space.floor
        return good_enough(self.upper - floor, self.lower - floor, alpha)

    def _reset(
        self, lost: Tensor, today_lower: Tensor, decisions: Decisions, alpha: Tensor, sqrt_beta: float
    ) -> Decisions:
        """Lines 17 to 21: today's bounds in the place of the tightest so far, for the replicates that lost all."""
        wanted = lost.unsqueeze(-1).expand_as(self.upper)
        everything = self.search.maximize(wanted, sqrt_beta)
        self.upper = torch.where(wanted, everything.bound(sqrt_beta), self.upper)
        least = torch.maximum(today_lower, everything.bound(-sqrt_beta).amax(-1))
        self.lower = torch.where(lost, least, self.lower)
        # Negative bounds may leave none even now; then no subset is dropped.
        none = lost & ~self._good(alpha).any(-1)
        self.lower = self.lower.masked_fill(none, -torch.inf)
        self._resets = self._resets + lost
        return everything.where(lost, decisions)

    def _end_exploration(self) -> None:
        """Decide, before a round, which replicates explore no more."""
        played = self.plays.amin(-1)
        begins = self.exploring & (played > self._round)
        self._round = torch.maximum(self._round, played)
        average = self.paid / self.plays.clamp_min(1)
        if self.rounds is not None:
            over = played >= self.rounds
        else:
            over = self.spent + average.sum(-1) > self.exploration_budget
        ends = begins & over
        if not bool(ends.any()):
            return
        hopeless = ends & (self.data["y"].amax(-1) < self.space.floor)
        if bool(hopeless.any()):
            worst = float(self.data["y"][hopeless].amax())
            raise ValueError(
                f"y must reach space.floor = {self.space.floor:g}, from which alpha counts its share of the best; "
                f"the largest told is {worst:g}. Give what f is worth at its worst as the floor"
            )
        self.exploring = self.exploring & ~ends
        self._begun = torch.where(ends, self.count, self._begun)
        if self.horizon is None:
            remaining = (self.space.budget - self.spent).clamp_min(0.0)
            least = average.amin(-1).clamp_min(1e-5 * self.space.budget)
            estimate = self.plays.sum(-1) + (remaining / least).floor()
        else:
            estimate = torch.full_like(self._horizon, float(self.horizon))
        self._horizon = torch.where(ends, estimate, self._horizon)

    def _lower_today(self, sqrt_beta: float) -> Tensor:
        """The largest expected lower bound that was found today, ``replicates``."""
        lower = self.search.tracked(-sqrt_beta).flatten(1).amax(-1)
        if self._opened:
            played = torch.nn.functional.one_hot(self._query[:, 0].long(), self.space.m).bool()
            found = self.search.maximize(played, -sqrt_beta)
            lower = torch.maximum(lower, found.bound(-sqrt_beta).amax(-1))
        return lower
