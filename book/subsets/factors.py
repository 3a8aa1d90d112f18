"""The map: how the comparison depends on the prior, on the schedule of alpha, and on repairs of the algorithm.

A run is named by what decides it, ``<objective>-<costs>-<variance>-<budget>/<prior>/<policy>``; it has twenty seeds,
and each set of costs has its own. This makes one or more, all that match, and puts each into a file of its own in
``runs``, with its curves and every play:

    python -m book run subsets.map --scale paper --publish --parts 'ackley-cheap-0.04-25/*/proposed'
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.subsets import experiments, problems
from book.subsets.airfoil import load_airfoil
from book.subsets.prior import calibrated, fit_prior, published, scaled
from book.subsets.problem import SubsetProblem
from book.subsets.refit import refitting
from book.subsets.repaired import Repaired, halved_once, halved_with_budget
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, GroupETC, SubsetPolicy
from cbo_lib.subsets.baselines import InverseRoot

ALPHA, SQRT_BETA, SEEDS = 0.1, 2.0, 20
#: Where the runs are kept, and what begins the names of arrays that hold every play.
STORED, _PLAYS = Path(__file__).parent / "runs", "plays."
_RIVALS = ("UCB-PSQ", "TS-PSQ", "proposed")
PRIORS = (
    "pilot",
    "x16",
    "x64",
    "calibrated",
    "shared",
    "shared-x16",
    "published",
    "refitted",
    "refitted-5",
    "refitted-5-often",
)
#: Those that are fitted in the run: uniform plays of all variables that come first, and plays between two fits (none: a
#: tenth of the values at the last one).
FITTED: dict[str, tuple[int, int | None]] = {"refitted": (0, 20), "refitted-5": (5, 20), "refitted-5-often": (5, None)}
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


#: The airfoil from the public measurements: which objectives are airfoils, and the environment's name for the data
#: file, which the book does not ship. Runs on it are stored; who has the file can make them again.
WINGS, DATA = ("airfoil", "measured"), "AIRFOIL_DATA"


@dataclass(frozen=True)
class Panel:
    """What is played.

    Args:
        objective: one of ``experiments.OBJECTIVES``, or ``"measured"``, the airfoil fitted to the public data file.
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
        """The problem with its budget, one object for each panel, which searches for its best values once."""
        return _budgeted(self)

    @property
    def seeds(self) -> range:
        """Those of the cheap costs, or those of the moderate ones."""
        return range(SEEDS) if self.costs == "cheap" else range(100, 100 + SEEDS)


@functools.cache
def _problem(objective: str, costs: Any, variance: float) -> SubsetProblem:
    if objective == "measured":
        if DATA not in os.environ:
            raise ValueError(f"{DATA} must name the airfoil data file in the environment, for the objective 'measured'")
        return problems.airfoil(costs, variance, data=load_airfoil(os.environ[DATA]))
    return experiments.OBJECTIVES[objective](costs, variance)


@functools.cache
def _budgeted(panel: Panel) -> SubsetProblem:
    return _problem(panel.objective, panel.costs, panel.variance).with_budget(float(panel.budget))


@functools.cache
def _played(panel: Panel) -> SubsetProblem:
    """What a run of the map plays: averages of the airfoil, whose f takes long, over 256 points (off by 0.005)."""
    problem = panel.problem
    return dataclasses.replace(problem, nodes=256) if panel.objective in WINGS else problem


@functools.cache
def pilot(objective: str, shared: bool = False) -> GaussianProcess:
    """What the pilot study found; it knows neither costs nor how variables vary."""
    return fit_prior(_problem(objective, "cheap", 0.04), shared=shared)


def prior_of(panel: Panel, name: str) -> GaussianProcess | None:
    """The prior of that name; none if it is fitted in the run."""
    if name in FITTED:
        return None
    first, problem = pilot(panel.objective), panel.problem
    makers: dict[str, Callable[[], GaussianProcess]] = {
        "pilot": lambda: first,
        "x16": lambda: scaled(first, 16.0),
        "x64": lambda: scaled(first, 64.0),
        "calibrated": lambda: calibrated(problem, first, SQRT_BETA),
        "shared": lambda: pilot(panel.objective, True),
        "shared-x16": lambda: scaled(pilot(panel.objective, True), 16.0),
        "published": lambda: published(problem, first),
    }
    return makers[name]()


