"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cbo_lib.confidence import noise_threshold
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import CandidatePolicy
from tests.exercises import *  # noqa: F403  # the tests of all exercise notebooks
from tests.exercises import Exercises

notebook, stripped, solved = Exercises("hyperparameters").fixtures()


# --- typical mistakes: exercise, what the check must say, the answer; a function of the solution makes it


def rule(errors, widths, xi, count):
    return errors.sum(-1).abs() > (xi * count).sqrt() + widths.sum(-1)


def rule_in_numpy(errors, widths, xi, count):
    allowed = np.sqrt(xi * count.numpy()) + widths.numpy().sum(-1)
    return np.abs(errors.numpy().sum(-1)) > allowed


def colleague(absolute=True, running=True, counted=True, noise=1.0, width=1.0, last=False):
    """The rule of exercise 2, with mistakes to choose."""

    def answer(errors, widths, xi):
        n = torch.arange(1, errors.shape[-1] + 1)
        left = errors.abs().cumsum(-1) if absolute else errors.cumsum(-1)
        right = noise * (xi * n if counted else xi).sqrt() + width * (widths.cumsum(-1) if running else widths)
        over = left > right
        return over[:, -1] if last else over.any(-1)

    return answer


def line_12(errors, widths, xi):
    n = torch.arange(1, errors.shape[-1] + 1)
    return (errors.cumsum(-1).abs() > (xi * n).sqrt() + widths.cumsum(-1)).any(-1)


def after(std, noise_std):
    return std * noise_std / math.sqrt(std**2 + noise_std**2)


def term(factor=1.0, T=0.5, beta=1.0, C=lambda R: 2 / math.log1p(R**-2), root=0.5, gain=sum):
    """Exercise 4, with mistakes to choose."""

    def answer(steps, gains, sqrt_beta, R):
        return factor * sqrt_beta**beta * steps**T * (C(R) * gain(gains)) ** root

    return answer


def roots(gains):
    return sum(math.sqrt(gain) for gain in gains) ** 2


def sqrt_beta(scale=1.0, share=2.0, two=2.0):
    return lambda norm, gain, failure: norm + scale * math.sqrt(two * (gain + math.log(share / failure)))


def gram(c, scale):
    return torch.exp(-((c[:, None] - c) ** 2) / (2 * scale**2))


def norm(a, c, own, other):
    tau2 = 2 * own**2 - other**2
    if tau2 <= 0:
        return math.inf
    return float(own**2 / (other * math.sqrt(tau2)) * (a @ gram(c, math.sqrt(tau2)) @ a))


def prefactor(own, other):
    return norm(torch.ones(1), torch.zeros(1), own, other)


def missed(n, s, reach=2.0):
    return max(0.0, 1 - reach * n * math.log(s) / math.log(20))


def widths_alone(s):
    """The root of 33 largest gains over the sum of all, from exercise 4's own data."""
    most = s[0].__globals__["most"][100]
    return math.sqrt(33 * max(most) / sum(most))


def equal_gains(s):
    """The factor and the first T of exercise 4 if all kernels gained as much as the first."""
    most, bound, B = map(s[0].__globals__.get, ("most", "whole_bound", "B"))
    first = next(T for T in range(1, 201) if bound(T, 3 * most[T][0]) < 2 * B * T)
    return bound(100, 33 * most[100][0]) / bound(100, 3 * most[100][0]), first


ROOT = math.sqrt(3), math.sqrt(2)
SQRT_BETA = math.sqrt(2 * math.log(200 * math.pi**2 / 0.3))
XI = float(noise_threshold(1, 0.1, 11))
SHRINK = math.sqrt(101)
LONG, SHORT = math.sqrt(XI) + SQRT_BETA, math.sqrt(XI) + SQRT_BETA / SHRINK
FACTOR = LONG / SHORT
MEAN = 0.1 * math.sqrt(2 / math.pi)


def tail(right, variance=1.01):
    return math.erfc(right / math.sqrt(2 * variance))


