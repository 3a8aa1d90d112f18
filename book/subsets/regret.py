"""Regret with costly subsets: the paper's notions, its proof's terms and its bounds.

Plays count while their cost still fits into the budget; runs are recorded a little beyond it, until the last replicate
is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from book.ledger import Claim, RegretLedger
from book.subsets.problem import SubsetProblem
from cbo_lib.former.history import History


def counted(history: History, problem: SubsetProblem) -> Tensor:
    """Which plays the budget pays for, boolean ``replicates x T``; a replicate ends with the first it cannot pay."""
    return history["spent"] <= problem.space.budget


def quality_regret(history: History, problem: SubsetProblem, alpha: float | Tensor) -> Tensor:
    """``(1 - alpha) f* - E f([x_t, X])``, ``replicates x T``; negative where a play is better than is asked for.

    Args:
        history: of any policy.
        problem: what was played.
        alpha: what share of the best value may be given up, a number or ``replicates x T``.
    """
    return (1 - alpha) * problem.optimum - history["value"]


def cost_regret(history: History, problem: SubsetProblem, alpha: float) -> Tensor:
    """``max(c_{i_t} - c_{i_*}, 0)`` with mean costs, ``replicates x T`` ([Hoang2024], "Cost regret")."""
    costs = problem.cost_means
    return (costs[history["subset"]] - costs[problem.cheapest(alpha)]).clamp_min(0.0)


def cost_varying_regret(history: History, problem: SubsetProblem) -> Tensor:
    """``c_{i_t} (f* - E f([x_t, X]))``, ``replicates x T`` ([Tay2023]; [Hoang2024], "Discussion")."""
    return problem.cost_means[history["subset"]] * (problem.optimum - history["value"])


def simple_regret(history: History, problem: SubsetProblem) -> Tensor:
    """The smallest ``f* - E f([x_s, X])`` of the plays so far, ``replicates x T``.

    The paper prints a minimum of the first term alone; the minimum must span the difference.
    """
    return (problem.optimum - history["value"]).cummin(-1).values


def against_cost(history: History, problem: SubsetProblem, values: Tensor, costs: Tensor) -> Tensor:
    """A quantity that a run had reached when it had spent an amount, by steps.

    Args:
        history: the run.
        problem: what was played.
        values: ``replicates x T``.
        costs: amounts ``n``, in units of cost; beyond the budget the last counted play stands.

    Returns:
        ``replicates x n``: the value after the last play that was paid for; NaN before the first.
    """
    spent = history["spent"].contiguous()
    # A cost that was spent to rounding counts as spent.
    amounts = (costs.to(spent) * (1 + 1e-12) + 1e-12).expand(len(spent), -1).contiguous()
    paid = torch.searchsorted(spent, amounts, right=True)
    last = torch.minimum(paid, counted(history, problem).sum(-1, keepdim=True)) - 1
    reached = values.to(spent).gather(-1, last.clamp_min(0))
    return reached.masked_fill(last < 0, torch.nan)


def evaluations(history: History, problem: SubsetProblem, costs: Tensor) -> Tensor:
    """How many plays a run had paid for with each amount ``n``, ``replicates x n`` ([Hoang2024], Figure 2)."""
    numbers = torch.arange(1, history.steps + 1).expand_as(history["spent"])
    return against_cost(history, problem, numbers, costs).nan_to_num(0.0)


def plays(history: History, problem: SubsetProblem, costs: Tensor) -> Tensor:
    """How many plays of each subset a run had paid for with each amount ``n``, integers ``replicates x n x m``."""
    own = torch.nn.functional.one_hot(history["subset"], problem.space.m).cumsum(1)
    columns = [against_cost(history, problem, own[..., i], costs).nan_to_num(0.0) for i in range(problem.space.m)]
    return torch.stack(columns, -1).short()


def share_of_last_tenth(history: History, problem: SubsetProblem, subset: int) -> Tensor:
    """Among the last tenth of the counted plays, how many were of a subset, a share in [0, 1], ``replicates``."""
    counts = counted(history, problem).sum(-1)
    step = torch.arange(history.steps, device=counts.device)
    late = (step >= (0.9 * counts).floor().unsqueeze(-1)) & (step < counts.unsqueeze(-1))
    return ((history["subset"] == subset) & late).sum(-1) / late.sum(-1).clamp_min(1)


def quality_ledger(history: History, problem: SubsetProblem, sqrt_beta: float, alpha: float) -> RegretLedger:
    """Cumulative quality regret of Algorithm 1 as the sum of the proof's terms, exact at every step.

    A play of the exploration adds to "other subsets" or to "best subset". In the exploitation, with ``U_i`` the
    smallest upper bound so far and ``L`` the largest lower bound so far,

    ``(1 - alpha) f* - E f = (1 - alpha)(f* - L) + [(1 - alpha) L - U_{i_t}] + [U_{i_t} - E u(x_t)] + sqrt_beta E sigma
    + (E mu - E f)``

    ([Hoang2024], proof of Theorem 1, phase 2). The second term is negative as ``i_t`` is in ``S_1``, the third is not
    positive as ``U`` is a minimum.

    Args:
        history: of ``CheapestGoodSubset``.
        problem: what was played.
        sqrt_beta: of the policy.
        alpha: at which regret is measured; the bracket in the middle takes the difference to the policy's own.
    """
    regret = quality_regret(history, problem, alpha)
    exploring = history["exploring"]
    own = history["upper"].gather(-1, history["subset"].unsqueeze(-1)).squeeze(-1)
    share, best = 1 - alpha, problem.optimum
    mean, width = history["expected_mean"], sqrt_beta * history["expected_std"]
    lower = history["lower"].where(history["lower"].isfinite(), best)  # after a reset there may be no threshold
    later = {
        "threshold below the best": share * (best - lower),
        "above the threshold": share * lower - own,
        "smallest bound so far": own - (mean + width),
        "width": width,
        "error of the mean": mean - history["value"],
    }
    is_best = history["subset"] == problem.best_subset
    terms = {
        "exploring other subsets": torch.where(exploring & ~is_best, regret, 0.0),
        "exploring the best subset": torch.where(exploring & is_best, regret, 0.0),
        **{name: torch.where(exploring, 0.0, term) for name, term in later.items()},
    }
    return RegretLedger(regret.cumsum(-1), {n: t.cumsum(-1) for n, t in terms.items()}, identity=True)


def claims(
    history: History, problem: SubsetProblem, sqrt_beta: float, alpha: float, failure: float = 0.1
) -> dict[str, Claim]:
    """The inequalities of the proof, in a run of Algorithm 1 ([Hoang2024], Appendix B).

    Args:
        history: of ``CheapestGoodSubset``, without resets if the claims shall be those of the paper.
        problem: what was played.
        sqrt_beta: of the policy.
        alpha: of the policy, fixed.
        failure: ``delta``.
    """
    value = problem.f(history["played"])
    exploiting = ~history["exploring"]
    plays, average = _running(history, problem)
    log_horizon = history["horizon"].log().unsqueeze(-1)
    radius = (2 * log_horizon / plays.clamp_min(1)).sqrt()
    off = (average - problem.cost_means).abs()
    acceptable = problem.acceptable(alpha).expand_as(history["good"])
    best = problem.optimum.expand_as(history["lower"])
    upper, known = history["upper"], torch.isfinite(history["upper"])
    values = problem.best_values.expand_as(upper)
    return {
        "mean within the width": Claim(
            (history["mean"] - value).abs(), sqrt_beta * history["std"], "Lemma 5", probability=1 - failure
        ),
        "lower bound below the best value": Claim(history["lower"], best, "phase 2", probability=1 - failure),
        "upper bounds above the best values": Claim(
            values, upper, "phase 2", probability=1 - failure, applies=known & exploiting.unsqueeze(-1)
        ),
        "acceptable subsets are kept": Claim(
            acceptable.double(),
            history["good"].double(),
            "phase 2",
            probability=1 - failure,
            applies=exploiting.unsqueeze(-1).expand_as(acceptable),
        ),
        "average cost within its radius": Claim(
            off,
            radius,
            "line 23",
            probability=1 - _failure_of_costs(history, problem.space.m),
            applies=(plays > 0) & exploiting.unsqueeze(-1),
        ),
    }


def sum_of_widths(history: History, gain: Tensor) -> Claim:
    """Lemma 6: ``sum_t sigma_{t-1}(x_t) <= sqrt(4 (T + 2) gamma_T)`` at the full points ([Chowdhury2017]).

    It needs a prior variance of at most 1 and, for a posterior with the variance of the noise in the place of the
    paper's ``1 + 2 / T``, noise of a variance of at most ``1 / (sqrt(e) - 1) = 1.54``.

    Args:
        history: of any policy.
        gain: ``gamma_t`` or the information that was gained, ``replicates x T`` or ``T``.
    """
    left = history["std"].cumsum(-1)
    steps = torch.arange(1, history.steps + 1, dtype=left.dtype, device=left.device)
    return Claim(left, (4 * (steps + 2) * gain).sqrt().expand_as(left), "Lemma 6")


def expected_widths(history: History, problem: SubsetProblem, failure: float = 0.1) -> dict[str, Claim]:
    """Lemma 7, one subset at a time: the sum of ``E sigma`` against twice the sum of ``sigma`` ([Kirschner2018]).

    The constant is that of a prior variance of at most 1.

    Args:
        history: of any policy.
        problem: what was played.
        failure: ``delta``, split over the subsets.
    """
    extra = _constant(problem.space.m, failure)
    result = {}
    for i in range(problem.space.m):
        own = history["subset"] == i
        left, right = ((history[name] * own).cumsum(-1) for name in ("expected_std", "std"))
        name = "{" + ", ".join(str(j + 1) for j in problem.space.control_sets[i]) + "}"
        result[name] = Claim(left, 2 * right + extra, "Lemma 7", probability=1 - failure / problem.space.m)
    return result


def cost_bound(history: History, problem: SubsetProblem, alpha: float, failure: float = 0.1) -> Claim:
    """The cost regret of the exploitation against ``2 (T - m tau) sqrt(2 log T / tau)`` ([Hoang2024], Theorem 1).

    Args:
        history: of ``CheapestGoodSubset``.
        problem: what was played.
        alpha: of the policy.
        failure: ``delta``, with which the cheapest acceptable subset may have been dropped.
    """
    exploiting = ~history["exploring"]
    left = (cost_regret(history, problem, alpha) * exploiting).cumsum(-1)
    tau = (~exploiting).sum(-1, keepdim=True) / problem.space.m
    right = 2 * exploiting.cumsum(-1) * (2 * history["horizon"].clamp_min(1.0).log() / tau).sqrt()
    promised = max(0.0, 1 - failure - _failure_of_costs(history, problem.space.m))
    return Claim(left, right, "Theorem 1, Eq. 4", probability=promised)


def spectral_gain(kernel: Kernel, points: Tensor, noise_std: float) -> Callable[[float], float]:
    """An estimate of the information gain of ``t`` points spread over a domain, for any real ``t``.

    ``0.5 sum_j log(1 + t lambda_j / noise_std^2)`` with ``lambda_j`` the eigenvalues of the kernel matrix of ``n``
    points, divided by ``n``: what the points tell when each is observed ``t / n`` times.

    Args:
        kernel: a GPyTorch kernel.
        points: ``n x d``, spread evenly.
        noise_std: positive.
    """
    if not noise_std > 0:
        raise ValueError(f"noise_std must be positive, got {noise_std}")
    ratios = torch.linalg.eigvalsh(kernel(points).to_dense()).clamp_min(0.0) / len(points) / noise_std**2
    return lambda t: float(0.5 * torch.log1p(t * ratios).sum())


def width_term(t: float, m: int, gain: float, failure: float = 0.1) -> float:
    """``2 sqrt(4 (t + 2) gamma_t) + 4 log(m / delta) + 8 log 4 + 1``, which Theorem 1 and Lemma 2 multiply by beta."""
    return 2 * math.sqrt(4 * (t + 2) * gain) + _constant(m, failure)


def smallest_exploration(
    gap: float,
    alpha: float,
    m: int,
    gain: Callable[[float], float],
    sqrt_beta: Callable[[float], float],
    failure: float = 0.1,
) -> float:
    """The ``tau`` of Lemma 2: after so many rounds only acceptable subsets are left ([Hoang2024], Lemma 2).

    The paper's right side ``epsilon / (2 - sigma)`` is read as ``epsilon / (2 - alpha)``: the proof subtracts ``1 -
    alpha`` times one width from ``f*`` and adds one width to the other subset's value. A width is ``2 beta E sigma``,
    whose 2 the printed condition has lost.

    Args:
        gap: ``epsilon``, by how much the best subset that is not acceptable falls short.
        alpha: what share of the best value may be given up.
        m: how many subsets.
        gain: ``gamma_t`` of a real ``t``, increasing.
        sqrt_beta: ``beta_t`` of a real ``t``.
        failure: ``delta``.

    Returns:
        The smallest ``t`` to one part in a thousand; infinite beyond ``1e15``.

    Raises:
        ValueError: if ``gap`` is not positive.
    """
    if not gap > 0:
        raise ValueError(f"gap must be positive, got {gap}")

    def enough(t: float) -> bool:
        return 2 * sqrt_beta(t * m) * width_term(t, m, gain(t), failure) / t <= gap / (2 - alpha)

    low, high = 1.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > 1e15:
            return math.inf
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def theorem_1(
    steps: Tensor,
    tau: int,
    m: int,
    largest: float,
    gain: Callable[[float], float],
    sqrt_beta: Callable[[float], float],
    failure: float = 0.1,
) -> dict[str, Tensor]:
    """The terms of the quality bound after ``T`` steps, with the proof's constants ([Hoang2024], Theorem 1).

    Args:
        steps: ``T``, each at least ``m tau``.
        tau: rounds of exploration.
        m: how many subsets.
        largest: ``M``, the largest absolute value of f.
        gain: ``gamma_t``.
        sqrt_beta: ``beta_t``.
        failure: ``delta``.

    Returns:
        By name, one value a ``T``.

    Raises:
        ValueError: if a ``T`` is below ``m tau``.
    """
    rows = []
    for total in steps.tolist():
        late = total - m * tau
        if late < 0:
            raise ValueError(f"steps must be at least m tau = {m * tau}, got {total:g}")
        once = width_term(tau, m, gain(tau), failure)
        rows.append(
            (
                2 * (m - 1) * tau * largest,
                2 * sqrt_beta(tau * m) * once,
                2 * sqrt_beta(total) * (2 * math.sqrt(4 * (late + 2) * gain(max(late, 1))) + m * _constant(m, failure)),
                2 * late / tau * sqrt_beta(tau * m) * once,
            )
        )
    names = ("exploring other subsets", "exploring the best subset", "exploitation", "threshold")
    return dict(zip(names, torch.tensor(rows, dtype=torch.float64).unbind(-1), strict=True))


def _constant(m: int, failure: float) -> float:
    """The constant of Lemma 7 for one of ``m`` subsets, of a standard deviation of at most 1."""
    return 4 * math.log(m / failure) + 8 * math.log(4) + 1


def _failure_of_costs(history: History, m: int) -> float:
    """How often an average cost may leave its radius: ``2 / T^4`` a subset and play; the paper has ``2 / T^2``."""
    horizon = float(history["horizon"].amax(-1).amin())
    return min(1.0, 2 * m * history.steps / horizon**4)


def _running(history: History, problem: SubsetProblem) -> tuple[Tensor, Tensor]:
    """Plays and average cost of every subset before each step, ``replicates x T x m``."""
    own = torch.nn.functional.one_hot(history["subset"], problem.space.m).to(history["cost"])
    plays = own.cumsum(1) - own
    paid = (own * history["cost"].unsqueeze(-1)).cumsum(1) - own * history["cost"].unsqueeze(-1)
    return plays, paid / plays.clamp_min(1)