def policy_of(panel: Panel, prior: str, name: str) -> SubsetPolicy:
    """A policy: ``proposed`` (alpha halved often), ``proposed:<alpha>``, ``repaired:<repair>`` or a baseline.

    ``<alpha>`` is ``once`` (halved after ``d`` plays, and no further) or ``budget`` (halved as the budget halves).
    """
    problem, process = panel.problem, prior_of(panel, prior)
    space = problem.space
    initial, every = FITTED.get(prior, (0, 20))
    options: dict[str, Any] = {"prior": process, "sqrt_beta": SQRT_BETA, "kernel": "rbf", "refit_every": every}

    def made(kind: type[SubsetPolicy], **own: Any) -> SubsetPolicy:
        return (kind if process is not None else refitting(kind, initial))(space, **own, **options)

    kind, _, detail = name.partition(":")
    if kind == "proposed":
        rules: dict[str, dict[str, Any]] = {
            "": {},  # the library's own schedule
            "once": {"alpha": functools.partial(halved_once, every=space.dim)},
            "budget": {"tolerance": halved_with_budget},
        }
        return made(Repaired, **rules[detail])
    if kind == "repaired":
        return made(Repaired, alpha=ALPHA, **REPAIRS[detail])
    if kind == "TS-PSQ":
        return made(TSPSQ, features=256)
    if kind == "UCB-CVS":
        scale = 1.0 if process is None else float(process.kernel.outputscale.sqrt())
        return made(UCBCVS, cost_means=problem.cost_means, epsilon=InverseRoot(scale))
    kinds: dict[str, type[SubsetPolicy]] = {"UCB-PSQ": UCBPSQ, "ETC-50": GroupETC}
    return made(kinds[kind])


def names() -> Iterator[str]:
    """All runs of the map, the most important first."""
    made = dict.fromkeys(itertools.chain(_first(), _second(), _short(), _long(), _rest(), _measured()))  # each once
    lacks = ("/calibrated/", "/refitted-5")  # the pilot's prior is wide enough there; there is no set of all variables
    return (name for name in made if not name.startswith("airfoil") or not any(part in name for part in lacks))


def _first() -> Iterator[str]:
    """Ackley and the plant: priors for all policies, and repairs."""
    ackley, plant = (f"{name}-cheap-0.04-25" for name in ("ackley", "plant"))
    for policy, prior in itertools.product(_RIVALS, ("pilot", "x64", "x16")):
        yield f"{ackley}/{prior}/{policy}"
    for policy, prior in itertools.product(_RIVALS, ("pilot", "x64")):
        yield f"{plant}/{prior}/{policy}"
    for repair in ("none", "radius+ties"):
        yield f"{plant}/pilot/repaired:{repair}"
    for policy in ("UCB-PSQ", "TS-PSQ"):
        yield f"{ackley}/calibrated/{policy}"


def _second() -> Iterator[str]:
    """Hartmann and the airfoil, alpha fixed against halved; then repairs one by one, and other priors."""
    hartmann, airfoil, plant, ackley = (f"{n}-cheap-0.04-25" for n in ("hartmann", "airfoil", "plant", "ackley"))
    for prior, panel, policy in itertools.product(
        ("pilot", "x64", "x16"), (hartmann, airfoil), ("proposed", "repaired:none")
    ):
        yield f"{panel}/{prior}/{policy}"
    for prior, policy in itertools.product(("pilot", "x64", "shared"), ("UCB-PSQ", "TS-PSQ")):
        yield f"{hartmann}/{prior}/{policy}"
    for panel, prior in itertools.product((ackley, plant), ("pilot", "x64", "x16")):
        yield f"{panel}/{prior}/repaired:none"
    for panel in (hartmann, plant, ackley, airfoil):
        for prior in ("refitted", "shared", "calibrated"):
            yield f"{panel}/{prior}/proposed"
    for prior, policy in itertools.product(("pilot", "x64"), ("UCB-PSQ", "TS-PSQ")):
        yield f"{airfoil}/{prior}/{policy}"
    for panel, alpha in itertools.product((plant, hartmann), ("budget", "once")):
        yield f"{panel}/pilot/proposed:{alpha}"


