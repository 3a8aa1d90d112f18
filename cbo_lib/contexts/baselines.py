"""What SBO-KDE and DRBO-KDE are compared with ([Srinivas2010], [Bogunovic2018], [Kirschner2020], [Tay2022])."""

import math
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_number
from cbo_lib.contexts.policies import ContextPolicy, sobol_points
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import mmd_minimax, mmd_worst_distribution
from cbo_lib.kernels import matrix
from cbo_lib.measure import Measure
from cbo_lib.search import argmax_finite


class GPUCB(ContextPolicy):
    """GP-UCB on a model of the decision alone ([Srinivas2010]): what the context does counts as noise."""

    @property
    def points(self) -> Tensor:
        """Decisions, and no contexts."""
        return self.queries

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        posterior, beta = self.posterior, self.sqrt_beta()  # line 3

        def ucb(x: Tensor) -> Tensor:
            mean, variance = posterior.mean_and_variance(Measure.dirac(x, known=True))
            return mean + beta * variance.clamp_min(1e-18).sqrt()

        return self.best(ucb, self.generators)  # line 4

    def ask_for(self, context: Tensor) -> Tensor:
        """There is no model of contexts: always a ``ValueError``."""
        raise ValueError("context must go to a policy that models contexts, got GPUCB")

    def recommend(self) -> Tensor:
        """The decision made so far of the largest posterior mean."""
        best = argmax_finite(self.posterior.mean(Measure.dirac(self.queries, known=True)))
        return self.queries[torch.arange(len(best)), best].clamp(*self.space.decisions)


class StableOpt(ContextPolicy):
    """StableOpt ([Bogunovic2018]), the worst case over a standard deviation around the mean of the contexts seen.

    ``[mean - std, mean + std]`` in each coordinate ([Huang2024], Appendix B.1) is searched at clipped Sobol points.

    Args:
        cover: how many Sobol points. Default 256; [Huang2024] has 1,024.
        options: see ``ContextPolicy``.
    """

    def __init__(self, space: Space, *, cover: int = 256, **options: Any) -> None:
        super().__init__(space, **options)
        self.cover = sobol_points(as_count("cover", cover, 1), space.context_dim, space.like)

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        mean, std = self.seen.mean(1, keepdim=True), self.seen.std(1, keepdim=True)
        feared = (mean + std * (2 * self.cover - 1)).clamp(*self.space.contexts)  # line 3
        ucb = self.ucb(feared)  # line 4
        return self.best(lambda x: ucb(x).amin(-1), self.generators)  # line 5


class DRBOMMD(ContextPolicy):
    """DRBO-MMD ([Kirschner2020]): the worst average over a ball of the maximum mean discrepancy, on a grid.

    The center of the ball is the empirical distribution, each context counted at its nearest grid point. The kernel of
    the discrepancy is that of the model in the contexts, scaled to one at distance zero, as the radius
    ``(2 + sqrt(2 log(1 / gamma))) / sqrt(t)`` needs.

    Args:
        size: of the grid, at least; it has ``ceil(size^(1 / Dc))`` points a coordinate. Default 100 ([Huang2024]).
        gamma: in (0, 1). Default 0.1.
        options: see ``ContextPolicy``, also for errors.
    """

    def __init__(self, space: Space, *, size: int = 100, gamma: float = 0.1, **options: Any) -> None:
        super().__init__(space, **options)
        self.gamma, dim = as_number("gamma", gamma, 0, 1, "()"), space.context_dim
        count = math.ceil(as_count("size", size, 1) ** (1 / dim) - 1e-9)
        low, high = space.contexts
        axis = torch.linspace(0, 1, count, dtype=low.dtype, device=low.device)
        self.grid = low + (high - low) * torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)

    def ball(self) -> tuple[Tensor, Tensor, float]:
        """Center ``replicates x M``, kernel matrix ``... x M x M`` and radius of this round."""
        low, high = self.space.contexts
        seen, grid = ((c - low) / (high - low) for c in (self.seen, self.grid))
        nearest = torch.cdist(seen, grid, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        center = torch.nn.functional.one_hot(nearest, len(grid)).to(low).mean(1)
        gram = matrix(self.prior.kernel, self.space.join(self.space.decisions[0], self.grid))
        radius = (2 + math.sqrt(-2 * math.log(self.gamma))) / math.sqrt(self.round)
        return center, gram / gram[..., :1, :1], radius

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        ball = self.ball()  # line 3
        ucb = self.ucb(self.grid.expand(len(self.y), -1, -1))  # line 4

        def worst(x: Tensor) -> Tensor:
            bounds = ucb(x)
            return (mmd_worst_distribution(bounds, *ball) * bounds).sum(-1)  # its slope is that of the worst q

        return self.best(worst, self.generators)  # line 5


class DRBOMMDMinimax(DRBOMMD):
    """DRBO-MMD-MinimaxApprox ([Tay2022]): the worst case of ``DRBOMMD`` approximated, on a finer grid.

    Args:
        size: see ``DRBOMMD``. Default 1,024 ([Huang2024], Appendix B.1).
        options: see ``DRBOMMD``.
    """

    def __init__(self, space: Space, *, size: int = 1024, **options: Any) -> None:
        super().__init__(space, size=size, **options)

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        ball = self.ball()  # line 3
        ucb = self.ucb(self.grid.expand(len(self.y), -1, -1))  # line 4
        return self.best(lambda x: mmd_minimax(ucb(x), *ball), self.generators)  # line 5
