"""A panel that answers: what one more measurement says about the candidates."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.hyperparameters.problems import LENGTHSCALES, lengthscale_candidates, slope_and_peak
from cbo_lib import Measure

ALT = (
    "Left, the posteriors of the shortest and the longest lengthscale through three measurements and one more, with "
    "the function. Right, how probable the five candidates are after the data."
)
CAPTION = (
    "A measurement on the hidden peak makes the lengthscale 0.4 the most probable, one between the others the longest."
)


def believe(where: float = 0.2, noise: float = 0.1) -> dict[str, Tensor]:
    """The posteriors of all candidates and their probabilities, if all were equally likely before.

    Args:
        where: the fourth measurement.
        noise: the standard deviation of the noise that the models expect.
    """
    x = torch.tensor([[0.45], [0.65], [0.9], [where]], dtype=torch.float64)
    offsets = torch.tensor([0.3, -0.5, 0.2, 0.0], dtype=torch.float64)
    y = slope_and_peak(x) + noise * offsets
    posterior = lengthscale_candidates(LENGTHSCALES).prior(noise).condition(Measure.dirac(x), y)
    grid = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
    mean, variance = posterior.mean(Measure.dirac(grid)), posterior.variance(Measure.dirac(grid))
    share = posterior.log_marginal_likelihood.softmax(-1)
    return {"x": x[:, 0], "y": y, "grid": grid[:, 0], "mean": mean, "std": variance.clamp_min(0).sqrt(), "share": share}


def draw(where: float = 0.2, noise: float = 0.1) -> Figure:
    """Two posteriors, and the probabilities of all candidates."""
    known = believe(where, noise)
    grid = known["grid"]
    figure, axes = figures.subplots(1, 2, figsize=(8, 3.2), width_ratios=[3, 2])
    axes[0, 0].plot(grid, slope_and_peak(grid[:, None]), "--", color=figures.COLORS[-1], label="f")
    for u, color, line in ((0, figures.COLORS[0], "-"), (-1, figures.COLORS[1], "-.")):
        mean, std = known["mean"][u], known["std"][u]
        axes[0, 0].plot(grid, mean, line, color=color, label=f"lengthscale {LENGTHSCALES[u]}")
        axes[0, 0].fill_between(grid, mean - 2 * std, mean + 2 * std, color=color, alpha=0.2, linewidth=0)
    axes[0, 0].plot(known["x"], known["y"], "o", color=figures.COLORS[-1], label="seen")
    axes[0, 0].set(xlabel="x", ylabel="f (units of f)", ylim=(-1.5, 2.2))
    axes[0, 0].legend(fontsize="x-small", ncols=2)
    axes[0, 1].bar([f"{ell:g}" for ell in LENGTHSCALES], known["share"].tolist(), color=figures.COLORS[0])
    axes[0, 1].set(xlabel="lengthscale", ylabel="probability after the data", ylim=(0, 1))
    return figure


def panel() -> figures.Panel:
    """The panel of the page."""
    return figures.Panel(
        draw, ALT, CAPTION, where=[0.2, 0.0, 0.1, 0.3, 0.55, 0.75, 1.0], noise=[0.1, 0.02, 0.05, 0.2, 0.5]
    )
