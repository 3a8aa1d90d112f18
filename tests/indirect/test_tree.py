"""The tree of actions, and the sets of Algorithm 1."""

import math

import numpy as np
import pytest
import torch

from book.indirect.problems import unit_grid
from book.indirect.slips import PrintedCMETS
from cbo_lib.indirect import CMETS, ClippedGaussian, Nodes, UniformWindow
from tests.indirect import plain
from tests.indirect.helpers import SEEDS, UNIT, grams, identity, known, problem_of, ripple, run

LEVELS = 3


def tree_problem(levels=LEVELS, windows=False, noise=True):
    nodes = Nodes.complete(UNIT, levels)
    cost = nodes.cost()
    conditional = UniformWindow() if windows else ClippedGaussian(identity, lambda a: a[..., 2] / 2, UNIT)
    return problem_of(ripple, unit_grid(5), nodes.actions, conditional, 0.5 / cost, cost, 21), nodes


class Watched(CMETS):
    """Keeps the sets before every round."""

    def begin(self):
        super().begin()
        self.seen = []

    def propose(self):
        self.seen.append((self.leaf.clone(), self.child.clone()))
        return super().propose()


class WatchedAsPrinted(Watched, PrintedCMETS):
    pass


WATCHED = {"partition": Watched, "printed": WatchedAsPrinted}


def box(action):
    return action[:-1] - action[-1], action[:-1] + action[-1]


@pytest.mark.parametrize("levels", [0, 1, 2, 4])
def test_nodes_are_the_cells_of_grids_level_by_level(levels):
    nodes = Nodes.complete(UNIT, levels)
    assert nodes.level.tolist() == [level for level in range(levels + 1) for _ in range(4**level)]
    assert nodes.actions[0].tolist() == pytest.approx([0.5, 0.5, 0.5])
    for level in range(levels + 1):
        here = nodes.actions[nodes.level == level]
        assert here[:, 2].tolist() == pytest.approx([0.5 / 2**level] * 4**level)
        assert float(torch.cdist(here[:, :2], unit_grid(2**level)).amin(-1).max()) < 1e-6
        assert len(here[:, :2].mul(2**10).round().unique(dim=0)) == 4**level


def test_costs_are_those_of_section_7():
    nodes = Nodes.complete(UNIT, 4)
    expected = [0.5 * math.log2(1 / 2.0 ** -(level + 1)) for level in nodes.level.tolist()]
    np.testing.assert_allclose(nodes.cost(), expected, rtol=1e-9)
    diameter = 2 * nodes.actions[:, 2].numpy()
    np.testing.assert_allclose(nodes.cost(), 0.5 * np.log2(2 / diameter), rtol=1e-9)


@pytest.mark.parametrize("sampling", ["gumbel", "thompson"])
def test_the_leaves_always_partition_the_box(sampling):
    problem, nodes = tree_problem()
    policy = Watched(problem.space, nodes=nodes, prior=known(problem), samples=3, sampling=sampling)
    history = run(problem, policy, 25)
    policy.seen.append((policy.leaf, policy.child))
    cells = unit_grid(2**LEVELS)
    low, high = box(nodes.actions.T)
    contains = ((cells[:, None] > low.T) & (cells[:, None] < high.T)).all(-1)  # finest cells x nodes
    for t, (leaf, child) in enumerate(policy.seen):
        for r in range(len(SEEDS)):
            leaves = leaf[r].nonzero().flatten()
            assert bool((contains[:, leaves].sum(-1) == 1).all())
            assert float((4 * nodes.actions[leaves, 2] ** 2).sum()) == pytest.approx(1.0, abs=1e-9)
            children = {c for c in nodes.children[leaves].flatten().tolist() if c >= 0}
            assert set(child[r].nonzero().flatten().tolist()) == children
            if t < 25:
                assert int(history["query"][r, t]) in children | set(leaves.tolist())
    assert torch.equal(history["level"], nodes.level[history["query"]])
    assert history["leaves"][:, -1].tolist() == policy.leaf.sum(-1).tolist()
    assert int(history["level"].max()) == LEVELS and bool((history["leaves"].diff() >= 0).all())


