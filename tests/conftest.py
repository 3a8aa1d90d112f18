import gc
import os
import warnings
from pathlib import Path

import hypothesis
import pytest

gc.disable()  # while a million objects are made that stay, to look for garbage takes a third of the time
with warnings.catch_warnings():
    # linear_operator scripts a function on import, which torch deprecates; warnings of our own are errors.
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
    import botorch.models  # noqa: F401
    import torch
gc.freeze()
gc.set_threshold(20_000)  # to look for garbage after every 700 objects takes a fiftieth of the time
gc.enable()

pytest.register_assert_rewrite("tests.exercises")

from tests.rounding import other_rounding  # noqa: E402

hypothesis.settings.register_profile("library", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("library")


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(20240607)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Round as another processor does in each test and its fixtures, if the environment has a seed in `ROUNDING`."""
    seed = os.environ.get("ROUNDING")
    apart = item.get_closest_marker("browser") or item.get_closest_marker("same_bits")
    with other_rounding(int(seed) if seed and not apart else None):
        return (yield)


# Modules that take most of a minute or more, longest first; begun last, one of them would run alone at the end. The
# option --no-loadscope-reorder keeps this order.
_FIRST = (
    "book/test_served_pages.py",
    "book/test_grade.py",
    "contexts/test_policies.py",
    "test_accelerator.py",
    "subsets/test_policies.py",
    "book/contexts/test_experiments.py",
    "book/hyperparameters/test_exercises.py",
    "book/test_pages.py",
)
_RANK = {Path(__file__).parent / name: rank for rank, name in enumerate(_FIRST)}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _RANK.get(item.path, len(_RANK)))


def pytest_collection_finish():
    """What is there by now stays, and is not looked through again and again for garbage."""
    gc.freeze()
