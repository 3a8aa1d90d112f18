"""The experiments of the paper: regret against cost, evaluations against cost, and what alpha trades.

``scale="paper"`` has the paper's budget of 100 and five seeds, ``scale="reader"`` a budget of 25 and three of them. The
published curves of the paper's scale are stored; this command makes them, resuming where it stopped:

    python -m book.subsets.experiments book/subsets/results

.. [Hoang2024] V. V. Hoang, Q. A. H. Nguyen, H. T. Tran. Bayesian Optimization for Unknown Cost-Varying Variable
   Subsets with No-Regret Costs. 2024.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.axes import Axes
from torch import Tensor

from book import figures
from book.functions import rkhs_samples
from book.subsets import problems
from book.subsets.prior import fit_prior
from cbo_lib.gp import GaussianProcess
from cbo_lib.history import History
from cbo_lib.kernels import rbf_kernel
from cbo_lib.maximize import maximum
from cbo_lib.simulate import simulate
from cbo_lib.subsets.baselines import TSPSQ, UCBCVS, UCBPSQ, GroupETC
from cbo_lib.subsets.bounds import Effort
from cbo_lib.subsets.marginals import TruncatedNormal
from cbo_lib.subsets.policies import CheapestGoodSubset, SubsetPolicy
from cbo_lib.subsets.problem import SubsetProblem
from cbo_lib.subsets.regret import (
    against_cost,
    cost_regret,
    counted,
    evaluations,
    plays,
    quality_regret,
    share_of_last_tenth,
    simple_regret,
)

Scale = Literal["reader", "paper"]
Costs = Literal["cheap", "moderate"]
OBJECTIVES: Mapping[str, Callable[..., SubsetProblem]] = {
    "hartmann": problems.hartmann,
    "ackley": problems.ackley,
    "plant": problems.plant,
    "airfoil": problems.airfoil,
}
#: Plays after which a run ends even if the budget is not spent: at costs of 0.01 it would pay for thousands.
_MOST = 1000


def scaled(problem: SubsetProblem, scale: Scale) -> tuple[SubsetProblem, range]:
    """A problem with the budget of a scale, and its seeds.

    Raises:
        ValueError: for another scale.
    """
    if scale not in ("reader", "paper"):
        raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")
    return (problem, range(5)) if scale == "paper" else (replace(problem, budget=25.0), range(3))


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of one experiment.

    Args:
        problem: what was played.
        histories: by policy.
    """

    problem: SubsetProblem
    histories: Mapping[str, History]

    def against_cost(self, costs: Tensor) -> dict[str, History]:
        """Simple regret, evaluations and the subset played when each amount ``n`` had been spent.

        Returns:
            By policy, a ``History`` with ``cost`` (the amounts), ``simple_regret`` and ``evaluations``, each
            ``replicates x n``, and ``plays`` of every subset, ``replicates x n x m``, with the seeds and provenance
            of the run.
        """
        problem, result = self.problem, {}
        for name, history in self.histories.items():
            tensors = {
                "cost": costs.expand(history.replicates, -1),
                "simple_regret": against_cost(history, problem, simple_regret(history, problem), costs),
                "evaluations": evaluations(history, problem, costs),
                "plays": plays(history, problem, costs),
            }
            result[name] = History(tensors, history.seeds, history.config, history.provenance)
        return result


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
    problem = SubsetProblem(
        lambda x: g(x) + floor,
        ((0,), (1,), (2,), (0, 1), (0, 1, 2)),
        (TruncatedNormal(variance=variance),) * 3,
        torch.tensor(costs, dtype=torch.float64),
        noise_std / 5,
        noise_std,
        name="known norm",
    )
    return problem, GaussianProcess(kernel, noise_std, floor)


