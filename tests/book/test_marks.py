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
        peeking: a policy of one's own that looks up the problem of the notebook, and what is said of it.
    """

    chapter = ""
    others: ClassVar[list[tuple[int, str]]] = []
    peeking, peeked = "", " as good."

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

    def test_a_policy_that_looks_the_answer_up_gets_nothing_for_it(self, answers):
        number = next(e.number for e in answers.judge.exercises if "class" in e.kinds)
        error = answers.box.run(f"{self.peeking}\npeeked = (Peeking, *solution_{number}[1:])")[1]
        assert error is None, error
        mark = answers.judge.mark(answers.box, number, "peeked")
        assert mark.points[0] == 0 and self.peeked in mark.says[0], mark.says

    def test_there_are_at_least_three_for_each_exercise(self, answers):
        numbers = [m.number for m in answers.mistakes]
        assert numbers == sorted(numbers)
        assert set(numbers) == {n + 1 for n in range(len(TEACHES[self.chapter]))}
        assert min(map(numbers.count, numbers)) >= 3


class TestAggregated(Chapter):
    chapter = "aggregated"
    others: ClassVar = [(1, "lambda w: (1 + torch.exp(-w.square() / 0.32)) / 2")]
    peeking = """
class Peeking(solution_7[0]):
    def recommend(self):
        if self.places is None:
            return super().recommend()
        return self.places[torch.arange(len(self.places)), islands.value(self.places).argmax(-1)]
"""
    peeked = "do not have the largest posterior mean of the four"


class TestContexts(Chapter):
    chapter = "contexts"
    others: ClassVar = [(2, "lambda x, b, s, w: (s - w) * (1 - torch.exp(-2 * x)) / 2 - (b - w) * x")]
    peeking = """
class Peeking(SBOKDE):
    def ask(self):
        if self.round <= self.initial:
            return super().ask()
        x, places = torch.linspace(0, 1, 101), torch.tensor([0.2, 0.8])
        worth = takings(torch.cartesian_prod(x, places)).reshape(-1, 2).mean(1)
        return x[worth.argmax()].expand(len(self.y), 1)
"""

    def test_a_policy_that_asks_nearly_what_the_given_one_asks_gets_nothing_for_it(self, answers):
        alike = """
class Alike(SBOKDE):
    def ask(self):
        query = super().ask()
        return 1 - query if self.round == 30 else query
"""
        error = answers.box.run(f"{alike}\nalike = (Alike, *solution_8[1:])")[1]
        assert error is None, error
        mark = answers.judge.mark(answers.box, 8, "alike")
        assert mark.points[0] == 0 and "These are SBO-KDE's queries" in mark.says[0], mark.says


class TestHyperparameters(Chapter):
    chapter = "hyperparameters"
    others: ClassVar = [
        (1, "lambda *case: s[0](*case).tolist()"),
        (3, "lambda std, noise: (std.pow(-2) + noise.pow(-2)).rsqrt()"),
        (5, "lambda norm, gain, failure: float(s[0](norm, gain, failure))"),
    ]
    peeking = """
class Peeking(CandidatePolicy):
    def ask(self):
        best = points[problem.values.argmax(-1)]
        return best if len(self.y) == len(best) else points[: len(self.y)] * 0
"""


class TestIndirect(Chapter):
    chapter = "indirect"
    others: ClassVar = [
        (4, "lambda *case: s[0](*case).tolist()"),
        (6, "lambda i, w, delta: -(-math.log(delta / (math.pi**2 * i**2 / 3)) // math.log(w))"),
        (6, "lambda i, w, delta: torch.tensor(math.log(delta / (math.pi**2 * i**2 / 3)) / math.log(w)).ceil()"),
    ]
    peeking = """
class Peeking(IndirectPolicy):
    def ask(self):
        return self.space.actions[self.first[:, min(self.round, 2) - 1]]

    def recommend(self):
        return self.space.points[int(problem.values.argmax())].expand(len(self.y), 1)
"""


class TestSubsets(Chapter):
    chapter = "subsets"
    peeking = """
class Peeking(SubsetPolicy):
    def choose(self):
        found = self.search(torch.ones_like(self.plays, dtype=torch.bool))
        return torch.full_like(self.plays[:, 0], 2), found.points

    def recommend(self):
        grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41)] * 3)
        best = grid[waves(grid).argmax()]
        return torch.cat([torch.zeros(1), best]).expand(len(self.plays), -1)
"""


def test_every_chapter_has_its_mistakes():
    assert sorted(MISTAKES) == handout.chapters()


def test_the_guide_is_made_of_the_same():
    assert guide.PAGE.read_text(encoding="utf-8") == guide.text()
