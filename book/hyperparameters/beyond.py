"""Two experiments beyond the paper's: a master algorithm of its Appendix A, and boxes with fitted candidates.

    python -m book run hyperparameters.masters hyperparameters.boxes --scale paper --publish

Every row holds one regret a seed, so that any two rows can be compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from book import harness
from book.hyperparameters import panels
from book.hyperparameters.panels import Panel
from book.hyperparameters.problem import UnknownPriorProblem
from book.hyperparameters.problems import draws_of_candidates, lengthscale_candidates, random_truth
from book.hyperparameters.regret import cumulative_regret, initial_rounds, simple_regret
from book.hyperparameters.variants import BalancingApart, RegretBalancing
from book.information import greedy_information_gain
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.hyperparameters import (
    HEGPUCB,
    AveragedUCB,
    CandidatePolicy,
    HEStableOpt,
    MaximumLikelihood,
    Space,
)
from cbo_lib.measure import Function

RESULTS = Path(__file__).parent / "results"
Rows = Iterator[dict[str, Any]]
Kind = Literal["plain", "robust", "grid"]


def promises(panel: Panel) -> Tensor:
    """``2 sqrt_beta_n sqrt(C n gamma_n)`` of every candidate's GP-UCB after n of its rounds, ``steps + 1 x |U|``.

    ``gamma_n`` is the greedy gain, which is at least 1 - 1/e of the largest.
    """
    space, steps = panel.problem.space, panel.steps
    kernel = space.candidates.prior(space.noise_std).kernel
    gain = greedy_information_gain(kernel, space.finite(), space.noise_std, steps)  # |U| x steps + 1
    n = torch.arange(steps + 1, dtype=torch.float64)
    beta = torch.stack([torch.as_tensor(panel.sqrt_beta(max(1, t))).expand(len(gain)) for t in range(steps + 1)])
    return 2 * beta * (2 / math.log1p(space.noise_std**-2) * n[:, None] * gain.mT).sqrt()


#: The names of ``master_panels``.
PANELS = ("(a) lengthscale", "(c) decomposition", "(d) mean, printed", "(d) mean, root")


def master_panels(seeds: Sequence[int] = range(100)) -> dict[str, Panel]:
    """Three panels of Figure 2, the last with two readings of its multiplier."""
    return {
        "(a) lengthscale": panels.lengthscale(),
        "(c) decomposition": panels.decomposition(steps=100),
        "(d) mean, printed": panels.mean(seeds),
        "(d) mean, root": panels.mean(seeds, multiplier="root"),
    }


def masters(seeds: Sequence[int], name: str, steps: int | None = None) -> Rows:
    """Regret balancing beside HE-GP-UCB on one of the panels, with data that all share and with data of one's own."""
    panel = master_panels(seeds)[name]
    panel = replace(panel, steps=min(panel.steps, steps or panel.steps))
    space = panel.problem.space
    policies: Mapping[str, CandidatePolicy] = {
        "HE-GP-UCB": HEGPUCB(space, **panel.options),
        "balancing, bounds": RegretBalancing(space, promise=promises(panel), **panel.options),
        "balancing, widths": RegretBalancing(space, **panel.options),
        "apart, bounds": BalancingApart(space, promise=promises(panel), **panel.options),
        "apart, widths": BalancingApart(space, **panel.options),
        "MLE": MaximumLikelihood(space, **panel.options),
    }
    for policy, run in policies.items():
        history = simulate(panel.problem, run, panel.steps + panel.initial, seeds)
        row: dict[str, Any] = dict(summary(panel.problem, history))
        chosen = history["candidate"][:, panel.initial :]
        share = [round(float((chosen == u).double().mean()), 3) for u in range(len(space.candidates))]
        if "alive" in history.tensors:
            row["left"] = round(float(history["alive"][:, -1].sum(-1).double().mean()), 2)
        yield {"panel": name, "policy": policy, **row, "share": share}


def summary(problem: UnknownPriorProblem, history: History) -> dict[str, list[float]]:
    """Cumulative and best regret in the end, one number a seed."""
    notions = {"end": cumulative_regret, "best": simple_regret}
    return {key: [round(float(x), 3) for x in notion(history, problem)[:, -1]] for key, notion in notions.items()}


