"""Where CMES and MES on g would ask next on the river, by the width of the blur: a slider in the published page."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from IPython.display import HTML
from matplotlib.figure import Figure
from torch import Tensor

from book import figures
from book.indirect.experiments import peaks_policies, peaks_problem
from cbo_lib.measure import Measure

#: Widths that the slider offers, in kilometers, and what was asked before.
WIDTHS = tuple(round(0.03 * k, 2) for k in range(1, 14))
ASKED = (-0.4, 0.0, 0.3, 0.7, 1.0, 1.4, 1.7, 1.9, 2.1, 2.3, 2.6, 3.0, 3.4)


@dataclass(frozen=True)
class Answer:
    """What is known after the answers of ``ASKED``, and what is asked next.

    Attributes:
        x, f, g: places, and the functions there.
        mean, std: of f.
        cmes, mes: the next actions.
        gap: between the maxima of f and g.
    """

    x: Tensor
    f: Tensor
    g: Tensor
    mean: Tensor
    std: Tensor
    cmes: float
    mes: float
    gap: float


@functools.cache
@torch.no_grad()
def answer(width: float) -> Answer:
    """What both policies make of thirteen answers without noise, at a width of the blur."""
    problem = peaks_problem(width, 201)
    space = problem.space
    policies = peaks_policies(space, width)
    asked = space.actions[space.nearest(torch.tensor(ASKED, dtype=torch.float64)[:, None])]
    after = {}
    for name in ("CMES", "MES on g"):
        batch = policies[name].start([0])
        batch.learn(asked.unsqueeze(0), problem.g[0, space.nearest(asked)].unsqueeze(0))
        after[name] = float(batch.ask()[0, 0]), batch
    points = Measure.dirac(torch.cat([space.points, torch.zeros_like(space.points)], -1))
    mean, variance = after["CMES"][1].posterior.mean_and_variance(points)
    values, gap = problem.values[0], float(problem.optimum - problem.g.max())
    found = space.points[:, 0], values, problem.g[0], mean[0], variance[0].sqrt()
    return Answer(*found, after["CMES"][0], after["MES on g"][0], gap)


def picture(width: float) -> Figure:
    """One frame."""
    now, (blue, red, *_) = answer(width), figures.COLORS
    figure, axes = figures.subplots(figsize=(7.2, 4))
    axis = axes[0, 0]
    axis.plot(now.x, now.f, "--", color="0.4", label="f, seen by nobody")
    axis.plot(now.x, now.g, color=red, label="g, what is averaged")
    axis.fill_between(now.x, now.mean - 2 * now.std, now.mean + 2 * now.std, color=blue, alpha=0.15, linewidth=0)
    axis.plot(now.x, now.mean, color=blue, label="belief about f")
    axis.plot(ASKED, [-0.75] * len(ASKED), "|", color="black", markersize=10, label="asked before")
    axis.axvline(now.cmes, color=blue, linestyle="-.", label="CMES asks next")
    axis.axvline(now.mes, color=red, linestyle=":", linewidth=2, label="MES on g asks next")
    axis.set(xlabel="place x, or action a (km)", ylabel="concentration", xlim=(-0.5, 3.5), ylim=(-0.9, 1.9))
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def blur_playground(start: int = 4, caption: str = "", name: str = "") -> HTML:
    """The river at every width of ``WIDTHS``; the frame ``start`` shows where no script runs."""
    answers = [answer(width) for width in WIDTHS]
    labels = [f"width {width:.2f} km, gap {now.gap:.2f}" for width, now in zip(WIDTHS, answers, strict=True)]
    alts = [
        f"At a blur of {width:.2f} km the gap between the maxima of f and g is {now.gap:.2f}; CMES asks at "
        f"{now.cmes:.2f} next, MES on g at {now.mes:.2f}."
        for width, now in zip(WIDTHS, answers, strict=True)
    ]
    return figures.slider([picture(width) for width in WIDTHS], labels, alts, "Width", start, caption, name)
