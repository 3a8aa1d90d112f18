"""The same decisions on a GPU as on the CPU."""

import pytest
import torch

from book.contexts import problems
from book.contexts.experiments import POLICIES, make_policy
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from tests.accelerator import DEVICE, NEEDED

pytestmark = NEEDED


def run(name, device, make=problems.newsvendor):
    problem = make(device=torch.device(device))
    prior = GaussianProcess(rbf_kernel(0.3).to(device), 0.1)
    policy = make_policy(name, problem, 32, initial=4, raw=16, starts=2, iterations=5, prior=prior)
    return simulate(problem, policy, 8, [3, 4], progress=False)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_ask_the_same(name):
    here, there = (run(name, device) for device in ("cpu", DEVICE))
    for part in ("query", "observation", "value"):
        torch.testing.assert_close(there[part].cpu(), here[part], rtol=0, atol=1e-5)


def test_hyperparameters_are_fitted_there_too():
    problem = problems.modified_branin(device=torch.device(DEVICE))
    policy = make_policy("SBO-KDE", problem, 16, initial=5, raw=8, starts=1, iterations=2)
    history = simulate(problem, policy, 7, [3], progress=False)
    assert history["lengthscale"].device.type == DEVICE
    assert bool((history["lengthscale"][0, -1] > 0).all())
