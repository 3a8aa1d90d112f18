"""The proof as a walk: runs of Algorithm 1 as its theorems have it, and both sides of every step in them.

The runs are stored; this command makes them again:

    python -m book run subsets.walk --scale paper --publish
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from book.subsets import experiments
from book.subsets.factors import ALPHA, SQRT_BETA, Panel, prior_of
from book.subsets.problem import SubsetProblem
from book.subsets.regret import cost_regret, quality_regret
from cbo_lib.former.history import History
from cbo_lib.gp import GaussianProcess

TAU, STEPS, SEEDS = 8, 100, range(5)
#: What is walked, by objective and prior. Under the first four bounds hold, or nearly; under the last two they do not.
RUNS = (
    ("hartmann", "x64"),
    ("ackley", "x64"),
    ("plant", "x64"),
    ("airfoil", "pilot"),
    ("ackley", "pilot"),
    ("hartmann", "pilot"),
)
_KEPT = (
    "subset",
    "value",
    "spent",
    "cost",
    "played",
    "mean",
    "std",
    "expected_mean",
    "expected_std",
    "upper",
    "lower",
    "cost_lower",
    "good",
    "exploring",
    "horizon",
    "resets",
)


def setup(objective: str, prior: str) -> tuple[SubsetProblem, GaussianProcess]:
    """A problem with money enough, cheap costs and variance 0.04, and the prior of that name."""
    panel = Panel(objective, "cheap", 0.04, 25)
    process = prior_of(panel, prior)
    if process is None:
        raise ValueError(f"prior must be one that is known beforehand, got {prior!r}")
    return panel.problem.with_budget(1e6), process


def run(objective: str, prior: str, seeds: Sequence[int] = SEEDS, steps: int = STEPS) -> History:
    """Runs with fixed ``alpha``, ``tau`` rounds of exploration and a known horizon."""
    problem, process = setup(objective, prior)
    found = experiments.sweep_alpha(problem, [ALPHA], seeds, steps, TAU, prior=process)[ALPHA]
    return History({key: found[key] for key in _KEPT}, found.seeds, found.config, found.provenance)


def file_of(folder: Path, objective: str, prior: str) -> Path:
    """Where a run is kept."""
    return folder / f"walk-{objective}-{prior}.npz"


@dataclass(frozen=True)
class Step:
    """Both sides of an inequality, ``replicates x n``, or ``x m`` if it speaks of every subset; where it applies."""

    left: Tensor
    right: Tensor
    applies: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        """The share of places where it holds, for every subset if it speaks of all, one a replicate."""
        holds = self.left <= self.right + 1e-9
        where = torch.ones_like(holds) if self.applies is None else self.applies.expand_as(holds)
        if holds.dim() == 3:
            holds, where = (holds | ~where).all(-1), where.any(-1)
        return (holds & where).flatten(1).sum(-1) / where.flatten(1).sum(-1).clamp_min(1)

    @property
    def ends(self) -> tuple[float, float]:
        """Both sides at the last place, averaged over replicates."""
        return float(self.left[:, -1].mean()), float(self.right[:, -1].mean())


def steps(
    history: History, problem: SubsetProblem, process: GaussianProcess, failure: float = 0.1
) -> Mapping[str, Step]:
    """Every inequality of the walk, in the order of the page.

    Where the proof has the largest information gain, this takes what was gained by the points played, which makes each
    claim stronger. The prior variance ``s^2`` multiplies the lemmas' right sides, which are stated for ``s = 1``.
    """
    m, best, share = problem.space.m, problem.best_subset, 1 - ALPHA
    exploring, subset, f_star = history["exploring"], history["subset"], problem.optimum
    scale = float(process.kernel.outputscale.sqrt())
    width = SQRT_BETA * history["expected_std"]
    constant = scale * (4 * math.log(m / failure) + 8 * math.log(4) + 1)
    regret = quality_regret(history, problem, ALPHA)
    late = ~exploring
    early = exploring[0].sum()

    def total(values: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, values, 0.0).cumsum(-1)

    def gained(where: Tensor) -> Tensor:
        """Information of the points played there, at most what a posterior of these points alone would say."""
        return total(0.5 * torch.log1p((history["std"] / float(process.noise_std)).square()), where)

    def lemma_6(where: Tensor) -> Tensor:
        return scale * (4 * (where.cumsum(-1) + 2) * gained(where)).sqrt()

    own = exploring & (subset == best)
    turns = width[own].view(len(width), -1)
    upper, known = history["upper"][:, early:], history["upper"][:, early:].isfinite()
    truth = problem.best_values.expand_as(upper)
    acceptable = problem.acceptable(ALPHA).expand_as(upper)
    threshold = (f_star - history["lower"][:, early:]).expand(len(width), -1)
    once = 2 * turns
    sum_bound = 2 * SQRT_BETA * (2 * lemma_6(own)[:, -1:] + constant)
    picked = history["upper"].gather(-1, subset.unsqueeze(-1)).squeeze(-1)
    now = history["expected_mean"] + width
    plays = torch.nn.functional.one_hot(subset, m).cumsum(1) - torch.nn.functional.one_hot(subset, m)
    times = plays.gather(-1, subset.unsqueeze(-1)).squeeze(-1).clamp_min(1)
    radius = (2 * math.log(STEPS) / times).sqrt()
    late_plays = late.cumsum(-1)
    return {
        "1 mean within its width": Step(
            (history["mean"] - problem.f(history["played"])).abs(), SQRT_BETA * history["std"]
        ),
        "2 U_i above f_i*": Step(truth, upper, known),
        "2 L below f*": Step(history["lower"], f_star.expand_as(history["lower"])),
        "3 others, explored": Step(
            total(regret, exploring & ~own), total(share * f_star.expand_as(regret), exploring & ~own)
        ),
        "4 best, explored: width": Step(total(regret, own), total(2 * width, own)),
        "4 Lemma 7": Step(total(history["expected_std"], own), 2 * total(history["std"], own) + constant),
        "4 Lemma 6": Step(total(history["std"], own), lemma_6(own)),
        "5 C_* inside S_1": Step(acceptable.double(), history["good"][:, early:].double()),
        "6 f* - L under least width": Step(threshold, once.amin(-1, keepdim=True).expand_as(threshold)),
        "6 least under average": Step(once.amin(-1, keepdim=True), once.mean(-1, keepdim=True)),
        "6 average under lemmas": Step(once.mean(-1, keepdim=True), sum_bound / turns.shape[-1]),
        "7 threshold under U": Step(share * history["lower"][:, early:], picked[:, early:]),
        "7 U under today's": Step(picked[:, early:], now[:, early:]),
        "7 today's under two widths": Step((now - history["value"])[:, early:], 2 * width[:, early:]),
        "8 exploited, in all": Step(
            total(regret, late)[:, -1:],
            total(2 * width, late)[:, -1:] + share * late.sum(-1, keepdim=True) * once.amin(-1, keepdim=True),
        ),
        "8 widths under lemmas": Step(
            total(history["expected_std"], late)[:, -1:], 2 * lemma_6(late)[:, -1:] + m * constant
        ),
        "9 one play's cost": Step(cost_regret(history, problem, ALPHA)[:, early:], 2 * radius[:, early:]),
        "10 all costs, by radii": Step(total(cost_regret(history, problem, ALPHA), late), total(2 * radius, late)),
        "10 radii under the new bound": Step(
            total(2 * radius, late), 4 * (2 * math.log(STEPS) * m * late_plays).sqrt()
        ),
        "10 radii under the printed": Step(
            total(2 * radius, late), 2 * late_plays * math.sqrt(2 * math.log(STEPS) / TAU)
        ),
    }
