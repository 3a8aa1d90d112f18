"""The device that tests marked `cuda` run on: a GPU, or a pretended one in a process that pretends."""

import sys

import pytest
import torch

_plugin = sys.modules.get("tests.pretended")

#: Its type, None where there is none.
DEVICE = "cuda" if torch.cuda.is_available() else _plugin.NAME if _plugin is not None else None

#: For `pytestmark`, and as a decorator.
NEEDED = [pytest.mark.cuda, pytest.mark.skipif(DEVICE is None, reason="needs a CUDA device, torch.cuda finds none")]


def needed(test):
    """Mark one test."""
    for mark in NEEDED:
        test = mark(test)
    return test


def close(there, here, tolerance=1e-9):
    """Whether a result is the same as that of the CPU, and on the device."""
    assert there.device.type == DEVICE and there.dtype == here.dtype
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=tolerance)
