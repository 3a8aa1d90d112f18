"""CMES for many replicates as one batch against loops over replicates that solve every posterior anew."""

import numpy as np
import pytest

from book.indirect.problems import branin_problem, draw_data
from cbo_lib.former.simulate import simulate
from cbo_lib.indirect import CMES
from tests.benchmarks.test_gpoo_speed import in_turn, report
from tests.indirect import plain
from tests.indirect.helpers import UNIT, estimated_prior, grams, noise_draws, uniforms

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


class Covariances(plain.Run):
    """Rebuilds mean and covariance of all places after every observation, as Eqs. 3 and 12 have them."""

    def beliefs(self):
        if self.current[0] != len(self.seen):
            mean, covariance = plain.posterior(self.gram, self.seen, np.array(self.y), self.noise[self.seen])
            self.current = len(self.seen), mean, np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return self.current[1:]


class OwnSamples:
    """Samples of the maximum for each round from what a run believes then."""

    def __init__(self, run, draws):
        self.run, self.draws = run, draws

    def __getitem__(self, t):
        mean, std = (part[self.run.n :] for part in self.run.beliefs())
        return plain.gumbel(mean, std, self.draws[t])


@pytest.mark.parametrize(
    ("run", "title", "least"),
    [(Covariances, "rebuild mean and covariance", 20), (plain.Run, "rebuild mean and variances", 3)],
)
def test_thirty_replicates_of_cmes_are_many_times_as_fast_as_plain_loops(
    benchmark, capsys, problem, prior, run, title, least
):
    """Two replicates of the loops, whose time is multiplied by fifteen; both draw their own samples of the maximum."""
    tables = grams(prior, REPLICATES)
    parts = [part.numpy() for part in (problem.table, problem.noise, problem.space.costs)]
    noise = [noise_draws(seed, STEPS) for seed in range(FEW)]
    uniform = [[uniforms(seed, t, 10) for t in range(1, STEPS + 1)] for seed in range(FEW)]

    def library():
        return simulate(problem, CMES(problem.space, prior=prior), STEPS, range(REPLICATES), progress=False)

    def loops():
        runs = [run(tables[r], parts[0], problem.n, parts[1], parts[2]) for r in range(FEW)]
        return [plain.cmes(one, noise[r], OwnSamples(one, uniform[r])) for r, one in enumerate(runs)]

    fast, slow, history, played = in_turn(library, loops, 3)
    for r, rounds in enumerate(played):
        query, observation, mean, std, _, _, recommended = zip(*rounds, strict=True)
        assert history["query"][r].tolist() == list(query)
        assert history["recommendation"][r].tolist() == list(recommended)
        for name, expected in (("observation", observation), ("mean", mean), ("std", std)):
            np.testing.assert_allclose(history[name][r], expected, rtol=0, atol=1e-7)
    slow *= REPLICATES / FEW
    benchmark.pedantic(library, rounds=3)
    report(
        capsys, benchmark, (TITLE, f"plain NumPy loops that {title}, {FEW} replicates measured and scaled"), fast, slow
    )
    assert slow / fast >= least
