"""Regret, the ledger of both theorems, their bounds, and what the proofs assume."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from book.contexts.regret import (
    Constants,
    cumulative_regret,
    cumulative_reward,
    density_error,
    density_nodes,
    instantaneous_regret,
    ledger,
    worst_weights,
)
from book.contexts.theory import drawn_problem
from book.information import greedy_information_gain
from cbo_lib.contexts import tv_worst_case
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, TotalVariationRadius
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
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


def known(kind, problem, **options):
    prior = GaussianProcess(rbf_kernel(LENGTHSCALE), 0.1)
    sqrt_beta = CONSTANTS.sqrt_beta
    effort = {"samples": 256, "initial": INITIAL, "raw": 48, "starts": 2, "iterations": 20}
    return kind(problem.space, sqrt_beta=sqrt_beta, **{"prior": prior, **effort, **options})


@pytest.fixture(scope="module")
def runs(gain):
    """History and ledger of both algorithms on draws of the prior."""
    problem, found = drawn_problem(SEEDS, LENGTHSCALE), {}
    policies = {"SBO-KDE": known(SBOKDE, problem), "DRBO-KDE": known(DRBOKDE, problem, cover=64)}
    for name, policy in policies.items():
        history = simulate(problem, policy, STEPS, SEEDS, progress=False)
        found[name] = history, ledger(history, problem, policy, CONSTANTS, gain)
    return problem, found


def test_regret_and_reward_add_up_what_was_recorded():
    problem = hill(noise_std=0.1)
    policy = SBOKDE(problem.space, samples=8, initial=3, raw=8, starts=1, iterations=2)
    history = simulate(problem, policy, 5, [1, 2], progress=False)
    regret = instantaneous_regret(history, problem)
    contexts, weights = problem.expectation_nodes
    for r in range(2):
        for t in range(5):
            x = history["query"][r, t]
            value = float(weights @ problem.f(problem.space.join(x, contexts)))
            assert float(regret[r, t]) == pytest.approx(float(problem.optimum) - value, abs=1e-9)
    torch.testing.assert_close(cumulative_regret(history, problem)[:, -1], regret.sum(-1))
    torch.testing.assert_close(cumulative_reward(history)[:, -1], history["observation"].sum(-1))


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
    torch.testing.assert_close(book.regret, total, rtol=0, atol=1e-9)
    assert ("radius at x*" in book.terms) == (name == "DRBO-KDE")


@pytest.mark.parametrize("name", ["SBO-KDE", "DRBO-KDE"])
def test_the_terms_of_one_round_are_those_of_plain_numpy(name, runs):
    problem, found = runs
    history, book = found[name]
    r, step = 2, STEPS - 1
    t, sqrt_beta = step + 1, CONSTANTS.sqrt_beta(step + 1)
    delta = t**-0.4 if name == "DRBO-KDE" else 0.0
    queries, contexts, y = (history[part][r].numpy() for part in ("query", "context", "observation"))
    nodes = density_nodes(history["context"][r : r + 1, :step], problem.space.contexts)[0].numpy()
    cover = np.linspace(0, 1, 257)[:, None]
    model = plain.Model(np.array([LENGTHSCALE] * 2), 1.0, 0.0, 0.1)
    x, y = np.concatenate([queries, contexts], 1)[:step], y[:step]

    def f(decision, contexts):
        points = torch.as_tensor(np.array([[*decision, *c] for c in contexts]))
        return problem.f(points.expand(len(SEEDS), -1, -1))[r].numpy()

    def worst(decision, g):
        return plain.tv_program(g(decision, nodes), g(decision, np.concatenate([nodes, cover])).min(), delta)

    def ucb(decision, contexts):
        return model.ucb(x, y, decision, contexts, sqrt_beta)

    best, asked = problem.maximizer[r].numpy(), queries[step]
    parts = math.ceil(CONSTANTS.parts(t))
    near = (np.floor(best * parts).clip(0, parts - 1) + 0.5) / parts
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


def test_the_bounds_are_the_formulas_of_the_theorems(gain):
    a, b, c0, noise, dc, big = 2.7, 10.0, 1.0, 0.1, 1, STEPS
    parts = math.ceil(big**2 * a * b * math.sqrt(math.pi) / 2)  # a whole number of cells
    beta = 2 * math.log(big**2 / math.sqrt(2 * math.pi)) + 2 * math.log(parts)
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
    assert {name: float(term[-1]) for name, term in terms.items()} == pytest.approx(expected, rel=1e-9)
    assert list(CONSTANTS.theorem(gain)) == ["constant", "widths", "estimate"]
    assert CONSTANTS.sqrt_beta(big) == pytest.approx(math.sqrt(beta))
    distance = sum(c0 * t ** (-2 / (4 + dc)) for t in range(1, big + 1))
    expected = {
        "grid": sum(1 / t**2 for t in range(1, big + 1)),
        "optimism": sum(1 / t**2 for t in range(1, big + 1)),
        "widths": math.sqrt(c * beta * gamma * big) / 2,
        "widths moved": math.sqrt(beta) / 2 * distance,
        "estimate": 2 * c4 * distance,
        "radius": (c4 + math.sqrt(beta) / 2) * radii.sum(),
    }
    terms = CONSTANTS.proven(gain, delta)
    assert {name: float(term[-1]) for name, term in terms.items()} == pytest.approx(expected, rel=1e-9)
    assert "radius" not in CONSTANTS.proven(gain)


@pytest.mark.parametrize("radius", [0.0, 0.3, 1.0, 2.0])
def test_the_worst_distribution_takes_the_most_and_gives_it_to_the_least(radius, rng):
    of, values = torch.rand(2, 3, 40, generator=rng, dtype=F64)
    q = worst_weights(of, radius, 30)
    torch.testing.assert_close((q * of).sum(-1), tv_worst_case(of[:, :30], of.amin(-1), radius))
    for r in range(3):
        weights = np.where(np.arange(40) < 30, 1 / 30, 0.0)
        left = radius / 2
        for i in np.argsort(-of[r, :30].numpy()):
            taken = min(left, 1 / 30)
            weights[i] -= taken
            weights[int(of[r].argmin())] += taken
            left -= taken
        assert float(q[r] @ values[r]) == pytest.approx(weights @ values[r].numpy())


# What the proofs say, and what is so.


def test_lemma_3_lacks_the_number_of_coordinates():
    """``f(z) = sum_i a_i z_i`` with standard normal ``a_i`` meets Assumption 1 with a = 1 and b^2 = 2."""
    a, b = 1.0, math.sqrt(2)
    grid = np.linspace(0, 8, 4001)
    assert bool((2 * stats.norm.sf(grid) <= a * np.exp(-((grid / b) ** 2)) + 1e-9).all())
    printed = a * b * math.sqrt(math.pi) / 2
    largest = integrate.quad(lambda v: 1 - (2 * stats.norm.cdf(v) - 1) ** 6, 0, 12)[0]  # E max of six
    assert printed < largest < 6 * printed


def test_variances_at_other_contexts_are_not_bounded_by_the_gain():
    """If the context never changes, nothing is learned elsewhere: Lemma 8's second sum grows by one a round."""
    rounds, noise = 60, 0.1
    problem = drawn_problem([0], LENGTHSCALE, marginal=Always(0.0))
    prior = GaussianProcess(rbf_kernel(LENGTHSCALE), noise)
    policy = SBOKDE(problem.space, samples=4, initial=2, raw=16, starts=1, iterations=5, prior=prior)
    history = simulate(problem, policy, rounds, [0], progress=False)
    assert bool((history["context"] == 0).all())
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
        assert cost <= radius / 2 * float(values.max() - values.min()) + 1e-9
        assert cost <= radius * float(values.abs().max())
