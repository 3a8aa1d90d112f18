"""SBO-KDE, DRBO-KDE and what all policies for unknown contexts share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.acquisition import DecisionAcquisition, ExpectedUpperConfidenceBound, PartialAcquisition, RobustAcquisition
from cbo_lib.checks import as_count, as_schedule, as_tensor, require, require_inside
from cbo_lib.contexts.acquisition import TotalVariationUpperConfidenceBound
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.space import Space
from cbo_lib.former.maximize import argmax_finite, maximize_box, search_box
from cbo_lib.former.partial import complete
from cbo_lib.former.policy import Policy, Schedule
from cbo_lib.former.surrogate import Surrogate
from cbo_lib.gp import GaussianProcess, Posterior
from cbo_lib.measure import Measure


class ContextPolicy(Policy):
    """What the policies share: a Sobol design, a Gaussian process, and the search for the best decision.

    ``tell`` takes decisions, values and ``context``. The first ``initial`` decisions are scrambled Sobol points, the
    same for every policy with the same seed. Afterwards the policy's acquisition is maximized over the box of
    decisions. The recommendation is the decision made so far with the largest posterior mean, averaged over the
    contexts seen so far; ``GPUCB``, which models no contexts, takes its own. Before there are ``initial`` observations
    it is the decision with the largest observed value.

    The effort is the same for all. [Huang2024] gives its slow policies 32 raw points and 5 starts, others 1,024 and 50.
    A worst case is searched by its values alone, see ``search_box``, as it has kinks or comes from an iteration.

    Who writes a policy of their own overrides ``acquisition``, or one of the hooks that other policies offer.

    Args:
        space: the boxes of decisions and contexts.
        sqrt_beta: see ``Policy``. Default 1.5 ([Huang2024], Appendix B.1).
        initial: how many decisions the initial design has, at least 2. Default 10 ([Huang2024], section 4).
        kernel: ``"matern"`` (Matern-5/2, the default), ``"rbf"`` or a GPyTorch kernel; the first two are products of
            one kernel of the decisions and one of the contexts. See ``fit_gaussian_process``.
        prior: a known Gaussian process, of batch shape ``()`` or ``(replicates,)``, instead of a fitted one.
        refit_every: how many observations pass between two fits of the hyperparameters, the first after the initial
            design. Default: a tenth of the observations, and at least one. [Huang2024] fits in every round.
        raw: how many scrambled Sobol points begin the search for a decision, new ones in every round. Default 128.
        starts: how many of the best of them are refined, by L-BFGS-B or by polls. Default 2.
        iterations: of each L-BFGS-B run, or polls, at most. Default 15.
        options: those of ``Policy``: ``seed`` and ``resolution``.

    Raises:
        ValueError: if a number is out of range.
    """

    sees: ClassVar[Mapping[str, int]] = {"context": 1}
    #: Whether the model has contexts among its inputs.
    models_contexts = True
    #: Whether the search by gradients sees rounded numbers, see ``maximize_box``.
    kinks = False

    space: Space

    def __init__(
        self,
        space: Space,
        *,
        sqrt_beta: Schedule = 1.5,
        initial: int = 10,
        kernel: str | Kernel = "matern",
        prior: GaussianProcess | None = None,
        refit_every: int | None = None,
        raw: int = 128,
        starts: int = 2,
        iterations: int = 15,
        **options: Any,
    ) -> None:
        require(isinstance(space, Space), "space must be a contexts.Space", space)
        super().__init__(space, sqrt_beta=sqrt_beta, initial=initial, **options)
        as_count("initial", initial, 2)
        self.kernel, self.prior, self.refit_every = kernel, prior, refit_every
        self.raw, self.iterations = as_count("raw", raw, 1), as_count("iterations", iterations, 1)
        self.starts = as_count("starts", starts, 1, raw)
        replicates = prior.kernel.batch_shape.numel() if isinstance(prior, GaussianProcess) else 1
        self.model(replicates)  # raises now if the kernel, the prior or the schedule of the fits is wrong

    @abstractmethod
    def acquisition(self, posterior: Posterior) -> DecisionAcquisition:
        """What is maximized in this round; its ``values`` take decisions ``replicates x n x Dx``."""

    def merit(self, posterior: Posterior) -> Tensor:
        """How good the decisions made so far look, ``replicates x count``."""
        space = self.space
        nothing = self.contexts.new_zeros(space.dim)
        contexts = space.join(nothing[: space.decision_dim], self.contexts)
        completed = complete(posterior, contexts, space.controlled, tolerance=None)
        return completed.mean(space.join(self.decisions, nothing[space.decision_dim :])).mean(-1)

    @property
    def decisions(self) -> Tensor:
        """Those made so far, ``replicates x count x Dx``."""
        return self.data["query"]

    @property
    def contexts(self) -> Tensor:
        """Those seen so far, ``replicates x count x Dc``."""
        return self.data["context"]

    def sobol_contexts(self, n: int) -> Tensor:
        """The first ``n`` Sobol points of the unit cube of contexts, ``n x Dc``."""
        engine = torch.quasirandom.SobolEngine(self.space.context_dim, scramble=False)
        return engine.draw(n, dtype=self.space.like.dtype).to(self.space.like)

    def model(self, replicates: int) -> Surrogate:
        """A Gaussian process that knows nothing yet, for so many replicates."""
        space, groups = self.space, None
        if self.models_contexts:
            groups = (tuple(range(space.decision_dim)), tuple(range(space.decision_dim, space.dim)))
        bounds = space.bounds if self.models_contexts else space.decisions
        return Surrogate(bounds, replicates, self.prior, self.kernel, groups, self.refit_every, self.initial)

    def begin(self) -> None:
        """Nothing is known yet."""
        self.surrogate = self.model(self.replicates)
        zeros = self.space.like.new_zeros(self.replicates)
        self.asked_with = {"acquisition": zeros}
        if self.prior is None:
            self.asked_with |= {"lengthscale": zeros.unsqueeze(-1).expand(-1, self.surrogate.bounds.shape[-1])}
            self.asked_with |= dict.fromkeys(("scale", "mean", "noise_std"), zeros) | {"converged": zeros == 0}

    def design(self, n: int) -> Tensor:
        """Scrambled Sobol points."""
        return self.rounded(self.sobol(n, self.space.decisions), self.space.decisions)

    def propose(self) -> Tensor:
        """The best decision for the acquisition."""
        return self.asking(*self.search(self.acquisition(self.posteriors())))

    def search(self, acquisition: Any) -> tuple[Tensor, Tensor]:
        """Where its values are largest, ``replicates x Dx``, and how large they are there, ``replicates``."""
        box = self.space.decisions
        raw = self.sobol(self.raw, box)
        if isinstance(acquisition, RobustAcquisition):
            rounded = partial(self.rounded, bounds=box)
            return search_box(acquisition.leading, box, rounded(raw), self.starts, self.iterations, rounded)
        return maximize_box(acquisition.values, box, raw, self.starts, self.iterations, kinks=self.kinks)

    def asking(self, query: Tensor, value: Tensor) -> Tensor:
        """The decision at the policy's resolution; its acquisition and the hyperparameters in force are recorded."""
        fit = self.surrogate.fit
        self.asked_with = {"acquisition": value} | {
            name: getattr(fit, name) for name in self.asked_with if fit is not None and name != "acquisition"
        }
        return self.rounded(query, self.space.decisions)

    def learn(self, row: Mapping[str, Tensor], asked: Tensor) -> None:
        """Condition the Gaussian process."""
        query = row["query"]
        points = self.space.join(query, row["context"]) if self.models_contexts else query
        self.surrogate.observe(Measure.dirac(points.unsqueeze(-2), known=True), row["y"].unsqueeze(-1))

    def best(self) -> Tensor:
        """The decision of the largest merit; one that was done just outside of the box is moved there."""
        merit = self.data["y"] if self.count < self.initial else self.merit(self.posteriors())
        best = argmax_finite(merit)[:, None, None]
        return self.decisions.take_along_dim(best, 1).squeeze(1).clamp(*self.space.decisions)

    def posteriors(self) -> Posterior:
        """Of f at full points, decision coordinates first, or at decisions alone where contexts are not modeled."""
        return self.surrogate.posterior()

    def record(self) -> Mapping[str, Tensor]:
        """``initial``, the ``acquisition`` reached, and the hyperparameters it was asked with where they are fitted.

        These are ``lengthscale``, ``scale``, ``mean``, ``noise_std``, ``converged``; zeros in the initial design.
        """
        return {"initial": torch.full_like(self.active, self.count <= self.initial), **self.asked_with}

    def check(self, **rows: Tensor) -> None:
        """Raise ``ValueError`` if a decision is not in its box, or a row has another dimension than the space."""
        for name, size in (("query", self.space.decision_dim), ("context", self.space.context_dim)):
            require(rows[name].shape[-1] == size, f"{name} must have {size} coordinates", rows[name].shape[-1])
        require_inside("query", rows["query"], self.space.decisions)

    def encode(self, name: str, value: Any) -> Tensor:
        """As in ``Policy``; where there is one coordinate, numbers will do."""
        single = {"query": self.space.decision_dim, "context": self.space.context_dim}[name] == 1
        rows = as_tensor(name, value, self.space.like)
        return rows.reshape(-1, 1) if single and rows.dim() <= 1 else super().encode(name, rows)


