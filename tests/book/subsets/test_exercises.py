"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import truncnorm
from torch import Tensor

from cbo_lib.gp import GaussianProcess
from cbo_lib.subsets import UCBCVS, SubsetPolicy
from tests.exercises import *  # noqa: F403  # the tests of all exercise notebooks
from tests.exercises import Exercises, code, draws_a_figure


def needless(cell: dict[str, Any]) -> bool:
    """Figures, and the runs of Exercise 7."""
    return draws_a_figure(cell) or "twin_" in code(cell)


notebook, stripped, solved = Exercises("subsets", needless).fixtures()


# --- right answers by other means


def by_scipy(scale: float) -> float:
    return float(truncnorm(-0.5 / scale, 0.5 / scale, loc=0.5, scale=scale).var())


def draw_by_draw(f: Callable[[Tensor], Tensor], controls: tuple[int, ...], x: Tensor, nodes: Tensor) -> float:
    total = 0.0
    for row in nodes.tolist():
        point = [float(x[j]) if j in controls else row[j] for j in range(len(row))]
        total += float(f(torch.tensor(point, dtype=torch.float64)))
    return total / len(nodes)


def by_search(best_values: Tensor, costs: Tensor, alpha: float) -> int:
    enough = [i for i in range(len(costs)) if best_values[i] >= (1 - alpha) * max(best_values)]
    least = min(costs[i] for i in enough)
    return max((i for i in enough if costs[i] == least), key=lambda i: best_values[i])


def with_lists(upper: Tensor, lower: float, average: Tensor, plays: Tensor, horizon: int, alpha: float) -> int:
    radius = [math.sqrt(2 * math.log(horizon) / n) for n in plays.tolist()]
    bound = [max(c - r, 0.0) for c, r in zip(average.tolist(), radius, strict=True)]
    good = [i for i in range(len(upper)) if upper[i] > (1 - alpha) * lower]
    least = min(bound[i] for i in good)
    return max((i for i in good if bound[i] == least), key=lambda i: float(upper[i]))


def by_counting(gap: float, horizon: int) -> int:
    """Play on while two radii hide the gap."""
    n = 1
    while gap <= 2 * math.sqrt(2 * math.log(horizon) / n):
        n += 1
    return n


def by_trial(radius: float, horizon: int, spread: float) -> int:
    return next(n for n in itertools.count(1) if spread * math.sqrt(8 * math.log(horizon) / n) < radius)


def by_loop(subset: Tensor, value: Tensor, costs: Tensor, optimum: float, star: int) -> list[Tensor]:
    rows, sums = [], [0.0, 0.0, 0.0]
    for i, v in zip(subset.tolist(), value.tolist(), strict=True):
        c = float(costs[i])
        terms = (optimum - v, max(c - float(costs[star]), 0.0), c * (optimum - v))
        sums = [s + t for s, t in zip(sums, terms, strict=True)]
        rows.append(list(sums))
    return list(torch.tensor(rows, dtype=torch.float64).T)


@pytest.mark.parametrize(
    ("number", "other"),
    [
        (1, by_scipy),
        (2, draw_by_draw),
        (3, by_search),
        (4, with_lists),
        (5, by_counting),
        (6, by_trial),
        (7, by_loop),
    ],
)
def test_other_means_are_accepted(number: int, other: Callable[..., Any], solved: dict[str, Any]) -> None:
    answer = (other, *solved[f"solution_{number}"][1:])
    assert solved[f"check_{number}"](answer) == f"Exercise {number}: correct."


def alternating(T: int) -> Tensor:
    return torch.arange(T) % 2


def at_squares(T: int) -> Tensor:
    """The second subset, but the third in rounds that become rare."""
    plays = torch.ones(T, dtype=torch.long)
    plays[[n * n - 1 for n in range(1, math.isqrt(T) + 1)]] = 2
    return plays


@pytest.mark.parametrize("plays", [alternating, at_squares, lambda T: [1] * T], ids=["in turn", "rare", "a list"])
def test_any_waste_is_accepted(plays: Callable[[int], Any], solved: dict[str, Any]) -> None:
    sums, _, cost = solved["solution_7"]
    assert solved["check_7"]((sums, plays, cost)) == "Exercise 7: correct."