MISTAKES: list[tuple[int, str, Any]] = [
    (1, "sum first", lambda s: (lambda e, w, xi, n: e.abs().sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])),
    (1, "far below zero", lambda s: (lambda e, w, xi, n: e.sum(-1) > (xi * n).sqrt() + w.sum(-1), s[1])),
    (1, "Padding is no round", lambda s: (lambda e, w, xi, n: rule(e, w, xi, torch.tensor(e.shape[-1])), s[1])),
    (1, "grows with count", lambda s: (lambda e, w, xi, n: rule(e, w, xi, torch.tensor(1)), s[1])),
    (1, "covers xi and the count", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n**2), s[1])),
    (1, "covers xi and the count", lambda s: (lambda e, w, xi, n: rule(e, w, xi**2, n**2), s[1])),
    (1, "widths of all rounds", lambda s: (lambda e, w, xi, n: rule(e, w / 4, xi, n), s[1])),
    (1, "strict", lambda s: (lambda e, w, xi, n: e.sum(-1).abs() >= (xi * n).sqrt() + w.sum(-1), s[1])),
    (1, "exceeds the right side", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n) & (xi > 0.1), s[1])),
    (1, "The shape", lambda s: (lambda e, w, xi, n: rule(e, w, xi, n).all(), s[1])),
    (1, "random candidates", lambda s: (lambda e, w, xi, n: rule(e[:1], w[:1], xi, n[:1]), s[1])),
    (1, "still returns None", lambda s: (print, s[1])),
    (1, "it grows", lambda s: (s[0], 12)),
    (1, "After 24 rounds the sum is -9.60", lambda s: (s[0], 24)),
    (1, "at least one round", lambda s: (s[0], 0)),
    (1, "It is dropped before that.", lambda s: (s[0], 26)),
    (2, "line 12, without", lambda s: (line_12, *s[1:])),
    (2, "every error absolutely", lambda s: (colleague(absolute=False), *s[1:])),
    (2, "The root covers the rounds", lambda s: (colleague(counted=False), *s[1:])),
    (2, "The widths of all rounds", lambda s: (colleague(running=False), *s[1:])),
    (2, "The widths are missing", lambda s: (colleague(width=0.0), *s[1:])),
    (2, "The allowance for noise", lambda s: (colleague(noise=0.0), *s[1:])),
    (2, "after every round", lambda s: (colleague(last=True), *s[1:])),
    (2, "Some runs differ", lambda s: (lambda e, w, xi: ~s[0](e, w, xi), *s[1:])),
    (2, "one boolean a run, (300,), got ()", lambda s: (lambda e, w, xi: s[0](e, w, xi).double().mean(), *s[1:])),
    (2, "still returns None", lambda s: (print, *s[1:])),
    (2, "number of runs", lambda s: (s[0], 1000 * s[1], MEAN)),
    (2, "in percent", lambda s: (s[0], 100 * s[1], MEAN)),
    (2, "keep the truth", lambda s: (s[0], 1 - s[1], MEAN)),
    (2, "line 12", lambda s: (s[0], 0.0, MEAN)),
    (2, "Nearly, but not to four digits.", lambda s: (s[0], s[1] + 0.005, MEAN)),
    (2, "Average", lambda s: (s[0], 0.5, MEAN)),
    (2, "standard deviation of the noise", lambda s: (*s[:2], 0.1)),
    (2, "with their signs", lambda s: (*s[:2], 0.0)),
    (2, "for R = 1", lambda s: (*s[:2], math.sqrt(2 / math.pi))),
    (2, "not squared", lambda s: (*s[:2], 0.1 * MEAN)),
    (2, "Both halves", lambda s: (*s[:2], MEAN / 2)),
    (2, "mean of |noise|", lambda s: (*s[:2], 0.05)),
    (3, "This is the variance", lambda s: (lambda s, r: after(s, r) ** 2, *s[1:])),
    (3, "This is the precision", lambda s: (lambda s, r: after(s, r) ** -2, *s[1:])),
    (3, "root of the precision", lambda s: (lambda s, r: 1 / after(s, r), *s[1:])),
    (3, "Square the standard deviation", lambda s: (lambda s, r: after(s, math.sqrt(r)), *s[1:])),
    (3, "inverse *variances*", lambda s: (lambda s, r: s * r / (s + r), *s[1:])),
    (3, "must lower", lambda s: (lambda s, r: s, *s[1:])),
    (3, "too large", lambda s: (lambda s, r: r, *s[1:])),
    (3, "should be", lambda s: (lambda s, r: 9.0, *s[1:])),
    (3, "also holds xi", lambda s: (s[0], SHRINK, s[2])),
    (3, "its inverse", lambda s: (s[0], 1 / FACTOR, s[2])),
    (3, "the width alone", lambda s: (s[0], 1 / SHRINK, s[2])),
    (3, "root of xi", lambda s: (s[0], (XI + SQRT_BETA) / (XI + SQRT_BETA / SHRINK), s[2])),
    (3, "by the other", lambda s: (s[0], 2.0, s[2])),
    (3, "below zero as well", lambda s: (s[0], FACTOR, tail(SHORT) / 2)),
    (3, "the truth stays", lambda s: (s[0], FACTOR, 1 - tail(SHORT))),
    (3, "variance is 1 + R^2", lambda s: (s[0], FACTOR, tail(SHORT, 1.0))),
    (3, "R is squared", lambda s: (s[0], FACTOR, tail(SHORT, 1.1))),
    (3, "before the observation", lambda s: (s[0], FACTOR, tail(LONG))),
    (3, "do not round it", lambda s: (s[0], FACTOR, tail(math.sqrt(XI) + SQRT_BETA / 10))),
    (3, "do not round it", lambda s: (s[0], LONG / (math.sqrt(XI) + SQRT_BETA / 10), s[2])),
    (3, "How likely", lambda s: (s[0], FACTOR, 0.1)),
    (3, "Nearly, but not to four digits.", lambda s: (s[0], FACTOR, 1.01 * tail(SHORT))),
    (3, "Nearly, but not to four digits.", lambda s: (s[0], 1.01 * FACTOR, s[2])),
    (4, "still returns None", lambda s: (print, *s[1:])),
    (4, "its own gain", lambda s: (term(gain=lambda g: len(g) * max(g)), *s[1:])),
    (4, "Several kernels may choose", lambda s: (term(gain=max), *s[1:])),
    (4, "they sum to T", lambda s: (term(gain=roots), *s[1:])),
    (4, "Equal shares", lambda s: (term(gain=lambda g: roots(g) / len(g)), *s[1:])),
    (4, "the root of beta already", lambda s: (term(beta=2.0), *s[1:])),
    (4, "a factor T", lambda s: (term(T=0.0), *s[1:])),
    (4, "Take the root", lambda s: (term(T=1.0, root=1.0), *s[1:])),
    (4, "The constant C is missing", lambda s: (term(C=lambda R: 1.0), *s[1:])),
    (4, "R^-2", lambda s: (term(C=lambda R: 2 / math.log1p(R**2)), *s[1:])),
    (4, "it should be", lambda s: (term(9.0), *s[1:])),
    (4, "Take the whole bound", lambda s: (s[0], widths_alone(s), s[2])),
    (4, "its inverse", lambda s: (s[0], 1 / s[1], s[2])),
    (4, "three equal gains", lambda s: (s[0], equal_gains(s)[0], s[2])),
    (4, "three equal gains", lambda s: (*s[:2], equal_gains(s)[1])),
    (4, "Divide one", lambda s: (s[0], 2.0, s[2])),
    (4, "Nearly, but not to four digits.", lambda s: (s[0], 1.01 * s[1], s[2])),
    (4, "still lies above", lambda s: (*s[:2], s[2] - 1)),
    (4, "before that", lambda s: (*s[:2], s[2] + 1)),
    (5, "No factor R", lambda s: (sqrt_beta(0.1), *s[1:])),
    (5, "Half of delta", lambda s: (sqrt_beta(share=1.0), *s[1:])),
    (5, "Two stands", lambda s: (sqrt_beta(two=1.0), *s[1:])),
    (5, "The norm is missing", lambda s: (lambda b, *rest: s[0](0.0, *rest), *s[1:])),
    (5, "Take the root of the second", lambda s: (lambda b, *rest: b + s[0](0.0, *rest) ** 2, *s[1:])),
    (5, "before the root", lambda s: (lambda b, *rest: math.sqrt(b + s[0](0.0, *rest) ** 2), *s[1:])),
    (5, "should be", lambda s: (lambda *case: 1.0, *s[1:])),
    (5, "Solve for B", lambda s: (s[0], s[1] / 2, s[2])),
    (5, "have half of delta", lambda s: (s[0], 2 * math.sqrt(2 * math.log(10)), s[2])),
    (5, "Take the root", lambda s: (s[0], s[1] ** 2, s[2])),
    (5, "When is B at most", lambda s: (s[0], 10.0, s[2])),
    (5, "Nearly, but not to four digits.", lambda s: (s[0], 4.9 * 1.01, s[2])),
    (5, "keep the truth", lambda s: (*s[:2], 20 - s[2])),
    (5, "the share", lambda s: (*s[:2], s[2] / 20)),
    (5, "In so many a band fails", lambda s: (*s[:2], 20)),
    (5, "hold the truth", lambda s: (*s[:2], 1)),
    (6, "Its square", lambda s: (lambda *args: math.sqrt(norm(*args)), *ROOT)),
    (6, "1 / (2 pi)", lambda s: (lambda *args: 2 * math.pi * norm(*args), *ROOT)),
    (6, "its own kernel", lambda s: (lambda a, c, own, other: a @ gram(c, own) @ a, *ROOT)),
    (6, "not to k_other", lambda s: (lambda a, c, own, other: norm(a, c, other, other), *ROOT)),
    (6, "phases matter", lambda s: (lambda a, c, *scales: prefactor(*scales) * a.sum() ** 2, *ROOT)),
    (6, "cross terms", lambda s: (lambda a, c, *scales: prefactor(*scales) * a.square().sum(), *ROOT)),
    (6, "is finite", lambda s: (lambda *args: math.inf, *ROOT)),
    (6, "it should be", lambda s: (lambda *args: 0.1, *ROOT)),
    (6, "return inf", lambda s: (lambda *args: min(norm(*args), 1e300), *ROOT)),
    (6, "for squared norms", lambda s: (norm, 3.0, math.sqrt(2))),
    (6, "its inverse", lambda s: (norm, 1 / math.sqrt(3), math.sqrt(2))),
    (6, "at omega = 0", lambda s: (norm, 1.0, math.sqrt(2))),
    (6, "one kernel function", lambda s: (norm, math.sqrt(prefactor(0.3, 0.1)), math.sqrt(2))),
    (6, "square of q", lambda s: (norm, 9.0, math.sqrt(2))),
    (6, "the square of the ratio", lambda s: (norm, math.sqrt(3), 2.0)),
    (6, "still falls", lambda s: (norm, math.sqrt(3), 1.0)),
    (6, "its inverse", lambda s: (norm, math.sqrt(3), math.sqrt(0.5))),
    (6, "stop falling", lambda s: (norm, math.sqrt(3), 1.5)),
    (6, "Nearly, but not to four digits.", lambda s: (norm, 1.73, math.sqrt(2))),
    (6, "Nearly, but not to four digits.", lambda s: (norm, math.sqrt(3), 1.41)),
    (7, "one is true", lambda s: (lambda n, s: 1 - missed(n, s), 7, 2)),
    (7, "not negative", lambda s: (lambda n, s: 1 - 2 * n * math.log(s) / math.log(20), 7, 2)),
    (7, "q^2 times", lambda s: (lambda n, s: missed(n, s, 1.0), 7, 2)),
    (7, "is uniform", lambda s: (lambda n, s: max(0.0, 1 - n * 0.05 * (s**2 - 1) / 0.95), 7, 2)),
    (7, "need not overlap", lambda s: (lambda n, s: missed(1, s) ** n, 7, 2)),
    (7, "should be", lambda s: (lambda n, s: 0.3, 7, 2)),
    (7, "whole number", lambda s: (missed, math.log(20) / math.log(1.25) / 2, 2)),
    (7, "a little is missed", lambda s: (missed, 6, 2)),
    (7, "q^2 times", lambda s: (missed, 14, 2)),
    (7, "Fill the range", lambda s: (missed, 20, 2)),
    (7, "Without slack", lambda s: (missed, 7, 1)),
    (7, "depends on n", lambda s: (missed, 7, 7)),
    (7, "Put the norm", lambda s: (missed, 7, 3)),
]