def test_a_node_that_is_asked_is_split_and_its_parent_too():
    problem, nodes = tree_problem()
    policy = Watched(problem.space, nodes=nodes, prior=known(problem), samples=3)
    history = run(problem, policy, 25)
    after = [*policy.seen[1:], (policy.leaf, policy.child)]
    for t in range(25):
        for r in range(len(SEEDS)):
            node, before, now = int(history["query"][r, t]), policy.seen[t][0][r], after[t][0][r]
            expected = set(before.nonzero().flatten().tolist())
            if node not in expected:
                expected = (expected - {int(nodes.parent[node])}) | set(nodes.children[nodes.parent[node]].tolist())
            if int(nodes.level[node]) < LEVELS:
                expected = (expected - {node}) | set(nodes.children[node].tolist())
            assert set(now.nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_the_printed_update_is_algorithm_1(levels):
    problem, nodes = tree_problem(levels)
    policy = WatchedAsPrinted(problem.space, nodes=nodes, prior=known(problem), samples=3)
    history = run(problem, policy, 25)
    policy.seen.append((policy.leaf, policy.child))
    children = [[c for c in row if c >= 0] for row in nodes.children.tolist()]
    deepest = (nodes.level == levels).tolist()
    for r in range(len(SEEDS)):
        sets = plain.printed_tree(children, nodes.parent.tolist(), deepest, history["query"][r].tolist())
        for t, (leaves, potential) in enumerate(sets):
            assert set(policy.seen[t][0][r].nonzero().flatten().tolist()) == leaves
            assert set(policy.seen[t][1][r].nonzero().flatten().tolist()) == potential
            if t < 25:
                assert int(history["query"][r, t]) in leaves | potential


@pytest.mark.parametrize("update", ["partition", "printed"])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_asked_node_has_the_most_information_per_cost(update, noisy):
    problem, nodes = tree_problem(2)
    prior = known(problem)
    policy = WATCHED[update](problem.space, nodes=nodes, prior=prior, samples=2, noisy=noisy)
    history = run(problem, policy, 8)
    gram, noise = grams(prior, 3), problem.noise.numpy()
    chosen_otherwise = 0
    for r in range(len(SEEDS)):
        for t in range(8):
            seen, y = history["query"][r, :t].tolist(), history["observation"][r, :t].numpy()
            mean, cov = plain.posterior(gram[r], seen, y, noise[seen])
            mean, std = mean[: problem.n], np.sqrt(np.diag(cov))[: problem.n]
            gammas = [(best - mean) / std for best in history["max_samples"][r, t].tolist()]
            correlation = std / np.hypot(std, noise[: problem.n])
            forms = {
                False: np.mean([plain.truncation_gain(gamma) for gamma in gammas], 0),
                True: np.mean([plain.noisy_gain(gamma, correlation) for gamma in gammas], 0),
            }
            forms = {key: gain / problem.space.cost.numpy() for key, gain in forms.items()}
            open_ = (policy.seen[t][0] | policy.seen[t][1])[r].numpy()
            query = int(history["query"][r, t])
            assert open_[query]
            for key, score in forms.items():
                if key is noisy:
                    assert score[query] >= score[open_].max() * (1 - (1e-3 if noisy else 1e-5))
                else:
                    chosen_otherwise += bool(score[query] < score[open_].max() * (1 - 1e-3))
    assert chosen_otherwise, "both forms choose the same: the test cannot tell them apart"


@pytest.mark.parametrize("update", ["partition", "printed"])
@pytest.mark.parametrize("budget", [0.5, 3.0, 8.2])
def test_the_budget_is_never_exceeded(update, budget):
    problem, nodes = tree_problem()
    policy = WATCHED[update](problem.space, nodes=nodes, prior=known(problem), budget=budget, samples=3)
    history = run(problem, policy, 18)
    assert bool((history["cost"].sum(-1) <= budget + 1e-9).all())
    torch.testing.assert_close(history["cost"], problem.space.costs[history["query"]] * history["active"])
    idle = ~history["active"]
    assert bool((history["leaves"].diff() == 0)[idle[:, 1:]].all())