def test_numbers_of_the_tasks(solved: dict[str, Any]) -> None:
    """The fixed numbers in the checks of Exercises 2 and 3 are those of the problem."""
    garden = solved["garden"]
    query = torch.tensor([0.0, 1.0, 0.5, 0.5], dtype=torch.float64)
    assert abs(float(garden.value(query)) - 3.22) < 1e-3
    assert float(solved["hill"](torch.zeros(3, dtype=torch.float64))) == pytest.approx(-3.04)
    corners = torch.tensor(list(itertools.product(*[[i / 8 for i in range(9)]] * 3)), dtype=torch.float64)
    assert float(solved["hill"](corners).min()) == pytest.approx(-3.04)
    exact = torch.tensor([3.58, 3.52, 3.74, 3.84, 4.0], dtype=torch.float64)
    torch.testing.assert_close(garden.best_values, exact, atol=1e-3, rtol=0)
    goals = {garden.cheapest(a / 200) for a in range(200)}
    assert goals == {0, 1, 3, 4}


# --- typical mistakes: exercise, what the check must say, the answer; a function of the solution makes it


def bell(half: float) -> tuple[float, float]:
    """Mass between the ends and density at an end, for an end at so many deviations."""
    return math.erf(half / math.sqrt(2)), math.exp(-(half**2) / 2) / math.sqrt(2 * math.pi)


def one_end(s: float) -> float:
    mass, density = bell(0.5 / s)
    return s**2 * (1 - 0.5 / s * density / mass)


def no_distance(s: float) -> float:
    mass, density = bell(0.5 / s)
    return s**2 * (1 - 2 * density / mass)


def clipped(s: float) -> float:
    x = torch.linspace(0.5 - 12 * s, 0.5 + 12 * s, 400_001, dtype=torch.float64)
    weight = torch.exp(-(((x - 0.5) / s) ** 2) / 2)
    return float((weight * (x.clamp(0, 1) - 0.5) ** 2).sum() / weight.sum())


def mixed(f, controls, x, nodes, swap=False, shift=0):
    mark = torch.tensor([(j + shift in controls) != swap for j in range(3)])
    return f(torch.where(mark, x, nodes)).mean()


def in_place(f, controls, x, nodes):
    nodes[:, list(controls)] = x[list(controls)]
    return f(nodes).mean()


def at_mean(f, controls, x, nodes):
    mark = torch.tensor([j in controls for j in range(3)])
    return f(torch.where(mark, x, nodes).mean(0))


def at_half(f, controls, x, nodes):
    mark = torch.tensor([j in controls for j in range(3)])
    return f(torch.where(mark, x, torch.full_like(x, 0.5)))


def unaveraged(f, controls, x, nodes):
    mark = torch.tensor([j in controls for j in range(3)])
    return f(torch.where(mark, x, nodes))


def cheapest(values, costs, enough):
    """The first of the cheapest among those that are enough."""
    return int(costs.masked_fill(~enough, math.inf).argmin())


def choice(upper, lower, average, plays, horizon, alpha, **mistakes):
    """One choice of Algorithm 1, with mistakes to choose."""
    radius = mistakes.get("radius", lambda log, n: (2 * log / n).sqrt())(math.log(horizon), plays)
    bound = average - radius
    if mistakes.get("cut", True):
        bound = bound.clamp_min(0)
    good = upper > mistakes.get("bar", (1 - alpha) * lower)
    if mistakes.get("equal", False):
        good = upper >= (1 - alpha) * lower
    least = good & (bound == (bound if mistakes.get("of_all", False) else bound[good]).min())
    if mistakes.get("within", False):
        kept = good.nonzero().flatten()
        return int(upper[kept].masked_fill(~least[kept], -math.inf).argmax())
    if mistakes.get("first", False):
        return int(least.int().argmax())
    return int(upper.masked_fill(~least, -math.inf).argmax())


def wrong_choice(**mistakes):
    return lambda *case: choice(*case, **mistakes)


def own_root(log, n):
    """One radius for all, from the mean number of plays."""
    return torch.full_like(n, float((2 * log / n.mean()).sqrt()))


def wrong_plays(factor=8.0, power=2, log=math.log, extra=1):
    return lambda gap, horizon: math.floor(factor * log(horizon) / gap**power) + extra


