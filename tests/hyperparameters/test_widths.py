import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal

from book.hyperparameters.problems import lengthscale_candidates
from book.hyperparameters.slips import printed_sqrt_beta
from book.hyperparameters.widths import frequentist_sqrt_beta, lipschitz_sqrt_beta
from book.information import greedy_information_gain
from cbo_lib.confidence import noise_threshold
from cbo_lib.hyperparameters import Space
from cbo_lib.measure import Measure
from tests.hyperparameters import plain
from tests.hyperparameters.helpers import F64, SETTINGS, changed, line, setting

TWO = lengthscale_candidates((0.1, 0.3))
FINITE = Space(TWO, points=line(12), noise_std=0.2)


def derived(space, norm, steps, initial=0, failure=0.1):
    """Those of the space's own points."""
    kernel = space.candidates.prior(space.noise_std).kernel
    return frequentist_sqrt_beta(kernel, space.points, space.noise_std, norm, steps, initial, failure)


# ---- Theorem 4.1


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("initial", [0, 3])
@pytest.mark.parametrize("printed", [True, False])
def test_frequentist_widths_are_the_formula_with_the_greedy_gain(rng, name, initial, printed):
    priors, domain = setting(name).priors, setting(name).problem.space.points
    points = domain.amax(0) * torch.rand(17, domain.shape[-1], generator=rng, dtype=F64)  # no ties, as on a grid
    space = changed(setting(name).problem, points=points).space
    steps, bound, failure, noise = 4, 1.7, 0.2, space.noise_std
    schedule = (printed_sqrt_beta if printed else derived)(space, bound, steps, initial, failure)
    assert not printed or schedule(1).shape == (len(priors),)
    for u, prior in enumerate(priors):
        gains = plain.greedy_gain(prior, noise, space.points.numpy(), steps + initial - 1)
        for t in range(1, steps + 1):
            gamma = gains[initial + t - 1]  # as many observations precede round t
            expected = plain.printed_beta(bound, noise, gamma, failure)
            if not printed:
                at_most = gamma * math.e / (math.e - 1)  # no set of points gains more
                expected = bound + math.sqrt(2 * (at_most + math.log(2 / failure)))
            assert float(schedule(t).expand(len(priors))[u]) == pytest.approx(expected, rel=1e-9)


def test_the_printed_width_is_below_the_derived_one_where_the_noise_is_small():
    printed, proved = printed_sqrt_beta(FINITE, 2.0, 6), derived(FINITE, 2.0, 6)
    assert all(bool((printed(t) < proved(t)).all()) for t in range(1, 7))
    assert all(bool((printed(t) < printed(t + 1)).all()) for t in range(1, 6))
    first = 2 + 0.2 * math.sqrt(2 * (1 + math.log(20)))  # nothing is gained before round 1
    assert printed(1).tolist() == pytest.approx([first] * 2, rel=1e-9)


@pytest.mark.parametrize("scale", [0.1, 0.4, 2.0])
def test_the_greedy_gain_is_near_the_largest_of_all_sets(rng, scale):
    points = torch.rand(5, 2, generator=rng, dtype=F64)
    prior = plain.Prior(plain.rbf(scale))
    kernel = lengthscale_candidates((scale,)).kernels[0]
    greedy = greedy_information_gain(kernel, Measure.dirac(points), 0.3, 4)
    np.testing.assert_allclose(greedy, plain.greedy_gain(prior, 0.3, points.numpy(), 4), rtol=0, atol=1e-9)
    for n in range(1, 5):
        sets = itertools.combinations_with_replacement(range(5), n)
        largest = max(plain.gain(prior, 0.3, points.numpy()[list(chosen)]) for chosen in sets)
        assert float(greedy[n]) <= largest + 1e-9
        assert largest <= float(greedy[n]) * math.e / (math.e - 1) + 1e-9
        if n == 1:
            assert float(greedy[n]) == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize("t", [0, -1, 5, 100])
