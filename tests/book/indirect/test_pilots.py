"""The pilot study: likelihoods and cross-validation by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from book.indirect import pilots
from book.indirect.problems import TAU, UNIT, transformation
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.kernels import rbf_kernel
from tests.indirect.helpers import F64


def test_a_log_likelihood_is_that_of_a_normal():
    x = torch.rand(2, 5, 1, generator=torch.Generator().manual_seed(0), dtype=F64)
    gram, z = rbf_kernel(0.4)(x).to_dense(), torch.arange(10, dtype=F64).reshape(2, 5) / 7
    found = pilots.log_likelihood(gram, z, 0.2)
    for r in range(2):
        expected = multivariate_normal(cov=gram[r].numpy() + 0.04 * np.eye(5)).logpdf(z[r].numpy())
        assert float(found[r]) - 2.5 * np.log(2 * np.pi) == pytest.approx(expected)


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
