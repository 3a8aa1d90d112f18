"""The problem of the paper's experiments and two applications."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from botorch.test_functions import Branin
from torch import Tensor

from book.functions import prior_samples
from book.indirect.problem import IndirectProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import ClippedGaussian, Point, Space, UniformWindow
from cbo_lib.indirect.space import Conditional
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators, standard_normal, uniform

Transformation = Literal["linear", "cosine"]
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
#: ``tau`` of section 7, in units of the box, whose sides are 15.
TAU = math.sqrt(0.5) / 15


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
    return conditional.sample(actions, generators)  # type: ignore[attr-defined]  # those of this page can be drawn from


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


def known_prior(space: Space, lengthscale: float, variance: float = 1.0) -> GaussianProcess:
    """The prior of all places where ``p(x | a)`` is known and the kernel of f is RBF ([Zhang2025], Eqs. 2 and 3).

    In closed form for a Gaussian ``p(x | a)``, without regard to clipping; by the measure of ``p(x | a)`` otherwise.
    """
    closed = isinstance(space.conditional, ClippedGaussian | Point)
    kernel = GaussianMeasureKernel(lengthscale, variance) if closed else rbf_kernel(lengthscale, variance)
    return space.tabulate(GaussianProcess(kernel, 1.0 if space.noise is None else float(space.noise.amin())))


def two_peaks(x: Tensor) -> Tensor:
    """A function whose average over a window of standard deviation 0.3 peaks elsewhere (after Figure 3)."""
    u = x[..., 0]
    return (-0.5 * ((u - 0.5) / 0.12).square()).exp() + 0.8 * (-0.5 * ((u - 2.0) / 0.5).square()).exp()


@dataclass(frozen=True)
class FinitePolicies:
    """Agents that pull one of ``K`` arms: the indirect-query bandit ([Zhang2025], section 3.1).

    Args:
        probabilities: the policy of each agent, from covariates ``... x q`` to probability vectors ``... x K``.
        arms: the point that stands for each arm, ``K x d``.
    """

    probabilities: Callable[[Tensor], Tensor]
    arms: Tensor

    def weights(self, actions: Tensor) -> Tensor:
        """The checked probability vectors ``... x K``.

        Raises:
            ValueError: if one is negative or does not sum to one.
        """
        weights = self.probabilities(actions)
        if weights.shape != (*actions.shape[:-1], len(self.arms)):
            raise ValueError(
                f"probabilities must give {len(self.arms)} numbers an action, got shape {tuple(weights.shape)}"
            )
        if not bool((weights >= 0).all()) or not torch.allclose(weights.sum(-1), torch.ones(()).to(weights), atol=1e-6):
            raise ValueError("probabilities must be nonnegative and sum to one for every action")
        return weights

    def measure(self, actions: Tensor, order: int = 1) -> Measure:
        """The arms, weighted by the policy; exact."""
        weights = self.weights(actions)
        return Measure(self.arms.expand(*weights.shape, self.arms.shape[-1]), weights)

    def sample(self, actions: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One arm an agent."""
        weights = self.weights(actions)
        pulled = [w.multinomial(1, generator=g).squeeze(-1) for w, g in zip(weights.cpu(), generators, strict=True)]
        return self.arms[torch.stack(pulled).to(self.arms.device)]


def bandit_problem(count: int = 60, arms: int = 12, noise_std: float = 0.1, seed: int = 0) -> IndirectProblem:
    """Agents who pull arms by policies of their own ([Zhang2025], section 3.1).

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
    space = Space(agents, conditional=conditional, points=positions, noise_std=noise_std)
    return IndirectProblem(space, lambda x: reward(x.reshape(1, -1, 1)).reshape(x.shape[:-1]), order=1)


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
    space = Space(centers, conditional=Districts(centers, pixels), points=pixels, noise_std=noise_std)
    return IndirectProblem(space, incidence)
