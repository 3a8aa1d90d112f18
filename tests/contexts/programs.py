"""The optimization problems of the worst cases, written out for general solvers: one solve a vector of values."""

import clarabel
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog


def _solve(cost, rows, bounds, cones):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    n = len(cost)
    solver = clarabel.DefaultSolver(sp.csc_matrix((n, n)), cost, sp.csc_matrix(rows), bounds, cones, settings)
    solution = solver.solve()
    assert solution.status in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved), solution.status
    return np.array(solution.x), solution.obj_val


def tv_primal(values, floor, radius):
    """Distributions on the samples and one more place within an L1 distance of equal weights, by linear programming."""
    m = len(values)
    v = np.append(values, floor)
    p = np.append(np.full(m, 1 / m), 0.0)
    # q, then the absolute differences
    cost = np.concatenate([v, np.zeros(m + 1)])
    eye = np.eye(m + 1)
    above = np.block([[eye, -eye], [-eye, -eye], [np.zeros((1, m + 1)), np.ones((1, m + 1))]])
    limit = np.concatenate([p, -p, [radius]])
    total = np.concatenate([np.ones(m + 1), np.zeros(m + 1)])[None]
    found = linprog(cost, A_ub=above, b_ub=limit, A_eq=total, b_eq=[1.0], method="highs")
    assert found.success
    return found.fun


def tv_dual(values, floor, radius):
    """The paper's two-dimensional convex program in alpha and beta; one more variable a sample for the minimum."""
    m = len(values)
    # variables alpha, beta, s_i <= min(v_i + beta, alpha); minimize beta + radius alpha - mean(s)
    cost = np.concatenate([[radius, 1.0], np.full(m, -1 / m)])
    eye, one, zero = sp.eye(m), np.ones((m, 1)), np.zeros((m, 1))
    rows = sp.vstack(
        [
            sp.hstack([zero, -one, eye]),  # s - beta <= v
            sp.hstack([-one, zero, eye]),  # s - alpha <= 0
            sp.csc_matrix(([-1.0], ([0], [0])), shape=(1, m + 2)),  # alpha >= 0
            sp.csc_matrix(([-1.0, -1.0], ([0, 0], [0, 1])), shape=(1, m + 2)),  # alpha + beta >= -floor
        ]
    )
    bounds = np.concatenate([values, np.zeros(m), [0.0, floor]])
    return -_solve(cost, rows, bounds, [clarabel.NonnegativeConeT(2 * m + 2)])[1]


def root(gram):
    """A square root of a kernel matrix, ``root' root = gram``, of its whole size."""
    eigenvalues, vectors = np.linalg.eigh(gram)
    return vectors.T * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None]


def mmd_cone(values, reference, half, radius):
    """The second-order cone program of the maximum mean discrepancy, for a root of the kernel matrix.

    Returns its minimizer and its minimum.
    """
    m = len(values)
    rows = sp.vstack([np.ones((1, m)), -sp.eye(m), np.zeros((1, m)), -half])
    bounds = np.concatenate([[1.0], np.zeros(m), [radius], -half @ reference])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(m), clarabel.SecondOrderConeT(len(half) + 1)]
    return _solve(values, rows, bounds, cones)


def discrepancy(q, p, gram):
    return np.sqrt(max(0.0, (q - p) @ gram @ (q - p)))


def daily_trade(held, forecast, curved, impact, kink, short, limit):
    """The positions that maximize forecast' w - w' curved w - impact |w - held|^2 - kink |w - held|_1 - short |w^-|_1.

    Returns them and minus the objective as a function.
    """
    n = len(held)
    # variables w, t >= |w - held|, s >= max(0, -w)
    quadratic = np.zeros((3 * n, 3 * n))
    quadratic[:n, :n] = 2 * (curved + impact * np.eye(n))
    cost = np.concatenate([-forecast - 2 * impact * held, np.full(n, kink), np.full(n, short)])
    eye, zero = np.eye(n), np.zeros((n, n))
    rows = [[eye, -eye, zero], [-eye, -eye, zero], [-eye, zero, -eye], [zero, zero, -eye], [eye, zero, zero]]
    rows = np.block([*rows, [-eye, zero, zero]])
    bounds = np.concatenate([held, -held, np.zeros(2 * n), np.full(2 * n, limit)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.NonnegativeConeT(6 * n)]
    upper = sp.csc_matrix(np.triu(quadratic))
    solution = clarabel.DefaultSolver(upper, cost, sp.csc_matrix(rows), bounds, cones, settings).solve()
    assert solution.status == clarabel.SolverStatus.Solved

    def loss(w):
        moved = w - held
        paid = impact * moved @ moved + kink * abs(moved).sum() + short * np.maximum(-w, 0).sum()
        return w @ curved @ w + paid - forecast @ w

    return np.array(solution.x)[:n], loss
