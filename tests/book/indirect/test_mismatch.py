"""The family of drawn functions, information by Monte Carlo, and the two peaks."""

import numpy as np
import pytest
import torch

from book.indirect import mismatch
from book.indirect.mismatch import SampledInformation, drawn_problem, true_information, variance_explained
from book.indirect.problems import known_prior
from book.indirect.registry import RUNS
from cbo_lib.former.simulate import simulate
from tests.indirect.helpers import F64


def test_wider_blurs_average_the_same_functions():
    narrow, wide = (drawn_problem(blur, [2, 7], 21) for blur in (0.01, 2.0))
    assert torch.equal(narrow.table[:, 21:], wide.table[:, 21:])
    np.testing.assert_allclose(narrow.table[:, :21], narrow.table[:, 21:], atol=2e-3)
    assert float(wide.table[:, :21].std()) < float(wide.table[:, 21:].std())
    distance, gap = mismatch.mismatch(narrow)
    assert distance.tolist() == [0, 0] and float(gap.abs().max()) < 2e-3
    distance, gap = mismatch.mismatch(wide)
    for r in range(2):
        g, f = wide.table[r, :21], wide.table[r, 21:]
        assert float(distance[r]) == pytest.approx(abs(int(f.argmax()) - int(g.argmax())) / 20)
        assert float(gap[r]) == pytest.approx(float(f.max() - g.max()))


def joint_normal(rho, count, seed=0):
    """Two actions and one point: the first has correlation rho with the point, the second none."""
    draws = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return torch.stack([rho * draws[:, 0] + (1 - rho**2) ** 0.5 * draws[:, 1], draws[:, 2], draws[:, 0]], -1)


@pytest.mark.parametrize("rho", [0.5, 0.9])
def test_the_true_information_of_normal_pairs(rho):
    """With one point f* is normal: I = -0.5 log(1 - r^2), r the correlation of z and f*."""
    found = true_information(joint_normal(rho, 40_000), 2, 0.3)
    r2 = rho**2 / (1 + 0.3**2)
    assert float(found[0]) == pytest.approx(-0.5 * np.log(1 - r2), abs=0.03)
    assert abs(float(found[1])) < 0.02


def test_groups_explain_what_they_explain():
    """By hand: two groups of constant values."""
    g = torch.tensor([[1.0, 0.0], [1.0, 2.0], [3.0, 0.0], [3.0, 2.0]], dtype=F64)
    found = variance_explained(g, torch.tensor([0, 0, 1, 1]), 2, 0.5)
    between, noise = 4 / 3 + 0.25, 0.25
    assert float(found[0]) == pytest.approx(0.5 * np.log(between / noise))
    assert float(found[1]) == pytest.approx(0.5 * np.log(between / (2 + noise)))
    empty = variance_explained(g, torch.tensor([0, 0, 2, 2]), 4, 0.5)  # groups that nobody is in
    np.testing.assert_allclose(empty, found)


def test_policies_ask_where_the_maximum_shows():
    problem = drawn_problem(0.5, [1, 2, 3], 31)
    usual = {"prior": known_prior(problem.space, mismatch.LENGTH), "initial": 1}
    for about in ("value", "place"):
        policy = SampledInformation(problem.space, about=about, draws=64, groups=4, **usual)
        history = simulate(problem, policy, 14, [1, 2, 3], progress=False)
        assert float((problem.optimum - history["recommended_value"])[:, -1].mean()) < 0.2
        again = simulate(problem, policy, 14, [1, 2, 3], progress=False)
        assert torch.equal(history["query"], again["query"])
    with pytest.raises(ValueError, match="about must be 'value' or 'place', got 'both'"):
        SampledInformation(problem.space, about="both", **usual)


def test_the_family_keeps_what_the_page_reads():
    found = mismatch.family(1.0, [0, 1], 3)
    assert found.pop("distance").shape == found.pop("gap").shape == (2,)
    assert len(found) == 8
    for table in found.values():
        assert table.shape == (2, 10) and (table >= -1e-6).all()
        np.testing.assert_allclose(table[:, 1], table[:, 3])  # both are the last round here


@pytest.mark.parametrize("kernels", ["chosen", "matched", "fitted"])
def test_two_peaks_have_a_random_control(kernels):
    found = mismatch.peaks(0.15, kernels, [0, 1], 3)
    assert sorted(found) == ["CMES", "EI on g", "MES on g", "UCB on g", "random"]
    assert all(table.shape == (2, 8) and np.isfinite(table).all() for table in found.values())


def test_other_kernels_are_refused():
    with pytest.raises(ValueError, match="kernels must be 'chosen', 'matched' or 'fitted', got 'best'"):
        mismatch.peaks(0.15, "best", [0], 1)


def test_what_is_stored_has_all_parts_of_the_command():
    found = {"/".join(name.split("/")[:-1]) or name for name in mismatch.stored()}
    parts = RUNS["mismatch"].parts()
    assert found == {part if not part.startswith("efficiency") else "efficiency" for part in parts}


def test_no_rule_asks_for_more_than_there_is():
    found = mismatch.efficiency(1.0, [0, 1], [2], 3000)
    assert found.shape == (1, 2, len(mismatch.CHOICES) + 1)
    assert (found <= 1 + 1e-6).all() and (found >= -0.05).all()
    assert found[0, :, :2].mean() > found[0, :, -1].mean()  # a rule does better than chance
