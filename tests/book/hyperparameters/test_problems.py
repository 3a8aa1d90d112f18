"""The functions and candidates of the experiments are those of the paper."""

import math

import numpy as np
import pytest
import torch

from book.hyperparameters.problems import (
    Hills,
    draws_of_candidates,
    fit_period,
    four_sines,
    hidden_corner,
    hill_candidates,
    random_truth,
    slope_and_peak,
)
from cbo_lib.hyperparameters import Candidates
from cbo_lib.kernels import rbf_kernel
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, line


@pytest.mark.parametrize(("reading", "height"), [("peak", 1.0), ("density", 1 / (0.08 * math.sqrt(2 * math.pi)))])
def test_the_slope_and_the_peak_are_equation_13_in_both_readings(reading, height):
    for x in (0.0, 0.1, 0.2, 0.28, 0.55, 1.0):
        expected = 0.6 * x + 0.8 * height * math.exp(-((x - 0.2) ** 2) / (2 * 0.08**2))
        assert float(slope_and_peak(torch.tensor([x], dtype=F64), reading)) == pytest.approx(expected, rel=1e-9)
    values = slope_and_peak(line(5001), reading)
    top = float(line(5001)[values.argmax()])
    assert top == pytest.approx(0.2, abs=0.02)  # the peak exceeds the end of the slope
    assert float(values.max()) > 0.6 + 0.2
    assert torch.allclose(slope_and_peak(line(7)), slope_and_peak(line(7), "peak"))


def sine_at(u, phase):
    if u < 0.25:
        return math.sin(8 * math.pi * (u - 1 / 8))
    if u < 0.5:
        return 1.5 * math.sin(28 / 3 * math.pi * (1.0 if phase is None else u - phase))
    if u < 5 / 7:
        return 1.2 * math.sin(8 * math.pi * (u - 11 / 28))
    return 0.8 * math.sin(8 * math.pi * (u - 5 / 7))


@pytest.mark.parametrize("phase", [0.0, 0.25, None])
@pytest.mark.parametrize("u", [0.0, 0.1, 0.249, 0.25, 0.31, 0.499, 0.5, 0.6, 0.714, 0.7143, 0.8, 0.999])
def test_the_four_sines_are_equation_14_on_every_piece(phase, u):
    for shift in (0.0, 1.0):
        x = torch.tensor([[u + shift]], dtype=F64)
        assert four_sines(x, phase).shape == (1,)
        assert float(four_sines(x, phase)) == pytest.approx(sine_at(u, phase), abs=1e-9)


def test_the_printed_second_sine_is_a_constant():
    printed = four_sines(line(50, 0.26, 0.49), None)
    assert float(printed.max() - printed.min()) < 1e-9
    assert float(printed[0]) == pytest.approx(1.5 * math.sin(28 / 3 * math.pi), rel=1e-9)
    assert four_sines(line(50, 0.26, 0.49)).unique().numel() > 20
    other = torch.cat([line(40, 0.0, 0.24), line(40, 0.5, 0.99)])
    assert torch.allclose(four_sines(other, None), four_sines(other))


def test_the_corner_is_hidden_from_sums_of_single_coordinates(rng):
    def f(a, b, c=0.0):
        return float(hidden_corner(torch.tensor([a, b, c], dtype=F64)))

    def mixed(a, b):
        return f(a, b) - f(a, 0.0) - f(0.0, b) + f(0.0, 0.0)

    low = [mixed(a, b) for a in np.linspace(0, 0.4, 9) for b in np.linspace(0, 0.4, 9)]
    assert max(map(abs, low)) < 1e-3
    assert mixed(0.85, 0.85) > 1.4
    for a, b, c in torch.rand(20, 3, generator=rng, dtype=F64).tolist():
        hills = 0.5 * sum(math.exp(-((v - 0.25) ** 2) / (2 * 0.25**2)) for v in (a, b))
        corner = 1.5 * math.exp(-((a - 0.85) ** 2 + (b - 0.85) ** 2) / (2 * 0.15**2))
        assert f(a, b, c) == pytest.approx(hills + corner, rel=1e-9)
        assert f(a, b, 1 - c) == pytest.approx(hills + corner, rel=1e-9) == f(b, a, c)
    axes = torch.cartesian_prod(*[torch.linspace(0, 1, 101, dtype=F64)] * 2)
    best = axes[hidden_corner(axes).argmax()].tolist()
    assert best == pytest.approx([0.85, 0.85], abs=0.03)


