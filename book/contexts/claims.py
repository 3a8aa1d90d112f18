"""The claims of the paper as paired differences: what was run to decide them, and the map of verdicts.

Each entry of ``MAP`` and ``STUDIES`` has policies with the same seeds, so the same initial design and the same
contexts. The command runs it as one batch and stores values and lengthscales::

    python -m book run contexts.map --parts 'newsvendor*' --scale paper --publish

Horizons differ, as a round of one policy takes longer than that of another: a run ends where its time was over, not
where its result was good. ``decide`` compares two policies at the shorter of their horizons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ProductKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from matplotlib.axes import Axes

from book import figures, harness
from book.contexts import experiments
from book.contexts.controls import (
    CautiousKnownDensity,
    FixedDiscrepancy,
    OtherEstimate,
    ShareOfRadius,
    cross_validated_bandwidth,
    no_bandwidth,
)
from book.contexts.experiments import PANELS, POLICIES, RESULTS, compact
from book.contexts.problem import ContextProblem
from book.contexts.regret import cumulative_regret
from book.contexts.slips import PUBLISHED, SLIPS, RawContexts
from book.harness import Comparison, Scale
from cbo_lib.contexts.policies import ContextPolicy
from cbo_lib.contexts.space import Space

#: The two methods of the paper against GP-UCB, and against each other: who is claimed to be better, and than whom.
PAIRS = (("SBO-KDE", "GP-UCB"), ("DRBO-KDE", "GP-UCB"), ("SBO-KDE", "DRBO-KDE"))


def _other(p: ContextProblem, n: int, bandwidth: Callable[[torch.Tensor], torch.Tensor], **o: Any) -> ContextPolicy:
    return OtherEstimate(p.space, samples=n, cover=n, bandwidth=bandwidth, **o)


def _discrepancy(length: float, p: ContextProblem, n: int, **o: Any) -> ContextPolicy:
    return FixedDiscrepancy(p.space, lengthscale=length, **o)


def _radius(share: float, p: ContextProblem, n: int, **o: Any) -> ContextPolicy:
    return experiments.MAKERS["DRBO-KDE"](p, n, radius=ShareOfRadius(p.space.context_dim, share), **o)


#: The policies of the map: those of the panels, and the two methods with other estimates and other radii.
MAKERS: Mapping[str, Callable[..., ContextPolicy]] = {
    **experiments.MAKERS,
    "DRBO, density known": lambda p, n, **o: CautiousKnownDensity(
        p.space, distribution=p.distribution, samples=n, cover=n, **o
    ),
    "SBO, cross-validated": lambda p, n, **o: _other(p, n, cross_validated_bandwidth, radius=0, **o),
    "SBO, empirical law": lambda p, n, **o: _other(p, n, no_bandwidth, radius=0, **o),
    "GP-UCB, as written": experiments.MAKERS["GP-UCB"],
    "GP-UCB, root of beta": lambda p, n, **o: SLIPS["root of beta"].make(p.space, n, **o),
    "DRBO-KDE, half": functools.partial(_radius, 0.5),
    "DRBO-KDE, twice": functools.partial(_radius, 2.0),
    **{f"DRBO-MMD, {length:g}": functools.partial(_discrepancy, length) for length in (0.05, 0.2, 1.0)},
}


def older_kernel(space: Space, contexts: bool = True, product: bool = True) -> Kernel:
    """Matérn-5/2 with the priors that were BoTorch's default when [Huang2024] was written.

    Gamma(3, 6) of every lengthscale, at least 0.005, and an output scale with Gamma(2, 0.15); all on the unit box.

    Args:
        space: of the problem.
        contexts: whether the model has them.
        product: whether the kernel then is one of a kernel of decisions and one of contexts, or one kernel of both, as
            in the published code.
    """

    def part(first: int, end: int) -> Kernel:
        prior = GammaPrior(3.0, 6.0)
        dims = tuple(range(first, end)) if contexts else None
        ends = GreaterThan(5e-3, transform=None, initial_value=prior.mode)
        return MaternKernel(
            2.5, ard_num_dims=end - first, active_dims=dims, lengthscale_prior=prior, lengthscale_constraint=ends
        )

    split = space.decision_dim
    both = ProductKernel(part(0, split), part(split, space.dim)) if product else part(0, space.dim)
    base = both if contexts else part(0, split)
    prior = GammaPrior(2.0, 0.15)
    ends = GreaterThan(1e-4, transform=None, initial_value=prior.mode)
    return ScaleKernel(base, outputscale_prior=prior, outputscale_constraint=ends)


@dataclass(frozen=True)
class Entry:
    """Policies on one panel with one kernel.

    Args:
        panel: a name in ``PANELS``.
        steps: evaluations by policy of ``MAKERS``, the initial design of ten included.
        seeds: from 100 on.
        kernel: of the model; ``"older"`` is ``older_kernel``, and ``"published"`` the same as one kernel of decisions
            and contexts, with the policies and the contexts of the published code, see ``slips.PUBLISHED``.
        effort: options of all policies other than their defaults, and their number of samples, ``samples``.
    """

    panel: str
    steps: Mapping[str, int]
    seeds: Sequence[int] = range(100, 120)
    kernel: Literal["matern", "rbf", "older", "published"] = "matern"
    effort: Mapping[str, Any] = field(default_factory=dict)

    def policy(self, name: str, problem: ContextProblem, samples: int, **options: Any) -> ContextPolicy:
        """One of ``MAKERS`` with the kernel and the effort of the entry."""
        options = {**options, **self.effort}
        count = options.pop("samples", samples)
        kernel: str | Kernel = self.kernel
        if self.kernel in ("older", "published"):
            kernel = older_kernel(problem.space, name != "GP-UCB", self.kernel == "older")
        if self.kernel == "published" and name in PUBLISHED:
            return PUBLISHED[name](problem.space, count, kernel=kernel, **options)
        return harness.pick(MAKERS, name, "policy")(problem, count, kernel=kernel, **options)

    def problem(self) -> ContextProblem:
        """That of the panel; in the published code the learner sees contexts before they are clipped."""
        problem = PANELS[self.panel].make()
        return RawContexts.of(problem) if self.kernel == "published" else problem


#: An effort that a short study can afford: a quarter of the samples and raw points, and fits after five observations.
SHORT: Mapping[str, Any] = {"samples": 256, "raw": 32, "iterations": 10, "refit_every": 5}

#: The same with all samples, so that covers and grids are those of the paper: 1,024 and, with four contexts, 1,296.
GRIDS: Mapping[str, Any] = {**SHORT, "samples": 1024}

#: An effort for the whole horizon: half of the library's samples, the raw points and iterations of the short one, and
#: fits whenever the data have grown by a tenth, as in the library.
LONG: Mapping[str, Any] = {"samples": 512, "raw": 32, "iterations": 10}

#: The baselines beside GP-UCB that look at contexts.
BASELINES = ("StableOpt", "DRBO-MMD-MinimaxApprox", "DRBO-MMD")

#: The panels with one and two contexts, by their names in the map.
SEVEN: Mapping[str, str] = {
    "newsvendor": "newsvendor",
    "ackley": "ackley",
    "branin": "branin",
    "hartmann": "hartmann",
    "mixture": "complicated_hartmann",
    "portfolio, uniform": "portfolio_uniform",
    "portfolio, normal": "portfolio_normal",
}

#: Who runs beside the map on a panel, where it is not the baselines alone.
BESIDE: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("portfolio, normal", "portfolio, uniform"), (*BASELINES, "DRBO-KDE")
)

#: SBO-KDE, DRBO-KDE, the known density and GP-UCB.
FOUR = ("GP-UCB", "SBO-KDE", "DRBO-KDE", "SBO, density known")

#: What was run, by name; see above for the horizons.
MAP: Mapping[str, Entry] = {
    "newsvendor": Entry("newsvendor", dict.fromkeys(FOUR, 86)),
    "ackley": Entry("ackley", dict.fromkeys(FOUR, 68)),
    "branin": Entry("branin", {"SBO-KDE": 106, "DRBO-KDE": 60, "GP-UCB": 106, "SBO, density known": 106}),
    "portfolio, normal": Entry("portfolio_normal", {"SBO-KDE": 42, "GP-UCB": 42, "SBO, density known": 42}),
    "portfolio, uniform": Entry("portfolio_uniform", {"SBO-KDE": 86, "GP-UCB": 86, "SBO, density known": 60}),
    "hartmann": Entry("hartmann", dict.fromkeys(FOUR, 50), effort=SHORT),
    "ackley, four contexts": Entry("ackley_4", dict.fromkeys(FOUR, 30), effort=GRIDS),
    "newsvendor, long": Entry("newsvendor", {"SBO-KDE": 296, "GP-UCB": 296}, range(100, 105)),
    "newsvendor, whole": Entry("newsvendor", {"SBO-KDE": 350, "GP-UCB": 350}, range(100, 105), effort=LONG),
    "ackley, long": Entry("ackley", {"SBO-KDE": 320, "GP-UCB": 320}, range(100, 104)),
}

#: What is told apart on Complicated Hartmann, the priors of today and of the time of the paper, radii, and baselines.
STUDIES: Mapping[str, Entry] = {
    "mixture": Entry(
        "complicated_hartmann",
        dict.fromkeys(
            (
                "SBO, density known",
                "SBO-KDE",
                "DRBO-KDE",
                "SBO, cross-validated",
                "DRBO, density known",
                "SBO, empirical law",
                "GP-UCB",
            ),
            50,
        ),
        effort=SHORT,
    ),
    "newsvendor, older": Entry("newsvendor", {"GP-UCB": 50, "SBO-KDE": 50}, kernel="older", effort=SHORT),
    "newsvendor, today": Entry("newsvendor", {"GP-UCB": 50, "SBO-KDE": 50}, effort=SHORT),
    "ackley, older": Entry("ackley", {"GP-UCB": 50, "SBO-KDE": 50}, kernel="older", effort=SHORT),
    "ackley, today": Entry("ackley", {"GP-UCB": 50, "SBO-KDE": 50}, effort=SHORT),
    "ackley, four contexts, baselines": Entry("ackley_4", dict.fromkeys(BASELINES, 30), range(100, 105), effort=GRIDS),
    "newsvendor, radius": Entry(
        "newsvendor", {"DRBO-KDE": 50, "DRBO-KDE, half": 50, "DRBO-KDE, twice": 50}, effort=SHORT
    ),
    "ackley, radius": Entry("ackley", {"DRBO-KDE": 50, "DRBO-KDE, half": 30, "DRBO-KDE, twice": 30}, effort=SHORT),
    **{
        f"{name}, baselines": Entry(
            panel,
            dict.fromkeys(BESIDE.get(name, BASELINES), 50 if name == "newsvendor" else 30),
            range(100, 110),
            effort=SHORT,
        )
        for name, panel in SEVEN.items()
    },
    **{
        f"ackley, multiplier, {kernel}": Entry(
            "ackley", {"GP-UCB, as written": 350, "GP-UCB, root of beta": 350}, kernel=kernel
        )
        for kernel in ("rbf", "matern")
    },
    "newsvendor, discrepancy": Entry(
        "newsvendor", {"DRBO-MMD, 0.05": 30, "DRBO-MMD, 0.2": 50, "DRBO-MMD, 1": 50}, range(100, 110), effort=SHORT
    ),
    **{
        f"{name}, published": Entry(
            name, {"SBO-KDE": 50, "GP-UCB": 50}, range(100, 110), kernel="published", effort=SHORT
        )
        for name in ("newsvendor", "ackley")
    },
}

#: What the paper's figures would take: all panels whole, with the four at twenty seeds and the others at ten. None of
#: it is stored; see the page of the experiments for what it costs.
WHOLE: Mapping[str, Entry] = {
    **{f"whole, {panel}": Entry(panel, dict.fromkeys(FOUR, 350)) for panel in PANELS},
    **{
        f"whole, {panel}, others": Entry(
            panel, dict.fromkeys(("StableOpt", "DRBO-MMD", "DRBO-MMD-MinimaxApprox"), 350), range(100, 110)
        )
        for panel in PANELS
    },
}


def run(
    name: str, *, scale: Scale = "paper", seeds: Sequence[int] | None = None, folder: Path | None = None
) -> Comparison[ContextProblem]:
    """Run an entry of ``MAP``, ``STUDIES`` or ``WHOLE``.

    All of it, or three of its seeds for 30 evaluations with the reader's effort.

    Args:
        name: of the entry.
        scale: ``"paper"`` or ``"reader"``.
        seeds: others than its own.
        folder: where runs are stored; see ``harness.run``.

    Raises:
        ValueError: for another entry or scale.
    """
    entry, size = harness.pick({**MAP, **STUDIES, **WHOLE}, name), experiments.budget(scale)
    problem = entry.problem()
    samples = size.samples or PANELS[entry.panel].samples
    policies = {policy: entry.policy(policy, problem, samples, **size.options) for policy in entry.steps}
    whole = scale == "paper"
    steps = {policy: count if whole else min(count, size.steps) for policy, count in entry.steps.items()}
    seeds = (entry.seeds if whole else entry.seeds[:3]) if seeds is None else seeds
    keep = functools.partial(compact, names=("value", "lengthscale")) if folder else None
    return harness.run(problem, policies, steps, seeds, folder=folder, name=file_of(name), keep=keep)


def stored(name: str, folder: str | Path = RESULTS) -> Comparison[ContextProblem]:
    """What the command stored of an entry of ``MAP``, ``STUDIES`` or ``WHOLE``.

    Raises:
        ValueError: for another entry, or if the folder holds nothing of it.
    """
    entry = harness.pick({**MAP, **STUDIES, **WHOLE}, name)
    return harness.load(entry.problem(), folder, file_of(name), list(entry.steps))


def mark(entry: Entry) -> str:
    """How a table marks its effort: short ``" s"``, short with whole grids ``" g"``, long ``" l"``; or nothing."""
    marks = ((" s", SHORT), (" g", GRIDS), (" l", LONG))
    return next((letter for letter, effort in marks if entry.effort == effort), "")


def sizes() -> pd.DataFrame:
    """Seeds and evaluations by panel and policy with the Matérn kernel and the priors of today.

    Of several runs the one with the most seeds, and of those the longest; see ``mark``.
    """
    table: dict[str, dict[str, tuple[int, int, str]]] = {panel: {} for panel in PANELS}
    for entry in {**MAP, **STUDIES}.values():
        if entry.kernel == "matern":
            for policy, steps in entry.steps.items():
                row, size = table[entry.panel], (len(entry.seeds), steps, mark(entry))
                row[policy] = max(row.get(policy, size), size)
    rows = {
        panel: {policy: f"{n} x {t}{effort}" for policy, (n, t, effort) in row.items() if policy in POLICIES}
        for panel, row in table.items()
    }
    columns = [policy for policy in POLICIES if policy != "random"]
    return pd.DataFrame.from_dict(rows, orient="index").reindex(columns=columns).fillna("-")


def file_of(name: str) -> str:
    """The beginning of the names of its files."""
    return "map-" + name.replace(", ", "-").replace(" ", "_")


def cut(runs: Comparison[ContextProblem], seeds: int, steps: int) -> Comparison[ContextProblem]:
    """The first seeds and steps of runs, so that two can be compared at the same n and t."""
    histories = {
        name: replace(h, tensors={k: v[:seeds, :steps] for k, v in h.tensors.items()}, seeds=h.seeds[:seeds])
        for name, h in runs.histories.items()
    }
    return Comparison(runs.problems, histories)


def decide(
    title: str, kernel: str, runs: Comparison[ContextProblem], pairs: Sequence[tuple[str, str]] = PAIRS
) -> pd.DataFrame:
    """Paired differences of cumulative regret, rival minus policy: positive speaks for the policy.

    Args:
        title: of the panel.
        kernel: of the model.
        runs: with the same seeds.
        pairs: policy and rival; pairs of which one was not run are left out.

    Returns:
        One row a pair: panel, kernel, policy, rival, seeds ``n``, evaluations ``t``, the mean difference after ``t``,
        the ends of its 95 % interval, the median, the share of seeds in which the policy wins, the shares in which
        the policy and the rival fail (regret above twice the median of the policy), the mean regret of the rival, the
        verdict after ``t``, and that on the average over rounds.
    """
    rows = []
    for policy, rival in pairs:
        if policy not in runs.histories or rival not in runs.histories:
            continue
        end, mean = (runs.paired(cumulative_regret, policy, rival, at) for at in ("end", "mean"))
        t = min(runs.histories[name].steps for name in (policy, rival))
        own, other = (
            cumulative_regret(runs.histories[name], runs.problems[name])[:, t - 1] for name in (policy, rival)
        )
        failed = float((other > 2 * own.double().quantile(0.5)).double().mean())
        numbers = (end.n, t, end.mean, end.low, end.high, end.median, float((own < other).double().mean()))
        scores = (end.failures, failed, float(other.mean()), end.verdict, mean.verdict)
        rows.append((title, kernel, policy, rival, *numbers, *scores))
    columns = "panel kernel policy rival n t mean low high median wins fails rival_fails rival_regret verdict average"
    return pd.DataFrame(rows, columns=columns.split())


def table(frame: pd.DataFrame, digits: int = 1) -> pd.DataFrame:
    """The rows of ``decide`` as a table of what a reader compares."""
    rows = []
    for row in frame.itertuples():
        interval = f"{row.mean:.{digits}f} ({row.low:.{digits}f}, {row.high:.{digits}f})"
        numbers = (row.n, row.t, interval, f"{row.median:.{digits}f}", f"{row.wins:.0%}", row.verdict, row.average)
        rows.append((f"{row.panel}: {row.policy} before {row.rival}", *numbers))
    columns = ["claim", "n", "t", "difference, 95 %", "median", "wins", "verdict", "on average"]
    return pd.DataFrame(rows, columns=columns)


def plot(axes: Axes, frame: pd.DataFrame) -> None:
    """Rows of ``decide`` as dots with intervals, in percent of the regret of the rival."""
    looks = {
        "holds": (figures.COLORS[2], "o"),
        "fails": (figures.COLORS[1], "s"),
        "undecided": (figures.COLORS[-1], "D"),
    }
    for y, row in enumerate(frame.itertuples()):
        color, mark = looks[row.verdict]
        share = 100 / row.rival_regret
        half = share * (row.high - row.low) / 2
        axes.errorbar(share * row.mean, y, xerr=half, capsize=3, color=color, marker=mark)
    axes.axvline(0, color=figures.COLORS[-1], linewidth=1)
    labels = [f"{row.panel}: {row.policy} before {row.rival}, n {row.n}, t {row.t}" for row in frame.itertuples()]
    axes.set_yticks(range(len(labels)), labels, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("regret saved, percent of the rival's")


def other_panels(folder: str | Path = RESULTS) -> pd.DataFrame:
    """Both methods of the paper against every baseline with the squared exponential kernel: five seeds, 350."""
    frames = []
    for panel in PANELS:
        runs = experiments.stored(panel, folder)
        rivals = [name for name in POLICIES if name not in ("SBO-KDE", "DRBO-KDE", "random")]
        pairs = [(policy, rival) for policy in ("SBO-KDE", "DRBO-KDE") for rival in rivals] + [PAIRS[-1]]
        frames.append(decide(panel, "rbf", runs, pairs))
    return pd.concat(frames, ignore_index=True)
