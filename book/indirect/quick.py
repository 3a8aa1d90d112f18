"""Cells of the map by features, see ``lowrank``: what ``factors.run`` gives for them, in a tenth of the time.

The whole cross of the two figures can be run so: every reading of the noise and of the widths, every lengthscale, the
learned one too, ``p(x | a)`` known or estimated. Models of the estimate's error need ``factors.run``.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from book.indirect import factors
from book.indirect.factors import BANK, INITIAL
from book.indirect.family import BatchProblem
from book.indirect.lowrank import (
    Asked,
    Draws,
    Entropy,
    OnActions,
    Places,
    Setting,
    Uniform,
    embedded,
    features,
    gram_features,
    left_out,
    recommended,
)
from book.indirect.problems import TAU, UNIT, known_prior, unit_grid
from cbo_lib.former.history import History
from cbo_lib.indirect import ClippedGaussian, Nodes, Space

_T = TypeVar("_T")


#: The stored cells that ``factors.run`` made, by the library's policies, of ``learned`` ones the first fifty functions;
#: all others were made here.
BY_LIBRARY = (
    *(f"fixed/*/{model}" for model in ("deviation", "projected", "noise")),
    "fixed/*/0.24/sd/exact",
    "fixed/*/0.12/sd/exact",
    *(f"fixed/*/{p}/{rest}/exact" for p in ("known", "300", "50") for rest in ("0.24/raw", "0.18/sd")),
    "fixed/*/known/online/sd/exact",
    "budget/*/0.24/*/5",
    "budget/*/0.12/*/5",
    "budget/*/0.18/sd/5",
    "learned/*/300/*/0.24/sd",
)


def by_library(name: str) -> bool:
    """Whether a stored cell was run by the library's policies; see ``BY_LIBRARY``."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in BY_LIBRARY)


def _cached(most: int) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """``lru_cache`` for tensors: they are kept for the device and dtype that tensors have now, and for the grid."""

    def over(work: Callable[..., _T]) -> Callable[..., _T]:
        @functools.lru_cache(maxsize=most)
        def kept(here: tuple[torch.device, torch.dtype, int], *given: Any) -> _T:
            return work(*given)

        @functools.wraps(work)
        def found(*given: Any) -> _T:
            like = torch.empty(0)
            return kept((like.device, like.dtype, factors.GRID), *given)

        return found

    return over


def knows(name: str) -> bool:
    """Whether a cell can be run by features."""
    kind, *rest = name.split("/")
    return kind in ("budget", "learned") or (kind == "fixed" and rest[-1] == "exact")


def run(
    name: str, seeds: Sequence[int] = range(factors.SEEDS), steps: int = factors.STEPS, budget: float = factors.BUDGET
) -> dict[str, Any]:
    """One cell: regrets ``notions x replicates x columns`` by policy; see ``factors.run``.

    Raises:
        ValueError: for a cell that features do not know.
    """
    if not knows(name) or len(name.split("/")) != 6:
        raise ValueError(f"name must be fixed/.../exact, budget/... or learned/... of six parts, got {name!r}")
    kind, h, *rest = name.split("/")
    if kind == "fixed":
        p, length, noise, _ = rest
        return _fixed(h, p, length, noise, tuple(seeds), steps)
    count, width, length, noise, levels = (*rest, "5") if kind == "learned" else ("known", *rest)

    def work(some: Sequence[int]) -> dict[str, Any]:
        return _budget(h, count, width, length, noise, int(levels), tuple(some), budget)

    # Each replicate has features of its own for all of the bank.
    return factors.sliced(work, seeds) if count != "known" and length == "online" else work(seeds)


def _fixed(h: Any, p: str, length: str, noise: str, seeds: tuple[int, ...], steps: int) -> dict[str, Any]:
    truth = _truth(h, "one", None, seeds)
    setting, first = _grid(h, length, noise, seeds, steps)
    priors = _priors(h, p, "one", length, None, seeds)
    runs = {
        "CMES": setting.play(Entropy(setting, priors), first),
        "CMES, Appendix A": setting.play(Entropy(setting, priors, noisy=True), first),
    } | _on_g_fixed(h, length, noise, seeds, steps)
    return {label: _kept(setting, truth, priors, asked, None, seeds) for label, asked in runs.items()}


