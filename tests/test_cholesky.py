"""Factors of low rank, and factors that rounding leaves none of."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning

from cbo_lib.former.cholesky import pivoted_cholesky, rows_of, stable_cholesky
from tests.oracles import rbf

F64 = torch.float64


@given(st.integers(0, 10**6), st.sampled_from([1e-2, 1e-5, 1e-8]))
def test_the_pivoted_factor_leaves_little_and_nothing_negative(seed, tolerance):
    generator = np.random.default_rng(seed)
    points = generator.random((3, int(generator.integers(1, 40)), 2))
    gram = np.stack([rbf(x, x, 0.5, 1.3) for x in points])
    factor = pivoted_cholesky(rows_of(torch.tensor(gram)), torch.full(gram.shape[:2], 1.3, dtype=F64), 40, tolerance)
    rest = gram - factor.mT.numpy() @ factor.numpy()
    assert np.linalg.eigvalsh(rest).min() >= -1e-9
    assert np.diagonal(rest, axis1=-2, axis2=-1).max() <= tolerance + 1e-9
    # Each member of the batch ends by its own tolerance; fewer rows than it needs are no factor.
    each = torch.tensor([tolerance, 1e-3, 2.0], dtype=F64)
    mixed = pivoted_cholesky(rows_of(torch.tensor(gram)), torch.full(gram.shape[:2], 1.3, dtype=F64), 40, each)
    used = (mixed != 0).any(-1).sum(-1).tolist()
    assert used[2] == 0 and used[0] == int((factor[0] != 0).any(-1).sum())
    diagonal = torch.full(gram.shape[:2], 1.3, dtype=F64)
    assert pivoted_cholesky(rows_of(torch.tensor(gram)), diagonal, factor.shape[-2] - 1, tolerance) is None


def test_only_matrices_that_rounding_leaves_no_factor_get_a_jitter(rng):
    x = torch.rand(2, 6, 2, generator=rng, dtype=F64)
    matrices = torch.tensor(np.stack([rbf(part, part) for part in x.numpy()]))
    factor, jitter = stable_cholesky(matrices)
    assert torch.allclose(factor, torch.linalg.cholesky(matrices)) and jitter.tolist() == [0.0, 0.0]
    matrices[1] = 1.0  # of rank one
    with pytest.warns(NumericalWarning, match="in 1 of 2 replicates"):
        again, jitter = stable_cholesky(matrices)
    assert torch.allclose(again[0], factor[0]) and float(jitter[0]) == 0 and 0 < float(jitter[1]) < 1e-10
    held = matrices + jitter[:, None, None] * torch.eye(6, dtype=F64)
    torch.testing.assert_close(again @ again.mT, held, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("entry", "message"), [(torch.nan, "finite"), (-1.0, "positive definite")])
def test_what_no_jitter_mends_is_refused(entry, message):
    with pytest.raises(ValueError, match=f"kernel must give {message} covariances"):
        stable_cholesky(torch.tensor([[1.0, 0.0], [0.0, entry]], dtype=F64), torch.ones(2, dtype=F64))
