"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.exercises import (  # noqa: F401  # this notebook has wider lines, and its questions at the end
    Exercises,
    code,
    tags,
    test_an_introduction_says_how_many_digits,
    test_nonsense_is_told_so,
    test_release_keeps_its_secrets,
    test_release_runs_and_takes_the_solutions,
    test_runs_without_solutions,
    test_solution_is_accepted,
    test_solution_stands_behind_a_toggle,
)

SIGMA2 = 0.01
notebook, stripped, solved = Exercises(
    "aggregated", lambda c: "figures." in code(c) or "remove-cell" in tags(c)
).fixtures()


# --- typical mistakes: exercise, what the check must say, the answer


def pair(r: float) -> float:
    return math.exp(-(r**2) / (2 * 0.2**2))


def right_pair(w: float) -> float:
    return (1 + pair(w / 2)) / 2


def sqrt_beta(count: int, t: int, failure: float) -> float:
    return math.sqrt(2 * math.log(count * math.pi**2 * t**2 / (6 * failure)))


def right_beta(K: int, t: int, failure: float) -> float:
    return sqrt_beta(1 + (K - 1) * (t - 1), t, failure)


def right_variance(c: float, s: float, T: int) -> float:
    return c * s**2 / (s**2 + T * c)


WIDTH = 0.2 * math.sqrt(8 * math.log(2))
FIRST, LATE = (sqrt_beta(2047, t, 0.1) / right_beta(2, t, 0.1) for t in (1, 80))
FACTORS = (FIRST, LATE)
BETA_1 = right_beta(2, 1, 0.1)
AT_ROOT = BETA_1**2 * SIGMA2 / 196

NUMERIC: list[tuple[int, str, Any]] = [
    (1, "do not forget their covariance", (lambda w: 0.5, WIDTH)),
    (1, "not w.", (lambda w: (1 + pair(w)) / 2, WIDTH)),
    (1, "divide by 4", (lambda w: 1 + pair(w / 2), WIDTH)),
    (1, "the sum of both values", (lambda w: 2 + 2 * pair(w / 2), WIDTH)),
    (1, "should be", (lambda w: 1.0, WIDTH)),
    (1, "How wide is their cell", (right_pair, WIDTH / 2)),
    (1, "not 3/4", (right_pair, 1.0)),
    (1, "A width is positive", (right_pair, -WIDTH)),
    (1, "Nearly, but not to four digits.", (right_pair, 0.47)),
    (1, "still returns None", (lambda w: None, WIDTH)),
    (3, "Take its square root", (lambda *case: right_beta(*case) ** 2, *FACTORS)),
    (3, "has a 2 in it", (lambda *case: right_beta(*case) / math.sqrt(2), *FACTORS)),
    (3, "every node of a full tree", (lambda K, t, q: sqrt_beta(2047, t, q), *FACTORS)),
    (3, "Those that were split are no leaves", (lambda K, t, q: sqrt_beta(1 + K * (t - 1), t, q), *FACTORS)),
    (3, "the leaves after round t", (lambda K, t, q: sqrt_beta(1 + (K - 1) * t, t, q), *FACTORS)),
    (3, "all nodes after round t", (lambda K, t, q: sqrt_beta(1 + K * t, t, q), *FACTORS)),
    (3, "one leaf at most", (lambda K, t, q: sqrt_beta(K ** (t - 1), t, q), *FACTORS)),
    (3, "a split adds K - 1", (lambda K, t, q: sqrt_beta(max(1, K * (t - 1)), t, q), *FACTORS)),
    (3, "it is for K = 2", (lambda K, t, q: sqrt_beta(t, t, q), *FACTORS)),
    (3, "one interval a round", (lambda K, t, q: sqrt_beta(1, t, q), *FACTORS)),
    (3, "what each interval may fail", (lambda K, t, q: math.exp(-(right_beta(K, t, q) ** 2) / 2), *FACTORS)),
    (3, "for one interval", (lambda K, t, q: math.sqrt(2 * math.log(1 / q)), *FACTORS)),
    (3, "one round", (lambda K, t, q: math.sqrt(2 * math.log((1 + (K - 1) * (t - 1)) / q)), *FACTORS)),
    (3, "pi^2 / 6", (lambda K, t, q: math.sqrt(2 * math.log((1 + (K - 1) * (t - 1)) * t**2 / q)), *FACTORS)),
    (3, "should be", (lambda K, t, q: 1.0, *FACTORS)),
    (3, "beta itself", (right_beta, FIRST**2, LATE)),
    (3, "inverse", (right_beta, FIRST, 1 / LATE)),
    (3, "Give the ratio", (right_beta, FIRST, sqrt_beta(2047, 80, 0.1) - right_beta(2, 80, 0.1))),
    (3, "ratio of the counts", (right_beta, 2047, LATE)),
    (3, "Divide", (right_beta, 10.0, LATE)),
    (3, "Nearly, but not to four digits.", (right_beta, 1.01 * FIRST, LATE)),
    (4, "Proposition 2", (lambda c, s, T: s**2 / T if T else c, 4)),
    (4, "square the noise", (lambda c, s, T: c * s / (s + T * c), 4)),
    (4, "must lower", (lambda c, s, T: c, 4)),
    (4, "precision", (lambda c, s, T: 1 / c + T / s**2, 4)),
    (4, "the standard deviation", (lambda c, s, T: math.sqrt(right_variance(c, s, T)), 4)),
    (4, "After 3 draws", (right_variance, 3)),
    (4, "fewer draws do", (right_variance, 5)),
    (4, "from 1 to 99", (right_variance, 0)),
    (4, "from 1 to 99", (right_variance, 100)),
    (5, "Beta is the square", (AT_ROOT / BETA_1, 2, 1)),
    (5, "Delta is squared", (AT_ROOT * 14, 2, 1)),
    (5, "Sigma is squared", (AT_ROOT * 10, 2, 1)),
    (5, "Nearly, but not to four digits.", (0.99 * AT_ROOT, 2, 1)),
    (5, "first constant is too small", (AT_ROOT, 0, 1)),
    (5, "first constant is too small", (AT_ROOT, 1, 1)),
    (5, "first constant is safe", (AT_ROOT, 3, 1)),
    (5, "second constant is too small", (AT_ROOT, 2, 0)),
    (5, "second constant is safe", (AT_ROOT, 2, 2)),
    (8, "at least one ball", (lambda p, q: 1 / q - 1 / p, 0.5)),
    (8, "for q = 1", (lambda p, q: max(0.0, 1 - 1 / p), 0.5)),
    (8, "Not r / q, nor r", (lambda p, q: max(0.0, 1 - q / p), 0.5)),
    (8, "The sign is reversed", (lambda p, q: max(0.0, 1 / p - 1 / q), 0.5)),
    (8, "but the balls that count it shrink", (lambda p, q: 1 / p, 0.5)),
    (8, "fitted dimension", (lambda p, q: max(0.0, 1 / q - 1 / p), 0.9)),
]


