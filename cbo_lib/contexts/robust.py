"""Policies that fear the worst: StableOpt and those with a ball of the maximum mean discrepancy, on grids.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Kirschner2020] J. Kirschner, I. Bogunovic, S. Jegelka, A. Krause. Distributionally Robust Bayesian Optimization.
   AISTATS 2020.
.. [Tay2022] S. S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Efficient Distributionally Robust Bayesian
   Optimization with Worst-case Sensitivity. ICML 2022.
.. [Bogunovic2018] I. Bogunovic, J. Scarlett, S. Jegelka, V. Cevher. Adversarially Robust Optimization with Gaussian
   Processes. NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.contexts.acquisition import MMDUCB, ContextAcquisition, MinimaxUCB, RobustUCB
from cbo_lib.contexts.policies import ContextPolicy, Settings, into_box
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.worst_case import MMDBall
from cbo_lib.gp import GaussianProcess, Posterior


class StableOpt(ContextPolicy):
    """StableOpt ([Bogunovic2018]_), the worst case over a standard deviation around the mean of the contexts seen.

    The set ``[mean - std, mean + std]`` in each coordinate ([Huang2024]_, section 4.1) is searched at Sobol points,
    clipped into the context box.

    Args:
        problem: see ``ContextPolicy``.
        settings: see ``ContextPolicy``.
        cover: how many Sobol points. Default 1,024.
        reflected: see ``DRBOKDE``; here the set is mirrored at its own lower corner, and nothing is clipped.
    """

    def __init__(
        self,
        problem: ContextProblem,
        settings: Settings | None = None,
        cover: int = 1024,
        reflected: bool = False,
    ) -> None:
        super().__init__(problem, settings)
        self.cover, self.reflected = cover, reflected

    def acquisition(self, posterior: Posterior) -> ContextAcquisition:
        """See ``RobustUCB``."""
        mean, std = self.contexts.mean(-2, keepdim=True), self.contexts.std(-2, keepdim=True)
        region = torch.cat([mean - std, mean + std], -2)  # replicates 2 Dc
        points = into_box(self._cover(self.cover), region, self.reflected)
        if not self.reflected:
            points = points.clamp(*self.problem.context_bounds)
        return RobustUCB(posterior, points, self.multiplier())


class DRBOMMD(ContextPolicy):
    """DRBO-MMD ([Kirschner2020]_): the worst average over a ball of the maximum mean discrepancy, on a grid.

    The center of the ball is the empirical distribution, each context counted at its nearest grid point. The kernel of
    the discrepancy is that of the model in the contexts, scaled to one at distance zero, as the radius
    ``(2 + sqrt(2 log(1 / gamma))) / sqrt(t)`` needs.

    Args:
        problem: see ``ContextPolicy``.
        settings: see ``ContextPolicy``.
        size: the least number of grid points; there are ``ceil(size^(1 / Dc))`` a coordinate. Default 100
            ([Huang2024]_, section 4.1).
        gamma: in (0, 1). Default 0.1.
        grid: ``"full"``, or only its ``"diagonal"``: a slip that is shown, not meant.

    Raises:
        ValueError: if an argument is out of range.
    """

    default_size = 100

    def __init__(
        self,
        problem: ContextProblem,
        settings: Settings | None = None,
        size: int | None = None,
        gamma: float = 0.1,
        grid: Literal["full", "diagonal"] = "full",
    ) -> None:
        super().__init__(problem, settings)
        self.size = self.default_size if size is None else size
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not 0 < gamma < 1:
            raise ValueError(f"gamma must lie in (0, 1), got {gamma}")
        self.gamma, self.grid = gamma, grid
        self.points = context_grid(problem.context_bounds, self.size, grid)

    def start(self, generators: Sequence[torch.Generator]) -> None:
        """Forget everything and prepare one replicate a generator."""
        super().start(generators)
        self._gram: tuple[GaussianProcess | None, Tensor | None] = None, None

    def acquisition(self, posterior: Posterior) -> ContextAcquisition:
        """See ``MMDUCB``."""
        return MMDUCB(posterior, self.points, self.ball(posterior), self.multiplier())

    def ball(self, posterior: Posterior) -> MMDBall:
        """The distributions within ``(2 + sqrt(2 log(1 / gamma))) / sqrt(t)`` of those seen, for this round."""
        radius = (2 + math.sqrt(-2 * math.log(self.gamma))) / math.sqrt(self.round)
        return MMDBall(self.reference(), self.gram(posterior), radius)

    def reference(self) -> Tensor:
        """The empirical distribution on the grid, ``replicates x M``."""
        nearest = torch.cdist(self.contexts, self.points, compute_mode="donot_use_mm_for_euclid_dist").argmin(-1)
        counts = torch.zeros_like(self.contexts[:, :1, 0]).expand(-1, len(self.points)).clone()
        counts.scatter_add_(-1, nearest, torch.ones_like(self.contexts[..., 0]))
        return counts / self.contexts.shape[-2]

    def gram(self, posterior: Posterior) -> Tensor:
        """The kernel on the grid, ``... x M x M``; computed once a fit."""
        if self._gram[0] is not posterior.prior:
            zeros = self.points.new_zeros(len(self.points), self.problem.decision_dim)
            full = self.problem.join(zeros, self.points)
            dense = posterior.prior.kernel(full).to_dense()
            self._gram = posterior.prior, dense / dense[..., :1, :1]
        assert self._gram[1] is not None
        return self._gram[1]


class DRBOMMDMinimax(DRBOMMD):
    """DRBO-MMD-MinimaxApprox ([Tay2022]_): the worst case of ``DRBOMMD`` approximated, on a grid of 1,024 points.

    Args:
        problem: see ``ContextPolicy``.
        settings: see ``ContextPolicy``.
        size: see ``DRBOMMD``. Default 1,024 ([Huang2024]_, section 4.1).
        gamma: see ``DRBOMMD``.
        grid: see ``DRBOMMD``.
        sensitivity: see ``MMDBall.minimax_approx``.
    """

    default_size = 1024

    def __init__(
        self,
        problem: ContextProblem,
        settings: Settings | None = None,
        size: int | None = None,
        gamma: float = 0.1,
        grid: Literal["full", "diagonal"] = "full",
        sensitivity: Literal["kernel", "identity"] = "kernel",
    ) -> None:
        super().__init__(problem, settings, size, gamma, grid)
        self.sensitivity = sensitivity

    def acquisition(self, posterior: Posterior) -> ContextAcquisition:
        """See ``MinimaxUCB``."""
        return MinimaxUCB(posterior, self.points, self.ball(posterior), self.multiplier(), sensitivity=self.sensitivity)


def context_grid(bounds: Tensor, size: int, kind: Literal["full", "diagonal"] = "full") -> Tensor:
    """Equally spaced contexts, ends included: ``ceil(size^(1 / Dc))`` a coordinate ([Huang2024]_, section 4.1).

    Args:
        bounds: the box, ``2 x Dc``.
        size: the least number of points of the full grid.
        kind: the full grid, or its diagonal alone.

    Returns:
        Points ``M x Dc``.

    Raises:
        ValueError: for another kind.
    """
    if kind not in ("full", "diagonal"):
        raise ValueError(f"grid must be 'full' or 'diagonal', got {kind!r}")
    dim = bounds.shape[-1]
    count = max(1, math.ceil(size ** (1 / dim) - 1e-9))
    axis = torch.linspace(0, 1, count, dtype=bounds.dtype, device=bounds.device)
    unit = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim) if kind == "full" else axis[:, None].expand(-1, dim)
    return bounds[0] + (bounds[1] - bounds[0]) * unit
