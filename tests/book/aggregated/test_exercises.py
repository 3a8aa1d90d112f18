"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.exercises import (  # noqa: F401  # this notebook has wider lines, and its questions at the end
    Exercises,
    test_an_introduction_says_how_many_digits,
    test_nonsense_is_told_so,
    test_release_keeps_its_secrets,
    test_release_runs_and_takes_the_solutions,
    test_runs_without_solutions,
    test_solution_is_accepted,
    test_solution_stands_behind_a_toggle,
)

GOLDEN = (math.sqrt(5) - 1) / 2
SIGMA2 = 0.01
notebook, stripped, solved = Exercises("aggregated").fixtures()


# --- typical mistakes: exercise, what the check must say, the answer


def pair(r: float) -> float:
    return math.exp(-(r**2) / (2 * 0.2**2))


def right_pair(w: float) -> float:
    return (1 + pair(w / 2)) / 2


def sqrt_beta(nodes: int, t: int, failure: float) -> float:
    return math.sqrt(2 * math.log(nodes * math.pi**2 * t**2 / (6 * failure)))


def count(K: int, depth: int) -> int:
    return sum(K**h for h in range(depth + 1))


def right_variance(c: float, s: float, T: int) -> float:
    return c * s**2 / (s**2 + T * c)


WIDTH = 0.2 * math.sqrt(8 * math.log(2))
FACTOR = sqrt_beta(2047, 80, 0.01) / sqrt_beta(2047, 80, 0.1)
AT_ROOT = sqrt_beta(2047, 1, 0.1) ** 2 * SIGMA2 / 196

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
    (3, "Take its square root", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q) ** 2, FACTOR)),
    (3, "has a 2 in it", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q) / math.sqrt(2), FACTOR)),
    (3, "leaves alone", (lambda K, d, t, q: sqrt_beta(K**d, t, q), FACTOR)),
    (3, "max_depth itself", (lambda K, d, t, q: sqrt_beta(count(K, d - 1), t, q), FACTOR)),
    (3, "fewer than", (lambda K, d, t, q: sqrt_beta(K ** (d + 1), t, q), FACTOR)),
    (3, "one interval", (lambda K, d, t, q: math.sqrt(2 * math.log(1 / q)), FACTOR)),
    (3, "one round", (lambda K, d, t, q: math.sqrt(2 * math.log(count(K, d) / q)), FACTOR)),
    (3, "beta itself grows", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q), FACTOR**2)),
    (3, "inverse", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q), 1 / FACTOR)),
    (3, "Divide", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q), 10.0)),
    (3, "Nearly, but not to four digits.", (lambda K, d, t, q: sqrt_beta(count(K, d), t, q), 1.01 * FACTOR)),
    (4, "Proposition 2", (lambda c, s, T: s**2 / T if T else c, 4)),
    (4, "square the noise", (lambda c, s, T: c * s / (s + T * c), 4)),
    (4, "must lower", (lambda c, s, T: c, 4)),
    (4, "precision", (lambda c, s, T: 1 / c + T / s**2, 4)),
    (4, "the standard deviation", (lambda c, s, T: math.sqrt(right_variance(c, s, T)), 4)),
    (4, "After 3 draws", (right_variance, 3)),
    (4, "fewer draws do", (right_variance, 5)),
    (4, "from 1 to 99", (right_variance, 0)),
    (4, "from 1 to 99", (right_variance, 100)),
    (5, "Beta is the square", (AT_ROOT / sqrt_beta(2047, 1, 0.1), 2, 1)),
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
        (
            "square root of beta",
            lambda root, child, depth: (14 + (root - 14) * sqrt_beta(2047, 1, 0.1), child, depth),
        ),
        (
            "not the variance",
            lambda root, child, depth: (14 + (root - 14) ** 2 / sqrt_beta(2047, 1, 0.1), child, depth),
        ),
        ("single point", lambda root, child, depth: (14 + sqrt_beta(2047, 1, 0.1) * 0.1**0.5, child, depth)),
        ("b-value of a child", lambda root, child, depth: (root, root, depth)),
        ("At depth 4", lambda root, child, depth: (root, child, depth + 1)),
        ("from the root down", lambda root, child, depth: (root, child, 0)),
    ],
)
def test_mistake_about_first_draws(says: str, change: Callable[..., tuple[Any, ...]], solved: dict[str, Any]) -> None:
    assert says in solved["check_2"](change(*solved["solution_2"]))


def equal_up_to_rounding(size: torch.Tensor) -> torch.Tensor:
    return (size > size.amax(-1, keepdim=True) * (1 - 1e-9)).to(torch.uint8)


SIDES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "longest": lambda size: size.argmax(-1),
    "first of the longest": lambda size: equal_up_to_rounding(size).argmax(-1),
    "last of the longest": lambda size: size.shape[-1] - 1 - equal_up_to_rounding(size).flip(-1).argmax(-1),
    "first": lambda size: torch.zeros(len(size), dtype=torch.long),
}