@pytest.mark.parametrize(
    "function",
    [right_pair, lambda w: (1 + torch.exp(-(w**2) / (8 * 0.2**2))) / 2, lambda w: (1 + pair(w.item() / 2)) / 2],
)
def test_the_width_may_be_a_number_or_a_tensor(function: Any, stripped: dict[str, Any]) -> None:
    assert stripped["check_1"]((function, WIDTH)) == "Exercise 1: correct."
    assert "v is 0.6" in stripped["check_1"]((function, 0.65))


@pytest.mark.parametrize(("number", "says", "answer"), NUMERIC, ids=[f"{n}-{s}" for n, s, _ in NUMERIC])
def test_mistake_is_named(number: int, says: str, answer: object, stripped: dict[str, Any]) -> None:
    verdict = stripped[f"check_{number}"](answer)
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert says in verdict


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("also holds delta(0)", lambda root, child, depth: (root - 14, child, depth)),
        ("also holds its confidence width", lambda root, child, depth: (14, child, depth)),
        ("square root of beta", lambda root, child, depth: (14 + (root - 14) * BETA_1, child, depth)),
        ("not the variance", lambda root, child, depth: (14 + (root - 14) ** 2 / BETA_1, child, depth)),
        ("single point", lambda root, child, depth: (14 + BETA_1 * 0.1**0.5, child, depth)),
        (
            "grows with the round",
            lambda root, child, depth: (root, 7 + (child - 7) * BETA_1 / right_beta(2, 2, 0.1), depth),
        ),
        ("b-value of a child", lambda root, child, depth: (root, root, depth)),
        ("At depth 4", lambda root, child, depth: (root, child, depth + 1)),
        ("from the root down", lambda root, child, depth: (root, child, 0)),
    ],
)
def test_mistake_about_first_draws(says: str, change: Callable[..., tuple[Any, ...]], solved: dict[str, Any]) -> None:
    assert says in solved["check_2"](change(*solved["solution_2"]))


