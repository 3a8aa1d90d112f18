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
    DecisionUpperConfidenceBound,
    ExpectedUpperConfidenceBound,
    OptimisticUpperConfidenceBound,
    RobustUpperConfidenceBound,
)
from cbo_lib.former.maximize import search_box
from cbo_lib.former.partial import PartialPosterior, PointwisePosterior
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.products import F64, close, given_points, mask, matern_on, rbf, scaled, uniform
from tests.test_maximize import in_full, on_grid

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


def test_averages_may_have_been_observed(rng):
    cells = Measure.uniform(torch.tensor([[[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]], dtype=F64), 2)
    posterior = GaussianProcess(rbf_kernel(0.4), 0.1).condition(cells, torch.ones(1, dtype=F64))
    x, contexts = uniform(rng, 4, 2), uniform(rng, 9, 1)
    ours = ExpectedUpperConfidenceBound(posterior, contexts)
    close([ours(x.unsqueeze(1))], [by_hand(posterior.as_botorch(), x, contexts, 1.5).mean(-1)], 1e-9)


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


@pytest.mark.parametrize("make", [split_matern, matern_ard])
def test_slopes_are_those_of_differences(rng, make):
    posterior, _, _ = given_points(rng, 20, kernel=make())
    acquisition = ExpectedUpperConfidenceBound(posterior, uniform(rng, 12, 1))
    acquisition.tolerance = None
    assert torch.autograd.gradcheck(acquisition, uniform(rng, 3, 1, 2).requires_grad_())


def test_where_nothing_is_uncertain_slopes_are_finite(rng):
    posterior, observed, _ = given_points(rng, 5, kernel=matern_ard(), noise_std=1e-9)
    x = observed[:1, :2].unsqueeze(1).clone().requires_grad_()
    (slope,) = torch.autograd.grad(ExpectedUpperConfidenceBound(posterior, observed[:1, 2:])(x).sum(), x)
    assert bool(torch.isfinite(slope).all())


def test_a_prior_without_observations(rng):
    prior = GaussianProcess(rbf_kernel(0.4, 2.25), 0.1, 3.0).posterior()
    ours = ExpectedUpperConfidenceBound(prior, uniform(rng, 7, 1), 2.0)(uniform(rng, 4, 1, 2))
    close([ours], [torch.full((4,), 6.0, dtype=F64)], 1e-9)


def test_a_model_of_the_decision_alone_is_botorchs_bound(rng):
    posterior, _, _ = given_points(rng, 20, kernel=matern_ard())
    x = uniform(rng, 6, 1, 3)
    theirs = UpperConfidenceBound(posterior.as_botorch(), beta=4.0)(x)
    close([DecisionUpperConfidenceBound(posterior, 2.0)(x)], [theirs], 1e-9)
    model = fitted(rng)
    close([DecisionUpperConfidenceBound(model, 2.0)(x)], [UpperConfidenceBound(model, beta=4.0)(x)], 1e-6)


@pytest.mark.parametrize("kernel", [matern_ard, split_matern])
@pytest.mark.parametrize("make", [DecisionUpperConfidenceBound, ExpectedUpperConfidenceBound])
def test_a_point_with_a_nan_is_refused(rng, kernel, make):
    posterior = given_points(rng, 8, kernel=kernel())[0]
    contexts = [] if make is DecisionUpperConfidenceBound else [uniform(rng, 5, 1)]
    x = uniform(rng, 4, 1, 3 - len(contexts))
    x[2, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="X must be finite"):
        make(posterior, *contexts)(x)


@pytest.mark.parametrize("groups", [(), (2,)])
def test_pairs_of_groups_are_a_loop(rng, groups):
    posterior, _, _ = given_points(rng, 15, 3, kernel=matern_ard())
    controlled = mask([1, 1, 0], [0, 1, 0]) if groups else mask(1, 1, 0)
    x, contexts = uniform(rng, 3, *groups, 4, 3), uniform(rng, 9, 3)
    values = PointwisePosterior(posterior, contexts, controlled).ucb(x, 1.0)
    assert values.shape == (3, *groups, 4, 9)
    for g in range(len(controlled) if groups else 0):
        alone = PointwisePosterior(posterior, contexts, controlled[g]).ucb(x[:, g], 1.0)
        close([values[:, g]], [alone], 1e-12)


def test_bad_arguments_are_refused(rng):
    posterior, _, _ = given_points(rng, 5)
    batch, _, _ = given_points(rng, 5, 2)
    points, x = uniform(rng, 3, 1), uniform(rng, 4, 1, 2)
    with pytest.raises(ValueError, match=r"model must have no batch dimensions, got \(2,\)"):
        ExpectedUpperConfidenceBound(batch, points)(x)
    for contexts in (points[:, 0], points[:0], points / 0):
        with pytest.raises(ValueError, match=r"contexts must (be finite|have shape).*, got"):
            ExpectedUpperConfidenceBound(posterior, contexts)
    ours = ExpectedUpperConfidenceBound(posterior, points)
    ours(x)
    with pytest.raises(ValueError, match="x and contexts must fill 2 coordinates, got 3"):
        ours(uniform(rng, 4, 1, 3))
    with pytest.raises(ValueError, match=r"weights must have shape \(\.\.\., 3\), got \(2,\)"):
        ExpectedUpperConfidenceBound(posterior, points, 1.0, torch.ones(2))
    two = SingleTaskGP(uniform(rng, 5, 3), uniform(rng, 5, 2))
    with pytest.raises(ValueError, match="model must have one output, got 2"):
        ExpectedUpperConfidenceBound(two, points)


# Several candidates


def test_a_list_of_models_and_a_batch_are_alike(rng):
    observed, y = uniform(rng, 12, 3), uniform(rng, 12)
    kernels = [rbf_kernel(scale) for scale in (0.2, 0.4, 0.8)]
    each = [GaussianProcess(kernel, 0.1).condition(Measure.dirac(observed), y) for kernel in kernels]
    batched = rbf_kernel(0.4)
    batched = ScaleKernel(type(batched.base_kernel)(batch_shape=torch.Size([3])), batch_shape=torch.Size([3])).to(F64)
    batched.base_kernel.lengthscale = torch.tensor([0.2, 0.4, 0.8], dtype=F64).reshape(3, 1, 1)
    batched.outputscale = torch.ones(3, dtype=F64)
    together = GaussianProcess(batched.requires_grad_(False), 0.1).condition(Measure.dirac(observed), y)
    x, beta = uniform(rng, 7, 1, 3), torch.tensor([1.0, 2.0, 0.5], dtype=F64)
    bounds = torch.stack(
        [UpperConfidenceBound(m.as_botorch(), float(b) ** 2)(x) for m, b in zip(each, beta, strict=True)]
    )
    for models in (each, [m.as_botorch() for m in each], together, together.as_botorch()):
        close([OptimisticUpperConfidenceBound(models, beta)(x)], [bounds.amax(0)])
        alive = torch.tensor([True, False, True])
        close([OptimisticUpperConfidenceBound(models, beta, alive)(x)], [bounds[alive].amax(0)])


def test_fitted_models_as_candidates(rng):
    models = [fitted(rng), fitted(rng)]
    x = uniform(rng, 5, 1, 3)
    bounds = torch.stack([UpperConfidenceBound(model, beta=4.0)(x) for model in models])
    close([OptimisticUpperConfidenceBound(models, 2.0)(x)], [bounds.amax(0)], 1e-6)
    box = torch.cat([torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64)])
    optimize_acqf(OptimisticUpperConfidenceBound(models, 2.0), box, 1, 2, 16, options={"seed": 1, "maxiter": 10})


