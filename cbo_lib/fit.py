"""The Gaussian process of a policy: hyperparameters fitted to values of measures, for all replicates as one batch.

Model, priors and optimizer are BoTorch's ([Balandat2020]): a ``SingleTaskGP`` with a lengthscale a coordinate, whose
log-normal prior grows with the dimension ([Hvarfner2024]), a constant mean, and ``fit_gpytorch_mll``. Inputs are
scaled to the unit box, outputs standardized in each replicate; what is returned is in the user's units again.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from botorch import settings
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from cbo_lib.checks import as_values, require, require_shape
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matrix
from cbo_lib.measure import Measure, covariance


def default_kernel(name: str, dim: int, groups: Sequence[Sequence[int]] | None = None) -> Kernel:
    """A kernel on the unit box with BoTorch's prior of the lengthscales, one a coordinate.

    Args:
        name: ``"matern"`` (Matern-5/2) or ``"rbf"``.
        dim: the number ``d`` of coordinates; the prior grows with its root ([Hvarfner2024]).
        groups: the coordinates of each factor of a product of kernels. Default: one kernel of all coordinates.

    Raises:
        ValueError: for another name, or groups that are no partition of the coordinates.
    """
    require(name in ("matern", "rbf"), "kernel must be 'matern', 'rbf' or a GPyTorch kernel", repr(name))
    groups = [range(dim)] if groups is None else groups
    once = sorted(i for group in groups for i in group) == list(range(dim))
    require(once, f"groups must hold each of the {dim} coordinates once", [list(g) for g in groups])
    parts = []
    for group in groups:
        prior = LogNormalPrior(*torch.tensor([math.sqrt(2) + 0.5 * math.log(dim), math.sqrt(3)], dtype=torch.float64))
        options = {
            "ard_num_dims": len(group),
            "active_dims": None if len(group) == dim else tuple(group),
            "lengthscale_prior": prior,
            "lengthscale_constraint": GreaterThan(2.5e-2, transform=None, initial_value=prior.mode),
        }
        parts.append(RBFKernel(**options) if name == "rbf" else MaternKernel(nu=2.5, **options))
    return parts[0] if len(parts) == 1 else ProductKernel(*parts)


def fit_gaussian_process(
    measure: Measure,
    y: Tensor,
    bounds: Tensor,
    kernel: str | Kernel = "matern",
    groups: Sequence[Sequence[int]] | None = None,
    noise_std: Tensor | None = None,
    iterations: int | None = None,
) -> GaussianProcess:
    """The prior of maximum a posteriori hyperparameters, for noisy values of measures; batch shape ``(replicates,)``.

    Every fit starts from the same values. What it finds is rounded to 1/64 of an octave (the mean to 1/1024 of the
    deviation of the outputs), so that the last digits, which differ between processors, do not reach a run.

    Args:
        measure: what was observed, ``replicates x n`` measures. Fewer than two leave the initial values.
        y: the observations, ``replicates x n``.
        bounds: the box of the inputs, ``2 x d``.
        kernel: ``"matern"``, ``"rbf"``, or a GPyTorch kernel of the unit box, without batch, whose parameters have
            priors. Default Matern-5/2.
        groups: see ``default_kernel``.
        noise_std: the noise of each observation, ``replicates x n``, where it is known. Default: it is fitted.
        iterations: of L-BFGS-B, at most; what it finds then depends a little on the other replicates. Default: until it
            converges.

    Raises:
        ValueError: if the shapes do not fit or a value is not finite.
    """
    y = as_values("y", y, ("replicates", "n"))
    require_shape("measure", measure.points, *y.shape, "p", bounds.shape[-1])
    low, side = bounds[0].to(y), (bounds[1] - bounds[0]).to(y)
    kernel = default_kernel(kernel, len(side), groups) if isinstance(kernel, str) else copy.deepcopy(kernel)
    kernel = _batched(kernel.to(y), len(y))
    if y.shape[1] < 2:
        center = y.mean(-1) if y.shape[1] else y.new_zeros(len(y))
        return _in_units(kernel, low, side, torch.ones_like(center), center, 0.1 * torch.ones_like(center))
    unit = Measure((measure.points - low) / side, measure.weights)
    mean = _MeasureMean(measure.p, batch_shape=y.shape[:1]).to(y)
    with torch.enable_grad(), settings.validate_input_scaling(False):
        least = (100 * torch.finfo(y.dtype).eps * y.abs().amax()).clamp_min(torch.finfo(y.dtype).tiny)
        standardize = Standardize(m=1, batch_shape=y.shape[:1], min_stdv=float(least))
        floor = 2**-13 * y.var(-1, keepdim=True)  # no less than BoTorch lets a fitted noise be
        known = None if noise_std is None else torch.maximum(noise_std.square(), floor).unsqueeze(-1)
        rows = torch.cat([unit.points.flatten(-2), unit.weights], -1)
        model = SingleTaskGP(
            rows,
            y.unsqueeze(-1),
            known,
            covar_module=_MeasureKernel(kernel, measure.p),
            mean_module=mean,
            outcome_transform=standardize,
        )
        limit: dict[str, Any] = {} if iterations is None else {"options": {"maxiter": iterations}}
        mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=limit)
    _round(mll)
    shift, scale = (t.detach().reshape(-1) for t in (standardize.means, standardize.stdvs))
    center = shift + scale * mean.constant.detach().reshape(-1)
    noise = scale * model.likelihood.noise.detach().reshape(len(y), -1).mean(-1).sqrt()
    return _in_units(kernel, low, side, scale, center, noise)


class _MeasureKernel(Kernel):
    """Covariances of measures of ``p`` points; an input holds the coordinates of the points, then their weights."""

    def __init__(self, kernel: Kernel, p: int) -> None:
        super().__init__(batch_shape=kernel.batch_shape)
        self.kernel, self.p = kernel, p

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """What GPyTorch asks of every kernel."""
        a, b = (Measure(x[..., : -self.p].unflatten(-1, (self.p, -1)), x[..., -self.p :]).compact() for x in (x1, x2))
        dense = covariance(self.kernel, a, b)
        return dense.diagonal(dim1=-2, dim2=-1) if diag else dense


class _MeasureMean(ConstantMean):
    """A constant that counts as often as the weights of a measure sum to."""

    def __init__(self, p: int, batch_shape: torch.Size) -> None:
        super().__init__(batch_shape=batch_shape)
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each row."""
        return self.constant.unsqueeze(-1) * input[..., -self.p :].sum(-1)


