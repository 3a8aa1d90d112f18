"""The plant's response against a transcription, and the laws that it is made of."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from book.subsets.plant import RANGES, plant_growth

F64 = torch.float64


def unit(**supplies):
    """A point of the unit box with some inputs in their units; the others at fair values."""
    names = ("calcium", "boron", "ammonia", "potassium", "ph")
    values = {"calcium": 3.0, "boron": 24.0, "ammonia": 3.5, "potassium": 15.0, "ph": 5.85} | supplies
    return torch.tensor([(values[n] - a) / (b - a) for n, a, b in zip(names, *RANGES, strict=True)], dtype=F64)


def haldane(s, k, i):
    return s / (k + s + s * s / i) * (1 + 2 * math.sqrt(k / i))


def factors(x):
    ca, b, nh, k, ph = (low + (high - low) * u for low, high, u in zip(*RANGES, x, strict=True))
    four = [
        haldane(ca, 0.8, 12.0),
        haldane(b, 8.0, 70.0),
        haldane(nh, 1.2, 6.0 * (1 + k / 15.0)),
        haldane(k, 4.0, 60.0),
    ]
    window = (1 + 2 * 10 ** ((4.8 - 6.9) / 2)) / (1 + 10 ** (4.8 - ph) + 10 ** (ph - 6.9))
    return four, window


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_growth_is_its_formula_and_between_the_minimum_and_a_little_more(x):
    got = float(plant_growth(torch.tensor(x, dtype=F64)))
    four, window = factors(x)
    soft = (sum(f**-6 for f in four) / 4) ** (-1 / 6)
    assert got == pytest.approx(soft * window, rel=1e-10)
    assert 0 < got <= 1
    assert min(four) * window * (1 - 1e-9) <= got <= min(four) * window * 4 ** (1 / 6) * (1 + 1e-9)


def test_each_nutrient_has_its_best_supply():
    """With the others plentiful, growth is largest where Haldane's law says: at the geometric mean of its constants."""
    for name, k, i in (("calcium", 0.8, 12.0), ("boron", 8.0, 70.0), ("potassium", 4.0, 60.0)):
        best = math.sqrt(k * i)
        assert haldane(best, k, i) == pytest.approx(1)
        if name == "potassium":
            continue  # it also acts through ammonia
        there, less, more = (float(plant_growth(unit(**{name: best * s}))) for s in (1.0, 0.7, 1.4))
        assert there > less and there > more


def test_the_scarcest_nutrient_decides():
    scarce = [float(plant_growth(unit(boron=b))) for b in (1.0, 1.1)]
    assert scarce[1] / scarce[0] == pytest.approx(1.1 * 9.0 / 9.1, rel=0.02)  # uptake goes with boron itself
    # Where boron is short, more or less of another nutrient changes next to nothing.
    assert float(plant_growth(unit(boron=1.0, calcium=5.0))) == pytest.approx(scarce[0], rel=1e-3)
    assert float(plant_growth(unit(calcium=5.0))) < 0.99 * float(plant_growth(unit()))


def test_growth_is_smooth_and_keeps_shapes_and_dtypes():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(7, 3, 5, generator=generator, dtype=F64)
    x[0, 0], x[0, 1] = 0.0, 1.0
    assert plant_growth(x).shape == (7, 3)
    assert plant_growth(x.float()).dtype == torch.float32
    torch.testing.assert_close(plant_growth(x.float()).double(), plant_growth(x), rtol=1e-4, atol=1e-6)
    assert torch.autograd.gradcheck(plant_growth, (x[:2].clone().requires_grad_(True),))
