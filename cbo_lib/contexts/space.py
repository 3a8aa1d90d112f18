"""What a learner knows of a problem with unknown contexts: two boxes."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from cbo_lib.checks import as_box, as_tensor, as_values, require, require_inside, require_shape


@dataclass(frozen=True, eq=False)
class Space:
    """The box of the decisions and that of the contexts, in the user's units.

    Args:
        decisions: ``2 x Dx``, lower corner first; a tensor, an array, lists or a frame, whose columns are names.
        contexts: ``2 x Dc``, likewise. The world may show contexts outside of it; what is estimated lies inside.

    Attributes:
        columns: names of the coordinates of a decision: the columns of the frame, else ``x0 ...``.
        seen_columns: those of a context, under the name of what is seen; else ``c0 ...``.

    Raises:
        ValueError: if one of them is no box, or two coordinates have one name.
    """

    decisions: Any
    contexts: Any
    columns: list[str] = field(init=False)
    seen_columns: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        """Turn what was given into boxes of one dtype and device."""
        decisions = as_box("decisions", self.decisions)
        contexts = as_box("contexts", self.contexts, like=decisions)
        x, c = _columns(self.decisions, "x"), _columns(self.contexts, "c")
        require(len({*x, *c}) == len([*x, *c]), "decisions and contexts must have different columns", [*x, *c])
        vars(self).update(decisions=decisions, contexts=contexts, columns=x, seen_columns={"context": c})

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

    def join(self, x: Tensor, c: Tensor) -> Tensor:
        """Full points ``... x (Dx + Dc)`` of decisions ``... x Dx`` and contexts ``... x Dc``, broadcast.

        Raises:
            ValueError: if a last dimension is wrong.
        """
        x, c = as_tensor("x", x, self.like), as_tensor("c", c, self.like)
        require_shape("x", x, ..., self.decision_dim)
        require_shape("c", c, ..., self.context_dim)
        batch = torch.broadcast_shapes(x.shape[:-1], c.shape[:-1])
        return torch.cat([x.expand(*batch, -1), c.expand(*batch, -1)], -1)

    def read(self, query: Any) -> Tensor:
        """Decisions as a user gives them, ``n x Dx``; where there is one coordinate, numbers will do.

        Raises:
            ValueError: if they are none, or lie outside of the box.
        """
        rows = self._rows("query", query, self.decision_dim)
        require_inside("query", rows, self.decisions)
        return rows

    def read_seen(self, name: str, value: Any) -> Tensor:
        """Contexts as a user gives them, ``n x Dc``, in the box or not."""
        return self._rows(name, value, self.context_dim)

    def _rows(self, name: str, value: Any, dim: int) -> Tensor:
        rows = as_values(name, value, like=self.like)
        rows = rows.reshape(-1, 1) if dim == 1 and rows.dim() < 2 else torch.atleast_2d(rows)
        require(rows.dim() == 2 and rows.shape[1] == dim, f"{name} must have {dim} coordinates", rows.shape)
        return rows


def _columns(box: Any, letter: str) -> list[str]:
    """The columns of a frame, else a letter and numbers."""
    return (
        [str(name) for name in box] if isinstance(box, pd.DataFrame) else [f"{letter}{i}" for i in range(len(box[0]))]
    )
