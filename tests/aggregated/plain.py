"""The policies of the aggregated setting as a reader would write them from the papers.

One replicate, plain NumPy, everything computed anew in every round, and nothing taken from the library.
Nodes are pairs ``(depth, index)``, cells are arrays ``2 x d``. Each policy takes the noise as one standard
normal a round.
"""

import math
from dataclasses import dataclass, field

import numpy as np

ROOT = (0, 0)
TIE = 1e-9


def rbf(x, z, lengthscale, variance):
    squared = sum(np.subtract.outer(x[:, j], z[:, j]) ** 2 for j in range(x.shape[1]))
    return variance * np.exp(squared / (-2 * lengthscale**2))


def factors(count):
    found, divisor = [], 2
    while count > 1:
        while count % divisor == 0:
            found.append(divisor)
            count //= divisor
        divisor += 1
    return sorted(found, reverse=True)


def cut(cell, parts):
    """Equal parts across the longest side, the first of equal ones."""
    size = cell[1] - cell[0]
    side = next(j for j in range(len(size)) if size[j] >= size.max() * (1 - 1e-9))
    pieces = []
    for i in range(parts):
        piece = cell.copy()
        piece[0, side] = cell[0, side] + size[side] * i / parts
        piece[1, side] = cell[0, side] + size[side] * (i + 1) / parts
        pieces.append(piece)
    return pieces


def representatives(cell, count):
    """Centers of equal sub-cells, ``count x d``."""
    pieces = [cell]
    for factor in factors(count):
        pieces = [small for piece in pieces for small in cut(piece, factor)]
    return np.array([piece.mean(0) for piece in pieces])


@dataclass
class World:
    """The function, the cells and the noise."""

    f: object  # points m x d to values m
    dim: int = 1
    branching: int = 2
    points: int = 10
    noise_std: float = 0.1

    def root(self):
        return np.array([np.zeros(self.dim), np.ones(self.dim)])

    def value(self, cell):
        return float(self.f(representatives(cell, self.points)).mean())


@dataclass
class Round:
    """What one round leaves behind."""

    node: tuple
    observation: float
    expanded: bool
    width: float
    recommended: tuple
    means: dict  # of every node, after the round


@dataclass
class Tree:
    """The dictionary of nodes, the leaves and the expanded ones."""

    world: World
    cells: dict = field(default_factory=dict)
    leaves: set = field(default_factory=lambda: {ROOT})
    expanded: list = field(default_factory=list)

    def __post_init__(self):
        self.cells[ROOT] = self.world.root()

    def expand(self, node):
        h, i = node
        children = {
            (h + 1, self.world.branching * i + j): c for j, c in enumerate(cut(self.cells[node], self.world.branching))
        }
        self.cells.update(children)
        self.leaves.remove(node)
        self.leaves.update(children)
        self.expanded.append(node)

    def deepest_expanded(self):
        depth = max((h for h, _ in self.expanded), default=None)
        return [node for node in self.expanded if node[0] == depth]


def first_best(nodes, score):
    """The node of the largest score; of those within 1e-9 of it, the first by depth and index."""
    scores = {node: score[node] for node in nodes}
    largest = max(scores.values())
    return min(node for node, s in scores.items() if s >= largest - TIE or s == largest)


class Process:
    """Eq. 4, solved anew whenever it is asked."""

    def __init__(self, world, lengthscale, variance, noise_std):
        self.world, self.lengthscale, self.variance, self.noise_std = world, lengthscale, variance, noise_std
        self.cells, self.rewards = [], []

    def k(self, x, z):
        return rbf(x, z, self.lengthscale, self.variance)

    def points(self, cells):
        return np.concatenate([representatives(cell, self.world.points) for cell in cells])

    def averages(self, k, rows, columns):
        """``A k A^T`` where row i of A is 1/S at the points of cell i and zero elsewhere."""
        return k.reshape(rows, self.world.points, columns, self.world.points).mean((1, 3))

    def __call__(self, cells):
        """Posterior mean and standard deviation of the value of every cell, by node."""
        nodes = list(cells)
        x_star = self.points(cells.values())
        prior = np.array([self.k(p, p).mean() for p in np.split(x_star, len(nodes))])
        if not self.rewards:
            return dict.fromkeys(nodes, 0.0), dict(zip(nodes, np.sqrt(prior), strict=True))
        x, t = self.points(self.cells), len(self.cells)
        system = self.averages(self.k(x, x), t, t) + self.noise_std**2 * np.eye(t)
        cross = self.averages(self.k(x, x_star), t, len(nodes))
        solved = np.linalg.solve(system, np.column_stack([cross, self.rewards]))
        mean = cross.T @ solved[:, -1]
        variance = prior - (cross * solved[:, :-1]).sum(0)
        std = np.sqrt(np.maximum(variance, 0.0))
        return dict(zip(nodes, mean, strict=True)), dict(zip(nodes, std, strict=True))

    def learn(self, cell, reward):
        self.cells.append(cell)
        self.rewards.append(reward)


