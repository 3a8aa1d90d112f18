import contextlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.aggregated.regret import locate
from cbo_lib.partition import PartitionTree, split_by_factors, split_longest_side, subcell_centers

F64 = torch.float64
DIMENSIONS, BRANCHINGS, SEEDS = st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**31)


def random_box(dim, rng):
    low = torch.randn(dim, generator=rng, dtype=F64)
    return torch.stack([low, low + 0.1 + 3 * torch.rand(dim, generator=rng, dtype=F64)])


def grown(dim, branching, seed, rounds=6):
    """A tree whose nodes were expanded at random."""
    rng = torch.Generator().manual_seed(seed)
    tree = PartitionTree(random_box(dim, rng), branching)
    for _ in range(rounds):
        tree.children(torch.randint(len(tree), (2,), generator=rng))
    return tree, rng


def volume(boxes):
    return (boxes[..., 1, :] - boxes[..., 0, :]).prod(-1)


@given(DIMENSIONS, BRANCHINGS, SEEDS)
def test_children_partition_their_parent(dim, branching, seed):
    tree, _ = grown(dim, branching, seed)
    for node in tree.parent[1:].unique().tolist():
        children = tree.children(torch.tensor([node]))[0]
        parts, box = tree.boxes[children], tree.boxes[node]
        assert len(children) == branching
        assert (parts[:, 0] >= box[0]).all() and (parts[:, 1] <= box[1]).all()
        assert float(volume(parts).sum()) == pytest.approx(float(volume(box)), rel=1e-12)
        for i in range(branching):
            for j in range(i):
                overlap = torch.minimum(parts[i, 1], parts[j, 1]) - torch.maximum(parts[i, 0], parts[j, 0])
                assert float(overlap.min()) <= 0  # apart, or sharing a face at most
        assert torch.equal(parts[:, 0].amin(0), box[0]) and torch.equal(parts[:, 1].amax(0), box[1])


@given(DIMENSIONS, BRANCHINGS, SEEDS)
def test_every_node_knows_its_place(dim, branching, seed):
    tree, _ = grown(dim, branching, seed)
    assert len(tree) == len(tree.boxes) == len(tree.depth) == len(tree.index) == len(tree.parent)
    assert (int(tree.depth[0]), int(tree.index[0]), int(tree.parent[0])) == (0, 0, -1)
    for node in range(1, len(tree)):
        parent = int(tree.parent[node])
        siblings = tree.children(torch.tensor([parent]))[0].tolist()
        assert parent < node and node in siblings
        assert int(tree.depth[node]) == int(tree.depth[parent]) + 1
        assert int(tree.index[node]) == branching * int(tree.index[parent]) + siblings.index(node)
    assert len({(int(h), int(i)) for h, i in zip(tree.depth, tree.index, strict=True)}) == len(tree)


