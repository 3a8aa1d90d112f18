"""Kernel density estimation of the contexts that were seen."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbo_lib.checks import as_count, as_expanded, as_values, require, require_shape


def silverman_bandwidth(samples: Tensor) -> Tensor:
    """``(4 / (d + 2))^(1 / (d + 4)) std n^(-1 / (d + 4))`` of each dimension, ``... x d`` ([Silverman1986]).

    [Huang2024] use it. ``std``, of ``n >= 1`` samples ``... x n x d``, has the divisor ``n - 1``; it is zero where all
    samples agree, as a single one does.
    """
    n, d = samples.shape[-2:]
    varies = samples.amax(-2) > samples.amin(-2)
    square = (samples - samples.mean(-2, keepdim=True)).square().sum(-2) / max(1, n - 1)
    return torch.where(varies, (4 / ((d + 2) * n)) ** (1 / (d + 4)) * square.sqrt(), 0.0)


class GaussianKDE:
    """A kernel density estimate with a Gaussian kernel ([Huang2024], Eq. 2).

    ``p_hat(c) = 1/n sum_i prod_k N(c_k; c_ik, h_k^2)``. The paper prints the kernel as ``(2 pi)^(-d/2) exp(-|x|^2)``,
    which lacks its 1/2 and has the integral ``2^(-d/2)``; here it is the density of the standard normal distribution.

    Where all samples agree in a dimension its bandwidth is zero and the estimate is a point mass there: ``sample``
    repeats the value, and ``density`` refuses, since there is none.

    Args:
        samples: contexts ``... x n x d``, ``n >= 1``; leading dimensions are replicates.
        bandwidth: ``... x d``, nonnegative. Default: ``silverman_bandwidth``.

    Raises:
        ValueError: if a shape is wrong, a sample is not finite or a bandwidth is negative.
    """

    def __init__(self, samples: Tensor, bandwidth: Tensor | None = None) -> None:
        samples = as_values("samples", samples, (..., "n >= 1", "d >= 1"))
        if bandwidth is None:
            bandwidth = silverman_bandwidth(samples)
        else:
            bandwidth = as_values("bandwidth", bandwidth, None, 0, like=samples)
        self.bandwidth = as_expanded("bandwidth", bandwidth, (*samples.shape[:-2], samples.shape[-1]))
        self.samples = samples

    def sample(
        self, n: int, generator: torch.Generator | Sequence[torch.Generator], bounds: Tensor | None = None
    ) -> Tensor:
        """Draws from the estimate, ``... x n x d``.

        Args:
            n: how many, at least 1.
            generator: one for all, or one a replicate (the first batch dimension), which draws the same alone then.
            bounds: a box ``2 x d`` onto which draws are clipped, as the contexts themselves are. Default: none.

        Raises:
            ValueError: if ``n`` is below 1, or the generators are not one a replicate.
        """
        as_count("n", n, 1)
        batch, d = self.samples.shape[:-2], self.samples.shape[-1]
        if isinstance(generator, torch.Generator):
            generators, shape = [generator], batch
        else:
            generators, shape = list(generator), batch[1:]
            expected = f"generator must be one a replicate, {batch[0] if batch else 'or a single one'}"
            require(batch[:1] == (len(generators),), expected, len(generators))
        index = [torch.randint(self.samples.shape[-2], (*shape, n), generator=g) for g in generators]
        noise = [torch.randn(*shape, n, d, generator=g, dtype=self.samples.dtype) for g in generators]
        center = torch.stack(index).reshape(*batch, n).to(self.samples.device)
        draws = self.samples.gather(-2, center.unsqueeze(-1).expand(*batch, n, d))
        draws = draws + self.bandwidth.unsqueeze(-2) * torch.stack(noise).reshape(*batch, n, d).to(draws.device)
        return draws if bounds is None else draws.clamp(bounds[0], bounds[1])

    def density(self, c: Tensor) -> Tensor:
        """The estimate, ``... x m``, at contexts ``... x m x d`` whose leading dimensions broadcast to the samples'.

        Raises:
            ValueError: if a bandwidth is zero, or ``c`` has another last dimension.
        """
        d = self.samples.shape[-1]
        require_shape("c", c, ..., "m", d)
        flat = (self.bandwidth <= 0).reshape(-1, d).any(0).nonzero().flatten().tolist()
        require(not flat, "samples must differ for a density", f"the same value in dimension {flat} and bandwidth zero")
        scale = math.sqrt(2) * self.bandwidth.unsqueeze(-2)
        seen = (self.samples / scale).mT.split(1, -2)
        # In slices that stay in a cache.
        parts = (c / scale).split(2**17 // max(1, self.samples[..., 0].numel()) + 1, -2)
        squares = (sum((x - s).square_() for x, s in zip(part.split(1, -1), seen, strict=True)) for part in parts)
        norm = (math.sqrt(math.pi) * scale).squeeze(-2).prod(-1, keepdim=True)
        return torch.cat([square.neg_().exp_().mean(-1) for square in squares], -1) / norm
