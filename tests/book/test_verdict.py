"""Paired verdicts against Student's own example and by simulation."""

import math

import numpy as np
import pytest
import torch

from book import verdict

# Sleep gained under two drugs, ten patients: Student's own example (Biometrika 1908). The interval is that of R's
# t.test(extra ~ group, data = sleep, paired = TRUE).
FIRST = torch.tensor([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SECOND = torch.tensor([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def test_interval_is_students_own() -> None:
    pair = verdict.paired(FIRST, SECOND)
    assert (pair.mean, pair.low, pair.high) == pytest.approx((1.58, 0.7001142, 2.4598858), abs=1e-6)
    assert pair.median == pytest.approx(1.3, abs=1e-6)  # of ten: the mean of the middle two, 1.3 and 1.3
    assert (pair.n, pair.verdict, pair.holds) == (10, "holds", True)


def test_verdict_changes_sides_with_the_policies() -> None:
    back = verdict.paired(SECOND, FIRST)
    assert (back.low, back.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    assert (back.verdict, back.holds) == ("fails", False)


def test_interval_that_holds_zero_is_undecided() -> None:
    pair = verdict.paired(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 3.5]))
    assert pair.low < 0 < pair.high
    assert pair.verdict == "undecided"
    assert verdict.paired(FIRST, FIRST).verdict == "undecided"  # an interval of no width that is zero


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(0.5, 1.0, size=(2000, 6)))
    pairs = [verdict.paired(torch.zeros(6), row) for row in noise]
    covered = sum(pair.low <= 0.5 <= pair.high for pair in pairs)
    assert abs(covered - 1900) < 4 * math.sqrt(2000 * 0.95 * 0.05)


@pytest.mark.parametrize(
    ("policy", "rival", "message"),
    [
        (torch.zeros(3), torch.zeros(4), "one length"),
        (torch.zeros(1), torch.zeros(1), "n >= 2"),
        (torch.zeros(2, 2), torch.zeros(2, 2), "one regret a seed"),
        (torch.tensor([0.0, math.nan]), torch.zeros(2), "finite"),
    ],
)
def test_pairs_that_are_none_are_refused(policy: torch.Tensor, rival: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict.paired(policy, rival)


def test_verdicts_read_as_a_table() -> None:
    frame = verdict.table({"sleep": verdict.paired(FIRST, SECOND)})
    assert frame.loc["sleep"].tolist() == ["1.58 (0.70, 2.46)", "1.30", "40%", 10, "holds"]
    assert frame.columns[0] == "mean difference, 95 %"
