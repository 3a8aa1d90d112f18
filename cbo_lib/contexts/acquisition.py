"""What the policies maximize, as BoTorch acquisition functions of the decision.

Each takes the upper confidence bounds of a decision with ``M`` contexts, ``mean + sqrt_beta * std``, to one number: an
average, or the worst average over a set of distributions.

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
.. [Kirschner2020] J. Kirschner, I. Bogunovic, S. Jegelka, A. Krause. Distributionally Robust Bayesian Optimization.
   AISTATS 2020.
.. [Tay2022] S. S. Tay, C. S. Foo, D. Urano, R. Leong, B. K. H. Low. Efficient Distributionally Robust Bayesian
   Optimization with Worst-case Sensitivity. ICML 2022.
.. [Bogunovic2018] I. Bogunovic, J. Scarlett, S. Jegelka, V. Cevher. Adversarially Robust Optimization with Gaussian
   Processes. NeurIPS 2018.
.. [Srinivas2010] N. Srinivas, A. Krause, S. Kakade, M. Seeger. Gaussian Process Optimization in the Bandit Setting: No
   Regret and Experimental Design. ICML 2010.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.contexts.interpolation import InterpolatedPosterior
from cbo_lib.contexts.worst_case import MMDBall, tv_worst_case
from cbo_lib.gp import Posterior
from cbo_lib.measure import Measure

# Where no gradient is asked for, decisions are taken in slices of at most this many pairs with a context (16 MiB).
_SLICE_PAIRS = 2**21


class DecisionAcquisition(AcquisitionFunction):
    """A function of the decision, for one posterior or a batch of them.

    A posterior without batch dimensions makes a BoTorch acquisition function, ``b x 1 x Dx -> b``, for
    ``optimize_acqf``. The policies call ``values`` with a batch of replicates.

    Args:
        posterior: of f, or of what is modeled.
    """

    def __init__(self, posterior: Posterior) -> None:
        super().__init__(posterior.as_botorch())

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """The acquisition at decisions ``batch x n x Dx``, ``batch x n``; differentiable."""

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The acquisition at ``b x 1 x Dx`` decisions, ``b``.

        Raises:
            ValueError: if the posterior is a batch.
        """
        if self.model.batch_shape:
            raise ValueError(f"the posterior must have no batch dimensions, got {tuple(self.model.batch_shape)}")
        return self.values(X.flatten(0, -2)).reshape(X.shape[:-2])