class SBOKDE(ContextPolicy):
    """SBO-KDE ([Huang2024], Algorithm 1): the average upper confidence bound under the density estimate.

    Line 3 estimates the density from the ``t - 1`` contexts seen, line 5 draws ``M`` samples of it, clipped into the
    context box as the world clips its contexts.

    Args:
        samples: how many in each round, ``M``, at least 1. Default 1,024 ([Huang2024], Appendix B.1).
        space, options: see ``ContextPolicy``, also for errors.
    """

    def __init__(self, space: Space, *, samples: int = 1024, **options: Any) -> None:
        super().__init__(space, **options)
        self.samples = as_count("samples", samples, 1)

    def acquisition(self, posterior: Posterior) -> PartialAcquisition:
        """See ``ExpectedUpperConfidenceBound``."""
        return ExpectedUpperConfidenceBound(posterior, self.draw(), self.multiplier())

    def draw(self) -> Tensor:
        """The ``M`` contexts that the acquisition averages over, ``replicates x M x Dc``."""
        return GaussianKDE(self.contexts).sample(self.samples, self.generators, self.space.contexts)


@dataclass(frozen=True)
class TotalVariationRadius:
    """``delta_t = t^(-2 / (4 + Dc))`` ([Huang2024], section 4.1), an L1 distance."""

    context_dim: int

    def __call__(self, t: int) -> float:
        """At round ``t``, from 1."""
        return t ** (-2 / (4 + self.context_dim))


