"""Unknown hyperparameters: the query is a point, but the prior is in doubt.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
.. [Bogunovic2018] I. Bogunovic, J. Scarlett, S. Jegelka, V. Cevher. Adversarially Robust Optimization with Gaussian
   Processes. NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import StackedKernel
from cbo_lib.maximize import maximum
from cbo_lib.measure import Function
from cbo_lib.random import standard_normal

#: A prior mean: a number, or a function from points ``... x d`` to values ``...``.
Mean = float | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Candidates:
    """The finite set ``U`` of Gaussian process priors, one of which is true ([Ziomek2024]_, section 2).

    Args:
        names: one label a candidate, all different.
        kernels: one GPyTorch kernel a candidate, without batch dimensions; they may be of different structure. The
            theory wants ``k(x, x) <= 1``.
        means: one prior mean a candidate. Default all zero.

    Raises:
        ValueError: if there is no candidate, two have one name or the lengths differ.
    """

    names: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    means: tuple[Mean, ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths and fill in the means."""
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"names must be one or more different labels, got {list(self.names)}")
        if not self.means:
            object.__setattr__(self, "means", (0.0,) * len(self.names))
        for name in ("kernels", "means"):
            if len(getattr(self, name)) != len(self.names):
                raise ValueError(f"{name} must have one entry a candidate, {len(self)}, got {len(getattr(self, name))}")

    def __len__(self) -> int:
        """How many candidates, ``|U|``."""
        return len(self.names)

    def select(self, indices: Sequence[int]) -> Candidates:
        """Some of the candidates, in the given order."""
        return Candidates(
            tuple(self.names[i] for i in indices),
            tuple(self.kernels[i] for i in indices),
            tuple(self.means[i] for i in indices),
        )

    def prior(self, noise_std: float, share: bool = False) -> GaussianProcess:
        """The priors as one batch ``(|U|,)``.

        Args:
            noise_std: of the observations, positive.
            share: whether candidates that differ in their mean alone get one kernel of batch ``(1,)``; their
                posteriors then share one factor and one variance. Default false.
        """
        one = share and all(kernel is self.kernels[0] for kernel in self.kernels)
        mean: Mean = 0.0 if not one and all(m == 0.0 for m in self.means) else self._mean
        return GaussianProcess(StackedKernel(self.kernels[:1] if one else self.kernels), noise_std, mean)

    def _mean(self, points: Tensor) -> Tensor:
        """All prior means: points ``... x (1 or |U|) x n x p x d`` to ``... x |U| x n x p``."""
        points = points if points.dim() > 3 else points.unsqueeze(0)
        own = points.expand(*points.shape[:-4], len(self), *points.shape[-3:]).unbind(-4)
        values = [m(x) if callable(m) else torch.full_like(x[..., 0], m) for m, x in zip(self.means, own, strict=True)]
        return torch.stack(values, -3)


