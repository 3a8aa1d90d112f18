"""A panel that answers: what averages of a width say about the function under them."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.indirect.problems import two_peaks
from cbo_lib import GaussianProcess, rbf_kernel
from cbo_lib.indirect import ClippedGaussian

ALT = (
    "A function with a narrow and a broad peak, the averages that were seen as points, and the posterior of the "
    "function as a line with a band of two standard deviations."
)
CAPTION = "Averages of width 0.3 still show the narrow peak of the function, averages of width 1 lose it."


def learn(width: float = 0.3, queries: int = 15, noise: float = 0.1) -> dict[str, Tensor]:
    """The posterior of f after evenly spaced averages.

    Args:
        width: the standard deviation of the inputs around an action.
        queries: how many averages were seen.
        noise: the standard deviation of their noise.
    """
    at = torch.linspace(-0.5, 3.5, 201, dtype=torch.float64)[:, None]
    actions = torch.linspace(-0.5, 3.5, queries, dtype=torch.float64)[:, None]
    averages = ClippedGaussian(lambda a: a, width).measure(actions, 20)
    seen = averages.expectation(two_peaks)
    seen = seen + noise * torch.randn(queries, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    posterior = GaussianProcess(rbf_kernel(0.25), noise).condition(averages, seen)
    points = type(averages).dirac(at)
    mean, std = posterior.mean(points), posterior.variance(points).clamp_min(0).sqrt()
    return {"x": at[:, 0], "f": two_peaks(at), "mean": mean, "std": std, "action": actions[:, 0], "seen": seen}


def draw(width: float = 0.3, queries: int = 15, noise: float = 0.1) -> Figure:
    """The function, what was seen and what is believed."""
    known = learn(width, queries, noise)
    figure, axes = figures.subplots(figsize=(7.2, 3.4))
    ax, x, mean, std = axes[0, 0], known["x"], known["mean"], known["std"]
    ax.plot(x, known["f"], "--", color=figures.COLORS[-1], label="f")
    ax.plot(known["action"], known["seen"], "o", color=figures.COLORS[1], markersize=4, label="averages seen")
    ax.plot(x, mean, color=figures.COLORS[0], label="posterior of f")
    ax.fill_between(x, mean - 2 * std, mean + 2 * std, color=figures.COLORS[0], alpha=0.2, linewidth=0)
    best = float(x[mean.argmax()])
    ax.axvline(best, color=figures.COLORS[0], linestyle=":", label=f"best by the mean, {best:.2f}")
    ax.set(xlabel="input x, or action a", ylabel="value (units of f)", ylim=(-1.3, 1.9))
    ax.legend(fontsize="x-small", ncols=2)
    return figure


def panel() -> figures.Panel:
    """The panel of the page."""
    widths, noises = [0.3, 0.05, 0.1, 0.2, 0.6, 1.0], [0.1, 0.01, 0.03, 0.3]
    return figures.Panel(draw, ALT, CAPTION, width=widths, queries=[15, 5, 10, 25, 50], noise=noises)
