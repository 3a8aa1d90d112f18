"""What every problem with unknown contexts does, on small ones."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from book.contexts.controls import RandomDecisions
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal, Uniform
from cbo_lib.former.simulate import simulate
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
    assert one.value(torch.tensor([0.5, 1.0], dtype=F64)) == -1.25
    torch.testing.assert_close(one.maximizer, torch.zeros(2, dtype=F64), rtol=0, atol=1e-6)


def test_many_decisions_are_valued_in_slices(rng):
    contexts = QuadratureDistribution((Uniform(),), INTERVAL, (tuple(j / 4096 for j in range(1, 4096)),))
    one = problem(distribution=contexts)
    x = torch.lerp(BOX[0], BOX[1], torch.rand(40, 2, generator=rng, dtype=F64))
    assert 40 * len(contexts.nodes[1]) > 2**20
    torch.testing.assert_close(one.value(x), torch.stack([one.value(row) for row in x]))


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


def test_contexts_do_not_depend_on_the_noise_or_on_the_decision():
    x = torch.zeros(3, 2, dtype=F64)
    quiet, loud = (problem(noise_std=s).observe(x, ReplicateGenerators([1, 2, 3]).at(4)) for s in (0.0, 2.0))
    other = problem().observe(x + 0.5, ReplicateGenerators([1, 2, 3]).at(4))
    for seen in (loud, other):
        assert torch.equal(quiet["context"], seen["context"])
    torch.testing.assert_close(quiet["y"], bowl(problem().space.join(x, quiet["context"])))
    assert not torch.equal(quiet["y"], loud["y"])


def test_a_replicate_is_the_same_alone_and_in_company():
    x = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], dtype=F64)
    together = problem().observe(x, ReplicateGenerators([7, 8, 9]).at(2))
    for r, seed in enumerate((7, 8, 9)):
        alone = problem().observe(x[r : r + 1], ReplicateGenerators([seed]).at(2))
        for name, rows in together.items():
            assert torch.equal(rows[r], alone[name][0])


def test_a_run_records_context_observation_and_value_and_is_described():
    one = problem(name="bowl")
    history = simulate(one, RandomDecisions(one.space, initial=3), 3, [1, 2], progress=False)
    assert history["observation"].shape == (2, 3) and history["context"].shape == (2, 3, 1)
    torch.testing.assert_close(history["value"], one.value(history["query"]))
    assert history.config["problem"]["distribution"]["marginals"][0] == {"class": "Normal", "mean": 0.3, "std": 0.5}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p, g: problem(space=Space(BOX, 2 * INTERVAL)),
            r"distribution must be on the box of contexts \[\[0.0\]",
        ),
        (lambda p, g: problem(noise_std=-0.1), "noise_std must be nonnegative and finite, got -0.1"),
        (lambda p, g: problem(noise_std=math.nan), "noise_std must be nonnegative and finite, got nan"),
        (lambda p, g: problem(noise_std=math.inf), "noise_std must be nonnegative and finite, got inf"),
        (lambda p, g: p.value(torch.zeros(3)), r"query must have shape \(..., 2\), got \(3,\)"),
        (lambda p, g: p.value(torch.tensor(0.0)), r"query must have shape \(..., 2\), got \(\)"),
        (lambda p, g: p.observe(torch.zeros(3, 2), g), r"query must have shape \(2, 2\), one decision a replicate"),
        (lambda p, g: p.observe(torch.full((2, 2), 1.5).double(), g), r"x must lie in the box \[\[-1.0, 0.0\]"),
        (lambda p, g: p.evaluate(BOX[0], torch.tensor([1.2])), r"c must lie in the box \[\[0.0\], \[1.0\]\]"),
        (lambda p, g: p.evaluate(BOX[0], torch.tensor([-0.2])), r"c must lie in the box"),
        (lambda p, g: p.evaluate(BOX[0], torch.tensor([math.nan])), r"c must lie in the box"),
        (lambda p, g: p.evaluate(BOX[0] * math.nan, torch.tensor([0.2])), r"x must lie in the box"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(problem(), ReplicateGenerators([1, 2]).at(1))
