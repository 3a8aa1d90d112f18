"""What the proof of GPOO promises, as numbers for the pages: near-optimality, depths and rates ([Zhang2022]).

``WidthAfter`` is GPOO with the other reading of line 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from book.aggregated.chain import depth_reached, most_draws
from book.aggregated.problem import CellProblem
from book.aggregated.regret import level_values
from book.functions import interval
from cbo_lib.aggregated.policies import GPOO
from cbo_lib.measure import Function


class WidthAfter(GPOO):
    """GPOO that expands by the confidence width after the new observation, and not by the one it was drawn with."""

    def may_expand(self, node: Tensor) -> Tensor:
        """Algorithm 1, line 6, by the widths now."""
        self.widths_before = self.widths()
        return super().may_expand(node)


def near_optimal_cells(problem: CellProblem, depth: int, slack: float) -> Tensor:
    """``|I_h|``: how many cells of a level have a value of at least ``f* - slack`` ([Zhang2022], Eq. 7)."""
    return (level_values(problem, depth) + slack >= problem.optimum.unsqueeze(-1)).sum(-1)


@dataclass(frozen=True)
class NearOptimality:
    """An estimate of the near-optimality dimension.

    Args:
        scales: the ``epsilon`` of each packing.
        packing: the largest number of disjoint balls of radius ``eta * epsilon`` centered in the epsilon-optimal set.
        dimension: the slope of ``log packing`` against ``log 1 / epsilon``, not below 0.
        constant: the smallest ``C`` with ``packing <= C epsilon^(-dimension)`` at every scale.
    """

    scales: Tensor
    packing: Tensor
    dimension: float
    constant: float


def near_optimality(
    f: Function, bounds: Tensor, optimum: float, eta: float, scales: Sequence[float], grid: int = 2**16
) -> NearOptimality:
    """Estimate the near-optimality dimension of a function of one variable ([Munos2014]; [Zhang2022], Definition 4).

    In one dimension the best packing is greedy: from the left, take every epsilon-optimal grid point that is at least
    two radii from the last one taken.

    Args:
        f: the function, points ``... x 1`` to values ``...``.
        bounds: the interval, ``2 x 1``.
        optimum: the maximum of f.
        eta: radius of the balls per unit of epsilon, positive.
        scales: the values of epsilon, positive, at least two.
        grid: how many grid points.

    Raises:
        ValueError: if f has several variables or a scale is not positive.
    """
    if len(scales) < 2 or min(scales) <= 0 or eta <= 0:
        raise ValueError(f"scales must be two or more positive numbers and eta positive, got {list(scales)} and {eta}")
    x = interval(bounds, grid)
    values = f(x)
    counts = []
    for scale in scales:
        inside = x[values >= optimum - scale, 0].cpu()
        count, position = 0, 0
        while position < len(inside):
            count += 1
            step = inside[position] + 2 * eta * scale * (1 - 1e-12)
            position = int(torch.searchsorted(inside, step))
        counts.append(max(count, 1))
    epsilon, packing = torch.tensor(scales, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    log_x, log_y = -epsilon.log(), packing.log()
    centered = log_x - log_x.mean()
    dimension = max(0.0, float((centered * log_y).sum() / centered.square().sum()))
    return NearOptimality(epsilon, packing, dimension, float((packing * epsilon**dimension).max()))


def theorem_depth(
    steps: int, beta: float, counts: Sequence[float], delta: Tensor, branching: int, noise_std: float
) -> int:
    """``h_N``: the smallest depth whose split nodes can absorb ``N`` draws, so that a node of that depth was split.

    A node of depth ``h`` is drawn at most ``T(h) = 2 + beta sigma^2 / delta(h)^2`` times before it is split. Every node
    that was drawn is the root or a child of a split node, so ``N <= T(0) + K sum_{h <= h_N} |I_h| T(h + 1)``.

    Args:
        steps: the budget ``N``.
        beta: the squared multiplier ``beta_N`` at the end of the budget.
        counts: an upper bound of ``|I_h|`` for h = 0, ..., ``max_depth - 1``; deeper nodes may be drawn without limit.
        delta: the smoothness function at h = 0, ..., ``max_depth``, one level more than ``counts``.
        branching: ``K``.
        noise_std: the noise ``sigma``.

    Returns:
        ``h_N``; ``max_depth`` if the levels above it do not absorb ``N`` draws, and -1 if the root may have absorbed
        all of them, so that nothing need have been split.

    Raises:
        ValueError: if ``delta`` does not have one level more than ``counts``.
    """
    _check_levels(counts, delta)
    return depth_reached(steps, most_draws(beta, delta, noise_std), counts, branching)


def printed_depth(
    steps: int, beta: float, counts: Sequence[float], delta: Tensor, branching: int, noise_std: float
) -> int:
    """``h_N`` as printed: ``N <= K sum_{h <= h_N} |I_h| beta sigma^2 / delta(h)^2`` ([Zhang2022], Eq. 8).

    It forgets two draws of every node, and counts the draws of a leaf with the ``delta`` of its parent, which is
    larger. Arguments and errors are those of ``theorem_depth``.
    """
    _check_levels(counts, delta)
    of_parent = (beta * noise_std**2 / delta[:-1].square()).tolist()
    return depth_reached(steps, [0.0, *of_parent], counts, branching)


def _check_levels(counts: Sequence[float], delta: Tensor) -> None:
    if len(delta) != len(counts) + 1:
        raise ValueError(f"delta must have one level more than counts, {len(counts) + 1}, got {len(delta)}")


def corollary_bound(
    steps: Tensor, beta: Tensor, rho: float, near: NearOptimality, branching: int, noise_std: float
) -> dict[str, Tensor]:
    """The regret bound for ``delta(h) = c rho^h``, whatever ``c`` ([Zhang2022], Corollary 1).

    It comes as printed and as Eq. 8 gives it (``derived``). Both start from Eq. 8, which itself needs a correction (see
    ``theorem_depth``). Summing Eq. 8 as a geometric series gives ``delta(h_N) <= (c2 beta_N / N)^(1/(d+2))`` with
    ``c2 = c1 rho^-(d+2)`` and the paper's ``c1 = 3^-d K C sigma^2 / (rho^-(d+2) - 1)``; Theorem 1 then gives three
    times that. The paper prints ``c1 (beta_N / N)^(1/(d+2))``.

    Args:
        steps: the budgets ``N``.
        beta: ``beta_N``, the same shape.
        rho: in (0, 1).
        near: the near-optimality dimension and constant.
        branching: ``K``.
        noise_std: the noise ``sigma``.
    """
    if not 0 < rho < 1:
        raise ValueError(f"rho must lie in (0, 1), got {rho}")
    power = near.dimension + 2
    c1 = 3**-near.dimension * branching * near.constant * noise_std**2 / (rho**-power - 1)
    ratio = beta / steps
    return {"printed": c1 * ratio ** (1 / power), "derived": 3 * (c1 * rho**-power * ratio) ** (1 / power)}