def test_candidates_that_do_not_fit_are_refused(rng):
    posterior, batch = given_points(rng, 5)[0], given_points(rng, 5, 3)[0]
    with pytest.raises(ValueError, match=r"model must have the batch shape \(\|U\|,\), got \(\)"):
        OptimisticUpperConfidenceBound(posterior, 1.0)
    with pytest.raises(ValueError, match=r"model must have no batch shape in a list, got \(3,\)"):
        OptimisticUpperConfidenceBound([batch], 1.0)


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


def test_the_controlled_coordinates_must_fit(rng):
    x = torch.rand(5, 3, generator=rng, dtype=torch.float64)
    model = SingleTaskGP(x, x.sum(-1, keepdim=True))
    acquisition = ExpectedUpperConfidenceBound(model, x[:, :1], controlled=torch.tensor([True, False, False]))
    with pytest.raises(ValueError, match="x and contexts must fill"):
        acquisition(x[:, :2].unsqueeze(1))


# The contexts that settle which decision leads


def groups_of(rng, replicates, contexts=400, t=30):
    """A robust acquisition of some replicates, decisions in three groups of 20, and how good they are."""
    posterior, _, _ = given_points(rng, t, replicates, kernel=split_matern())
    x, region = uniform(rng, replicates, 3, 20, 2), uniform(rng, replicates, contexts, 1)
    acquisition = RobustUpperConfidenceBound(posterior, region)
    return acquisition, x, acquisition.values(x.flatten(1, 2)).view(x.shape[:-1])


