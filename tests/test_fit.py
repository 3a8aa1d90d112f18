"""Hyperparameters fitted for all replicates at once, and the posterior that grows between two fits."""

import math
import warnings

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from cbo_lib import kernels
from cbo_lib.former import fit as module
from cbo_lib.former import surrogate
from cbo_lib.former.fit import Fit, FitWarning, default_kernel, fit_gaussian_process
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure, covariance
from tests.rounding import other_rounding

F64 = torch.float64
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
NAMES = ("lengthscale", "scale", "mean", "noise_std")
OCTAVE = 2 ** (0.5 / 64) - 1  # what rounding to 1/64 of an octave may move a value by, relative


def data(rng, replicates=3, n=25, dim=2):
    x = torch.rand(replicates, n, dim, generator=rng, dtype=F64)
    y = torch.sin(5 * x[..., 0]) + x.sum(-1) + 0.1 * torch.randn(replicates, n, generator=rng, dtype=F64)
    return x, 3 * y + torch.arange(replicates, dtype=F64)[:, None]


def measures(rng, replicates=2, n=18, p=4):
    """Averages over points of their own, signed weights, and weights on points that all measures share."""
    x, y = data(rng, replicates, n)
    around = x.unsqueeze(-2) + 0.2 * torch.rand(replicates, n, p, 2, generator=rng, dtype=F64)
    weights = torch.randn(replicates, n, p, generator=rng, dtype=F64)
    shared = torch.rand(replicates, 1, 7, 2, generator=rng, dtype=F64).expand(replicates, n, 7, 2)
    some = torch.rand(replicates, n, 7, generator=rng, dtype=F64)
    kinds = {
        "averages": Measure.average(around),
        "signed": Measure(around, weights),
        "shared": Measure(shared, some / some.sum(-1, keepdim=True)),
    }
    return kinds, y


@pytest.fixture
def seen(rng):
    return data(rng)


def negative_log_posterior(gram, weight_sums, y, lengthscale, mean, noise, dim):
    """What a fit minimizes, a data point: inputs in the unit box, standardized outputs, BoTorch's default priors."""
    center = mean * weight_sums
    log = stats.multivariate_normal(center, gram(lengthscale) + noise * np.eye(len(y)), allow_singular=True).logpdf(y)
    log += stats.lognorm(s=math.sqrt(3), scale=math.exp(math.sqrt(2) + 0.5 * math.log(dim))).logpdf(lengthscale).sum()
    if not np.ndim(noise):  # one that is fitted
        log += stats.lognorm(s=1.0, scale=math.exp(-4.0)).logpdf(noise)
    return -log / len(y)


def matern(a, b, lengthscale):
    r = math.sqrt(5) * np.linalg.norm((a[:, None] - b[None]) / lengthscale, axis=-1)
    return (1 + r + r**2 / 3) * np.exp(-r)


def rbf(a, b, lengthscale):
    return np.exp(-0.5 * (((a[:, None] - b[None]) / lengthscale) ** 2).sum(-1))


def product(a, b, lengthscale):
    return matern(a[:, :1], b[:, :1], lengthscale[:1]) * matern(a[:, 1:], b[:, 1:], lengthscale[1:])


def is_a_minimum(fit, r, measure, y, kernel, known=None):
    """No step of a simplex search from the fit does better, but for the rounding of its values."""
    points, weights = measure.points[r].numpy(), measure.weights[r].numpy()
    n, p = weights.shape
    flat, big = points.reshape(n * p, -1), np.zeros((n, n * p))
    for i in range(n):
        big[i, i * p : (i + 1) * p] = weights[i]
    center, spread = float(y[r].mean()), float(y[r].std())
    standard = (y[r].numpy() - center) / spread

    def objective(v):
        def gram(lengthscale):
            return big @ kernel(flat, flat, lengthscale) @ big.T

        if (np.exp(v[:2]) < 2.5e-2).any() or (np.exp(v[3:]) < 1e-4).any():
            return np.inf
        noise = np.exp(v[3]) if known is None else (known[r].numpy() / spread) ** 2
        return negative_log_posterior(gram, weights.sum(1), standard, np.exp(v[:2]), v[2], noise, 2)

    ours = [*np.log(fit.lengthscale[r].numpy()), (float(fit.mean[r]) - center) / spread]
    ours = np.array(ours + ([] if known is not None else [2 * math.log(float(fit.noise_std[r]) / spread) + 1e-9]))
    found = optimize.minimize(objective, ours, method="Nelder-Mead", options={"maxiter": 200})
    # Lengthscales beyond what the data tell have flat priors: the value counts, not the place.
    return objective(ours) <= found.fun + 1e-4


