"""When does caution help? Decisions on Complicated Hartmann and the newsvendor if f were known.

Nothing is explored then: all that is lost comes from the estimate of the density and from the ball around it. The
command makes the stored tables::

    python -m book run contexts.known_function contexts.discrepancy --scale paper --publish
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from botorch.test_functions import Hartmann
from torch import Tensor

from book import harness
from book.contexts import problems
from book.contexts.controls import ShareOfRadius, cross_validated_bandwidth, no_bandwidth
from book.contexts.experiments import RESULTS
from book.contexts.problem import ContextProblem
from book.harness import Scale
from cbo_lib.contexts.baselines import context_grid
from cbo_lib.contexts.density import silverman_bandwidth
from cbo_lib.contexts.worst_case import MMDBall, tv_average
from cbo_lib.former.maximize import maximize_box
from cbo_lib.kernels import matern_kernel, matrix
from cbo_lib.random import ReplicateGenerators

#: Bandwidths by name; without one the true distribution is known.
LAWS: Mapping[str, Callable[[Tensor], Tensor] | None] = {
    "known": None,
    "rule of thumb": silverman_bandwidth,
    "cross-validated": cross_validated_bandwidth,
    "empirical": no_bandwidth,
}
#: Of the radius ``t^(-2/5)``.
SHARES = (0.0, 0.5, 1.0, 2.0)


def nodes(law: str, contexts: Tensor, problem: ContextProblem, count: int = 512) -> Tensor:
    """Equally weighted points of a clipped law, ``replicates x count x 1``: quantiles of it, or of its parts.

    Args:
        law: a name in ``LAWS``.
        contexts: seen so far, ``replicates x n x 1``.
        problem: with one context.
        count: how many.
    """
    low, high = problem.space.contexts
    level = (torch.arange(count, dtype=contexts.dtype) + 0.5) / count
    bandwidth = harness.pick(LAWS, law, "law")
    if bandwidth is None:
        quantiles = problem.distribution.marginals[0].inverse_cdf(level).expand(len(contexts), -1)
    else:  # each kernel as 64 equally likely values
        bells = torch.special.ndtri((torch.arange(64, dtype=contexts.dtype) + 0.5) / 64)
        spread = bandwidth(contexts).unsqueeze(-2) * bells
        quantiles = (contexts + spread).flatten(1).quantile(level, dim=-1).mT
    return quantiles.unsqueeze(-1).clamp(low, high)


def decisions(
    problem: ContextProblem, contexts: Tensor, radius: float, raw: int = 512, starts: int = 6, cover: int = 257
) -> Tensor:
    """The best worst average of the true Hartmann function, ``replicates x 5``.

    Args:
        problem: Hartmann with one context, whose f is a sum of four products of a function of x and one of c.
        contexts: equally weighted, ``replicates x N x 1``.
        radius: L1, of the ball around them.
        raw: Sobol points that begin the search.
        starts: refined.
        cover: contexts that search the infimum.
    """
    function = Hartmann(dim=6, negate=True, dtype=torch.float64)
    grid = torch.linspace(0, 1, cover, dtype=contexts.dtype)[:, None].expand(len(contexts), -1, -1)
    both = torch.cat([contexts, grid], 1)
    slopes, centers, heights = (torch.as_tensor(part) for part in (function.A, function.P, function.ALPHA))
    count, centers = contexts.shape[1], 1e-4 * centers
    right = (-slopes[:, 5] * (both - centers[:, 5]).square()).exp()  # replicates N 4

    def values(x: Tensor) -> Tensor:
        gaps = (slopes[:, :5] * (x.unsqueeze(-2) - centers[:, :5]).square()).sum(-1)
        bounds = (heights * (-gaps).exp()) @ right.mT
        return tv_average(bounds[..., :count], bounds.amin(-1), radius, radius)

    engine = torch.quasirandom.SobolEngine(5, scramble=True, seed=0)
    points = engine.draw(raw, dtype=contexts.dtype).to(contexts)
    return maximize_box(values, problem.space.decisions, points, starts, 100)[0]


def known_function(
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    only: Iterable[str] = tuple(LAWS),
) -> pd.DataFrame:
    """What the decision loses after some contexts if f is known, by law and share of the radius.

    Args:
        scale: 40 runs at six counts of contexts, or 8 at two.
        seeds: others.
        only: which laws. Default all.

    Returns:
        One row a law, share and count, one column a seed: ``E_p f(x*, c) - E_p f(x, c)``.
    """
    problem, rows = problems.complicated_hartmann(), {}
    seeds = harness.choose(scale, range(100, 108), range(100, 140)) if seeds is None else seeds
    counts = harness.choose(scale, (10, 100), (10, 20, 50, 100, 200, 340))
    drawn = problem.distribution.sample(ReplicateGenerators(seeds).generators, (max(counts),))
    for law in only:
        for share in SHARES:
            for count in counts:
                around = nodes(law, drawn[:, :count], problem)
                if law == "known" and share == 0:
                    around = around[:1]
                x = decisions(problem, around, ShareOfRadius(1, share)(count + 1))
                lost = (problem.optimum - problem.value(x)).expand(len(seeds))
                rows[f"{law}, {share:g}, {count}"] = [round(float(value), 6) for value in lost]
    return pd.DataFrame.from_dict(rows, orient="index", columns=[str(seed) for seed in seeds])


def discrepancy(
    *,
    scale: Scale = "paper",
    seeds: Sequence[int] | None = None,
    only: Iterable[float] = (0.05, 0.2, 1.0),
) -> pd.DataFrame:
    """What DRBO-MMD would lose on the newsvendor if the profit were known, by lengthscale of its Matérn-5/2 kernel.

    Args:
        scale: 20 runs or 4.
        seeds: others.
        only: which lengthscales.

    Returns:
        One row a lengthscale and count of contexts: the mean stock, the mean loss and its standard error, and the share
        of the contexts on the grid at which all mass may sit.
    """
    problem, rows = problems.newsvendor(), {}
    seeds = harness.choose(scale, range(100, 104), range(100, 120)) if seeds is None else seeds
    drawn = problem.distribution.sample(ReplicateGenerators(seeds).generators, (349,))
    grid = context_grid(problem.space.contexts, 100)
    stocks = torch.linspace(0, 0.4, 41, dtype=grid.dtype)[:, None]
    profits = problem.f(problem.space.join(stocks.unsqueeze(1), grid)).expand(len(seeds), -1, -1)
    nearest = (drawn - grid[:, 0]).abs().argmin(-1)
    for scale_of_kernel in only:
        gram = matrix(matern_kernel(scale_of_kernel), grid)
        for count in (10, 50, 100, 200, 349):
            counts = torch.nn.functional.one_hot(nearest[:, :count], len(grid)).to(grid).mean(1)
            radius = (2 + math.sqrt(-2 * math.log(0.1))) / math.sqrt(count + 1)
            x = stocks[MMDBall(counts, gram, radius).worst_case(profits).argmax(-1)]
            lost = problem.optimum - problem.value(x)
            square = gram[0, 0] - 2 * counts @ gram + (counts @ gram * counts).sum(-1, keepdim=True)
            held = float((square <= radius**2).double().mean())
            numbers = (float(x.mean()), float(lost.mean()), float(lost.std()) / len(seeds) ** 0.5, held)
            rows[f"{scale_of_kernel}, {count}"] = [round(value, 6) for value in numbers]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["stock", "lost", "standard error", "held"])


def stored(folder: str | Path = RESULTS) -> pd.DataFrame:
    """What the command stored of ``known_function``, with law, share and count as index."""
    frame = harness.load_table(Path(folder) / "known_function.json")
    parts = [name.rsplit(", ", 2) for name in frame.index]
    keys = [(law, float(share), int(count)) for law, share, count in parts]
    frame.index = pd.MultiIndex.from_tuples(keys, names=["law", "share", "contexts"])
    return frame
