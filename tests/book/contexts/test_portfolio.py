"""The portfolio's objective: its Gaussian process, what is stored, what a reader may load, and the simulation."""

import clarabel
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy import stats

from book._tools import sample_portfolio as tool
from book.contexts.portfolio import Surrogate, fit_surrogate, load_portfolio
from book.contexts.problems import unit_box
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.distributions import Normal, Uniform

F64 = torch.float64


def daily_trade(held, forecast, curved, impact, kink, short, limit):
    """The positions that maximize forecast' w - w' curved w - impact |w - held|^2 - kink |w - held|_1 - short |w^-|_1.

    Returns them and minus the objective as a function.
    """
    n = len(held)
    # variables w, t >= |w - held|, s >= max(0, -w)
    quadratic = np.zeros((3 * n, 3 * n))
    quadratic[:n, :n] = 2 * (curved + impact * np.eye(n))
    cost = np.concatenate([-forecast - 2 * impact * held, np.full(n, kink), np.full(n, short)])
    eye, zero = np.eye(n), np.zeros((n, n))
    rows = [[eye, -eye, zero], [-eye, -eye, zero], [-eye, zero, -eye], [zero, zero, -eye], [eye, zero, zero]]
    rows = np.block([*rows, [-eye, zero, zero]])
    bounds = np.concatenate([held, -held, np.zeros(2 * n), np.full(2 * n, limit)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.NonnegativeConeT(6 * n)]
    upper = sp.csc_matrix(np.triu(quadratic))
    solution = clarabel.DefaultSolver(upper, cost, sp.csc_matrix(rows), bounds, cones, settings).solve()
    assert solution.status == clarabel.SolverStatus.Solved

    def loss(w):
        moved = w - held
        paid = impact * moved @ moved + kink * abs(moved).sum() + short * np.maximum(-w, 0).sum()
        return w @ curved @ w + paid - forecast @ w

    return np.array(solution.x)[:n], loss


def small(n=40, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=rng, dtype=F64)
    return x, torch.sin(4 * x[:, 0]) + x[:, 1] * x[:, 3] - x[:, 4].square()


@pytest.fixture(scope="module")
def fitted():
    return fit_surrogate(*small(150))


# ---- the Gaussian process


def test_the_surrogate_is_its_sum_written_out(rng):
    x, weights = torch.rand(7, 5, generator=rng, dtype=F64), torch.randn(7, generator=rng, dtype=F64)
    lengthscale = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.3], dtype=F64)
    surrogate = Surrogate(x, weights, lengthscale, torch.tensor(1.5, dtype=F64))
    points = torch.rand(3, 2, 5, generator=rng, dtype=F64)
    found = surrogate(points)
    assert found.shape == (3, 2)
    for at in np.ndindex(3, 2):
        gaps = (points[at] - x) / lengthscale
        expected = 1.5 + float((weights * (-0.5 * gaps.square().sum(-1)).exp()).sum())
        assert float(found[at]) == pytest.approx(expected, abs=1e-9)
    assert torch.autograd.gradcheck(surrogate, (points.requires_grad_(),), nondet_tol=1e-9)


def test_a_fit_is_the_posterior_mean_of_its_own_hyperparameters(fitted):
    """The weights solve the textbook system, for the variance and the noise that they imply."""
    x, y = small(150)
    lengthscale = fitted.lengthscale.numpy()
    scaled = x.numpy() / lengthscale
    kernel = np.exp(-0.5 * ((scaled[:, None] - scaled) ** 2).sum(-1))
    residual = y.numpy() - float(fitted.mean) - kernel @ fitted.weights.numpy()
    noise = residual / fitted.weights.numpy()  # (K + noise I) w = y - mean, with K of variance one
    assert np.ptp(noise) <= 1e-6 * noise.mean() and noise.mean() >= 1e-4 * (1 - 1e-6)
    assert float((fitted(x) - y).std()) < 0.05 * float(y.std())


def test_a_fit_predicts_what_it_has_not_seen(fitted):
    x, y = small(500, seed=9)
    assert float((fitted(x) - y).square().mean()) < 0.01 * float(y.var())