@pytest.mark.parametrize(
    ("kernel", "groups", "oracle"),
    [("rbf", None, rbf), ("matern", None, matern), ("matern", [[0], [1]], product)],
    ids=["rbf", "matern", "product"],
)
def test_the_fit_is_a_minimum_of_the_negative_log_posterior(seen, kernel, groups, oracle):
    x, y = seen
    measure = Measure.dirac(x)
    fit = fit_gaussian_process(measure, y, UNIT, kernel, groups)
    assert bool(fit.converged.all())
    assert all(is_a_minimum(fit, r, measure, y, oracle) for r in range(len(x)))


@pytest.mark.parametrize("noise", [1e-4, 0.3])
def test_the_loss_and_its_slopes_are_those_of_gpytorch(seen, noise):
    x, y = seen
    standard = (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True)
    model = SingleTaskGP(x, standard.unsqueeze(-1), outcome_transform=None)
    model.likelihood.noise = noise
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    parameters = [p for p in mll.parameters() if p.requires_grad]
    ours, theirs = module._loss(mll)(), -mll(model(x), model.train_targets)
    torch.testing.assert_close(ours, theirs)
    slopes = [torch.autograd.grad(loss.sum(), parameters) for loss in (ours, theirs)]
    torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-10)
    (some := module._loss(mll)(going=np.array([2, 0]))).sum().backward()
    for got, expected in zip((some, *(p.grad for p in parameters)), (ours, *slopes[0]), strict=True):
        torch.testing.assert_close(got[[0, 2]], expected[[0, 2]])
        assert not torch.isclose(got[1], expected[1]).any()  # priors alone


class Cubed(Kernel):
    """A kernel that the library keeps as it is, and the one inside with it."""

    def __init__(self):
        super().__init__()
        self.inner = MaternKernel(nu=2.5, ard_num_dims=2, lengthscale_prior=LogNormalPrior(0.0, 1.0))

    def forward(self, x1, x2, diag=False, **params):
        return self.inner(x1, x2, diag=diag, **params).to_dense() ** 3


@pytest.mark.parametrize("kernel", ["matern", "rbf", "of one's own"])
def test_a_fit_ends_where_it_ends_with_gpytorchs_slopes(rng, kernel, monkeypatch):
    kinds, y = measures(rng)
    if kernel == "of one's own":
        kernel, kinds = Cubed(), {"averages": kinds["averages"]}
    for measure in kinds.values():
        groups = [[1], [0]] if kernel == "rbf" else None
        fit = fit_gaussian_process(measure, y, UNIT, kernel, groups)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "_factors", lambda part: [])
            other = fit_gaussian_process(measure, y, UNIT, kernel, groups)
        places = Measure.dirac(torch.rand(3, 2, generator=rng, dtype=F64))
        assert torch.equal(*(covariance(one.process.kernel, places, places) for one in (fit, other)))
        for name in NAMES[1:] if isinstance(kernel, Kernel) else NAMES:
            assert torch.equal(getattr(fit, name), getattr(other, name))
        assert not any("forward" in vars(part) for part in fit.process.kernel.modules())


@pytest.mark.parametrize("kind", ["averages", "signed", "shared"])
def test_the_fit_to_measures_is_a_minimum_of_the_negative_log_posterior(rng, kind):
    kinds, y = measures(rng)
    fit = fit_gaussian_process(kinds[kind], y, UNIT)
    assert bool(fit.converged.all())
    assert all(is_a_minimum(fit, r, kinds[kind], y, matern) for r in range(len(y)))


