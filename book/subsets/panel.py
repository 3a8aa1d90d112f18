"""A panel that answers: which subset is good enough, when the others vary more or less and less will do."""

from functools import cache

import torch
from matplotlib.figure import Figure

from book import figures
from book.subsets.drawing import names
from book.subsets.problem import SubsetProblem
from book.subsets.problems import plant

ALT = (
    "Bars of the best value of each control set of the plant, with its mean cost: hatched if it is not good enough, "
    "and in another color the cheapest that is. A line shows what is good enough."
)
CAPTION = "Only the full set reaches the best value; a tenth less is reached by a pair at a hundredth of its cost."


@cache
def problem(variance: float) -> SubsetProblem:
    """The plant whose variables have a variance; it keeps its best values, so that another alpha answers at once."""
    return plant("cheap", variance)


def chosen(variance: float = 0.04, alpha: float = 0.1) -> tuple[str, list[str]]:
    """The cheapest subset that is good enough, and all that are."""
    plants = problem(variance)
    good = [name for name, ok in zip(names(plants), plants.acceptable(alpha).tolist(), strict=True) if ok]
    return names(plants)[plants.cheapest(alpha)], good


def draw(variance: float = 0.04, alpha: float = 0.1) -> Figure:
    """The best value of each subset, and which are good enough."""
    plants, (cheapest, good) = problem(variance), chosen(variance, alpha)
    figure, axes = figures.subplots(figsize=(7.2, 3.4))
    ax = axes[0, 0]
    for row, (name, value) in enumerate(zip(names(plants), plants.best_values.tolist(), strict=True)):
        color = figures.COLORS[1] if name == cheapest else figures.COLORS[0]
        ax.bar(row, value, color=color, alpha=1 if name in good else 0.35, hatch=None if name in good else "//")
    enough = (1 - alpha) * float(plants.best_values.max())
    ax.axhline(enough, color=figures.COLORS[-1], linestyle="--", label=f"good enough, {enough:.2f}")
    price = float(plants.cost_means[plants.cheapest(alpha)])
    ax.plot([], [], "s", color=figures.COLORS[1], label=f"{cheapest}: {100 / price:,.0f} plays for a budget of 100")
    ticks = [f"{name}\n{cost:g}" for name, cost in zip(names(plants), plants.cost_means.tolist(), strict=True)]
    ax.set(xticks=torch.arange(plants.space.m), xticklabels=ticks)
    ax.set(xlabel="control set, and its mean cost", ylabel="best value (units of f)", ylim=(0, None))
    ax.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return figure


def panel() -> figures.Panel:
    """The panel of the page."""
    variances, alphas = [0.04, 0.005, 0.01, 0.02, 0.06], [0.1, 0.0, 0.02, 0.05, 0.2, 0.4]
    return figures.Panel(draw, ALT, CAPTION, variance=variances, alpha=alphas)
