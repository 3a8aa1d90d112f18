"""How often a step waits for the device has a ceiling; see `tests/waits.py`, which prints the table of all policies."""

import pytest

from tests.accelerator import DEVICE, NEEDED

pytestmark = [*NEEDED, pytest.mark.skipif(DEVICE == "cuda", reason="waits are counted on the pretended device")]

# A third more than was counted.
CEILINGS = [
    ("aggregated", "GPOO", 42),
    ("contexts", "SBO-KDE", 76),
    ("contexts", "DRBO-KDE", 98),
    ("contexts", "StableOpt", 172),
    ("contexts", "DRBO-MMD", 170),
    ("hyperparameters", "HE-GP-UCB", 23),
    ("hyperparameters", "HE-GP-UCB, box", 128),
    ("indirect", "CMES", 28),
    ("subsets", "proposed", 72),
]


@pytest.mark.parametrize(("setting", "name", "most"), CEILINGS)
def test_a_step_hardly_ever_waits_for_the_device(setting, name, most):
    from tests.waits import waits  # it names the pretended device, which decides what DEVICE is

    count, lines = waits(setting, name, 2)
    assert 0 < count <= most, lines
