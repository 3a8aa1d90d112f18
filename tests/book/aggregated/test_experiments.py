"""The published policies against a plain port of that code, the rule for everybody, Holm, and what is stored."""

import math

import numpy as np
import pytest
import torch

from book import runs
from book.aggregated import experiments, registry
from book.aggregated.problems import aggregated_reward_curve, curve_problem
from book.aggregated.published import published_prior, published_problem, published_sqrt_beta
from book.verdict import Paired, holm, paired
from cbo_lib.simulate import simulate
from tests.aggregated.helpers import noise_draws

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


def drawn(history, row, branching):
    """The nodes (depth, index) that a replicate asked."""
    low, high = history["query"][row, :, :, 0].unbind(-1)
    depth = (-torch.log(high - low) / math.log(branching)).round()
    return list(zip(depth.long().tolist(), (low / (high - low)).round().long().tolist(), strict=True))


@pytest.mark.parametrize(("curve", "branching", "points"), [("peaks", 2, 1), ("periodic", 2, 10), ("spike", 3, 10)])
def test_gpoo_is_that_of_the_published_code(curve, branching, points):
    problem = published_problem(curve, points, branching)
    history = simulate(problem, experiments.gpoo("published", problem, published_prior()), 40, [0, 5])
    for row, seed in enumerate([0, 5]):
        code = Code(problem, noise_draws(seed, 40), branching, points)
        values = torch.tensor([code.value(node) for node in plain_gpoo(code, 40)], dtype=torch.float64)
        assert drawn(history, row, branching) == code.nodes
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
    problem, _, policies = experiments.panel("published", "peaks", 1, 25)
    history = simulate(problem, policies["GPTree"], 25, [0, 5])
    for row, seed in enumerate([0, 5]):
        code = Code(problem, noise_draws(seed, 25), 2, 1)
        values = torch.tensor([code.value(n) for n in plain_gptree(code, 25)], dtype=torch.float64)
        assert drawn(history, row, 2) == code.nodes
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
    for budget in (12, 30):
        problem, _, policies = experiments.panel("published", "periodic", 1, budget)
        regret = problem.optimum - simulate(problem, policies["StoOO"], budget, [0, 1])["recommended_value"][:, -1]
        expected = [plain_stooo(problem, noise_draws(seed, budget), budget) for seed in (0, 1)]
        torch.testing.assert_close(regret, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_the_text_splits_a_cell_of_stooo_after_the_draw_that_makes_it_known():
    problem, _, policies = experiments.panel("text", "peaks", 1, 30)
    history = simulate(problem, policies["StoOO"], 30, [0])
    # A width of sqrt(log(30^2 / 0.1) / 2) is below 14, 7 and 3.5: these levels need one draw a cell.
    assert drawn(history, 0, 2)[0] == (0, 0)
    assert sorted(drawn(history, 0, 2)[1:3]) == [(1, 0), (1, 1)]


def test_the_settings_are_the_papers():
    assert published_sqrt_beta(80) == pytest.approx(np.sqrt(0.1 * np.log(np.pi**2 * 6400 / 0.6)))
    assert experiments.delta(torch.arange(3)).tolist() == [14, 7, 3.5]
    x = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    for curve in ("peaks", "periodic", "spike"):
        torch.testing.assert_close(curve_problem(curve).f(x), aggregated_reward_curve(curve)(x))
    assert float(published_problem("spike").optimum) == pytest.approx(0.983, abs=1e-3)


def test_one_rule_names_the_cell_of_the_best_posterior_mean():
    problem, known, policies = experiments.panel("text", "peaks", 10, 6)
    history = simulate(problem, policies["AVE-StoOO"], 6, [3, 4])
    for row in range(2):
        x = [np.linspace(*cell, 21)[1::2] for cell in history["query"][row, :, :, 0].numpy()]
        centers = [np.linspace(i / 8, (i + 1) / 8, 21)[1::2] for i in range(8)]

        def cov(a, b):
            return np.array([[k(p, q, 0.05).mean() for q in b] for p in a])

        weights = np.linalg.solve(cov(x, x) + 0.01 * np.eye(6), history["observation"][row].numpy())
        best = int((cov(centers, x) @ weights).argmax())
        value = problem.f(torch.from_numpy(centers[best])[:, None]).mean()
        found = experiments.one_rule(history, problem, known, depth=3)[row]
        assert float(found) == pytest.approx(float(problem.optimum - value), abs=1e-10)


def pair(mean, error, n=30):
    from scipy.stats import t

    spread = error * t.ppf(0.975, n - 1)
    return Paired(mean, mean - spread, mean + spread, mean, 0.0, n)


def test_holm_leaves_out_zero_where_it_rejects():
    from scipy.stats import t

    pairs = {"a": pair(1.0, 0.1), "b": pair(0.5, 0.2), "c": pair(0.1, 0.06), "d": pair(-0.4, 0.14)}
    found = holm(pairs)
    values = {
        name: 2 * t.sf(abs(p.mean) / {"a": 0.1, "b": 0.2, "c": 0.06, "d": 0.14}[name], 29) for name, p in pairs.items()
    }
    rejected, order = set(), sorted(values, key=values.get)
    for rank, name in enumerate(order):
        if values[name] > 0.05 / (4 - rank):
            break
        rejected.add(name)
    assert {name for name, p in found.items() if p.verdict != "undecided"} == rejected == {"a", "b", "d"}
    assert list(found) == list(pairs)
    for name, p in found.items():
        assert p.low <= pairs[name].low and p.high >= pairs[name].high and p.mean == pairs[name].mean
    assert holm({"a": pairs["a"]})["a"].low == pytest.approx(pairs["a"].low)


def test_holm_is_wrong_as_rarely_as_it_says():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 10, 20, generator=generator)
    wrong = [
        any(
            p.verdict != "undecided"
            for p in holm({i: paired(torch.zeros(20), row) for i, row in enumerate(rows)}).values()
        )
        for rows in noise
    ]
    assert sum(wrong) / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_equal_runs_are_undecided():
    zero = torch.zeros(5)
    found = holm({"same": paired(zero, zero), "shifted": paired(zero, zero + 1)})
    assert [p.verdict for p in found.values()] == ["undecided", "holds"]


