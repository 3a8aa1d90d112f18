import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

F64 = torch.float64


def draws(seeds, stream, step, count=4):
    generators = ReplicateGenerators(seeds, stream).at(step)
    return standard_normal(generators, (count,), torch.zeros(0, dtype=F64))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_a_step_draws_the_same_whichever_steps_came_before(steps):
    generators = ReplicateGenerators([3, 8])
    for step in steps:
        generators.at(step)
        standard_normal(generators.generators, (5,), torch.zeros(0))
        got = standard_normal(generators.at(step), (4,), torch.zeros(0, dtype=F64))
        assert torch.equal(got, draws([3, 8], 0, step))


def test_seeds_streams_and_steps_are_told_apart():
    seen = {
        tuple(draws([seed], stream, step)[0].tolist())
        for seed in [*range(20), 2**32, 2**32 + 1, 2**33, 2**40]
        for stream in range(3)
        for step in range(5)
    }
    assert len(seen) == 24 * 3 * 5


def test_streams_of_neighboring_seeds_and_steps_are_uncorrelated():
    z = torch.stack([draws(range(20), 0, step, 500) for step in range(10)]).reshape(200, 500).numpy()
    correlations = np.corrcoef(z)[np.triu_indices(200, 1)]
    assert np.abs(correlations).max() < 6 / np.sqrt(500)
    assert abs(z.mean()) < 5 / np.sqrt(z.size) and abs(z.std() - 1) < 5 / np.sqrt(2 * z.size)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("draw", [standard_normal, uniform])
def test_draws_have_the_shape_and_the_dtype_asked_for(draw, dtype):
    generators = ReplicateGenerators([1, 2, 3]).at(1)
    got = draw(generators, (2, 5), torch.zeros(0, dtype=dtype))
    assert got.shape == (3, 2, 5) and got.dtype == dtype
    assert torch.equal(got[1:2], draw(ReplicateGenerators([2]).at(1), (2, 5), got))


def test_uniform_draws_fill_the_unit_interval():
    u = uniform(ReplicateGenerators(range(4)).generators, (5000,), torch.zeros(0, dtype=F64))
    assert 0 <= float(u.min()) < 0.001 and 0.999 < float(u.max()) < 1
    assert np.allclose(u.mean(-1), 0.5, atol=0.02) and np.allclose(u.var(-1), 1 / 12, atol=0.005)
