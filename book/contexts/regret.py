"""Regret under unknown contexts: the paper's notions, the terms of its proof on runs, and how fast laws are learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from book.contexts.marginals import Marginal
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from book.functions import maximum
from cbo_lib.contexts.density import GaussianKDE, silverman_bandwidth
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, SBOEmpirical
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import tv_worst_case
from cbo_lib.distributions import Normal
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators, standard_normal


def cumulative_regret(history: Any, problem: ContextProblem) -> Tensor:
    """``R_t`` ([Huang2024], Eq. 1) of a run, ``replicates x T``; the initial design counts, as in the paper."""
    return (problem.optimum.unsqueeze(-1) - history["value"]).cumsum(-1)


def density_distance(estimate: GaussianKDE, density: Function, low: float, high: float, points: int = 4097) -> Tensor:
    """``int_low^high |p_hat(c) - p(c)| dc``, the L1 distance to a density in one dimension.

    The paper calls it total variation; the total variation in the usual sense is half of it. By the trapezoidal rule on
    equally spaced points.

    Args:
        estimate: ``p_hat``, from samples ``... x n x 1``.
        density: ``p``, from contexts ``m x 1`` to ``m``.
        low: where to begin.
        high: where to end, above ``low``.
        points: of the rule, at least 2.

    Returns:
        ``...``, one number a replicate.

    Raises:
        ValueError: if there is more than one dimension, a bandwidth is zero or a number is out of range.
    """
    samples = estimate.samples
    if samples.shape[-1] != 1:
        raise ValueError(f"samples must have one dimension, got {samples.shape[-1]}")
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    if points < 2:
        raise ValueError(f"points must be at least 2, got {points}")
    grid = torch.linspace(low, high, points, dtype=samples.dtype, device=samples.device).unsqueeze(-1)
    return torch.trapezoid((estimate.density(grid) - density(grid)).abs(), grid.squeeze(-1), dim=-1)


@dataclass(frozen=True)
class Constants:
    """What the bounds of [Huang2024] need to know.

    Args:
        a: of Assumption 1, ``P(sup |df / dz_i| > L) <= a exp(-(L / b)^2)`` for every coordinate.
        b: of Assumption 1, in the units of f over those of the inputs.
        side: ``r``, of the box.
        decision_dim: ``Dx``.
        context_dim: ``Dc``.
        noise_std: of the observations.
    """

    a: float
    b: float
    side: float
    decision_dim: int
    context_dim: int
    noise_std: float

    def parts(self, t: int) -> int:
        """``tau_t``: into how many parts each coordinate of the decisions is divided, a whole number."""
        return math.ceil(t**2 * self.decision_dim * self.a * self.b * self.side * math.sqrt(math.pi) / 2)

    def beta(self, t: int) -> float:
        """``beta_t`` of Theorem 1; negative in the first rounds if ``tau_t`` is small."""
        return 2 * math.log(t**2 / math.sqrt(2 * math.pi)) + 2 * self.decision_dim * math.log(self.parts(t))

    def sqrt_beta(self, t: int) -> float:
        """The multiplier of the standard deviation in Theorem 1, zero where ``beta_t`` is negative."""
        return math.sqrt(max(0.0, self.beta(t)))

    @property
    def largest(self) -> float:
        """The bound of Lemma 4 on ``E max |f|``: ``a b D r sqrt(pi) / 2 + sqrt(2 / pi)``; also ``C4``."""
        dim = self.decision_dim + self.context_dim
        return self.a * self.b * dim * self.side * math.sqrt(math.pi) / 2 + math.sqrt(2 / math.pi)


class PriorDraws:
    """Draws of a Gaussian process with an RBF kernel of variance one on the unit square, one a seed.

    Exact at a square grid, and the process's own interpolation between its points; with at least five points a
    lengthscale the error is far below the standard deviation.

    Args:
        lengthscale: of both coordinates, in the units of the inputs.
        seeds: one a replicate.
        grid: points a coordinate, at least 2.

    Raises:
        ValueError: if ``lengthscale`` is not positive or ``grid`` below 2.
    """

    def __init__(self, lengthscale: float, seeds: Sequence[int], grid: int = 41) -> None:
        if not lengthscale > 0:
            raise ValueError(f"lengthscale must be positive, got {lengthscale}")
        if grid < 2:
            raise ValueError(f"grid must be at least 2, got {grid}")
        self.lengthscale = lengthscale
        self.grid = torch.linspace(0, 1, grid, dtype=torch.float64)
        # The jitter is a thousandth of the standard deviation; it keeps the smooth kernel's matrix invertible.
        gram = self._kernel(self.grid) + 1e-6 * torch.eye(grid, dtype=torch.float64)
        factor = torch.linalg.cholesky(gram)
        z = standard_normal(ReplicateGenerators(seeds, stream=2).generators, (grid, grid), gram)
        left = torch.linalg.solve_triangular(factor.mT, z, upper=True)
        self.weights = torch.linalg.solve_triangular(factor, left, upper=False, left=False)  # replicates grid grid

    def __call__(self, points: Tensor) -> Tensor:
        """Points ``replicates x ... x 2`` to values ``replicates x ...``."""
        flat = points.reshape(len(self.weights), -1, 2)
        first, second = self._kernel(flat[..., 0]), self._kernel(flat[..., 1])
        return ((first @ self.weights.to(flat)) * second).sum(-1).reshape(points.shape[:-1])

    def average(self, contexts: Tensor, weights: Tensor) -> Function:
        """The weighted average over contexts ``N x 1``, from decisions ``replicates x ... x 1`` to values."""
        over = (weights @ self._kernel(contexts[:, 0])).to(self.weights)
        rows = (self.weights @ over.unsqueeze(-1)).squeeze(-1)  # replicates grid

        def mean(x: Tensor) -> Tensor:
            flat = x.reshape(len(rows), -1)
            return (self._kernel(flat) @ rows.to(x).unsqueeze(-1)).reshape(x.shape[:-1])

        return mean

    def slopes(self, points: int = 101) -> Tensor:
        """The largest absolute partial derivatives over a square grid, ``replicates x 2``."""
        u = torch.linspace(0, 1, points, dtype=torch.float64)
        kernel = self._kernel(u)
        derivative = (self.grid - u.unsqueeze(-1)) / self.lengthscale**2 * kernel
        pairs = ((derivative, kernel), (kernel, derivative))
        return torch.stack([(a @ self.weights @ b.mT).abs().flatten(1).amax(-1) for a, b in pairs], -1)

    def _kernel(self, u: Tensor) -> Tensor:
        return (-0.5 * ((u.unsqueeze(-1) - self.grid.to(u)) / self.lengthscale).square()).exp()


@dataclass(frozen=True)
class DrawnProblem(ContextProblem):
    """A problem with one function a replicate.

    ``f`` maps points ``replicates x ... x (Dx + Dc)`` to ``replicates x ...``, and ``expectation``, which must be
    given, decisions ``replicates x ... x Dx``; ``maximizer`` and ``optimum`` have the replicates in front.

    Args:
        replicates: how many functions.
    """

    replicates: int = 1

    def value(self, query: Tensor) -> Tensor:
        """``E_p f(x, c)`` of decisions ``replicates x ... x Dx``, ``replicates x ...``."""
        if self.expectation is None:
            raise ValueError("expectation must be given, got None")
        return self.expectation(query)

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        return maximum(self.value, self.space.decisions, self.replicates)

    @property
    def maximizer(self) -> Tensor:
        """The best decision of each replicate, ``replicates x Dx``."""
        return self._best[0]

    @property
    def optimum(self) -> Tensor:
        """Its value, ``replicates``."""
        return self._best[1]


def drawn_problem(
    seeds: Sequence[int], lengthscale: float = 0.2, noise_std: float = 0.1, marginal: Marginal | None = None
) -> DrawnProblem:
    """Draws of a known prior with one decision and one context: what the theorems are about.

    Args:
        seeds: one a replicate.
        lengthscale: of the prior, whose variance is one.
        noise_std: of the observations.
        marginal: of the context, clipped onto [0, 1]. Default ``N(0.5, 0.15^2)``.
    """
    box = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    breaks = (tuple(j / 16 for j in range(1, 16)),)
    contexts = QuadratureDistribution((marginal or Normal(0.5, 0.15),), box, breaks, order=8)
    f = PriorDraws(lengthscale, seeds)
    return DrawnProblem(
        Space(box, box),
        f,
        contexts,
        noise_std,
        f.average(*contexts.nodes),
        value_error=1e-8,
        name="draws of the prior",
        replicates=len(seeds),
    )


def slope_tail(slopes: Tensor, b: float) -> float:
    """The least ``a`` for which ``P(sup |df / dz_i| > L) <= a exp(-(L / b)^2)`` holds in a sample, at least 1.

    Args:
        slopes: the suprema, ``draws x D``; the worst coordinate counts.
        b: positive, the scale of the tail.
    """
    ordered = slopes.sort(0, descending=True).values
    rank = torch.arange(1, len(ordered) + 1, dtype=slopes.dtype).unsqueeze(-1) / len(ordered)
    return max(1.0, float((rank * (ordered / b).square().exp()).max()))


def theorem_constants(lengthscale: float = 0.2) -> Constants:
    """Of ``drawn_problem``: ``b`` is twice the deviation of a slope, ``a`` the least number for 300 draws."""
    slopes, b = PriorDraws(lengthscale, range(300)).slopes(), 2 / lengthscale
    return Constants(slope_tail(slopes, b), b, 1.0, 1, 1, 0.1)


@torch.no_grad()
def walk(kind: str, constants: Constants, rounds: int = 40, seeds: Sequence[int] = range(10), each: int = 8) -> Any:
    """Every term of the proof in every round after the design, on draws of the prior, ``replicates x rounds``.

    ``W`` is the average under the estimate, of DRBO-KDE the worst one in its ball.

    Args:
        kind: ``"SBO-KDE"``, ``"SBO, empirical law"`` or ``"DRBO-KDE"``.
        constants: for the multiplier and the grid.
        rounds: the design of three included.
        seeds: one a draw.
        each: nodes of every bell of the density estimate.
    """
    problem = drawn_problem(list(seeds))
    options: dict[str, Any] = {"prior": GaussianProcess(rbf_kernel(0.2), 0.1), "initial": 3, "raw": 32, "starts": 1}
    kinds = {"SBO-KDE": SBOKDE, "SBO, empirical law": SBOEmpirical, "DRBO-KDE": DRBOKDE}
    options |= {} if kind == "SBO, empirical law" else {"samples": 64}
    batch = kinds[kind](problem.space, sqrt_beta=constants.sqrt_beta, **options).start(seeds)
    world, best, records = ReplicateGenerators(seeds, stream=0), problem.maximizer, []
    rule, weights = problem.expectation_nodes
    bells = torch.special.ndtri((torch.arange(each, dtype=torch.float64) + 0.5) / each)
    for t in range(1, rounds + 1):
        x = batch.ask()
        context = problem.draw_context(world.at(t))
        if t > 3:
            radius, side = (batch.radius() if kind == "DRBO-KDE" else 0.0), 1 / constants.parts(t)
            near = ((best / side).floor() + 0.5) * side  # the center of its cell
            three = torch.stack([best, near, x], 1)
            nodes = batch.seen
            if kind != "SBO, empirical law":
                spread = silverman_bandwidth(nodes).unsqueeze(-2) * bells.unsqueeze(-1)
                nodes = (nodes.unsqueeze(-2) + spread.unsqueeze(1)).flatten(1, 2).clamp(0, 1)
            m = nodes.shape[1]
            c = torch.cat([nodes, rule.expand(len(x), -1, -1), context.unsqueeze(1)], 1)
            pairs = problem.space.join(three.unsqueeze(2), c.unsqueeze(1))
            f, flat = problem.f(pairs), Measure.dirac(pairs.flatten(1, 2))
            mean, variance = (part.unflatten(1, pairs.shape[1:3]) for part in batch.posterior.mean_and_variance(flat))
            std, root = variance.clamp_min(0).sqrt(), batch.sqrt_beta()
            ucb, true, estimate = mean + root * std, problem.value(three), f[..., :m].mean(-1)

            def W(values: Tensor, m: int = m, radius: float = radius) -> Tensor:
                return tv_worst_case(values[..., :m], values[..., :-1].amin(-1), radius)

            records.append(
                {
                    "estimate at x*": true[:, 0] - estimate[:, 0],
                    "radius at x*": estimate[:, 0] - W(f)[:, 0],
                    "grid": W(f)[:, 0] - W(f)[:, 1],
                    "optimism": W(f)[:, 1] - W(ucb)[:, 1],
                    "maximization": W(ucb)[:, 1] - W(ucb)[:, 2],
                    "width": W(ucb)[:, 2] - W(f)[:, 2],
                    "radius at x_t": W(f)[:, 2] - estimate[:, 2],
                    "estimate at x_t": estimate[:, 2] - true[:, 2],
                    "regret": true[:, 0] - true[:, 2],
                    "width under the estimate": root * std[:, 2, :m].mean(-1),
                    "width under p": root * (std[:, 2, m:-1] @ weights),
                    "width seen": root * std[:, 2, -1],
                    "square under the estimate": std[:, 2, :m].square().mean(-1),
                    "square under p": std[:, 2, m:-1].square() @ weights,
                    "square seen": std[:, 2, -1].square(),
                    "range": f[:, 2].amax(-1) - f[:, 2].amin(-1),
                }
            )
        y = problem.f(problem.space.join(x, context).unsqueeze(1)).squeeze(1)
        batch.tell(x, y + 0.1 * standard_normal(world.generators, (), y), context)
    return {name: torch.stack([record[name] for record in records], 1) for name in records[0]}


#: Contexts after which errors of estimates are measured.
COUNTS = (10, 32, 100, 316, 1000, 3162, 10_000)


def estimate_errors(dim: int, draws: int = 30, features: int = 256, seed: int = 0) -> dict[str, Tensor]:
    """The largest error of ``E_p_hat f(x, c)`` over 65 decisions, known f, ``draws x len(COUNTS)``, by estimate.

    Draws of a squared exponential kernel by random Fourier features, lengthscale 0.2 in the decision and 0.5 in each
    context; contexts ``N(0.5, 0.15^2)``, not clipped. The averages are exact, as a cosine under a normal law has one.

    Args:
        dim: ``Dc``.
        draws: of f, each with contexts of its own.
        features: of a draw.
        seed: of all.
    """
    rng = torch.Generator().manual_seed(seed + 1000 * dim)
    x = torch.linspace(0, 1, 65, dtype=torch.float64)
    found: dict[str, list[Tensor]] = {"empirical law": [], "density estimate": [], "bound": []}
    for _ in range(draws):
        own = torch.randn(features, generator=rng, dtype=torch.float64) / 0.2
        omega = torch.randn(features, dim, generator=rng, dtype=torch.float64) / 0.5
        phase = 2 * math.pi * torch.rand(features, generator=rng, dtype=torch.float64)
        size = math.sqrt(2 / features) * torch.randn(features, generator=rng, dtype=torch.float64)
        contexts = 0.5 + 0.15 * torch.randn(COUNTS[-1], dim, generator=rng, dtype=torch.float64)
        angle = contexts @ omega.T
        cosine, sine = (size * (x[:, None] * own + phase).cos()).T, (size * (x[:, None] * own + phase).sin()).T
        blur = (-0.5 * 0.15**2 * omega.square().sum(-1)).exp()
        middle = 0.5 * omega.sum(-1)
        true = (blur * middle.cos()) @ cosine - (blur * middle.sin()) @ sine
        parts: dict[str, list[Tensor]] = {name: [] for name in found}
        largest = (angle[:500].cos() @ cosine - angle[:500].sin() @ sine).abs().max()
        for n in COUNTS:
            bandwidth = silverman_bandwidth(contexts[:n])
            for name, h in (("empirical law", 0 * bandwidth), ("density estimate", bandwidth)):
                damped = (-0.5 * (h * omega).square().sum(-1)).exp()
                average = (damped * angle[:n].cos().mean(0)) @ cosine - (damped * angle[:n].sin().mean(0)) @ sine
                parts[name].append((average - true).abs().max())
            parts["bound"].append(largest * math.sqrt(2 * math.log(2 * 65) / n))
        for name, values in parts.items():
            found[name].append(torch.stack(values))
    return {name: torch.stack(values) for name, values in found.items()}


def estimates(dim: int, draws: int = 30) -> pd.DataFrame:
    """What ``estimate_errors`` finds, a row an estimate: mean errors by count, the exponent of n and its error.

    ``of T`` is the exponent of the sum of such errors over rounds, up to 10,000.
    """
    rows = []
    for name, values in estimate_errors(dim, draws).items():
        slope, error = exponent(COUNTS, values)
        n, known = np.arange(COUNTS[0], COUNTS[-1] + 1), np.log(COUNTS)
        first = 2 * COUNTS[0]  # times the first error: the sum of the rounds before, which fall like a root
        each = [
            first * float(line[0]) + np.exp(np.interp(np.log(n), known, line.log().numpy())).cumsum() for line in values
        ]
        ends = [np.searchsorted(n, count) for count in COUNTS[2:]]
        summed = exponent(COUNTS[2:], torch.tensor(np.array(each)[:, ends]))
        row = {"contexts": dim, "estimate": name, "exponent": slope, "standard error": error}
        row |= {"of T": summed[0], "its error": summed[1]}
        rows.append(row | {"errors": [float(f"{v:.4g}") for v in values.mean(0)]})
    return pd.DataFrame(rows)


def exponent(counts: Sequence[float], values: Tensor) -> tuple[float, float]:
    """The slope of log ``values`` (``draws x counts``) over log ``counts``: mean over draws, and its standard error."""
    at = torch.tensor(counts, dtype=torch.float64).log()
    at = at - at.mean()
    slopes = (values.clamp_min(1e-300).log() * at).sum(-1) / at.square().sum()
    return float(slopes.mean()), float(slopes.std() / len(slopes) ** 0.5)
