"""Fits of a run's own data: the gradient, the library's fits, and a run that refits."""

import numpy as np
import pytest
import torch

from book.subsets.refit import Refitting, loss, refitting
from cbo_lib.former.fit import fit_gaussian_process
from cbo_lib.measure import Measure
from cbo_lib.subsets import UCBPSQ
from tests.subsets.helpers import F64, FEW, run, solid


def data(replicates=2, count=14, dim=3):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(replicates, count, dim, generator=draws, dtype=F64)
    y = (5 * x[..., 0]).sin() + x[..., 1].square() + 0.1 * torch.randn(replicates, count, generator=draws, dtype=F64)
    return x, 3 + 2 * y


def test_the_gradient_is_that_of_the_loss():
    x, y = (part[0].numpy() for part in data())
    theta = np.array([-0.7, 0.2, 0.9, -3.0])
    _, gradient, _ = loss(theta, x, y)
    steps = 1e-6 * np.eye(4)
    slopes = [(loss(theta + step, x, y)[0] - loss(theta - step, x, y)[0]) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("box", [[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], [[-1.0, 0.0, 2.0], [3.0, 1.0, 2.5]]])
def test_fits_are_those_of_the_library(box):
    bounds = torch.tensor(box, dtype=F64)
    unit, y = data()
    x = bounds[0] + (bounds[1] - bounds[0]) * unit
    theirs = fit_gaussian_process(Measure.dirac(x), y, bounds, "rbf", [(0,), (1,), (2,)])
    ours = Refitting(bounds, 2)
    ours.observe(Measure.dirac(x), y)
    ours.posterior()
    assert ours.fit is not None and bool(ours.fit.converged.all())
    for name in ("lengthscale", "scale", "mean", "noise_std"):
        torch.testing.assert_close(getattr(ours.fit, name), getattr(theirs, name), rtol=1e-9, atol=1e-9)
    there = Measure.dirac(x[:, :5])
    posterior = theirs.process.posterior().extend(Measure.dirac(x), y)
    for mine, other in zip(ours.posterior().mean_and_variance(there), posterior.mean_and_variance(there), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-9)


def test_a_run_refits_on_schedule_and_no_replicate_after_its_end():
    problem = solid()
    policy = refitting(UCBPSQ)(problem.space, effort=FEW, refit_every=4)
    history = run(problem, policy, 8)
    changes = (history["lengthscale"].diff(dim=1).abs().nan_to_num(0) > 0).any(-1)
    assert bool(history["lengthscale"][:, 0].isnan().all()) and not bool(history["lengthscale"][:, 1].isnan().any())
    assert set(changes.any(0).nonzero().flatten().tolist()) <= {4}
    ours = Refitting(problem.space.bounds, 2)
    x, y = data()
    ours.observe(Measure.dirac(x[:, :6]), y[:, :6])
    before = ours.posterior().prior.kernel.base_kernel.lengthscale.clone()
    ours.observe(Measure.dirac(x[:, 6:]), y[:, 6:], torch.tensor([True, False]))
    after = ours.posterior().prior.kernel.base_kernel.lengthscale
    assert torch.allclose(before[1], after[1]) and not torch.equal(before[0], after[0])