@pytest.mark.parametrize("seed", [11, 18, 22])
def test_a_step_that_underflows_a_parameter_is_a_step_too_far(seed):
    """Priors of one's own need not bound it."""
    kernel = ScaleKernel(
        RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)), outputscale_prior=LogNormalPrior(0.0, 1.0)
    )
    x = torch.from_numpy(np.random.default_rng(seed).uniform(size=(1, 15, 2)))
    fit = fit_gaussian_process(Measure.dirac(x), torch.sin(6 * x[..., 0]) + x[..., 1], UNIT, kernel)
    assert bool(fit.converged.all()) and bool(torch.isfinite(fit.lengthscale.nan_to_num()).all())
    assert bool(torch.isfinite(fit.process.posterior().variance(Measure.dirac(x[0]))).all())


def test_known_noise_of_each_observation_is_not_fitted(rng):
    kinds, y = measures(rng)
    known = 0.05 + 2 * torch.rand(y.shape, generator=rng, dtype=F64)
    fit = fit_gaussian_process(kinds["averages"], y, UNIT, noise_std=known)
    assert bool(fit.converged.all())
    assert all(is_a_minimum(fit, r, kinds["averages"], y, matern, known) for r in range(len(y)))
    torch.testing.assert_close(fit.noise_std, known.square().mean(-1).sqrt())
    free = fit_gaussian_process(kinds["averages"], y, UNIT)
    assert not any(is_a_minimum(free, r, kinds["averages"], y, matern, known) for r in range(len(y)))


def test_noise_that_drowns_is_as_large_as_a_fitted_one_may_be(rng):
    x, y = data(rng)
    tiny = torch.full_like(y, 1e-12)
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT, noise_std=tiny)
    assert bool(fit.converged.all())
    torch.testing.assert_close(fit.noise_std, 2**-6.5 * y.std(-1))


def test_a_surrogate_fits_and_conditions_with_the_noise_it_was_told(seen):
    x, y = seen
    known = torch.linspace(0.1, 2.0, 12, dtype=F64).expand(3, -1)
    model = Surrogate(UNIT, 3, refit_every=5)
    for t in range(12):
        model.observe(Measure.dirac(x[:, t : t + 1]), y[:, t : t + 1], noise_std=known[:, t : t + 1])
        model.posterior()
    fit = fit_gaussian_process(Measure.dirac(x[:, :12]), y[:, :12], UNIT, noise_std=known)
    assert torch.equal(model.fit.lengthscale, fit.lengthscale) and torch.equal(model.noise, known)
    anew = fit.process.condition(Measure.dirac(x[:, :12]), y[:, :12], known)
    z = Measure.dirac(x[:, 12:])
    torch.testing.assert_close(model.posterior().mean(z), anew.mean(z), rtol=0, atol=1e-9)


def test_what_was_asked_again_is_fitted_as_if_it_were_new(rng):
    """A replicate computes the covariances of each measure once, alone and in company."""
    kinds, y = measures(rng, replicates=1, n=6)
    few, which = kinds["averages"], [0, 1, 2, 3, 4, 5, 0, 0, 3, 5, 2, 2]
    again = Measure(few.points[:, which], few.weights[:, which])
    y = torch.cat([y, y[:, which[6:]] + 0.1], -1)
    alone = fit_gaussian_process(again, y, UNIT)
    both = fit_gaussian_process(again.expand(2), y.expand(2, -1), UNIT)
    assert is_a_minimum(alone, 0, again, y, matern)
    # In company of one who asked nothing again, and of one who asked one thing alone.
    kinds, others = measures(rng, replicates=1, n=12)
    most, one = kinds["averages"], Measure(few.points[:, [0] * 12], few.weights[:, [0] * 12])
    three = Measure(*(torch.cat([getattr(m, part) for m in (most, again, one)]) for part in ("points", "weights")))
    company = fit_gaussian_process(three, torch.cat([others, y, others]), UNIT)
    assert is_a_minimum(company, 0, three, torch.cat([others, y, others]), matern)
    for name in ("lengthscale", "scale", "mean", "noise_std"):
        assert torch.equal(getattr(alone, name)[0], getattr(both, name)[0])
        assert torch.equal(getattr(alone, name)[0], getattr(company, name)[1])


