"""Policies in the hands of a user: own data in own units, ask and tell, and files."""

import numpy as np
import pytest
import torch

from book.indirect.problems import draw_inputs, unit_grid
from cbo_lib import GaussianProcess, Measure
from cbo_lib.indirect import (
    CMES,
    ClippedGaussian,
    ConditionalMeanEmbedding,
    Space,
)
from cbo_lib.kernels import GaussianMeasureKernel, matern_kernel
from tests.indirect.helpers import F64, identity, ripple

SCALE, SHIFT = torch.tensor([40.0, 5.0], dtype=F64), torch.tensor([150.0, -2.0], dtype=F64)


def oven(x):
    """In degrees and bars."""
    return 30 + 10 * ripple((x - SHIFT) / SCALE)


def dial(a):
    return SHIFT + SCALE * a


TRUE = ClippedGaussian(dial, lambda a: 0.5 + 0 * a[..., 0])
ACTIONS = unit_grid(3)


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(3)
    taken = torch.rand(40, 2, generator=generator, dtype=F64)
    return draw_inputs(TRUE, taken[None], [generator])[0], taken


@pytest.fixture(scope="module")
def space(samples):
    return Space(ACTIONS, samples=samples)


PRIOR = GaussianProcess(matern_kernel([10.0, 1.5], 100.0), 0.5, 30.0)


def test_actions_of_one_number_are_taken_as_such(samples):
    x, taken = samples
    policy = CMES(
        Space([0.1, 0.5, 0.9], samples=(x[:, 0], taken[:, 0])), prior=GaussianProcess(matern_kernel(9.0), 0.5)
    )
    policy.tell([0.1, 0.7, 0.3], [1.0, 2.0, 1.5])
    policy.tell(0.5, 1.7)
    assert policy.count == 4 and policy.ask().shape == (1,) and policy.recommend().shape == (1,)


@pytest.mark.parametrize("kind", ["learned", "known", "closed form"])
@pytest.mark.parametrize("many", [True, False])
def test_the_posterior_is_that_of_all_that_was_told(kind, many, samples):
    """Old data, actions that the space does not hold, and what the operator did instead."""
    x, a = samples
    embedding = ConditionalMeanEmbedding(x, a, 0.4, 1e-3)
    normal = ClippedGaussian(identity, 0.1)
    if kind != "learned":
        x = unit_grid(5)
    space = Space(ACTIONS, conditional=embedding if kind == "learned" else normal, points=x, noise_std=0.5)
    closed, known = GaussianMeasureKernel(0.4, 9.0), matern_kernel(0.4, 9.0)
    prior = PRIOR if kind == "learned" else GaussianProcess(closed if kind == "closed form" else known, 0.5)
    policy = CMES(space, prior=prior, samples=3)
    old = torch.tensor([[0.15, 0.95], [0.5, 0.5], [0.33, 0.2]], dtype=F64)
    y = torch.tensor([31.0, 28.0, 29.0], dtype=F64)
    for rows in [slice(0, 3)] if many else [slice(0, 1), slice(1, 2), slice(2, 3)]:
        policy.tell(old[rows], y[rows])
    policy.ask()
    policy.tell([0.71, 0.02], 33.0)
    done = torch.cat([old, torch.tensor([[0.71, 0.02]], dtype=F64)])
    seen = torch.cat([y, torch.tensor([33.0], dtype=F64)])
    if kind == "closed form":
        measure, at = Measure.dirac(normal.gaussian(done)), Measure.dirac(torch.cat([x, 0 * x[:, :1]], -1))
    else:
        measure, at = (embedding.measure(done) if kind == "learned" else normal.measure(done, 8)), Measure.dirac(x)
    expected = prior.condition(measure, seen)
    torch.testing.assert_close(policy.posterior.mean(at), expected.mean(at), rtol=0, atol=1e-7)
    torch.testing.assert_close(policy.posterior.variance(at), expected.variance(at), rtol=0, atol=1e-7)
    torch.testing.assert_close(policy.mean[0, space.n :], expected.mean(at), rtol=0, atol=1e-7)
    assert torch.equal(policy.recommend(), x[expected.mean(at).argmax()])


def test_a_fitted_policy_learns_noise_and_scale(samples):
    x, a = samples
    policy = CMES(Space(ACTIONS, samples=samples), initial=0)
    rule = ConditionalMeanEmbedding(x, a).measure(a)
    noise = 0.8 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=F64)
    policy.tell(a, rule.expectation(oven) + noise)
    policy.ask()
    policy.tell(a[0], 30.0)
    trace = policy.trace()
    assert bool(trace["converged"]) and 0.3 < float(trace["noise_std"]) < 1.6
    assert 2 < float(trace["scale"]) < 60 and trace["lengthscale"].shape == (2,)
    best = oven(policy.recommend())
    assert float(best) > float(oven(x).quantile(0.8))


def test_a_budget_ends_a_run_and_what_was_not_asked_is_free(samples):
    policy = CMES(Space(ACTIONS, samples=samples, cost=2.0), prior=PRIOR, budget=5.0)
    policy.tell(ACTIONS[:4], [30.0, 31.0, 29.0, 30.5])
    policy.ask()
    policy.tell([0.4, 0.4], 30.0)  # something else was done
    for _ in range(2):
        assert not policy.finished
        policy.tell(policy.ask(), 30.0)
    assert policy.finished
    with pytest.raises(ValueError, match="the run is over"):
        policy.ask()
    before = policy.posterior.mean(Measure.dirac(policy.space.points))
    policy.tell(ACTIONS[0], 35.0)
    assert not torch.allclose(policy.posterior.mean(Measure.dirac(policy.space.points)), before)


def test_an_action_far_from_all_samples_is_named():
    rng = np.random.default_rng(0)
    taken = rng.uniform(0, 10, (200, 1))
    space = Space(np.linspace(0, 10, 60), samples=(taken + rng.normal(size=(200, 1)), taken))
    policy = CMES(space, prior=None)
    with pytest.raises(ValueError, match=r"near all that are asked or told, got \[\[400.0\]\]"):
        policy.tell([[5.0], [400.0], [3.0]], [1.0, 2.0, 3.0])
