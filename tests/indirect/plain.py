"""Indirect queries as a reader would write them from the paper.

One replicate, plain NumPy, every posterior solved anew by the textbook formula in every round, and nothing taken from
the library. Places are numbered from zero, the actions first; the noise is one standard normal a round.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

TIE = 1e-9


def rbf(x, z, lengthscale, variance=1.0):
    x, z = np.asarray(x), np.asarray(z)
    return variance * np.exp(((x[:, None] - z[None]) ** 2).sum(-1) / (-2 * lengthscale**2))


def ridge_weights(a, query, lengthscale, regularization):
    """``W_t`` of Eq. 12, transposed."""
    system = rbf(a, a, lengthscale) + len(a) * regularization * np.eye(len(a))
    return np.linalg.solve(system, rbf(a, query, lengthscale)).T


def joint(x, weights, points, lengthscale):
    """Prior covariance of g at every action and f at every point, entry by entry."""
    sets = [(x, w) for w in weights] + [(p[None], np.ones(1)) for p in points]
    result = np.empty((len(sets), len(sets)))
    for i, (left, u) in enumerate(sets):
        for j, (right, v) in enumerate(sets):
            result[i, j] = u @ rbf(left, right, lengthscale) @ v
    return result


def first_best(values, allowed=True):
    """The largest allowed value; of those within 1e-9 of it, the first."""
    values = np.where(allowed, values, -np.inf)
    return int(np.flatnonzero(values >= values.max() - TIE)[0])


def posterior(gram, seen, y, noise):
    """Mean and covariance of all places given ``y`` at the places ``seen``."""
    if not len(seen):
        return np.zeros(len(gram)), gram
    cross = gram[seen]
    solved = np.linalg.solve(gram[np.ix_(seen, seen)] + np.diag(np.square(noise)), np.column_stack([cross, y]))
    return cross.T @ solved[:, -1], gram - cross.T @ solved[:, :-1]


def truncation_gain(gamma):
    """Eq. 14 for one sample."""
    return gamma * norm.pdf(gamma) / (2 * norm.cdf(gamma)) - norm.logcdf(gamma)


def noisy_gain(gamma, correlation):
    """Appendix A for one sample, on a fine grid: entropy of the standardized z less that of z given ``g <= f*``."""
    u = np.linspace(-12, 12, 6001)
    inside = (gamma[:, None] - correlation[:, None] * u) / np.sqrt(1 - correlation[:, None] ** 2)
    log_density = log_ndtr(inside) - log_ndtr(gamma)[:, None] + norm.logpdf(u)
    entropy = -(np.exp(log_density) * log_density).sum(-1) * (u[1] - u[0])
    return 0.5 * math.log(2 * math.pi * math.e) - entropy


def max_quantile(mean, std, level):
    """Where the product of the normal distribution functions is ``level``."""
    low, high = (mean - 10 * std).min(), (mean + 10 * std).max()
    return brentq(lambda y: ndtr((y - mean) / std).prod() - level, low, high, xtol=1e-12)


def gumbel(mean, std, uniform):
    """Inverse of the Gumbel distribution with the three quartiles of the maximum (Wang and Jegelka 2017, 3.1)."""
    first, median, third = (max_quantile(mean, std, level) for level in (0.25, 0.5, 0.75))
    b = (first - third) / (math.log(math.log(4 / 3)) - math.log(math.log(4)))
    a = median + b * math.log(math.log(2))
    return a - b * np.log(-np.log(uniform))


def score(mean, std, samples, noise, noisy):
    """Lines 4 and 5 of CMES: the information averaged over samples, in nats."""
    gammas = [(star - mean) / std for star in samples]
    if not noisy:
        return np.mean([truncation_gain(gamma) for gamma in gammas], 0)
    return np.mean([noisy_gain(gamma, std / np.hypot(std, noise)) for gamma in gammas], 0)


def improvement(mean, std, best):
    """Expected improvement over ``best``."""
    u = (mean - best) / std
    return (mean - best) * norm.cdf(u) + std * norm.pdf(u)


def partition(children, parent, queries):
    """The leaves of Algorithm 1, kept a partition, after each query."""
    leaves, history = {0}, []
    for a in queries:
        if a not in leaves:
            leaves = (leaves - {parent[a]}) | set(children[parent[a]])
        if children[a]:
            leaves = (leaves - {a}) | set(children[a])
        history.append(set(leaves))
    return history


def printed_tree(children, parent, deepest, queries):
    """The sets of Algorithm 1 after each query; a node of the last level has no children and stays a leaf."""
    leaves, potential = {0}, set(children[0])
    history = [(set(leaves), set(potential))]
    for a in queries:
        if a in potential:
            leaves = (leaves - {parent[a]}) | set(children[a])
            potential = potential - {a}
        else:
            leaves = (leaves - {a}) | set(children[a])
        if deepest[a]:
            leaves = leaves | {a}
        for i in leaves:
            potential = potential | set(children[i])
        history.append((set(leaves), set(potential)))
    return history
