"""Unknown contexts: the learner picks a decision, the world draws the context from a distribution it does not tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.checks import as_number, as_tensor, require, require_inside, require_shape
from cbo_lib.contexts.space import Space
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal
from cbo_lib.search import maximize_box


@dataclass(frozen=True)
class ContextProblem:
    """Maximize ``E_p f(x, c)`` over decisions, with contexts drawn from an unknown ``p`` ([Huang2024], section 2.2).

    A query is a decision ``Dx``. The learner sees the noisy value of f and the context that was drawn. Draws outside of
    the context box are clipped onto it, and the learner sees the clipped context: the one that f saw.

    Args:
        space: what the learner knows.
        f: the function, from full points ``... x (Dx + Dc)`` to values ``...``; decision coordinates come first.
        distribution: of the contexts, on the space's box of them.
        noise_std: standard deviation of the noise of y, nonnegative, in the units of f. Default 0: the paper states
            none.
        expectation: ``E_p f(x, c)`` of decisions ``... x Dx`` by a formula, where one exists. Default: the quadrature
            rule of the distribution.
        value_error: how far ``value`` may be from the true expectation, absolute, in the units of f; tested.
        name: for labels.

    Raises:
        ValueError: if an argument is out of range.
    """

    space: Space
    f: Function
    distribution: QuadratureDistribution
    noise_std: float = 0.0
    expectation: Function | None = None
    value_error: float = math.nan
    name: str = "unnamed"

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not torch.equal(self.distribution.bounds, self.space.contexts):
            raise ValueError(
                f"distribution must be on the box of contexts {self.space.contexts.tolist()}, "
                f"got {self.distribution.bounds.tolist()}"
            )
        as_number("noise_std", self.noise_std, 0)

    def evaluate(self, x: Tensor, c: Tensor) -> Tensor:
        """f at decisions ``... x Dx`` and contexts ``... x Dc``, broadcast, without noise.

        Raises:
            ValueError: if a decision or a context lies outside of its box, where f is not defined, or is NaN.
        """
        points = self.space.join(x, c)
        require_inside("x", x, self.space.decisions)
        require_inside("c", c, self.space.contexts)
        return self.f(points)

    def draw_context(self, generators: Sequence[torch.Generator]) -> Tensor:
        """One context a replicate, ``replicates x Dc``, clipped into the box."""
        return self.distribution.sample(generators)

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """What decisions ``replicates x Dx`` meet: ``context``, ``replicates x Dc``, and ``y``, ``replicates``.

        Raises:
            ValueError: if there is not one decision a replicate, or one lies outside of the box.
        """
        query = as_tensor("query", query, self.space.like)
        expected = (len(generators), self.space.decision_dim)
        require(query.shape == expected, f"query must have shape {expected}, one decision a replicate", query.shape)
        context = self.draw_context(generators)
        value = self.evaluate(query, context)
        return {"context": context, "y": value + self.noise_std * standard_normal(generators, (), value)}

    def value(self, query: Tensor) -> Tensor:
        """``E_p f(x, c)`` of decisions ``... x Dx``, ``...``, within ``value_error``.

        Raises:
            ValueError: if the last dimension is wrong.
        """
        dim = self.space.decision_dim
        query = as_tensor("query", query, self.space.like)
        require_shape("query", query, ..., dim)
        if self.expectation is not None:
            return self.expectation(query)
        contexts, weights = self.expectation_nodes
        # In slices, so that many decisions do not need one large table.
        parts = query.reshape(-1, 1, dim).split(max(1, 2**20 // len(weights)))
        return torch.cat([self.f(self.space.join(part, contexts)) @ weights for part in parts]).reshape(
            query.shape[:-1]
        )

    @property
    def expectation_nodes(self) -> tuple[Tensor, Tensor]:
        """Contexts ``N x Dc`` and weights ``N`` that sum to one: a rule for expectations under p, atoms included."""
        return self.distribution.nodes

    @cached_property
    def maximizer(self) -> Tensor:
        """The best decision, ``Dx``: the best of 2^10 Sobol points, refined from the 16 best by L-BFGS-B."""
        box = self.space.decisions
        sobol = torch.quasirandom.SobolEngine(self.space.decision_dim, scramble=False)
        raw = torch.lerp(box[0], box[1], sobol.draw(2**10, dtype=torch.float64).to(box))
        return maximize_box(self.value, box, raw.unsqueeze(0), starts=16)[0].squeeze(0)

    @cached_property
    def optimum(self) -> Tensor:
        """Its value, ``()``."""
        return self.value(self.maximizer)
