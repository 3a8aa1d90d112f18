"""The master algorithm of Appendix A, and boxes with fitted candidates."""

import pytest
import torch

from book.hyperparameters import beyond, panels
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import lengthscale_candidates
from book.hyperparameters.variants import BalancingApart, RegretBalancing
from cbo_lib.former.simulate import simulate
from cbo_lib.hyperparameters import Space
from tests.hyperparameters import plain

F64 = torch.float64


@pytest.fixture
def two():
    points = torch.linspace(0, 1, 30, dtype=F64)[:, None]
    space = Space(lengthscale_candidates((0.1, 0.3)), points=points, noise_std=0.1)
    return UnknownPriorProblem(space, lambda x: torch.sin(6 * x[..., 0]))


def test_promises_stay_equal(two):
    promise = torch.stack([torch.arange(21.0), 3 * torch.arange(21.0)], -1).to(F64) * 100  # nobody is dropped
    policy = RegretBalancing(two.space, promise=promise, sqrt_beta=2.0)
    history = simulate(two, policy, 20, range(3))
    rounds = torch.stack([(history["candidate"] == u).sum(-1) for u in (0, 1)], -1)
    assert torch.equal(rounds, torch.tensor([[15, 5]] * 3))
    assert bool(history["alive"].all())


def test_a_candidate_whose_promise_is_broken_goes(two):
    # A candidate that promises no regret is out as soon as the other has surely earned more.
    promise = torch.zeros(41, 2, dtype=F64)
    promise[1:, 0] = 1e-6 * torch.arange(1, 41)
    promise[1:, 1] = 1e6
    low = UnknownPriorProblem(two.space, lambda x: torch.where(x[..., 0] > 0.5, 5.0, 0.0).to(x))
    policy = RegretBalancing(two.space, promise=promise, sqrt_beta=lambda t: torch.tensor([0.0, 50.0], dtype=F64))
    history = simulate(low, policy, 40, range(3))
    rewards, alive = history["value"], history["alive"]
    assert bool(alive[:, :, 1].all())  # its promise allows any regret
    first = history["candidate"] == 0
    assert float(rewards[first].mean()) < 1.0
    better = (rewards * ~first).sum(-1) / (~first).sum(-1)
    assert bool((alive[:, -1, 0] == (better < 1.0)).all())


def test_without_a_table_the_widths_are_promised(two):
    policy = RegretBalancing(two.space, sqrt_beta=2.0)
    history = simulate(two, policy, 20, range(3))
    for r in range(3):
        sums = torch.zeros(2, dtype=F64)
        for t in range(20):
            u = int(history["candidate"][r, t])
            assert sums[u] <= sums.min() + 1e-9
            sums[u] += 4.0 * history["std"][r, t, u]


def test_apart_every_candidate_knows_the_first_points_and_its_own_alone(two):
    history = simulate(two, BalancingApart(two.space, sqrt_beta=2.0, initial=2), 12, range(2))
    priors = [plain.Prior(plain.rbf(scale)) for scale in (0.1, 0.3)]
    points = two.space.points.numpy()
    sums = torch.zeros(2, 2, dtype=F64)  # replicates, candidates
    for r in range(2):
        x, y = history["query"][r].numpy(), history["observation"][r].numpy()
        own = {u: [0, 1] for u in (0, 1)}
        for t in range(2, 12):
            u = int(history["candidate"][r, t])
            assert sums[r, u] <= sums[r].min() + 1e-9
            mean, std = plain.posterior(priors[u], 0.1, x[own[u]], y[own[u]], points)
            upper = mean + 2.0 * std
            at = int(abs(points - x[t]).argmin())
            assert upper[at] >= upper.max() - 1e-6
            assert float(history["mean"][r, t, u]) == pytest.approx(mean[at], abs=1e-6)
            assert float(history["std"][r, t, u]) == pytest.approx(std[at], abs=1e-6)
            sums[r, u] += 4.0 * float(std[at])
            own[u].append(t)
        assert all(len(rounds) > 3 for rounds in own.values())


def test_the_promise_of_a_panel_is_the_bound_of_gp_ucb():
    panel = panels.lengthscale(steps=5)
    promise = beyond.promises(panel)
    assert promise.shape == (6, 5)
    assert bool((promise[0] == 0).all() and (promise.diff(dim=0) > 0).all())
    assert bool((promise[1:].diff(dim=-1) < 0).all())  # a longer lengthscale has less to learn