@pytest.mark.parametrize("tallest", [-1, 0, 7, 9])
def test_hills_are_ten_bells_of_which_one_may_be_higher(tallest):
    mean = Hills(tallest, 5.0, 2.0, 0.03)
    for x in (0.0, 0.05, 0.13, 0.75, 0.951):
        total = 0.0
        for i in range(10):
            height = 7.0 if i == tallest else 5.0
            total += height * math.exp(-((x - 0.05 - 0.1 * i) ** 2) / (2 * 0.03**2))
        assert float(mean(torch.tensor([x], dtype=F64))) == pytest.approx(total, rel=1e-9)
    x = line(2001).reshape(3, 23, 29, 1)
    assert mean(x).shape == (3, 23, 29)
    values = mean(line(2001))
    if tallest >= 0:
        assert float(line(2001)[values.argmax()]) == pytest.approx(0.05 + 0.1 * tallest, abs=1e-3)


def test_hill_candidates_are_every_hill_and_none():
    candidates = hill_candidates(4.0, 1.0, 0.2)
    assert candidates.names == (*(f"hill {i}" for i in range(1, 11)), "none")
    assert candidates.means == (*(Hills(i, 4.0, 1.0) for i in range(10)), Hills(-1, 4.0, 1.0))
    x = line(6)
    for kernel in candidates.kernels:
        np.testing.assert_allclose(kernel(x).to_dense(), plain.rbf(0.2)(x.numpy(), x.numpy()), atol=1e-9)


def test_draws_have_the_moments_of_the_true_prior():
    count = 3000
    truth = torch.arange(count) % 3
    means = (0.0, 1.5, Hills(2, 1.0, 0.5))
    kernels = (rbf_kernel(0.1), rbf_kernel(0.3), rbf_kernel(0.2))
    f = draws_of_candidates(Candidates(("a", "b", "c"), kernels, means), truth, range(count))
    x = torch.tensor([[0.03], [0.2513], [0.31], [0.9]], dtype=F64)
    values = f(x.expand(count, 4, 1))
    for u, (scale, mean) in enumerate(zip((0.1, 0.3, 0.2), means, strict=True)):
        own = values[truth == u]
        expected = mean(x) if callable(mean) else torch.full((4,), mean, dtype=F64)
        error = 1 / math.sqrt(len(own))
        torch.testing.assert_close(own.mean(0), expected, rtol=0, atol=4.5 * error)
        k = torch.from_numpy(plain.rbf(scale)(x.numpy(), x.numpy()))
        torch.testing.assert_close(own.T.cov(), k, rtol=0, atol=4.5 * math.sqrt(2) * error)


def test_the_truth_is_uniform_and_of_each_seed_alone():
    truth = random_truth(11, range(2200))
    assert truth.shape == (2200,)
    assert torch.equal(truth[40:45], random_truth(11, range(40, 45)))
    counts = torch.bincount(truth, minlength=11).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 30  # the 0.999 quantile of chi squared with 10 degrees


@pytest.mark.parametrize("period", [0.25, 0.4, 1.0])
def test_the_period_of_a_pure_sine_is_found(period):
    periods, scales = torch.linspace(0.1, 1.2, 221, dtype=F64), torch.tensor([0.5, 1.0, 2.0], dtype=F64)
    found, _, _ = fit_period(lambda x: torch.sin(2 * math.pi * x[..., 0] / period), line(60, 0.0, 2.0), periods, scales)
    assert found == pytest.approx(period, abs=0.006)


def test_the_likelihood_of_every_period_and_lengthscale_is_the_plain_one():
    x = line(25, 0.0, 1.3)
    periods, scales = torch.tensor([0.2, 0.31, 0.9], dtype=F64), torch.tensor([0.3, 1.1], dtype=F64)
    period, scale, likelihood = fit_period(four_sines, x, periods, scales, 0.2)
    assert likelihood.shape == (3, 2)
    y = four_sines(x).numpy()
    by_hand = [
        [plain.log_likelihood(plain.Prior(plain.periodic(float(p), float(s))), 0.2, x.numpy(), y) for s in scales]
        for p in periods
    ]
    np.testing.assert_allclose(likelihood, by_hand, rtol=1e-9)
    row, column = np.unravel_index(np.argmax(by_hand), (3, 2))
    assert (period, scale) == (float(periods[row]), float(scales[column]))
