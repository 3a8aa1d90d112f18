"""Runs, stored results, verdicts and the command that all chapters share."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from book import harness, verdict
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from tests.toys import UCB, Bumps, Random

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = Bumps()
BEST = float(PROBLEM.value(torch.arange(PROBLEM.count)).max())


def regret(history, problem):
    return BEST - history["value"]


def policies():
    return {"UCB": UCB(), "uniform, random": Random()}


class Forbidden:
    """Fails as soon as it is run."""

    def start(self, generators):
        raise AssertionError("what is stored must not be run again")


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


def test_policies_run_with_the_same_seeds() -> None:
    found = harness.run(PROBLEM, policies(), 5, [3, 8])
    assert found.problem is PROBLEM
    for name, policy in policies().items():
        alone = simulate(PROBLEM, policy, 5, [3, 8])
        torch.testing.assert_close(found.histories[name]["query"], alone["query"])
        torch.testing.assert_close(found.regrets(regret)[name], BEST - alone["value"])
        assert list(found.histories[name].seeds) == [3, 8]


def test_final_and_paired_look_at_a_round_or_the_mean() -> None:
    curves = {"a": torch.tensor([[4.0, 3.0, 2.0], [4.0, 1.0, 0.0]]), "b": torch.tensor([[6.0, 5.0], [7.0, 5.0]])}
    histories = {name: History({"regret": curve}, [0, 1]) for name, curve in curves.items()}
    found = harness.Comparison(dict.fromkeys(histories, PROBLEM), histories)

    def recorded(history, problem):
        return history["regret"]

    last = found.final(recorded)
    assert list(last.index) == ["a", "b"]
    assert last.loc["a"].tolist() == pytest.approx([2.0, 1.0])  # 3 and 1: sd sqrt(2), standard error 1
    assert found.final(recorded, "mean")["mean"].to_dict() == pytest.approx({"a": 3.0, "b": 5.75})
    assert found.final(recorded, 3).index.tolist() == ["a"]
    assert found.paired(recorded, "a", "b").mean == pytest.approx(3.0)  # 5 - 3 and 5 - 1
    assert found.paired(recorded, "a", "b", at=1).mean == pytest.approx(2.5)
    assert found.paired(recorded, "a", "b", at="mean").median == pytest.approx(2.75)
    for at in (0, 4):
        with pytest.raises(ValueError, match=r"at must be .* \[1, 3\]"):
            found.final(recorded, at)
    with pytest.raises(ValueError, match="policy must be one of a, b, got 'c'"):
        found.paired(recorded, "c", "b")
    other = harness.Comparison(found.problems, {"a": histories["a"], "b": replace(histories["b"], seeds=[1, 2])})
    with pytest.raises(ValueError, match="seeds must be the same"):
        other.paired(recorded, "a", "b")


def test_stored_runs_come_back_and_are_not_run_again(tmp_path: Path) -> None:
    made = harness.run(PROBLEM, policies(), 3, [0, 1], folder=tmp_path / "results", name="bumps_1")
    files = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert files == ["bumps_1-ucb.npz", "bumps_1-uniform_random.npz"]
    again = harness.run(
        PROBLEM, dict.fromkeys(policies(), Forbidden()), 3, [0, 1], folder=tmp_path / "results", name="bumps_1"
    )
    read = harness.load(PROBLEM, tmp_path / "results", "bumps_1", ["UCB", "uniform, random", "never run"])
    for found in (again, read):
        assert list(found.histories) == list(made.histories)
        for name, history in found.histories.items():
            torch.testing.assert_close(history["query"], made.histories[name]["query"], rtol=0, atol=0)
    assert read.problem is PROBLEM
    with pytest.raises(ValueError, match=r"seeds must be those of .*bumps_1-ucb\.npz, \[0, 1\], got \[5\]"):
        harness.run(PROBLEM, policies(), 3, [5], folder=tmp_path / "results", name="bumps_1")
    with pytest.raises(ValueError, match="must hold results of 'bumps_2'"):
        harness.load(PROBLEM, tmp_path / "results", "bumps_2", list(policies()))
