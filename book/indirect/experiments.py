"""What the paper's Figures 1 and 2 run, the floor of an estimated ``p(x | a)``, and peaks that lie apart.

A run is kept as its regrets by round, ``2 x seeds x rounds``: simple (Definition 1), then instant (Definition 2); with
a budget, by cost. See ``book.indirect.registry`` for the commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.indirect.controls import OnMaximumOfG, PaidEI, RandomLevels
from book.indirect.problem import IndirectProblem
from book.indirect.problems import (
    TAU,
    UNIT,
    Transformation,
    Turned,
    branin,
    branin_moments,
    draw_data,
    known_prior,
    transformation,
    two_peaks,
    unit_grid,
)
from book.indirect.regret import at_cost, instant_regret, simple_regret
from book.verdict import Paired, holm, paired
from cbo_lib.gp import GaussianProcess
from cbo_lib.indirect import (
    CMES,
    CMETS,
    EI,
    MES,
    UCB,
    ClippedGaussian,
    ConditionalMeanEmbedding,
    Nodes,
    RandomActions,
    Space,
)
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import History, simulate

MAPS: tuple[Transformation, ...] = ("linear", "cosine")
#: Points and actions lie on a grid of so many places a side; noise in standard deviations of f; random first actions.
GRID, NOISE, INITIAL, PAIRS, LENGTH, ROUNDS = 20, 0.1, 5, 300, 0.24, 100
Kind = Literal["paper", "moved", "fitted", "short"]
#: What is decided of Figure 1: the paper's function, and moved copies of it.
SETUPS: tuple[Kind, ...] = ("paper", "moved")
#: The deepest level of the tree: the paper's, which decides, and one less.
LEVELS, UNITS = (6, 5), ("sd", "raw")
NOTIONS = ("simple", "instant")
FLAT = ("CMES", "EI on g", "UCB on g", "MES on g", "random")
FAIR = ("CMES, all nodes", "EI per cost, all nodes")
RIVALS = ("EI on g", "UCB on g", "MES on g", "random")
#: Those that can fit a kernel of their own on g; stored for the paper's function.
FITTED = RIVALS[:3]
#: The lengthscale of the kernel on actions and lambda, by map: the smallest leave-one-out error on other data.
EMBEDDING: Mapping[str, tuple[float, float]] = {"linear": (0.2, 1e-3), "cosine": (0.2, 1e-4)}
BUDGET, COSTS = 60, tuple(range(4, 61))
#: Widths of the blur of two peaks: at 0.3 the best action lies at the broad hill.
BLURS = (0.05, 0.15, 0.3)
#: Pairs and noises of the floor; None is a known p(x | a).
SIZES, NOISES = (50, 150, 450, None), (0.1, 0.002)
RESULTS = Path(__file__).parent / "results"


def on_g(length: float, tau: float = TAU, dim: int = 2) -> GaussianProcess:
    """What matches the kernel of f on g: to average over a width tau adds ``2 tau^2`` to its square, and lowers it."""
    wide = math.sqrt(length**2 + 2 * tau**2)
    return GaussianProcess(rbf_kernel(wide, (length / wide) ** dim), NOISE)


def learned(
    h: Transformation,
    seeds: Sequence[int],
    pairs: int | None = PAIRS,
    noise: float = NOISE,
    moved: bool = False,
) -> IndirectProblem:
    """Branin through a map, with an estimate of ``p(x | a)`` from pairs of each seed's own; None: it is known."""
    grid, conditional = unit_grid(GRID), ClippedGaussian(transformation(h), TAU, UNIT)
    space = Space(grid, conditional=conditional, points=grid, noise_std=noise)
    if pairs is not None:
        estimate = ConditionalMeanEmbedding(*draw_data(space, pairs, seeds, UNIT), *EMBEDDING[h])
        space = replace(space, conditional=estimate)
    f = Turned(tuple(seeds)) if moved else branin
    return IndirectProblem(space, f, conditional, order=15, replicates=len(seeds) if moved else None)


