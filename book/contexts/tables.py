"""The tables of the paper, the rate of the density estimate, and the ledgers of both theorems.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from book.contexts import problems
from book.contexts.panels import POLICIES, Scale, budget, make_policy
from book.contexts.theory import PriorDraws, drawn_problem, slope_tail
from book.functions import interval
from cbo_lib.contexts.bounds import Constants, PowerLaw
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, Settings, TotalVariationRadius
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.regret import density_error, ledger
from cbo_lib.gp import GaussianProcess, rbf_kernel
from cbo_lib.information import greedy_information_gain
from cbo_lib.ledger import RegretLedger
from cbo_lib.random import ReplicateGenerators
from cbo_lib.simulate import simulate

#: Seconds of 100 evaluations on Ackley, mean and standard error over 10 runs ([Huang2024]_, Table 1).
PAPER_TABLE_1: Mapping[str, tuple[float, float]] = {
    "GP-UCB": (11.35, 0.40),
    "DRBO-MMD": (5254.65, 356.32),
    "DRBO-MMD-MinimaxApprox": (119.04, 2.61),
    "StableOpt": (32.75, 1.35),
    "SBO-KDE": (30.57, 1.06),
    "DRBO-KDE": (180.61, 6.90),
}

#: L1 distance of the density estimate, mean and standard error over 20 runs ([Huang2024]_, Table 2).
PAPER_TABLE_2: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "normal": {10: (0.3222, 0.0327), 100: (0.1315, 0.0088), 200: (0.1156, 0.0079), 300: (0.0962, 0.0083)},
    "complicated": {10: (0.6216, 0.0190), 100: (0.5380, 0.0333), 200: (0.4853, 0.0233), 300: (0.4724, 0.0258)},
}


def table_1(evaluations: int = 100, runs: int = 10, only: Iterable[str] | None = None) -> pd.DataFrame:
    """Seconds of evaluations on Ackley, of one run at a time and of a run in a batch ([Huang2024]_, Table 1).

    CPU time, so that other programs of a busy machine do not count; on one thread it is what a clock would show.

    Args:
        evaluations: of each run. The paper's are 100.
        runs: how many, from seed 100 on.
        only: which policies. Default all of ``POLICIES``.

    Returns:
        One row a policy: mean and standard error of the seconds of a run alone, those of a run when all run as one
        batch, and the paper's. ``frame.attrs`` says on what.
    """
    problem, rows = problems.ackley(), {}
    for name in POLICIES if only is None else only:
        alone = []
        for seed in range(100, 100 + runs):
            policy = make_policy(name, problem, Settings())
            start = time.process_time()
            simulate(problem, policy, evaluations, [seed], progress=False)
            alone.append(time.process_time() - start)
        start = time.process_time()
        simulate(problem, make_policy(name, problem, Settings()), evaluations, range(100, 100 + runs), progress=False)
        together = (time.process_time() - start) / runs
        spread = float(np.std(alone, ddof=1)) / runs**0.5 if runs > 1 else float("nan")
        paper, paper_error = PAPER_TABLE_1.get(name, (float("nan"), float("nan")))
        rows[name] = (float(np.mean(alone)), spread, together, paper, paper_error)
    columns = ["alone", "standard error", "in a batch", "paper", "paper's standard error"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    threads, cores = torch.get_num_threads(), os.cpu_count()
    frame.attrs = {
        "device": f"CPU ({platform.machine()}), {threads} thread{'s' * (threads > 1)} of {cores} cores",
        "evaluations": evaluations,
        "runs": runs,
        "torch": torch.__version__,
    }
    return frame


def save_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Store a table and what ``frame.attrs`` says of it, as JSON."""
    content = {"about": frame.attrs, "table": json.loads(frame.to_json(orient="split"))}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_table(path: str | Path) -> pd.DataFrame:
    """What ``save_table`` stored."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    frame = pd.DataFrame(**content["table"])
    frame.attrs = content["about"]
    return frame


def table_2(
    clipped: bool = False,
    runs: int = 20,
    counts: Sequence[int] = (10, 100, 200, 300),
    low: float = -1.0,
    high: float = 2.0,
) -> pd.DataFrame:
    """L1 distance of the density estimate to the density before clipping ([Huang2024]_, Appendix E, Table 2).

    The paper does not say where it integrates, nor whether samples are clipped first.

    Args:
        clipped: whether the samples are clipped onto [0, 1] before the estimate, as contexts are.
        runs: how many, from seed 0 on.
        counts: numbers of samples.
        low: where the integral begins.
        high: where it ends.

    Returns:
        One row a distribution and count: mean and standard error, the paper's, and the difference in combined standard
        errors.
    """
    rows = {}
    for name, make in (("normal", problems.hartmann), ("complicated", problems.complicated_hartmann)):
        distribution = make().distribution
        for count in counts:
            samples = distribution.sample(ReplicateGenerators(range(runs)).generators, (count,), clip=clipped)
            errors = GaussianKDE(samples).total_variation(distribution.density, low, high)
            mean, error = float(errors.mean()), float(errors.std()) / runs**0.5
            paper, paper_error = PAPER_TABLE_2[name].get(count, (float("nan"), float("nan")))
            apart = (mean - paper) / (error**2 + paper_error**2) ** 0.5
            rows[name, count] = (mean, error, paper, paper_error, apart)
    columns = ["mean", "standard error", "paper", "paper's standard error", "standard errors apart"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.index = pd.MultiIndex.from_tuples(rows, names=["distribution", "samples"])
    return frame


def density_rate(
    problem: ContextProblem,
    counts: Sequence[int] = (10, 20, 50, 100, 200, 500, 1000),
    runs: int = 20,
    clipped: bool = False,
) -> tuple[Tensor, PowerLaw]:
    """How fast the density estimate of one context approaches the density before clipping.

    Args:
        problem: with one context.
        counts: numbers of samples.
        runs: how many, from seed 0 on.
        clipped: whether the samples are clipped into the box before the estimate.

    Returns:
        L1 distances ``runs x len(counts)``, and the power law fitted to their means; [Huang2024]_ has the slope
        ``-2 / (4 + Dc)``.
    """
    draws = problem.distribution.sample(ReplicateGenerators(range(runs)).generators, (max(counts),), clipped)
    errors = density_error(draws, problem, counts)
    return errors, PowerLaw.fit(torch.tensor(counts), errors.mean(0))


def theorem_constants(lengthscale: float = 0.2, noise_std: float = 0.1) -> Constants:
    """The constants of the bounds for draws of a known prior with one decision and one context.

    ``b`` is twice the standard deviation of a derivative, and ``a`` the least that covers the suprema of 300 draws.
    ``density`` is the largest mean of ``|p - p_hat_t|_1 t^(2/5)`` over 20 runs of ``density_rate``.

    Args:
        lengthscale: of the prior.
        noise_std: of the observations.
    """
    slopes = PriorDraws(lengthscale, range(1000, 1300)).slopes()
    b = 2 / lengthscale
    counts = (5, 10, 20, 50, 100, 200)
    errors, _ = density_rate(drawn_problem([0], lengthscale), counts)
    scaled = errors.mean(0) * torch.tensor(counts, dtype=errors.dtype) ** 0.4
    return Constants(slope_tail(slopes, b), b, 1.0, 1, 1, noise_std, float(scaled.max()))


def theorem_ledgers(
    scale: Scale = "paper", sqrt_beta: float | None = None, lengthscale: float = 0.2, noise_std: float = 0.1
) -> dict[str, RegretLedger]:
    """SBO-KDE and DRBO-KDE on draws of a known prior, term by term beside the bounds of Theorems 1 and 2.

    Args:
        scale: 30 draws and 100 evaluations, or 10 draws and 40 evaluations.
        sqrt_beta: the multiplier of the standard deviation. Default: that of Theorem 1.
        lengthscale: of the prior, in one decision and one context.
        noise_std: of the observations.

    Returns:
        A ledger each.

    Raises:
        ValueError: for another scale.
    """
    budget(scale)  # refuses another
    seeds, steps, samples = (range(30), 100, 1024) if scale == "paper" else (range(10), 40, 256)
    constants, prior = theorem_constants(lengthscale, noise_std), GaussianProcess(rbf_kernel(lengthscale), noise_std)
    settings = Settings(initial=3, sqrt_beta=constants.sqrt_beta if sqrt_beta is None else sqrt_beta, prior=prior)
    problem, radius = drawn_problem(seeds, lengthscale, noise_std), TotalVariationRadius(1)
    axis = interval(problem.bounds, 21)[:, 0]
    greedy = greedy_information_gain(prior.kernel, torch.cartesian_prod(axis, axis), noise_std, steps)[1:]
    gain = greedy * math.e / (math.e - 1)  # an upper bound of the maximum
    runs = {
        "SBO-KDE": (SBOKDE(problem, settings, samples), None),
        "DRBO-KDE": (DRBOKDE(problem, settings, samples, cover=samples), radius),
    }
    return {
        name: ledger(simulate(problem, policy, steps, seeds), problem, settings, constants, gain, delta)
        for name, (policy, delta) in runs.items()
    }
