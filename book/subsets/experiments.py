"""The experiments of the paper: regret against cost, evaluations against cost, and what alpha trades.

``scale="paper"`` has the paper's budget of 100 and five seeds, ``scale="reader"`` a budget of 25 and three of them. The
published curves of the paper's scale are stored; this command makes them, resuming where it stopped:

    python -m book run subsets.figure_1 --parts 'hartmann-cheap*' --scale paper --publish
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.axes import Axes
from torch import Tensor

from book import figures, harness
from book.functions import maximum, rkhs_samples
from book.harness import Comparison, Scale
from book.subsets import problems
from book.subsets.marginals import truncated_normal
from book.subsets.prior import fit_prior
from book.subsets.problem import SubsetProblem
from book.subsets.problems import Costs
from book.subsets.regret import (
    against_cost,
    cost_regret,
    counted,
    evaluations,
    plays,
    quality_regret,
    share_of_last_tenth,
    simple_regret,
)
from cbo_lib.former.history import History
from cbo_lib.former.simulate import simulate
from cbo_lib.gp import GaussianProcess
from cbo_lib.kernels import rbf_kernel
from cbo_lib.subsets import (
    TSPSQ,
    UCBCVS,
    UCBPSQ,
    CheapestGoodSubset,
    Effort,
    GroupETC,
    Space,
    SubsetPolicy,
)
from cbo_lib.subsets.baselines import InverseRoot

OBJECTIVES: Mapping[str, Callable[..., SubsetProblem]] = {
    "hartmann": problems.hartmann,
    "ackley": problems.ackley,
    "plant": problems.plant,
    "airfoil": problems.airfoil,
}
#: Plays after which a run ends even if the budget is not spent: at costs of 0.01 it would pay for thousands.
_MOST = 1000


def known_norm(
    norm: float = 2.0,
    seed: int = 0,
    noise_std: float = 0.1,
    costs: Sequence[float] = (0.1, 0.15, 0.2, 0.5, 1.0),
    variance: float = 0.04,
) -> tuple[SubsetProblem, GaussianProcess]:
    """A problem on which the theory applies, and the prior that belongs to it.

    ``f = b + g`` on three variables with ``g`` of a known norm in the space of an RBF kernel of lengthscale 0.4 and
    variance 1, and ``b`` such that ``f >= 0``; the prior mean is ``b``. The control sets are the single variables, the
    first two together, and all three.

    Args:
        norm: of ``g``, ``B``.
        seed: of the draw.
        noise_std: of the values, and a fifth of it of the costs.
        costs: mean costs of the five control sets.
        variance: of a free variable.
    """
    kernel, box = rbf_kernel(0.4), torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    draw = rkhs_samples(kernel, box, norm, [seed])

    def g(x: Tensor) -> Tensor:
        return draw(x.unsqueeze(0)).squeeze(0)

    floor = float(maximum(lambda x: -g(x), box)[1])
    sets = ((0,), (1,), (2,), (0, 1), (0, 1, 2))
    space = Space(box, sets, (truncated_normal(variance),) * 3, budget=100.0)
    means = torch.tensor(costs, dtype=torch.float64)
    problem = SubsetProblem(space, lambda x: g(x) + floor, means, noise_std / 5, noise_std, name="known norm")
    return problem, GaussianProcess(kernel, noise_std, floor)


def equally_good(
    seed: int = 0, noise_std: float = 0.1, cheap_first: bool = False, all_matter: bool = False
) -> tuple[SubsetProblem, GaussianProcess]:
    """Two control sets of one best value, a cheap one inside a dear one, and a prior.

    f depends on the first two of three variables.

    Args:
        seed: of the draw, a function of norm 2.
        noise_std: of the values, and a fifth of it of the costs.
        cheap_first: whether the cheap one is listed before the dear one.
        all_matter: whether the kernel has one lengthscale for all three variables. Otherwise it does not see the
            third, as if someone had said that it does not matter, and both sets have the same bounds but for rounding.
    """
    plane = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.float64)
    draw = rkhs_samples(rbf_kernel(0.4), plane, 2.0, [seed])

    def g(x: Tensor) -> Tensor:
        return draw(x[..., :2].unsqueeze(0)).squeeze(0)

    floor = float(maximum(lambda x: -g(x), plane)[1])
    kernel = ScaleKernel(RBFKernel(active_dims=None if all_matter else (0, 1))).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4]], dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    box = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    sets: tuple[tuple[int, ...], ...] = ((0, 1, 2), (0, 1), (0,), (1,))
    costs = [1.0, 0.2, 0.1, 0.1]
    if cheap_first:
        sets, costs = (sets[1], sets[0], *sets[2:]), [costs[1], costs[0], *costs[2:]]
    space = Space(box, sets, (truncated_normal(0.04),) * 3, budget=100.0)
    means = torch.tensor(costs, dtype=torch.float64)
    problem = SubsetProblem(space, lambda x: g(x) + floor, means, noise_std / 5, noise_std, name="equally good")
    return problem, GaussianProcess(kernel.requires_grad_(False), noise_std, floor)


def policies(problem: SubsetProblem, prior: GaussianProcess, effort: Effort | None = None) -> dict[str, SubsetPolicy]:
    """The proposed method and the baselines of [Hoang2024], with UCB-CVS, which knows the costs, beside them.

    The paper has no schedule for UCB-CVS; here ``epsilon_t = s / sqrt(t)`` with ``s`` the prior standard deviation.
    """
    space = problem.space
    known: dict[str, Any] = {"prior": prior, "effort": effort}
    epsilon = InverseRoot(float(torch.as_tensor(getattr(prior.kernel, "outputscale", 1.0)).sqrt()))
    return {
        "proposed": CheapestGoodSubset(space, cost_spread=1.0, **known),
        "TS-PSQ": TSPSQ(space, **known),
        "UCB-PSQ": UCBPSQ(space, **known),
        "ETC-50": GroupETC(space, **known),
        "UCB-CVS, costs known": UCBCVS(space, cost_means=problem.cost_means, epsilon=epsilon, **known),
    }


def compare(
    problem: SubsetProblem,
    chosen: Mapping[str, SubsetPolicy],
    seeds: Sequence[int],
    **storing: Any,
) -> Comparison[SubsetProblem]:
    """Run policies with the same seeds until the budget is spent; ``storing`` is for ``harness.run``."""
    budget = problem.space.budget
    return harness.run(problem, chosen, _MOST, seeds, stop=lambda record: record["spent"] > budget, **storing)


def curves(history: History, problem: SubsetProblem, costs: Tensor) -> History:
    """Simple regret, evaluations and the subset played when each amount ``n`` had been spent.

    Returns:
        ``cost`` (the amounts), ``simple_regret`` and ``evaluations``, each ``replicates x n``, and ``plays`` of every
        subset, ``replicates x n x m``, with the seeds and provenance of the run.
    """
    tensors = {
        "cost": costs.expand(history.replicates, -1),
        "simple_regret": against_cost(history, problem, simple_regret(history, problem), costs),
        "evaluations": evaluations(history, problem, costs),
        "plays": plays(history, problem, costs),
    }
    return History(tensors, history.seeds, history.config, history.provenance)


def figure_1(
    objective: str,
    costs: Costs = "cheap",
    variance: float = 0.02,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
    effort: Effort | None = None,
) -> Comparison[SubsetProblem]:
    """One panel of Figures 1 and 2 ([Hoang2024]): regret and evaluations against the cost spent.

    Args:
        objective: ``"hartmann"``, ``"ackley"``, ``"plant"`` or ``"airfoil"``.
        costs: ``"cheap"`` or ``"moderate"``.
        variance: of the free variables, 0.02 or 0.04.
        scale: see the module.
        seeds: default those of the scale.
        folder: where the curves at 201 amounts are stored; they are given in the place of whole runs then.
        effort: of all policies.

    Raises:
        ValueError: for another objective or scale.
    """
    problem = harness.pick(OBJECTIVES, objective, "objective")(costs, variance)
    problem = problem.with_budget(harness.choose(scale, 25.0, 100.0))
    seeds = harness.choose(scale, range(3), range(5)) if seeds is None else seeds
    chosen = policies(problem, fit_prior(problem), effort)
    if folder is None:
        return compare(problem, chosen, seeds)
    amounts = torch.linspace(0, problem.space.budget, 201, dtype=torch.float64)
    name, keep = f"{objective}-{costs}-{variance:g}", functools.partial(curves, problem=problem, costs=amounts)
    return compare(problem, chosen, seeds, folder=folder, name=name, keep=keep)


def sweep_alpha(
    problem: SubsetProblem,
    alphas: Iterable[float],
    seeds: Sequence[int],
    steps: int = 300,
    rounds: int = 10,
    effort: Effort | None = None,
    cost_spread: float = 1.0,
    prior: GaussianProcess | None = None,
) -> dict[float, History]:
    """The proposed method with fixed alphas, for the curve of quality against cost.

    Args:
        problem: what is played; its budget is not regarded.
        alphas: each in ``[0, 1)``.
        seeds: one a replicate.
        steps: ``T``.
        rounds: ``tau``.
        effort: of all runs.
        cost_spread: see ``CheapestGoodSubset``.
        prior: of all runs. Default: what a pilot study finds.
    """
    prior = fit_prior(problem) if prior is None else prior
    free = problem.with_budget(1e9)
    result = {}
    for alpha in alphas:
        policy = CheapestGoodSubset(
            free.space,
            prior=prior,
            effort=effort,
            alpha=alpha,
            rounds=rounds,
            horizon=steps,
            cost_spread=cost_spread,
        )
        result[alpha] = simulate(free, policy, steps, seeds)
    return result


def trade_off(runs: Mapping[float, History], problem: SubsetProblem) -> dict[float, tuple[float, float, float]]:
    """What each alpha gives up and saves, per play of the exploitation, averaged over replicates.

    Returns:
        By alpha: ``f* - E f``, the mean cost paid, and the share of plays of the cheapest acceptable subset.
    """
    result = {}
    for alpha, history in runs.items():
        late = ~history["exploring"]
        lost = quality_regret(history, problem, 0.0)[late].mean()
        paid = problem.cost_means[history["subset"]][late].mean()
        right = (history["subset"] == problem.cheapest(alpha))[late].double().mean()
        result[alpha] = (float(lost), float(paid), float(right))
    return result


def summary(comparison: Comparison[SubsetProblem], alpha: float = 0.1) -> dict[str, dict[str, Tensor]]:
    """Where each policy ended, one number a replicate.

    Returns:
        By policy: ``"simple regret"``, ``"evaluations"``, ``"share of i_*"`` among the last tenth of the plays,
        ``"quality regret"`` and ``"cost regret"``, sums over the counted plays for that alpha.
    """
    problem, rows = comparison.problem, {}
    for name, history in comparison.histories.items():
        pays = counted(history, problem)
        end = problem.cost_means.new_tensor([problem.space.budget])
        rows[name] = {
            "simple regret": against_cost(history, problem, simple_regret(history, problem), end).squeeze(-1),
            "evaluations": pays.sum(-1).double(),
            "share of i_*": share_of_last_tenth(history, problem, problem.cheapest(alpha)),
            "quality regret": (quality_regret(history, problem, alpha) * pays).sum(-1),
            "cost regret": (cost_regret(history, problem, alpha) * pays).sum(-1),
        }
    return rows


def plot_against_cost(axes: Axes, curves: Mapping[str, History], name: str, label: str) -> None:
    """Draw means and standard errors of what ``curves`` gives.

    Args:
        axes: where.
        curves: by policy.
        name: ``"simple_regret"`` or ``"evaluations"``.
        label: of the vertical axis.
    """
    for policy, curve in curves.items():
        values, costs = curve[name], curve["cost"][0]
        known = ~values.isnan().any(0)
        x = costs[known].tolist()
        look = {"drawstyle": "steps-post", **figures.style(policy)}
        figures.plot_replicates(axes, values[:, known], policy, x, "standard error", **look)
    axes.set(xlabel="cost spent", ylabel=label)


def late_share(curve: History, subset: int) -> Tensor:
    """Of what was played after nine tenths of the plays, the share of a subset, from stored curves, ``replicates``."""
    total, counts = curve["evaluations"], torch.nn.functional.pad(curve["plays"], (0, 0, 1, 0))  # first none
    start = (total <= 0.9 * total[:, -1:]).sum(-1)
    late = counts[:, -1] - counts[torch.arange(len(counts)), start]
    return late[:, subset].double() / late.sum(-1).clamp_min(1)


def load_results(folder: Path, objective: str, costs: str, variance: float) -> Mapping[str, History]:
    """The stored curves of one panel, by policy.

    Raises:
        ValueError: if there are none.
    """
    names = ("proposed", "TS-PSQ", "UCB-PSQ", "ETC-50", "UCB-CVS, costs known")
    panel = f"{objective}-{costs}-{variance:g}"
    files = {name: harness.path(folder, panel, name) for name in names}
    found = {name: History.load(file) for name, file in files.items() if file.exists()}
    if not found:
        raise ValueError(f"folder must hold results of {panel!r}, got {folder}")
    return found


EXPERIMENTS = {
    f"{objective}-{kind}-{variance:g}": functools.partial(figure_1, objective, kind, variance)
    for variance, objective, kind in itertools.product((0.02, 0.04), OBJECTIVES, ("cheap", "moderate"))
}
