"""Unknown hyperparameters: what the learner knows, a domain and a list of priors, one of which is true."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from cbo_lib.checks import as_box, as_near, as_number, as_points, as_tensor, nearest, outside, require
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import StackedKernel
from cbo_lib.measure import require_fit

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
            vars(self)["means"] = (0.0,) * len(self.names)
        for name in ("kernels", "means"):
            count = len(getattr(self, name))
            require(count == len(self), f"{name} must have one entry a candidate, {len(self)}", count)

    def __len__(self) -> int:
        """How many candidates, ``|U|``."""
        return len(self.names)

    def prior(self, noise_std: float) -> GaussianProcess:
        """The priors as one batch ``(|U|,)``, or with one kernel of batch ``(1,)`` if the candidates share theirs.

        Args:
            noise_std: of the observations, positive.
        """
        one = all(kernel is self.kernels[0] for kernel in self.kernels)
        return GaussianProcess(StackedKernel(self.kernels[:1] if one else self.kernels), noise_std, self.mean)

    def mean(self, points: Tensor) -> Tensor:
        """All prior means: points ``... x (1 or |U|) x n x p x d`` to ``... x |U| x n x p``."""
        points = points if points.dim() > 3 else points.unsqueeze(0)
        own = points.expand(*points.shape[:-4], len(self), *points.shape[-3:]).unbind(-4)
        values = [m(x) if callable(m) else torch.full_like(x[..., 0], m) for m, x in zip(self.means, own, strict=True)]
        fits = all(isinstance(v, Tensor) and v.shape == x.shape[:-1] for v, x in zip(values, own, strict=True))
        require(fits, "means must map points (..., d) to values (...)", values)
        return torch.stack(values, -3)


@dataclass(frozen=True, eq=False)
class Space:
    """What the learner knows: where it may ask, the priors that it doubts between, and the noise.

    Args:
        candidates: ``Candidates``, or a list of GPyTorch kernels without batch, in the units of f.
        points: the finite domain ``n x d``. Give either this or ``bounds``.
        bounds: the box ``2 x d``, lower corner first.
        noise_std: standard deviation ``R`` of the observation noise, positive.
        epsilon: how far, Euclidean, a chosen point may be moved within a finite domain ([Bogunovic2018]). Default 0.
        names: one label a coordinate. Default ``x1``, ...

    Raises:
        ValueError: if an argument is out of range.
    """

    candidates: Any
    points: Any = None
    bounds: Any = None
    noise_std: float = None  # type: ignore[assignment]  # keywords only in sense; its absence has a message
    epsilon: float = 0.0
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Convert and check what was given."""
        given = "neither" if self.points is None else "both"
        one = (self.points is None) != (self.bounds is None)
        require(one, "either points (a finite domain) or bounds (a box) must be given", given)
        if self.bounds is None:
            vars(self)["points"] = as_points("points", self.points, "d >= 1")
        else:
            vars(self)["bounds"] = as_box("bounds", self.bounds)
        vars(self)["noise_std"] = as_number("noise_std", self.noise_std, 0, ends="()")
        vars(self)["epsilon"] = as_number("epsilon", self.epsilon, 0)
        require(self.epsilon == 0 or self.bounds is None, "epsilon must be 0 in a box: give points", self.epsilon)
        if not isinstance(self.candidates, Candidates):
            listed = isinstance(self.candidates, Sequence) and len(self.candidates) > 0
            require(listed, "candidates must be Candidates or a list of kernels", self.candidates)
            right = all(isinstance(kernel, Kernel) for kernel in self.candidates)
            require(right, "candidates must hold GPyTorch kernels", self.candidates)
            kernels = [copy.deepcopy(kernel).to(self.like).requires_grad_(False) for kernel in self.candidates]
            names = tuple(f"candidate {u + 1}" for u in range(len(kernels)))
            vars(self)["candidates"] = Candidates(names, tuple(kernels))
        for kernel in self.candidates.kernels:
            require(not kernel.batch_shape, "candidates must have no batch dimensions", tuple(kernel.batch_shape))
            require_fit("candidates", kernel, self.like[:1])

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.points if self.bounds is None else self.bounds

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.like.shape[-1]

    @property
    def columns(self) -> list[str]:
        """Names of the coordinates."""
        return [f"x{i + 1}" for i in range(self.dim)] if self.names is None else list(self.names)

    def read(self, query: Any) -> Tensor:
        """Points as a user gives them, ``n x d``; on a line a number is a point, and a list of numbers several.

        They may lie outside of the domain, as old data may.

        Raises:
            ValueError: if they have another dimension, or other units.
        """
        rows = as_tensor("query", query, self.like)
        rows = rows.reshape(-1, 1) if self.dim == 1 else rows.reshape(1, -1) if rows.dim() == 1 else rows
        return as_near("query", as_points("query", rows, "d", like=self.like), self.like)

    def contains(self, x: Tensor) -> Tensor:
        """Whether points ``... x d`` belong to the domain, to single precision, boolean ``...``."""
        if self.points is None:
            return ~outside(x, self.bounds).any(-1)
        return nearest(x.reshape(-1, self.dim), self.points, self.points).reshape(x.shape[:-1]) >= 0

    @cached_property
    def neighbors(self) -> Tensor:
        """Indices ``n x m`` of the points within ``epsilon`` of each point; shorter rows repeat the point itself."""
        # Points of a grid that far apart count, whatever their rounding; a matrix product would cancel far from zero.
        side = float((self.points.amax(-2) - self.points.amin(-2)).amax())
        rounding = 1e-9 * side + 16 * torch.finfo(self.points.dtype).eps * float(self.points.abs().amax())
        apart = torch.cdist(self.points, self.points, compute_mode="donot_use_mm_for_euclid_dist")
        near = apart <= self.epsilon + rounding
        order = near.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, : int(near.sum(-1).max())]
        own = torch.arange(len(near), device=near.device).unsqueeze(-1)
        return torch.where(near.gather(-1, order), order, own)

    def worst(self, values: Tensor) -> Tensor:
        """The smallest value within ``epsilon`` of each point, ``... x n``, from the values of all points."""
        return values if self.epsilon == 0.0 else values[..., self.neighbors].amin(-1)
