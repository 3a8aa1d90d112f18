"""The information about the maximum as an acquisition function, for any BoTorch loop.

.. [Zhang2025] M. Zhang, S. Bouabid, C. S. Ong, S. Flaxman, D. Sejdinovic. Indirect Query Bayesian Optimization with
   Integrated Feedback. 2025.
"""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from cbo_lib.gp import PosteriorModel
from cbo_lib.indirect.entropy import conditional_max_value_entropy
from cbo_lib.indirect.problem import ClippedGaussian


class ConditionalMaxValueEntropy(AcquisitionFunction):
    """CMES at any actions of a box, for a Gaussian ``p(x | a)`` ([Zhang2025]_, Eq. 14).

    Args:
        model: a posterior over Gaussian measures (``GaussianMeasureKernel``), ``Posterior.as_botorch()``; no batch.
        conditional: ``p(x | a)``; clipping is not regarded.
        max_samples: samples of ``f*``, ``S``.
        noise_std: None is Eq. 14, a number the form of Appendix A.

    Raises:
        ValueError: if there is no sample.
    """

    def __init__(
        self,
        model: PosteriorModel,
        conditional: ClippedGaussian,
        max_samples: Tensor,
        noise_std: float | None = None,
    ) -> None:
        super().__init__(model)
        if max_samples.dim() != 1 or not len(max_samples):
            raise ValueError(f"max_samples must have shape (S,) with S >= 1, got {tuple(max_samples.shape)}")
        self._posterior, self.conditional = model, conditional
        self.max_samples, self.noise_std = max_samples, noise_std

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # the decorator knows a method by its name
    def forward(self, X: Tensor) -> Tensor:
        """The information of ``b x 1 x q`` actions, ``b``."""
        center, scale = self.conditional.center(X), self.conditional.scale(X)
        posterior = self._posterior.posterior(torch.cat([center, scale.unsqueeze(-1)], -1))
        mean, std = posterior.mean.reshape(-1), posterior.variance.clamp_min(1e-20).sqrt().reshape(-1)
        return conditional_max_value_entropy(mean, std, self.max_samples, self.noise_std)
