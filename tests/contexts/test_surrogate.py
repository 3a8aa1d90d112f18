"""Hyperparameters fitted for all replicates at once, and the posterior that grows between two fits."""

import numpy as np
import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from cbo_lib.contexts import surrogate
from cbo_lib.contexts.surrogate import Hyperparameters, Surrogate, fit_hyperparameters
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.contexts import plain
from tests.contexts.helpers import F64, box

UNIT = box(0.0, 1.0, 2)
NAMES = ("lengthscale", "scale", "mean", "noise_std")


def data(rng, replicates=3, n=25, dim=2):
    x = torch.rand(replicates, n, dim, generator=rng, dtype=F64)
    y = torch.sin(5 * x[..., 0]) + x.sum(-1) + 0.1 * torch.randn(replicates, n, generator=rng, dtype=F64)
    return x, 3 * y + torch.arange(replicates, dtype=F64)[:, None]


@pytest.fixture
def seen(rng):
    return data(rng)


def test_predictions_are_those_of_botorchs_default_model(rng, seen):
    x, y = seen
    model = SingleTaskGP(x, y.unsqueeze(-1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    z = torch.rand(3, 7, 2, generator=rng, dtype=F64)
    theirs = model.posterior(z)
    ours = fit_hyperparameters(x, y, UNIT).process().condition(Measure.dirac(x), y)
    torch.testing.assert_close(ours.mean(Measure.dirac(z)), theirs.mean[..., 0].detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.variance(Measure.dirac(z)), theirs.variance[..., 0].detach(), rtol=0, atol=1e-9)


def test_the_fit_is_a_minimum_of_the_negative_log_posterior(seen):
    x, y = seen
    fit = fit_hyperparameters(x, y, UNIT)
    for r in range(len(x)):
        points, center, spread = x[r].numpy(), float(y[r].mean()), float(y[r].std())
        standard = (y[r].numpy() - center) / spread

        def objective(p, points=points, standard=standard):
            return plain.negative_log_posterior(points, standard, np.exp(p[:2]), p[2], np.exp(p[3]))

        noise = 2 * float(np.log(float(fit.noise_std[r]) / spread))
        ours = np.array([*np.log(fit.lengthscale[r].numpy()), (float(fit.mean[r]) - center) / spread, noise])
        found = optimize.minimize(objective, ours, method="Nelder-Mead", options={"maxiter": 150})
        # Lengthscales beyond what the data tell have flat priors: the value counts, not the place.
        assert objective(ours) <= found.fun + 1e-5


def test_a_replicate_is_fitted_the_same_alone_and_in_company(seen):
    x, y = seen
    together = fit_hyperparameters(x, y, UNIT)
    for r in range(len(x)):
        alone = fit_hyperparameters(x[r : r + 1], y[r : r + 1], UNIT)
        for name in NAMES:
            torch.testing.assert_close(getattr(alone, name)[0], getattr(together, name)[r], rtol=1e-9, atol=0)


@settings(max_examples=5)
@given(st.floats(0.01, 100), st.floats(-50, 50), st.floats(0.1, 20), st.floats(-5, 5))
def test_units_of_inputs_and_outputs_do_not_matter(factor, shift, side, corner):
    x, y = data(torch.Generator().manual_seed(1), replicates=1, n=12)
    fit = fit_hyperparameters(x, y, UNIT)
    moved = fit_hyperparameters(corner + side * x, shift + factor * y, corner + side * UNIT)
    expected = {
        "lengthscale": side * fit.lengthscale,
        "scale": factor * fit.scale,
        "mean": shift + factor * fit.mean,
        "noise_std": factor * fit.noise_std,
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(moved, name), value, rtol=1e-3, atol=1e-3 * factor)


def test_constant_outputs_are_fitted_without_a_warning():
    x = torch.linspace(0, 1, 6, dtype=F64)[None, :, None]
    fit = fit_hyperparameters(x, torch.full((1, 6), 2.5, dtype=F64), box(0.0, 1.0, 1))
    assert all(bool(torch.isfinite(getattr(fit, name)).all()) for name in NAMES)
    assert float(fit.mean) == pytest.approx(2.5, abs=1e-3)


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3), "shapes"),
        (torch.zeros(2, 3, 2), torch.zeros(2, 4), "shapes"),
        (torch.zeros(2, 3, 1), torch.zeros(2, 3), "shapes"),
        (torch.zeros(1, 1, 2), torch.zeros(1, 1), "at least two points"),
        (torch.full((1, 3, 2), torch.nan), torch.zeros(1, 3), "x must be finite"),
        (torch.zeros(1, 3, 2), torch.full((1, 3), torch.inf), "y must be finite"),
    ],
)
def test_bad_data_are_refused(x, y, match):
    with pytest.raises(ValueError, match=match):
        fit_hyperparameters(x.double(), y.double(), UNIT)


@pytest.fixture
def counted(monkeypatch):
    """Counts of observations at which hyperparameters were fitted."""
    counts = []

    def fit(x, y, bounds):
        counts.append(y.shape[-1])
        ones = torch.ones(len(x), dtype=F64)
        return Hyperparameters(0.1 * len(counts) * torch.ones(len(x), 2, dtype=F64), ones, 0 * ones, 0.1 * ones)

    monkeypatch.setattr(surrogate, "fit_hyperparameters", fit)
    return counts


@pytest.mark.parametrize(
    ("every", "expected"),
    [(None, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24]), (4, [10, 14, 18, 22]), (1, range(10, 26))],
)
def test_fits_follow_the_schedule(counted, seen, every, expected):
    x, y = seen
    model = Surrogate(UNIT, 3, refit_every=every)
    for t in range(x.shape[1]):
        model.observe(x[:, t], y[:, t])
        if t >= 9:
            model.posterior()
            model.posterior()  # asking twice changes nothing
    assert counted == list(expected)


def test_between_fits_the_posterior_grows_as_if_conditioned_anew(counted, rng, seen):
    x, y = seen
    model = Surrogate(UNIT, 3, refit_every=8)
    z = Measure.dirac(torch.rand(3, 6, 2, generator=rng, dtype=F64))
    for t in range(20):
        model.observe(x[:, t], y[:, t])
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
        model.observe(x[:, t], y[:, t])
    anew = prior.posterior(3).extend(Measure.dirac(x[:, :5]), y[:, :5])
    torch.testing.assert_close(model.posterior().mean(z), anew.mean(z), rtol=0, atol=1e-10)
    assert counted == []
    assert model.hyperparameters is None


def test_too_few_observations_and_a_bad_schedule_are_refused():
    with pytest.raises(ValueError, match="refit_every must be at least 1, got 0"):
        Surrogate(UNIT, 1, refit_every=0)
    with pytest.raises(ValueError, match="at least two points"):
        Surrogate(UNIT, 1).posterior()
