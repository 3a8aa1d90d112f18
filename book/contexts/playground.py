"""The seller's decision in the published page, without a kernel: readers set the bandwidth and the radius.

``demand.js`` computes and draws. What it needs stands in the page as JSON: the demands of the days, the true density
and the true worth of each stock. Where no script runs, the page shows one picture, which is computed here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.contexts.problems import newsvendor
from book.steppers import embed
from cbo_lib.contexts import GaussianKDE, tv_worst_case
from cbo_lib.contexts.density import silverman_bandwidth
from cbo_lib.random import ReplicateGenerators

#: What the sliders offer: shares of the rule's bandwidth, and radii in L1.
SHARES = [round(k / 10, 1) for k in range(31)]
RADII = [round(k / 20, 2) for k in range(31)]
DAYS = 40


@cache
def settings() -> dict[str, Any]:
    """What ``demand.js`` runs with."""
    shop = newsvendor()
    demands = shop.distribution.sample(ReplicateGenerators([7]).generators, (DAYS,))[0, :, 0]
    stocks, grid = torch.linspace(0, 0.5, 101, dtype=torch.float64), torch.linspace(0, 0.7, 141, dtype=torch.float64)
    bells = torch.special.ndtri((torch.arange(8, dtype=torch.float64) + 0.5) / 8)
    return {
        "demands": [round(float(c), 3) for c in demands],
        "bells": [round(float(z), 4) for z in bells],
        "stocks": [round(float(x), 3) for x in stocks],
        "worth": [round(float(v), 5) for v in shop.value(stocks[:, None])],
        "grid": [round(float(c), 3) for c in grid],
        "density": [round(float(v), 3) for v in shop.distribution.density(grid[:, None])],
    }


def decide(share: float, radius: float, days: int) -> tuple[float, dict[str, Tensor]]:
    """The bandwidth, and what each rule expects of every stock, as ``demand.js`` computes it, by the library."""
    given, shop = settings(), newsvendor()
    seen, stocks = (torch.tensor(given[name], dtype=torch.float64)[:, None] for name in ("demands", "stocks"))
    seen = seen[:days]
    h = share * silverman_bandwidth(seen)
    nodes = (seen + h * torch.tensor(given["bells"], dtype=torch.float64)).reshape(-1, 1).clamp(0, 1)
    under = [shop.f(shop.space.join(stocks[:, None], points)) for points in (seen, nodes)]
    floor = shop.f(shop.space.join(stocks, torch.zeros(1, dtype=torch.float64)))
    worth = torch.tensor(given["worth"], dtype=torch.float64)
    return float(h), {
        "seen by nobody": worth,
        "plain average": under[0].mean(-1),
        "under the estimate": under[1].mean(-1),
        "worst in the ball": tv_worst_case(under[1], floor, radius),
    }


def picture(share: float, radius: float, days: int) -> Figure:
    """As ``demand.js`` draws it."""
    given, (h, curves) = settings(), decide(share, radius, days)
    figure, axes = figures.subplots(1, 2, figsize=(8, 3.3))
    left, right = axes[0]
    left.plot(given["grid"], given["density"], color=figures.COLORS[-1], label="p, seen by nobody")
    seen = torch.tensor(given["demands"][:days], dtype=torch.float64)[:, None]
    if h > 0.002:
        grid = torch.tensor(given["grid"], dtype=torch.float64)[:, None]
        density = GaussianKDE(seen, torch.tensor([h], dtype=torch.float64)).density(grid)
        left.plot(given["grid"], density, color=figures.COLORS[0], label="estimate")
    left.plot(seen[:, 0], torch.zeros(days), "|", color=figures.COLORS[1], markersize=10, label="days")
    left.set(xlabel="demand", ylabel="density", ylim=(0, 7))
    looks = ((figures.COLORS[-1], "-", ""), (figures.COLORS[5], ":", "o"), (figures.COLORS[0], "-", "s"))
    for (name, curve), (color, line, marker) in zip(
        curves.items(), (*looks, (figures.COLORS[1], "--", "D")), strict=True
    ):
        best = int(curve.argmax())
        right.plot(given["stocks"], curve, line, color=color, marker=marker, markevery=[best], label=name)
    right.set(xlabel="stock", ylabel="expected profit", ylim=(-1, 1))
    for axis in axes[0]:
        axis.legend(fontsize="x-small")
    return figure


def demand_playground(
    share: float = 1.0, radius: float = 0.4, days: int = 12, caption: str = "", name: str = ""
) -> HTML:
    """The seller's stock after some days, whose bandwidth, radius and days readers set in the page.

    Args:
        share: of the rule's bandwidth at first, one of ``SHARES``.
        radius: at first, one of ``RADII``.
        days: at first, from 2 to ``DAYS``.
        caption: what the reader should take from it, in a sentence.
        name: by which text refers to the figure.

    Raises:
        ValueError: for a value that the sliders do not have.
    """
    if share not in SHARES or radius not in RADII or not 2 <= days <= DAYS:
        raise ValueError(f"share, radius and days must be values of the sliders, got {share}, {radius} and {days}")
    given, (_, curves) = settings(), decide(share, radius, days)
    best = {name: given["stocks"][int(curve.argmax())] for name, curve in curves.items()}
    alt = (
        f"Left the density of the demand and its estimate from {days} days; right the expected profit of every stock: "
        + ", ".join(f"{name} is best at {stock:g}" for name, stock in best.items())
        + "."
    )
    data = {"kind": "demand", **given, "shares": SHARES, "radii": RADII, "start": days - 2}
    data |= {"start_share": SHARES.index(share), "start_radius": RADII.index(radius)}
    note = f"{days} of {DAYS} days. The others and the two sliders need JavaScript."
    still = str(figures.show(picture(share, radius, days), alt).data)
    return embed(data, still, note, "cbo-stepper cbo-answer", caption, name)