def golden(
    boxes: torch.Tensor, depth: torch.Tensor, branching: int, alternate: bool = True, cut: str = "longest"
) -> torch.Tensor:
    if branching != 2:
        raise ValueError("branching must be 2")
    low, high = boxes.unbind(-2)
    side = torch.zeros_like(low, dtype=torch.bool)
    side.scatter_(1, SIDES[cut](high - low).unsqueeze(-1), True)
    share = GOLDEN + (1 - 2 * GOLDEN) * (depth % 2 if alternate else 0 * depth).to(boxes).unsqueeze(-1)
    end = torch.lerp(low, high, share)
    first = torch.stack([low, torch.where(side, end, high)], -2)
    return torch.stack([first, torch.stack([torch.where(side, end, low), high], -2)], 1)


def halves(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    low, high = boxes.unbind(-2)
    side = torch.nn.functional.one_hot((high - low).argmax(-1), boxes.shape[-1]).bool()
    cut = (low + high) / 2
    first = torch.stack([low, torch.where(side, cut, high)], -2)
    return torch.stack([first, torch.stack([torch.where(side, cut, low), high], -2)], 1)


def overlapping(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    parts = halves(boxes, depth, branching)
    return torch.stack([parts[:, 0], parts[:, 0]], 1)


def gap(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    parts = golden(boxes, depth, branching).clone()
    parts[:, 0, 1] = torch.lerp(parts[:, 0, 0], parts[:, 0, 1], 0.9)
    return parts


def rounded(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    return golden(boxes.float(), depth, branching).double()


def any_branching(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    return golden(boxes, depth, 2)


def unfinished(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    if branching != 2:
        raise NotImplementedError
    return golden(boxes, depth, branching)


def asserting(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
    assert branching == 2
    return golden(boxes, depth, branching)


@pytest.mark.parametrize(
    ("says", "rule", "factor"),
    [
        ("equal", halves, GOLDEN),
        ("overlap", overlapping, GOLDEN),
        ("fill their parent", gap, GOLDEN),
        ("at odd depths", lambda b, h, k: golden(b, h, k, alternate=False), GOLDEN),
        ("at odd depths", lambda b, h, k: golden(b, h + 1, k), GOLDEN),
        ("longest side", lambda b, h, k: golden(b, h, k, cut="first"), GOLDEN),
        ("cut the first of them", lambda b, h, k: golden(b, h, k, cut="last of the longest"), GOLDEN),
        ("Exercise 6: correct.", lambda b, h, k: golden(b, h, k, cut="first of the longest"), GOLDEN),
        ("still returns None", lambda b, h, k: None, GOLDEN),
        ("dtype of the boxes", rounded, GOLDEN),
        ("must raise ValueError.", any_branching, GOLDEN),
        ("must raise ValueError, not NotImplementedError.", unfinished, GOLDEN),
        ("must raise ValueError, not AssertionError.", asserting, GOLDEN),
        ("Nearly, but not to four digits.", golden, 0.62),
        ("Equal parts", golden, 0.5),
        ("smallest cell", golden, 1 - GOLDEN),
        ("larger part of the largest", golden, 2.0),
    ],
)
def test_mistake_about_golden_cuts(
    says: str, rule: Callable[..., torch.Tensor], factor: float, stripped: dict[str, Any]
) -> None:
    assert says in stripped["check_6"]((rule, factor))


def test_no_error_of_who_runs_the_check_is_taken_for_the_rule_s(stripped: dict[str, Any]) -> None:
    class Lost(Exception):
        pass

    def lost(boxes: torch.Tensor, depth: torch.Tensor, branching: int) -> torch.Tensor:
        if branching != 2:
            raise Lost("the process died")
        return golden(boxes, depth, branching)

    with pytest.raises(Lost):
        next(stripped["faults_6"]((lost, GOLDEN)))


def test_feedback_to_questions_keeps_the_answers_to_exercises(notebook: Exercises) -> None:
    assert "plus two" not in notebook.text and "a draw earlier" not in notebook.text


def test_mistakes_about_caution(solved: dict[str, Any]) -> None:
    gpoo = solved["GPOO"]
    cautious, difference, error = solved["solution_7"]

    class BestMean(gpoo):  # type: ignore[misc]
        def recommended(self) -> torch.Tensor:
            return self.best_of(self.expanded)

    class Leaves(gpoo):  # type: ignore[misc]
        def recommended(self) -> torch.Tensor:
            return self.best_of(self.leaf | self.expanded, self.tracked.mean - self.widths())

    class OldWidths(gpoo):  # type: ignore[misc]
        def recommended(self) -> torch.Tensor:
            return self.best_of(self.expanded, self.tracked.mean - self.widths_before)

    class OtherDraws(cautious):  # type: ignore[misc]
        def scores(self) -> torch.Tensor:
            return self.tracked.mean

    check = solved["check_7"]
    assert "largest lower bound" in check((gpoo, difference, error))
    assert "largest lower bound" in check((BestMean, difference, error))
    assert "leaves" in check((Leaves, difference, error))
    assert "cannot be used" in check((OldWidths, difference, error))
    assert "draws changed" in check((OtherDraws, difference, error))
    assert "sign is reversed" in check((cautious, -difference, error))
    assert "another number" in check((cautious, 0.0, error))
    assert "varies less" in check((cautious, difference, error * math.sqrt(30)))
    assert "replicate by replicate" in check((cautious, difference, _unpaired(solved)))


def _unpaired(solved: dict[str, Any]) -> float:
    change, base = solved["change"][:, -1], solved["gpoo_regret"][:, -1]
    return float(((change + base).var() + base.var()).sqrt()) / math.sqrt(30)
