"""Misprints of the paper as policies, to see what they do."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable

from torch import Tensor

from book.hyperparameters.widths import information_by_round, of_round
from cbo_lib.hyperparameters import HEGPUCB, Space


class WidthAfter(HEGPUCB):
    """Line 12 with the standard deviation after the observation, ``sigma_i``, as printed ([Ziomek2024], Algorithm 1).

    The proof needs the one before it, ``sigma_{i-1}``.
    """

    def tell(self, x: Tensor, y: Tensor) -> None:
        """Learn, and test the candidate that chose with the smaller width."""
        before, after = self.std, copy.copy(self.belief)
        after.observe(x.unsqueeze(1), y.unsqueeze(1))
        self.std = after.moments(x.unsqueeze(1))[1].squeeze(-1)
        super().tell(x, y)
        self.std = before


def printed_sqrt_beta(
    space: Space, norm: float, steps: int, initial: int = 0, failure: float = 0.1
) -> Callable[[int], Tensor]:
    """``B + R sqrt(2 (gamma + 1 + log(2 / failure)))``, Theorem 4.1 as printed ([Ziomek2024]).

    It is proved for a posterior whose regularization is ``1 + 2 / T``; that of the algorithm is ``R^2``, for which
    there is ``frequentist_sqrt_beta``. ``gamma`` is the greedy information gain itself.

    Args:
        space: with a finite domain and known noise ``R``.
        norm: the bound ``B`` on the RKHS norm.
        steps: how many rounds will be asked for.
        initial: how many observations precede round 1.
        failure: ``delta``.
    """
    kernel = space.candidates.prior(space.noise_std).kernel
    gamma = information_by_round(kernel, space.points, space.noise_std, steps, initial)
    gamma = gamma.expand(len(space.candidates), -1)  # candidates that share a kernel have one
    return functools.partial(of_round, norm + space.noise_std * (2 * (gamma + 1 + math.log(2 / failure))).sqrt())
