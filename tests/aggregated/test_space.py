"""What a user writes down of cells."""

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.models import SingleTaskGP

from cbo_lib.aggregated import Space
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel
from cbo_lib.measure import Measure
from cbo_lib.models import AveragedModel
from tests.aggregated.helpers import F64, UNIT

BOX = torch.tensor([[100.0, -1.0], [1100.0, 1.0]], dtype=F64)


@pytest.mark.parametrize(
    "give", [torch.Tensor.tolist, torch.Tensor.numpy, lambda b: pd.DataFrame(b.numpy()), torch.clone]
)
def test_bounds_are_whatever_holds_numbers(give):
    space = Space(give(BOX))
    assert torch.equal(space.bounds, BOX)
    assert (space.dim, space.bounds.dtype) == (2, F64)


def test_a_box_of_integers_becomes_floating_and_one_of_single_precision_stays_so():
    assert Space([[0], [3]]).bounds.dtype == F64
    assert Space(UNIT.float()).like.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points_per_cell": 0}, "points_per_cell must be an integer of at least 1, got 0"),
        ({"points_per_cell": 2.5}, "points_per_cell must be an integer of at least 1, got 2.5"),
        ({"quadrature_order": 0}, "quadrature_order must be an integer of at least 1, got 0"),
        ({"branching": 1}, "branching must be an integer of at least 2, got 1"),
        ({"branching": True}, "branching must be an integer of at least 2, got True"),
        ({"feedback": "sum"}, "feedback must be 'points' or 'continuous', got 'sum'"),
        ({"bounds": torch.zeros(3, 2)}, r"bounds must have shape \(2, d\) with d >= 1, got"),
        ({"bounds": UNIT.flip(0)}, "bounds must have each lower bound below the upper, got"),
        ({"bounds": "wide"}, "bounds must be numbers"),
        ({"bounds": [(0, 1), (5, 10)]}, "bounds must be two rows, all lower ends first"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Space(**{"bounds": UNIT, **arguments})


def test_cells_of_other_units_are_cut_and_averaged_like_those_of_the_unit_box():
    unit, wide = (Space(bounds, 2, 6) for bounds in (UNIT.expand(2, 2), BOX))
    trees = [space.partition() for space in (unit, wide)]
    for tree in trees:
        tree.complete(4)

    def scaled(x):
        return BOX[0] + (BOX[1] - BOX[0]) * x

    torch.testing.assert_close(trees[1].boxes, scaled(trees[0].boxes), rtol=0, atol=1e-10)
    points = [space.representatives(tree.boxes) for space, tree in zip((unit, wide), trees, strict=True)]
    torch.testing.assert_close(points[1], scaled(points[0]), rtol=0, atol=1e-10)


def test_a_cell_without_volume_is_a_point():
    x = torch.tensor([[0.3, 0.4], [0.3, 0.4]], dtype=F64)
    for space in (Space(UNIT.expand(2, 2)), Space(UNIT.expand(2, 2), feedback="continuous")):
        measure = space.measure(x[None])
        torch.testing.assert_close(
            measure.expectation(lambda p: p[..., 0] + 2 * p[..., 1]), torch.tensor([1.1], dtype=F64)
        )


def test_the_widest_cells_are_those_of_the_tree():
    def sizes(space, levels):
        center, corner = space.center_and_corner(levels).unbind(1)
        return 2 * (center - corner)

    halves = sizes(Space(UNIT.expand(2, 2)), 5)
    expected = [[1, 1], [0.5, 1], [0.5, 0.5], [0.25, 0.5], [0.25, 0.25]]
    np.testing.assert_allclose(halves.sort(-1).values, expected, atol=1e-9)

    def thirds(cells, depth, branching):
        low, high = cells.unbind(-2)
        cut = low + (high - low) / 3
        return torch.stack([torch.stack([low, cut], -2), torch.stack([cut, high], -2)], 1)

    widths = sizes(Space(UNIT, split=thirds), 4).flatten()
    np.testing.assert_allclose(widths, [(2 / 3) ** h for h in range(4)])


@pytest.fixture(scope="module")
def level():
    space = Space(UNIT.expand(2, 2), points_per_cell=4)
    tree = space.partition()
    nodes = tree.complete(6)
    return space, tree.boxes[nodes]


def peak(x):
    return torch.exp(-20 * ((x[..., 0] - 0.3) ** 2 + (x[..., 1] - 0.7) ** 2))


def measure_of_corners(space):
    """Cells as points ``... x n x 2d``, lower corner first: what BoTorch's acquisitions choose among."""
    return lambda x: space.measure(x.unflatten(-1, (2, space.dim)))


def test_acquisitions_of_botorch_choose_among_cells_by_a_posterior(level):
    space, cells = level
    process = GaussianProcess(matern_kernel(0.3), 0.05)
    posterior = process.condition(space.measure(cells[::3]), space.measure(cells[::3]).expectation(peak))
    X = cells.flatten(-2).unsqueeze(-2)  # candidates, one cell each: 64 x 1 x 4
    model = posterior.as_botorch(measure_of_corners(space))
    measure = space.measure(cells)
    mean, std = posterior.mean(measure), posterior.variance(measure).sqrt()
    scores = UpperConfidenceBound(model, beta=4.0)(X)
    torch.testing.assert_close(scores, mean + 2 * std, rtol=0, atol=1e-6)
    improvement = LogExpectedImprovement(model, best_f=mean.max())(X)
    best = cells[improvement.argmax()]
    assert bool(((best[0] <= 0.45) & (best[1] >= 0.15)).all() | (std[improvement.argmax()] > std.median()))


def test_a_fitted_model_of_points_chooses_among_cells_too(level):
    space, cells = level
    x = torch.rand(25, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    model = SingleTaskGP(x, peak(x).unsqueeze(-1), train_Yvar=torch.full((25, 1), 1e-4, dtype=F64))
    X = cells.flatten(-2).unsqueeze(-2)
    with torch.no_grad():
        scores = UpperConfidenceBound(AveragedModel(model, measure_of_corners(space)), beta=0.01)(X)
        points = space.representatives(cells)
        mean = model.posterior(points).mean.squeeze(-1).mean(-1)
        weights = torch.full((4,), 0.25, dtype=F64)
        std = torch.stack([weights @ model.posterior(p).covariance_matrix @ weights for p in points]).sqrt()
    torch.testing.assert_close(scores, mean + 0.1 * std, rtol=0, atol=1e-5)
    assert torch.equal(cells[scores.argmax()], cells[Measure.average(points).expectation(peak).argmax()])
