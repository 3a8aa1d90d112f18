import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.aggregated.controls import UniformGrid
from book.aggregated.regret import aggregated_regret, ledger, level_values, lipschitz_constant, simple_regret
from book.aggregated.theory import near_optimal_cells
from book.functions import prior_samples
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, StoOO
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.kernels import rbf_kernel
from tests.aggregated import plain
from tests.aggregated.helpers import F64, UNIT, both, cell_problem, fourier, hills, made


def recommending(problem, cells):
    """A history that recommends cells ``replicates x steps x 2 x d``."""
    values = torch.stack([problem.value(c) for c in cells.unbind(1)], 1)
    return History({"recommendation": cells, "recommended_value": values}, range(len(cells)))


@given(st.integers(0, 10_000), st.integers(1, 2), st.integers(1, 12))
def test_aggregated_regret_is_at_least_the_simple_regret_of_the_best_representative(seed, dim, points):
    problem = cell_problem(fourier(seed), dim, points_per_cell=points)
    rng = np.random.default_rng(seed)
    corners = torch.from_numpy(np.sort(rng.random((3, 4, 2, dim)), 2))
    history = recommending(problem, corners)
    aggregated, simple = aggregated_regret(history, problem), simple_regret(history, problem)
    assert aggregated.shape == simple.shape == (3, 4)
    assert bool((aggregated >= simple - 1e-12).all())
    assert bool((simple >= -1e-9).all())
    if points == 1:
        torch.testing.assert_close(aggregated, simple, rtol=0, atol=1e-12)
    r, t = 1, 2
    at = [float(problem.f(torch.from_numpy(x))) for x in plain.representatives(corners[r, t].numpy(), points)]
    assert float(aggregated[r, t]) == pytest.approx(float(problem.optimum) - np.mean(at), abs=1e-12)
    assert float(simple[r, t]) == pytest.approx(float(problem.optimum) - max(at), abs=1e-12)


@pytest.mark.parametrize(("name", "branching", "points", "depth"), [("peaks", 2, 10, 5), ("hills", 3, 4, 3)])
def test_level_values_are_those_of_a_loop_over_the_cells(name, branching, points, depth):
    problem, world = both(name, branching, points)
    cells = [world.root()]
    for _ in range(depth):
        cells = [part for cell in cells for part in plain.cut(cell, branching)]
    expected = torch.tensor([world.value(cell) for cell in cells], dtype=F64)
    torch.testing.assert_close(level_values(problem, depth), expected, rtol=0, atol=1e-12)
    for slack in (0.0, 0.05, 0.2, 0.5):
        count = sum(1 for value in expected.tolist() if value >= float(problem.optimum) - slack)
        assert int(near_optimal_cells(problem, depth, slack)) == count
    assert 0 < int(near_optimal_cells(problem, depth, 0.2)) < branching**depth


def test_level_values_of_one_function_a_replicate_have_its_dimension():
    problem = cell_problem(prior_samples(rbf_kernel(0.1), UNIT, [3, 4, 5]), replicates=3)
    values = level_values(problem, 4)
    assert values.shape == (3, 16)
    counts = near_optimal_cells(problem, 4, 0.4)
    assert counts.tolist() == [
        sum(1 for v in row if v >= best - 0.4)
        for row, best in zip(values.tolist(), problem.optimum.tolist(), strict=True)
    ]


def test_a_level_of_too_many_cells_is_an_error():
    problem = cell_problem(fourier(0), branching=4)
    assert len(level_values(problem, 9)) == 4**9
    with pytest.raises(ValueError, match="depth must leave at most 1048576 cells in the level, got 4194304"):
        level_values(problem, 11)


@pytest.mark.parametrize(("name", "branching", "points"), [("peaks", 2, 10), ("peaks", 3, 1), ("hills", 2, 6)])
def test_the_lipschitz_constant_is_the_largest_that_assumption_3_allows(name, branching, points):
    problem, world = both(name, branching, points)
    delta = torch.tensor([1.7 * 0.6**h for h in range(6)], dtype=F64)
    constant = lipschitz_constant(problem, delta)
    rng = np.random.default_rng(0)
    worst = 0.0
    for depth, width in enumerate(delta.tolist()):
        for _ in range(20):
            cell = world.root()
            for _ in range(depth):
                cell = plain.cut(cell, branching)[rng.integers(branching)]
            corners = np.array(list(itertools.product(*cell.T)))
            inside = cell[0] + (cell[1] - cell[0]) * rng.random((50, world.dim))
            for x in np.concatenate([corners, inside]):
                distance = np.abs(plain.representatives(cell, points) - x).sum(1).max()
                assert constant * distance <= width * (1 + 1e-9)
                worst = max(worst, constant * distance / width)
    assert worst == pytest.approx(1.0, abs=1e-9)


POLICIES = {
    "gpoo": lambda p: made(GPOO, p, rbf_kernel(0.1, 0.1), delta=lambda h: 2.0 * 2.0**-h, max_depth=6),
    "stooo": lambda p: StoOO(p.space, delta=lambda h: 14 * 2.0**-h, budget=25, span=1.0),
    "ave-stooo": lambda p: AveStoOO(p.space, delta=lambda h: 14 * 2.0**-h, span=1.0),
    "gp-tree": lambda p: made(GPTree, p, rbf_kernel(0.1, 0.1), budget=25, metric_bound=lambda r: 0.02 * r),
    "uniform": lambda p: made(UniformGrid, p, rbf_kernel(0.1, 0.1), budget=25),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("setting", ["peaks", "hills", "draws"])
def test_resolution_and_choice_are_nonnegative_and_add_up_to_the_regret(name, setting):
    if setting == "draws":
        problem = cell_problem(prior_samples(rbf_kernel(0.1, 0.1), UNIT, range(4)), replicates=4)
    else:
        problem, _ = both(setting)
    history = simulate(problem, POLICIES[name](problem), 25, range(4), progress=False)
    accounts = ledger(history, problem)
    accounts.check_identity(1e-12)
    torch.testing.assert_close(accounts.regret, aggregated_regret(history, problem), rtol=0, atol=0)
    resolution, choice = accounts.terms["resolution"], accounts.terms["choice"]
    assert bool((resolution >= -1e-10).all())
    assert bool((choice >= -1e-12).all())
    assert bool((choice > 1e-3).any())
    for r, t in ((0, 0), (3, 11), (2, 24)):
        values = level_values(problem, int(history["recommended_depth"][r, t])).expand(4, -1)[r]
        optimum = problem.optimum.expand(4)[r]
        assert float(resolution[r, t]) == pytest.approx(float(optimum) - max(values.tolist()), abs=1e-12)
    assert list(accounts.claims) == ["simple <= aggregated"]
    assert accounts.claims["simple <= aggregated"].violations == 0


def test_hills_has_its_optimum_near_the_larger_bump():
    problem = cell_problem(hills, 2)
    x = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert float(problem.optimum) >= float(hills(x).max())
    torch.testing.assert_close(problem.maximizer, torch.tensor([0.31, 0.77], dtype=F64), rtol=0, atol=1e-2)
