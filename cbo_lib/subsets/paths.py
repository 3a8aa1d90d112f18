"""Functions drawn from a posterior, and their expectations over the variables that a subset leaves free.

.. [RahimiRecht2007] A. Rahimi, B. Recht. Random Features for Large-Scale Kernel Machines. NeurIPS 2007.
.. [Wilson2020] J. T. Wilson, V. Borovitskiy, A. Terenin, P. Mostowsky, M. P. Deisenroth. Efficiently Sampling Functions
   from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbo_lib.random import standard_normal, uniform
from cbo_lib.separable import SplitKernel
from cbo_lib.subsets.bounds import SubsetBounds


class SamplePaths:
    """One function a replicate, drawn from its posterior.

    A draw from the prior is a sum of random Fourier features ([RahimiRecht2007]_); the data correct it by a sum of
    kernels at the observed points ([Wilson2020]_, Eq. 13). Both are products over the coordinates, so the expectation
    over the free variables is an average of cosines and of kernels that is taken once.

    Calling the object with decisions ``replicates x m x n x d`` gives their expectations ``replicates x m x n``,
    differentiable in the decisions.

    Args:
        bounds: the posteriors, and the draws that stand for the free variables.
        generators: one a replicate.
        features: how many random features, at least 1.

    Raises:
        ValueError: if ``features`` is below 1, or the kernel is not squared exponential.
    """

    def __init__(self, bounds: SubsetBounds, generators: Sequence[torch.Generator], features: int) -> None:
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        self.bounds, posterior = bounds, bounds.posterior
        contexts = bounds.contexts
        split = SplitKernel.of(posterior.prior.kernel, torch.ones_like(contexts[0], dtype=torch.bool), 0)
        if any(split.others):
            raise ValueError("the kernel must be squared exponential in every variable, got a product with another")
        inverse, scale = split.inverse[0].flatten(), split.scale
        noise = float(torch.as_tensor(posterior.prior.noise_std, dtype=torch.float64))
        normal = standard_normal(generators, (features, contexts.shape[-1] + 1), contexts)
        self._frequency = normal[..., :-1] * inverse  # replicates features d
        self._phase = 2 * math.pi * uniform(generators, (features,), contexts)
        self._amplitude = normal[..., -1] * (2 * scale / features).sqrt()
        self._mean = float(torch.as_tensor(posterior.prior.mean, dtype=torch.float64))
        # E cos(a + b) = cos a E cos b - sin a E sin b, with b the part of the free variables
        controlled = bounds.controlled
        angle = contexts @ (self._frequency.unsqueeze(1) * ~controlled.unsqueeze(-2)).mT  # replicates m M features
        cosine, sine = angle.cos().mean(-2, keepdim=True), angle.sin().mean(-2, keepdim=True)
        amplitude = self._amplitude.unsqueeze(1).unsqueeze(-2)
        self._cosine, self._sine = cosine * amplitude, sine * amplitude
        self._own = (self._frequency.unsqueeze(1) * controlled.unsqueeze(-2)).mT
        self._observed: Tensor | None = None
        if posterior.data is None:
            return
        data, t = posterior.data, posterior.count
        replicates = len(generators)
        observed = data.measure.points.squeeze(-2).expand(replicates, t, -1)
        # y - prior mean, from what conditioning keeps
        y = (data.factor @ data.whitened.unsqueeze(-1)).squeeze(-1).expand(replicates, t)
        gap = y - self._prior(observed) - noise * standard_normal(generators, (t,), contexts)
        factor = data.factor.expand(replicates, t, t)
        weights = torch.cholesky_solve(gap.unsqueeze(-1), factor).squeeze(-1)
        self._split = SplitKernel.of(posterior.prior.kernel, controlled, 0)
        self._observed = observed.unsqueeze(1)
        average = self._split.free(self._observed, contexts).mean(-1)  # replicates m t
        self._weights = (average * weights.unsqueeze(1)).unsqueeze(-1)

    def __call__(self, x: Tensor) -> Tensor:
        """Expectations of decisions, see the class."""
        angle = x @ self._own + self._phase.unsqueeze(1).unsqueeze(-2)
        value = (angle.cos() * self._cosine - angle.sin() * self._sine).sum(-1) + self._mean
        if self._observed is None:
            return value
        return value + (self._split.controlled(x, self._observed) @ self._weights).squeeze(-1)

    def _prior(self, points: Tensor) -> Tensor:
        """The draw from the prior, without its mean, at points ``replicates x t x d``."""
        angle = points @ self._frequency.mT + self._phase.unsqueeze(-2)
        return (angle.cos() * self._amplitude.unsqueeze(-2)).sum(-1)