def union_beta(branching, failure, t):
    """Of the leaves that round t can have."""
    return 2 * math.log((1 + (branching - 1) * (t - 1)) * (math.pi**2 * t**2 / 6) / failure)


def gpoo(world, process, delta, noise, failure=0.1):
    """Algorithm 1."""
    tree, rounds = Tree(world), []
    mean, std = process(tree.cells)
    for t, draw in enumerate(noise, start=1):
        root_beta = math.sqrt(union_beta(world.branching, failure, t))
        width = {node: root_beta * std[node] for node in tree.leaves}
        b = {node: mean[node] + width[node] + delta(node[0]) for node in tree.leaves}
        drawn = first_best(tree.leaves, b)
        cell = tree.cells[drawn]
        reward = world.value(cell) + world.noise_std * draw
        process.learn(cell, reward)
        if delta(drawn[0]) >= width[drawn]:
            tree.expand(drawn)
        mean, std = process(tree.cells)  # of all rewards so far: named by now, and the b-values of the next round
        recommended = first_best(tree.deepest_expanded() or [ROOT], mean)
        rounds.append(Round(drawn, reward, drawn not in tree.leaves, width[drawn], recommended, mean))
    return tree, rounds


def optimistic(world, delta, noise, squared_width):
    """StoOO, with the squared width of a node that was drawn once as a function of the round."""
    tree, rounds, rewards = Tree(world), [], {}
    for t, draw in enumerate(noise, start=1):
        width = {n: math.sqrt(squared_width(t) / len(rewards[n])) if n in rewards else math.inf for n in tree.leaves}
        score = {n: np.mean(rewards.get(n, [0.0])) + width[n] + delta(n[0]) for n in tree.leaves}
        drawn = first_best(tree.leaves, score)
        reward = world.value(tree.cells[drawn]) + world.noise_std * draw
        rewards.setdefault(drawn, []).append(reward)
        if width[drawn] <= delta(drawn[0]):
            tree.expand(drawn)
        means = {node: np.mean(rewards[node]) if node in rewards else 0.0 for node in tree.cells}
        recommended = first_best(tree.deepest_expanded() or [ROOT], means)
        rounds.append(Round(drawn, reward, drawn not in tree.leaves, width[drawn], recommended, means))
    return tree, rounds


def stooo(world, delta, noise, budget, failure=0.1):
    return optimistic(world, delta, noise, lambda t: math.log(budget**2 / failure) / 2)


def ave_stooo(world, delta, noise, failure=0.1):
    return optimistic(world, delta, noise, lambda t: 2 * math.log(t**2 / failure))


def gp_tree(world, process, noise, budget, metric_bound, smoothness=1.0, u=2.0):
    """The policy of Shekhar and Javidi with v1 = C2 = C3 = D1 = 1."""
    k, rho = world.branching, world.branching ** (-1 / world.dim)
    root_beta = math.sqrt(math.log(budget) + u)
    max_depth = math.log(budget) * (1 + 1 / smoothness) / (2 * smoothness * math.log(1 / rho))
    c4 = 1 + 2 * math.log(budget**2 * math.pi**2 / 6)

    def variation(h):
        g = metric_bound(rho**h)
        return 4 * g * (math.sqrt(2 * u + c4 + h * math.log(k) + 4 * math.log(1 / g)) + 1)

    tree, rounds = Tree(world), []
    for draw in noise:
        while True:
            mean, std = process(tree.cells)
            upper = {node: mean[node] + root_beta * std[node] for node in tree.cells}
            score = {}
            for h, i in tree.leaves:
                from_parent = upper[h - 1, i // k] + variation(h - 1) if h else math.inf
                score[h, i] = min(upper[h, i], from_parent) + variation(h)
            drawn = first_best(tree.leaves, score)
            if root_beta * std[drawn] > variation(drawn[0]) or drawn[0] > max_depth:
                break
            tree.expand(drawn)
        cell = tree.cells[drawn]
        reward = world.value(cell) + world.noise_std * draw
        process.learn(cell, reward)
        means, _ = process(tree.cells)
        recommended = first_best(tree.deepest_expanded() or [ROOT], means)
        rounds.append(Round(drawn, reward, False, math.nan, recommended, means))
    return tree, rounds