def test_measures_of_the_same_points_share_a_kernel_after_a_fit(rng):
    points = torch.rand(1, 1, 7, 2, generator=rng, dtype=F64).expand(1, 9, 7, 2)
    weights = torch.rand(1, 9, 7, generator=rng, dtype=F64)
    weights, y = weights / weights.sum(-1, keepdim=True), torch.randn(1, 9, generator=rng, dtype=F64)
    model, x = Surrogate(UNIT, 1), Measure.dirac(torch.rand(4, 2, generator=rng, dtype=F64))
    for k in range(9):
        model.observe(Measure(points[:, k : k + 1].clone(), weights[:, k : k + 1]), y[:, k : k + 1])
    posterior = model.posterior()
    assert posterior.data.measure.points.stride(-3) == 0
    copied = posterior.prior.posterior().extend(Measure(points.clone(), weights), y)
    torch.testing.assert_close(posterior.mean(x), copied.mean(x), rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.variance(x), copied.variance(x), rtol=0, atol=1e-10)


def test_predictions_are_those_of_botorchs_default_model(rng, seen):
    x, y = seen
    model = SingleTaskGP(x, y.unsqueeze(-1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    z = torch.rand(3, 7, 2, generator=rng, dtype=F64)
    theirs = model.posterior(z)
    ours = fit_gaussian_process(Measure.dirac(x), y, UNIT, "rbf").process.condition(Measure.dirac(x), y)
    spread = float(y.std())
    torch.testing.assert_close(ours.mean(Measure.dirac(z)), theirs.mean[..., 0].detach(), rtol=0, atol=0.01 * spread)
    torch.testing.assert_close(
        ours.variance(Measure.dirac(z)).sqrt(), theirs.variance[..., 0].detach().sqrt(), rtol=0.05, atol=0
    )


def test_a_replicate_is_fitted_the_same_alone_and_in_company(seen):
    x, y = seen
    together = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    for r in range(len(x)):
        alone = fit_gaussian_process(Measure.dirac(x[r : r + 1]), y[r : r + 1], UNIT)
        for name in NAMES:
            torch.testing.assert_close(getattr(alone, name)[0], getattr(together, name)[r], rtol=1e-9, atol=0)


@settings(max_examples=5)
@given(st.floats(0.01, 100), st.floats(-50, 50), st.floats(0.1, 20), st.floats(-5, 5))
@example(1e-12, 0.0, 1.0, 0.0)
@example(1e10, 0.0, 1.0, 0.0)
def test_units_of_inputs_and_outputs_do_not_matter(factor, shift, side, corner):
    x, y = data(torch.Generator().manual_seed(1), replicates=1, n=12)
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    moved = fit_gaussian_process(Measure.dirac(corner + side * x), shift + factor * y, corner + side * UNIT)
    expected = {
        "lengthscale": side * fit.lengthscale,
        "scale": factor * fit.scale,
        "mean": shift + factor * fit.mean,
        "noise_std": factor * fit.noise_std,
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(moved, name), value, rtol=2.1 * OCTAVE, atol=2e-3 * factor)


def test_units_may_differ_by_coordinate(rng):
    x, y = data(rng, 1)
    side = torch.tensor([1000.0, 0.001], dtype=F64)
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    moved = fit_gaussian_process(Measure.dirac(5 + side * x), y, 5 + side * UNIT)
    torch.testing.assert_close(moved.lengthscale, side * fit.lengthscale, rtol=2.1 * OCTAVE, atol=0)
    z = torch.rand(1, 9, 2, generator=rng, dtype=F64)
    one = fit.process.condition(Measure.dirac(x), y).mean(Measure.dirac(z))
    other = moved.process.condition(Measure.dirac(5 + side * x), y).mean(Measure.dirac(5 + side * z))
    torch.testing.assert_close(other, one, rtol=0, atol=0.05)


def test_any_kernel_may_be_fitted_and_its_parameters_speak_of_the_unit_box(rng):
    x, y = data(rng, 2)
    box = 10 * UNIT - 3
    fit = fit_gaussian_process(Measure.dirac(10 * x - 3), y, box, ScaleKernel(PeriodicKernel()))
    plain = fit_gaussian_process(Measure.dirac(x), y, UNIT, ScaleKernel(PeriodicKernel()))
    z = torch.rand(2, 9, 2, generator=rng, dtype=F64)
    one = plain.process.condition(Measure.dirac(x), y).mean(Measure.dirac(z))
    other = fit.process.condition(Measure.dirac(10 * x - 3), y).mean(Measure.dirac(10 * z - 3))
    torch.testing.assert_close(other, one, rtol=0, atol=1e-6)
    assert fit.lengthscale.isnan().all()


def test_a_kernel_that_is_given_is_not_changed(seen):
    x, y = seen
    kernel = MaternKernel(nu=1.5, ard_num_dims=2).double()
    before = kernel.lengthscale.clone()
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT, kernel)
    assert torch.equal(kernel.lengthscale, before) and kernel.batch_shape == torch.Size([])
    assert fit.process.kernel.base_kernel.nu == 1.5 and fit.lengthscale.shape == (3, 2)


def test_parameters_that_are_fixed_stay_so(seen):
    x, y = seen
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.31
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT, kernel)
    torch.testing.assert_close(fit.lengthscale, torch.full((3, 2), 0.31, dtype=F64))


