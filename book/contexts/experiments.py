"""The experiments of the paper: the panels of its figures, the slips, and how they are drawn.

``scale="paper"`` has the paper's seeds 100 to 104, 10 initial decisions and 350 evaluations; ``scale="reader"`` three
of the seeds, few evaluations and little effort. The command runs them at the paper's scale and stores their curves::

    python -m book run contexts.figure_1 contexts.slips contexts.table_1 --scale paper --publish
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor

from book import figures, harness
from book.contexts import problems
from book.contexts.controls import KnownDensity, RandomDecisions
from book.contexts.problem import ContextProblem
from book.contexts.regret import cumulative_regret, cumulative_reward
from book.contexts.slips import SLIPS
from book.harness import Comparison, Scale
from cbo_lib.acquisition import PartialAcquisition
from cbo_lib.contexts.baselines import DRBOMMD, GPUCB, DRBOMMDMinimax, StableOpt
from cbo_lib.contexts.policies import DRBOKDE, SBOKDE, ContextPolicy
from cbo_lib.former.history import History
from cbo_lib.former.maximize import maximize_box
from cbo_lib.former.partial import PartialPosterior
from cbo_lib.former.simulate import simulate

#: Where the curves are stored.
RESULTS = Path(__file__).parent / "results"

Kind = Literal["regret", "reward"]


@dataclass(frozen=True)
class Panel:
    """One panel of Figure 1 or 2.

    Args:
        make: the problem.
        measure: what the paper draws; the other can be drawn too.
        samples: of the density estimate at ``scale="paper"``.
        limits: policies that stop after fewer evaluations, and when.
    """

    make: Callable[[], ContextProblem]
    measure: Kind = "regret"
    samples: int = 1024
    limits: Mapping[str, int] = field(default_factory=dict)


#: Seconds of 100 evaluations on Ackley, mean and standard error over 10 runs ([Huang2024], Table 1).
PAPER_TABLE_1: Mapping[str, tuple[float, float]] = {
    "GP-UCB": (11.35, 0.40),
    "DRBO-MMD": (5254.65, 356.32),
    "DRBO-MMD-MinimaxApprox": (119.04, 2.61),
    "StableOpt": (32.75, 1.35),
    "SBO-KDE": (30.57, 1.06),
    "DRBO-KDE": (180.61, 6.90),
}

#: Figure 1, and as ``ackley_4`` Figure 2, with a quarter of the samples: in four dimensions nothing is interpolated.
#: There DRBO-MMD has 256 grid points and needs more time a round than all other policies together.
PANELS: Mapping[str, Panel] = {
    "ackley": Panel(problems.ackley),
    "branin": Panel(problems.modified_branin),
    "hartmann": Panel(problems.hartmann),
    "complicated_hartmann": Panel(problems.complicated_hartmann, "reward"),
    "newsvendor": Panel(problems.newsvendor),
    "portfolio_normal": Panel(functools.partial(problems.portfolio, "normal"), "reward"),
    "portfolio_uniform": Panel(functools.partial(problems.portfolio, "uniform"), "reward"),
    "ackley_4": Panel(functools.partial(problems.ackley, 4), samples=256, limits={"DRBO-MMD": 60}),
}

#: The policies by name, each for a problem, a number of samples and options. The samples are those that it draws or
#: covers the context space with, where it does.
MAKERS: Mapping[str, Callable[..., ContextPolicy]] = {
    "SBO-KDE": lambda p, n, **o: SBOKDE(p.space, samples=n, **o),
    "DRBO-KDE": lambda p, n, **o: DRBOKDE(p.space, samples=n, cover=n, **o),
    "GP-UCB": lambda p, n, **o: GPUCB(p.space, **o),
    "StableOpt": lambda p, n, **o: StableOpt(p.space, cover=n, **o),
    "DRBO-MMD": lambda p, n, **o: DRBOMMD(p.space, **o),
    "DRBO-MMD-MinimaxApprox": lambda p, n, **o: DRBOMMDMinimax(p.space, size=n, **o),
    "SBO, density known": lambda p, n, **o: KnownDensity(p.space, distribution=p.distribution, samples=n, **o),
    "random": lambda p, n, **o: RandomDecisions(p.space, **o),
}
POLICIES = tuple(MAKERS)


def make_policy(name: str, problem: ContextProblem, samples: int = 1024, **options: Any) -> ContextPolicy:
    """A policy by its name in ``POLICIES``, with options of ``ContextPolicy``.

    The kernel is the RBF of BoTorch's default model, unless ``kernel`` says otherwise.

    Raises:
        ValueError: for another name.
    """
    return harness.pick(MAKERS, name, "policy")(problem, samples, **{"kernel": "rbf", **options})


@dataclass(frozen=True)
class Budget:
    """How much is run: seeds, evaluations, samples (None for the panel's) and options of the policies."""

    seeds: Sequence[int]
    steps: int
    samples: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def budget(scale: Scale) -> Budget:
    """What a scale runs."""
    effort = {"raw": 32, "starts": 2, "iterations": 10, "refit_every": 5}
    return harness.choose(scale, Budget(range(100, 103), 30, 128, effort), Budget(range(100, 105), 350))


def figure_1(
    panel: str,
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    folder: Path | None = None,
    only: Iterable[str] = POLICIES,
) -> Comparison[ContextProblem]:
    """One panel of Figure 1 ([Huang2024], section 4), or Figure 2 (Appendix D) as ``ackley_4``.

    Args:
        panel: a name in ``PANELS``.
        scale: see the module.
        seeds: others than those of the scale.
        folder: where curves are stored; see ``harness.run``.
        only: which policies. Default all of ``POLICIES``.

    Raises:
        ValueError: for another panel, policy or scale.
    """
    chosen, size = harness.pick(PANELS, panel, "panel"), budget(scale)
    problem, samples = chosen.make(), size.samples or chosen.samples
    policies = {name: make_policy(name, problem, samples, **size.options) for name in only}
    seeds = size.seeds if seeds is None else seeds
    steps = {name: min(size.steps, chosen.limits.get(name, size.steps)) for name in policies}
    keep = compact if folder else None
    return harness.run(problem, policies, steps, seeds, folder=folder, name=panel, keep=keep)


def slip(
    name: str, *, scale: Scale = "paper", seeds: Sequence[int] | None = None, folder: Path | None = None
) -> Comparison[ContextProblem]:
    """A policy with a slip, one of ``SLIPS``, under its name; arguments as in ``figure_1``."""
    chosen, size = harness.pick(SLIPS, name), budget(scale)
    problem = chosen.world(PANELS[chosen.panel].make())
    samples = size.samples or PANELS[chosen.panel].samples
    policy = chosen.make(problem.space, samples, **{"kernel": "rbf", **size.options})
    seeds, keep = size.seeds if seeds is None else seeds, compact if folder else None
    return harness.run(problem, {name: policy}, size.steps, seeds, folder=folder, name="slip", keep=keep)


def small_slip(name: str, folder: str | Path) -> Comparison[ContextProblem]:
    """A policy ``as written`` and with a ``slip``, one of ``SLIPS``, as the command stored them.

    Raises:
        ValueError: for another name, or if the folder lacks the curves.
    """
    chosen = harness.pick(SLIPS, name)
    right = stored(chosen.panel, folder, [chosen.policy])
    wrong = harness.load(right.problem, folder, "slip", [name])
    histories = {"as written": right.histories[chosen.policy], "slip": wrong.histories[name]}
    return Comparison(dict.fromkeys(histories, right.problem), histories)


def stored(panel: str, folder: str | Path, only: Sequence[str] = POLICIES) -> Comparison[ContextProblem]:
    """What the command stored of a panel.

    Raises:
        ValueError: if the folder holds nothing of it.
    """
    return harness.load(harness.pick(PANELS, panel, "panel").make(), folder, panel, only)


def compact(history: History, names: Sequence[str] = ("value", "observation")) -> History:
    """The curves of a run alone, in single precision: the values of the decisions, and what was seen."""
    return History({n: history[n].float() for n in names}, history.seeds, history.config, history.provenance)


def curves(comparison: Comparison[ContextProblem], measure: Kind = "regret") -> dict[str, Tensor]:
    """Cumulative regret, or reward, of each policy, ``replicates x T``, the initial design included.

    Raises:
        ValueError: for another measure.
    """
    return comparison.regrets(_measure(measure))


def final(comparison: Comparison[ContextProblem], measure: Kind = "regret", at: int | None = None) -> pd.DataFrame:
    """One row a policy, mean and standard error over replicates, the best policy first; see ``Comparison.final``."""
    frame = comparison.final(_measure(measure), "end" if at is None else at)
    return frame if measure == "regret" else frame[::-1]


def _measure(name: Kind) -> Callable[[History, ContextProblem], Tensor]:
    return harness.pick({"regret": cumulative_regret, "reward": lambda h, p: cumulative_reward(h)}, name, "measure")


def plot_comparison(axes: Axes, comparison: Comparison[ContextProblem], measure: Kind = "regret") -> None:
    """Cumulative regret or reward of each policy, mean and standard error over replicates.

    A policy looks as in the whole book.
    """
    slips = {"as written": {"color": figures.COLORS[0]}, "slip": {"color": figures.COLORS[1], "linestyle": "--"}}
    for name, curve in curves(comparison, measure).items():
        look = slips.get(name) or figures.style(name)
        figures.plot_replicates(axes, curve, name, spread="standard error", **look)
    axes.set(xlabel="evaluations", ylabel=f"cumulative {measure} (units of f)", title=comparison.problem.name)


def table_1(
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    evaluations: int = 100,
    only: Iterable[str] = POLICIES,
    efforts: Mapping[str, Mapping[str, Any]] | None = None,
) -> pd.DataFrame:
    """Seconds of evaluations on Ackley, of one run at a time and of a run in a batch ([Huang2024], Table 1).

    CPU time, so that other programs of a busy machine do not count; on one thread it is what a clock would show.

    Args:
        scale: two runs or the paper's ten, from seed 100 on.
        seeds: others.
        evaluations: of each run. The paper's are 100.
        only: which policies. Default all of ``POLICIES``.
        efforts: options by policy, such as ``paper_effort``. Default: the library's, with the squared exponential
            kernel.

    Returns:
        One row a policy: mean and standard error of the seconds of a run alone, those of a run when all run as one
        batch (not a number for one run), and the paper's. ``frame.attrs`` says on what.
    """
    problem, rows = problems.ackley(), {}
    seeds = harness.choose(scale, range(100, 102), range(100, 110)) if seeds is None else seeds
    runs = len(seeds)

    def seconds(name: str, seeds: Sequence[int]) -> float:
        policy = make_policy(name, problem, **(efforts or {}).get(name, {}))
        start = time.process_time()
        simulate(problem, policy, evaluations, seeds, progress=False)
        return time.process_time() - start

    for name in only:
        alone = [seconds(name, [seed]) for seed in seeds]
        together = seconds(name, seeds) / runs if runs > 1 else float("nan")
        spread = float(np.std(alone, ddof=1)) / runs**0.5 if runs > 1 else float("nan")
        paper, paper_error = PAPER_TABLE_1.get(name, (float("nan"), float("nan")))
        rows[name] = (float(np.mean(alone)), spread, together, paper, paper_error)
    columns = ["alone", "standard error", "in a batch", "paper", "paper's standard error"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    threads, cores = torch.get_num_threads(), os.cpu_count()
    frame.attrs = {
        "device": f"CPU ({platform.machine()}), {threads} thread{'s' * (threads > 1)} of {cores} cores",
        "evaluations": evaluations,
        "runs": runs,
        "torch": torch.__version__,
    }
    return frame


#: Raw points and starts of [Huang2024], Appendix B.1: 1,024 and 50, but for the two with an inner program.
PAPER_EFFORT: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(PAPER_TABLE_1, (1024, 50)),
    "DRBO-KDE": (32, 5),
    "DRBO-MMD": (32, 5),
}


def paper_effort(scale: Scale, raw: int, starts: int) -> dict[str, Any]:
    """Options of a policy with so many raw points and starts, a fit in every round and a Matérn kernel; or little."""
    raw, starts, iterations = harness.choose(scale, (16, 2, 5), (raw, starts, 200))
    return {"raw": raw, "starts": starts, "iterations": iterations, "refit_every": 1, "kernel": "matern"}


def step_seconds(
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    rounds: Sequence[int] = (11, 55, 100),
    only: Iterable[str] = tuple(PAPER_TABLE_1),
) -> pd.DataFrame:
    """CPU seconds of one step on Ackley at the paper's effort, a fit in each, at a few rounds ([Huang2024], Table 1).

    What was seen before the round are random decisions, the same for all; for whole runs see ``table_1``.

    Args:
        scale: the paper's effort, or a little.
        seeds: of the data; the median over them. Default one.
        rounds: three at equal distances.
        only: which policies.

    Returns:
        One row a policy and effort, the paper's or that of SBO-KDE: raw points, starts, the seconds of each of the
        rounds, those of the 90 rounds from 11 to 100 by Simpson's rule, the paper's and their standard error.
    """
    problem, rows = problems.ackley(), {}
    seeds = [0] if seeds is None else seeds
    efforts = [(name, effort) for name in only for effort in dict.fromkeys((PAPER_EFFORT[name], (1024, 50)))]
    for name, (raw, starts) in efforts:
        options, medians = paper_effort(scale, raw, starts), []
        raw, starts = options["raw"], options["starts"]
        for count in rounds:
            seconds = []
            for seed in seeds:
                generator = torch.Generator().manual_seed(seed)
                x = torch.rand(1, count - 1, 2, generator=generator, dtype=torch.float64)
                seen = problem.distribution.sample([generator], (count - 1,))
                policy = make_policy(name, problem, **options)
                policy.start([seed])
                policy.tell(x, problem.f(problem.space.join(x, seen)), context=seen)
                start = time.process_time()
                policy.ask()
                seconds.append(time.process_time() - start)
            medians.append(float(np.median(seconds)))
        first, middle, last = medians
        whole = 90 * (first + 4 * middle + last) / 6
        rows[f"{name}, {raw} and {starts}"] = (raw, starts, *medians, whole, *PAPER_TABLE_1[name])
        print(name, raw, starts, *[f"{value:.3g}" for value in medians], flush=True)
    columns = ["raw", "starts", *[f"round {count}" for count in rounds], "90 rounds", "paper", "paper's standard error"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.attrs = {"device": f"CPU ({platform.machine()}), 1 of its threads", "torch": torch.__version__}
    return frame


#: The policies whose steps are looked into: those of the paper, which search by gradients.
WORKED = ("SBO-KDE", "DRBO-KDE")


def step_work(
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    count: int = 55,
    only: Iterable[str] = WORKED,
) -> pd.DataFrame:
    """What one step on Ackley does at the paper's effort, after a policy's own decisions and after random ones.

    The own decisions are found with the reader's effort; the contexts are the same for both.

    Args:
        scale: the paper's effort, or a little.
        seeds: of the runs; medians over them. Default three.
        count: how many observations were made before the step.
        only: which policies.

    Returns:
        One row a policy and kind of decisions: the fitted lengthscale of the context, at how many contexts variances
        are computed, how often the search evaluates its starts, how often it would if it saw numbers that are not
        rounded, the mean share of the starts that still ask, and the CPU seconds of the search.
    """
    problem, rows = problems.ackley(), {}
    seeds = list(range(100, 103) if seeds is None else seeds)
    for name in only:
        own = make_policy(name, problem, 256, kernel="matern", **budget("reader").options)
        history = simulate(problem, own, count, seeds, progress=False)
        spread = torch.rand(history["query"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for kind, decisions in (("own", history["query"]), ("random", spread)):
            parts = [
                _search(name, problem, x[None], seen[None], scale)
                for x, seen in zip(decisions, history["context"], strict=True)
            ]
            rows[f"{name}, {kind}"] = np.median(parts, axis=0)
    columns = ["lengthscale", "contexts", "evaluations", "unrounded", "active", "seconds"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.attrs = {"device": f"CPU ({platform.machine()})", "torch": torch.__version__, "observations": count}
    return frame


def _search(
    name: str, problem: ContextProblem, x: Tensor, seen: Tensor, scale: Scale
) -> tuple[float, int, int, int, float, float]:
    """One row of ``step_work`` for one seed."""
    policy = make_policy(name, problem, **paper_effort(scale, *PAPER_EFFORT[name]))
    policy.start([0])
    policy.tell(x, problem.f(problem.space.join(x, seen)), context=seen)
    acquisition, box = policy.acquisition(policy.posteriors()), problem.space.decisions
    asked: list[Tensor] = []

    def values(points: Tensor) -> Tensor:
        if points.requires_grad:
            asked.append(points.detach().clone())
        return acquisition.values(points)

    start, raw = time.process_time(), policy.sobol(policy.raw, box)
    maximize_box(values, box, raw, policy.starts, policy.iterations, kinks=policy.kinks)
    seconds, evaluations = time.process_time() - start, len(asked)
    # A start that has nothing to ask is left out at kinks, and else it stands where it began.
    going = [points.shape[1] if policy.kinks else (points != asked[0]).any(-1).sum() for points in asked[1:]]
    active = (1 + float(sum(going)) / policy.starts) / evaluations
    asked.clear()
    maximize_box(values, box, raw, policy.starts, policy.iterations)
    fit = policy.surrogate.fit
    assert isinstance(acquisition, PartialAcquisition) and fit is not None
    completed = acquisition.completed(problem.space.decision_dim)
    assert isinstance(completed, PartialPosterior)  # the kernel is a product
    return float(fit.lengthscale[0, -1]), completed.chosen, evaluations, len(asked), active, seconds
