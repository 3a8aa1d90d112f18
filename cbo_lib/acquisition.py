"""BoTorch acquisition functions of a decision whose input is completed by the world, or whose prior is in doubt.

Each takes the upper confidence bounds ``mean + sqrt_beta * std`` of a decision, with ``M`` contexts or under several
models, to one number. They serve any BoTorch loop, ``b x 1 x d -> b``.
"""

from abc import abstractmethod

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.checks import as_values, require


def upper(model: Model, points: Tensor, sqrt_beta: float | Tensor) -> Tensor:
    """``mean + sqrt_beta std`` at points ``... x 1 x d``, one at a time as covariances are not needed: ``...``."""
    posterior = model.posterior(points)
    mean, variance = posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]  # type: ignore[attr-defined]
    # Where there is no uncertainty the bound has the slope of the mean.
    return mean + sqrt_beta * variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class ContextAcquisition(AcquisitionFunction):
    """A function of the bounds of a decision with every context of a finite set, ``b x 1 x Dx -> b``.

    Args:
        model: of f at decisions and contexts, in this order: a BoTorch model of one output, without batch dimensions.
        contexts: ``M x Dc``.
        sqrt_beta: the multiplier of the standard deviation. Default 1.5, as in [Huang2024]. BoTorch's
            ``UpperConfidenceBound(beta)`` multiplies by the root of ``beta``.

    Raises:
        ValueError: if ``contexts`` have another shape or are not finite, or the model is a batch.
    """

    def __init__(self, model: Model, contexts: Tensor, sqrt_beta: float = 1.5) -> None:
        super().__init__(model)
        require(not model.batch_shape, "model must have no batch dimensions", model.batch_shape)
        self.contexts, self.sqrt_beta = as_values("contexts", contexts, ("M >= 1", "Dc")), sqrt_beta

    @abstractmethod
    def reduce(self, bounds: Tensor) -> Tensor:
        """One number a decision from its bounds ``b x M``, ``b``."""

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The acquisition at ``b x 1 x Dx`` decisions, ``b``."""
        contexts = self.contexts.to(X).expand(*X.shape[:-2], -1, -1)
        pairs = torch.cat([X.expand(*contexts.shape[:-1], -1), contexts], -1)
        return self.reduce(upper(self.model, pairs.unsqueeze(-2), self.sqrt_beta))


class ExpectedUpperConfidenceBound(ContextAcquisition):
    """``E_c[mean + sqrt_beta std]`` over samples of the context: SBO-KDE ([Huang2024], Algorithm 1, line 5)."""

    def reduce(self, bounds: Tensor) -> Tensor:
        """The average."""
        return bounds.mean(-1)


class RobustUpperConfidenceBound(ContextAcquisition):
    """The smallest bound over a set of contexts: StableOpt ([Bogunovic2018])."""

    def reduce(self, bounds: Tensor) -> Tensor:
        """The minimum."""
        return bounds.amin(-1)


class OptimisticUpperConfidenceBound(AcquisitionFunction):
    """``max_u mean_u(x) + sqrt_beta_u std_u(x)`` over the candidates left ([Ziomek2024], Algorithm 1, line 7).

    Args:
        model: the candidates ``U``, as one model of batch shape ``(|U|,)``, such as ``Posterior.as_botorch``.
        sqrt_beta: the multiplier of the standard deviation, a number or ``|U|``.
        alive: which candidates are left, boolean ``|U|``. Default all.

    Raises:
        ValueError: if the model has another batch shape.
    """

    def __init__(self, model: Model, sqrt_beta: float | Tensor, alive: Tensor | None = None) -> None:
        super().__init__(model)
        require(len(model.batch_shape) == 1, "model must have the batch shape (|U|,)", model.batch_shape)
        self.sqrt_beta = sqrt_beta
        self.alive = torch.ones(model.batch_shape, dtype=torch.bool) if alive is None else alive

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The bound at ``b x 1 x d`` points, ``b``."""
        bounds = upper(self.model, X.unsqueeze(-3), torch.as_tensor(self.sqrt_beta).to(X))  # b U
        return bounds.masked_fill(~self.alive.to(X.device), -torch.inf).amax(-1)
