"""Unknown hyperparameters: what the learner knows, a domain and priors, one of which is true."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_box, as_number, as_points, as_values, nearest, outside, require
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import StackedKernel
from cbo_lib.measure import require_fit

# How many points stand for a ball in a box.
_BALL = 64
#: A prior mean: a number, or a function from points ``... x d`` to values ``...``.
Mean = float | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Candidates:
    """The finite set ``U`` of Gaussian process priors, one of which is true ([Ziomek2024], section 2).

    Args:
        names: one label a candidate, all different.
        kernels: one GPyTorch kernel a candidate, of any structure, without batch; the theory wants ``k(x, x) <= 1``.
        means: one prior mean a candidate. Default all zero.

    Raises:
        ValueError: if there is no candidate, two have one name or the lengths differ.
    """

    names: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    means: tuple[Mean, ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths and fill in the means."""
        apart = self.names and len(set(self.names)) == len(self.names)
        require(apart, "names must be one or more different labels", list(self.names))
        if not self.means:
            object.__setattr__(self, "means", (0.0,) * len(self.names))
        for name in ("kernels", "means"):
            count = len(getattr(self, name))
            require(count == len(self), f"{name} must have one entry a candidate, {len(self)}", count)

    def __len__(self) -> int:
        """How many candidates, ``|U|``."""
        return len(self.names)

    def select(self, indices: Sequence[int]) -> "Candidates":
        """Some of the candidates, in the given order."""
        parts: Any = self.names, self.kernels, self.means
        return Candidates(*(tuple(part[i] for i in indices) for part in parts))

    def prior(self, noise_std: float | Tensor, share: bool = False) -> GaussianProcess:
        """The priors as one batch ``(|U|,)``.

        Args:
            noise_std: of the observations, positive; a tensor ``|U| x 1`` gives each candidate its own.
            share: whether candidates that differ in their mean alone get one kernel of batch ``(1,)``; their
                posteriors then share one factor and one variance. Default false.
        """
        one = share and all(kernel is self.kernels[0] for kernel in self.kernels)
        mean: Mean = 0.0 if not one and all(m == 0.0 for m in self.means) else self.mean
        return GaussianProcess(StackedKernel(self.kernels[:1] if one else self.kernels), noise_std, mean)

    def mean(self, points: Tensor) -> Tensor:
        """All prior means: points ``... x (1 or |U|) x n x p x d`` to ``... x |U| x n x p``."""
        points = points if points.dim() > 3 else points.unsqueeze(0)
        own = points.expand(*points.shape[:-4], len(self), *points.shape[-3:]).unbind(-4)
        values = [m(x) if callable(m) else torch.full_like(x[..., 0], m) for m, x in zip(self.means, own, strict=True)]
        wanted = "means must map points (..., d) to values (...)"
        for value in values:
            require(isinstance(value, Tensor) and value.shape == points.shape[:-4] + points.shape[-3:-1], wanted, value)
        return torch.stack(values, -3)