def figure_1_policies(space: Space, length: float = LENGTH, fitted: bool = False) -> dict[str, Any]:
    """The policies of Figure 1, which all recommend by one model; ``fitted``: rivals fit a Matern kernel on g."""
    usual: dict[str, Any] = {"prior": GaussianProcess(rbf_kernel(length), NOISE), "initial": INITIAL}
    rival = usual | {"action_prior": None if fitted else on_g(length)}
    policies = {
        "CMES": CMES(space, noisy=True, **usual),
        "MES on g": MES(space, **rival),
        "UCB on g": UCB(space, **rival),
        "EI on g": EI(space, **rival),
        "random": RandomActions(space, **usual),
    }
    return {name: policies[name] for name in (FITTED if fitted else policies)}


def regrets(history: History, problem: IndirectProblem) -> Tensor:
    """Simple, then instant regret of every round, ``2 x seeds x rounds``."""
    return torch.stack([simple_regret(history, problem), instant_regret(history, problem)])


def figure_1(
    kind: Kind,
    h: Transformation,
    seeds: Sequence[int],
    rounds: int = ROUNDS,
    names: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Regrets of the policies of Figure 1, by name.

    Args:
        kind: the paper's function, moved copies of it, or the paper's with rivals that fit a Matern kernel on g, or
            with half the lengthscale for all.
        h: the map.
        seeds: of the pairs, the noise, the choices and the motion.
        rounds: how many.
        names: of the policies. Default all.
    """
    problem = learned(h, seeds, moved=kind == "moved")
    policies = figure_1_policies(problem.space, LENGTH / 2 if kind == "short" else LENGTH, kind == "fitted")
    chosen = {name: policies[name] for name in (names or policies)}
    return {name: regrets(simulate(problem, policy, rounds, seeds), problem) for name, policy in chosen.items()}


def tree_problems(h: Transformation, unit: str, levels: int) -> tuple[IndirectProblem, IndirectProblem, Nodes]:
    """Branin on a tree: with all nodes, and with the finest; ``p(x | a)`` is known and of one width.

    Args:
        h: the map.
        unit: of the noise ``0.5 / cost``, ``"sd"`` of f or ``"raw"``, that of Branin's formula.
        levels: the deepest.
    """
    nodes = Nodes.complete(UNIT, levels)
    cost, conditional = nodes.cost(), ClippedGaussian(transformation(h), TAU, UNIT)
    noise = 0.5 / cost / (1.0 if unit == "sd" else branin_moments()[1])
    found = []
    for some in (nodes.level >= 0, nodes.level == levels):
        part: dict[str, Any] = {"cost": cost[some], "noise_std": noise[some], "points": unit_grid(GRID)}
        found.append(IndirectProblem(Space(nodes.actions[some], conditional=conditional, **part), branin, order=15))
    return found[0], found[1], nodes


def figure_2(
    h: Transformation, unit: str, levels: int, seeds: Sequence[int], rounds: int = 80, costs: Sequence[float] = COSTS
) -> dict[str, Tensor]:
    """Regrets by cost of CMETS, of policies on the finest nodes, and of two that may ask coarse nodes too."""
    whole, fine, nodes = tree_problems(h, unit, levels)
    usual: dict[str, Any] = {"prior": known_prior(LENGTH), "initial": 1}
    wide = on_g(LENGTH)  # on centers: the radius of a node does not count
    lengths = torch.cat([wide.kernel.base_kernel.lengthscale.reshape(-1).expand(2), torch.tensor([1e3]).double()])
    rival = usual | {"action_prior": GaussianProcess(rbf_kernel(lengths, float(wide.kernel.outputscale)), NOISE)}
    policies: dict[str, tuple[IndirectProblem, Any]] = {
        "CMETS": (whole, CMETS(whole.space, nodes=nodes, noisy=True, prior=known_prior(LENGTH))),
        "CMES, all nodes": (whole, CMES(whole.space, noisy=True, **usual)),
        "EI per cost, all nodes": (whole, PaidEI(whole.space, **rival)),
        "random, all levels": (whole, RandomLevels(whole.space, **usual)),
        "CMES": (fine, CMES(fine.space, noisy=True, **usual)),
        "EI on g": (fine, EI(fine.space, **rival)),
        "UCB on g": (fine, UCB(fine.space, **rival)),
        "MES on g": (fine, MES(fine.space, **rival)),
        "random": (fine, RandomActions(fine.space, **usual)),
    }
    found = {}
    for name, (problem, policy) in policies.items():
        flat = int(max(costs) / float(problem.space.cost.amin()))  # of nodes of one price
        history = until_spent(problem, policy, min(rounds, flat), seeds, max(costs))
        spent = problem.space.cost[problem.space.nearest(history["query"])].cumsum(-1)
        found[name] = torch.stack([at_cost(part, spent, costs) for part in regrets(history, problem)])
    return found


def until_spent(problem: IndirectProblem, policy: Any, rounds: int, seeds: Sequence[int], budget: float) -> History:
    """A simulation that ends once every replicate has spent its budget."""
    cost, nearest = problem.space.cost, problem.space.nearest

    def watch(batch: Any) -> dict[str, Tensor]:
        if bool((cost[nearest(batch.queries)].sum(-1) > budget + float(cost.amax())).all()):
            raise StopIteration
        return {}

    try:
        return simulate(problem, policy, rounds, seeds, watch=watch)
    except StopIteration as done:
        return vars(done)["history"]


def floor(pairs: int | None, noise: float, seeds: Sequence[int], rounds: int = 60) -> Tensor:
    """Regret of the point that CMES recommends, linear map, ``seeds x rounds``."""
    problem = learned("linear", seeds, pairs, noise)
    prior = known_prior(LENGTH) if pairs is None else GaussianProcess(rbf_kernel(LENGTH), NOISE)
    history = simulate(problem, CMES(problem.space, noisy=True, prior=prior, initial=INITIAL), rounds, seeds)
    return problem.optimum - history["recommended_value"]


def peaks_problem(blur: float, count: int = 101) -> IndirectProblem:
    """The two peaks of the chapter, seen through a Gaussian of that deviation."""
    x = torch.linspace(-0.5, 3.5, count, dtype=torch.float64)[:, None]
    space = Space(x, conditional=ClippedGaussian(lambda a: a, blur), points=x, noise_std=0.02)
    return IndirectProblem(space, two_peaks)


def peaks_policies(space: Space, blur: float) -> dict[str, Any]:
    """The policies on the two peaks; f has lengthscale 0.2 and variance 0.3, rivals the kernel of g that follows."""
    usual: dict[str, Any] = {"prior": known_prior(0.2, 0.3), "initial": 2}
    wide = math.sqrt(0.2**2 + 2 * blur**2)
    rival = usual | {"action_prior": GaussianProcess(rbf_kernel(wide, 0.3 * 0.2 / wide), NOISE)}
    return {
        "CMES": CMES(space, noisy=True, **usual),
        "MES on g": MES(space, **rival),
        "UCB on g": UCB(space, **rival),
        "EI on g": EI(space, **rival),
        "random": RandomActions(space, **usual),
        "CMES's model, target g*": OnMaximumOfG(space, noisy=True, **usual),
    }


def peaks(blur: float, seeds: Sequence[int], rounds: int = 40) -> dict[str, Tensor]:
    """Regrets of the policies on the two peaks, by name."""
    problem = peaks_problem(blur)
    policies = peaks_policies(problem.space, blur)
    return {name: regrets(simulate(problem, policy, rounds, seeds), problem) for name, policy in policies.items()}


# What is decided: a rival's regret minus that of CMES or CMETS, one number a seed, mean of both maps.


def stored(name: str) -> dict[str, Tensor]:
    """What a run at the paper's scale left in ``results``, ``seeds x 2 x rounds`` by part and policy."""
    with np.load(RESULTS / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]).double() for key in arrays.files}