def rounds(radius, horizon, spread, factor=8.0, power=2, root=2, log=math.log, extra=1):
    return math.floor(factor * spread**power * log(horizon) / radius**root) + extra


def wrong_rounds(**mistakes):
    return lambda *case: rounds(*case, **mistakes)


def sums(subset, value, costs, optimum, star, cut=True, own=True, sign=1, total=True, weight=None):
    gap, extra = sign * (optimum - value), costs[subset] - costs[star]
    extra = extra.clamp_min(0) if cut else extra
    cost = costs[subset] if own else costs[star].expand_as(gap)
    cost = extra if weight == "extra" else cost
    terms = gap, extra, cost * gap
    return tuple(t.cumsum(0) for t in terms) if total else terms


def wrong_sums(**mistakes):
    return lambda *case: sums(*case, **mistakes)


def thirds(T):
    return torch.arange(T) % 3


def only(i):
    return lambda T: torch.full((T,), i)


def rarely_dear(T):
    plays = torch.zeros(T, dtype=torch.long)
    plays[[n * n - 1 for n in range(1, math.isqrt(T) + 1)]] = 1
    return plays


LOG = math.log(1000)
Case = tuple[int, str, Callable[[Any], Any]]


def changed(number: int, position: int, *pairs: tuple[object, str]) -> list[Case]:
    """Wrong answers in one position of the solution, and what is said of them."""

    def replace(answer: object) -> Callable[[Any], Any]:
        return lambda s: tuple(answer if k == position else part for k, part in enumerate(s))

    return [(number, says, replace(answer)) for answer, says in pairs]


