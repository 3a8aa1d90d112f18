"""Regret under unknown hyperparameters: the paper's notions, its proof's terms and its bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from book.hyperparameters.problem import UnknownPriorProblem
from book.information import greedy_information_gain
from book.ledger import Claim, RegretLedger
from cbo_lib.confidence import noise_threshold
from cbo_lib.hyperparameters import HEGPUCB, CandidatePolicy, HEStableOpt
from cbo_lib.hyperparameters.belief import ListBelief
from cbo_lib.measure import Measure, covariance
from cbo_lib.simulate import History


def watch(batch: CandidatePolicy) -> dict[str, Tensor]:
    """What ``simulate`` records for this module: see ``Rounds``; ``initial`` says whether nobody chose the point.

    ``mean``, ``std`` and ``sqrt_beta`` are of every candidate at the asked point before its answer,
    ``replicates x |U|``; ``alive`` is the set after it.
    """
    t = batch.round - 1
    seen = {"initial": torch.full_like(batch.candidate, t <= batch.initial, dtype=torch.bool)}
    seen |= {"candidate": batch.candidate, "mean": batch.mean, "std": batch.std}
    seen |= {"sqrt_beta": batch.multiplier(t).expand_as(batch.mean)}
    if isinstance(batch, HEGPUCB):
        seen["alive"] = batch.alive
    if isinstance(batch, HEStableOpt):
        seen |= {"chosen": batch.chosen[:, -1], "pessimist": batch.pessimist}
    return seen


def initial_rounds(history: History) -> int:
    """How many rounds of a watched run were its random initial design; none of a run that was not watched."""
    return int(history["initial"][0].sum()) if "initial" in history.tensors else 0


def instantaneous_regret(history: History, problem: UnknownPriorProblem) -> Tensor:
    """``f* - f(x_t)`` after the initial design, ``replicates x T`` ([Ziomek2024], section 2).

    In robust optimization ``x_t`` is the chosen point before the perturbation, and both values are the worst within
    ``epsilon``: the epsilon-regret ([Ziomek2024], section 6).
    """
    value = problem.value(history["chosen"]) if "chosen" in history.tensors else history["value"]
    return (problem.optimum.unsqueeze(-1) - value)[:, initial_rounds(history) :]


def cumulative_regret(history: History, problem: UnknownPriorProblem) -> Tensor:
    """``R_t``, the sum of the instantaneous regret, ``replicates x T``."""
    return instantaneous_regret(history, problem).cumsum(-1)


def simple_regret(history: History, problem: UnknownPriorProblem) -> Tensor:
    """The smallest instantaneous regret so far, ``replicates x T``; the paper calls it best regret."""
    return instantaneous_regret(history, problem).cummin(-1).values


@dataclass(frozen=True, eq=False)
class Rounds:
    """What the proof speaks of, read off a history after its initial design; each ``replicates x T``.

    Args:
        candidate: ``u_t``.
        error: ``eta_t``, the observation minus the chosen candidate's mean.
        width: ``sqrt_beta_t std_{t-1}(x_t)`` of the chosen candidate.
        noise: ``epsilon_t``.
        point: ``x_t``, ``replicates x T x d``; with a perturbation, the point that was asked.
        first: the number of the first of these rounds, one more than the observations before it.
    """

    candidate: Tensor
    error: Tensor
    width: Tensor
    noise: Tensor
    point: Tensor
    first: int = 1


def rounds(history: History, problem: UnknownPriorProblem, candidate: str = "candidate") -> Rounds:
    """The quantities of each round for the candidates that the trace ``candidate`` names.

    Raises:
        ValueError: if a round has no chosen candidate, as with a policy that averages.
    """
    start = initial_rounds(history)
    if history["mean"].shape[-1] != len(problem.space.candidates):
        raise ValueError(
            f"history must be of a policy with the {len(problem.space.candidates)} candidates of the problem, "
            f"got one with {history['mean'].shape[-1]}"
        )
    chosen = history[candidate][:, start:]
    if bool((chosen < 0).any()):
        raise ValueError("history must be of a policy that chooses a candidate in every round")
    at = chosen.unsqueeze(-1)
    mean, std, multiplier = (
        history[name][:, start:].gather(-1, at).squeeze(-1) for name in ("mean", "std", "sqrt_beta")
    )
    seen, query = history["observation"][:, start:], history["query"][:, start:]
    return Rounds(chosen, seen - mean, multiplier * std, seen - problem.f(query), query, start + 1)


def critical_rounds(seen: Rounds, problem: UnknownPriorProblem, failure: float = 0.1) -> Tensor:
    """The critical set ``C``: where line 12 holds, from sums over all rounds anew, boolean ``replicates x T``."""
    T = seen.candidate.shape[-1]
    same = seen.candidate.unsqueeze(-1) == seen.candidate.unsqueeze(-2)  # replicates t i
    chosen = same & torch.ones(T, T, dtype=torch.bool, device=same.device).tril()
    xi = _thresholds(seen, problem, failure)
    errors, widths = (torch.where(chosen, part.unsqueeze(-2), 0.0).sum(-1) for part in (seen.error, seen.width))
    return errors.abs() > (xi * chosen.sum(-1)).sqrt() + widths


def confidence_ratio(history: History, problem: UnknownPriorProblem) -> Tensor:
    """The largest ``|f(x) - mean(x)| / (sqrt_beta std(x))`` over the domain under the true candidate, each round.

    The event of Theorem 3.1 holds in a replicate if no round exceeds one. Before round ``t`` the posterior holds the
    initial design and ``t - 1`` observations.

    Returns:
        A ``replicates x T`` tensor.

    Raises:
        ValueError: if the truth is not known or the domain is a box.
    """
    if problem.truth is None:
        raise ValueError("truth must be known to the problem, it is None")
    points, (replicates, steps) = problem.space.points, history["observation"].shape
    truth = torch.as_tensor(problem.truth, device=points.device).expand(replicates)
    belief = ListBelief(problem.space.candidates.prior(problem.noise_std), replicates, points)
    multiplier = history["sqrt_beta"].gather(-1, truth[:, None, None].expand(-1, steps, 1))
    rows, ratios = torch.arange(replicates, device=points.device), []
    for t in range(steps):
        mean, std = (part[rows, truth] for part in belief.moments())
        ratios.append(((problem.values - mean).abs() / (multiplier[:, t] * std)).amax(-1))
        belief.observe(history["query"][:, t : t + 1], history["observation"][:, t : t + 1])
    return torch.stack(ratios, -1)[:, initial_rounds(history) :]


def kernel_of(problem: UnknownPriorProblem) -> Tensor:
    """Which kernel each candidate has, ``|U|``: 0, 1, ..., the same number where it is the same object."""
    kernels = problem.space.candidates.kernels
    different = list({id(kernel): kernel for kernel in kernels}.values())
    return torch.tensor([next(j for j, other in enumerate(different) if other is kernel) for kernel in kernels])


def information_gains(seen: Rounds, problem: UnknownPriorProblem, by_kernel: bool = False) -> Tensor:
    """Information gain of the rounds ``S_t^u`` of each candidate under its own kernel, ``replicates x T x |U|``.

    ``0.5 log det(I + K / R^2)`` of the points of those rounds; rounds of other candidates are masked, so one Cholesky
    factor holds the gains of all ``t``. With ``by_kernel`` the rounds of all candidates with one kernel count as one
    list, and the last dimension has an entry a kernel.
    """
    points, own = Measure.dirac(seen.point), kernel_of(problem).to(seen.candidate.device)
    label = own if by_kernel else torch.arange(len(own), device=own.device)
    gains = []
    for j in label.unique().tolist():
        kernel = problem.space.candidates.kernels[int((label == j).nonzero()[0])]
        mask = (label[seen.candidate] == j).to(seen.error)
        scaled = covariance(kernel, points, points) / problem.noise_std**2 * mask.unsqueeze(-1) * mask.unsqueeze(-2)
        factor = torch.linalg.cholesky(scaled + torch.eye(scaled.shape[-1]).to(scaled))
        gains.append(factor.diagonal(dim1=-2, dim2=-1).log().cumsum(-1))
    return torch.stack(gains, -1)


def ledger(
    history: History, problem: UnknownPriorProblem, bound: float | None = None, failure: float = 0.1
) -> RegretLedger:
    """The accounts of a run of HE-GP-UCB ([Ziomek2024], Appendices C and D).

    ``by kernel`` is the theorem of the book: the widths of candidates that share a kernel need no split by candidate.
    The terms add up to the cumulative regret exactly: the regret of critical rounds, and of all others
    ``f* - f(x_t) = (f* - UCB_t(x_t)) + sqrt_beta_t std_{t-1}(x_t) + (mean_{t-1}(x_t) - f(x_t))``, where the first
    part is at most zero while the confidence intervals hold and the last is ``epsilon_t - eta_t``.

    Args:
        history: of ``HEGPUCB`` on a finite domain.
        problem: which knows its truth.
        bound: ``B``, a bound of ``|f|``. Default the largest value of ``|f|`` on the domain, in any replicate.
        failure: ``delta`` of the policy. Default 0.1.

    Returns:
        A ledger whose claims carry the numbers of the paper's statements. Those that the proof derives from the good
        event (``confidence`` and ``noise`` both hold in the whole replicate) apply there alone.

    Raises:
        ValueError: if the history has no rounds after its initial design, or the truth is not known.
    """
    seen = rounds(history, problem)
    if "alive" not in history.tensors:
        raise ValueError("history must be of a policy that keeps a set of candidates, such as HEGPUCB")
    T, U = seen.candidate.shape[-1], len(problem.space.candidates)
    if T == 0:
        raise ValueError("history must hold at least one round after its initial design, got none")
    regret = instantaneous_regret(history, problem)
    critical = critical_rounds(seen, problem, failure)
    overshoot = seen.noise - seen.error  # the mean minus f
    xi = _thresholds(seen, problem, failure)
    chosen = torch.nn.functional.one_hot(seen.candidate, U).to(regret)  # replicates T U
    count = chosen.cumsum(1)
    noise_sum = (chosen * seen.noise.unsqueeze(-1)).cumsum(1).abs()
    kept = (~critical).to(regret)
    widths = (kept * seen.width).cumsum(-1)
    bound = float(problem.values.abs().max()) if bound is None else bound
    steps = torch.arange(1, T + 1, dtype=regret.dtype, device=regret.device)
    constant = 2 / math.log1p(problem.noise_std**-2)
    gains, by_kernel = information_gains(seen, problem), information_gains(seen, problem, by_kernel=True)
    kernels = by_kernel.shape[-1]
    top, gamma = _largest(history, problem)
    ratio = confidence_ratio(history, problem)
    noise_right = (xi.unsqueeze(-1) * count).sqrt()
    good = (ratio <= 1).all(-1) & (noise_sum <= noise_right + 1e-9).flatten(1).all(-1)
    applies = good.unsqueeze(-1).expand_as(regret)
    lost = _lost(history, problem)
    square = (xi.unsqueeze(-1) * count).sqrt().sum(-1)
    paid = 2 * U * bound + 2 * (U * xi * steps).sqrt()
    shared = top * (constant * steps * kernels * gamma).sqrt()
    claims = {
        "confidence": Claim(ratio, torch.ones_like(ratio), "Theorem 3.1", 1 - failure / 2),
        "noise": Claim(noise_sum, noise_right, "Lemma 5.1", 1 - failure / 2),
        "truth survives": Claim(lost.to(regret), torch.zeros_like(regret), "Appendix C", applies=applies),
        "one round": Claim(regret, seen.width + overshoot, "Inequality 5", applies=applies),
        "critical rounds": Claim(critical.cumsum(-1).to(regret), torch.full_like(regret, U), "Appendix C"),
        "prediction errors": Claim(-(kept * seen.error).cumsum(-1), square + widths, "Inequality 7"),
        "counts": Claim(count.sqrt().sum(-1), (U * steps).sqrt().expand_as(regret), "Lemma 5.2"),
        "realized gain": Claim(widths, top * (constant * steps * gains.sum(-1)).sqrt(), "Lemma 5.3, proof"),
        "maximum gain": Claim(widths, (top * (constant * steps * U * gamma).sqrt()).expand_as(regret), "Lemma 5.3"),
        "realized gain by kernel": Claim(widths, top * (constant * steps * by_kernel.sum(-1)).sqrt(), "by kernel"),
        "maximum gain by kernel": Claim(widths, shared.expand_as(regret), "by kernel"),
        "sum": Claim(regret.cumsum(-1), 2 * U * bound + 2 * square + 2 * widths, "Inequality 9", applies=applies),
        "by kernel": Claim(regret.cumsum(-1), (paid + 2 * shared).expand_as(regret), "by kernel", applies=applies),
    }
    return RegretLedger(
        regret.cumsum(-1),
        terms={
            "critical rounds": (regret * (1 - kept)).cumsum(-1),
            "f* - UCB": ((regret - seen.width - overshoot) * kept).cumsum(-1),
            "widths": widths,
            "mean - f": (kept * overshoot).cumsum(-1),
        },
        bounds={
            "Inequality 9": 2 * U * bound + 2 * square + 2 * widths,
            "by kernel": paid + 2 * shared,
            "final bound": paid + 2 * top * (constant * steps * U * gamma).sqrt(),
        },
        claims=claims,
        identity=True,
    )


def robust_claim(history: History, problem: UnknownPriorProblem) -> Claim:
    """``r_t <= (width - eta) of u_t + (width + eta) of v_t`` for HE-StableOpt, with the signs that the proof needs.

    [Ziomek2024], Appendix I, prints ``eta`` of ``u_t`` with a plus.
    """
    optimist, pessimist = rounds(history, problem), rounds(history, problem, "pessimist")
    right = optimist.width - optimist.error + pessimist.width + pessimist.error
    return Claim(instantaneous_regret(history, problem), right, "Theorem 6.1, proof")


def _thresholds(seen: Rounds, problem: UnknownPriorProblem, failure: float) -> Tensor:
    """``xi_t`` of each round, ``T``."""
    number = torch.arange(seen.error.shape[-1]) + seen.first
    return noise_threshold(number, problem.noise_std, len(problem.space.candidates), failure).to(seen.error)


def _largest(history: History, problem: UnknownPriorProblem) -> tuple[Tensor, Tensor]:
    """Of all candidates after each round: the largest multiplier, and a bound of the maximum information gain."""
    top = history["sqrt_beta"][0, initial_rounds(history) :].amax(-1).cummax(-1).values
    kernel, points = problem.space.candidates.prior(problem.noise_std).kernel, Measure.dirac(problem.space.points)
    gain = greedy_information_gain(kernel, points, problem.noise_std, len(top))[:, 1:].amax(0)
    return top, gain * math.e / (math.e - 1)


def _lost(history: History, problem: UnknownPriorProblem) -> Tensor:
    """Whether the true candidate is gone after each round, boolean ``replicates x T``."""
    alive = history["alive"][:, initial_rounds(history) :]
    truth = torch.as_tensor(problem.truth, device=alive.device).expand(len(alive))
    return ~alive.gather(-1, truth[:, None, None].expand(-1, alive.shape[1], 1)).squeeze(-1)


def robust_ledger(
    history: History, problem: UnknownPriorProblem, bound: float | None = None, failure: float = 0.1
) -> RegretLedger:
    """The accounts of a run of HE-StableOpt ([Ziomek2024], Appendix I), with the signs that the proof needs.

    With ``z_t`` the asked point and ``f°`` the best worst value, the terms add up to the epsilon-regret exactly: that
    of the rounds in which a test fires, and of all others ``(f° - UCB^u(z)) + width^u + (mean^u - mean^v) + width^v +
    (LCB^v(z) - worst value near x)``. The first and the last part are at most zero while the bands of the truth hold.

    Arguments are those of ``ledger``; the domain must be finite.
    """
    u, v = rounds(history, problem), rounds(history, problem, "pessimist")
    T, U = u.candidate.shape[-1], len(problem.space.candidates)
    regret = instantaneous_regret(history, problem)
    fires = [critical_rounds(seen, problem, failure) for seen in (u, v)]
    kept = (~(fires[0] | fires[1])).to(regret)
    xi = _thresholds(u, problem, failure)
    roots = [
        (xi * torch.nn.functional.one_hot(seen.candidate, U).to(regret).cumsum(1).mT).sqrt().sum(1) for seen in (u, v)
    ]
    widths = [(kept * seen.width).cumsum(-1) for seen in (u, v)]
    own = [(~fired * seen.width).cumsum(-1) for fired, seen in zip(fires, (u, v), strict=True)]
    bound = float(problem.values.abs().max()) if bound is None else bound
    lost = _lost(history, problem)
    good = (confidence_ratio(history, problem) <= 1).all(-1)
    applies = good.unsqueeze(-1).expand_as(regret)
    above = problem.optimum.unsqueeze(-1) - (problem.f(u.point) + u.noise - u.error + u.width)
    below = regret - above - u.width + u.error - v.error - v.width
    constant = 4 * U * bound + U * xi.sqrt()
    total = constant + roots[0] + roots[1] + 2 * own[0] + 2 * own[1]
    steps = torch.arange(1, T + 1, dtype=regret.dtype, device=regret.device)
    C = 2 / math.log1p(problem.noise_std**-2)
    top, gamma = _largest(history, problem)
    claims = {
        "truth survives": Claim(lost.to(regret), torch.zeros_like(regret), "Appendix I", applies=applies),
        "f° below the upper bound": Claim(above, torch.zeros_like(above), "Appendix I", applies=applies),
        "worst value above the lower": Claim(below, torch.zeros_like(below), "Appendix I", applies=applies),
        "one round": robust_claim(history, problem),
        "errors of u": Claim(-(kept * u.error).cumsum(-1), roots[0] + widths[0], "Appendix I"),
        "errors of v": Claim((kept * v.error).cumsum(-1), roots[1] + widths[1], "Appendix I"),
        "errors of u, own rounds": Claim(-(~fires[0] * u.error).cumsum(-1), roots[0] + own[0], "repaired"),
        "errors of v, own rounds": Claim((~fires[1] * v.error).cumsum(-1), roots[1] + own[1], "repaired"),
        "sum": Claim(regret.cumsum(-1), total, "repaired", applies=applies),
    }
    return RegretLedger(
        regret.cumsum(-1),
        terms={
            "critical rounds": (regret * (1 - kept)).cumsum(-1),
            "f° - UCB": (kept * above).cumsum(-1),
            "widths of u": widths[0],
            "mean of u - mean of v": (kept * (v.error - u.error)).cumsum(-1),
            "widths of v": widths[1],
            "LCB - worst value": (kept * below).cumsum(-1),
        },
        bounds={
            "sum": total,
            "Theorem 6.1, repaired": constant + 2 * (U * xi * steps).sqrt() + 4 * top * (C * steps * U * gamma).sqrt(),
        },
        claims=claims,
        identity=True,
    )
