"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import IndirectPolicy
from cbo_lib.indirect.entropy import conditional_max_value_entropy
from cbo_lib.kernels import GaussianMeasureKernel, rbf_kernel
from tests.exercises import *  # noqa: F403  # the tests of all exercise notebooks
from tests.exercises import Exercises, remember_runs

notebook, stripped, solved = Exercises("indirect").fixtures()


# --- typical mistakes: exercise, what the check must say, the answer; a function of the notebook's names makes it


def arms(first=0, square=True, noise=True, cross=True, pulls=False):
    """The posterior of both arms, with mistakes to choose."""

    def answer(p, z, variances, noise_std):
        w = torch.tensor([p, 1 - p]) if first == 0 else torch.tensor([1 - p, p])
        both = variances * w if cross else variances
        extra = (noise_std**2 if square else noise_std) if noise else 0.0
        total = ((w if pulls else w**2) * variances).sum() + extra
        return both * z / total, torch.diag(variances) - torch.outer(both, both) / total

    return answer


def mean_but(change: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The right mean with another covariance."""

    def answer(p, z, variances, noise_std):
        mean, cov = arms()(p, z, variances, noise_std)
        return mean, change(cov, variances)

    return answer


def in_columns(*case):
    mean, cov = arms()(*case)
    return mean[:, None], cov


def blur(power=None, add=lambda s, t: s**2 + t**2, squared=True, half=2.0, front=True, length_power=2):
    def answer(x, s, y, t, lengthscale, variance):
        c = lengthscale**length_power + add(s, t)
        factor = (lengthscale**2 / c) ** (len(x) / 2 if power is None else power)
        distance = float((x - y).square().sum())
        top = distance if squared else math.sqrt(distance)
        return (variance if front else 1.0) * factor * math.exp(-top / (half * c))

    return answer


def embedding(count=True, ridge=True, power=1, change=lambda w, cross: w):
    def answer(a, kernel, regularization, query):
        scale = (len(a) if count else 1) * regularization**power if ridge else 0.0
        gram, cross = kernel(a).to_dense() + scale * torch.eye(len(a)), kernel(query, a).to_dense()
        return change(torch.linalg.solve(gram, cross.T).T, cross)

    return answer


def left_out(change, count=True):
    def answer(a, y, kernel, regularization):
        gram = kernel(a).to_dense()
        ridge = (len(a) if count else 1) * regularization * torch.eye(len(a))
        H = torch.linalg.solve(gram + ridge, gram).T
        return change(y, H @ y, H.diagonal())

    return answer


def of_ratio(function):
    """A slope from gamma and r = psi / Psi."""

    def answer(gamma):
        r = torch.exp(-0.5 * gamma**2) / math.sqrt(2 * math.pi) / torch.special.ndtr(gamma)
        return function(gamma, r)

    return answer


def wave(factor):
    return lambda a, omega, tau: factor(omega, tau) * torch.sin(omega * a)


def bound(function):
    return lambda M, tau, d: function(M * d * tau**2 / 2, tau, d)


def rms(function):
    """From the variance of g and the covariance with f."""

    def answer(tau, lengthscale):
        r2 = (tau / lengthscale) ** 2
        return function((1 + 2 * r2) ** -0.5, (1 + r2) ** -0.5, r2)

    return answer


TAU = math.sqrt(2 * math.log(2)) / (2 * math.pi)

MISTAKES: list[tuple[int, str, Any]] = [
    (1, "*first* arm", lambda s: (arms(first=1), *s[1:])),
    (1, "square it", lambda s: (arms(square=False), *s[1:])),
    (1, "is noisy", lambda s: (arms(noise=False), *s[1:])),
    (1, "holds the probability", lambda s: (arms(cross=False), *s[1:])),
    (1, "average, no pull", lambda s: (arms(pulls=True), *s[1:])),
    (1, "no posterior mean", lambda s: (lambda p, z, *_: (torch.tensor([p * z, (1 - p) * z]), 0), *s[1:])),
    (1, "not the reward of each", lambda s: (lambda p, z, *_: (torch.full((2,), z), 0), *s[1:])),
    (1, "couples both", lambda s: (mean_but(lambda c, v: torch.diag(c.diagonal())), *s[1:])),
    (1, "whole 2 x 2", lambda s: (mean_but(lambda c, v: c.diagonal()), *s[1:])),
    (1, "This is the prior", lambda s: (mean_but(lambda c, v: torch.diag(v)), *s[1:])),
    (1, "Subtract this", lambda s: (mean_but(lambda c, v: torch.diag(v) - c), *s[1:])),
    (1, "Give a pair", lambda s: (lambda *case: s[0](*case)[0], *s[1:])),
    (1, "mean should have the shape (2,), got (2, 1).", lambda s: (in_columns, *s[1:])),
    (1, "covariance should have the shape (2, 2), got (4,).", lambda s: (mean_but(lambda c, v: c.flatten()), *s[1:])),
    (1, "covariance is wrong", lambda s: (mean_but(lambda c, v: 7 * c), *s[1:])),
    (1, "still returns None", lambda s: (print, *s[1:])),
    (1, "pulls one arm only", lambda s: (s[0], 1.0, s[2])),
    (1, "is not 0", lambda s: (s[0], 0.3, s[2])),
    (1, "variances are equal", lambda s: (*s[:2], 0.5)),
    (1, "arms are exchanged", lambda s: (*s[:2], 0.8)),
    (1, "not standard deviations", lambda s: (*s[:2], 1 / 3)),
    (1, "pulled less", lambda s: (*s[:2], 2 / 3)),
    (1, "is not 0", lambda s: (*s[:2], 0.4)),
    (2, "variance v is missing", lambda s: (blur(front=False), *s[1:])),
    (2, "factor in front", lambda s: (blur(power=0), *s[1:])),
    (2, "Each dimension", lambda s: (blur(power=0.5), *s[1:])),
    (2, "Square the distance", lambda s: (blur(squared=False), *s[1:])),
    (2, "lacks its 1 / 2", lambda s: (blur(half=1.0), *s[1:])),
    (2, "Variances add", lambda s: (blur(add=lambda s, t: (s + t) ** 2), *s[1:])),
    (2, "by their squares", lambda s: (blur(add=lambda s, t: s + t, length_power=1), *s[1:])),
    (2, "second average", lambda s: (blur(add=lambda s, t: s**2), *s[1:])),
    (2, "first average", lambda s: (blur(add=lambda s, t: t**2), *s[1:])),
    (2, "kernel of f", lambda s: (blur(add=lambda s, t: 0.0), *s[1:])),
    (2, "it should be", lambda s: (lambda *args: 0.1, *s[1:])),
    (2, "a root in one dimension", lambda s: (s[0], 1 / 3, s[2])),
    (2, "counts twice", lambda s: (s[0], math.sqrt(0.5), s[2])),
    (2, "standard deviation", lambda s: (s[0], 3**-0.25, s[2])),
    (2, "that is lost", lambda s: (s[0], 1 - 3**-0.5, s[2])),
    (2, "both deviations", lambda s: (*s[:2], math.sqrt(0.5))),
    (2, "at most 1", lambda s: (*s[:2], math.sqrt(1.5))),
    (2, "its square", lambda s: (*s[:2], math.sqrt(0.75))),
    (2, "Nearly, but not to four digits.", lambda s: (s[0], 0.58, s[2])),
    (2, "Nearly, but not to four digits.", lambda s: (*s[:2], 0.94)),
    (3, "factor N is missing", lambda s: (embedding(count=False), *s[1:])),
    (3, "ridge N lambda is missing", lambda s: (embedding(ridge=False), *s[1:])),
    (3, "not squared", lambda s: (embedding(power=2), *s[1:])),
    (3, "does not normalize", lambda s: (embedding(change=lambda w, k: w / w.sum(-1, keepdim=True)), *s[1:])),
    (3, "do not clip", lambda s: (embedding(change=lambda w, k: w.clamp_min(0)), *s[1:])),
    (3, "transpose", lambda s: (embedding(change=lambda w, k: w.T), *s[1:])),
    (3, "This is the kernel.", lambda s: (embedding(change=lambda w, k: k), *s[1:])),
    (3, "kernel average", lambda s: (embedding(change=lambda w, k: k / k.sum(-1, keepdim=True)), *s[1:])),
    (3, "weights are wrong", lambda s: (embedding(change=lambda w, k: 2 * w), *s[1:])),
    (3, "true average", lambda s: (s[0], 1.0, s[2])),
    (3, "one weight", lambda s: (s[0], _row(s)[-1], s[2])),
    (3, "as they are", lambda s: (s[0], _row(s).abs().sum(), s[2])),
    (3, "Their mean", lambda s: (s[0], _row(s).mean(), s[2])),
    (3, "at 0.65", lambda s: (s[0], _row(s, 0.65).sum(), s[2])),
    (3, "sum of weights", lambda s: (s[0], 0.5, s[2])),
    (3, "Nearly, but not to four digits.", lambda s: (s[0], 1.01 * s[1], s[2])),
    (3, "with N = 4", lambda s: (*s[:2], 1.0)),
    (3, "only once", lambda s: (*s[:2], 1 / 16)),
    (3, "1 + lambda", lambda s: (*s[:2], 1.25)),
    (3, "inverse of lambda", lambda s: (*s[:2], 4.0)),
    (3, "not 1 - lambda", lambda s: (*s[:2], 0.2)),
    (4, "sign is reversed", lambda s: (left_out(lambda y, f, h: (f - y) / (1 - h)), *s[1:])),
    (4, "errors of the fit", lambda s: (left_out(lambda y, f, h: y - f), *s[1:])),
    (4, "not by its square", lambda s: (left_out(lambda y, f, h: (y - f) / (1 - h) ** 2), *s[1:])),
    (4, "grow when left out", lambda s: (left_out(lambda y, f, h: (y - f) * (1 - h)), *s[1:])),
    (4, "not by H_ii", lambda s: (left_out(lambda y, f, h: (y - f) / h), *s[1:])),
    (4, "its own H_ii", lambda s: (left_out(lambda y, f, h: (y - f) / (1 - h.mean())), *s[1:])),
    (4, "ridge is N lambda", lambda s: (left_out(lambda y, f, h: (y - f) / (1 - h), count=False), *s[1:])),
    (4, "not their squares", lambda s: (left_out(lambda y, f, h: ((y - f) / (1 - h)) ** 2), *s[1:])),
    (4, "One error a pair", lambda s: (left_out(lambda y, f, h: ((y - f) / (1 - h)).square().mean()), *s[1:])),
    (4, "Subtract them from y", lambda s: (left_out(lambda y, f, h: y - (y - f) / (1 - h)), *s[1:])),
    (4, "fitted values", lambda s: (left_out(lambda y, f, h: f), *s[1:])),
    (4, "errors are wrong", lambda s: (left_out(lambda y, f, h: 2 * f), *s[1:])),
    (4, "11 lambda", lambda s: (s[0], 0.01, s[2])),
    (4, "Nearly, but not to four digits.", lambda s: (s[0], 0.011, s[2])),
    (4, "upside down", lambda s: (s[0], 0.11 / 12, s[2])),
    (4, "This is the ridge", lambda s: (s[0], 0.12, s[2])),
    (4, "predicts badly", lambda s: (*s[:2], 1e-5)),
    (4, "shrinks everything", lambda s: (*s[:2], 1.0)),
    (4, "smaller error", lambda s: (*s[:2], 1e-3)),
    (5, "sign is reversed", lambda s: (lambda gamma: -s[0](gamma), *s[1:])),
    (5, "This is alpha", lambda s: (of_ratio(lambda g, r: g * r / 2 - torch.special.log_ndtr(g)), *s[1:])),
    (5, "second term alone", lambda s: (of_ratio(lambda g, r: -r), *s[1:])),
    (5, "first term alone", lambda s: (of_ratio(lambda g, r: r / 2 - g * r * (g + r) / 2), *s[1:])),
    (5, "in the denominator", lambda s: (of_ratio(lambda g, r: (1 - g**2) * r / 2 - r), *s[1:])),
    (5, "psi' = ", lambda s: (of_ratio(lambda g, r: r / 2 - g * r**2 / 2 - r), *s[1:])),
    (5, "another function", lambda s: (of_ratio(lambda g, r: r), *s[1:])),
    (5, "still returns None", lambda s: (print, *s[1:])),
    (5, "two numbers", lambda s: (s[0], 1.2, s[2])),
    (5, "two numbers", lambda s: (s[0], (1.2, math.inf), s[2])),
    (5, "one sample", lambda s: (s[0], (2.5, 2.5), s[2])),
    (5, "a tie", lambda s: (s[0], (1.5, 2.5), s[2])),
    (5, "prefer the narrow", lambda s: (s[0], (1.0, 1.5), s[2])),
    (5, "prefer the wide", lambda s: (s[0], (2.5, 3.5), s[2])),
    (5, "larger gamma", lambda s: (*s[:2], 1.5)),
    (5, "Divide by sigma", lambda s: (*s[:2], 0.5)),
    (5, "Not the index", lambda s: (*s[:2], 0)),
    (6, "This is f.", lambda s: (wave(lambda o, t: 1.0), *s[1:])),
    (6, "exponent is half", lambda s: (wave(lambda o, t: math.exp(-((o * t) ** 2))), *s[1:])),
    (6, "exponent is twice", lambda s: (wave(lambda o, t: math.exp(-((o * t) ** 2) / 4)), *s[1:])),
    (6, "omega is missing", lambda s: (wave(lambda o, t: math.exp(-(t**2) / 2)), *s[1:])),
    (6, "omega tau is squared", lambda s: (wave(lambda o, t: math.exp(-o * t / 2)), *s[1:])),
    (6, "multiplies the sine", lambda s: (lambda a, o, t: torch.sin(o * a * math.exp(-((o * t) ** 2) / 2)), *s[1:])),
    (6, "Taylor series", lambda s: (wave(lambda o, t: 1 - (o * t) ** 2 / 2), *s[1:])),
    (6, "g is wrong", lambda s: (wave(lambda o, t: 3.0), *s[1:])),
    (6, "exponent is omega", lambda s: (s[0], TAU / math.sqrt(2), s[2])),
    (6, "for omega = 1", lambda s: (s[0], TAU * 2 * math.pi, s[2])),
    (6, "This is tau^2", lambda s: (s[0], TAU**2, s[2])),
    (6, "Take the root", lambda s: (s[0], 2 * math.log(2) / (2 * math.pi), s[2])),
    (6, "Nearly, but not to four digits.", lambda s: (s[0], 0.19, s[2])),
    (6, "factor must be", lambda s: (s[0], 0.9, s[2])),
    (6, "half of it does", lambda s: (*s[:2], 1.0)),
    (6, "width 2 b", lambda s: (*s[:2], 0.25)),
    (6, "Then g is f", lambda s: (*s[:2], 0.0)),
    (6, "for omega = 1", lambda s: (*s[:2], math.pi)),
    (6, "whole waves", lambda s: (*s[:2], 0.3)),
    (7, "factor 1 / 2.", lambda s: (bound(lambda b, t, d: 2 * b), *s[1:])),
    (7, "order tau^2", lambda s: (bound(lambda b, t, d: b / t), *s[1:])),
    (7, "enters once", lambda s: (bound(lambda b, t, d: b * d), *s[1:])),
    (7, "d tau^2 on average", lambda s: (bound(lambda b, t, d: b / d), *s[1:])),
    (7, "mean *square*", lambda s: (bound(lambda b, t, d: b / math.sqrt(d)), *s[1:])),
    (7, "gap_bound(", lambda s: (bound(lambda b, t, d: 9.0), *s[1:])),
    (7, "Take its root", lambda s: (s[0], rms(lambda v, c, r2: 1 + v - 2 * c), s[2])),
    (7, "approximation of part 3", lambda s: (s[0], rms(lambda v, c, r2: math.sqrt(0.75) * r2), s[2])),
    (7, "are correlated", lambda s: (s[0], rms(lambda v, c, r2: math.sqrt(1 + v)), s[2])),
    (7, "not Var f - Var g", lambda s: (s[0], rms(lambda v, c, r2: math.sqrt(1 - v)), s[2])),
    (7, "no difference of both", lambda s: (s[0], rms(lambda v, c, r2: 1 - math.sqrt(v)), s[2])),
    (7, "Cov(f, g) counts twice", lambda s: (s[0], rms(lambda v, c, r2: math.sqrt(1 + v - c)), s[2])),
    (7, "are exchanged", lambda s: (s[0], rms(lambda v, c, r2: math.sqrt(abs(1 + c - 2 * v))), s[2])),
    (7, "rms_gap(", lambda s: (s[0], rms(lambda v, c, r2: 9.0), s[2])),
    (7, "square of the ratio", lambda s: (*s[:2], s[2] ** 2)),
    (7, "lengthscale / tau", lambda s: (*s[:2], 1 / s[2])),
    (7, "not their squares", lambda s: (*s[:2], 0.19823)),
    (7, "for one wave", lambda s: (*s[:2], 0.6225)),
    (7, "Nearly, but not to four digits.", lambda s: (*s[:2], 0.29)),
    (7, "excess is not", lambda s: (*s[:2], 0.5)),
]


def _row(solution, query=1.5):
    a = torch.tensor([[0.0], [0.2], [0.3], [1.0]])
    return solution[0](a, rbf_kernel(0.3), 0.01, torch.tensor([[query]]))[0]


def right_errors(convert: Callable[[Tensor], Any]) -> Callable[..., Any]:
    right = left_out(lambda y, f, h: (y - f) / (1 - h))
    return lambda *case: convert(right(*case))


@pytest.mark.parametrize(
    ("number", "function"),
    [
        (4, right_errors(Tensor.tolist)),
        (4, right_errors(Tensor.numpy)),
        (6, lambda a, omega, tau: math.exp(-((omega * tau) ** 2) / 2) * math.sin(omega * a)),
        (6, lambda a, omega, tau: torch.exp(-((omega * tau) ** 2) / 2) * torch.sin(omega * a)),
        (6, lambda a, omega, tau: [math.exp(-((omega * tau) ** 2) / 2) * math.sin(omega * x) for x in a]),
    ],
)
def test_a_right_function_may_be_of_another_kind(number: int, function: Any, solved: dict[str, Any]) -> None:
    answer = (function, *solved[f"solution_{number}"][1:])
    assert solved[f"check_{number}"](answer) == f"Exercise {number}: correct."


@pytest.mark.parametrize(
    ("number", "says", "answer"), MISTAKES, ids=[f"{n}-{s}-{i}" for i, (n, s, _) in enumerate(MISTAKES)]
)
def test_mistake_is_named(number: int, says: str, answer: Callable[..., object], solved: dict[str, Any]) -> None:
    verdict = solved[f"check_{number}"](answer(solved[f"solution_{number}"]))
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert says in verdict


def test_a_refit_with_its_own_ridge_is_named(solved: dict[str, Any]) -> None:
    assert "refit with ridge (N - 1) lambda" in solved["check_4"]((solved["refits"], *solved["solution_4"][1:]))


def test_a_refit_with_the_same_ridge_is_accepted(solved: dict[str, Any]) -> None:
    def slowly(a, y, kernel, lam):
        return solved["refits"](a, y, kernel, lam * len(a) / (len(a) - 1))

    assert solved["check_4"]((slowly, *solved["solution_4"][1:])) == "Exercise 4: correct."


def test_a_numerical_slope_is_accepted(solved: dict[str, Any]) -> None:
    def slope(gamma):
        return (solved["alpha"](gamma + 1e-4) - solved["alpha"](gamma - 1e-4)) / 2e-4

    assert solved["check_5"]((slope, *solved["solution_5"][1:])) == "Exercise 5: correct."


@pytest.mark.parametrize("pair", [(3.2, 1.2), (1.0, 4.0), (-1.0, 8.0)])
def test_other_pairs_of_samples_are_accepted(pair: tuple[float, float], solved: dict[str, Any]) -> None:
    slope, _, kappa = solved["solution_5"]
    assert solved["check_5"]((slope, torch.tensor(pair), kappa)) == "Exercise 5: correct."


def test_alpha_falls_and_is_equation_14(solved: dict[str, Any]) -> None:
    gamma = torch.linspace(-8, 8, 161)
    # torch.special.ndtr loses all digits below -8.
    pdf, cdf = torch.exp(-0.5 * gamma**2) / math.sqrt(2 * math.pi), torch.special.erfc(-gamma / math.sqrt(2)) / 2
    torch.testing.assert_close(solved["alpha"](gamma), gamma * pdf / (2 * cdf) - cdf.log())
    assert bool((solved["solution_5"][0](gamma) < 0).all())
    one = conditional_max_value_entropy(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 1.0]), torch.tensor([1.5]))
    assert int(one.argmax()) == 0  # the smallest gamma


def test_closed_forms_are_the_library_s(solved: dict[str, Any]) -> None:
    blurred = solved["solution_2"][0]
    inputs = torch.tensor([[0.1, -0.3, 0.2], [0.4, 0.5, 0.0], [0.0, 0.0, 0.7]])
    gram = [[blurred(p[:2], p[2], q[:2], q[2], 0.6, 1.5) for q in inputs] for p in inputs]
    torch.testing.assert_close(torch.tensor(gram), GaussianMeasureKernel(0.6, 1.5)(inputs).to_dense())
    for tau in (0.05, 0.3, 2.0):
        assert solved["rms_gap"](tau, 0.3) == pytest.approx(solved["exact_rms"](tau, 0.3), rel=1e-5)
    assert solved["rms_gap"](0.01, 1.0) == pytest.approx(math.sqrt(0.75) * 0.01**2, rel=1e-3)


def test_the_bound_of_the_blur_holds_and_is_met(solved: dict[str, Any]) -> None:
    """On the waves of the solution, and with equality for a quadratic function."""
    gap_bound, waves, inner = solved["gap_bound"], solved["waves"], solved["inner"]
    curvature = float(waves(order=2).abs().max())
    for tau in (0.01, 0.05, 0.3, 1.0):
        assert float((waves() - waves(tau))[inner].abs().max()) <= gap_bound(curvature, tau, 1)
    rule = solved["ClippedGaussian"](lambda a: a, 0.4).measure(torch.zeros(1, 3), 4)
    average = rule.expectation(lambda x: 2.5 * x.square().sum(-1) / 2)
    assert float(average) == pytest.approx(gap_bound(2.5, 0.4, 3))


def test_mistakes_about_a_policy(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    upper, difference, error = solved["solution_8"]
    check, regret = solved["check_8"], solved["cmes_regret"]
    remember_runs(check, monkeypatch, upper, solved["RandomQueries"])

    class OnlyActions(upper):  # type: ignore[misc]
        def scores(self) -> Tensor:
            return super().scores()[:, : self.n]

    class NotANumber(upper):  # type: ignore[misc]
        def scores(self) -> Tensor:
            return super().scores() * math.nan

    class Flat(upper):  # type: ignore[misc]
        def scores(self) -> Tensor:
            return 0 * super().scores()

    class Throws(upper):  # type: ignore[misc]
        def scores(self) -> Tensor:
            return torch.rand(self.mean.shape)

    class NoScores(upper):  # type: ignore[misc]
        def scores(self) -> Tensor:
            return None  # type: ignore[return-value]

    class Stub(IndirectPolicy):
        def scores(self) -> Tensor:
            return None  # type: ignore[return-value]

    class OtherDesign(upper):  # type: ignore[misc]
        def design(self, n: int) -> Tensor:
            return super().design(n).flip(0)

    class Spends(upper):  # type: ignore[misc]
        def advance(self, query: Tensor, asked: Tensor) -> None:
            self.left = self.left + 1.0

    class Saves(upper):  # type: ignore[misc]
        def advance(self, query: Tensor, asked: Tensor) -> None:
            if self.count == 5:
                self.left = self.left - 20.0

    class Remembers(upper):  # type: ignore[misc]
        runs = 0

        def begin(self) -> None:
            super().begin()
            Remembers.runs += 1

        def scores(self) -> Tensor:
            scores = super().scores()
            return scores if self.runs == 1 else scores.flip(-1).roll(self.n, -1)

    class Mixes(upper):  # type: ignore[misc]
        def target(self) -> Tensor:
            value = (self.mean + 2 * self.std).sum(0)
            value[: self.n] = -torch.inf
            return value.argmax().expand(len(self.mean))

    class Blind(upper):  # type: ignore[misc]
        def best(self) -> Tensor:
            return torch.full((len(self.mean),), len(self.places) - 1)

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "scores must give (20, 109), got (20, 48)" in says(OnlyActions)
    assert "scores must give (20, 109), got None" in says(NoScores)
    assert "scores must give (20, 109), got None" in says(Stub)
    assert "scores must not be NaN at an action" in says(NotANumber)
    assert "scores must not be equal at all actions" in says(Flat)
    assert "use no global random numbers" in says(Throws)
    assert "These are CMES's queries" in check((type("Mine", (solved["CMES"],), {}), 0.0, 0.0))
    assert "initial design changed" in says(OtherDesign)
    assert "more than the budget" in says(Spends)
    assert "stopped asking" in says(Saves)
    assert "state in begin" in says(Remembers)
    assert "depends on its company" in says(Mixes)
    assert "A random point has" in says(Blind)
    assert "subclass of IndirectPolicy" in says(GaussianProcess)
    assert "subclass of IndirectPolicy" in says(upper(solved["space"], prior=solved["prior"]))
    assert "sign is reversed" in check((upper, -difference, error))
    assert "Subtract cmes_regret" in check((upper, difference + regret.mean(), error))
    assert "another number" in check((upper, 0.0, error))
    assert "varies less" in check((upper, difference, error * math.sqrt(20)))
    assert "paired" in check((solved["RandomQueries"], solved["change"]["random"].mean(), _unpaired(solved)))
    assert "standard error is" in check((upper, difference, 9.0))


def _unpaired(solved: dict[str, Any]) -> float:
    base = solved["cmes_regret"]
    own = base + solved["change"]["random"]
    return float((own.var() + base.var()).sqrt()) / math.sqrt(20)


@pytest.mark.parametrize("name", ["confirm", "random"])
def test_any_policy_that_keeps_the_contract_is_accepted(name: str, solved: dict[str, Any]) -> None:
    change = solved["change"][name]
    answer = (solved["policies"][name], change.mean(), change.std() / math.sqrt(20))
    assert solved["check_8"](answer) == "Exercise 8: correct."


def test_the_covariance_of_all_places_is_the_posterior_s(solved: dict[str, Any]) -> None:
    """Its diagonal are the variances that the library tracks."""
    policy = solved["Upper"](solved["space"], **solved["options"])
    solved["simulate"](solved["problem"], policy, 10, range(3))
    torch.testing.assert_close(policy.covariance.diagonal(dim1=-2, dim2=-1), policy.std**2, atol=1e-9, rtol=1e-6)
