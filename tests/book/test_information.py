import itertools
import math

import numpy as np
import pytest
import torch

from book.information import greedy_information_gain, information_gain
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.oracles import condition, gram, rbf, sets

F64 = torch.float64


def k(x, z):
    return rbf(x, z, 0.3, 1.5)


def gain(dense, noise):
    noise = np.broadcast_to(noise, (len(dense),))
    return 0.5 * np.linalg.slogdet(np.eye(len(dense)) + dense / np.outer(noise, noise))[1]


@pytest.fixture
def measures(rng):
    points = torch.rand(6, 2, 2, generator=rng, dtype=F64)
    return Measure(points, torch.randn(6, 2, generator=rng, dtype=F64))


@pytest.mark.parametrize("noise", [0.1, 1.0, torch.tensor([0.1, 0.5, 0.2, 1.0, 0.3, 2.0], dtype=F64)])
def test_information_gain_equals_the_log_determinant(measures, noise):
    dense = gram(k, sets(measures), sets(measures))
    got = information_gain(rbf_kernel(0.3, 1.5), measures, noise)
    assert float(got) == pytest.approx(gain(dense, np.asarray(noise)), abs=1e-9)


def test_chain_rule_of_information(measures):
    first, rest = sets(measures)[:3], sets(measures)[3:]
    _, remaining = condition(k, first, np.zeros(3), 0.2, rest)
    kernel = rbf_kernel(0.3, 1.5)
    whole, part = information_gain(kernel, measures, 0.2), information_gain(kernel, measures[:3], 0.2)
    assert float(whole - part) == pytest.approx(gain(remaining, 0.2), abs=1e-10)
    assert float(whole) > float(part) > 0


def greedy_by_determinants(dense, noise, n):
    """Each step tries every candidate and computes the determinant of the whole set."""
    chosen, values = [], [0.0]
    for _ in range(n):
        gains = [gain(dense[np.ix_([*chosen, j], [*chosen, j])], noise) for j in range(len(dense))]
        chosen.append(int(np.argmax(gains)))
        values.append(max(gains))
    return np.array(values)


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_greedy_gain_is_that_of_the_greedily_chosen_sets(measures, noise):
    dense = gram(k, sets(measures), sets(measures))
    got = greedy_information_gain(rbf_kernel(0.3, 1.5), measures, noise, 9)
    np.testing.assert_allclose(got, greedy_by_determinants(dense, noise, 9), atol=1e-9)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_greedy_gain_is_close_to_the_maximum_over_all_sets(measures, noise):
    dense = gram(k, sets(measures), sets(measures))
    got = greedy_information_gain(rbf_kernel(0.3, 1.5), measures, noise, 4).numpy()
    for t in range(1, 5):
        every = itertools.combinations_with_replacement(range(6), t)
        best = max(gain(dense[np.ix_(s, s)], noise) for s in every)
        assert (1 - 1 / math.e) * best - 1e-9 <= got[t] <= best + 1e-9


def test_greedy_gain_grows_by_ever_smaller_steps(rng):
    x = torch.rand(40, 2, generator=rng, dtype=F64)
    steps = greedy_information_gain(rbf_kernel(0.3), x, 0.2, 30).diff()
    assert (steps > 0).all() and (steps.diff() < 1e-9).all()