def pooled(arrays: Mapping[str, Tensor], part: str, policy: str) -> Tensor:
    """The mean of both maps, ``seeds x 2 x rounds``; ``part`` has ``{}`` where the map stands."""
    return torch.stack([arrays[f"{part.format(h)}/{policy}"] for h in MAPS]).mean(0)


def claims() -> dict[tuple[str, ...], Paired]:
    """Every claim of the chapter, from the stored runs, with intervals widened by Holm over all of them.

    Keys are the figure, the setting, the rival, the notion of regret and when. Positive numbers speak for CMES, in
    Figure 2 for CMETS.
    """
    found: dict[tuple[str, ...], Paired] = {}
    curves = stored("figure_1")
    for setup in (*SETUPS, "fitted"):
        own = pooled(curves, f"{'paper' if setup == 'fitted' else setup}/{{}}", "CMES")
        for rival in FITTED if setup == "fitted" else RIVALS:
            other = pooled(curves, f"{setup}/{{}}", rival)
            for notion, t in ((0, 10), (0, ROUNDS), (1, ROUNDS)):
                key = "1", setup, rival, NOTIONS[notion], f"round {t}"
                found[key] = paired(own[:, notion, t - 1], other[:, notion, t - 1])
    trees = stored("figure_2")
    for unit in UNITS:
        own = pooled(trees, f"{{}}/{unit}/{LEVELS[0]}", "CMETS")
        for rival in (*FLAT, *FAIR):
            other = pooled(trees, f"{{}}/{unit}/{LEVELS[0]}", rival)
            for notion, cost in ((0, 15), (0, BUDGET), (1, BUDGET)):
                at = COSTS.index(cost)
                found["2", unit, rival, NOTIONS[notion], f"cost {cost}"] = paired(
                    own[:, notion, at], other[:, notion, at]
                )
    river = stored("peaks")
    for blur in BLURS[1:]:
        for rival in RIVALS:
            pair = paired(river[f"{blur}/CMES"][:, 0, -1], river[f"{blur}/{rival}"][:, 0, -1])
            found["river", str(blur), rival, "simple", "round 40"] = pair
    return holm(found)


