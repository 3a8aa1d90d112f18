"""Each solution gets full marks, and each typical wrong answer what the rubric says; the guide says the same."""

import re
from collections.abc import Iterator
from typing import ClassVar

import pytest

from book._grading.mistakes import MISTAKES, TEACHES
from book._tools import guide, handout
from tests.marking import Marked, marked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """An exercise and a mistake that are added are tested without more."""
    chapter = getattr(metafunc.cls, "chapter", "")
    for name, listed, first in (("number", TEACHES, 1), ("at", MISTAKES, 0)):
        if chapter and name in metafunc.fixturenames:
            metafunc.parametrize(name, range(first, first + len(listed[chapter])))


class Chapter:
    """The tests of a chapter, which share a box.

    Attributes:
        chapter: its name.
        others: right functions that give, or take, something else than the solution's, by exercise.
    """

    chapter = ""
    others: ClassVar[list[tuple[int, str]]] = []

    @pytest.fixture(scope="class")
    @classmethod
    def answers(cls) -> Iterator[Marked]:
        with marked(cls.chapter) as made:
            yield made

    def test_a_solution_gets_full_marks(self, number, answers):
        mark = answers.solution(number)
        assert mark.points == mark.exercise.points, mark.text
        assert set(mark.says) == {"Right."}

    def test_a_right_function_of_another_kind_gets_full_marks(self, answers):
        for number, function in self.others:
            error = answers.box.run(f"s = solution_{number}\nother = ({function}, *s[1:])")[1]
            assert error is None, error
            mark = answers.judge.mark(answers.box, number, "other")
            assert mark.points == mark.exercise.points, mark.text

    def test_a_mistake_gets_what_the_rubric_says(self, at, answers):
        mistake, mark = answers.mistakes[at], answers.mistake(at)
        assert tuple(mark.points) == mistake.points
        most = zip(mark.says, mark.points, mark.exercise.points, strict=True)
        said = next(said for said, got, whole in most if got < whole)
        assert re.sub(r"\d+", "#", said) == re.sub(r"\d+", "#", mistake.says)  # counts of runs may differ by one

    def test_there_are_at_least_three_for_each_exercise(self, answers):
        numbers = [m.number for m in answers.mistakes]
        assert numbers == sorted(numbers)
        assert set(numbers) == {n + 1 for n in range(len(TEACHES[self.chapter]))}
        assert min(map(numbers.count, numbers)) >= 3


class TestAggregated(Chapter):
    chapter = "aggregated"
    others: ClassVar = [(1, "lambda w: (1 + torch.exp(-w.square() / 0.32)) / 2")]


class TestContexts(Chapter):
    chapter = "contexts"
    others: ClassVar = [(2, "lambda x, b, s, w: (s - w) * (1 - torch.exp(-2 * x)) / 2 - (b - w) * x")]


class TestHyperparameters(Chapter):
    chapter = "hyperparameters"
    others: ClassVar = [
        (2, "lambda *case: float(s[0](*case))"),
        (3, "lambda *case: s[0](*case).tolist()"),
        (4, "lambda std, noise: (std.pow(-2) + noise.pow(-2)).rsqrt()"),
    ]


class TestIndirect(Chapter):
    chapter = "indirect"
    others: ClassVar = [
        (4, "lambda *case: s[0](*case).tolist()"),
        (6, "lambda a, omega, tau: math.exp(-(omega * tau) ** 2 / 2) * math.sin(omega * a)"),
        (6, "lambda a, omega, tau: torch.exp(-(omega * tau) ** 2 / 2) * torch.sin(omega * a)"),
    ]


class TestSubsets(Chapter):
    chapter = "subsets"


def test_every_chapter_has_its_mistakes():
    assert sorted(MISTAKES) == handout.chapters()


def test_the_guide_is_made_of_the_same():
    assert guide.PAGE.read_text(encoding="utf-8") == guide.text()
