"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from cbo_lib.confidence import noise_threshold
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import CandidatePolicy
from cbo_lib.measure import Measure
from tests.exercises import *  # noqa: F403  # the tests of all exercise notebooks
from tests.exercises import Exercises, remember_runs

notebook, stripped, solved = Exercises("hyperparameters").fixtures()


# --- typical mistakes: exercise, what the check must say, the answer; a function of the notebook's names makes it


def posterior(kernel, mean, x, y, at, noise_std, centered=True, restored=True, noise=None):
    """Mean and variance from scratch, with mistakes to choose."""
    K = kernel(x, x).to_dense() + (noise_std**2 if noise is None else noise) * torch.eye(len(x))
    k = kernel(x, at).to_dense()
    gap = y - mean if centered else y
    found = (mean if restored else 0) + k.T @ torch.linalg.solve(K, gap)
    return found, kernel(at, diag=True) - (k * torch.linalg.solve(K, k)).sum(0)


def one(**mistakes):
    def answer(*args):
        mean, variance = posterior(*args, **mistakes)
        return mean, variance.sqrt()

    return answer


def unsquared(*args):
    return one(noise=args[-1])(*args)


def noisy(*args):
    mean, variance = posterior(*args)
    return mean, (variance + args[-1] ** 2).sqrt()


def zero_mean(kernel, _, x, y, at, noise_std):
    return one()(kernel, 0.0, x, y, at, noise_std)


def with_covariance(kernel, mean, x, y, at, noise_std):
    return one()(kernel, mean, x, y, at, noise_std)[0], torch.eye(len(at))


def in_columns(mean=True, std=True):
    """A right posterior, of which some part is a column."""

    def answer(*args):
        parts = one()(*args)
        return tuple(p[:, None] if column else p for p, column in zip(parts, (mean, std), strict=True))

    return answer


def by_scipy(kernel, x, y, noise_std):
    """The likelihood as a float."""
    K = kernel(x, x).to_dense() + noise_std**2 * torch.eye(len(x))
    return float(multivariate_normal(torch.zeros(len(x)).numpy(), K.detach().numpy()).logpdf(y.numpy()))


def rule_in_numpy(errors, widths, xi, count):
    allowed = np.sqrt(xi * count.numpy()) + widths.numpy().sum(-1)
    return np.abs(errors.numpy().sum(-1)) > allowed


def likelihood(fit=0.5, volume=0.5, constant=0.5, squared=True):
    def answer(kernel, x, y, noise_std):
        K = kernel(x, x).to_dense() + (noise_std**2 if squared else noise_std) * torch.eye(len(x))
        total = fit * y @ torch.linalg.solve(K, y) + volume * K.logdet()
        return -total - constant * len(x) * math.log(2 * math.pi)

    return answer


def rule(errors, widths, xi, count):
    return errors.sum(-1).abs() > (xi * count).sqrt() + widths.sum(-1)


def after(std, noise_std):
    return std * noise_std / math.sqrt(std**2 + noise_std**2)


def largest(T, U):
    q, r = divmod(T, U)
    return r * math.sqrt(q + 1) + (U - r) * math.sqrt(q)


def lumped(T, U):
    q = T // U
    return math.sqrt(T - (U - 1) * q) + (U - 1) * math.sqrt(q)


def gram(c, scale):
    return torch.exp(-((c[:, None] - c) ** 2) / (2 * scale**2))


def norm(a, c, own, other):
    tau2 = 2 * own**2 - other**2
    if tau2 <= 0:
        return math.inf
    return float(own**2 / (other * math.sqrt(tau2)) * (a @ gram(c, math.sqrt(tau2)) @ a))


def prefactor(own, other):
    return norm(torch.ones(1), torch.zeros(1), own, other)


ROOT = math.sqrt(3), math.sqrt(2)
SQRT_BETA = math.sqrt(2 * math.log(500 * math.pi**2 / 0.3))
XI = float(noise_threshold(1, 0.1, 5))
SHRINK = math.sqrt(101)
LONG, SHORT = math.sqrt(XI) + SQRT_BETA, math.sqrt(XI) + SQRT_BETA / SHRINK
FACTOR = LONG / SHORT