def equally_good(seed: int = 0, noise_std: float = 0.1) -> tuple[SubsetProblem, GaussianProcess]:
    """Two control sets of one best value, the dearer one listed first, and the prior that belongs to the function.

    f depends on the first two of three variables, and so does the kernel.

    Args:
        seed: of the draw, a function of norm 2.
        noise_std: of the values, and a fifth of it of the costs.
    """
    plane = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.float64)
    draw = rkhs_samples(rbf_kernel(0.4), plane, 2.0, [seed])

    def g(x: Tensor) -> Tensor:
        return draw(x[..., :2].unsqueeze(0)).squeeze(0)

    floor = float(maximum(lambda x: -g(x), plane)[1])
    kernel = ScaleKernel(RBFKernel(active_dims=(0, 1))).double()
    kernel.base_kernel.lengthscale = torch.tensor([[0.4]], dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    problem = SubsetProblem(
        lambda x: g(x) + floor,
        ((0, 1, 2), (0, 1), (0,), (1,)),
        (TruncatedNormal(variance=0.04),) * 3,
        torch.tensor([1.0, 0.2, 0.1, 0.1], dtype=torch.float64),
        noise_std / 5,
        noise_std,
        name="equally good",
    )
    return problem, GaussianProcess(kernel.requires_grad_(False), noise_std, floor)


def policies(problem: SubsetProblem, prior: GaussianProcess, effort: Effort | None = None) -> dict[str, SubsetPolicy]:
    """The proposed method and the baselines of [Hoang2024]_, with UCB-CVS, which knows the costs, beside them."""
    return {
        "proposed": CheapestGoodSubset(problem, prior, effort=effort),
        "TS-PSQ": TSPSQ(problem, prior, effort=effort),
        "UCB-PSQ": UCBPSQ(problem, prior, effort=effort),
        "ETC-50": GroupETC(problem, prior, effort=effort),
        "UCB-CVS, costs known": UCBCVS(problem, prior, effort=effort, epsilon=shrinking(prior)),
    }


def constant(value: float) -> Callable[[int], float]:
    """A schedule that does not change."""
    return lambda t: value


def shrinking(prior: GaussianProcess) -> Callable[[int], float]:
    """The schedule ``epsilon_t = s / sqrt(t)`` with ``s`` the prior standard deviation of f; the paper has none."""
    scale = float(torch.as_tensor(getattr(prior.kernel, "outputscale", 1.0)).sqrt())
    return lambda t: scale / t**0.5


def compare(problem: SubsetProblem, chosen: Mapping[str, SubsetPolicy], seeds: Sequence[int]) -> Comparison:
    """Run policies with the same seeds until the budget is spent."""
    return Comparison(problem, {name: run(problem, policy, seeds) for name, policy in chosen.items()})


def run(problem: SubsetProblem, policy: SubsetPolicy, seeds: Sequence[int], steps: int = _MOST) -> History:
    """One policy until every replicate has spent the budget, or for some steps."""
    return simulate(problem, policy, steps, seeds, stop=lambda record: record["spent"] > problem.budget)


def figure_1(
    objective: str, costs: Costs = "cheap", variance: float = 0.02, scale: Scale = "paper", effort: Effort | None = None
) -> Comparison:
    """One panel of Figures 1 and 2 ([Hoang2024]_): regret and evaluations against the cost spent.

    Args:
        objective: ``"hartmann"``, ``"ackley"``, ``"plant"`` or ``"airfoil"``.
        costs: ``"cheap"`` or ``"moderate"``.
        variance: of the free variables, 0.02 or 0.04.
        scale: see the module.
        effort: of all policies.

    Raises:
        ValueError: for another objective or scale.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {sorted(OBJECTIVES)}, got {objective!r}")
    problem, seeds = scaled(OBJECTIVES[objective](costs, variance), scale)
    return compare(problem, policies(problem, fit_prior(problem), effort), seeds)


def sweep_alpha(
    problem: SubsetProblem,
    alphas: Iterable[float],
    seeds: Sequence[int],
    steps: int = 300,
    rounds: int = 10,
    effort: Effort | None = None,
    cost_spread: float = 1.0,
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
    """
    prior = fit_prior(problem)
    free = replace(problem, budget=1e9)
    result = {}
    for alpha in alphas:
        policy = CheapestGoodSubset(
            free,
            prior,
            effort=effort,
            alpha=constant(alpha),
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


def summary(comparison: Comparison, alpha: float = 0.1) -> dict[str, dict[str, Tensor]]:
    """Where each policy ended, one number a replicate.

    Returns:
        By policy: ``"simple regret"``, ``"evaluations"``, ``"share of i_*"`` among the last tenth of the plays,
        ``"quality regret"`` and ``"cost regret"``, sums over the counted plays for that alpha.
    """
    problem, rows = comparison.problem, {}
    for name, history in comparison.histories.items():
        pays = counted(history, problem)
        end = problem.cost_means.new_tensor([problem.budget])
        rows[name] = {
            "simple regret": against_cost(history, problem, simple_regret(history, problem), end).squeeze(-1),
            "evaluations": pays.sum(-1).double(),
            "share of i_*": share_of_last_tenth(history, problem, problem.cheapest(alpha)),
            "quality regret": (quality_regret(history, problem, alpha) * pays).sum(-1),
            "cost regret": (cost_regret(history, problem, alpha) * pays).sum(-1),
        }
    return rows


def plot_against_cost(axes: Axes, curves: Mapping[str, History], name: str, label: str) -> None:
    """Draw means and standard errors of what ``Comparison.against_cost`` gives.

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
        figures.plot_replicates(axes, values[:, known], policy, x, "standard error", drawstyle="steps-post")
    axes.set(xlabel="cost spent", ylabel=label)


def late_share(curve: History, subset: int) -> Tensor:
    """Of what was played after nine tenths of the plays, the share of a subset, from stored curves, ``replicates``."""
    total, counts = curve["evaluations"], torch.nn.functional.pad(curve["plays"], (0, 0, 1, 0))  # first none
    start = (total <= 0.9 * total[:, -1:]).sum(-1)
    late = counts[:, -1] - counts[torch.arange(len(counts)), start]
    return late[:, subset].double() / late.sum(-1).clamp_min(1)


def results_file(folder: Path, objective: str, costs: str, variance: float, policy: str) -> Path:
    """Where the curves of one policy in one panel are stored."""
    word = policy.split(",")[0].lower()
    return folder / f"{objective}-{costs}-{variance:g}-{word}.npz"


def load_results(folder: Path, objective: str, costs: str, variance: float) -> dict[str, History]:
    """The stored curves of one panel, by policy.

    Raises:
        ValueError: if there are none.
    """
    names = ("proposed", "TS-PSQ", "UCB-PSQ", "ETC-50", "UCB-CVS, costs known")
    files = {name: results_file(folder, objective, costs, variance, name) for name in names}
    found = {name: History.load(path) for name, path in files.items() if path.exists()}
    if not found:
        raise ValueError(f"folder must hold the results of {objective}, {costs}, {variance:g}, got {folder}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all panels at the paper's scale and store their curves, skipping what is there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--objectives", nargs="*", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    costs = torch.linspace(0, 100, 201, dtype=torch.float64)
    panels = itertools.product((0.02, 0.04), options.objectives, ("cheap", "moderate"))
    for variance, objective, kind in panels:
        problem, seeds = scaled(OBJECTIVES[objective](kind, variance), "paper")
        for name, policy in policies(problem, fit_prior(problem)).items():
            path = results_file(options.folder, objective, kind, variance, name)
            if not path.exists():
                curves = Comparison(problem, {name: run(problem, policy, seeds)}).against_cost(costs)
                curves[name].save(path)
                print(path, flush=True)


if __name__ == "__main__":
    main()