@pytest.mark.parametrize("name", ["figure_4", "figure_6", "census"])
def test_a_stored_table_says_what_made_it(name):
    frame = experiments.stored(name)
    assert frame.attrs["command"] == f"python -m book run aggregated.{name} --scale paper --publish"
    assert {len(end) for end in frame["end"]} == {len(registry.RUNS[name].seeds("", "paper"))}


def test_the_first_seeds_are_those_stored():
    table = experiments.stored("figure_4")
    run = experiments.figure_4("published", "peaks", 10, range(1000, 1002))
    for _, row in run.iterrows():
        key = {"setup": "published", "curve": "peaks", "S": 10, "policy": row["policy"]}
        for column in ("end", "one rule"):
            assert row[column] == pytest.approx(experiments.numbers(table, column, **key)[:2].tolist(), abs=2e-3)
    curves = experiments.stored("figure_5")
    live = experiments.figure_5(10, range(1000, 1002))["text"]
    np.testing.assert_allclose(live, curves["10/text"][:2], atol=2e-3)


def test_every_claim_has_its_pair():
    found = experiments.claims()
    assert {figure: sum(key[0] == figure for key in found) for figure in ("4", "5", "6", "census")} == {
        "4": 64,
        "5": 4,
        "6": 20,
        "census": 8,
    }
    with pytest.raises(ValueError, match="key must name one row"):
        experiments.numbers(experiments.stored("figure_4"), "end", policy="GPOO")


@pytest.mark.parametrize("name", registry.RUNS)
def test_a_figure_is_drawn_from_what_its_parts_give(name):
    experiment = registry.RUNS[name]
    parts = experiment.parts()[:: 3 if name == "figure_6" else 1]
    tasks = runs.plan(f"aggregated.{name}", parts, [0, 1], "reader", 3, "cpu")
    results = [experiment.work(task.part, task.seeds, task.scale, task.steps) for task in tasks]
    figure = experiment.draw(runs.joined(tasks, results))
    lines = [line for axis in figure.axes for line in axis.lines]
    if name == "figure_6":
        assert sum(axis.get_xlabel() == "children K" for axis in figure.axes) == 4
    else:
        assert all(len(line.get_xdata()) == 3 for line in lines) and len(lines) == {"figure_4": 40, "figure_5": 4}.get(
            name, 5
        )
