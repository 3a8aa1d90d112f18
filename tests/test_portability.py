"""A run is the same whatever the processor, and whoever runs beside it.

Queries have a resolution and fits end at a maximum, so that what a processor rounds otherwise never reaches a query;
and each replicate has random numbers and a search of its own. So queries and recommendations are equal bit by bit.

With `FULL_RUNS=1` every policy, with its prior given and fitted, runs as long as in its paper under three roundings,
which takes hours. Without it runs with given priors of the settings of cells and of candidates are that long (80 and
53 rounds), the others last until a policy has asked by a posterior a few times, fits that are dear are left out, and
each policy meets one of the three roundings, in a batch of two of the eight seeds.
"""

import functools
import json
import os
from pathlib import Path

import pytest

from cbo_lib.former.history import describe
from cbo_lib.former.simulate import simulate
from tests.rounding import other_rounding
from tests.runs import ALL, make

SEEDS = (3, 0, 8, 5, 11, 2, 7, 1)
FULL = bool(os.environ.get("FULL_RUNS"))
# Rounds with a given prior and with a fitted one; none where fits are dear.
ROUNDS = {
    "aggregated": (80, 4),
    "contexts": (13, 11),
    "hyperparameters": (53, 5),
    "indirect": (20, 0),
    "subsets": (8, 0),
}
CASES = [case for case in ALL if FULL or ROUNDS[case[0]][0 if case[2] else 1]]

ROUNDED = [(*case, (1, 2, 3) if FULL else (1 + i % 3,)) for i, case in enumerate(CASES)]


def rounds(setting, name, given, steps):
    if FULL:
        return steps
    return 10 if given and "box" in name else ROUNDS[setting][0 if given else 1]


def history(setting, name, given, seeds, rounding=None):
    run = make(setting, name, given)
    with other_rounding(rounding):
        return simulate(
            run.problem, run.policy, rounds(setting, name, given, run.steps), seeds, stop=run.stop, progress=False
        )


@functools.cache
def in_company(*case):
    """What both tests compare with: nothing was rounded otherwise, and all seeds ran as one batch."""
    return history(*case, SEEDS)


def described(run, count):
    """Shapes, dtypes and checksums of the queries and recommendations of the first rounds."""
    return {part: describe(run[part][:, :count] + 0) for part in ("query", "recommendation")}  # no zero has a sign


def assert_same(one, other, which=slice(None)):
    """The rounds that both have; a run whose budget is spent waits for its company."""
    for part in ("query", "recommendation"):
        a, b = one[part], other[part][which]
        count = min(a.shape[1], b.shape[1])
        differs = (a[:, :count] != b[:, :count]).reshape(len(a), count, -1)
        first = differs.any(-1).any(0).nonzero().flatten()[:1].tolist()
        assert not first, f"{part} differs from round {first[0] + 1} of {count}"


@pytest.mark.parametrize(("setting", "name", "given", "roundings"), ROUNDED)
def test_rounding_does_not_reach_a_run(setting, name, given, roundings):
    expected = in_company(setting, name, given)
    for rounding in roundings:
        assert_same(history(setting, name, given, SEEDS[2:4], rounding), expected, slice(2, 4))


@pytest.mark.parametrize(("setting", "name", "given"), CASES)
def test_company_does_not_reach_a_run(setting, name, given):
    expected = in_company(setting, name, given)
    for chunk in (slice(0, 4), slice(4, 6), slice(6, 7)) if FULL else (slice(7, 8),):
        assert_same(history(setting, name, given, SEEDS[chunk]), expected, chunk)


@pytest.mark.parametrize(("setting", "name", "given"), [case for case in CASES if case[2]])
def test_another_processor_asked_the_same(setting, name, given):
    """The checksums are of runs on an Intel Xeon with PyTorch 2.11; after a change that moves queries, of new ones."""
    stored = json.loads((Path(__file__).parent / "queries.json").read_text("utf-8"))[f"{setting}/{name}"]
    count = 10 if "box" in name else ROUNDS[setting][0]
    assert described(in_company(setting, name, given), count) == stored