def test_fitted_values_are_rounded(seen):
    x, y = seen
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    octaves = 64 * fit.lengthscale.log2()
    assert bool(((octaves - octaves.round()).abs() < 1e-6).all())


@pytest.mark.parametrize("level", [2.5, 0.1, 0.0])  # the mean of tenths is none, to rounding
def test_constant_outputs_are_fitted_without_a_warning(level):
    x = torch.linspace(0, 1, 6, dtype=F64)[None, :, None]
    fit = fit_gaussian_process(Measure.dirac(x), torch.full((1, 6), level, dtype=F64), UNIT[:, :1])
    assert all(bool(torch.isfinite(getattr(fit, name)).all()) for name in NAMES)
    assert float(fit.mean) == pytest.approx(level, abs=1e-3) and float(fit.noise_std) > 1e-4


@pytest.fixture
def steepest(monkeypatch):
    """The steepest slopes at the ends of all searches."""
    search, found = module._maximize, []
    monkeypatch.setattr(module, "_maximize", lambda mll: found.append(search(mll)) or found[-1])
    return found


@pytest.mark.parametrize("seed", [8, 14])
def test_a_fit_ends_flat_where_parameters_have_scales_of_their_own(steepest, seed):
    """Half of the data are crowded and without noise: the loss is far steeper in the noise than in a lengthscale.

    A step of Newton's method that leads to the maximum may make the largest of such slopes larger. When those were not
    taken, two of forty fits ended with slopes of 1e-3 and more here.
    """
    rng = torch.Generator().manual_seed(seed)
    x, center = (torch.rand(40, n, 4, generator=rng, dtype=F64) for n in (25, 1))
    x[:, 12:] = (center + 0.2 * torch.randn(40, 13, 4, generator=rng, dtype=F64)).clamp(0, 1)
    box = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=F64)
    fit_gaussian_process(Measure.dirac(x), torch.sin(9 * x).prod(-1), box, "matern", ((0, 1), (2, 3)))
    assert float(steepest[0].max()) <= 1e-8


