"""What the learner knows of an indirect query: actions, how they choose inputs, and points to recommend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, Protocol

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_box, as_schedule, as_tensor, as_values, require, require_shape
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding
from cbo_lib.kernels import GaussianMeasureKernel, TabulatedKernel
from cbo_lib.measure import Measure, covariance, variance

# Nodes a dimension of the rule with which a learner averages under a known p(x | a).
_ORDER = 8
# Recommended points of a box, if none are named.
_SOBOL = 512


class Conditional(Protocol):
    """The distribution ``p(x | a)`` of the input under each action."""

    def measure(self, actions: Tensor, order: int) -> Measure:
        """A rule, always the same, under ``p(x | a)`` for actions ``... x n x q``; ``order`` nodes a dimension."""


@dataclass(frozen=True)
class Point:
    """``x = a``: direct queries, of a space whose actions are its points."""

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The action itself."""
        return Measure.dirac(actions)

    def gaussian(self, actions: Tensor) -> Tensor:
        """``(x, 0)``, ``... x (d + 1)``, for ``GaussianMeasureKernel``."""
        return torch.cat([actions, torch.zeros_like(actions[..., :1])], -1)


@dataclass(frozen=True)
class ClippedGaussian:
    """``x = h(a) + tau * noise``, clipped to a box ([Zhang2025], section 7).

    Args:
        center: ``h``, from actions ``... x q`` to points ``... x d``.
        std: ``tau`` of every coordinate, nonnegative: a number, or a function from actions ``... x q`` to ``...``.
        bounds: the box ``2 x d`` that inputs are clipped to. None does not clip.

    Raises:
        ValueError: if ``std`` is a negative number, or ``bounds`` no box.
    """

    center: Callable[[Tensor], Tensor]
    std: float | Callable[[Tensor], Tensor]
    bounds: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "std", as_schedule("std", self.std))
        require(callable(self.center), "center must be a function of actions", self.center)
        if self.bounds is not None:
            object.__setattr__(self, "bounds", as_box("bounds", self.bounds))

    def scale(self, actions: Tensor) -> Tensor:
        """``tau`` for actions ``... x q``, ``...``."""
        return self.std(actions) if callable(self.std) else torch.full_like(actions[..., 0], self.std)

    def gaussian(self, actions: Tensor) -> Tensor:
        """``(h(a), tau)``, ``... x (d + 1)``, for ``GaussianMeasureKernel``, without regard to clipping."""
        return torch.cat([self.center(actions), self.scale(actions).unsqueeze(-1)], -1)

    def measure(self, actions: Tensor, order: int = 12) -> Measure:
        """A product Gauss-Hermite rule of ``order^d`` nodes; with clipping, nodes are clipped.

        Clipping makes the integrand less smooth, so the rule then converges slowly (like ``1 / order``).
        """
        nodes, weights = (torch.as_tensor(p).to(actions) for p in np.polynomial.hermite_e.hermegauss(order))
        d = (center := self.center(actions)).shape[-1]
        grid = torch.cartesian_prod(*[nodes] * d).reshape(-1, d)
        mass = torch.cartesian_prod(*[weights / weights.sum()] * d).reshape(-1, d).prod(-1)
        points = center.unsqueeze(-2) + self.scale(actions)[..., None, None] * grid
        clipped = points if self.bounds is None else points.clamp(self.bounds[0], self.bounds[1])
        return Measure(clipped, mass.expand(points.shape[:-1]))


@dataclass(frozen=True)
class UniformWindow:
    """``x`` uniform on the box ``center +- radius`` of an action ``(center, radius)``, ``q = d + 1`` (section 3.2)."""

    def measure(self, actions: Tensor, order: int = 12) -> Measure:
        """A product Gauss-Legendre rule of ``order^d`` nodes."""
        center, radius = actions[..., :-1], actions[..., -1:]
        return Measure.uniform(torch.stack([center - radius, center + radius], -2), order)


