"""The map: how Figures 1 and 2 of [Zhang2025] depend on what the paper leaves open.

Every cell runs all its policies on shifted and turned functions, one a seed, a hundred as a batch. A cell of the first
figure is named ``fixed/<map>/<p>/<lengthscale>/<noise>/<model>``, one of the second
``budget/<map>/<width>/<lengthscale>/<noise>/<levels>``, or, with an estimated ``p(x | a)`` and a tree of five levels,
``learned/<map>/<N>/<width>/<lengthscale>/<noise>``:

- ``<p>``: ``known``, or the size ``N`` of ``D1``;
- ``<lengthscale>`` of the kernel of f: a number, or ``online`` (learned in the run, in the first figure from two random
  actions on, in the second from the first action on);
- ``<noise>``: ``sd`` (its numbers are standard deviations of f) or ``raw`` (units of Branin's function); with a budget
  also ``tau`` (the paper's ``0.5 / cost`` is the width, the noise is 0.1);
- ``<model>``: see ``embedded``;
- ``<levels>``: the deepest level of the tree.

This makes some cells of the first figure, all that match, and puts each into a file of its own in ``map``:

    python -m book run indirect.figure_1 --parts 'fixed/*/known/*' --scale paper --publish

``quick`` runs the same cells many times faster, all but the models of an estimate's error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.harness import pick
from book.indirect.controls import (
    NoisyCMES,
    NoisyCMETS,
    PaidActionPolicy,
    RandomLevels,
    RandomQueries,
    usual_policies,
)
from book.indirect.embedded import Embedded
from book.indirect.family import BatchProblem, Turned, batch_table
from book.indirect.online import online
from book.indirect.problems import (
    TAU,
    UNIT,
    branin_moments,
    draw_data,
    draw_inputs,
    known_prior,
    transformation,
    unit_grid,
)
from book.indirect.regret import at_cost, at_rounds, instantaneous_regret, recommendation_regret, simple_regret
from book.verdict import Paired, paired
from cbo_lib.former.history import History, unpack_arrays
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import CMES, CMETS, ActionPolicy, ClippedGaussian, ConditionalMeanEmbedding, Nodes, Space
from cbo_lib.indirect.policies import IndirectPolicy
from cbo_lib.kernels import rbf_kernel
from cbo_lib.random import ReplicateGenerators, uniform

SEEDS, GRID, BUDGET = 100, 20, 60.0
STEPS, INITIAL = 60, 5
#: Rounds and costs at which regrets are kept; the last column is the mean over all rounds, or over ``SPREAD`` costs
#: from the first.
ROUNDS, COSTS, SPREAD = (10, 20, 40, 60), (5.0, 10.0, 15.0, 30.0, 60.0), 56
NOTIONS: Mapping[str, Callable[..., Tensor]] = {
    "simple": simple_regret,
    "instant": instantaneous_regret,
    "recommended": recommendation_regret,
}
#: What a run may learn online, lengthscales of f and of g.
BANK = (0.1, 0.14, 0.2, 0.28, 0.4)
STORED = Path(__file__).with_name("map")
#: The lengthscale of the actions' kernel and lambda, by N: ``pilots.embedding_parameters``.
EMBEDDING: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "linear": {50: (0.2, 1e-3), 300: (0.2, 1e-3), 1500: (0.2, 1e-4)},
    "cosine": {50: (0.2, 1e-3), 300: (0.2, 1e-4), 1500: (0.2, 1e-5)},
}
#: The width of a node ``(center, radius)``, by the reading of Figure 2.
SPREADS: Mapping[str, Any] = {
    "one": TAU,
    "windows": lambda a: a[..., 2] / 2,
    "tau": lambda a: 0.5 / (-0.5 * (a[..., 2]).log2()) / 15,  # cost is half of log2(1 / radius)
}
#: Replicates that are run at once where every one has a table of its own of all places, or five of them.
_SLICE = 25


#: The factors of the cross, as they stand in the names of cells.
MAPS, SIZES, LENGTHS = ("linear", "cosine"), ("known", "300", "1500", "50"), ("0.24", "0.18", "online", "0.12")
READINGS = (("one", "sd"), ("windows", "sd"), ("one", "raw"), ("windows", "raw"), ("tau", "tau"))


def cross() -> Iterator[str]:
    """The full cross of both figures: every reading, width, lengthscale and size of ``D1``, on both maps."""
    for length in LENGTHS:
        yield from (f"fixed/{h}/{p}/{length}/{noise}/exact" for noise in ("sd", "raw") for p in SIZES for h in MAPS)
    for length in LENGTHS:
        yield from (f"budget/{h}/{width}/{length}/{noise}/5" for h in MAPS for width, noise in READINGS)
        yield from (
            f"learned/{h}/{count}/{width}/{length}/{noise}"
            for count in SIZES[1:]
            for h in MAPS
            for width, noise in READINGS
        )


def names() -> Iterator[str]:
    """All cells of the map: the cross, the models of an estimate's error, and a deeper tree."""
    yield from cross()
    for model, sizes in (("deviation", SIZES[1:]), ("projected", ("300", "50")), ("noise", ("300", "50"))):
        yield from (f"fixed/{h}/{p}/0.24/sd/{model}" for p in sizes for h in MAPS)
    yield from (f"fixed/{h}/{p}/0.24/raw/deviation" for p in ("300", "50") for h in MAPS)
    yield from (f"budget/{h}/{width}/0.24/{noise}/6" for h in MAPS for width, noise in READINGS)


