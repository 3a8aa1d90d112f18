"""Hyperparameters fitted for all replicates at once, and the posterior that grows between two fits."""

import math

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from cbo_lib.former import fit as module
from cbo_lib.former import surrogate
from cbo_lib.former.fit import Fit, fit_gaussian_process
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure

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


@pytest.mark.parametrize("kind", ["averages", "signed", "shared"])
def test_the_fit_to_measures_is_a_minimum_of_the_negative_log_posterior(rng, kind):
    kinds, y = measures(rng)
    fit = fit_gaussian_process(kinds[kind], y, UNIT)
    assert bool(fit.converged.all())
    assert all(is_a_minimum(fit, r, kinds[kind], y, matern) for r in range(len(y)))


def test_known_noise_of_each_observation_is_not_fitted(rng):
    kinds, y = measures(rng)
    known = 0.05 + 2 * torch.rand(y.shape, generator=rng, dtype=F64)
    fit = fit_gaussian_process(kinds["averages"], y, UNIT, noise_std=known)
    assert bool(fit.converged.all())
    assert all(is_a_minimum(fit, r, kinds["averages"], y, matern, known) for r in range(len(y)))
    torch.testing.assert_close(fit.noise_std, known.square().mean(-1).sqrt())
    free = fit_gaussian_process(kinds["averages"], y, UNIT)
    assert not any(is_a_minimum(free, r, kinds["averages"], y, matern, known) for r in range(len(y)))


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


def test_parameters_that_are_fixed_stay_so(seen):
    x, y = seen
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.31
    fit = fit_gaussian_process(Measure.dirac(x), y, UNIT, kernel)
    torch.testing.assert_close(fit.lengthscale, torch.full((3, 2), 0.31, dtype=F64))


@pytest.mark.parametrize("level", [2.5, 0.1, 0.0])  # the mean of tenths is none, to rounding
def test_constant_outputs_are_fitted_without_a_warning(level):
    x = torch.linspace(0, 1, 6, dtype=F64)[None, :, None]
    fit = fit_gaussian_process(Measure.dirac(x), torch.full((1, 6), level, dtype=F64), UNIT[:, :1])
    assert all(bool(torch.isfinite(getattr(fit, name)).all()) for name in NAMES)
    assert float(fit.mean) == pytest.approx(level, abs=1e-3) and float(fit.noise_std) > 1e-4


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