def _short() -> Iterator[str]:
    """The plant at a budget of 12: every repair alone and together, alpha, and priors; short enough for all of them."""
    cheap, moderate = (f"plant-{costs}-0.04-12" for costs in ("cheap", "moderate"))
    for prior, repair in itertools.product(("pilot", "x64"), REPAIRS):
        yield f"{cheap}/{prior}/repaired:{repair}"
    for alpha in ("proposed", "proposed:once", "proposed:budget"):
        yield f"{cheap}/pilot/{alpha}"
    for prior in ("shared", "refitted", "calibrated", "x16"):
        yield f"{cheap}/{prior}/repaired:none"
    for prior, repair in itertools.product(("pilot", "x64"), ("none", "all")):
        yield f"{moderate}/{prior}/repaired:{repair}"


def _long() -> Iterator[str]:
    """Repairs on the other objectives; and the paper's budget of 100, where the order at 25 need not last."""
    for prior, objective, repair in itertools.product(("pilot", "x16"), ("ackley", "hartmann", "airfoil"), REPAIRS):
        yield f"{objective}-cheap-0.04-25/{prior}/repaired:{repair}"
    for objective, prior, policy in itertools.product(("ackley", "hartmann", "plant"), ("x16", "pilot"), _RIVALS):
        yield f"{objective}-moderate-0.04-100/{prior}/{policy}"


def _rest() -> Iterator[str]:
    """Both sets of costs, both variances."""
    policies = ("proposed", "repaired:none", "proposed:budget", "proposed:once", "UCB-PSQ", "TS-PSQ")
    panels = (
        f"{objective}-{costs}-{variance}-25"
        for costs, variance, objective in itertools.product(
            ("cheap", "moderate"), ("0.04", "0.02"), experiments.OBJECTIVES
        )
    )
    for panel, prior, policy in itertools.product(panels, PRIORS, policies):
        yield f"{panel}/{prior}/{policy}"


def _measured() -> Iterator[str]:
    """The airfoil from the public data file, for who has it."""
    for prior, policy in itertools.product(("pilot", "refitted"), _RIVALS):
        yield f"measured-cheap-0.04-25/{prior}/{policy}"


def parse(name: str) -> tuple[Panel, str, str]:
    """The parts of a run's name."""
    panel, prior, policy = name.split("/")
    objective, costs, variance, budget = panel.split("-")
    return Panel(objective, costs, float(variance), int(budget)), prior, policy


def most(panel: Panel, policy: str) -> int:
    """Plays after which a run ends at the latest: costs of 0.01 would pay for thousands."""
    if panel.objective in WINGS:  # all sets are pairs, and f takes long
        return 150 if policy.startswith(("proposed", "repaired")) else 100
    return 12 * panel.budget


