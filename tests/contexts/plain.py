"""The policies for unknown contexts as a reader would write them from the paper.

One replicate, plain NumPy and SciPy, every posterior solved anew by the textbook formula, every pair of a decision and
a context in turn, and nothing taken from the library. Random numbers come from the caller.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats


@dataclass
class Model:
    """A Gaussian process with an RBF kernel, a lengthscale a coordinate."""

    lengthscale: np.ndarray
    scale: float
    mean: float
    noise_std: float

    def kernel(self, a, b):
        return self.scale**2 * math.exp(
            -0.5 * sum(((p - q) / s) ** 2 for p, q, s in zip(a, b, self.lengthscale, strict=True))
        )

    def gram(self, a, b):
        return np.array([[self.kernel(p, q) for q in b] for p in a])

    def posterior(self, x, y, z):
        """Mean and standard deviation at the rows of ``z``."""
        system = self.gram(x, x) + self.noise_std**2 * np.eye(len(x))
        cross = self.gram(x, z)
        solved = np.linalg.solve(system, cross)
        mean = self.mean + solved.T @ (y - self.mean)
        variance = self.scale**2 - (cross * solved).sum(0)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def ucb(self, x, y, decision, contexts, sqrt_beta):
        """Upper bounds of one decision with each context."""
        points = np.array([[*decision, *c] for c in contexts])
        mean, std = self.posterior(x, y, points)
        return mean + sqrt_beta * std


def bandwidth(contexts):
    """Section 4.1."""
    n, d = contexts.shape
    std = [math.sqrt(sum((v - sum(c) / n) ** 2 for v in c) / (n - 1)) for c in contexts.T]
    return np.array([(4 / (d + 2)) ** (1 / (d + 4)) * s * n ** (-1 / (d + 4)) for s in std])


def kde_samples(contexts, u, low, high):
    """A context each, moved by its kernel, clipped into the box: from uniform numbers, the first for the context."""
    ordered = sorted(contexts.tolist(), key=lambda c: c[0])
    chosen = np.array([ordered[int(len(ordered) * first)] for first in u[:, 0]])
    return np.clip(chosen + bandwidth(contexts) * stats.norm.ppf(u[:, 1:]), low, high)


def tv_program(values, floor, radius):
    """The smallest expectation over distributions on the samples and one more place, within an L1 distance."""
    m = len(values)
    # variables: q (m + 1), then |q - p| (m + 1)
    p = np.append(np.full(m, 1 / m), 0.0)
    cost = np.concatenate([values, [min(floor, values.min())], np.zeros(m + 1)])
    eye = np.eye(m + 1)
    upper = np.block([[eye, -eye], [-eye, -eye], [np.zeros((1, m + 1)), np.ones((1, m + 1))]])
    limit = np.concatenate([p, -p, [radius]])
    total = np.concatenate([np.ones(m + 1), np.zeros(m + 1)])[None]
    solved = optimize.linprog(cost, upper, limit, total, [1.0], bounds=(0, None))
    return solved.fun


def mmd_program(values, reference, gram, radius):
    """The smallest expectation over distributions within a maximum mean discrepancy, by a general solver."""
    m = len(values)
    rules = [
        {"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(m)},
        {
            "type": "ineq",
            "fun": lambda q: radius**2 - (q - reference) @ gram @ (q - reference),
            "jac": lambda q: -2 * gram @ (q - reference),
        },
    ]
    best = math.inf
    for start in (reference, 0.5 * reference + 0.5 / m):
        found = optimize.minimize(
            lambda q: q @ values,
            start,
            jac=lambda q: values,
            bounds=[(0, 1)] * m,
            constraints=rules,
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-12},
        )
        off = max(abs(found.x.sum() - 1), (found.x - reference) @ gram @ (found.x - reference) - radius**2)
        if off < 1e-6:
            best = min(best, found.fun)
    return best


def minimax(values, reference, gram, radius, jitter=1e-3):
    """The midpoint of the tangent (or the minimum) and the chord."""
    m, worst, mean = len(values), values.min(), reference @ values
    corner = np.eye(m)[values.argmin()]
    reach = math.sqrt((corner - reference) @ gram @ (corner - reference))
    if radius >= reach:
        return worst
    inverse = np.linalg.inv(gram + jitter * np.eye(m))
    square = values @ inverse @ values - (inverse @ values).sum() ** 2 / inverse.sum()
    lower = max(mean - radius * math.sqrt(max(square, 0.0)), worst)
    return 0.5 * (lower + mean + (worst - mean) * radius / reach)


def grid(low, high, size):
    """``ceil(size^(1 / Dc))`` equally spaced points a coordinate."""
    count = math.ceil(size ** (1 / len(low)) - 1e-9)
    axes = [np.linspace(a, b, count) for a, b in zip(low, high, strict=True)]
    return np.array(np.meshgrid(*axes, indexing="ij")).reshape(len(low), -1).T


def empirical(contexts, points):
    """Each context counts at the nearest point."""
    weights = np.zeros(len(points))
    for c in contexts:
        weights[min(range(len(points)), key=lambda j: math.dist(c, points[j]))] += 1 / len(contexts)
    return weights


def discrepancy_kernel(model, points):
    """The model's kernel of contexts, one at distance zero."""
    zeros = [0.0] * (len(model.lengthscale) - points.shape[1])
    full = [[*zeros, *p] for p in points]
    return model.gram(full, full) / model.scale**2


def mmd_radius(t, gamma=0.1):
    """Section 4.1."""
    return (2 + math.sqrt(2 * math.log(1 / gamma))) / math.sqrt(t)


def stable_region(contexts, low, high, unit):
    """Points of the unit cube in one standard deviation around the mean, clipped into the box."""
    mean, std = contexts.mean(0), contexts.std(0, ddof=1)
    return np.clip(mean - std + 2 * std * unit, low, high)


def recommendation(model, x, y, decisions, contexts):
    """The decision of the largest posterior mean, averaged over the contexts seen."""
    merit = []
    for decision in decisions:
        points = np.array([[*decision, *c] for c in contexts])
        merit.append(model.posterior(x, y, points)[0].mean())
    return decisions[int(np.argmax(merit))]
