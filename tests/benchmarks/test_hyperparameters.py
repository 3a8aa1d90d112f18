"""HE-GP-UCB for many replicates as one batch against loops over replicates that fit every candidate anew."""

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.settings import validate_input_scaling

from book.hyperparameters.problems import LENGTHSCALES, lengthscale_candidates, slope_and_peak
from book.hyperparameters.regret import watch
from book.hyperparameters.slips import printed_sqrt_beta
from cbo_lib.hyperparameters import HEGPUCB
from cbo_lib.simulate import simulate
from tests.benchmarks.test_gpoo_speed import in_turn, report
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, line, noise_draws, problem_of

REPLICATES, ROUNDS, INITIAL, POINTS = 50, 50, 3, 500
STEPS = ROUNDS + INITIAL
TITLE = f"HE-GP-UCB, {REPLICATES} replicates, {len(LENGTHSCALES)} candidates, {STEPS} steps, {POINTS} points, one batch"


@pytest.fixture(scope="module")
def panel():
    """The problem of Figure 2a, and its multipliers."""
    candidates = lengthscale_candidates(LENGTHSCALES)
    problem = problem_of(slope_and_peak, candidates, line(POINTS), truth=0)
    return problem, printed_sqrt_beta(problem.space, 2.0, STEPS)


def library(panel):
    problem, schedule = panel
    policy = HEGPUCB(problem.space, sqrt_beta=schedule, initial=INITIAL)
    return simulate(problem, policy, STEPS, range(REPLICATES), watch=watch, progress=False)


def test_fifty_replicates_of_he_gp_ucb_are_many_times_as_fast_as_fifty_plain_loops(benchmark, capsys, panel):
    problem, schedule = panel
    first = library(panel)["query"][:, :INITIAL, 0]
    designs = (first * (POINTS - 1)).round().long().tolist()
    noise = [noise_draws(seed, STEPS) for seed in range(REPLICATES)]
    priors = [plain.Prior(plain.rbf(lengthscale)) for lengthscale in LENGTHSCALES]
    world = plain.World(problem.space.points.numpy(), problem.values.numpy(), priors, problem.noise_std)
    beta = {t: schedule(t).numpy() for t in range(1, STEPS + 1)}

    def loops():
        return [
            plain.HEGPUCB(world, beta.__getitem__).run(draws, design)
            for design, draws in zip(designs, noise, strict=True)
        ]

    fast, slow, history, runs = in_turn(lambda: library(panel), loops, 5)
    for r, played in enumerate(runs):
        assert torch.equal(history["query"][r], problem.space.points[torch.tensor([x.index for x in played])])
        assert history["candidate"][r].tolist() == [x.candidate for x in played]
        assert history["alive"][r].tolist() == [x.alive for x in played]
        observed = torch.tensor(np.array([x.observation for x in played]), dtype=F64)
        torch.testing.assert_close(history["observation"][r], observed, rtol=0, atol=1e-9)
    benchmark.pedantic(lambda: library(panel), rounds=3)
    report(capsys, benchmark, (TITLE, "plain NumPy loops"), fast, slow)
    assert slow / fast >= 15  # 21 on a quiet machine; neighbors disturb short runs more than long ones


def test_fifty_replicates_of_he_gp_ucb_are_twenty_times_as_fast_as_a_loop_of_botorch_models(benchmark, capsys, panel):
    """Two replicates of the loop, whose time is multiplied by twenty-five."""
    problem, schedule = panel
    recorded, few = library(panel), 2

    def models():
        """Every candidate fitted anew to what each replicate had seen before each round; where it would ask."""
        asked = torch.empty(few, ROUNDS, dtype=torch.long)
        for r in range(few):
            for t in range(1, ROUNDS + 1):
                x, y = (recorded[name][r, : INITIAL + t - 1] for name in ("query", "observation"))
                upper = []
                for kernel, multiplier in zip(problem.space.candidates.kernels, schedule(INITIAL + t), strict=True):
                    noise = torch.full_like(y, problem.noise_std**2).unsqueeze(-1)
                    model = SingleTaskGP(x, y.unsqueeze(-1), noise, covar_module=kernel, outcome_transform=None).eval()
                    posterior = model.posterior(problem.space.points)
                    upper.append(posterior.mean + multiplier * posterior.variance.sqrt())
                alive = recorded["alive"][r, INITIAL + t - 2]
                asked[r, t - 1] = torch.cat(upper, -1)[:, alive].amax(-1).argmax()
        return asked

    with torch.no_grad(), validate_input_scaling(False):
        fast, slow, history, asked = in_turn(lambda: library(panel), models, 3)
    assert torch.equal(history["query"][:few, INITIAL:], problem.space.points[asked])
    slow *= REPLICATES / few
    benchmark.pedantic(lambda: library(panel), rounds=3)
    report(capsys, benchmark, (TITLE, f"a loop of BoTorch models, {few} replicates measured and scaled"), fast, slow)
    assert slow / fast >= 20
