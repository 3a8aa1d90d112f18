"""The problem of the paper's experiments and two applications.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from botorch.test_functions import Branin
from torch import Tensor

from book.functions import prior_samples
from cbo_lib.indirect.problem import ClippedGaussian, FinitePolicies, IndirectProblem, cosine_map, unit_grid
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Function, Measure

Transformation = Literal["linear", "cosine"]
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
#: ``tau`` of section 7, in units of the box, whose sides are 15.
TAU = math.sqrt(0.5) / 15


@cache
def _branin_moments() -> tuple[float, float]:
    values = _branin(unit_grid(128))
    return float(values.mean()), float(values.std())


def _branin(u: Tensor) -> Tensor:
    problem = Branin(dtype=u.dtype).to(u)
    bounds = torch.as_tensor(problem.bounds).to(u)
    # The formula also holds outside the box, where the call would refuse; unclipped averages need it there.
    return -problem._evaluate_true(torch.lerp(bounds[0], bounds[1], u.reshape(-1, 2))).reshape(u.shape[:-1])


def branin(u: Tensor) -> Tensor:
    """Branin's function on the unit square, to be maximized, with mean zero and standard deviation one there."""
    mean, std = _branin_moments()
    return (_branin(u) - mean) / std


def transformation(name: Transformation) -> Function:
    """``h`` of section 7 in units of the box: the identity, or ``cos(pi a / 2)`` in each coordinate."""
    if name not in ("linear", "cosine"):
        raise ValueError(f"transformation must be 'linear' or 'cosine', got {name!r}")
    return (lambda a: a[..., :2]) if name == "linear" else (lambda a: cosine_map(a[..., :2]))


def branin_problem(name: Transformation = "linear", noise_std: float = 0.1, count: int = 24) -> IndirectProblem:
    """Section 7: Branin seen through ``x = h(a) + tau * noise``, clipped to the box, on a grid of actions."""
    grid = unit_grid(count)
    return IndirectProblem(branin, grid, grid, ClippedGaussian(transformation(name), TAU, UNIT), noise_std)


def two_peaks(x: Tensor) -> Tensor:
    """A function whose average over a window of standard deviation 0.3 peaks elsewhere (after Figure 3)."""
    u = x[..., 0]
    return (-0.5 * ((u - 0.5) / 0.12).square()).exp() + 0.8 * (-0.5 * ((u - 2.0) / 0.5).square()).exp()


def bandit_problem(count: int = 60, arms: int = 12, noise_std: float = 0.1, seed: int = 0) -> IndirectProblem:
    """Agents who pull arms by policies of their own ([Zhang2025]_, section 3.1).

    Arm ``i`` stands at ``i / (arms - 1)``, and its reward is a draw of an RBF prior of lengthscale 0.15. Agent ``a`` in
    [0, 1] prefers arms near ``a``: a softmax of ``-20 (x - a)^2`` with some preference for the middle.

    Args:
        count: how many agents may be asked, equally spaced.
        arms: ``K``.
        noise_std: of an agent's average.
        seed: of the rewards.
    """
    positions = torch.linspace(0, 1, arms, dtype=torch.float64)[:, None]
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    reward = prior_samples(rbf_kernel(0.15), bounds, [seed])

    def probabilities(a: Tensor) -> Tensor:
        logits = -20 * (positions[:, 0] - a).square() - 2 * (positions[:, 0] - 0.5).square()
        return logits.softmax(-1)

    agents = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    conditional = FinitePolicies(probabilities, positions)
    return IndirectProblem(
        lambda x: reward(x.reshape(1, -1, 1)).reshape(x.shape[:-1]), positions, agents, conditional, noise_std, order=1
    )


@dataclass(frozen=True)
class Districts:
    """Administrative districts: the cells of random centers in the unit square, each an even average of its pixels.

    Args:
        centers: ``n x 2``.
        pixels: ``m x 2``.
    """

    centers: Tensor
    pixels: Tensor

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The pixels nearest to each center, evenly weighted; a center of an empty cell counts its nearest pixel."""
        owner = torch.cdist(self.pixels, self.centers).argmin(-1)
        mine = (owner == torch.cdist(actions, self.centers).argmin(-1).unsqueeze(-1)).to(actions)
        nearest = torch.cdist(actions, self.pixels).argmin(-1)
        alone = torch.nn.functional.one_hot(nearest, len(self.pixels)).to(actions)
        mine = torch.where(mine.sum(-1, keepdim=True) > 0, mine, alone)
        weights = mine / mine.sum(-1, keepdim=True)
        return Measure(self.pixels.expand(*weights.shape, 2), weights)

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One pixel of each district."""
        weights = self.measure(actions).weights.cpu()
        drawn = [w.multinomial(1, generator=g).squeeze(-1) for w, g in zip(weights, generators, strict=True)]
        return self.pixels[torch.stack(drawn).to(self.pixels.device)]


def incidence(x: Tensor) -> Tensor:
    """A simulated incidence rate on the unit square: a broad slope, a wide focus and a small hot one."""
    wide = 0.8 * (-((x - 0.3).square().sum(-1)) / (2 * 0.18**2)).exp()
    hot = 1.2 * (-((x - torch.tensor([0.75, 0.65]).to(x)).square().sum(-1)) / (2 * 0.07**2)).exp()
    return wide + hot + 0.3 * x[..., 0]


def district_problem(count: int = 60, noise_std: float = 0.05, seed: int = 0) -> IndirectProblem:
    """Find the pixel of the highest incidence from surveys of whole districts: an application of our own."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    pixels = unit_grid(32)
    return IndirectProblem(incidence, pixels, centers, Districts(centers, pixels), noise_std)