def tail(right, variance=1.01):
    return math.erfc(right / math.sqrt(2 * variance))


MISTAKES: list[tuple[int, str, Any]] = [
    (1, "The prior mean is missing", lambda s: (zero_mean, s[1])),
    (1, "Subtract the prior mean", lambda s: (one(centered=False), s[1])),
    (1, "again at the end", lambda s: (one(restored=False), s[1])),
    (1, "add its square", lambda s: (unsquared, s[1])),
    (1, "values are noisy", lambda s: (one(noise=0.0), s[1])),
    (1, "This is the variance", lambda s: (posterior, s[1])),
    (1, "not of f", lambda s: (noisy, s[1])),
    (1, "standard deviation is wrong", lambda s: (lambda *case: (s[0](*case)[0], 9 * s[0](*case)[1]), s[1])),
    (1, "standard deviation should have the shape (41,), got (41, 41).", lambda s: (with_covariance, s[1])),
    (1, "mean should have the shape (41,), got (41, 1).", lambda s: (in_columns(), s[1])),
    (1, "standard deviation should have the shape (41,), got (41, 1).", lambda s: (in_columns(mean=False), s[1])),
    (1, "still returns None", lambda s: (print, s[1])),
    (1, "its inverse", lambda s: (s[0], 1 / s[1])),
    (1, "the variances", lambda s: (s[0], s[1] ** 2)),
    (1, "largest over smallest", lambda s: (s[0], 2.0)),
    (1, "Nearly, but not to four digits.", lambda s: (s[0], 1.01 * s[1])),
    (1, "Give a pair", lambda s: (lambda *case: s[0](*case)[0], s[1])),
    (2, "sign is reversed", lambda s: (likelihood(-0.5, -0.5, -0.5), 4, 0)),
    (2, "Give its logarithm", lambda s: (lambda *args: likelihood()(*args).exp(), 4, 0)),
    (2, "The constant", lambda s: (likelihood(constant=0), 4, 0)),
    (2, "determinant is missing", lambda s: (likelihood(volume=0), 4, 0)),
    (2, "values y are missing", lambda s: (likelihood(fit=0), 4, 0)),
    (2, "Both halves", lambda s: (likelihood(1, 1), 4, 0)),
    (2, "before the y", lambda s: (likelihood(fit=1), 4, 0)),
    (2, "before log det", lambda s: (likelihood(volume=1), 4, 0)),
    (2, "add its square", lambda s: (likelihood(squared=False), 4, 0)),
    (2, "should be", lambda s: (lambda *args: 3.0, 4, 0)),
    (2, "count from zero", lambda s: (s[0], 5, 0)),
    (2, "count from zero", lambda s: (s[0], 4, 1)),
    (2, "not a lengthscale", lambda s: (s[0], 4, 0.3)),
    (2, "not the lengthscale", lambda s: (s[0], 1.0, 0)),
    (2, "With the peak missed, another", lambda s: (s[0], 0, 0)),
    (2, "With the peak seen, another", lambda s: (s[0], 4, 4)),
    (3, "sum first", lambda s: (lambda e, w, xi, n: e.abs().sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])),
    (3, "far below zero", lambda s: (lambda e, w, xi, n: e.sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])),
    (3, "Padding is no round", lambda s: (lambda e, w, xi, n: rule(e, w, xi, torch.tensor(e.shape[-1])), s[1])),
    (3, "grows with count", lambda s: (lambda e, w, xi, n: rule(e, w, xi, torch.tensor(1)), s[1])),
    (3, "covers xi and the count", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n**2), s[1])),
    (3, "covers xi and the count", lambda s: (lambda e, w, xi, n: rule(e, w, xi**2, n**2), s[1])),
    (3, "widths of all rounds", lambda s: (lambda e, w, xi, n: rule(e, w / 4, xi, n), s[1])),
    (3, "strict", lambda s: (lambda e, w, xi, n: e.sum(-1).abs() >= (xi * n).sqrt() + w.sum(-1), s[1])),
    (3, "exceeds the right side", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n) & (xi > 0.1), s[1])),
    (3, "The shape", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n).all(), s[1])),
    (3, "random candidates", lambda s: (lambda e, w, xi, n: rule(e[:1], w[:1], xi, n[:1]), s[1])),
    (3, "it grows", lambda s: (s[0], 11)),
    (3, "After 22 rounds", lambda s: (s[0], 22)),
    (3, "at least one round", lambda s: (s[0], 0)),
    (3, "It is dropped before that.", lambda s: (s[0], 24)),
    (4, "This is the variance", lambda s: (lambda s, r: after(s, r) ** 2, *s[1:])),
    (4, "This is the precision", lambda s: (lambda s, r: after(s, r) ** -2, *s[1:])),
    (4, "root of the precision", lambda s: (lambda s, r: 1 / after(s, r), *s[1:])),
    (4, "Square the standard deviation", lambda s: (lambda s, r: after(s, math.sqrt(r)), *s[1:])),
    (4, "inverse *variances*", lambda s: (lambda s, r: s * r / (s + r), *s[1:])),
    (4, "must lower", lambda s: (lambda s, r: s, *s[1:])),
    (4, "too large", lambda s: (lambda s, r: r, *s[1:])),
    (4, "should be", lambda s: (lambda s, r: 9.0, *s[1:])),
    (4, "also holds xi", lambda s: (s[0], SHRINK, s[2])),
    (4, "its inverse", lambda s: (s[0], 1 / FACTOR, s[2])),
    (4, "the width alone", lambda s: (s[0], 1 / SHRINK, s[2])),
    (4, "root of xi", lambda s: (s[0], (XI + SQRT_BETA) / (XI + SQRT_BETA / SHRINK), s[2])),
    (4, "by the other", lambda s: (s[0], 2.0, s[2])),
    (4, "below zero as well", lambda s: (s[0], FACTOR, tail(SHORT) / 2)),
    (4, "the truth stays", lambda s: (s[0], FACTOR, 1 - tail(SHORT))),
    (4, "variance is 1 + R^2", lambda s: (s[0], FACTOR, tail(SHORT, 1.0))),
    (4, "R is squared", lambda s: (s[0], FACTOR, tail(SHORT, 1.1))),
    (4, "before the observation", lambda s: (s[0], FACTOR, tail(LONG))),
    (4, "do not round it", lambda s: (s[0], FACTOR, 0.44945)),
    (4, "do not round it", lambda s: (s[0], 6.2174, s[2])),
    (4, "How likely", lambda s: (s[0], FACTOR, 0.1)),
    (4, "Nearly, but not to four digits.", lambda s: (s[0], FACTOR, 0.45)),
    (4, "Nearly, but not to four digits.", lambda s: (s[0], 1.01 * FACTOR, s[2])),
    (6, "This is the bound", lambda s: (lambda T, U: math.sqrt(T * U), 6, 25)),
    (6, "one candidate is chosen", lambda s: (lambda T, U: math.sqrt(T), 6, 25)),
    (6, "rest of the division is missing", lambda s: (lambda T, U: U * math.sqrt(T // U), 6, 25)),
    (6, "over several candidates", lambda s: (lumped, 6, 25)),
    (6, "should be", lambda s: (lambda T, U: 1.0, 6, 25)),
    (6, "just below the bound", lambda s: (largest, 30, 25)),
    (6, "one end of the range", lambda s: (largest, 5, 25)),
    (6, "shared out equally", lambda s: (largest, 1, 25)),
    (6, "equal counts", lambda s: (largest, 7, 25)),
    (6, "bound of one count", lambda s: (largest, 6, 5)),
    (6, "Is the constraint met", lambda s: (largest, 6, 50)),
    (6, "over all candidates", lambda s: (largest, 6, 24)),
    (7, "Its square", lambda s: (lambda *args: math.sqrt(norm(*args)), *ROOT)),
    (7, "1 / (2 pi)", lambda s: (lambda *args: 2 * math.pi * norm(*args), *ROOT)),
    (7, "its own kernel", lambda s: (lambda a, c, own, other: a @ gram(c, own) @ a, *ROOT)),
    (7, "not to k_other", lambda s: (lambda a, c, own, other: norm(a, c, other, other), *ROOT)),
    (7, "phases matter", lambda s: (lambda a, c, *scales: prefactor(*scales) * a.sum() ** 2, *ROOT)),
    (7, "cross terms", lambda s: (lambda a, c, *scales: prefactor(*scales) * a.square().sum(), *ROOT)),
    (7, "is finite", lambda s: (lambda *args: math.inf, *ROOT)),
    (7, "it should be", lambda s: (lambda *args: 0.1, *ROOT)),
    (7, "return inf", lambda s: (lambda *args: min(norm(*args), 1e300), *ROOT)),
    (7, "for squared norms", lambda s: (norm, 3.0, math.sqrt(2))),
    (7, "its inverse", lambda s: (norm, 1 / math.sqrt(3), math.sqrt(2))),
    (7, "at omega = 0", lambda s: (norm, 1.0, math.sqrt(2))),
    (7, "one kernel function", lambda s: (norm, math.sqrt(prefactor(0.3, 0.1)), math.sqrt(2))),
    (7, "square of C", lambda s: (norm, 9.0, math.sqrt(2))),
    (7, "the square of the ratio", lambda s: (norm, math.sqrt(3), 2.0)),
    (7, "still falls", lambda s: (norm, math.sqrt(3), 1.0)),
    (7, "its inverse", lambda s: (norm, math.sqrt(3), math.sqrt(0.5))),
    (7, "stop falling", lambda s: (norm, math.sqrt(3), 1.5)),
    (7, "Nearly, but not to four digits.", lambda s: (norm, 1.73, math.sqrt(2))),
    (7, "Nearly, but not to four digits.", lambda s: (norm, math.sqrt(3), 1.41)),
]


@pytest.mark.parametrize(
    ("number", "says", "answer"), MISTAKES, ids=[f"{n}-{s}-{i}" for i, (n, s, _) in enumerate(MISTAKES)]
)
def test_mistake_is_named(number: int, says: str, answer: Callable[..., object], solved: dict[str, Any]) -> None:
    verdict = solved[f"check_{number}"](answer(solved[f"solution_{number}"]))
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert says in verdict


@pytest.mark.parametrize(
    ("number", "function"),
    [
        (2, by_scipy),
        (3, rule_in_numpy),
        (3, lambda *case: rule_in_numpy(*case).tolist()),
        (4, after),
        (4, lambda s, r: (s**-2 + r**-2) ** -0.5),
        (4, lambda s, r: s * r / torch.sqrt(s**2 + r**2)),
    ],
)
def test_a_right_function_may_give_another_kind(number: int, function: Any, solved: dict[str, Any]) -> None:
    answer = (function, *solved[f"solution_{number}"][1:])
    assert solved[f"check_{number}"](answer) == f"Exercise {number}: correct."


def optimistic(
    mean: Tensor,
    std: Tensor,
    sqrt_beta: Tensor,
    alive: Tensor,
    dropped: float = -math.inf,
    tolerances: tuple[float, float] = (1e-9, 1e-9),
) -> tuple[Tensor, Tensor]:
    """The choice of line 7, with mistakes to choose."""
    upper = (mean + sqrt_beta[:, None] * std).masked_fill(~alive[..., None], dropped)
    best = upper.amax(1)
    point = (best >= best.amax(-1, keepdim=True) - tolerances[0]).int().argmax(-1)
    there = upper[torch.arange(len(upper)), :, point]
    return point, (there >= there.amax(-1, keepdim=True) - tolerances[1]).int().argmax(-1)


def by_average(mean: Tensor, std: Tensor, sqrt_beta: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    upper = mean + sqrt_beta[:, None] * std
    weights = alive / alive.sum(-1, keepdim=True)
    point = (weights[..., None] * upper).sum(1).argmax(-1)
    there = upper[torch.arange(len(upper)), :, point].masked_fill(~alive, -math.inf)
    return point, there.argmax(-1)


def flat(mean: Tensor, std: Tensor, sqrt_beta: Tensor, alive: Tensor) -> tuple[Tensor, Tensor]:
    upper = (mean + sqrt_beta[:, None] * std).masked_fill(~alive[..., None], -math.inf).flatten(1)
    first = (upper >= upper.amax(-1, keepdim=True) - 1e-9).int().argmax(-1)
    return first % mean.shape[-1], first // mean.shape[-1]


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("means decide", lambda m, s, b, a: optimistic(0 * m, s, b, a)),
        ("the mean plus", lambda m, s, b, a: optimistic(m, 0 * s, b, a)),
        ("a multiplier of its own", lambda m, s, b, a: optimistic(m, s, b[:1].expand_as(b), a)),
        ("dropped candidate chose", lambda m, s, b, a: optimistic(m, s, b, a | True)),
        ("put -inf", lambda m, s, b, a: optimistic(m, s, b, a, dropped=0.0)),
        ("average", by_average),
        ("the first point wins", flat),
        ("take the first point", lambda m, s, b, a: optimistic(m, s, b, a, tolerances=(0.0, 1e-9))),
        ("take the first candidate", lambda m, s, b, a: optimistic(m, s, b, a, tolerances=(1e-9, 0.0))),
        ("random replicates", lambda m, s, b, a: optimistic(m[:1], s[:1], b, a[:1])),
        ("still returns None", print),
        ("two tensors", lambda m, s, b, a: optimistic(m, s, b, a)[0]),
        ("two tensors", lambda m, s, b, a: optimistic(m, s, b, a)[:1]),
    ],
)
def test_mistake_about_optimism(says: str, change: Callable[..., Any], solved: dict[str, Any]) -> None:
    assert says in solved["check_5"]((change, solved["solution_5"][1]))


def test_mistakes_about_the_share(solved: dict[str, Any]) -> None:
    check, (choose, share) = solved["check_5"], solved["solution_5"]
    assert "initial design out" in check((choose, share * 40 / 43))
    assert "number of rounds." in check((choose, share * 40))
    assert "all replicates" in check((choose, share * 800))
    assert "another candidate" in check((choose, 1 - share))
    assert "in percent" in check((choose, 100 * share))
    assert "with 0" in check((choose, 0.5))
    assert "Nearly, but not to four digits." in check((choose, 0.99 * share))


def test_indices_may_be_the_rows_of_one_tensor(solved: dict[str, Any]) -> None:
    def stacked(*case: Tensor) -> Tensor:
        return torch.stack(optimistic(*case))

    assert solved["check_5"]((stacked, solved["solution_5"][1])) == "Exercise 5: correct."


def test_mistakes_about_a_policy(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    by_rank, difference, error = solved["solution_8"]
    check, regret = solved["check_8"], solved["he_regret"]
    remember_runs(check, monkeypatch, by_rank, solved["HEGPUCB"])

    class Wide(by_rank):  # type: ignore[misc]
        def score(self, mean: Tensor, std: Tensor) -> Tensor:
            return self.upper(mean, std)

    class Unnormalized(by_rank):  # type: ignore[misc]
        def weights(self) -> Tensor:
            return torch.ones_like(self.mean)

    class OneWeight(by_rank):  # type: ignore[misc]
        def weights(self) -> Tensor:
            return super().weights()[:, 0]

    class OtherDesign(by_rank):  # type: ignore[misc]
        def design(self, n: int) -> Tensor:
            return super().design(n).flip(0)

    class Remembers(by_rank):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.ranks = torch.zeros(20, 4)

        def begin(self) -> None:
            CandidatePolicy.begin(self)

    class Mixes(by_rank):  # type: ignore[misc]
        def judge(self, row: Any, played: Tensor) -> None:
            super().judge(row, played)
            self.ranks = self.ranks.sum(0, keepdim=True).expand_as(self.ranks)

    class Worst(by_rank):  # type: ignore[misc]
        def score(self, mean: Tensor, std: Tensor) -> Tensor:
            return -super().score(mean, std)

    class NoScore(by_rank):  # type: ignore[misc]
        def score(self, mean: Tensor, std: Tensor) -> Tensor:
            return None  # type: ignore[return-value]

    class Stub(CandidatePolicy):
        def score(self, mean: Tensor, std: Tensor) -> Tensor:
            return None  # type: ignore[return-value]

        def weights(self) -> Tensor:
            return None  # type: ignore[return-value]

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "score must give (20, 100)" in says(Wide)
    assert "sum to one" in says(Unnormalized)
    assert "weights must give (20, 4)" in says(OneWeight)
    assert "initial design changed" in says(OtherDesign)
    assert "state in begin" in says(Remembers)
    assert "depends on its company" in says(Mixes)
    assert "Random points" in says(Worst)
    assert "These are HE-GP-UCB's queries" in check((type("Mine", (solved["HEGPUCB"],), {}), 0.0, 0.0))
    assert "subclass of CandidatePolicy" in says(GaussianProcess)
    assert "subclass of CandidatePolicy" in says(by_rank(solved["space"]))
    assert "score must give (20, 100), got None" in says(NoScore)
    assert "weights must give (20, 4), got None" in says(Stub)
    assert "sign is reversed" in check((by_rank, -difference, error))
    assert "difference a round" in check((by_rank, difference / 40, error))
    assert "Subtract he_regret" in check((by_rank, difference + regret.mean(), error))
    assert "another number" in check((by_rank, 0.0, error))
    assert "varies less" in check((by_rank, difference, error * math.sqrt(20)))
    assert "paired" in check((by_rank, difference, _unpaired(solved)))
    assert "standard error is" in check((by_rank, difference, 9.0))


def _unpaired(solved: dict[str, Any]) -> float:
    base = solved["he_regret"]
    own = base + solved["change"]["trust by rank"][:, -1]
    return float((own.var() + base.var()).sqrt()) / math.sqrt(20)


def test_any_policy_that_keeps_the_contract_is_accepted(solved: dict[str, Any]) -> None:
    change = solved["change"]["average bound"][:, -1]
    answer = (solved["AverageBound"], change.mean(), change.std() / math.sqrt(20))
    assert solved["check_8"](answer) == "Exercise 8: correct."


@pytest.mark.parametrize("cutoff", [40.0, 400.0])
def test_a_quadrature_is_accepted_for_the_norm(cutoff: float, solved: dict[str, Any]) -> None:
    """The exercise allows it where it says that the integral diverges; too low a cut-off is not enough."""

    def by_quadrature(a: Tensor, c: Tensor, own: float, other: float) -> float:
        if other >= math.sqrt(2) * own:
            return math.inf
        omega = torch.linspace(-cutoff, cutoff, 40_001)
        density = math.sqrt(2 * math.pi) * own**2 / other * torch.exp((other**2 / 2 - own**2) * omega**2)
        wave = (a[:, None] * torch.exp(-1j * c[:, None] * omega)).sum(0)
        return float(torch.trapezoid(density * wave.abs() ** 2, omega)) / (2 * math.pi)

    verdict = solved["check_7"]((by_quadrature, *ROOT))
    assert verdict == "Exercise 7: correct."


def test_scratch_posterior_is_the_library_s(solved: dict[str, Any]) -> None:
    at = torch.linspace(0, 1, 7)[:, None]
    exact = solved["trio"].prior(0.2).condition(Measure.dirac(solved["x"]), solved["y"])
    for u, (kernel, m) in enumerate(zip(solved["trio"].kernels, solved["trio"].means, strict=True)):
        mean, std = solved["solution_1"][0](kernel, m, solved["x"], solved["y"], at, 0.2)
        torch.testing.assert_close(mean, exact.mean(Measure.dirac(at))[u])
        torch.testing.assert_close(std, exact.variance(Measure.dirac(at))[u].sqrt())