@given(DIMENSIONS, BRANCHINGS, SEEDS)
def test_equal_parts_cut_the_longest_side(dim, branching, seed):
    box = random_box(dim, torch.Generator().manual_seed(seed))
    parts = split_longest_side(box.unsqueeze(0), torch.zeros(1, dtype=torch.long), branching)[0].numpy()
    low, high = box.numpy()
    side = int(np.argmax(high - low))
    for i in range(branching):
        expected = np.stack([low, high])
        expected[:, side] = low[side] + (high - low)[side] * np.array([i, i + 1]) / branching
        np.testing.assert_allclose(parts[i], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_longest_side_is_cut_in_any_precision(dtype):
    boxes = torch.tensor([[[0, 0, 0], [1, 3, 2]]], dtype=dtype)
    parts = split_longest_side(boxes, torch.zeros(1, dtype=torch.long), 3)
    assert parts.dtype == dtype
    np.testing.assert_allclose(parts[0, :, 1] - parts[0, :, 0], [[1, 1, 2]] * 3, rtol=1e-6)


def test_the_first_of_equal_sides_is_cut():
    boxes = torch.tensor([[[0.0, 0, 0], [1, 2, 2]], [[0.0, 0, 0], [0.3, 0.1 + 0.2, 0.3]]], dtype=F64)
    parts = split_longest_side(boxes, torch.zeros(2, dtype=torch.long), 2)
    size = parts[:, 0, 1] - parts[:, 0, 0]
    np.testing.assert_allclose(size, [[1, 1, 2], [0.15, 0.3, 0.3]])


@given(DIMENSIONS, BRANCHINGS, st.integers(0, 4), SEEDS)
def test_points_lie_in_the_one_cell_that_locate_names(dim, branching, depth, seed):
    tree, rng = grown(dim, branching, seed)
    low, high = tree.boxes[0]
    x = low + (high - low) * torch.rand(40, dim, generator=rng, dtype=F64)
    nodes = locate(tree, x, depth)
    assert (tree.depth[nodes] == depth).all()
    level = tree.complete(depth)
    for point, node in zip(x, nodes.tolist(), strict=True):
        inside = (tree.boxes[level, 0] <= point).all(-1) & (point <= tree.boxes[level, 1]).all(-1)
        assert level[inside].tolist() == [node]


@given(DIMENSIONS, BRANCHINGS, st.integers(1, 3), SEEDS)
def test_a_shared_face_belongs_to_the_upper_cell(dim, branching, depth, seed):
    tree, _ = grown(dim, branching, seed, rounds=0)
    level = tree.complete(depth)
    assert locate(tree, tree.boxes[level, 0], depth).tolist() == level.tolist()
    # the upper corner of the root belongs to the last cell, there is no other
    assert locate(tree, tree.boxes[0, 1:], depth).tolist() == [int(level[-1])]


@given(DIMENSIONS, BRANCHINGS, st.integers(0, 4), SEEDS)
def test_a_complete_level_lists_all_cells_in_order(dim, branching, depth, seed):
    tree, _ = grown(dim, branching, seed)
    level = tree.complete(depth)
    assert tree.index[level].tolist() == list(range(branching**depth))
    assert (tree.depth[level] == depth).all()
    assert float(volume(tree.boxes[level]).sum()) == pytest.approx(float(volume(tree.boxes[0])), rel=1e-12)


@given(DIMENSIONS, BRANCHINGS, SEEDS)
def test_numbering_within_a_request_does_not_depend_on_its_order(dim, branching, seed):
    trees = [grown(dim, branching, seed)[0] for _ in range(2)]
    leaves = torch.nonzero(~torch.isin(torch.arange(len(trees[0])), trees[0].parent)).flatten()
    trees[0].children(leaves)
    trees[1].children(leaves.flip(0).repeat(2))
    for name in ("boxes", "depth", "index", "parent", "order"):
        assert torch.equal(getattr(trees[0], name), getattr(trees[1], name))
    made = trees[0].order[trees[0].parent[-branching * len(leaves) :]]
    assert (made.diff() >= 0).all()  # by depth, then index of the parents


@given(DIMENSIONS, BRANCHINGS, SEEDS)
def test_order_ranks_by_depth_then_index_however_the_tree_came_to_be(dim, branching, seed):
    one, _ = grown(dim, branching, seed)
    other = PartitionTree(one.boxes[0], branching)
    for node in torch.argsort(one.order).tolist():  # the same nodes, level by level
        if node in one.parent:
            place = (other.depth == one.depth[node]) & (other.index == one.index[node])
            other.children(torch.nonzero(place).flatten())
    assert len(one) == len(other)
    a, b = torch.argsort(one.order), torch.argsort(other.order)
    assert torch.equal(one.order[a], other.order[b]) and torch.equal(one.boxes[a], other.boxes[b])
    places = sorted((int(h), int(i)) for h, i in zip(one.depth, one.index, strict=True))
    assert [(int(one.depth[n]), int(one.index[n])) for n in a] == places


@pytest.mark.parametrize("branching", [2, 3, 4])
def test_a_deep_tree_keeps_its_order_or_says_that_it_is_too_deep(branching):
    # a slim path down the last child; in 8 dimensions the boxes stay wide
    tree = PartitionTree(torch.tensor([[0.0] * 8, [1.0] * 8], dtype=F64), branching)
    node = torch.tensor([0])
    with contextlib.suppress(ValueError):
        for _ in range(70):
            node = tree.children(node)[:, -1]
    assert int(tree.depth.max()) >= 20
    assert len(set(tree.order.tolist())) == len(tree)
    assert (tree.depth[torch.argsort(tree.order)].diff() >= 0).all()


def test_existing_children_are_not_created_again():
    tree = PartitionTree(torch.tensor([[0.0], [1.0]], dtype=F64))
    assert len(tree) == 1
    first = tree.children(torch.tensor([0]))
    assert torch.equal(tree.children(torch.tensor([0, 0])), first.expand(2, -1)) and len(tree) == 3
    assert tree.parent.tolist() == [-1, 0, 0]


def test_bounds_are_copied():
    bounds = torch.tensor([[0.0], [1.0]], dtype=F64)
    tree = PartitionTree(bounds)
    bounds[1] = 7.0
    assert float(tree.boxes[0, 1]) == 1.0


@given(DIMENSIONS, st.integers(1, 12), SEEDS)
def test_subcell_centers_lie_inside_and_balance(dim, count, seed):
    rng = torch.Generator().manual_seed(seed)
    boxes = torch.stack([random_box(dim, rng) for _ in range(6)]).reshape(2, 3, 2, dim)
    centers = subcell_centers(boxes, count)
    assert centers.shape == (2, 3, count, dim)
    assert (centers > boxes[..., :1, :]).all() and (centers < boxes[..., 1:, :]).all()
    np.testing.assert_allclose(centers.mean(-2), boxes.mean(-2), rtol=0, atol=1e-13)


@given(DIMENSIONS, st.integers(1, 12), SEEDS)
def test_subcells_are_equal_and_cover_the_box(dim, count, seed):
    rng = torch.Generator().manual_seed(seed)
    box = random_box(dim, rng)
    centers = subcell_centers(box, count)
    sides = [sorted(set(np.round(centers[:, i].numpy(), 9))) for i in range(dim)]
    assert math.prod(len(s) for s in sides) == count  # the centers form a full grid
    assert len(set(map(tuple, np.round(centers.numpy(), 9)))) == count
    for i in range(dim):
        low, high = box[:, i].tolist()
        parts = len(sides[i])
        np.testing.assert_allclose(sides[i], low + (high - low) * (np.arange(parts) + 0.5) / parts, atol=1e-8)


@given(st.integers(1, 40), SEEDS)
def test_in_one_dimension_the_centers_are_the_midpoints_in_order(count, seed):
    box = random_box(1, torch.Generator().manual_seed(seed))
    low, high = box.flatten().tolist()
    expected = low + (high - low) * (np.arange(count) + 0.5) / count
    np.testing.assert_allclose(subcell_centers(box, count)[:, 0], expected, rtol=0, atol=1e-13)


def test_subcells_cut_long_sides_more_often():
    box = torch.tensor([[0.0, 0.0], [8.0, 1.0]], dtype=F64)
    assert set(subcell_centers(box, 4)[:, 1].tolist()) == {0.5}


def uneven(boxes, depth, branching):
    """Cuts the first side at a third; deeper down at a quarter."""
    low, high = boxes.unbind(-2)
    share = 0.25 + (depth == 0).to(boxes.dtype) / 12
    cut_high, cut_low = high.clone(), low.clone()
    cut_high[:, 0] = cut_low[:, 0] = low[:, 0] + share * (high - low)[:, 0]
    return torch.stack([torch.stack([low, cut_high], 1), torch.stack([cut_low, high], 1)], 1)


def test_a_rule_of_ones_own_may_depend_on_the_depth():
    tree = PartitionTree(torch.tensor([[0.0, 0.0], [3.0, 1.0]], dtype=F64), split=uneven)
    tree.complete(2)
    np.testing.assert_allclose(tree.boxes[1:, 0, 0], [0, 1, 0, 0.25, 1, 1.5], atol=1e-12)
    np.testing.assert_allclose(tree.boxes[1:3, 1, 0], [1, 3], atol=1e-12)
    assert tree.index[locate(tree, torch.tensor([[0.1, 0.5], [1.2, 0.5], [2.9, 0.0]], dtype=F64), 2)].tolist() == [
        0,
        2,
        3,
    ]


def test_sides_count_relative_to_those_of_the_root():
    wide, unit = (
        PartitionTree(torch.tensor([low, high], dtype=F64)) for low, high in (([0, -3], [1000, -2]), ([0, 0], [1, 1]))
    )
    for tree in (wide, unit):
        tree.complete(6)
    expected = torch.tensor([0.0, -3.0], dtype=F64) + torch.tensor([1000.0, 1.0], dtype=F64) * unit.boxes
    torch.testing.assert_close(wide.boxes, expected, rtol=0, atol=1e-12)
    sides = wide.boxes[-1, 1] - wide.boxes[-1, 0]
    np.testing.assert_allclose(sides, [125, 0.125], rtol=1e-12)  # each was cut three times


def parts(*intervals):
    return lambda boxes, depth, branching: torch.tensor(intervals, dtype=F64).reshape(1, -1, 2, 1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (parts([0, 0.5], [0.6, 1]), "boxes of positive volume that fill their parent"),
        (parts([0, 0.5], [0.5, 1.1]), "boxes of positive volume that fill their parent"),
        (parts([0, 1], [1, 1]), "boxes of positive volume that fill their parent"),
        (parts([0, 0.5], [0.25, 0.75]), "boxes of positive volume that fill their parent"),
        (parts([0, 0.5], [0, 0.5]), "boxes of positive volume that fill their parent"),
        (
            parts([0, 0.3], [0.3, 0.6], [0.6, 1]),
            r"split must return shape \(1, 2, 2, 1\), got \(1, 3, 2, 1\)",
        ),
    ],
    ids=["gap", "outside", "empty", "overlap and gap", "twice", "too many"],
)
def test_a_rule_that_does_not_partition_is_refused(rule, message):
    tree = PartitionTree(torch.tensor([[0.0], [1.0]], dtype=F64), split=rule)
    with pytest.raises(ValueError, match=message):
        tree.children(torch.tensor([0]))
    assert len(tree) == 1 and len(tree.boxes) == 1


