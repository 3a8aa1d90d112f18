"""The policies for unknown hyperparameters as a reader would write them from the paper.

One replicate, plain NumPy, every posterior solved anew by the textbook formula in every round, and nothing taken from
the library. Points are arrays ``n x d``, a query is an index, candidates are numbered from zero, and the noise is one
standard normal a round.
"""

import math
from dataclasses import dataclass

import numpy as np

TIE = 1e-9


def squared_distances(x, z):
    return sum(np.subtract.outer(x[:, j], z[:, j]) ** 2 for j in range(x.shape[1]))


def rbf(lengthscale):
    return lambda x, z: np.exp(squared_distances(x, z) / (-2 * lengthscale**2))


def periodic(period, lengthscale):
    def k(x, z):
        sines = sum(np.sin(math.pi * np.subtract.outer(x[:, j], z[:, j]) / period) ** 2 for j in range(x.shape[1]))
        return np.exp(-2 * sines / lengthscale**2)

    return k


def additive(groups, lengthscale):
    k = rbf(lengthscale)
    return lambda x, z: sum(k(x[:, list(g)], z[:, list(g)]) for g in groups)


def zero(x):
    return np.zeros(len(x))


@dataclass
class Prior:
    k: object
    m: object = zero


def posterior(prior, noise_std, x, y, z):
    """Mean and standard deviation at ``z`` given ``y`` at ``x`` ([Rasmussen2006], Eqs. 2.25 and 2.26)."""
    variance = np.ones(len(z)) * prior.k(z[:1], z[:1])[0, 0]  # all kernels here are stationary
    if len(x) == 0:
        return prior.m(z), np.sqrt(variance)
    cross = prior.k(x, z)
    solved = np.linalg.solve(prior.k(x, x) + noise_std**2 * np.eye(len(x)), np.column_stack([cross, y - prior.m(x)]))
    variance = variance - (cross * solved[:, :-1]).sum(0)
    return prior.m(z) + cross.T @ solved[:, -1], np.sqrt(np.maximum(variance, 0.0))


def log_likelihood(prior, noise_std, x, y):
    """Log density of ``y`` at ``x`` under the prior."""
    if len(x) == 0:
        return 0.0
    system, residual = prior.k(x, x) + noise_std**2 * np.eye(len(x)), y - prior.m(x)
    quadratic = residual @ np.linalg.solve(system, residual)
    return -0.5 * (quadratic + np.linalg.slogdet(system)[1] + len(x) * math.log(2 * math.pi))


def gain(prior, noise_std, x):
    """``0.5 log det(I + K / R^2)``."""
    return 0.5 * np.linalg.slogdet(np.eye(len(x)) + prior.k(x, x) / noise_std**2)[1] if len(x) else 0.0


def greedy_gain(prior, noise_std, points, n):
    """Gains after 0, ..., n points, each the one that makes the determinant largest."""
    chosen, gains = [], [0.0]
    for _ in range(n):
        options = np.array([gain(prior, noise_std, points[[*chosen, i]]) for i in range(len(points))])
        variances = noise_std**2 * np.expm1(2 * (options - gains[-1]))
        # Of those that tie but for rounding the first.
        chosen.append(int(np.argmax(variances >= variances.max() - 1e-9 * np.diag(prior.k(points, points)).max())))
        gains.append(options.max())
    return np.array(gains)


def xi(t, noise_std, candidates, failure):
    """Theorem 4.2."""
    return 2 * noise_std**2 * math.log(candidates * math.pi**2 * t**2 / (3 * failure))


def printed_beta(norm, noise_std, information, failure):
    """Theorem 4.1; the paper's beta multiplies the standard deviation."""
    return norm + noise_std * math.sqrt(2 * (information + 1 + math.log(2 / failure)))


def case_a_beta(n, t, failure):
    """Theorem 4.2, case A."""
    return math.sqrt(2 * math.log(n * math.pi**2 * t**2 / (3 * failure)))


@dataclass
class World:
    """The domain, f on it, the candidates and the noise."""

    points: np.ndarray
    values: np.ndarray
    priors: list
    noise_std: float

    def posteriors(self, seen, y):
        """Means and standard deviations of all candidates at all points, ``|U| x n`` each."""
        parts = [posterior(prior, self.noise_std, self.points[seen], np.array(y), self.points) for prior in self.priors]
        return np.stack([mean for mean, _ in parts]), np.stack([std for _, std in parts])

    def likelihoods(self, seen, y):
        x = self.points[seen]
        return np.array([log_likelihood(prior, self.noise_std, x, np.array(y)) for prior in self.priors])


@dataclass
class Round:
    """What one step leaves behind; ``t`` is one more than the observations before it."""

    t: int
    initial: bool
    index: int
    candidate: int
    pessimist: int
    center: int
    beta: np.ndarray
    mean: np.ndarray  # of every candidate at the asked point, before the observation
    std: np.ndarray
    observation: float = math.nan
    std_after: np.ndarray = None
    alive: list = None
    recommended: int = -1


def first_best(values):
    """The largest value; of those within 1e-9 of it, the first."""
    return int(np.flatnonzero(values >= np.max(values) - TIE)[0])


