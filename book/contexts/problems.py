"""The problems of the experiments ([Huang2024], sections 4.2 and 4.3, Appendices B.2 and D).

Decisions and contexts live in the unit box, as in the paper, and larger values are better throughout.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from botorch.test_functions import Ackley, Branin, Hartmann
from torch import Tensor

from book.contexts.marginals import Burr, Cauchy, Marginal, Mixture
from book.contexts.portfolio import Surrogate, load_portfolio
from book.contexts.problem import ContextProblem
from book.contexts.quadrature import QuadratureDistribution
from cbo_lib.contexts.space import Space
from cbo_lib.distributions import Normal, Uniform

#: Half the side of Ackley's cube.
_EDGE = 32.768


def unit_box(dim: int, device: torch.device | None = None) -> Tensor:
    """``[0, 1]^dim`` as bounds ``2 x dim``."""
    return torch.stack([torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)]).to(device)


def unit_space(decision_dim: int, context_dim: int, device: torch.device | None = None) -> Space:
    """The unit box of decisions and that of contexts."""
    return Space(unit_box(decision_dim, device), unit_box(context_dim, device))


def _around(center: float, scale: float, steps: tuple[float, ...]) -> tuple[float, ...]:
    return (center, *(center + sign * step * scale for step in steps for sign in (-1, 1)))


def ackley(
    context_dim: Literal[1, 4] = 1, noise_std: float = 0.0, device: torch.device | None = None
) -> ContextProblem:
    """The negative Ackley function of 2 decisions and 1 or 4 contexts ``N(0.5, 0.15^2)``, on ``[-32.768, 32.768]``.

    The paper prints ``a exp(...) - exp(...) + a + e``; the first sign is lost: the standard function is
    ``-a exp(...) - exp(...) + a + e``, to be minimized, and it is its negative that is maximized here.

    Args:
        context_dim: 1 (section 4.2) or 4 (Appendix D).
        noise_std: see ``ContextProblem``.
        device: of its tensors. Default: the CPU.

    Raises:
        ValueError: for another number of contexts.
    """
    if context_dim not in (1, 4):
        raise ValueError(f"context_dim must be 1 or 4, got {context_dim}")
    function = Ackley(dim=2 + context_dim, negate=True, dtype=torch.float64).to(device)

    def f(points: Tensor) -> Tensor:
        return function((2 * points - 1) * _EDGE)

    # A piece a period of the cosine, and finer ones toward the center, where the root has its kink.
    period = 1 / (2 * _EDGE)
    waves = tuple(0.5 + j * period for j in range(-33, 34))
    fine = _around(0.5, period, tuple(2.0**-k for k in range(1, 13)))
    marginal = Normal(0.5, 0.15)
    single = QuadratureDistribution((marginal,), unit_box(1, device), (waves + fine,))
    many = QuadratureDistribution((marginal,) * context_dim, unit_box(context_dim, device), sobol=2**14)
    return ContextProblem(
        unit_space(2, context_dim, device),
        f,
        single if context_dim == 1 else many,
        noise_std,
        _AckleyExpectation(single, context_dim),
        value_error=1e-9,
        name=f"Ackley (2+{context_dim})",
    )


class _AckleyExpectation:
    """``E f(x, c)`` of the negative Ackley function, from one-dimensional integrals alone.

    The exponential of the mean cosine is a product over coordinates. For the other term, with ``Z`` standard normal
    and ``T = a^2 / (2 Z^2)``, ``E exp(-u T) = exp(-a sqrt(u))``: so the exponential of the root of a sum of squares
    becomes an integral over products too, ``E_Z [exp(-T |x|^2) phi(T)^Dc]`` with ``phi(t) = E exp(-t c^2)``, which the
    clipped normal distribution has in a closed form.
    """

    def __init__(self, single: QuadratureDistribution, context_dim: int) -> None:
        dim = 2 + context_dim
        contexts, weights = single.nodes
        c = (2 * contexts.squeeze(-1) - 1) * _EDGE
        self._dim = dim
        self._cosines = (weights @ ((2 * math.pi * c).cos() / dim).exp()) ** context_dim
        # Pieces that grow from zero: for decisions near the center the integrand varies on every scale of Z.
        cuts = torch.cat([torch.zeros(1, dtype=torch.float64), 2.0 ** torch.arange(-16, 3), torch.tensor([6.0, 9.0])])
        nodes, gauss = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(24))
        half = cuts.diff().unsqueeze(-1) / 2
        z = (cuts[:-1].unsqueeze(-1) + half * (1 + nodes)).flatten().to(c)
        density = (half * gauss).flatten().to(c) * (-0.5 * z.square()).exp() * math.sqrt(2 / math.pi)
        t = 0.2**2 / dim / (2 * z.square())
        std = 0.15 * 2 * _EDGE
        root = (1 + 2 * std**2 * t).sqrt()
        atom = single.atoms[0, 0]
        phi = torch.erf(_EDGE / std * root / math.sqrt(2)) / root + 2 * atom * (-t * _EDGE**2).exp()
        self._t, self._mass = t, density * phi**context_dim

    def __call__(self, x: Tensor) -> Tensor:
        z = (2 * x - 1) * _EDGE
        root = (-self._t * z.square().sum(-1, keepdim=True)).exp() @ self._mass
        waves = ((2 * math.pi * z).cos().sum(-1) / self._dim).exp() * self._cosines
        return 20 * root + waves - 20 - math.e


def modified_branin(noise_std: float = 0.0, device: torch.device | None = None) -> ContextProblem:
    """``-sqrt(h(15 x1 - 5, 15 c1) h(15 c2 - 5, 15 x2))`` with Branin's ``h`` ([Williams2000]), contexts N(0.5, 0.1^2).

    The contexts are independent and stand in different factors. So the expectation is the product of two
    one-dimensional ones.

    Args:
        noise_std: see ``ContextProblem``.
        device: of its tensors. Default: the CPU.
    """
    branin = Branin(dtype=torch.float64).to(device)

    def f(points: Tensor) -> Tensor:
        x1, x2, c1, c2 = points.unbind(-1)
        first = branin(torch.stack([15 * x1 - 5, 15 * c1], -1))
        return -(first * branin(torch.stack([15 * c2 - 5, 15 * x2], -1))).sqrt()

    # The root of h bends sharply where h is small: many pieces.
    normal, fine = Normal(0.5, 0.1), tuple(j / 40 for j in range(1, 40))
    rule = QuadratureDistribution((normal,), unit_box(1, device), (fine,))

    def expectation(decisions: Tensor) -> Tensor:
        (contexts, weights), (x1, x2) = rule.nodes, decisions.unsqueeze(-2).unbind(-1)
        c = contexts.squeeze(-1)
        first = branin(torch.stack(torch.broadcast_tensors(15 * x1 - 5, 15 * c), -1)).sqrt() @ weights
        return -first * (branin(torch.stack(torch.broadcast_tensors(15 * c - 5, 15 * x2), -1)).sqrt() @ weights)

    breaks = (_around(0.5, 0.1, (1.0, 2.0, 3.0, 4.0)),) * 2
    return ContextProblem(
        unit_space(2, 2, device),
        f,
        QuadratureDistribution((normal,) * 2, unit_box(2, device), breaks, order=8),
        noise_std,
        expectation,
        value_error=1e-9,
        name="Modified Branin (2+2)",
    )


def _hartmann(
    marginal: Marginal, breaks: tuple[float, ...], noise_std: float, name: str, device: torch.device | None
) -> ContextProblem:
    function = Hartmann(dim=6, negate=True, dtype=torch.float64).to(device)

    def f(points: Tensor) -> Tensor:
        return function(points)

    contexts = QuadratureDistribution((marginal,), unit_box(1, device), (breaks,))
    return ContextProblem(unit_space(5, 1, device), f, contexts, noise_std, value_error=1e-9, name=name)


def hartmann(noise_std: float = 0.0, device: torch.device | None = None) -> ContextProblem:
    """The negative of Hartmann's function of 6 variables; the last is the context, ``N(0.5, 0.1^2)``.

    The weights are the standard ones, (1, 1.2, 3, 3.2); the paper prints (1, 2, 3, 3.2).

    Args:
        noise_std: see ``ContextProblem``.
        device: of its tensors. Default: the CPU.
    """
    return _hartmann(Normal(0.5, 0.1), _around(0.5, 0.1, (1.0, 2.0, 4.0)), noise_std, "Hartmann (5+1)", device)


def complicated_context() -> Mixture:
    """The context of Complicated Hartmann: equal parts of six normal and two Cauchy distributions.

    The paper names the parts and not their weights; equal ones are those of its published code.
    """
    normals = ((0.1, 0.02), (0.3, 0.075), (0.4, 0.1), (0.5, 0.1), (0.7, 0.075), (0.8, 0.03))
    return Mixture((*(Normal(*part) for part in normals), Cauchy(0.2, 0.02), Cauchy(0.8, 0.02)))


def complicated_hartmann(noise_std: float = 0.0, device: torch.device | None = None) -> ContextProblem:
    """Hartmann's function with a context that is hard to estimate: ``complicated_context``.

    One percent of the contexts, nearly all of them from the Cauchy parts, lie outside of the box and go to its ends.
    The paper reports rewards only, for want of a way to sample the mixture by QMC; the expectation is a
    one-dimensional integral and two atoms.

    Args:
        noise_std: see ``ContextProblem``.
        device: of its tensors. Default: the CPU.
    """
    mixture = complicated_context()
    breaks: list[float] = []
    for part in mixture.parts:
        if isinstance(part, Normal):
            breaks += _around(part.mean, part.std, (2.0, 4.0))
        else:
            assert isinstance(part, Cauchy)
            breaks += _around(part.location, part.scale, (1.0, 3.0, 9.0))
    return _hartmann(mixture, tuple(breaks), noise_std, "Complicated Hartmann (5+1)", device)


def newsvendor(noise_std: float = 0.0, device: torch.device | None = None) -> ContextProblem:
    """The profit of stock ``x`` against demand ``c``: ``9 min(x, c) + max(0, x - c) - 5 x`` ([Eckman2021]).

    The demand has Burr's type XII distribution with ``alpha = 2`` and ``beta = 20``, clipped onto [0, 1], which
    happens with probability ``2^-20``. The expected profit is ``8 M(x) - 4 x`` with ``M(x) = E min(x, c)``, the
    integral of ``(1 + t^2)^-20`` from 0 to x; its maximum is the median of the demand.

    Args:
        noise_std: see ``ContextProblem``.
        device: of its tensors. Default: the CPU.
    """

    def f(points: Tensor) -> Tensor:
        x, c = points.unbind(-1)
        return 9 * torch.minimum(x, c) + (x - c).clamp_min(0.0) - 5 * x

    rule, gauss = (torch.as_tensor(part).to(device) for part in np.polynomial.legendre.leggauss(48))

    def expectation(decisions: Tensor) -> Tensor:
        t = decisions * (1 + rule) / 2
        return 4 * decisions.squeeze(-1) * ((1 + t.square()).pow(-20) @ gauss - 1)

    # f has a kink where the demand meets the stock: many short pieces.
    breaks = (tuple(j / 256 for j in range(1, 256)),)
    contexts = QuadratureDistribution((Burr(2.0, 20.0),), unit_box(1, device), breaks, order=4)
    return ContextProblem(
        unit_space(1, 1, device), f, contexts, noise_std, expectation, value_error=1e-9, name="Newsvendor (1+1)"
    )


def portfolio(
    contexts: Literal["normal", "uniform"] = "normal",
    noise_std: float = 0.0,
    surrogate: Surrogate | None = None,
    device: torch.device | None = None,
) -> ContextProblem:
    """The return of a trading strategy: 3 decisions (risk and trade aversion, holding cost multiplier), 2 contexts.

    The contexts are the bid-ask spread and the borrowing cost. The objective is the posterior mean of a Gaussian
    process on 3,000 runs of a simulation; see ``book.contexts.portfolio`` for ours and for how to read other data.

    Args:
        contexts: both ``N(0.5, 0.1^2)`` or both uniform.
        noise_std: see ``ContextProblem``.
        surrogate: the objective. Default: that of our simulation.
        device: of its tensors. Default: the CPU.

    Raises:
        ValueError: for another distribution.
    """
    if contexts == "normal":
        marginal: Marginal = Normal(0.5, 0.1)
        breaks = (_around(0.5, 0.1, (2.0, 4.0)),) * 2
    elif contexts == "uniform":
        marginal, breaks = Uniform(), ((),) * 2
    else:
        raise ValueError(f"contexts must be 'normal' or 'uniform', got {contexts!r}")
    space = unit_space(3, 2, device)
    surrogate = load_portfolio(device=space.bounds.device) if surrogate is None else surrogate
    distribution = QuadratureDistribution((marginal,) * 2, unit_box(2, device), breaks, order=10)
    return ContextProblem(
        space,
        surrogate,
        distribution,
        noise_std,
        surrogate.expectation(distribution),
        value_error=1e-9,
        name=f"Portfolio, {contexts} (3+2)",
    )
