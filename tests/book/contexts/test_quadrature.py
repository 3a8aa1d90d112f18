"""Context distributions against scipy: the atoms of clipping and rules for expectations."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from book.contexts.marginals import Burr, Cauchy
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.distributions import Normal, Uniform

F64 = torch.float64
UNIT = torch.tensor([[0.0], [1.0]], dtype=F64)
SQUARE = UNIT.expand(2, 2)


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_atoms_are_the_probability_outside_of_the_box():
    distribution = QuadratureDistribution((Normal(0.3, 0.4), Cauchy(0.8, 0.02)), SQUARE)
    expected = [
        [stats.norm.cdf(0, 0.3, 0.4), stats.cauchy.cdf(0, 0.8, 0.02)],
        [stats.norm.sf(1, 0.3, 0.4), stats.cauchy.sf(1, 0.8, 0.02)],
    ]
    np.testing.assert_allclose(distribution.atoms.numpy(), expected)
    draws = distribution.sample(generators(0), (100_000,))[0]
    for end, row in ((0.0, expected[0]), (1.0, expected[1])):
        np.testing.assert_allclose((draws == end).double().mean(0).numpy(), row, atol=0.005)


def rough(c):
    return np.cos(9 * c) + np.exp(c)


@pytest.mark.parametrize(
    ("marginal", "pdf", "cdf", "breaks"),
    [
        (Normal(0.5, 0.15), stats.norm(0.5, 0.15).pdf, stats.norm(0.5, 0.15).cdf, (0.2, 0.5, 0.8)),
        (Normal(0.9, 0.3), stats.norm(0.9, 0.3).pdf, stats.norm(0.9, 0.3).cdf, (0.5,)),
        (
            Cauchy(0.2, 0.02),
            stats.cauchy(0.2, 0.02).pdf,
            stats.cauchy(0.2, 0.02).cdf,
            (0.14, 0.18, 0.2, 0.22, 0.26, 0.4),
        ),
        (Uniform(), stats.uniform().pdf, stats.uniform().cdf, ()),
        (Burr(2.0, 20.0), stats.burr12(2, 20).pdf, stats.burr12(2, 20).cdf, (0.1, 0.2, 0.3, 0.5)),
    ],
)
def test_the_rule_of_a_coordinate_holds_the_density_and_the_atoms(marginal, pdf, cdf, breaks):
    distribution = QuadratureDistribution((marginal,), UNIT, (breaks,))
    c, w = distribution.marginal_nodes(0)
    assert bool((w > 0).all()) and float(w.sum()) == pytest.approx(1.0)
    inside, _ = integrate.quad(lambda t: rough(t) * pdf(t), 0, 1, points=breaks or None, epsabs=1e-12, limit=400)
    expected = inside + cdf(0) * rough(0.0) + (1 - cdf(1)) * rough(1.0)
    assert float(torch.as_tensor(rough(c.numpy())) @ w) == pytest.approx(expected, abs=1e-9)


def test_the_rule_of_two_coordinates_is_their_product():
    distribution = QuadratureDistribution((Normal(0.3, 0.4), Uniform()), SQUARE, ((0.3,), ()), order=12)
    c, w = distribution.nodes
    assert c.shape == ((2 * 12 + 2) * 12, 2) and float(w.sum()) == pytest.approx(1.0)
    first, second = (distribution.marginal_nodes(k) for k in (0, 1))
    expected = (first[1] @ first[0].square()) * (second[1] @ second[0].exp())
    torch.testing.assert_close(w @ (c[:, 0].square() * c[:, 1].exp()), expected)
    drawn = distribution.sample(generators(0), (200_000,))[0]
    assert float((drawn[:, 0].square() * drawn[:, 1].exp()).mean()) == pytest.approx(float(expected), abs=0.01)


def test_many_coordinates_have_a_quasi_random_rule():
    distribution = QuadratureDistribution((Normal(0.5, 0.3),) * 4, UNIT.expand(2, 4), sobol=2**12)
    c, w = distribution.nodes
    assert c.shape == (2**12, 4) and float(w.sum()) == pytest.approx(1.0)
    assert float((c == 0).double().mean()) == pytest.approx(float(distribution.atoms[0, 0]), abs=1e-3)
    one, mass = QuadratureDistribution((Normal(0.5, 0.3),), UNIT, ((0.5,),)).nodes
    torch.testing.assert_close(w @ c.prod(-1), (mass @ one.squeeze(-1)) ** 4, rtol=0, atol=1e-4)
    assert torch.equal(c, QuadratureDistribution((Normal(0.5, 0.3),) * 4, UNIT.expand(2, 4), sobol=2**12).nodes[0])