# Pictures.


def draw_figure_1(found: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Mean regrets by round, a column a map, a row a notion; ``found`` has the runs ``2 x seeds x rounds`` by map."""
    figure, axes = figures.subplots(2, len(found), figsize=(8.4, 5.6), sharex=True, sharey="row")
    for column, (h, runs) in enumerate(found.items()):
        for row, notion in enumerate(NOTIONS):
            axis = axes[row, column]
            for policy, values in runs.items():
                look = {"markevery": 15, "markersize": 4, **figures.style(policy)}
                axis.plot(range(1, values.shape[-1] + 1), values[row].mean(0), label=policy, **look)
            axis.set_yscale("log")
            axis.set_title(f"{h} map: {notion} regret", fontsize="small")
        axes[1, column].set_xlabel("round")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean regret (sd of f)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    return figure


def draw_differences(arrays: Mapping[str, Tensor]) -> Figure:
    """The rival's simple regret minus that of CMES by round, mean of both maps with plain 95 % bands."""
    figure, axes = figures.subplots(len(SETUPS), len(RIVALS), figsize=(9, 4.8), sharex=True, sharey=True)
    for row, setup in zip(axes, SETUPS, strict=True):
        own = pooled(arrays, f"{setup}/{{}}", "CMES")[:, 0]
        for axis, rival in zip(row, RIVALS, strict=True):
            gap = pooled(arrays, f"{setup}/{{}}", rival)[:, 0] - own
            band = 2.02 * gap.std(0) / len(gap) ** 0.5
            x, color = range(1, gap.shape[1] + 1), figures.style(rival)["color"]
            axis.plot(x, gap.mean(0), color=color)
            axis.fill_between(x, gap.mean(0) - band, gap.mean(0) + band, color=color, alpha=0.25, linewidth=0)
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set_ylim(-0.05, 0.05)
            axis.set_title(f"{rival}, {setup}", fontsize="small")
        row[0].set_ylabel("rival - CMES (sd of f)")
    for axis in axes[-1]:
        axis.set_xlabel("round")
    return figure


def draw_effects(found: Mapping[tuple[str, ...], Paired]) -> Figure:
    """Every claim as a dot with its interval: hollow early, filled at the end, a square for instant regret."""
    columns = [
        ("1, paper", [("1", "paper", rival) for rival in RIVALS] + [("1", "fitted", rival) for rival in FITTED]),
        ("1, moved", [("1", "moved", rival) for rival in RIVALS]),
        ("2, sd", [("2", "sd", rival) for rival in (*FLAT, *FAIR)]),
        ("2, raw", [("2", "raw", rival) for rival in (*FLAT, *FAIR)]),
    ]
    figure, axes = figures.subplots(2, 2, figsize=(9, 7.2))
    for axis, (title, keys) in zip(axes.flat, columns, strict=True):
        for at, key in enumerate(keys):
            pairs = [(k, pair) for k, pair in found.items() if k[:3] == key]
            for shift, (k, pair) in zip((-0.25, 0.0, 0.25), pairs, strict=True):
                early, instant = k[4] in ("round 10", "cost 15"), k[3] == "instant"
                color = figures.style(key[2])["color"]
                axis.plot([pair.low, pair.high], [at + shift] * 2, "-", color=color, linewidth=1.3)
                look = {"marker": "s" if instant else "o", "fillstyle": "none" if early else "full"}
                axis.plot(pair.mean, at + shift, color=color, markersize=4.5, linestyle="", **look)
        axis.axvline(0, color="black", linewidth=1)
        axis.set_xscale("symlog", linthresh=0.01)
        axis.set_xticks([-0.1, -0.01, 0, 0.01, 0.1], ["−0.1", "−.01", "0", ".01", "0.1"])
        axis.minorticks_off()
        axis.set_yticks(range(len(keys)), [key[2] + ", fitted" * (key[1] == "fitted") for key in keys])
        axis.invert_yaxis()
        axis.set_title(f"Figure {title}", fontsize="small")
    axes[1, 0].set_xlabel("rival minus CMES or CMETS (sd of f)")
    return figure


def draw_figure_2(arrays: Mapping[str, Tensor]) -> Figure:
    """Mean simple regret by cost, a column a unit of the noise, mean of both maps."""
    figure, axes = figures.subplots(1, 2, figsize=(8.6, 3.8), sharey=True)
    for axis, unit in zip(axes.flat, UNITS, strict=True):
        for policy in ("CMETS", *FLAT, *FAIR):
            mean = pooled(arrays, f"{{}}/{unit}/{LEVELS[0]}", policy)[:, 0].mean(0)
            look = {"markevery": 10, "markersize": 4, **figures.style(policy)}
            axis.plot(COSTS[: len(mean)], mean, label=policy, **look)
        axis.set(yscale="log", xlabel="cost", title=f"noise in {'sd of f' if unit == 'sd' else 'units of Branin'}")
    axes[0, 0].set_ylabel("mean simple regret (sd of f)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return figure


def draw_floor(arrays: Mapping[str, Tensor]) -> Figure:
    """Mean regret of the recommendation by round, a line a number of pairs, a column a noise."""
    figure, axes = figures.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    for axis, noise in zip(axes.flat, NOISES, strict=True):
        for size, line in zip(SIZES, ("-", "--", "-.", ":"), strict=True):
            mean = arrays[f"{size or 'known'}/{noise}/regret"].mean(0)
            axis.plot(range(1, len(mean) + 1), mean, line, label="p known" if size is None else f"{size} pairs")
        axis.set(yscale="log", xlabel="round", title=f"noise {noise:g}")
    axes[0, 0].set_ylabel("regret of the recommendation")
    axes[0, 1].legend(fontsize="small")
    return figure


def draw_peaks(runs: Mapping[Any, Mapping[str, Tensor]]) -> Figure:
    """Mean simple regret on the river by round, a panel a drift; the runs ``2 x seeds x rounds`` by drift."""
    figure, axes = figures.subplots(1, len(runs), figsize=(8.8, 3.6), sharey=True)
    for axis, (blur, found) in zip(axes.flat, runs.items(), strict=True):
        for policy, values in found.items():
            look = {"markevery": 8, "markersize": 4, **figures.style(policy)}
            axis.plot(range(1, values.shape[-1] + 1), values[0].mean(0), label=policy, **look)
        axis.set(title=f"drift {blur} km", xlabel="round", ylim=(0, None))
    axes[0, 0].set_ylabel("mean simple regret")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure
