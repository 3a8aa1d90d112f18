"""BoTorch acquisition functions of a decision whose input is completed by the world, or whose prior is in doubt.

Each takes the upper confidence bounds ``mean + sqrt_beta * std`` of a decision, with ``M`` contexts or under several
models, to one number. They serve any BoTorch loop, ``b x 1 x d -> b``.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model, ModelList
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.checks import as_values, require, require_shape
from cbo_lib.gp import Posterior


def as_model(model: Posterior | Model) -> Model:
    """A posterior as a BoTorch model, a BoTorch model as it is; ``ValueError`` if it has several outputs."""
    found = model.as_botorch() if isinstance(model, Posterior) else model
    require(found.num_outputs == 1, "model must have one output", found.num_outputs)
    return found


def upper(model: Model, points: Tensor, sqrt_beta: float | Tensor) -> Tensor:
    """``mean + sqrt_beta std`` at points ``... x 1 x d``, one at a time as covariances are not needed: ``...``."""
    posterior = model.posterior(points)
    mean, variance = posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]  # type: ignore[attr-defined]
    # Where there is no uncertainty the bound has the slope of the mean.
    return mean + sqrt_beta * variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


class ContextAcquisition(AcquisitionFunction):
    """A function of the bounds of a decision with every context of a finite set, ``b x 1 x Dx -> b``.

    Args:
        model: of f at decisions and contexts, in this order: a ``Posterior`` or a BoTorch model of one output.
        contexts: ``M x Dc``.
        sqrt_beta: the multiplier of the standard deviation. Default 1.5, as in [Huang2024]. BoTorch's
            ``UpperConfidenceBound(beta)`` multiplies by the root of ``beta``.

    Raises:
        ValueError: if ``contexts`` have another shape or are not finite, or the model is a batch.
    """

    def __init__(self, model: Posterior | Model, contexts: Tensor, sqrt_beta: float = 1.5) -> None:
        super().__init__(as_model(model))
        require(not self.model.batch_shape, "model must have no batch dimensions", self.model.batch_shape)
        self.contexts = as_values("contexts", contexts, ("M >= 1", "Dc"))
        self.sqrt_beta = sqrt_beta

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
    """``E_c[mean + sqrt_beta std]`` over samples or a quadrature rule: SBO-KDE ([Huang2024], Algorithm 1, line 5).

    Args:
        model: see ``ContextAcquisition``, also for ``contexts`` and ``sqrt_beta``.
        contexts: the samples, or the nodes of the rule.
        sqrt_beta: the multiplier.
        weights: of the contexts, ``M``, taken as they are. Default equal ones that sum to one.
    """

    def __init__(
        self, model: Posterior | Model, contexts: Tensor, sqrt_beta: float = 1.5, weights: Tensor | None = None
    ) -> None:
        super().__init__(model, contexts, sqrt_beta)
        if weights is not None:
            require_shape("weights", weights, len(self.contexts))
        self.weights = weights

    def reduce(self, bounds: Tensor) -> Tensor:
        """The average."""
        return bounds.mean(-1) if self.weights is None else bounds @ self.weights.to(bounds)


class RobustUpperConfidenceBound(ContextAcquisition):
    """The smallest bound over a set of contexts: StableOpt ([Bogunovic2018])."""

    def reduce(self, bounds: Tensor) -> Tensor:
        """The minimum."""
        return bounds.amin(-1)


class OptimisticUpperConfidenceBound(AcquisitionFunction):
    """``max_u mean_u(x) + sqrt_beta_u std_u(x)`` over the candidates left ([Ziomek2024], Algorithm 1, line 7).

    Args:
        models: the candidates ``U``: one model of batch shape ``(|U|,)``, such as a ``Posterior``, or a list of models.
        sqrt_beta: the multiplier of the standard deviation, a number or ``|U|``.
        alive: which candidates are left, boolean ``|U|``. Default all.

    Raises:
        ValueError: if a model has another batch or several outputs, ``sqrt_beta`` another shape, or none is left.
    """

    def __init__(
        self,
        models: Posterior | Model | Sequence[Posterior | Model],
        sqrt_beta: float | Tensor,
        alive: Tensor | None = None,
    ) -> None:
        listed = isinstance(models, Sequence)
        found = [as_model(model) for model in (models if isinstance(models, Sequence) else [models])]
        super().__init__(ModelList(*found) if listed else found[0])
        for model in found:
            shape = "no batch shape in a list" if listed else "the batch shape (|U|,)"
            require(len(model.batch_shape) == (not listed), f"model must have {shape}", model.batch_shape)
        self._models = found
        count = len(found) if listed else found[0].batch_shape[0]
        shape_of = getattr(sqrt_beta, "shape", torch.Size())
        require(shape_of in (torch.Size(), (count,)), "sqrt_beta must be a number or one a candidate", shape_of)
        self.sqrt_beta = sqrt_beta
        self.alive = torch.ones(count, dtype=torch.bool) if alive is None else alive
        marked = self.alive.shape == (count,) and bool(self.alive.any())
        require(marked, f"alive must mark at least one of {count} candidates", self.alive)

    def bounds(self, X: Tensor) -> Tensor:
        """``mean + sqrt_beta std`` at ``b x 1 x d`` points under every candidate, ``b x |U|``."""
        beta = torch.as_tensor(self.sqrt_beta).to(X)
        if isinstance(self.model, ModelList):
            each = [upper(model, X, beta if beta.dim() == 0 else beta[u]) for u, model in enumerate(self._models)]
            return torch.stack(each, -1)
        return upper(self.model, X.unsqueeze(-3), beta)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The bound at ``b x 1 x d`` points, ``b``."""
        return self.bounds(X).masked_fill(~self.alive.to(X.device), -torch.inf).amax(-1)
