"""Confidence widths and the elimination rule.

.. [Ziomek2024] J. Ziomek, M. Adachi, M. A. Osborne. Beyond Lengthscales: No-regret Bayesian Optimisation With Unknown
   Hyperparameters Of Any Type. 2024.
.. [Chowdhury2017] S. R. Chowdhury, A. Gopalan. On Kernelized Multi-armed Bandits. ICML 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cbo_lib.confidence import lipschitz_sqrt_beta, rkhs_sqrt_beta, union_bound_sqrt_beta
from cbo_lib.hyperparameters.problem import UnknownPriorProblem
from cbo_lib.information import greedy_information_gain
from cbo_lib.measure import Measure, expands_to

#: The multiplier of the standard deviation at round t = 1, 2, ...: a number, or one a candidate ``|U|``.
Schedule = Callable[[int], float | Tensor]


def frequentist_sqrt_beta(
    problem: UnknownPriorProblem,
    norm: float,
    steps: int,
    initial: int = 0,
    failure: float = 0.1,
    printed: bool = True,
    points: Tensor | None = None,
) -> Schedule:
    """The multipliers for a function of bounded RKHS norm ([Ziomek2024]_, Theorem 4.1).

    As printed, ``B + R sqrt(2 (gamma + 1 + log(2 / failure)))``, which [Chowdhury2017]_ prove for a posterior whose
    regularization is ``1 + 2 / T``. The algorithm computes its posterior with regularization ``R^2``; there the
    argument gives ``B + sqrt(2 (gamma + log(2 / failure)))`` (``rkhs_sqrt_beta``), without the factor ``R``.
    ``gamma`` is the greedy information gain of each candidate after as many observations as there are: as it is in
    the printed form, and times ``e / (e - 1)`` in the other, which makes it an upper bound of the maximum.

    Args:
        problem: its candidates, domain and noise ``R``.
        norm: the bound ``B`` on the RKHS norm, nonnegative.
        steps: how many rounds will be asked for, at least 1.
        initial: how many observations precede round 1. Default 0.
        failure: ``delta``; half of it pays for the widths, half for the noise. Default 0.1.
        printed: whether to use the printed formula. Default true.
        points: where the information gain may be sought, ``m x d``. Default the problem's points; needed in a box.

    Returns:
        A function from the round to ``|U|`` multipliers.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check_failure(failure)
    if not 0 <= norm < math.inf:
        raise ValueError(f"norm must be nonnegative and finite, got {norm}")
    if steps < 1 or initial < 0:
        raise ValueError(f"steps must be at least 1 and initial nonnegative, got {steps} and {initial}")
    where = problem.points if points is None else points
    if where is None:
        raise ValueError("points must be given where the domain is a box")
    noise = problem.noise_std
    kernel = problem.candidates.prior(noise).kernel
    gamma = greedy_information_gain(kernel, Measure.dirac(where), noise, steps + initial - 1)[..., initial:]
    if printed:
        table = norm + noise * (2 * (gamma + 1 + math.log(2 / failure))).sqrt()
    else:
        table = rkhs_sqrt_beta(norm, gamma * math.e / (math.e - 1), failure / 2, noise, noise**2)

    def sqrt_beta(t: int) -> Tensor:
        if not 1 <= t <= steps:
            raise ValueError(f"t must lie between 1 and {steps}, the steps of the schedule, got {t}")
        return table[..., t - 1]

    return sqrt_beta


def bayesian_sqrt_beta(problem: UnknownPriorProblem, failure: float = 0.1) -> Schedule:
    """The multiplier for a draw of the prior on a finite domain ([Ziomek2024]_, Theorem 4.2, case A).

    ``sqrt(2 log(n pi^2 t^2 / (3 failure)))``, the same for all candidates: a union bound over the ``n`` points and
    all rounds for half of ``failure``.
    """
    _check_failure(failure)
    count = len(problem._finite())
    return lambda t: union_bound_sqrt_beta(count, t, failure / 2)


