"""Variable subsets at a price: the learner sets some variables, pays for that, and the others vary by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cbo_lib.checks import as_tensor
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal, uniform
from cbo_lib.search import maximize_box
from cbo_lib.subsets.space import TRUTH_STREAM, Space

# Best values closer than this count as equal, in units of f.
_TIE = 1e-6
# Points of an average are evaluated in slices of about this many.
_ROWS = 2**19
# Best points and values by function and law, with the distributions, so that none of their addresses is used again.
_BEST: WeakKeyDictionary[FunctionType, dict[Any, tuple[Any, Tensor, Tensor]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class SubsetProblem:
    """Maximize an expectation through subsets of the variables whose costs are unknown ([Hoang2024]).

    The learner plays a subset ``i`` and values ``x^i`` of its variables; the others are drawn. It sees the whole point,
    a noisy value of f there and a random cost, and stops when the next cost does not fit into what is left of the
    budget. What it wants is ``E f([x^i, X^-i])``, but a cheaper subset does as well if its best expectation is at least
    ``1 - alpha`` times the largest; for that ``f >= 0`` is assumed (``f >= space.floor``, and the share is of what is
    above).

    A query is a row ``1 + d``: the index of the subset, as a float, then a point of which only the coordinates of the
    subset count. Policies put the center of the box into the others.

    Costs are ``c_i`` plus Gaussian noise that is truncated at ``-c_i`` and ``c_i``, so a cost is never negative and its
    mean is ``c_i`` exactly. The paper adds the noise untruncated; its theory wants costs in [0, 1], and neither holds a
    cost of mean 1 there. With the noise of the paper's experiments, a fifth of the smallest noisy mean, the truncation
    touches less than one draw in a million.

    Args:
        space: what the learner knows.
        f: the function, from points ``... x d`` to values ``...``; differentiable, for the search of the best values
            alone.
        cost_means: ``c_i``, ``m`` nonnegative numbers.
        cost_std: standard deviation of the Gaussian noise of a cost, a number or one a subset, ``m``. Default 0.
        noise_std: standard deviation of the Gaussian noise of y, nonnegative. Default 0.1.
        name: for labels.
        nodes: points of the scrambled Sobol rule behind ``value``, a power of two. Default 1024.

    Raises:
        ValueError: if the lengths differ; a cost, its noise or the noise of y is negative; the budget does not pay for
            the cheapest subset; or ``nodes`` is no power of two.
    """

    space: Space
    f: Function
    cost_means: Tensor
    cost_std: Tensor | float = 0.0
    noise_std: float = 0.1
    name: str = ""
    nodes: int = 1024

    def __post_init__(self) -> None:
        """Check the arguments."""
        m = self.space.m
        if self.cost_means.shape != (m,) or not self.cost_means.is_floating_point():
            raise ValueError(
                f"cost_means must be floats, one a control set ({m},), "
                f"got {self.cost_means.dtype} of shape {tuple(self.cost_means.shape)}"
            )
        if torch.as_tensor(self.cost_std).shape not in (torch.Size(), torch.Size([m])):
            raise ValueError(
                f"cost_std must be a number or one a control set ({m},), "
                f"got shape {tuple(torch.as_tensor(self.cost_std).shape)}"
            )
        for name in ("cost_means", "cost_std", "noise_std"):
            value = torch.as_tensor(getattr(self, name))
            if not bool(((value >= 0) & torch.isfinite(value)).all()):
                raise ValueError(f"{name} must be nonnegative and finite, got {value.tolist()}")
        if not float(self.cost_means.min()) <= self.space.budget:
            raise ValueError(
                f"budget must pay for the cheapest control set ({float(self.cost_means.min()):g}), "
                f"got {self.space.budget}"
            )
        if self.nodes < 1 or self.nodes & (self.nodes - 1):
            raise ValueError(f"nodes must be a power of two, got {self.nodes}")

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """Play one subset a replicate.

        Args:
            query: ``replicates x (1 + d)``, the index of the subset and a point whose free coordinates do not count.
            generators: one a replicate. Every replicate draws the same amount, whatever it plays.

        Returns:
            ``played``, the rows that came to be, ``replicates x (1 + d)``; ``y``, the noisy values there, and ``cost``,
            ``replicates`` each.

        Raises:
            ValueError: if a query has another shape, no such subset, or a controlled coordinate outside the box; or if
                there are more or fewer generators than replicates.
        """
        query = as_tensor("query", query, self.space.like)
        subsets, points = self._split(query, 2)
        if len(generators) != len(query):
            raise ValueError(f"generators must be one a replicate, {len(query)}, got {len(generators)}")
        draws = uniform(generators, (self.space.dim + 1,), query)
        free = self.space.quantiles(draws[:, :-1])
        played = torch.where(self.space.controlled[subsets], points, free)
        value = self.f(played)
        y = value + self.noise_std * standard_normal(generators, (), value)
        rows = torch.cat([query[:, :1], played], -1)
        return {"played": rows, "y": y, "cost": self._costs(subsets, draws[:, -1])}

    def value(self, query: Tensor) -> Tensor:
        """``E f([x^i, X^-i])`` of queries ``... x (1 + d)``, ``...``, by scrambled Sobol points that no learner shares.

        Its root mean squared error is ``value_error``. Where observed rows say how variables vary it is exact.

        Raises:
            ValueError: as ``observe`` does.
        """
        subsets, points = self._split(query)
        return self._rows(subsets, points, self._nodes)

    def value_error(self, query: Tensor, scrambles: int = 8) -> Tensor:
        """The root mean squared error of ``value``, estimated by other scrambles of the rule.

        Args:
            query: ``... x (1 + d)``.
            scrambles: how many, at least 2.

        Returns:
            The standard deviation over scrambles, ``...``; zero where every variable is controlled.
        """
        if scrambles < 2:
            raise ValueError(f"scrambles must be at least 2, got {scrambles}")
        subsets, points = self._split(query)
        rules = [self._rule(k) for k in range(1, scrambles + 1)]
        return torch.stack([self._rows(subsets, points, rule) for rule in rules]).std(0)

    @property
    def best_points(self) -> Tensor:
        """The best values of the controlled variables of each subset, ``m x d``; the center in the free coordinates."""
        return self._best[0]

    @property
    def best_values(self) -> Tensor:
        """``max E f([x^i, X^-i])`` over ``x^i`` of each subset, ``m``; equals ``value`` at ``best_points``."""
        return self._best[1]

    @property
    def optimum(self) -> Tensor:
        """The largest of ``best_values``, ``()``."""
        return self.best_values.amax()

    @property
    def best_subset(self) -> int:
        """``i^+``, the subset of the largest best value; of those within 1e-6 of it the cheapest, then the first."""
        return self.cheapest(0.0)

    def acceptable(self, alpha: float) -> Tensor:
        """``C_*``: whether each subset's best value is at least ``(1 - alpha)`` times the optimum, boolean ``m``.

        Both are counted from the floor. A best value that falls short by less than 1e-6 counts as enough: that is what
        the search leaves open.

        Raises:
            ValueError: if ``alpha`` is not in [0, 1), or the optimum is below the floor, where the share means nothing.
        """
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
        floor = self.space.floor or 0.0
        if float(self.optimum) < floor:
            raise ValueError(
                f"f must not be below space.floor = {floor:g} at its best, got an optimum of {float(self.optimum):g}; "
                "give what f is worth at its worst as the floor"
            )
        return self.best_values - floor >= (1 - alpha) * (self.optimum - floor) - _TIE

    def cheapest(self, alpha: float) -> int:
        """``i_*``, the acceptable subset of the smallest mean cost.

        Of equally cheap ones that with the largest best value is taken, of those within 1e-6 the first.
        """
        costs = self.cost_means.masked_fill(~self.acceptable(alpha), torch.inf)
        cheap = costs == costs.amin()
        values = self.best_values.masked_fill(~cheap, -torch.inf)
        return int((values >= values.amax() - _TIE).nonzero()[0])

    def _split(self, query: Tensor, dims: int | None = None) -> tuple[Tensor, Tensor]:
        """Subsets ``...`` and points ``... x d`` of queries, checked."""
        space = self.space
        query = as_tensor("query", query, space.like)
        if query.shape[-1:] != (1 + space.dim,) or (dims is not None and query.dim() != dims):
            wanted = "..." if dims is None else "replicates"
            raise ValueError(f"query must have shape ({wanted}, {1 + space.dim}), got {tuple(query.shape)}")
        subsets, points = query[..., 0].long(), query[..., 1:]
        if not bool(((subsets == query[..., 0]) & (subsets >= 0) & (subsets < space.m)).all()):
            raise ValueError(
                f"query must begin with the index of a control set, 0 to {space.m - 1}, got {query[..., 0].tolist()}"
            )
        low, high = space.bounds
        if not bool((((points >= low) & (points <= high)) | ~space.controlled[subsets]).all()):
            raise ValueError("query must have its controlled coordinates in the box, got one outside")
        return subsets, points

    def _rows(self, subsets: Tensor, points: Tensor, nodes: Tensor) -> Tensor:
        """The averages of f over the nodes for subsets ``...`` and points ``... x d``."""
        shape, controlled = subsets.shape, self.space.controlled[subsets.flatten()]
        points, values = points.reshape(-1, self.space.dim), points.new_zeros(shape.numel())
        full = controlled.all(-1)  # nothing is free
        values[full] = self.f(points[full])
        for rows in (~full).nonzero().flatten().split(max(1, _ROWS // len(nodes))):
            values[rows] = self._average(controlled[rows], points[rows], nodes)
        return values.reshape(shape)

    def _average(self, controlled: Tensor, points: Tensor, nodes: Tensor) -> Tensor:
        """The average of f over the nodes, points ``... x d`` to ``...``."""
        return self.f(torch.where(controlled.unsqueeze(-2), points.unsqueeze(-2), nodes)).mean(-1)

    def _costs(self, subsets: Tensor, u: Tensor) -> Tensor:
        """Random costs from uniform numbers ``replicates``, by the inverse distribution function."""
        mean = self.cost_means[subsets]
        std = torch.as_tensor(self.cost_std, dtype=mean.dtype, device=mean.device).expand(self.space.m)[subsets]
        outside = 0.5 * torch.erfc(mean / std.clamp(min=torch.finfo(std.dtype).tiny) / math.sqrt(2))
        side = u - 0.5
        # Half a unit of the last place keeps the quantile finite where nothing is outside.
        tail = (outside + (0.5 - side.abs()) * (1 - 2 * outside)).clamp(min=torch.finfo(u.dtype).eps / 4)
        noise = -side.sign() * std * torch.special.ndtri(tail)
        return mean + torch.minimum(torch.maximum(noise, -mean), mean)

    def _rule(self, seed: int) -> Tensor:
        """Points of an average, ``nodes x d``; all rows that were observed, if there are any."""
        free = self.space.free
        return free if isinstance(free, Tensor) else self.space.samples(self.nodes, seed, TRUTH_STREAM)

    @cached_property
    def _nodes(self) -> Tensor:
        """The points of ``value``, ``nodes x d``."""
        return self._rule(0)

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        """Best points and values of all subsets; a problem that differs in costs and budget alone has the same."""
        space, known = self.space, _BEST.setdefault(self.f, {}) if isinstance(self.f, FunctionType) else {}
        free = (space.free,) if isinstance(space.free, Tensor) else space.free
        box = space.bounds
        law = (space.control_sets, *map(id, free), *box.flatten().tolist(), box.dtype, box.device, self.nodes)
        if law not in known:
            points = torch.stack([self._search(i) for i in range(space.m)])
            index = torch.arange(space.m).to(points).unsqueeze(-1)
            known[law] = free, points, self.value(torch.cat([index, points], -1))
        return known[law][1:]

    def _search(self, subset: int, grid: int = 65) -> Tensor:
        """The best point of one subset, ``d``.

        The best of Sobol points, then line searches along each coordinate over its whole range, which leave the many
        small hills of functions such as Ackley's, then L-BFGS-B; few nodes first, all of them at the end. Where
        nothing is free an evaluation is one point, and f is less smooth than an average, so more points are tried.
        """
        space, controlled = self.space, self.space.controlled[subset]
        where, full = controlled.nonzero().squeeze(-1), bool(controlled.all())
        raw, starts = (2**13, 32) if full else (2**9, 4)
        low, high = space.bounds[:, where]
        nodes = self._nodes[:1] if full else self._nodes

        def completed(x: Tensor) -> Tensor:
            """Points from the controlled coordinates in the unit box ``... x k``."""
            return space.center.repeat(*x.shape[:-1], 1).index_copy(-1, where, low + (high - low) * x)

        def average(x: Tensor, nodes: Tensor) -> Tensor:
            return self._average(controlled, completed(x), nodes)

        def scan(x: Tensor) -> Tensor:
            """Averages over few nodes without gradients, in slices."""
            with torch.no_grad():
                parts = x.reshape(-1, len(where)).split(512)
                return torch.cat([average(part, nodes[:64]) for part in parts]).view(x.shape[:-1])

        candidates = torch.quasirandom.SobolEngine(len(where)).draw(raw, dtype=low.dtype).to(low)
        best = candidates[scan(candidates).topk(starts).indices]
        line = torch.linspace(0, 1, grid).to(low)
        for _ in range(2):
            for k in range(len(where)):
                moved = best.unsqueeze(-2).repeat(1, grid + 1, 1)
                moved[:, :grid, k] = line
                chosen = scan(moved).argmax(-1)
                best = moved[torch.arange(starts), chosen]
        unit = torch.stack([torch.zeros_like(low), torch.ones_like(low)])
        for count, tries in ((128, starts), (len(nodes), 1)):
            best = maximize_box(partial(average, nodes=nodes[:count]), unit, best.unsqueeze(0), tries)[0]
        return completed(best)[0]