MISTAKES: list[Case] = [
    *changed(
        1,
        0,
        (lambda s: s**2, "the variance of Z"),
        (lambda s: math.sqrt(by_scipy(s)), "standard deviation"),
        (lambda s: by_scipy(s) * bell(0.5 / s)[0], "Divide by the probability"),
        (clipped, "not moved to the ends"),
        (lambda s: by_scipy(s) + 0.25, "square of the mean"),
        (one_end, "two ends"),
        (no_distance, "1 / (2 s)"),
        (lambda s: 0.05, "it should be"),
        (print, "still returns None"),
    ),
    *changed(
        1,
        1,
        (0.25, "No bell"),
        (1 / 3, "E X^2"),
        (math.sqrt(1 / 12), "standard deviation"),
        (math.inf, "at most 1 / 4"),
        (0.08, "also after truncation"),
        (0.5, "very large s"),
        (0.083, "Nearly, but not to four digits."),
    ),
    *changed(
        1,
        2,
        (0.2, "before the truncation"),
        (0.2135**2, "This is s^2"),
        (0.1419, "variance 0.02"),
        (by_scipy(0.2), "This is a variance"),
        (0.3, "Solve"),
        (0.21, "Nearly, but not to four digits."),
    ),
    *changed(
        2,
        0,
        (in_place, "into nodes"),
        (unaveraged, "One number"),
        (lambda *case: unaveraged(*case).sum(), "sum over the draws"),
        (at_mean, "not the average of f"),
        (at_half, "average over nodes"),
        (lambda *case: mixed(*case, swap=True), "exchanged"),
        (lambda *case: mixed(*case, shift=1), "from zero"),
        (lambda f, controls, x, nodes: f(nodes).mean(), "are not set"),
        (lambda f, controls, x, nodes: f(x), "not from x"),
        (lambda *case: 0.0, "wrong for controls"),
        (print, "still returns None"),
    ),
    *changed(
        2,
        1,
        (3.46, "variances are missing"),
        (3.38, "variance of x_2"),
        (3.30, "variance of x_3"),
        (2.26, "not the standard deviation"),
        (3.58, "Here x_1 = 1"),
        (2.56, "not zero"),
        (3.06, "it does not vary"),
        (1.0, "both squares"),
        (3.2, "Nearly, but not to four digits."),
    ),
    *changed(
        2,
        2,
        (0.42, "whole gap"),
        (0.18, "is not 0.8"),
        (0.16, "Add that of x_3"),
        (0.08, "Add that of x_2"),
        (0.48, "twice as much"),
        (-0.24, "sign is reversed"),
        (3.82, "Give the difference"),
        (1.2, "not by the standard deviation"),
        (9.0, "minus the best value"),
    ),
    *changed(
        3,
        0,
        (lambda v, c, a: cheapest(v, c, v > (1 - a) * v.max()), ">=, not >"),
        (lambda v, c, a: cheapest(v, c, v >= v.max() - a), "not absolute|ascend"),
        (lambda v, c, a: cheapest(v, c, v > 0), "Only acceptable"),
        (lambda v, c, a: int((v >= (1 - a) * v.max()).nonzero()[-1]), "ascend"),
        (lambda v, c, a: int((v >= (1 - a) * v.max()).nonzero()[0]), "Only acceptable|ascend"),
        (lambda v, c, a: cheapest(v, c, v >= (1 - a) * v.max()), "the better one"),
        (lambda v, c, a: 0 if a == 0.9 else by_search(v, c, a), "all are acceptable"),
        (lambda v, c, a: 1 if a == 0 else by_search(v, c, a), "the best only"),
        (lambda v, c, a: by_search(v, c, a) if len(v) == 3 else 0, "random tables"),
        (print, "still returns None"),
    ),
    *changed(3, 1, (0, "this one is i_*"), (4, "For alpha = 0 this"), (7, "index from zero")),
    *changed(
        3,
        2,
        (0.105, "before the subtraction"),
        (0.42, "Divide by the new"),
        (0.42 / 0.96, "is to add"),
        (6.62 / 7.04, "1 - alpha"),
        (0.16 / 7.04, "{x_1, x_3}"),
        (0.5, "Then divide"),
        (0.06, "Nearly, but not to four digits."),
    ),
    *changed(
        4,
        0,
        (lambda u, *case: int(u.argmax()), "cheapest is wanted"),
        (lambda u, low, c, n, T, a: int((u - c).argmax()), "decides ties alone"),
        (wrong_choice(bar=-1.0), "do not count"),
        (wrong_choice(within=True), "not among those of S_1"),
        (wrong_choice(equal=True), ">, not >="),
        (lambda u, low, *case: choice(u, low, *case, bar=low), "lowers the bar"),
        (lambda u, low, *case: choice(u, low, *case, bar=low - case[-1]), "share of L"),
        (lambda u, low, c, n, T, a: choice(u, low, c, n * 1e9, T, a), "few plays may"),
        (wrong_choice(cut=False), "tie there"),
        (wrong_choice(first=True), "tie there|largest U"),
        (wrong_choice(radius=lambda log, n: (log / n).sqrt()), "too narrow"),
        (wrong_choice(radius=lambda log, n: (8 * log / n).sqrt()), "too wide"),
        (wrong_choice(radius=own_root), "few plays may|tie there"),
        (lambda u, *case: choice(u, *case) if len(u) == 3 else 0, "random tables"),
        (print, "still returns None"),
    ),
    *changed(
        4,
        1,
        (0, "largest U, but"),
        (1, "Compare U"),
        (2, "not the least"),
        (3, "cannot be good enough"),
        (5, "count from zero"),
        (9, "Give an index"),
    ),
    *changed(
        4,
        2,
        (30, "All subsets of S_3"),
        (48, "Skip what is not in S_1"),
        (72, "were in S_1 too"),
        (24, "how many are in S_3"),
        (0.5, "share of the orders"),
        (12, "has a place"),
        (120, "it is played"),
        (7, "comes first"),
    ),
    *changed(
        5,
        0,
        (wrong_plays(extra=0), "played once more"),
        (lambda gap, horizon: 8 * math.log(horizon) / gap**2, "A whole number"),
        (wrong_plays(factor=2), "two radii too much"),
        (wrong_plays(power=1), "square the gap"),
        (wrong_plays(log=math.log10), "natural one"),
        (lambda gap, horizon: 7, "It should be"),
        (print, "still returns None"),
    ),
    *changed(
        5,
        1,
        (1382 + 346 + 87, "Each wastes its gap"),
        (484.4 + 14, "counts the exploration too"),
        (484.4 - 14, "wastes money as well"),
        (8 * LOG * (5 + 2.5 + 1.25), "whole numbers"),
        (7.0, "Sum gap times"),
    ),
    *changed(
        5,
        2,
        (8 * math.sqrt(LOG / 1e4) * 5 / 4, "m - 1 subsets"),
        (8 * math.sqrt(LOG / 1e4) / 4, "All four"),
        (64 * LOG / 1e4, "the square"),
        (0.7, "solve for the gap"),
    ),
    *changed(
        6,
        0,
        (wrong_rounds(extra=0), "Round up"),
        (wrong_rounds(extra=2), "fewer is enough"),
        (lambda r, T, s: 8 * s**2 * math.log(T) / r**2, "A whole number"),
        (lambda r, T, s: rounds(r, T, 0.5), "spread s is missing"),
        (wrong_rounds(factor=2.0), "factor is 8"),
        (wrong_rounds(power=1), "spread enters by its square"),
        (wrong_rounds(root=1), "radius enters by its square"),
        (wrong_rounds(factor=1.0), "factor 8 is missing"),
        (wrong_rounds(log=float), "Take the logarithm"),
        (wrong_rounds(log=math.log10), "natural"),
        (lambda *case: 3, "It should be"),
        (print, "still returns None"),
    ),
    *changed(
        6,
        1,
        (345, "still cut off"),
        (rounds(0.2, 1000, 0.5, root=1), "enters by its square"),
        (1382, "cost of 0.1"),
        (rounds(0.2, 1000, 0.5, factor=4), "2 log T"),
        (50, "below the cost"),
    ),
    *changed(
        6,
        2,
        (5526, "Round up"),
        (1382, "two of them must fit"),
        (2 * 5527, "plays of one"),
        (346, "answer before"),
        (rounds(0.15, 1000, 0.5), "does 0.15 enter"),
        (rounds(0.3, 1000, 0.5), "not their sum"),
        (rounds(0.05, 1000, 1.0), "For s = 1/2"),
        (50, "less than 0.2"),
    ),
    *changed(
        7,
        0,
        (wrong_sums(total=False), "cumsum"),
        (wrong_sums(sign=-1), "wrong sign"),
        (wrong_sums(cut=False), "no money back"),
        (wrong_sums(weight="extra"), "whole cost"),
        (wrong_sums(own=False), "cost of each play"),
        (lambda i, v, c, o, s: (v.cumsum(0), *sums(i, v, c, o, s)[1:]), "Subtract it from f*"),
        (lambda *case: tuple(t[-1] for t in sums(*case)), "not at the end"),
        (lambda i, *case: (sums(i, *case)[0], case[1][i].cumsum(0), sums(i, *case)[2]), "money that was spent"),
        (lambda *case: sums(*case)[:2], "Three tensors"),
        (lambda *case: tuple(7 * t for t in sums(*case)), "R^f is wrong"),
        (print, "still returns None"),
    ),
    *changed(
        7,
        1,
        (only(0), "no money is wasted"),
        (rarely_dear, "no money is wasted"),
        (only(2), "does not vanish"),
        (thirds, "does not vanish"),
        (only(3), "are 0, 1 and 2"),
        (lambda T: torch.ones(T, dtype=torch.float64), "whole numbers, got torch.float64"),
        (lambda T: torch.ones(T, dtype=torch.bool), "whole numbers, got torch.bool"),
        (lambda T: torch.ones(7, dtype=torch.long), "must give 300 indices"),
        (print, "still returns None"),
    ),
    *changed(7, 2, (0.1, "both are linear"), (0.3, "0.12"), (1.0, "for its plays"), (0.7, "add nothing")),
]


