"""The doubly optimistic acquisition, for any BoTorch loop.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
"""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.gp import PosteriorModel


class OptimisticUpperConfidenceBound(AcquisitionFunction):
    """``max_u mean_u(x) + sqrt_beta_u std_u(x)`` over the candidates left ([Ziomek2024]_, Algorithm 1, line 7).

    Args:
        model: the posteriors of all candidates, of batch shape ``(|U|,)``: ``Posterior.as_botorch()``.
        sqrt_beta: the multiplier of the standard deviation, a number or ``|U|``.
        alive: which candidates are left, boolean ``|U|``. Default all.

    Raises:
        ValueError: if the model has another batch shape, or no candidate is left.
    """

    def __init__(self, model: PosteriorModel, sqrt_beta: float | Tensor, alive: Tensor | None = None) -> None:
        super().__init__(model)
        if len(model.batch_shape) != 1:
            raise ValueError(f"model must have the batch shape (|U|,), got {tuple(model.batch_shape)}")
        like = next(model.parameters(), torch.zeros((), dtype=torch.float64))
        if alive is None:
            alive = torch.ones(model.batch_shape, dtype=torch.bool, device=like.device)
        multiplier = torch.as_tensor(sqrt_beta, dtype=like.dtype, device=like.device)
        if multiplier.shape not in (torch.Size(), model.batch_shape):
            raise ValueError(f"sqrt_beta must be a number or one a candidate, got shape {tuple(multiplier.shape)}")
        if alive.shape != model.batch_shape or not bool(alive.any()):
            raise ValueError(f"alive must mark at least one of {model.batch_shape[0]} candidates, got {alive.tolist()}")
        self._posteriors = model
        self.sqrt_beta = multiplier[..., None, None]
        self.alive = alive

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The bound at ``b x 1 x d`` points, ``b``."""
        posterior = self._posteriors.posterior(X.unsqueeze(-3))  # b |U| 1 1
        upper = posterior.mean + self.sqrt_beta * posterior.variance.sqrt()
        return upper[..., 0, 0].masked_fill(~self.alive, -torch.inf).amax(-1)
