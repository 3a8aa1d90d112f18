"""The same choices on a GPU as on the CPU."""

import dataclasses

import pytest
import torch

from book.subsets.prior import fit_prior
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, CheapestGoodSubset, GroupETC
from tests.accelerator import DEVICE, NEEDED
from tests.subsets.helpers import FEW, exhausted, prior, run, solid

pytestmark = NEEDED

MAKERS = {
    "proposed": lambda p, prior: CheapestGoodSubset(p.space, prior=prior, effort=FEW, exploration_budget=1.6),
    "reset": lambda p, prior: CheapestGoodSubset(p.space, prior=prior, effort=FEW, rounds=1),
    "thompson": lambda p, prior: TSPSQ(p.space, prior=prior, effort=FEW, features=64),
    "ucb": lambda p, prior: UCBPSQ(p.space, prior=prior, effort=FEW),
    "cvs": lambda p, prior: UCBCVS(p.space, cost_means=p.cost_means, prior=prior, effort=FEW),
    "etc": lambda p, prior: GroupETC(p.space, prior=prior, effort=FEW, plays_per_group=4),
}


def on(device, mean):
    """The problem and the prior there; the device is that of the box."""
    problem = solid(cost_std=0.3)
    process = prior(problem, mean=mean, variance=0.01 if mean > 2 else 1.0)
    space = dataclasses.replace(problem.space, bounds=problem.space.bounds.to(device))
    moved = dataclasses.replace(problem, space=space, cost_means=problem.cost_means.to(device))
    process.kernel.to(device)
    return moved, process


@pytest.mark.parametrize("name", MAKERS)
def test_policies_ask_the_same(name):
    histories = []
    for device in ("cpu", DEVICE):
        problem, process = on(device, 6.0 if name == "reset" else 2.0)
        policy = MAKERS[name](problem, process)
        histories.append(run(problem, policy, 8, stop=exhausted(problem)))
    on_cpu, on_gpu = histories
    assert on_gpu["query"].device.type == DEVICE
    for key in on_cpu.tensors:
        one, other = on_gpu[key].cpu(), on_cpu[key]
        if one.is_floating_point():
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        else:
            assert torch.equal(one, other), key


def test_a_prior_is_fitted_there():
    parts = []
    for device in ("cpu", DEVICE):
        problem, _ = on(device, 2.0)
        process = fit_prior(problem, 40)
        assert process.kernel.outputscale.device.type == device
        parts.append(
            torch.cat([process.kernel.outputscale.reshape(1), process.kernel.base_kernel.lengthscale[0]]).cpu()
        )
    torch.testing.assert_close(*parts, rtol=1e-2, atol=0)
