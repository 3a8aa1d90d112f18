"""CMES for many replicates as one batch against loops over replicates that solve every posterior anew."""

import numpy as np
import pytest
from indirect import plain
from indirect.helpers import UNIT, grams, noise_draws
from test_gpoo_speed import in_turn, report

from cbo_lib.indirect import CMES
from cbo_lib.indirect.embedding import draw_data, estimated_prior
from cbo_lib.indirect.experiments import branin_problem
from cbo_lib.simulate import simulate

REPLICATES, STEPS, PAIRS, SIDE, FEW = 30, 100, 500, 32, 2
TITLE = f"CMES, {REPLICATES} replicates, {STEPS} rounds, {SIDE} x {SIDE} actions and points, one batch"


@pytest.fixture(scope="module")
def problem():
    problem = branin_problem("linear", 0.1, SIDE)
    assert len(problem.table) == 2 * SIDE**2  # and the averages are computed
    return problem


@pytest.fixture(scope="module")
def prior(problem):
    x, a = draw_data(problem, PAIRS, range(REPLICATES), UNIT)
    return estimated_prior(problem, x, a, 0.25, 0.2, 1e-4)


def test_thirty_replicates_of_cmes_are_many_times_as_fast_as_thirty_plain_loops(benchmark, capsys, problem, prior):
    """Two replicates of the loops, whose time is multiplied by fifteen.

    The loops are given the samples of the maximum; the library's time includes drawing them.
    """
    tables = grams(prior, REPLICATES)
    parts = [part.numpy() for part in (problem.table, problem.noise, problem.costs)]
    noise = [noise_draws(seed, STEPS) for seed in range(FEW)]

    def library():
        return simulate(problem, CMES(problem, prior), STEPS, range(REPLICATES), progress=False)

    samples = library()["max_samples"].numpy()

    def loops():
        runs = [plain.Run(tables[r], parts[0], problem.n, parts[1], parts[2]) for r in range(FEW)]
        return [plain.cmes(run, noise[r], samples[r]) for r, run in enumerate(runs)]

    fast, slow, history, played = in_turn(library, loops, 3)
    for r, rounds in enumerate(played):
        query, observation, mean, std, _, _, recommended = zip(*rounds, strict=True)
        assert history["query"][r].tolist() == list(query)
        assert history["recommendation"][r].tolist() == list(recommended)
        for name, expected in (("observation", observation), ("mean", mean), ("std", std)):
            np.testing.assert_allclose(history[name][r], expected, rtol=0, atol=1e-7)
    slow *= REPLICATES / FEW
    benchmark.pedantic(library, rounds=3)
    report(capsys, benchmark, (TITLE, f"plain NumPy loops, {FEW} replicates measured and scaled"), fast, slow)
    assert slow / fast >= 2
