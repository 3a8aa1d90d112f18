"""The paper's problem, Branin through two maps, and the two peaks that the chapter follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import torch
from botorch.test_functions import Branin
from torch import Tensor

from book.indirect.problem import IndirectProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, Space, UniformWindow
from cbo_lib.indirect.space import Conditional
from cbo_lib.kernels import GaussianMeasureKernel
from cbo_lib.measure import Function
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

Transformation = Literal["linear", "cosine"]
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
#: ``tau`` of section 7, in units of the box, whose sides are 15.
TAU = math.sqrt(0.5) / 15
# How far a moved function is shifted, in sides of the square, and turned, in radians.
_SHIFT, _TURN = 0.15, math.pi / 12


def unit_grid(count: int, dim: int = 2) -> Tensor:
    """The centers of ``count^dim`` equal cells of the unit box, ``count^dim x dim``."""
    axis = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def draw_data(
    problem: IndirectProblem | Space, count: int, seeds: Sequence[int], bounds: Tensor
) -> tuple[Tensor, Tensor]:
    """``D1`` of [Zhang2025], section 2, for each seed: pairs ``(x, a)`` to learn ``p(x | a)`` from, uniform actions.

    Args:
        problem: whose true ``p(x | a)`` is drawn from, or a space that knows it.
        count: how many pairs ``N``, at least 1.
        seeds: one a replicate.
        bounds: of the actions, ``2 x q``.

    Returns:
        Inputs ``replicates x N x d`` and actions ``replicates x N x q``.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    generators = ReplicateGenerators(seeds, stream=4).generators
    actions = torch.lerp(bounds[0], bounds[1], uniform(generators, (count, bounds.shape[-1]), bounds))
    assert problem.conditional is not None
    return draw_inputs(problem.conditional, actions, generators), actions


def draw_inputs(conditional: Conditional, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One input of each action ``replicates x n x q``, drawn from ``p(x | a)`` by each replicate's own generator."""
    if isinstance(conditional, UniformWindow):
        center, radius = actions[..., :-1], actions[..., -1:]
        return center + radius * (2 * uniform(generators, center.shape[1:], center) - 1)
    if isinstance(conditional, ClippedGaussian):
        center = conditional.center(actions)
        noise = standard_normal(generators, center.shape[1:], center)
        drawn = center + conditional.scale(actions).unsqueeze(-1) * noise
        return drawn if conditional.bounds is None else drawn.clamp(conditional.bounds[0], conditional.bounds[1])
    raise ValueError(f"conditional must be a window or a clipped Gaussian, got {conditional}")


@cache
def branin_moments() -> tuple[float, float]:
    """Mean and standard deviation of (minus) Branin's function on its square, in its own units."""
    values = _branin(unit_grid(128))
    return float(values.mean()), float(values.std())


def _branin(u: Tensor) -> Tensor:
    problem = Branin(dtype=u.dtype).to(u)
    bounds = torch.as_tensor(problem.bounds).to(u)
    # The formula also holds outside the box, where the call would refuse; unclipped averages need it there.
    return -problem._evaluate_true(torch.lerp(bounds[0], bounds[1], u.reshape(-1, 2))).reshape(u.shape[:-1])


def branin(u: Tensor) -> Tensor:
    """Branin's function on the unit square, to be maximized, with mean zero and standard deviation one there."""
    mean, std = branin_moments()
    return (_branin(u) - mean) / std


def transformation(name: Transformation) -> Function:
    """``h`` of section 7 in units of the box: the identity, or ``cos(pi a / 2)`` in each coordinate."""
    if name not in ("linear", "cosine"):
        raise ValueError(f"transformation must be 'linear' or 'cosine', got {name!r}")
    return (lambda a: a[..., :2]) if name == "linear" else (lambda a: (math.pi * a[..., :2] / 2).cos())


def branin_problem(name: Transformation = "linear", noise_std: float = 0.1, count: int = 24) -> IndirectProblem:
    """Section 7: Branin seen through ``x = h(a) + tau * noise``, clipped to the box, on a grid of actions."""
    grid = unit_grid(count)
    conditional = ClippedGaussian(transformation(name), TAU, UNIT)
    return IndirectProblem(Space(grid, conditional=conditional, points=grid, noise_std=noise_std), branin)


def known_prior(lengthscale: float, variance: float = 1.0, noise_std: float = 0.1) -> GaussianProcess:
    """The prior where ``p(x | a)`` is a known Gaussian and the kernel of f is RBF ([Zhang2025], Eqs. 2 and 3).

    In closed form, without regard to clipping.
    """
    return GaussianProcess(GaussianMeasureKernel(lengthscale, variance), noise_std)


def two_peaks(x: Tensor) -> Tensor:
    """A function whose average over a window of standard deviation 0.3 peaks elsewhere (after Figure 3)."""
    u = x[..., 0]
    return (-0.5 * ((u - 0.5) / 0.12).square()).exp() + 0.8 * (-0.5 * ((u - 2.0) / 0.5).square()).exp()


@dataclass(frozen=True)
class Turned:
    """Branin's function after a random motion of the square, standardized on it; one function a seed.

    A motion shifts by up to 0.15 of a side in each coordinate, turns by up to 15 degrees, and then mirrors or turns by
    right angles, as two fair coins and a fair die of four say. Outside of its square Branin's formula goes on.

    Args:
        seeds: one a replicate.
    """

    seeds: tuple[int, ...]

    @cached_property
    def motion(self) -> tuple[Tensor, Tensor]:
        """Matrices ``R x 2 x 2`` and offsets ``R x 2``: ``u`` is looked up at ``0.5 + A (u - 0.5) + b``."""
        draws = uniform(ReplicateGenerators(self.seeds, stream=6).generators, (5,), UNIT)
        angle = _TURN * (2 * draws[:, 0] - 1) + math.pi / 2 * (4 * draws[:, 1]).floor()
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).reshape(-1, 2, 2)
        mirror = torch.where(draws[:, 2] < 0.5, -1.0, 1.0)
        turn = torch.stack([turn[..., 0] * mirror[:, None], turn[..., 1]], -1)
        return turn, _SHIFT * (2 * draws[:, 3:] - 1)

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each moved function on the square, ``R x 1``."""
        values = self._moved(unit_grid(64).expand(len(self.seeds), -1, -1))
        return values.mean(-1, keepdim=True), values.std(-1, keepdim=True)

    def _moved(self, u: Tensor) -> Tensor:
        turn, offset = self.motion
        flat = u.reshape(len(self.seeds), -1, 2) - 0.5
        return branin(0.5 + flat @ turn.mT + offset.unsqueeze(1)).reshape(u.shape[:-1])

    def __call__(self, u: Tensor) -> Tensor:
        """Values ``R x ...`` at points ``R x ... x 2``."""
        mean, std = self.moments
        flat = self._moved(u).reshape(len(self.seeds), -1)
        return ((flat - mean) / std).reshape(u.shape[:-1])
