"""The problems of the experiments: functions by hand, expectations by other rules, optima by other means."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from book.contexts.problems import ackley, complicated_hartmann, hartmann, modified_branin, newsvendor, portfolio
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.distributions import Normal
from cbo_lib.random import ReplicateGenerators
from tests import accelerator

F64 = torch.float64
ALL = {
    "ackley": ackley,
    "ackley 4": functools.partial(ackley, 4),
    "branin": modified_branin,
    "hartmann": hartmann,
    "complicated hartmann": complicated_hartmann,
    "newsvendor": newsvendor,
    "portfolio": portfolio,
    "portfolio uniform": functools.partial(portfolio, "uniform"),
}


@functools.cache
def problem(name):
    return ALL[name]()


def decisions(one, count, seed=0):
    """Random decisions, then the best one."""
    x = torch.rand(count, one.space.decision_dim, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return torch.cat([x, one.maximizer[None]])


# ---- the functions


def test_ackley_by_hand():
    x, c = torch.tensor([0.3, 0.9], dtype=F64), torch.tensor([0.45], dtype=F64)
    z = [65.536 * t - 32.768 for t in (0.3, 0.9, 0.45)]
    root, waves = math.sqrt(sum(t * t for t in z) / 3), sum(math.cos(2 * math.pi * t) for t in z) / 3
    assert float(problem("ackley").evaluate(x, c)) == pytest.approx(
        20 * math.exp(-0.2 * root) + math.exp(waves) - 20 - math.e
    )
    middle = torch.full((2,), 0.5, dtype=F64)
    assert float(problem("ackley").evaluate(middle, middle[:1])) == pytest.approx(0.0, abs=1e-9)
    # As printed, with a plus before the first term, the best point would be worth 2 a: no minimum, no maximum there.
    printed = 20 * math.exp(-0.2 * root) - math.exp(waves) + 20 + math.e
    assert printed > 20


def branin(u, v):
    return (
        (v - 5.1 / (4 * math.pi**2) * u**2 + 5 / math.pi * u - 6) ** 2 + 10 * (1 - 1 / (8 * math.pi)) * np.cos(u) + 10
    )


def test_modified_branin_by_hand():
    x, c = torch.tensor([0.3, 0.9], dtype=F64), torch.tensor([0.45, 0.2], dtype=F64)
    expected = -math.sqrt(branin(15 * 0.3 - 5, 15 * 0.45) * branin(15 * 0.2 - 5, 15 * 0.9))
    assert float(problem("branin").evaluate(x, c)) == pytest.approx(expected)


# BoTorch holds these in single precision.
ALPHA = np.array([1.0, 1.2, 3.0, 3.2], dtype=np.float32).astype(float)
A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]],
    dtype=np.float32,
).astype(float)
P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann_by_hand(y, alpha=ALPHA):
    return alpha @ np.exp(-(A * (y - P) ** 2).sum(-1))


def test_hartmann_by_hand():
    y = np.array([0.2, 0.8, 0.4, 0.1, 0.6, 0.3])
    for name in ("hartmann", "complicated hartmann"):
        found = problem(name).evaluate(torch.as_tensor(y[:5]), torch.as_tensor(y[5:]))
        assert float(found) == pytest.approx(hartmann_by_hand(y), rel=1e-5)
    # The published optimum of the standard function, which the weight 2 of the paper's print does not have.
    best = np.array([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573])
    assert hartmann_by_hand(best) == pytest.approx(3.32237, abs=1e-5)
    printed = -optimize.minimize(lambda y: -hartmann_by_hand(y, np.array([1.0, 2.0, 3.0, 3.2])), best).fun
    assert printed > 3.3224 + 1e-4


def test_newsvendor_by_hand():
    for x, c, profit in ((0.5, 0.2, 9 * 0.2 + 0.3 - 2.5), (0.2, 0.5, 9 * 0.2 - 1.0), (0.0, 0.4, 0.0)):
        found = problem("newsvendor").evaluate(torch.tensor([x], dtype=F64), torch.tensor([c], dtype=F64))
        assert float(found) == pytest.approx(profit)


# ---- the expectations


@pytest.mark.parametrize("name", ["ackley", "ackley 4", "branin", "hartmann", "complicated hartmann", "newsvendor"])
def test_values_are_the_means_of_a_million_quasi_random_contexts(name):
    """2^20 contexts: 8 scrambles of 2^17, whose spread says how far their mean may be off."""
    one = problem(name)
    x = decisions(one, 1)
    means = []
    for seed in range(8):
        u = torch.quasirandom.SobolEngine(one.space.context_dim, scramble=True, seed=seed).draw(2**17, dtype=F64)
        contexts = one.distribution.from_uniform(u)
        means.append(torch.stack([one.f(one.space.join(row, contexts)).mean() for row in x]))
    means = torch.stack(means)
    error = means.std(0) / math.sqrt(8)
    assert float(error.max()) < 2e-4
    assert bool(((means.mean(0) - one.value(x)).abs() <= 6 * error + 1e-9).all())


@pytest.mark.parametrize("name", ["portfolio", "portfolio uniform"])
def test_the_values_of_portfolios_are_the_means_of_quasi_random_contexts(name):
    one = problem(name)
    x = decisions(one, 1)
    means = []
    for seed in range(8):
        u = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(2**10, dtype=F64)
        means.append(torch.stack([one.f(one.space.join(row, one.distribution.from_uniform(u))).mean() for row in x]))
    means = torch.stack(means)
    error = means.std(0) / math.sqrt(8)
    assert float(error.max()) < 5e-3
    assert bool(((means.mean(0) - one.value(x)).abs() <= 6 * error).all())


@pytest.mark.parametrize("name", ["ackley", "portfolio", "portfolio uniform"])
def test_formulas_are_the_rules(name):
    """Two ways to the expectation that have nothing in common but f."""
    one = problem(name)
    contexts, weights = one.expectation_nodes
    x = decisions(one, 3)
    if name == "ackley":  # near the center, where the kink of the root is
        x = torch.cat([x, 0.5 + torch.tensor([[1e-3, 0.0], [1e-5, 1e-6]], dtype=F64)])
    by_rule = torch.stack([one.f(one.space.join(row, contexts)) @ weights for row in x])
    torch.testing.assert_close(one.value(x), by_rule, rtol=0, atol=one.value_error)


def clipped_normal(function, mean, std):
    """E of a clipped normal context, by Simpson's rule of scipy on a fine grid."""
    law, c = stats.norm(mean, std), np.linspace(0, 1, 20_001)
    return integrate.simpson(function(c) * law.pdf(c), x=c) + law.cdf(0) * function(0.0) + law.sf(1) * function(1.0)


