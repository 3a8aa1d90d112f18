import itertools
import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

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


def test_information_gain_of_nothing_is_zero(measures):
    assert float(information_gain(rbf_kernel(0.3), measures[:0], 0.1)) == 0.0


def test_information_gain_keeps_batches(rng):
    points = torch.rand(3, 4, 2, 2, generator=rng, dtype=F64)
    batch = Measure.average(points)
    got = information_gain(rbf_kernel(0.3, 1.5), batch, 0.2)
    assert got.shape == (3,)
    for r in range(3):
        one = sets(Measure.average(points[r]))
        assert float(got[r]) == pytest.approx(gain(gram(k, one, one), 0.2), abs=1e-10)


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
        assert (1 - 1 / math.e) * best - 1e-12 <= got[t] <= best + 1e-9


def test_greedy_gain_grows_by_ever_smaller_steps(rng):
    x = torch.rand(40, 2, generator=rng, dtype=F64)
    steps = greedy_information_gain(rbf_kernel(0.3), x, 0.2, 30).diff()
    assert (steps > 0).all() and (steps.diff() < 1e-12).all()


def test_greedy_gain_takes_points_and_a_batch_of_kernels(rng):
    x = torch.rand(8, 1, generator=rng, dtype=F64)
    scales = torch.tensor([0.1, 0.5, 2.0], dtype=F64)
    kernel = ScaleKernel(RBFKernel(batch_shape=(3,)), batch_shape=(3,)).to(F64)
    kernel.base_kernel.lengthscale, kernel.outputscale = scales[:, None, None], torch.ones(3, dtype=F64)
    got = greedy_information_gain(kernel, x, 0.2, 5)
    assert got.shape == (3, 6) and not got.requires_grad
    for u in range(3):
        dense = rbf(x.numpy(), x.numpy(), float(scales[u]))
        np.testing.assert_allclose(got[u], greedy_by_determinants(dense, 0.2, 5), atol=1e-9)


def test_no_observation_gains_nothing(measures):
    assert torch.equal(greedy_information_gain(rbf_kernel(0.3), measures, 0.2, 0), torch.zeros(1, dtype=F64))


@pytest.mark.parametrize("noise", [0.0, -1.0])
def test_gain_without_noise_is_refused(measures, noise):
    with pytest.raises(ValueError, match="noise_std must be positive"):
        information_gain(rbf_kernel(0.3), measures, noise)
    with pytest.raises(ValueError, match="noise_std must be positive"):
        greedy_information_gain(rbf_kernel(0.3), measures, noise, 2)


def test_greedy_gain_of_nonsense_is_refused(measures):
    with pytest.raises(ValueError, match="candidates must hold at least one measure, got none"):
        greedy_information_gain(rbf_kernel(0.3), measures[:0], 0.1, 2)
    with pytest.raises(ValueError, match="n must be an integer of at least 0, got"):
        greedy_information_gain(rbf_kernel(0.3), measures, 0.1, -1)