def test_a_schedule_ends_with_its_steps(t):
    schedule = derived(FINITE, 1.0, 4)
    schedule(4)
    with pytest.raises(ValueError, match=f"t must lie between 1 and 4, the steps of the schedule, got {t}"):
        schedule(t)


# ---- Theorem 4.2


@pytest.mark.parametrize("t", [1, 7, 100])
@pytest.mark.parametrize(("noise", "count", "failure"), [(0.1, 1, 0.1), (0.5, 11, 0.02)])
def test_the_noise_threshold_is_the_formula(t, noise, count, failure):
    found = noise_threshold(t, noise, count, failure)
    assert found.dtype == F64 and found.shape == ()
    assert float(found) == pytest.approx(plain.xi(t, noise, count, failure), rel=1e-9)
    many = noise_threshold(torch.arange(1, 7).reshape(2, 3), noise, count, failure)
    np.testing.assert_allclose(many, [[plain.xi(3 * i + j, noise, count, failure) for j in (1, 2, 3)] for i in (0, 1)])


@pytest.mark.parametrize("failure", [0.05, 0.5])
def test_all_sums_of_gaussian_noise_together_fail_with_half_of_the_probability(failure):
    # A sum over n rounds exceeds sqrt(xi n) with probability 2 P(Z > sqrt(xi) / R), whatever n; xi grows with t >= n.
    xi = noise_threshold(torch.arange(1, 4000), 0.3, 5, failure).numpy()
    assert 5 * (2 * normal.sf(np.sqrt(xi) / 0.3)).sum() < failure / 2
    assert 5 * np.exp(-xi / (2 * 0.3**2)).sum() == pytest.approx(failure / 2, rel=1e-3)


def test_noise_that_is_only_sub_gaussian_may_cost_twice_as_much():
    # Appendix E bounds P(|sum| >= sqrt(A n)) by 2 exp(-A / 2 R^2) and sums it with xi of Lemma 5.1: the 2 is lost.
    failure, candidates = 0.1, 3
    xi = noise_threshold(torch.arange(1, 20_000), 1.0, candidates, failure).numpy()
    assert candidates * (2 * np.exp(-xi / 2)).sum() == pytest.approx(failure, rel=1e-3)


def test_more_candidates_a_later_round_and_less_failure_raise_the_threshold():
    base = noise_threshold(4, 0.2, 3, 0.1)
    for other in (noise_threshold(5, 0.2, 3, 0.1), noise_threshold(4, 0.2, 4, 0.1), noise_threshold(4, 0.2, 3, 0.05)):
        assert other > base
    torch.testing.assert_close(noise_threshold(4, 0.4, 3, 0.1), 4 * base)


# ---- slips of the paper


def test_theorem_42_b_as_printed_is_narrower_than_theorem_32_for_functions_with_small_slopes():
    def printed(b, t=10, d=1, a=1.0, r=1.0, failure=0.1):
        inner = d * t * b * r * math.sqrt(math.log(4 * d * a / failure))
        return math.sqrt(2 * math.log(2 * math.pi**2 * t**2 / (3 * failure)) + 4 * d * math.log(inner))

    for b, narrower in ((0.1, True), (0.3, True), (1.0, False), (5.0, False)):
        assert (printed(b) < lipschitz_sqrt_beta(10, 1, 1.0, b, 1.0, 0.1)) == narrower


def test_half_of_the_norm_may_break_the_bands_in_the_first_round():
    """A bump of norm 10 has height 10; the mean is zero, and the first multiplier of 5 is 5 + sqrt(2 log 20)."""
    x = FINITE.points[5]
    k = TWO.kernels[0]
    bump = 10 * k(FINITE.points, x[None]).to_dense().squeeze(-1)
    assert float(bump.max()) == pytest.approx(10)
    first = [float(derived(FINITE, norm, 1)(1)[0]) for norm in (5.0, 10.0)]
    assert first == pytest.approx([5 + math.sqrt(2 * math.log(20)), 10 + math.sqrt(2 * math.log(20))])
    assert first[0] < 10 < first[1]
