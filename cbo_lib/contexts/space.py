"""What a learner knows of a problem with unknown contexts: two boxes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbo_lib.checks import as_box, as_tensor, require_shape


@dataclass(frozen=True, eq=False)
class Space:
    """The box of the decisions and that of the contexts, in the user's units.

    Args:
        decisions: ``2 x Dx``, lower corner first; a tensor, an array, lists or a frame.
        contexts: ``2 x Dc``, likewise. The world may show contexts outside of it; what is estimated lies inside.

    Raises:
        ValueError: if one of them is no box.
    """

    decisions: Any
    contexts: Any

    def __post_init__(self) -> None:
        """Turn what was given into boxes of one dtype and device."""
        decisions = as_box("decisions", self.decisions)
        object.__setattr__(self, "decisions", decisions)
        object.__setattr__(self, "contexts", as_box("contexts", self.contexts, like=decisions))

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the run."""
        return self.decisions

    @property
    def decision_dim(self) -> int:
        """``Dx``."""
        return self.decisions.shape[-1]

    @property
    def context_dim(self) -> int:
        """``Dc``."""
        return self.contexts.shape[-1]

    @property
    def dim(self) -> int:
        """``Dx + Dc``."""
        return self.decision_dim + self.context_dim

    @property
    def bounds(self) -> Tensor:
        """The box of full points, ``2 x (Dx + Dc)``; decision coordinates come first."""
        return torch.cat([self.decisions, self.contexts], -1)

    @property
    def controlled(self) -> Tensor:
        """Which coordinates of a full point are the learner's, boolean, ``Dx + Dc``."""
        return torch.arange(self.dim, device=self.like.device) < self.decision_dim

    def join(self, x: Tensor, c: Tensor) -> Tensor:
        """Full points ``... x (Dx + Dc)`` of decisions ``... x Dx`` and contexts ``... x Dc``, broadcast.

        Raises:
            ValueError: if a last dimension is wrong.
        """
        x, c = as_tensor("x", x, self.like), as_tensor("c", c, self.like)
        for name, tensor, size in (("x", x, self.decision_dim), ("c", c, self.context_dim)):
            require_shape(name, tensor, ..., size)
        batch = torch.broadcast_shapes(x.shape[:-1], c.shape[:-1])
        return torch.cat([x.expand(*batch, -1), c.expand(*batch, -1)], -1)
