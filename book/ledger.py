"""The regret ledger: what a proof sums, computed at every step of a real run, beside the regret that happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Claim:
    """An inequality ``left <= right`` that a proof asserts, evaluated where it was asserted.

    Args:
        left: the smaller side, ``replicates x ...``.
        right: the larger side, the same shape.
        source: where the paper states it.
        probability: how often it should hold for a whole replicate; 1 if it is certain.
        applies: where the claim is made, boolean, the same shape. Default everywhere.
        slack: rounding that is forgiven, absolute.
    """

    left: Tensor
    right: Tensor
    source: str
    probability: float = 1.0
    applies: Tensor | None = None
    slack: float = 1e-9

    def __post_init__(self) -> None:
        """Both sides must have one shape."""
        if self.left.shape != self.right.shape:
            raise ValueError(
                f"left and right must have one shape, got {tuple(self.left.shape)} and {tuple(self.right.shape)}"
            )
        if self.applies is not None and self.applies.shape != self.left.shape:
            raise ValueError(f"applies must have shape {tuple(self.left.shape)}, got {tuple(self.applies.shape)}")

    @property
    def holds(self) -> Tensor:
        """Whether each single inequality holds; true where it is not claimed."""
        holds = self.left <= self.right + self.slack
        return holds if self.applies is None else holds | ~self.applies

    @property
    def held(self) -> Tensor:
        """Whether it held throughout each replicate, ``replicates``."""
        return self.holds.reshape(len(self.holds), -1).all(1)

    @property
    def frequency(self) -> float:
        """The share of replicates in which it held throughout, to be compared with ``probability``."""
        return int(self.held.sum()) / len(self.held)  # of all it is 1, however a processor rounds

    @property
    def checked(self) -> int:
        """How many single inequalities were claimed."""
        return self.left.numel() if self.applies is None else int(self.applies.sum())

    @property
    def violations(self) -> int:
        """How many single inequalities failed."""
        return int((~self.holds).sum())


@dataclass(frozen=True, eq=False)
class RegretLedger:
    """The accounts of one experiment.

    Args:
        regret: what happened, ``replicates x steps``.
        terms: what the proof adds up, each ``replicates x steps``.
        bounds: what the paper promises, each ``replicates x steps`` or ``steps``.
        claims: the inequalities on the way, by name.
        identity: whether the terms must add up to the regret exactly.

    Raises:
        ValueError: if a term does not have the shape of the regret.
    """

    regret: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    bounds: Mapping[str, Tensor] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    identity: bool = False

    def __post_init__(self) -> None:
        """Every term and bound must fit the regret."""
        shape = self.regret.shape
        for name, term in self.terms.items():
            if term.shape != shape:
                raise ValueError(f"terms[{name!r}] must have shape {tuple(shape)}, got {tuple(term.shape)}")
        for name, bound in self.bounds.items():
            if bound.shape not in (shape, shape[-1:]):
                want = f"{tuple(shape)} or its last dimension"
                raise ValueError(f"bounds[{name!r}] must have shape {want}, got {tuple(bound.shape)}")

    @property
    def gap(self) -> Tensor:
        """The sum of the terms minus the regret: zero for an identity, nonnegative for a decomposed bound."""
        return sum(self.terms.values(), torch.zeros_like(self.regret)) - self.regret

    def check_identity(self, tolerance: float = 1e-8) -> None:
        """Raise a ValueError if the ledger is no identity, or a step is off by more than ``tolerance``."""
        if not self.identity:
            raise ValueError("this ledger decomposes a bound, not an identity: look at its gap")
        worst = float(self.gap.abs().max()) if self.gap.numel() else 0.0
        if not worst <= tolerance:  # a NaN fails too
            raise ValueError(f"the terms miss the regret by up to {worst:.3g}, more than {tolerance:.3g}")