def test_a_fit_leaves_a_saddle(steepest):
    """L-BFGS-B ends where the loss is nearly flat, and in the thirteenth replicate it bends down there."""
    rng = torch.Generator().manual_seed(15)
    x = torch.rand(20, 12, 3, generator=rng, dtype=F64)
    y = torch.sin(9 * x).prod(-1) + 0.02 * torch.randn(20, 12, generator=rng, dtype=F64)
    box = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=F64)
    exact = fit_gaussian_process(Measure.dirac(x), y, box, "matern", ((0, 1), (2,)))
    assert float(steepest[0].max()) <= 1e-8
    for seed in range(3):
        with other_rounding(seed):
            fit = fit_gaussian_process(Measure.dirac(x), y, box, "matern", ((0, 1), (2,)))
        for name in NAMES:
            torch.testing.assert_close(getattr(fit, name), getattr(exact, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("right", [1, 5])  # at the end of L-BFGS-B; and for second derivatives in four parameters
def test_a_kernel_that_is_nan_beside_the_maximum_ends_the_search_there(seen, steepest, monkeypatch, right):
    """BoTorch says of a NaN that the value is one and the slopes are zero: that is no maximum."""
    search, matrix, x, y = module.fmin_l_bfgs_b_batched, module.matrix, *seen
    exact, calls = fit_gaussian_process(Measure.dirac(x), y, UNIT), []

    def searched(*args, **options):
        calls.clear()
        found = search(*args, **options)
        calls.extend([True] * right + [False])
        return found

    def beside(kernel, rows):
        gram = matrix(kernel, rows)
        if calls and not calls[0]:
            return torch.nan * gram
        calls[:1] = []
        return gram

    monkeypatch.setattr(module, "fmin_l_bfgs_b_batched", searched)
    monkeypatch.setattr(module, "matrix", beside)
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    for name in NAMES:
        torch.testing.assert_close(getattr(fit, name), getattr(exact, name), rtol=0.02, atol=0.01)
    assert bool((steepest[-1] > 0).all())


def test_a_matrix_that_is_not_definite_ends_the_search_of_its_replicate_alone(seen, monkeypatch):
    """A search may try sizes at which rounding leaves no factor; the others are none the wiser."""
    matrix, x, y = module.matrix, *seen
    exact, calls = fit_gaussian_process(Measure.dirac(x), y, UNIT), []

    def tried(kernel, rows):
        gram = matrix(kernel, rows)
        calls.append(gram.shape)
        if len(calls) == 4:
            gram = torch.cat([gram[:1] - 2 * torch.eye(gram.shape[-1]).to(gram), gram[1:]])
        return gram

    monkeypatch.setattr(module, "matrix", tried)
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    for name in NAMES:
        got, wanted = getattr(fit, name), getattr(exact, name)
        torch.testing.assert_close(got[1:], wanted[1:], rtol=1e-9, atol=1e-12)
        assert bool(torch.isfinite(got[0]).all())


def test_a_kernel_of_huge_sizes_is_fitted():
    """Without a prior the search tries sizes whose rounding passes any jitter."""
    import gpytorch.kernels as g

    x = torch.rand(12, 15, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    y = torch.sin(9 * x[..., 0]) + x[..., 1]
    kernel = g.ScaleKernel(g.CosineKernel(active_dims=(0,))) + g.RBFKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its likelihood has no maximum
        fit = fit_gaussian_process(Measure.dirac(x), y, UNIT, kernel)
    assert bool(torch.isfinite(fit.noise_std).all())


def test_a_fit_that_stops_early_is_reported(seen, monkeypatch):
    x, y = seen
    monkeypatch.setattr(module, "fmin_l_bfgs_b_batched", lambda function, start, *_, **__: (start,))
    with pytest.warns(FitWarning, match=r"did not reach a maximum in replicates \[0, 1, 2\]"):
        fit = fit_gaussian_process(Measure.dirac(x), y, UNIT)
    assert not bool(fit.converged.any())


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (torch.zeros(3, 2), torch.zeros(2, 3), r"measure must have shape \(2, 3, p, 2\), got"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 4), r"measure must have shape \(2, 4, p, 2\), got"),
        (torch.zeros(1, 1, 2), torch.zeros(1, 1), "at least two observations"),
        (torch.zeros(1, 3, 2), torch.full((1, 3), torch.inf), "y must be finite"),
    ],
)
def test_bad_data_are_refused(x, y, match):
    with pytest.raises(ValueError, match=match):
        fit_gaussian_process(Measure.dirac(x.double()), y.double(), UNIT)


def test_bad_bounds_and_kernels_are_refused(seen):
    x, y = seen
    with pytest.raises(ValueError, match="bounds must have each lower bound below the upper"):
        fit_gaussian_process(Measure.dirac(x), y, UNIT.flip(0))
    with pytest.raises(ValueError, match="kernel must be 'matern', 'rbf' or a GPyTorch kernel, got 'linear'"):
        Surrogate(UNIT, 1, kernel="linear")
    with pytest.raises(ValueError, match="groups must hold each of the 2 coordinates once"):
        default_kernel("rbf", 2, [[0], [0, 1]])
    with pytest.raises(ValueError, match="kernel must have no batch"):
        Surrogate(UNIT, 1, kernel=RBFKernel(batch_shape=torch.Size([2])))
    with pytest.raises(ValueError, match="prior must have no batch or one of 3 replicates"):
        Surrogate(UNIT, 3, GaussianProcess(RBFKernel(batch_shape=torch.Size([2])), 0.1))


