"""Indirect queries: the learner picks an action and sees an average of f under a distribution that it may not know.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
.. [Chau2021] S. L. Chau, S. Bouabid, D. Sejdinovic. Deconditional Downscaling with Gaussian Processes. NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cbo_lib.measure import Function, Measure
from cbo_lib.random import standard_normal, uniform


class Conditional(Protocol):
    """The distribution ``p(x | a)`` of the input under each action."""

    def measure(self, actions: Tensor, order: int) -> Measure:
        """A quadrature rule of ``p(x | a)`` for actions ``... x n x q``."""
        ...

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One input for each action ``replicates x n x q``, ``replicates x n x d``."""
        ...


@dataclass(frozen=True)
class ClippedGaussian:
    """``x = h(a) + tau * noise``, clipped to a box ([Zhang2025]_, section 7).

    Args:
        center: ``h``, from actions ``... x q`` to points ``... x d``.
        std: ``tau`` of every coordinate, nonnegative: a number, or a function from actions ``... x q`` to ``...``.
        bounds: the box ``2 x d`` that inputs are clipped to. None does not clip.
    """

    center: Callable[[Tensor], Tensor]
    std: float | Callable[[Tensor], Tensor]
    bounds: Tensor | None = None

    def scale(self, actions: Tensor) -> Tensor:
        """``tau`` for actions ``... x q``, ``...``."""
        if callable(self.std):
            return self.std(actions)
        return torch.full_like(actions[..., 0], self.std)

    def measure(self, actions: Tensor, order: int = 12) -> Measure:
        """A product Gauss-Hermite rule of ``order^d`` nodes; with clipping, nodes are clipped.

        Clipping makes the integrand less smooth, so the rule then converges slowly (like ``1 / order``).
        """
        nodes, weights = (torch.as_tensor(p).to(actions) for p in np.polynomial.hermite_e.hermegauss(order))
        center = self.center(actions)
        d = center.shape[-1]
        grid = torch.cartesian_prod(*[nodes] * d).reshape(-1, d)
        mass = torch.cartesian_prod(*[weights / weights.sum()] * d).reshape(-1, d).prod(-1)
        points = center.unsqueeze(-2) + self.scale(actions)[..., None, None] * grid
        return Measure(self._clip(points), mass.expand(points.shape[:-1]))

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One clipped draw an action."""
        center = self.center(actions)
        noise = standard_normal(generators, center.shape[1:], center)
        return self._clip(center + self.scale(actions).unsqueeze(-1) * noise)

    def _clip(self, points: Tensor) -> Tensor:
        return points if self.bounds is None else points.clamp(self.bounds[0], self.bounds[1])


@dataclass(frozen=True)
class UniformWindow:
    """``x`` uniform on the box ``center +- radius`` of an action ``(center, radius)``, ``q = d + 1`` (section 3.2)."""

    def measure(self, actions: Tensor, order: int = 12) -> Measure:
        """A product Gauss-Legendre rule of ``order^d`` nodes."""
        center, radius = actions[..., :-1], actions[..., -1:]
        return Measure.uniform(torch.stack([center - radius, center + radius], -2), order)

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One draw an action."""
        center, radius = actions[..., :-1], actions[..., -1:]
        return center + radius * (2 * uniform(generators, center.shape[1:], center) - 1)


@dataclass(frozen=True)
class FinitePolicies:
    """Agents that pull one of ``K`` arms: the indirect-query bandit ([Zhang2025]_, section 3.1).

    Args:
        probabilities: the policy of each agent, from covariates ``... x q`` to probability vectors ``... x K``.
        arms: the point that stands for each arm, ``K x d``.
    """

    probabilities: Callable[[Tensor], Tensor]
    arms: Tensor

    def weights(self, actions: Tensor) -> Tensor:
        """The checked probability vectors ``... x K``.

        Raises:
            ValueError: if one is negative or does not sum to one.
        """
        weights = self.probabilities(actions)
        if weights.shape != (*actions.shape[:-1], len(self.arms)):
            raise ValueError(
                f"probabilities must give {len(self.arms)} numbers an action, got shape {tuple(weights.shape)}"
            )
        if not bool((weights >= 0).all()) or not torch.allclose(weights.sum(-1), torch.ones(()).to(weights), atol=1e-6):
            raise ValueError("probabilities must be nonnegative and sum to one for every action")
        return weights

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The arms, weighted by the policy; exact."""
        weights = self.weights(actions)
        return Measure(self.arms.expand(*weights.shape, self.arms.shape[-1]), weights)

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One arm an agent."""
        weights = self.weights(actions)
        pulled = [w.multinomial(1, generator=g).squeeze(-1) for w, g in zip(weights.cpu(), generators, strict=True)]
        return self.arms[torch.stack(pulled).to(self.arms.device)]


