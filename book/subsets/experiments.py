"""What is run at the paper's budget of 100, in the garden and on the paper's problems: see ``registry``.

A table has a row a panel and policy. Per seed: ``simple`` is the simple regret of all plays that the budget pays for,
``cost`` the cost regret for alpha = 0.1, ``plays`` their number, ``good`` the share of the plays after three fifths of
the budget whose subset is in C_*; ``by cost`` is the mean simple regret when 1, 2, ... of the budget was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import files
from book.subsets import drawing, garden, problems
from book.subsets.problem import SubsetProblem
from book.verdict import Paired, holm, paired
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
#: A run ends here at the latest: cheap subsets can be played thousands of times.
MOST = 5000


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


def setting(part: str) -> tuple[SubsetProblem, GaussianProcess | None]:
    """The problem and the prior of ``"ackley/cheap/published"`` or ``"garden/own/right"``; None is a fitted one."""
    objective, costs, prior = part.split("/")[:3]
    problem = garden.garden(50.0) if objective == "garden" else OBJECTIVES[objective](costs, 0.04)
    if prior == "refitted":
        return problem, None
    return problem, garden.prior() if prior == "right" else published(problem)


def table(found: Mapping[str, Mapping[str, Tensor]], objective: str, costs: str, prior: str) -> pd.DataFrame:
    """A row a policy, of what ``numbers`` gave."""
    key = {"objective": objective, "costs": costs, "prior": prior}
    rows = [
        {**key, "policy": policy, **{name: [round(float(x), 4) for x in values] for name, values in part.items()}}
        for policy, part in found.items()
    ]
    return pd.DataFrame(rows)


def panel(part: str, seeds: Sequence[int], most: int | None = None) -> pd.DataFrame:
    """One policy on one panel: ``"ackley/cheap/refitted/ETC-50"``."""
    objective, costs, prior, policy = part.split("/")
    problem, known = setting(part)
    chosen = policies(problem, known, contexts=16, raw=32, steps=6, growth=3.0)[policy]
    return table({policy: numbers(run(problem, chosen, seeds, most or MOST), problem)}, objective, costs, prior)


def panels() -> list[str]:
    """The garden, then the paper's problems."""
    return [f"garden/own/{p}" for p in ("right", "refitted")] + [
        f"{o}/{c}/{p}" for c in COSTS for p in PRIORS for o in OBJECTIVES
    ]


def parts(cheap: bool = False) -> list[str]:
    """All policies on the panels with cheap costs, whose runs are the longest, or on all others."""
    chosen = [name for name in panels() if ("/cheap/" in name) == cheap]
    return [f"{name}/{policy}" for name in chosen for policy in ("proposed", *RIVALS)]


def panel_seeds(part: str, count: int = 20) -> range:
    """Every panel has seeds of its own, which nobody looked at before."""
    own = panels().index(part.rpartition("/")[0])
    return range(1000 * (own + 1), 1000 * (own + 1) + count)


# What is decided.


def stored() -> pd.DataFrame:
    """What a run at the paper's scale left in ``results``."""
    return files.load_table(Path(__file__).parent / "results" / "verdict.json")


def claims(frame: pd.DataFrame) -> dict[tuple[str, ...], Paired]:
    """The regret of each rival minus that of the method, by statistic, panel and rival, widened by Holm over all.

    Positive numbers speak for the method.
    """
    found: dict[tuple[str, ...], Paired] = {}
    for name, part in frame.groupby(["objective", "costs", "prior"], sort=False):
        rows = {row["policy"]: row for _, row in part.iterrows()}
        panel_name = f"{name[0]}, {name[2]} prior"
        for statistic, words in (("simple", "simple regret"), ("cost", "cost regret")):
            for rival in RIVALS:
                if rival in rows and "proposed" in rows:
                    own, other = (torch.tensor(rows[p][statistic], dtype=torch.float64) for p in ("proposed", rival))
                    found[words, panel_name, rival] = paired(own, other)
    return holm(found)


def draw_verdict(frame: pd.DataFrame) -> Figure:
    """All effects, a column for each regret."""
    return drawing.plot_effects(claims(frame))
