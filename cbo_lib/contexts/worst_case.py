"""The worst expectation over a ball of distributions around an estimate."""

import torch
from torch import Tensor

from cbo_lib.checks import require


def tv_worst_case(values: Tensor, floor: Tensor | float, radius: Tensor | float) -> Tensor:
    """The worst expectation within an L1 distance of equally weighted samples, ``...`` ([Huang2024], Proposition 2).

    The worst distribution takes the mass ``min(radius / 2, 1)`` from the samples with the largest values and puts it
    where the function is smallest: a sort solves the program. The paper calls the radius one of total variation, but
    measures the L1 distance, twice that; beyond 2 it has no more effect.

    Args:
        values: of the function at ``m >= 1`` samples, ``... x m``.
        floor: the smallest value over the context space, broadcasts to ``...``; ``inf`` if only the samples count.
        radius: L1, nonnegative, broadcasts to ``...``.

    Raises:
        ValueError: if the radius is negative.
    """
    m = values.shape[-1]
    radius = torch.as_tensor(radius, dtype=values.dtype, device=values.device)
    require(radius >= 0, "radius must be nonnegative", radius)
    floor = values.amin(-1).clamp_max(floor).unsqueeze(-1)
    # Of each sample, from the largest value down, the part of its mass 1/m that is taken.
    taken = ((radius / 2).clamp_max(1).unsqueeze(-1) * m - torch.arange(m).to(values)).clamp(0, 1) / m
    return values.mean(-1) - (taken * (values.sort(-1, descending=True).values - floor)).sum(-1)


def mmd_reach(reference: Tensor, gram: Tensor) -> Tensor:
    """The discrepancy of ``p`` and all mass at one context, for every context, ``... x m``."""
    embedded = (gram @ reference.unsqueeze(-1)).squeeze(-1)
    own = (embedded * reference).sum(-1, keepdim=True)
    return (gram.diagonal(dim1=-2, dim2=-1) - 2 * embedded + own).clamp_min(0).sqrt()


@torch.no_grad()
def mmd_worst_distribution(
    values: Tensor, reference: Tensor, gram: Tensor, radius: float, tolerance: float = 1e-6
) -> Tensor:
    """The ``q`` of the smallest ``q'v`` with ``(q - p)' K (q - p) <= radius^2``, ``R x n x m`` ([Kirschner2020]).

    A primal-dual interior point method for ``z_j q_j = mu``, ``w (radius^2 - (q - p)'K(q - p)) = mu`` and the slope of
    the Lagrangian, zero. Every ``q`` on the way lies in the ball.

    Args:
        values: ``v``, ``R x n x m``.
        reference: ``p``, ``R x m``, nonnegative, of sum one.
        gram: ``K``, ``R x m x m``, a kernel matrix of the contexts.
        radius: nonnegative.
        tolerance: on the gap, in shares of the range of each ``v``.
    """
    m, p, K = values.shape[-1], reference.unsqueeze(-2), gram.unsqueeze(-3)
    if radius == 0:
        return p.expand_as(values)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(-1, keepdim=True)

    def times(x: Tensor) -> Tensor:
        return (K @ x.unsqueeze(-1)).squeeze(-1)

    low, place = values.min(-1, keepdim=True)
    spread = values.amax(-1, keepdim=True) - low
    reached = mmd_reach(reference, gram).unsqueeze(-2).expand_as(values).gather(-1, place) <= radius
    easy = torch.where(reached, torch.zeros_like(values).scatter(-1, place, 1.0), p)  # all mass at the smallest value
    hard = ~reached & (spread > 0)
    v = (values - low) / torch.where(spread > 0, spread, 1.0)
    away = 1 / m - p  # from the reference toward equal weights: positive everywhere, strictly inside of the ball
    length = dot(times(away), away).clamp_min(1e-30).sqrt()
    q = (p + (0.7 * radius / length).clamp_max(0.9) * away).expand_as(v)
    slack = radius**2 - dot(q - p, times(q - p))
    z, w, y, ones = 1 / (m * q), 1 / (m * slack), torch.zeros_like(slack), torch.ones_like(q)
    for _ in range(60):
        Kd = times(q - p)
        gap = dot(q, z) + w * slack
        live = hard & (gap > tolerance)
        if not bool(live.any()):
            break
        mu = 0.1 * gap / (m + 1)
        H = 2 * w.unsqueeze(-1) * K + torch.diag_embed(z / q)
        H = H + (4 * w / slack).unsqueeze(-1) * Kd.unsqueeze(-1) * Kd.unsqueeze(-2)
        slope = v + 2 * w * Kd - z + y
        right = -slope - 2 * Kd * (mu - w * slack) / slack + (mu - q * z) / q
        factor = torch.linalg.cholesky_ex(H).L
        a, b = torch.cholesky_solve(torch.stack([right, ones], -1), factor).unbind(-1)
        dy = a.sum(-1, keepdim=True) / b.sum(-1, keepdim=True)
        dq = a - dy * b
        dw = (mu - w * slack + 2 * w * dot(Kd, dq)) / slack
        dz = (mu - q * z - z * dq) / q
        A, B = dot(dq, times(dq)), dot(Kd, dq)
        out = slack / (B + (B.square() + A.clamp_min(0) * slack).sqrt()).clamp_min(1e-300)  # where the ball ends
        lengths = [torch.where(d < 0, -x / d, torch.inf).amin(-1, keepdim=True) for x, d in ((q, dq), (z, dz), (w, dw))]
        step = (0.95 * torch.stack([out, *lengths]).amin(0)).clamp_max(1)
        q, z, w, y = (torch.where(live, x + step * d, x) for x, d in ((q, dq), (z, dz), (w, dw), (y, dy)))
        slack = radius**2 - dot(q - p, times(q - p))
    return torch.where(hard, q, easy)


def mmd_minimax(values: Tensor, reference: Tensor, gram: Tensor, radius: float, jitter: float = 1e-3) -> Tensor:
    """The midpoint of two bounds on the worst case that need no optimization, ``R x n`` ([Tay2022]).

    As a function of the radius the worst case is convex. So it lies above the smallest value and above a line whose
    slope, the worst-case sensitivity, is that at zero if weights may be negative; and below the chord to the radius at
    which all mass may sit on the smallest value. From there on it is that value.

    Arguments are those of ``mmd_worst_distribution``; ``jitter`` is added to the diagonal of ``K`` for the slope.
    """
    worst, place = values.min(-1)
    mean = (values * reference.unsqueeze(-2)).sum(-1)
    reach = mmd_reach(reference, gram).unsqueeze(-2).expand_as(values).gather(-1, place.unsqueeze(-1)).squeeze(-1)
    factor = torch.linalg.cholesky(gram + jitter * torch.eye(gram.shape[-1]).to(gram))
    ones = torch.linalg.solve_triangular(factor, torch.ones_like(gram[..., :1]), upper=False).mT  # R 1 m
    white = torch.linalg.solve_triangular(factor, values.mT, upper=False).mT
    best = (white * ones).sum(-1, keepdim=True) / ones.square().sum(-1, keepdim=True)
    slope = (white - best * ones).square().sum(-1).clamp_min(1e-30).sqrt()
    lower = torch.maximum(mean - radius * slope, worst)
    chord = mean + (worst - mean) * radius / reach.clamp_min(1e-30)
    return torch.where(radius >= reach, worst, (lower + chord) / 2)
