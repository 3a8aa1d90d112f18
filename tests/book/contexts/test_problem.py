"""What every problem with unknown contexts does, on small ones."""

import numpy as np
import pytest
import torch
from scipy import stats

from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal
from cbo_lib.random import ReplicateGenerators, standard_normal

F64 = torch.float64
BOX = torch.tensor([[-1.0, 0.0], [1.0, 2.0]], dtype=F64)
INTERVAL = torch.tensor([[0.0], [1.0]], dtype=F64)


def bowl(z):
    return -(z[..., 0] - z[..., 2]).square() - (z[..., 1] - 1.5).square() + z[..., 2]


def problem(**changes):
    contexts = QuadratureDistribution((Normal(0.3, 0.5),), INTERVAL, ((0.3,),))
    space = Space(BOX, INTERVAL)
    return ContextProblem(**{"space": space, "f": bowl, "distribution": contexts, "noise_std": 0.1, **changes})


def moments():
    """Mean and variance of the clipped context, from scipy alone."""
    inside = stats.truncnorm(-0.6, 1.4, 0.3, 0.5)
    low, high = stats.norm.cdf(-0.6), stats.norm.sf(1.4)
    first, second = ((1 - low - high) * inside.moment(k) + high for k in (1, 2))
    return first, second - first**2


def test_the_value_is_the_expectation_under_the_clipped_distribution(rng):
    x = torch.lerp(BOX[0], BOX[1], torch.rand(3, 4, 2, generator=rng, dtype=F64))
    mean, variance = moments()
    expected = -((x[..., 0] - mean) ** 2 + variance) - (x[..., 1] - 1.5) ** 2 + mean
    torch.testing.assert_close(problem().value(x), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(problem().value(x[0, 0]), expected[0, 0], rtol=0, atol=1e-10)
    contexts, weights = problem().expectation_nodes
    assert contexts.shape == (len(weights), 1) and float(weights.sum()) == pytest.approx(1.0)


def test_the_optimum_is_the_best_value():
    mean, variance = moments()
    torch.testing.assert_close(problem().maximizer, torch.tensor([mean, 1.5], dtype=F64), rtol=0, atol=1e-5)
    assert float(problem().optimum) == pytest.approx(mean - variance, abs=1e-9)


def test_a_formula_takes_the_place_of_the_rule():
    one = problem(expectation=lambda x: -x.square().sum(-1))
    assert float(one.value(torch.tensor([0.5, 1.0], dtype=F64))) == pytest.approx(-1.25)
    torch.testing.assert_close(one.maximizer, torch.zeros(2, dtype=F64), rtol=0, atol=1e-6)


def test_the_learner_sees_the_context_that_the_function_saw():
    one = problem()
    generators = ReplicateGenerators(range(200)).at(1)
    x = BOX.mean(0).expand(200, 2)
    seen = one.observe(x, generators)
    assert list(seen) == ["context", "y"]
    context, y = seen["context"], seen["y"]
    assert context.shape == (200, 1) and y.shape == (200,)
    assert bool(((context >= 0) & (context <= 1)).all())
    assert int((context == 0).sum()) > 20 and int((context == 1).sum()) > 5  # clipped, and seen so
    again = ReplicateGenerators(range(200)).at(1)
    assert torch.equal(context, one.draw_context(again))
    noise = 0.1 * standard_normal(again, (), y)
    torch.testing.assert_close(y - noise, bowl(one.space.join(x, context)))
    share = [float((context == end).double().mean()) for end in (0, 1)]
    np.testing.assert_allclose(share, [stats.norm.cdf(-0.6), stats.norm.sf(1.4)], atol=0.09)
