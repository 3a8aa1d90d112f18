"""The experiments in the configuration of the authors' code, against a plain port of that code."""

import math

import numpy as np
import pytest
import torch

from book.aggregated import experiments, published
from book.aggregated.problems import aggregated_reward_curve
from book.aggregated.published import CONFIGURATIONS, configured_gpoo, configured_problem
from cbo_lib.former.simulate import simulate
from tests.aggregated.helpers import noise_draws

PUBLISHED = CONFIGURATIONS["published"]
NOISE = 0.005


def k(x, z, lengthscale):
    return 0.1 * np.exp(-((x[:, None] - z[None]) ** 2) / (2 * lengthscale**2))


class Code:
    """What the published GPOO and GPTree share: nodes ``(depth, index)``, and variances that hold the noise."""

    def __init__(self, problem, noise, branching, points):
        self.problem, self.noise, self.branching, self.points = problem, noise, branching, points
        self.nodes, self.rewards = [], []

    def features(self, node):
        h, i = node
        return (i + (np.arange(self.points) + 0.5) / self.points) / self.branching**h

    def value(self, node):
        return float(self.problem.f(torch.tensor(self.features(node))[:, None]).mean())

    def draw(self, node):
        self.rewards.append(self.value(node) + 0.1 * self.noise[len(self.rewards)])
        self.nodes.append(node)

    def predict(self, node):
        x = np.concatenate([self.features(n) for n in self.nodes])
        t, s, z = len(self.nodes), self.points, self.features(node)
        gram = k(x, x, 0.05).reshape(t, s, t, s).mean((1, 3)) + NOISE * np.eye(t)
        cross = k(x, z, 0.05).reshape(t, s, -1).mean((1, 2))
        solved = np.linalg.solve(gram, np.column_stack([cross, self.rewards]))
        return cross @ solved[:, 1], k(z, z, 0.05).mean() - cross @ solved[:, 0] + NOISE

    def children(self, node):
        return [(node[0] + 1, self.branching * node[1] + j) for j in range(self.branching)]


def first_largest(scores):
    best = max(scores.values())
    return min(node for node, score in scores.items() if score >= best - 1e-9)


def plain_gpoo(code, steps):
    named, shown = (0, 0), []
    leaves = code.children((0, 0))
    for leaf in leaves:
        code.draw(leaf)
        named = leaf
        shown.append(named)

    def width(node):
        t = len(code.rewards)
        return math.sqrt(0.1 * math.log(math.pi**2 * t**2 / 0.6)) * math.sqrt(code.predict(node)[1])

    def scores():
        return {leaf: code.predict(leaf)[0] + width(leaf) + 14 * 2.0 ** -leaf[0] for leaf in leaves}

    b = scores()
    node = first_largest(b)
    while len(code.rewards) < steps:
        if 14 * 2.0 ** -node[0] >= width(node) and node[0] <= 10:
            del b[node]
            better = node[0] == named[0] and code.predict(node)[0] > code.predict(named)[0]
            if node[0] > named[0] or better:
                named = node
            leaves.remove(node)
            leaves += code.children(node)
        node = first_largest(b)
        code.draw(node)
        b = scores()
        shown.append(named)
    return shown


@pytest.mark.parametrize(("curve", "branching", "points"), [("peaks", 2, 1), ("periodic", 2, 10), ("spike", 3, 10)])
def test_gpoo_is_that_of_the_published_code(curve, branching, points):
    problem = configured_problem(curve, PUBLISHED, points, branching)
    policy = configured_gpoo(problem, curve, PUBLISHED, experiments.delta)
    history = simulate(problem, policy, 40, [0, 5])
    for row, seed in enumerate([0, 5]):
        code = Code(problem, noise_draws(seed, 40), branching, points)
        shown = plain_gpoo(code, 40)
        drawn = list(zip(history["depth"][row].tolist(), history["index"][row].tolist(), strict=True))
        assert drawn == code.nodes
        values = torch.tensor([code.value(node) for node in shown], dtype=torch.float64)
        torch.testing.assert_close(history["recommended_value"][row], values, rtol=0, atol=1e-10)