@dataclass(frozen=True, eq=False)
class Space:
    """What the learner knows: where it may ask, and the priors that it doubts between.

    A candidate is a GPyTorch kernel or a ``GaussianProcess``, both in the user's units. A kernel says what f looks
    like and nothing of its size: a factor of its variance, a constant mean and the noise are fitted to the data, the
    same for all kernels (``fit_scale``). A Gaussian process is taken as it is, its noise included; the guarantees of
    [Ziomek2024] are for such candidates alone.

    Args:
        candidates: kernels and Gaussian processes without batch dimensions, or ``Candidates``, taken as they are.
        bounds: the box ``2 x d``, lower corner first. Give either this or ``points``.
        points: the finite domain ``n x d``.
        epsilon: how far, Euclidean, a chosen point may be moved within the domain ([Bogunovic2018]). Default 0.
        noise_std: standard deviation of the observation noise, positive. Needed with ``Candidates``; with kernels, by
            default it is fitted; Gaussian processes bring their own.
        names: one label a candidate. Default ``candidate 1``, ...; ``Candidates`` bring their own.

    Attributes:
        candidates: always ``Candidates``.
        noise_std: a number if all have one, ``|U|`` if theirs differ (NaN where fitted), None if it is fitted.
        fitted: of which candidates the size is fitted, booleans.

    Raises:
        ValueError: if an argument is out of range.
    """

    candidates: Any
    bounds: Any = None
    points: Any = None
    epsilon: float = 0.0
    noise_std: Any = None
    names: Sequence[str] | None = None
    fitted: tuple[bool, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Convert and check what was given."""
        given = "neither" if self.points is None else "both"
        one = (self.points is None) != (self.bounds is None)
        require(one, "either points (a finite domain) or bounds (a box) must be given", given)
        if self.bounds is not None:
            object.__setattr__(self, "bounds", as_box("bounds", self.bounds))
        else:
            object.__setattr__(self, "points", as_points("points", self.points, "d >= 1"))
        object.__setattr__(self, "epsilon", as_number("epsilon", self.epsilon, 0))
        given = self.noise_std
        if given is not None:
            noise = as_values("noise_std", given, None, 0, ends="()")
            each = isinstance(self.candidates, Candidates) and noise.shape == (len(self.candidates),)
            require(each or not noise.dim(), "noise_std must be a number, or with Candidates one each", noise.shape)
            object.__setattr__(self, "noise_std", noise.to(self.like) if each else float(noise))
        if isinstance(self.candidates, Candidates):
            require(given is not None, "noise_std must be given with Candidates", given)
            require(self.names is None, "names must not be given with Candidates", self.names)
            object.__setattr__(self, "fitted", (False,) * len(self.candidates))
            for kernel in self.candidates.kernels:
                require_fit("candidates", kernel, self.like[:1])
        else:
            require(isinstance(self.candidates, Iterable), "candidates must be a list", self.candidates)
            require(listed := list(self.candidates), "candidates must hold at least one", "none")
            self._take(listed)

    def _take(self, given: list[Any]) -> None:
        """Kernels and Gaussian processes as ``Candidates``, and the noise of all."""
        taken: list[tuple[Kernel, Mean, float]] = []
        for u, candidate in enumerate(given):
            known, at = isinstance(candidate, Kernel | GaussianProcess), f"at index {u}"
            require(known, "candidates must be GPyTorch kernels or GaussianProcess objects", f"{candidate!r} {at}")
            if isinstance(candidate, Kernel):  # the user's own stays as it is
                kernel = copy.deepcopy(candidate).to(self.like).requires_grad_(False)
                mean, noise_std = 0.0, math.nan if self.noise_std is None else self.noise_std
            else:
                left = "noise_std must be left to the GaussianProcess candidates"
                require(self.noise_std is None, left, self.noise_std)
                kernel, mean, noise_std = candidate.kernel, candidate.mean, candidate.noise_std
            batch = tuple(kernel.batch_shape)
            require(not batch, "candidates must have no batch dimensions", f"{batch} {at}")
            require_fit("candidates", kernel, self.like[:1])
            own = torch.as_tensor(noise_std, dtype=torch.float64)
            one = own.numel() == 1 and not (isinstance(mean, Tensor) and mean.numel() != 1)
            require(one, "candidates must have one noise_std and one mean each", f"several {at}")
            taken.append((kernel, float(mean) if isinstance(mean, Tensor) else mean, float(own)))
        kernels, means, noise = zip(*taken, strict=True)
        names = [f"candidate {u + 1}" for u in range(len(given))] if self.names is None else list(self.names)
        require(len(names) == len(given), f"names must have one label a candidate, {len(given)}", names)
        noise_std = noise[0] if len(set(noise)) == 1 and not math.isnan(noise[0]) else self.like.new_tensor(noise)
        alone = self.noise_std is None and all(map(math.isnan, noise))
        object.__setattr__(self, "candidates", Candidates(tuple(names), kernels, means))
        object.__setattr__(self, "noise_std", None if alone else noise_std)
        object.__setattr__(self, "fitted", tuple(isinstance(candidate, Kernel) for candidate in given))

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.points if self.bounds is None else self.bounds

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.like.shape[-1]

    def select(self, indices: Sequence[int]) -> "Space":
        """The same domain with some of the candidates, whose sizes must be known.

        Raises:
            ValueError: if something is to be fitted.
        """
        fitted = any(self.fitted)
        require(not fitted, "candidates must be Gaussian processes to be selected", "kernels whose sizes are fitted")
        noise = self.noise_std[list(indices)] if isinstance(self.noise_std, Tensor) else self.noise_std
        noise = float(noise) if isinstance(noise, Tensor) and len(indices) == 1 else noise
        return replace(self, candidates=self.candidates.select(indices), noise_std=noise, names=None)

    def finite(self) -> Tensor:
        """The points of a finite domain, ``n x d``; of a box that is a ValueError."""
        if self.points is None:
            raise ValueError("points must be given, the domain of this space is a box")
        return self.points

    def contains(self, x: Tensor) -> Tensor:
        """Whether points ``... x d`` belong to the domain, to single precision, boolean ``...``."""
        if self.points is None:
            return ~outside(x, self.bounds).any(-1)
        return nearest(x.reshape(-1, self.dim), self.points, self.points).reshape(x.shape[:-1]) >= 0

    def within(self, x: Tensor) -> Tensor:
        """Which points of a finite domain lie within ``epsilon`` of ``... m x d``, boolean ``... m x n``."""
        # Points of a grid that far apart count, whatever their rounding.
        side = float((self.finite().amax(-2) - self.points.amin(-2)).amax())
        rounding = 1e-9 * side + 16 * torch.finfo(self.points.dtype).eps * float(self.points.abs().amax())
        # The matrix product would cancel far from the origin.
        return torch.cdist(x, self.points, compute_mode="donot_use_mm_for_euclid_dist") <= self.epsilon + rounding

    @cached_property
    def neighbors(self) -> Tensor:
        """Indices ``n x m`` of the points within ``epsilon`` of each point; shorter rows repeat the point itself."""
        near = self.within(self.finite())
        width = int(near.sum(-1).max())
        own = torch.arange(len(near), device=near.device)
        order = near.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :width]
        return torch.where(near.gather(-1, order), order, own.unsqueeze(-1))

    def ball(self, x: Tensor) -> Tensor:
        """Points of a box within ``epsilon`` of ``... m x d``, ``... m k x d``: Sobol points, some on the border."""
        cube = 2.2 * torch.quasirandom.SobolEngine(self.dim).draw(_BALL, dtype=x.dtype).to(x) - 1.1
        shifts = self.epsilon * cube / cube.norm(dim=-1, keepdim=True).clamp_min(1)  # what is farther moves there
        return (x.unsqueeze(-2) + shifts).clamp(self.bounds[0], self.bounds[1]).flatten(-3, -2)

    def worst(self, values: Tensor) -> Tensor:
        """The smallest value around each point, ``... x n``, from values of all points; in a box of their balls."""
        if self.points is None:
            return values.unflatten(-1, (-1, _BALL)).amin(-1)
        return values if self.epsilon == 0.0 else values[..., self.neighbors].amin(-1)
