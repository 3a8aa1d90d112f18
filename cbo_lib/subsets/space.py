"""What a learner knows who pays for controlling variables: the box, the control sets, how free variables vary."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cbo_lib.checks import (
    as_box,
    as_count,
    as_number,
    as_points,
    as_tensor,
    as_values,
    require,
    require_inside,
    require_shape,
)

# Separate the random numbers of a learner's averages from those of the truth, whatever seeds they use.
TRUTH_STREAM, LEARNER_STREAM = 3, 4


@dataclass(frozen=True, eq=False)
class Space:
    """Which variables can be set together, and how the others vary ([Hoang2024]).

    The learner plays a control set and values of its variables; the others vary by themselves. Everything is in the
    user's units, as a tensor, an array, lists or a data frame.

    Args:
        bounds: the box of the variables, ``2 x d``, lower corner first; its dtype and device are those of the run.
        control_sets: ``m`` different sets of variables, zero-based. The full set need not be among them.
        free: how the variables vary when they are free: ``n x d`` rows that were observed while nothing was
            controlled, or ``d`` distributions of ``cbo_lib.distributions``, which are taken as independent.
        budget: what may be paid in all, ``C``, positive.
        floor: what f is worth at its worst; a share ``alpha`` of the best value is counted from there. Default: zero,
            and no outcome may be negative.
        names: of the variables. Default: the columns of a frame of bounds, or their numbers.

    Raises:
        ValueError: if there is no such box; a control set is empty, repeats a variable, names one that does not exist
            or is given twice; ``free`` is neither; or a number is out of range.
    """

    bounds: Any
    control_sets: Sequence[Sequence[int]]
    free: Any
    budget: float
    floor: float | None = None
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Convert and check the arguments."""
        named = self.bounds.columns if isinstance(self.bounds, pd.DataFrame) else None
        box = as_box("bounds", self.bounds)
        object.__setattr__(self, "bounds", box)
        names = self.names or (range(1, self.dim + 1) if named is None else named)
        object.__setattr__(self, "names", [str(name) for name in names])
        object.__setattr__(self, "control_sets", _control_sets(self.control_sets, self.dim))
        object.__setattr__(self, "free", _free(self.free, box))
        object.__setattr__(self, "budget", as_number("budget", self.budget, 0, ends="()"))
        if self.floor is not None:
            object.__setattr__(self, "floor", as_number("floor", self.floor))

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.bounds

    @property
    def dim(self) -> int:
        """The number of variables ``d``."""
        return self.bounds.shape[1]

    @property
    def m(self) -> int:
        """The number of control sets."""
        return len(self.control_sets)

    @property
    def columns(self) -> list[str]:
        """Names of the numbers of a row: the index of the subset, then the variables."""
        return ["subset", *(self.names or ())]

    def read(self, rows: Any) -> Tensor:
        """Rows as a user gives them, ``n x (1 + d)``: the index of the subset that was set, and the full point.

        Raises:
            ValueError: if they are none, or a variable that was set lies outside of the box.
        """
        rows = as_values("query", rows, like=self.bounds)
        rows = rows.unsqueeze(0) if rows.dim() == 1 else rows
        require_shape("query", rows, "n", 1 + self.dim)
        index = rows[:, 0]
        whole = (index == index.round()) & (index >= -1) & (index < self.m)
        require(whole, f"query must begin with the index of a control set, 0 to {self.m - 1}, or -1 for none", index)
        require_inside("query, where it was set,", rows[:, 1:], self.bounds, self.controlled_by(index))
        return rows

    def read_seen(self, name: str, value: Any) -> Tensor:
        """Costs, ``n``; NaN, or None, is one that is not known yet."""
        costs = as_tensor(name, value, self.bounds).reshape(-1)
        require(costs.isnan() | ((costs >= 0) & costs.isfinite()), f"{name} must be nonnegative, or NaN", costs)
        return costs

    def chosen(self, row: Any) -> dict[str, float]:
        """The variables that a row ``1 + d`` sets, by name, and their values."""
        row = as_values("row", row, (1 + self.dim,), like=self.bounds)
        return {(self.names or ())[j]: float(row[1 + j]) for j in self.control_sets[int(row[0])]}

    @cached_property
    def controlled(self) -> Tensor:
        """Which variables each control set holds, boolean ``m x d``."""
        rows = [[j in subset for j in range(self.dim)] for subset in self.control_sets]
        return torch.tensor(rows, device=self.bounds.device)

    def controlled_by(self, index: Tensor) -> Tensor:
        """Which variables the control sets of indices ``...`` hold, boolean ``... x d``; none for -1."""
        return self.controlled[index.long().clamp_min(0)] & (index >= 0).unsqueeze(-1)

    @property
    def center(self) -> Tensor:
        """The middle of the box, ``d``; it stands for coordinates that do not count."""
        return (self.bounds[0] + self.bounds[1]) / 2

    def quantiles(self, u: Tensor) -> Tensor:
        """Draws of all variables from uniform numbers ``... x d``, ``... x d``.

        Of observed rows one is drawn, by the first of the ``d`` numbers.
        """
        if isinstance(self.free, Tensor):
            return self.free[(u[..., 0] * len(self.free)).long().clamp_max(len(self.free) - 1)]
        return torch.stack([p.inverse_cdf(v) for p, v in zip(self.free, u.unbind(-1), strict=True)], -1)

    def samples(self, count: int, seed: int = 0, stream: int = LEARNER_STREAM) -> Tensor:
        """Draws of all variables for averages, ``count x d``: scrambled Sobol points.

        Of observed rows all are given where they are no more than ``count``.

        Args:
            count: how many; a power of two is best.
            seed: of the scramble, nonnegative.
            stream: separates scrambles of the same seed.
        """
        as_count("count", count, 1)
        as_count("seed", seed)
        if isinstance(self.free, Tensor) and len(self.free) <= count:
            return self.free
        word = int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])
        engine = torch.quasirandom.SobolEngine(self.dim, scramble=True, seed=word)
        return self.quantiles(engine.draw(count, dtype=self.bounds.dtype).to(self.bounds.device))