def _grid(h: Any, length: str, noise: str, seeds: tuple[int, ...], steps: int) -> tuple[Setting, Tensor]:
    """A grid of actions, and the first ones."""
    n = factors.GRID**2
    sigma = torch.full((n,), 0.1 * factors.noise_unit(noise))
    draws = _draws(seeds, max(steps, factors.STEPS))
    first = draws.first(n, 2 if length == "online" else INITIAL)[:, :steps]
    return Setting(_truth(h, "one", None, seeds)[:, :n], sigma, torch.ones(n), draws, steps), first


@_cached(16)
def _on_g_fixed(h: Any, length: str, noise: str, seeds: tuple[int, ...], steps: int) -> dict[str, Asked]:
    """The runs that do not depend on ``p``."""
    setting, first = _grid(h, length, noise, seeds, steps)
    grid = unit_grid(factors.GRID)
    on_g = [_on_actions(grid, some) for some in _of_g(length)]
    runs = {"random": setting.play(Uniform(setting, 2 * len(grid)), first)}
    return runs | {
        f"{kind.upper()} on g": setting.play(OnActions(setting, on_g, kind), first) for kind in ("mes", "ucb", "ei")
    }


def _budget(
    h: Any, p: str, width: str, length: str, noise: str, levels: int, seeds: tuple[int, ...], budget: float
) -> dict[str, Any]:
    setting, fine = _trees(h, width, noise, levels, seeds, budget)
    truth = _truth(h, width, levels, seeds)
    priors = _priors(h, p, width, length, levels, seeds)
    leaves = [Places(part.actions[..., -len(fine.cost) :, :], part.points) for part in priors]
    runs = dict(_on_g(h, width, length, noise, levels, seeds, budget))
    for label, noisy in (("", False), (", Appendix A", True)):
        runs[f"CMETS{label}"] = setting.play(Entropy(setting, priors, noisy, grows=True))
        runs[f"CMES, all nodes{label}"] = setting.play(Entropy(setting, priors, noisy))
        runs[f"CMES{label}"] = fine.play(Entropy(fine, leaves, noisy), fine.draws.first(len(fine.cost), 1))
    where = [(fine, leaves) if label in _FLAT else (setting, priors) for label in (*_ANYWHERE, *_FLAT)]
    return {
        label: _kept(of, truth, those, runs[label], budget, seeds)
        for label, (of, those) in zip((*_ANYWHERE, *_FLAT), where, strict=True)
    }


#: Policies that may ask all nodes, and those that ask the finest.
_ANYWHERE = (
    "CMETS",
    "CMETS, Appendix A",
    "CMES, all nodes",
    "CMES, all nodes, Appendix A",
    "MES per cost, all nodes",
    "EI per cost, all nodes",
    "random, all levels",
)
_FLAT = ("CMES", "CMES, Appendix A", "random", "MES on g", "UCB on g", "EI on g")


def _trees(
    h: Any, width: str, noise: str, levels: int, seeds: tuple[int, ...], budget: float
) -> tuple[Setting, Setting]:
    """All nodes, and the finest."""
    nodes = Nodes.complete(UNIT, levels)
    cost, deepest = nodes.cost(), nodes.level == levels
    truth = _truth(h, width, levels, seeds)[:, : len(cost)]
    sigma = factors.tree_noise(cost, noise)
    draws = _draws(seeds, int(factors.BUDGET / 0.5))
    rounds = int(budget / 0.5)
    whole = Setting(truth, sigma, cost, draws, rounds, budget, nodes)
    few = int(budget / float(cost[-1]))
    return whole, Setting(truth[:, deepest], sigma[deepest], cost[deepest], draws, few, budget)


