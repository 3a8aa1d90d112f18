"""Timings, both sides in turn in one process on one thread: medians of its CPU time, and their ratio."""

import statistics
import time

import numpy as np
import pytest
import torch

from cbo_lib.aggregated import GPOO
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from cbo_lib.simulate import simulate
from tests.aggregated import plain
from tests.aggregated.helpers import F64, both, made, noise_draws

REPLICATES, STEPS = 30, 80


def steep(h):
    return 14 * 2.0**-h


def seconds(call):
    start = time.process_time()  # CPU time, so that other programs of a busy machine do not count
    result = call()
    return time.process_time() - start, result


def in_turn(fast, slow, repetitions):
    """Median seconds of both, the fast one warmed up, and their last results."""
    times = [], []
    fast()
    for _ in range(repetitions):
        (one, fast_result), (other, slow_result) = seconds(fast), seconds(slow)
        times[0].append(one)
        times[1].append(other)
    return statistics.median(times[0]), statistics.median(times[1]), fast_result, slow_result


def report(capsys, benchmark, title, fast, slow):
    benchmark.extra_info.update(slow_median=slow, ratio=slow / fast)
    with capsys.disabled():
        print(f"\n{title[0]}: {fast * 1e3:.2f} ms; {title[1]}: {slow * 1e3:.2f} ms; ratio {slow / fast:.1f}")


def test_thirty_replicates_of_gpoo_are_ten_times_as_fast_as_thirty_plain_loops(benchmark, capsys):
    problem, world = both("peaks", branching=2, points=10)
    kernel, seeds = rbf_kernel(0.05, 0.1), range(REPLICATES)
    noise = [noise_draws(seed, STEPS) for seed in seeds]

    def library():
        return simulate(problem, made(GPOO, problem, kernel, delta=steep), STEPS, seeds, progress=False)

    def loops():
        runs = []
        for draws in noise:
            process = plain.Process(world, 0.05, 0.1, 0.1)
            runs.append(plain.gpoo(world, process, steep, draws))
        return runs

    fast, slow, history, runs = in_turn(library, loops, 3)
    for r, (tree, rounds) in enumerate(runs):
        cells = np.stack([tree.cells[x.node] for x in rounds[:10]])
        np.testing.assert_allclose(history["query"][r, :10].numpy(), cells, rtol=0, atol=1e-9)
    benchmark.pedantic(library, rounds=3)
    title = f"GPOO, {REPLICATES} replicates, {STEPS} rounds, 10 points a cell, one batch", "plain NumPy loops"
    report(capsys, benchmark, title, fast, slow)
    assert slow / fast >= 10


@pytest.mark.parametrize("t", [500, 1000, 2000])
def test_one_more_observation_of_many_costs_less_than_conditioning_anew(benchmark, capsys, rng, t):
    x = torch.rand(t + 1, 2, generator=rng, dtype=F64)
    y = torch.randn(t + 1, generator=rng, dtype=F64)
    process = GaussianProcess(rbf_kernel(0.2), 0.3)
    everything, last = Measure.dirac(x), Measure.dirac(x[-1:])
    before = process.condition(Measure.dirac(x[:-1]), y[:-1])

    def extend():
        return before.extend(last, y[-1:])

    def anew():
        return process.condition(everything, y)

    fast, slow, extended, conditioned = in_turn(extend, anew, 7)
    somewhere = Measure.dirac(torch.rand(20, 2, generator=rng, dtype=F64))
    torch.testing.assert_close(extended.mean(somewhere), conditioned.mean(somewhere), rtol=0, atol=1e-8)
    torch.testing.assert_close(extended.variance(somewhere), conditioned.variance(somewhere), rtol=0, atol=1e-8)
    benchmark.pedantic(extend, rounds=7)
    report(capsys, benchmark, (f"Posterior.extend at t = {t}", "condition anew"), fast, slow)
    if t == 2000:
        assert slow > fast
