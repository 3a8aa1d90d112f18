"""Information gain."""

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_tensor, as_values, require
from cbo_lib.gp import cholesky
from cbo_lib.measure import Measure, covariance
from cbo_lib.search import argmax_finite


def information_gain(kernel: Kernel, measure: Measure, noise_std: float | Tensor) -> Tensor:
    """Mutual information between f and noisy values of measures: ``0.5 log det(I + K / noise_std^2)``.

    Args:
        kernel: a GPyTorch kernel.
        measure: the ``t`` observed measures, ``... x t``.
        noise_std: positive; broadcasts to ``... x t``.

    Returns:
        A ``...`` tensor in nats (natural log); zero for ``t = 0``.
    """
    noise = as_values("noise_std", noise_std, None, 0, ends="()", like=measure.weights)
    noise = noise + torch.zeros_like(measure.weights[..., 0])
    scaled = covariance(kernel, measure, measure) / (noise.unsqueeze(-1) * noise.unsqueeze(-2))
    return cholesky(scaled + torch.eye(measure.n).to(scaled)).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def greedy_information_gain(kernel: Kernel, candidates: Measure | Tensor, noise_std: float, n: int) -> Tensor:
    """Information gain of greedily chosen observations, a lower bound of the maximum information gain.

    Each step observes the candidate of the largest posterior variance, repeats allowed, which gains
    ``0.5 log(1 + variance / noise_std^2)``. The gain is monotone and submodular, so after ``t`` steps the greedy value
    is at least ``1 - 1/e`` of the maximum ``gamma_t`` over ``t`` candidates ([Nemhauser1978], [Srinivas2010]
    section 4): ``greedy <= gamma_t <= greedy * e / (e - 1)``.

    Args:
        kernel: a GPyTorch kernel; a batched kernel gives a batch of gains.
        candidates: measures, or points ``m x d``, shared by the batch.
        noise_std: positive.
        n: how many observations, nonnegative.

    Returns:
        A ``... x (n + 1)`` tensor: the cumulative gain after 0, 1, ..., n observations, in nats (natural log).

    Raises:
        ValueError: if there is no candidate, ``n`` is negative or ``noise_std`` is not positive.
    """
    measure = candidates if isinstance(candidates, Measure) else Measure.dirac(as_tensor("candidates", candidates))
    require(measure.n > 0, "candidates must hold at least one measure", "none")
    as_count("n", n)
    noise = as_number("noise_std", noise_std, 0, ends="()") ** 2
    with torch.no_grad():
        gram = covariance(kernel, measure, measure)
        variance = gram.diagonal(dim1=-2, dim2=-1)
        prior = variance.amax(-1, keepdim=True)
        explained = gram.new_empty(*gram.shape[:-2], n, measure.n)  # rows of the factor of what was observed
        gains = [torch.zeros_like(variance[..., 0])]
        for t in range(n):  # a stationary kernel begins with nothing but ties
            index = argmax_finite(variance / prior)[..., None, None]
            largest = variance.amax(-1)
            gains.append(gains[-1] + 0.5 * torch.log1p(largest / noise))
            std = (largest + noise).sqrt()[..., None, None]
            known = explained[..., :t, :]
            now = (gram.take_along_dim(index, -2) - known.take_along_dim(index, -1).mT @ known) / std
            explained[..., t : t + 1, :] = now
            variance = (variance - now.squeeze(-2).square()).clamp_min(0.0)
    return torch.stack(gains, -1)
