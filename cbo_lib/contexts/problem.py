"""Unknown contexts: the learner picks a decision, the world draws the context from a distribution it does not tell.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cbo_lib.contexts.distribution import ContextDistribution
from cbo_lib.maximize import maximize_box
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal


@dataclass(frozen=True)
class ContextProblem:
    """Maximize ``E_p f(x, c)`` over decisions, with contexts drawn from an unknown ``p`` ([Huang2024]_, section 2.2).

    A query is a decision ``Dx``. An observation is the context that was drawn, then the noisy value of f there. Draws
    outside of the context box are clipped onto it, and the learner sees the clipped context: the one that f saw.

    Args:
        f: the function, from full points ``... x (Dx + Dc)`` to values ``...``; decision coordinates come first.
        bounds: the box of the decisions, ``2 x Dx``, lower corner first.
        distribution: of the contexts; it holds their box.
        noise_std: standard deviation of the noise of y, nonnegative, in the units of f. Default 0: the paper states
            none.
        expectation: ``E_p f(x, c)`` of decisions ``... x Dx`` by a formula, where one exists. Default: the quadrature
            rule of the distribution.
        value_error: how far ``value`` may be from the true expectation, absolute, in the units of f; tested.
        name: for labels.

    Raises:
        ValueError: if an argument is out of range.
    """

    f: Function
    bounds: Tensor
    distribution: ContextDistribution
    noise_std: float = 0.0
    expectation: Function | None = None
    value_error: float = math.nan
    name: str = "unnamed"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.bounds.dim() != 2 or len(self.bounds) != 2 or not bool((self.bounds[0] < self.bounds[1]).all()):
            raise ValueError(f"bounds must be a box (2, Dx), lower corner first, got {self.bounds.tolist()}")
        if not 0 <= self.noise_std < math.inf:
            raise ValueError(f"noise_std must be nonnegative and finite, got {self.noise_std}")

    @property
    def decision_dim(self) -> int:
        """``Dx``."""
        return self.bounds.shape[-1]

    @property
    def context_dim(self) -> int:
        """``Dc``."""
        return self.distribution.dim

    @property
    def dim(self) -> int:
        """``Dx + Dc``."""
        return self.decision_dim + self.context_dim

    @property
    def context_bounds(self) -> Tensor:
        """The box of the contexts, ``2 x Dc``."""
        return self.distribution.bounds

    @property
    def full_bounds(self) -> Tensor:
        """The box of full points, ``2 x (Dx + Dc)``."""
        return torch.cat([self.bounds, self.context_bounds], -1)

    def join(self, x: Tensor, c: Tensor) -> Tensor:
        """Full points ``... x (Dx + Dc)`` of decisions ``... x Dx`` and contexts ``... x Dc``, broadcast.

        Raises:
            ValueError: if a last dimension is wrong.
        """
        for name, tensor, size in (("x", x, self.decision_dim), ("c", c, self.context_dim)):
            if tensor.dim() == 0 or tensor.shape[-1] != size:
                raise ValueError(f"{name} must have shape (..., {size}), got {tuple(tensor.shape)}")
        batch = torch.broadcast_shapes(x.shape[:-1], c.shape[:-1])
        return torch.cat([x.expand(*batch, -1), c.expand(*batch, -1)], -1)

    def evaluate(self, x: Tensor, c: Tensor) -> Tensor:
        """f at decisions ``... x Dx`` and contexts ``... x Dc``, broadcast, without noise.

        Raises:
            ValueError: if a decision or a context lies outside of its box, where f is not defined, or is NaN.
        """
        points = self.join(x, c)
        _check_inside("x", x, self.bounds)
        _check_inside("c", c, self.context_bounds)
        return self.f(points)

    def draw_context(self, generators: Sequence[torch.Generator]) -> Tensor:
        """One context a replicate, ``replicates x Dc``, clipped into the box."""
        return self.distribution.sample(generators)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """The contexts and the noisy values that decisions ``replicates x Dx`` meet, ``replicates x (Dc + 1)``.

        Raises:
            ValueError: if there is not one decision a replicate, or one lies outside of the box.
        """
        if query.shape != (len(generators), self.decision_dim):
            raise ValueError(
                f"query must have shape ({len(generators)}, {self.decision_dim}), one decision a replicate, "
                f"got {tuple(query.shape)}"
            )
        context = self.draw_context(generators)
        value = self.evaluate(query, context)
        return torch.cat([context, (value + self.noise_std * standard_normal(generators, (), value)).unsqueeze(-1)], -1)

    def value(self, query: Tensor) -> Tensor:
        """``E_p f(x, c)`` of decisions ``... x Dx``, ``...``, within ``value_error``.

        Raises:
            ValueError: if the last dimension is wrong.
        """
        if query.dim() == 0 or query.shape[-1] != self.decision_dim:
            raise ValueError(f"query must have shape (..., {self.decision_dim}), got {tuple(query.shape)}")
        if self.expectation is not None:
            return self.expectation(query)
        contexts, weights = self.expectation_nodes
        # In slices, so that many decisions do not need one large table.
        parts = query.reshape(-1, 1, self.decision_dim).split(max(1, 2**20 // len(weights)))
        return torch.cat([self.f(self.join(part, contexts)) @ weights for part in parts]).reshape(query.shape[:-1])

    @property
    def expectation_nodes(self) -> tuple[Tensor, Tensor]:
        """Contexts ``N x Dc`` and weights ``N`` that sum to one: a rule for expectations under p, atoms included."""
        return self.distribution.nodes

    @cached_property
    def maximizer(self) -> Tensor:
        """The best decision, ``Dx``: the best of 2^10 Sobol points, refined from the 16 best by L-BFGS-B."""
        sobol = torch.quasirandom.SobolEngine(self.decision_dim, scramble=False)
        raw = torch.lerp(self.bounds[0], self.bounds[1], sobol.draw(2**10, dtype=torch.float64).to(self.bounds))
        return maximize_box(self.value, self.bounds, raw, starts=16, max_iterations=200)[0].squeeze(0)

    @cached_property
    def optimum(self) -> Tensor:
        """Its value, ``()``."""
        return self.value(self.maximizer)


def _check_inside(name: str, points: Tensor, bounds: Tensor) -> None:
    slack = 8 * torch.finfo(bounds.dtype).eps * bounds.abs().amax(0)
    if not bool(((points >= bounds[0] - slack) & (points <= bounds[1] + slack)).all()):
        raise ValueError(f"{name} must lie in the box {bounds.tolist()}, got a point outside of it")