@dataclass(frozen=True)
class UnknownPriorProblem:
    """Maximize f through noisy values at points, when its prior is one of several ([Ziomek2024]_, section 2).

    A query is a point ``d``, either of a finite set or anywhere in a box. With ``epsilon`` positive the point may be
    perturbed, and its value is the worst within that distance ([Bogunovic2018]_; [Ziomek2024]_, section 6); an
    observation is still the noisy value of f where it was asked.

    Args:
        f: the function to maximize, from points ``... x d`` to values ``...``.
        candidates: the priors.
        points: the finite domain ``n x d``. Give either this or ``bounds``.
        bounds: the box ``2 x d``, lower corner first.
        noise_std: standard deviation ``R`` of the Gaussian noise, positive. Default 0.1.
        truth: index of the true candidate, ``()`` or ``replicates``; for theory and plots alone, policies do not see
            it. Default none: no candidate is known to be true.
        epsilon: how far a point may be moved, Euclidean, in the units of the inputs; a finite domain is needed if it
            is positive. Default 0.
        replicates: if given, ``f`` holds one function a replicate: it maps points ``replicates x ... x d`` to values
            ``replicates x ...``. Default: every replicate has the same function.

    Raises:
        ValueError: if an argument is out of range.
    """

    f: Function
    candidates: Candidates
    points: Tensor | None = None
    bounds: Tensor | None = None
    noise_std: float = 0.1
    truth: int | Tensor | None = None
    epsilon: float = 0.0
    replicates: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if (self.points is None) == (self.bounds is None):
            raise ValueError("give either points (a finite domain) or bounds (a box), not both or neither")
        if self.points is not None and (self.points.dim() != 2 or not len(self.points)):
            raise ValueError(f"points must have shape (n, d) with n >= 1, got {tuple(self.points.shape)}")
        if self.bounds is not None and (
            self.bounds.dim() != 2 or len(self.bounds) != 2 or not bool((self.bounds[0] < self.bounds[1]).all())
        ):
            raise ValueError(f"bounds must be a box (2, d), lower corner first, got {self.bounds.tolist()}")
        if not 0 < self.noise_std < math.inf:
            raise ValueError(f"noise_std must be positive and finite, got {self.noise_std}")
        if not 0 <= self.epsilon < math.inf or (self.epsilon > 0 and self.points is None):
            raise ValueError(f"epsilon must be nonnegative, and zero in a box, got {self.epsilon}")
        if self.replicates is not None and self.replicates < 1:
            raise ValueError(f"replicates must be at least 1, got {self.replicates}")
        if self.truth is not None:
            truth = torch.as_tensor(self.truth)
            if truth.shape not in (torch.Size(), torch.Size([self.replicates or 0])):
                raise ValueError(f"truth must be an index or one a replicate, got shape {tuple(truth.shape)}")
            if not bool(((truth >= 0) & (truth < len(self.candidates))).all()):
                raise ValueError(f"truth must lie in [0, {len(self.candidates)}), got {truth.tolist()}")

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self._like.shape[-1]

    @property
    def _like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        domain = self.points if self.bounds is None else self.bounds
        assert domain is not None
        return domain

    def value(self, query: Tensor) -> Tensor:
        """f at points ``replicates x ... x d``, ``replicates x ...``; with ``epsilon``, its worst value that near."""
        if self.epsilon == 0.0:
            return self.f(query)
        near = self._within(query.reshape(len(query), -1, self.dim))
        values = self.values.expand(len(query), -1).unsqueeze(1)
        return values.expand(near.shape).masked_fill(~near, torch.inf).amin(-1).reshape(query.shape[:-1])

    def observe(self, query: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A noisy value of f at one point a replicate, ``replicates``.

        Raises:
            ValueError: if the problem holds one function a replicate and there are more or fewer queries.
        """
        if self.replicates is not None and len(query) != self.replicates:
            raise ValueError(f"query must hold one point for each of {self.replicates} replicates, got {len(query)}")
        value = self.f(query)
        return value + self.noise_std * standard_normal(generators, (), value)

    @cached_property
    def values(self) -> Tensor:
        """f on the finite domain, ``n`` or ``replicates x n``."""
        points = self._finite()
        return self.f(points if self.replicates is None else points.expand(self.replicates, *points.shape))

    @cached_property
    def neighbors(self) -> Tensor:
        """Indices ``n x m`` of the points within ``epsilon`` of each point; shorter rows repeat the point itself."""
        points = self._finite()
        near = self._within(points)
        width = int(near.sum(-1).max())
        own = torch.arange(len(points), device=points.device)
        order = near.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :width]
        return torch.where(near.gather(-1, order), order, own.unsqueeze(-1))

    def worst(self, values: Tensor) -> Tensor:
        """The smallest of values ``... x n`` within ``epsilon`` of each point, ``... x n``."""
        return values if self.epsilon == 0.0 else values[..., self.neighbors].amin(-1)

    @cached_property
    def optimum(self) -> Tensor:
        """The best value: the maximum of f, or of its worst value within ``epsilon``; ``()`` or ``replicates``."""
        if self.points is not None:
            return self.worst(self.values).amax(-1)
        assert self.bounds is not None
        return maximum(self.f, self.bounds, self.replicates)[1]

    def _within(self, x: Tensor) -> Tensor:
        """Which points of the domain lie within ``epsilon`` of ``... m x d``, ``... m x n``."""
        points = self._finite()
        # Points of a grid that far apart count, whatever their rounding.
        rounding = max(1e-9, 16 * torch.finfo(points.dtype).eps * float(points.abs().amax()))
        return _distance(x, points) <= self.epsilon + rounding

    def _finite(self) -> Tensor:
        if self.points is None:
            raise ValueError("points must be given, this problem has a box for its domain")
        return self.points


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances, without the matrix product that cancels far from the origin."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
