"""Posteriors of a decision with very many contexts, interpolated from few of them.

For one decision ``x`` the posterior variance is, as a function of the context, a constant minus a combination of
products ``k_c(c, c_i) k_c(c, c_j)``. All such products lie in the space of the squared kernel ``k_c^2``, which is
smooth: where it has numerical rank ``N`` on the ``M`` contexts, the variance at ``N`` of them determines it at all. So
each decision needs ``N`` triangular systems in the place of ``M``, for any number of observations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbo_lib.expectation import PartialPosterior
from cbo_lib.gp import Posterior
from cbo_lib.separable import SplitKernel, pivoted_factor


class InterpolatedPosterior:
    """Posterior means, and interpolated variances, of decisions with a finite set of contexts.

    Args:
        posterior: see ``PartialPosterior``.
        contexts: full points ``M x d`` or ``batch x M x d``; their decision coordinates do not matter.
        controlled: which coordinates the learner sets, boolean, ``d``.
        tolerance: the largest entry of the squared kernel of the contexts that the chosen ones may leave over. The
            variance is wrong by the order of its square root over ten, relative to the prior variance. None: nothing is
            interpolated.
        most: how many contexts may be chosen; where more were needed nothing is interpolated. Default half. With
            more than three coordinates that the learner does not set it is not tried.

    Attributes:
        chosen: how many contexts the variance is computed at.
    """

    def __init__(
        self,
        posterior: Posterior,
        contexts: Tensor,
        controlled: Tensor,
        tolerance: float | None = 1e-10,
        most: int | None = None,
    ) -> None:
        count = contexts.shape[-2]
        self._spread: Tensor | None = None
        found = None
        if tolerance is not None and int((~controlled).sum()) <= 3:
            found = interpolation(posterior, contexts, controlled, tolerance, count // 2 if most is None else most)
        if found is None:
            if tolerance is None:
                self._exact = PartialPosterior(posterior, contexts, controlled)
            else:  # a factor of the kernel itself would have too high a rank too
                self._exact = PartialPosterior(posterior, contexts, controlled, tolerance=None)
            self._few, self.chosen = self._exact, count
            return
        index, self._spread = found
        nodes = contexts.expand(*index.shape[:-1], *contexts.shape[-2:])
        nodes = nodes.gather(-2, index.unsqueeze(-1).expand(*index.shape, nodes.shape[-1]))
        self._exact = PartialPosterior(posterior, contexts, controlled, tolerance=None)
        self._few = PartialPosterior(posterior, nodes, controlled, tolerance=None)
        self.chosen = index.shape[-1]

    def mean(self, x: Tensor) -> Tensor:
        """Posterior mean of full points ``batch x n x d`` with every context, ``batch x n x M``; not interpolated."""
        return self._exact.mean(x)

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and variance, without noise, ``batch x n x M`` each."""
        if self._spread is None:
            return self._exact.mean_and_variance(x)
        variance = self._few.mean_and_variance(x)[1] @ self._spread.mT
        return self.mean(x), variance.clamp_min(1e-12 if torch.is_grad_enabled() else 0.0)

    def ucb(self, x: Tensor, sqrt_beta: float) -> Tensor:
        """``mean + sqrt_beta * std`` with every context, ``batch x n x M``."""
        mean, variance = self.mean_and_variance(x)
        return mean + sqrt_beta * variance.sqrt()


def interpolation(
    posterior: Posterior, contexts: Tensor, controlled: Tensor, tolerance: float, most: int
) -> tuple[Tensor, Tensor] | None:
    """Which contexts determine the variance at all others, and how.

    Args:
        posterior: see ``InterpolatedPosterior``.
        contexts: see ``InterpolatedPosterior``.
        controlled: see ``InterpolatedPosterior``.
        tolerance: see ``InterpolatedPosterior``.
        most: how many may be chosen.

    Returns:
        Indices ``batch x N`` and a matrix ``batch x M x N`` that takes values at the chosen contexts to values at all;
        None if more than ``most`` were needed.
    """
    batch = posterior.batch_shape
    kernel = SplitKernel.of(posterior.prior.kernel, controlled, len(batch))
    points = contexts.expand(*torch.broadcast_shapes(batch, contexts.shape[:-2]), *contexts.shape[-2:])
    basis = pivoted_factor(lambda a, b: kernel.free(a, b).square(), points, most, tolerance)
    if basis is None or basis.shape[-1] == 0:
        return None
    # Row pivoting chooses rows such that no entry of the interpolation is large.
    packed, swaps, _ = torch.linalg.lu_factor_ex(basis)
    rank = basis.shape[-1]
    identity = torch.eye(points.shape[-2], rank, dtype=basis.dtype, device=basis.device)
    # Where others of the batch need more contexts than this one, the surplus ones are interpolated like all others.
    used = (basis != 0).any(-2).unsqueeze(-2)
    lower = torch.where(used, packed.tril(-1) + identity, 0.0)
    top = torch.where(used.mT, lower[..., :rank, :], identity[:rank])
    spread = torch.linalg.solve_triangular(top, lower, upper=False, left=False, unitriangular=True)
    order = _permutation(swaps, points.shape[-2])  # row i of the factors belongs to context order[i]
    back = order.argsort(-1).unsqueeze(-1).expand(*order.shape, rank)
    return order[..., :rank], spread.gather(-2, back)


def _permutation(swaps: Tensor, count: int) -> Tensor:
    """Where each row came from, after LAPACK's swaps ``... x N`` of rows, counted from one; ``... x count``."""
    flat = swaps.reshape(-1, swaps.shape[-1]).long().cpu() - 1
    order = torch.arange(count).repeat(len(flat), 1)
    for step, other in enumerate(flat.mT):
        mine = order[:, step].clone()
        order[:, step] = order.gather(-1, other.unsqueeze(-1)).squeeze(-1)
        order.scatter_(-1, other.unsqueeze(-1), mine.unsqueeze(-1))
    return order.reshape(*swaps.shape[:-1], count).to(swaps.device)