class ContextAcquisition(DecisionAcquisition):
    """A function of the upper confidence bounds of a decision with every context of a finite set.

    Args:
        posterior: of f at full points, decision coordinates first; see ``cbo_lib.expectation.PartialPosterior``.
        contexts: ``M x Dc`` or ``batch x M x Dc``.
        sqrt_beta: the multiplier of the standard deviation. Default 1.5, as in [Huang2024]_.
        tolerance: see ``InterpolatedPosterior``; None for no interpolation.

    Raises:
        ValueError: as ``PartialPosterior`` says, or if the posterior holds no observation.
    """

    def __init__(
        self, posterior: Posterior, contexts: Tensor, sqrt_beta: float = 1.5, tolerance: float | None = 1e-10
    ) -> None:
        super().__init__(posterior)
        data = posterior.data
        if data is None:
            raise ValueError("posterior must hold an observation, got a prior")
        self.decision_dim = data.measure.dim - contexts.shape[-1]
        self.sqrt_beta = sqrt_beta
        full = contexts.new_zeros(*contexts.shape[:-1], data.measure.dim)
        full[..., self.decision_dim :] = contexts
        controlled = torch.arange(data.measure.dim, device=contexts.device) < self.decision_dim
        self.partial = InterpolatedPosterior(posterior, full, controlled, tolerance)
        self._dim = data.measure.dim
        self._contexts = contexts.shape[-2]

    @abstractmethod
    def reduce(self, bounds: Tensor) -> Tensor:
        """One number a decision from its bounds ``batch x n x M``, ``batch x n``."""

    def values(self, x: Tensor) -> Tensor:
        """See ``DecisionAcquisition``."""
        if torch.is_grad_enabled() and x.requires_grad:
            return self.reduce(self.bounds(x))
        rows = max(1, _SLICE_PAIRS // (self.model.batch_shape.numel() * self._contexts))
        return torch.cat([self.reduce(self.bounds(part)) for part in x.split(rows, -2)], -1)

    def bounds(self, x: Tensor) -> Tensor:
        """``mean + sqrt_beta std`` at decisions ``batch x n x Dx`` with every context, ``batch x n x M``."""
        return self.partial.ucb(self._full(x), self.sqrt_beta)

    def mean(self, x: Tensor) -> Tensor:
        """``reduce`` of posterior means at decisions ``batch x n x Dx``, ``batch x n``: no exploration."""
        return self.reduce(self.partial.mean(self._full(x)))

    def _full(self, x: Tensor) -> Tensor:
        """Decisions with zeros for the contexts."""
        return torch.cat([x, x.new_zeros(*x.shape[:-1], self._dim - self.decision_dim)], -1)


class ExpectedUCB(ContextAcquisition):
    """``E_c[mean + sqrt_beta std]`` over samples or a quadrature rule: SBO-KDE ([Huang2024]_, Algorithm 1, line 5).

    Args:
        posterior: see ``ContextAcquisition``.
        contexts: see ``ContextAcquisition``.
        sqrt_beta: see ``ContextAcquisition``.
        weights: of the contexts, ``M`` or ``batch x M``. Default equal ones.
        tolerance: see ``ContextAcquisition``.
    """

    def __init__(
        self,
        posterior: Posterior,
        contexts: Tensor,
        sqrt_beta: float = 1.5,
        weights: Tensor | None = None,
        tolerance: float | None = 1e-10,
    ) -> None:
        super().__init__(posterior, contexts, sqrt_beta, tolerance)
        self.weights = weights

    def reduce(self, bounds: Tensor) -> Tensor:
        """The average."""
        return bounds.mean(-1) if self.weights is None else (bounds * self.weights.unsqueeze(-2)).sum(-1)


class TotalVariationUCB(ContextAcquisition):
    """The worst average within an L1 distance of the samples: DRBO-KDE ([Huang2024]_, Algorithm 2, line 5).

    Args:
        posterior: see ``ContextAcquisition``.
        samples: of the density estimate, ``M x Dc`` or ``batch x M x Dc``.
        cover: contexts whose smallest bound stands for the infimum over the context space, ``N x Dc`` or
            ``batch x N x Dc``.
        radius: L1, nonnegative.
        sqrt_beta: see ``ContextAcquisition``.
        tolerance: see ``ContextAcquisition``.
    """

    def __init__(
        self,
        posterior: Posterior,
        samples: Tensor,
        cover: Tensor,
        radius: float,
        sqrt_beta: float = 1.5,
        tolerance: float | None = 1e-10,
    ) -> None:
        batch = torch.broadcast_shapes(samples.shape[:-2], cover.shape[:-2])
        both = [points.expand(*batch, *points.shape[-2:]) for points in (samples, cover)]
        super().__init__(posterior, torch.cat(both, -2), sqrt_beta, tolerance)
        self.count, self.radius = samples.shape[-2], radius

    def reduce(self, bounds: Tensor) -> Tensor:
        """The closed form of Proposition 2."""
        return tv_worst_case(bounds[..., : self.count], bounds.amin(-1), self.radius)


class MMDUCB(ContextAcquisition):
    """The worst average over a ball of the maximum mean discrepancy: DRBO-MMD ([Kirschner2020]_).

    Args:
        posterior: see ``ContextAcquisition``.
        grid: the contexts that distributions may weigh, ``M x Dc``.
        ball: of distributions on the grid, of batch shape ``()`` or that of the posterior.
        sqrt_beta: see ``ContextAcquisition``.
        tolerance: see ``ContextAcquisition``.
    """

    def __init__(
        self,
        posterior: Posterior,
        grid: Tensor,
        ball: MMDBall,
        sqrt_beta: float = 1.5,
        tolerance: float | None = 1e-10,
    ) -> None:
        super().__init__(posterior, grid, sqrt_beta, tolerance)
        self.ball = ball

    def reduce(self, bounds: Tensor) -> Tensor:
        """The worst case."""
        return self.ball.worst_case(bounds)


class MinimaxUCB(MMDUCB):
    """The midpoint of two bounds on the worst case of ``MMDUCB``: DRBO-MMD-MinimaxApprox ([Tay2022]_).

    Args:
        posterior: see ``MMDUCB``.
        grid: see ``MMDUCB``.
        ball: see ``MMDUCB``.
        sqrt_beta: see ``MMDUCB``.
        tolerance: see ``MMDUCB``.
        sensitivity: see ``MMDBall.minimax_approx``.
    """

    def __init__(
        self,
        posterior: Posterior,
        grid: Tensor,
        ball: MMDBall,
        sqrt_beta: float = 1.5,
        tolerance: float | None = 1e-10,
        sensitivity: Literal["kernel", "identity"] = "kernel",
    ) -> None:
        super().__init__(posterior, grid, ball, sqrt_beta, tolerance)
        self.sensitivity: Literal["kernel", "identity"] = sensitivity

    def reduce(self, bounds: Tensor) -> Tensor:
        """The approximation."""
        return self.ball.minimax_approx(bounds, self.sensitivity)


class RobustUCB(ContextAcquisition):
    """The smallest bound over a set of contexts: StableOpt ([Bogunovic2018]_)."""

    def reduce(self, bounds: Tensor) -> Tensor:
        """The minimum."""
        return bounds.amin(-1)


class DecisionUCB(DecisionAcquisition):
    """``mean + sqrt_beta std`` of a model of the decision alone: GP-UCB ([Srinivas2010]_), which ignores the context.

    Args:
        posterior: at decisions.
        sqrt_beta: the multiplier of the standard deviation. Default 1.5. BoTorch's ``UpperConfidenceBound(beta)``
            multiplies by the root of ``beta``.
    """

    def __init__(self, posterior: Posterior, sqrt_beta: float = 1.5) -> None:
        super().__init__(posterior)
        self._posterior, self.sqrt_beta = posterior, sqrt_beta

    def values(self, x: Tensor) -> Tensor:
        """See ``DecisionAcquisition``."""
        points = Measure.dirac(x)
        # The root of zero has an infinite slope.
        std = self._posterior.variance(points).clamp_min(1e-20).sqrt()
        return self._posterior.mean(points) + self.sqrt_beta * std
