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
from cbo_lib.search import argmax_finite, maximize_box, on_grid

# Fits look at no more observations than this, evenly spread; bounds are computed in slices of so many numbers.
_FITTED, _SLICE = 400, 2**22
# Of a search: at a kink L-BFGS-B may go on for long without a gain.
_ITERATIONS = 60


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
        self.kernel, self.given, self._prior, self._fitted_at = kernel, prior, prior, 0
        self.context = space.like.new_zeros(len(seeds), 0, space.context_dim)
        past = space.like.new_zeros(0, space.context_dim) if record is None else space.read_seen("record", record)
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
        super().tell(query, y)
        self.context = torch.cat([self.context, context.unsqueeze(1)], 1)

    def learn(self, query: Tensor, y: Tensor, context: Tensor) -> None:  # type: ignore[override]
        """Old observations, ``n`` at once, ``replicates x n x ...``."""
        self.queries, self.y = torch.cat([self.queries, query], 1), torch.cat([self.y, y], 1)
        self.context = torch.cat([self.context, context], 1)

    def inputs(self) -> tuple[Tensor, Tensor, Any]:
        """What the Gaussian process sees: points ``replicates x t x d``, their box, and the groups of its kernel."""
        groups = (range(self.space.decision_dim), range(self.space.decision_dim, self.space.dim))
        return torch.cat([self.queries, self.context], -1), self.space.bounds, groups

    def fitted_count(self) -> int:
        """How many of the observations the last fit looks at: it depends on how many there are, and on nothing else."""
        t, n = self.y.shape[1], self.initial
        if t <= n:
            return t
        while (later := max(n + 1, math.ceil(self.refit * n - 1e-9))) <= t:
            n = later
        return n

    @property
    def prior(self) -> GaussianProcess:
        """The prior in force, a fitted one if none was given."""
        n = self.fitted_count()
        if self._prior is None or (self.given is None and n != self._fitted_at):
            points, box, groups = self.inputs()
            some = torch.linspace(0, n - 1, min(n, _FITTED), device=points.device).round().long()
            rows = Measure.dirac(points[:, some], known=True)
            self._prior = fit_gaussian_process(rows, self.y[:, some], box, self.kernel, groups)
            self._fitted_at = n
        return self._prior

    @property
    def posterior(self) -> Posterior:
        """The posterior of f at full points, decision coordinates first."""
        prior = self.prior.posterior(None if self.prior.kernel.batch_shape else len(self.y))
        return prior.extend(Measure.dirac(self.inputs()[0], known=True), self.y)

    def ucb(self, contexts: Tensor, sqrt_beta: float | None = None) -> Callable[[Tensor], Tensor]:
        """``mu + sqrt_beta sigma`` of decisions with each of some contexts, ``replicates x M x Dc``.

        The function takes decisions ``replicates x n x Dx`` to bounds ``replicates x n x M``.
        """
        return Bounds(self.posterior, contexts, self.sqrt_beta() if sqrt_beta is None else sqrt_beta)

    def sobol(self, n: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Scrambled Sobol decisions, ``replicates x n x Dx``."""
        low, high = self.space.decisions
        seeds = [int(torch.randint(2**31 - 1, (), generator=g)) for g in generators]
        engines = [torch.quasirandom.SobolEngine(len(low), scramble=True, seed=s) for s in seeds]
        unit = torch.stack([engine.draw(n, dtype=torch.float64) for engine in engines]).to(low)
        return on_grid(low + (high - low) * unit, self.space.decisions)

    def best(self, values: Callable[[Tensor], Tensor], generators: Sequence[torch.Generator]) -> Tensor:
        """The decision of the largest of ``values``, from ``replicates x n x Dx`` to ``replicates x n``."""
        box = self.space.decisions
        found, _ = maximize_box(values, box, self.sobol(self.raw, generators), self.starts, _ITERATIONS)
        return on_grid(found, box)

    def ask_for(self, context: Tensor) -> Tensor:
        """The decision of the largest bound under a context that is known, ``replicates x Dc`` ([Krause2011])."""
        ucb = self.ucb(context.unsqueeze(1))
        return self.best(lambda x: ucb(x).squeeze(-1), self.generators)

    def recommend(self) -> Tensor:
        """The decision made so far of the largest posterior mean, averaged over at most 256 of the contexts seen."""
        seen = self.seen
        some = torch.linspace(0, seen.shape[1] - 1, min(seen.shape[1], 256), device=seen.device).round().long()
        merit = self.ucb(seen[:, some], 0.0)(self.queries).mean(-1)
        best = argmax_finite(merit)[:, None, None]
        return self.queries.take_along_dim(best, 1).squeeze(1).clamp(*self.space.decisions)


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
        self.seen = posterior.data.measure.points.squeeze(-2) if posterior.data is not None else None
        self.product = self.seen is not None and self._is_product()
        if self.seen is None or not self.product:
            return
        data, kernel, dim = posterior.data, posterior.prior.kernel, contexts.shape[-1]
        assert data is not None
        self.corner = self.seen[:, :1, -dim:], self.seen[:, :1, :-dim]  # any context, any decision
        one = matrix(kernel, self.seen[:, :1], self.seen[:, :1])
        ours = _joined(self.corner[1], self.seen[..., -dim:])
        cross = matrix(kernel, ours, _joined(self.corner[1], contexts)) / one  # R t M
        left, values, right = torch.linalg.svd(cross, full_matrices=False)
        rank = int((values > 1e-11 * values[:, :1]).sum(-1).max())
        self.U = left[..., :rank]  # R t r
        self.W = values[..., :rank, None] * right[..., :rank, :]  # R r M
        self.alpha = torch.linalg.solve_triangular(data.factor.mT, data.whitened.unsqueeze(-1), upper=True)  # R t 1
        self.weighted = self.alpha * cross  # R t M

    def _is_product(self) -> bool:
        """Whether ``k((x, c), (x', c')) k((x, c'), (x', c))`` and ``k((x, c), (x', c)) k((x, c'), (x', c'))`` agree."""
        assert self.seen is not None
        dim, some = self.contexts.shape[-1], self.seen[:, :8]
        x, c = some[..., :-dim], some[..., -dim:]
        kernel, other = self.posterior.prior.kernel, torch.cat([x, c.roll(1, -2)], -1)
        same = matrix(kernel, some, some).diagonal(dim1=-2, dim2=-1)
        pair = matrix(kernel, some, torch.cat([x.roll(3, -2), c.roll(1, -2)], -1)).diagonal(dim1=-2, dim2=-1)
        left = matrix(kernel, some, torch.cat([x.roll(3, -2), c], -1)).diagonal(dim1=-2, dim2=-1)
        right = matrix(kernel, some, other).diagonal(dim1=-2, dim2=-1)
        return some.shape[1] > 3 and torch.allclose(pair * same, left * right, rtol=1e-7, atol=1e-12)

    def __call__(self, x: Tensor) -> Tensor:
        """At decisions ``replicates x n x Dx``, ``replicates x n x M``."""
        t = self.posterior.count
        size = len(x) * max(1, t) * (self.U.shape[-1] if self.product else self.contexts.shape[-2])
        return torch.cat([self._some(part) for part in x.split(max(1, _SLICE // size), -2)], -2)

    def _some(self, x: Tensor) -> Tensor:
        n, contexts, beta = x.shape[-2], self.contexts, self.sqrt_beta
        data, prior = self.posterior.data, self.posterior.prior
        if not self.product:
            pairs = [x.repeat_interleave(contexts.shape[-2], -2), contexts.repeat(1, n, 1)]
            points = torch.cat(pairs, -1)
            mean = prior.prior_mean(Measure.dirac(points, known=True)).expand(points.shape[:-1])
            used = torch.zeros_like(mean)
            if data is not None and self.seen is not None:
                cross = matrix(prior.kernel, self.seen, points)
                solved = torch.linalg.solve_triangular(data.factor, cross, upper=False)
                mean, used = mean + (data.whitened.unsqueeze(-2) @ solved).squeeze(-2), solved.square().sum(-2)
            if beta == 0:
                return mean.unflatten(-1, (n, -1))
            own = prior.kernel(points, diag=True)
            return (mean + beta * (own - used).clamp_min(1e-18).sqrt()).unflatten(-1, (n, -1))
        assert data is not None and self.seen is not None
        kx = matrix(prior.kernel, _joined(x, self.corner[0]), _joined(self.seen[..., : x.shape[-1]], self.corner[0]))
        mean = prior.prior_mean(Measure.dirac(_joined(x, self.corner[0]), known=True)).unsqueeze(-1)
        mean = mean + kx @ self.weighted
        if beta == 0:
            return mean
        side = (kx.unsqueeze(-1) * self.U.unsqueeze(1)).transpose(1, 2).flatten(2)  # R t (n r)
        solved = torch.linalg.solve_triangular(data.factor, side, upper=False).unflatten(-1, (n, -1)).transpose(1, 2)
        inner = solved.mT @ solved  # R n r r
        used = ((inner @ self.W.unsqueeze(1)) * self.W.unsqueeze(1)).sum(-2)
        own = matrix(prior.kernel, _joined(x[:, :1], contexts[:, :1]), _joined(x[:, :1], contexts[:, :1]))
        return mean + beta * (own - used).clamp_min(1e-18).sqrt()


def _joined(x: Tensor, c: Tensor) -> Tensor:
    """Full points of decisions and contexts whose number may be one."""
    n = max(x.shape[-2], c.shape[-2])
    return torch.cat([x.expand(-1, n, -1), c.expand(-1, n, -1)], -1)


class SBOKDE(ContextPolicy):
    """SBO-KDE ([Huang2024], Algorithm 1): the average upper confidence bound under a density estimate.

    Args:
        samples: of the estimate in each round, ``M``. Default 256; [Huang2024] has 1,024.
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


class SBOKnown(ContextPolicy):
    """SBO under a distribution that its user knows: the ceiling of SBO-KDE.

    Args:
        draw: contexts of it, ``replicates x M x Dc``, from one generator a replicate and ``(M,)``.
        samples: how many in each round, ``M``. Default 256.
        options: see ``ContextPolicy``, also for errors.
    """

    def __init__(
        self,
        space: Space,
        *,
        draw: Callable[[Sequence[torch.Generator], tuple[int, ...]], Tensor],
        samples: int = 256,
        **options: Any,
    ) -> None:
        super().__init__(space, **options)
        require(callable(draw), "draw must be a function of generators and a shape", draw)
        self.draw, self.samples = draw, as_count("samples", samples, 1)

    def ask(self) -> Tensor:
        """The next decision, ``replicates x Dx``."""
        if self.round <= self.initial:
            return self.design[:, self.round - 1]  # line 1
        generators = self.generators
        ucb = self.ucb(self.draw(generators, (self.samples,)))  # line 3
        return self.best(lambda x: ucb(x).mean(-1), generators)  # line 4


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
