"""Variable subsets at a price: the learner sets some variables, pays for that, and the others vary by themselves.

.. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
   Subsets with No-Regret Costs. 2024.
.. [Tay2023] S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Bayesian Optimization with Cost-varying Variable
   Subsets. NeurIPS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from cbo_lib.maximize import maximize_box
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal, uniform
from cbo_lib.subsets.marginals import Marginal

# Separates the random numbers of the truth from those of a learner, whatever seeds they use.
_TRUTH_STREAM, _LEARNER_STREAM = 3, 4
# Best values closer than this count as equal, in units of f.
_TIE = 1e-6


@dataclass(frozen=True)
class SubsetProblem:
    """Maximize an expectation through subsets of the variables whose costs are unknown ([Hoang2024]_).

    The learner plays a subset ``i`` and values ``x^i`` of its variables; the others are drawn from their marginals,
    independently. It sees the whole point, a noisy value of f there and a random cost, and stops when the next cost
    does not fit into what is left of the budget. What it wants is ``E f([x^i, X^-i])``, but a cheaper subset does as
    well if its best expectation is at least ``1 - alpha`` times the largest; for that ``f >= 0`` is assumed.

    A query is a row ``1 + d``: the index of the subset, as a float, then a point of which only the coordinates of the
    subset count. Policies put 0.5 into the others.

    Costs are ``c_i`` plus Gaussian noise that is truncated at ``-c_i`` and ``c_i``, so a cost is never negative and its
    mean is ``c_i`` exactly. The paper adds the noise untruncated; its theory wants costs in [0, 1], and neither holds a
    cost of mean 1 there. With the noise of the paper's experiments, a fifth of the smallest noisy mean, the truncation
    touches less than one draw in a million.

    Args:
        f: the function, from points ``... x d`` of the unit box to values ``...``; differentiable, for the search of
            the best values alone.
        control_sets: the subsets ``I_i``, tuples of zero-based indices of variables; ``m`` of them, all different. The
            full set need not be among them.
        marginals: the distribution of each variable when it is free, ``d`` of them.
        cost_means: ``c_i``, ``m`` nonnegative numbers; their dtype and device are those of the run.
        cost_std: standard deviation of the Gaussian noise of a cost, a number or one a subset, ``m``. Default 0.
        noise_std: standard deviation of the Gaussian noise of y, nonnegative. Default 0.1.
        budget: what may be paid in all, ``C``. Default 100.
        name: for labels.
        nodes: points of the scrambled Sobol rule behind ``value``, a power of two. Default 1024.

    Raises:
        ValueError: if a control set is empty, repeats a variable, names one that does not exist or is given twice; the
            lengths differ; a cost, its noise or the noise of y is negative; the budget does not pay for the cheapest
            subset; or ``nodes`` is no power of two.
    """

    f: Function
    control_sets: tuple[tuple[int, ...], ...]
    marginals: tuple[Marginal, ...]
    cost_means: Tensor
    cost_std: Tensor | float = 0.0
    noise_std: float = 0.1
    budget: float = 100.0
    name: str = ""
    nodes: int = 1024

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not self.marginals or not self.control_sets:
            raise ValueError(
                "marginals and control_sets must hold at least one entry each, "
                f"got {len(self.marginals)} and {len(self.control_sets)}"
            )
        for subset in self.control_sets:
            if not subset or len(set(subset)) < len(subset) or not set(subset) <= set(range(self.dim)):
                raise ValueError(
                    f"control_sets must be nonempty, with different variables from 0 to {self.dim - 1}, got {subset}"
                )
        if len({frozenset(subset) for subset in self.control_sets}) < self.m:
            raise ValueError(f"control_sets must all be different, got {self.control_sets}")
        if self.cost_means.shape != (self.m,) or not self.cost_means.is_floating_point():
            raise ValueError(
                f"cost_means must be floats, one a control set ({self.m},), "
                f"got {self.cost_means.dtype} of shape {tuple(self.cost_means.shape)}"
            )
        if torch.as_tensor(self.cost_std).shape not in (torch.Size(), torch.Size([self.m])):
            raise ValueError(
                f"cost_std must be a number or one a control set ({self.m},), "
                f"got shape {tuple(torch.as_tensor(self.cost_std).shape)}"
            )
        for name in ("cost_means", "cost_std", "noise_std"):
            value = torch.as_tensor(getattr(self, name))
            if not bool(((value >= 0) & torch.isfinite(value)).all()):
                raise ValueError(f"{name} must be nonnegative and finite, got {value.tolist()}")
        cheapest = float(self.cost_means.min())
        if not max(cheapest, 0.0) <= self.budget < math.inf or self.budget == 0:
            raise ValueError(
                f"budget must be positive, finite and pay for the cheapest control set ({cheapest:g}), "
                f"got {self.budget}"
            )
        if self.nodes < 1 or self.nodes & (self.nodes - 1):
            raise ValueError(f"nodes must be a power of two, got {self.nodes}")

    @property
    def dim(self) -> int:
        """The number of variables ``d``."""
        return len(self.marginals)

    @property
    def m(self) -> int:
        """The number of control sets."""
        return len(self.control_sets)

    @cached_property
    def controlled(self) -> Tensor:
        """Which variables each control set holds, boolean ``m x d``."""
        rows = [[j in subset for j in range(self.dim)] for subset in self.control_sets]
        return torch.tensor(rows, device=self.cost_means.device)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Play one subset a replicate.

        Args:
            query: ``replicates x (1 + d)``, the index of the subset and a point whose free coordinates do not count.
            generators: one a replicate. Every replicate draws the same amount, whatever it plays.

        Returns:
            ``replicates x (d + 2)``: the point where f was evaluated, the noisy value, the cost.

        Raises:
            ValueError: if a query has another shape, no such subset, or a controlled coordinate outside [0, 1]; or if
                there are more or fewer generators than replicates.
        """
        subsets, points = self._split(query, 2)
        if len(generators) != len(query):
            raise ValueError(f"generators must be one a replicate, {len(query)}, got {len(generators)}")
        draws = uniform(generators, (self.dim + 1,), query)
        free = self._quantiles(draws[:, : self.dim])
        full = torch.where(self.controlled[subsets], points, free)
        # Row by row: the shape of a batch may decide how f is rounded.
        value = torch.cat([self.f(row) for row in full.split(1)])
        value = value + self.noise_std * standard_normal(generators, (), value)
        cost = self._costs(subsets, draws[:, self.dim])
        return torch.cat([full, value.unsqueeze(-1), cost.unsqueeze(-1)], -1)

    def value(self, query: Tensor) -> Tensor:
        """``E f([x^i, X^-i])`` of queries ``... x (1 + d)``, ``...``, by scrambled Sobol points that no learner shares.

        Its root mean squared error is ``value_error``. A query's value does not depend on its company.

        Raises:
            ValueError: as ``observe`` does.
        """
        subsets, points = self._split(query)
        return self._rows(subsets, points, self._nodes)

    def subset_values(self, subset: int, x: Tensor) -> Tensor:
        """``value`` at points ``... x d`` of one subset, ``...``."""
        return self.value(torch.cat([torch.full_like(x[..., :1], subset), x], -1))

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
        rules = [self._sobol(self.nodes, k, _TRUTH_STREAM) for k in range(1, scrambles + 1)]
        return torch.stack([self._rows(subsets, points, rule) for rule in rules]).std(0)

    def free_samples(self, count: int, seed: int) -> Tensor:
        """Draws of all the variables for a learner's own averages, ``count x d``: scrambled Sobol points.

        Args:
            count: how many; a power of two is best.
            seed: of the scramble, nonnegative. No seed gives the points of ``value``.
        """
        if count < 1 or seed < 0:
            raise ValueError(f"count must be at least 1 and seed nonnegative, got {count} and {seed}")
        return self._sobol(count, seed, _LEARNER_STREAM)

    @property
    def best_points(self) -> Tensor:
        """The best values of the controlled variables of each subset, ``m x d``; 0.5 in the free coordinates."""
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

        A best value that falls short by less than 1e-6 counts as enough: that is what the search leaves open.

        Raises:
            ValueError: if ``alpha`` is not in [0, 1), or the optimum is negative, where the fraction means nothing.
        """
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
        if float(self.optimum) < 0:
            raise ValueError(f"f must not be negative at its best, got an optimum of {float(self.optimum):g}")
        return self.best_values >= (1 - alpha) * self.optimum - _TIE

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
        if query.shape[-1:] != (1 + self.dim,) or (dims is not None and query.dim() != dims):
            wanted = "..." if dims is None else "replicates"
            raise ValueError(f"query must have shape ({wanted}, {1 + self.dim}), got {tuple(query.shape)}")
        subsets, points = query[..., 0].long(), query[..., 1:]
        if not bool(((subsets == query[..., 0]) & (subsets >= 0) & (subsets < self.m)).all()):
            raise ValueError(
                f"query must begin with the index of a control set, 0 to {self.m - 1}, got {query[..., 0].tolist()}"
            )
        if not bool((((points >= 0) & (points <= 1)) | ~self.controlled[subsets]).all()):
            raise ValueError("query must have its controlled coordinates in [0, 1], got one outside")
        return subsets, points

    def _rows(self, subsets: Tensor, points: Tensor, nodes: Tensor) -> Tensor:
        """The averages of f over the nodes for subsets ``...`` and points ``... x d``, one row after the other."""
        rows = zip(subsets.flatten().tolist(), points.reshape(-1, self.dim), strict=True)
        values = [self._average(i, row, nodes) for i, row in rows]
        return torch.stack(values).reshape(subsets.shape) if values else points.new_zeros(subsets.shape)

    def _average(self, subset: int, points: Tensor, nodes: Tensor) -> Tensor:
        """The average of f over the nodes, points ``... x d`` to ``...``."""
        controlled = self.controlled[subset]
        if len(self.control_sets[subset]) == self.dim:
            nodes = nodes[:1]  # nothing is free
        return self.f(torch.where(controlled, points.unsqueeze(-2), nodes)).mean(-1)

    def _costs(self, subsets: Tensor, u: Tensor) -> Tensor:
        """Random costs from uniform numbers ``replicates``, by the inverse distribution function."""
        mean = self.cost_means[subsets]
        std = torch.as_tensor(self.cost_std, dtype=mean.dtype, device=mean.device).expand(self.m)[subsets]
        outside = 0.5 * torch.erfc(mean / std.clamp(min=torch.finfo(std.dtype).tiny) / math.sqrt(2))
        side = u - 0.5
        # Half a unit of the last place keeps the quantile finite where nothing is outside.
        tail = (outside + (0.5 - side.abs()) * (1 - 2 * outside)).clamp(min=torch.finfo(u.dtype).eps / 4)
        noise = -side.sign() * std * torch.special.ndtri(tail)
        return mean + torch.minimum(torch.maximum(noise, -mean), mean)

    def _quantiles(self, u: Tensor) -> Tensor:
        """Draws of the variables from uniform numbers, ``... x d`` to ``... x d``."""
        return torch.stack([p.inverse_cdf(v) for p, v in zip(self.marginals, u.unbind(-1), strict=True)], -1)

    def _sobol(self, count: int, seed: int, stream: int) -> Tensor:
        """Scrambled Sobol points, mapped to the marginals, ``count x d``."""
        word = int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])
        engine = torch.quasirandom.SobolEngine(self.dim, scramble=True, seed=word)
        return self._quantiles(engine.draw(count, dtype=self.cost_means.dtype)).to(self.cost_means.device)

    @cached_property
    def _nodes(self) -> Tensor:
        """The points of ``value``, ``nodes x d``."""
        return self._sobol(self.nodes, 0, _TRUTH_STREAM)

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        """Best points and values of all subsets."""
        points = torch.stack([self._search(i) for i in range(self.m)])
        index = torch.arange(self.m).to(points).unsqueeze(-1)
        return points, self.value(torch.cat([index, points], -1))

    def _search(self, subset: int, grid: int = 65) -> Tensor:
        """The best point of one subset, ``d``.

        The best of Sobol points, then line searches along each coordinate over its whole range, which leave the many
        small hills of functions such as Ackley's, then L-BFGS-B; few nodes first, all of them at the end. Where
        nothing is free an evaluation is one point, and f is less smooth than an average, so more points are tried.
        """
        raw, starts = (2**13, 32) if len(self.control_sets[subset]) == self.dim else (2**9, 4)
        where = self.controlled[subset].nonzero().squeeze(-1)
        like = self.cost_means

        def average(x: Tensor, nodes: Tensor) -> Tensor:
            """Averages at the controlled coordinates ``... x k``."""
            points = x.new_full((*x.shape[:-1], self.dim), 0.5).index_copy(-1, where, x)
            return self._average(subset, points, nodes)

        def scan(x: Tensor) -> Tensor:
            """Averages over few nodes without gradients, in slices."""
            with torch.no_grad():
                return torch.cat(
                    [average(part, self._nodes[:64]) for part in x.reshape(-1, len(where)).split(512)]
                ).view(x.shape[:-1])

        candidates = torch.quasirandom.SobolEngine(len(where)).draw(raw, dtype=like.dtype).to(like)
        best = candidates[scan(candidates).topk(starts).indices]
        line = torch.linspace(0, 1, grid).to(like)
        for _ in range(2):
            for k in range(len(where)):
                moved = best.unsqueeze(-2).repeat(1, grid + 1, 1)
                moved[:, :grid, k] = line
                chosen = scan(moved).argmax(-1)
                best = moved[torch.arange(starts), chosen]
        bounds = torch.tensor([[0.0], [1.0]]).to(like).expand(2, len(where)).contiguous()
        few, rest = partial(average, nodes=self._nodes[:128]), partial(average, nodes=self._nodes)
        best = maximize_box(few, bounds, best, starts)[0]
        best = maximize_box(rest, bounds, best, 1)[0]
        return like.new_full((self.dim,), 0.5).index_copy(-1, where, best[0])
