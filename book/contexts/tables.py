"""How well the density is estimated: Table 2 and the rate of the distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from book.contexts import problems
from book.contexts.problem import ContextProblem
from book.contexts.regret import density_distance, density_error
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.random import ReplicateGenerators

#: L1 distance of the density estimate, mean and standard error over 20 runs ([Huang2024], Table 2).
PAPER_TABLE_2: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "normal": {10: (0.3222, 0.0327), 100: (0.1315, 0.0088), 200: (0.1156, 0.0079), 300: (0.0962, 0.0083)},
    "complicated": {10: (0.6216, 0.0190), 100: (0.5380, 0.0333), 200: (0.4853, 0.0233), 300: (0.4724, 0.0258)},
}


def table_2(
    clipped: bool = False,
    runs: int = 20,
    counts: Sequence[int] = (10, 100, 200, 300),
    low: float = -1.0,
    high: float = 2.0,
) -> pd.DataFrame:
    """L1 distance of the density estimate to the density before clipping ([Huang2024], Appendix E, Table 2).

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
            errors = density_distance(GaussianKDE(samples), distribution.density, low, high)
            mean, error = float(errors.mean()), float(errors.std()) / runs**0.5
            paper, paper_error = PAPER_TABLE_2[name].get(count, (float("nan"), float("nan")))
            apart = (mean - paper) / (error**2 + paper_error**2) ** 0.5
            rows[name, count] = (mean, error, paper, paper_error, apart)
    columns = ["mean", "standard error", "paper", "paper's standard error", "standard errors apart"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.index = pd.MultiIndex.from_tuples(rows, names=["distribution", "samples"])
    return frame


@dataclass(frozen=True)
class PowerLaw:
    """``constant * t^slope``, fitted by least squares to logarithms.

    Args:
        slope: the exponent.
        constant: at ``t = 1``.
    """

    slope: float
    constant: float

    @classmethod
    def fit(cls, t: Tensor, values: Tensor) -> PowerLaw:
        """To positive values ``n`` at ``n >= 2`` different positive ``t``."""
        x, y = t.double().log(), values.double().log()
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
        return cls(slope, float((y.mean() - slope * x.mean()).exp()))

    def __call__(self, t: Tensor) -> Tensor:
        """The fitted values."""
        return self.constant * t.double() ** self.slope


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
        L1 distances ``runs x len(counts)``, and the power law fitted to their means; [Huang2024] has the slope
        ``-2 / (4 + Dc)``.
    """
    draws = problem.distribution.sample(ReplicateGenerators(range(runs)).generators, (max(counts),), clipped)
    errors = density_error(draws, problem, counts)
    return errors, PowerLaw.fit(torch.tensor(counts), errors.mean(0))
