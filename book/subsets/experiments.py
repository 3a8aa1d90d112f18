"""What the paper's Figures 1 and 2 run, at its budget of 100, and what the garden runs in the page: see ``registry``.

A table has a row a panel and policy. Per seed: ``simple`` is the simple regret of all plays that the budget pays for,
``cost`` the cost regret for alpha = 0.1, ``plays`` their number, ``good`` the share of the plays after three fifths of
the budget whose subset is in C_*; ``by cost`` is the mean simple regret when 1, 2, ... of the budget was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from book.subsets import problems
from book.subsets.problem import SubsetProblem
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.simulate import History, simulate
from cbo_lib.subsets import TSPSQ, UCBCVS, UCBPSQ, CheapestGoodSubset, GroupETC
from cbo_lib.subsets.baselines import InverseRoot

OBJECTIVES: Mapping[str, Callable[..., SubsetProblem]] = {
    "ackley": problems.ackley,
    "plant": problems.plant,
    "hartmann": problems.hartmann,
}
COSTS, PRIORS = ("cheap", "moderate"), ("refitted", "published")
RIVALS = ("ETC-50", "UCB-CVS", "TS-PSQ", "UCB-PSQ")
ALPHA = 0.1
#: A run ends here even if its budget is not spent: cheap subsets could be played thousands of times.
MOST = 360


def published(problem: SubsetProblem) -> GaussianProcess:
    """What the public code of the rivals sets and never fits ([Tay2023]): lengthscale 0.2, variance 1.

    Its outcomes have mean zero; ours have the mean of a pilot's values, which the prior mean takes.
    """
    dim, like = problem.space.dim, problem.cost_means
    x = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(1024, dtype=like.dtype).to(like)
    return GaussianProcess(rbf_kernel([0.2] * dim, 1.0), problem.noise_std, float(problem.f(x).mean()))


def policies(problem: SubsetProblem, prior: GaussianProcess | None, **options: Any) -> dict[str, Any]:
    """The proposed method, the rivals of [Hoang2024], and UCB-CVS, which knows the costs.

    The paper has no schedule for UCB-CVS; here ``epsilon_t = 1 / sqrt(t)``, f having deviation 1.
    """
    space, known = problem.space, {"prior": prior, **options}
    return {
        "proposed": CheapestGoodSubset(space, **known),
        "ETC-50": GroupETC(space, **known),
        "UCB-CVS": UCBCVS(space, cost_means=problem.cost_means, epsilon=InverseRoot(1.0), **known),
        "TS-PSQ": TSPSQ(space, **known),
        "UCB-PSQ": UCBPSQ(space, **known),
    }


def run(problem: SubsetProblem, policy: Any, seeds: Sequence[int], most: int = MOST, watch: Any = None) -> History:
    """Play until every replicate's budget is spent, or ``most`` times."""
    budget = problem.space.budget

    def seen(batch: Any) -> dict[str, Tensor]:
        return {"spent": batch.spent, **(watch(batch) if watch else {})}

    return simulate(problem, policy, most, seeds, watch=seen, stop=lambda batch: bool((batch.spent > budget).all()))


def numbers(history: History, problem: SubsetProblem, alpha: float = ALPHA) -> dict[str, Tensor]:
    """What a run is judged by, see the module: one number a replicate, and the curve."""
    subset, spent, budget = history["query"][..., 0].long(), history["spent"], problem.space.budget
    paid = spent <= budget
    paid[:, 0] = True
    regret = (problem.optimum - history["value"]).masked_fill(~paid, torch.inf).cummin(-1).values
    over = (problem.cost_means[subset] - problem.cost_means[problem.cheapest(alpha)]).clamp_min(0) * paid
    late = paid & (spent > 0.6 * budget)
    amounts = torch.arange(1, int(budget) + 1).to(spent).expand(len(spent), -1)
    done = (torch.searchsorted(spent.contiguous(), amounts.contiguous(), right=True) - 1).clamp_min(0)
    return {
        "simple": regret[:, -1],
        "cost": over.sum(-1),
        "plays": paid.sum(-1).to(spent),
        "good": (problem.acceptable(alpha)[subset] & late).sum(-1) / late.sum(-1).clamp_min(1),
        "by cost": regret.gather(-1, done).mean(0),
    }


def panel(part: str, seeds: Sequence[int], most: int | None = None) -> pd.DataFrame:
    """One policy on one panel: ``"ackley/cheap/refitted/ETC-50"``."""
    objective, costs, prior, policy = part.split("/")
    problem = OBJECTIVES[objective](costs, 0.04)
    known = published(problem) if prior == "published" else None
    chosen = policies(problem, known, contexts=16, raw=32, steps=6, growth=3.0)[policy]
    found = numbers(run(problem, chosen, seeds, most or MOST), problem)
    rounded = {name: [round(float(x), 4) for x in values] for name, values in found.items()}
    return pd.DataFrame([{"objective": objective, "costs": costs, "prior": prior, "policy": policy, **rounded}])


def parts() -> list[str]:
    """All panels and policies, cheap costs first."""
    panels = [f"{o}/{c}/{p}" for c in COSTS for p in PRIORS for o in OBJECTIVES]
    return [f"{name}/{policy}" for name in panels for policy in ("proposed", *RIVALS)]


def panel_seeds(part: str, count: int = 20) -> range:
    """Every panel has seeds of its own, which nobody looked at before."""
    own = sorted({name.rpartition("/")[0] for name in parts()}).index(part.rpartition("/")[0])
    return range(1000 * (own + 1), 1000 * (own + 1) + count)