@pytest.mark.parametrize(
    ("bounds", "branching", "message"),
    [
        (torch.zeros(2), 2, r"bounds must have shape \(2, d\) with d >= 1, got"),
        (torch.zeros(3, 2), 2, r"bounds must have shape \(2, d\) with d >= 1, got"),
        (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), 2, "bounds must have each lower bound below the upper, got"),
        (torch.tensor([[0.0], [float("nan")]]), 2, "bounds must be finite"),
        (torch.tensor([[0.0], [1.0]]), 1, "branching must be an integer of at least 2, got 1"),
        (torch.tensor([[0.0], [float("inf")]]), 2, "bounds must"),
    ],
)
def test_a_root_that_is_no_box_is_refused(bounds, branching, message):
    with pytest.raises(ValueError, match=message):
        PartitionTree(bounds, branching)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_points_outside_the_root_are_refused(bad):
    tree = PartitionTree(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64))
    with pytest.raises(ValueError, match="x must lie in the root box"):
        locate(tree, torch.tensor([[0.5, 0.5], [bad, 0.5]], dtype=F64), 2)


def test_no_subcell_is_refused():
    with pytest.raises(ValueError, match="count must be an integer of at least 1, got 0"):
        subcell_centers(torch.tensor([[0.0], [1.0]]), 0)


@pytest.mark.parametrize(("branching", "cells"), [(4, (2, 2)), (6, (3, 2)), (3, (3, 1))])
def test_prime_factors_cut_one_side_after_the_other(branching, cells):
    square = torch.tensor([[[0.0, 0.0], [6.0, 6.0]]], dtype=torch.float64)
    parts = split_by_factors(square, torch.zeros(1, dtype=torch.long), branching)[0]
    sizes = (parts[:, 1] - parts[:, 0]).unique(dim=0)
    assert sizes.tolist() == [[6 / cells[0], 6 / cells[1]]]
    tree = PartitionTree(square[0], branching, split_by_factors)  # refuses a rule that does not partition
    assert len(tree.complete(2)) == branching**2