@dataclass(frozen=True, eq=False)
class Space:
    """What the learner knows: f is to be maximized over points, and ``g(a) = E[f(X) | a]`` may be asked of actions.

    *Places* are indices: ``0 ... n - 1`` the actions, ``n ... n + m - 1`` the points.

    Args:
        actions: what may be asked, ``n x q``; ``n`` numbers are a column. Tensor, array, list or frame, as all others.
        samples: pairs to learn ``p(x | a)`` from, inputs ``N x d`` and the actions ``N x q`` that gave them
            (``ConditionalMeanEmbedding`` with its defaults). Not needed with a ``conditional``.
        conditional: ``p(x | a)`` where it is known, or an estimate of one's own.
        points: what may be recommended, ``m x d``. Default: distinct inputs of the samples, or 512 Sobol points.
        cost: of asking, positive: a number, or one an action. Default 1.
        noise_std: of an observation, positive: a number, or one an action; a fit keeps it. Default None, it is fitted.
        bounds: the box of the inputs, ``2 x d``. Default: the smallest that holds points and samples.

    Raises:
        ValueError: if an argument is missing, out of range or does not fit.
    """

    actions: Any
    samples: tuple[Any, Any] | None = None
    conditional: Conditional | None = None
    points: Any = None
    cost: Any = None
    noise_std: Any = None
    bounds: Any = None

    def __post_init__(self) -> None:
        """Convert and check the arguments."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("actions", table("actions", self.actions))
        if self.samples is not None:
            pair = isinstance(self.samples, tuple | list) and len(self.samples) == 2
            require(pair, "samples must be a pair, inputs and actions", type(self.samples).__name__)
            x, a = (table(f"samples[{i}]", part, self.actions, batch=True) for i, part in enumerate(self.samples))
            q = self.actions.shape[-1]
            require(a.shape[-1] == q, f"samples must have actions of {q} numbers", a.shape[-1])
            put("samples", (x, a))
            if self.conditional is None:
                put("conditional", ConditionalMeanEmbedding(x, a))
        require(self.conditional is not None, "samples or conditional must say how actions choose inputs", "neither")
        require(hasattr(self.conditional, "measure"), "conditional must have a method measure", self.conditional)
        if self.bounds is not None:
            put("bounds", as_box("bounds", self.bounds, like=self.actions))
        if self.points is not None:
            points = table("points", self.points, self.actions)
        elif self.samples is not None:
            points = self.samples[0].reshape(-1, self.samples[0].shape[-1]).unique(dim=0)
        elif self.bounds is not None:
            engine = torch.quasirandom.SobolEngine(self.bounds.shape[-1], scramble=True, seed=0)
            unit = engine.draw(_SOBOL, dtype=self.bounds.dtype).to(self.bounds)
            points = torch.lerp(self.bounds[0], self.bounds[1], unit)
        else:
            raise ValueError("points, samples or bounds must say what may be recommended, got none")
        put("points", points)
        if self.bounds is None:
            seen = points if self.samples is None else torch.cat([points, self.samples[0].flatten(0, -2)])
            put("bounds", box_of(seen))
        require_shape("bounds", self.bounds, 2, points.shape[-1])
        for name in ("cost", "noise_std"):
            if getattr(self, name) is not None:
                put(name, one_each(name, getattr(self, name), self.actions))

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.actions

    @property
    def n(self) -> int:
        """How many actions."""
        return len(self.actions)

    @property
    def m(self) -> int:
        """How many points."""
        return len(self.points)

    @cached_property
    def costs(self) -> Tensor:
        """The cost of every place, ``n + m``; a point costs as much as the dearest action."""
        cost = torch.ones_like(self.actions[:, 0]) if self.cost is None else torch.as_tensor(self.cost)
        return torch.cat([cost, cost.amax().expand(self.m)])

    @cached_property
    def noise(self) -> Tensor | None:
        """The standard deviation of the noise of every place, ``n + m``; of a point the smallest of any action."""
        if self.noise_std is None:
            return None
        return torch.cat([self.noise_std, self.noise_std.amin().expand(self.m)])

    def tabulate(self, process: GaussianProcess) -> GaussianProcess:
        """The prior of g and f at all places ([Zhang2025], Eqs. 2, 3 and 12), to be shared by several policies.

        Args:
            process: the prior of f. With a ``GaussianMeasureKernel`` and a Gaussian ``p(x | a)`` the averages are in
                closed form, without regard to clipping; with any other kernel they are sums.
        """
        assert self.conditional is not None
        groups = measure(process, self.conditional, self.actions), measure(process, Point(), self.points)
        return tabulate(process, *groups)


@dataclass(frozen=True)
class TabulatedMean:
    """A prior mean of places: ``values`` are ``... x places``."""

    values: Tensor

    def __call__(self, index: Tensor) -> Tensor:
        """The means of indices ``... x n x p x 1``; a batch of them has the batch of the values."""
        place = index[..., 0].long()
        if place.dim() == 2:
            return self.values[..., place]
        values = self.values.expand(*place.shape[:-2], self.values.shape[-1])
        return values.gather(-1, place.flatten(-2)).reshape(place.shape)


def measure(process: GaussianProcess | None, conditional: Conditional, actions: Tensor) -> Measure:
    """``p(x | a)`` in the form that the kernel of a process takes, ``... x n`` measures."""
    if process is None or not isinstance(process.kernel, GaussianMeasureKernel):
        return conditional.measure(actions, _ORDER)
    wanted = f"prior must have a kernel of points, as {type(conditional).__name__} is not Gaussian"
    require(hasattr(conditional, "gaussian"), wanted, "a GaussianMeasureKernel")
    return Measure.dirac(conditional.gaussian(actions))  # type: ignore[attr-defined]  # only some have it


def tabulate(process: GaussianProcess, *groups: Measure, table: TabulatedKernel | None = None) -> GaussianProcess:
    """A prior of f as one of the values of measures, which are numbered through all groups."""
    if table is None:
        blocks: dict[tuple[int, int], Tensor] = {}
        for (i, a), (j, b) in combinations_with_replacement(enumerate(groups), 2):
            block = covariance(process.kernel, a, b)
            blocks[i, j], blocks[j, i] = block, block.mT
        batch, count = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks.values())), range(len(groups))
        gram = torch.cat([torch.cat([blocks[i, j].expand(*batch, -1, -1) for j in count], -1) for i in count], -2)
        table = TabulatedKernel((gram + gram.mT) / 2)
    mean = process.mean
    if callable(mean) or isinstance(mean, Tensor) or mean:
        means = [process.prior_mean(group) for group in groups]
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in means))
        mean = TabulatedMean(torch.cat([part.expand(*batch, part.shape[-1]) for part in means], -1))
    return GaussianProcess(table, process.noise_std, mean)


class GrowingTable(TabulatedKernel):
    """The table of a kernel of batch ``(replicates,)``, with the rows that ``grow`` was asked for and NaN elsewhere.

    Under a prior that is fitted again and again a posterior needs the rows of what was observed, and no others.
    """

    def __init__(self, kernel: Kernel, groups: Sequence[Measure]) -> None:
        diagonal = torch.cat([variance(kernel, group) for group in groups], -1)
        super().__init__(torch.diag_embed(diagonal))
        self.gram: Tensor = torch.diag_embed(diagonal).where(torch.eye(diagonal.shape[-1]).to(diagonal) > 0, torch.nan)
        self._kernel, self._groups, self._all = kernel, groups, Measure.cat(groups)
        self._known = torch.zeros_like(diagonal, dtype=torch.bool)

    def grow(self, rows: Tensor) -> None:
        """Compute rows ``replicates x t`` that are not known."""
        new = torch.zeros_like(self._known).scatter_(-1, rows, True) & ~self._known
        if count := int(new.sum(-1).amax()):  # where another replicate has more new ones, any rows
            rows = new.long().topk(count).indices
            parts = torch.cat([covariance(self._kernel, self._all[rows], group) for group in self._groups], -1)
            at = rows.unsqueeze(-1).expand_as(parts)
            self.gram = self.gram.scatter(-2, at, parts).scatter(-1, at.mT, parts.mT)
            self._known = self._known.scatter(-1, rows, True)


def table(name: str, value: object, like: Tensor | None = None, batch: bool = False) -> Tensor:
    """Finite rows ``n x k``, at least one, that a user gave, or a ``batch`` of them; ``n`` numbers are a column."""
    rows = as_tensor(name, value, like)
    rows = (rows.unsqueeze(-1) if rows.dim() == 1 else rows).clone()  # a caller may change it
    return as_values(name, rows, (*["replicates >= 1"][: batch * (rows.dim() - 2)], "n >= 1", "k >= 1"))


def one_each(name: str, value: object, actions: Tensor) -> Tensor:
    """A positive finite number for each action, ``n``, from such numbers or one for all."""
    numbers = as_tensor(name, value, actions)
    fits = numbers.shape in (torch.Size(), torch.Size([len(actions)]))
    require(fits, f"{name} must be a number or one an action ({len(actions)},)", numbers.shape)
    return as_values(name, numbers, None, 0, ends="()").expand(len(actions))


def box_of(points: Tensor) -> Tensor:
    """The smallest box that holds points; a coordinate that is constant gets a side of one."""
    low, high = points.amin(0), points.amax(0)
    half = torch.where(high > low, 0.0, 0.5)
    return torch.stack([low - half, high + half])