class Policy:
    """Chooses by an upper confidence bound; ``beta`` gives the multipliers ``|U|`` of round t."""

    def __init__(self, world, beta):
        self.world, self.beta, self.count = world, beta, len(world.priors)
        self.seen, self.y, self.rounds = [], [], []

    def run(self, noise, design=()):
        """Every round of one replicate."""
        world = self.world
        mean, std = world.posteriors(self.seen, self.y)
        for step, draw in enumerate(noise):
            t, initial = step + 1, step < len(design)
            beta = np.broadcast_to(self.beta(t), self.count)
            if initial:
                index, candidate, pessimist, center = design[step], -1, -1, design[step]
            else:
                index, candidate, pessimist, center = self.choose(t, mean, std, beta)
            r = Round(t, initial, index, candidate, pessimist, center, beta, mean[:, index], std[:, index])
            r.observation = world.values[index] + world.noise_std * draw
            self.seen.append(index)
            self.y.append(r.observation)
            self.rounds.append(r)
            mean, std = world.posteriors(self.seen, self.y)
            r.std_after = std[:, index]
            if not initial:
                self.learn(t)
            r.recommended = self.recommend(self.weights(t) @ mean)
        return self.rounds

    def choose(self, t, mean, std, beta):
        raise NotImplementedError

    def learn(self, t):
        pass

    def weights(self, t):
        raise NotImplementedError

    def recommend(self, average):
        """The told point of the largest averaged mean."""
        return self.seen[first_best(average[self.seen])]


class HEGPUCB(Policy):
    """Algorithm 1."""

    def __init__(self, world, beta, failure=0.1, eliminate=True, after=False, alive=None):
        super().__init__(world, beta)
        self.alive = [True] * self.count if alive is None else list(alive)
        self.failure, self.eliminate, self.after = failure, eliminate, after

    def choose(self, t, mean, std, beta):
        upper = mean + beta[:, None] * std
        upper[~np.array(self.alive)] = -math.inf
        index = first_best(upper.max(0))
        return index, first_best(upper[:, index]), -1, index

    def refutes(self, t, u, role):
        """Line 12 over the whole history."""
        own = [r for r in self.rounds if getattr(r, role) == u]
        errors = sum(r.observation - r.mean[u] for r in own)
        widths = sum(r.beta[u] * (r.std_after if self.after else r.std)[u] for r in own)
        return abs(errors) > math.sqrt(xi(t, self.world.noise_std, self.count, self.failure) * len(own)) + widths

    def drop(self, u):
        if sum(self.alive) > 1:
            self.alive[u] = False

    def learn(self, t):
        if self.eliminate and self.refutes(t, self.rounds[-1].candidate, "candidate"):
            self.drop(self.rounds[-1].candidate)

    def weights(self, t):
        self.rounds[-1].alive = list(self.alive)
        return np.array(self.alive) / sum(self.alive)


class HEStableOpt(HEGPUCB):
    """Algorithm 2, every pair of a point and a perturbation in turn."""

    def __init__(self, world, beta, epsilon, **options):
        super().__init__(world, beta, **options)
        n, x = len(world.points), world.points
        reach = epsilon * (1 + TIE)
        self.near = [[j for j in range(n) if math.dist(x[i], x[j]) <= reach] for i in range(n)]

    def choose(self, t, mean, std, beta):
        upper, lower = mean + beta[:, None] * std, mean - beta[:, None] * std
        left = [u for u in range(self.count) if self.alive[u]]
        worst = np.full(upper.shape, -math.inf)
        for u in left:
            worst[u] = [min(upper[u, j] for j in near) for near in self.near]
        center = first_best(worst.max(0))  # line 8
        near = self.near[center]
        lowest = [min(lower[u, j] for u in left) for j in near]
        index = near[first_best(-np.array(lowest))]  # line 9
        at = np.array([-lower[u, index] if self.alive[u] else -math.inf for u in range(self.count)])
        return index, first_best(worst[:, center]), first_best(at), center

    def learn(self, t):
        r = self.rounds[-1]
        if self.eliminate:  # both are judged by what was known before either was dropped
            verdicts = [self.refutes(t, r.candidate, "candidate"), self.refutes(t, r.pessimist, "pessimist")]
            for u, refuted in zip((r.candidate, r.pessimist), verdicts, strict=True):
                if refuted and self.alive[u]:
                    self.drop(u)

    def recommend(self, average):
        """One of those chosen, by its worst neighbor."""
        centers = [r.center for r in self.rounds]
        return centers[first_best(np.array([min(average[j] for j in self.near[i]) for i in centers]))]


class MaximumLikelihood(Policy):
    """The baseline MLE of section 7."""

    def select(self, t):
        return first_best(self.world.likelihoods(self.seen, self.y))

    def choose(self, t, mean, std, beta):
        u = self.select(t)
        index = first_best(mean[u] + beta[u] * std[u])
        return index, u, -1, index

    def weights(self, t):
        return np.eye(self.count)[self.select(t + 1)]


class AGPUCB(MaximumLikelihood):
    """Shrinks the most likely lengthscale by ``max(1, g(t))`` and takes the nearest candidate."""

    def __init__(self, world, beta, lengthscales, g, initial):
        super().__init__(world, beta)
        self.lengthscales, self.g, self.initial = np.array(lengthscales), g, initial

    def select(self, t):
        target = self.lengthscales[super().select(t)] / max(1.0, self.g(max(1, t - self.initial)))
        return int(np.argmin(np.abs(self.lengthscales - target)))


class ExpectedUCB(Policy):
    """The baseline ExpectedUCB of section 7: Bayes' rule with a uniform prior, or the likelihood's root of order n."""

    tempered = False

    def choose(self, t, mean, std, beta):
        index = first_best(self.weights(t) @ (mean + beta[:, None] * std))
        return index, -1, -1, index

    def weights(self, t):
        log = self.world.likelihoods(self.seen, self.y)
        log = log / max(1, len(self.y)) if self.tempered else log
        joint = np.exp(log - log.max())
        return joint / joint.sum()