#: The box experiments' candidates, and f = LEVEL + SIZE times a draw of one of them.
LENGTHSCALES = (0.05, 0.1, 0.2, 0.4)
LEVEL, SIZE, NOISE = 20.0, 3.0, 0.3


def listed(kernels: Sequence[Kernel], known: bool) -> list[Any]:
    """Candidates by their kernels alone, or as priors with the true level, size and noise."""
    if not known:
        return list(kernels)
    found = []
    for kernel in kernels:
        sized = ScaleKernel(kernel).to(torch.float64)
        sized.outputscale = torch.tensor(SIZE**2, dtype=torch.float64)
        found.append(GaussianProcess(sized.requires_grad_(False), NOISE, mean=LEVEL))
    return found


#: How many places stand for the box where StableOpt runs on a grid.
PLACES = 101


def box(
    known: bool,
    kind: Kind,
    seeds: Sequence[int],
    steps: int = 25,
    epsilon: float = 0.05,
) -> Rows:
    """The policies of one kind: ``"plain"`` without a shift, ``"robust"`` with one, ``"grid"`` on a grid of the box."""
    candidates = lengthscale_candidates(LENGTHSCALES)
    truth = random_truth(len(candidates), seeds)
    draw = draws_of_candidates(candidates, truth, seeds)

    def f(points: Tensor) -> Tensor:
        return LEVEL + SIZE * draw(points)

    priors = listed(candidates.kernels, known)
    unit = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    space = Space(priors, bounds=unit, epsilon=0.0 if kind == "plain" else epsilon)
    policies: dict[str, type[CandidatePolicy]] = {"HE-StableOpt": HEStableOpt, "HE-GP-UCB": HEGPUCB}
    if kind == "plain":
        policies = {"HE-GP-UCB": HEGPUCB, "MLE": MaximumLikelihood, "ExpectedUCB": AveragedUCB}
    if kind == "grid":
        points = torch.linspace(0, 1, PLACES, dtype=torch.float64)[:, None]
        space = Space(priors, points=points, epsilon=epsilon)
    problem = UnknownPriorProblem(space, f, NOISE, truth=truth, replicates=len(seeds))
    for name, policy in policies.items():
        history = simulate(problem, policy(space, sqrt_beta=2.0, initial=4), steps + 4, seeds)
        row: dict[str, Any] = {"kind": kind, "sizes": "known" if known else "fitted", "policy": name}
        if "alive" in history.tensors:
            alive = history["alive"][:, -1]
            row["left"] = round(float(alive.sum(-1).double().mean()), 2)
            row["lost"] = round(1 - float(alive.gather(-1, truth[:, None]).double().mean()), 3)
        if kind != "robust":
            row |= summary(problem, history)
        if kind != "plain":
            rounds = box_regret(f, history, epsilon)
            row["box"] = [round(float(x), 3) for x in rounds.sum(-1)]
            if kind == "robust":
                row |= {"end": row["box"], "best": [round(float(x), 3) for x in rounds.amin(-1)]}
        yield row


def box_regret(f: Function, history: History, epsilon: float, places: int = 2**13 + 1) -> Tensor:
    """The epsilon-regret in the box [0, 1] after the initial design, by a dense grid of it, ``seeds x T``.

    The grid has the resolution of the policies, whose points in the box lie on it.
    """
    dense = torch.linspace(0, 1, places, dtype=torch.float64)[:, None]
    reach = round(epsilon * (places - 1))
    values = f(dense.expand(history.replicates, -1, -1))
    worst = -torch.nn.functional.max_pool1d(-values, 2 * reach + 1, 1, reach)  # balls end where the box does
    chosen = history["chosen"] if "chosen" in history.tensors else history["query"]
    index = (chosen[:, initial_rounds(history) :, 0] * (places - 1)).round().long()
    return worst.amax(-1, keepdim=True) - worst.gather(-1, index)


def load(name: str) -> pd.DataFrame:
    """A stored table."""
    return harness.load_table(RESULTS / f"{name}.json")