@dataclass(frozen=True)
class IndirectProblem:
    """Maximize f over points, asking for noisy values of ``g(a) = E[f(X) | a]`` ([Zhang2025]_, section 2).

    Places are indices: ``0 ... n - 1`` are the actions, ``n ... n + m - 1`` the points that may be recommended. A
    query is an action (a point may be asked too: direct feedback, for comparison), a recommendation is a point.

    Args:
        f: the function to maximize, points ``... x d`` to values ``...``.
        points: what may be recommended, ``m x d``.
        actions: what may be asked, ``n x q``.
        conditional: the true ``p(x | a)``.
        noise_std: standard deviation of the noise, positive: a number, or one an action ``n``.
        cost: of asking, positive: one an action ``n``. Default 1 each.
        order: nodes a dimension of the rule that computes ``g``; no learner uses the same. Default 65.

    Raises:
        ValueError: if an argument is out of range.
    """

    f: Function
    points: Tensor
    actions: Tensor
    conditional: Conditional
    noise_std: float | Tensor = 0.1
    cost: Tensor | None = None
    order: int = 65

    def __post_init__(self) -> None:
        """Check the arguments."""
        for name in ("points", "actions"):
            if getattr(self, name).dim() != 2 or not len(getattr(self, name)):
                raise ValueError(f"{name} must have shape (n, d) with n >= 1, got {tuple(getattr(self, name).shape)}")
        for name, value in (("noise_std", torch.as_tensor(self.noise_std)), ("cost", self.cost)):
            if value is None:
                continue
            if value.shape not in (torch.Size(), torch.Size([len(self.actions)])):
                raise ValueError(f"{name} must be a number or one an action ({len(self.actions)},), got {value.shape}")
            if not bool(((value > 0) & torch.isfinite(value)).all()):
                raise ValueError(f"{name} must be positive and finite, got {value.min().item():g}")
        if self.order < 1:
            raise ValueError(f"order must be at least 1, got {self.order}")

    @property
    def n(self) -> int:
        """How many actions."""
        return len(self.actions)

    @cached_property
    def table(self) -> Tensor:
        """g at every action, then f at every point, ``n + m``."""
        parts = [self.conditional.measure(part, self.order).expectation(self.f) for part in self.actions.split(64)]
        return torch.cat([*parts, self.f(self.points)])

    @cached_property
    def noise(self) -> Tensor:
        """The standard deviation of the noise at every place, ``n + m``; at points the smallest of any action."""
        noise = torch.as_tensor(self.noise_std, dtype=self.points.dtype, device=self.points.device).expand(self.n)
        return torch.cat([noise, noise.amin().expand(len(self.points))])

    @cached_property
    def costs(self) -> Tensor:
        """The cost of every place, ``n + m``; a point costs as much as the dearest action."""
        cost = torch.ones(self.n).to(self.points) if self.cost is None else self.cost.expand(self.n)
        return torch.cat([cost, cost.amax().expand(len(self.points))])

    def value(self, query: Tensor) -> Tensor:
        """g or f at places ``...``."""
        return self.table[query]

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of one place a replicate, ``replicates``.

        Raises:
            ValueError: if a place does not exist.
        """
        if bool(((query < 0) | (query >= len(self.table))).any()):
            raise ValueError(f"query must lie in [0, {len(self.table)}), got {query.tolist()}")
        value = self.value(query)
        return value + self.noise[query] * standard_normal(generators, (), value)

    @property
    def optimum(self) -> Tensor:
        """``f*``, the maximum of f over the points."""
        return self.table[self.n :].amax()

    def data(self, generators: Sequence[torch.Generator], count: int, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs ``(x, a)`` to learn ``p(x | a)`` from, with uniform actions: ``D1`` of [Zhang2025]_, section 2.

        Args:
            generators: one a replicate.
            count: how many pairs ``N``, at least 1.
            bounds: of the actions, ``2 x q``.

        Returns:
            Inputs ``replicates x N x d`` and actions ``replicates x N x q``.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        actions = torch.lerp(bounds[0], bounds[1], uniform(generators, (count, bounds.shape[-1]), bounds))
        return self.conditional.sample(actions, generators), actions


def unit_grid(count: int, dim: int = 2) -> Tensor:
    """The centers of ``count^dim`` equal cells of the unit box, ``count^dim x dim``."""
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def cosine_map(actions: Tensor) -> Tensor:
    """``cos(pi a / 2)``, the non-linear transformation of [Zhang2025]_, section 7, in units of the box."""
    return (math.pi * actions / 2).cos()
