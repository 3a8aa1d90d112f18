"""The Gaussian process of a policy: hyperparameters fitted to values of measures, for all replicates as one batch.

The model is BoTorch's default ([Balandat2020]): a kernel with a lengthscale a coordinate, whose log-normal prior grows
with the dimension ([Hvarfner2024]), a constant mean, a log-normal prior on the noise. Inputs are scaled to the unit
box, outputs standardized in each replicate, and everything that is returned is in the user's units again.
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch import settings
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.optim.closures import BatchedNDarrayOptimizationClosure
from botorch.optim.utils import get_parameters_and_bounds
from botorch.optim.utils.numpy_utils import get_per_element_bounds
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from cbo_lib.checks import as_box, as_values, require, require_shape
from cbo_lib.fit import default_kernel
from cbo_lib.former.slopes import slopes_in_closed_form
from cbo_lib.former.unit_box import in_units, lengthscales
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matrix
from cbo_lib.measure import Measure, covariance

# Mean log likelihoods are flat to this at a maximum.
FLAT = 1e-3
# Losses, means over the observations, and their slopes are seen to one part of this.
_SEEN = 2.0**30
# Newton's method goes on until they are flat to this; if they end steeper than a hundred times this all begins again.
_FLATTER = 1e-10


class FitWarning(UserWarning):
    """A fit of hyperparameters stopped before it reached a maximum."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Hyperparameters of every replicate, in the user's units.

    Args:
        process: the priors, of batch shape ``(replicates,)``.
        lengthscale: ``replicates x d``; NaN of a coordinate that has none, or several.
        scale: the standard deviation of the outputs that the kernel is multiplied with, ``replicates``.
        mean: prior mean of f, ``replicates``.
        noise_std: ``replicates``; of known noise the root mean square.
        converged: whether the fit reached a maximum, boolean ``replicates``.
    """

    process: GaussianProcess
    lengthscale: Tensor
    scale: Tensor
    mean: Tensor
    noise_std: Tensor
    converged: Tensor


def fit_gaussian_process(
    measure: Measure,
    y: Tensor,
    bounds: Tensor,
    kernel: str | Kernel = "matern",
    groups: Sequence[Sequence[int]] | None = None,
    noise_std: Tensor | None = None,
) -> Fit:
    """Maximum a posteriori hyperparameters for noisy values of measures, for all replicates as one batch.

    BoTorch runs one L-BFGS-B a replicate and evaluates them together. Every fit starts from the same values and nothing
    is random; what the search sees is rounded to 2^-30, Newton's method ends it, and its values are rounded to 1/64 of
    an octave (the mean to 1/1024 of the outputs' standard deviation), so that neither company nor processor matters.
    A fit that did not converge is reported by a ``FitWarning``.

    Args:
        measure: what was observed, ``replicates x n`` measures, ``n >= 2``.
        y: the observations, ``replicates x n``.
        bounds: the box of the inputs, ``2 x d``.
        kernel: ``"matern"``, ``"rbf"``, or a GPyTorch kernel, without batch, of the unit box. All its parameters need
            priors: without, the likelihood may have no maximum, and the end of the search hangs on rounding.
        groups: see ``default_kernel``.
        noise_std: the noise of each observation, ``replicates x n``, where it is known. Default: it is fitted.

    Raises:
        ValueError: if the shapes do not fit, there are fewer than two observations, or a value is not finite.
    """
    y = as_values("y", y, ("replicates", "n"))
    require(y.shape[1] >= 2, "y must hold at least two observations a replicate", y.shape[1])
    bounds = as_box("bounds", bounds, like=y)
    dim = bounds.shape[-1]
    require_shape("measure", measure.points, *y.shape, "p", dim)
    low, side = bounds[0], bounds[1] - bounds[0]
    unit = Measure((measure.points - low) / side, measure.weights)
    with torch.enable_grad(), settings.validate_input_scaling(False):
        inner = _batched(kernel, y, dim, groups)
        least: Any = rounding_of(y)[:, None, None]
        standardize = Standardize(m=1, batch_shape=y.shape[:1], min_stdv=least)
        rows, covar, mean = _encoded(unit, inner)
        floor = 2**-13 * y.var(-1, keepdim=True)  # no less than BoTorch lets a fitted noise be
        known = None if noise_std is None else torch.maximum(noise_std.square(), floor).unsqueeze(-1)
        modules = {"covar_module": covar, "mean_module": mean, "outcome_transform": standardize}
        model = SingleTaskGP(rows, y.unsqueeze(-1), known, **modules)
        if known is None:  # BoTorch's own start; it computes that in single precision, as no two processors do
            model.likelihood.noise = math.exp(-5)
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        with slopes_in_closed_form(inner):
            converged = _maximize(mll) <= FLAT
    if not bool(converged.all()):
        which = (~converged).nonzero().flatten().tolist()
        warnings.warn(f"the fit in {y.dtype} did not reach a maximum in replicates {which}", FitWarning, 2)
    _round(mll)
    shift, factor = (t.detach().reshape(-1) for t in (standardize.means, standardize.stdvs))
    center = shift + factor * mean.constant.detach().reshape(-1)
    noise_std = factor * model.likelihood.noise.detach().reshape(len(y), -1).mean(-1).sqrt()
    return _fit(inner, low, side, factor, center, noise_std, converged)


def unfitted(
    y: Tensor, bounds: Tensor, kernel: str | Kernel = "matern", groups: Sequence[Sequence[int]] | None = None
) -> GaussianProcess:
    """Before a fit: the kernel's initial values, the mean of ``y`` (zero without one), scale 1 and noise 0.1.

    Arguments are those of ``fit_gaussian_process``; ``y`` may be ``replicates x 0``.
    """
    one, dim = torch.ones_like(bounds[0, 0]).expand(len(y)), bounds.shape[-1]
    mean = y.mean(-1) if y.shape[-1] else 0.0 * one
    inner = _batched(kernel, y, dim, groups)
    return _fit(inner, bounds[0], bounds[1] - bounds[0], one, mean, 0.1 * one, one > 0).process


class _MeasureKernel(Kernel):
    """Covariances of distinct measures, ``replicates x u``; the inputs are their numbers."""

    def __init__(self, kernel: Kernel, distinct: Measure) -> None:
        super().__init__(batch_shape=kernel.batch_shape)
        self.kernel, self.distinct = kernel, distinct

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """What GPyTorch asks of every kernel."""
        dense = covariance(self.kernel, self.distinct, self.distinct)
        dense = dense.take_along_dim(x1.long(), -2).take_along_dim(x2.long().mT, -1)
        return dense.diagonal(dim1=-2, dim2=-1) if diag else dense


class _MeasureMean(ConstantMean):
    """A constant counts as often as the weights of a measure sum to, ``replicates x u``."""

    def __init__(self, sums: Tensor) -> None:
        super().__init__(batch_shape=sums.shape[:1])
        self.sums = sums

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each row."""
        return self.constant.unsqueeze(-1) * self.sums.take_along_dim(input.squeeze(-1).long(), -1)


def _batched(kernel: str | Kernel, y: Tensor, dim: int, groups: Sequence[Sequence[int]] | None) -> Kernel:
    """A kernel with parameters of its own for every replicate of ``y``."""
    kernel = default_kernel(kernel, dim, groups) if isinstance(kernel, str) else copy.deepcopy(kernel)
    kernel = kernel.to(y)
    for part in kernel.modules():  # GPyTorch's expand_batch leaves the factors of a product as they are
        part._validate_args = False  # of a prior: a step too far ends as a NaN, see ``_loss``
        if isinstance(part, Kernel):
            part.batch_shape = y.shape[:1]
            for parameter in part.parameters(recurse=False):
                parameter.data = parameter.data.expand(len(y), *parameter.shape).clone()
    return kernel


def _encoded(measure: Measure, kernel: Kernel) -> tuple[Tensor, Kernel, ConstantMean]:
    """Measures as rows for a model that knows points alone, its kernel and its mean."""
    points, weights = measure.points, measure.weights
    if measure.p == 1 and bool((weights == 1).all()):
        return points.squeeze(-2), kernel, ConstantMean(batch_shape=weights.shape[:1])
    number = torch.arange(len(weights), device=weights.device)[:, None]
    distinct, at = measure.compact(), torch.arange(measure.n, device=weights.device).expand(weights.shape[:2])
    if measure.p == 1 or distinct.points.stride(-3):  # what was asked again needs no kernel of its own
        rows = torch.cat([number.unsqueeze(-1).expand(*at.shape, 1), points.flatten(-2), weights], -1).flatten(0, 1)
        rows, place = rows.unique(dim=0, return_inverse=True)  # sorted, so that a replicate's lie side by side
        count = rows[:, 0].long().bincount()[:, None]
        first = count.cumsum(0) - count
        each = torch.minimum(torch.arange(int(count.max()), device=number.device), count - 1)
        points, weights = rows[first + each, 1:].split([points[0, 0].numel(), measure.p], -1)
        distinct, at = Measure(points.unflatten(-1, (-1, measure.dim)), weights), place.view(at.shape) - first
    return at.unsqueeze(-1).to(weights), _MeasureKernel(kernel, distinct), _MeasureMean(distinct.weights.sum(-1))


def rounding_of(y: Tensor) -> Tensor:
    """The deviation ``...`` that rounding may give to constant outcomes ``... x n``, in any unit; positive."""
    return (100 * torch.finfo(y.dtype).eps * y.abs().amax(-1)).clamp_min(torch.finfo(y.dtype).tiny)


def _maximize(mll: ExactMarginalLogLikelihood) -> Tensor:
    """The steepest slope, ``replicates``, after L-BFGS-B, which stops at the root of rounding, and Newton's method.

    The first sees rounded numbers, lest the processor's rounding choose between two maxima. Second derivatives are
    differences of slopes. A step is taken if slopes get smaller in the metric of the method, which knows no units; or
    if the loss does: where it bends down the step goes the other way, off the saddle, and L-BFGS-B begins again.
    """
    targets = mll.model.train_targets
    parameters, ends = get_parameters_and_bounds(mll, requires_grad=True)
    batch, parameters = targets.shape[:1], {name: p for name, p in parameters.items() if p.numel()}
    closure = BatchedNDarrayOptimizationClosure(_loss(mll), parameters, batch)

    def seen(x: np.ndarray, batch_indices: Any) -> tuple[np.ndarray, ...]:
        return tuple((part * _SEEN).round() / _SEEN for part in closure(x, batch_indices, going=batch_indices))

    def slopes(theta: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its slopes in all parameters, zero where they point out of the bounds."""
        value, slope = (torch.from_numpy(part).to(theta) for part in closure(theta.cpu().numpy()))
        outward = ((theta <= low + 1e-9) & (slope > 0)) | ((theta >= high - 1e-9) & (slope < 0))
        return value, slope.masked_fill(outward, 0.0)

    box = get_per_element_bounds(parameters, dict(ends), batch)
    low, high = torch.as_tensor(box).to(targets).unbind(-1)
    for flat in (FLAT / 2, *[1e-9] * 3):  # again, as a line search may fail for what the search remembers
        found = fmin_l_bfgs_b_batched(seen, closure.state, box, factr=1e-3, pgtol=flat, pass_batch_indices=True)[0]
        value, slope = slopes(theta := torch.from_numpy(found).to(targets))
        for _ in range(3):
            going = slope.abs().amax(-1, keepdim=True) > _FLATTER
            if not bool(going.any()):
                break
            shifts = torch.diag_embed(1e-5 * theta.abs().clamp_min(1e-3)).unbind(-1)
            hessian = torch.stack([(slopes(theta + s)[1] - slope) / s.sum(-1, keepdim=True) for s in shifts], -1)
            free = (slope != 0).to(slope)  # those at a bound stay there
            hessian = (hessian + hessian.mT) / 2 * free.unsqueeze(-1) * free.unsqueeze(-2) + torch.diag_embed(1 - free)
            curvature, axes = torch.linalg.eigh(hessian.nan_to_num(0.0, 0.0, 0.0))  # a kernel's slope may be NaN
            size = curvature.abs().clamp_min(1e-6)
            for _ in range(3):
                along = (slope.unsqueeze(-2) @ axes).squeeze(-2)
                step, most = (axes @ (along / size).unsqueeze(-1)).squeeze(-1), 0.1 * theta.abs() + 1e-3
                share = (most / step.abs()).amin(-1, keepdim=True).clamp_max(1)  # of a step, whose direction counts
                new = torch.minimum(torch.maximum(theta - torch.where(going, share * step, 0.0), low), high)
                new_value, new_slope = slopes(new)
                gain = along.square() - (new_slope.unsqueeze(-2) @ axes).squeeze(-2).square()
                nearer = (curvature > 0).all(-1) & ((gain / size).sum(-1) > 0) & torch.isfinite(new_value)
                better = nearer | (new_value < value - 1e-10)
                theta, slope = (torch.where(better.unsqueeze(-1), *pair) for pair in ((new, theta), (new_slope, slope)))
                value = torch.where(better, new_value, value)
        closure.state, steepest = theta.cpu().numpy(), slope.abs().amax(-1)
        if bool((steepest <= 100 * _FLATTER).all()):
            break
    return steepest


def _loss(mll: ExactMarginalLogLikelihood) -> Callable[..., Tensor]:
    """Minus what ``mll`` gives, ``replicates`` or those that go on, with the slope in the covariance in closed form."""
    model, y, priors = mll.model, mll.model.train_targets, list(mll.model.named_priors())
    (rows,), n = model.train_inputs, y.shape[-1]

    def loss(going: np.ndarray | None = None) -> Tensor:
        gap = (y - model.mean_module(rows)).unsqueeze(-1)
        gram = matrix(model.covar_module, rows) + torch.diag_embed(model.likelihood.noise.expand_as(y))
        at = None if going is None or len(going) == len(y) else torch.as_tensor(going, device=y.device)
        gap, gram = (gap, gram) if at is None else (gap[at], gram[at])
        with torch.no_grad():  # what is added to it below is zero, and has the slopes
            factor, failed = torch.linalg.cholesky_ex(gram)
            whitened = torch.linalg.solve_triangular(factor, gap, upper=False)
            whitened = torch.where((failed > 0)[:, None, None], torch.nan, whitened)  # a step too far, which a NaN ends
            solved = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)
            slope = torch.baddbmm(torch.cholesky_inverse(factor), solved, solved.mT, beta=-0.5, alpha=0.5)
            volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            log = -0.5 * (n * math.log(2 * math.pi) + whitened.square().sum((-2, -1))) - volume
        linear = (slope.flatten(1).unsqueeze(1) @ gram.flatten(1).unsqueeze(2) - solved.mT @ gap).flatten()
        total = log + (linear - linear.detach())
        total = total if at is None else y.new_zeros(len(y)).index_add(0, at, total)  # of others the priors alone
        for _, module, prior, value, _ in priors:
            total = total + prior.log_prob(value(module)).reshape(len(y), -1).sum(-1)
        return -total / n

    return loss


@torch.no_grad()
def _round(mll: ExactMarginalLogLikelihood) -> None:
    """Round what was fitted."""
    for name, parameter, constraint in mll.named_parameters_and_constraints():
        if not parameter.requires_grad:
            continue
        if "mean_module" in name:
            parameter.copy_((parameter * 1024).round() / 1024)
            continue
        value = in_octaves(parameter if constraint is None else constraint.transform(parameter))
        if constraint is not None and constraint.enforced:  # rounding may step over a bound
            value = constraint.inverse_transform(value.clamp(constraint.lower_bound, constraint.upper_bound))
        parameter.copy_(value)


def in_octaves(value: Tensor) -> Tensor:
    """Fitted values rounded to 1/64 of an octave, so that rounding of the processor does not reach a run."""
    return torch.where(value == 0, value, value.sign() * ((value.abs().log2() * 64).round() / 64).exp2())


def _fit(
    inner: Kernel, low: Tensor, side: Tensor, scale: Tensor, mean: Tensor, noise_std: Tensor, converged: Tensor
) -> Fit:
    """A fit from a batched kernel of the unit box and what multiplies it."""
    kernel = in_units(inner, low, side)
    outer = ScaleKernel(kernel, batch_shape=scale.shape).to(scale)
    outer.outputscale = scale.square()
    # The setters go through softplus; what they store differs from what was asked by rounding.
    process = GaussianProcess(outer.requires_grad_(False), noise_std.unsqueeze(-1), mean.unsqueeze(-1))
    return Fit(process, lengthscales(kernel, len(scale), side), scale.clone(), mean, noise_std, converged)
