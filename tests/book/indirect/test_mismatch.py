"""The family of drawn functions, information by Monte Carlo, and the two peaks."""

import numpy as np
import pytest
import torch

from book.indirect import mismatch
from book.indirect.mismatch import drawn_problem, true_information, variance_explained
from tests.indirect.helpers import F64


def test_wider_blurs_average_the_same_functions():
    narrow, wide = (drawn_problem(blur, [2, 7], 21) for blur in (0.01, 2.0))
    assert torch.allclose(narrow.table[:, 21:], wide.table[:, 21:])
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