def run(name: str, steps: int | None = None, seeds: Sequence[int] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """One run, all seeds, as compact arrays (see ``compact``)."""
    panel, prior, policy = parse(name)
    problem = _played(panel)
    history = simulate(
        problem,
        policy_of(panel, prior, policy),
        steps or most(panel, policy),
        seeds or panel.seeds,
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


#: Amounts at which curves are kept, as shares of the budget.
_GRID = torch.linspace(0, 1, 51, dtype=torch.float64)


def curves_of(stored: Mapping[str, np.ndarray[Any, Any]], name: str) -> dict[str, np.ndarray[Any, Any]]:
    """What the pages read of a run: curves over the budget, and one number a seed.

    ``regret`` (simple), ``quality`` and ``cost`` (cumulative regrets for ``alpha = 0.1``) and ``count`` (plays), each
    ``seeds x 51``; ``plays`` of every subset, ``seeds x 51 x m``, and of Algorithm 1 ``good`` (``S_1``) likewise. One a
    seed: ``inside`` (how often f lay within its width), ``resets``, ``discarded``, and of the exploitation ``late``
    (plays), ``right`` (of these, of ``i_*``), ``held`` (share of plays with ``C_*`` inside ``S_1``), ``upper_holds``
    (share with all bounds of ``C_*`` above the truth).
    """
    panel = parse(name)[0]
    problem = _played(panel)
    best, m = problem.cheapest(ALPHA), problem.space.m
    spent, subset = stored["spent"].astype(float), stored["subset"].astype(int)
    paid = spent <= panel.budget
    amounts = _GRID.numpy() * panel.budget
    costs = problem.cost_means.numpy()
    value = stored["value"].astype(float)
    optimum = float(problem.optimum)
    own = np.eye(m, dtype=int)[subset] * paid[..., None]
    sums = {
        "regret": np.minimum.accumulate(optimum - value, axis=1),
        "quality": np.cumsum(((1 - ALPHA) * optimum - value) * paid, axis=1),
        "cost": np.cumsum(np.maximum(costs[subset] - costs[best], 0) * paid, axis=1),
        "count": np.cumsum(paid, axis=1),
        "plays": own.cumsum(1),
    }
    if "good" in stored:
        sums["good"] = stored["good"]
    found: dict[str, np.ndarray[Any, Any]] = {}
    last = [
        np.minimum(np.searchsorted(row, amounts * (1 + 1e-12), side="right"), n) - 1
        for row, n in zip(spent, paid.sum(1), strict=True)
    ]
    for key, values in sums.items():
        picked = np.stack([row[np.maximum(at, 0)] for row, at in zip(values, last, strict=True)])
        kind = {"regret": np.float32, "quality": np.float32, "cost": np.float32, "good": bool}.get(key, np.int16)
        found[key] = picked.astype(kind)
    number = paid.sum(1).clip(1)
    found["inside"] = (stored["inside"] * paid).sum(1) / number
    if "good" in stored:
        late = paid & ~stored["exploring"]
        many = late.sum(1).clip(1)
        acceptable = problem.acceptable(ALPHA).numpy()
        found["late"] = late.sum(1)
        found["right"] = (late & (subset == best)).sum(1)
        found["held"] = (late & (stored["good"] | ~acceptable).all(-1)).sum(1) / many
        found["upper_holds"] = (late & (stored["upper_holds"] | ~acceptable).all(-1)).sum(1) / many
        for key in ("resets", "discarded"):
            found[key] = (stored[key] * paid).max(1)
    return found


def load(folder: Path = STORED) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """What ``curves_of`` made of each run that is stored, by name of the run, in the order of ``names``."""
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name in names():
        if file_of(name, folder).exists():
            with np.load(file_of(name, folder)) as stored:
                found[name] = {key: stored[key] for key in stored.files if not key.startswith(_PLAYS)}
    return found


def plays(name: str, folder: Path = STORED) -> dict[str, np.ndarray[Any, Any]]:
    """Every play of a stored run, see ``compact``; nothing where curves alone were kept."""
    with np.load(file_of(name, folder)) as stored:
        return {key.removeprefix(_PLAYS): stored[key] for key in stored.files if key.startswith(_PLAYS)}


def work(name: str, seeds: Sequence[int], steps: int | None) -> dict[str, np.ndarray[Any, Any]]:
    """A run as it is stored: its curves, and every play."""
    found = run(name, steps, seeds)
    return curves_of(found, name) | {_PLAYS + key: values for key, values in found.items()}


def by_seed(key: str, array: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What of a run is compared with another: the ends of curves, and what is one number a seed."""
    return {} if key.startswith(_PLAYS) else {key: array.reshape(len(array), -1)[:, -1].astype(float)}


def file_of(name: str, folder: Path = STORED) -> Path:
    """Where a run is kept."""
    return folder / (name.replace("/", "--").replace(":", "@") + ".npz")
