"""Controls that the paper does not run: what a policy would do without one of its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from cbo_lib.aggregated.policies import GPOO


class IsolatedGPOO(GPOO):
    """GPOO whose posterior of a cell uses the draws of this cell alone: it knows the noise and shares nothing."""

    def belief(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of every node's average, by its own draws."""
        prior = self.prior
        gram = self._covariances(prior).diagonal(dim1=-2, dim2=-1)[..., self.row_of_node].expand(len(self.y), -1)
        own = (self.row_told.unsqueeze(-1) == self.row_of_node).to(self.y)  # replicates t nodes
        draws, sums = own.sum(1), (own * self.y.unsqueeze(-1)).sum(1)
        before = prior.prior_mean(self.space.measure(self.tree.boxes))
        noise = torch.as_tensor(prior.noise_std).to(self.y).square()
        mean = before + gram * (sums - draws * before) / (noise + draws * gram)
        return mean, (gram * noise / (noise + draws * gram)).sqrt()
