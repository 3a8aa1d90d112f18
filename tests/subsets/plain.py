"""Variable subsets as a reader would write them from the paper.

One replicate, plain Python and NumPy, every posterior solved anew by the textbook formula, expectations as loops over
the draws of the free variables, and nothing taken from the library. Subsets are numbered from zero.

Line 4 of Algorithm 1 takes ``i = t mod m`` over ``t = 1, ..., m tau``, which begins with subset 1 and gives 0 for the
last; here ``i = (t - 1) mod m``. Line 11 must range over the rounds ``k < tau`` and take ``u_{k m + i - 1}``, the bound
by which line 5 chose in the round-robin order.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

TIE = 1e-9


def rbf(x, z, lengthscales, variance):
    x, z = np.atleast_2d(x) / lengthscales, np.atleast_2d(z) / lengthscales
    return variance * np.exp(-0.5 * ((x[:, None] - z[None]) ** 2).sum(-1))


@dataclass(frozen=True)
class World:
    """What a learner knows beforehand; ``contexts`` are the draws of the free variables, ``M x d``."""

    control_sets: tuple
    lengthscales: np.ndarray
    variance: float
    noise_std: float
    mean: float
    contexts: np.ndarray

    @property
    def m(self):
        return len(self.control_sets)

    @property
    def dim(self):
        return len(self.lengthscales)

    def completed(self, subset, point):
        """The full points ``[x^i, c^-i]``, one a draw."""
        points = []
        for context in self.contexts:
            full = context.copy()
            for variable in self.control_sets[subset]:
                full[variable] = point[variable]
            points.append(full)
        return np.array(points)

    def grid(self, subset, count):
        """Decisions of one subset, ``count`` values a variable."""
        axes = [np.linspace(0, 1, count) if j in self.control_sets[subset] else [0.5] for j in range(self.dim)]
        return np.array(list(itertools.product(*axes)))


class Belief:
    """A Gaussian process given noisy values ``y`` at points ``x``."""

    def __init__(self, world, x, y):
        self.world, self.x, self.y = world, np.asarray(x), np.asarray(y)

    def kernel(self, a, b):
        return rbf(a, b, self.world.lengthscales, self.world.variance)

    @property
    def system(self):
        return self.kernel(self.x, self.x) + self.world.noise_std**2 * np.eye(len(self.y))

    def moments(self, points):
        """Eq. 1, solved anew."""
        mean = np.full(len(points), self.world.mean)
        variance = np.full(len(points), self.world.variance)
        if not len(self.y):
            return mean, np.sqrt(variance)
        cross = self.kernel(self.x, points)
        solved = np.linalg.solve(self.system, np.column_stack([cross, self.y - self.world.mean]))
        variance = variance - (cross * solved[:, :-1]).sum(0)
        return mean + cross.T @ solved[:, -1], np.sqrt(np.maximum(variance, 0.0))

    def covariance(self, points):
        prior = self.kernel(points, points)
        if not len(self.y):
            return prior
        cross = self.kernel(self.x, points)
        return prior - cross.T @ np.linalg.solve(self.system, cross)

    def expected(self, subset, point):
        """``E mu`` and ``E sigma`` of one decision."""
        mean, std = self.moments(self.world.completed(subset, point))
        return mean.mean(), std.mean()

    def expected_bounds(self, subset, points, sqrt_beta):
        """``E[mu + sqrt_beta sigma]`` of many decisions of one subset."""
        full = np.concatenate([self.world.completed(subset, point) for point in points])
        mean, std = self.moments(full)
        return (mean + sqrt_beta * std).reshape(len(points), -1).mean(-1)


def first_best(values):
    """The largest value; of those within 1e-9 of it, the first."""
    return next(i for i, v in enumerate(values) if v >= max(values) - TIE)


def choice(ucb, cost_lcb, lcb_best, alpha, current):
    """Lines 16, 25 and 26; None where line 17 finds nothing."""
    s1 = []
    for i in range(len(ucb)):
        if ucb[i] > (1 - alpha) * lcb_best:
            s1.append(i)
    if not s1:
        return None
    least = min(cost_lcb[j] for j in s1)
    s3 = []
    for i in s1:
        if cost_lcb[i] == least:
            s3.append(i)
    return s3[first_best([current[i] for i in s3])]


def cost_bound(paid, horizon, spread=1.0):
    """Lines 22 to 24 for the costs that were paid for one subset; the paper's costs lie in [0, 1], the spread is 1."""
    return max(sum(paid) / len(paid) - spread * math.sqrt(2 * math.log(horizon) / len(paid)), 0.0)


