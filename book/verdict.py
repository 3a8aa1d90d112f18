"""How a claim is decided: paired differences over seeds, with an interval, a median and the share of failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from scipy.stats import t as student
from torch import Tensor

Word = Literal["holds", "undecided", "fails"]

pd.set_option("display.max_rows", None)  # a table of verdicts shows all of them


def word(low: float, high: float) -> Word:
    """What an interval of differences says of a claim: it lies above zero, holds it, or lies below."""
    return "holds" if low > 0 else "fails" if high < 0 else "undecided"


@dataclass(frozen=True)
class Paired:
    """A claim as a paired difference: regret of the rival minus regret of the policy, one difference a seed.

    Args:
        mean: of the differences; positive speaks for the policy.
        low: lower end of the 95 % interval of the mean (Student's t).
        high: upper end.
        median: of the differences.
        failures: share of the replicates in which the policy's regret exceeds the limit.
        n: how many pairs.
    """

    mean: float
    low: float
    high: float
    median: float
    failures: float
    n: int

    @property
    def verdict(self) -> Word:
        """Whether the interval lies above zero, below it, or holds it."""
        return word(self.low, self.high)

    @property
    def holds(self) -> bool:
        """Whether the verdict is that the policy is better."""
        return self.verdict == "holds"


def paired(policy: Tensor, rival: Tensor, limit: float | None = None) -> Paired:
    """Compare two policies that were run with the same seeds.

    Args:
        policy: regret of the policy, ``n``.
        rival: regret of the other with the same seeds, ``n``.
        limit: regret from which a replicate counts as failed. Default twice the policy's median.

    Raises:
        ValueError: if the shapes differ, there are fewer than two pairs, or a number is not finite.
    """
    if policy.shape != rival.shape or policy.dim() != 1 or len(policy) < 2:
        raise ValueError(
            "policy and rival must hold one regret a seed, of one length n >= 2, "
            f"got {tuple(policy.shape)} and {tuple(rival.shape)}"
        )
    if not bool(torch.isfinite(policy).all() and torch.isfinite(rival).all()):
        raise ValueError("policy and rival must be finite, got a NaN or an infinity")
    own, other, n = policy.double(), rival.double(), len(policy)
    difference = other - own
    mean, spread = float(difference.mean()), float(difference.std()) / n**0.5 * float(student.ppf(0.975, n - 1))
    failed = own > (2 * float(own.quantile(0.5)) if limit is None else limit)
    return Paired(mean, mean - spread, mean + spread, float(difference.quantile(0.5)), float(failed.double().mean()), n)


def table(rows: Mapping[str, Paired], digits: int = 2) -> pd.DataFrame:
    """Paired comparisons as a table, one row each: difference with its interval, median, failures, n, verdict."""

    def row(pair: Paired) -> tuple[str, str, str, int, str]:
        mean, low, high, median = (f"{x:.{digits}f}" for x in (pair.mean, pair.low, pair.high, pair.median))
        return f"{mean} ({low}, {high})", median, f"{pair.failures:.0%}", pair.n, pair.verdict

    columns = ["mean difference, 95 %", "median", "failures", "n", "verdict"]
    return pd.DataFrame([row(pair) for pair in rows.values()], index=list(rows), columns=columns)
