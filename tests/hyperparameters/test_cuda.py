"""The same choices on a GPU as on the CPU."""

import pytest
import torch

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problems import decomposition_candidates, lengthscale_candidates, periodic_kernel
from book.hyperparameters.regret import robust_claim
from book.hyperparameters.slips import WidthAfter, printed_sqrt_beta
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    Candidates,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
)
from tests.accelerator import DEVICE, NEEDED, close
from tests.hyperparameters.helpers import (
    GROUPS,
    LENGTHSCALES,
    PERIODS,
    SETTINGS,
    run,
    setting,
)

pytestmark = NEEDED


def on_gpu(name, **changes):
    """A setting whose tensors live on the device; the kernels are made anew, for moving changes them in place."""
    case = setting(name)
    kernels = {
        "lengthscale": lambda: lengthscale_candidates(LENGTHSCALES).kernels,
        "period": lambda: tuple(periodic_kernel(*values) for values in PERIODS),
        "decomposition": lambda: decomposition_candidates(GROUPS, 0.4).kernels,
        "mean": lambda: tuple(lengthscale_candidates((0.3, 0.2, 0.1)).kernels),
        "shared kernel": lambda: lengthscale_candidates((0.15,)).kernels * 3,
    }[name]()
    old = case.problem.space.candidates
    candidates = Candidates(old.names, tuple(kernel.to(DEVICE) for kernel in kernels), old.means)
    truth = case.problem.truth.to(DEVICE) if isinstance(case.problem.truth, torch.Tensor) else case.problem.truth
    return case.replaced(candidates=candidates, points=case.problem.space.points.to(DEVICE), truth=truth, **changes)


def schedule(case):
    return lambda t: case.sqrt_beta(t).to(case.problem.space.like)


def assert_same_history(gpu, cpu):
    assert gpu.provenance["device"].startswith(DEVICE)
    for name in cpu.tensors:
        if cpu[name].is_floating_point():
            close(gpu[name], cpu[name])
        else:
            assert torch.equal(gpu[name].cpu(), cpu[name]), name


@pytest.mark.parametrize("kind", [HEGPUCB, WidthAfter])
@pytest.mark.parametrize("name", SETTINGS)
def test_he_gp_ucb(name, kind):
    case, device = setting(name), on_gpu(name)
    cpu = run(case.problem, case.make(kind), 20)
    gpu = run(device.problem, kind(device.problem.space, sqrt_beta=schedule(device), initial=case.initial), 20)
    assert_same_history(gpu, cpu)
    assert not cpu["alive"].all()


@pytest.mark.parametrize(
    "make",
    [
        lambda c: OracleGPUCB(c.problem.space, 1, sqrt_beta=schedule(c), initial=2),
        lambda c: OracleGPUCB(c.problem.space, torch.tensor([1, 0, 2]), sqrt_beta=schedule(c), initial=2),
        lambda c: MaximumLikelihood(c.problem.space, sqrt_beta=schedule(c), initial=2),
        lambda c: AveragedUCB(c.problem.space, sqrt_beta=schedule(c), initial=2),
        lambda c: AGPUCB(c.problem.space, lengthscales=LENGTHSCALES, sqrt_beta=schedule(c), initial=2),
        lambda c: HEGPUCB(c.problem.space, initial=2),
        lambda c: HEGPUCB(c.problem.space, sqrt_beta=printed_sqrt_beta(c.problem.space, 1.0, 10, 2), initial=2),
    ],
)
def test_the_other_policies(make):
    case, device = setting("lengthscale"), on_gpu("lengthscale")
    assert_same_history(run(device.problem, make(device), 12), run(case.problem, make(case), 12))


@pytest.mark.parametrize(
    "make",
    [
        lambda c: HEStableOpt(c.problem.space, sqrt_beta=schedule(c), initial=2),
        lambda c: OracleStableOpt(c.problem.space, 0),
    ],
)
def test_robust_optimization(make):
    case = setting("lengthscale").replaced(epsilon=0.06)
    device = on_gpu("lengthscale", epsilon=0.06)
    close(device.problem.space.neighbors, case.problem.space.neighbors, 0)
    close(device.problem.optimum, case.problem.optimum)
    cpu, gpu = run(case.problem, make(case), 15), run(device.problem, make(device), 15)
    assert_same_history(gpu, cpu)
    if gpu["mean"].shape[-1] == len(LENGTHSCALES):  # a policy that trusts one candidate recorded that one alone
        close(robust_claim(gpu, device.problem).right, robust_claim(cpu, case.problem).right)