Rule = Callable[..., Any]


def greedy(mean: torch.Tensor, width: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return mean


def hasty(width: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return width <= 2 * delta


@pytest.mark.parametrize(
    ("says", "score", "rule", "multiple"),
    [
        ("Exercise 6: correct.", lambda mean, width, delta: mean + width, lambda width, delta: True, 5),
        ("With this score no sign fails", lambda mean, width, delta: mean + width + delta, hasty, 5),
        ("With this rule no sign fails", greedy, lambda width, delta: width <= delta / 2, 5),
        ("With this rule no sign fails", greedy, lambda width, delta: False, 5),
        ("still returns None", lambda mean, width, delta: None, hasty, 5),
        ("still returns None", greedy, lambda width, delta: None, 5),
        ("cannot be used", lambda mean, width: mean, hasty, 5),
        ("the promise of GPOO", greedy, hasty, 3),
        ("Twice the promise", greedy, hasty, 6),
        ("and the delta of the b-value", greedy, hasty, 4),
        ("all terms right of sign 4", greedy, hasty, 2),
        ("right side of sign 4", greedy, hasty, 7),
    ],
)
def test_mistake_about_broken_signs(
    says: str, score: Rule, rule: Rule, multiple: float, stripped: dict[str, Any]
) -> None:
    assert says in stripped["check_6"]((score, rule, multiple))


def test_signs_that_share_a_reason_fail_together(stripped: dict[str, Any]) -> None:
    assert stripped["failing"]() == []
    assert stripped["failing"](sqrt_beta=0.3) == [2, 4]
    assert stripped["failing"](score=greedy, known=hasty) == [3, 5]


def test_feedback_to_questions_keeps_the_answers_to_exercises(notebook: Exercises) -> None:
    assert "plus two" not in notebook.text and "a draw earlier" not in notebook.text


def test_mistakes_about_the_search_inside(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    gpoo, single_places = solved["GPOO"], solved["single_places"]
    inside, difference, error = solved["solution_7"]
    space, runs = solved["check_7"].__globals__, {}
    simulate = space["simulate"]

    def once(problem: Any, policy: Any, *rest: Any) -> Any:
        if policy.kind not in runs:
            runs[policy.kind] = simulate(problem, policy, *rest)
        return runs[policy.kind]

    monkeypatch.setitem(space, "simulate", once)

    class Unchanged(inside):  # type: ignore[misc,valid-type]
        ask, tell, recommend = gpoo.ask, gpoo.tell, gpoo.recommend

    class Early(inside):  # type: ignore[misc,valid-type]
        def __init__(self, space: Any, first: int, **options: Any) -> None:
            super().__init__(space, first - 1, **options)

    class Moves(inside):  # type: ignore[misc,valid-type]
        def ask(self) -> torch.Tensor:
            if self.round > self.first + 3:
                self.places = single_places(self.tree.boxes[self.node * 0])
            return super().ask()

    class Stubborn(inside):  # type: ignore[misc,valid-type]
        def ask(self) -> torch.Tensor:
            asked = super().ask()
            return asked if self.places is None else self.places[:, 0]

    class Regions(inside):  # type: ignore[misc,valid-type]
        def recommend(self) -> torch.Tensor:
            return gpoo.recommend(self)

    class Last(inside):  # type: ignore[misc,valid-type]
        def recommend(self) -> torch.Tensor:
            return self.queries[:, -1]

    check = solved["check_7"]
    assert "subclass of GPOO" in check((int, difference, error))
    for policy, says in (
        (gpoo, "cannot be used"),
        (Unchanged, "still asks regions"),
        (Early, "Up to round 20"),
        (Moves, "no places of the region"),
        (Stubborn, "again and again"),
        (Regions, "should recommend one of the four places"),
        (Last, "do not have the largest posterior mean"),
    ):
        assert says in check((policy, difference, error)), policy
    base = solved["gpoo_regret"]
    for wrong, says in (
        (-difference, "sign is reversed"),
        (difference + base.mean(), "Subtract that of GPOO"),
        (0.0, "another number"),
    ):
        assert says in check((inside, wrong, error)), says
    unpaired = float(((solved["half"] + base).var() + base.var()).sqrt()) / math.sqrt(40)
    assert "varies less" in check((inside, difference, error * math.sqrt(40)))
    assert "island by island" in check((inside, difference, unpaired))
