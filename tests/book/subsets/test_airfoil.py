"""The self-noise model against published readings and a transcription of its formulas, and the reader of the data."""

import math
import os

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from hypothesis import given
from hypothesis import strategies as st

from book.subsets import airfoil as module
from book.subsets import factors, registry
from book.subsets.airfoil import (
    BACKGROUND,
    LENGTHSCALES,
    MEASURED,
    MEASURED_LENGTHSCALES,
    MEASURED_NOISE_STD,
    NOISE_STD,
    RANGES,
    SPEED_OF_SOUND,
    VISCOSITY,
    AirfoilData,
    _a_max,
    _a_min,
    _amplitude,
    _b_max,
    _b_min,
    _separation,
    _spectrum_a,
    _spectrum_b,
    airfoil_objective,
    displacement_thickness,
    fit_airfoil,
    load_airfoil,
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


@pytest.mark.parametrize(
    ("function", "joins", "jump"),
    [
        (_a_min, (0.204, 0.244), 0.07),
        (_a_max, (0.13, 0.321), 0.08),
        (_b_min, (0.13, 0.145), 0.06),
        (_b_max, (0.10, 0.187), 0.06),
        (_amplitude, (2.47e5, 8.0e5), 0.05),
    ],
)
def test_pieces_of_a_curve_meet(function, joins, jump):
    """The report's curves are fits and meet to within some hundredths of a dB."""
    for join in joins:
        below, above = function(vector(join * (1 - 1e-9), join * (1 + 1e-9)))
        assert abs(float(below - above)) < jump


def test_spectra_peak_at_zero_and_fall_on_both_sides():
    ratio = torch.logspace(-1.5, 1.5, 401, dtype=F64)
    for re in (5e4, 3e5, 2e6):
        for curve, top in ((_spectrum_a, 0.0), (_spectrum_b, 0.0)):
            level = curve(ratio, torch.full_like(ratio, re))
            assert float(level[200]) == pytest.approx(top, abs=0.01)
            torch.testing.assert_close(level, level.flip(0))
            assert bool((level[200:].diff() < 0.1).all()) and float(level[-1]) < -20


def test_the_level_is_minus_20_where_the_report_sets_it():
    for re, a, b in ((5e4, 0.57, 0.30), (8.57e5, 1.13, 0.56), (2e6, 1.13, 0.56)):
        re = vector(re)
        assert float(_spectrum_a(vector(10**a), re)) == pytest.approx(-20, abs=1e-9)
        assert float(_spectrum_b(vector(10**-b), re)) == pytest.approx(-20, abs=1e-9)


def test_separation_rises_to_its_top_and_levels_off():
    mach = vector(0.2)
    assert float(_separation(vector(0.0), mach)) < -12
    assert float(_separation(vector(0.0), vector(0.1))) < -12 and float(_separation(vector(0.0), vector(0.05))) < -12
    top = 23.43 * 0.2 + 4.651
    assert float(_separation(vector(top), mach)) == pytest.approx(72.65 * 0.2 + 10.74 - 34.19 * 0.2 - 13.82)
    angles = torch.linspace(top, 25, 200, dtype=F64)
    after = _separation(angles, mach.expand(200))
    assert bool((after.diff() <= 0).all()) and float(after.diff().abs().max()) < 0.7  # no jump
    assert float(after[-1]) == -12.0


def test_thicker_and_slower_layers_sound_lower():
    """The peak of the spectrum moves down with the thickness and up with the velocity, at fixed Strouhal number."""
    f = torch.logspace(math.log10(200), math.log10(20000), 600, dtype=F64)

    def peak(velocity, thickness):
        args = [torch.full_like(f, x) for x in (0.0, 0.1, velocity, thickness)]
        return float(f[scaled_sound_level(f, *args).argmax()])

    assert peak(71.3, 0.004) == pytest.approx(peak(71.3, 0.008) * 2, rel=0.05)
    assert peak(71.3, 0.008) == pytest.approx(peak(40.0, 0.008) * (71.3 / 40) ** 0.4, rel=0.05)


def test_samples_lie_in_the_ranges_and_above_the_tunnel():
    data = sample_airfoil(64)
    low, high = torch.tensor(RANGES, dtype=F64)
    assert data.inputs.shape == (64, 5) and data.levels.shape == (64,)
    assert bool(((data.inputs >= low) & (data.inputs <= high)).all())
    assert bool((data.levels >= BACKGROUND).all())
    bare = scaled_sound_level(*data.inputs.unbind(-1))
    expected = [10 * math.log10(10 ** (level / 10) + 10 ** (BACKGROUND / 10)) for level in bare.tolist()]
    torch.testing.assert_close(data.levels, vector(*expected))
    assert bool(((data.unit >= 0) & (data.unit <= 1)).all())
    assert float(data.unit.mean()) == pytest.approx(0.5, abs=0.02)  # uniform after the logarithms
    assert float(data.standardized.mean()) == pytest.approx(0, abs=1e-12)
    assert float(data.standardized.std()) == pytest.approx(1)
    assert torch.equal(sample_airfoil(128).inputs[:64], data.inputs)
    with pytest.raises(ValueError, match="count must be at least 2, got 1"):
        sample_airfoil(1)


def test_the_objective_follows_the_model_where_it_saw_nothing():
    data, more = sample_airfoil(), sample_airfoil(2048)
    scale, center = data.levels.std(), data.levels.mean()
    truth = (more.levels[512:] - center) / scale
    residual = airfoil_objective(data)(more.unit[512:]) - truth
    assert float(residual.square().mean().sqrt()) < 0.25


def test_the_hyperparameters_are_those_of_the_fit():
    lengthscales, noise_std = fit_airfoil(sample_airfoil())
    for got, stored in zip((*lengthscales, noise_std), (*LENGTHSCALES, NOISE_STD), strict=True):
        assert got == pytest.approx(stored, rel=0.06)


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


def write(path, data):
    rows = torch.cat([data.inputs, data.levels.unsqueeze(-1)], -1).tolist()
    path.write_text("\n".join("\t".join(repr(x) for x in row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_a_file_is_read_and_gives_the_same_objective(tmp_path):
    data = sample_airfoil(96)
    loaded = load_airfoil(write(tmp_path / "airfoil_self_noise.dat", data))
    assert torch.equal(loaded.inputs, data.inputs) and torch.equal(loaded.levels, data.levels)
    assert torch.equal(loaded.ranges, torch.stack([data.inputs.amin(0), data.inputs.amax(0)]))
    assert loaded.unit.amin(0).tolist() == pytest.approx([0.0] * 5) and loaded.unit.amax(0).tolist() == [1.0] * 5
    same = AirfoilData(loaded.inputs, loaded.levels, data.ranges)
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    assert torch.equal(airfoil_objective(same)(x), airfoil_objective(data)(x))
    assert load_airfoil(tmp_path / "airfoil_self_noise.dat", torch.float32).levels.dtype == torch.float32


ROW = "800\t0\t0.3048\t71.3\t0.00266337\t126.201"
NEXT = "1000 2 0.2286 55.5 0.003 125.2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "two or more rows, got 0"),
        (ROW, "two or more rows, got 1"),
        (f"{ROW}\n{NEXT} 1", "six finite numbers a row, got .* in line 2"),
        (f"{ROW}\n1000 2 0.2", "six finite numbers a row, got .* in line 2"),
        (f"frequency angle chord velocity thickness level\n{ROW}", "a file of numbers, got 'frequency .* in line 1"),
        (f"{ROW}\n{NEXT[:-5]}nan", "six finite numbers a row, got .* in line 2"),
        (f"{ROW}\n{ROW}", "every input varies"),
        (f"{ROW}\n-{NEXT}", "positive frequencies and thicknesses"),
        (f"{ROW}\n{NEXT}\n1000,2,0.2,55,0.003,125", "a file of numbers, got .* in line 3"),
    ],
)
def test_files_that_are_no_data_set_are_refused(text, message, tmp_path):
    path = tmp_path / "wrong.dat"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"path must name .*{message}"):
        load_airfoil(path)


def test_empty_lines_do_not_count_and_no_file_is_no_file(tmp_path):
    path = tmp_path / "good.dat"
    path.write_text(f"{ROW}\n\n  {NEXT}  \n\n", encoding="utf-8")
    assert len(load_airfoil(path).levels) == 2
    with pytest.raises(FileNotFoundError):
        load_airfoil(tmp_path / "none.dat")


@pytest.mark.skipif(factors.DATA not in os.environ, reason=f"needs the public data file, named by {factors.DATA}")
def test_the_public_file_gives_what_the_page_prints():
    data = load_airfoil(os.environ[factors.DATA])
    scales, noise_std = fit_airfoil(data)
    assert scales == pytest.approx(MEASURED_LENGTHSCALES, rel=0.05) and noise_std == pytest.approx(
        MEASURED_NOISE_STD, rel=0.05
    )
    found = factors.Panel("measured", "cheap", 0.04, 25).problem.best_values
    assert found.tolist() == pytest.approx(MEASURED[0.04], abs=2e-3)


def test_who_has_no_data_file_is_told_what_is_missing(monkeypatch):
    monkeypatch.delenv(factors.DATA, raising=False)
    with pytest.raises(ValueError, match=f"{factors.DATA} must name the airfoil data file"):
        factors.Panel("measured", "moderate", 0.02, 12).problem  # noqa: B018
    assert not any(part.startswith("measured") for part in registry.RUNS["map"].parts())
    assert any(name.startswith("measured") for name in factors.names())
