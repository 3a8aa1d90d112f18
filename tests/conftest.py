import warnings

import hypothesis
import pytest
import torch

with warnings.catch_warnings():
    # linear_operator scripts a function on import, which torch deprecates; warnings of our own are errors.
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.", category=DeprecationWarning)
    import botorch.models  # noqa: F401

pytest.register_assert_rewrite("tests.exercises")

hypothesis.settings.register_profile("library", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("library")


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(20240607)


# Modules that take a minute or more; begun last, one of them would run alone at the end.
_FIRST = ("test_accelerator.py", "test_pages.py", "test_checkpoint_attack.py", "test_portability.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in _FIRST)
