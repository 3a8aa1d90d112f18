"""The map: how the comparison depends on the prior, on the schedule of alpha, and on repairs of the algorithm.

A run is named by what decides it, ``<objective>-<costs>-<variance>-<budget>/<prior>/<policy>``; it has twenty seeds,
and each set of costs has its own. This makes one or more, all that match, and resumes where it stopped:

    python -m book.subsets.factors 'ackley-cheap-0.04-50/*/proposed' --out runs

and this puts what is there together into the tables that the pages read, ``results/map.npz`` and ``results/paths.npz``:

    python -m book.subsets.factors --collect runs
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.subsets import experiments
from book.subsets.prior import calibrated, fit_prior, published, scaled
from book.subsets.problem import SubsetProblem
from book.subsets.repaired import Repaired, constant, halved_often, halved_once, halved_with_budget
from cbo_lib.gp import GaussianProcess
from cbo_lib.history import History
from cbo_lib.simulate import simulate
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, GroupETC, SubsetPolicy
from cbo_lib.subsets.baselines import InverseRoot

ALPHA, SQRT_BETA, SEEDS = 0.1, 2.0, 20
PRIORS = ("pilot", "x16", "x64", "calibrated", "shared", "published", "refitted")
#: The repairs one by one, and together.
REPAIRS: dict[str, dict[str, Any]] = {
    "none": {},
    "radius": {"radius": "student"},
    "ties": {"cheap_ties": True},
    "radius+ties": {"radius": "student", "cheap_ties": True},
    "discard": {"discard": True},
    "averages": {"averages": True},
    "all": {"radius": "student", "cheap_ties": True, "discard": True, "averages": True},
}
ALPHAS: dict[str, Callable[..., float]] = {
    "constant": constant,
    "once": halved_once,
    "budget": halved_with_budget,
    "often": halved_often,
}


@dataclass(frozen=True)
class Panel:
    """What is played.

    Args:
        objective: one of ``experiments.OBJECTIVES``.
        costs: ``"cheap"`` or ``"moderate"``.
        variance: of the free variables.
        budget: in units of cost.
    """

    objective: str
    costs: str
    variance: float
    budget: int

    def __str__(self) -> str:
        """As in the name of a run."""
        return f"{self.objective}-{self.costs}-{self.variance:g}-{self.budget}"

    @property
    def problem(self) -> SubsetProblem:
        """The problem with its budget."""
        return _problem(self.objective, self.costs, self.variance).with_budget(float(self.budget))

    @property
    def seeds(self) -> range:
        """Those of the cheap costs, or those of the moderate ones."""
        return range(SEEDS) if self.costs == "cheap" else range(100, 100 + SEEDS)


@functools.cache
def _problem(objective: str, costs: Any, variance: float) -> SubsetProblem:
    return experiments.OBJECTIVES[objective](costs, variance)


@functools.cache
def pilot(objective: str, shared: bool = False) -> GaussianProcess:
    """What the pilot study found; it knows neither costs nor how variables vary."""
    return fit_prior(_problem(objective, "cheap", 0.04), shared=shared)


def prior_of(panel: Panel, name: str) -> GaussianProcess | None:
    """The prior of that name; none if it is fitted in the run."""
    first, problem = pilot(panel.objective), panel.problem
    makers: dict[str, Callable[[], GaussianProcess | None]] = {
        "pilot": lambda: first,
        "x16": lambda: scaled(first, 16.0),
        "x64": lambda: scaled(first, 64.0),
        "calibrated": lambda: calibrated(problem, first, SQRT_BETA),
        "shared": lambda: pilot(panel.objective, True),
        "published": lambda: published(problem, first),
        "refitted": lambda: None,
    }
    return makers[name]()


def policy_of(panel: Panel, prior: str, name: str) -> SubsetPolicy:
    """A policy: ``proposed`` (alpha halved often), ``proposed:<alpha>``, ``repaired:<repair>`` or a baseline."""
    problem, process = panel.problem, prior_of(panel, prior)
    space, options = problem.space, {"prior": process, "sqrt_beta": SQRT_BETA, "kernel": "rbf", "refit_every": 20}
    kind, _, detail = name.partition(":")
    if kind == "proposed":
        rule, extra = ALPHAS[detail or "often"], {"every": space.dim} if detail in ("", "once", "often") else {}
        return Repaired(space, tolerance=functools.partial(rule, **extra), **options)
    if kind == "repaired":
        return Repaired(space, tolerance=constant, **REPAIRS[detail], **options)
    if kind == "TS-PSQ":
        return TSPSQ(space, features=256, **options)
    if kind == "UCB-CVS":
        scale = 1.0 if process is None else float(process.kernel.outputscale.sqrt())
        return UCBCVS(space, cost_means=problem.cost_means, epsilon=InverseRoot(scale), **options)
    return {"UCB-PSQ": UCBPSQ, "ETC-50": GroupETC}[kind](space, **options)


def names() -> Iterator[str]:
    """All runs of the map, the most important first."""
    made = dict.fromkeys(_names())  # each once
    return (name for name in made if not name.startswith("airfoil") or "/calibrated/" not in name)


def _names() -> Iterator[str]:
    def half(variance: float, *costs: str) -> list[Panel]:
        return [Panel(o, c, variance, 50) for c in costs for o in experiments.OBJECTIVES]

    front, both = half(0.04, "cheap"), ("cheap", "moderate")
    rivals = ("proposed", "UCB-PSQ", "TS-PSQ")
    for panel, prior, policy in itertools.product(half(0.04, *both), PRIORS[:-1], rivals):
        yield f"{panel}/{prior}/{policy}"
    for panel, prior, policy in itertools.product(half(0.02, *both), ("pilot", "x64", "calibrated"), rivals):
        yield f"{panel}/{prior}/{policy}"
    for repair, panel in itertools.product(REPAIRS, front):
        yield f"{panel}/{'pilot' if panel.objective == 'airfoil' else 'calibrated'}/repaired:{repair}"
    for alpha, panel in itertools.product(ALPHAS, half(0.04, *both)):
        if alpha != "often":
            yield f"{panel}/{'pilot' if panel.objective == 'airfoil' else 'calibrated'}/proposed:{alpha}"
    for repair, panel in itertools.product(("none", "discard", "averages", "all"), front):
        yield f"{panel}/pilot/repaired:{repair}"
    for prior, policy, panel in itertools.product(("pilot", "calibrated"), ("ETC-50", "UCB-CVS"), front):
        yield f"{panel}/{prior}/{policy}"
    for panel in front:
        yield f"{panel}/refitted/proposed"
    for prior, panel, policy in itertools.product(("pilot", "calibrated"), front[:3], rivals):
        yield f"{Panel(panel.objective, 'cheap', 0.04, 100)}/{prior}/{policy}"


def parse(name: str) -> tuple[Panel, str, str]:
    """The parts of a run's name."""
    panel, prior, policy = name.split("/")
    objective, costs, variance, budget = panel.split("-")
    return Panel(objective, costs, float(variance), int(budget)), prior, policy


