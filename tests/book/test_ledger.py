import pandas as pd
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


def test_an_identity_passes():
    RegretLedger(REGRET, parts(), identity=True).check_identity()
    RegretLedger(REGRET, parts(1e-9), identity=True).check_identity()


@pytest.mark.parametrize("error", [1e-7, -1e-7])
def test_a_missed_identity_is_reported_with_its_size(error):
    ledger = RegretLedger(REGRET, parts(error), identity=True)
    with pytest.raises(ValueError, match="the terms miss the regret by up to 1e-07, more than 1e-08"):
        ledger.check_identity()
    ledger.check_identity(tolerance=1e-6)


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_an_identity_with_a_number_that_is_none_fails(error):
    with pytest.raises(ValueError, match="the terms miss the regret"):
        RegretLedger(REGRET, parts(error), identity=True).check_identity()


def test_an_identity_of_no_steps_passes():
    none = torch.zeros(2, 0, dtype=F64)
    RegretLedger(none, {"one": none}, identity=True).check_identity()


def test_a_decomposed_bound_has_no_identity_to_check():
    with pytest.raises(ValueError, match="decomposes a bound, not an identity"):
        RegretLedger(REGRET, parts()).check_identity()


def test_bounds_may_be_shared_by_the_replicates():
    bounds = {"shared": torch.ones(3), "own": torch.ones(2, 3)}
    assert RegretLedger(REGRET, bounds=bounds).bounds == bounds


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 1), (1, 3)])
def test_terms_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"terms\['one'\] must have shape \(2, 3\), got"):
        RegretLedger(REGRET, {"one": torch.zeros(shape)})


@pytest.mark.parametrize("shape", [(2,), (), (1, 3), (3, 2)])
def test_bounds_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"bounds\['one'\] must have shape \(2, 3\) or its last dimension, got"):
        RegretLedger(REGRET, bounds={"one": torch.zeros(shape)})


LEFT = torch.tensor([[1.0, 2.0, 3.0], [1.0, 5.0, 9.0], [0.0, 0.0, 0.0], [7.0, 0.0, 0.0]], dtype=F64)
RIGHT = torch.full((4, 3), 4.0, dtype=F64)


def test_claims_are_counted():
    claim = Claim(LEFT, RIGHT, "Lemma 1")
    assert (claim.checked, claim.violations, claim.frequency) == (12, 3, 0.5)
    assert claim.held.tolist() == [True, False, True, False]
    assert claim.holds[1].tolist() == [True, False, False]


def test_claims_are_counted_only_where_they_are_made():
    applies = torch.ones(4, 3, dtype=torch.bool)
    applies[3, 0] = applies[1, 1] = False
    claim = Claim(LEFT, RIGHT, "Lemma 1", applies=applies)
    assert (claim.checked, claim.violations, claim.frequency) == (10, 1, 0.75)


def test_rounding_is_forgiven_and_nothing_more():
    one = torch.ones(1, 1, dtype=F64)
    assert Claim(one + 1e-10, one, "").violations == 0
    assert Claim(one + 1e-8, one, "").violations == 1
    assert Claim(one + 1e-8, one, "", slack=1e-7).violations == 0
    assert Claim(one + 1e-15, one, "", slack=0.0).violations == 1


def test_a_nan_counts_as_a_violation():
    claim = Claim(torch.tensor([[float("nan"), 0.0]]), torch.ones(1, 2), "")
    assert claim.violations == 1 and claim.frequency == 0.0


def test_claims_may_have_more_dimensions():
    left = torch.zeros(2, 3, 4)
    left[1, 2, 3] = 5.0
    claim = Claim(left, torch.ones(2, 3, 4), "")
    assert claim.held.tolist() == [True, False] and claim.checked == 24


def test_a_claim_may_be_made_once_a_replicate():
    claim = Claim(torch.tensor([0.0, 2.0]), torch.ones(2), "")
    assert claim.held.tolist() == [True, False] and claim.frequency == 0.5


def test_claims_of_unequal_shapes_are_refused():
    with pytest.raises(ValueError, match=r"left and right must have one shape, got \(4, 3\) and \(3,\)"):
        Claim(LEFT, RIGHT[0], "")
    with pytest.raises(ValueError, match=r"applies must have shape \(4, 3\), got \(3,\)"):
        Claim(LEFT, RIGHT, "", applies=torch.ones(3, dtype=torch.bool))


def test_claims_frame_has_one_row_a_claim():
    claims = {
        "width": Claim(LEFT, RIGHT, "Lemma 1", probability=0.9),
        "sum": Claim(LEFT, RIGHT + 6, "Theorem 2"),
    }
    expected = pd.DataFrame(
        {
            "source": ["Lemma 1", "Theorem 2"],
            "checked": [12, 12],
            "failed": [3, 0],
            "held throughout": [0.5, 1.0],
            "promised": [0.9, 1.0],
        },
        index=pd.Index(["width", "sum"], name="claim"),
    )
    pd.testing.assert_frame_equal(RegretLedger(REGRET, claims=claims).claims_frame(), expected)


def test_claims_frame_of_no_claims_is_empty():
    frame = RegretLedger(REGRET).claims_frame()
    assert len(frame) == 0 and "held throughout" in frame.columns
