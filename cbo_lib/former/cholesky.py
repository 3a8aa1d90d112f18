"""Factors of covariance matrices: of low rank, and with a jitter where rounding leaves no factor."""

import warnings
from collections.abc import Callable

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from cbo_lib.checks import require

# In roundings: a pivot below so many of its diagonal entry holds no digit; the jitter then begins at so many.
_LEAST, _FIRST = 10, 100
# A device is asked once so many pivots whether there were enough; more are zeros.
_PIVOTS = 16


@torch.no_grad()  # it writes into a buffer; and the factor is constant for whoever differentiates
def pivoted_cholesky(
    rows: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    rank: int,
    tolerance: float | Tensor,
    tied: float = 0.0,
    cut: bool = False,
) -> Tensor | None:
    """``F`` (``... r x N``) with ``K = F^T F`` but for a tolerance; None (unless ``cut``) if ``r`` would pass ``rank``.

    A pivoted Cholesky decomposition ([Harbrecht2012]) that asks for one row of ``K`` a pivot. What is left over,
    ``K - F^T F``, is positive semidefinite, so that its largest entry stands on its diagonal.

    Args:
        rows: the rows ``... x 1 x N`` of a positive semidefinite ``K`` at places ``... x 1``.
        diagonal: of ``K``, ``... x N``.
        rank: the most rows of ``F`` that are worth having.
        tolerance: the largest entry that may be left over, positive: a number, or one an element of the batch. A pivot
            ``p`` whose row is wrong by ``e`` adds an error of at most ``e^2 / p``, no more than ``e`` as long as
            ``p >= e``; a smaller pivot would make nothing but rounding large.
        tied: pivots this close to the largest, relatively, are tied, as on grids, and the first is taken. Default 0.
        cut: whether the first ``rank`` rows are given in the place of None. Default no.
    """
    least = torch.as_tensor(tolerance, dtype=diagonal.dtype, device=diagonal.device).unsqueeze(-1)
    left, found = diagonal, 0
    every = 1 if diagonal.device.type == "cpu" else _PIVOTS
    factor = diagonal.new_empty(*diagonal.shape[:-1], min(rank, 16), diagonal.shape[-1])  # grows by doubling
    while True:
        place = (left >= (1 - tied) * left.amax(-1, keepdim=True)).byte().argmax(-1, keepdim=True)
        top = torch.take_along_dim(left, place, -1)
        if (found % every == 0 or found >= rank) and bool((top <= least).all()):
            known = factor[..., :found, :]
            used = found if every == 1 else int((known != 0).any(-1).reshape(-1, found).any(0).sum())
            return known[..., :used, :].contiguous()
        if found >= rank:
            return factor[..., :found, :].contiguous() if cut else None
        if found == factor.shape[-2]:
            factor = torch.cat([factor, torch.empty_like(factor)], -2)
        known = factor[..., :found, :]
        row = (rows(place) - torch.take_along_dim(known, place.unsqueeze(-2), -1).mT @ known).squeeze(-2)
        # An element of the batch that is finished gets rows of zeros.
        factor[..., found, :] = torch.where(top > least, row / torch.maximum(top, least).sqrt(), 0.0)
        left = (left - factor[..., found, :].square()).clamp_min(0.0)
        found += 1


def rows_of(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """The rows ``... x 1 x N`` of matrices ``... x N x N`` at places ``... x 1``, for ``pivoted_cholesky``."""
    return lambda place: torch.take_along_dim(matrix, place.unsqueeze(-1), -2)


def stable_cholesky(
    matrix: Tensor, diagonal: Tensor | None = None, jitter: Tensor | None = None, lost: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The lower Cholesky factor of matrices ``... n x n``, with a jitter where rounding leaves none, and the jitter.

    It is added to the diagonals of those elements of the batch that need it, in growing steps, with a warning.

    Args:
        matrix: positive definite to rounding.
        diagonal: what the jitter is a share of, ``... x n``. Default that of ``matrix``.
        jitter: the share that ``matrix`` holds already, ``...``. Default 0.
        lost: which elements need more, boolean ``...``; only these are looked at. Default: those found to.

    Raises:
        ValueError: if a matrix is not finite, or a jitter of the root of the rounding is not enough.
    """
    diagonal = matrix.diagonal(dim1=-2, dim2=-1) if diagonal is None else diagonal
    held = matrix.new_zeros(matrix.shape[:-2]) if jitter is None else jitter
    eps, jitter, factor = torch.finfo(matrix.dtype).eps, held, matrix
    looked_at = torch.ones_like(held, dtype=torch.bool) if lost is None else lost
    if lost is None:
        factor, lost = try_cholesky(matrix, diagonal)
    if not bool((needed := lost).any()):
        return factor, held
    require(torch.isfinite(matrix), "kernel must give finite covariances", "a NaN or an infinity")
    while bool(lost.any()):
        jitter = torch.where(lost, (10 * jitter).clamp_min(_FIRST * eps), jitter)
        expected = f"kernel must give positive definite covariances of the observations, to one part in {eps**-0.5:.0e}"
        require(jitter[lost] <= eps**0.5, expected, "others; a larger noise_std or bounded lengthscales would help")
        shift = (jitter - held).unsqueeze(-1) * diagonal
        factor, lost = try_cholesky(matrix + torch.diag_embed(shift), diagonal)
        lost = lost & looked_at
    warnings.warn(
        f"noise_std (or a ridge) drowns in rounding for points this close: a jitter of up to {float(jitter.max()):.1e} "
        f"of the variance was added in {int(needed.sum())} of {needed.numel()} replicates",
        NumericalWarning,
        stacklevel=3,
    )
    return factor, jitter


def try_cholesky(matrix: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """The factor, and which elements of the batch have none to trust, ``...``."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor, needs_jitter(factor.diagonal(dim1=-2, dim2=-1).square(), diagonal).any(-1) | (info > 0)


def needs_jitter(pivot: Tensor, diagonal: Tensor) -> Tensor:
    """Where the square of a Cholesky pivot is nothing but rounding of the diagonal entry, or no number; any shape."""
    return ~(pivot > _LEAST * torch.finfo(pivot.dtype).eps * diagonal)
