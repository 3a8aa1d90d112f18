"""The checks of the exercise notebook accept its solutions and reject the mistakes that learners make."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm
from torch import Tensor

from cbo_lib.contexts import DRBOMMD, GaussianKDE, SBOKnown, tv_worst_case
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.gp import GaussianProcess
from tests.exercises import *  # noqa: F403  # the tests of all exercise notebooks
from tests.exercises import Exercises, code, draws_a_figure


def needless(cell: dict[str, Any]) -> bool:
    """Figures, and the second world of Exercise 8."""
    aside = draws_a_figure(cell) or "usual" in code(cell) or "check_8" in code(cell)
    return aside and "solution_8" not in code(cell)


notebook, stripped, solved = Exercises("contexts", needless).fixtures()


@pytest.fixture
def remembered(solved: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs of a policy of the notebook are made once, whether or not it is told the distribution."""
    simulate, runs = solved["simulate"], solved.setdefault("runs", {})

    def once(problem: Any, policy: Any, steps: int, seeds: Any) -> Any:
        key = (policy.kind.__name__, policy.kind.__mro__[1], steps, tuple(seeds))  # a probe, or what it probes
        if key not in runs:
            runs[key] = simulate(problem, policy, steps, seeds)
        return runs[key]

    monkeypatch.setitem(solved["check_8"].__globals__, "simulate", once)
    return solved


# --- right answers by other means


def with_scipy(c: Tensor, seen: Tensor) -> list[float]:
    n, d = seen.shape
    h = [(4 / (d + 2)) ** (1 / (d + 4)) * float(seen[:, k].std()) * n ** (-1 / (d + 4)) for k in range(d)]
    place = c.tolist()
    bells = [[math.prod(norm.pdf(x[k], s[k], h[k]) for k in range(d)) for s in seen.tolist()] for x in place]
    return [sum(row) / n for row in bells]


def with_quad(x: float, buy: float, sell: float, salvage: float) -> float:
    def value(c: float) -> float:
        return sell * min(x, c) + salvage * max(0.0, x - c) - buy * x

    inside = quad(lambda c: value(c) * 2 * math.exp(-2 * c), 0, 1, points=[x])[0]
    return inside + math.exp(-2) * value(1.0)


def of_tensors(x: Tensor, buy: Tensor, sell: Tensor, salvage: Tensor) -> Tensor:
    sold = (1 - torch.exp(-2 * x)) / 2
    return (sell - salvage) * sold - (buy - salvage) * x


def with_brentq(first: Tensor, second: Tensor) -> float:
    def gap(radius: float) -> float:
        worst = [float(tv_worst_case(v, v.min(), radius)) for v in (first, second)]
        return worst[1] - worst[0]

    if gap(0) >= 0:
        return 0.0
    return math.inf if gap(2) < 0 else float(brentq(gap, 0, 2))


def by_level(values: Tensor, weights: Tensor, floor: float, radius: float) -> float:
    """The program in kappa, at its kinks."""
    floor = min(floor, float(values.min()))
    levels = [floor, *values.tolist()]
    cut = [float(weights @ values.clamp_max(k)) - min(radius, 2.0) / 2 * max(0.0, k - floor) for k in levels]
    return max(cut)


def by_search(values: Tensor, floor: float, radius: float, beta: float) -> float:
    low = max(0.0, -floor - beta)

    def negative(alpha: float) -> float:
        return beta + radius * alpha - float((values + beta).clamp_max(alpha).mean())

    high = max(low, float(values.max()) + beta) + 1.0
    found = float(minimize_scalar(negative, bounds=(low, high), method="bounded", options={"xatol": 1e-11}).x)
    return low if negative(low) <= negative(found) else found