class AlgorithmOne:
    """Algorithm 1 for one replicate, and what a choice left behind.

    ``today`` answers what the posterior says: ``today.tracked_lower()``, the largest expected lower bound of the
    candidates, and ``today.search(i, sign)``, ``E mu`` and ``E sigma`` of the decision of subset ``i`` that was found
    for the upper (1) or the lower bound (-1).
    """

    def __init__(
        self,
        world,
        budget,
        alpha=None,
        exploration_budget=None,
        rounds=None,
        horizon=None,
        sqrt_beta=2.0,
        cost_spread=1.0,
    ):
        self.m, self.sqrt_beta, self.budget, self.rounds, self.fixed = world.m, sqrt_beta, budget, rounds, horizon
        self.alpha = alpha or (lambda s: 0.1 / 2 ** (s // world.dim))
        self.spread = cost_spread
        self.exploration_budget = 0.6 * budget if exploration_budget is None else exploration_budget
        self.upper, self.lower = [math.inf] * self.m, -math.inf
        self.paid = [[] for _ in range(self.m)]
        self.step, self.begun, self.horizon, self.resets, self.played = 0, None, 1.0, 0, None

    def choose(self, today):
        """One pass through the loops of lines 3 and 13."""
        turn = self.step % self.m
        if turn == 0 and self.begun is None and self.step and self.enough():
            self.begun = self.step
        self.exploring = self.begun is None
        self.alpha_now = 0.0 if self.exploring else self.alpha(self.step - self.begun)

        lowest = today.tracked_lower()
        if self.played is not None:
            lowest = max(lowest, self.low(today.search(self.played, -1)))
        self.lower = max(self.lower, lowest)  # lines 10 and 14
        bounds = {}
        for i in range(self.m):
            if i == turn if self.exploring else self.passes(i):
                found = today.search(i, 1)
                bounds[i] = self.high(found)
                self.lower = max(self.lower, self.low(found))
                self.upper[i] = min(self.upper[i], bounds[i])  # lines 11 and 15
        self.good = [self.passes(i) for i in range(self.m)]  # line 16
        if not self.exploring and not any(self.good):  # lines 17 to 21
            self.resets += 1
            self.lower = lowest
            for i in range(self.m):
                found = today.search(i, 1)
                self.upper[i] = bounds[i] = self.high(found)
                self.lower = max(self.lower, self.low(found))
            if not any(self.passes(i) for i in range(self.m)):
                self.lower = -math.inf
            self.good = [self.passes(i) for i in range(self.m)]

        self.cost_lower = [cost_bound(paid, self.horizon, self.spread) if paid else 0.0 for paid in self.paid]
        if self.exploring:
            self.played = turn
        else:
            current = [bounds.get(i, -math.inf) for i in range(self.m)]
            self.played = choice(self.upper, self.cost_lower, self.lower, self.alpha_now, current)
        return self.played

    def pay(self, cost):
        self.paid[self.played].append(cost)
        self.step += 1

    def passes(self, i):
        return self.upper[i] > (1 - self.alpha_now) * self.lower

    def high(self, found):
        return found[0] + self.sqrt_beta * found[1]

    def low(self, found):
        return found[0] - self.sqrt_beta * found[1]

    def enough(self):
        """Whether exploration is over, before a round; then the horizon is set."""
        spent = sum(sum(paid) for paid in self.paid)
        averages = [sum(paid) / len(paid) for paid in self.paid]
        if self.rounds is not None:
            over = self.step >= self.rounds * self.m
        else:
            over = spent + sum(averages) > self.exploration_budget
        if over:
            left = max(self.budget - spent, 0.0)
            self.horizon = self.fixed or self.step + math.floor(left / max(min(averages), 1e-5 * self.budget))
        return over


def ucb_cvs(upper, costs, epsilon):
    """The cheapest of what comes within epsilon, then the largest bound of the equally cheap (Tay et al. 2023)."""
    near = [i for i in range(len(upper)) if upper[i] + epsilon >= max(upper)]
    cheap = [i for i in near if costs[i] == min(costs[j] for j in near)]
    return cheap[first_best([upper[i] for i in cheap])]


def etc(upper, sizes, step, plays):
    """The largest bound of the group whose turn it is, or of all (ETC-50 of the experiments)."""
    groups = sorted(set(sizes))[:-1]
    turn = step // plays if plays else len(groups)
    members = [i for i in range(len(sizes)) if turn >= len(groups) or sizes[i] == groups[turn]]
    return members[first_best([upper[i] for i in members])]


class Path:
    """A function from the posterior: random features, corrected by the data (Wilson et al. 2020, Eq. 13)."""

    def __init__(self, belief, frequency, phase, weight, noise):
        world = belief.world
        self.belief, self.frequency, self.phase = belief, frequency / world.lengthscales, phase
        self.weight = weight * math.sqrt(2 * world.variance / len(phase))
        self.correction = None
        if len(belief.y):
            gap = belief.y - self.drawn(belief.x) - world.noise_std * noise
            self.correction = np.linalg.solve(belief.system, gap)

    def drawn(self, points):
        """The draw from the prior."""
        return self.belief.world.mean + np.cos(points @ self.frequency.T + self.phase) @ self.weight

    def __call__(self, points):
        values = self.drawn(points)
        if self.correction is None:
            return values
        return values + self.belief.kernel(points, self.belief.x) @ self.correction

    def expected(self, subset, point):
        return self(self.belief.world.completed(subset, point)).mean()