def test_ackley_with_four_contexts_is_a_product_rule_and_a_power():
    """Away from the kink the root is smooth enough for a product rule; the cosines are a power of one integral."""
    one, x = problem("ackley 4"), torch.tensor([[0.9, 0.2], [0.05, 0.75]], dtype=F64)
    rule = QuadratureDistribution((Normal(0.5, 0.15),) * 4, one.space.contexts, ((0.3, 0.5, 0.7),) * 4, order=6)
    contexts, weights = rule.nodes
    z = [(65.536 * part - 32.768).square().sum(-1) for part in (x, contexts)]
    root = (-0.2 * ((z[0].unsqueeze(-1) + z[1]) / 6).sqrt()).exp() @ weights
    single = clipped_normal(lambda c: np.exp(np.cos(2 * np.pi * (65.536 * c - 32.768)) / 6), 0.5, 0.15)
    waves = ((2 * math.pi * (65.536 * x - 32.768)).cos().sum(-1) / 6).exp() * single**4
    torch.testing.assert_close(one.value(x), 20 * root + waves - 20 - math.e, rtol=0, atol=1e-6)


def branin_factors():
    """E sqrt(h) over the context of either factor; f is minus their product."""
    first = lambda x: clipped_normal(lambda c: np.sqrt(branin(15 * x - 5, 15 * c)), 0.5, 0.1)  # noqa: E731
    second = lambda x: clipped_normal(lambda c: np.sqrt(branin(15 * c - 5, 15 * x)), 0.5, 0.1)  # noqa: E731
    return first, second


def test_branin_is_a_product_of_two_expectations():
    one, (first, second) = problem("branin"), branin_factors()
    for x, value in zip(decisions(one, 5).tolist(), one.value(decisions(one, 5)).tolist(), strict=True):
        assert value == pytest.approx(-first(x[0]) * second(x[1]), abs=one.value_error)


def mixture_pdf(c):
    means, stds = (0.1, 0.3, 0.4, 0.5, 0.7, 0.8), (0.02, 0.075, 0.1, 0.1, 0.075, 0.03)
    parts = [stats.norm.pdf(c, m, s) for m, s in zip(means, stds, strict=True)]
    return (sum(parts) + stats.cauchy.pdf(c, 0.2, 0.02) + stats.cauchy.pdf(c, 0.8, 0.02)) / 8


