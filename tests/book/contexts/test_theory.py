"""Draws of the prior, sample averages and distributions in a ball, against formulas and loops."""

import numpy as np
import pytest
import torch
from scipy import stats

from book.contexts.regret import worst_weights
from book.contexts.theory import (
    PriorDraws,
    ball_gap,
    drawn_problem,
    sample_average_distances,
    slope_tail,
)
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Measure
from tests.contexts import plain
from tests.contexts.helpers import F64


@pytest.fixture
def posterior(rng):
    x = torch.rand(8, 2, generator=rng, dtype=F64)
    return GaussianProcess(rbf_kernel(0.25), 0.1).condition(Measure.dirac(x), (6 * x[:, 0]).sin() + x[:, 1])


def test_draws_have_the_priors_covariance():
    draws = PriorDraws(0.3, range(3000))
    z = torch.tensor([[0.1, 0.2], [0.15, 0.4], [0.6, 0.33], [1.0, 0.0]], dtype=F64)
    values = draws(z.expand(3000, -1, -1))
    expected = rbf_kernel(0.3)(z).to_dense()
    torch.testing.assert_close(values.T @ values / 3000, expected, rtol=0, atol=0.08)
    assert float(values.mean(0).abs().max()) < 0.08


def test_averages_and_slopes_are_those_of_the_function(rng):
    draws = PriorDraws(0.2, [1, 2])
    c, w = torch.rand(7, 1, generator=rng, dtype=F64), torch.rand(7, generator=rng, dtype=F64)
    x = torch.rand(2, 4, 1, generator=rng, dtype=F64)
    points = torch.cat([x.unsqueeze(2).expand(2, 4, 7, 1), c.expand(2, 4, 7, 1)], -1)
    torch.testing.assert_close(draws.average(c, w)(x), draws(points) @ w, rtol=0, atol=1e-7)
    axis = torch.linspace(0, 1, 41, dtype=F64)
    grid = torch.cartesian_prod(axis, axis).expand(2, -1, -1)
    for k in range(2):
        move = torch.zeros(2, dtype=F64)
        move[k] = 1e-6
        rise = (draws(grid + move) - draws(grid - move)) / 2e-6
        torch.testing.assert_close(draws.slopes(41)[:, k], rise.abs().amax(-1), rtol=0, atol=5e-3)


def test_each_replicate_has_its_own_optimum(rng):
    problem = drawn_problem([0, 1, 2])
    x = torch.linspace(0, 1, 2001, dtype=F64)[:, None].expand(3, -1, 1)
    best, place = problem.value(x).max(-1)
    torch.testing.assert_close(problem.optimum, best, rtol=0, atol=1e-6)
    torch.testing.assert_close(problem.maximizer, x[0, place], rtol=0, atol=1e-3)
    generators = [torch.Generator().manual_seed(s) for s in range(3)]
    seen = problem.observe(problem.maximizer, generators)
    assert seen["context"].shape == (3, 1)
    with pytest.raises(ValueError, match="expectation must be given"):
        type(problem)(problem.space, problem.f, problem.distribution, replicates=3).value(x)


def test_the_tail_is_the_least_that_covers_the_sample():
    slopes = torch.tensor([[1.0, 2.0], [3.0, 1.0], [2.0, 1.0], [1.0, 0.5]], dtype=F64)
    b = 1.3
    a = slope_tail(slopes, b)
    excess = []
    for k in range(2):
        for level in slopes[:, k]:
            share = float((slopes[:, k] >= level).double().mean())
            excess.append(share * np.exp((float(level) / b) ** 2))
    assert a == pytest.approx(max(excess))
    assert slope_tail(0 * slopes, b) == 1.0


def test_distances_of_sample_maximizers_are_those_of_a_loop(posterior, rng):
    problem = drawn_problem([0])
    contexts = torch.rand(10, 1, generator=rng, dtype=F64)
    ours = sample_average_distances(posterior, contexts, problem, [4, 400], 3, seed=7, points=41)
    model = plain.Model(np.array([0.25] * 2), 1.0, 0.0, 0.1)
    data = posterior.data
    x = data.measure.points[:, 0].numpy()
    y = (data.factor @ data.whitened).numpy()
    grid = np.linspace(0, 1, 41)

    def average(samples):
        return np.array([model.ucb(x, y, [d], samples, 1.5).mean() for d in grid])

    h = plain.bandwidth(contexts.numpy())[0]
    quantiles = np.array([(k + 0.5) / 32 for k in range(32)])
    nodes = np.clip((contexts.numpy() + h * stats.norm.ppf(quantiles)).reshape(-1, 1), 0, 1)
    truth = grid[average(nodes).argmax()]
    generator = torch.Generator().manual_seed(7)
    for row, count in enumerate((4, 400)):
        index = torch.randint(10, (count * 3,), generator=generator).numpy()
        normal = torch.randn(count * 3, 1, generator=generator, dtype=F64).numpy()
        draws = plain.kde_samples(contexts.numpy(), index, normal, 0.0, 1.0).reshape(3, count, 1)
        for k in range(3):
            assert float(ours[row, k]) == pytest.approx(abs(grid[average(draws[k]).argmax()] - truth), abs=1e-9)


def test_more_samples_bring_the_maximizers_closer(posterior, rng):
    contexts = torch.rand(15, 1, generator=rng, dtype=F64)
    far = sample_average_distances(posterior, contexts, drawn_problem([0]), [4, 64, 1024], 60, points=201)
    means = far.mean(-1)
    assert bool((means[1:] < 0.6 * means[:-1]).all())


def test_the_worst_distribution_is_one_and_reaches_the_program(rng):
    values = torch.randn(3, 12, generator=rng, dtype=F64)
    q = worst_weights(values, 0.5)
    torch.testing.assert_close(q.sum(-1), torch.ones(3, dtype=F64))
    assert bool((q >= -1e-9).all())
    for r in range(3):
        assert float(q[r] @ values[r]) == pytest.approx(
            plain.tv_program(values[r].numpy(), values[r].min(), 0.5), abs=1e-9
        )
        assert float((q[r] - 1 / 12).abs().sum()) <= 0.5 + 1e-9


def test_the_worst_distribution_for_f_is_not_independent_of_f(posterior, rng):
    """The proof of Lemma 10 has both means equal; the left one is larger, by many standard errors."""
    contexts = torch.rand(200, 1, generator=rng, dtype=F64)
    x = torch.tensor([0.9], dtype=F64)
    left, right = ball_gap(posterior, x, contexts, 0.5, 1.5, 2000)
    gap = left - right
    assert float(gap.mean()) > 10 * float(gap.std()) / 2000**0.5
    zero, same = ball_gap(posterior, x, contexts, 0.0, 1.5, 2000)
    assert abs(float((zero - same).mean())) < 4 * float((zero - same).std()) / 2000**0.5
