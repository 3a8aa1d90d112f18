"""Tree policies in the hands of a user: own data in own units, ask and tell, and files."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from book.aggregated.controls import UniformGrid
from book.aggregated.problem import CellProblem
from cbo_lib.aggregated import GPOO, AveStoOO, GPTree, Space, StoOO
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import matern_kernel
from cbo_lib.measure import Measure
from cbo_lib.random import ReplicateGenerators
from tests.aggregated.helpers import F64, UNIT, hills

BOX = torch.tensor([[200.0, -1.0], [700.0, 3.0]], dtype=F64)
SIDE = BOX[1] - BOX[0]
SPACE = Space(UNIT.expand(2, 2), points_per_cell=4)
PRIOR = GaussianProcess(matern_kernel([0.3, 0.3], 0.2), 0.1)
POLICIES = {"GPOO": GPOO, "StoOO": StoOO, "AVE-StoOO": AveStoOO, "GPTree": GPTree, "uniform grid": UniformGrid}
every_policy = pytest.mark.parametrize("kind", POLICIES.values(), ids=POLICIES)


def cell(*corners):
    return torch.tensor(corners, dtype=F64).reshape(2, 2)


def by_hand(policy, problem, seed, steps):
    noise = ReplicateGenerators([seed])
    asked, named = [], []
    for t in range(1, steps + 1):
        query = policy.ask()
        assert torch.equal(query, policy.ask())
        policy.tell(query, float(problem.observe(query[None], noise.at(t))))
        asked.append(query)
        named.append(policy.recommend())
    return torch.stack(asked), torch.stack(named)


@every_policy
@pytest.mark.parametrize("prior", [PRIOR, None], ids=["known", "fitted"])
def test_a_replicate_in_company_is_a_loop_by_hand(kind, prior):
    problem, steps = CellProblem(SPACE, hills), 12 if prior else 4
    history = simulate(problem, kind(SPACE, prior=prior), steps, [3, 7], progress=False)
    policy = kind(SPACE, prior=prior, seed=7)
    asked, named = by_hand(policy, problem, 7, steps)
    assert torch.equal(history["query"][1], asked)
    assert torch.equal(history["recommendation"][1], named)
    if prior is None and kind in (GPOO, GPTree, UniformGrid):
        assert bool(history["lengthscale"][1, 0].isnan().all())
        assert bool((history["lengthscale"][1, 1:] > 0).all())
        assert history["converged"].dtype == torch.bool
        torch.testing.assert_close(policy.trace()["noise_std"], history["noise_std"][1, -1], rtol=1e-9, atol=0)


@every_policy
def test_own_units_are_the_unit_box_after_scaling(kind):
    wide = Space(BOX, points_per_cell=4)
    kernel = matern_kernel((0.3 * SIDE).tolist(), 0.2 * 50**2)
    priors = PRIOR, GaussianProcess(kernel, 0.1 * 50, 1000.0)
    problems = (
        CellProblem(SPACE, hills),
        CellProblem(wide, lambda x: 1000 + 50 * hills((x - BOX[0]) / SIDE), noise_std=5.0),
    )
    policies = [kind(p.space, prior=prior, seed=3) for p, prior in zip(problems, priors, strict=True)]
    runs = [by_hand(policy, problem, 3, 14) for policy, problem in zip(policies, problems, strict=True)]
    for unit, scaled in zip(*runs, strict=True):
        torch.testing.assert_close(BOX[0] + SIDE * unit, scaled, rtol=0, atol=1e-9)


GIVEN = {
    "tensors": (lambda b: b, lambda y: y),
    "arrays": (torch.Tensor.numpy, torch.Tensor.numpy),
    "lists": (torch.Tensor.tolist, torch.Tensor.tolist),
    "frames": (lambda b: pd.DataFrame(b.flatten(-2).numpy()), lambda y: pd.Series(y.numpy())),
}
OLD = torch.stack([cell(0, 0, 1, 1), cell(0, 0, 0.5, 1), cell(0.1, 0.2, 0.6, 0.7), cell(0.3, 0.3, 0.3, 0.3)])
OLD_Y = torch.tensor([0.2, 0.4, 0.5, 0.3], dtype=F64)


@pytest.mark.parametrize("form", GIVEN)
def test_old_data_come_in_any_form(form):
    boxes, values = GIVEN[form]
    policy = GPOO(SPACE, prior=PRIOR)
    policy.tell(boxes(OLD), values(OLD_Y))
    expected = PRIOR.condition(SPACE.measure(OLD), OLD_Y)
    x = Measure.dirac(torch.rand(5, 2, dtype=F64))
    torch.testing.assert_close(policy.posterior.mean(x), expected.mean(x), rtol=0, atol=1e-10)
    assert policy.count == 4
    assert policy.draws.tolist()[0][:2] == [1, 1]  # the root and its first half; the others are no nodes
    assert int(policy.draws.sum()) == 2
    policy.tell([0.5, 0.0, 1.0, 1.0], 0.9)  # one row is one cell
    assert int(policy.draws.sum()) == 3
    assert not bool(policy.expanded.any())


@every_policy
def test_old_data_may_come_first(kind):
    policy = kind(SPACE, prior=PRIOR)
    policy.tell(OLD, OLD_Y)
    assert torch.equal(policy.recommend(), SPACE.bounds) or kind is UniformGrid
    for _ in range(4):
        policy.tell(policy.ask(), 0.3)
    assert policy.count == 8
    if kind in (GPOO, GPTree, UniformGrid):
        known = PRIOR.condition(SPACE.measure(policy.data["query"][0]), policy.data["y"][0])
        torch.testing.assert_close(policy.tracked.mean[0], known.mean(SPACE.measure(policy.tree.boxes)))


def test_the_cells_of_old_data_need_not_be_asked_again():
    grid = UniformGrid(SPACE, prior=PRIOR, budget=8)
    tree = SPACE.partition()
    level = tree.complete(3)
    boxes = tree.boxes[level]
    grid.tell(boxes[[0, 4, 5]], [0.1, 0.2, 0.3])
    asked = []
    for _ in range(5):
        asked.append(grid.ask())
        grid.tell(asked[-1], 0.0)
    missing = {tuple(b.flatten().tolist()) for b in boxes[[1, 2, 3, 6, 7]]}
    assert {tuple(b.flatten().tolist()) for b in asked} == missing


@every_policy
@pytest.mark.parametrize("other", [cell(0.1, 0.2, 0.6, 0.7), cell(0.5, 0.5, 0.75, 1.0)], ids=["no node", "a node"])
def test_another_cell_may_be_told_than_was_asked(kind, other):
    policy = kind(SPACE, prior=PRIOR)
    for _ in range(3):
        policy.tell(policy.ask(), 0.3)
    before, held = policy.ask(), policy.expanded.sum()
    policy.tell(other, 2.0)
    assert int(policy.expanded.sum()) == int(held)
    assert not bool(policy.splits.any())
    depth = int(policy.trace()["depth"])
    assert depth == (-1 if other[0, 0] == 0.1 else 3)
    policy.tell(before, 0.3)  # told without having been asked anew
    assert policy.count == 5
    known = PRIOR.condition(SPACE.measure(policy.data["query"][0]), policy.data["y"][0])
    x = Measure.dirac(torch.rand(5, 2, dtype=F64))
    torch.testing.assert_close(policy.posterior.mean(x), known.mean(x), rtol=0, atol=1e-9)
    policy.tell(policy.ask(), 0.1)


@every_policy
@pytest.mark.parametrize("prior", [PRIOR, None], ids=["known", "fitted"])
def test_a_saved_policy_asks_the_same(kind, prior, tmp_path):
    policy = kind(SPACE, prior=prior, seed=2)
    policy.tell(OLD, OLD_Y)
    for _ in range(3):
        policy.tell(policy.ask(), 0.3)
    policy.save(tmp_path / "run.npz")
    again = kind.load(tmp_path / "run.npz")
    for _ in range(3):
        query = policy.ask()
        assert torch.equal(query, again.ask())
        for one in (policy, again):
            one.tell(query, float(query.sum()))
    assert torch.equal(policy.recommend(), again.recommend())


@every_policy
@pytest.mark.parametrize(
    ("query", "y", "message"),
    [
        (cell(0.5, 0.5, 0.2, 0.7), 1.0, "query must have the lower corner first"),
        (cell(0.5, 0.5, 1.2, 0.7), 1.0, "query must lie in the box"),
        (cell(0, 0, 1, 1), math.nan, "y must be finite, got"),
        (cell(0, 0, 1, 1), [1.0, 2.0], "y must hold as many rows as query, 1, got 2"),
        ([0.5, 0.5, 0.7], 1.0, "query must have 2 dimensions, or 3 for several"),
        (torch.zeros(2, 3), 1.0, r"query must be boxes \(2, 2\), got"),
        ("left", 1.0, "query must be numbers"),
    ],
)
def test_what_cannot_be_told_is_named_and_nothing_is_learned(kind, query, y, message):
    policy = kind(SPACE, prior=PRIOR)
    with pytest.raises(ValueError, match=message):
        policy.tell(query, y)
    assert policy.count == 0
    assert int(policy.draws.sum()) == 0
    with pytest.raises(ValueError, match="recommend must follow an observation"):
        policy.recommend()


def test_delta_derives_from_the_prior_in_the_units_of_y():
    kernel = matern_kernel([0.3, 0.3], 0.2)
    policy = GPOO(SPACE, prior=PRIOR)
    policy.tell(OLD, OLD_Y)
    delta = policy.delta_at(torch.arange(policy.max_depth + 2))
    assert policy.max_depth == 20
    assert bool((delta > 0).all())
    assert bool((delta.diff() < 0).all())
    for h, (width, height) in enumerate([(1, 1), (0.5, 1), (0.5, 0.5)]):
        ends = torch.tensor([[width / 2, height / 2], [0.0, 0.0]], dtype=F64)
        k = kernel(ends).to_dense()
        assert float(delta[h]) == pytest.approx(2 * math.sqrt(k[0, 0] + k[1, 1] - 2 * k[0, 1]))
    loud = GPOO(SPACE, prior=GaussianProcess(matern_kernel([0.3, 0.3], 0.2 * 7**2), 0.7))
    loud.tell(OLD, 7 * OLD_Y)
    torch.testing.assert_close(loud.delta_at(torch.arange(5)), 7 * delta[:5])


def test_the_span_of_stooo_follows_what_was_seen():
    policy = StoOO(SPACE, budget=10)
    policy.tell(cell(0, 0, 1, 1), 40.0)
    assert policy.span.tolist() == [[1.0]]
    policy.tell(cell(0, 0, 1, 1), 70.0)
    assert policy.span.tolist() == [[30.0]]
    assert policy.delta_at(torch.arange(3)).tolist() == [pytest.approx([30 * 2 ** (-h / 2) for h in range(3)])]
    assert StoOO(SPACE, span=2.5).given_span == 2.5


def test_without_a_prior_the_best_cell_of_an_own_problem_is_found():
    box = np.array([[200.0, -1.0], [700.0, 3.0]])
    policy = GPOO(Space(box, points_per_cell=2), seed=0)
    noise = np.random.default_rng(0)

    def plant(asked):
        x = torch.rand(200, 2, generator=torch.Generator().manual_seed(int(noise.integers(1000))), dtype=F64)
        inside = asked[0] + (asked[1] - asked[0]) * x
        return 1000 + 50 * float(hills((inside - BOX[0]) / SIDE).mean()) + noise.normal()

    for _ in range(25):
        asked = policy.ask()
        policy.tell(asked, plant(asked))
    best = ((policy.recommend().mean(0) - BOX[0]) / SIDE).tolist()
    assert best == pytest.approx([0.31, 0.77], abs=0.15)
    assert float(policy.surrogate.fit.noise_std) < 10