def expected_bumps(name):
    """E exp(-A_i6 (c - P_i6)^2) for the four terms of Hartmann's function, by scipy."""
    bumps = [lambda c, i=i: np.exp(-A[i, 5] * (c - P[i, 5]) ** 2) for i in range(4)]
    if name == "hartmann":
        return np.array([clipped_normal(bump, 0.5, 0.1) for bump in bumps])
    cuts, found = [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.4, 0.6, 0.75, 0.8, 0.85, 1], []
    mass = [sum(integrate.quad(mixture_pdf, *ends, limit=500)[0] for ends in ((-np.inf, -9), (-9, -1), (-1, 0)))]
    mass.append(sum(integrate.quad(mixture_pdf, *ends, limit=500)[0] for ends in ((1, 2), (2, 10), (10, np.inf))))
    for bump in bumps:
        pieces = [
            integrate.quad(lambda c, b=bump: b(c) * mixture_pdf(c), *ends, epsabs=1e-13)[0]
            for ends in itertools.pairwise(cuts)
        ]
        found.append(sum(pieces) + mass[0] * bump(0.0) + mass[1] * bump(1.0))
    return np.array(found)


@pytest.mark.parametrize("name", ["hartmann", "complicated hartmann"])
def test_hartmanns_expectation_and_optimum(name):
    one, weights = problem(name), ALPHA * expected_bumps(name)

    def value(y):
        return weights @ np.exp(-(A[:, :5] * (np.asarray(y) - P[:, :5]) ** 2).sum(-1))

    for x, found in zip(decisions(one, 6).tolist(), one.value(decisions(one, 6)).tolist(), strict=True):
        assert found == pytest.approx(value(x), abs=one.value_error)
    best = optimize.differential_evolution(lambda y: -value(y), [(0, 1)] * 5, rng=1, tol=1e-12, polish=True)
    assert float(one.optimum) == pytest.approx(-best.fun, abs=1e-8)
    np.testing.assert_allclose(one.maximizer.numpy(), best.x, atol=1e-4)


def test_the_contexts_are_those_of_the_appendix():
    """Draws against distributions of scipy, before clipping."""
    laws = {
        "ackley": stats.norm(0.5, 0.15).cdf,
        "ackley 4": stats.norm(0.5, 0.15).cdf,
        "branin": stats.norm(0.5, 0.1).cdf,
        "hartmann": stats.norm(0.5, 0.1).cdf,
        "newsvendor": stats.burr12(2, 20).cdf,
        "portfolio": stats.norm(0.5, 0.1).cdf,
        "portfolio uniform": stats.uniform().cdf,
    }
    for name, law in laws.items():
        draws = problem(name).distribution.sample([torch.Generator().manual_seed(1)], (5000,), clip=False)[0]
        for k in range(draws.shape[-1]):
            assert stats.kstest(draws[:, k].numpy(), law).pvalue > 1e-3, (name, k)


# ---- the optima


def test_the_newsvendor_orders_the_median_of_the_demand():
    """The critical ratio (9 - 5) / (9 - 1) is one half; its quantile has a closed form."""
    one = problem("newsvendor")
    median = math.sqrt(0.5 ** (-1 / 20) - 1)
    assert median == pytest.approx(stats.burr12(2, 20).median())
    assert float(one.maximizer) == pytest.approx(median, abs=1e-6)
    law = stats.burr12(2, 20)
    for x in (0.0, 0.05, median, 0.4, 1.0):
        sold, _ = integrate.quad(law.sf, 0, x, epsabs=1e-13)
        profit = 9 * sold + (x - sold) - 5 * x
        assert float(one.value(torch.tensor([x], dtype=F64))) == pytest.approx(profit, abs=one.value_error)
    sold, _ = integrate.quad(law.sf, 0, median, epsabs=1e-13)
    assert float(one.optimum) == pytest.approx(8 * sold - 4 * median, abs=1e-9)


# ---- another device


@accelerator.needed
@pytest.mark.parametrize("name", ALL)
def test_on_a_gpu_everything_is_as_on_the_cpu(name):
    cpu, gpu = problem(name), ALL[name](device=torch.device(accelerator.DEVICE))
    x = decisions(cpu, 3)[:3]
    seen = [one.observe(x.to(one.space.like.device), ReplicateGenerators([1, 2, 3]).at(1)) for one in (cpu, gpu)]
    values = [(gpu.value(x.to(accelerator.DEVICE)), cpu.value(x)), (gpu.optimum, cpu.optimum)]
    for found, expected in [*values, *((seen[1][part], seen[0][part]) for part in ("context", "y"))]:
        assert found.device.type == accelerator.DEVICE
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-8)
