"""Each solution gets full marks, and each typical wrong answer what the rubric says; the guide says the same."""

import re
from collections.abc import Iterator

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
    """The tests of a chapter, which share a box."""

    chapter = ""

    @pytest.fixture(scope="class")
    @classmethod
    def answers(cls) -> Iterator[Marked]:
        with marked(cls.chapter) as made:
            yield made

    def test_a_solution_gets_full_marks(self, number, answers):
        mark = answers.solution(number)
        assert mark.points == mark.exercise.points, mark.text
        assert set(mark.says) == {"Right."}

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


class TestContexts(Chapter):
    chapter = "contexts"


class TestHyperparameters(Chapter):
    chapter = "hyperparameters"


class TestIndirect(Chapter):
    chapter = "indirect"


class TestSubsets(Chapter):
    chapter = "subsets"


def test_every_chapter_has_its_mistakes():
    assert sorted(MISTAKES) == handout.chapters()


def test_the_guide_is_made_of_the_same():
    assert guide.PAGE.read_text(encoding="utf-8") == guide.text()