def file_of(name: str) -> Path:
    """Where a cell is kept."""
    return STORED / f"{name.replace('/', '--')}.npz"


def run(name: str, seeds: Sequence[int] = range(SEEDS), steps: int = STEPS, budget: float = BUDGET) -> dict[str, Any]:
    """One cell: regrets ``notions x replicates x columns`` by policy.

    Args:
        name: of the cell.
        seeds: one a function.
        steps: rounds of a cell of the first figure.
        budget: of one of the second.

    Raises:
        ValueError: for a name that is none.
    """
    kind, *rest = name.split("/")
    if kind not in ("fixed", "budget", "learned") or len(rest) != 5:
        raise ValueError(f"name must be fixed/..., budget/... or learned/... of six parts, got {name!r}")
    if kind == "budget":
        return _budget(*rest, seeds=seeds, budget=budget)
    if kind == "learned":
        h, n, width, length, noise = rest
        return sliced(
            lambda some: _budget(h, width, length, noise, "5", seeds=some, budget=budget, count=int(n)), seeds
        )
    if rest[1] != "known" and rest[2] == "online":
        return sliced(lambda some: _fixed(*rest, seeds=some, steps=steps), seeds)
    return _fixed(*rest, seeds=seeds, steps=steps)


def sliced(work: Callable[[Sequence[int]], dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """What ``work`` gives for all seeds, a few of them at a time."""
    parts = [work(seeds[i : i + _SLICE]) for i in range(0, len(seeds), _SLICE)]
    return {name: side_by_side([part[name] for part in parts]) for name in parts[0]}


def side_by_side(parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Regrets of some replicates beside those of others."""
    return np.concatenate(parts, 1)


def noise_unit(reading: str) -> float:
    """One unit of noise in standard deviations of f."""
    units = {"sd": 1.0, "raw": 1 / branin_moments()[1], "tau": 1.0}
    if reading not in units:
        raise ValueError(f"noise must be one of sd, raw and tau, got {reading!r}")
    return units[reading]


def tree_noise(cost: Tensor, reading: str) -> Tensor:
    """The standard deviation of the noise of nodes, from their costs."""
    return torch.full_like(cost, 0.1) if reading == "tau" else 0.5 / cost * noise_unit(reading)


def seen_through(h: Any, width: str) -> ClippedGaussian:
    """``p(x | a)`` of a map and a width."""
    return ClippedGaussian(transformation(h), SPREADS[width], UNIT)


def truth(conditional: ClippedGaussian, actions: Tensor, seeds: Sequence[int]) -> Tensor:
    """True g at all actions, then f at all points, ``replicates x (n + m)``."""
    return batch_table(Turned(tuple(seeds)), len(seeds), conditional, actions, unit_grid(GRID))


def grid_embedding(h: str, space: Space, count: int, seeds: Sequence[int]) -> ConditionalMeanEmbedding:
    """The estimate of ``p(x | a)`` of points of the square; one a seed."""
    return ConditionalMeanEmbedding(*draw_data(space, count, seeds, UNIT), *EMBEDDING[h][count])


def _fixed(
    h: Any, p: str, lengthscale: str, noise: str, model: Any, *, seeds: Sequence[int], steps: int
) -> dict[str, Any]:
    grid, sigma = unit_grid(GRID), 0.1 * noise_unit(noise)
    conditional = seen_through(h, "one")
    known = Space(grid, conditional=conditional, points=grid, noise_std=sigma)
    table = truth(conditional, grid, seeds)
    problem = BatchProblem(known, table, conditional, torch.full((len(grid),), sigma))
    space, estimate = known, None
    if p != "known":
        estimate = Embedded(grid_embedding(h, known, int(p), seeds), grid, grid)

    def prior(length: float) -> GaussianProcess:
        return known_prior(known, length) if estimate is None else estimate.prior(length, sigma, model)

    if lengthscale == "online":
        on_g = [GaussianProcess(rbf_kernel(length), sigma) for length in BANK]
        learned: dict[str, Any] = {"bank": [prior(length) for length in BANK], "initial": 2}
        policies: dict[str, Any] = {
            "CMES": online(CMES)(known, **learned),
            "CMES, Appendix A": online(NoisyCMES)(known, **learned),
            "random": online(RandomQueries)(known, **learned),
        } | usual_policies(online(ActionPolicy), known, action_bank=on_g, **learned)
        return _regrets(problem, policies, steps, seeds)
    length = float(lengthscale)
    if estimate is not None and model == "noise":
        space = Space(grid, conditional=conditional, points=grid, noise_std=estimate.noise(length, sigma))
    usual: dict[str, Any] = {"prior": prior(length), "initial": INITIAL}
    policies = {
        "CMES": CMES(space, **usual),
        "CMES, Appendix A": NoisyCMES(space, **usual),
        "random": RandomQueries(space, **usual),
    }
    if model != "noise":
        on_actions = GaussianProcess(rbf_kernel(g_length(length)), sigma)
        policies |= usual_policies(ActionPolicy, space, action_prior=on_actions, **usual)
    return _regrets(problem, policies, steps, seeds)


def g_length(length: float) -> float:
    """What matches the lengthscale of f on g: averaging over a width tau adds ``2 tau^2`` to its square."""
    return (length**2 + 2 * TAU**2) ** 0.5


def _budget(
    h: Any,
    width: str,
    lengthscale: str,
    noise: str,
    levels: str,
    *,
    seeds: Sequence[int],
    budget: float,
    count: int | None = None,
) -> dict[str, Any]:
    nodes = Nodes.complete(UNIT, int(levels))
    cost, deepest, grid = nodes.cost(), nodes.level == int(levels), unit_grid(GRID)
    conditional, sigma = seen_through(h, width), tree_noise(cost, noise)
    tree, fine = (
        Space(nodes.actions[some], conditional=conditional, points=grid, noise_std=sigma[some], cost=cost[some])
        for some in (nodes.level >= 0, deepest)
    )
    table = truth(conditional, nodes.actions, seeds)
    whole = BatchProblem(tree, table, conditional, sigma)
    kept = torch.cat([deepest, torch.ones(len(grid), dtype=torch.bool)])
    leaves = BatchProblem(fine, table[:, kept], conditional, sigma[deepest])
    kind: Callable[[Any], Any] = online if lengthscale == "online" else lambda policy: policy
    embedding = None if count is None else tree_embedding(h, width, conditional, count, seeds)
    every, flat, on_g = ({"budget": budget, **part} for part in _priors(tree, fine, lengthscale, embedding))
    flat["initial"] = 1
    paid = {**every, **on_g, "initial": 1}
    policies: dict[str, IndirectPolicy] = {
        "CMETS": kind(CMETS)(tree, nodes=nodes, **every),
        "CMETS, Appendix A": kind(NoisyCMETS)(tree, nodes=nodes, **every),
        "CMES, all nodes": kind(CMES)(tree, **every),
        "CMES, all nodes, Appendix A": kind(NoisyCMES)(tree, **every),
        "MES per cost, all nodes": kind(PaidActionPolicy)(tree, acquisition="mes", **paid),
        "EI per cost, all nodes": kind(PaidActionPolicy)(tree, acquisition="ei", **paid),
        "random, all levels": kind(RandomLevels)(tree, **every),
        "CMES": kind(CMES)(fine, **flat),
        "CMES, Appendix A": kind(NoisyCMES)(fine, **flat),
        "random": kind(RandomQueries)(fine, **flat),
    } | usual_policies(kind(ActionPolicy), fine, **{**flat, **on_g})
    return _regrets({n: leaves if p.space is fine else whole for n, p in policies.items()}, policies, None, seeds)


#: Of trees: the lengthscales of centers and of the level in the kernel of actions, and lambda.
TREES: Mapping[tuple[str, str], Mapping[int, tuple[float, float, float]]] = {
    ("linear", "one"): {50: (0.2, 1e3, 1e-3), 300: (0.2, 1e3, 1e-3), 1500: (0.2, 1e3, 1e-4)},
    ("cosine", "one"): {50: (0.2, 1e3, 1e-3), 300: (0.2, 1e3, 1e-4), 1500: (0.2, 1e3, 1e-5)},
    ("linear", "windows"): {50: (0.2, 4.0, 1e-2), 300: (0.2, 4.0, 1e-3), 1500: (0.2, 4.0, 1e-4)},
    ("cosine", "windows"): {50: (0.2, 4.0, 1e-2), 300: (0.2, 4.0, 1e-3), 1500: (0.2, 4.0, 1e-4)},
    ("linear", "tau"): {50: (0.2, 1e3, 1e-3), 300: (0.2, 1e3, 1e-4), 1500: (0.2, 4.0, 1e-4)},
    ("cosine", "tau"): {50: (0.2, 1e3, 1e-3), 300: (0.2, 1e3, 1e-4), 1500: (0.1, 1e3, 1e-4)},
}


def tree_pairs(
    conditional: ClippedGaussian, count: int, seeds: Sequence[int], stream: int = 4
) -> tuple[Tensor, Tensor]:
    """A ``D1`` of regions for each seed: uniform centers, and a level of 0 to 5 that is drawn evenly.

    Returns:
        Inputs ``replicates x N x 2`` and actions ``(center, radius)``, ``replicates x N x 3``.
    """
    generators = ReplicateGenerators(seeds, stream=stream).generators
    draws = uniform(generators, (count, 3), UNIT)
    radius = 0.5 ** ((6 * draws[..., 2:]).floor() + 1)
    actions = torch.cat([draws[..., :2], radius], -1)
    return draw_inputs(conditional, actions, generators), actions


def by_log_radius(actions: Tensor) -> Tensor:
    """Actions ``(center, radius)`` with the level ``log2(1 / radius)`` in the place of the radius."""
    return torch.cat([actions[..., :2], -actions[..., 2:].log2()], -1)


def tree_embedding(
    h: str, width: str, conditional: ClippedGaussian, count: int, seeds: Sequence[int]
) -> ConditionalMeanEmbedding:
    """The estimate of ``p(x | a)`` of regions, with the level as a coordinate; one a seed."""
    x, actions = tree_pairs(conditional, count, seeds)
    center, level, ridge = TREES[h, width][count]
    return ConditionalMeanEmbedding(x, by_log_radius(actions), torch.tensor([center, center, level]), ridge)


def _priors(
    tree: Space, fine: Space, lengthscale: str, embedding: ConditionalMeanEmbedding | None
) -> list[dict[str, Any]]:
    """The options that hold the priors: of all places of the tree, of those of its leaves, and of g."""
    lengths = BANK if lengthscale == "online" else (float(lengthscale),)
    # On g: the center alone, the radius does not count.
    of_g = lengths if lengthscale == "online" else [g_length(length) for length in lengths]
    parts: list[list[GaussianProcess]] = [
        [_places_prior(space, length, embedding) for length in lengths] for space in (tree, fine)
    ]
    parts.append([GaussianProcess(rbf_kernel([length, length, 1e3]), 0.1) for length in of_g])
    names = ["bank", "bank", "action_bank"] if lengthscale == "online" else ["prior", "prior", "action_prior"]
    return [{n: p if lengthscale == "online" else p[0]} for n, p in zip(names, parts, strict=True)]


def _places_prior(space: Space, length: float, embedding: ConditionalMeanEmbedding | None) -> GaussianProcess:
    if embedding is None:
        return known_prior(space, length)
    assert space.points is not None and space.noise is not None
    return Embedded(embedding, by_log_radius(space.actions), space.points).prior(length, float(space.noise.amin()))


def _regrets(
    problem: BatchProblem | Mapping[str, BatchProblem],
    policies: Mapping[str, IndirectPolicy],
    steps: int | None,
    seeds: Sequence[int],
) -> dict[str, Any]:
    result = {}
    for label, policy in policies.items():
        of = problem if isinstance(problem, BatchProblem) else problem[label]
        most = steps or int(policy.budget / float(of.space.costs.amin()))
        # A replicate that cannot pay anything more is done.
        history = simulate(of, policy, most, seeds, progress=False, stop=_stop(policy) if steps is None else None)
        result[label] = keep(history, of, None if steps else policy.budget)
    return result


def _stop(policy: IndirectPolicy) -> Callable[[Mapping[str, Tensor]], Tensor]:
    return lambda record: ~policy.active


def keep(history: History, problem: BatchProblem, budget: float | None = None) -> np.ndarray[Any, Any]:
    """What is kept of a run: regrets at ``ROUNDS`` or ``COSTS`` and the mean, ``notions x replicates x columns``.

    Args:
        history: of the run.
        problem: of the run.
        budget: None for a cell of the first figure.
    """
    rows = []
    for notion in NOTIONS.values():
        values = notion(history, problem)
        if budget is None:
            rows.append(at_rounds(values, ROUNDS))
        else:
            at = torch.tensor([min(cost, budget) for cost in COSTS])
            spread = torch.linspace(min(COSTS[0], budget), budget, SPREAD)
            over = at_cost(values, history, spread).mean(-1, keepdim=True)
            rows.append(torch.cat([at_cost(values, history, at), over], -1))
    return torch.stack(rows).numpy().astype(np.float32)


@dataclass(frozen=True)
class Map:
    """Stored regrets, ``notions x replicates x columns`` each, by ``<cell>/<policy>``."""

    arrays: Mapping[str, np.ndarray[Any, Any]]

    @classmethod
    def load(cls, folder: str | Path = STORED) -> Map:
        """What the command stored, a file a cell, in the order of ``names``."""
        order = {file_of(name).name: name for name in names()}
        there = {path.name: path for path in Path(folder).glob("*.npz")}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for file, name in order.items():
            if file in there:
                own = unpack_arrays(there[file].read_bytes())
                arrays |= {f"{name}/{policy}": array for policy, array in own.items()}
        return cls(arrays)

    @functools.cached_property
    def _policies(self) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
        """The arrays of each cell by policy."""
        found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for name, array in self.arrays.items():
            cell, policy = name.rsplit("/", 1)
            found.setdefault(cell, {})[policy] = array
        return found

    @property
    def cells(self) -> list[str]:
        """The names of the cells that are there."""
        return list(self._policies)

    def regret(self, cell: str, policy: str, notion: str = "simple", at: float | str = "mean") -> Tensor:
        """One regret a replicate, after a round or at a cost, or the mean over all; ``"later"`` without the first cost.

        Raises:
            ValueError: for a cell, policy, notion or column that is not there.
        """
        if cell not in self._policies:
            raise ValueError(f"cell must be one of the map, got {cell!r}")
        if at == "later" and cell.startswith(("budget", "learned")):
            every, first = (self.regret(cell, policy, notion, each) for each in ("mean", int(COSTS[0])))
            return (SPREAD * every - first) / (SPREAD - 1)
        columns = [*(ROUNDS if cell.startswith("fixed") else map(int, COSTS)), "mean"]
        which = pick({name: i for i, name in enumerate(NOTIONS)}, notion, "notion")
        column = pick({str(name): i for i, name in enumerate(columns)}, str(at), "at")
        return torch.from_numpy(pick(self._policies[cell], policy, "policy")[which, :, column]).double()

    def paired(self, cell: str, policy: str, rival: str, notion: str = "simple", at: float | str = "mean") -> Paired:
        """Regret of the rival minus that of the policy, function by function: positive speaks for the policy."""
        return paired(self.regret(cell, policy, notion, at), self.regret(cell, rival, notion, at))
