"""What a user does by hand, with their own data: any form, in any order, of any point; saved and loaded."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import (
    HEGPUCB,
    Space,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.hyperparameters.helpers import F64, line

NOISE = 0.05
SCALES = (0.05, 0.15, 0.5)
PRIORS = [GaussianProcess(rbf_kernel(scale), NOISE) for scale in SCALES]
KERNELS = [MaternKernel(2.5), RBFKernel()]
SPACES = {
    "points": Space(PRIORS, points=line(41)),
    "box": Space(PRIORS, bounds=[[0.0], [1.0]]),
    "kernels, points": Space(KERNELS, points=line(31)),
    "kernels, box": Space(KERNELS, bounds=[[0.0], [1.0]]),
}
every_space = pytest.mark.parametrize("domain", SPACES)


def f(x):
    return torch.sin(9 * x[..., 0]) + x[..., 0]


@every_space
def test_old_data_teach_the_posterior_and_judge_nobody(domain):
    space = SPACES[domain]
    x = torch.linspace(0.03, 0.93, 8, dtype=F64)[:, None]
    policy = HEGPUCB(space, initial=2)
    policy.tell(x, 1e3 * f(x))  # no candidate of a known size would survive this
    assert bool(policy.alive.all()) and policy.count == 8 and policy.round == 7
    assert policy.trace()["candidate"] == -1
    assert policy.ask().shape == (1,)  # and the initial design is over
    if "kernels" not in domain:
        expected = space.candidates.prior(NOISE).condition(Measure.dirac(x), 1e3 * f(x))
        at = Measure.dirac(line(9))
        torch.testing.assert_close(policy.posterior.mean(at), expected.mean(at), rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("domain", ["points", "box"])
def test_the_test_counts_the_rounds_whose_asked_point_was_played(domain):
    space = Space([GaussianProcess(rbf_kernel(0.2), NOISE, m) for m in (4.0, 0.0)], **where(domain))
    asked, other = HEGPUCB(space, sqrt_beta=1.0), HEGPUCB(space, sqrt_beta=1.0)
    x = asked.ask()
    other.ask()
    asked.tell(x, 0.0)  # the first candidate expected 4
    assert asked.candidate.tolist() == [0] and asked.alive.tolist() == [[False, True]]
    other.tell(x + 0.013, 0.0)
    assert other.candidate.tolist() == [-1] and other.alive.tolist() == [[True, True]]
    here = other.moments(x.reshape(1, 1, 1) + 0.013)[0]  # but its posterior has learned
    assert float(here[0, 0, 0]) < 0.5


def where(domain):
    return {"points": line(41)} if domain == "points" else {"bounds": [[0.0], [1.0]]}


def test_a_told_point_outside_a_finite_domain_counts_and_is_not_recommended():
    policy = HEGPUCB(SPACES["points"])
    policy.tell([0.0131, 0.5], [9.0, 0.3])
    assert policy.recommend().tolist() == [0.5]
    assert policy.moments()[0].shape == (1, 3, 41)  # of the domain alone
    exact = SPACES["points"].candidates.prior(NOISE)
    exact = exact.condition(
        Measure.dirac(torch.tensor([[0.0131], [0.5]], dtype=F64)), torch.tensor([9.0, 0.3], dtype=F64)
    )
    torch.testing.assert_close(policy.moments()[0][0], exact.mean(Measure.dirac(line(41))), rtol=0, atol=1e-9)
    only = HEGPUCB(SPACES["points"])
    only.tell(0.0131, 9.0)
    assert bool(SPACES["points"].contains(only.recommend()))  # the best of the domain, since nothing told is in it
    assert float((only.recommend() - 0.0131).abs()) < 0.02
    box = HEGPUCB(SPACES["box"])
    box.tell([1.2, 0.5], [9.0, 0.3])
    assert box.recommend().tolist() == [0.5]
