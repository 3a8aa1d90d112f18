"""What the library computes, written again in plain NumPy: dense, slow, and without its code."""

import numpy as np


def rbf(x, z, lengthscale=1.0, variance=1.0):
    x, z = np.asarray(x) / np.asarray(lengthscale), np.asarray(z) / np.asarray(lengthscale)
    return variance * np.exp(-0.5 * ((x[:, None, :] - z[None, :, :]) ** 2).sum(-1))


def matern52(x, z, lengthscale=1.0, variance=1.0):
    x, z = np.asarray(x) / np.asarray(lengthscale), np.asarray(z) / np.asarray(lengthscale)
    r = np.sqrt(5 * ((x[:, None, :] - z[None, :, :]) ** 2).sum(-1))
    return variance * (1 + r + r**2 / 3) * np.exp(-r)


def gram(kernel, a, b):
    """Covariance of two lists of weighted point sets ``(points p x d, weights p)``, from one dense matrix."""
    return _spread(a) @ kernel(*(np.concatenate([x for x, _ in m]) for m in (a, b))) @ _spread(b).T


def _spread(measures):
    """One row a set: its weights at the places of its points, zero elsewhere."""
    stop = np.cumsum([len(w) for _, w in measures])
    rows = np.zeros((len(measures), stop[-1]))
    for row, end, (_, w) in zip(rows, stop, measures, strict=True):
        row[end - len(w) : end] = w
    return rows


def sets(measure):
    """A measure without batch dimensions as a list of ``(points, weights)``."""
    points, weights = measure.points.detach().cpu().numpy(), measure.weights.detach().cpu().numpy()
    assert points.ndim == 3
    return list(zip(points, weights, strict=True))


def condition(kernel, observed, y, noise_std, queries, mean=lambda x: np.zeros(len(x))):
    """Mean and covariance of the queries given noisy observations: the textbook formula, solved densely."""
    noise = np.broadcast_to(np.asarray(noise_std, dtype=float), (len(observed),))
    k = gram(kernel, observed, observed) + np.diag(noise**2)
    cross = gram(kernel, observed, queries)
    prior = np.array([w @ mean(x) for x, w in queries])
    residual = np.asarray(y) - np.array([w @ mean(x) for x, w in observed])
    return prior + cross.T @ np.linalg.solve(k, residual), gram(kernel, queries, queries) - cross.T @ np.linalg.solve(
        k, cross
    )