def by_features(p: Tensor, q: Tensor, gram: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    return ((q - p) @ vectors * values.clamp_min(0).sqrt()).norm()


def by_loop(values: Tensor, p: Tensor, p_hat: Tensor, chosen: int) -> list[float]:
    def mean(row: Tensor, weights: Tensor) -> float:
        return sum(v * w for v, w in zip(row.tolist(), weights.tolist(), strict=True))

    best = max(range(len(values)), key=lambda i: mean(values[i], p))
    first, last = values[best], values[chosen]
    return [
        mean(first, p) - mean(first, p_hat),
        mean(first, p_hat) - mean(last, p_hat),
        mean(last, p_hat) - mean(last, p),
    ]


@pytest.mark.parametrize(
    ("number", "other"),
    [
        (1, with_scipy),
        (2, with_quad),
        (2, of_tensors),
        (3, with_brentq),
        (4, by_level),
        (5, by_search),
        (6, by_features),
        (7, by_loop),
    ],
)
def test_other_means_are_accepted(number: int, other: Callable[..., Any], solved: dict[str, Any]) -> None:
    answer = (other, *solved[f"solution_{number}"][1:])
    assert solved[f"check_{number}"](answer) == f"Exercise {number}: correct."


def test_any_harmless_pair_is_accepted(solved: dict[str, Any]) -> None:
    def cosines() -> tuple[Tensor, Tensor, Tensor]:
        """A full period of a wave averages to zero on any of its equally spaced grids."""
        c = torch.arange(12, dtype=torch.float64) / 12
        values = torch.stack([1 + torch.cos(2 * math.pi * c), torch.sin(2 * math.pi * c)])
        odd = torch.arange(12).remainder(2).double()
        return values, odd / 6, (1 - odd) / 6

    split, _, one, four = solved["solution_7"]
    assert solved["check_7"]((split, cosines, one, four)) == "Exercise 7: correct."


def test_numbers_by_other_means(solved: dict[str, Any]) -> None:
    """The numbers of the solutions, each by a route that the notebook does not take."""
    three = quad(lambda u: math.exp(-(u**2)) / math.sqrt(2 * math.pi), -9, 9)[0] ** 3
    assert solved["solution_1"][1] == pytest.approx(three)
    assert solved["solution_1"][2] == pytest.approx(0.5 ** -(4 + 4))

    def worth(x: float, salvage: float) -> float:
        return with_quad(x, 5, 9, salvage)

    def cut(x: float) -> float:  # the share of the kept days below x, less one half
        return quad(lambda c: 2 * math.exp(-2 * c), 0, x)[0] / quad(lambda c: 2 * math.exp(-2 * c), 0, 1)[0] - 0.5

    best = [float(minimize_scalar(lambda x, w=w: -worth(x, w), bounds=(0, 1), method="bounded").x) for w in (1, 4)]
    _, stock, loss = solved["solution_2"]
    assert stock == pytest.approx(best[1], abs=1e-4)
    assert loss == pytest.approx(worth(best[0], 1) - worth(brentq(cut, 0, 1), 1), abs=1e-6)

    _, radius, first = solved["solution_3"]
    assert radius == pytest.approx(with_brentq(solved["bold"], solved["calm"]))
    assert first == next(t for t in itertools.count(1) if t ** (-1 / 4) < radius)

    v = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    worst = [float(tv_worst_case(v, torch.tensor(0.0), r)) for r in (0.5, 1.0)]
    assert solved["solution_4"][1:] == pytest.approx((worst[0], worst[0] - worst[1]), abs=1e-5)

    grid = torch.cartesian_prod(torch.linspace(0, 1.5, 151), torch.linspace(-1.5, 1, 251)).double()
    allowed = grid[grid.sum(-1) >= 0.2 - 1e-6]  # the floor is -0.2
    height = [solved["program"](float(a), float(b), solved["ten"], 0.5) for a, b in allowed]
    top = allowed[int(torch.tensor(height).argmax())]
    assert solved["solution_5"][1:] == pytest.approx(top.tolist(), abs=1e-5)

    _, largest, first = solved["solution_6"]
    assert float(largest) == pytest.approx(math.sqrt(2 * (1 - math.exp(-0.5))))
    policy = DRBOMMD(solved["beach"].space).batch
    constant = 2 + math.sqrt(2 * math.log(1 / policy.gamma))
    assert first == next(t for t in itertools.count(1) if constant / math.sqrt(t) < largest)

    for dim, T in zip((1, 4), solved["solution_7"][2:], strict=True):
        s = 2 / (4 + dim)

        def excess(T: float, s: float = s) -> float:
            return 4 * T ** (1 - s) / (1 - s) - 0.2 * T

        assert pytest.approx(brentq(excess, 10, 1e8), rel=1e-6) == T


def test_density_of_the_solution_is_the_library_s(solved: dict[str, Any]) -> None:
    random = torch.Generator().manual_seed(5)
    seen, c = torch.randn(2, 7, 4, generator=random, dtype=torch.float64)
    torch.testing.assert_close(solved["density"](c, seen), GaussianKDE(seen).density(c))


# --- typical mistakes: exercise, what the check must say, the answer; a function of the solution makes it


def estimate(c, seen, half=0.5, power=2, order="right", scale=None, rate=None, factor=None, one=False, over=1):
    """A density estimate with mistakes to choose."""
    n, d = seen.shape
    h = seen.std(0, correction=over) * n ** (-1 / (4 + d) if rate is None else rate)
    h = h * ((4 / (d + 2)) ** (1 / (d + 4)) if factor is None else factor)
    h = h.mean().expand(d) if one else h
    square = (c[:, None] - seen) ** 2 / h**power
    bells = torch.exp(-half * square) / (math.sqrt(2 * math.pi) * h)
    result = bells.mean(1).prod(-1) if order == "apart" else bells.prod(-1).mean(1)
    return result * (1.0 if scale is None else scale(n, d, h))


def wrong_density(**mistakes):
    return lambda c, seen: estimate(c, seen, **mistakes)


def takings(x, buy, sell, salvage, rate=2.0, sign=1.0, bought=True, left=True, atom=True, mean=None, kept=False):
    """The expected profit with mistakes to choose."""
    if mean is not None:
        return sell * min(x, mean) + salvage * max(0.0, x - mean) - buy * x
    sold, mass = (1 - math.exp(-rate * x)) / rate, 1.0
    if kept or not atom:
        sold, mass = sold - x * math.exp(-rate), 1 - math.exp(-rate)
    if kept:
        sold, mass = sold / mass, 1.0
    total = sell * sold + (salvage if left else 0.0) * (mass * x - sold) - (buy if bought else 0.0) * mass * x
    return sign * total


def wrong_takings(**mistakes):
    return lambda *case: takings(*case, **mistakes)


def exact_swap(first, second):
    return with_brentq(first, second)


def finite(change):
    """A swap radius with a change where it is neither zero nor infinite."""

    def wrong(first, second):
        radius = exact_swap(first, second)
        return radius if radius in (0, math.inf) else change(radius, first, second)

    return wrong


def gap_at(first, second, radius):
    return float(tv_worst_case(second, second.min(), radius) - tv_worst_case(first, first.min(), radius))


def from_first_slope(radius, first, second):
    step = 2 / len(first)
    start, end = (gap_at(first, second, r) for r in (0, step))
    return -start / (end - start) * step


def from_ends(radius, first, second):
    start, end = (gap_at(first, second, r) for r in (0, 2))
    return -2 * start / (end - start)


def average(values, weights, floor, radius, mass=None, place=None, order=None, whole=False, least=True):
    """The worst average with mistakes to choose."""
    mass = min(radius / 2, 1.0) if mass is None else mass(radius)
    lowest = min(floor, float(values.min())) if least else floor
    lowest = lowest if place is None else place(values)
    order = values.argsort(descending=True) if order is None else order(values)
    total = 0.0
    for i in order.tolist():
        moved = min(float(weights[i]), mass)
        if whole and moved < weights[i]:
            moved = 0.0
        total += moved * lowest + (float(weights[i]) - moved) * float(values[i])
        mass -= float(weights[i]) if not whole or moved > 0 else 0.0
        mass = max(mass, 0.0)
    return total


def wrong_average(**mistakes):
    return lambda *case: average(*case, **mistakes)


def lost(values, weights, floor, radius):
    """The mass does not arrive."""
    lowest = min(floor, float(values.min()))
    return average(values, weights, floor, radius) - min(radius / 2, 1.0) * lowest


def rest(values, weights, floor, radius):
    return lost(values, weights, floor, radius) / max(1e-9, 1 - radius / 2)


def from_top(values, weights, floor, radius):
    fall = float(values.max()) - min(floor, float(values.min()))
    return float(weights @ values) - min(radius / 2, 1.0) * fall


def from_all(values, weights, floor, radius):
    mean = float(weights @ values)
    return mean - radius / 2 * (mean - min(floor, float(values.min())))


def unclamped(values, weights, floor, radius):
    """Right up to radius 2."""
    fall = min(floor, float(values.min()))
    return average(values, weights, floor, radius) if radius <= 2 else fall * radius / 2


def quantile(values, floor, radius, beta, share=None, shift=True, bounded=(True, True), between=False):
    """An alpha with mistakes to choose."""
    share = min(radius, 1.0) if share is None else share(radius)
    shifted = values + beta if shift else values
    if between:
        alpha = float(torch.quantile(shifted, max(0.0, 1 - radius)))
    else:
        ordered = shifted.sort(descending=True).values
        alpha = float(ordered[min(len(ordered) - 1, math.floor(share * len(ordered) + 1e-9))])
    alpha = max(alpha, 0.0) if bounded[0] else alpha
    return max(alpha, -floor - beta) if bounded[1] else alpha


def wrong_quantile(**mistakes):
    return lambda *case: quantile(*case, **mistakes)


def forms(p, q, gram):
    return float(p @ gram @ p), float(q @ gram @ q), float(p @ gram @ q)


def parts(values, p, q, chosen, under="p", change=None):
    true, believed = values @ p, values @ q
    best = int((true if under == "p" else believed).argmax())
    result = torch.stack([true[best] - believed[best], believed[best] - believed[chosen]])
    result = torch.cat([result, (believed[chosen] - true[chosen])[None]])
    return result if change is None else change(result, true[best] - true[chosen])


def wrong_parts(**mistakes):
    return lambda *case: parts(*case, **mistakes)


def pair(values=((0, 0, 1, 1), (0.5, 0.5, -1, -1)), p=(0.5, 0, 0.5, 0), q=(0, 0.5, 0, 0.5)):
    return lambda: tuple(torch.tensor(part, dtype=torch.float64) for part in (values, p, q))


def bound(dim, constant=2.0, share=0.1, factor=None):
    return (constant * ((4 + dim) / (2 + dim) if factor is None else factor) / share) ** ((4 + dim) / 2)


MEDIAN = math.log(2) / 2
LOW = -math.log(1 - (1 - math.exp(-2)) / 2) / 2
FAR = math.sqrt(2 - 2 * math.exp(-0.5))
SWAP = 2 * (0.2 + 0.04 / 0.65)
Case = tuple[int, str, Callable[[Any], Any]]


def worth(x):
    return 4 * (1 - math.exp(-2 * x)) - 4 * x


def kept_worth(x):
    return takings(x, 5, 9, 1, kept=True)


LOSS = worth(MEDIAN) - worth(LOW)


def changed(number: int, position: int, *pairs: tuple[object, str]) -> list[Case]:
    """Wrong answers in one position of the solution, and what is said of them."""

    def replace(answer: object) -> Callable[[Any], Any]:
        return lambda s: tuple(answer if k == position else part for k, part in enumerate(s))

    return [(number, says, replace(answer)) for answer, says in pairs]


MISTAKES: list[Case] = [
    *changed(
        1,
        0,
        (wrong_density(scale=lambda n, d, h: n), "Divide by n"),
        (wrong_density(scale=lambda n, d, h: h.prod()), "narrow bell is tall"),
        (wrong_density(scale=lambda n, d, h: (2 * math.pi) ** (d / 2)), "root of 2 pi"),
        (wrong_density(half=1.0), "one half"),
        (wrong_density(power=1), "squared in the exponent"),
        (lambda c, s: GaussianKDE(s).density(c) if s.shape[1] == 1 else estimate(c, s, order="apart"), "First the"),
        (wrong_density(over=0), "Use n - 1"),
        (wrong_density(factor=1.0), "factor in front"),
        (wrong_density(rate=-1 / 5), "depends on the dimension"),
        (wrong_density(rate=0.0), "shrink with n"),
        (wrong_density(one=True), "bandwidth of its own"),
        (wrong_density(rate=0.0, factor=1.0), "not yet the bandwidth"),
        (lambda c, s: estimate(c, s)[:, None], "got shape (4, 1)"),
        (lambda c, s: torch.ones(4), "The density is wrong"),
        (print, "still returns None"),
    ),
    *changed(
        1,
        1,
        (2**-0.5, "in one dimension"),
        (2**1.5, "its inverse"),
        (1 / 8, "root of one half"),
        (1.0, "half in the exponent"),
        (math.pi**1.5, "constant in front"),
        (0.7, "There are three"),
        (0.35, "Nearly, but not to four digits."),
    ),
    *changed(
        1,
        2,
        (32, "for one context"),
        (16, "4 + Dc, not Dc"),
        (2, "more slowly"),
        (8, "exponent of 2"),
        (1 / 256, "not fewer"),
        (2 ** (1 / 8), "if n doubles"),
        (100, "Solve"),
    ),
    *changed(
        2,
        0,
        (wrong_takings(mean=0.5), "not its mean"),
        (wrong_takings(mean=(1 - math.exp(-2)) / 2), "not its mean"),
        (wrong_takings(bought=False), "must be bought"),
        (wrong_takings(left=False), "sold too"),
        (wrong_takings(sign=-1.0), "sign is reversed"),
        (wrong_takings(rate=0.5), "rate of 2"),
        (wrong_takings(atom=False), "atom is missing"),
        (wrong_takings(kept=True), "count too"),
        (lambda *case: 7.0, "it should be"),
        (print, "still returns None"),
    ),
    *changed(
        2,
        1,
        (MEDIAN, "salvage value 1"),
        (0.8, "Which demand has it"),
        (-math.log(0.8) / 2, "wrong end"),
        (-math.log(5 / 9) / 2, "a unit left costs"),
        (0.5, "mean demand"),
        (1.0, "too rarely"),
        (2 * math.log(5), "rate of 2"),
        (0.6, "weigh the same"),
        (0.81, "Nearly, but not to four digits."),
    ),
    *changed(
        2,
        2,
        (-LOSS, "A loss is"),
        (worth(LOW), "Subtract it from the best"),
        (MEDIAN - LOW, "difference of the stocks"),
        (LOSS / worth(MEDIAN), "share that is lost"),
        (kept_worth(LOW) - kept_worth(MEDIAN), "All days come"),
        (0.0, "costs nothing"),
        (worth(0.5) - worth(LOW), "not the mean"),
        (0.5, "half of the kept days"),
        (0.017, "Nearly, but not to four digits."),
    ),
    *changed(
        3,
        0,
        (finite(lambda r, a, b: r / 2), "radius is twice that"),
        (finite(lambda r, a, b: 2 * r), "half of the radius"),
        (finite(from_first_slope), "a new slope"),
        (finite(from_ends), "no straight line"),
        (finite(lambda r, a, b: 0.0), "still better"),
        (finite(lambda r, a, b: 2.0), "before everything"),
        (finite(lambda r, a, b: math.inf), "There is such a radius"),
        (finite(lambda r, a, b: 1.7), "it is 0."),
        (lambda a, b: exact_swap(a, b) or 0.1, "the radius is 0"),
        (lambda a, b: min(exact_swap(a, b), 2.0), "return math.inf"),
        (print, "still returns None"),
    ),
    *changed(
        3,
        1,
        (SWAP / 2, "radius is twice that"),
        (2 * SWAP, "half of the radius"),
        (0.42 / 0.85, "The rest takes 0.8"),
        (0.75, "no straight line"),
        (0.4, "leads by 0.04"),
        (1.0, "from one context to the next"),
        (0.52, "Nearly, but not to four digits."),
    ),
    *changed(
        3,
        2,
        (13, "a little too large"),
        (15, "a round earlier"),
        (6, "for one context"),
        (7, "for two contexts"),
        (214, "not the mass"),
        (17, "first slope"),
        (100, "fall below"),
    ),
    *changed(
        4,
        0,
        (wrong_average(mass=lambda r: min(r, 1.0)), "half of the radius"),
        (wrong_average(place=lambda v: float(v.min())), "goes to the floor"),
        (wrong_average(least=False), "lies below the floor"),
        (wrong_average(order=lambda v: v.argsort()), "largest values lose first"),
        (wrong_average(order=lambda v: torch.arange(len(v))), "Sort the values"),
        (lambda v, w, f, r: average(v, torch.full_like(w, 1 / len(w)), f, r), "weights are not equal"),
        (wrong_average(whole=True), "part of a weight"),
        (lambda v, w, f, r: float(w @ v), "without any ball"),
        (lost, "must arrive"),
        (rest, "what is left"),
        (from_top, "Not all comes from the top|from radius 2 on"),
        (from_all, "but from the largest"),
        (lambda v, w, f, r: min(f, float(v.min())), "only from radius 2"),
        (unclamped, "Beyond radius 2"),
        (lambda *case: 9.0, "It should be"),
        (print, "still returns None"),
    ),
    *changed(
        4,
        1,
        (0.125, "whole radius moves"),
        (0.25, "between 3/4 and 1"),
        (0.375, "what is left"),
        (0.21875, "what is lost"),
        (0.46875, "not the smallest"),
        (0.5, "without any ball"),
        (0.3, "arrives at 0"),
        (0.28, "Nearly, but not to four digits."),
    ),
    *changed(
        4,
        2,
        (-0.15625, "sign is reversed"),
        (0.125, "Give the difference"),
        (2.25, "the ratio"),
        (4 / 9, "the ratio"),
        (0.25, "from the top"),
        (0.21875, "first ball costs"),
        (0.5, "mass 0.5 moves"),
        (0.154, "Nearly, but not to four digits."),
    ),
    *changed(
        5,
        0,
        (wrong_quantile(share=lambda r: min(r / 2, 1.0)), "Half the radius"),
        (wrong_quantile(shift=False), "shifted by beta"),
        (wrong_quantile(share=lambda r: 0.0), "too dear"),
        (wrong_quantile(share=lambda r: max(0.0, 1 - r)), "not below"),
        (wrong_quantile(between=True), "between two values"),
        (wrong_quantile(bounded=(True, False)), "second constraint"),
        (lambda v, f, r, b: quantile(v, f, r, b) if r < 1 else -f - b, "must not be negative"),
        (lambda v, f, r, b: quantile(v, f, r, b), "as small as allowed"),
        (lambda v, f, r, b: max(0.0, -f - b), "slope is positive"),
        (lambda v, f, r, b: max(0.0, -f - b) + 3.0, "at the best"),
        (lambda *case: -1.0, "must not be negative"),
        (print, "still returns None"),
    ),
    (5, "Which constraint gives alpha", lambda s: (s[0], 0.8, s[2])),
    (5, "mass that moves", lambda s: (s[0], 0.25, s[2])),
    (5, "about delta / 2", lambda s: (s[0], 0.9, s[2])),
    (5, "sign of beta", lambda s: (s[0], s[1], 0.3)),
    (5, "Which mass should lie there", lambda s: (s[0], 0.7, s[2])),
    (5, "for the floor 0", lambda s: (s[0], 0.4, -0.4)),
    (5, "as small as is allowed", lambda s: (s[0], 0.6, -0.2)),
    (5, "must be at least -floor", lambda s: (s[0], 0.2, -0.6)),
    (5, "for the floor 0", lambda s: (s[0], 0.4, s[2])),  # each number is also judged beside the right other one
    (5, "for the floor 0", lambda s: (s[0], s[1], -0.4)),
    (5, "which constraint binds", lambda s: (s[0], 0.6, s[2])),
    (5, "which constraint binds", lambda s: (s[0], s[1], -0.2)),
    (5, "Which constraint gives beta", lambda s: (s[0], s[1], -0.8)),
    (5, "mass that moves", lambda s: (s[0], s[1], 0.25)),
    *changed(
        6,
        0,
        (lambda p, q, K: (q - p) @ K @ (q - p), "Take the root"),
        (lambda p, q, K: (q - p).abs().sum(), "L1 distance"),
        (lambda p, q, K: (q - p).norm(), "kernel matrix is missing"),
        (lambda p, q, K: abs(math.sqrt(forms(p, q, K)[0]) - math.sqrt(forms(p, q, K)[1])), "root comes last"),
        (lambda p, q, K: forms(p, q, K)[2], "p'Kq"),
        (lambda p, q, K: math.sqrt(sum(forms(p, q, K)[:2])), "products of p and q"),
        (lambda p, q, K: math.sqrt(sum(forms(p, q, K)[:2]) - forms(p, q, K)[2]), "meet twice"),
        (lambda p, q, K: (K @ (q - p)).norm(), "one K, not two"),
        (lambda p, q, K: (K @ (q - p)).abs().max(), "largest difference of means"),
        (lambda p, q, K: 9.0, "It should be"),
        (lambda p, q, K: by_features(p, q, K) if bool((p != q).any()) else 0.1, "from itself"),
        (print, "still returns None"),
    ),
    *changed(
        6,
        1,
        (math.sqrt(2), "kernel vanishes"),
        (2.0, "L1 distance"),
        (FAR**2, "Take the root"),
        (1 - math.exp(-0.5), "and then the root"),
        (math.sqrt(1 - math.exp(-0.5)), "factor 2"),
        (math.sqrt(2 + 2 * math.exp(-0.5)), "subtracted"),
        (math.sqrt(2 - 2 * math.exp(-1)), "one half"),
        (math.sqrt(2 - 2 * math.exp(-(0.05**2) / 2)), "farthest apart"),
        (0.5, "at corners"),
        (0.89, "Nearly, but not to four digits."),
    ),
    *changed(
        6,
        2,
        (9, "vanishes at a distance"),
        (21, "still larger"),
        (5, "largest L1 distance"),
        (18, "which is not 1"),
        (20, "squared too"),
        (6, "in front of the root"),
        (56, "under a root"),
        (100, "round up"),
    ),
    *changed(
        7,
        0,
        (lambda v, p, q, i: parts(v, q, p, i), "exchanged"),
        (lambda v, p, q, i: -parts(v, p, q, i, change=lambda t, r: torch.stack([t[0], -r, t[2]])), "exchanged"),
        (wrong_parts(under="q"), "best under p"),
        (wrong_parts(change=lambda t, r: t.flip(0)), "order is reversed"),
        (wrong_parts(change=lambda t, r: t * torch.tensor([1, 1, -1])), "third part"),
        (wrong_parts(change=lambda t, r: t * torch.tensor([-1, 1, 1])), "first part"),
        (wrong_parts(change=lambda t, r: -t), "All signs"),
        (wrong_parts(change=lambda t, r: t.abs()), "no absolute values"),
        (wrong_parts(change=lambda t, r: torch.stack([t[0], r, t[2]])), "under p_hat"),
        (wrong_parts(change=lambda t, r: torch.stack([r, 0 * r, 0 * r])), "They should be"),
        (wrong_parts(change=lambda t, r: 2 * t), "must sum to the regret"),
        (wrong_parts(change=lambda t, r: t[:2]), "Three numbers"),
        (print, "still returns None"),
    ),
    *changed(
        7,
        1,
        (pair(values=((0, 0, 1, 1),), p=(1, 0)), "values n x m"),
        (pair(p=(0.5, 0, 0.6, 0)), "weights of p must"),
        (pair(q=(-0.5, 0.5, 0.5, 0.5)), "weights of p_hat must"),
        (pair(q=(0.5, 0, 0, 0.5)), "share no context"),
        (pair(values=((0, 0, 0.5, 0.5), (0.5, 0.5, -1, -1))), "differ by 0.500 only"),
        (pair(values=((0, 0, 1, 1), (1, 1, 0, 0))), "worth the same"),
        (pair(values=((0, 0.1, 1, 1), (0.5, 0.5, -1, -1))), "differ by 0.050"),
        (print, "still returns None"),
    ),
    *[
        case
        for position, dim in ((2, 1), (3, 4))
        for case in changed(
            7,
            position,
            (bound(dim, share=1.0), "not a tenth"),
            (bound(dim, 1.0), "2 of the distance"),
            (bound(dim, 4.0), "may cost 2B"),
            (bound(dim, factor=1.0), "factor of the sum"),
            (bound(5 - dim), f"So it is for {5 - dim} contexts"),
            (math.log(bound(dim)), "its logarithm"),
            (350.0, f"For Dc = {dim}: solve"),
        )
    ],
]


@pytest.mark.parametrize(
    ("number", "says", "answer"), MISTAKES, ids=[f"{n}-{s}-{i}" for i, (n, s, _) in enumerate(MISTAKES)]
)
def test_mistake_is_named(number: int, says: str, answer: Callable[..., object], solved: dict[str, Any]) -> None:
    verdict = solved[f"check_{number}"](answer(solved[f"solution_{number}"]))
    assert verdict.startswith(f"Exercise {number}: not yet.")
    assert any(part in verdict for part in says.split("|")), verdict


def test_mistakes_about_a_policy(solved: dict[str, Any]) -> None:
    empirical, difference, error = solved["solution_8"]
    check = solved["check_8"]

    def drawing(change: Callable[..., Any]) -> type:
        class Changed(empirical):  # type: ignore[misc, valid-type]
            def draw(self, generators: Any) -> Any:
                return change(self, super().draw(generators))

        return Changed

    class Plain(ContextPolicy):
        def ask(self) -> Tensor:
            return self.design[:, self.round - 1] if self.round <= self.initial else self.chosen()

        def chosen(self) -> Tensor:
            return self.queries[:, 0]

    class Stuck(Plain):
        def chosen(self) -> Tensor:
            return torch.full_like(self.queries[:, 0], 0.5)

    class Outside(Plain):
        def chosen(self) -> Tensor:
            return self.queries[:, 0] + 1.5

    class OneForAll(Plain):
        def chosen(self) -> Tensor:
            return self.queries[:1, 0]

    class OtherDesign(empirical):  # type: ignore[misc, valid-type]
        def ask(self) -> Tensor:
            return self.design[:, -self.round] if self.round <= self.initial else super().ask()

    class Remembers(empirical):  # type: ignore[misc, valid-type]
        asked = 0

        def draw(self, generators: Any) -> Tensor:
            type(self).asked += 1  # what the policy itself holds is forgotten at the start of a run
            return (super().draw(generators) + 0.003 * type(self).asked).clamp(0, 1)

    def says(policy: object) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    assert "subclass of ContextPolicy" in says(GaussianProcess)
    assert "subclass of ContextPolicy" in says(empirical(solved["beach"].space))
    assert "got None" in says(solved["MyPolicy"])
    assert "draw must give shape (20, M, 1), got (20, 4)" in says(drawing(lambda self, c: c.squeeze(-1)))
    assert "draw must give shape (20, M, 1), got (19, 4, 1)" in says(drawing(lambda self, c: c[1:]))
    assert "clip them" in says(drawing(lambda self, c: c + 1))
    assert "must have shape (20, 1), got (1, 1)" in says(OneForAll)
    assert "lie in the box" in says(Outside)
    assert "draw" in says(SBOKnown)
    assert "initial design changed" in says(OtherDesign)
    assert "second run differs" in says(Remembers)
    assert "depends on its company" in says(drawing(lambda self, c: c.mean(0, keepdim=True).expand_as(c)))
    assert "Random decisions have" in says(Stuck)
    assert "These are SBO-KDE's queries" in check((type("Mine", (solved["SBOKDE"],), {}), 0.0, 0.0))


def test_mistakes_about_the_difference(remembered: dict[str, Any]) -> None:
    policy, difference, error = remembered["solution_8"]
    check, base, change = remembered["check_8"], remembered["base_regret"], remembered["change"]["empirical"][:, -1]
    last = base + change
    unpaired = float((last.var() + base.var()).sqrt()) / math.sqrt(20)

    def says(difference: float, error: float) -> str:
        verdict = check((policy, difference, error))
        assert verdict.startswith("Exercise 8: not yet.")
        return verdict

    as_tensors = torch.tensor([difference, error], dtype=torch.float64)
    assert check((policy, *as_tensors)) == "Exercise 8: correct."
    assert "sign is reversed" in says(-difference, error)
    assert "Subtract base_regret" in says(float(last.mean()), error)
    assert "difference a round" in says(difference / 30, error)
    assert "another number" in says(7.0, error)
    assert "varies less" in says(difference, error * math.sqrt(20))
    assert "paired" in says(difference, unpaired)
    assert "standard error is" in says(difference, 9.0)


def test_a_policy_without_draw_is_accepted(remembered: dict[str, Any]) -> None:
    """GP-UCB has an ask of its own and does not look at contexts."""
    change = remembered["change"]["GP-UCB"][:, -1]
    answer = (remembered["GPUCB"], float(change.mean()), float(change.std()) / math.sqrt(20))
    assert remembered["check_8"](answer) == "Exercise 8: correct."
