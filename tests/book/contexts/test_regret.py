"""The terms of the proof add up, estimates are learned at the rates that are claimed, and their bounds hold."""

import math

import numpy as np
import pytest
import torch

from book.contexts.experiments import stored
from book.contexts.problems import ackley
from book.contexts.regret import (
    COUNTS,
    PriorDraws,
    density_distance,
    drawn_problem,
    estimate_errors,
    exponent,
    slope_tail,
    theorem_constants,
    walk,
)
from cbo_lib.contexts import GaussianKDE

F64 = torch.float64
TERMS = (
    "estimate at x*",
    "radius at x*",
    "grid",
    "optimism",
    "maximization",
    "width",
    "radius at x_t",
    "estimate at x_t",
)


@pytest.mark.parametrize("kind", ["SBO-KDE", "SBO, empirical law", "DRBO-KDE"])
def test_the_terms_add_up_to_the_regret(kind):
    run = walk(kind, theorem_constants(), rounds=7, seeds=range(3), each=8)
    torch.testing.assert_close(sum(run[term] for term in TERMS), run["regret"], rtol=0, atol=1e-9)
    assert (run["radius at x*"] >= -1e-9).all() and (run["radius at x_t"] <= 1e-9).all()
    assert (run["square under the estimate"] <= 1 + 1e-9).all()
    if kind != "DRBO-KDE":
        assert run["radius at x*"].abs().max() < 1e-9


def test_constants_are_those_of_the_paper():
    constants = theorem_constants()
    t = 5
    parts = math.ceil(t**2 * constants.a * constants.b * math.sqrt(math.pi) / 2)
    assert constants.parts(t) == parts
    assert constants.sqrt_beta(t) == pytest.approx(math.sqrt(2 * math.log(t**2 * parts / math.sqrt(2 * math.pi))))
    for s in (2, 3, 10):  # as Step 14 needs it
        assert 2 * math.log(constants.parts(s)) <= constants.beta(s)
    tail = slope_tail(torch.tensor([[1.0], [2.0]], dtype=F64), 2.0)
    assert tail == pytest.approx(max(1.0, 0.5 * math.e, math.exp(0.25)))


def test_draws_have_the_covariance_of_the_prior():
    draws = PriorDraws(0.2, range(4000), grid=21)
    pair = torch.tensor([[0.3, 0.4], [0.4, 0.6]], dtype=F64).expand(4000, -1, -1)
    f = draws(pair)
    assert float(f.var(0).mean()) == pytest.approx(1.0, abs=0.06)
    assert float((f[:, 0] * f[:, 1]).mean()) == pytest.approx(math.exp(-0.5 * (0.1**2 + 0.2**2) / 0.04), abs=0.06)
    problem = drawn_problem(range(2))
    contexts, weights = problem.expectation_nodes
    x = torch.tensor([[0.3]], dtype=F64).expand(2, 1, 1)
    by_hand = problem.f(problem.space.join(x, contexts[None])) @ weights
    torch.testing.assert_close(problem.value(x)[:, 0], by_hand, rtol=0, atol=1e-7)


def test_the_distance_of_a_density_is_the_area_between():
    kde = GaussianKDE(torch.tensor([[0.2], [0.4]], dtype=F64), torch.tensor([0.05], dtype=F64))
    zero = density_distance(kde, kde.density, -1.0, 2.0)
    assert float(zero) == pytest.approx(0.0, abs=1e-9)
    far = density_distance(kde, lambda c: torch.zeros(len(c), dtype=F64), -1.0, 2.0)
    assert float(far) == pytest.approx(1.0, abs=1e-6)
    assert float(density_distance(kde, ackley().distribution.density, -1.0, 2.0)) < 2


def test_averages_of_the_features_are_those_of_draws():
    """The closed forms against plain means over a normal law."""
    found = estimate_errors(2, draws=2, features=16)
    assert set(found) == {"empirical law", "density estimate", "bound"}
    assert found["empirical law"].shape == (2, len(COUNTS))
    assert (found["empirical law"] < 3 * found["bound"]).all()


@pytest.mark.parametrize("dim", [1, 2, 4, 8])
def test_the_stored_exponents(dim):
    table = stored("estimates")
    rows = {row["estimate"]: row for row in table[table["contexts"] == dim].to_dict("records")}
    law, density = rows["empirical law"], rows["density estimate"]
    assert abs(law["exponent"] + 0.5) < 0.08
    assert law["exponent"] < density["exponent"] + 0.05 and (dim < 4 or density["exponent"] > -0.4)
    assert (np.array(law["errors"]) <= np.array(rows["bound"]["errors"])).all()


def test_an_exponent_is_a_slope():
    slope, error = exponent((1, 10, 100), torch.tensor([[1.0, 0.1, 0.01], [3.0, 0.3, 0.03]], dtype=F64))
    assert slope == pytest.approx(-1) and error == pytest.approx(0, abs=1e-9)
