"""A panel that answers: the stock that is decided after a few demands, and after trusting their estimate less."""

from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.contexts.problems import newsvendor
from cbo_lib.contexts import GaussianKDE, tv_worst_case
from cbo_lib.random import ReplicateGenerators

ALT = (
    "Left, the density of the demand and its estimate. Right, the expected profit of each stock: the true one, that of "
    "the estimate, and the worst one within the radius, each with its best stock."
)
CAPTION = "A radius moves the decision to smaller stocks; 0.2 does so with each of five samples of ten demands."


@cache
def truth() -> tuple[Tensor, Tensor]:
    """A grid of stocks and their expected profit."""
    stocks = torch.linspace(0, 0.5, 126, dtype=torch.float64)[:, None]
    return stocks, newsvendor().value(stocks)


def decide(demands: int = 10, radius: float = 0.2, sample: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """The expected profit of a grid of stocks by each rule, and the estimated density over a grid of demands.

    Args:
        demands: how many demands were seen.
        radius: in L1, of the ball of densities that the last rule fears.
        sample: which demands were seen, a seed.
    """
    shop, (stocks, true) = newsvendor(), truth()
    seen = shop.distribution.sample(ReplicateGenerators([sample]).generators, (demands,))[0]
    estimate = GaussianKDE(seen)
    draws = estimate.sample(512, torch.Generator().manual_seed(sample), shop.space.contexts)
    profit = shop.f(shop.space.join(stocks[:, None], draws))
    worst = shop.f(shop.space.join(stocks[:, None], shop.space.contexts)).amin(-1)  # demand 0 or the largest
    rules = {
        "true": true,
        "estimated": profit.mean(-1),
        "worst in the ball": tv_worst_case(profit, worst, radius),
    }
    grid = torch.linspace(0, 0.7, 141, dtype=torch.float64)[:, None]
    return rules | {"stock": stocks[:, 0]}, estimate.density(grid)


def draw(demands: int = 10, radius: float = 0.2, sample: int = 0) -> Figure:
    """The estimate of the density and what each rule decides."""
    curves, density = decide(demands, radius, sample)
    stock = curves.pop("stock")
    shop, grid = newsvendor(), torch.linspace(0, 0.7, 141, dtype=torch.float64)
    figure, axes = figures.subplots(1, 2, figsize=(8, 3.2))
    axes[0, 0].plot(grid, shop.distribution.density(grid[:, None]), color=figures.COLORS[-1], label="true")
    axes[0, 0].plot(grid, density, "--", color=figures.COLORS[0], label=f"estimate of {demands}")
    axes[0, 0].set(xlabel="demand c", ylabel="density")
    axes[0, 0].legend(fontsize="small")
    styles = ((figures.COLORS[-1], "-", "o"), (figures.COLORS[0], "--", "s"), (figures.COLORS[1], "-.", "D"))
    true = curves["true"]
    for (name, curve), (color, line, marker) in zip(curves.items(), styles, strict=True):
        best = int(curve.argmax())
        lost = float(true.max() - true[best])
        axes[0, 1].plot(stock, curve, line, color=color, label=f"{name}, decision loses {lost:.3f}")
        axes[0, 1].plot(stock[best], curve[best], marker, color=color)
    axes[0, 1].set(xlabel="stock x", ylabel="expected profit", ylim=(-0.6, 0.9))
    axes[0, 1].legend(fontsize="x-small", loc="lower left")
    return figure


def panel() -> figures.Panel:
    """The panel of the page."""
    demands, radii = [10, 3, 30, 100, 1000], [0.2, 0.0, 0.05, 0.5, 1.0, 2.0]
    return figures.Panel(draw, ALT, CAPTION, demands=demands, radius=radii, sample=[0, 1, 2, 3, 4])
