import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.partition import PartitionTree, split_longest_side, subcell_centers

F64 = torch.float64
DIMENSIONS, BRANCHINGS, SEEDS = st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**31)


def locate(tree, x, depth):
    """The node of the given depth that contains each point ``m x d``; a shared face belongs to the upper cell."""
    level = tree.complete(depth)
    boxes = tree.boxes[level]
    held = ((boxes[:, 0] <= x[:, None]) & (x[:, None] <= boxes[:, 1])).all(-1)
    return level[held.shape[1] - 1 - held.flip(1).byte().argmax(1)]


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
        assert float(volume(parts).sum()) == pytest.approx(float(volume(box)), rel=1e-9)
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
        np.testing.assert_allclose(parts[i], expected, rtol=1e-9, atol=1e-9)


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
    assert float(volume(tree.boxes[level]).sum()) == pytest.approx(float(volume(tree.boxes[0])), rel=1e-9)


@given(DIMENSIONS, st.integers(1, 12), SEEDS)
def test_subcell_centers_lie_inside_and_balance(dim, count, seed):
    rng = torch.Generator().manual_seed(seed)
    boxes = torch.stack([random_box(dim, rng) for _ in range(6)]).reshape(2, 3, 2, dim)
    centers = subcell_centers(boxes, count)
    assert centers.shape == (2, 3, count, dim)
    assert (centers > boxes[..., :1, :]).all() and (centers < boxes[..., 1:, :]).all()
    np.testing.assert_allclose(centers.mean(-2), boxes.mean(-2), rtol=0, atol=1e-9)


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


def parts(*intervals):
    return lambda boxes, depth, branching: torch.tensor(intervals, dtype=F64).reshape(1, -1, 2, 1)
