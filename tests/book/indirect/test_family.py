"""Moved functions are Branin's after a rigid motion, one a seed, and a batch of them is a problem."""

import numpy as np
import torch

from book.indirect.family import Turned, batch_table
from book.indirect.problems import UNIT, branin, unit_grid
from cbo_lib.indirect import ClippedGaussian
from tests.indirect.helpers import F64, identity

GRID = unit_grid(5)


def test_a_motion_is_rigid_and_small():
    matrices, offsets = Turned(tuple(range(200))).motion
    np.testing.assert_allclose(matrices @ matrices.mT, torch.eye(2, dtype=F64).expand(200, 2, 2), atol=1e-9)
    mirrored = torch.linalg.det(matrices) < 0
    assert 0.35 < float(mirrored.double().mean()) < 0.65
    assert float(offsets.abs().max()) <= 0.15 and float(offsets.std(0).min()) > 0.07
    # Turned by less than 15 degrees from some right angle.
    angle = torch.atan2(matrices[:, 1, 1], matrices[:, 0, 1]) % (np.pi / 2)
    assert float(torch.minimum(angle, np.pi / 2 - angle).max()) <= np.pi / 12 + 1e-9


def test_each_function_is_branin_up_to_scale_and_standardized():
    f = Turned((3, 8))
    points = torch.rand(2, 40, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    matrices, offsets = f.motion
    for r in range(2):
        plain = [float(branin(matrices[r] @ (u - 0.5) + 0.5 + offsets[r])) for u in points[r]]
        slope, _ = np.polyfit(plain, f(points)[r], 1)
        np.testing.assert_allclose(np.polyval(np.polyfit(plain, f(points)[r], 1), plain), f(points)[r], atol=1e-9)
        assert slope > 0
    values = f(unit_grid(64).expand(2, -1, -1))
    np.testing.assert_allclose(values.mean(-1), 0, atol=1e-9)
    np.testing.assert_allclose(values.std(-1), 1, atol=1e-9)


def test_the_table_averages_every_function():
    f, conditional = Turned((1, 4)), ClippedGaussian(identity, 0.1, UNIT)
    table = batch_table(f, 2, conditional, GRID, GRID[:3], order=9)
    assert table.shape == (2, 28)
    rule = conditional.measure(GRID, 9)
    for r, seed in enumerate((1, 4)):
        own = Turned((seed,))
        expected = [float((own(x[None])[0] * w).sum()) for x, w in zip(rule.points, rule.weights, strict=True)]
        np.testing.assert_allclose(table[r, :25], expected, atol=1e-9)
        np.testing.assert_allclose(table[r, 25:], own(GRID[None, :3])[0], atol=1e-9)
