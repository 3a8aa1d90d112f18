"""The self-noise model against published readings and a transcription of its formulas, and the reader of the data."""

import math

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from hypothesis import strategies as st

from book.subsets import airfoil as module
from book.subsets.airfoil import (
    RANGES,
    SPEED_OF_SOUND,
    VISCOSITY,
    airfoil_objective,
    displacement_thickness,
    fit_airfoil,
    sample_airfoil,
    scaled_sound_level,
)

F64 = torch.float64

# Readings of the airfoil self-noise data set (T. Brooks, D. Pope, M. Marcolini, UCI Machine Learning Repository, 1989):
# angle, chord, velocity and thickness, then levels in dB by frequency.
READINGS = {
    (0.0, 0.3048, 71.3, 0.00266337): {800: 126.201, 1600: 127.591, 2500: 125.571},
    (0.0, 0.2286, 31.7, 0.0027238): {500: 126.675, 800: 130.725, 2500: 123.445, 6300: 116.815},
    (2.0, 0.2286, 71.3, 0.00293031): {630: 127.356, 1600: 127.796, 4000: 124.086, 10000: 113.086},
    (4.0, 0.2286, 39.6, 0.00473801): {315: 122.229, 800: 130.469, 2000: 121.659, 5000: 117.649},
    (5.3, 0.2286, 71.3, 0.0051942): {400: 127.700, 1000: 134.000, 2500: 123.740, 10000: 111.350},
    (7.3, 0.2286, 31.7, 0.0132672): {200: 128.679, 500: 128.169, 1250: 120.509, 3150: 113.229},
    (5.4, 0.1524, 39.6, 0.00485029): {315: 125.347, 800: 132.757, 2000: 124.647, 6300: 116.677},
    (9.9, 0.1524, 71.3, 0.0193001): {200: 134.319, 315: 135.459, 500: 131.279},
}


def vector(*values):
    return torch.tensor(values, dtype=F64)


def test_the_thickness_formulas_give_the_data_sets_thicknesses():
    for angle, chord, velocity, thickness in READINGS:
        pressure, suction = displacement_thickness(vector(angle), vector(chord), vector(velocity))
        assert float(suction) == pytest.approx(thickness, rel=1e-4)
        assert float(pressure) <= float(suction)


def test_levels_are_near_the_readings():
    errors = []
    for (angle, chord, velocity, thickness), readings in READINGS.items():
        frequency = vector(*readings)
        others = [torch.full_like(frequency, x) for x in (angle, chord, velocity, thickness)]
        errors.append(scaled_sound_level(frequency, *others) - vector(*readings.values()))
    errors = torch.cat(errors)
    assert float(errors.square().mean().sqrt()) < 3.0
    assert float(errors.abs().max()) < 6.0


def shape(pieces, x):
    """One of the four shapes: ``(limit, formula)`` pairs."""
    return next(formula(x) for limit, formula in pieces if x <= limit)


A_MIN = (
    (0.204, lambda a: math.sqrt(67.552 - 886.788 * a**2) - 8.219),
    (0.244, lambda a: -32.665 * a + 3.981),
    (math.inf, lambda a: -142.795 * a**3 + 103.656 * a**2 - 57.757 * a + 6.006),
)
A_MAX = (
    (0.13, lambda a: math.sqrt(67.552 - 886.788 * a**2) - 8.219),
    (0.321, lambda a: -15.901 * a + 1.098),
    (math.inf, lambda a: -4.669 * a**3 + 3.491 * a**2 - 16.699 * a + 1.149),
)
B_MIN = (
    (0.13, lambda b: math.sqrt(16.888 - 886.788 * b**2) - 4.109),
    (0.145, lambda b: -83.607 * b + 8.138),
    (math.inf, lambda b: -817.810 * b**3 + 355.210 * b**2 - 135.024 * b + 10.619),
)
B_MAX = (
    (0.10, lambda b: math.sqrt(16.888 - 886.788 * b**2) - 4.109),
    (0.187, lambda b: -31.330 * b + 1.854),
    (math.inf, lambda b: -80.541 * b**3 + 44.174 * b**2 - 39.381 * b + 2.344),
)