def _control_sets(sets: Any, dim: int) -> tuple[tuple[int, ...], ...]:
    listed = isinstance(sets, Collection) and all(isinstance(subset, Collection) for subset in sets)
    right = listed and not isinstance(sets, str) and len(sets) > 0
    require(right, "control_sets must be one or more sets of indices", repr(sets))
    made = tuple(tuple(as_count("each index of control_sets", j, 0, dim - 1) for j in subset) for subset in sets)
    for subset in made:
        apart = len(subset) > 0 and len(set(subset)) == len(subset)
        require(apart, "control_sets must be nonempty, with different variables", subset)
    require(len({frozenset(subset) for subset in made}) == len(made), "control_sets must all be different", made)
    return made


def _free(free: Any, box: Tensor) -> Any:
    """Rows as a tensor, distributions as a tuple."""
    dim = box.shape[1]
    if isinstance(free, list | tuple) and any(hasattr(part, "inverse_cdf") for part in free):
        each = len(free) == dim and all(hasattr(part, "inverse_cdf") for part in free)
        require(each, f"free must be one distribution a variable, {dim}", free)
        free, medians = tuple(free), [float(part.inverse_cdf(box.new_tensor(0.5))) for part in free]
    else:
        free = as_points("free", free, dim, box)
        medians = free.median(0).values.tolist()
    for j, ((low, high), median) in enumerate(zip(box.mT.tolist(), medians, strict=True)):
        expected = f"free must vary in the units of bounds, [{low:g}, {high:g}] of variable {j}"
        require(low <= median <= high, expected, f"a median of {median:g}")
    return free
