"""What an estimated ``p(x | a)`` does to the prior of g and f, and models that know its error.

With ``w(a)`` the weights of Eq. 12 ([Zhang2025]) the learner takes ``g^(a) = sum_j w_j(a) f(x_j)`` for ``g(a)``. This
is a kernel ridge regression of ``f(x_j)`` on ``a_j``, with kernel ``l`` and ridge ``N lambda``. The same numbers are
the posterior mean of a Gaussian process with kernel ``s^2 l`` and noise variance ``v = s^2 N lambda``, whose posterior
covariance says how far g may be from g^:

    D(a, a') = s^2 (l(a, a') - l(a, A) (l(A, A) + N lambda I)^{-1} l(A, a')).

``v`` is the variance of ``f(X)`` around ``g(a)``, which leaving one out estimates. A learner may add ``D`` to its prior
covariance of g ("deviation"), or its diagonal to the variance of the noise ("noise"), or neither ("exact"). Or it may
make a distribution of the weights first ("projected").
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect.embedding import ConditionalMeanEmbedding, embedding_weights
from cbo_lib.kernels import TabulatedKernel, matrix, rbf_kernel

Model = Literal["exact", "noise", "deviation", "projected"]


def projected(weights: Tensor) -> Tensor:
    """Weights ``... x N`` without their negative part, summing to one: a distribution, so that no average passes f*."""
    kept = weights.clamp_min(0.0)
    return kept / kept.sum(-1, keepdim=True)


def within_variance(embedding: ConditionalMeanEmbedding, lengthscale: float, replicate: int = 0) -> float:
    """``v``: how much ``f(X)`` varies around ``g(a)`` under a prior of variance one, by leaving one pair out.

    A pair left out is predicted with an error of variance ``v + D(a, a)`` on average, and ``D`` is ``v`` times a known
    number.

    Args:
        embedding: of pairs ``replicates x N``.
        lengthscale: of the RBF kernel of f.
        replicate: whose pairs are used.
    """
    x, a = embedding.x[replicate], embedding.a[replicate]
    length, ridge = embedding.parameters
    kernel = rbf_kernel(length)
    hat = embedding_weights(a, kernel, ridge, a)
    share = hat.diagonal()  # of each pair in its own prediction
    residual = (torch.eye(len(a)).to(a) - hat) / (1 - share).unsqueeze(-1)
    error = torch.einsum("ij,ij->i", residual @ matrix(rbf_kernel(lengthscale), x), residual)
    # Without pair i its prediction has the variance v / (1 - share), noise included.
    return float(error.mean() / (1 + (share / (1 - share)).mean()))


@dataclass(frozen=True)
class Embedded:
    """Prior covariances of g at actions and f at points through estimated ``p(x | a)``, one a replicate.

    Args:
        embedding: of pairs ``replicates x N``.
        actions: ``n x q``.
        points: ``m x d``.
    """

    embedding: ConditionalMeanEmbedding
    actions: Tensor
    points: Tensor

    @functools.cached_property
    def weights(self) -> Tensor:
        """Of Eq. 12, ``replicates x n x N``."""
        length, ridge = self.embedding.parameters
        kernel = rbf_kernel(length)
        return torch.stack([embedding_weights(a, kernel, ridge, self.actions) for a in self.embedding.a])

    def deviation(self) -> Tensor:
        """``D`` for ``v = 1``, ``replicates x n x n``."""
        length, ridge = self.embedding.parameters
        kernel = rbf_kernel(length)
        own, ridge = matrix(kernel, self.actions), ridge * self.embedding.a.shape[-2]
        parts = [own - w @ matrix(kernel, a, self.actions) for w, a in zip(self.weights, self.embedding.a, strict=True)]
        return torch.stack([(part + part.mT) / (2 * ridge) for part in parts])

    def averages(self, values: Tensor, project: bool = False) -> Tensor:
        """``g^`` of known functions, ``replicates x n``, from their values at the pairs ``replicates x N``."""
        weights = projected(self.weights) if project else self.weights
        return (weights @ values.unsqueeze(-1)).squeeze(-1)

    def prior(self, lengthscale: float, noise_std: float, model: Model = "exact") -> GaussianProcess:
        """The prior of all places, one a replicate; ``"noise"`` has that of ``"exact"``.

        Args:
            lengthscale: of the RBF kernel of f, of variance one.
            noise_std: of observations.
            model: how the error of the estimate enters.
        """
        n, m = len(self.actions), len(self.points)
        kernel = rbf_kernel(lengthscale)
        among = matrix(kernel, self.points)
        gram = among.new_empty(len(self.embedding.x), n + m, n + m)
        weights = projected(self.weights) if model == "projected" else self.weights
        for r, (w, x) in enumerate(zip(weights, self.embedding.x, strict=True)):
            left = w @ matrix(kernel, x)
            q, cross = left @ w.mT, w @ matrix(kernel, x, self.points)
            gram[r, :n, :n], gram[r, :n, n:], gram[r, n:, :n], gram[r, n:, n:] = (q + q.mT) / 2, cross, cross.mT, among
        if model == "deviation":
            gram[:, :n, :n] += within_variance(self.embedding, lengthscale) * self.deviation()
        return GaussianProcess(TabulatedKernel(gram), noise_std)

    def noise(self, lengthscale: float, noise_std: float) -> Tensor:
        """The noise of model ``"noise"``: its variance and the diagonal of ``D``, mean over replicates, ``n``."""
        own = self.deviation().diagonal(dim1=-2, dim2=-1).mean(0).clamp_min(0.0)
        return (noise_std**2 + within_variance(self.embedding, lengthscale) * own).sqrt()
