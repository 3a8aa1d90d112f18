"""Fits of a run's own data: the gradient, the library's fits, and a run that refits."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from book.subsets.refit import Refitting, fit, loss, refitting
from cbo_lib.former.fit import fit_gaussian_process
from cbo_lib.measure import Measure
from cbo_lib.subsets import TSPSQ, UCBPSQ, CheapestGoodSubset
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


def test_a_matrix_that_is_not_positive_definite_is_refused():
    x, y = np.zeros((2, 1)), np.ones(2)
    assert loss(np.array([0.0, -800.0]), x, y)[0] == math.inf


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


def test_the_better_of_two_starts_is_taken():
    x, y = (part[0].numpy() for part in data())
    y = (y - y.mean()) / y.std(ddof=1)
    starts = [np.array([3.0, 3.0, 3.0, 1.0]), np.array([-1.0, 0.0, 0.0, -4.0])]
    both = fit(x, y, starts)[0]
    least = min(loss(fit(x, y, [start])[0], x, y)[0] for start in starts)
    assert loss(both, x, y)[0] == pytest.approx(least)


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
    assert torch.equal(before[1], after[1]) and not torch.equal(before[0], after[0])


def test_an_initial_design_is_the_same_for_every_policy_and_is_paid_for():
    problem = solid()
    full = [len(controls) for controls in problem.space.control_sets].index(problem.space.dim)
    found = {}
    for kind in (UCBPSQ, TSPSQ, CheapestGoodSubset):
        policy = refitting(kind, 3)(problem.space, effort=FEW, refit_every=4)
        history = found[kind] = run(problem, policy, 5)
        assert bool((history["subset"][:, :3] == full).all())
        torch.testing.assert_close(history["spent"], history["cost"].cumsum(1))
        unknown = history["lengthscale"].isnan().any(-1).any(0)
        assert unknown.tolist() == [True, True, False, False, False]  # the first fit is of the three
        assert torch.equal(history["played"][:, :3], found[UCBPSQ]["played"][:, :3])
    assert bool((found[CheapestGoodSubset]["subset"][:, 3:] != full).all())  # they count as its first plays
    first = found[UCBPSQ]["played"][:, :3]
    assert first.unique(dim=1).shape == first.shape and not torch.equal(first[0], first[1])
    alone = run(problem, refitting(UCBPSQ, 3)(problem.space, effort=FEW, refit_every=4), 3, [0])
    assert torch.equal(alone["played"][0], first[1])


def test_an_initial_design_needs_the_set_of_all_variables():
    problem = solid()
    space = dataclasses.replace(problem.space, control_sets=((0,), (1,)))
    policy = refitting(UCBPSQ, 3)(space, effort=FEW)
    with pytest.raises(ValueError, match="set of all variables"):
        policy.ask()