@pytest.mark.parametrize(
    ("marginals", "laws"),
    [
        ((Normal(0.5, 0.1), Normal(0.5, 0.1)), (stats.norm(0.5, 0.1), stats.norm(0.5, 0.1))),
        ((Uniform(), Normal(0.8, 0.3)), (stats.uniform(), stats.norm(0.8, 0.3))),
    ],
)
def test_the_expectation_is_a_double_integral(fitted, marginals, laws):
    """Inside of the box by scipy; the faces and corners of clipping by hand."""
    breaks = ((0.3, 0.5, 0.7),) * 2
    value = fitted.expectation(QuadratureDistribution(marginals, unit_box(2), breaks))
    x = torch.tensor([0.3, 0.6, 0.2], dtype=F64)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    grid = (nodes + 1) / 2
    places, masses = [], []
    for law in laws:
        places.append(np.concatenate([[0.0, 1.0], grid]))
        masses.append(np.concatenate([[law.cdf(0), law.sf(1)], weights / 2 * law.pdf(grid)]))
    table = torch.as_tensor(np.stack(np.meshgrid(*places, indexing="ij"), -1))
    full = torch.cat([x.expand(*table.shape[:2], 3), table], -1)
    expected = masses[0] @ fitted(full).numpy() @ masses[1]
    assert float(value(x)) == pytest.approx(expected, abs=1e-9)
    assert value(x.expand(4, 2, 3)).shape == (4, 2)


# ---- what is stored


def test_the_stored_surrogate_follows_the_simulation(rng):
    """At 40 of its own points, and at 40 that it has not seen."""
    surrogate, market = load_portfolio(), tool.Market()
    spread = float(surrogate(surrogate.x).std())
    seen = surrogate.x[torch.randperm(3000, generator=rng)[:40]]
    fresh = torch.rand(40, 5, generator=rng, dtype=F64)
    truth = tool.simulate(torch.cat([seen, fresh]), market)
    error = (surrogate(torch.cat([seen, fresh])) - truth).square().reshape(2, 40).mean(-1).sqrt()
    assert float(error[0]) < 0.1 * spread and float(error[1]) < 0.15 * spread


# ---- the simulation


def test_the_daily_trade_is_that_of_a_conic_solver(rng):
    """From random positions, for parameters of the whole range."""
    market = tool.Market(days=30)
    parameters = tool.unscale(torch.rand(12, 5, generator=rng, dtype=F64))
    held = 1.6 * torch.rand(12, tool.ASSETS, generator=rng, dtype=F64) - 0.8
    found = tool.best_positions(held, market.forecast[7], market.covariance, parameters, iterations=2000)
    for row, before, after in zip(parameters.tolist(), held.numpy(), found.numpy(), strict=True):
        risk, trade, holding, spread, borrowing = row
        curved, impact = risk / (1 - tool.DECAY) * market.covariance.numpy(), trade * tool.IMPACT
        arguments = curved, impact, trade * spread / 2, holding * borrowing, tool.LIMIT
        best, loss = daily_trade(before, market.forecast[7].numpy(), *arguments)
        np.testing.assert_allclose(after, best, atol=2e-4)
        assert loss(after) <= loss(best) + 1e-7


def test_a_day_by_hand():
    """One day, from cash: the growth of the chosen positions after the costs."""
    market = tool.Market(days=1)
    points = torch.tensor([[0.2, 0.5, 0.0, 0.3, 0.6]], dtype=F64)
    parameters = tool.unscale(points)
    expected = [0.1 * 1e4**0.2, 5.5 * (8 / 5.5) ** 0.5, 0.1, 1e-4 + 0.3 * 99e-4, 1e-4 + 0.6 * 9e-4]
    np.testing.assert_allclose(parameters[0].numpy(), expected)
    w = tool.best_positions(torch.zeros(1, 6, dtype=F64), market.forecast[0], market.covariance, parameters)[0]
    assert bool((w < 0).any()) and bool((w > 0).any())
    cost = expected[3] / 2 * float(w.abs().sum()) + tool.IMPACT * float(w.square().sum())
    cost += expected[4] * float(-w[w < 0].sum())
    growth = np.log1p(float(w @ market.returns[0]) - cost)
    assert float(tool.simulate(points, market)) == pytest.approx(100 * 250 * growth)
