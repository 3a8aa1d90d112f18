"""The experiments of the paper: one function a figure or table, how they are drawn, and a command to run them.

``scale="paper"`` has the paper's seeds 100 to 104, 10 initial decisions and 350 evaluations; ``scale="reader"`` three
of the seeds, few evaluations and little effort. The command runs panels at the paper's scale and stores their curves::

    python -m cbo_lib.contexts.experiments --panel ackley --out book/contexts/results

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import argparse
import functools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from cbo_lib import figures
from cbo_lib.contexts import problems
from cbo_lib.contexts.bounds import PowerLaw
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.policies import DRBOKDE, GPUCB, SBOKDE, ContextPolicy, KnownDensity, RandomDecisions, Settings
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.regret import cumulative_regret, cumulative_reward
from cbo_lib.contexts.robust import DRBOMMD, DRBOMMDMinimax, StableOpt
from cbo_lib.contexts.slips import slips
from cbo_lib.generators import ReplicateGenerators
from cbo_lib.history import History
from cbo_lib.simulate import simulate

Scale = Literal["reader", "paper"]
Kind = Literal["regret", "reward"]


@dataclass(frozen=True)
class Panel:
    """One panel of Figure 1 or 2.

    Args:
        make: the problem.
        measure: what the paper draws; the other can be drawn too.
        samples: of the density estimate at ``scale="paper"``.
    """

    make: Callable[[], ContextProblem]
    measure: Kind = "regret"
    samples: int = 1024


#: Figure 1, and as ``ackley_4`` Figure 2, with a quarter of the samples: in four dimensions nothing is interpolated.
PANELS: Mapping[str, Panel] = {
    "ackley": Panel(problems.ackley),
    "branin": Panel(problems.modified_branin),
    "hartmann": Panel(problems.hartmann),
    "complicated_hartmann": Panel(problems.complicated_hartmann, "reward"),
    "newsvendor": Panel(problems.newsvendor),
    "portfolio_normal": Panel(functools.partial(problems.portfolio, "normal"), "reward"),
    "portfolio_uniform": Panel(functools.partial(problems.portfolio, "uniform"), "reward"),
    "ackley_4": Panel(functools.partial(problems.ackley, 4), samples=256),
}

POLICIES = (
    "SBO-KDE",
    "DRBO-KDE",
    "GP-UCB",
    "StableOpt",
    "DRBO-MMD",
    "DRBO-MMD-MinimaxApprox",
    "SBO, density known",
    "random",
)

#: Seconds of 100 evaluations on Ackley, mean and standard error over 10 runs ([Huang2024]_, Table 1).
PAPER_TABLE_1: Mapping[str, tuple[float, float]] = {
    "GP-UCB": (11.35, 0.40),
    "DRBO-MMD": (5254.65, 356.32),
    "DRBO-MMD-MinimaxApprox": (119.04, 2.61),
    "StableOpt": (32.75, 1.35),
    "SBO-KDE": (30.57, 1.06),
    "DRBO-KDE": (180.61, 6.90),
}

#: L1 distance of the density estimate, mean and standard error over 20 runs ([Huang2024]_, Table 2).
PAPER_TABLE_2: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "normal": {10: (0.3222, 0.0327), 100: (0.1315, 0.0088), 200: (0.1156, 0.0079), 300: (0.0962, 0.0083)},
    "complicated": {10: (0.6216, 0.0190), 100: (0.5380, 0.0333), 200: (0.4853, 0.0233), 300: (0.4724, 0.0258)},
}


@dataclass(frozen=True)
class Budget:
    """How much is run.

    Args:
        seeds: one a replicate.
        steps: evaluations, the initial design included.
        settings: of all policies.
        samples: of the density estimate; None for the panel's.
    """

    seeds: Sequence[int]
    steps: int
    settings: Settings = field(default_factory=Settings)
    samples: int | None = None


def budget(scale: Scale) -> Budget:
    """What a scale runs.

    Raises:
        ValueError: for another scale.
    """
    if scale == "paper":
        return Budget(range(100, 105), 350)
    if scale == "reader":
        return Budget(range(100, 103), 30, Settings(raw=32, starts=2, iterations=10, refit_every=5), 128)
    raise ValueError(f"scale must be 'reader' or 'paper', got {scale!r}")


def make_policy(name: str, problem: ContextProblem, settings: Settings, samples: int = 1024) -> ContextPolicy:
    """A policy by its name in ``POLICIES``.

    Args:
        name: of the policy.
        problem: to be solved.
        settings: of all policies.
        samples: how many contexts it draws or covers the context space with, where it does.

    Raises:
        ValueError: for another name.
    """
    makers: dict[str, Callable[[], ContextPolicy]] = {
        "SBO-KDE": lambda: SBOKDE(problem, settings, samples),
        "DRBO-KDE": lambda: DRBOKDE(problem, settings, samples, cover=samples),
        "GP-UCB": lambda: GPUCB(problem, settings),
        "StableOpt": lambda: StableOpt(problem, settings, cover=samples),
        "DRBO-MMD": lambda: DRBOMMD(problem, settings),
        "DRBO-MMD-MinimaxApprox": lambda: DRBOMMDMinimax(problem, settings, size=samples),
        "SBO, density known": lambda: KnownDensity(problem, settings, samples),
        "random": lambda: RandomDecisions(problem, settings),
    }
    if name not in makers:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return makers[name]()


@dataclass(frozen=True, eq=False)
class Comparison:
    """The runs of one panel.

    Args:
        problem: what was maximized.
        histories: by policy; whole ones, or those that ``compact`` made.
    """

    problem: ContextProblem
    histories: Mapping[str, History]

    def curves(self, measure: Kind = "regret") -> dict[str, Tensor]:
        """Cumulative regret, or reward, of each policy, ``replicates x T``, the initial design included.

        Raises:
            ValueError: for another measure.
        """
        if measure not in ("regret", "reward"):
            raise ValueError(f"measure must be 'regret' or 'reward', got {measure!r}")
        return {
            name: cumulative_regret(h, self.problem) if measure == "regret" else cumulative_reward(h)
            for name, h in self.histories.items()
        }

    def final(self, measure: Kind = "regret") -> pd.DataFrame:
        """The last values: one row a policy, mean and standard error over replicates, the best policy first."""
        rows = {
            name: (float(curve[:, -1].mean()), float(curve[:, -1].std() / len(curve) ** 0.5))
            for name, curve in self.curves(measure).items()
        }
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "standard error"])
        return frame.sort_values("mean", ascending=measure == "regret")


def figure_1(panel: str, scale: Scale = "paper", only: Iterable[str] | None = None) -> Comparison:
    """One panel of Figure 1 ([Huang2024]_, section 4), or Figure 2 as ``ackley_4``.

    Args:
        panel: a name in ``PANELS``.
        scale: see the module.
        only: which policies. Default all of ``POLICIES``.

    Raises:
        ValueError: for another panel, policy or scale.
    """
    if panel not in PANELS:
        raise ValueError(f"panel must be one of {', '.join(PANELS)}, got {panel!r}")
    chosen, problem = budget(scale), PANELS[panel].make()
    samples = chosen.samples or PANELS[panel].samples
    runs = {}
    for name in POLICIES if only is None else only:
        policy = make_policy(name, problem, chosen.settings, samples)
        runs[name] = simulate(problem, policy, chosen.steps, chosen.seeds)
    return Comparison(problem, runs)


def figure_2(scale: Scale = "paper", only: Iterable[str] | None = None) -> Comparison:
    """Ackley with four contexts ([Huang2024]_, Appendix D)."""
    return figure_1("ackley_4", scale, only)


def small_slip(name: str, scale: Scale = "paper") -> Comparison:
    """A policy ``as written`` and with a ``slip``; see ``cbo_lib.contexts.slips.slips`` for the names.

    Raises:
        ValueError: for another name or scale.
    """
    chosen = budget(scale)
    known = slips(chosen.samples or 1024)
    if name not in known:
        raise ValueError(f"name must be one of {', '.join(known)}, got {name!r}")
    slip = known[name]
    runs = {}
    for label, make, problem in (
        ("as written", slip.right, slip.problem),
        ("slip", slip.wrong, slip.wrong_problem or slip.problem),
    ):
        runs[label] = simulate(problem, make(problem, chosen.settings), chosen.steps, chosen.seeds)
    return Comparison(slip.problem, runs)


def compact(history: History) -> History:
    """The curves of a run alone, in single precision: the values of the decisions, and what was seen."""
    tensors = {"value": history["value"].float(), "observation": history["observation"][..., -1:].float()}
    return History(tensors, history.seeds, history.config, history.provenance)


def stored(panel: str, folder: str | Path) -> Comparison:
    """What the command stored of a panel.

    Raises:
        ValueError: if the folder holds nothing of it.
    """
    paths = {name: _path(folder, panel, name) for name in POLICIES}
    runs = {name: History.load(path) for name, path in paths.items() if path.exists()}
    if not runs:
        raise ValueError(f"folder must hold curves of the panel {panel!r}, got {folder}")
    return Comparison(PANELS[panel].make(), runs)


def table_1(evaluations: int = 100, runs: int = 10, only: Iterable[str] | None = None) -> pd.DataFrame:
    """Seconds of evaluations on Ackley, of one run at a time and of a run in a batch ([Huang2024]_, Table 1).

    Args:
        evaluations: of each run. The paper's are 100.
        runs: how many, from seed 100 on.
        only: which policies. Default all of ``POLICIES``.

    Returns:
        One row a policy: mean and standard error of the seconds of a run alone, those of a run when all run as one
        batch, and the paper's. ``frame.attrs`` says on what.
    """
    problem, rows = problems.ackley(), {}
    for name in POLICIES if only is None else only:
        alone = []
        for seed in range(100, 100 + runs):
            policy = make_policy(name, problem, Settings())
            start = time.perf_counter()
            simulate(problem, policy, evaluations, [seed], progress=False)
            alone.append(time.perf_counter() - start)
        start = time.perf_counter()
        simulate(problem, make_policy(name, problem, Settings()), evaluations, range(100, 100 + runs), progress=False)
        together = (time.perf_counter() - start) / runs
        spread = float(np.std(alone, ddof=1)) / runs**0.5 if runs > 1 else float("nan")
        paper, paper_error = PAPER_TABLE_1.get(name, (float("nan"), float("nan")))
        rows[name] = (float(np.mean(alone)), spread, together, paper, paper_error)
    columns = ["alone", "standard error", "in a batch", "paper", "paper's standard error"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.attrs = {"device": "cpu", "threads": torch.get_num_threads(), "evaluations": evaluations, "runs": runs}
    return frame


def table_2(
    clipped: bool = False,
    runs: int = 20,
    counts: Sequence[int] = (10, 100, 200, 300),
    low: float = -1.0,
    high: float = 2.0,
) -> pd.DataFrame:
    """L1 distance of the density estimate to the density before clipping ([Huang2024]_, Appendix E, Table 2).

    The paper does not say where it integrates, nor whether samples are clipped first.

    Args:
        clipped: whether the samples are clipped onto [0, 1] before the estimate, as contexts are.
        runs: how many, from seed 0 on.
        counts: numbers of samples.
        low: where the integral begins.
        high: where it ends.

    Returns:
        One row a distribution and count: mean and standard error, the paper's, and the difference in combined standard
        errors.
    """
    rows = {}
    for name, make in (("normal", problems.hartmann), ("complicated", problems.complicated_hartmann)):
        distribution = make().distribution
        for count in counts:
            samples = distribution.sample(ReplicateGenerators(range(runs)).generators, (count,), clip=clipped)
            errors = GaussianKDE(samples).total_variation(distribution.density, low, high)
            mean, error = float(errors.mean()), float(errors.std()) / runs**0.5
            paper, paper_error = PAPER_TABLE_2[name].get(count, (float("nan"), float("nan")))
            apart = (mean - paper) / (error**2 + paper_error**2) ** 0.5
            rows[name, count] = (mean, error, paper, paper_error, apart)
    columns = ["mean", "standard error", "paper", "paper's standard error", "standard errors apart"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.index = pd.MultiIndex.from_tuples(rows, names=["distribution", "samples"])
    return frame


def density_rate(
    problem: ContextProblem,
    counts: Sequence[int] = (10, 20, 50, 100, 200, 500, 1000),
    runs: int = 20,
    clipped: bool = False,
) -> tuple[Tensor, PowerLaw]:
    """How fast the density estimate of one context approaches the density before clipping.

    Args:
        problem: with one context.
        counts: numbers of samples.
        runs: how many, from seed 0 on.
        clipped: whether the samples are clipped into the box before the estimate.

    Returns:
        L1 distances ``runs x len(counts)``, and the power law fitted to their means; [Huang2024]_ has the slope
        ``-2 / (4 + Dc)``.
    """
    low, high = problem.context_bounds[:, 0].tolist()
    draws = problem.distribution.sample(ReplicateGenerators(range(runs)).generators, (max(counts),), clipped)
    density, side = problem.distribution.density, high - low
    errors = torch.stack(
        [GaussianKDE(draws[:, :n]).total_variation(density, low - side, high + side, 8193) for n in counts], -1
    )
    return errors, PowerLaw.fit(torch.tensor(counts), errors.mean(0))


def plot_comparison(comparison: Comparison, measure: Kind = "regret") -> Figure:
    """Cumulative regret or reward of each policy, mean and standard error over replicates."""
    figure, axes = figures.subplots(figsize=(7.2, 4.2))
    dashes = ["-", "--", "-.", ":", "-", "--", "-.", ":"]
    for (name, curve), dash in zip(comparison.curves(measure).items(), dashes, strict=False):
        figures.plot_replicates(axes[0, 0], curve, name, spread="standard error", linestyle=dash)
    axes[0, 0].set(xlabel="evaluations", ylabel=f"cumulative {measure} (units of f)", title=comparison.problem.name)
    axes[0, 0].legend(fontsize="x-small")
    return figure


def density_steps(
    problem: ContextProblem, policy: SBOKDE, steps: Sequence[int], seed: int = 100
) -> tuple[list[Figure], list[str], list[str]]:
    """The density estimate and the acquisition as contexts arrive, for ``figures.slider``.

    Args:
        problem: with one decision and one context.
        policy: to run for one replicate.
        steps: after how many evaluations to draw, each past the initial design.
        seed: of the replicate.

    Returns:
        Figures, labels and alternative texts.
    """
    frames, labels, alts = [], [], []
    noise, choices = ReplicateGenerators([seed], 0), ReplicateGenerators([seed], 1)
    c, x = (_line(box) for box in (problem.context_bounds, problem.bounds))
    value = problem.value(x)
    with torch.no_grad():
        policy.start(choices.at(0))
        for step in range(1, max(steps) + 1):
            choices.at(step)
            query = policy.ask()
            policy.tell(query, problem.observe(query, noise.at(step)))
            if step not in steps:
                continue
            assert policy.surrogate is not None
            acquisition = policy.acquisition(policy.surrogate.posterior()).values(x[None])[0]
            estimate = GaussianKDE(policy.contexts[0]).density(c)
            figure, axes = figures.subplots(1, 2, figsize=(9.6, 3.6))
            axes[0, 0].plot(c[:, 0], problem.distribution.density(c), color=figures.COLORS[-1], label="true density")
            axes[0, 0].plot(c[:, 0], estimate, "--", color=figures.COLORS[0], label="estimate")
            axes[0, 0].plot(policy.contexts[0, :, 0], torch.zeros(step), "|", color=figures.COLORS[1], label="contexts")
            axes[0, 0].set(xlabel="context c", ylabel="density")
            axes[0, 1].plot(x[:, 0], value, color=figures.COLORS[-1], label="expected value")
            axes[0, 1].plot(x[:, 0], acquisition, "--", color=figures.COLORS[0], label="acquisition")
            best = float(x[acquisition.argmax(), 0])
            axes[0, 1].axvline(best, color=figures.COLORS[1], linewidth=1, label="next decision")
            axes[0, 1].set(xlabel="decision x", ylabel="units of f")
            for axis in axes.flat:
                axis.legend(fontsize="small")
            frames.append(figure)
            labels.append(f"{step} contexts")
            alts.append(
                f"After {step} evaluations: the density estimate beside the true density of the context, and the "
                f"acquisition beside the expected value; the next decision is {best:.3f}."
            )
    return frames, labels, alts


def _line(box: Tensor, points: int = 301) -> Tensor:
    """Equally spaced points of an interval ``2 x 1``, ``points x 1``."""
    return torch.lerp(box[0], box[1], torch.linspace(0, 1, points).to(box)[:, None])


def _path(folder: str | Path, panel: str, name: str) -> Path:
    return Path(folder) / f"{panel}-{re.sub('[^a-z0-9]+', '_', name.lower())}.npz"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run panels and store their curves, one file a panel and policy; what exists is skipped."""
    parser = argparse.ArgumentParser(prog="python -m cbo_lib.contexts.experiments", description=main.__doc__)
    parser.add_argument("--panel", action="append", choices=list(PANELS), help="default: all")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    parser.add_argument("--out", type=Path, required=True, help="the folder, created if it does not exist")
    parser.add_argument("--scale", choices=("reader", "paper"), default="paper")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for panel in chosen.panel or PANELS:
        for name in chosen.policy or POLICIES:
            path = _path(chosen.out, panel, name)
            if path.exists():
                print(f"{path}: exists")
                continue
            start = time.perf_counter()
            compact(figure_1(panel, chosen.scale, [name]).histories[name]).save(path)
            print(f"{path}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