class DRBOKDE(SBOKDE):
    """DRBO-KDE ([Huang2024], Algorithm 2): the worst average within an L1 distance of the density estimate.

    Args:
        radius: ``delta_t``, a number or a function of the round. Default ``t^(-2 / (4 + Dc))``.
        cover: how many Sobol contexts search for the infimum, at least 1. Default 1,024 ([Huang2024], Appendix B.1).
        space, options: see ``SBOKDE``.
    """

    kinks = True

    def __init__(
        self, space: Space, *, radius: float | Callable[[int], float] | None = None, cover: int = 1024, **options: Any
    ) -> None:
        super().__init__(space, **options)
        self.radius = TotalVariationRadius(space.context_dim) if radius is None else as_schedule("radius", radius)
        self.cover = as_count("cover", cover, 1)

    def acquisition(self, posterior: Posterior) -> PartialAcquisition:
        """See ``TotalVariationUpperConfidenceBound``."""
        radius = self.radius(self.round) if callable(self.radius) else self.radius
        return TotalVariationUpperConfidenceBound(posterior, self.draw(), self.covered(), radius, self.multiplier())

    def covered(self) -> Tensor:
        """The contexts whose smallest bound stands for the infimum, ``N x Dc``."""
        low, high = self.space.contexts
        return low + (high - low) * self.sobol_contexts(self.cover)
