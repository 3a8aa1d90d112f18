"""What the learner knows of an indirect query: actions, how they choose inputs, and points to recommend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from cbo_lib.checks import (
    as_box,
    as_count,
    as_near,
    as_points,
    as_schedule,
    as_tensor,
    as_values,
    require,
    require_shape,
)
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding
from cbo_lib.kernels import GaussianMeasureKernel
from cbo_lib.measure import Measure
from cbo_lib.partition import PartitionTree, split_by_factors

# Nodes a dimension of the rule with which a learner averages under a known p(x | a), and points of a box, if none are
# named.
_ORDER, _SOBOL = 8, 512


class Conditional(Protocol):
    """The distribution ``p(x | a)`` of the input under each action."""

    def measure(self, actions: Tensor, order: int) -> Measure:
        """A rule, always the same, under ``p(x | a)`` for actions ``... x n x q``; ``order`` nodes a dimension."""


@dataclass(frozen=True)
class Point:
    """``x = a``: direct queries, of a space whose actions are its points."""

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The action itself."""
        return Measure.dirac(actions, known=True)

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
        require(callable(self.center), "center must be a function of actions", self.center)
        bounds = None if self.bounds is None else as_box("bounds", self.bounds)
        vars(self).update(std=as_schedule("std", self.std), bounds=bounds)

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
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        center = self.center(actions)
        d = center.shape[-1]
        grid = torch.cartesian_prod(*[torch.as_tensor(nodes)] * d).reshape(-1, d).to(actions)
        mass = torch.cartesian_prod(*[torch.as_tensor(weights / weights.sum())] * d).reshape(-1, d).prod(-1)
        points = center.unsqueeze(-2) + self.scale(actions)[..., None, None] * grid
        if self.bounds is not None:
            points = points.clamp(self.bounds[0], self.bounds[1])
        return Measure(points, mass.to(actions).expand(points.shape[:-1]))


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

    Args:
        actions: what may be asked, ``n x q``; ``n`` numbers are a column. Tensor, array, list or frame, as all others;
            the columns of a frame name the numbers of an action.
        samples: pairs to learn ``p(x | a)`` from, inputs ``N x d`` and the actions ``N x q`` that gave them: a
            ``ConditionalMeanEmbedding`` with normalized weights. Not needed with a ``conditional``.
        conditional: ``p(x | a)`` where it is known, or an estimate of one's own.
        points: what may be recommended, ``m x d``. Default: distinct inputs of the samples, or 512 Sobol points.
        cost: of asking, positive: a number, or one an action. Default 1.
        noise_std: of an observation, positive: a number, or one an action; a fit keeps it. Default None, it is fitted.
        bounds: the box of the inputs, ``2 x d``. Default: the smallest that holds points and samples.
        columns: names of the numbers of an action. Default those of the frame, else ``"0"``, ``"1"``, ...

    Attributes:
        n, m: how many actions, how many points.

    Raises:
        ValueError: if an argument is missing, out of range or does not fit.
    """

    actions: Any
    samples: tuple[Any, Any] | None = None
    conditional: Any = None
    points: Any = None
    cost: Any = 1.0
    noise_std: Any = None
    bounds: Any = None
    columns: Sequence[str] | None = None
    n: int = field(init=False)
    m: int = field(init=False)

    def __post_init__(self) -> None:
        """Convert and check the arguments."""
        columns: Any = self.columns
        if columns is None and isinstance(self.actions, pd.DataFrame):
            columns = self.actions.columns
        actions = table("actions", self.actions)
        q, samples, conditional = actions.shape[-1], self.samples, self.conditional
        if samples is not None:
            pair = isinstance(samples, tuple | list) and len(samples) == 2
            require(pair, "samples must be a pair, inputs and actions", type(samples).__name__)
            x, a = samples = table("samples[0]", samples[0], actions), table("samples[1]", samples[1], actions)
            require(a.shape[-1] == q, f"samples must have actions of {q} numbers", a.shape[-1])
            require(len(x) == len(a), "samples must hold one input an action", f"{len(x)} and {len(a)}")
            if conditional is None:
                conditional = ConditionalMeanEmbedding(x, a, normalize=True)
        wanted = "samples, or conditional by a method measure, must say how actions choose inputs"
        require(hasattr(conditional, "measure"), wanted, conditional)
        bounds = None if self.bounds is None else as_box("bounds", self.bounds, like=actions)
        if self.points is not None:
            points = table("points", self.points, actions)
        elif samples is not None:
            points = samples[0].unique(dim=0)
        else:
            if bounds is None:
                raise ValueError("points, samples or bounds must say what may be recommended, got none")
            points = draw_sobol_samples(bounds, _SOBOL, 1, seed=0).squeeze(1)
        if bounds is None:
            bounds = box_of(points if samples is None else torch.cat([points, samples[0]]))
        require_shape("bounds", bounds, 2, points.shape[-1])
        noise_std = None if self.noise_std is None else one_each("noise_std", self.noise_std, actions)
        vars(self).update(
            actions=actions,
            samples=samples,
            conditional=conditional,
            points=points,
            cost=one_each("cost", self.cost, actions),
            noise_std=noise_std,
            bounds=bounds,
            columns=[str(name) for name in (range(q) if columns is None else columns)],
            n=len(actions),
            m=len(points),
        )

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.actions

    def read(self, actions: Any) -> Tensor:
        """Actions as a user gives them, ``n x q``: one or several, also such as the list does not hold.

        Raises:
            ValueError: if they are none, or of another order or other units than those of the list.
        """
        q = self.actions.shape[-1]
        rows = as_values("query", actions, like=self.actions)
        rows = rows.reshape(-1, 1) if q == 1 and rows.dim() < 2 else rows.unsqueeze(0) if rows.dim() == 1 else rows
        require_shape("query", rows, "n", q)
        return as_near("query", rows, self.actions)

    def nearest(self, actions: Tensor) -> Tensor:
        """Which action of the list is nearest to each of ``... x q``, in sides of the box that holds them."""
        side = box_of(self.actions).diff(dim=0)
        return torch.cdist(actions / side, self.actions / side).argmin(-1)

    def measure(self, actions: Tensor, prior: GaussianProcess | None = None, order: int = _ORDER) -> Measure:
        """``p(x | a)`` of actions ``... x n x q``, in the form that the kernel of a prior takes."""
        if prior is None or not isinstance(prior.kernel, GaussianMeasureKernel):
            return self.conditional.measure(actions, order)
        wanted = f"prior must have a kernel of points, as {type(self.conditional).__name__} is not Gaussian"
        require(hasattr(self.conditional, "gaussian"), wanted, "a GaussianMeasureKernel")
        return Measure.dirac(self.conditional.gaussian(actions), known=True)

    def measure_points(self, prior: GaussianProcess) -> Measure:
        """The points, ``m`` measures, in the form that the kernel of a prior takes."""
        closed = isinstance(prior.kernel, GaussianMeasureKernel)
        return Measure.dirac(Point().gaussian(self.points) if closed else self.points, known=True)


@dataclass(frozen=True)
class Nodes:
    """The nodes of a complete tree over a box, as actions ``(center, radius)``.

    Args:
        actions: centers and radius (half the longest side), ``n x (d + 1)``, level by level.
        level: ``l(a)`` of each node, ``n``, the root is 0.
        parent: index of the parent, ``n``; the root is its own.
        children: indices, ``n x K``; -1 at the deepest level.
    """

    actions: Tensor
    level: Tensor
    parent: Tensor
    children: Tensor

    @classmethod
    def complete(cls, bounds: Any, levels: int, branching: int = 4) -> "Nodes":
        """All nodes down to a level.

        Args:
            bounds: the box of the root, ``2 x d``, all sides alike, as those of each node must be: it has one radius.
            levels: the deepest level, nonnegative.
            branching: children of a node; four quarter a square. Default 4.

        Raises:
            ValueError: if a node has sides that differ.
        """
        tree = PartitionTree(bounds, branching, split_by_factors)
        tree.complete(as_count("levels", levels))  # numbers the nodes level by level
        radius = (sides := tree.boxes[:, 1] - tree.boxes[:, 0]).amax(-1, keepdim=True) / 2
        alike = "bounds and branching must give cubes, as a node has one radius: scale inputs, take 2^d children"
        require(sides >= 2 * radius * (1 - 1e-6), alike, f"sides {sides[-1].tolist()}")
        children = torch.full((len(tree), branching), -1, device=radius.device)
        inner = (tree.depth < levels).nonzero().flatten()
        children[inner] = tree.children(inner)
        return cls(torch.cat([tree.boxes.mean(-2), radius], -1), tree.depth, tree.parent.clamp_min(0), children)

    def cost(self) -> Tensor:
        """``0.5 log2(1 / d)`` with ``d = 2^-(l + 1)``, so ``(l + 1) / 2`` ([Zhang2025], section 7)."""
        return 0.5 * (self.level + 1).to(self.actions)


def table(name: str, value: object, like: Tensor | None = None) -> Tensor:
    """Finite rows ``n x k``, at least one, that a user gave; ``n`` numbers are a column."""
    rows = as_tensor(name, value, like)
    return as_points(name, rows.unsqueeze(-1) if rows.dim() == 1 else rows, "k >= 1")


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
