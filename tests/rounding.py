"""Rounding of another processor, on this one.

Math libraries round differently from one processor to the next. `other_rounding(seed)` moves the last bits of the
results of matrix products, factorizations and transcendental functions, at random but reproducibly, so that a test that
hangs on rounding shows itself on the machine where it was written. A backward pass is covered too.
"""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_TOUCHED = {
    "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linalg_cholesky_ex", "linalg_solve_triangular", "triangular_solve",
    "cholesky_solve", "linalg_eigh", "_linalg_eigh", "exp", "log", "cos", "sin", "erf", "erfc", "special_erfcx",
    "special_log_ndtr", "sum", "mean", "logsumexp", "_cdist_forward",
}  # fmt: skip


class _OtherRounding(TorchDispatchMode):
    def __init__(self, seed, ulps):
        super().__init__()
        self.generator, self.ulps = torch.Generator().manual_seed(seed), ulps

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return tree_map(self._move, out) if func._schema.name.split("::")[1] in _TOUCHED else out

    def _move(self, x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() == 0:
            return x
        noise = torch.rand(x.shape, generator=self.generator, dtype=x.dtype) * 2 - 1
        return x.mul(1 + self.ulps * torch.finfo(x.dtype).eps * noise.to(x.device))


@contextmanager
def other_rounding(seed, ulps=2.0):
    """Every touched result is multiplied by `1 + ulps * eps * u`, `u` uniform on [-1, 1]; a seed of None: by 1."""
    if seed is None:
        yield
        return
    with _OtherRounding(seed, ulps):
        yield