@pytest.mark.parametrize(
    ("number", "says", "answer"), MISTAKES, ids=[f"{n}-{s}-{i}" for i, (n, s, _) in enumerate(MISTAKES)]
)
def test_mistake_is_named(number: int, says: str, answer: Callable[..., object], solved: dict[str, Any]) -> None:
    verdict = solved[f"check_{number}"](answer(solved[f"solution_{number}"]))
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert any(part in verdict for part in says.split("|")), verdict


@pytest.mark.same_bits
def test_mistakes_about_a_policy(solved: dict[str, Any]) -> None:
    aim, difference, error = solved["solution_8"]
    check, UCBPSQ = solved["check_8"], solved["UCBPSQ"]

    def returning(change: Callable[..., Any]) -> type:
        class Changed(UCBPSQ):  # type: ignore[misc]
            def choose(self) -> Any:
                return change(*super().choose())

        return Changed

    class Stub(SubsetPolicy):
        def choose(self) -> Any:
            return None

    class Peeping(SubsetPolicy):
        """The best subset by its true value."""

        def choose(self) -> Any:
            subset = torch.full_like(self.plays[:, 0], self.problem.best_subset)
            return subset, self.search(torch.ones_like(self.plays, dtype=torch.bool)).points

    class Remembers(UCBPSQ):  # type: ignore[misc]
        asked: ClassVar[list[int]] = []  # of the class, which a new start does not clear

        def choose(self) -> Any:
            self.asked.append(self.round)
            subset, points = super().choose()
            return subset, (points + 0.001 * len(self.asked)).clamp(0, 1)

    class Mixes(SubsetPolicy):
        """All replicates play what suits them on average."""

        def choose(self) -> Any:
            found = self.search(torch.ones_like(self.plays, dtype=torch.bool))
            best = (found.mean + self.sqrt_beta * found.std).mean(0).argmax()
            points = (found.points.mean(0) * 64).round().div(64).expand_as(found.points)
            return best.expand(len(self.plays)), points

    class Worst(SubsetPolicy):
        """Always a bad corner, which is then recommended."""

        def choose(self) -> Any:
            corner = torch.tensor([1.0, 1.0, 0.0]).expand(*self.plays.shape, -1)
            return torch.zeros_like(self.plays[:, 0]), corner

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "subclass of SubsetPolicy" in says(GaussianProcess)
    assert "subclass of SubsetPolicy" in says(aim(solved["space"], prior=solved["prior"]))
    assert "a tuple: subset, points" in says(Stub)
    assert "a tuple: subset, points" in says(returning(lambda i, d: [i, d]))
    assert "one subset a replicate" in says(returning(lambda i, d: (i[:1], d)))
    assert "whole indices" in says(returning(lambda i, d: (i.double(), d)))
    assert "indices from 0 to 3" in says(returning(lambda i, d: (i + 4, d)))
    assert "points in [0, 1]" in says(returning(lambda i, d: (i, d + 1)))
    assert "must give points (20, 4, 3)" in says(returning(lambda i, d: (i, d[:, 0])))
    assert "cannot be used: TypeError" in says(UCBCVS)  # it wants the true costs
    assert "cannot be used: AttributeError" in says(Peeping)
    assert "no global state" in says(Remembers)
    assert "depends on its company" in says(Mixes)
    assert "A random decision has" in says(Worst)
    assert "These are Algorithm 1's queries" in check((type("Mine", (solved["CheapestGoodSubset"],), {}), 0.0, 0.0))