class UnitBoxKernel(Kernel):
    """A kernel of the unit box at inputs of the box of lower corner ``low`` and sides ``side``, ``d`` each."""

    def __init__(self, kernel: Kernel, low: Tensor, side: Tensor) -> None:
        super().__init__(batch_shape=kernel.batch_shape)
        self.kernel = kernel
        self.register_buffer("low", low)
        self.register_buffer("side", side)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        """What GPyTorch asks of every kernel."""
        x1, x2 = ((x - self.low) / self.side for x in (x1, x2))
        return self.kernel(x1, x2, diag=True) if diag else matrix(self.kernel, x1, x2)


def in_octaves(value: Tensor) -> Tensor:
    """Fitted values rounded to 1/64 of an octave, so that rounding of the processor does not reach a run."""
    return value.sign() * ((value.abs().log2() * 64).round() / 64).exp2()


@torch.no_grad()
def _round(mll: ExactMarginalLogLikelihood) -> None:
    """Round what was fitted."""
    for name, parameter, constraint in mll.named_parameters_and_constraints():
        if "mean_module" in name:
            parameter.copy_((parameter * 1024).round() / 1024)
        elif constraint is None:
            parameter.copy_(in_octaves(parameter))
        else:  # rounding may step over a bound
            value = in_octaves(constraint.transform(parameter)).clamp(constraint.lower_bound, constraint.upper_bound)
            parameter.copy_(constraint.inverse_transform(value) if constraint.enforced else value)


def _batched(kernel: Kernel, replicates: int) -> Kernel:
    """A kernel with parameters of its own for every replicate; GPyTorch's ``expand_batch`` forgets factors."""
    for part in kernel.modules():
        if isinstance(part, Kernel):
            part.batch_shape = torch.Size([replicates])
            for parameter in part.parameters(recurse=False):
                parameter.data = parameter.data.expand(replicates, *parameter.shape).clone()
    return kernel


def _in_units(kernel: Kernel, low: Tensor, side: Tensor, scale: Tensor, mean: Tensor, noise: Tensor) -> GaussianProcess:
    """The process in the user's units, of a kernel of the unit box and standardized outputs."""
    outer = ScaleKernel(UnitBoxKernel(kernel, low, side), batch_shape=scale.shape).to(scale)
    outer.outputscale = scale.square()
    return GaussianProcess(outer.requires_grad_(False), noise.unsqueeze(-1), mean.unsqueeze(-1))
