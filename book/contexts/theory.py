"""The assumptions and steps of the proofs, simulated: draws of the prior, sample averages, distributions in a ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from book import harness
from book.contexts.marginals import Marginal
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from book.contexts.regret import Constants, density_nodes, ledger, worst_weights
from book.contexts.tables import density_rate
from book.functions import interval, maximum
from book.harness import Scale
from book.information import greedy_information_gain
from book.ledger import RegretLedger
from cbo_lib.acquisition import ExpectedUpperConfidenceBound
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.kernels import rbf_kernel
from cbo_lib.measure import Function, Measure
from cbo_lib.random import ReplicateGenerators, standard_normal


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


def sample_average_distances(
    posterior: Posterior,
    contexts: Tensor,
    problem: ContextProblem,
    counts: Sequence[int],
    repetitions: int,
    seed: int = 0,
    sqrt_beta: float = 1.5,
    points: int = 501,
) -> Tensor:
    """How far the maximizer of a sample average lies from that of the expectation ([Huang2024], Proposition 1).

    Args:
        posterior: without batch dimensions, of f on one decision and one context.
        contexts: that were seen, ``n x 1``.
        problem: for its boxes.
        counts: the numbers of samples ``M``.
        repetitions: how many times each is drawn.
        seed: of the draws.
        sqrt_beta: the multiplier of the standard deviation.
        points: decisions of the grid that both maximizers are taken from.

    Returns:
        Distances ``len(counts) x repetitions``, in the units of the decision.
    """
    fine, grid = interval(problem.space.contexts, 1025), interval(problem.space.decisions, points)
    table = _Table(posterior, fine, sqrt_beta)
    ucb = table.bounds(grid)  # points x 1025, between which bounds are interpolated linearly
    truth = grid[(ucb @ table.histogram(density_nodes(contexts[None], problem.space.contexts))[0]).argmax()]
    estimate, generator = GaussianKDE(contexts), torch.Generator().manual_seed(seed)
    distances = []
    for count in counts:
        draws = estimate.sample(count * repetitions, generator, problem.space.contexts)
        average = ucb @ table.histogram(draws.reshape(repetitions, count, 1)).mT  # points repetitions
        distances.append((grid[average.argmax(0)] - truth).abs().squeeze(-1))
    return torch.stack(distances)


class _Table:
    """Bounds at equally spaced contexts, and any distribution of contexts as weights of these."""

    def __init__(self, posterior: Posterior, fine: Tensor, sqrt_beta: float) -> None:
        self.fine, self.acquisition = fine, ExpectedUpperConfidenceBound(posterior, fine, sqrt_beta)
        self.acquisition.tolerance = None

    def bounds(self, x: Tensor) -> Tensor:
        return self.acquisition.bounds(x)

    def histogram(self, contexts: Tensor) -> Tensor:
        """Weights ``b x m`` of equally weighted contexts ``b x n x 1``, shared by their two neighbors."""
        low, high = self.fine[0], self.fine[-1]
        place = ((contexts - low) / (high - low)).squeeze(-1) * (len(self.fine) - 1)
        left = place.floor().clamp(0, len(self.fine) - 2)
        share = (place - left) / contexts.shape[-2]
        weights = contexts.new_zeros(len(contexts), len(self.fine))
        weights.scatter_add_(-1, left.long(), 1 / contexts.shape[-2] - share)
        return weights.scatter_add_(-1, left.long() + 1, share)


def ball_gap(
    posterior: Posterior, x: Tensor, contexts: Tensor, radius: float, sqrt_beta: float, draws: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Both sides of the third equality in the proof of Lemma 10, for draws of f given the data.

    ``E_q[ucb - f]`` and ``E_q[sqrt_beta std]`` with ``q`` the worst distribution for f itself. The proof takes ``q``
    for independent of f given the data; but ``q`` weighs most where f is least.

    Args:
        posterior: without batch dimensions.
        x: the decision, ``Dx``.
        contexts: equally weighted samples ``M x Dc``.
        radius: L1.
        sqrt_beta: the multiplier of the standard deviation.
        draws: how many functions.
        seed: of the draws.

    Returns:
        Two ``draws`` tensors, whose means the proof claims to be equal.
    """
    points = Measure.dirac(torch.cat([x.expand(len(contexts), -1), contexts], -1))
    f = posterior.sample(points, draws, torch.Generator().manual_seed(seed))  # draws M
    width = sqrt_beta * posterior.variance(points).sqrt()
    q = worst_weights(f, radius)
    return (q * (posterior.mean(points) + width - f)).sum(-1), (q * width).sum(-1)


def theorem_constants(lengthscale: float = 0.2, noise_std: float = 0.1) -> Constants:
    """The constants of the bounds for draws of a known prior with one decision and one context.

    ``b`` is twice the standard deviation of a derivative, and ``a`` the least that covers the suprema of 300 draws.
    ``density`` is the largest mean of ``|p - p_hat_t|_1 t^(2/5)`` over 20 runs of ``density_rate``.

    Args:
        lengthscale: of the prior.
        noise_std: of the observations.
    """
    slopes = PriorDraws(lengthscale, range(1000, 1300)).slopes()
    b = 2 / lengthscale
    counts = (5, 10, 20, 50, 100, 200)
    errors, _ = density_rate(drawn_problem([0], lengthscale), counts)
    scaled = errors.mean(0) * torch.tensor(counts, dtype=errors.dtype) ** 0.4
    return Constants(slope_tail(slopes, b), b, 1.0, 1, 1, noise_std, float(scaled.max()))


def theorem_ledgers(
    scale: Scale = "paper", sqrt_beta: float | None = None, lengthscale: float = 0.2, noise_std: float = 0.1
) -> dict[str, RegretLedger]:
    """SBO-KDE and DRBO-KDE on draws of a known prior, term by term beside the bounds of Theorems 1 and 2.

    Args:
        scale: 30 draws and 100 evaluations, or 10 draws and 40 evaluations.
        sqrt_beta: the multiplier of the standard deviation. Default: that of Theorem 1.
        lengthscale: of the prior, in one decision and one context.
        noise_std: of the observations.

    Returns:
        A ledger each.

    Raises:
        ValueError: for another scale.
    """
    seeds, steps, samples = harness.choose(scale, (range(10), 40, 256), (range(30), 100, 1024))
    constants, prior = theorem_constants(lengthscale, noise_std), GaussianProcess(rbf_kernel(lengthscale), noise_std)
    problem = drawn_problem(seeds, lengthscale, noise_std)
    options: dict[str, Any] = {"initial": 3, "prior": prior, "samples": samples}
    options["sqrt_beta"] = constants.sqrt_beta if sqrt_beta is None else sqrt_beta
    axis = interval(problem.space.decisions, 21)[:, 0]
    greedy = greedy_information_gain(prior.kernel, torch.cartesian_prod(axis, axis), noise_std, steps)[1:]
    gain = greedy * math.e / (math.e - 1)  # an upper bound of the maximum
    policies = {"SBO-KDE": SBOKDE(problem.space, **options)}
    policies["DRBO-KDE"] = DRBOKDE(problem.space, cover=samples, **options)
    runs = harness.run(problem, policies, steps, seeds).histories
    return {name: ledger(runs[name], problem, policy, constants, gain) for name, policy in policies.items()}