def most(panel: Panel, policy: str) -> int:
    """Plays after which a run ends at the latest: costs of 0.01 would pay for thousands."""
    if panel.objective == "airfoil":
        return 240 if policy.startswith(("proposed", "repaired")) else 120
    return {50: 300, 100: 600}[panel.budget]


def run(name: str, steps: int | None = None, seeds: range | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """One run, all seeds, as compact arrays (see ``compact``)."""
    panel, prior, policy = parse(name)
    problem = panel.problem
    history = simulate(
        problem,
        policy_of(panel, prior, policy),
        steps or most(panel, policy),
        seeds or panel.seeds,
        progress=False,
        stop=lambda record: record["spent"] > panel.budget,
    )
    return compact(history, problem)


def compact(history: History, problem: SubsetProblem) -> dict[str, np.ndarray[Any, Any]]:
    """What the map keeps of a history, each ``seeds x T`` or ``seeds x T x m``.

    ``subset``, ``value``, ``spent``, ``recommended_value``; ``inside`` (f at the point played within the width); and of
    Algorithm 1 ``exploring``, ``resets``, ``discarded``, ``alpha``, ``good`` (``S_1``), ``upper``, ``lower``.
    """
    f = problem.f(history["played"])
    kinds: dict[str, tuple[Tensor, Any]] = {
        "subset": (history["subset"], np.int8),
        "value": (history["value"], np.float32),
        "recommended": (history["recommended_value"], np.float32),
        "spent": (history["spent"], np.float32),
        "inside": ((history["mean"] - f).abs() <= SQRT_BETA * history["std"], bool),
        "expected_std": (history["expected_std"], np.float16),
    }
    if "good" in history.tensors:
        kinds |= {
            "exploring": (history["exploring"], bool),
            "resets": (history["resets"], np.int16),
            "discarded": (history["discarded"], np.int16),
            "good": (history["good"], bool),
            "alpha": (history["alpha"], np.float16),
            "upper": (history["upper"], np.float16),
            "lower": (history["lower"], np.float16),
            "upper_holds": (history["upper"] >= problem.best_values - 1e-6, bool),
            "lower_holds": (history["lower"] <= problem.optimum + 1e-6, bool),
        }
    return {key: tensor.cpu().numpy().astype(kind) for key, (tensor, kind) in kinds.items()}


def file_of(folder: Path, name: str) -> Path:
    """Where a run is kept."""
    return folder / (name.replace("/", "--").replace(":", "@") + ".npz")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", help="of runs, or patterns; without any, all are listed")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [name for name in names() if any(fnmatch.fnmatch(name, pattern) for pattern in chosen.name)]
    if not chosen.name:
        print("\n".join(names()))
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        file = file_of(chosen.out, name)
        if not file.exists():
            start = time.process_time()
            np.savez_compressed(file, **run(name))
            print(f"{name}: {time.process_time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