@pytest.fixture
def counted(monkeypatch):
    """Counts of observations at which hyperparameters were fitted."""
    counts = []

    def fit(measure, y, *rest):
        counts.append(y.shape[-1])
        ones = torch.ones(len(y), dtype=F64)
        kernel = rbf_kernel(0.1 * len(counts))
        process = GaussianProcess(kernel, 0.1 * ones[:, None])
        return Fit(process, torch.ones(len(y), 2, dtype=F64), ones, 0 * ones, 0.1 * ones, ones > 0)

    monkeypatch.setattr(surrogate, "fit_gaussian_process", fit)
    return counts


def tell(model, x, y, t):
    model.observe(Measure.dirac(x[:, t : t + 1]), y[:, t : t + 1])


@pytest.mark.parametrize(
    ("every", "expected"),
    [(None, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24]), (4, [10, 14, 18, 22]), (1, range(10, 26))],
)
def test_fits_follow_the_schedule(counted, seen, every, expected):
    x, y = seen
    model = Surrogate(UNIT, 3, refit_every=every)
    for t in range(x.shape[1]):
        tell(model, x, y, t)
        if t >= 9:
            model.posterior()
            model.posterior()  # asking twice changes nothing
    assert counted == list(expected) and model.version == len(counted)


def test_between_fits_the_posterior_grows_as_if_conditioned_anew(counted, rng, seen):
    x, y = seen
    model = Surrogate(UNIT, 3, refit_every=8)
    z = Measure.dirac(torch.rand(3, 6, 2, generator=rng, dtype=F64))
    for t in range(20):
        tell(model, x, y, t)
        if t < 3:
            continue
        anew = model.posterior().prior.condition(Measure.dirac(x[:, : t + 1]), y[:, : t + 1])
        torch.testing.assert_close(model.posterior().mean(z), anew.mean(z), rtol=0, atol=1e-10)
        torch.testing.assert_close(model.posterior().variance(z), anew.variance(z), rtol=0, atol=1e-10)
    assert len(counted) == 3


def test_a_known_prior_is_not_fitted(counted, rng, seen):
    x, y = seen
    prior = GaussianProcess(rbf_kernel(0.3), 0.1)
    model = Surrogate(UNIT, 3, prior)
    z = Measure.dirac(torch.rand(6, 2, generator=rng, dtype=F64))
    torch.testing.assert_close(model.posterior().variance(z), torch.ones(3, 6, dtype=F64))
    for t in range(5):
        tell(model, x, y, t)
    anew = prior.posterior(3).extend(Measure.dirac(x[:, :5]), y[:, :5])
    torch.testing.assert_close(model.posterior().mean(z), anew.mean(z), rtol=0, atol=1e-10)
    assert counted == [] and model.fit is None and model.version == 1 and model.prior is prior


def test_a_row_that_made_a_fit_due_is_kept_though_the_replicate_ends_before_it(rng):
    """The fit that nobody asked for would take it in; a replicate that is over has no more fits."""
    x = torch.rand(1, 12, 1, generator=rng, dtype=F64)
    rows = [(Measure.dirac(x[:, i : i + 1]), torch.sin(6 * x[:, i])) for i in range(12)]
    means = []
    for looks in (range(12), (9,)):
        model = Surrogate(UNIT[:, :1], 1)
        for i, (measure, y) in enumerate(rows):
            model.observe(measure, y, None if i < 11 else torch.tensor([False]))
            if i in looks:
                model.posterior()
        means.append(model.posterior().mean(Measure.dirac(UNIT[:, :1])))
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=1e-12)


