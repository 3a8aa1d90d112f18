"""Regret, the ledger of both theorems, their bounds, and what the proofs assume."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from book.contexts.theory import drawn_problem
from cbo_lib.contexts import GaussianKDE, tv_worst_case
from cbo_lib.contexts.bounds import Constants, PowerLaw
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, Settings, TotalVariationRadius
from cbo_lib.contexts.regret import (
    contexts_seen,
    cumulative_regret,
    cumulative_reward,
    density_error,
    density_nodes,
    instantaneous_regret,
    ledger,
)
from cbo_lib.gp import GaussianProcess
from cbo_lib.information import greedy_information_gain
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import simulate
from tests.contexts import plain
from tests.contexts.helpers import F64, Always, hill

CONSTANTS = Constants(a=2.7, b=10.0, side=1.0, decision_dim=1, context_dim=1, noise_std=0.1, density=1.0)
LENGTHSCALE, SEEDS, STEPS, INITIAL = 0.2, range(4), 12, 3


@pytest.fixture(scope="module")
def gain():
    """An upper bound of the maximum information gain."""
    axis = torch.linspace(0, 1, 15, dtype=F64)
    greedy = greedy_information_gain(rbf_kernel(LENGTHSCALE), torch.cartesian_prod(axis, axis), 0.1, STEPS)
    return greedy[1:] * math.e / (math.e - 1)


def known(sqrt_beta=CONSTANTS.sqrt_beta):
    prior = GaussianProcess(rbf_kernel(LENGTHSCALE), 0.1)
    return Settings(initial=INITIAL, sqrt_beta=sqrt_beta, raw=48, starts=2, iterations=20, prior=prior)


@pytest.fixture(scope="module")
def runs(gain):
    """History and ledger of both algorithms on draws of the prior."""
    problem, settings, radius = drawn_problem(SEEDS, LENGTHSCALE), known(), TotalVariationRadius(1)
    found = {}
    for name, policy, delta in (
        ("SBO-KDE", SBOKDE(problem, settings, 256), None),
        ("DRBO-KDE", DRBOKDE(problem, settings, 256, cover=64), radius),
    ):
        history = simulate(problem, policy, STEPS, SEEDS, progress=False)
        found[name] = history, ledger(history, problem, settings, CONSTANTS, gain, delta)
    return problem, found


def test_regret_and_reward_add_up_what_was_recorded():
    problem = hill(noise_std=0.1)
    history = simulate(problem, SBOKDE(problem, Settings(initial=3, raw=8, starts=1, iterations=2), 8), 5, [1, 2])
    regret = instantaneous_regret(history, problem)
    contexts, weights = problem.expectation_nodes
    for r in range(2):
        for t in range(5):
            x = history["query"][r, t]
            value = float(weights @ problem.f(problem.join(x, contexts)))
            assert float(regret[r, t]) == pytest.approx(float(problem.optimum) - value, abs=1e-12)
    torch.testing.assert_close(cumulative_regret(history, problem)[:, -1], regret.sum(-1))
    torch.testing.assert_close(cumulative_reward(history)[:, -1], history["observation"][..., 1].sum(-1))
    assert contexts_seen(history).shape == (2, 5, 1)


@given(st.floats(-2, 2), st.floats(0.01, 100))
def test_a_power_law_is_recovered(slope, constant):
    t = torch.tensor([3, 10, 40, 200])
    fit = PowerLaw.fit(t, constant * t.double() ** slope)
    assert fit.slope == pytest.approx(slope, abs=1e-9)
    assert fit.constant == pytest.approx(constant, rel=1e-8)
    torch.testing.assert_close(fit(t), constant * t.double() ** slope)


def test_nodes_average_like_the_clipped_estimate(rng):
    seen = torch.rand(2, 9, 1, generator=rng, dtype=F64) * 1.5 - 0.3
    seen = seen.clamp(0, 1)
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    nodes = density_nodes(seen, bounds, each=400)
    assert nodes.shape == (2, 3600, 1)
    for r in range(2):
        estimate = stats.gaussian_kde(seen[r, :, 0].numpy(), bw_method=1.0)
        h = plain.bandwidth(seen[r].numpy())[0]
        estimate.set_bandwidth(h / seen[r, :, 0].numpy().std(ddof=1))
        inside = integrate.quad(lambda c, p=estimate: math.sin(3 * c) * p(c)[0], 0, 1, epsabs=1e-9)[0]
        tails = estimate.integrate_box_1d(1, np.inf) * math.sin(3)
        assert float((3 * nodes[r]).sin().mean()) == pytest.approx(inside + tails, abs=2e-4)


def test_nodes_in_two_dimensions_average_like_many_samples(rng):
    seen, bounds = torch.rand(1, 6, 2, generator=rng, dtype=F64), torch.tensor([[0.0] * 2, [1.0] * 2], dtype=F64)

    def g(c):
        return (c[..., 0] * 3).sin() * c[..., 1]

    samples = GaussianKDE(seen).sample(400_000, torch.Generator().manual_seed(0), bounds)
    assert float(g(density_nodes(seen, bounds, 256)).mean()) == pytest.approx(float(g(samples).mean()), abs=3e-3)
    constant = torch.full((1, 5, 2), 0.4, dtype=F64)
    torch.testing.assert_close(density_nodes(constant, bounds, 4), torch.full((1, 20, 2), 0.4, dtype=F64))


def test_the_distance_of_densities_is_that_of_scipy(rng):
    problem = hill()
    seen = 0.1 + 0.4 * torch.randn(2, 30, 1, generator=rng, dtype=F64)
    ours = density_error(seen, problem, [5, 30])
    for r in range(2):
        for k, n in enumerate((5, 30)):
            sample = seen[r, :n, 0].numpy()
            h = plain.bandwidth(sample[:, None])[0]
            c = np.linspace(-3, 3, 8193)
            estimate = stats.norm(sample, h).pdf(c[:, None]).mean(1)
            distance = np.trapezoid(np.abs(estimate - stats.norm(0.1, 0.4).pdf(c)), c)
            assert float(ours[r, k]) == pytest.approx(distance, abs=1e-6)


@pytest.mark.parametrize("name", ["SBO-KDE", "DRBO-KDE"])
def test_the_terms_add_up_to_the_regret(name, runs):
    problem, found = runs
    history, book = found[name]
    book.check_identity(1e-8)
    total = (problem.optimum.unsqueeze(-1) - history["value"])[:, INITIAL:].cumsum(-1)
    torch.testing.assert_close(book.regret, total, rtol=0, atol=1e-12)
    assert ("radius at x*" in book.terms) == (name == "DRBO-KDE")


@pytest.mark.parametrize("name", ["SBO-KDE", "DRBO-KDE"])
def test_the_terms_of_one_round_are_those_of_plain_numpy(name, runs):
    problem, found = runs
    history, book = found[name]
    r, step = 2, STEPS - 1
    t, sqrt_beta = step + 1, CONSTANTS.sqrt_beta(step + 1)
    delta = t**-0.4 if name == "DRBO-KDE" else 0.0
    seen, queries = history["observation"][r].numpy(), history["query"][r].numpy()
    nodes = density_nodes(contexts_seen(history)[r : r + 1, :step], problem.context_bounds)[0].numpy()
    cover = np.linspace(0, 1, 257)[:, None]
    model = plain.Model(np.array([LENGTHSCALE] * 2), 1.0, 0.0, 0.1)
    x, y = np.concatenate([queries, seen[:, :1]], 1)[:step], seen[:step, 1]

    def f(decision, contexts):
        points = torch.as_tensor(np.array([[*decision, *c] for c in contexts]))
        return problem.f(points.expand(len(SEEDS), -1, -1))[r].numpy()

    def worst(decision, g):
        return plain.tv_program(g(decision, nodes), g(decision, np.concatenate([nodes, cover])).min(), delta)

    def ucb(decision, contexts):
        return model.ucb(x, y, decision, contexts, sqrt_beta)

    best, asked = problem.maximizer[r].numpy(), queries[step]
    parts = math.ceil(CONSTANTS.parts(t))
    near = np.round(best * parts) / parts
    rule, weights = (part.numpy() for part in problem.expectation_nodes)
    expected = {
        "estimate at x*": weights @ f(best, rule) - f(best, nodes).mean(),
        "radius at x*": f(best, nodes).mean() - worst(best, f),
        "grid": worst(best, f) - worst(near, f),
        "optimism": worst(near, f) - worst(near, ucb),
        "maximization": worst(near, ucb) - worst(asked, ucb),
        "width": worst(asked, ucb) - worst(asked, f),
        "radius at x_t": worst(asked, f) - f(asked, nodes).mean(),
        "estimate at x_t": f(asked, nodes).mean() - weights @ f(asked, rule),
    }
    for term, cumulative in book.terms.items():
        last = float(cumulative[r, -1] - cumulative[r, -2])
        assert last == pytest.approx(expected[term], abs=1e-6)


def test_what_the_proofs_assert_is_counted(runs):
    _, found = runs
    for name, (_, book) in found.items():
        frame = book.claims_frame()
        for claim in ("estimate at x*", "estimate at x_t", "variances seen", "optimism, mean", "grid, mean"):
            assert frame.loc[claim, "failed"] == 0
        assert ("radius" in frame.index) == (name == "DRBO-KDE")
        # A sample average is maximized, and not the expectation: Eq. 10 holds up to that.
        left = book.claims["maximizer"].left
        assert float(left.max()) < 0.3
        bound = next(iter(book.bounds.values()))
        assert bool((bound > book.regret.mean(0)).all())
    radius = found["DRBO-KDE"][1].claims
    assert bool(radius["radius"].holds.all()) and bool(radius["radius, half the range"].holds.all())


def test_the_ledger_refuses_what_it_cannot_account(runs, gain):
    problem, found = runs
    history = found["SBO-KDE"][0]
    with pytest.raises(ValueError, match="settings must have the prior of f"):
        ledger(history, problem, Settings(), CONSTANTS, gain)
    design = simulate(problem, SBOKDE(problem, known(), 16), INITIAL, SEEDS, progress=False)
    with pytest.raises(ValueError, match="at least one round after its initial design"):
        ledger(design, problem, known(), CONSTANTS, gain)


def test_the_bounds_are_the_formulas_of_the_theorems(gain):
    a, b, c0, noise, dc, big = 2.7, 10.0, 1.0, 0.1, 1, STEPS
    beta = 2 * math.log(big**2 / math.sqrt(2 * math.pi)) + 2 * math.log(big**2 * a * b * math.sqrt(math.pi) / 2)
    c = 8 / math.log(1 + noise**-2)
    c2 = c * max(1.0, c0**2 * (4 + dc) / dc)
    c4 = a * b * 2 * math.sqrt(math.pi) / 2 + math.sqrt(2 / math.pi)
    gamma = float(gain[-1])
    delta = TotalVariationRadius(1)
    radii = np.array([delta(t) for t in range(1, big + 1)])
    expected = {
        "constant": math.pi**2 / 3,
        "widths": math.sqrt(beta * gamma * c2) * (math.sqrt(big ** (dc / (4 + dc))) + math.sqrt(big)),
        "estimate": 2 * c4 * c0 * (4 + dc) / (2 + dc) * big ** ((2 + dc) / (4 + dc)),
        "widths in the ball": math.sqrt(beta * gamma * c2) * math.sqrt(c / c2 * (radii**2).sum()),
        "radius": c4 * radii.sum(),
    }
    terms = CONSTANTS.theorem(gain, delta)
    assert {name: float(term[-1]) for name, term in terms.items()} == pytest.approx(expected, rel=1e-12)
    assert list(CONSTANTS.theorem(gain)) == ["constant", "widths", "estimate"]
    assert CONSTANTS.sqrt_beta(big) == pytest.approx(math.sqrt(beta))


# What the proofs say, and what is so.


def test_beta_may_be_negative_in_the_first_rounds():
    flat = Constants(a=1.0, b=1.0, side=1.0, decision_dim=1, context_dim=1, noise_std=0.1, density=1.0)
    assert flat.beta(1) == pytest.approx(-math.log(2 * math.pi) + 2 * math.log(math.sqrt(math.pi) / 2))
    assert flat.beta(1) < 0 < flat.beta(2)
    assert flat.sqrt_beta(1) == 0.0


def test_the_tail_of_lemma_6_is_an_inequality():
    sigma, mean = 0.7, -0.9
    exact = stats.norm(mean, sigma).expect(lambda v: v, lb=0)
    printed = sigma / math.sqrt(2 * math.pi) * math.exp(-(mean**2) / (2 * sigma**2))
    assert exact == pytest.approx(sigma * stats.norm.pdf(mean / sigma) + mean * stats.norm.cdf(mean / sigma), abs=1e-9)
    assert exact < 0.5 * printed


def test_lemma_3_lacks_the_number_of_coordinates():
    """``f(z) = sum_i a_i z_i`` with standard normal ``a_i`` meets Assumption 1 with a = 1 and b^2 = 2."""
    a, b = 1.0, math.sqrt(2)
    grid = np.linspace(0, 8, 4001)
    assert bool((2 * stats.norm.sf(grid) <= a * np.exp(-((grid / b) ** 2)) + 1e-12).all())
    printed = a * b * math.sqrt(math.pi) / 2
    largest = integrate.quad(lambda v: 1 - (2 * stats.norm.cdf(v) - 1) ** 6, 0, 12)[0]  # E max of six
    assert printed < largest < 6 * printed


def test_the_printed_constant_of_lemma_8_is_too_small_for_large_noise():
    """One observation of noise 2: ``sigma_1^2 = 1`` exceeds ``gamma_1`` times ``8 / log(1 + noise^2)``."""
    noise = 2.0
    gamma = 0.5 * math.log(1 + noise**-2)
    assert gamma * 8 / math.log(1 + noise**2) < 1.0
    assert gamma * 2 / math.log(1 + noise**-2) == pytest.approx(1.0)


def test_variances_at_other_contexts_are_not_bounded_by_the_gain():
    """If the context never changes, nothing is learned elsewhere: Lemma 8's second sum grows by one a round."""
    rounds, noise = 60, 0.1
    problem = drawn_problem([0], LENGTHSCALE, marginal=Always(0.0))
    settings = Settings(
        initial=2, raw=16, starts=1, iterations=5, prior=GaussianProcess(rbf_kernel(LENGTHSCALE), noise)
    )
    history = simulate(problem, SBOKDE(problem, settings, 4), rounds, [0], progress=False)
    assert bool((history["observation"][..., 0] == 0).all())
    model = plain.Model(np.array([LENGTHSCALE] * 2), 1.0, 0.0, noise)
    x = np.concatenate([history["query"][0].numpy(), np.zeros((rounds, 1))], 1)
    far = [model.posterior(x[:t], np.zeros(t), np.array([[*x[t, :1], 1.0]]))[1][0] ** 2 for t in range(1, rounds)]
    gain = 0.5 * np.linalg.slogdet(np.eye(rounds) + model.gram(x, x) / noise**2)[1]
    assert sum(far) > 0.999 * (rounds - 1)
    assert 2 / math.log(1 + noise**-2) * gain < 0.5 * sum(far)


@pytest.mark.parametrize("dc", [1, 2, 4])
def test_the_sums_of_powers_are_as_the_paper_bounds_them(dc):
    t = np.arange(1, 2001.0)
    assert bool((np.cumsum(t ** (-4 / (4 + dc))) <= (4 + dc) / dc * t ** (dc / (4 + dc))).all())
    assert bool((np.cumsum(t ** (-2 / (4 + dc))) <= (4 + dc) / (2 + dc) * t ** ((2 + dc) / (4 + dc))).all())


def test_a_ball_of_l1_radius_costs_half_of_what_holder_allows(rng):
    values = torch.randn(50, generator=rng, dtype=F64)
    for radius in (0.1, 0.7, 1.5):
        cost = float(values.mean() - tv_worst_case(values, values.amin(), radius))
        assert cost <= radius / 2 * float(values.max() - values.min()) + 1e-12
        assert cost <= radius * float(values.abs().max())
