"""CMES as a BoTorch acquisition, and policies learned from pulls."""

import pytest
import torch
from botorch.optim import optimize_acqf

from book.indirect.problems import UNIT, bandit_problem
from cbo_lib import GaussianProcess, Measure
from cbo_lib.indirect import (
    ClippedGaussian,
    ConditionalMaxValueEntropy,
    conditional_max_value_entropy,
    estimate_policies,
)
from cbo_lib.indirect.problem import unit_grid
from cbo_lib.kernels import GaussianMeasureKernel

F64 = torch.float64


@pytest.fixture
def fitted(rng):
    conditional = ClippedGaussian(lambda a: 1 - a, lambda a: 0.05 + 0.1 * a[..., 0])
    actions = torch.rand(6, 2, generator=rng, dtype=F64)
    process = GaussianProcess(GaussianMeasureKernel(0.3), 0.1)
    answers = torch.randn(6, generator=rng, dtype=F64)
    return conditional, process.condition(measures(conditional, actions), answers)


def measures(conditional, actions):
    return Measure.dirac(torch.cat([conditional.center(actions), conditional.scale(actions).unsqueeze(-1)], -1))


@pytest.mark.parametrize("noise", [None, 0.2])
def test_it_is_the_information_at_each_action(fitted, noise):
    conditional, posterior = fitted
    samples = torch.tensor([1.5, 2.5], dtype=F64)
    actions = unit_grid(5)
    where = measures(conditional, actions)
    expected = conditional_max_value_entropy(posterior.mean(where), posterior.variance(where).sqrt(), samples, noise)
    found = ConditionalMaxValueEntropy(posterior.as_botorch(), conditional, samples, noise)(actions[:, None])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_botorch_finds_what_a_grid_finds(fitted):
    conditional, posterior = fitted
    acquisition = ConditionalMaxValueEntropy(posterior.as_botorch(), conditional, torch.tensor([2.0], dtype=F64))
    _, value = optimize_acqf(acquisition, UNIT, q=1, num_restarts=4, raw_samples=64)
    dense = acquisition(unit_grid(40)[:, None]).max()
    assert dense - 1e-6 <= value <= dense + 0.01


def test_no_sample_is_refused(fitted):
    conditional, posterior = fitted
    for samples in (torch.zeros(0), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="max_samples must have shape"):
            ConditionalMaxValueEntropy(posterior.as_botorch(), conditional, samples)


def test_learned_policies_come_closer_with_more_pulls():
    bandit, errors = bandit_problem(count=20), []
    for count in (40, 400, 4000):
        generator = torch.Generator().manual_seed(1)
        agents = torch.rand(count, 1, generator=generator, dtype=F64)
        arms = bandit.conditional.sample(agents[None], [generator])[0, :, 0]
        learned = estimate_policies(agents, (arms * 11).round().long(), 12)(bandit.actions)
        torch.testing.assert_close(learned.sum(-1), torch.ones(20, dtype=F64))
        errors.append(float((learned - bandit.conditional.probabilities(bandit.actions)).abs().sum(-1).mean()))
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]


def test_a_classifier_without_covariates_counts():
    pulled = torch.tensor([0, 0, 0, 1])
    learned = estimate_policies(torch.zeros(4, 1, dtype=F64), pulled, 2, ridge=1e-9)(torch.zeros(1, 1, dtype=F64))
    torch.testing.assert_close(learned[0], torch.tensor([0.75, 0.25], dtype=F64), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(0, 1), torch.zeros(0).long(), 2), "a and pulled must hold one arm an agent"),
        ((torch.zeros(3, 1), torch.zeros(2).long(), 2), "a and pulled must hold one arm an agent"),
        ((torch.zeros(2, 1), torch.tensor([0, 2]), 2), r"pulled must lie in \[0, 2\), got 0 to 2"),
        ((torch.zeros(2, 1), torch.tensor([0, 1]), 2, 0), "degree must be at least 1"),
        ((torch.zeros(2, 1), torch.tensor([0, 1]), 2, 1, 0.0), "ridge positive"),
    ],
)
def test_pulls_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        estimate_policies(*arguments)
