"""The pilot study: pairs, lengthscales of the grid, and quartiles."""

import numpy as np
import pytest
import torch

from book.indirect import factors, pilots
from book.indirect.problems import TAU, UNIT, transformation
from cbo_lib.indirect import ClippedGaussian


def test_pairs_are_of_their_actions():
    conditional = ClippedGaussian(transformation("cosine"), TAU, UNIT)
    x, a = pilots.pairs(conditional, 4000, [1])
    assert float(x.min()) >= 0 and float(x.max()) <= 1
    inside = (x > 0.01) & (x < 0.99)
    gap = (x - torch.cos(np.pi * a / 2))[inside]
    assert abs(float(gap.mean())) < 0.01 and float(gap.std()) == pytest.approx(TAU, rel=0.15)


def test_all_ways_find_lengths_of_the_grid():
    found = pilots.lengthscales("linear", (0.2, 1e-3), 40, range(3), 12)
    assert list(found) == ["p known", "p estimated", "p estimated, with its error", "g"] and len(found) == 3
    assert np.isin(found.to_numpy().round(9), np.round(pilots.LENGTHS, 9)).all()


def test_a_table_has_quartiles(monkeypatch):
    monkeypatch.setattr(pilots, "embedding_parameters", lambda h, count: (0.2, 1e-3))
    found = pilots.pilots(seeds=range(2))
    assert len(found) == 8 and (found["n"] == 2).all()
    assert (found["first quartile"] <= found["median"]).all() and (found["median"] <= found["third quartile"]).all()


@pytest.mark.parametrize("h", ["linear", "cosine"])
@pytest.mark.parametrize("count", [50, 300])
def test_the_map_has_the_embedding_that_leaving_one_out_chooses(h, count):
    assert factors.EMBEDDING[h][count] == pilots.embedding_parameters(h, count)
