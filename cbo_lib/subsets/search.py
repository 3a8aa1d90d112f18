"""What a posterior expects of decisions whose other variables vary, and the best decision of each subset.

The kernel is RBF with a lengthscale a variable, so it is a product ``k((x, c), (x', c')) = s k_x(x, x') k_c(c, c')``.
The factor of the free variables does not depend on the decision: its averages are taken once a subset and round.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cbo_lib.checks import require
from cbo_lib.gp import GaussianProcess, cholesky
from cbo_lib.kernels import matrix
from cbo_lib.measure import Function, Measure
from cbo_lib.random import standard_normal, uniform
from cbo_lib.search import argmax_finite, on_grid
from cbo_lib.subsets.space import Space


@dataclass(frozen=True)
class Decisions:
    """One decision a replicate and subset.

    Attributes:
        points: ``replicates x m x d``; free variables hold the middle of the box.
        mean: ``E[mu([x^i, X^-i])]``, ``replicates x m``; minus infinity where the subset was not asked for.
        std: ``E[sigma([x^i, X^-i])]``, ``replicates x m``; zero there.
    """

    points: Tensor
    mean: Tensor
    std: Tensor


class PlayBelief:
    """The posterior of f given values ``replicates x t`` at full points ``replicates x t x d``.

    Args:
        space: see ``Space``.
        prior: of f, with its noise.
        x: the points.
        y: the values.
        contexts: draws of all variables, ``M x d``, that stand for how they vary.
    """

    def __init__(self, space: Space, prior: GaussianProcess, x: Tensor, y: Tensor, contexts: Tensor) -> None:
        self.space, self.x, self.y, self.contexts = space, x, y, contexts
        self.scale, self.lengthscales = rbf_parameters("prior", prior, space)  # replicates, replicates x d, or one
        self.noise_std = torch.as_tensor(prior.noise_std).to(y)
        self.noise = self.noise_std.expand_as(y)
        self.mean = prior.prior_mean(Measure.dirac(contexts[:1])).expand(len(y), 1)
        gram = self.scale[:, None, None] * self.rbf(x, x)
        self.inverse = torch.cholesky_inverse(cholesky(gram + torch.diag_embed(self.noise.square())))
        self.weights = (self.inverse @ (y - self.mean).unsqueeze(-1)).squeeze(-1)

    def extend(self, x: Tensor, y: Tensor) -> "PlayBelief":
        """With one value more a replicate: the inverse grows by a row, in a tenth of the time of a new one."""
        more = copy.copy(self)
        cross = self.scale[:, None, None] * self.rbf(x.unsqueeze(1), self.x)  # replicates 1 t
        noise = self.noise_std.expand(len(y), 1)
        solved = cross @ self.inverse
        rest = (self.scale + noise.squeeze(-1).square()).view(-1, 1, 1) - (solved * cross).sum(-1, keepdim=True)
        row = torch.cat([-solved, torch.ones_like(rest)], -1)
        more.inverse = torch.nn.functional.pad(self.inverse, (0, 1, 0, 1)) + (row / rest) * row.mT
        more.x, more.y = torch.cat([self.x, x.unsqueeze(1)], 1), torch.cat([self.y, y.unsqueeze(1)], 1)
        more.noise = torch.cat([self.noise, noise], 1)
        more.weights = (more.inverse @ (more.y - self.mean).unsqueeze(-1)).squeeze(-1)
        return more

    def rbf(self, a: Tensor, b: Tensor, mask: Tensor | bool = True) -> Tensor:
        """The kernel over its value at zero, in the variables of a mask, of points ``... n x d`` and ``... t x d``."""
        shape = (len(self.lengthscales), *[1] * (max(a.dim(), b.dim()) - 2), -1)
        a, b = (torch.where(torch.as_tensor(mask), x, 0.0) / self.lengthscales.view(shape) for x in (a, b))
        square = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2) - 2 * a @ b.mT
        return (-0.5 * square.clamp_min(0)).exp()

    def near(self, points: Tensor, subsets: list[int]) -> Tensor:
        """``k_x`` between decisions ``replicates x c x n x d`` of ``c`` subsets and the data, ``... n x t``."""
        return self.rbf(points, self.x.unsqueeze(1), self.space.controlled[subsets].unsqueeze(1))

    def free(self, subsets: list[int]) -> Tensor:
        """``k_c`` between the draws and the data, ``replicates x c x M x t``."""
        mask = ~self.space.controlled[subsets].unsqueeze(1)
        return self.rbf(self.contexts.expand(1, 1, -1, -1), self.x.unsqueeze(1), mask)

    def bound(self, subsets: list[int], sqrt_beta: float) -> Function:
        """What a search climbs: maps decisions ``replicates x c x n x d`` to ``replicates x c x n``.

        ``E mu + sqrt_beta sqrt(E sigma^2)``, one quadratic form; with ``E sigma`` it would be one a draw. They differ
        by how much sigma varies over the draws.
        """
        free, scale = self.free(subsets), self.scale[:, None, None]
        weights = scale * free.mean(-2) * self.weights.unsqueeze(1)  # replicates c t
        free = free * (scale / math.sqrt(free.shape[-2])).unsqueeze(-1)
        square = (free.mT @ free).mul_(self.inverse.unsqueeze(1))  # replicates c t t

        def values(points: Tensor) -> Tensor:
            near = self.near(points, subsets)
            half = (near.detach() @ square) if near.shape[-1] else near.detach()
            explained = 2 * (near * half).sum(-1) - (near.detach() * half).sum(-1)  # of this value and slope
            variance = (scale - explained).clamp_min(1e-12)
            return self.mean.unsqueeze(-1) + (near @ weights.unsqueeze(-1)).squeeze(-1) + sqrt_beta * variance.sqrt()

        return values

    def moments(self, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """``E mu`` and ``E sigma`` of decisions ``replicates x c x d``, ``replicates x c`` each.

        Args:
            points: the decisions.
            mask: the variables that they set, ``replicates x c x d`` or ``c x d``; the others are averaged over.
        """
        full = torch.where(mask.unsqueeze(-2), points.unsqueeze(-2), self.contexts)
        cross = self.scale[:, None, None, None] * self.rbf(full, self.x.unsqueeze(1))  # replicates c M t
        mean = self.mean + (cross.mean(-2) @ self.weights.unsqueeze(-1)).squeeze(-1)
        explained = ((cross @ self.inverse.unsqueeze(1)) * cross).sum(-1)
        return mean, (self.scale[:, None, None] - explained).clamp_min(0).sqrt().mean(-1)


class Path:
    """One function a replicate, drawn from the posterior.

    A draw from the prior is a sum of random Fourier features ([Rahimi2007]); the data correct it by a sum of kernels at
    the observed points ([Wilson2020], Eq. 13).

    Args:
        belief: the posterior.
        generators: one a replicate.
        features: how many.
    """

    def __init__(self, belief: PlayBelief, generators: Sequence[torch.Generator], features: int) -> None:
        self.belief, y = belief, belief.y
        normal = standard_normal(generators, (features, belief.space.dim + 1), y)
        self.frequency = normal[..., :-1] / belief.lengthscales.unsqueeze(-2)  # replicates features d
        self.phase = 2 * math.pi * uniform(generators, (features,), y)
        self.amplitude = normal[..., -1] * (2 * belief.scale.unsqueeze(-1) / features).sqrt()
        angle = belief.x @ self.frequency.mT + self.phase.unsqueeze(-2)
        drawn = belief.mean + (angle.cos() @ self.amplitude.unsqueeze(-1)).squeeze(-1)
        noise = belief.noise * standard_normal(generators, y.shape[1:], y)
        self.drift = (belief.inverse @ (y - drawn - noise).unsqueeze(-1)).squeeze(-1)

    def expected(self, subsets: list[int]) -> Function:
        """Its expectation over the free variables, a function of decisions as ``PlayBelief.bound`` is."""
        belief, mask = self.belief, self.belief.space.controlled[subsets].unsqueeze(1)
        # E cos(a + b) = cos a E cos b - sin a E sin b, with b the part of the free variables
        frequency, amplitude = self.frequency.unsqueeze(1), self.amplitude[:, None, :, None]
        angle = torch.where(mask, 0.0, belief.contexts) @ frequency.mT + self.phase[:, None, None]
        cosine, sine = (part.mean(-2).unsqueeze(-1) * amplitude for part in (angle.cos(), angle.sin()))
        drift = (belief.scale[:, None, None] * belief.free(subsets).mean(-2) * self.drift.unsqueeze(1)).unsqueeze(-1)

        def values(points: Tensor) -> Tensor:
            angle = torch.where(mask, points, 0.0) @ frequency.mT
            drawn = angle.cos() @ cosine - angle.sin() @ sine + belief.near(points, subsets) @ drift
            return belief.mean.unsqueeze(-1) + drawn.squeeze(-1)

        return values


def climb(values: Function, space: Space, subsets: list[int], start: Tensor, steps: int, starts: int = 4) -> Tensor:
    """The best decision of each of ``c`` subsets, ``replicates x c x d``, among those that Adam visits.

    It begins at the best of the starting points ``replicates x c x n x d``, with steps of a tenth of the box that
    shrink. L-BFGS-B keeps books for every replicate and subset, which would cost more here than the values.
    """
    low, side = space.bounds[0], space.bounds[1] - space.bounds[0]
    start = torch.where(space.controlled[subsets].unsqueeze(-2), start, space.center)
    best, place = values(start).topk(min(starts, start.shape[-2]), -1)
    found = start.take_along_dim(place.unsqueeze(-1), -2)
    x = ((found - low) / side).requires_grad_()
    adam = torch.optim.Adam([x], betas=(0.5, 0.9), maximize=True)
    for step in range(steps + 1):
        with torch.enable_grad():
            now = values(low + side * x)
            x.grad = torch.autograd.grad(now.sum(), x)[0]
        better = now.detach() > best
        best = torch.where(better, now.detach(), best)
        found = torch.where(better.unsqueeze(-1), low + side * x.detach(), found)
        adam.param_groups[0]["lr"] = 0.1 * 0.6**step
        adam.step()
        x.data.clamp_(0, 1)
    top = argmax_finite(best)[..., None, None]
    return on_grid(found.take_along_dim(top, -2).squeeze(-2), space.bounds)


def rbf_parameters(name: str, prior: GaussianProcess, space: Space) -> tuple[Tensor, Tensor]:
    """Variance ``... `` and lengthscales ``... x d`` of an RBF kernel, however wrapped, by its values.

    Raises:
        ValueError: if it is another kernel.
    """
    steps = torch.diag(space.bounds[1] - space.bounds[0]) / 8
    center = space.center.unsqueeze(0)
    whole = matrix(prior.kernel, center, torch.cat([center, center + steps, center + 2 * steps, center + steps.sum(0)]))
    whole = whole.squeeze(-2)
    scale, drop = whole[..., 0], -(whole[..., 1:] / whole[..., :1]).log()
    once, twice, all_ = drop[..., : space.dim], drop[..., space.dim : -1], drop[..., -1]
    right = torch.allclose(twice, 4 * once, rtol=1e-3, atol=1e-9) and torch.allclose(all_, once.sum(-1), rtol=1e-3)
    kind = type(getattr(prior.kernel, "base_kernel", prior.kernel)).__name__
    require(right, f"{name} must have an RBF kernel with a lengthscale a variable", kind)
    lengthscales = steps.diagonal() / (2 * once).clamp_min(1e-14).sqrt()
    return scale.reshape(-1), lengthscales.reshape(-1, space.dim)