def test_before_two_observations_the_prior_is_wide(seen):
    x, y = seen
    box = 10 * UNIT
    model = Surrogate(box, 3)
    z = Measure.dirac(10 * x[0, :4])
    torch.testing.assert_close(model.posterior().variance(z), torch.ones(3, 4, dtype=F64))
    torch.testing.assert_close(model.posterior().mean(z), torch.zeros(3, 4, dtype=F64))
    model.observe(Measure.dirac(10 * x[:, :1]), y[:, :1])
    assert model.prior.mean.flatten().tolist() == y[:, 0].tolist() and model.fit is None
    model.observe(Measure.dirac(10 * x[:, 1:6]), y[:, 1:6])
    assert model.prior is model.fit.process and model.version == 3


def test_many_rows_at_once_are_as_good_as_one_by_one(seen):
    x, y = seen
    one, many = Surrogate(UNIT, 3), Surrogate(UNIT, 3)
    for t in range(12):
        tell(one, x, y, t)
    many.observe(Measure.dirac(x[:, :12]), y[:, :12])
    z = Measure.dirac(x[:, 12:])
    assert torch.equal(one.posterior().mean(z), many.posterior().mean(z))


def test_a_bad_schedule_is_refused():
    with pytest.raises(ValueError, match="refit_every must be an integer of at least 1, got 0"):
        Surrogate(UNIT, 1, refit_every=0)


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
def test_a_replicate_that_is_over_stays_as_it_was(rng, seen, kernel):
    """Its prior and posterior bit by bit; the others as in company that is not over, and alone."""
    x, y = seen
    model, company = (Surrogate(UNIT, 3, kernel=kernel, refit_every=2) for _ in range(2))
    z = Measure.dirac(torch.rand(6, 2, generator=rng, dtype=F64))
    for t in range(16):
        learned = torch.tensor([True, t < 9, t < 13])
        told = torch.where(learned, y[:, t], 1e9)
        model.observe(Measure.dirac(x[:, t : t + 1]), told.unsqueeze(-1), learned)
        tell(company, x, y, t)
        got, expected = model.posterior(), company.posterior()
        if t == 8:
            kept = got.mean(z)[1], got.variance(z)[1], {k: v[1] for k, v in model.record().items()}
        for r in learned.nonzero().flatten().tolist():
            torch.testing.assert_close(got.mean(z)[r], expected.mean(z)[r], rtol=0, atol=1e-9)
            torch.testing.assert_close(got.variance(z)[r], expected.variance(z)[r], rtol=0, atol=1e-9)
    torch.testing.assert_close(model.posterior().mean(z)[1], kept[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(model.posterior().variance(z)[1], kept[1], rtol=0, atol=1e-12)
    for name, value in kept[2].items():
        assert torch.equal(model.record()[name][1], value), name
    assert model.posterior().prior.kernel.batch_shape == (3,)
    version = model.version
    for _ in range(4):  # nobody learns any more
        model.observe(Measure.dirac(x[:, :1]), y[:, :1], torch.zeros(3, dtype=torch.bool))
        model.posterior()
    assert model.version <= version + 1


@pytest.mark.parametrize("kernel", ["matern", "rbf"])
@pytest.mark.parametrize(("n", "d", "noise"), [(6, 2, 0.1), (10, 2, 3.0)])
def test_fits_converge_to_the_same_values_under_other_rounding(n, d, noise, kernel):
    """Few data, whose maxima are flat; a warning is an error here."""
    rng = torch.Generator().manual_seed(n)
    x = torch.rand(4, n, d, generator=rng, dtype=F64)
    y = torch.sin(6 * x[..., 0]) + (x[..., -1] - 0.5).square() + noise * torch.randn(4, n, generator=rng, dtype=F64)
    box = torch.tensor([[0.0] * d, [1.0] * d], dtype=F64)
    exact = fit_gaussian_process(Measure.dirac(x), y, box, kernel)
    assert exact.converged.all()
    for seed in range(3):
        with other_rounding(seed):
            fit = fit_gaussian_process(Measure.dirac(x), y, box, kernel)
        for name in ("lengthscale", "scale", "mean", "noise_std"):
            torch.testing.assert_close(getattr(fit, name), getattr(exact, name), rtol=1e-9, atol=1e-12)