def test_mistakes_about_the_difference(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of the library is accepted; it is always the same, so each of the runs of the check is made once."""
    names, runs, simulate = solved["check_8"].__globals__, {}, solved["simulate"]

    def once(problem: object, policy: Any, steps: int, seeds: Any, **options: Any) -> Any:
        key = (type(policy).__name__, steps, tuple(seeds))
        if key not in runs:
            runs[key] = simulate(problem, policy, steps, seeds, **options)
        return runs[key]

    monkeypatch.setitem(names, "simulate", once)
    policy, change = solved["UCBPSQ"], solved["change"]["UCB-PSQ"]
    difference, error = float(change.mean()), float(change.std()) / math.sqrt(20)
    base, run = solved["base_regret"], solved["runs"]["UCB-PSQ"]
    check, last = solved["check_8"], base + change
    unpaired = float((last.var() + base.var()).sqrt()) / math.sqrt(20)
    late = solved["base_run"]["recommended_value"][:, -1] - run["recommended_value"][:, -1]

    def says(difference: float, error: float) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    as_tensors = torch.tensor([difference, error], dtype=torch.float64)
    assert check((policy, *as_tensors)) == "Exercise 8: correct."
    assert "sign is reversed" in says(-difference, error)
    assert "Subtract base_regret" in says(float(last.mean()), error)
    assert "beyond the budget" in says(float(late.mean()), error)
    assert "another number" in says(0.5, error)
    assert "varies less" in says(difference, error * math.sqrt(20))
    assert "paired" in says(difference, unpaired)
    assert "standard error is" in says(difference, 9.0)