def continuous_sqrt_beta(problem: UnknownPriorProblem, a: float, b: float, failure: float = 0.1) -> Schedule:
    """The multiplier for a draw of the prior on a box ([Ziomek2024]_, Theorem 4.2, case B).

    Args:
        problem: with a box; its longest side is the ``r`` of the theorem.
        a: with ``b``, the constants of Assumption B.1: ``P(sup |df/dx_j| > L) <= a exp(-(L / b)^2)``.
        b: in units of f per unit of the inputs.
        failure: ``delta``. Default 0.1.
    """
    if problem.bounds is None:
        raise ValueError("problem must have a box for its domain, this one has points")
    side = float((problem.bounds[1] - problem.bounds[0]).max())
    lipschitz_sqrt_beta(1, problem.dim, a, b, side, failure)  # raises now if an argument is out of range
    return lambda t: lipschitz_sqrt_beta(t, problem.dim, a, b, side, failure)


def noise_threshold(t: int | Tensor, noise_std: float, candidates: int, failure: float = 0.1) -> Tensor:
    """``xi_t = 2 R^2 log(|U| pi^2 t^2 / (3 delta))``, the threshold of sums of noise ([Ziomek2024]_, Theorem 4.2).

    Args:
        t: rounds, from 1; any shape.
        noise_std: ``R``.
        candidates: ``|U|``.
        failure: ``delta``; half of it pays for the noise. Default 0.1.

    Returns:
        A float64 tensor of the shape of ``t``.
    """
    _check_failure(failure)
    rounds = torch.as_tensor(t, dtype=torch.float64)
    if not bool((rounds >= 1).all()):
        raise ValueError(f"t must be at least 1, got {rounds.min().item():g}")
    return 2 * noise_std**2 * (candidates * math.pi**2 * rounds**2 / (3 * failure)).log()


def eliminates(errors: Tensor, widths: Tensor, xi: Tensor | float, count: Tensor | int | None = None) -> Tensor:
    """Whether a candidate's rounds refute it ([Ziomek2024]_, Algorithm 1, line 12).

    ``|sum_i eta_i| > sqrt(xi n) + sum_i beta_i sigma_i`` over the ``n`` rounds that the candidate was chosen in.

    Args:
        errors: ``eta_i = y_i - mean_{i-1}(x_i)`` of those rounds, ``... x n``; zero where padded.
        widths: ``sqrt_beta_i * std_{i-1}(x_i)``, the same shape, nonnegative; zero where padded.
        xi: the threshold of the noise, broadcasts to ``...``, nonnegative.
        count: how many rounds are not padding, broadcasts to ``...``. Default ``n``.

    Returns:
        A boolean tensor ``...``.

    Raises:
        ValueError: if the shapes differ, or a value is not finite or negative.
    """
    if errors.dim() == 0 or errors.shape != widths.shape:
        raise ValueError(
            f"errors and widths must have one shape (..., n), got {tuple(errors.shape)} and {tuple(widths.shape)}"
        )
    if not bool(torch.isfinite(errors).all()):
        raise ValueError("errors must be finite, got a NaN or an infinity")
    rounds = torch.as_tensor(errors.shape[-1] if count is None else count, dtype=errors.dtype, device=errors.device)
    xi = torch.as_tensor(xi, dtype=errors.dtype, device=errors.device)
    for name, value in (("widths", widths), ("xi", xi), ("count", rounds)):
        wrong = ~((value >= 0) & torch.isfinite(value))
        if bool(wrong.any()):
            raise ValueError(f"{name} must be nonnegative and finite, got {value[wrong].flatten()[0].item():g}")
        if name != "widths" and not expands_to(value.shape, errors.shape[:-1]):
            raise ValueError(f"{name} must broadcast to {tuple(errors.shape[:-1])}, got shape {tuple(value.shape)}")
    return errors.sum(-1).abs() > (xi * rounds).sqrt() + widths.sum(-1)


def _check_failure(failure: float) -> None:
    if not 0 < failure < 1:
        raise ValueError(f"failure must lie in (0, 1), got {failure}")
