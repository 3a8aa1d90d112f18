"""The experiments of the paper: one function a figure or table, how they are drawn, and a command to run them.

``scale="paper"`` has the paper's seeds 100 to 104, 10 initial decisions and 350 evaluations; ``scale="reader"`` three
of the seeds, few evaluations and little effort. The command runs panels at the paper's scale and stores their curves::

    python -m book.contexts.experiments --panel ackley --out book/contexts/results

.. [Huang2024] X. Huang, L. Song, K. Xue, C. Qian. Stochastic Bayesian Optimization with Unknown Continuous Context
   Distribution via Kernel Density Estimation. AAAI 2024.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.contexts.panels import PANELS, POLICIES, Kind, Scale, budget, make_policy
from book.contexts.slips import SLIPS
from book.contexts.tables import (
    density_rate,
    load_table,
    save_table,
    table_1,
    table_2,
    theorem_constants,
    theorem_ledgers,
)
from book.functions import interval
from cbo_lib.contexts.density import GaussianKDE
from cbo_lib.contexts.policies import SBOKDE
from cbo_lib.contexts.problem import ContextProblem
from cbo_lib.contexts.regret import cumulative_regret, cumulative_reward
from cbo_lib.history import History
from cbo_lib.simulate import rounds, simulate

__all__ = [
    "PANELS",
    "POLICIES",
    "SLIPS",
    "Comparison",
    "compact",
    "density_rate",
    "density_steps",
    "figure_1",
    "figure_2",
    "load_table",
    "main",
    "make_policy",
    "plot_comparison",
    "save_table",
    "small_slip",
    "stored",
    "table_1",
    "table_2",
    "theorem_constants",
    "theorem_ledgers",
]


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

    def final(self, measure: Kind = "regret", at: int | None = None) -> pd.DataFrame:
        """One row a policy, mean and standard error over replicates, the best policy first.

        Args:
            measure: see ``curves``.
            at: after how many evaluations. Default: as many as all policies made. Policies that made fewer are left
                out.

        Raises:
            ValueError: for another measure, or if no policy made so many.
        """
        curves = self.curves(measure)
        at = min(curve.shape[-1] for curve in curves.values()) if at is None else at
        rows = {
            name: (float(curve[:, at - 1].mean()), float(curve[:, at - 1].std() / len(curve) ** 0.5))
            for name, curve in curves.items()
            if 1 <= at <= curve.shape[-1]
        }
        if not rows:
            raise ValueError(f"at must lie in [1, {max(c.shape[-1] for c in curves.values())}], got {at}")
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
        steps = min(chosen.steps, PANELS[panel].limits.get(name, chosen.steps))
        runs[name] = simulate(problem, policy, steps, chosen.seeds)
    return Comparison(problem, runs)


def figure_2(scale: Scale = "paper", only: Iterable[str] | None = None) -> Comparison:
    """Ackley with four contexts ([Huang2024]_, Appendix D)."""
    return figure_1("ackley_4", scale, only)


def small_slip(name: str, scale: Scale = "paper", folder: str | Path | None = None) -> Comparison:
    """A policy ``as written`` and with a ``slip``, one of ``SLIPS``.

    Args:
        name: of the slip.
        scale: see the module.
        folder: take the curves that the command stored there, and run nothing.

    Raises:
        ValueError: for another name or scale, or if the folder lacks the curves.
    """
    if name not in SLIPS:
        raise ValueError(f"name must be one of {', '.join(SLIPS)}, got {name!r}")
    slip = SLIPS[name]
    if folder is not None:
        pair = [History.load(_stored(folder, slip.panel, slip.policy)), History.load(_stored(folder, "slip", name))]
        return Comparison(PANELS[slip.panel].make(), dict(zip(("as written", "slip"), pair, strict=True)))
    right = figure_1(slip.panel, scale, [slip.policy])
    wrong = _run_slip(name, right.problem, scale)
    return Comparison(right.problem, {"as written": right.histories[slip.policy], "slip": wrong})


def _run_slip(name: str, problem: ContextProblem, scale: Scale) -> History:
    slip, chosen = SLIPS[name], budget(scale)
    world = slip.world(problem)
    policy = slip.make(world, chosen.settings, chosen.samples or PANELS[slip.panel].samples)
    return simulate(world, policy, chosen.steps, chosen.seeds)


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


def plot_comparison(axes: Axes, comparison: Comparison, measure: Kind = "regret") -> None:
    """Cumulative regret or reward of each policy, mean and standard error over replicates.

    A policy has the same color and line in every panel.
    """
    looks = dict(zip(POLICIES, itertools.product(("-", "--"), figures.COLORS), strict=False))
    looks |= {"as written": ("-", figures.COLORS[0]), "slip": ("--", figures.COLORS[1])}
    for name, curve in comparison.curves(measure).items():
        style, color = looks[name]
        figures.plot_replicates(axes, curve, name, spread="standard error", linestyle=style, color=color)
    axes.set(xlabel="evaluations", ylabel=f"cumulative {measure} (units of f)", title=comparison.problem.name)


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
    c, x = (interval(box, 301) for box in (problem.context_bounds, problem.bounds))
    value = problem.value(x)
    with torch.no_grad():
        for step, query, observation in rounds(problem, policy, max(steps), seed):
            policy.tell(query, observation)
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


def _path(folder: str | Path, panel: str, name: str) -> Path:
    return Path(folder) / f"{panel}-{re.sub('[^a-z0-9]+', '_', name.lower())}.npz"


def _stored(folder: str | Path, panel: str, name: str) -> Path:
    path = _path(folder, panel, name)
    if not path.exists():
        raise ValueError(f"folder must hold {path.name}, got {folder}")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run panels or slips and store their curves, one file a run; what exists is skipped."""
    parser = argparse.ArgumentParser(prog="python -m book.contexts.experiments", description=main.__doc__)
    parser.add_argument("--panel", action="append", choices=list(PANELS), help="default: all, and all slips")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="of the panels; default: all")
    parser.add_argument("--slip", action="append", choices=list(SLIPS), help="default: none where a panel is given")
    parser.add_argument("--times", type=int, metavar="RUNS", help="instead: time so many runs for Table 1")
    parser.add_argument("--out", type=Path, required=True, help="the folder, created if it does not exist")
    parser.add_argument("--scale", choices=("reader", "paper"), default="paper")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.times:
        save_table(table_1(runs=chosen.times), chosen.out / "table_1.json")
        return
    panels, slips = chosen.panel or [], chosen.slip or []
    if not panels and not slips:
        panels, slips = list(PANELS), list(SLIPS)
    runs: list[tuple[str, str]] = [(panel, name) for panel in panels for name in chosen.policy or POLICIES]
    for panel, name in [*runs, *(("slip", name) for name in slips)]:
        path = _path(chosen.out, panel, name)
        if path.exists():
            print(f"{path}: exists")
            continue
        start = time.perf_counter()
        if panel == "slip":
            history = _run_slip(name, PANELS[SLIPS[name].panel].make(), chosen.scale)
        else:
            history = figure_1(panel, chosen.scale, [name]).histories[name]
        compact(history).save(path)
        print(f"{path}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
