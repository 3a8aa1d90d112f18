"""The size of f: what kernels in doubt leave open, fitted to the data."""

import math
import warnings
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel
from scipy.optimize import minimize
from torch import Tensor

from cbo_lib.checks import as_tensor
from cbo_lib.former.fit import FLAT, FitWarning, in_octaves, rounding_of
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters.space import Candidates, Space
from cbo_lib.kernels import StackedKernel
from cbo_lib.measure import Measure, covariance

# Where the search begins: scale and noise in standard deviations of the outputs.
_BEGIN = ((1.0, 0.1), (0.7, 0.7))


def fit_scale(space: Space, x: Tensor, y: Tensor) -> tuple[GaussianProcess, dict[str, Tensor]]:
    """Scale, mean and noise that the kernels of a space share, from noisy values of points.

    Maximizes the likelihood averaged over the kernels, ``sum_u p(y | scale, mean, noise, u) / |U|``: it is that of a
    model in which one of them is true, and what a bad kernel would need does not move it. (The sum of log likelihoods
    would make the worst kernel decide the noise.) Weak priors keep the maximum in reach when data are few, in
    standardized outputs: log scale and mean are standard normal, the noise variance as in BoTorch ([Balandat2020]).

    It gives the priors of all candidates in the user's units, of batch ``replicates x |U|``, with the noise as given
    where it was; and, ``replicates`` each: ``scale``, the deviation that kernels are multiplied with, ``prior_mean``,
    ``noise_std`` of the first, and ``converged`` (or a ``FitWarning``).
    With fewer than two observations nothing is fitted: scale 1, noise 0.1, and the mean of the data or zero.

    Args:
        space: whose ``fitted`` candidates are kernels.
        x: points, ``replicates x n x d``.
        y: values, ``replicates x n``.
    """
    replicates, n = y.shape
    like, own = space.like, torch.tensor(space.fitted, device=space.like.device)
    kernel = StackedKernel(space.candidates.kernels)
    given = as_tensor("noise_std", math.nan if space.noise_std is None else space.noise_std, like).expand(len(own))
    known = float(given[own][0])
    sizes = torch.tensor([[1.0, 0.0, 0.1]], dtype=torch.float64).repeat(replicates, 1)
    sizes[:, 1] = y.mean(-1) if n else 0.0
    converged = torch.ones(replicates, dtype=torch.bool)
    if n >= 2:
        points = Measure.dirac(x.unsqueeze(1))
        parts = StackedKernel([k for k, free in zip(space.candidates.kernels, space.fitted, strict=True) if free])
        grams = covariance(parts, points, points).double().cpu()
        size = grams.diagonal(dim1=-2, dim2=-1).mean((-2, -1)).sqrt()  # of the kernels alone: 1, as a rule
        size = torch.where(size > 0, size, 1.0)
        grams = grams / size.square()[:, None, None, None]
        for r in range(replicates):
            sizes[r], converged[r] = _fit_one(grams[r], y[r].double().cpu(), known)
        sizes[:, 0] /= size
    if not bool(converged.all()):
        which = (~converged).nonzero().flatten().tolist()
        warnings.warn(f"the fit of scale, mean and noise did not reach a maximum in replicates {which}", FitWarning, 2)
    scale, mean, noise_std = sizes.to(like).unbind(-1)
    noise = torch.where(given.isnan(), noise_std.unsqueeze(-1), given)
    outer = ScaleKernel(kernel, batch_shape=torch.Size([replicates, len(own)])).to(like)
    outer.outputscale = torch.where(own, scale.unsqueeze(-1).square(), 1.0)
    outer.requires_grad_(False)
    means = partial(_means, space.candidates, mean.unsqueeze(-1) * own)
    record = {"scale": scale, "prior_mean": mean, "noise_std": noise[:, 0], "converged": converged.to(like.device)}
    return GaussianProcess(outer, noise.unsqueeze(-1), means), record


def _means(candidates: Candidates, fitted: Tensor, points: Tensor) -> Tensor:
    """The candidates' own means, which are zero for kernels, plus what was fitted, ``replicates x |U|``."""
    return candidates.mean(points) + fitted[..., None, None]


def _fit_one(gram: Tensor, y: Tensor, known: float) -> tuple[Tensor, bool]:
    """Scale, mean and noise (fitted if ``known`` is NaN) from matrices ``|U| x n x n``, and whether at a maximum."""
    n = len(y)
    center, spread = y.mean(), y.std()
    spread = spread if spread > rounding_of(y) else torch.ones_like(spread)
    z = (y - center) / spread
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0.0)
    rotated = vectors.mT @ torch.stack([z.expand(len(gram), n), torch.ones(len(gram), n).to(z)], -1)  # |U| n 2
    fixed = not math.isnan(known)

    def loss(parameters: Tensor) -> Tensor:
        log_scale, mean = parameters[0], parameters[1]
        log_noise = math.log(known) - spread.log() if fixed else parameters[2]
        spectrum = (2 * log_scale).exp() * values + (2 * log_noise).exp()
        gap = rotated[..., 0] - mean * rotated[..., 1]
        likelihood = (-0.5 * (gap.square() / spectrum + spectrum.log())).sum(-1).logsumexp(0)
        prior = -0.5 * (log_scale.square() + mean.square())
        if not fixed:
            prior = prior - 0.5 * (2 * log_noise + 4).square() - 2 * log_noise
        return -(likelihood + prior) / n

    def with_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        gradient, value = torch.func.grad_and_value(loss)(torch.from_numpy(parameters))
        return float(value), gradient.numpy()

    box = [(math.log(1e-3), math.log(1e3)), (-10.0, 10.0), (math.log(1e-3), math.log(10.0))][: 2 if fixed else 3]
    ends = {"ftol": 1e-3 * np.finfo(float).eps, "gtol": 1e-9, "maxiter": 500}
    begin = [np.array([math.log(scale), 0.0, math.log(noise)][: len(box)]) for scale, noise in _BEGIN]
    runs = [minimize(with_gradient, x, jac=True, method="L-BFGS-B", bounds=box, options=ends) for x in begin]
    best = min(runs, key=lambda run: round(float(run.fun), 9))  # the first among equals
    found = torch.from_numpy(best.x)
    free = [low < v < high for v, (low, high) in zip(best.x, box, strict=True)]
    converged = bool((np.abs(best.jac)[free] <= FLAT).all())
    mean = center + spread * (found[1] * 1024).round() / 1024
    scale = in_octaves(found[0].exp() * spread)
    noise_std = z.new_tensor(known) if fixed else in_octaves(found[2].exp() * spread)
    return torch.stack([scale, mean, noise_std]), converged
