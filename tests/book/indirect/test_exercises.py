"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import IndirectPolicy
from cbo_lib.kernels import GaussianMeasureKernel
from tests.exercises import (  # noqa: F401  # this notebook has wider lines
    Exercises,
    code,
    test_an_introduction_says_how_many_digits,
    test_nonsense_is_told_so,
    test_questions_stand_between_the_exercises,
    test_release_keeps_its_secrets,
    test_release_runs_and_takes_the_solutions,
    test_runs_without_solutions,
    test_solution_is_accepted,
    test_solution_stands_behind_a_toggle,
)

notebook, stripped, solved = Exercises("indirect", lambda c: "figures." in code(c)).fixtures()


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


def bayes(change=lambda joint, other, chance: joint / (joint + other)):
    """The posterior of the first setting, from the two joint probabilities and that of the answer."""

    def answer(prior, p, y):
        chance = p if y else 1 - p
        return change(prior * chance, (1 - prior) * (1 - chance), chance)

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


def group(change=math.ceil, twice=2):
    return lambda i, w, delta: change(math.log(delta / (twice * math.pi**2 * i**2 / 6)) / math.log(w))


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
    (3, "The prior counts too.", lambda s: (bayes(lambda a, b, c: c), *s[1:])),
    (3, "Divide by the probability", lambda s: (bayes(lambda a, b, c: a), *s[1:])),
    (3, "of the second setting", lambda s: (bayes(lambda a, b, c: b / (a + b)), *s[1:])),
    (3, "should be", lambda s: (bayes(lambda a, b, c: 0.123), *s[1:])),
    (3, "still returns None", lambda s: (print, *s[1:])),
    (3, "root of the count", lambda s: (s[0], 3.2, s[2])),
    (3, "p (1 - p)", lambda s: (s[0], 320, s[2])),
    (3, "Square the ratio", lambda s: (s[0], 8, s[2])),
    (3, "over that of the mean", lambda s: (s[0], 50, s[2])),
    (3, "64 to 1", lambda s: (*s[:2], 3)),
    (3, "multiplies the odds", lambda s: (*s[:2], 7)),
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
    (6, "Round up", lambda s: (group(math.floor), *s[1:])),
    (6, "whole number", lambda s: (group(float), *s[1:])),
    (6, "2 pi_i", lambda s: (group(twice=1), *s[1:])),
    (6, "logarithm", lambda s: (lambda *case: -s[0](*case), *s[1:])),
    (6, "should be", lambda s: (lambda *case: 100, *s[1:])),
    (6, "fair coin", lambda s: (s[0], 2**-6, s[2])),
    (6, "seven in all", lambda s: (s[0], 1 / 6, s[2])),
    (6, "is covered", lambda s: (s[0], 6 / 7, s[2])),
    (6, "largest of seven", lambda s: (s[0], 0.3, s[2])),
    (6, "not independent", lambda s: (*s[:2], 6 / 7 * 8 / 9)),
    (6, "one group of 14", lambda s: (*s[:2], 14 / 15)),
    (6, "one of them misses", lambda s: (*s[:2], 1 - s[2])),
    (6, "not one half", lambda s: (*s[:2], (1 - 2**-6) * (1 - 2**-8))),
    (6, "Integrate", lambda s: (*s[:2], 0.5)),
    (7, "cost more than the budget", lambda s: (lambda v, spent, budget: v[:, -1], *s[1:])),
    (7, "One number a replicate", lambda s: (lambda *case: s[0](*case).mean(), *s[1:])),
    (7, "At a cost of", lambda s: (lambda *case: 0 * s[0](*case), *s[1:])),
    (7, "reversed: finest", lambda s: (s[0], -s[1], s[2])),
    (7, "reversed: all nodes", lambda s: (*s[:2], -s[2])),
    (7, "finest - CMETS is another", lambda s: (s[0], 9.0, s[2])),
    (7, "all nodes - CMETS is another", lambda s: (*s[:2], 9.0)),
]


def right_errors(convert: Callable[[Tensor], Any]) -> Callable[..., Any]:
    right = left_out(lambda y, f, h: (y - f) / (1 - h))
    return lambda *case: convert(right(*case))


@pytest.mark.parametrize(
    ("number", "function"),
    [
        (4, right_errors(Tensor.tolist)),
        (4, right_errors(Tensor.numpy)),
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
    assert int(solved["average_alpha"](torch.tensor([1.5])).argmax()) == 0  # the smallest gamma


def test_closed_forms_are_the_library_s(solved: dict[str, Any]) -> None:
    blurred = solved["solution_2"][0]
    inputs = torch.tensor([[0.1, -0.3, 0.2], [0.4, 0.5, 0.0], [0.0, 0.0, 0.7]])
    gram = [[blurred(p[:2], p[2], q[:2], q[2], 0.6, 1.5) for q in inputs] for p in inputs]
    torch.testing.assert_close(torch.tensor(gram), GaussianMeasureKernel(0.6, 1.5)(inputs).to_dense())


def test_mistakes_about_a_policy(solved: dict[str, Any]) -> None:
    upper, difference, error = solved["solution_8"]
    check, regret = solved["check_8"], solved["cmes_regret"]

    class Flat(upper):  # type: ignore[misc]
        def ask(self) -> Tensor:
            return super().ask()[:, 0]

    class Elsewhere(upper):  # type: ignore[misc]
        def ask(self) -> Tensor:
            return super().ask() + 0.01

    class Stub(IndirectPolicy):
        def ask(self) -> Tensor:
            return None  # type: ignore[return-value]

    class OtherDesign(upper):  # type: ignore[misc]
        def ask(self) -> Tensor:
            return super().ask().flip(0)

    class Throws(upper):  # type: ignore[misc]
        def ask(self) -> Tensor:
            if self.round <= 2:
                return super().ask()
            return self.space.actions[torch.randint(self.space.n, (len(self.y),))]

    class Mixes(upper):  # type: ignore[misc]
        def ask(self) -> Tensor:
            asked = super().ask()
            return asked if self.round <= 2 else asked[:1].expand(len(asked), -1)

    class Blind(upper):  # type: ignore[misc]
        def recommend(self) -> Tensor:
            return self.space.points[-1:].expand(len(self.y), -1)

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "ask must give (20, 2), got (20,)" in says(Flat)
    assert "ask must give rows of self.space.actions" in says(Elsewhere)
    assert "ask must give (20, 2), got None" in says(Stub)
    assert "first two actions changed" in says(OtherDesign)
    assert "use no global random numbers" in says(Throws)
    assert "These are CMES's queries" in check((type("Mine", (solved["CMES"],), {}), 0.0, 0.0))
    assert "depends on its company" in says(Mixes)
    assert "A random point has" in says(Blind)
    assert "subclass of IndirectPolicy" in says(GaussianProcess)
    assert "sign is reversed" in check((upper, -difference, error))
    assert "Subtract cmes_regret" in check((upper, difference + regret.mean(), error))
    assert "another number" in check((upper, 9.0, error))
    assert "varies less" in check((upper, difference, error * math.sqrt(20)))
    assert "standard error is" in check((upper, difference, 9.0))


@pytest.mark.parametrize("name", ["confirm", "random"])
def test_any_policy_that_keeps_the_contract_is_accepted(name: str, solved: dict[str, Any]) -> None:
    change, kind = solved["change"][name], {"confirm": "Confirm", "random": "RandomActions"}[name]
    answer = (solved[kind], change.mean(), change.std() / math.sqrt(20))
    assert solved["check_8"](answer) == "Exercise 8: correct."