@_cached(48)
def _on_g(
    h: Any, width: str, length: str, noise: str, levels: int, seeds: tuple[int, ...], budget: float
) -> dict[str, Asked]:
    """The runs that do not depend on ``p``."""
    setting, fine = _trees(h, width, noise, levels, seeds, budget)
    nodes, m = setting.nodes, factors.GRID**2
    assert nodes is not None
    every = [_on_actions(nodes.actions[:, :2], some) for some in _of_g(length)]
    finest = [Places(part.actions[-len(fine.cost) :], part.points) for part in every]
    starts = (setting.draws.first(len(setting.cost), 1), fine.draws.first(len(fine.cost), 1))
    runs = {
        f"{kind.upper()} per cost, all nodes": setting.play(OnActions(setting, every, kind, paid=True), starts[0])
        for kind in ("mes", "ei")
    }
    runs["random, all levels"] = setting.play(Uniform(setting, len(setting.cost) + m, levels=True))
    runs["random"] = fine.play(Uniform(fine, len(fine.cost) + m), starts[1])
    for kind in ("mes", "ucb", "ei"):
        runs[f"{kind.upper()} on g"] = fine.play(OnActions(fine, finest, kind), starts[1])
    return runs


@_cached(8)
def _draws(seeds: tuple[int, ...], rounds: int) -> Draws:
    return Draws(seeds, rounds)


@_cached(16)
def _truth(h: Any, width: str, levels: int | None, seeds: tuple[int, ...]) -> Tensor:
    """Of g at all actions, then f at all points."""
    return factors.truth(factors.seen_through(h, width), _actions(levels), seeds)


def _actions(levels: int | None) -> Tensor:
    """All nodes of a tree, or without one the grid."""
    return unit_grid(factors.GRID) if levels is None else Nodes.complete(UNIT, levels).actions


def _of_g(length: str) -> Sequence[float]:
    return BANK if length == "online" else [factors.g_length(float(length))]


def _on_actions(centers: Tensor, length: float) -> Places:
    """The prior of g on actions; no point is recommended by it."""
    return Places(features(centers, length), features(centers[:1], length))


@_cached(2)
def _priors(h: Any, p: str, width: str, length: str, levels: int | None, seeds: tuple[int, ...]) -> list[Places]:
    """The prior of g and f, one a lengthscale."""
    lengths = BANK if length == "online" else (float(length),)
    grid, actions, conditional = unit_grid(factors.GRID), _actions(levels), factors.seen_through(h, width)
    space = Space(actions, conditional=conditional, points=grid)
    if p == "known":
        found = []
        for some in lengths:
            both = gram_features(known_prior(space, some).kernel.gram)
            found.append(Places(both[: len(actions)], both[len(actions) :]))
        return found
    if levels is None:
        return embedded(factors.grid_embedding(h, space, int(p), seeds), actions, grid, lengths)
    embedding = factors.tree_embedding(h, width, conditional, int(p), seeds)
    return embedded(embedding, factors.by_log_radius(actions), grid, lengths)


def _kept(
    setting: Setting, truth: Tensor, priors: Sequence[Places], asked: Asked, budget: float | None, seeds: Sequence[int]
) -> Any:
    """What is kept of runs, as of the library's."""
    best = recommended(setting, priors, asked) if asked.recommended is None else asked.recommended
    f = truth[:, truth.shape[1] - len(priors[0].points) :]
    tensors = {
        "value": setting.truth.gather(1, asked.query),
        "active": asked.active,
        "cost": torch.where(asked.active, setting.cost[asked.query], 0.0),
        "recommended_value": f.gather(1, best),
    }
    space = Space(
        torch.zeros(1, 1), conditional=ClippedGaussian(lambda a: a, TAU, None), points=torch.zeros(len(f.mT), 1)
    )
    problem = BatchProblem(space, torch.cat([f[:, :1], f], 1), space.conditional, torch.ones(1))  # type: ignore[arg-type]
    return factors.keep(History(tensors, list(seeds)), problem, budget)


def tree_parameters(h: Any, width: str, count: int, seeds: Sequence[int] = range(6)) -> tuple[float, float, float]:
    """What ``factors.TREES`` holds: the smallest leave-one-out error, mean over other data sets than the runs have."""
    x, actions = factors.tree_pairs(factors.seen_through(h, width), count, seeds, stream=7)
    a, ridges = factors.by_log_radius(actions), (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    losses: dict[tuple[float, float, float], float] = {}
    for center in (0.1, 0.2, 0.4, 0.8):
        for level in (1.0, 2.0, 4.0, 1e3):
            each = [left_out(x[r], a[r], (center, center, level), ridges) for r in range(len(seeds))]
            losses |= {(center, level, c): sum(e[i] for e in each) for i, c in enumerate(ridges)}
    return min(losses, key=lambda some: losses[some])
