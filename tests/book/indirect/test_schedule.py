"""Blurred queries of the setting of Theorem 2."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from book.functions import prior_samples
from book.indirect import schedule
from book.indirect.schedule import BlurredProblem, Blurs, ScheduledUCB
from cbo_lib.former.simulate import simulate
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from tests.indirect import plain
from tests.indirect.helpers import F64, SEEDS

LENGTH, NOISE, STEPS = 0.2, 0.1, 12


@pytest.fixture(scope="module")
def problem():
    wide = torch.tensor([[-1.0], [2.0]], dtype=F64)
    space = Blurs(torch.linspace(0, 1, 21, dtype=F64)[:, None], NOISE)
    return BlurredProblem(space, prior_samples(rbf_kernel(LENGTH), wide, SEEDS, grid=129))


def scheduled(problem, lengthscale=LENGTH, width=None):
    return ScheduledUCB(problem.space, lengthscale=lengthscale, tau=width or tau, sqrt_beta=sqrt_beta)


def tau(t):
    return 0.1 * t**-0.25


def sqrt_beta(t):
    return math.sqrt(2 * math.log(t + 2))


def test_blurred_values_are_integrals(problem):
    for width in (0.05, 0.2):
        query = torch.tensor([[0.1, width], [0.5, width], [0.9, width]], dtype=F64)
        got = problem.value(query)
        for r in range(3):

            def integrand(x, r=r, width=width, center=0.1 + 0.4 * r):
                points = torch.full((3, 1, 1), x, dtype=F64)
                return float(problem.f(points)[r]) * norm.pdf(x, center, width)

            center = float(query[r, 0])
            expected, _ = quad(integrand, center - 7 * width, center + 7 * width, epsabs=1e-9)
            assert float(got[r]) == pytest.approx(expected, abs=1e-6)


def test_a_blurred_value_of_a_curve_is_that_of_its_closed_form():
    """The average of a sine is a damped sine, in two dimensions the product."""
    plane = Blurs(torch.zeros(1, 2, dtype=F64))
    curve = BlurredProblem(plane, lambda x: torch.sin(3 * x[..., 0]) * torch.cos(2 * x[..., 1]))
    query = torch.tensor([[0.3, 0.4, 0.5], [0.8, 0.1, 0.05]], dtype=F64)
    damping = np.exp(-(9 + 4) * query[:, 2].numpy() ** 2 / 2)
    expected = damping * np.sin(3 * query[:, 0].numpy()) * np.cos(2 * query[:, 1].numpy())
    np.testing.assert_allclose(curve.value(query), expected, atol=1e-10)


def test_scheduled_ucb_is_the_plain_loop(problem):
    policy = scheduled(problem)
    history = simulate(problem, policy, STEPS, SEEDS, progress=False)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    points = problem.space.points.numpy()

    def covariance(x, s, y, t):
        left, right = (x + s * nodes)[:, None], (y + t * nodes)[:, None]
        return weights @ plain.rbf(left, right, LENGTH) @ weights

    for r in range(3):
        asked = history["query"][r].numpy()
        np.testing.assert_allclose(asked[:, 1], [tau(t) for t in range(1, STEPS + 1)], rtol=1e-9)
        y = history["observation"][r].numpy()
        prior = plain.rbf(points, points, LENGTH)
        cross = np.array([[covariance(x, s, p, 0.0) for p in points[:, 0]] for x, s in asked])
        among = np.array([[covariance(x, s, u, v) for u, v in asked] for x, s in asked])
        for t in range(STEPS + 1):
            solve = np.linalg.solve(among[:t, :t] + NOISE**2 * np.eye(t), np.column_stack([cross[:t], y[:t]]))
            mean = cross[:t].T @ solve[:, -1]
            std = np.sqrt(np.diag(prior) - (cross[:t] * solve[:, :-1]).sum(0))
            if t < STEPS:
                now = int(np.flatnonzero(points[:, 0] == asked[t, 0])[0])
                own = np.column_stack([among[:t, t], y[:t]])
                blurred = among[:t, t] @ np.linalg.solve(among[:t, :t] + NOISE**2 * np.eye(t), own)
                for name, expected in (
                    ("mean", mean[now]),
                    ("std", std[now]),
                    ("blurred_mean", blurred[1]),
                    ("blurred_std", math.sqrt(among[t, t] - blurred[0])),
                ):
                    assert float(history[name][r, t]) == pytest.approx(expected, abs=1e-6)
            if t:
                best = plain.first_best(mean)
                assert history["recommendation"][r, t - 1].tolist() == [points[best, 0], 0.0]
            if t < STEPS:
                upper = mean + sqrt_beta(t + 1) * std
                index = int(np.flatnonzero(points[:, 0] == asked[t, 0])[0])
                assert upper[index] == pytest.approx(upper.max(), abs=1e-7)


def test_the_bias_of_a_blurred_value_is_of_second_order():
    """The Taylor term of Theorem 2: half the squared width times the second derivative."""
    curve = BlurredProblem(Blurs(torch.zeros(1, 1, dtype=F64)), lambda x: torch.sin(3 * x[..., 0]))
    bias = []
    for width in (0.02, 0.01):
        query = torch.tensor([[0.4, width]], dtype=F64)
        bias.append(float(curve.value(query)) - math.sin(1.2))
        assert bias[-1] == pytest.approx(-0.5 * width**2 * 9 * math.sin(1.2), rel=2e-3)
    assert bias[0] / bias[1] == pytest.approx(4, rel=2e-3)


def test_the_gap_is_the_deviation_of_f_minus_its_blur():
    """By the covariances of points and averages, and never above its bound of second order."""
    for tau in (0.0, 0.03, 0.2, 1.0):
        kernel = GaussianMeasureKernel(LENGTH)
        pair = torch.tensor([[0.4, 0.0], [0.4, tau]], dtype=F64)
        gram = kernel(pair, pair).to_dense()
        expected = float(gram[0, 0] - 2 * gram[0, 1] + gram[1, 1])
        got = float(schedule.embedding_gap(tau, LENGTH))
        assert got**2 == pytest.approx(max(expected, 0.0), abs=1e-9)
        for dim in (1, 2, 5):
            assert (
                float(schedule.embedding_gap(tau, LENGTH, dim)) <= math.sqrt(dim * (dim + 2)) / 2 * (tau / LENGTH) ** 2
            )


def test_the_accounts_add_up_and_the_repaired_theorem_holds():
    steps = 6
    for name in ("no blur", "constant 2", "Theorem 2, 1/2"):
        part = schedule.accounts(name, steps, range(3))
        deviations = schedule.LENGTHSCALE * torch.tensor([schedule.SCHEDULES[name](t) for t in range(1, steps + 1)])
        gap = schedule.embedding_gap(deviations, schedule.LENGTHSCALE)
        multiplier = schedule.sqrt_beta(torch.arange(1, steps + 1))
        assert all(values.shape == (3, steps) for values in part.values())
        assert bool((part["search"] >= -1e-9).all()) and bool((part["simple"] >= -1e-9).all())
        assert bool((part["std"] <= part["blurred_std"] + gap + 1e-6).all())
        assert bool((part["search"] <= 2 * multiplier * part["std"]).all())
        assert bool(((part["regret"] - part["search"]).abs() <= multiplier * gap + 1e-9).all())
