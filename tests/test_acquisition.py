"""Acquisition functions of any BoTorch model: of posteriors with structure, and of fitted models."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from cbo_lib.acquisition import ExpectedUpperConfidenceBound, RobustUpperConfidenceBound
from cbo_lib.gp import GaussianProcess
from cbo_lib.measure import Measure
from tests.toys import normal

F64 = torch.float64
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=F64)


def close(one, other, tolerance):
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def matern():
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=3)).to(F64)
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.6, 0.5], dtype=F64)
    return kernel.requires_grad_(False)


def known(rng, n, noise_std=0.1):
    """A posterior of a known prior after ``n`` values, and where they were seen."""
    x = uniform(rng, n, 3)
    posterior = GaussianProcess(matern(), noise_std, 0.7).condition(Measure.dirac(x), normal(rng, n))
    return posterior.as_botorch(), x


def fitted(rng, n=25):
    """A model as a stranger has it: inputs and outputs in the stranger's units, a Matern kernel, all fitted."""
    x = uniform(rng, n, 3)
    y = 40 + 7 * (6 * x[:, :1]).sin() - 5 * (x[:, 1:2] - x[:, 2:]).square()
    model = SingleTaskGP(
        x,
        y,
        covar_module=ScaleKernel(MaternKernel(2.5, ard_num_dims=3)),
        outcome_transform=Standardize(1),
        input_transform=Normalize(3),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def by_hand(model, x, contexts, sqrt_beta):
    """Pair by pair through the model's own posterior, ``n x M``."""
    rows = []
    for decision in x:
        pairs = torch.cat([decision.expand(len(contexts), -1), contexts], -1)
        posterior = model.posterior(pairs.unsqueeze(1))
        rows.append((posterior.mean + sqrt_beta * posterior.variance.sqrt()).flatten())
    return torch.stack(rows)


# Averages and minima over completions


def test_every_context_completes_a_decision(rng):
    model = known(rng, 40)[0]
    x, contexts = uniform(rng, 6, 2), uniform(rng, 50, 1)
    wanted = by_hand(model, x, contexts, 1.5)
    for ours, expected in (
        (ExpectedUpperConfidenceBound(model, contexts), wanted.mean(-1)),
        (RobustUpperConfidenceBound(model, contexts), wanted.amin(-1)),
    ):
        close(ours(x.unsqueeze(1)), expected, 1e-9)


def test_a_fitted_model_with_transforms(rng):
    model = fitted(rng)
    x, contexts = uniform(rng, 5, 2), uniform(rng, 300, 1)
    wanted = by_hand(model, x, contexts, 2.0)
    close(ExpectedUpperConfidenceBound(model, contexts, 2.0)(x.unsqueeze(1)), wanted.mean(-1), 1e-6)
    close(RobustUpperConfidenceBound(model, contexts, 2.0)(x.unsqueeze(1)), wanted.amin(-1), 1e-6)
    assert float(wanted.detach().mean()) > 30  # in the stranger's units


@pytest.mark.parametrize("make", [ExpectedUpperConfidenceBound, RobustUpperConfidenceBound])
@pytest.mark.parametrize("kind", ["fitted", "known"])
def test_botorchs_search_runs_and_finds_no_less_than_a_grid(rng, make, kind):
    model = fitted(rng) if kind == "fitted" else known(rng, 40)[0]
    acquisition = make(model, uniform(rng, 64, 1))
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=F64)] * 2).unsqueeze(1)
    point, value = optimize_acqf(acquisition, BOX, 1, 3, 64, options={"seed": 1, "maxiter": 40})
    with torch.no_grad():
        assert point.shape == (1, 2) and float(value) >= float(acquisition(grid).max()) - 1e-3
        close(acquisition(point[None])[0], value, 1e-9)


def test_where_nothing_is_uncertain_slopes_are_finite(rng):
    model, observed = known(rng, 5, noise_std=1e-9)
    x = observed[:1, :2].unsqueeze(1).clone().requires_grad_()
    (slope,) = torch.autograd.grad(ExpectedUpperConfidenceBound(model, observed[:1, 2:])(x).sum(), x)
    assert bool(torch.isfinite(slope).all())