@pytest.fixture(scope="module")
def checks(solved: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The notebook, in which plants with one guess are run once."""
    run_with, runs = solved["check_5"].__globals__["run_with"], {}

    def once(guess: float, *rest: Any) -> Any:
        if guess not in runs:
            runs[guess] = run_with(guess, *rest)
        return runs[guess]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(solved["check_5"].__globals__, "run_with", once)
        yield solved


@pytest.mark.parametrize(
    ("number", "says", "answer"), MISTAKES, ids=[f"{n}-{s}-{i}" for i, (n, s, _) in enumerate(MISTAKES)]
)
def test_mistake_is_named(number: int, says: str, answer: Callable[..., object], checks: dict[str, Any]) -> None:
    verdict = checks[f"check_{number}"](answer(checks[f"solution_{number}"]))
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert says in verdict


@pytest.mark.parametrize(
    ("number", "function"),
    [
        (1, rule_in_numpy),
        (1, lambda *case: rule_in_numpy(*case).tolist()),
        (2, lambda *case: colleague()(*case).double()),
        (3, after),
        (3, lambda s, r: (s**-2 + r**-2) ** -0.5),
        (3, lambda s, r: s * r / torch.sqrt(s**2 + r**2)),
        (4, lambda *case: torch.tensor(term()(*case))),
        (5, lambda b, gain, q: b + torch.sqrt(2 * (gain + torch.log(2 / q)))),
        (7, lambda n, s: torch.clamp(1 - 2 * n * torch.log(s) / math.log(20), min=0)),
    ],
)
def test_a_right_function_may_give_another_kind(number: int, function: Any, checks: dict[str, Any]) -> None:
    answer = (function, *checks[f"solution_{number}"][1:])
    assert checks[f"check_{number}"](answer) == f"Exercise {number}: correct."


@pytest.mark.parametrize("cutoff", [40.0, 400.0])
def test_a_quadrature_is_accepted_for_the_norm(cutoff: float, solved: dict[str, Any]) -> None:
    """The exercise allows it where it says that the integral diverges."""

    def by_quadrature(a: Tensor, c: Tensor, own: float, other: float) -> float:
        if other >= math.sqrt(2) * own:
            return math.inf
        omega = torch.linspace(-cutoff, cutoff, 40_001)
        density = math.sqrt(2 * math.pi) * own**2 / other * torch.exp((other**2 / 2 - own**2) * omega**2)
        wave = (a[:, None] * torch.exp(-1j * c[:, None] * omega)).sum(0)
        return float(torch.trapezoid(density * wave.abs() ** 2, omega)) / (2 * math.pi)

    assert solved["check_6"]((by_quadrature, *ROOT)) == "Exercise 6: correct."


def test_a_bound_for_one_kernel_holds_in_the_runs(solved: dict[str, Any]) -> None:
    """Widths of the runs of the hills, whoever chose, stay below what exercise 4 derives."""
    run, most = solved["he_run"], solved["most"]
    widths = (run["sqrt_beta"] * run["std"]).gather(-1, run["candidate"][..., None])[..., 0].cumsum(-1)
    for T in range(1, 101):
        bound = solved["solution_4"][0](T, most[T][1:2], solved["multiplier"](T), 0.1)
        assert float(widths[:, T - 1].max()) <= bound
    assert torch.equal(run["std"].amax(-1), run["std"].amin(-1))  # one kernel, one deviation


def test_no_share_of_the_rounds_exceeds_the_bound(solved: dict[str, Any]) -> None:
    """Of exercise 4: shares in proportion to the gains reach it, others stay below."""
    gains, C = torch.tensor([5.0, 2.0, 0.5]), 2 / math.log1p(0.1**-2)
    shares = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
    shares = torch.cat([shares / shares.sum(-1, keepdim=True), gains[None] / gains.sum()])
    sums = (60 * shares * C * gains).sqrt().sum(-1)
    bound = solved["solution_4"][0](60, gains.tolist(), 1.0, 0.1)
    torch.testing.assert_close(sums.max(), torch.tensor(bound))
    assert int(sums.argmax()) == 1000


def test_the_bound_of_the_list_is_that_of_its_largest_gain(solved: dict[str, Any]) -> None:
    """A longer lengthscale gains less, so the shortest stands for all of a list."""
    gain, box = solved["greedy_information_gain"], solved["points"]
    gains = [float(gain(solved["rbf_kernel"](scale), box, 0.1, 30)[-1]) for scale in (0.05, 0.1, 0.3, 1.0)]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.same_bits
def test_mistakes_about_a_policy(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    by_rank, difference, error = solved["solution_8"]
    check, regret = solved["check_8"], solved["he_regret"]
    space, runs = check.__globals__, {}
    simulate = space["simulate"]

    def once(problem: Any, policy: Any, steps: int, seeds: Any, **more: Any) -> Any:
        kind = policy.kind.__bases__[0] if policy.kind.__name__ == "Probe" else policy.kind
        key = kind, id(problem), steps, tuple(seeds)
        if kind not in (by_rank, solved["HEGPUCB"]):
            return simulate(problem, policy, steps, seeds, **more)
        if key not in runs:  # the problem is kept too: another could get its id
            runs[key] = problem, simulate(problem, policy, steps, seeds, **more)
        return runs[key][1]

    monkeypatch.setitem(space, "simulate", once)

    class Wide(by_rank):  # type: ignore[misc,valid-type]
        def ask(self) -> Tensor:
            return super().ask().expand(-1, 2)

    class Elsewhere(by_rank):  # type: ignore[misc,valid-type]
        def ask(self) -> Tensor:
            return super().ask() + 0.001

    class Unnormalized(by_rank):  # type: ignore[misc,valid-type]
        def weights(self) -> Tensor:
            return torch.ones_like(self.likelihood)

    class OneWeight(by_rank):  # type: ignore[misc,valid-type]
        def weights(self) -> Tensor:
            return super().weights()[:, 0]

    class Shared(by_rank):  # type: ignore[misc,valid-type]
        def tell(self, x: Tensor, y: Tensor) -> None:
            super().tell(x, y)
            self.ranks = self.ranks.sum(0, keepdim=True).expand_as(self.ranks)

    class Worst(CandidatePolicy):
        def ask(self) -> Tensor:
            return self.search(lambda mean, std: -self.upper(mean, std).mean(1))

    class Stub(CandidatePolicy):
        def ask(self) -> Tensor:
            return None  # type: ignore[return-value]

    class Remembers(by_rank):  # type: ignore[misc,valid-type]
        told = 0

        def ask(self) -> Tensor:
            type(self).told += 1
            asked = super().ask()
            return asked if self.told <= 100 else 1 - asked

    class Peeks(CandidatePolicy):
        def ask(self) -> Tensor:
            best = solved["points"][solved["problem"].values.argmax(-1)]
            return best if len(self.y) == len(best) else best[: len(self.y)] * 0

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "ask must give (20, 1), got (20, 2)" in says(Wide)
    assert "ask must give (20, 1), got None" in says(Stub)
    assert "points of the list" in says(Elsewhere)
    assert "sum to one" in says(Unnormalized)
    assert "weights must give (20, 11)" in says(OneWeight)
    assert "depends on its company" in says(Shared)
    assert "Make the state in __init__" in says(Remembers)
    assert "Random tops have" in says(Worst)
    assert "mirrored problem, random tops are as good" in says(Peeks)
    assert "These are HE-GP-UCB's queries" in check((type("Mine", (solved["HEGPUCB"],), {}), 0.0, 0.0))
    assert "subclass of CandidatePolicy" in says(GaussianProcess)
    assert "subclass of CandidatePolicy" in says(by_rank(solved["space"]))
    assert "sign is reversed" in check((by_rank, -difference, error))
    assert "difference a round" in check((by_rank, difference / 100, error))
    assert "Subtract he_regret" in check((by_rank, difference + regret.mean(), error))
    assert "another number" in check((by_rank, 0.0, error))
    assert "varies less" in check((by_rank, difference, error * math.sqrt(20)))
    assert "standard error is" in check((by_rank, difference, 9.0))


def test_any_policy_that_keeps_the_contract_is_accepted(solved: dict[str, Any]) -> None:
    change = solved["change"]["average bound"][:, -1]
    answer = (solved["AverageBound"], change.mean(), change.std() / math.sqrt(20))
    assert solved["check_8"](answer) == "Exercise 8: correct."