def plain_gptree(code, steps):
    named, shown, leaves, parent = (0, 0), [], [(0, 0)], {}
    multiplier = 0.25 * math.sqrt(math.log(steps) + 2)
    c4 = 1 + 2 * math.log(steps**2 * math.pi**2 / 6)
    deepest = math.log(steps) * 3 / math.log(2)

    def variation(h):
        g = 0.1 * 0.5**h
        return 4 * g * (math.sqrt(4 + c4 + h * math.log(2) + 4 * math.log(1 / g)) + 1)

    def upper(node):
        mean, var = code.predict(node)
        return mean + multiplier * math.sqrt(var)

    def score(node):
        own = upper(node)
        if node in parent:
            own = min(own, upper(parent[node]) + variation(node[0] - 1))
        return own + variation(node[0])

    code.draw((0, 0))
    shown.append(named)
    while len(code.rewards) < steps:
        node = first_largest({leaf: score(leaf) for leaf in leaves})
        if multiplier * math.sqrt(code.predict(node)[1]) <= variation(node[0]) and node[0] <= deepest:
            if node[0] > named[0]:
                named = node
            leaves.remove(node)
            for child in code.children(node):
                leaves.append(child)
                parent[child] = node
        else:
            code.draw(node)
            shown.append(named)
    return shown


def test_gptree_is_that_of_the_published_code():
    problem = configured_problem("peaks", PUBLISHED, 1)
    history = simulate(problem, published.published_gptree(problem, "peaks", 25, PUBLISHED), 25, [0, 5])
    for row, seed in enumerate([0, 5]):
        code = Code(problem, noise_draws(seed, 25), 2, 1)
        values = torch.tensor([code.value(n) for n in plain_gptree(code, 25)], dtype=torch.float64)
        drawn = list(zip(history["depth"][row].tolist(), history["index"][row].tolist(), strict=True))
        assert drawn == code.nodes
        torch.testing.assert_close(history["recommended_value"][row], values, rtol=0, atol=1e-10)


def plain_stooo(problem, noise, budget):
    """The published StoOO for one budget; its dictionary keeps the order in which leaves came."""
    scores, samples, named = {(0, 0): math.inf}, {}, (0, 0)
    for t in range(budget):
        node = max(scores, key=scores.get)
        h, i = node
        x = torch.tensor([[(i + 0.5) / 2**h]], dtype=torch.float64)
        seen = samples.setdefault(node, [])
        seen.append(float(problem.f(x)) + 0.1 * noise[t])
        square = math.log(budget**2 / 0.1) / (2 * len(seen))
        scores[node] = np.mean(seen) + square + 14 * 2.0**-h
        if len(seen) >= square:
            del scores[node]
            named = node if h > named[0] else named
            scores |= {(h + 1, 2 * i): math.inf, (h + 1, 2 * i + 1): math.inf}
    h, i = named
    return float(problem.optimum) - float(problem.f(torch.tensor([[(i + 0.5) / 2**h]], dtype=torch.float64)))


def test_stooo_is_that_of_the_published_code():
    problem = configured_problem("periodic", PUBLISHED, 1)
    regret = published.published_stooo(problem, 30, [0, 1])
    for row, seed in enumerate([0, 1]):
        expected = [plain_stooo(problem, noise_draws(seed, 30), budget) for budget in range(30)]
        torch.testing.assert_close(regret[row], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("t", [1, 2, 80])
def test_the_published_multiplier_is_that_of_the_published_code(t):
    expected = np.sqrt(0.1 * np.log(np.pi**2 * t**2 / (6 * 0.1)))
    assert published.published_sqrt_beta(t) == pytest.approx(expected, rel=1e-14)


def test_the_path_leads_from_the_text_to_the_published_code():
    steps = list(published.path())
    assert (steps[0][1], steps[-1][1]) == (CONFIGURATIONS["text"], CONFIGURATIONS["published"])
    assert len({setting for _, setting in steps}) == len(steps)


def test_curves_of_the_text_are_those_of_the_chapter():
    x = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    for curve in ("peaks", "periodic", "spike"):
        f = configured_problem(curve, CONFIGURATIONS["text"]).f
        torch.testing.assert_close(f(x), aggregated_reward_curve(curve)(x))
    assert float(configured_problem("spike", PUBLISHED).optimum) == pytest.approx(0.983, abs=1e-3)
