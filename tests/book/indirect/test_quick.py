"""Runs by features are the library's runs, and features are the kernels that they stand for."""

import numpy as np
import pytest
import torch

from book.indirect import factors, lowrank
from book.indirect.problems import UNIT
from cbo_lib.indirect import ClippedGaussian
from cbo_lib.indirect.embedding import embedding_loss
from cbo_lib.kernels import matrix, rbf_kernel
from tests.indirect.helpers import F64


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A small grid."""
    monkeypatch.setattr(factors, "GRID", 8)


def points(count, dim=2):
    return torch.rand(count, dim, generator=torch.Generator().manual_seed(0), dtype=F64)


@pytest.mark.parametrize("length", [0.1, 0.24, 0.4])
def test_products_of_features_are_the_kernel(length):
    x = points(40)
    F = lowrank.features(x, length)
    np.testing.assert_allclose(F @ F.mT, matrix(rbf_kernel(length), x), atol=1e-7)
    assert 60 < F.shape[-1] < 450


@pytest.mark.parametrize("length", [1.0, 4.0, 1e3])
def test_products_of_features_with_levels_are_the_kernel(length):
    x, level = points(40), torch.arange(40, dtype=F64) % 6 + 1
    rows = torch.cat([x, level.unsqueeze(-1)], -1)
    F = lowrank._action_features(rows, (0.2, 0.2, length))
    np.testing.assert_allclose(F @ F.mT, matrix(rbf_kernel([0.2, 0.2, length]), rows), atol=1e-5)


@pytest.mark.parametrize("count", [50])
def test_lambda_by_features_has_the_smallest_error(count):
    conditional = ClippedGaussian(lambda a: a[..., :2], factors.SPREADS["one"], UNIT)
    x, actions = factors.tree_pairs(conditional, count, [0], stream=7)
    a, ridges = factors.by_log_radius(actions), (1e-4, 1e-2)
    own = lowrank.left_out(x[0], a[0], (0.2, 0.2, 4.0), ridges)
    of_a = rbf_kernel([0.2, 0.2, 4.0])
    direct = [float(embedding_loss(x, a, rbf_kernel(0.2), of_a, ridge).mean()) for ridge in ridges]
    np.testing.assert_allclose(own, direct, rtol=0.02)
