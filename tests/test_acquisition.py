"""Acquisition functions of any BoTorch model: of posteriors with structure, of fitted models, of several candidates."""

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from gpytorch.kernels import MaternKernel, ProductKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from cbo_lib.acquisition import (
    ExpectedUpperConfidenceBound,
    OptimisticUpperConfidenceBound,
    RobustUpperConfidenceBound,
)
from cbo_lib.former.partial import PartialPosterior, PointwisePosterior
from tests.products import F64, close, given_points, matern_on, rbf, scaled, uniform

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)


def split_matern(dims=((0, 1), (2,))):
    """A product of Matern kernels over decisions and contexts."""
    return scaled(ProductKernel(*(matern_on(list(part), 0.4 + 0.2 * i) for i, part in enumerate(dims))), 1.7)


def matern_ard():
    kernel = ScaleKernel(MaternKernel(2.5, ard_num_dims=3)).to(F64)
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.6, 0.5], dtype=F64)
    return kernel


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


@pytest.mark.parametrize("interpolated", [True, False])
@pytest.mark.parametrize("make", [lambda: rbf([0.3, 0.6, 1.1]), split_matern], ids=["RBF, ARD", "product of Materns"])
@pytest.mark.parametrize("kind", ["posterior", "model"])
def test_a_product_is_taken_apart_and_equals_all_pairs(rng, kind, make, interpolated):
    posterior, _, _ = given_points(rng, 40, kernel=make(), mean=0.7)
    x, contexts, weights = uniform(rng, 6, 2), uniform(rng, 150, 1), uniform(rng, 150)
    given = posterior if kind == "posterior" else posterior.as_botorch()
    wanted = by_hand(posterior.as_botorch(), x, contexts, 1.5)
    for ours, expected in (
        (ExpectedUpperConfidenceBound(given, contexts), wanted.mean(-1)),
        (ExpectedUpperConfidenceBound(given, contexts, 1.5, weights), wanted @ weights),
        (RobustUpperConfidenceBound(given, contexts), wanted.amin(-1)),
    ):
        ours.tolerance = 1e-12 if interpolated else None
        close([ours(x.unsqueeze(1))], [expected], 1e-5 if interpolated else 1e-9)
        assert isinstance(ours.completed(2), PartialPosterior)


@pytest.mark.parametrize("kind", ["posterior", "model"])
def test_any_other_kernel_is_asked_pair_by_pair(rng, kind):
    posterior, _, _ = given_points(rng, 20, kernel=matern_ard())
    x, contexts = uniform(rng, 6, 2), uniform(rng, 12, 1)
    ours = ExpectedUpperConfidenceBound(posterior if kind == "posterior" else posterior.as_botorch(), contexts)
    close([ours(x.unsqueeze(1))], [by_hand(posterior.as_botorch(), x, contexts, 1.5).mean(-1)], 1e-9)
    assert isinstance(ours.completed(2), PointwisePosterior)


def test_a_fitted_model_with_transforms(rng):
    model = fitted(rng)
    x, contexts, weights = uniform(rng, 5, 2), uniform(rng, 300, 1), uniform(rng, 300)
    wanted = by_hand(model, x, contexts, 2.0)
    close([ExpectedUpperConfidenceBound(model, contexts, 2.0)(x.unsqueeze(1))], [wanted.mean(-1)], 1e-6)
    close([ExpectedUpperConfidenceBound(model, contexts, 2.0, weights)(x.unsqueeze(1))], [wanted @ weights], 1e-4)
    close([RobustUpperConfidenceBound(model, contexts, 2.0)(x.unsqueeze(1))], [wanted.amin(-1)], 1e-6)
    assert float(wanted.detach().mean()) > 30  # in the stranger's units


@pytest.mark.parametrize("make", [ExpectedUpperConfidenceBound, RobustUpperConfidenceBound])
@pytest.mark.parametrize("kind", ["fitted", "product"])
def test_botorchs_search_runs_and_finds_no_less_than_a_grid(rng, make, kind):
    model = fitted(rng) if kind == "fitted" else given_points(rng, 40, kernel=split_matern())[0]
    acquisition = make(model, uniform(rng, 64, 1))
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=F64)] * 2).unsqueeze(1)
    point, value = optimize_acqf(acquisition, BOX, 1, 3, 64, options={"seed": 1, "maxiter": 40})
    with torch.no_grad():
        assert point.shape == (1, 2) and float(value) >= float(acquisition(grid).max()) - 1e-3
        close([acquisition(point[None])[0]], [value], 1e-9)


def test_where_nothing_is_uncertain_slopes_are_finite(rng):
    posterior, observed, _ = given_points(rng, 5, kernel=matern_ard(), noise_std=1e-9)
    x = observed[:1, :2].unsqueeze(1).clone().requires_grad_()
    (slope,) = torch.autograd.grad(ExpectedUpperConfidenceBound(posterior, observed[:1, 2:])(x).sum(), x)
    assert bool(torch.isfinite(slope).all())


# Several candidates


def test_fitted_models_as_candidates(rng):
    models = [fitted(rng), fitted(rng)]
    x = uniform(rng, 5, 1, 3)
    bounds = torch.stack([UpperConfidenceBound(model, beta=4.0)(x) for model in models])
    close([OptimisticUpperConfidenceBound(models, 2.0)(x)], [bounds.amax(0)], 1e-6)
    box = torch.cat([torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64)])
    optimize_acqf(OptimisticUpperConfidenceBound(models, 2.0), box, 1, 2, 16, options={"seed": 1, "maxiter": 10})


@pytest.mark.parametrize("where", [[True, False, True], [False, True, False], [False, True, True]])
def test_a_decision_may_set_any_of_the_coordinates_of_a_fitted_model(rng, where):
    """The expected bound of a control set, of any BoTorch model, against an average written by hand."""
    x = torch.rand(12, 3, generator=rng, dtype=torch.float64)
    model = SingleTaskGP(x, x.sin().sum(-1, keepdim=True))
    controlled, free = torch.tensor(where), ~torch.tensor(where)
    contexts = torch.rand(7, int(free.sum()), generator=rng, dtype=torch.float64)
    decisions = torch.rand(4, int(controlled.sum()), generator=rng, dtype=torch.float64)
    acquisition = ExpectedUpperConfidenceBound(model, contexts, 1.5, controlled=controlled)
    for decision, value in zip(decisions, acquisition(decisions.unsqueeze(1)), strict=True):
        points = torch.empty(7, 3, dtype=torch.float64)
        points[:, controlled], points[:, free] = decision, contexts
        posterior = model.posterior(points)
        by_hand = (posterior.mean + 1.5 * posterior.variance.sqrt()).mean()
        torch.testing.assert_close(value, by_hand, rtol=0, atol=1e-9)
