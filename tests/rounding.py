"""Rounding of another processor, on this one.

Math libraries round differently from one processor to the next. `other_rounding(seed)` moves the last bits of the
results of matrix products, factorizations and transcendental functions, at random but reproducibly, so that what hangs
on rounding shows itself on the machine where it was written. A backward pass is covered too.

A test enters it for one run. `make rounding` runs notebooks in kernels that enter it when they start, see `begin`.
"""

import os
import random
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_map

from tests.operations import OperationsMode

_TOUCHED = {
    "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linalg_cholesky_ex", "linalg_solve_triangular", "triangular_solve",
    "cholesky_solve", "linalg_eigh", "_linalg_eigh", "exp", "log", "cos", "sin", "erf", "erfc", "special_erfcx",
    "special_log_ndtr", "sum", "mean", "logsumexp", "_cdist_forward",
}  # fmt: skip


# How many numbers are drawn; a result takes as many that follow one another, from a place of its own.
_DRAWN = 2**18


class _OtherRounding(OperationsMode):
    def __init__(self, seed, ulps):
        super().__init__()
        self.generator, self.ulps = torch.Generator().manual_seed(seed), ulps
        self.place, self.touched, self.factors = random.Random(seed), {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func not in self.touched:
            self.touched[func] = func._schema.name.split("::")[1] in _TOUCHED
        return tree_map(self._move, out) if self.touched[func] else out

    def _move(self, x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() == 0:
            return x
        n = x.numel()
        if n > _DRAWN:
            return x.mul(self._drawn(n, x.dtype).view(x.shape).to(x.device))
        if x.dtype not in self.factors:
            self.factors[x.dtype] = self._drawn(2 * _DRAWN, x.dtype)
        first = self.place.randrange(_DRAWN)
        return x.mul(self.factors[x.dtype][first : first + n].view(x.shape).to(x.device))

    def _drawn(self, n, dtype):
        noise = torch.rand(n, generator=self.generator, dtype=dtype) * 2 - 1
        return 1 + self.ulps * torch.finfo(dtype).eps * noise


@contextmanager
def other_rounding(seed, ulps=2.0):
    """Every touched result is multiplied by `1 + ulps * eps * u`, `u` uniform on [-1, 1]; a seed of None: by 1."""
    if seed is None:
        yield
        return
    with _OtherRounding(seed, ulps):
        yield


def begin():
    """Round otherwise until this process ends, if the environment has a seed in `ROUNDING`."""
    if os.environ.get("ROUNDING"):
        _OtherRounding(int(os.environ["ROUNDING"]), 2.0).__enter__()
