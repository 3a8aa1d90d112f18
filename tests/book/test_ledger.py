import pytest
import torch

from book.ledger import Claim, RegretLedger

F64 = torch.float64
REGRET = torch.tensor([[3.0, 1.0, 0.5], [2.0, 0.25, 0.0]], dtype=F64)


def parts(error=0.0):
    one = 0.3 * REGRET
    other = REGRET - one
    other[1, 2] += error
    return {"one": one, "other": other}


def test_gap_is_the_sum_of_the_terms_minus_the_regret():
    ledger = RegretLedger(REGRET, {"one": 2 * REGRET, "other": torch.ones(2, 3, dtype=F64)})
    assert ledger.gap.tolist() == [[4.0, 2.0, 1.5], [3.0, 1.25, 1.0]]
    assert torch.equal(RegretLedger(REGRET).gap, -REGRET)


@pytest.mark.parametrize("error", [1e-7, -1e-7])
def test_a_missed_identity_is_reported_with_its_size(error):
    ledger = RegretLedger(REGRET, parts(error), identity=True)
    with pytest.raises(ValueError, match="the terms miss the regret by up to 1e-07, more than 1e-08"):
        ledger.check_identity()
    ledger.check_identity(tolerance=1e-6)


LEFT = torch.tensor([[1.0, 2.0, 3.0], [1.0, 5.0, 9.0], [0.0, 0.0, 0.0], [7.0, 0.0, 0.0]], dtype=F64)
RIGHT = torch.full((4, 3), 4.0, dtype=F64)


def test_claims_are_counted():
    claim = Claim(LEFT, RIGHT, "Lemma 1")
    assert (claim.checked, claim.violations, claim.frequency) == (12, 3, pytest.approx(0.5))
    assert claim.held.tolist() == [True, False, True, False]
    assert claim.holds[1].tolist() == [True, False, False]


def test_claims_are_counted_only_where_they_are_made():
    applies = torch.ones(4, 3, dtype=torch.bool)
    applies[3, 0] = applies[1, 1] = False
    claim = Claim(LEFT, RIGHT, "Lemma 1", applies=applies)
    assert (claim.checked, claim.violations, claim.frequency) == (10, 1, pytest.approx(0.75))


def test_rounding_is_forgiven_and_nothing_more():
    one = torch.ones(1, 1, dtype=F64)
    assert Claim(one + 1e-10, one, "").violations == 0
    assert Claim(one + 1e-8, one, "").violations == 1
    assert Claim(one + 1e-8, one, "", slack=1e-7).violations == 0
    assert Claim(one + 1e-15, one, "", slack=0.0).violations == 1


def test_a_nan_counts_as_a_violation():
    claim = Claim(torch.tensor([[float("nan"), 0.0]]), torch.ones(1, 2), "")
    assert claim.violations == 1 and claim.frequency == 0.0
