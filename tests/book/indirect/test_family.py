"""Moved functions are Branin's after a rigid motion, one a seed, and a batch of them is a problem."""

import numpy as np
import pytest
import torch

from book.indirect.family import BatchProblem, Turned, batch_table
from book.indirect.problems import UNIT, branin, unit_grid
from cbo_lib.former.simulate import simulate
from cbo_lib.indirect import CMES, ClippedGaussian, Point, Space
from tests.indirect.helpers import F64, identity, known, problem_of

GRID = unit_grid(5)


def test_a_motion_is_rigid_and_small():
    matrices, offsets = Turned(tuple(range(200))).motion
    np.testing.assert_allclose(matrices @ matrices.mT, torch.eye(2, dtype=F64).expand(200, 2, 2), atol=1e-12)
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


def test_a_function_is_the_same_alone_or_among_others():
    points = unit_grid(4)
    alone, among = Turned((7,)), Turned((2, 7, 5))
    np.testing.assert_allclose(alone(points[None])[0], among(points.expand(3, -1, -1))[1], rtol=1e-12)


def test_the_table_averages_every_function():
    f, conditional = Turned((1, 4)), ClippedGaussian(identity, 0.1, UNIT)
    table = batch_table(f, 2, conditional, GRID, GRID[:3], order=9)
    assert table.shape == (2, 28)
    rule = conditional.measure(GRID, 9)
    for r, seed in enumerate((1, 4)):
        own = Turned((seed,))
        expected = [float((own(x[None])[0] * w).sum()) for x, w in zip(rule.points, rule.weights, strict=True)]
        np.testing.assert_allclose(table[r, :25], expected, atol=1e-12)
        np.testing.assert_allclose(table[r, 25:], own(GRID[None, :3])[0], atol=1e-12)


def test_a_batch_of_one_function_is_the_problem_of_that_function():
    conditional = ClippedGaussian(identity, 0.1, UNIT)
    f = Turned((5,))
    one = problem_of(lambda x: f(x.reshape(1, -1, 2)).reshape(x.shape[:-1]), GRID, GRID, conditional, 0.1)
    batch = BatchProblem(one.space, one.table.expand(2, -1), conditional, one.noise[:25])
    assert batch.n == 25 and batch.optimum.tolist() == [[float(one.optimum)]] * 2
    runs = [simulate(p, CMES(p.space, prior=known(one)), 4, [0, 1], progress=False) for p in (one, batch)]
    for name in ("query", "observation", "value", "recommended_value"):
        assert torch.equal(runs[0][name], runs[1][name])


def test_replicates_see_their_own_functions():
    table = torch.arange(8, dtype=F64).reshape(2, 4)
    space = Space(GRID[:2], conditional=Point(), points=GRID[2:4], noise_std=1e-9)
    problem = BatchProblem(space, table, Point(), torch.full((2,), 1e-9, dtype=F64))
    query = torch.tensor([1, 2])
    assert problem.value(query).tolist() == [1, 6] and problem.optimum.tolist() == [[3], [7]]
    seen = problem.observe(query, [torch.Generator(), torch.Generator()])
    np.testing.assert_allclose(seen, [1, 6], atol=1e-7)


@pytest.mark.parametrize(("table", "noise"), [((4,), 2), ((2, 3), 2), ((2, 4), 3)])
def test_a_table_must_hold_every_place(table, noise):
    space = Space(GRID[:2], conditional=Point(), points=GRID[2:4], noise_std=0.1)
    with pytest.raises(ValueError, match="table and noise_std must have shapes"):
        BatchProblem(space, torch.zeros(table), Point(), torch.ones(noise))