@pytest.mark.parametrize("count", [1, 2, 20])
def test_those_that_lead_are_exact_and_the_others_not_below(rng, count):
    acquisition, x, wanted = groups_of(rng, 4)
    nowhere = torch.full_like(wanted[..., 0], -torch.inf)
    for _ in range(2):  # the second time with the bad contexts that the first one found
        found = acquisition.leading(x, count, nowhere)
        best = wanted.topk(count)
        close([found.gather(-1, best.indices), found.topk(count).values], [best.values] * 2, 1e-9)
        assert (found >= wanted - 1e-9).all()
    shared = RobustUpperConfidenceBound(acquisition.model, acquisition.contexts[0])
    close([shared.leading(x, 20, nowhere)[0]], [wanted[0]], 1e-9)


def test_groups_below_what_matters_are_not_looked_at_in_full(rng):
    acquisition, x, wanted = groups_of(rng, 3)
    looked_at, bounds = [], acquisition.bounds
    acquisition.bounds = lambda part: looked_at.append(part.shape[-2]) or bounds(part)
    high = wanted.amax(-1) + torch.tensor([1e-6, 5.0, -1e-6], dtype=F64)
    found = acquisition.leading(x, 1, high)
    assert (found.amax(-1)[:, :2] <= high[:, :2]).all() and (found >= wanted - 1e-9).all()
    close([found[:, 2].amax(-1)], [wanted[:, 2].amax(-1)], 1e-9)
    assert 0 < sum(looked_at) < 60 / 2
    looked_at.clear()
    assert (acquisition.leading(x, 1, wanted.amax(-1) + 50) >= wanted - 1e-9).all() and not looked_at


def test_tied_decisions_are_all_exact(rng):
    acquisition, x, _ = groups_of(rng, 2)
    x[:, :, 10:] = x[:, :, :10] + 1e-12
    wanted = acquisition.values(x.flatten(1, 2)).view(x.shape[:-1])
    found = acquisition.leading(x, 1, torch.full_like(wanted[..., 0], -torch.inf))
    tied = wanted >= wanted.amax(-1, keepdim=True) - 1e-9
    close([found[tied], tied.sum(-1)], [wanted[tied], torch.full_like(tied.sum(-1), 2)], 1e-9)


@pytest.mark.parametrize("t", [12, 60])
def test_a_search_that_looks_at_few_contexts_goes_the_way_of_one_that_looks_at_all(rng, t):
    acquisition, _, _ = groups_of(rng, 3, t=t)

    raw = on_grid(uniform(rng, 3, 64, 2))
    wanted, best = search_box(in_full(acquisition.values), BOX, raw, 2, 15, on_grid)
    found, value = search_box(acquisition.leading, BOX, raw, 2, 15, on_grid)
    assert torch.equal(found, wanted)
    close([value], [best], 1e-9)
