"""How a claim is decided: paired differences over seeds, with an interval, a median and the share of failures.

``holm`` widens the intervals of several claims so that all verdicts that are not "undecided" are right at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeVar

import pandas as pd
import torch
from scipy.stats import t as student
from torch import Tensor

Word = Literal["holds", "undecided", "fails"]
K = TypeVar("K")

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


def holm(pairs: Mapping[K, Paired], failure: float = 0.05) -> dict[K, Paired]:
    """The same pairs with intervals that leave out zero where Holm's procedure rejects it (Holm 1979).

    The pair of the smallest p-value gets an interval of level ``1 - failure / m`` for ``m`` pairs, the next one of
    ``1 - failure / (m - 1)``, and so on up to the first that holds zero; all others get the level of that one. So some
    verdict is wrongly "holds" or "fails" with probability at most ``failure``.

    Args:
        pairs: by name, with 95 % intervals, as ``paired`` gives them.
        failure: probability.
    """
    errors = {name: (pair.high - pair.mean) / student.ppf(0.975, pair.n - 1) for name, pair in pairs.items()}
    ratios = {name: _ratio(pair.mean, errors[name]) for name, pair in pairs.items()}
    values = {name: 2 * float(student.sf(ratios[name], pair.n - 1)) for name, pair in pairs.items()}
    found, level, going = {}, failure / max(1, len(pairs)), True
    for rank, name in enumerate(sorted(pairs, key=values.__getitem__)):
        if going:
            level = failure / (len(pairs) - rank)
            going = values[name] <= level
        pair = pairs[name]
        spread = errors[name] * float(student.isf(level / 2, pair.n - 1))
        found[name] = replace(pair, low=pair.mean - spread, high=pair.mean + spread)
    return {name: found[name] for name in pairs}


def _ratio(mean: float, error: float) -> float:
    return abs(mean) / error if error else inf if mean else 0.0


def table(rows: Mapping[str, Paired], digits: int = 2) -> pd.DataFrame:
    """Paired comparisons as a table, one row each: difference with its interval, median, failures, n, verdict."""

    def row(pair: Paired) -> tuple[str, str, str, int, str]:
        mean, low, high, median = (f"{x:.{digits}f}" for x in (pair.mean, pair.low, pair.high, pair.median))
        return f"{mean} ({low}, {high})", median, f"{pair.failures:.0%}", pair.n, pair.verdict

    columns = ["mean difference, 95 %", "median", "failures", "n", "verdict"]
    return pd.DataFrame([row(pair) for pair in rows.values()], index=list(rows), columns=columns)
