"""The same choices on a GPU as on the CPU."""

import dataclasses

import pytest
import torch

from book.hyperparameters.adaptive import AGPUCB
from book.hyperparameters.problems import decomposition_candidates, lengthscale_candidates, periodic_kernel
from book.hyperparameters.regret import confidence_ratio, ledger, robust_claim
from book.hyperparameters.slips import WidthAfter, printed_sqrt_beta
from cbo_lib.acquisition import OptimisticUpperConfidenceBound
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    Candidates,
    HEStableOpt,
    MaximumLikelihood,
    OracleGPUCB,
    OracleStableOpt,
    eliminates,
)
from cbo_lib.measure import Measure
from tests.accelerator import DEVICE, NEEDED, close
from tests.hyperparameters.helpers import (
    F64,
    GROUPS,
    LENGTHSCALES,
    PERIODS,
    SETTINGS,
    TALLEST,
    Mounds,
    changed,
    problem_of,
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


def test_resuming_on_the_device(tmp_path):
    device = on_gpu("period")
    whole = run(device.problem, HEGPUCB(device.problem.space, sqrt_beta=schedule(device), initial=2), 12)
    run(
        device.problem,
        HEGPUCB(device.problem.space, sqrt_beta=schedule(device), initial=2),
        5,
        checkpoint=tmp_path / "log",
    )
    resumed = run(
        device.problem,
        HEGPUCB(device.problem.space, sqrt_beta=schedule(device), initial=2),
        12,
        checkpoint=tmp_path / "log",
    )
    for name in whole.tensors:
        assert torch.equal(resumed[name], whole[name])


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


def test_a_box():
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    case = setting("lengthscale").replaced(points=None, bounds=bounds)
    device = on_gpu("lengthscale")
    device = dataclasses.replace(
        device, problem=changed(device.problem, points=None, bounds=bounds.to(DEVICE), truth=None)
    )
    cpu = run(case.problem, HEGPUCB(case.problem.space, sqrt_beta=case.sqrt_beta, initial=2), 6)
    gpu = run(device.problem, HEGPUCB(device.problem.space, sqrt_beta=schedule(device), initial=2), 6)
    close(gpu["query"], cpu["query"], 1e-5)
    assert torch.equal(gpu["alive"].cpu(), cpu["alive"])


@pytest.mark.parametrize("name", ["lengthscale", "mean", "shared kernel"])
def test_the_ledger(name):
    case, device = setting(name), on_gpu(name)
    cpu = run(case.problem, case.make(HEGPUCB), 12)
    gpu = run(device.problem, HEGPUCB(device.problem.space, sqrt_beta=schedule(device), initial=case.initial), 12)
    close(confidence_ratio(gpu, device.problem), confidence_ratio(cpu, case.problem), 1e-7)
    found, expected = ledger(gpu, device.problem), ledger(cpu, case.problem)
    found.check_identity(1e-8)
    for term in expected.terms:
        close(found.terms[term], expected.terms[term], 1e-8)
    for claim in expected.claims:
        assert torch.equal(found.claims[claim].held.cpu(), expected.claims[claim].held)


def test_eliminations():
    errors, widths = (
        torch.tensor([[3.0, -0.5], [0.2, 0.1]]).to(DEVICE),
        torch.tensor([[0.5, 0.5], [0.2, 0.1]]).to(DEVICE),
    )
    count = torch.tensor([2, 2]).to(DEVICE)
    assert eliminates(errors, widths, 0.5, count).tolist() == [True, False]


def fitted(device):
    x = torch.linspace(0, 1, 6, dtype=F64)[:, None].to(device)
    kernels = tuple(kernel.to(device) for kernel in lengthscale_candidates((0.1, 0.4)).kernels)
    prior = Candidates(("short", "long"), kernels, (0.0, Mounds(TALLEST[0]))).prior(0.1)
    return prior.condition(Measure.dirac(x), torch.sin(6 * x[:, 0])).as_botorch()


def test_the_acquisition():
    at, multipliers = torch.linspace(0.01, 0.93, 9, dtype=F64)[:, None, None], torch.tensor([1.5, 0.7], dtype=F64)
    alive = torch.tensor([True, True])
    cpu = OptimisticUpperConfidenceBound(fitted("cpu"), multipliers, alive)(at)
    gpu = OptimisticUpperConfidenceBound(fitted(DEVICE), multipliers.to(DEVICE), alive.to(DEVICE))(at.to(DEVICE))
    close(gpu, cpu)


def test_the_acquisition_with_its_defaults():
    at = torch.linspace(0.01, 0.93, 9, dtype=F64)[:, None, None]
    close(
        OptimisticUpperConfidenceBound(fitted(DEVICE), 1.5)(at.to(DEVICE)),
        OptimisticUpperConfidenceBound(fitted("cpu"), 1.5)(at),
    )


def test_a_kernel_on_another_device_is_refused_by_name():
    case = setting("lengthscale")
    with pytest.raises(ValueError, match="kernel must have the dtype and device of the points"):
        problem_of(case.problem.f, case.problem.space.candidates, case.problem.space.points.to(DEVICE))
