"""A stranger's own problem: any unit of the inputs, answers that are kept and changed, and looks in between."""

import pandas as pd
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel

from cbo_lib import contexts, hyperparameters, indirect
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from tests.test_bad_input import TOLD, prior, sbokde

F64 = torch.float64


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_points_of_any_unit_are_told_apart(unit):
    points = torch.linspace(0, 1, 11, dtype=F64).unsqueeze(-1)
    known = GaussianProcess(rbf_kernel(0.3 * unit), 0.1)
    kernels = [known.kernel, known.kernel]
    policy = hyperparameters.HEGPUCB(hyperparameters.Space(kernels, points=unit * points, noise_std=0.1))
    policy.tell(unit * points[[1, 9]], [0.0, 1.0])
    assert float(policy.recommend()) / unit == pytest.approx(0.9)
    space = indirect.Space(unit * points, conditional=indirect.Point(), points=unit * points, noise_std=0.1)
    asker = indirect.CMES(space, prior=known, samples=2)
    asker.tell(unit * points, torch.sin(3 * points[:, 0]))
    assert torch.equal(asker.batch.queries[0], unit * points) and float(asker.ask()) / unit in (
        points.flatten().tolist()
    )


@pytest.mark.parametrize("setting", TOLD)
def test_what_was_asked_may_be_changed_by_who_asked(setting):
    make, told, seen = TOLD[setting]
    policy, twin = make(), make()
    for one in (policy, twin):
        one.tell(*told, **seen)
    values = policy.ask()
    expected = [part.clone() if torch.is_tensor(part) else part for part in [values]]
    for part in [values, policy.recommend()]:
        part += 7.0
    again = policy.ask()
    for part, own in zip([again], expected, strict=True):
        assert torch.equal(part, own) if torch.is_tensor(own) else part == own
    assert torch.equal(policy.space.like, twin.space.like)
    policy.start([3, 4])
    batch = policy.ask()
    before = batch.clone()
    batch += 1
    assert torch.equal(policy.ask(), before)


def test_a_buffer_may_be_used_again_after_it_was_told():
    policy = hyperparameters.HEGPUCB(hyperparameters.Space([rbf_kernel(0.3)], bounds=[[0.0], [1.0]], noise_std=0.1))
    buffer = torch.zeros(1, dtype=F64)
    for x in (0.1, 0.5, 0.9):
        policy.tell(buffer.fill_(x), 2 * x)
    assert policy.observations()["query"].flatten().tolist() == [0.1, 0.5, 0.9]
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    space = contexts.Space(bounds, bounds)
    bounds *= 100
    assert space.decisions.tolist() == space.contexts.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("high", [0.3, 0.11, 0.7])
def test_a_fit_keeps_to_the_bounds_of_its_kernel(high):
    x = torch.linspace(0, 1, 12, dtype=F64)
    kernel = RBFKernel(lengthscale_constraint=Interval(0.05, high))
    policy = contexts.GPUCB(contexts.Space([[0.0], [1.0]], [[0.0], [1.0]]), kernel=kernel)
    policy.tell(x, 2 * x, context=torch.full_like(x, 0.5))
    lengthscale = float(policy.posterior.prior.kernel.base_kernel.kernel.lengthscale)
    assert 0.05 <= lengthscale <= high + 1e-6


def test_of_a_frame_the_order_of_the_columns_counts():
    frame = pd.DataFrame({"flow": [0.1, 0.2], "heat": [0.9, 0.8]})
    space = contexts.Space(pd.DataFrame({"heat": [0.0, 1.0], "flow": [0.0, 1.0]}), [[0.0], [1.0]])
    policy = sbokde(space, prior=prior(3))
    policy.tell(frame, [1.0, 2.0], context=[0.1, 0.2])
    assert policy.batch.queries[0].tolist() == [[0.9, 0.1], [0.8, 0.2]]


def test_a_robust_policy_recommends_what_stays_good_nearby():
    points = torch.linspace(0, 1, 101, dtype=F64).unsqueeze(-1)
    f = 1.5 * (-0.5 * ((points - 0.25) / 0.02) ** 2).exp() + (-0.5 * ((points - 0.7) / 0.12) ** 2).exp()
    told = {}
    for name, make in (("plain", hyperparameters.HEGPUCB), ("robust", hyperparameters.HEStableOpt)):
        policy = make(hyperparameters.Space([rbf_kernel(0.05)] * 2, points=points, epsilon=0.06, noise_std=0.05))
        policy.tell(points, f[:, 0])
        told[name] = float(policy.recommend())
    assert abs(told["plain"] - 0.25) < 0.02 and abs(told["robust"] - 0.7) < 0.03
