"""SBO-KDE and DRBO-KDE ([Huang2024]), and SBO with the law of the contexts seen or with a known one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_count, as_number, as_schedule, require
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.space import Space
from cbo_lib.contexts.worst_case import tv_worst_case
from cbo_lib.fit import default_kernel, fit_gaussian_process
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.kernels import matrix
from cbo_lib.measure import Measure
from cbo_lib.policy import Policy
from cbo_lib.random import scrambled_sobol
from cbo_lib.search import argmax_finite, maximize_box, on_grid

# A fit looks at no more observations than this, evenly spread; bounds are computed in slices of so many numbers.
_FITTED, _SLICE = 400, 2**18


class ContextPolicy(Policy):
    """What the policies share: a Sobol design, a Gaussian process, the bounds of decisions, and the search.

    Args:
        space: the boxes of decisions and contexts.
        seeds: one a replicate.
        sqrt_beta: the multiplier of the deviation, a number or a function of the round ``t = 1, 2, ...``. Default 1.5
            ([Huang2024], Appendix B.1).
        initial: how many scrambled Sobol decisions come first, the same for every policy. Default 10.
        kernel: ``"matern"`` (the default) or ``"rbf"``, products of a kernel of the decisions and one of the contexts;
            or a GPyTorch kernel of the unit box whose parameters have priors. See ``fit_gaussian_process``.
        prior: a known Gaussian process in the place of a fitted one, its noise included.
        refit: hyperparameters are fitted anew when the observations have grown by this factor, from the design on.
            Default 1.1; with 1 in every round, as [Huang2024].
        raw: how many scrambled Sobol decisions begin each search. Default 64.
        starts: how many of the best of them are refined. Default 2.
        record: contexts that were seen without a decision, ``n x Dc``. Default none.

    Raises:
        ValueError: if an argument is none of these.
    """

    sees: ClassVar[tuple[str, ...]] = ("context",)

    def __init__(
        self,
        space: Space,
        seeds: Sequence[int],
        *,
        sqrt_beta: Any = 1.5,
        initial: int = 10,
        kernel: str | Kernel = "matern",
        prior: GaussianProcess | None = None,
        refit: float = 1.1,
        raw: int = 64,
        starts: int = 2,
        record: Any = None,
    ) -> None:
        require(isinstance(space, Space), "space must be a contexts.Space", space)
        super().__init__(space, seeds, (space.decision_dim,))
        self.given_sqrt_beta, self.initial = as_schedule("sqrt_beta", sqrt_beta), as_count("initial", initial, 2)
        self.refit, self.raw = as_number("refit", refit, 1), as_count("raw", raw, 1)
        self.starts = as_count("starts", starts, 1, raw)
        require(prior is None or isinstance(prior, GaussianProcess), "prior must be a GaussianProcess", prior)
        if not isinstance(kernel, Kernel):
            default_kernel(kernel, space.dim)  # raises now
        self.kernel, self.given = kernel, prior
        self.fitted: tuple[int, GaussianProcess] | None = None  # to how many observations
        self.context = space.like.new_zeros(len(seeds), 0, space.context_dim)
        past = self.context[0] if record is None else space.read_seen("record", record)
        self.past = past.expand(len(seeds), -1, -1)
        self.design = self.sobol(initial, self.streams.at(0))

    @property
    def seen(self) -> Tensor:
        """All contexts that are known, in the box, ``replicates x n x Dc``."""
        return torch.cat([self.past, self.context], 1).clamp(*self.space.contexts)

    def sqrt_beta(self) -> float:
        """The multiplier of this round."""
        return self.given_sqrt_beta(self.round) if callable(self.given_sqrt_beta) else self.given_sqrt_beta

    @torch.no_grad()
    def tell(self, query: Tensor, y: Tensor, context: Tensor) -> None:  # type: ignore[override]
        """Keep the decision (``replicates x Dx``), its value and the context (``replicates x Dc``): lines 6 and 7."""
        self.learn(query.unsqueeze(1), y.unsqueeze(1), context.unsqueeze(1))

    def learn(self, query: Tensor, y: Tensor, context: Tensor) -> None:  # type: ignore[override]
        """Old observations, ``n`` at once, ``replicates x n x ...``."""
        self.queries, self.y = torch.cat([self.queries, query], 1), torch.cat([self.y, y], 1)
        self.context = torch.cat([self.context, context], 1)

    @property
    def points(self) -> Tensor:
        """What the Gaussian process sees, ``replicates x t x d``: decisions and contexts."""
        return torch.cat([self.queries, self.context], -1)

    @property
    def prior(self) -> GaussianProcess:
        """The prior in force: what was given, or else fitted to as many observations as their number says."""
        if self.given is not None:
            return self.given
        t = self.y.shape[1]
        n = min(t, self.initial)
        while (later := max(n + 1, math.ceil(self.refit * n - 1e-9))) <= t:
            n = later
        if self.fitted is None or self.fitted[0] != n:
            some, dx = spread(n, _FITTED), self.space.decision_dim
            points = self.points[:, some]
            d = points.shape[-1]
            groups = [group for group in (range(dx), range(dx, d)) if group]
            rows, box = Measure.dirac(points, known=True), self.space.bounds[:, :d]
            self.fitted = n, fit_gaussian_process(rows, self.y[:, some], box, self.kernel, groups)
        return self.fitted[1]

    @property
    def posterior(self) -> Posterior:
        """The posterior of f at full points, decision coordinates first."""
        return self.prior.condition(Measure.dirac(self.points, known=True), self.y)

    def ucb(self, contexts: Tensor, sqrt_beta: float | None = None) -> Callable[[Tensor], Tensor]:
        """``mu + sqrt_beta sigma`` of decisions with each of some contexts, ``replicates x M x Dc``.

        The function takes decisions ``replicates x n x Dx`` to bounds ``replicates x n x M``.
        """
        return Bounds(self.posterior, contexts, self.sqrt_beta() if sqrt_beta is None else sqrt_beta)

    def sobol(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Scrambled Sobol decisions, ``replicates x n x Dx``."""
        low, high = box = self.space.decisions
        return on_grid(low + (high - low) * scrambled_sobol(generators, n, self.space.decision_dim, low), box)

    def best(self, values: Callable[[Tensor], Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        """The decision of the largest of ``values``, from ``replicates x n x Dx`` to ``replicates x n``."""
        box, raw = self.space.decisions, self.sobol(self.raw, generators)
        found, _ = maximize_box(values, box, raw, self.starts, iterations=60)  # at a kink it may go on without a gain
        return on_grid(found, box)

    def ask_for(self, context: Tensor) -> Tensor:
        """The decision of the largest bound under a context that is known, ``replicates x Dc`` ([Krause2011])."""
        ucb = self.ucb(context.unsqueeze(1))
        return self.best(lambda x: ucb(x).squeeze(-1), self.generators)

    def recommend(self) -> Tensor:
        """The decision made so far of the largest posterior mean, averaged over at most 256 of the contexts seen."""
        seen = self.seen
        mean = self.ucb(seen[:, spread(seen.shape[1], 256)], 0.0)
        best = argmax_finite(mean(self.queries).mean(-1))
        return self.queries[torch.arange(len(best)), best].clamp(*self.space.decisions)


class Bounds:
    """``mu + sqrt_beta sigma`` of decisions with each of some contexts.

    Where the kernel is a product over decisions and contexts, ``k = k_x k_c``, the contexts enter through
    ``k_c(seen, contexts) = U W`` alone, with ``r`` orthonormal columns ``U``, few where the kernel is smooth. So a
    decision costs ``r`` solutions and not ``M``. Any other kernel is asked pair by pair.

    Args:
        posterior: of f at full points, of batch shape ``(replicates,)``.
        contexts: ``replicates x M x Dc``.
        sqrt_beta: the multiplier; with zero no deviation is computed.
    """

    def __init__(self, posterior: Posterior, contexts: Tensor, sqrt_beta: float) -> None:
        self.posterior, self.contexts, self.sqrt_beta = posterior, contexts, sqrt_beta
        assert posterior.data is not None
        self.data, dim = posterior.data, contexts.shape[-1]
        self.seen = self.data.measure.points.squeeze(-2)
        self.x, c = self.seen[..., :-dim], self.seen[..., -dim:]
        self.x0, self.c0 = self.x[:, :1], c[:, :1]  # any decision, any context
        x8, c8 = self.x[:, :8], c[:, :8]
        split = self.k(x8, self.c0, x8, self.c0) * self.k(self.x0, c8, self.x0, c8)
        one = self.k(self.x0, self.c0, self.x0, self.c0)
        whole = self.k(x8, c8, x8, c8) * one
        self.product = self.posterior.count > 3 and torch.allclose(split, whole, rtol=1e-7, atol=1e-12)
        self.rank = contexts.shape[1]
        if self.product:
            cross = self.k(self.x0, c, self.x0, contexts) / one  # R t M
            left, values, right = torch.linalg.svd(cross, full_matrices=False)
            self.rank = int((values > 1e-11 * values[:, :1]).sum(-1).max())
            self.U = left[..., : self.rank]  # R t r
            self.W = values[..., : self.rank, None] * right[..., : self.rank, :]  # R r M
            self.weighted = torch.cholesky_solve(self.data.residual.unsqueeze(-1), self.data.factor) * cross  # R t M

    def k(self, x: Tensor, c: Tensor, other_x: Tensor, other_c: Tensor) -> Tensor:
        """The kernel matrix of decisions with contexts and others; of either there may be a single one."""

        def joined(x: Tensor, c: Tensor) -> Tensor:
            n = max(x.shape[1], c.shape[1])
            return torch.cat([x.expand(-1, n, -1), c.expand(-1, n, -1)], -1)

        return matrix(self.posterior.prior.kernel, joined(x, c), joined(other_x, other_c))

    def __call__(self, x: Tensor) -> Tensor:
        """At decisions ``replicates x n x Dx``, ``replicates x n x M``."""
        size = len(x) * max(1, self.posterior.count) * self.rank
        return torch.cat([self._some(part) for part in x.split(max(1, _SLICE // size), 1)], 1)

    def _some(self, x: Tensor) -> Tensor:
        shape, prior = (x.shape[1], self.contexts.shape[1]), self.posterior.prior
        points = torch.cat([x.repeat_interleave(shape[1], 1), self.contexts.repeat(1, shape[0], 1)], -1)
        mean = prior.prior_mean(Measure.dirac(points, known=True)).unflatten(-1, shape)
        if self.product:
            kx = self.k(x, self.c0, self.x, self.c0)  # R n t
            mean = mean + kx @ self.weighted
            if self.sqrt_beta == 0:
                return mean
            side = (kx.mT.unsqueeze(-1) * self.U.unsqueeze(2)).flatten(2)  # R t (n r)
            solved = torch.linalg.solve_triangular(self.data.factor, side, upper=False)
            solved = solved.unflatten(-1, (shape[0], -1)).transpose(1, 2)  # R n t r
            used = ((solved.mT @ solved @ self.W.unsqueeze(1)) * self.W.unsqueeze(1)).sum(-2)
        else:
            cross = matrix(prior.kernel, self.seen, points)
            solved = torch.linalg.solve_triangular(self.data.factor, cross, upper=False)  # R t (n M)
            mean = mean + (self.data.whitened.unsqueeze(-2) @ solved).unflatten(-1, shape).squeeze(1)
            used = solved.square().sum(-2).unflatten(-1, shape)
        own = prior.kernel(points, diag=True).unflatten(-1, shape)
        return mean + self.sqrt_beta * (own - used).clamp_min(1e-18).sqrt()


class SBOKDE(ContextPolicy):
    """SBO-KDE ([Huang2024], Algorithm 1): the average upper confidence bound under a density estimate.

    Args:
        samples: of the estimate in each round, ``M``. Default 256; [Huang2024] has 1,024 independent ones.
        options: see ``ContextPolicy``, also for errors.
    """

    def __init__(self, space: Space, *, samples: int = 256, **options: Any) -> None:
        super().__init__(space, **options)
        self.samples = as_count("samples", samples, 1)

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        generators = self.generators
        ucb = self.ucb(self.draw(generators))  # lines 3 and 4
        return self.best(lambda x: ucb(x).mean(-1), generators)  # line 5

    def draw(self, generators: Sequence[torch.Generator]) -> Tensor:
        """The contexts that the bound is averaged over, ``replicates x M x Dc``."""
        return GaussianKDE(self.seen).sample(self.samples, generators, self.space.contexts)  # line 3


class SBOEmpirical(ContextPolicy):
    """SBO with the empirical law: SBO-KDE without line 3, the average over the contexts that were seen.

    Args:
        options: see ``ContextPolicy``, also for errors.
    """

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        ucb = self.ucb(self.seen)  # line 3
        return self.best(lambda x: ucb(x).mean(-1), self.generators)  # line 4


class SBOKnown(SBOKDE):
    """SBO under a distribution that its user knows, in line 3 of SBO-KDE: the ceiling of SBO-KDE.

    Args:
        draw: contexts of it, ``replicates x M x Dc``, from one generator a replicate and ``(M,)``.
        options: see ``SBOKDE``, also for errors.
    """

    def __init__(
        self, space: Space, *, draw: Callable[[Sequence[torch.Generator], tuple[int, ...]], Tensor], **options: Any
    ) -> None:
        super().__init__(space, **options)
        require(callable(draw), "draw must be a function of generators and a shape", draw)
        self.law = draw

    def draw(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Contexts of the known distribution, ``replicates x M x Dc``."""
        return self.law(generators, (self.samples,))  # line 3


class DRBOKDE(ContextPolicy):
    """DRBO-KDE ([Huang2024], Algorithm 2): the worst average within an L1 distance of the density estimate.

    Args:
        radius: ``delta_t``, nonnegative, a number or a function of the round. Default ``t^(-2 / (4 + Dc))``.
        samples: of the estimate in each round, ``M``. Default 256; [Huang2024] has 1,024.
        cover: how many Sobol contexts search for the infimum. Default ``samples``.
        options: see ``ContextPolicy``, also for errors.
    """

    def __init__(
        self, space: Space, *, radius: Any = None, samples: int = 256, cover: int | None = None, **options: Any
    ) -> None:
        super().__init__(space, **options)
        self.given_radius = None if radius is None else as_schedule("radius", radius)
        self.samples = as_count("samples", samples, 1)
        n = self.samples if cover is None else as_count("cover", cover, 1)
        low, high = space.contexts
        self.cover = low + (high - low) * sobol_points(n, space.context_dim, low)

    def radius(self) -> float:
        """``delta_t`` of this round."""
        if self.given_radius is None:
            return self.round ** (-2 / (4 + self.space.context_dim))
        return self.given_radius(self.round) if callable(self.given_radius) else self.given_radius

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        generators, M = self.generators, self.samples
        c = GaussianKDE(self.seen).sample(M, generators, self.space.contexts)  # line 3
        ucb = self.ucb(torch.cat([c, self.cover.expand(len(c), -1, -1)], 1))  # line 4

        def worst(x: Tensor) -> Tensor:
            bounds = ucb(x)
            return tv_worst_case(bounds[..., :M], bounds.amin(-1), self.radius())  # Proposition 2

        return self.best(worst, generators)  # line 5


def sobol_points(n: int, dim: int, like: Tensor) -> Tensor:
    """The first Sobol points of the unit cube, ``n x dim``."""
    return torch.quasirandom.SobolEngine(dim, scramble=False).draw(n, dtype=torch.float64).to(like)


def spread(n: int, most: int) -> Tensor:
    """At most so many of ``n`` indices, evenly spread."""
    return torch.linspace(0, n - 1, min(n, most)).round().long()
