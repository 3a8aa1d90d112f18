"""Kernel density estimation of the contexts that were seen."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbo_lib.checks import as_values, require
from cbo_lib.random import scrambled_sobol


def silverman_bandwidth(samples: Tensor) -> Tensor:
    """``(4 / ((d + 2) n))^(1 / (d + 4)) std`` of each dimension, ``... x d`` ([Silverman1986], [Huang2024] 4.1).

    ``std``, of ``n >= 1`` samples ``... x n x d``, has the divisor ``n - 1``; it is zero where all samples agree.
    """
    n, d = samples.shape[-2:]
    std = samples.std(-2, correction=min(1, n - 1))
    varies = samples.amax(-2) > samples.amin(-2)
    return torch.where(varies, (4 / ((d + 2) * n)) ** (1 / (d + 4)) * std, 0.0)


class GaussianKDE:
    """A kernel density estimate with a Gaussian kernel: ``1/n sum_i prod_k N(c_k; c_ik, h_k^2)`` ([Huang2024], Eq. 2).

    Args:
        samples: contexts ``... x n x d``, ``n >= 1``.
        bandwidth: ``h``, ``... x d``, nonnegative. Default ``silverman_bandwidth``. With zero the estimate is the
            empirical law, which has no density.

    Raises:
        ValueError: if a shape is wrong, a sample is not finite or a bandwidth is negative.
    """

    def __init__(self, samples: Tensor, bandwidth: Tensor | None = None) -> None:
        self.samples = as_values("samples", samples, (..., "n >= 1", "d >= 1"))
        h = silverman_bandwidth(self.samples) if bandwidth is None else bandwidth
        self.bandwidth = as_values("bandwidth", h, None, 0, like=self.samples)

    def sample(self, n: int, generators: Sequence[torch.Generator], bounds: Tensor | None = None) -> Tensor:
        """Draws, ``replicates x n x d``: a sample each, moved by normal noise, and clipped onto a box ``2 x d``.

        They are made from scrambled Sobol points. So each follows the estimate, and averages over them are much closer
        to its expectations than averages over as many independent draws.
        """
        seen, d = self.samples.shape[-2:]
        u = scrambled_sobol(generators, n, d + 1, self.samples).clamp(2**-32, 1 - 2**-24)  # as numbers of 32 bits, too
        in_order = self.samples.take_along_dim(self.samples[..., :1].argsort(stable=True, dim=-2), -2)
        noise = self.bandwidth.unsqueeze(-2) * torch.special.ndtri(u[..., 1:])
        draws = in_order.take_along_dim((seen * u[..., :1]).long(), -2) + noise
        return draws if bounds is None else draws.clamp(bounds[0], bounds[1])

    def density(self, c: Tensor) -> Tensor:
        """The estimate, ``... x m``, at contexts ``... x m x d``; a ``ValueError`` where a bandwidth is zero."""
        h = self.bandwidth.unsqueeze(-2)
        require(h > 0, "samples must differ for a density, or bandwidth be positive", "bandwidth zero")
        square = torch.cdist(c / h, self.samples / h, compute_mode="donot_use_mm_for_euclid_dist").square()
        norm = (math.sqrt(2 * math.pi) * h).prod(-1)
        return (-square / 2).exp().mean(-1) / norm