def spectrum(lower, upper, ratio, at):
    low, high = shape(lower, at), shape(upper, at)
    r = (-20 - low) / (high - low)
    x = abs(math.log10(ratio))
    return shape(lower, x) + r * (shape(upper, x) - shape(lower, x))


def spectrum_a(ratio, re):
    at = 0.57 if re < 9.52e4 else 1.13 if re > 8.57e5 else -9.57e-13 * (re - 8.57e5) ** 2 + 1.13
    return spectrum(A_MIN, A_MAX, ratio, at)


def spectrum_b(ratio, re):
    at = 0.30 if re < 9.52e4 else 0.56 if re > 8.57e5 else -4.48e-13 * (re - 8.57e5) ** 2 + 0.56
    return spectrum(B_MIN, B_MAX, ratio, at)


def plain_level(f, angle, chord, u, suction):
    """The model once more, one condition at a time, as the report writes it."""
    mach, re = u / SPEED_OF_SOUND, chord * u / VISCOSITY
    log = math.log10(re)
    flat = chord * (0.0601 * re**-0.114 if re <= 0.3e6 else 10 ** (3.411 - 1.5397 * log + 0.1059 * log**2))
    pressure = flat * 10 ** (-0.0432 * angle + 0.00113 * angle**2)
    st1 = 0.02 * mach**-0.6
    st2 = st1 * (1 if angle < 1.33 else 10 ** (0.0054 * (angle - 1.33) ** 2) if angle <= 12.5 else 4.72)
    k1 = -4.31 * log + 156.3 if re < 2.47e5 else -9 * log + 181.6 if re <= 8e5 else 128.5
    re_p = u * pressure / VISCOSITY
    dk1 = angle * (1.43 * math.log10(re_p) - 5.29) if re_p <= 5000 else 0
    gamma, gamma0, beta, beta0 = 27.094 * mach + 3.31, 23.43 * mach + 4.651, 72.65 * mach + 10.74, -34.19 * mach - 13.82
    inside = beta**2 - (beta / gamma) ** 2 * (angle - gamma0) ** 2
    if angle < gamma0 - gamma:
        k2 = k1 - 1000
    elif angle <= gamma0:
        k2 = k1 + math.sqrt(inside) + beta0
    else:
        k2 = k1 + max(math.sqrt(max(inside, 0)) + beta0, -12)
    st_s = f * suction / u
    if angle > min(gamma0, 12.5):
        return spectrum_a(st_s / st2, 3 * re) + k2
    powers = [
        pressure / suction * 10 ** ((spectrum_a(f * pressure / u / st1, re) + k1 - 3 + dk1) / 10),
        10 ** ((spectrum_a(st_s / ((st1 + st2) / 2), re) + k1 - 3) / 10),
        10 ** ((spectrum_b(st_s / st2, re) + k2) / 10),
    ]
    return 10 * math.log10(sum(powers))


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_the_model_is_its_formulas(unit):
    low, high = RANGES
    row = [a + (b - a) * u for a, b, u in zip(low, high, unit, strict=True)]
    for k in (0, 4):
        row[k] = low[k] * (high[k] / low[k]) ** unit[k]
    got = scaled_sound_level(*(vector(x) for x in row))
    assert float(got) == pytest.approx(plain_level(*row), abs=1e-6, rel=1e-9)


def test_the_objective_follows_the_model_where_it_saw_nothing():
    data, more = sample_airfoil(), sample_airfoil(2048)
    scale, center = data.levels.std(), data.levels.mean()
    truth = (more.levels[512:] - center) / scale
    residual = airfoil_objective(data)(more.unit[512:]) - truth
    assert float(residual.square().mean().sqrt()) < 0.25


def test_the_fit_is_that_of_botorch_and_ends_at_the_same_place_from_a_part_of_the_rows(monkeypatch):
    data = sample_airfoil(96)
    model = SingleTaskGP(data.unit, data.standardized.unsqueeze(-1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    expected = [
        *model.covar_module.lengthscale.detach().flatten().tolist(),
        float(model.likelihood.noise.detach().sqrt()),
    ]
    for first in (500, 40):
        monkeypatch.setattr(module, "_FIRST", first)
        lengthscales, noise_std = fit_airfoil(data)
        assert [*lengthscales, noise_std] == pytest.approx(expected, rel=1e-3)
